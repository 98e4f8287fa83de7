//! What this crate takes at most, so that a hostile catalogue or command line stays harmless.

/// Largest catalogue file, in bytes. The built-in ones are below 64 KiB.
pub const MAX_CATALOGUE_BYTES: u64 = 1 << 20;

/// Longest piece of a catalogue that is repeated in a message, in characters.
pub const MAX_SHOWN_CHARS: usize = 60;

/// Most disks of one type that a configuration may have. Clouds allow at most 128 a machine.
pub const MAX_DISKS: u32 = 128;

/// Largest block of a workload, in bytes.
pub const MAX_BLOCK_BYTES: u64 = 32 << 20;

/// Smallest block of a workload, in bytes: one sector.
pub const MIN_BLOCK_BYTES: u64 = 512;

/// Most I/Os in flight, of all jobs together.
pub const MAX_DEPTH: u32 = 1 << 20;
