//! `flagstone load`: measures or verifies a device with the closed-loop load generator.

use std::time::Duration;

use flagstone_bench::guard::check_write;
use flagstone_bench::own_file::OwnFiles;
use flagstone_blockdev::SharedDevice;
use flagstone_config::device_spec::DeviceSpec;
use flagstone_host::guard::{Guarded, SAMPLES};
use flagstone_load::job::{BlockSize, Verify};
use flagstone_load::{LoadJob, LoadOutcome, LoadProgress, LoadResults, RunError, Stop, WriteData};
use flagstone_runtime::{RuntimeConfig, run as run_cores, signal, spawn};
use flagstone_stack::{DataSearch, OpenOptions, find_data, open_device};
use flagstone_units::display::count;
use indicatif::ProgressBar;

use crate::args::LoadArgs;
use crate::exit::{Exit, Failure};
use crate::logging::{self, LogFormat};
use crate::output::{complain, json, print, progress_bar};
use crate::sample;

/// Queue entries of remote devices: the deepest queue of one core.
const QUEUE_DEPTH_MAX: u16 = 1023;

pub(crate) fn run(args: &LoadArgs) -> Result<Exit, Failure> {
    if args.queues.is_some() && !matches!(args.target, DeviceSpec::NvmeTcp(_)) {
        return Err(Failure::usage("--queues is only for nvme-tcp:// devices: leave it out"));
    }
    guard(args)?;
    let data = match (&args.data, args.compressible) {
        (Some(path), _) => sample::of_file(path)?,
        (None, Some(percent)) => WriteData::Compressible(percent),
        (None, None) => WriteData::Random,
    };
    logging::init(LogFormat::Text)?;
    let config = RuntimeConfig {
        cores: args.threads.into(),
        io_engine: args.io_engine,
        buffer_memory_bytes: MEMORY_BYTES,
        ..RuntimeConfig::default()
    };
    let own_files = own_files(args);
    let results = run_cores(&config, || measure(args, data.clone())).map_err(Failure::failed);
    own_files.settle();
    let results = results??;
    let text = if args.json { json(&results) } else { results.to_string() };
    Ok(print(&text, exit_of(&results)))
}

/// Refuses to overwrite data on a local device or file without consent.
fn guard(args: &LoadArgs) -> Result<(), Failure> {
    let name = args.target.to_string();
    let is_target = |other: &str| other.parse().is_ok_and(|other: DeviceSpec| other == args.target);
    if let Some(other) = args.destroy_data.as_ref().filter(|other| !is_target(other)) {
        return Err(Failure::usage(format!("--destroy-data={other}: the device is {name}")));
    }
    let DeviceSpec::Path(path) = &args.target else { return Ok(()) };
    if !changes_data(args) {
        return Ok(());
    }
    let agreed = args.destroy_data.is_some();
    // A file that does not exist is reported when it is opened.
    check_write(&name, path, agreed)
        .map(drop)
        .map_err(|guarded| Failure::usage(guarded.to_string()))
}

fn own_files(args: &LoadArgs) -> OwnFiles {
    match &args.target {
        DeviceSpec::Path(path) if changes_data(args) => {
            OwnFiles::before([path.as_path()].into_iter(), true)
        }
        _ => OwnFiles::default(),
    }
}

/// As [`guard`], for a remote volume: its server owns the device.
async fn guard_remote(args: &LoadArgs, device: &SharedDevice) -> Result<(), Failure> {
    if !args.target.is_remote() || !changes_data(args) || args.destroy_data.is_some() {
        return Ok(());
    }
    match find_data(device).await.map_err(Failure::failed)? {
        DataSearch::Empty => Ok(()),
        DataSearch::EmptySamples => {
            let (target, samples) = (&args.target, count(SAMPLES));
            complain(&format!(
                "note: {target} does not say what was written: {samples} samples of 16 KiB were \
                 read, and are zero; data between them is overwritten\n"
            ));
            Ok(())
        }
        DataSearch::Found(found) => {
            let guarded = Guarded::needs_consent(&args.target.to_string(), found);
            Err(Failure::usage(guarded.to_string()))
        }
    }
}

fn changes_data(args: &LoadArgs) -> bool {
    (args.rw.writes() || args.rw.trims()) && args.after_crash.is_none()
}

/// Upper limit of the generator's pooled buffers, in bytes.
const MEMORY_BYTES: usize = 1 << 30;

fn exit_of(results: &LoadResults) -> Exit {
    match results.outcome {
        LoadOutcome::Complete => Exit::Success,
        LoadOutcome::VerifyFailed => Exit::VerifyFailed,
        LoadOutcome::Stopped => Exit::Interrupted,
        LoadOutcome::Unresponsive | LoadOutcome::IoErrors => Exit::Failed,
    }
}

async fn measure(args: &LoadArgs, data: WriteData) -> Result<LoadResults, Failure> {
    signal::catch_termination().map_err(Failure::failed)?;
    let options = OpenOptions {
        read_only: !changes_data(args),
        block_bytes: block_bytes(args),
        queues: args.queues,
        queue_depth: Some(args.depth.clamp(1, QUEUE_DEPTH_MAX)),
        rereads_keys: true,
    };
    let device = open_device(&args.target, &options).await;
    let device = device.map_err(Failure::failed)?;
    let job = LoadJob { data, ..job(args) };
    let stop = Stop::new();
    let stopper = stop.clone();
    let _interrupt = spawn(async move {
        signal::terminated().await;
        stopper.stop();
    })
    .abort_on_drop();
    guard_remote(args, &device).await?;
    let seconds = args.run_time().map(|time| time.as_secs().max(1));
    let bar = progress_bar(seconds, "{bar:30} {elapsed} {msg}");
    let results = flagstone_load::run(device, &job, &stop, |progress| show(&bar, progress)).await;
    bar.finish_and_clear();
    results.map_err(|error| {
        let exit = if matches!(error, RunError::Job(_)) { Exit::Usage } else { Exit::Failed };
        Failure(exit, error.to_string())
    })
}

/// Blocks of 512 bytes where the load needs them, else the device's own.
fn block_bytes(args: &LoadArgs) -> Option<u32> {
    let sizes = [args.bs.into(), args.offset, args.size.unwrap_or(0)];
    (!sizes.iter().all(|size: &u64| size.is_multiple_of(4096))).then_some(512)
}

fn job(args: &LoadArgs) -> LoadJob {
    let recorded = args.after_crash.zip(args.verify_state.clone());
    let verify = match recorded {
        Some((crash, state)) => Some(Verify::Recorded { state, crash }),
        None => args.verify.then(|| Verify::Written { state: args.verify_state.clone() }),
    };
    LoadJob {
        pattern: args.rw,
        read_percent: args.read_percent,
        block_sizes: vec![BlockSize { bytes: args.bs as usize, weight: 1 }],
        depth: usize::from(args.depth) * usize::from(args.threads),
        cores: args.threads.into(),
        time: args.run_time(),
        ios: args.ios,
        bytes: None,
        offset_bytes: args.offset,
        size_bytes: args.size,
        seed: args.seed,
        rate_iops: args.rate,
        warm_up: args.ramp.unwrap_or(Duration::ZERO),
        flush_every: args.flush_every,
        fua: args.fua,
        data: WriteData::Random,
        errors_max: args.errors_max,
        verify,
    }
}

fn show(bar: &ProgressBar, progress: &LoadProgress) {
    bar.set_position(progress.elapsed.as_secs());
    let what = if progress.reads_back { "reading back, " } else { "" };
    let wrong = match (progress.errors, progress.violations) {
        (0, 0) => String::new(),
        (errors, violations) => format!(", {errors} errors, {violations} wrong blocks"),
    };
    let seconds = progress.elapsed.as_secs_f64().max(1e-9);
    let mean = progress.ios as f64 / seconds;
    bar.set_message(format!("{what}{mean:.0} IOPS{wrong}"));
}
