//! Stalled clients: connections that ask for data and do not read it, until the program is killed.
//! One that the server closes is replaced, as an attacker would. Each has its own address in
//! 127.0.0.0/8, because a server divides its memory between addresses.
//!
//! Prints `open` when all have asked for the first time. They use no CPU time after that.
//!
//! `stalled nbd|nvme PORT NAME [--connections N]`; NAME is an NBD export or a subsystem's NQN
#![allow(clippy::disallowed_methods, reason = "a program's edge: it uses threads and sockets")]

use std::io::{self, Write as _};
use std::net::TcpStream;
use std::process::exit;
use std::time::Duration;

use flagstone_tests::wire;
use rustix::event::{PollFd, PollFlags, poll};

/// Reads of an NBD client, of 32 MiB each.
const NBD_READS: usize = 4;

/// Reads of an NVMe/TCP host, of 1 MiB each.
const NVME_READS: u16 = 31;

enum Protocol {
    Nbd,
    Nvme,
}

struct Plan {
    protocol: Protocol,
    port: u16,
    name: String,
    connections: usize,
}

/// A stalled connection, with its dependencies.
struct Stalled(Vec<TcpStream>);

impl Plan {
    fn from_args() -> Result<Plan, String> {
        let mut args = std::env::args().skip(1);
        let mut word = |what: &str| args.next().ok_or_else(|| format!("{what} is missing"));
        let protocol = match word("nbd or nvme")?.as_str() {
            "nbd" => Protocol::Nbd,
            "nvme" => Protocol::Nvme,
            other => return Err(format!("unknown protocol {other}")),
        };
        let port = word("PORT")?.parse().map_err(|error| format!("PORT: {error}"))?;
        let mut plan = Plan { protocol, port, name: word("NAME")?, connections: 250 };
        while let Some(flag) = args.next() {
            let value = args.next().and_then(|value| value.parse().ok());
            match (flag.as_str(), value) {
                ("--connections", Some(value)) => plan.connections = value,
                _ => return Err(format!("{flag}: write --connections N")),
            }
        }
        Ok(plan)
    }

    /// Opens connection `number`, and asks.
    fn stall(&self, number: usize) -> io::Result<Stalled> {
        let [.., high, low] = (number as u32 + 1).to_be_bytes();
        let source = [127, 1, high, low];
        match self.protocol {
            Protocol::Nbd => {
                let mut stream = wire::connect_from(source, self.port);
                wire::nbd_open(&mut stream, &self.name)?;
                stream.write_all(&wire::nbd_read(0, 32 << 20).repeat(NBD_READS))?;
                Ok(Stalled(vec![stream]))
            }
            Protocol::Nvme => {
                let [admin, mut queue] = wire::nvme_attach(source, self.port, &self.name, number)?;
                for id in 0..NVME_READS {
                    queue.write_all(&wire::nvme_read_mib(id))?;
                }
                Ok(Stalled(vec![queue, admin]))
            }
        }
    }
}

impl Stalled {
    fn is_closed(&self) -> bool {
        let flags = PollFlags::RDHUP;
        let mut polled: Vec<_> = self.0.iter().map(|one| PollFd::new(one, flags)).collect();
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = poll(&mut polled, Some(&now));
        let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        polled.iter().any(|one| one.revents().intersects(closed))
    }
}

/// Keeps the connections open, and opens those again that were closed. Never returns.
fn keep(plan: &Plan) -> ! {
    let mut all: Vec<Option<Stalled>> = Vec::new();
    for number in 0..plan.connections {
        all.push(plan.stall(number).ok());
    }
    println!("open");
    loop {
        std::thread::sleep(Duration::from_millis(100));
        for (number, one) in all.iter_mut().enumerate() {
            if one.as_ref().is_none_or(Stalled::is_closed) {
                *one = plan.stall(number).ok();
            }
        }
    }
}

fn main() {
    let plan = Plan::from_args().unwrap_or_else(|error| {
        eprintln!("stalled: {error}");
        exit(2);
    });
    keep(&plan)
}
