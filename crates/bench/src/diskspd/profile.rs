//! What a diskspd command line asks for.

/// How a target is cached.
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

/// Where random or sequential requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// One after the other, so far apart.
    Sequential {
        /// Bytes from the beginning of one to that of the next; a block's size if `None`.
        stride_bytes: Option<u64>,
    },
    /// Anywhere.
    Random {
        /// Bytes that places are multiples of; a block's size if `None`.
        align_bytes: Option<u64>,
        /// How many of a hundred are random; the others follow their predecessor.
        percent: u8,
    },
}

/// What writes write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// Bytes 0 to 255, repeated: diskspd's default.
    #[default]
    Pattern,
    /// Zeroes (`-Z`).
    Zero,
    /// New random data each time (`-Zr`).
    Random,
    /// Parts of a buffer of random data, or of a file's (`-Z<size>[,file]`).
    Buffer {
        /// Its size.
        bytes: u64,
        /// Where its data is from.
        file: Option<String>,
    },
}

/// A limit of each thread's rate on each target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Bytes a millisecond.
    BytesPerMs(u64),
    /// Requests a second.
    Iops(u64),
}

/// Which CPUs threads are bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// All of them, in turn: diskspd's default.
    #[default]
    All,
    /// None (`-n`).
    None,
    /// These, in turn (`-a`).
    Cpus(Vec<u32>),
}

/// Requests that are not spread evenly over a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Percent of requests and percent of the target (`-rdpct`).
    Percent(Vec<(u64, u64)>),
    /// Percent of requests and bytes of the target (`-rdabs`).
    Absolute(Vec<(u64, u64)>),
}

/// A report's form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `-Rtext`
    #[default]
    Text,
    /// `-Rxml`
    Xml,
}

/// Everything, with diskspd's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The command line, as its report repeats it.
    pub command_line: String,
    /// Paths.
    pub targets: Vec<String>,
    /// `-b`, in bytes.
    pub block_bytes: u64,
    /// `-B`: where it begins, in bytes.
    pub base_bytes: u64,
    /// `-f` or the end of `-B`: where it ends, in bytes from the target's beginning.
    pub end_bytes: Option<u64>,
    /// `-c`, in bytes.
    pub create_bytes: Option<u64>,
    /// `-C`, in seconds.
    pub cool_down_s: u64,
    /// `-d`, in seconds.
    pub duration_s: u64,
    /// `-W`, in seconds.
    pub warm_up_s: u64,
    /// `-D`, in ms.
    pub interval_ms: Option<u64>,
    /// `-t`: threads of each target; or `-F` of one target.
    pub threads: u32,
    /// `-F` was given.
    pub total_threads: bool,
    /// `-o` or `-O`: requests in flight of each thread.
    pub outstanding: u32,
    /// `-O` was given: `outstanding` is of the pool of `-F`, not of a target.
    pub total_outstanding: bool,
    /// `-g`
    pub rate: Option<Rate>,
    /// `-i` and `-j`: requests of a burst, and ms between bursts.
    pub burst: Option<(u32, u32)>,
    /// `-I`: 1 very low, 2 low, 3 normal.
    pub priority: u8,
    /// `-l`
    pub large_pages: bool,
    /// `-L`
    pub latency: bool,
    /// `-Nv`: mapped views are flushed.
    pub flush_views: bool,
    /// `-r`, `-rs`, `-s`
    pub access: Access,
    /// `-rd`
    pub distribution: Option<Distribution>,
    /// `-R`
    pub format: Format,
    /// `-Rp`: print the profile, do not run.
    pub profile_only: bool,
    /// `-S`
    pub cache: Cache,
    /// `-Sw`
    pub write_through: bool,
    /// `-T`, in bytes.
    pub thread_stride_bytes: u64,
    /// `-v`
    pub verbose: bool,
    /// `-w`
    pub write_percent: u8,
    /// `-z`: 0 if it is not given, `None` for one of the clock's.
    pub seed: Option<u64>,
    /// `-Z`
    pub content: Content,
    /// `-a`, `-n`
    pub affinity: Affinity,
    /// `-fs`: the target is opened with a hint of sequential access.
    pub sequential_hint: bool,
    /// `-fr`: the target is opened with a hint of random access.
    pub random_hint: bool,
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
            access: Access::Sequential { stride_bytes: None },
            distribution: None,
            format: Format::Text,
            profile_only: false,
            cache: Cache::Cached,
            write_through: false,
            thread_stride_bytes: 0,
            verbose: false,
            write_percent: 0,
            seed: Some(0),
            content: Content::Pattern,
            affinity: Affinity::All,
            sequential_hint: false,
            random_hint: false,
        }
    }
}

impl Profile {
    /// Whether places are random.
    pub fn is_random(&self) -> bool {
        matches!(self.access, Access::Random { .. })
    }

    /// `-F` and `-O` as a report tells them, 0 if they are not given.
    pub(super) fn pool(&self) -> (u32, u32) {
        let threads = if self.total_threads { self.threads } else { 0 };
        (threads, if self.total_outstanding { self.outstanding } else { 0 })
    }

    /// Requests in flight that a report tells of each target: `-O` is none of theirs.
    pub(super) fn of_target(&self) -> u32 {
        if self.total_outstanding { Profile::default().outstanding } else { self.outstanding }
    }

    /// Alignment of random places, or the stride of sequential ones, in bytes.
    pub fn align_bytes(&self) -> u64 {
        match self.access {
            Access::Sequential { stride_bytes: bytes }
            | Access::Random { align_bytes: bytes, .. } => bytes.unwrap_or(self.block_bytes),
        }
    }
}
