//! Why a host cannot connect, or lost its connection.

use std::io;

use flagstone_nvme::Status;
use flagstone_nvme::pdu::Fatal;
use flagstone_runtime::net::may_pass;
use flagstone_runtime::time::Elapsed;

use crate::stream::rx::RxError;

/// What went wrong between this host and a target.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No connection.
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
    /// Data from the target changed on its way.
    #[error("data from the target arrived damaged: its digest does not match")]
    Damaged,
    /// The target broke the protocol.
    #[error("the target broke the NVMe/TCP protocol: {0}")]
    Protocol(Fatal),
    /// The target says that we broke the protocol.
    #[error("the target terminated the connection: {0}")]
    Terminated(String),
    /// The target refused a command that connecting needs.
    #[error("the target refused {what}: {status}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// Its answer.
        status: Status,
    },
    /// The target refused a fabrics command: Connect, or a property.
    #[error("the target refused {what}: {}", fabrics_words(*status))]
    FabricsRefused {
        /// What was asked.
        what: &'static str,
        /// Its answer.
        status: Status,
    },
    /// The target described itself in a way that cannot be.
    #[error("the target describes itself in a way that cannot be: {0}")]
    Nonsense(&'static str),
    /// The target or its namespace needs what this host does not do.
    #[error("the target needs {0}, which this host does not support")]
    Unsupported(&'static str),
    /// Data digests are needed, and the target declines them.
    #[error("the target declines data digests, without which a replica is not sent data")]
    NoDigests,
    /// An option is out of its range.
    #[error("{0}")]
    Options(&'static str),
    /// The subsystem has no namespace, or not the one that was asked for.
    #[error("the subsystem has no such namespace; `flagstone serve` prints the ones it serves")]
    NoNamespace,
    /// The namespace is not the one that was connected first, or can less.
    #[error("the namespace is not what it was when it was first connected: {0}")]
    Changed(&'static str),
}

impl HostError {
    /// Whether the same attempt may succeed later without any change here: the target cannot be
    /// reached, or takes nobody at this moment. All else wants an operator.
    pub fn may_pass(&self) -> bool {
        match self {
            HostError::Connect(error) | HostError::Broken(error) => may_pass(error),
            HostError::Closed | HostError::TimedOut => true,
            HostError::Refused { status, .. } | HostError::FabricsRefused { status, .. }
                if status.is_dnr() =>
            {
                false
            }
            HostError::Refused { status, .. } => status.code() == Status::NAMESPACE_NOT_READY,
            HostError::FabricsRefused { what, status } => {
                *what == "Connect" && status.code() == Status::CONNECT_CONTROLLER_BUSY
            }
            _ => false,
        }
    }
}

/// A status of a fabrics command, by the name that it has there: Connect's codes are other things
/// to I/O commands.
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

impl From<Elapsed> for HostError {
    fn from(_: Elapsed) -> HostError {
        HostError::TimedOut
    }
}

impl From<Fatal> for HostError {
    fn from(fatal: Fatal) -> HostError {
        HostError::Protocol(fatal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_no_mistake() {
        let connect = |kind: io::ErrorKind| HostError::Connect(kind.into());
        let refused = |status| HostError::FabricsRefused { what: "Connect", status };
        for passing in [
            connect(io::ErrorKind::ConnectionRefused),
            connect(io::ErrorKind::HostUnreachable),
            HostError::Closed,
            HostError::TimedOut,
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
            HostError::Unsupported("authentication"),
            HostError::NoNamespace,
            HostError::Changed("its size"),
        ] {
            assert!(!mistake.may_pass(), "{mistake}");
        }
    }
}
