//! Host identity: the identifier by which NVMe targets recognize this machine.
//!
//! It is the same after a restart. A target may still execute a write of the earlier process; it
//! lets the host go on when that has ended, lest the write undo a later one, and recognizes the host
//! by its identifier.

use sha2::{Digest, Sha256};

/// Identifier of the machine, which systemd makes at installation.
const MACHINE_ID: &str = "/etc/machine-id";

/// Host identifier of this machine for a host with the name `nqn`, or without one. `None` if the
/// machine has no identifier.
pub(crate) fn host_id(nqn: Option<&str>) -> Option<[u8; 16]> {
    let machine = std::fs::read(MACHINE_ID).ok()?;
    let machine = machine.trim_ascii();
    (!machine.is_empty()).then(|| derived(machine, nqn))
}

/// UUID of version 8 (RFC 9562, section 5.8). The machine's identifier itself is confidential
/// (machine-id(5)).
fn derived(machine: &[u8], nqn: Option<&str>) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(b"flagstone NVMe host\0");
    hash.update(machine);
    hash.update([0]);
    hash.update(nqn.unwrap_or_default());
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
    fn identifier_depends_on_machine_and_name_alone() {
        let id = derived(b"0123456789abcdef", None);
        assert_eq!(id, derived(b"0123456789abcdef", None));
        assert_ne!(id, derived(b"0123456789abcdee", None));
        assert_ne!(id, derived(b"0123456789abcdef", Some("nqn.2026-01.io.example:h")));
        assert_eq!((id[6] >> 4, id[8] >> 6), (8, 2));
    }
}
