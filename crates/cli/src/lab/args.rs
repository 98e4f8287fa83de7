//! Options of `flagstone lab`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use flagstone_bench::table::Form;
use flagstone_lab::failover::Death;
use flagstone_units::parse_duration;

use super::real_args::{
    RealFabricArgs, RealFailoverArgs, RealLimitsArgs, RealMirrorArgs, RealPoolArgs,
    RealProvisionedArgs,
};
use crate::bench::args::{any_time, measured_time, time_ms, whole_mib};
use crate::words::{DEATHS, TABLE_FORMS, one_of};

#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Compare a mirror with a plain disk, emulated or on real nodes, and with the published table
    Mirror(LabMirrorArgs),
    /// Kill a node of a mirror under a verifying load, and bring it back
    Failover(FailoverArgs),
    /// Compare local SSDs with NVMe/TCP volumes, and with the published table
    Fabric(FabricArgs),
    /// Measure the effect of disk size on emulated or real disks, against the formula and published
    /// figures
    Provisioned(ProvisionedArgs),
    /// Compare a pool with the disk below it, emulated or real
    Pool(LabPoolArgs),
    /// Measure what compression saves and costs, by kind of data, on an emulated disk
    Savings(LabSavingsArgs),
    /// Measure the limits of cloud disks: rows of the page's tables, emulated, or a real disk
    Limits(LimitsArgs),
    /// Measure and verify a served volume, then run the pool, mirror, fabric and failover
    /// experiments, shortened
    Demo(DemoArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ResultsArgs {
    /// Results and report directory; lab-results/EXPERIMENT-TIME if not given
    #[arg(long, value_name = "DIR")]
    pub(crate) results: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    #[command(flatten)]
    pub(crate) to: ResultsArgs,
    /// Format of the tables
    #[arg(long, value_name = "FORM", default_value = "text", value_parser = one_of(TABLE_FORMS))]
    pub(crate) format: Form,
}

#[derive(Debug, Args)]
pub(crate) struct LengthArgs {
    /// A first look: few and short measurements
    #[arg(long)]
    pub(crate) short: bool,
    /// Repetitions of each measurement; the experiment's if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: Option<u32>,
    /// Length of each measurement; the experiment's if not given
    #[arg(long, value_name = "TIME", value_parser = measured_time)]
    pub(crate) runtime: Option<u64>,
    /// Warm-up before each measurement; the experiment's if not given
    #[arg(long, value_name = "TIME", value_parser = any_time)]
    pub(crate) ramp: Option<u64>,
}

/// Options of every experiment with tables.
#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    #[command(flatten)]
    pub(crate) lengths: LengthArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Warm-up and length of each measurement, in ms, and their repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths(pub(super) u64, pub(super) u64, pub(super) u32);

impl LengthArgs {
    /// Options override the experiment's lengths, which are others with `--short`.
    pub(super) fn or(&self, full: Lengths, short: Lengths) -> Lengths {
        let Lengths(ramp_ms, runtime_ms, repetitions) = if self.short { short } else { full };
        Lengths(
            self.ramp.unwrap_or(ramp_ms),
            self.runtime.unwrap_or(runtime_ms),
            self.repetitions.unwrap_or(repetitions),
        )
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "4 repetitions of 10s after 2s; with --short 1 of 2s after 1s, about three minutes"
)]
pub(crate) struct LabMirrorArgs {
    #[command(flatten)]
    pub(crate) nodes: RealMirrorArgs,
    /// Round trip of the link between the nodes, such as 300us (the default); for real nodes, the
    /// value to use if it is not measured
    #[arg(long, value_name = "TIME", value_parser = round_trip_us)]
    pub(crate) rtt: Option<u64>,
    /// A machine type of the catalog gcp-2019, such as c2-standard-8, whose limits replace those
    /// of the published disk; for real nodes, their type
    #[arg(long, value_name = "NAME")]
    pub(crate) machine: Option<String>,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

#[derive(Debug, Args)]
pub(crate) struct FailoverArgs {
    #[command(flatten)]
    pub(crate) nodes: RealFailoverArgs,
    /// Minimum length of the drill, before the written data is read back
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = drill_time)]
    pub(crate) time: u64,
    /// Death of the source: silent, like a power loss, or kill, which closes its connections at
    /// once
    #[arg(long, value_name = "KIND", default_value = "silent", value_parser = one_of(DEATHS))]
    pub(crate) death: Death,
    /// Let sources die in five ways, while an etcd decides who serves and nobody intervenes
    #[arg(long, conflicts_with_all = ["node_a", "time", "death", "no_emulation"])]
    pub(crate) automatic: bool,
    /// Deaths of each kind, with --automatic
    #[arg(long, value_name = "N", default_value_t = 3, requires = "automatic",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: u32,
    /// Do not emulate SSD persistent disks: use the speed of the files
    #[arg(long)]
    pub(crate) no_emulation: bool,
    /// Parent of the temporary directory for the nodes' files, 512 MiB in all; the system's
    /// temporary directory if not given
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) to: ResultsArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "4 repetitions of 1m after 2s, as published; with --short 1 of 5s, half a minute"
)]
pub(crate) struct ProvisionedArgs {
    #[command(flatten)]
    pub(crate) real: RealProvisionedArgs,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "1 repetition of 5s after 1s; with --short of 2s after 0.5s, about four minutes"
)]
pub(crate) struct LimitsArgs {
    #[command(flatten)]
    pub(crate) real: RealLimitsArgs,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "4 repetitions of 10s after 2s; with --short 1 of 2s after 0.5s, under a minute"
)]
pub(crate) struct FabricArgs {
    #[command(flatten)]
    pub(crate) real: RealFabricArgs,
    /// Slow the emulated disks and network down by this factor, for machines with few CPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) scale: u32,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "4 repetitions of 10s after 2s; with --short 1 of 2s after 1s, about two minutes"
)]
pub(crate) struct LabPoolArgs {
    #[command(flatten)]
    pub(crate) real: RealPoolArgs,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Measures incompressible data and data that halves, and the beginning of each FILE. 4 \
repetitions of 10s after 2s; with --short 1 of 2s after 1s, about three minutes"
)]
pub(crate) struct LabSavingsArgs {
    /// Measure this file's data too, at most its first 32 MiB; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Directory for the volume's temporary file, on the disk to measure
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Size of the volume, 64m or more
    #[arg(long, value_name = "SIZE", default_value = "512m", value_parser = demo_size)]
    pub(crate) size: u64,
    /// Length of each measurement; there are 33
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = demo_time)]
    pub(crate) runtime: u64,
    /// Results and report directory; replaces the results of an earlier demo
    #[arg(long, value_name = "DIR", default_value = "lab-results/demo")]
    pub(crate) results: PathBuf,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Smallest volume of the demo: the verified range.
const DEMO_BYTES_LEAST: u64 = 64 << 20;

fn demo_size(text: &str) -> Result<u64, String> {
    whole_mib(text, DEMO_BYTES_LEAST, "a multiple of 1m, from 64m on")
}

/// Shortest and longest measurement of the demo, in ms.
const DEMO_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

fn demo_time(text: &str) -> Result<u64, String> {
    time_ms(text, DEMO_MS, "a time from 100ms to 1h")
}

/// A round trip in whole µs, at most 1 s: writes time out after seconds.
fn round_trip_us(text: &str) -> Result<u64, String> {
    match parse_duration(text).map_err(|error| error.to_string())?.as_micros() as u64 {
        us if us <= 1_000_000 => Ok(us),
        _ => Err("write a round trip of at most 1s".to_owned()),
    }
}

/// Shortest and longest drill, in ms. A silent peer is detected after two seconds, so a shorter
/// drill has no time for all its events; a longer one makes an unreadable timeline.
const DRILL_MS: std::ops::RangeInclusive<u64> = 10_000..=3_600_000;

fn drill_time(text: &str) -> Result<u64, String> {
    time_ms(text, DRILL_MS, "a time from 10s to 1h")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_has_bounds() {
        for (text, us) in [("300us", 300), ("0", 0), ("80ms", 80_000), ("1s", 1_000_000)] {
            assert_eq!(round_trip_us(text), Ok(us), "{text}");
        }
        for text in ["", "0.3ms", "ms", "-1ms", "2s", "300", "1m"] {
            assert!(round_trip_us(text).is_err(), "{text}");
        }
    }

    #[test]
    fn drill_time_has_bounds() {
        assert_eq!(drill_time("20s"), Ok(20_000));
        assert!(drill_time("9s").is_err() && drill_time("2h").is_err());
    }
}
