//! `flagstone serve`, of one volume on one file, on free ports of this machine.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;
use crate::process::{Interrupt, Running};

/// The volume's name.
pub const VOLUME: &str = "demo";
/// What a volume's NQN starts with when its configuration names none.
const NQN_PREFIX: &str = "nqn.2026-01.io.flagstone:";

/// A running server; stopped when dropped.
#[derive(Debug)]
pub struct Server {
    running: Running,
    nvme_tcp: String,
    nbd: String,
}

impl Server {
    /// Starts it and waits until it serves.
    ///
    /// # Errors
    /// That it does not come to serve, with what it said.
    pub fn start(flagstone: &Path, file: &Path, log: &Path) -> Result<Server, Error> {
        let log_file = std::fs::File::create(log).map_err(Error::io("cannot make a log"))?;
        let mut volume = std::ffi::OsString::from(format!("{VOLUME}="));
        volume.push(file);
        let mut serve = Command::new(flagstone);
        serve.arg("serve").arg("--volume").arg(volume);
        serve.args(["--listen", "nvme-tcp://127.0.0.1:0", "--listen", "nbd://127.0.0.1:0"]);
        // A server that really serves may have the default place.
        serve.args(["--api", "none"]);
        serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
        let mut running = Running::start(&mut serve)?;
        let output = running.0.stdout.take().expect("stdout is a pipe");
        match addresses(output) {
            Some((nvme_tcp, nbd)) => Ok(Server { running, nvme_tcp, nbd }),
            None => Err(Error::Failed {
                what: "starting flagstone serve".to_owned(),
                status: "it serves nothing".to_owned(),
                said: std::fs::read_to_string(log).unwrap_or_default(),
            }),
        }
    }

    /// The volume as `flagstone load` names it.
    pub fn nvme_tcp_device(&self) -> String {
        format!("{}/{NQN_PREFIX}{VOLUME}", self.nvme_tcp)
    }

    /// The volume as NBD clients name it.
    pub fn nbd_uri(&self) -> String {
        format!("{}/{VOLUME}", self.nbd)
    }

    /// Asks it to stop and waits until it has.
    ///
    /// # Errors
    /// That it ended badly.
    pub fn stop(mut self, interrupt: &Interrupt) -> Result<(), Error> {
        let pid = Pid::from_child(&self.running.0);
        kill_process(pid, Signal::TERM).map_err(|cause| Error::Io {
            what: "cannot stop flagstone serve".to_owned(),
            cause: cause.into(),
        })?;
        let status = self.running.wait(interrupt)?;
        if status.success() {
            return Ok(());
        }
        Err(Error::unexpected("flagstone serve, told to stop,", status))
    }
}

/// The addresses of both listeners, from the lines that say them; `None` when the output ends
/// before. The rest of the output, a few lines, stays in the pipe.
fn addresses(output: impl Read) -> Option<(String, String)> {
    let mut found = [None, None];
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let Some(address) = line.strip_prefix("listening on ") else { continue };
        for (scheme, place) in ["nvme-tcp://", "nbd://"].iter().zip(&mut found) {
            if address.starts_with(scheme) {
                *place = Some(address.trim().to_owned());
            }
        }
        if let [Some(nvme_tcp), Some(nbd)] = &found {
            return Some((nvme_tcp.clone(), nbd.clone()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_addresses_are_found_among_other_lines() {
        let said =
            "hello\nlistening on nvme-tcp://127.0.0.1:4420\nlistening on nbd://127.0.0.1:1\n";
        let (nvme_tcp, nbd) = addresses(said.as_bytes()).unwrap();
        assert_eq!(nvme_tcp, "nvme-tcp://127.0.0.1:4420");
        assert_eq!(nbd, "nbd://127.0.0.1:1");
        assert_eq!(addresses("listening on nbd://127.0.0.1:1\n".as_bytes()), None);
    }
}
