//! Bounds of reading a host, whose files are not trusted to be small or finite.

use std::time::Duration;

/// Time limit of a command that reads settings, which takes some milliseconds.
pub(crate) const COMMAND_TIME_MAX: Duration = Duration::from_secs(10);

/// Largest small file (sysfs, procfs, `/etc`), in bytes. The largest file is the interrupt table:
/// about 12 bytes per CPU and row, so 512 CPUs and 600 rows are 3.7 MB.
pub(crate) const FILE_BYTES_MAX: u64 = 4 << 20;

/// Maximum entries of one directory. A host with 32,768 processes has about as many in `/proc`.
pub(crate) const DIRECTORY_ENTRIES_MAX: usize = 65_536;

/// Maximum bytes of a setting's text as evidence.
pub(crate) const EVIDENCE_BYTES_MAX: usize = 120;

/// Maximum number of examined disks; the others are reported as unread.
pub(crate) const DISKS_MAX: usize = 4_096;

/// Maximum levels of holders (LVM on LUKS on md on a partition is four).
pub(crate) const HOLDER_LEVELS_MAX: usize = 16;

/// Bytes read from the start of a device for signatures: all four swap page sizes, btrfs at 64 KiB,
/// and the first two ZFS labels of 256 KiB each.
pub(crate) const HEAD_BYTES: u64 = 512 << 10;

/// Bytes read from the end of a device, from a multiple of 256 KiB: the backup GPT, md 0.90 and
/// 1.0, and the last two ZFS labels, which start 512 KiB before such a multiple.
pub(crate) const TAIL_BYTES: u64 = 1 << 20;

/// Maximum bytes of a change journal: a thousand disks with four settings of 250 bytes each.
pub(crate) const JOURNAL_BYTES_MAX: u64 = 4 << 20;

/// Longest accepted name of a device or interface (the kernel's limits are 32 and 16).
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Maximum changes in a journal; apply refuses more.
pub(crate) const JOURNAL_ENTRIES_MAX: usize = 16_384;
