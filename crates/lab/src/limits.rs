//! Bounds of this crate.

/// Longest time for a node to serve, to stop, or to reach a state, in seconds. A resync of 384 MiB
/// at the 240 MB/s of the emulated disk takes 2 s; a machine that is overloaded twentyfold still
/// passes.
pub(crate) const STEP_TIMEOUT_S: f64 = 60.0;
/// Bytes of a node's log that are read: about a hundred a line, and only warnings after its start.
pub(crate) const LOG_BYTES: u64 = 16 << 20;
/// Bytes of the output of a failed node or command that are shown.
pub(crate) const SAID_BYTES: usize = 4000;
/// Bytes of the output of one command: a mirror's status is some kilobytes, and a load's results
/// with one sample per second some hundred bytes per sample.
pub(crate) const OUTPUT_BYTES: u64 = 16 << 20;
/// Shortest latency of an emulated disk in a calibration, in µs: below it, the machine's own path
/// is measured.
pub(crate) const LATENCY_LEAST_US: f64 = 100.0;
/// CPU utilization above which the CPUs may have limited a result, in %.
pub(crate) const BUSY_PERCENT: f64 = 90.0;
/// Longest time until a step of a drill on given nodes succeeds, in seconds: a machine of a cloud
/// is back some minutes after a reset.
pub(crate) const STEP_S: f64 = 900.0;
