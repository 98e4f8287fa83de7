//! `flagstone status`: the volumes and traffic of a running server, once or repeatedly.

mod rates;
pub(crate) mod server;
pub(crate) mod table;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;
use flagstone_runtime::{IoEngine, RuntimeConfig, run as run_cores, time};
use flagstone_server::api::document::{ServerDocument, VolumeDocument, VolumesDocument};
use flagstone_server::http::encode;
use flagstone_units::parse_duration;

use crate::completions;
use crate::exit::{Exit, Failure};
use rates::RateTracker;
use server::{ApiArgs, ApiClient};

#[derive(Debug, Clone, Args)]
pub(crate) struct QueryArgs {
    /// Print the server's JSON documents (docs/api.md); with --watch one per line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    /// Repeat the state: for status until interrupted, otherwise until the action has finished
    #[arg(long)]
    pub(crate) watch: bool,
    /// Interval of --watch, 100ms or longer
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = pause)]
    pub(crate) interval: Duration,
}

impl QueryArgs {
    /// Connects to the server.
    pub(crate) fn server(&self) -> Result<ApiClient, Failure> {
        self.api.connect()
    }

    /// Prints what `sample` returns; with `--watch` until interrupted, or until the reader has
    /// closed the pipe.
    pub(crate) async fn repeat(
        &self,
        mut sample: impl FnMut(&mut ApiClient) -> Result<String, Failure>,
    ) -> Result<Exit, Failure> {
        let mut server = self.server()?;
        while self.show(&sample(&mut server)?)? {
            time::sleep(self.interval).await;
        }
        Ok(Exit::Success)
    }

    /// The document as received; with `--watch` on one line.
    pub(crate) fn as_json(&self, body: String) -> Result<String, Failure> {
        if !self.watch {
            return Ok(body);
        }
        let value: serde_json::Value = server::read(body.as_bytes())?;
        Ok(format!("{value}\n"))
    }

    /// Prints a sample. Returns false if it is the last: without `--watch`, or because the reader
    /// has closed the pipe.
    pub(crate) fn show(&self, text: &str) -> Result<bool, Failure> {
        let mut out = io::stdout().lock();
        let clear = if self.watch && !self.json && out.is_terminal() { CLEAR } else { "" };
        match write!(out, "{clear}{text}").and_then(|()| out.flush()) {
            Ok(()) => Ok(self.watch),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::failed(format!("cannot write the result: {error}"))),
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArgs {
    /// Show the details of this volume
    #[arg(add = completions::volumes())]
    pub(crate) volume: Option<String>,
    #[command(flatten)]
    pub(crate) query: QueryArgs,
}

const MIN_PAUSE: Duration = Duration::from_millis(100);

fn pause(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(time) if time >= MIN_PAUSE => Ok(time),
        Ok(_) => Err("write a duration of 100ms or longer".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Puts the cursor at the top and clears the terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(crate) fn run_client<F>(command: impl FnOnce() -> F) -> Result<Exit, Failure>
where
    F: Future<Output = Result<Exit, Failure>>,
{
    // Threads start faster than rings, and the command makes few requests.
    let config = RuntimeConfig { io_engine: IoEngine::Threads, ..RuntimeConfig::default() };
    run_cores(&config, command).map_err(Failure::failed)?
}

pub(crate) fn run(args: &StatusArgs) -> Result<Exit, Failure> {
    run_client(|| look(args))
}

async fn look(args: &StatusArgs) -> Result<Exit, Failure> {
    let mut tracker = RateTracker::new();
    let sample = |server: &mut ApiClient| match args.query.json {
        true => args.query.as_json(server.get_text(&path(args))?),
        false => shown(args, server, &mut tracker),
    };
    args.query.repeat(sample).await
}

fn path(args: &StatusArgs) -> String {
    match &args.volume {
        Some(name) => format!("/v1/volumes/{}", encode(name)),
        None => "/v1/volumes".to_owned(),
    }
}

fn shown(
    args: &StatusArgs,
    server: &mut ApiClient,
    tracker: &mut RateTracker,
) -> Result<String, Failure> {
    let about: ServerDocument = server.get("/v1/")?;
    let volumes = match &args.volume {
        None => server.get::<VolumesDocument>("/v1/volumes")?.volumes,
        Some(_) => vec![server.get::<VolumeDocument>(&path(args))?],
    };
    // Hosts use the mirrored volumes of legs.
    let is_shown = |volume: &VolumeDocument| args.volume.is_some() || volume.leg_of.is_none();
    let volumes: Vec<VolumeDocument> = volumes.into_iter().filter(is_shown).collect();
    let rates = tracker.rates(time::now(), &volumes);
    Ok(match (&args.volume, &volumes[..]) {
        (Some(_), [volume]) => table::volume(volume, rates.first().and_then(Option::as_ref)),
        _ => table::all(&about, &volumes, &rates),
    })
}
