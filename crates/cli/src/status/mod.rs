//! `flagstone status`: what a running server says of itself, once or again and again.

pub(crate) mod numbers;
pub(crate) mod server;
mod table;
mod view;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use flagstone_api::head::encode;
use flagstone_control::api::document::{ServerDocument, VolumeDocument, VolumesDocument};
use flagstone_control::units::parse_duration;
use flagstone_runtime::{Config as RuntimeConfig, DriverChoice, run as run_cores, time};

use crate::exit::Exit;
use crate::output::complain;
use server::{Problem, Server};
use view::View;

/// Arguments of `flagstone status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Tell all about this volume, rather than a line of each
    pub volume: Option<String>,
    /// Again and again, with what happened in between as rates, until interrupted
    #[arg(long)]
    pub watch: bool,
    /// Pause between two looks of --watch, 100ms or longer
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = pause)]
    pub interval: Duration,
    /// The server's own documents on standard output, of docs/api.md; with --watch one a line
    #[arg(long)]
    pub json: bool,
    /// Unix socket of the server's API, which it prints at its start; the default places if not given
    #[arg(long, value_name = "PATH")]
    pub api: Option<PathBuf>,
}

/// Shortest pause between two looks.
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
    // It asks a question now and then: threads start faster than rings.
    let config = RuntimeConfig { driver: DriverChoice::Threads, ..RuntimeConfig::default() };
    let result = match run_cores(&config, || look(args)) {
        Ok(result) => result,
        Err(error) => Err(Problem(error.to_string())),
    };
    match result {
        Ok(()) => Exit::Success,
        Err(Problem(text)) => {
            complain(&format!("flagstone: error: {text}\n"));
            Exit::Failed
        }
    }
}

async fn look(args: &StatusArgs) -> Result<(), Problem> {
    let mut server = Server::find(args.api.as_ref()).await?;
    let mut view = View::new();
    let clears = args.watch && !args.json && io::stdout().is_terminal();
    loop {
        let text = match args.json {
            true => json(args, &mut server).await?,
            false => shown(args, &mut server, &mut view).await?,
        };
        let text = if clears { format!("{CLEAR}{text}") } else { text };
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => {}
            // A reader that has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Problem(format!("cannot write the result: {error}"))),
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

/// The document as it came; of many, one a line.
async fn json(args: &StatusArgs, server: &mut Server) -> Result<String, Problem> {
    let body = server.get_text(&path(args)).await?;
    if !args.watch {
        return Ok(body);
    }
    let value: serde_json::Value = server::read(body.as_bytes())?;
    Ok(format!("{value}\n"))
}

async fn shown(args: &StatusArgs, server: &mut Server, view: &mut View) -> Result<String, Problem> {
    let about: ServerDocument = server.get("/v1/").await?;
    let volumes = match &args.volume {
        None => server.get::<VolumesDocument>("/v1/volumes").await?.volumes,
        Some(_) => vec![server.get::<VolumeDocument>(&path(args)).await?],
    };
    let rates = view.rates(time::now(), &volumes);
    Ok(match (&args.volume, &volumes[..]) {
        (Some(_), [volume]) => table::volume(volume, rates.first().and_then(Option::as_ref)),
        _ => table::all(&about, &volumes, &rates),
    })
}
