//! `flagstone serve`: serves the volumes of a configuration until it is stopped.

use std::io::{self, Write as _};

use flagstone_config::{Checked, Config, Diagnostics};
use flagstone_runtime::{RuntimeConfig, privileges, run as run_cores};
use flagstone_server::serve::serve;
use flagstone_server::service_manager::ServiceManager;

use crate::args::ServeArgs;
use crate::exit::{Exit, Failure};
use crate::logging;
use crate::output::{complain, wants_color};

pub(crate) fn run(args: &ServeArgs) -> Result<Exit, Failure> {
    // Before there are threads.
    privileges::drop_privileges().map_err(|error| {
        Failure::failed(format!("cannot give up the privileges of the process: {error}"))
    })?;
    let show = |diagnostics: &Diagnostics| {
        complain(&diagnostics.render(wants_color(&io::stderr())));
    };
    let config = match args.config() {
        Ok(Checked { config, warnings }) => {
            warnings.iter().for_each(show);
            config
        }
        Err(diagnostics) => {
            show(&diagnostics);
            return Ok(Exit::Usage);
        }
    };
    logging::init(args.log)?;
    let again = args.clone();
    let reread = move || again.config().map(|checked| checked.config);
    let manager = ServiceManager::from_environment();
    let ended = run_cores(&runtime_config(&config), || serve(config, announce, reread, manager));
    ended.map_err(Failure::failed)?.map_err(Failure::failed)?;
    Ok(Exit::Success)
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
