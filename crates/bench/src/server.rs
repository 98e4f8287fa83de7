//! Serving processes of a volume on this machine, and their CPU time during a measurement.
//!
//! The kernel lists the listeners of the volume's address (`/proc/net`, `/proc/PID/fd`), so any
//! server is supported without its help. It takes the rights of the server's user, or of root. A
//! server on another machine or of another user is not found, which is not an error: the results
//! then have no server CPU time.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use flagstone_config::device_spec::{DeviceSpec, HostPort, NbdAddress};
use serde::{Deserialize, Serialize};

use crate::cpu::{CpuUse, Snapshot};
use crate::limits::SERVER_PROCESSES;
use crate::os::{Stopwatch, addresses, is_own_address, read_text};
use crate::target::DiskAddress;

/// Upper bound of `/proc/net/tcp`, in bytes: 100,000 sockets.
const SOCKETS_BYTES: u64 = 32 << 20;
/// Ticks per second in `/proc/PID/stat`: the kernel's `USER_HZ`, equal on all platforms of Rust.
const TICKS_PER_S: f64 = 100.0;
/// State of a listening TCP socket in `/proc/net/tcp`.
const TCP_LISTENS: &str = "0A";
/// Flags of a listening Unix socket in `/proc/net/unix`.
const UNIX_LISTENS: &str = "00010000";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerUse {
    pub program: String,
    /// CPU time in user mode, in % of one CPU.
    pub user_percent: f64,
    /// CPU time in the kernel, in % of one CPU.
    pub kernel_percent: f64,
}

impl ServerUse {
    /// CPU time in total, in % of one CPU.
    pub fn busy_percent(&self) -> f64 {
        self.user_percent + self.kernel_percent
    }

    /// CPU time per request, in µs.
    pub(crate) fn us_per_io(&self, iops: f64) -> Option<f64> {
        (iops > 0.0).then(|| self.busy_percent() * 1e4 / iops)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers(BTreeSet<u32>);

impl Servers {
    /// Processes that serve these disks; none for paths, and where unknown.
    pub fn of(disks: &[DiskAddress]) -> Servers {
        let mut sockets = BTreeSet::new();
        for disk in disks {
            match disk.to_string().parse() {
                Ok(DeviceSpec::Nbd(nbd)) => match &nbd.address {
                    NbdAddress::Tcp(address) => sockets.extend(tcp_listeners(address)),
                    NbdAddress::Unix(path) => sockets.extend(unix_listeners(path)),
                },
                Ok(DeviceSpec::NvmeTcp(nvme)) => sockets.extend(tcp_listeners(&nvme.address)),
                _ => {}
            }
        }
        Servers(if sockets.is_empty() { BTreeSet::new() } else { owners(&sockets) })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metered {
    /// Mean of this machine's CPUs; `None` if unknown.
    pub host: Option<CpuUse>,
    /// The serving processes; `None` if unknown, or if one of them has ended.
    pub server: Option<ServerUse>,
}

/// Meter of CPU usage from the end of the warm-up on.
#[derive(Debug)]
pub struct CpuMeter<'a> {
    servers: &'a Servers,
    ramp_s: f64,
    watch: Stopwatch,
    begun: Option<(f64, Snapshot, Ticks)>,
}

impl CpuMeter<'_> {
    /// A meter of this machine and these processes, with the warm-up in ms.
    pub fn new(servers: &Servers, ramp_ms: u64) -> CpuMeter<'_> {
        let watch = Stopwatch::start();
        CpuMeter { servers, ramp_s: ramp_ms as f64 / 1e3, watch, begun: None }
    }

    /// Called repeatedly; takes the first reading after the warm-up.
    pub fn tick(&mut self) {
        let now = self.watch.seconds();
        if self.begun.is_none() && now >= self.ramp_s {
            self.begun = Some((now, Snapshot::take(), Ticks::of(self.servers)));
        }
    }

    /// Usage since the end of the warm-up; empty if the warm-up has not ended.
    pub fn end(self) -> Metered {
        let Some((from, cpus, before)) = self.begun else { return Metered::default() };
        let cpus = Snapshot::take().since(&cpus);
        let host = (!cpus.is_empty()).then(|| CpuUse::mean(&cpus));
        let now = Ticks::of(self.servers);
        Metered { host, server: server_use(&before, now, self.watch.seconds() - from) }
    }
}

fn server_use(before: &Ticks, now: Ticks, seconds: f64) -> Option<ServerUse> {
    let is_same = now.processes == before.processes && now.processes > 0;
    if !is_same || seconds <= 0.0 {
        return None;
    }
    let percent =
        |now: u64, before: u64| 100.0 * now.saturating_sub(before) as f64 / TICKS_PER_S / seconds;
    Some(ServerUse {
        user_percent: percent(now.user, before.user),
        kernel_percent: percent(now.kernel, before.kernel),
        program: now.program,
    })
}

#[derive(Debug, Default)]
struct Ticks {
    program: String,
    processes: usize,
    user: u64,
    kernel: u64,
}

impl Ticks {
    fn of(servers: &Servers) -> Ticks {
        let mut sum = Ticks::default();
        for process in &servers.0 {
            let stat = read_text(Path::new(&format!("/proc/{process}/stat")), 1 << 16);
            let Some((program, user, kernel)) = stat.ok().and_then(|text| times(&text)) else {
                continue;
            };
            sum.program = program;
            sum.processes += 1;
            sum.user = sum.user.saturating_add(user);
            sum.kernel = sum.kernel.saturating_add(kernel);
        }
        sum
    }
}

/// Name, and time in user mode and in the kernel, from `/proc/PID/stat` (proc(5)). The name is in
/// parentheses and may contain any characters, so its end is the last parenthesis.
fn times(stat: &str) -> Option<(String, u64, u64)> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    // The state is the third field; the times are the 14th and 15th.
    let mut fields = rest.split_whitespace().skip(11);
    Some((name.to_owned(), fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Inodes of the listening sockets at an address of this machine.
fn tcp_listeners(address: &HostPort) -> Vec<u64> {
    let own: Vec<IpAddr> =
        addresses(address).into_iter().filter(|ip| is_own_address(*ip)).collect();
    if own.is_empty() {
        return Vec::new();
    }
    let mut inodes = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = read_text(Path::new(table), SOCKETS_BYTES).unwrap_or_default();
        inodes.extend(listening(&text, address.port, &own));
    }
    inodes
}

/// Sockets of a table that listen on a port, at one of these addresses or at all.
fn listening(table: &str, port: u16, addresses: &[IpAddr]) -> Vec<u64> {
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (ip, own_port) = fields.get(1)?.split_once(':')?;
        let listens = *fields.get(3)? == TCP_LISTENS
            && u16::from_str_radix(own_port, 16).ok()? == port
            && is_for(hex_address(ip)?, addresses);
        if listens { fields.get(9)?.parse().ok() } else { None }
    };
    table.lines().filter_map(of).collect()
}

fn is_for(listens_on: IpAddr, addresses: &[IpAddr]) -> bool {
    let listens_on = listens_on.to_canonical();
    listens_on.is_unspecified() || addresses.iter().any(|ip| ip.to_canonical() == listens_on)
}

/// An address in the kernel's format: hexadecimal words in native byte order.
fn hex_address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(at..at + 8)?, 16).ok();
    match hex.len() {
        8 => Some(IpAddr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[at * 4..][..4].copy_from_slice(&word(at * 8)?.to_ne_bytes());
            }
            Some(IpAddr::from(bytes))
        }
        _ => None,
    }
}

fn unix_listeners(path: &Path) -> Vec<u64> {
    let text = read_text(Path::new("/proc/net/unix"), SOCKETS_BYTES).unwrap_or_default();
    let of = |line: &str| {
        let mut fields = line.split_whitespace().skip(3);
        let flags = fields.next()?;
        let inode = fields.nth(2)?.parse().ok()?;
        (flags == UNIX_LISTENS && Path::new(fields.next()?) == path).then_some(inode)
    };
    text.lines().filter_map(of).collect()
}

/// Processes that have one of these sockets open, as far as permissions allow.
fn owners(sockets: &BTreeSet<u64>) -> BTreeSet<u32> {
    let names: BTreeSet<String> = sockets.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let mut found = BTreeSet::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return found };
    for process in entries.flatten() {
        let Some(number) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        let is_one = |file: std::fs::DirEntry| {
            let link = std::fs::read_link(file.path());
            link.is_ok_and(|link| link.to_str().is_some_and(|name| names.contains(name)))
        };
        if files.flatten().any(is_one) {
            found.insert(number);
        }
        if found.len() >= SERVER_PROCESSES {
            break;
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "this process is the server that is looked for")]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn serving_process_is_found_by_listener() {
        let own = Servers([std::process::id()].into());
        let of =
            |text: String| Servers::of(&text.parse::<crate::target::BenchTarget>().unwrap().disks);
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            assert_eq!(of(format!("nbd://127.0.0.1:{port}/e")), own, "{address}");
            assert_eq!(of(format!("nvme-tcp://localhost:{port}/nqn.2014-08.x:y")), own);
            let elsewhere = of(format!("nbd://192.0.2.1:{port}/e"));
            assert!(elsewhere.is_empty(), "a port of another machine");
            drop(listener);
            assert!(of(format!("nbd://127.0.0.1:{port}/e")).is_empty());
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        assert_eq!(of(format!("nbd+unix:///e?socket={}", path.display())), own);
        assert!(of("/dev/null".to_owned()).is_empty());
    }

    #[test]
    fn proc_net_and_stat_parsing() {
        let line = "  0: 0100007F:1144 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1 0";
        if cfg!(target_endian = "little") {
            let own = [IpAddr::from([127, 0, 0, 1])];
            assert_eq!(listening(line, 4420, &own), [4711]);
            assert!(listening(line, 4420, &[IpAddr::from([10, 0, 0, 1])]).is_empty());
            assert!(listening(line, 4421, &own).is_empty());
            assert!(listening(&line.replace(" 0A ", " 01 "), 4420, &own).is_empty(), "connected");
        }
        assert!(
            listening("\n\u{fffd} x\n0: 1:1 1 0A\n: zz:zz 0 0A 1 1 1 1 1 1", 1, &[]).is_empty()
        );
        let stat = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        assert_eq!(times(stat), Some(("a) b".to_owned(), 250, 50)));
        assert_eq!(times("12 (a) S 1"), None);
    }

    #[test]
    fn cpu_meter_excludes_warm_up() {
        let own = Servers([std::process::id()].into());
        let mut meter = CpuMeter::new(&own, 0);
        meter.tick();
        let metered = meter.end();
        assert!(metered.host.is_some());
        let used = metered.server.expect("we run");
        assert!(used.busy_percent() >= 0.0 && !used.program.is_empty(), "{used:?}");
        let used = ServerUse { user_percent: 100.0, kernel_percent: 50.0, ..used };
        assert_eq!(used.us_per_io(100_000.0), Some(15.0));
        assert_eq!(used.us_per_io(0.0), None);
        let mut early = CpuMeter::new(&own, 1_000_000);
        early.tick();
        assert_eq!(early.end(), Metered::default(), "the warm-up is not over");
        let gone = Servers([u32::MAX].into());
        let mut meter = CpuMeter::new(&gone, 0);
        meter.tick();
        assert_eq!(meter.end().server, None);
    }
}
