//! `flagstone status`: the volumes and traffic of a running server, once or repeatedly.

pub(crate) mod numbers;
mod rates;
pub(crate) mod server;
mod table;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use flagstone_runtime::{IoEngine, RuntimeConfig, run as run_cores, time};
use flagstone_server::api::document::{ServerDocument, VolumeDocument, VolumesDocument};
use flagstone_server::http::encode;
use flagstone_units::parse_duration;

use crate::exit::Exit;
use crate::output::complain;
use rates::RateTracker;
use server::{ApiClient, ApiError};

/// Arguments of `flagstone status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Show the details of this volume
    pub volume: Option<String>,
    /// Repeat until interrupted, with rates per interval
    #[arg(long)]
    pub watch: bool,
    /// Interval of --watch, 100ms or longer
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = pause)]
    pub interval: Duration,
    /// Print the server's JSON documents (docs/api.md); with --watch one per line
    #[arg(long)]
    pub json: bool,
    /// Unix socket of the server's API, which the server prints at startup; the default sockets if
    /// not given
    #[arg(long, value_name = "PATH")]
    pub api: Option<PathBuf>,
}

/// Shortest interval of `--watch`.
const MIN_PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn pause(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(time) if time >= MIN_PAUSE => Ok(time),
        Ok(_) => Err("write a duration of 100ms or longer".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs the command.
pub fn run(args: &StatusArgs) -> Exit {
    // Threads start faster than rings, and the command makes few requests.
    let config = RuntimeConfig { io_engine: IoEngine::Threads, ..RuntimeConfig::default() };
    let result = match run_cores(&config, || look(args)) {
        Ok(result) => result,
        Err(error) => Err(ApiError(error.to_string())),
    };
    match result {
        Ok(()) => Exit::Success,
        Err(ApiError(text)) => {
            complain(&format!("flagstone: error: {text}\n"));
            Exit::Failed
        }
    }
}

async fn look(args: &StatusArgs) -> Result<(), ApiError> {
    let mut server = ApiClient::find(args.api.as_ref())?;
    let mut tracker = RateTracker::new();
    let clears = args.watch && !args.json && io::stdout().is_terminal();
    loop {
        let text = match args.json {
            true => json(args, &mut server)?,
            false => shown(args, &mut server, &mut tracker)?,
        };
        let text = if clears { format!("{CLEAR}{text}") } else { text };
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => {}
            // A closed pipe ends the output.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(ApiError(format!("cannot write the result: {error}"))),
        }
        drop(out);
        if !args.watch {
            return Ok(());
        }
        time::sleep(args.interval).await;
    }
}

/// Puts the cursor at the top and clears the terminal.
pub(crate) const CLEAR: &str = "\x1b[H\x1b[2J";

fn path(args: &StatusArgs) -> String {
    match &args.volume {
        Some(name) => format!("/v1/volumes/{}", encode(name)),
        None => "/v1/volumes".to_owned(),
    }
}

/// The document as received; with `--watch` one per line.
fn json(args: &StatusArgs, server: &mut ApiClient) -> Result<String, ApiError> {
    let body = server.get_text(&path(args))?;
    if !args.watch {
        return Ok(body);
    }
    let value: serde_json::Value = server::read(body.as_bytes())?;
    Ok(format!("{value}\n"))
}

fn shown(
    args: &StatusArgs,
    server: &mut ApiClient,
    tracker: &mut RateTracker,
) -> Result<String, ApiError> {
    let about: ServerDocument = server.get("/v1/")?;
    let volumes = match &args.volume {
        None => server.get::<VolumesDocument>("/v1/volumes")?.volumes,
        Some(_) => vec![server.get::<VolumeDocument>(&path(args))?],
    };
    let rates = tracker.rates(time::now(), &volumes);
    Ok(match (&args.volume, &volumes[..]) {
        (Some(_), [volume]) => table::volume(volume, rates.first().and_then(Option::as_ref)),
        _ => table::all(&about, &volumes, &rates),
    })
}
