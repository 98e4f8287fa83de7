//! Certificates and pre-shared keys of NBD with TLS, in the files that QEMU, nbdkit and libnbd use: a
//! directory with `ca-cert.pem`, `server-cert.pem`, `server-key.pem`, `client-cert.pem` and
//! `client-key.pem`, and a file with `NAME:HEX` on each line, as `psktool` of GnuTLS makes it.
//!
//! Files of keys pass the checks of [`keys`]. An error never contains a key.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flagstone_auth::tls::{Hello, Psk, PskHash as Hash};
use flagstone_config::device_spec::{NbdTlsSpec, NbdTlsTrust};
use flagstone_config::{Config, Nbd};
use flagstone_runtime::tls::{
    ClientIdentity, PskChoice, PskHash, PskRefusal, PskServer, TlsClient, TlsConfigError, TlsPsk,
    TlsServer, Trust,
};
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
pub fn server(nbd: &Nbd) -> Result<TlsServer, TlsFileError> {
    let psks = nbd.tls_psk_file.as_deref().map(read_psks).transpose()?;
    let psks = psks.map(|psks| Arc::new(NamedPsks(psks)) as Arc<dyn PskServer>);
    let Some(folder) = &nbd.tls_certificates else {
        let path = nbd.tls_psk_file.clone().unwrap_or_default();
        let psks = psks.unwrap_or_else(|| Arc::new(NamedPsks(BTreeMap::new())));
        return TlsServer::with_psks(psks).map_err(|error| TlsFileError::Refused { path, error });
    };
    let own = identity(folder, "server")?;
    let authorities = match nbd.tls_verify_clients {
        true => Some(certificate(&folder.join("ca-cert.pem"))?),
        false => None,
    };
    let made = TlsServer::with_certificate(&own, authorities.as_deref(), psks);
    made.map_err(|error| TlsFileError::Refused { path: folder.clone(), error })
}

/// The files of the NBD listeners that cannot be used, if the configuration has such with TLS.
pub fn check(config: &Config) -> Option<TlsFileError> {
    let encrypts = config.server.listen.iter().any(|one| one.spec.is_nbd_with_tls());
    encrypts.then(|| server(&config.server.nbd).err()).flatten()
}

/// TLS of a remote NBD export. `host` is its name if the specification has no other.
///
/// # Errors
/// A file cannot be used.
pub fn client(spec: &NbdTlsSpec, host: &str) -> Result<TlsClient, TlsFileError> {
    let (path, made) = match &spec.trust {
        NbdTlsTrust::Psk { file, name } => {
            let mut psks = read_psks(file)?;
            let missing = || TlsFileError::NoName { path: file.clone(), name: name.clone() };
            let secret = psks.remove(name.as_bytes()).ok_or_else(missing)?;
            let identity = name.clone().into_bytes();
            let psk = TlsPsk { identity, secret, hash: PskHash::Sha256 };
            (file.clone(), TlsClient::with_psks(vec![psk]))
        }
        NbdTlsTrust::Certificates { folder } => {
            let has_own = folder.join("client-cert.pem").exists();
            let trust = Trust {
                authorities: Some(certificate(&folder.join("ca-cert.pem"))?),
                server_name: spec.server_name.clone().unwrap_or_else(|| host.to_owned()),
                identity: has_own.then(|| identity(folder, "client")).transpose()?,
            };
            (folder.clone(), TlsClient::with_trust(&trust))
        }
        NbdTlsTrust::System => {
            let server_name = spec.server_name.clone().unwrap_or_else(|| host.to_owned());
            let trust = Trust { authorities: None, server_name, identity: None };
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

type Psks = BTreeMap<Vec<u8>, Zeroizing<Vec<u8>>>;

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
        psks.insert(name.as_bytes().to_vec(), secret);
    }
    Ok(psks)
}

/// Secret of at least 16 bytes in hexadecimal digits.
fn secret(hex: &str) -> Option<Zeroizing<Vec<u8>>> {
    keys::from_hex(hex).filter(|bytes| bytes.len() >= 16)
}

/// Keys by name.
struct NamedPsks(Psks);

impl PskServer for NamedPsks {
    fn choose(&self, hello: &[u8]) -> PskChoice {
        let Ok(hello) = Hello::parse(hello) else {
            return PskChoice::Refuse(PskRefusal::Malformed);
        };
        let Some(first) = hello.identities.first() else { return PskChoice::NoneOffered };
        let mut known = None;
        for (index, offered) in hello.identities.iter().enumerate() {
            let Some(secret) = self.0.get(*offered) else { continue };
            for hash in [Hash::Sha256, Hash::Sha384] {
                let psk = Psk { identity: offered.to_vec(), secret: secret.clone(), hash };
                if hello.proves(index, &psk) {
                    let hash = match hash {
                        Hash::Sha256 => PskHash::Sha256,
                        Hash::Sha384 => PskHash::Sha384,
                    };
                    let Psk { identity, secret, .. } = psk;
                    return PskChoice::Use(TlsPsk { identity, secret, hash });
                }
            }
            known = Some(offered.to_vec());
        }
        PskChoice::Refuse(match known {
            Some(identity) => PskRefusal::WrongKey(identity),
            None => PskRefusal::UnknownIdentity(first.to_vec()),
        })
    }
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
        assert_eq!(psks[&b"alice"[..]][15], 15);
        assert_eq!(psks[&b"a:b"[..]][0], 255);
        for (text, mode, part) in [
            ("alice:0001", 0o600, "line 1"),
            ("alice:000102030405060708090a0b0c0d0e0g", 0o600, "line 1"),
            (":000102030405060708090a0b0c0d0e0f", 0o600, "line 1"),
            (good, 0o644, "chmod 600"),
        ] {
            let error = read_psks(&file(&folder, text, mode)).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("0001"), "{error}");
        }
    }
}
