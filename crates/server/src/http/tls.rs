//! TLS 1.3 of the API: certificates and keys from PEM files, for the server and the client. A
//! client of an object store also speaks TLS 1.2.
//!
//! rustls does the protocol and aws-lc the cryptography. Sessions are not resumed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::http::limits::MAX_PEM_BYTES;

/// Where distributions keep the authorities that the machine trusts.
const SYSTEM_AUTHORITIES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// A file that cannot be used for TLS. The text names the file and never has its contents.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct TlsError {
    path: PathBuf,
    problem: String,
}

/// Certificate and key of a side.
#[derive(Clone, Copy, Debug)]
pub struct OwnCertificate<'a> {
    /// The certificate, then certificates of intermediate authorities.
    pub certificate: &'a Path,
    /// The private key, readable only by its owner.
    pub key: &'a Path,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn unusable(path: &Path) -> impl Fn(String) -> TlsError + '_ {
    move |problem| TlsError { path: path.to_owned(), problem }
}

/// Check of client certificates by the authorities in `client_ca`.
///
/// # Errors
/// The file cannot be used.
pub fn client_verifier(client_ca: &Path) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::new(authorities(client_ca)?);
    // Users with tokens have no certificate.
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
    let verifier = verifier.allow_unauthenticated().build();
    verifier.map_err(|error| unusable(client_ca)(error.to_string()))
}

/// Configuration of a server that accepts the client certificates that `verifier` accepts.
///
/// # Errors
/// A file cannot be used.
pub fn server_config(
    own: OwnCertificate<'_>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<ServerConfig, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unusable(own.certificate)(error.to_string()))?;
    let builder = match verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    let (chain, key) = read(own)?;
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| unusable(own.certificate)(error.to_string()))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Configuration of a client that trusts the authorities in `ca`, or the machine's.
///
/// # Errors
/// A file cannot be used.
pub fn client_config(
    ca: Option<&Path>,
    own: Option<OwnCertificate<'_>>,
) -> Result<ClientConfig, TlsError> {
    client_config_of(&[&TLS13], ca, own)
}

/// As [`client_config`], for a server that is not ours: also TLS 1.2, which many object stores on
/// premises speak, with forward secrecy and authenticated encryption only.
///
/// # Errors
/// A file cannot be used.
pub fn store_client_config(ca: Option<&Path>) -> Result<ClientConfig, TlsError> {
    let mut config = client_config_of(&[&TLS13, &TLS12], ca, None)?;
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn client_config_of(
    versions: &[&'static SupportedProtocolVersion],
    ca: Option<&Path>,
    own: Option<OwnCertificate<'_>>,
) -> Result<ClientConfig, TlsError> {
    let system = || SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.exists());
    let ca = ca.or_else(system).unwrap_or(Path::new(SYSTEM_AUTHORITIES[0]));
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(|error| unusable(ca)(error.to_string()))?
        .with_root_certificates(authorities(ca)?);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let (chain, key) = read(own)?;
            let made = builder.with_client_auth_cert(chain, key);
            made.map_err(|error| unusable(own.certificate)(error.to_string()))?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The authorities of a file. Certificates that rustls cannot use are ignored.
fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(path)?);
    match roots.is_empty() {
        true => Err(unusable(path)("it has no certificate of an authority".to_owned())),
        false => Ok(roots),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = bounded(path)?;
    let read = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    match read {
        Err(error) => Err(unusable(path)(format!("it is not PEM: {error}"))),
        Ok(none) if none.is_empty() => Err(unusable(path)("it has no certificate".to_owned())),
        Ok(certificates) => Ok(certificates),
    }
}

/// Certificates are public, so that others may read their file.
fn bounded(path: &Path) -> Result<Vec<u8>, TlsError> {
    let length = std::fs::metadata(path).map_err(|error| unusable(path)(error.to_string()))?.len();
    if length > MAX_PEM_BYTES {
        return Err(unusable(path)(format!("it has more than {MAX_PEM_BYTES} bytes")));
    }
    std::fs::read(path).map_err(|error| unusable(path)(error.to_string()))
}

type ChainAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn read(own: OwnCertificate<'_>) -> Result<ChainAndKey, TlsError> {
    let chain = certificates(own.certificate)?;
    let text = flagstone_stack::private_file::read(own.key, MAX_PEM_BYTES)
        .map_err(|error| unusable(own.key)(error.to_string()))?;
    // The parser's error names no part of the key.
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|_| unusable(own.key)("it has no private key in PEM".to_owned()))?;
    Ok((chain, key))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;
    use std::time::Duration;

    use flagstone_config::ApiRole;
    use rustls::pki_types::{ServerName, UnixTime};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::http::access::{Credentials, User, Users};

    /// A certificate of 127.0.0.1 and its key, in this folder.
    fn certificate(folder: &Path) -> [PathBuf; 2] {
        let text = "[req]\ndistinguished_name=dn\nx509_extensions=ext\nprompt=no\n[dn]\nCN=store\n\
                    [ext]\nbasicConstraints=critical,CA:FALSE\nsubjectAltName=IP:127.0.0.1\n";
        let [config, certificate, key] = ["config", "pem", "key"].map(|name| folder.join(name));
        std::fs::write(&config, text).expect("it can be written");
        let arguments = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
        let mut command = Command::new("openssl");
        command.args(arguments.split(' ')).arg("-config").arg(config);
        command.arg("-out").arg(&certificate).arg("-keyout").arg(&key);
        let made = command.output().expect("openssl is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&key, private).expect("own file");
        [certificate, key]
    }

    fn agree(server: ServerConfig, client: ClientConfig) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (acceptor, connector) =
            (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)));
        runtime.block_on(async {
            let (near, far) = tokio::io::duplex(1 << 16);
            let name = ServerName::try_from("127.0.0.1").expect("an address");
            let (accepted, connected) =
                tokio::join!(acceptor.accept(far), connector.connect(name, near));
            accepted.is_ok() && connected.is_ok()
        })
    }

    /// Connections stayed authorized when the authority of their certificates was replaced.
    #[test]
    fn certificates_are_checked_again_after_a_reload() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        let files = folders.each_ref().map(|folder| certificate(folder.path()));
        let credentials = |ca: Option<&PathBuf>| {
            let own = OwnCertificate { certificate: &files[0][0], key: &files[0][1] };
            let verifier = ca.map(|ca| client_verifier(ca).expect("a sound file"));
            let tls = Arc::new(server_config(own, verifier.clone()).expect("sound files"));
            let certificate = Some(ServerName::try_from("127.0.0.1").expect("an address"));
            let (name, role) = ("carol".into(), ApiRole::Operator);
            let users = vec![User { name, role, tokens: Vec::new(), certificate }];
            Credentials { tls, verifier, users }
        };
        let chain = certificates(&files[0][0]).expect("a sound file");
        let users = Users::new(credentials(Some(&files[0][0])));
        let day = |days: u64| {
            UnixTime::since_unix_epoch(
                UnixTime::now()
                    .as_secs()
                    .checked_add(days * 86_400)
                    .map(Duration::from_secs)
                    .unwrap(),
            )
        };
        assert!(users.user_with_certificate(&chain, day(0)).is_some());
        assert_eq!(users.user_with_certificate(&chain, day(3)), None, "it has expired");
        for ca in [Some(&files[1][0]), None] {
            users.replace(credentials(ca));
            assert_eq!(users.user_with_certificate(&chain, day(0)), None, "{ca:?}");
        }
    }

    /// Object stores on premises often speak nothing newer; the API and etcd do.
    #[test]
    fn only_clients_of_stores_accept_tls_1_2() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [certificate, key] = certificate(folder.path());
        let own = OwnCertificate { certificate: &certificate, key: &key };
        let server = |version: &'static SupportedProtocolVersion| {
            let (chain, key) = read(own).expect("sound files");
            ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(&[version])
                .expect("a version")
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .expect("a certificate")
        };
        let ca = Some(certificate.as_path());
        for (version, is_accepted) in [(&TLS12, false), (&TLS13, true)] {
            let of_store = store_client_config(ca).expect("a sound file");
            assert!(agree(server(version), of_store), "{version:?}");
            let client = client_config(ca, None).expect("a sound file");
            assert_eq!(agree(server(version), client), is_accepted, "{version:?}");
        }
        let own = server_config(own, None).expect("sound files");
        assert!(agree(own, store_client_config(ca).expect("a sound file")));
    }
}
