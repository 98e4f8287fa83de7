//! What `flagstone lab` takes.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use flagstone_bench::units::parse_time_ms;

use super::real_args::{
    RealFabricArgs, RealFailoverArgs, RealLimitsArgs, RealMirrorArgs, RealProvisionedArgs,
};
use crate::bench::args::TableForm;

/// Arguments of `flagstone lab`.
#[derive(Debug, Args)]
pub struct LabArgs {
    /// Which experiment.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The experiments.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// A mirror against no mirror, emulated or on real nodes, beside the published table
    Mirror(MirrorArgs),
    /// A node of a mirror dies under a verifying load, and comes back
    Failover(FailoverArgs),
    /// Local SSDs against the same over NVMe/TCP, beside the published table
    Fabric(FabricArgs),
    /// What a larger disk brings: emulated or real disks, the formula, and what was published
    Provisioned(ProvisionedArgs),
    /// The limits of cloud disks: rows of the page's tables, emulated, or a real disk, measured
    Limits(LimitsArgs),
}

/// Where results go, and how they are shown.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Directory of the results and the report; one of the experiment's name and the time in
    /// lab-results if not given
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Form of the tables
    #[arg(long, value_enum, value_name = "FORM", default_value = "text")]
    pub format: TableForm,
    /// What was found as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// How long things are measured and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Warm-up of each measurement, in ms.
    pub ramp_ms: u64,
    /// Length of each measurement, in ms.
    pub runtime_ms: u64,
    /// Of each measurement.
    pub repetitions: u32,
}

impl Lengths {
    /// What was asked, or else these.
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
pub struct MirrorArgs {
    /// Real nodes in place of emulated ones.
    #[command(flatten)]
    pub nodes: RealMirrorArgs,
    /// Round trip of the link between the nodes, such as 0.3ms, which it is if not given; of real
    /// nodes what it is if it is not measured
    #[arg(long, value_name = "TIME", value_parser = round_trip_us)]
    pub rtt: Option<u64>,
    /// A machine type of the catalogue gcp-2019, such as c2-standard-8, whose limits hold in place of
    /// the published disk's; of real nodes what they are, for the results
    #[arg(long, value_name = "NAME")]
    pub machine: Option<String>,
    /// Some three minutes: what is shown is a first look, and no difference can be shown by it
    #[arg(long)]
    pub short: bool,
    /// How often each is measured; 4 if not given, 1 with --short
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Time that each measurement takes; 10s if not given, 2s with --short
    #[arg(long, value_name = "TIME", value_parser = measured_time)]
    pub runtime: Option<u64>,
    /// Warm-up before each measurement; 2s if not given, 1s with --short
    #[arg(long, value_name = "TIME", value_parser = parse_time_ms)]
    pub ramp: Option<u64>,
    /// Where and how its results are shown.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl MirrorArgs {
    /// As its help says, of emulated targets and of real ones.
    pub fn lengths(&self) -> Lengths {
        let own = if self.short { lengths(1000, 2000, 1) } else { lengths(2000, 10_000, 4) };
        own.or(self.ramp, self.runtime, self.repetitions)
    }
}

/// How a node dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeathKind {
    /// It answers nothing and closes nothing.
    Silent,
    /// Its connections are closed at once.
    Kill,
}

/// Arguments of `flagstone lab failover`.
#[derive(Debug, Args)]
pub struct FailoverArgs {
    /// Real nodes in place of processes of this machine.
    #[command(flatten)]
    pub nodes: RealFailoverArgs,
    /// How long the drill takes at least, before all that was written is read back
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = drill_time)]
    pub time: u64,
    /// How the source dies: silent, as at the loss of its power, or killed, which closes its
    /// connections at once
    #[arg(long, value_enum, value_name = "KIND", default_value = "silent")]
    pub death: DeathKind,
    /// Disks as fast as the files below them, rather than like SSD persistent disks
    #[arg(long)]
    pub no_emulation: bool,
    /// Where the nodes' files are made, 512 MiB together, in a directory that is removed at the end;
    /// that of temporary files if not given
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Directory of the results and the report; one of the experiment's name and the time in
    /// lab-results if not given
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// What was found as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `flagstone lab provisioned`.
#[derive(Debug, Args)]
pub struct ProvisionedArgs {
    /// Real disks in place of emulated ones.
    #[command(flatten)]
    pub real: RealProvisionedArgs,
    /// Under half a minute: a first look
    #[arg(long)]
    pub short: bool,
    /// How often each is measured; 4 if not given, 1 with --short
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Time that each measurement takes; 1m as published if not given, 5s with --short
    #[arg(long, value_name = "TIME", value_parser = measured_time)]
    pub runtime: Option<u64>,
    /// Where and how its results are shown.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl ProvisionedArgs {
    /// As published (`--ramp_time=2s --runtime=1m`) if nothing is said.
    pub fn lengths(&self) -> Lengths {
        let own = if self.short { lengths(2000, 5000, 1) } else { lengths(2000, 60_000, 4) };
        own.or(None, self.runtime, self.repetitions)
    }
}

/// Arguments of `flagstone lab limits`.
#[derive(Debug, Args)]
pub struct LimitsArgs {
    /// Real disks in place of emulated ones.
    #[command(flatten)]
    pub real: RealLimitsArgs,
    /// Some four minutes: a first look
    #[arg(long)]
    pub short: bool,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Time that each measurement takes; 5s if not given, 2s with --short
    #[arg(long, value_name = "TIME", value_parser = measured_time)]
    pub runtime: Option<u64>,
    /// Warm-up before each measurement; 1s if not given, 0.5s with --short
    #[arg(long, value_name = "TIME", value_parser = parse_time_ms)]
    pub ramp: Option<u64>,
    /// Where and how its results are shown.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl LimitsArgs {
    /// As its help says, of emulated targets and of real ones.
    pub fn lengths(&self) -> Lengths {
        let own = if self.short { lengths(500, 2000, 1) } else { lengths(1000, 5000, 1) };
        own.or(self.ramp, self.runtime, Some(self.repetitions))
    }
}

/// Arguments of `flagstone lab fabric`.
#[derive(Debug, Args)]
pub struct FabricArgs {
    /// Real disks in place of emulated ones.
    #[command(flatten)]
    pub real: RealFabricArgs,
    /// Under a minute: a first look
    #[arg(long)]
    pub short: bool,
    /// Disks and network so many times slower than the published ones, for machines of few CPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// How often each is measured; 4 if not given, 1 with --short
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Time that each measurement takes; 10s if not given, 2s with --short
    #[arg(long, value_name = "TIME", value_parser = measured_time)]
    pub runtime: Option<u64>,
    /// Warm-up before each measurement; 2s if not given, 0.5s with --short
    #[arg(long, value_name = "TIME", value_parser = parse_time_ms)]
    pub ramp: Option<u64>,
    /// Where and how its results are shown.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl FabricArgs {
    /// As its help says, of emulated targets and of real ones.
    pub fn lengths(&self) -> Lengths {
        let own = if self.short { lengths(500, 2000, 1) } else { lengths(2000, 10_000, 4) };
        own.or(self.ramp, self.runtime, self.repetitions)
    }
}

/// Longest round trip: a write is given up on after seconds.
const RTT_MOST_US: f64 = 1e6;

/// A time with a fraction, in whole µs: round trips are written as 0.3ms.
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
    match parse_time_ms(text)? {
        0 => Err("write a time longer than 0, such as 10s".to_owned()),
        ms => Ok(ms),
    }
}

/// Shortest and longest drill, in ms: a silent peer is found dead after two seconds, so less has no
/// room for all that happens, and more is a picture of little.
const DRILL_MS: std::ops::RangeInclusive<u64> = 10_000..=3_600_000;

fn drill_time(text: &str) -> Result<u64, String> {
    match parse_time_ms(text)? {
        ms if DRILL_MS.contains(&ms) => Ok(ms),
        _ => Err("write a time from 10s to 1h".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_have_fractions() {
        for (text, us) in [("0.3ms", 300), ("300us", 300), ("0", 0), ("0.08s", 80_000)] {
            assert_eq!(round_trip_us(text), Ok(us), "{text}");
        }
        for text in ["", "0.3", "ms", "-1ms", "2s", "nanms", "1m", "infs"] {
            assert!(round_trip_us(text).is_err(), "{text}");
        }
    }

    #[test]
    fn drills_have_room_for_what_happens() {
        assert_eq!(drill_time("20s"), Ok(20_000));
        assert!(drill_time("9s").is_err() && drill_time("2h").is_err());
    }
}
