//! Bounds of this crate.

use std::time::Duration;

/// Time limit for fio's version and for a probe of an I/O engine. Both take milliseconds; from a
/// network file system, on a machine that is short of memory, seconds.
pub(crate) const FIO_ANSWER: Duration = Duration::from_secs(30);
/// Bytes of fio's output. json+ of one job with full histograms has at most 3 directions x 3
/// latencies x 1,856 bins x about 30 bytes = 0.5 MB; 64 MiB holds 128 such jobs, or thousands of
/// ordinary ones.
pub const FIO_OUTPUT_BYTES: u64 = 64 << 20;
pub(crate) const FIO_JOBS: usize = 4096;
/// Options of one job in an output of fio: it has some 300.
pub(crate) const FIO_OPTIONS: usize = 1024;
/// Bins of one histogram: fio has 29 groups of 64.
pub(crate) const HISTOGRAM_BINS: usize = 1 << 16;
/// Bytes of a failed fio's messages that are kept.
pub(crate) const FIO_SAID_BYTES: usize = 4000;
pub(crate) const FIO_LOG_BYTES: u64 = 64 << 20;
/// Points of a time series; a longer one is averaged.
pub(crate) const SERIES_POINTS: usize = 600;
/// Bytes of a suite's file.
pub(crate) const SUITE_BYTES: u64 = 1 << 20;
/// Bytes of an XML profile of diskspd: one target takes about 1.5 kB.
pub(crate) const PROFILE_BYTES: u64 = 1 << 20;
/// Elements of an XML profile of diskspd: about 30 for each target.
pub(crate) const PROFILE_ELEMENTS: usize = 10_000;
/// Elements of an XML profile inside each other; diskspd's own have 8 levels.
pub(crate) const PROFILE_DEPTH: usize = 16;
/// Jobs of a suite after its lists are multiplied out.
pub(crate) const SUITE_JOBS: usize = 1000;
pub(crate) const RESULT_LINE_BYTES: usize = 4 << 20;
/// Bytes of one results file: 10,000 measurements of about 20 kB.
pub(crate) const RESULTS_BYTES: u64 = 256 << 20;
/// Environments in one results directory: one for each change between resumptions.
pub(crate) const ENVIRONMENTS: usize = 100;
/// Bytes of a server's configuration that are stored with results.
pub const STACK_BYTES: usize = 64 << 10;
pub(crate) const TARGETS: usize = 64;
pub const DISKS: usize = 128;
/// Resamples of a bootstrap: the 2.5 % tail has 250 samples, known to about 6 %.
pub(crate) const RESAMPLES: usize = 10_000;
/// Upper bound of `n x m` for the exact test of Mann and Whitney; 50 and 50 values take some 10^7
/// steps. Larger samples use the normal approximation.
pub(crate) const EXACT_PAIRS: usize = 2500;
/// Repetitions and rounds of a campaign.
pub(crate) const REPETITIONS: u32 = 1000;
/// Threads of one job; fio's own limit is far above.
pub const THREADS: u32 = 4096;
/// Requests in flight of one thread; fio's own limit is far above.
pub const DEPTH: u32 = 65_536;
/// Bytes of one request; diskspd's and NVMe's own limits are below.
pub const BLOCK_BYTES: u64 = u32::MAX as u64;
/// Processes that serve one target.
pub(crate) const SERVER_PROCESSES: usize = 1024;
/// NVMe controllers that are inspected: the kernel's number of minor device numbers.
pub const CONTROLLERS: usize = 65_536;

/// Times that a step runs before a job.
pub(crate) const STEP_TIMES: u32 = 10_000;

/// Output of a step's command that is read, in bytes.
pub(crate) const STEP_BYTES: u64 = 1 << 20;

/// Bounds of the HTML report.
#[cfg(feature = "report")]
pub(crate) mod report {
    /// Plots of one report, at about 10 kB of SVG each: 1,000 results stay below 5 MB.
    pub(crate) const REPORT_PLOTS: usize = 120;
    pub(crate) const PLOT_LINES: usize = 6;
    pub(crate) const PLOT_GROUPS: usize = 6;
    /// Sum of the characters below the bars of one plot: 454 units at 14 units a line, 0.6 as wide.
    pub(crate) const PLOT_CHARACTERS: usize = 54;
    /// Sum of the points of time series in all plots of one report, at about 12 bytes each.
    pub(crate) const REPORT_POINTS: usize = 60_000;
    /// Sum of the points of time series in the data of one report, at about 7 bytes each.
    pub(crate) const REPORT_DATA_POINTS: usize = 150_000;
    /// Bytes of an experiment's additional sections: a drill of an hour has 3,600 points of about
    /// 40 bytes, a table some kilobytes.
    pub(crate) const SECTIONS_BYTES: u64 = 4 << 20;
    pub(crate) const SECTIONS_TABLES: usize = 32;
    /// Cells of all these tables together: `lab limits` has about 400.
    pub(crate) const SECTIONS_CELLS: usize = 20_000;
    pub(crate) const SECTIONS_CAVEATS: usize = 100;
    pub(crate) const SECTIONS_PICTURES: usize = 16;
    pub(crate) const SECTIONS_MARKS: usize = 64;
}
