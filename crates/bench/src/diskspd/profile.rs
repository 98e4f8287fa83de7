//! Parameters of a diskspd command line.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// By the operating system: diskspd's default.
    #[default]
    Cached,
    /// Not by the operating system (`-Su`, `-Sh`).
    Unbuffered,
    /// Mapped into memory (`-Sm`).
    Mapped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskspdAccess {
    Sequential {
        /// Bytes between the starts of consecutive requests; the block size if `None`.
        stride_bytes: Option<u64>,
    },
    Random {
        /// Alignment in bytes; the block size if `None`.
        align_bytes: Option<u64>,
        /// Percent of random requests; the others follow their predecessor.
        percent: u8,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WriteContent {
    /// Bytes 0 to 255, repeated: diskspd's default.
    #[default]
    Pattern,
    /// Zeros (`-Z`).
    Zero,
    /// New random data for each write (`-Zr`).
    Random,
    /// Parts of a buffer of random data or of a file (`-Z<size>[,file]`).
    Buffer {
        bytes: u64,
        /// File with the data; random data if `None`.
        file: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskspdRate {
    BytesPerMs(u64),
    Iops(u64),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Affinity {
    /// All CPUs, round robin: diskspd's default.
    #[default]
    All,
    /// None (`-n`).
    None,
    /// These CPUs, round robin (`-a`).
    Cpus(Vec<u32>),
}

/// Uneven distribution of the requests over a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Percent of requests and percent of the target (`-rdpct`).
    Percent(Vec<(u64, u64)>),
    /// Percent of requests and bytes of the target (`-rdabs`).
    Absolute(Vec<(u64, u64)>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskspdFormat {
    #[default]
    Text,
    Xml,
}

/// All parameters, with diskspd's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub command_line: String,
    pub targets: Vec<String>,
    /// `-b`, in bytes.
    pub block_bytes: u64,
    /// `-B`: start of the accessed range, in bytes.
    pub base_bytes: u64,
    /// `-f` or the end of `-B`: end of the accessed range, in bytes from the start of the target.
    pub end_bytes: Option<u64>,
    /// `-c`, in bytes.
    pub create_bytes: Option<u64>,
    /// `-C`, in seconds.
    pub(crate) cool_down_s: u64,
    /// `-d`, in seconds.
    pub(crate) duration_s: u64,
    /// `-W`, in seconds.
    pub warm_up_s: u64,
    /// `-D`, in ms.
    pub interval_ms: Option<u64>,
    /// `-t`: threads of each target; or `-F` of one target.
    pub threads: u32,
    /// `-F` was given.
    pub(crate) total_threads: bool,
    /// `-o` or `-O`: requests in flight of each thread.
    pub outstanding: u32,
    /// `-O` was given: `outstanding` is of the pool of `-F`, not of a target.
    pub(crate) total_outstanding: bool,
    /// `-g`
    pub rate: Option<DiskspdRate>,
    /// `-i` and `-j`: requests of a burst, and ms between bursts.
    pub burst: Option<(u32, u32)>,
    /// `-I`: 1 very low, 2 low, 3 normal.
    pub priority: u8,
    /// `-l`
    pub(crate) large_pages: bool,
    /// `-L`
    pub latency: bool,
    /// `-Nv`: mapped views are flushed.
    pub(crate) flush_views: bool,
    /// `-r`, `-rs`, `-s`
    pub access: DiskspdAccess,
    /// `-rd`
    pub distribution: Option<Distribution>,
    /// `-R`
    pub format: DiskspdFormat,
    /// `-Rp`: print the profile, do not run.
    pub profile_only: bool,
    /// `-S`
    pub cache: Cache,
    /// `-Sw`
    pub write_through: bool,
    /// `-T`, in bytes.
    pub(crate) thread_stride_bytes: u64,
    /// `-v`
    pub(crate) verbose: bool,
    /// `-w`
    pub write_percent: u8,
    /// `-z`: 0 if it is not given, `None` for one of the clock's.
    pub seed: Option<u64>,
    /// `-Z`
    pub content: WriteContent,
    /// `-a`, `-n`
    pub(crate) affinity: Affinity,
    /// `-fs`: the target is opened with a hint of sequential access.
    pub(crate) sequential_hint: bool,
    /// `-fr`: the target is opened with a hint of random access.
    pub(crate) random_hint: bool,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            command_line: String::new(),
            targets: Vec::new(),
            block_bytes: 64 << 10,
            base_bytes: 0,
            end_bytes: None,
            create_bytes: None,
            cool_down_s: 0,
            duration_s: 10,
            warm_up_s: 5,
            interval_ms: None,
            threads: 1,
            total_threads: false,
            outstanding: 2,
            total_outstanding: false,
            rate: None,
            burst: None,
            priority: 3,
            large_pages: false,
            latency: false,
            flush_views: false,
            access: DiskspdAccess::Sequential { stride_bytes: None },
            distribution: None,
            format: DiskspdFormat::Text,
            profile_only: false,
            cache: Cache::Cached,
            write_through: false,
            thread_stride_bytes: 0,
            verbose: false,
            write_percent: 0,
            seed: Some(0),
            content: WriteContent::Pattern,
            affinity: Affinity::All,
            sequential_hint: false,
            random_hint: false,
        }
    }
}

impl Profile {
    pub fn is_random(&self) -> bool {
        matches!(self.access, DiskspdAccess::Random { .. })
    }

    /// `-F` and `-O` as reports print them; 0 if not given.
    pub(super) fn pool(&self) -> (u32, u32) {
        let threads = if self.total_threads { self.threads } else { 0 };
        (threads, if self.total_outstanding { self.outstanding } else { 0 })
    }

    /// Requests in flight that a report prints for each target; `-O` does not apply to targets.
    pub(super) fn of_target(&self) -> u32 {
        if self.total_outstanding { Profile::default().outstanding } else { self.outstanding }
    }

    /// Alignment of random requests, or stride of sequential ones, in bytes.
    pub(crate) fn align_bytes(&self) -> u64 {
        match self.access {
            DiskspdAccess::Sequential { stride_bytes: bytes }
            | DiskspdAccess::Random { align_bytes: bytes, .. } => bytes.unwrap_or(self.block_bytes),
        }
    }
}
