//! TCP ports for nodes that restart on the same port.
//!
//! Invariants: a port is reserved against all callers of this module, in this and other processes,
//! until this process ends. Ports are outside of the kernel's range for outgoing connections
//! (`net.ipv4.ip_local_port_range`), so no connection takes one while its node is down. A program
//! that does not use this module can still take one; the node then fails to start.

use std::io;
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use flagstone_bench::os::read_text;
use parking_lot::Mutex;

use crate::Error;

/// The kernel's range of ports for outgoing connections: two numbers.
const CONNECTIONS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Upper bound of the file's size, in bytes.
const CONNECTIONS_BYTES: u64 = 64;

/// Lowest port: lower ones belong to well-known services, which may start later.
const LOWEST: u16 = 10_000;

/// Fewest ports outside of the kernel's range that are enough to choose from.
const ENOUGH: u16 = 1_000;

/// Reservations: one name per port in the kernel's abstract socket namespace, which all processes
/// share and which is released when the process ends.
static KEPT: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// Different ports on which nothing listens, reserved until this process ends.
///
/// # Errors
/// There are none left; a failed system call.
pub fn free_ports<const N: usize>() -> Result<[u16; N], Error> {
    let read = read_text(CONNECTIONS.as_ref(), CONNECTIONS_BYTES).unwrap_or_default();
    let candidates = beside(&read);
    let mut kept = KEPT.lock();
    // Each process starts elsewhere, so that conflicts are rare.
    let begin = (std::process::id() as usize).wrapping_mul(61) + kept.len();
    let count = candidates.len();
    let mut found = (0..count).map(|at| candidates.clone().nth((begin + at) % count));
    let mut ports = [0; N];
    for port in &mut ports {
        *port = loop {
            let none = || io::Error::from(io::ErrorKind::AddrNotAvailable);
            let candidate = found.next().flatten().ok_or_else(none);
            let candidate = candidate.map_err(Error::system("no TCP port is free"))?;
            let name = keep(candidate).map_err(Error::system("cannot reserve a TCP port"))?;
            if let Some(name) = name {
                kept.push(name);
                break candidate;
            }
        };
    }
    Ok(ports)
}

/// Ports outside of the kernel's range: below it if those are enough, else above it, else all.
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

/// Reserves a port; `None` if it is reserved or something listens on it.
#[allow(
    clippy::disallowed_methods,
    reason = "checks whether a port is free, outside of any executor"
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
    fn ports_are_unique_and_outside_the_kernel_range() {
        let connections = std::fs::read_to_string(CONNECTIONS).unwrap();
        let allowed = beside(&connections);
        let [a, b, c] = free_ports().unwrap();
        let [d] = free_ports().unwrap();
        let mut ports = vec![a, b, c, d];
        assert!(ports.iter().all(|port| allowed.contains(port)), "{ports:?}: {allowed:?}");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 4, "{ports:?}");
        // Another process would see the same.
        assert!(keep(a).unwrap().is_none(), "it is reserved");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "this test is the program that listens")]
    fn port_with_listener_is_not_free() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(keep(listener.local_addr().unwrap().port()).unwrap().is_none());
    }

    #[test]
    fn ports_are_chosen_outside_the_kernel_range() {
        assert_eq!(beside("32768\t60999\n"), 10_000..=32_767);
        assert_eq!(beside("1024\t60999\n"), 61_000..=65_535);
        assert_eq!(beside("1024\t5000\n"), 10_001..=65_535, "not those of services");
        assert_eq!(beside("1024\t65535\n"), 10_000..=65_535, "there are no others");
        assert_eq!(beside("no numbers"), 10_000..=65_535);
    }
}
