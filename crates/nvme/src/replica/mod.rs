//! Vendor specific commands of a replication subsystem: requests between the replicas of a mirrored
//! volume, and writes with an order.
//!
//! Invariants:
//!
//! - opcodes lie in the vendor specific ranges (admin C0h to FFh, I/O 80h to FFh), and their bits
//!   1:0 give the direction of data, so that generic hosts can send them (`nvme admin-passthru`,
//!   `nvme io-passthru`);
//! - unused fields of a command are 0, and any other value is refused. A later version may define
//!   them, and an older target then reports that it does not know them;
//! - every admin command is idempotent: a repetition has no further effect, and succeeds or is
//!   refused because the first one took effect.
//!
//! `docs/nvme-vendor-commands.md` specifies the bytes, with examples. [`request`] contains the
//! requests, [`reply`] the replies, [`order`] and [`compressed`] the I/O commands.

pub mod compressed;
pub mod order;
pub mod reply;
pub mod request;
pub mod reservations;
pub mod snapshot;

pub use compressed::{Codec, CompressedWrite};
pub use order::{OrderedWrite, OrderedZeroes, WritePosition};
pub use reply::{IdentifyError, IdentifyReplica, ReplicaRefusal, WireRole};
pub use request::{Ancestors, Attach, LossPermission, ReplicaRequest, StateChange};
pub use reservations::ReservationPage;
pub use snapshot::{Snapshot, SnapshotAction, SnapshotCommand};

/// Data of Replica Identify, in bytes.
pub const IDENTIFY_BYTES: usize = 512;
/// Data of Replica Attach, in bytes.
pub const ATTACH_BYTES: usize = 64;
/// Generations in Replica Ancestors.
pub const ANCESTORS: usize = reply::HISTORY;
/// Data of Replica Ancestors, in bytes.
pub const ANCESTORS_BYTES: usize = ANCESTORS * 8;
/// Words of 64 bits in one page of the bitmap: a page of 4,096 B minus a header of 64 B.
pub const BITMAP_WORDS: usize = 504;
/// Data of Replica Bitmap, in bytes.
pub const BITMAP_BYTES: usize = BITMAP_WORDS * 8;
/// Most checksums in one Replica Checksum: the longest range in the smallest parts.
pub const CHECKSUMS: usize = (CHECK_BYTES / CHECK_UNIT_MIN_BYTES as u64) as usize;
/// Longest range of one Replica Checksum, in bytes.
pub const CHECK_BYTES: u64 = 1 << 20;
/// Smallest part with a separate checksum, in bytes.
pub const CHECK_UNIT_MIN_BYTES: u32 = 4096;
/// Longest name of a snapshot, in bytes.
pub const SNAPSHOT_NAME_BYTES: usize = 128;
/// Data of Replica Snapshot, in bytes.
pub const SNAPSHOT_BYTES: usize = 16 + SNAPSHOT_NAME_BYTES;
/// Snapshots in one page of Replica Snapshots.
pub const SNAPSHOTS_PER_PAGE: usize = DATA_MAX_BYTES / 16;
/// Data of Replica Reservations, in bytes.
pub const RESERVATION_PAGE_BYTES: usize = DATA_MAX_BYTES;
/// Longest record of reservations, in bytes: eight pages.
pub const RESERVATION_RECORD_MAX_BYTES: usize = 8 * RESERVATION_PAGE_BYTES;
/// Most data of any admin command, in bytes.
pub const DATA_MAX_BYTES: usize = 4096;

const _: () = assert!(BITMAP_BYTES <= DATA_MAX_BYTES && CHECKSUMS * 8 <= DATA_MAX_BYTES);

/// Declares modules of opcodes, each with the list of all of them.
macro_rules! opcodes {
    ($(
        $(#[$meta:meta])*
        pub mod $name:ident($opcode:ident) { $( $constant:ident = $value:literal, $text:literal; )* }
    )*) => {$(
        $(#[$meta])*
        pub mod $name {
            use crate::opcode::$opcode;
            $(
                #[doc = concat!($text, " (", stringify!($value), ").")]
                pub const $constant: $opcode = $opcode($value);
            )*
            /// All of them, ascending.
            pub const ALL: [$opcode; [$($value),*].len()] = [$($constant),*];
        }
    )*};
}

opcodes! {
    /// Admin opcodes of vendor specific commands.
    pub mod admin(AdminOpcode) {
        ATTACH = 0xc1, "Replica Attach";
        IDENTIFY = 0xc2, "Replica Identify";
        SET_STATE = 0xc4, "Replica Set State";
        ANCESTORS = 0xc5, "Replica Ancestors";
        BITMAP = 0xc6, "Replica Bitmap";
        PROMOTE = 0xc8, "Replica Promote";
        CHECKSUM = 0xca, "Replica Checksum";
        HAND_OVER = 0xcc, "Replica Hand Over";
        RUN_DEGRADED = 0xd0, "Replica Run Degraded";
        DISCARD = 0xd4, "Replica Discard";
        ZERO_NEW_SPACE = 0xd8, "Replica Zero New Space";
        DEPOSE = 0xdc, "Replica Depose";
        BAD_RANGE = 0xe0, "Replica Bad Range";
        CLAIM = 0xe4, "Replica Claim";
        REMOVE = 0xe8, "Replica Remove";
        JOIN_GROUP = 0xec, "Replica Join Group";
        RENEW = 0xf2, "Replica Renew";
        SNAPSHOT = 0xf5, "Replica Snapshot";
        SNAPSHOTS = 0xf6, "Replica Snapshots";
        RESERVATIONS = 0xf9, "Replica Reservations";
    }

    /// I/O opcodes of vendor specific commands.
    pub mod io(IoOpcode) {
        WRITE = 0x81, "Ordered Write";
        WRITE_ZEROES = 0x84, "Ordered Write Zeroes";
        COMPRESSED_WRITE = 0x85, "Compressed Write";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode::DataDirection;

    #[test]
    fn vendor_opcodes_give_data_direction() {
        use DataDirection::{ControllerToHost, HostToController, None};
        let directions = [
            HostToController,
            ControllerToHost,
            None,
            HostToController,
            ControllerToHost,
            None,
            ControllerToHost,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            ControllerToHost,
            HostToController,
            ControllerToHost,
            HostToController,
        ];
        assert_eq!(directions.len(), admin::ALL.len());
        for (opcode, direction) in admin::ALL.into_iter().zip(directions) {
            assert!(opcode.is_vendor_specific());
            assert_eq!(DataDirection::of(opcode.0), direction, "{opcode}");
        }
        assert_eq!(DataDirection::of(io::WRITE.0), HostToController);
        assert_eq!(DataDirection::of(io::WRITE_ZEROES.0), None);
        assert_eq!(DataDirection::of(io::COMPRESSED_WRITE.0), HostToController);
        assert!(io::ALL.iter().all(|opcode| opcode.is_vendor_specific()));
        assert!(admin::ALL.is_sorted() && io::ALL.is_sorted());
    }
}
