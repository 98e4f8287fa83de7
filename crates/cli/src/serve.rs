//! `flagstone serve`: serves the volumes of a configuration until it is told to stop.

use std::io::{self, Write as _};

use flagstone_control::config::{Config, Driver};
use flagstone_control::serve::{ServeError, serve};
use flagstone_runtime::{Config as RuntimeConfig, DriverChoice, StartError, run as run_cores};

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

/// Prints what is served. A reader that has gone is no reason to stop serving.
fn announce(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn runtime_config(config: &Config) -> RuntimeConfig {
    let server = &config.server;
    RuntimeConfig {
        cores: server.cores.map_or(0, |cores| cores as usize),
        driver: match server.driver {
            Driver::Auto => DriverChoice::Auto,
            Driver::IoUring => DriverChoice::IoUring,
            Driver::Threads => DriverChoice::Threads,
        },
        spin_ns: u64::try_from(server.spin.as_nanos()).unwrap_or(u64::MAX),
        memory_bytes: usize::try_from(server.memory_bytes).unwrap_or(usize::MAX),
        pin_from: None,
    }
}
