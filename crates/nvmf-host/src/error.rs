//! Errors of connecting to a target, and causes of lost connections.

use std::io;

use flagstone_auth::HostFailure;
use flagstone_nvme::pdu::{Fatal, PduViolation};
use flagstone_nvme::{FabricsType, Status};
use flagstone_runtime::net::may_pass;
use flagstone_runtime::time::Elapsed;
use flagstone_runtime::tls::TlsFailure;

use flagstone_transport::RxError;

/// Error between this host and a target.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The TCP connection failed.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    /// The target closed the connection.
    #[error("the target closed the connection")]
    Closed,
    /// The target did not answer in time.
    #[error("the target did not answer in time")]
    TimedOut,
    /// Data from the target was corrupted in transit.
    #[error("data from the target failed its digest check")]
    Damaged,
    /// The target violated the protocol.
    #[error("the target violated the NVMe/TCP protocol: {0}")]
    Protocol(#[from] Fatal),
    /// The target reported a protocol violation by this host.
    #[error("the target terminated the connection: {0}")]
    Terminated(String),
    /// The target refused an admin command needed for connecting.
    #[error("the target refused {what}: {status}")]
    Refused {
        /// Refused request.
        what: &'static str,
        /// Status of the refusal.
        status: Status,
    },
    /// The target refused a fabrics command: Connect, or a property.
    #[error("the target refused {command}: {}", fabrics_words(*status))]
    FabricsRefused {
        /// Refused command.
        command: FabricsType,
        /// Status of the refusal.
        status: Status,
    },
    /// The target reported invalid properties.
    #[error("the target reports invalid properties: {0}")]
    InvalidProperties(&'static str),
    /// The target or its namespace requires an unsupported feature.
    #[error("the target requires {0}, which this host does not support")]
    Unsupported(&'static str),
    /// The target requires authentication, and this host has no key.
    #[error("the target requires authentication, and no key is configured for it")]
    KeyRequired,
    /// The target does not authenticate itself.
    #[error("the target does not prove its identity, although a key of it is configured")]
    NoProof,
    /// The target does not authenticate, so there is no PSK for TLS.
    #[error("secure concatenation needs a target that requires authentication")]
    NoConcatenation,
    /// The target has refused secure concatenation (AUTH_Failure1).
    #[error(
        "the target refuses secure concatenation: this host asked for a new TLS PSK; a listener with \
         optional TLS accepts that from a host that authenticates and has no TLS key there. The log of \
         the target names the reason"
    )]
    ConcatenationRefused,
    /// The target answers nothing without TLS, which concatenation begins with.
    #[error("the target requires TLS from the start, and secure concatenation begins without")]
    TlsRequired,
    /// Authentication failed.
    #[error("authentication failed: {0}")]
    Authentication(HostFailure),
    /// The repetition of an authentication that had succeeded failed.
    #[error("re-authentication failed: {0}")]
    Reauthentication(Box<HostError>),
    /// TLS failed.
    #[error("TLS failed: {0}")]
    Tls(TlsFailure),
    /// TLS with the PSK that concatenation has generated failed.
    #[error("TLS with the key that authentication has generated failed: {0}")]
    GeneratedPsk(TlsFailure),
    /// Data digests are required, and the target declines them.
    #[error("the target declines data digests, which replicas require")]
    NoDigests,
    /// An option is out of range.
    #[error("{0}")]
    Options(&'static str),
    /// The subsystem lacks the requested namespace, or has none.
    #[error("the subsystem has no such namespace; `flagstone serve` prints the ones it serves")]
    NoNamespace,
    /// The subsystem has several namespaces, and none was named.
    #[error(
        "the subsystem has several namespaces: add nsid=N; `flagstone serve` prints the numbers"
    )]
    SeveralNamespaces,
    /// The namespace differs from the one first connected, or lost capabilities.
    #[error("the namespace changed since it was first connected: {0}")]
    Changed(&'static str),
    /// The target opened the namespace's device again, or restarted. A new connection finds it.
    #[error("the target has opened the device again")]
    Reopened,
}

/// Alerts of RFC 8446, section 6.2, to a PSK that is not known. Another key of the same identity
/// gets `decrypt_error` (section 4.2.11).
const HANDSHAKE_FAILURE: u8 = 40;
const UNKNOWN_PSK: u8 = 115;

impl HostError {
    /// True if the same attempt may succeed later without any change on this host: the target is
    /// unreachable or currently refuses connections. All other errors need an operator.
    pub fn may_pass(&self) -> bool {
        match self {
            HostError::Connect(error) | HostError::Broken(error) => may_pass(error),
            HostError::Closed | HostError::TimedOut | HostError::Reopened => true,
            HostError::Reauthentication(cause) => cause.may_pass(),
            // A target that has restarted meanwhile does not know the PSK any more.
            HostError::GeneratedPsk(TlsFailure::Alert(HANDSHAKE_FAILURE | UNKNOWN_PSK)) => true,
            HostError::Tls(TlsFailure::Closed) | HostError::GeneratedPsk(TlsFailure::Closed) => {
                true
            }
            HostError::Tls(TlsFailure::Io(error))
            | HostError::GeneratedPsk(TlsFailure::Io(error)) => may_pass(error),
            HostError::Refused { status, .. } | HostError::FabricsRefused { status, .. }
                if status.is_dnr() =>
            {
                false
            }
            HostError::Refused { status, .. } => status.code() == Status::NAMESPACE_NOT_READY,
            HostError::FabricsRefused { command, status } => {
                *command == FabricsType::CONNECT && status.code() == Status::CONNECT_CONTROLLER_BUSY
            }
            _ => false,
        }
    }
}

/// Name of a fabrics command status. Connect's codes mean something else for I/O commands.
fn fabrics_words(status: Status) -> String {
    match status.fabrics_name() {
        Some(name) => format!("{name} ({:x}h/{:02x}h)", status.sct(), status.sc()),
        None => status.to_string(),
    }
}

impl From<RxError> for HostError {
    fn from(error: RxError) -> HostError {
        match error {
            RxError::Closed => HostError::Closed,
            RxError::Io(error) => HostError::Broken(error),
        }
    }
}

impl From<PduViolation> for HostError {
    fn from(violation: PduViolation) -> HostError {
        match violation {
            PduViolation::Terminate(fatal) => HostError::Protocol(fatal),
            PduViolation::Close => HostError::Terminated("with a malformed TermReq".to_owned()),
        }
    }
}

impl From<Elapsed> for HostError {
    fn from(_: Elapsed) -> HostError {
        HostError::TimedOut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transient_errors_are_not_configuration_errors() {
        let connect = |kind: io::ErrorKind| HostError::Connect(kind.into());
        let refused = |status| HostError::FabricsRefused { command: FabricsType::CONNECT, status };
        for passing in [
            connect(io::ErrorKind::ConnectionRefused),
            connect(io::ErrorKind::HostUnreachable),
            HostError::Closed,
            HostError::TimedOut,
            HostError::GeneratedPsk(TlsFailure::Alert(40)),
            refused(Status::CONNECT_CONTROLLER_BUSY),
            HostError::Refused { what: "Identify", status: Status::NAMESPACE_NOT_READY },
        ] {
            assert!(passing.may_pass(), "{passing}");
        }
        for mistake in [
            connect(io::ErrorKind::PermissionDenied),
            refused(Status::CONNECT_INVALID_PARAMETERS.dnr()),
            refused(Status::CONNECT_INVALID_HOST.dnr()),
            refused(Status::CONNECT_CONTROLLER_BUSY.dnr()),
            HostError::KeyRequired,
            HostError::ConcatenationRefused,
            HostError::TlsRequired,
            HostError::NoProof,
            HostError::GeneratedPsk(TlsFailure::Alert(51)),
            HostError::GeneratedPsk(TlsFailure::Protocol("no suite".to_owned())),
            HostError::NoNamespace,
            HostError::SeveralNamespaces,
            HostError::Changed("its size"),
        ] {
            assert!(!mistake.may_pass(), "{mistake}");
        }
    }
}
