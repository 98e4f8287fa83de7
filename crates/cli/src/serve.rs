//! `flagstone serve`: serves the volumes of a configuration until it is stopped.

use std::io::{self, Write as _};

use flagstone_config::Config;
use flagstone_runtime::{RuntimeConfig, StartError, run as run_cores};
use flagstone_server::serve::{ServeError, serve};

use crate::args::ServeArgs;
use crate::exit::Exit;
use crate::logging;
use crate::output::{complain, wants_color};

/// Runs the command.
pub fn run(args: &ServeArgs) -> Exit {
    let config = match args.config() {
        Ok(config) => config,
        Err(diagnostics) => {
            complain(&diagnostics.render(wants_color(&io::stderr())));
            return Exit::Usage;
        }
    };
    if let Err(error) = logging::init(args.log) {
        complain(&format!("flagstone: error: {error}\n"));
        return Exit::Usage;
    }
    let again = args.clone();
    let reread = move || again.config();
    let started = run_cores(&runtime_config(&config), || serve(config, announce, reread));
    match flatten(started) {
        Ok(()) => Exit::Success,
        Err(problem) => {
            complain(&format!("flagstone: error: {problem}\n"));
            Exit::Failed
        }
    }
}

fn flatten(started: Result<Result<(), ServeError>, StartError>) -> Result<(), String> {
    started.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

/// Prints the served addresses. A closed pipe does not stop the server.
fn announce(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn runtime_config(config: &Config) -> RuntimeConfig {
    let server = &config.server;
    RuntimeConfig {
        cores: server.cores.map_or(0, |cores| cores as usize),
        io_engine: server.io_engine,
        busy_poll_ns: u64::try_from(server.busy_poll.as_nanos()).unwrap_or(u64::MAX),
        buffer_memory_bytes: usize::try_from(server.buffer_memory_bytes).unwrap_or(usize::MAX),
        pin_from: None,
    }
}
