//! Host identity: the identifier by which NVMe targets recognize this machine.
//!
//! It is the same after a restart. A target may still execute a write of the earlier process; it
//! lets the host go on when that has ended, lest the write undo a later one, and recognizes the
//! host by its identifier.

use sha2::{Digest, Sha256};

/// Identifier of the machine, which systemd makes at installation.
const MACHINE_ID: &str = "/etc/machine-id";

/// What a host identifier is for.
pub(crate) enum HostScope<'a> {
    /// A host with a name has one identifier.
    Named(&'a str),
    /// Without a name there is one for each namespace, so that a stuck command of one namespace
    /// keeps no other from being connected.
    Namespace { subsystem: &'a str, nsid: Option<u32> },
}

/// Host identifier of this machine for `scope`. `None` if the machine has no identifier.
pub(crate) fn host_id(scope: &HostScope<'_>) -> Option<[u8; 16]> {
    let machine = std::fs::read(MACHINE_ID).ok()?;
    is_machine_id(machine.trim_ascii()).then(|| derived(machine.trim_ascii(), scope))
}

/// 32 hexadecimal digits. Images that are not installed yet may have the word "uninitialized".
fn is_machine_id(text: &[u8]) -> bool {
    text.len() == 32
        && text.iter().all(u8::is_ascii_hexdigit)
        && text.iter().any(|digit| *digit != b'0')
}

/// UUID of version 8 (RFC 9562, section 5.8). The machine's identifier itself is confidential
/// (machine-id(5)).
fn derived(machine: &[u8], scope: &HostScope<'_>) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(b"flagstone NVMe host\0");
    hash.update(machine);
    match scope {
        HostScope::Named(nqn) => {
            hash.update([0]);
            hash.update(nqn);
        }
        HostScope::Namespace { subsystem, nsid } => {
            hash.update([1]);
            hash.update(subsystem);
            hash.update(nsid.unwrap_or(0).to_be_bytes());
        }
    }
    let mut id = [0; 16];
    id.copy_from_slice(&hash.finalize()[..16]);
    id[6] = id[6] & 0x0f | 0x80;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_identifiers_of_machines_count() {
        assert!(is_machine_id(b"0123456789abcdef0123456789abcdef"));
        for not in [&b""[..], b"uninitialized", &[b'0'; 32], b"0123456789abcdef0123456789abcdeg"] {
            assert!(!is_machine_id(not));
        }
    }

    #[test]
    fn identifier_depends_on_machine_and_scope_alone() {
        let of = |machine: &[u8], nsid| {
            derived(machine, &HostScope::Namespace { subsystem: "nqn.2026-01.io.example:s", nsid })
        };
        let id = of(b"0123456789abcdef", None);
        assert_eq!(id, of(b"0123456789abcdef", None));
        assert_ne!(id, of(b"0123456789abcdee", None));
        assert_ne!(id, of(b"0123456789abcdef", Some(1)));
        assert_ne!(id, derived(b"0123456789abcdef", &HostScope::Named("nqn.2026-01.io.example:s")));
        assert_eq!((id[6] >> 4, id[8] >> 6), (8, 2));
    }
}
