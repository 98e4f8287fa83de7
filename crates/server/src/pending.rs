//! Pending volumes: their remote devices are unreachable, and are retried while others are served.
//!
//! Meanwhile hosts get answers that make them retry: Connect Controller Busy from a subsystem
//! without an open volume, and an unavailable export over NBD. A subsystem with several volumes
//! serves the open ones; the namespaces of the others are pending.
//!
//! At startup only transient errors make a volume pending; a permanent error ends the server. Later
//! no error ends the server: permanent errors are retried too, because the fix may be on the other
//! side.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_nbd::Export;
use flagstone_runtime::sync::Semaphore;
use flagstone_runtime::time::{self, Backoff, Instant};
use flagstone_runtime::{spawn, spawn_detached};

use crate::limits::{OPEN_AT_ONCE, OPEN_PAUSE};
use crate::mirrors::{MirroredVolume, remote_log};
use crate::pools::legs::LegOpener;
use crate::reload::Limits;
use crate::serve::{ServeError, Server};
use crate::stack::{Stack, open_stack};
use crate::subsystems::{add_volume, nqn, unservable};
use crate::volume::ServedVolume;
use crate::wake::Wake;
use flagstone_blockdev::StatsLayer;
use flagstone_config::Config;
use flagstone_config::device_spec::DeviceSpec;
use flagstone_stack::OpenError;

pub(crate) struct PendingVolumes {
    pending: RefCell<BTreeMap<usize, PendingVolume>>,
    /// Failed attempts by volume index; kept after the volume has opened.
    failures: Vec<Cell<u64>>,
    /// Ends the pauses between attempts.
    wake: Wake,
}

#[derive(Clone, Debug)]
pub(crate) struct PendingVolume {
    /// Failure of the last attempt.
    pub(crate) reason: String,
    /// Time of the first failed attempt.
    pub(crate) since: Instant,
    /// Time of the next attempt; `None` during an attempt.
    pub(crate) next_attempt: Option<Instant>,
}

impl PendingVolumes {
    pub(crate) fn new(volumes: usize) -> PendingVolumes {
        let failures = (0..volumes).map(|_| Cell::new(0)).collect();
        PendingVolumes { pending: RefCell::default(), failures, wake: Wake::default() }
    }

    pub(crate) fn volumes(&self) -> Vec<usize> {
        self.pending.borrow().keys().copied().collect()
    }

    pub(crate) fn get(&self, volume: usize) -> Option<PendingVolume> {
        self.pending.borrow().get(&volume).cloned()
    }

    pub(crate) fn reason(&self, volume: usize) -> Option<String> {
        self.pending.borrow().get(&volume).map(|wait| wait.reason.clone())
    }

    pub(crate) fn failures(&self, volume: usize) -> u64 {
        self.failures.get(volume).map_or(0, Cell::get)
    }

    /// Records a failed attempt. Logs each reason once.
    pub(crate) fn failed(&self, volume: usize, error: &ServeError) {
        let reason = error.to_string();
        let longest = OPEN_PAUSE.end().as_secs();
        if self.reason(volume).as_ref() == Some(&reason) {
            tracing::debug!("{reason}; retrying");
        } else if error.may_pass() {
            tracing::warn!(
                "{reason}; all other volumes are served, and this is retried at most every {longest} s"
            );
        } else {
            tracing::error!(
                "{reason}; this needs a repair: either at the device, which is retried at most every \
                 {longest} s, or in the configuration of this server, followed by a restart"
            );
        }
        let failures = &self.failures[volume];
        failures.set(failures.get() + 1);
        let mut pending = self.pending.borrow_mut();
        let since = pending.get(&volume).map_or_else(time::now, |wait| wait.since);
        pending.insert(volume, PendingVolume { reason, since, next_attempt: None });
    }

    /// Waits for a first attempt, which comes later during the start.
    pub(crate) fn begin(&self, volume: usize, reason: &str) {
        let wait =
            PendingVolume { reason: reason.to_owned(), since: time::now(), next_attempt: None };
        self.pending.borrow_mut().insert(volume, wait);
    }

    /// Lets all pending volumes try at once.
    pub(crate) fn wake(&self) {
        self.wake.wake();
    }

    fn set_next(&self, volume: usize, next: Option<Instant>) {
        if let Some(wait) = self.pending.borrow_mut().get_mut(&volume) {
            wait.next_attempt = next;
        }
    }

    pub(crate) fn ended(&self, volume: usize) -> Option<PendingVolume> {
        self.pending.borrow_mut().remove(&volume)
    }
}

/// Opens all volumes, those with remote devices concurrently, because a timeout may take seconds.
/// Transient errors are part of the result; the first permanent one ends it.
pub(crate) async fn open_all(
    config: &Rc<Config>,
    limits: &Limits,
    legs: &LegOpener,
) -> Result<Vec<Result<Stack, OpenError>>, OpenError> {
    let at_once = Semaphore::new(OPEN_AT_ONCE);
    let begin = |index: usize| {
        let (config, at_once, legs) = (config.clone(), at_once.clone(), legs.clone());
        let (shared, own) = (limits.shared.clone(), limits.own[index].clone());
        let open = async move {
            let _permit = at_once.acquire(1).await;
            open_stack(&config, index, &shared, own.as_ref(), &legs).await
        };
        spawn(open).abort_on_drop()
    };
    let remote =
        (0..config.volumes.len()).map(|index| is_remote(config, index).then(|| begin(index)));
    let remote: Vec<_> = remote.collect();
    let mut stacks = Vec::with_capacity(remote.len());
    for (index, begun) in remote.into_iter().enumerate() {
        let joined = match begun {
            Some(mut begun) => begun.handle().await.ok(),
            None => None,
        };
        let opened = match joined {
            Some(opened) => opened,
            None => {
                let own = limits.own[index].as_ref();
                open_stack(config, index, &limits.shared, own, legs).await
            }
        };
        match opened {
            Err(error) if !error.may_pass => return Err(error),
            opened => stacks.push(opened),
        }
    }
    Ok(stacks)
}

fn is_remote(config: &Config, volume: usize) -> bool {
    let devices = config.volumes[volume].backing.devices();
    let log = config.volumes[volume].mirror().and_then(remote_log);
    log.is_some() || devices.iter().any(DeviceSpec::is_remote)
}

impl Server {
    /// Retries until a pending volume is open, then serves it. Cancel-safe.
    pub(crate) async fn open_pending(self: Rc<Self>, volume: usize) {
        let mut backoff = Backoff::new(*OPEN_PAUSE.start(), *OPEN_PAUSE.end());
        let mut seen = self.pending.wake.count();
        loop {
            let pause = backoff.advance();
            self.pending.set_next(volume, Some(time::now() + pause));
            if self.pending.wake.pause(pause, &mut seen).await {
                backoff = Backoff::new(*OPEN_PAUSE.start(), *OPEN_PAUSE.end());
            }
            self.pending.set_next(volume, None);
            match self.open_now(volume).await {
                Ok(()) => break,
                Err(error) => self.pending.failed(volume, &error),
            }
        }
        let waited = self.pending.ended(volume).map(|wait| wait.since.elapsed().as_secs());
        let (name, waited) = (&self.config.volumes[volume].name, waited.unwrap_or_default());
        tracing::info!("volume `{name}` is open after {waited} s");
    }

    pub(crate) async fn open_now(&self, volume: usize) -> Result<(), ServeError> {
        let (shared, own) = (&self.limits.shared, self.limits.own[volume].as_ref());
        let legs = self.pools.leg_opener();
        let leg = self.config.volumes[volume].backing.leg();
        let closes = leg.map(|leg| legs.closes(&leg.pool));
        let stack = open_stack(&self.config, volume, shared, own, &legs).await?;
        // From here on, an order that closes the pool finds the mirror.
        if let Some(leg) = leg.filter(|leg| closes != Some(legs.closes(&leg.pool))) {
            return Err(legs.closed_error(&self.config.volumes[volume], leg).into());
        }
        self.begin(volume, stack).await
    }

    /// Starts the mirror, if any, and exports the volume. An error leaves nothing behind.
    pub(crate) async fn begin(&self, volume: usize, stack: Stack) -> Result<(), ServeError> {
        let Stack { device, mirrored, layers } = stack;
        let served = self.configured(volume);
        let _ = served.layers.set(layers);
        let Some(mirrored) = mirrored else {
            self.serve_volume(&served, device)?;
            return self.admit_hosts(&served);
        };
        {
            // Registered before the start, so that a shutdown during it stops the mirror in order.
            let mut mirrors = self.mirrors.borrow_mut();
            let place = mirrors.partition_point(|other| other.volume < volume);
            mirrors.insert(place, mirrored.clone());
        }
        mirrored.set_arbiter(self.arbiter.clone());
        let begun = async {
            if let Some(records) = self.mirrored_reservations(&served, mirrored.handle())? {
                mirrored.set_reservation_records(records);
            }
            mirrored.start(&self.target, &self.mirror_shares).await?;
            self.serve_volume(&served, device)
        };
        let begun = begun.await;
        if begun.is_err() {
            mirrored.abandon().await;
            self.mirrors.borrow_mut().retain(|other| other.volume != volume);
            return begun;
        }
        self.admit_hosts_when_decided(&served, &mirrored)
    }

    /// Admits NVMe hosts of a mirrored volume when it is known whether this node serves it.
    fn admit_hosts_when_decided(
        &self,
        volume: &ServedVolume,
        mirrored: &MirroredVolume,
    ) -> Result<(), ServeError> {
        let questions = mirrored.questions();
        if questions.is_empty() {
            return self.admit_hosts(volume);
        }
        let (target, nqn) = (self.target.clone(), nqn(&volume.subsystem.nqn)?);
        spawn_detached(async move {
            questions.answered().await;
            let _ = target.resume_connects(&nqn);
        });
        Ok(())
    }

    /// Lets NVMe hosts connect to the subsystem of a volume.
    pub(crate) fn admit_hosts(&self, volume: &ServedVolume) -> Result<(), ServeError> {
        let nqn = nqn(&volume.subsystem.nqn)?;
        self.target.resume_connects(&nqn).map_err(unservable)
    }

    /// Exports an open volume over NBD, and over NVMe/TCP when hosts are admitted.
    pub(crate) fn serve_volume(
        &self,
        volume: &ServedVolume,
        device: SharedDevice,
    ) -> Result<(), ServeError> {
        let counted = StatsLayer::with(device, volume.counters.clone());
        let device: SharedDevice = Arc::new(counted);
        // The NVMe namespace goes first, because it may be refused. Export names were checked
        // before.
        add_volume(&self.target, volume, &device, self.reservations_of(volume)?)?;
        let config = &volume.config;
        let export = Export::new(config.nbd_export.clone(), device.clone())
            .described(format!("Flagstone volume {}", config.name))
            .read_only(config.read_only)
            .accessible_to(config.nbd_clients.clone());
        // A mirror may not serve hosts, or not yet.
        let export = if config.mirror().is_some() { export.asked_first() } else { export };
        self.exports.add(export).map_err(unservable)?;
        let _ = volume.device.set(device);
        Ok(())
    }
}
