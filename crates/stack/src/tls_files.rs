//! Certificates and pre-shared keys of NBD with TLS, in the files that QEMU, nbdkit and libnbd use:
//! a directory with `ca-cert.pem`, `server-cert.pem`, `server-key.pem`, `client-cert.pem` and
//! `client-key.pem`, and a file with `NAME:HEX` on each line, as `psktool` of GnuTLS makes it.
//!
//! A name may have two keys while one replaces the other. A client proves the first one.
//!
//! Files of keys pass the checks of [`keys`]. An error never contains a key.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flagstone_auth::RING_SECRETS;
use flagstone_auth::tls::{Psk, PskHash};
use flagstone_config::device_spec::{DeviceSpec, NbdTlsSpec, NbdTlsTrust};
use flagstone_config::{Config, Nbd};
use flagstone_nbd::{NbdTlsClient, NbdTlsKeys};
use flagstone_runtime::tls::{ClientIdentity, ServerTrust, TlsClient, TlsConfigError, TlsServer};
use flagstone_transport::{PskChooser, PskKeys, tls_psk};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::keys::{self, KeyError};

/// Largest file, in bytes: a bundle of authorities has up to some 200 KiB, and a PSK some 100 B.
const FILE_BYTES: u64 = 1 << 20;

/// Files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// A file of keys.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A file of certificates.
    #[error("{path}: {error}", path = path.display())]
    Certificate {
        /// Its path.
        path: PathBuf,
        /// Why it cannot be read.
        error: std::io::Error,
    },
    /// A line that is no `NAME:HEX`.
    #[error("{path}, line {line}: write NAME:HEX with at least 32 hexadecimal digits, as psktool does", path = path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line.
        line: usize,
    },
    /// A line with one key too many for its name.
    #[error("{path}, line {line}: write one key for a name, or two while one replaces the other", path = path.display())]
    Count {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line.
        line: usize,
    },
    /// No key has the name.
    #[error("{path}: it has no key of `{name}`", path = path.display())]
    NoName {
        /// Path of the file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// Contents that the TLS library refuses.
    #[error("{path}: {error}", path = path.display())]
    Refused {
        /// Path of the file or directory.
        path: PathBuf,
        /// What is refused.
        error: TlsConfigError,
    },
}

/// TLS of the NBD listeners.
///
/// # Errors
/// A file cannot be used.
pub fn server(nbd: &Nbd) -> Result<NbdTlsKeys, TlsFileError> {
    let psks = nbd.tls_psk_file.as_deref().map(read_psks).transpose()?;
    let psks = psks.map(|psks| Arc::new(NamedPsks(psks)));
    let chooser = |psks: &Arc<NamedPsks>| Arc::new(PskChooser(psks.clone()));
    let Some(folder) = &nbd.tls_certificates else {
        let path = nbd.tls_psk_file.clone().unwrap_or_default();
        let psks = psks.unwrap_or_else(|| Arc::new(NamedPsks(Psks::new())));
        let made = TlsServer::with_psks(chooser(&psks));
        let server = made.map_err(|error| TlsFileError::Refused { path, error })?;
        return Ok(NbdTlsKeys { server, psks: Some(psks) });
    };
    let own = identity(folder, "server")?;
    let authorities = match nbd.tls_verify_clients {
        true => Some(certificate(&folder.join("ca-cert.pem"))?),
        false => None,
    };
    let offered = psks.as_ref().map(|psks| chooser(psks) as _);
    let made = TlsServer::with_certificate(&own, authorities.as_deref(), offered);
    let server = made.map_err(|error| TlsFileError::Refused { path: folder.clone(), error })?;
    Ok(NbdTlsKeys { server, psks: psks.map(|psks| psks as _) })
}

/// The files of the NBD listeners that cannot be used, if the configuration has such with TLS.
pub fn check(config: &Config) -> Option<TlsFileError> {
    let encrypts = config.server.listen.iter().any(|one| one.spec.is_nbd_with_tls());
    encrypts.then(|| server(&config.server.nbd).err()).flatten()
}

/// TLS of remote exports, whose files [`read_clients_again`] reads.
static CLIENTS: Mutex<Vec<KnownClient>> = Mutex::new(Vec::new());

struct KnownClient {
    spec: NbdTlsSpec,
    host: String,
    client: NbdTlsClient,
}

/// TLS of a remote NBD export. `host` is its name if the specification has no other. Every export
/// with the same specification has the same.
///
/// # Errors
/// A file cannot be used.
pub fn client(spec: &NbdTlsSpec, host: &str) -> Result<NbdTlsClient, TlsFileError> {
    let read = read_client(spec, host)?;
    let mut clients = CLIENTS.lock();
    if let Some(known) = clients.iter().find(|known| known.spec == *spec && known.host == host) {
        known.client.replace(read);
        return Ok(known.client.clone());
    }
    let client = NbdTlsClient::new(read);
    let host = host.to_owned();
    clients.push(KnownClient { spec: spec.clone(), host, client: client.clone() });
    Ok(client)
}

/// Reads the files of all remote exports. Nothing changes before the caller replaces the clients.
/// Those of an export that `next`, the configuration of the next start, does not name any more may
/// be missing: its keys stay.
///
/// # Errors
/// All other files that cannot be used.
pub fn read_clients_again(
    next: &Config,
) -> Result<Vec<(NbdTlsClient, TlsClient)>, Vec<TlsFileError>> {
    let devices = next.volumes.iter().flat_map(|volume| volume.backing.devices());
    let named: Vec<_> = devices
        .filter_map(|device| match device {
            DeviceSpec::Nbd(spec) => spec.tls.as_ref(),
            _ => None,
        })
        .collect();
    let (mut read, mut errors) = (Vec::new(), Vec::new());
    for KnownClient { spec, host, client } in CLIENTS.lock().iter() {
        match read_client(spec, host) {
            Ok(again) => read.push((client.clone(), again)),
            Err(error) if named.contains(&spec) => errors.push(error),
            Err(error) => tracing::warn!("its keys stay in use until the next start: {error}"),
        }
    }
    if errors.is_empty() { Ok(read) } else { Err(errors) }
}

fn read_client(spec: &NbdTlsSpec, host: &str) -> Result<TlsClient, TlsFileError> {
    let (path, made) = match &spec.trust {
        NbdTlsTrust::Psk { file, name } => {
            let psks = read_psks(file)?;
            let missing = || TlsFileError::NoName { path: file.clone(), name: name.clone() };
            let secrets = psks.get(name.as_bytes()).ok_or_else(missing)?;
            let identity = name.as_bytes();
            let first = secrets.iter().take(1).map(|secret| psk(identity, secret, PskHash::Sha256));
            (file.clone(), TlsClient::with_psks(first.map(tls_psk).collect()))
        }
        NbdTlsTrust::Certificates { folder } => {
            let has_own = folder.join("client-cert.pem").exists();
            let trust = ServerTrust {
                authorities: Some(certificate(&folder.join("ca-cert.pem"))?),
                server_name: spec.server_name.clone().unwrap_or_else(|| host.to_owned()),
                identity: has_own.then(|| identity(folder, "client")).transpose()?,
            };
            (folder.clone(), TlsClient::with_trust(&trust))
        }
        NbdTlsTrust::System => {
            let server_name = spec.server_name.clone().unwrap_or_else(|| host.to_owned());
            let trust = ServerTrust { authorities: None, server_name, identity: None };
            (PathBuf::from("the authorities of this system"), TlsClient::with_trust(&trust))
        }
    };
    made.map_err(|error| TlsFileError::Refused { path, error })
}

/// Certificate and key of a `server` or `client`.
fn identity(folder: &Path, role: &str) -> Result<ClientIdentity, TlsFileError> {
    let key = keys::read_private(&folder.join(format!("{role}-key.pem")), FILE_BYTES)?;
    Ok(ClientIdentity {
        chain: certificate(&folder.join(format!("{role}-cert.pem")))?,
        key: Zeroizing::new(key.as_bytes().to_vec()),
    })
}

fn certificate(path: &Path) -> Result<Vec<u8>, TlsFileError> {
    let failed = |error| TlsFileError::Certificate { path: path.to_owned(), error };
    // Read at the start and when an operator asks for it; no simulated run has files.
    #[expect(clippy::disallowed_methods)]
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut contents = Vec::new();
    file.take(FILE_BYTES).read_to_end(&mut contents).map_err(failed)?;
    Ok(contents)
}

/// Secrets by name, at least one each.
type Psks = BTreeMap<Vec<u8>, Vec<Zeroizing<Vec<u8>>>>;

fn read_psks(path: &Path) -> Result<Psks, TlsFileError> {
    let text = keys::read_private(path, FILE_BYTES)?;
    let mut psks = Psks::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let named = line.rsplit_once(':').and_then(|(name, hex)| Some((name, secret(hex)?)));
        let bad = || TlsFileError::Line { path: path.to_owned(), line: index + 1 };
        let (name, secret) = named.filter(|(name, _)| !name.is_empty()).ok_or_else(bad)?;
        let secrets = psks.entry(name.as_bytes().to_vec()).or_default();
        if secrets.len() == RING_SECRETS {
            return Err(TlsFileError::Count { path: path.to_owned(), line: index + 1 });
        }
        secrets.push(secret);
    }
    Ok(psks)
}

/// Secret of at least 16 bytes in hexadecimal digits.
fn secret(hex: &str) -> Option<Zeroizing<Vec<u8>>> {
    keys::from_hex(hex).filter(|bytes| bytes.len() >= 16)
}

/// Keys by name.
struct NamedPsks(Psks);

impl PskKeys for NamedPsks {
    fn candidates(&self, identity: &[u8]) -> Vec<Psk> {
        let secrets = self.0.get(identity).into_iter().flatten();
        let both = [PskHash::Sha256, PskHash::Sha384];
        secrets.flat_map(|secret| both.map(|hash| psk(identity, secret, hash))).collect()
    }
}

fn psk(identity: &[u8], secret: &Zeroizing<Vec<u8>>, hash: PskHash) -> Psk {
    Psk { identity: identity.to_vec(), secret: secret.clone(), hash }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn file(folder: &tempfile::TempDir, text: &str, mode: u32) -> PathBuf {
        let path = folder.path().join("psk");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn psk_files_are_read_and_refused_without_keys() {
        let folder = tempfile::tempdir().unwrap();
        let good = "# pool\nalice:000102030405060708090a0b0c0d0e0f\n\na:b:FF0102030405060708090A0B0C0D0E0F\n";
        let psks = read_psks(&file(&folder, good, 0o600)).unwrap();
        assert_eq!(psks.len(), 2);
        assert_eq!(psks[&b"alice"[..]][0][15], 15);
        assert_eq!(psks[&b"a:b"[..]][0][0], 255);
        for (text, mode, part) in [
            ("alice:0001", 0o600, "line 1"),
            ("alice:000102030405060708090a0b0c0d0e0g", 0o600, "line 1"),
            (":000102030405060708090a0b0c0d0e0f", 0o600, "line 1"),
            (good, 0o644, "chmod 600"),
            (&good.replace("a:b:FF", "alice:00").repeat(2), 0o600, "line 6: write one key"),
        ] {
            let error = read_psks(&file(&folder, text, mode)).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("0001"), "{error}");
        }
    }

    #[test]
    fn name_with_two_keys_accepts_both_and_proves_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["000102030405060708090a0b0c0d0e0f", "ff0102030405060708090a0b0c0d0e0f"];
        let both = format!("alice:{new}\nbob:{old}\nalice:{old}\n");
        let path = file(&folder, &both, 0o600);
        let psks = NamedPsks(read_psks(&path).unwrap());
        let known = |name: &[u8]| -> Vec<_> {
            psks.candidates(name).iter().map(|psk| (psk.secret[0], psk.hash)).collect()
        };
        let (short, long) = (PskHash::Sha256, PskHash::Sha384);
        assert_eq!(known(b"alice"), [(255, short), (255, long), (0, short), (0, long)]);
        assert_eq!(known(b"bob"), [(0, short), (0, long)]);
        assert!(known(b"carol").is_empty());
    }

    #[test]
    fn clients_are_read_again_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder, "alice:000102030405060708090a0b0c0d0e0f\n", 0o600);
        let spec = |name: &str| NbdTlsSpec {
            trust: NbdTlsTrust::Psk { file: path.clone(), name: name.to_owned() },
            server_name: None,
        };
        client(&spec("alice"), "host").unwrap();
        assert!(client(&spec("bob"), "host").is_err());
        client(&spec("alice"), "host").unwrap();
        let device = format!("nbds://alice@host/x?tls-psk-file={}", path.display());
        let text = format!("[volume.v]\ndevice = {device:?}\n");
        let config = Config::parse("f", &text).unwrap_or_else(|error| panic!("{error}"));
        let none = Config::parse("f", "[volume.v]\ndevice = \"null:1GiB\"\n");
        assert_eq!(read_clients_again(&config).unwrap().len(), 1);
        file(&folder, "bob:000102030405060708090a0b0c0d0e0f\n", 0o600);
        client(&spec("bob"), "host").unwrap();
        assert_eq!(read_clients_again(&none.ok().unwrap()).unwrap().len(), 1, "bob's");
        let errors = read_clients_again(&config).unwrap_err();
        assert!(matches!(&errors[..], [TlsFileError::NoName { name, .. }] if name == "alice"));
    }
}
