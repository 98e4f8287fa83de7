//! Every bound of this crate.

use std::time::Duration;

/// How long fio may take to say its version, or to try an I/O engine. It takes milliseconds; from a
/// network's file system, on a machine that has to write memory out first, seconds.
pub const FIO_ANSWER: Duration = Duration::from_secs(30);
/// Bytes of fio's output that are read. json+ of one job with full histograms is at most
/// 3 directions x 3 latencies x 1,856 bins x some 30 bytes = 0.5 MB; 64 MiB holds 128 such jobs,
/// or thousands of ordinary ones. More is refused.
pub const FIO_OUTPUT_BYTES: u64 = 64 << 20;
/// Jobs in one output of fio.
pub const FIO_JOBS: usize = 4096;
/// Options of one job in an output of fio: it has some 300.
pub const FIO_OPTIONS: usize = 1024;
/// Bins of one histogram: fio has 29 groups of 64.
pub const HISTOGRAM_BINS: usize = 1 << 16;
/// Bytes of what a failed fio said that are kept.
pub const FIO_SAID_BYTES: usize = 4000;
/// Bytes of one interval log of fio: 100 M of them would be a week at 10 ms.
pub const FIO_LOG_BYTES: u64 = 64 << 20;
/// Points of a time series that are kept; a longer one is averaged to fit.
pub const SERIES_POINTS: usize = 600;
/// Bytes of a suite's file.
pub const SUITE_BYTES: u64 = 1 << 20;
/// Jobs of a suite, when its lists are multiplied out.
pub const SUITE_JOBS: usize = 1000;
/// Bytes of one line of a results file.
pub const RESULT_LINE_BYTES: usize = 4 << 20;
/// Bytes of one results file: 10,000 measurements of some 20 kB.
pub const RESULTS_BYTES: u64 = 256 << 20;
/// Environments of one results directory that are read: one for each time that it was resumed on
/// something else.
pub const ENVIRONMENTS: usize = 100;
/// Bytes of a server's configuration that are kept with results.
pub const STACK_BYTES: usize = 64 << 10;
/// Plots of one report: some 10 kB of SVG each, so that 1,000 results stay below 5 MB.
pub const REPORT_PLOTS: usize = 120;
/// Lines in one plot: more cannot be told apart.
pub const PLOT_LINES: usize = 6;
/// Groups of bars in one plot.
pub const PLOT_GROUPS: usize = 8;
/// Letters below the bars of one plot together: 774 units of 12 high letters, 0.6 as wide as high.
pub const PLOT_CHARACTERS: usize = 107;
/// Points of time series in all plots of one report together, at some 12 bytes each.
pub const REPORT_POINTS: usize = 60_000;
/// Points of time series in the data of one report, at some 7 bytes each.
pub const REPORT_DATA_POINTS: usize = 150_000;
/// Bytes of what an experiment adds to its report: a drill of an hour is 3,600 points of some 40
/// bytes, a table some kilobytes.
pub const EXTRAS_BYTES: u64 = 4 << 20;
/// Tables of it.
pub const EXTRAS_TABLES: usize = 32;
/// Cells of all its tables together: `lab limits` has some 400.
pub const EXTRAS_CELLS: usize = 20_000;
/// Sentences of it.
pub const EXTRAS_DOUBTS: usize = 100;
/// Pictures of it.
pub const EXTRAS_PICTURES: usize = 16;
/// Moments that one of its pictures points at.
pub const EXTRAS_MARKS: usize = 64;
/// Targets of one campaign.
pub const TARGETS: usize = 64;
/// Disks that one target joins.
pub const DISKS: usize = 128;
/// Resamples of a bootstrap: the 2.5 % tail is then 250 samples, known to about 6 %.
pub const RESAMPLES: usize = 10_000;
/// Above this many arrangements Mann-Whitney's U is judged by the normal approximation: the exact
/// count takes `n x m x (n x m)` steps.
pub const EXACT_PAIRS: usize = 2500;
/// Repetitions and rounds of a campaign.
pub const REPETITIONS: u32 = 1000;
/// Threads of one job, and I/Os in flight of each: fio's own tables end far above.
pub const THREADS: u32 = 4096;
/// See [`THREADS`].
pub const DEPTH: u32 = 65_536;
/// Bytes of one request: diskspd's and NVMe's own limits are below.
pub const BLOCK_BYTES: u64 = u32::MAX as u64;
/// Processes that serve one target: each of a server's workers.
pub const SERVER_PROCESSES: usize = 1024;
/// NVMe controllers that are looked at: the kernel has minor numbers for so many.
pub const CONTROLLERS: usize = 65_536;
