//! Ports of this machine for nodes that are stopped, killed and started again, where each comes back
//! on the port that its peers and hosts know.
//!
//! What it promises: a port is given to nobody else who asks here, in this process or in another,
//! until this process ends; and none is of the range from which the kernel takes ports for
//! connections (`net.ipv4.ip_local_port_range`), so that no connection has it while its node is down.

use std::io;
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};

use flagstone_bench::os::read_text;

use crate::Error;

/// From where the kernel takes the ports of connections, in its own words: two numbers.
const CONNECTIONS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// A line of two numbers.
const CONNECTIONS_BYTES: u64 = 64;

/// Below it are ports of well-known services, which may start later.
const LOWEST: u16 = 10_000;

/// Fewer than these beside the range of connections are not enough to look among.
const ENOUGH: u16 = 1_000;

/// A name in the kernel's abstract namespace for every port given out: it is there for every process,
/// and goes when the one that took it ends, however it ends.
static KEPT: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// Ports on which nobody listens at this moment, all different, kept for this process until it ends.
/// Only a program that does not ask here may take one before a node does: the node then says so.
///
/// # Errors
/// That there are none, or the system's.
pub fn free_ports<const N: usize>() -> Result<[u16; N], Error> {
    let read = read_text(CONNECTIONS.as_ref(), CONNECTIONS_BYTES).unwrap_or_default();
    let candidates = beside(&read);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    // Where to begin differs between processes, so that they seldom ask for the same; and goes on
    // within one.
    let begin = (std::process::id() as usize).wrapping_mul(61) + kept.len();
    let count = candidates.len();
    let mut found = (0..count).map(|at| candidates.clone().nth((begin + at) % count));
    let mut ports = [0; N];
    for port in &mut ports {
        *port = loop {
            let none = || io::Error::from(io::ErrorKind::AddrNotAvailable);
            let candidate = found.next().flatten().ok_or_else(none);
            let candidate = candidate.map_err(Error::system("there is no free port"))?;
            let name = keep(candidate).map_err(Error::system("cannot keep a port"))?;
            if let Some(name) = name {
                kept.push(name);
                break candidate;
            }
        };
    }
    Ok(ports)
}

/// The ports beside those of connections: below them where that is enough, else above; all, where
/// neither is.
fn beside(connections: &str) -> RangeInclusive<u16> {
    let mut numbers = connections.split_whitespace().map(str::parse::<u16>);
    let (Some(Ok(first)), Some(Ok(last))) = (numbers.next(), numbers.next()) else {
        return LOWEST..=u16::MAX;
    };
    if first >= LOWEST + ENOUGH {
        LOWEST..=first - 1
    } else if last <= u16::MAX - ENOUGH {
        last.max(LOWEST) + 1..=u16::MAX
    } else {
        LOWEST..=u16::MAX
    }
}

/// Takes a port's name; `None` where another process has it, or somebody listens there.
#[allow(
    clippy::disallowed_methods,
    reason = "asks whether a port is free, outside of any executor"
)]
fn keep(port: u16) -> io::Result<Option<UnixDatagram>> {
    let address = SocketAddr::from_abstract_name(format!("flagstone-port-{port}"))?;
    let in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let name = match UnixDatagram::bind_addr(&address) {
        Err(error) if in_use(&error) => return Ok(None),
        name => name?,
    };
    match std::net::TcpListener::bind(("127.0.0.1", port)) {
        Err(error) if in_use(&error) => Ok(None),
        listener => listener.map(|_| Some(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_and_none_is_of_connections() {
        let connections = std::fs::read_to_string(CONNECTIONS).unwrap();
        let allowed = beside(&connections);
        let [a, b, c] = free_ports().unwrap();
        let [d] = free_ports().unwrap();
        let mut ports = vec![a, b, c, d];
        assert!(ports.iter().all(|port| allowed.contains(port)), "{ports:?}: {allowed:?}");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 4, "{ports:?}");
        // As another process would find it.
        assert!(keep(a).unwrap().is_none(), "it is kept");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "this test is the program that listens")]
    fn a_port_on_which_somebody_listens_is_not_free() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(keep(listener.local_addr().unwrap().port()).unwrap().is_none());
    }

    #[test]
    fn ports_are_sought_beside_those_of_connections() {
        assert_eq!(beside("32768\t60999\n"), 10_000..=32_767);
        assert_eq!(beside("1024\t60999\n"), 61_000..=65_535);
        assert_eq!(beside("1024\t5000\n"), 10_001..=65_535, "not those of services");
        assert_eq!(beside("1024\t65535\n"), 10_000..=65_535, "there are no others");
        assert_eq!(beside("no numbers"), 10_000..=65_535);
    }
}
