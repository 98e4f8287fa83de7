//! Hardware watchdog: resets this machine when the server hangs, so that a source whose peer has
//! taken over does not come back to life.
//!
//! ```text
//! last feeding ── the server hangs ──── reset at the latest
//! │←─ time-out, whole seconds, at most the lease ─→│
//! ```
//!
//! The peer may serve before the reset: it counts from its last answer, and a source that lives
//! without its peer is fed. Until the reset, the end of its lease keeps a source that comes back to
//! life from answering reads, and the arbiter's record from acknowledging writes.
//!
//! Invariants:
//! - the device is fed only after every executor has run a task since the last time;
//! - its time-out is at most the shortest read lease of a mirror that fails over by itself;
//! - only a server that ends by itself, in order or with an error, disarms it.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use flagstone_config::Config;
use flagstone_mirror::FailoverMode;
use flagstone_mirror::state::arbitration::Timing;
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::watchdog_device::WatchdogDevice;
use flagstone_runtime::{CoreHandle, cores, spawn, time};

use crate::limits::WATCHDOG_SHARE;
use crate::service_manager::progress;

/// Reason why the watchdog is not used, and the server does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchdogError {
    #[error("cannot be opened: {0}")]
    Open(io::Error),
    /// The device has no such time-out.
    #[error("takes no time-out of {seconds} s: {error}")]
    Timeout { seconds: u32, error: io::Error },
    /// It would reset the machine too late.
    #[error(
        "resets the machine after {found} s at the earliest, and a peer may serve before: write a longer \
         `failover_after`, of which the time-out is at most seven eighths ({most} s), or remove `watchdog`"
    )]
    TooLong { found: u32, most: u32 },
}

/// An armed watchdog, fed until it is dropped.
pub(crate) struct HardwareWatchdog {
    /// `None` from the end of the server on.
    device: Rc<RefCell<Option<WatchdogDevice>>>,
    _feeding: AbortOnDrop<()>,
}

impl HardwareWatchdog {
    /// Arms and feeds the configured device; `None` without one.
    pub(crate) fn arm(config: &Config) -> Result<Option<HardwareWatchdog>, WatchdogError> {
        let Some((path, most)) = config.server.watchdog.as_deref().zip(longest_timeout(config))
        else {
            return Ok(None);
        };
        let device = WatchdogDevice::open(path).map_err(WatchdogError::Open)?;
        match agree(most, |seconds| device.set_timeout(seconds)) {
            Ok(seconds) => {
                tracing::info!(path = %path.display(), seconds, "the watchdog is armed");
                Ok(Some(HardwareWatchdog::feed(device, seconds)))
            }
            Err(error) => {
                disarm(device);
                Err(error)
            }
        }
    }

    fn feed(device: WatchdogDevice, seconds: u32) -> HardwareWatchdog {
        let device = Rc::new(RefCell::new(Some(device)));
        let (fed, pause) = (device.clone(), Duration::from_secs(seconds.into()) / WATCHDOG_SHARE);
        let feeding = spawn(async move { feed_while_alive(&fed, &cores(), pause).await });
        HardwareWatchdog { device, _feeding: feeding.abort_on_drop() }
    }

    /// The server ends: the machine is not reset.
    pub(crate) fn end(self) {
        if let Some(device) = self.device.take() {
            disarm(device);
        }
    }
}

fn disarm(device: WatchdogDevice) {
    if let Err(error) = device.disarm() {
        tracing::error!("the watchdog stays armed, and resets the machine soon: {error}");
    }
}

/// Feeds the device for as long as every executor makes progress, until it is taken.
async fn feed_while_alive(
    device: &RefCell<Option<WatchdogDevice>>,
    cores: &[CoreHandle],
    pause: Duration,
) {
    loop {
        progress(cores).await;
        let fed = device.borrow_mut().as_mut().map(WatchdogDevice::feed);
        let Some(fed) = fed else { return };
        if let Err(error) = fed {
            tracing::error!("the watchdog cannot be fed, and may reset the machine: {error}");
        }
        time::sleep(pause).await;
    }
}

/// Longest time-out in whole seconds; `None` if no mirror fails over by itself.
fn longest_timeout(config: &Config) -> Option<u32> {
    let mirrors = config.volumes.iter().filter_map(|volume| volume.mirror());
    let automatic = mirrors.filter(|mirror| mirror.failover == FailoverMode::Automatic);
    let shortest = automatic.map(|mirror| mirror.failover_after).min()?;
    let failover_after_ns = u64::try_from(shortest.as_nanos()).unwrap_or(u64::MAX);
    let lease = Duration::from_nanos(Timing { failover_after_ns }.lease_ns());
    Some(u32::try_from(lease.as_secs()).unwrap_or(u32::MAX))
}

/// Sets the time-out, which the device may round up.
fn agree(most: u32, set: impl FnOnce(u32) -> io::Result<u32>) -> Result<u32, WatchdogError> {
    match set(most) {
        Ok(found) if found <= most => Ok(found),
        Ok(found) => Err(WatchdogError::TooLong { found, most }),
        Err(error) => Err(WatchdogError::Timeout { seconds: most, error }),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::path::Path;
    use std::pin::{Pin, pin};
    use std::sync::mpsc;
    use std::task::Poll;

    use flagstone_runtime::{RuntimeConfig, run, task};

    use super::*;

    #[test]
    fn device_with_longer_timeout_is_refused() {
        assert!(matches!(agree(4, Ok), Ok(4)));
        assert!(matches!(agree(4, |_| Ok(3)), Ok(3)));
        let refused = agree(4, |_| Ok(60)).expect_err("too late");
        assert!(refused.to_string().contains("60 s"), "{refused}");
        let fixed = |_| Err(io::ErrorKind::Unsupported.into());
        assert!(matches!(agree(4, fixed), Err(WatchdogError::Timeout { seconds: 4, .. })));
    }

    #[test]
    fn timeout_is_within_shortest_lease() {
        let volume = |name: &str, after: &str| {
            format!("[volume.{name}]\ndevice = \"/{name}\"\nmirror = {{ peer = \"b\"{after} }}\n")
        };
        let parse = |volumes: &str| {
            let text = format!(
                "[server]\nnode = \"a\"\nlisten = [\"nvme-tcp://127.0.0.1:4420\"]\n\
                 [arbiter]\netcd = [\"http://e\"]\n[peer.b]\naddress = \"127.0.0.2\"\n{volumes}"
            );
            Config::parse("f", &text).unwrap_or_else(|error| panic!("{error}"))
        };
        let automatic =
            |after: &str| format!(", failover = \"automatic\", failover_after = \"{after}\"");
        let manual = volume("m", "");
        assert_eq!(longest_timeout(&parse(&manual)), None);
        let both = volume("v", &automatic("8s")) + &volume("w", &automatic("5s")) + &manual;
        assert_eq!(longest_timeout(&parse(&both)), Some(4));
    }

    /// A device that is a file, and the bytes that were written to it.
    fn fake() -> (tempfile::NamedTempFile, WatchdogDevice) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let device = WatchdogDevice::recording(file.reopen().expect("a file"));
        (file, device)
    }

    fn fed(path: &Path) -> usize {
        std::fs::read(path).expect("a file").len()
    }

    async fn poll_once<F: Future<Output = ()>>(future: &mut Pin<&mut F>) {
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        assert!(polled.is_pending(), "it ends when the device is taken");
        task::yield_now().await;
    }

    #[test]
    fn hung_executor_is_not_fed_for() {
        let config = RuntimeConfig { cores: 2, ..RuntimeConfig::default() };
        run(&config, || async {
            let (cores, (file, device)) = (cores(), fake());
            let device = RefCell::new(Some(device));
            {
                let mut feeding = pin!(feed_while_alive(&device, &cores, Duration::ZERO));
                while fed(file.path()) < 3 {
                    poll_once(&mut feeding).await;
                }
                let (blocked, is_blocked) = mpsc::channel();
                let (release, released) = mpsc::channel::<()>();
                cores[1].spawn(move || async move {
                    blocked.send(()).unwrap();
                    let _ = released.recv();
                });
                is_blocked.recv().unwrap();
                // Executors may have answered before one was blocked.
                let before = fed(file.path());
                for _ in 0..100 {
                    poll_once(&mut feeding).await;
                }
                assert!(fed(file.path()) <= before + 1, "fed for an executor that hangs");
                drop(release);
                while fed(file.path()) < before + 3 {
                    poll_once(&mut feeding).await;
                }
            }
            disarm(device.take().expect("it was not taken"));
            let bytes = std::fs::read(file.path()).expect("a file");
            let (last, others) = bytes.split_last().expect("it was fed");
            assert!(*last == b'V' && others.iter().all(|byte| *byte == 0), "{bytes:?}");
        })
        .unwrap();
    }

    #[test]
    fn watchdog_is_disarmed_at_the_end() {
        let (file, device) = fake();
        let config = RuntimeConfig { cores: 1, ..RuntimeConfig::default() };
        let path = file.path().to_owned();
        run(&config, || async move {
            let watchdog = HardwareWatchdog::feed(device, 1);
            while fed(&path) == 0 {
                task::yield_now().await;
            }
            watchdog.end();
        })
        .unwrap();
        assert!(std::fs::read(file.path()).expect("a file").ends_with(b"\0V"));
    }
}
