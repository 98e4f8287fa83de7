//! Options of `flagstone lab`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use flagstone_units::{parse_block_size, parse_time_ms};

use super::real_args::{
    RealFabricArgs, RealFailoverArgs, RealLimitsArgs, RealMirrorArgs, RealProvisionedArgs,
};
use crate::bench::args::TableForm;

/// Arguments of `flagstone lab`.
#[derive(Debug, Args)]
pub struct LabArgs {
    /// The experiment.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The experiments.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Compare a mirror with a plain disk, emulated or on real nodes, and with the published table
    Mirror(LabMirrorArgs),
    /// Kill a node of a mirror under a verifying load, and bring it back
    Failover(FailoverArgs),
    /// Compare local SSDs with NVMe/TCP volumes, and with the published table
    Fabric(FabricArgs),
    /// Measure the effect of disk size on emulated or real disks, against the formula and published
    /// figures
    Provisioned(ProvisionedArgs),
    /// Measure the limits of cloud disks: rows of the page's tables, emulated, or a real disk
    Limits(LimitsArgs),
    /// Measure and verify a served volume, then run the mirror, fabric and failover experiments, shortened
    Demo(DemoArgs),
}

/// Destination and format of the results.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Results and report directory; lab-results/EXPERIMENT-TIME if not given
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Format of the tables
    #[arg(long, value_enum, value_name = "FORM", default_value = "text")]
    pub format: TableForm,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// Length and number of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Warm-up of each measurement, in ms.
    pub ramp_ms: u64,
    /// Length of each measurement, in ms.
    pub runtime_ms: u64,
    /// Repetitions of each measurement.
    pub repetitions: u32,
}

impl Lengths {
    /// Options override these defaults.
    fn or(self, ramp: Option<u64>, runtime: Option<u64>, repetitions: Option<u32>) -> Lengths {
        Lengths {
            ramp_ms: ramp.unwrap_or(self.ramp_ms),
            runtime_ms: runtime.unwrap_or(self.runtime_ms),
            repetitions: repetitions.unwrap_or(self.repetitions),
        }
    }
}

const fn lengths(ramp_ms: u64, runtime_ms: u64, repetitions: u32) -> Lengths {
    Lengths { ramp_ms, runtime_ms, repetitions }
}

/// Arguments of `flagstone lab mirror`.
#[derive(Debug, Args)]
pub struct LabMirrorArgs {
    /// Real nodes instead of emulated ones.
    #[command(flatten)]
    pub nodes: RealMirrorArgs,
    /// Round trip of the link between the nodes, such as 0.3ms (the default); for real nodes, the
    /// value to use if it is not measured
    #[arg(long, value_name = "TIME", value_parser = round_trip_us)]
    pub rtt: Option<u64>,
    /// A machine type of the catalogue gcp-2019, such as c2-standard-8, whose limits replace those
    /// of the published disk; for real nodes, their type
    #[arg(long, value_name = "NAME")]
    pub machine: Option<String>,
    /// About three minutes: a first look, too short to show a difference
    #[arg(long)]
    pub short: bool,
    /// Repetitions of each measurement; 4 if not given, 1 with --short
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Length of each measurement; 10s if not given, 2s with --short
    #[arg(long, value_name = "TIME", value_parser = measured_time)]
    pub runtime: Option<u64>,
    /// Warm-up before each measurement; 2s if not given, 1s with --short
    #[arg(long, value_name = "TIME", value_parser = parse_time_ms)]
    pub ramp: Option<u64>,
    /// Results.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl LabMirrorArgs {
    /// Lengths for emulated and real targets.
    pub fn lengths(&self) -> Lengths {
        let own = if self.short { lengths(1000, 2000, 1) } else { lengths(2000, 10_000, 4) };
        own.or(self.ramp, self.runtime, self.repetitions)
    }
}

/// How a node dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeathKind {
    /// The node stops answering and closes nothing.
    Silent,
    /// The node's connections close at once.
    Kill,
}

/// Arguments of `flagstone lab failover`.
#[derive(Debug, Args)]
pub struct FailoverArgs {
    /// Real nodes instead of local processes.
    #[command(flatten)]
    pub nodes: RealFailoverArgs,
    /// Minimum length of the drill, before the written data is read back
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = drill_time)]
    pub time: u64,
    /// Death of the source: silent, like a power loss, or kill, which closes its connections at
    /// once
    #[arg(long, value_enum, value_name = "KIND", default_value = "silent")]
    pub death: DeathKind,
    /// Do not emulate SSD persistent disks: use the speed of the files
    #[arg(long)]
    pub no_emulation: bool,
    /// Parent of the temporary directory for the nodes' files, 512 MiB in all; the system's
    /// temporary directory if not given
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Results and report directory; lab-results/EXPERIMENT-TIME if not given
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `flagstone lab provisioned`.
#[derive(Debug, Args)]
pub struct ProvisionedArgs {
    /// Real disks instead of emulated ones.
    #[command(flatten)]
    pub real: RealProvisionedArgs,
    /// Under half a minute: a first look
    #[arg(long)]
    pub short: bool,
    /// Repetitions of each measurement; 4 if not given, 1 with --short
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Length of each measurement; 1m, as published, if not given, 5s with --short
    #[arg(long, value_name = "TIME", value_parser = measured_time)]
    pub runtime: Option<u64>,
    /// Results.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl ProvisionedArgs {
    /// Defaults as published: `--ramp_time=2s --runtime=1m`.
    pub fn lengths(&self) -> Lengths {
        let own = if self.short { lengths(2000, 5000, 1) } else { lengths(2000, 60_000, 4) };
        own.or(None, self.runtime, self.repetitions)
    }
}

/// Arguments of `flagstone lab limits`.
#[derive(Debug, Args)]
pub struct LimitsArgs {
    /// Real disks instead of emulated ones.
    #[command(flatten)]
    pub real: RealLimitsArgs,
    /// About four minutes: a first look
    #[arg(long)]
    pub short: bool,
    /// Repetitions of each measurement
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Length of each measurement; 5s if not given, 2s with --short
    #[arg(long, value_name = "TIME", value_parser = measured_time)]
    pub runtime: Option<u64>,
    /// Warm-up before each measurement; 1s if not given, 0.5s with --short
    #[arg(long, value_name = "TIME", value_parser = parse_time_ms)]
    pub ramp: Option<u64>,
    /// Results.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl LimitsArgs {
    /// Lengths for emulated and real targets.
    pub fn lengths(&self) -> Lengths {
        let own = if self.short { lengths(500, 2000, 1) } else { lengths(1000, 5000, 1) };
        own.or(self.ramp, self.runtime, Some(self.repetitions))
    }
}

/// Arguments of `flagstone lab fabric`.
#[derive(Debug, Args)]
pub struct FabricArgs {
    /// Real disks instead of emulated ones.
    #[command(flatten)]
    pub real: RealFabricArgs,
    /// Under a minute: a first look
    #[arg(long)]
    pub short: bool,
    /// Slow the emulated disks and network down by this factor, for machines with few CPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// Repetitions of each measurement; 4 if not given, 1 with --short
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Length of each measurement; 10s if not given, 2s with --short
    #[arg(long, value_name = "TIME", value_parser = measured_time)]
    pub runtime: Option<u64>,
    /// Warm-up before each measurement; 2s if not given, 0.5s with --short
    #[arg(long, value_name = "TIME", value_parser = parse_time_ms)]
    pub ramp: Option<u64>,
    /// Results.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl FabricArgs {
    /// Lengths for emulated and real targets.
    pub fn lengths(&self) -> Lengths {
        let own = if self.short { lengths(500, 2000, 1) } else { lengths(2000, 10_000, 4) };
        own.or(self.ramp, self.runtime, self.repetitions)
    }
}

/// Arguments of `flagstone lab demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Directory for the volume's temporary file, on the disk to measure
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Size of the volume, 64m or more
    #[arg(long, value_name = "SIZE", default_value = "512m", value_parser = demo_size)]
    pub size: u64,
    /// Length of each measurement; there are 29
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = demo_time)]
    pub runtime: u64,
    /// Results and report directory; replaces the results of an earlier demo
    #[arg(long, value_name = "DIR", default_value = "lab-results/demo")]
    pub results: PathBuf,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// Smallest volume of the demo: the verified range.
const DEMO_BYTES_LEAST: u64 = 64 << 20;

fn demo_size(text: &str) -> Result<u64, String> {
    match parse_block_size(text).map_err(|error| error.to_string())? {
        bytes if bytes >= DEMO_BYTES_LEAST && bytes.is_multiple_of(1 << 20) => Ok(bytes),
        _ => Err("write a multiple of 1m, from 64m on".to_owned()),
    }
}

/// Shortest and longest measurement of the demo, in ms.
const DEMO_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

fn demo_time(text: &str) -> Result<u64, String> {
    match parse_time_ms(text).map_err(|error| error.to_string())? {
        ms if DEMO_MS.contains(&ms) => Ok(ms),
        _ => Err("write a time from 100ms to 1h".to_owned()),
    }
}

/// Longest round trip, in µs: writes time out after seconds.
const RTT_MOST_US: f64 = 1e6;

/// A time in whole µs. Fractions are allowed, as in 0.3ms.
fn round_trip_us(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no round trip: write such as 0.3ms, 300us or 0");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "" if digits == "0" => 1.0,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let us = number * factor;
    match (0.0..=RTT_MOST_US).contains(&us) {
        true => Ok(us.round() as u64),
        false => Err("write a round trip of at most 1s".to_owned()),
    }
}

pub(super) fn measured_time(text: &str) -> Result<u64, String> {
    match parse_time_ms(text).map_err(|error| error.to_string())? {
        0 => Err("write a time longer than 0, such as 10s".to_owned()),
        ms => Ok(ms),
    }
}

/// Shortest and longest drill, in ms. A silent peer is detected after two seconds, so a shorter
/// drill has no time for all its events; a longer one makes an unreadable timeline.
const DRILL_MS: std::ops::RangeInclusive<u64> = 10_000..=3_600_000;

fn drill_time(text: &str) -> Result<u64, String> {
    match parse_time_ms(text).map_err(|error| error.to_string())? {
        ms if DRILL_MS.contains(&ms) => Ok(ms),
        _ => Err("write a time from 10s to 1h".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_accepts_fractions() {
        for (text, us) in [("0.3ms", 300), ("300us", 300), ("0", 0), ("0.08s", 80_000)] {
            assert_eq!(round_trip_us(text), Ok(us), "{text}");
        }
        for text in ["", "0.3", "ms", "-1ms", "2s", "nanms", "1m", "infs"] {
            assert!(round_trip_us(text).is_err(), "{text}");
        }
    }

    #[test]
    fn drill_time_has_bounds() {
        assert_eq!(drill_time("20s"), Ok(20_000));
        assert!(drill_time("9s").is_err() && drill_time("2h").is_err());
    }
}
