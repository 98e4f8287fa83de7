//! Service manager: tells systemd when the server is ready, reloads, stops and makes progress, with
//! the datagrams of sd_notify(3).
//!
//! Invariants: no message blocks an executor. The watchdog is fed only after every executor has run
//! a task since the previous message. Outside of a service (no `NOTIFY_SOCKET`) nothing is sent.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use flagstone_runtime::{CoreHandle, cores, time};

use crate::limits::{NOTIFY_ATTEMPTS, NOTIFY_PAUSE, WATCHDOG_SHARE};

/// Connection to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// Longest time between two messages of the watchdog.
    watchdog: Option<Duration>,
}

/// Text that `systemctl status` shows.
type Status<'a> = &'a str;

#[derive(Debug, Clone, Copy)]
enum Message<'a> {
    Ready(Status<'a>),
    /// Microseconds of CLOCK_MONOTONIC at which the reload began.
    Reloading(u64),
    Stopping,
    Watchdog,
}

impl Message<'_> {
    fn text(self) -> String {
        match self {
            Message::Ready(status) => format!("READY=1\nSTATUS={status}\n"),
            Message::Reloading(at_us) => {
                format!("RELOADING=1\nMONOTONIC_USEC={at_us}\nSTATUS=reloading the configuration\n")
            }
            Message::Stopping => "STOPPING=1\nSTATUS=completing requests in progress\n".to_owned(),
            Message::Watchdog => "WATCHDOG=1\n".to_owned(),
        }
    }
}

impl ServiceManager {
    /// The manager that the environment names. An unusable socket is logged, because the service
    /// works without its manager.
    pub fn from_environment() -> ServiceManager {
        let Some(name) = env::var_os("NOTIFY_SOCKET") else { return ServiceManager::default() };
        let [usec, pid] = ["WATCHDOG_USEC", "WATCHDOG_PID"].map(|name| env::var(name).ok());
        let watchdog = watchdog_time(usec.as_deref(), pid.as_deref(), std::process::id());
        match connect(name.as_bytes()) {
            Ok(socket) => ServiceManager { socket: Some(socket), watchdog },
            Err(error) => {
                tracing::warn!("cannot notify the service manager at {}: {error}", name.display());
                ServiceManager::default()
            }
        }
    }

    /// The server serves, or has reloaded its configuration.
    pub(crate) async fn ready(&self, status: Status<'_>) {
        self.send(Message::Ready(status)).await;
    }

    /// The server reloads its configuration from now on.
    pub(crate) async fn reloading(&self) {
        self.send(Message::Reloading(time::now().as_nanos() / 1000)).await;
    }

    /// The server stops.
    pub(crate) async fn stopping(&self) {
        self.send(Message::Stopping).await;
    }

    /// Feeds the watchdog for as long as every executor makes progress. Never ends.
    pub(crate) async fn feed_watchdog(&self) {
        let Some(limit) = self.watchdog else { return std::future::pending().await };
        let cores = cores();
        loop {
            progress(&cores).await;
            // A lost message is made up for by the next one.
            drop(self.try_send(Message::Watchdog));
            time::sleep(limit / WATCHDOG_SHARE).await;
        }
    }

    /// Sends a message, and retries for a short time while the manager's queue is full.
    async fn send(&self, message: Message<'_>) {
        for _ in 0..NOTIFY_ATTEMPTS {
            match self.try_send(message) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    time::sleep(NOTIFY_PAUSE).await;
                }
                Err(error) => return tracing::warn!("cannot notify the service manager: {error}"),
            }
        }
        tracing::warn!("cannot notify the service manager: its queue is full");
    }

    fn try_send(&self, message: Message<'_>) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        socket.send(message.text().as_bytes()).map(drop)
    }
}

/// Returns after each core has run a task.
pub(crate) async fn progress(cores: &[CoreHandle]) {
    let answers: Vec<_> = cores.iter().map(|core| core.call(|| async {})).collect();
    for answer in answers {
        answer.await;
    }
}

/// Connects to a path, or to an abstract name that `@` begins.
fn connect(name: &[u8]) -> io::Result<UnixDatagram> {
    let address = match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
        _ => return Err(io::Error::other("it is neither a path nor an abstract socket")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

/// Longest time between two messages of the watchdog, from `WATCHDOG_USEC` and `WATCHDOG_PID`.
fn watchdog_time(usec: Option<&str>, pid: Option<&str>, own_pid: u32) -> Option<Duration> {
    let is_ours = pid.is_none_or(|pid| pid.parse() == Ok(own_pid));
    let usec = usec?.parse().ok().filter(|usec| *usec > 0 && is_ours)?;
    Some(Duration::from_micros(usec))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::Poll;

    use flagstone_runtime::{RuntimeConfig, block_on, run};

    use super::*;

    #[test]
    fn messages_follow_the_protocol() {
        for (message, text) in [
            (Message::Ready("2 volumes"), "READY=1\nSTATUS=2 volumes\n"),
            (Message::Watchdog, "WATCHDOG=1\n"),
        ] {
            assert_eq!(message.text(), text);
        }
        assert!(Message::Reloading(17).text().starts_with("RELOADING=1\nMONOTONIC_USEC=17\n"));
        assert!(Message::Stopping.text().starts_with("STOPPING=1\n"));
    }

    #[test]
    fn watchdog_is_for_the_named_process() {
        let second = Some(Duration::from_secs(1));
        for (usec, pid, expected) in [
            (Some("1000000"), None, second),
            (Some("1000000"), Some("7"), second),
            (Some("1000000"), Some("8"), None),
            (Some("1000000"), Some("x"), None),
            (Some("0"), None, None),
            (Some("-1"), None, None),
            (None, Some("7"), None),
        ] {
            assert_eq!(watchdog_time(usec, pid, 7), expected, "{usec:?} {pid:?}");
        }
    }

    #[test]
    fn paths_and_abstract_names_are_reached() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("notify");
        let name = format!("flagstone-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).expect("a name");
        for (socket, name) in [
            (UnixDatagram::bind(&path).unwrap(), path.display().to_string()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}")),
        ] {
            let sender =
                ServiceManager { socket: Some(connect(name.as_bytes()).unwrap()), watchdog: None };
            block_on(sender.ready("x")).unwrap();
            let mut bytes = [0; 64];
            let length = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], b"READY=1\nSTATUS=x\n");
        }
        assert!(connect(b"relative").is_err() && connect(b"").is_err());
    }

    #[test]
    fn watchdog_waits_for_every_executor() {
        let config = RuntimeConfig { cores: 2, ..RuntimeConfig::default() };
        run(&config, || async {
            let cores = cores();
            let (blocked, is_blocked) = mpsc::channel();
            let (release, released) = mpsc::channel::<()>();
            cores[1].spawn(move || async move {
                blocked.send(()).unwrap();
                let _ = released.recv();
            });
            is_blocked.recv().unwrap();
            let mut answers = pin!(progress(&cores));
            // Core 0 answers within the first yields; core 1 cannot.
            for _ in 0..100 {
                let polled = poll_fn(|cx| Poll::Ready(answers.as_mut().poll(cx))).await;
                assert!(polled.is_pending(), "an executor that hangs counted as alive");
                flagstone_runtime::task::yield_now().await;
            }
            drop(release);
            answers.await;
        })
        .unwrap();
    }
}
