//! Addresses of the control API and of the metrics: their grammar, and the default socket paths.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::device_spec::is_socket_path;
use crate::limits::MAX_SOCKET_PATH_BYTES;
use crate::uri::{AuthorityError, parse_authority};

/// TCP port of the metrics when none is given.
pub const METRICS_PORT: u16 = 9469;

/// TCP port of the API over TLS when none is given.
pub const API_TLS_PORT: u16 = 9468;

/// Folder of the socket for users who may write there.
const SYSTEM_FOLDER: &str = "/run/flagstone";

const SOCKET_NAME: &str = "flagstone.sock";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ApiSpec {
    /// The first of [`default_sockets`] that can be created; no API if none can.
    #[default]
    Default,
    None,
    /// This Unix socket. If it cannot be created, the server does not start.
    Socket(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "write the path of a Unix socket with a `/` in it, at most {MAX_SOCKET_PATH_BYTES} bytes, such as /run/flagstone/flagstone.sock; or none"
)]
pub struct ApiSpecError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetricsError {
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("`{0}` is a name: write an IP address, such as 127.0.0.1:{METRICS_PORT}; or none")]
    Name(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiTlsError {
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("`{0}` is a name: write an IP address, such as 0.0.0.0:{API_TLS_PORT}")]
    Name(String),
}

impl FromStr for ApiSpec {
    type Err = ApiSpecError;

    /// A word without a slash is more likely a mistake than a socket in some directory.
    fn from_str(text: &str) -> Result<ApiSpec, ApiSpecError> {
        match text {
            "none" => Ok(ApiSpec::None),
            path if path.contains('/') && is_socket_path(path) => Ok(ApiSpec::Socket(path.into())),
            _ => Err(ApiSpecError),
        }
    }
}

/// Reads the address of the metrics; `None` of `none`.
pub fn parse_metrics(text: &str) -> Result<Option<SocketAddr>, MetricsError> {
    if text == "none" {
        return Ok(None);
    }
    let address = parse_authority(text, METRICS_PORT)?;
    let named = || MetricsError::Name(address.host.to_string());
    address.socket_addr().ok_or_else(named).map(Some)
}

/// Reads the address of the API over TLS.
pub fn parse_api_tls(text: &str) -> Result<SocketAddr, ApiTlsError> {
    let address = parse_authority(text, API_TLS_PORT)?;
    let named = || ApiTlsError::Name(address.host.to_string());
    address.socket_addr().ok_or_else(named)
}

/// Default sockets of the API, in the order in which they are tried.
pub fn default_sockets() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let own = own.map(|folder| PathBuf::from(folder).join("flagstone"));
    let folders = std::iter::once(PathBuf::from(SYSTEM_FOLDER)).chain(own);
    folders.map(|folder| folder.join(SOCKET_NAME)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets() {
        let socket = |path: &str| Ok(ApiSpec::Socket(path.into()));
        for (text, expected) in [
            ("none", Ok(ApiSpec::None)),
            ("/run/a.sock", socket("/run/a.sock")),
            ("./a.sock", socket("./a.sock")),
            ("off", Err(ApiSpecError)),
            ("", Err(ApiSpecError)),
            ("/a\0", Err(ApiSpecError)),
        ] {
            assert_eq!(text.parse(), expected, "{text}");
        }
        assert_eq!(format!("/{}", "x".repeat(107)).parse::<ApiSpec>(), Err(ApiSpecError));
    }

    #[test]
    fn metrics() {
        let address = |text: &str| Ok(Some(text.parse().unwrap()));
        for (text, expected) in [
            ("none", Ok(None)),
            ("127.0.0.1", address("127.0.0.1:9469")),
            ("[::]:80", address("[::]:80")),
            ("0.0.0.0:0", address("0.0.0.0:0")),
            ("localhost", Err(MetricsError::Name("localhost".into()))),
            ("127.0.0.1:x", Err(MetricsError::Authority(AuthorityError::BadPort(9469)))),
        ] {
            assert_eq!(parse_metrics(text), expected, "{text}");
        }
    }
}
