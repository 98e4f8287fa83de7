//! Errors of configurations and handshakes.

use std::io;

use super::config::PskRefusal;

/// Keys or certificates that cannot be used. The text never holds a part of them.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct TlsConfigError {
    pub(super) what: &'static str,
    pub(super) reason: String,
}

impl TlsConfigError {
    pub(super) fn new(what: &'static str, error: &s2n_tls::error::Error) -> TlsConfigError {
        TlsConfigError { what, reason: error.message().to_owned() }
    }
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum TlsFailure {
    /// The client's pre-shared keys do not allow it.
    #[error("{0}")]
    Psk(PskRefusal),
    /// The certificate of the peer is missing, or not trusted, or is for other names.
    #[error("the peer's certificate is refused: {0}")]
    Certificate(String),
    /// The peer broke the protocol, or has no version or cipher suite in common with this side.
    #[error("the TLS handshake failed: {0}")]
    Protocol(String),
    /// The peer refused, with this alert (RFC 8446, section 6).
    #[error("the peer refused the TLS handshake: {}", alert_name(*.0))]
    Alert(u8),
    /// The peer closed the connection.
    #[error("the peer closed the connection during the TLS handshake")]
    Closed,
    /// System error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Name of an alert that a handshake may end with.
fn alert_name(alert: u8) -> String {
    let name = match alert {
        10 => "unexpected message",
        20 => "bad record",
        40 => "handshake failure",
        42 => "bad certificate",
        43 => "unsupported certificate",
        44 => "certificate revoked",
        45 => "certificate expired",
        46 => "unknown certificate",
        47 => "illegal parameter",
        48 => "unknown certificate authority",
        50 => "malformed message",
        51 => "decrypt error: another key",
        70 => "protocol version",
        71 => "insufficient security",
        80 => "internal error",
        90 => "canceled",
        109 => "missing extension",
        112 => "unrecognized name",
        115 => "unknown PSK identity",
        116 => "certificate required",
        other => return format!("alert {other}"),
    };
    name.to_owned()
}

impl From<TlsFailure> for io::Error {
    fn from(failure: TlsFailure) -> io::Error {
        match failure {
            TlsFailure::Io(error) => error,
            TlsFailure::Closed => io::ErrorKind::UnexpectedEof.into(),
            other => io::Error::new(io::ErrorKind::PermissionDenied, other.to_string()),
        }
    }
}
