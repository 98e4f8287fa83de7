//! What bounds the reading of a host: nothing there is trusted to be small, or to end.

/// Most bytes of one small file (sysfs, procfs, `/etc`). The largest that is read is the
/// interrupt table: about 12 bytes a CPU on each row, so 512 CPUs and 600 rows are 3.7 MB.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// Most entries of one directory. A host of 32,768 processes has about so many in `/proc`.
pub const DIRECTORY_ENTRIES_MAX: usize = 65_536;

/// Most bytes of the text of one setting that are shown as evidence.
pub const EVIDENCE_BYTES_MAX: usize = 120;

/// Most disks that are looked at; the rest is named as not read.
pub const DISKS_MAX: usize = 4_096;

/// Most levels of holders (LVM on LUKS on md on a partition is four).
pub const HOLDER_LEVELS_MAX: usize = 16;

/// Bytes read from the start of a device for signatures: all four swap page sizes, btrfs at
/// 64 KiB, and the first two ZFS labels of 256 KiB each.
pub const HEAD_BYTES: u64 = 512 << 10;

/// Bytes read from the end of a device, from a multiple of 256 KiB on: the backup GPT, md 0.90
/// and 1.0, and the last two ZFS labels, which begin 512 KiB before such a multiple.
pub const TAIL_BYTES: u64 = 1 << 20;

/// Most bytes of a journal of changes: a thousand disks with four settings of 250 bytes each.
pub const JOURNAL_BYTES_MAX: u64 = 4 << 20;

/// Longest name of a device or an interface that is believed (the kernel's own limits are 32
/// and 16).
pub const NAME_BYTES_MAX: usize = 64;

/// Most changes in a journal; apply refuses to go on beyond.
pub const JOURNAL_ENTRIES_MAX: usize = 16_384;
