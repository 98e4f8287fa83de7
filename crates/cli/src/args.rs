//! Command-line definitions: the options of `serve`, `load`, `check` and `completions`, with their
//! ranges and defaults.
//!
//! Devices, sizes and durations use the parsers of the configuration file. Options that change a
//! configuration stay text and are checked together with the file, so that all mistakes are
//! reported at once.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand};
use flagstone_config::device_spec::DeviceSpec;
use flagstone_config::{Arguments, Checked, Config, Diagnostics};
use flagstone_load::AccessPattern;
use flagstone_load::job::Crash;
use flagstone_runtime::IoEngine;
use flagstone_units::{format_size, parse_duration, parse_size};

use crate::backup::args::BackupArgs;
use crate::bench::args::BenchArgs;
use crate::doctor::DoctorArgs;
use crate::key::KeyArgs;
use crate::lab::args::LabArgs;
use crate::logging::LogFormat;
use crate::mirror::args::MirrorArgs;
use crate::plan::args::PlanArgs;
use crate::pool::args::{PoolArgs, SnapshotArgs, VolumeArgs};
use crate::reload::ReloadArgs;
use crate::status::StatusArgs;
use crate::words::{CRASHES, IO_ENGINES, PATTERNS, one_of};

pub(crate) const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("FLAGSTONE_COMMIT"), ")");

/// The program's command line, for its documentation and shell completions.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Block storage whose performance you can predict, buy, protect and prove
#[derive(Debug, Parser)]
#[command(name = "flagstone", version = VERSION, propagate_version = false, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve volumes over NVMe/TCP and NBD until SIGTERM or Ctrl-C
    Serve(ServeArgs),
    /// Show the volumes of a running server, their hosts and their traffic
    Status(StatusArgs),
    /// Have a running server read its configuration and its key files again
    Reload(ReloadArgs),
    /// Create, watch and control the mirrors of volumes
    Mirror(MirrorArgs),
    /// Create, watch and control pools, from which volumes are made while the server runs
    Pool(PoolArgs),
    /// Create, show and change volumes of pools
    Volume(VolumeArgs),
    /// Take, show, compare and delete snapshots of volumes of pools, and roll back to them
    Snapshot(SnapshotArgs),
    /// Show, verify, prune and restore backups in an object store
    Backup(BackupArgs),
    /// Measure or verify a device with the built-in load generator
    Load(LoadArgs),
    /// Write a commented configuration file for a disk, a mirrored pair or a limited volume
    Init(InitArgs),
    /// Check a configuration file without serving anything
    Check(CheckArgs),
    /// Make and check keys for authentication
    Key(KeyArgs),
    /// Predict the limits and prices of cloud disks, and the limit that binds
    Plan(PlanArgs),
    /// Find host settings that cost performance, and change them on request
    Doctor(DoctorArgs),
    /// Measure disks and volumes with fio, and compare the results
    Bench(BenchArgs),
    /// Run the published experiments on this machine, with emulated disks and links
    Lab(LabArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Write the manual pages
    #[command(hide = true)]
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The configuration file, or a directory of files *.toml
    pub(crate) file: PathBuf,
    /// Report as JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("installation").args(["install", "from"])))]
pub(crate) struct InitArgs {
    /// The file to write; standard output if not given
    pub(crate) file: Option<PathBuf>,
    /// Device that stores the data, such as /dev/sdb; asked for if not given
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Name of the volume
    #[arg(long, value_name = "NAME", default_value = "db")]
    pub(crate) volume: String,
    /// Address of NVMe/TCP; 127.0.0.1:4420 if not given, with --peer 0.0.0.0 and the port of --node
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// NQN of the host that attaches from another machine and proves a key; asked for if not given
    #[arg(long, value_name = "NQN", conflicts_with = "insecure")]
    pub(crate) host: Option<String>,
    /// Let anyone who reaches the address read and write the volume, without keys
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Mirror to this node; its file is printed too
    #[arg(long, value_name = "NAME=ADDRESS")]
    pub(crate) peer: Option<String>,
    /// Write the peer's file here instead of printing it; with --install its setup, with the keys
    /// (NAME.setup if not given)
    #[arg(long, value_name = "FILE", requires = "peer")]
    pub(crate) peer_file: Option<PathBuf>,
    /// This node of a mirrored pair; asked for if not given
    #[arg(long, value_name = "NAME=ADDRESS", requires = "peer")]
    pub(crate) node: Option<String>,
    /// Device of the peer; the same path if not given
    #[arg(long, value_name = "DEVICE", requires = "peer")]
    pub(crate) peer_device: Option<String>,
    /// Limit the volume like this type of cloud disk, such as pd-ssd
    #[arg(long, value_name = "TYPE", requires = "size", requires = "machine")]
    pub(crate) profile: Option<String>,
    /// Size of that disk, such as 500GB
    #[arg(long, value_name = "SIZE", requires = "profile")]
    pub(crate) size: Option<String>,
    /// Machine of that disk, such as n2-standard-8
    #[arg(long, value_name = "NAME", requires = "profile")]
    pub(crate) machine: Option<String>,
    /// Limit of I/Os a second
    #[arg(long, value_name = "N", conflicts_with = "profile")]
    pub(crate) iops: Option<u64>,
    /// Limit of throughput, such as 240MB/s
    #[arg(long, value_name = "RATE", conflicts_with = "profile")]
    pub(crate) throughput: Option<String>,
    /// Set up the service of the package: configuration, keys, access to the disk; and start it
    #[arg(long, conflicts_with = "file")]
    pub(crate) install: bool,
    /// Set up this node from the setup that --install wrote on the other; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = FROM_EXCLUDES)]
    pub(crate) from: Option<PathBuf>,
    /// With --install or --from: show what would be done, and do nothing
    #[arg(long, requires = "installation")]
    pub(crate) dry_run: bool,
    /// With --install or --from: set up the system below this directory, and start nothing
    #[arg(long, value_name = "DIR", requires = "installation", default_value = "/")]
    pub(crate) root: PathBuf,
    /// Replace existing files without asking
    #[arg(long)]
    pub(crate) force: bool,
}

/// Options of the configuration, which a setup has already.
const FROM_EXCLUDES: [&str; 16] = [
    "file",
    "install",
    "device",
    "volume",
    "listen",
    "host",
    "insecure",
    "peer",
    "peer_file",
    "node",
    "peer_device",
    "profile",
    "size",
    "machine",
    "iops",
    "throughput",
];

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory to write to
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("source").args(["file", "volumes", "state"]).required(true).multiple(true)))]
pub(crate) struct ServeArgs {
    /// The configuration file, or a directory of files *.toml
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) options: Arguments,
    /// Allow core dumps of the server, which hold the keys in use
    #[arg(long)]
    pub(crate) core_dumps: bool,
    /// Format of the log on standard error; RUST_LOG filters it
    #[arg(long, value_enum, value_name = "FORM", default_value = "text")]
    pub(crate) log: LogFormat,
}

impl ServeArgs {
    /// Builds the configuration from the file and these options.
    pub(crate) fn config(&self) -> Result<Checked, Diagnostics> {
        match &self.file {
            Some(file) => Config::check(file, &self.options),
            None => {
                Config::from_args(&self.options).map(|config| Checked { config, warnings: None })
            }
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// The device: a path, memory:SIZE, null:SIZE, nvme-tcp://HOST:PORT/NQN, nbd://HOST:PORT/EXPORT
    pub(crate) target: DeviceSpec,
    /// Order and kind of the requests
    #[arg(long, value_name = "PATTERN", value_parser = one_of(PATTERNS))]
    pub(crate) rw: AccessPattern,
    /// Bytes of one request: a multiple of 512 up to 32MiB; as in fio, 4k is 4,096
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = request_bytes)]
    pub(crate) bs: u32,
    /// Requests in flight on each thread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8192))]
    pub(crate) depth: u16,
    /// Run time; 10s if neither this nor --ios is given, and whichever ends first if both are
    #[arg(long, value_name = "DURATION", value_parser = run_time)]
    pub(crate) time: Option<Duration>,
    /// Number of requests, of all threads together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ios: Option<u64>,
    /// Bytes of the device to use from --offset on; to its end if not given
    #[arg(long, value_name = "SIZE", value_parser = block_multiple)]
    pub(crate) size: Option<u64>,
    /// First byte of the device to use
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = block_multiple)]
    pub(crate) offset: u64,
    /// Executor threads, each with --depth requests in flight
    #[arg(long, alias = "cores", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    /// Percentage of reads, for readwrite and randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) read_percent: u8,
    /// Write a pattern and check it: finds lost, torn, stale and misplaced blocks
    #[arg(long)]
    pub(crate) verify: bool,
    /// With --verify: record acknowledged writes in this file, for a check after a crash
    #[arg(long, value_name = "FILE", requires = "verify")]
    pub(crate) verify_state: Option<PathBuf>,
    /// Only check the device against --verify-state after a crash of one side
    #[arg(long, value_name = "SIDE", requires = "verify_state", value_parser = one_of(CRASHES))]
    pub(crate) after_crash: Option<Crash>,
    /// Warm-up before counting and --time start; not with --verify
    #[arg(long, value_name = "DURATION", value_parser = run_time)]
    pub(crate) ramp: Option<Duration>,
    /// Force unit access: every write is durable when it completes
    #[arg(long)]
    pub(crate) fua: bool,
    /// Flush after every N writes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) flush_every: Option<u32>,
    /// Percentage of zeroes at the end of each written block of 4 KiB; incompressible if not given
    #[arg(long, value_name = "PERCENT", conflicts_with_all = ["verify", "data"], value_parser = clap::value_parser!(u8).range(0..=99))]
    pub(crate) compressible: Option<u8>,
    /// Write repetitions of this file, at most its first 32 MiB, instead of random data
    #[arg(long, value_name = "FILE", conflicts_with = "verify")]
    pub(crate) data: Option<PathBuf>,
    /// Failed requests to tolerate; one more stops the load
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) errors_max: u64,
    /// I/O engine
    #[arg(long, value_name = "ENGINE", default_value = "auto", value_parser = one_of(IO_ENGINES))]
    pub(crate) io_engine: IoEngine,
    /// The device, exactly as written, if its data may be destroyed; required if it holds any
    #[arg(long, value_name = "DEVICE")]
    pub(crate) destroy_data: Option<String>,
    /// Seed of offsets and pattern; the same seed gives the same requests
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// I/O queues per thread, only for nvme-tcp: devices; 1 if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) queues: Option<u16>,
    /// Maximum requests per second, of all threads together; unlimited if not given
    #[arg(long, value_name = "IOPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rate: Option<u64>,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run time of a load without `--time` and `--ios`.
pub(crate) const DEFAULT_LOAD_TIME: Duration = Duration::from_secs(10);

/// Largest request of a load, in bytes: the largest that any device here takes.
pub(crate) const MAX_REQUEST_BYTES: u64 = 32 << 20;

impl LoadArgs {
    /// Run time; `None` if only `--ios` ends the load.
    pub(crate) fn run_time(&self) -> Option<Duration> {
        match (self.time, self.ios) {
            (None, None) => Some(DEFAULT_LOAD_TIME),
            (time, _) => time,
        }
    }
}

fn request_bytes(text: &str) -> Result<u32, String> {
    let bytes = block_multiple(text)?;
    match u32::try_from(bytes) {
        Ok(size) if (512..=MAX_REQUEST_BYTES).contains(&bytes) => Ok(size),
        _ => Err(format!("write a size from 512 to {}", format_size(MAX_REQUEST_BYTES))),
    }
}

fn block_multiple(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    match bytes.is_multiple_of(512) {
        true => Ok(bytes),
        false => Err("write a multiple of 512, the smallest block".to_owned()),
    }
}

fn run_time(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(Duration::ZERO) => Err("write a duration longer than 0, such as 10s".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[derive(Debug, Parser)]
    struct Serve {
        #[command(flatten)]
        args: ServeArgs,
    }

    #[derive(Debug, Parser)]
    struct Load {
        #[command(flatten)]
        args: LoadArgs,
    }

    fn load(line: &str) -> Result<LoadArgs, String> {
        let words = std::iter::once("load").chain(line.split(' '));
        Load::try_parse_from(words).map(|load| load.args).map_err(|error| error.to_string())
    }

    #[test]
    fn clap_definitions_are_consistent() {
        Cli::command().debug_assert();
        Serve::command().debug_assert();
        Load::command().debug_assert();
    }

    #[test]
    fn load_options_match_fio() {
        let args = load("null:1TiB --rw randread --bs 4k --depth 32 --time 10s").expect("right");
        assert_eq!(args.target, DeviceSpec::Null { size_bytes: 1 << 40 });
        assert_eq!((args.bs, args.depth, args.threads), (4096, 32, 1));
        assert_eq!(args.run_time(), Some(Duration::from_secs(10)));
        assert!(args.rw.is_random() && args.rw.reads() && !args.rw.writes());
        let args = load("./f --rw rw --cores 2 --ios 5 --offset 1m").expect("right");
        assert_eq!((args.rw, args.threads, args.offset), (AccessPattern::Rw, 2, 1 << 20));
        assert!(args.rw.reads() && args.rw.writes() && !args.rw.trims());
        for (word, random) in [("trim", false), ("randtrim", true)] {
            let rw = load(&format!("./f --rw {word}")).expect("right").rw;
            assert!(rw.trims() && !rw.reads() && !rw.writes());
            assert_eq!(rw.is_random(), random);
        }
        assert_eq!(args.run_time(), None);
        let args = load("./f --rw write").expect("right");
        assert_eq!(args.run_time(), Some(DEFAULT_LOAD_TIME));
    }

    #[test]
    fn invalid_load_options_name_accepted_values() {
        for (line, part) in [
            ("nul:1TiB --rw read", "unknown kind of device"),
            ("null:1TiB --rw random", "randread"),
            ("null:1TiB --rw read --bs 4x", "unknown unit"),
            ("null:1TiB --rw read --bs 1000", "multiple of 512"),
            ("null:1TiB --rw read --bs 0", "from 512 to 32MiB"),
            ("null:1TiB --rw read --bs 33m", "from 512 to 32MiB"),
            ("null:1TiB --rw read --depth 0", "1..=8192"),
            ("null:1TiB --rw read --time 0", "longer than 0"),
            ("null:1TiB --rw read --time 10", "needs a unit"),
            ("null:1TiB --rw read --read-percent 101", "0..=100"),
            ("null:1TiB", "--rw"),
        ] {
            let error = load(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn serve_without_configuration_file() {
        let words = "serve --volume db=memory:1GiB --volume log=null:1TiB \
                     --listen nvme-tcp://127.0.0.1:0 --cores 2 --log json";
        let serve = Serve::try_parse_from(words.split_whitespace()).expect("right").args;
        assert_eq!(serve.log, LogFormat::Json);
        let config = serve.config().unwrap_or_else(|error| panic!("{error}")).config;
        assert_eq!(config.volumes.len(), 2);
        assert_eq!(config.server.cores, Some(2));
        assert!(Serve::try_parse_from(["serve"]).is_err(), "nothing to serve");
    }
}
