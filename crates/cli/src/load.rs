//! `flagstone load`: measures or verifies a device with the closed-loop load generator.

use std::io::{self, IsTerminal};
use std::time::Duration;

use flagstone_config::device_spec::DeviceSpec;
use flagstone_load::job::{BlockSize, Crash, Verify};
use flagstone_load::{
    AccessPattern, LoadJob, LoadOutcome, LoadProgress, LoadResults, RunError, Stop,
};
use flagstone_runtime::{IoEngine, RuntimeConfig, run as run_cores, signal, spawn};
use flagstone_stack::{OpenOptions, open_device};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::{AfterCrash, LoadArgs, LoadIoEngine, LoadPattern};
use crate::exit::Exit;
use crate::logging::{self, LogFormat};
use crate::output::{complain, print};

/// Queue entries of remote devices: the deepest queue of one core.
const QUEUE_DEPTH_MAX: u16 = 1023;

/// Runs the command.
pub fn run(args: &LoadArgs) -> Exit {
    if args.queues.is_some() && !matches!(args.target, DeviceSpec::NvmeTcp(_)) {
        return fail("--queues is only for nvme-tcp:// devices: leave it out", Exit::Usage);
    }
    if let Err(error) = logging::init(LogFormat::Text) {
        return fail(&error, Exit::Usage);
    }
    let config = RuntimeConfig {
        cores: args.threads.into(),
        io_engine: match args.io_engine {
            LoadIoEngine::Auto => IoEngine::Auto,
            LoadIoEngine::IoUring => IoEngine::IoUring,
            LoadIoEngine::Threads => IoEngine::Threads,
        },
        buffer_memory_bytes: MEMORY_BYTES,
        ..RuntimeConfig::default()
    };
    let results = match run_cores(&config, || measure(args)) {
        Ok(Ok(results)) => results,
        Ok(Err(problem)) => return fail(&problem.text, problem.exit),
        Err(error) => return fail(&error.to_string(), Exit::Failed),
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(&results).expect("results are always JSON") + "\n",
        false => results.to_string(),
    };
    print(&text, exit_of(&results))
}

/// Upper limit of the generator's pooled buffers, in bytes.
const MEMORY_BYTES: usize = 1 << 30;

struct LoadFailure {
    text: String,
    exit: Exit,
}

fn fail(text: &str, exit: Exit) -> Exit {
    complain(&format!("flagstone: error: {text}\n"));
    exit
}

fn exit_of(results: &LoadResults) -> Exit {
    match results.outcome {
        LoadOutcome::Complete => Exit::Success,
        LoadOutcome::VerifyFailed => Exit::VerifyFailed,
        LoadOutcome::Stopped => Exit::Interrupted,
        LoadOutcome::Unresponsive | LoadOutcome::IoErrors => Exit::Failed,
    }
}

async fn measure(args: &LoadArgs) -> Result<LoadResults, LoadFailure> {
    let failed = |text: String| LoadFailure { text, exit: Exit::Failed };
    signal::catch_termination().map_err(|error| failed(error.to_string()))?;
    let options = OpenOptions {
        read_only: !(args.rw.writes() || args.rw.trims()) || args.after_crash.is_some(),
        block_bytes: block_bytes(args),
        queues: args.queues,
        queue_depth: Some(args.depth.clamp(1, QUEUE_DEPTH_MAX)),
    };
    let device = open_device(&args.target, &options).await;
    let device = device.map_err(|error| failed(error.to_string()))?;
    let stop = Stop::new();
    let stopper = stop.clone();
    let _interrupt = spawn(async move {
        signal::terminated().await;
        stopper.stop();
    })
    .abort_on_drop();
    let bar = Bar::new(args.run_time());
    let job = job(args);
    let results = flagstone_load::run(device, &job, &stop, |progress| bar.show(progress)).await;
    bar.clear();
    results.map_err(|error| {
        let exit = if matches!(error, RunError::Job(_)) { Exit::Usage } else { Exit::Failed };
        LoadFailure { text: error.to_string(), exit }
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
        Some((crash, state)) => {
            let crash = match crash {
                AfterCrash::Client => Crash::ClientOnly,
                AfterCrash::Server => Crash::Server,
            };
            Some(Verify::Recorded { state, crash })
        }
        None => args.verify.then(|| Verify::Written { state: args.verify_state.clone() }),
    };
    LoadJob {
        pattern: match args.rw {
            LoadPattern::Read => AccessPattern::Read,
            LoadPattern::Write => AccessPattern::Write,
            LoadPattern::Randread => AccessPattern::RandRead,
            LoadPattern::Randwrite => AccessPattern::RandWrite,
            LoadPattern::Readwrite => AccessPattern::Rw,
            LoadPattern::Randrw => AccessPattern::RandRw,
            LoadPattern::Trim => AccessPattern::Trim,
            LoadPattern::Randtrim => AccessPattern::RandTrim,
        },
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
        errors_max: args.errors_max,
        verify,
    }
}

/// Progress bar on a terminal; nothing elsewhere, to keep logs readable.
struct Bar(ProgressBar);

impl Bar {
    fn new(time: Option<Duration>) -> Bar {
        if !io::stderr().is_terminal() {
            return Bar(ProgressBar::hidden());
        }
        let bar = match time {
            Some(time) => ProgressBar::new(time.as_secs().max(1)),
            None => ProgressBar::no_length(),
        };
        bar.set_draw_target(ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {elapsed} {msg}") {
            bar.set_style(style);
        }
        Bar(bar)
    }

    fn show(&self, progress: &LoadProgress) {
        self.0.set_position(progress.elapsed.as_secs());
        let what = if progress.reads_back { "reading back, " } else { "" };
        let wrong = match (progress.errors, progress.violations) {
            (0, 0) => String::new(),
            (errors, violations) => format!(", {errors} errors, {violations} wrong blocks"),
        };
        let seconds = progress.elapsed.as_secs_f64().max(1e-9);
        let mean = progress.ios as f64 / seconds;
        self.0.set_message(format!("{what}{mean:.0} IOPS{wrong}"));
    }

    fn clear(&self) {
        self.0.finish_and_clear();
    }
}
