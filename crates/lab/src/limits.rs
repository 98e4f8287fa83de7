//! Every bound of this crate.

/// How long a node may take to serve, to stop, or to come into a state, in seconds. A resync of
/// 384 MiB at the 240 MB/s of the emulated disk takes 2; a machine that is twenty times too busy
/// still passes.
pub const PATIENCE_S: f64 = 60.0;
/// Bytes of a node's log that are read: some hundred a line, and it is started at `warn` and above
/// but for its first lines.
pub const LOG_BYTES: u64 = 16 << 20;
/// Bytes of what a failed node or command said that are shown.
pub const SAID_BYTES: usize = 4000;
/// Bytes of the output of one command: a document of a mirror is some kilobytes, and a load's
/// results with a sample a second some hundred bytes a sample.
pub const OUTPUT_BYTES: u64 = 16 << 20;
/// Shortest latency that an emulated disk is given when it is calibrated, in µs: below, the
/// machine's own path is what is measured.
pub const LATENCY_LEAST_US: f64 = 100.0;
/// Above so much of the machine's CPUs, in %, they and not the model may be what was measured.
pub const BUSY_PERCENT: f64 = 90.0;
/// How long a step of a drill on real nodes may take until it succeeds, in seconds: a machine of a
/// cloud is back some minutes after it was reset.
pub const STEP_S: f64 = 900.0;
