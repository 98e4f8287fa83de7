//! Volumes whose devices are on other machines that cannot be reached: all else is served, and they
//! are tried again until they are open.
//!
//! What hosts are told meanwhile has them come again: a subsystem that has no namespace yet answers
//! Connect with Connect Controller Busy, an NBD export is not available. A subsystem of several
//! volumes has those that are open; hosts are told of the others when they come (Namespace Attribute
//! Changed).
//!
//! Only what may pass by itself is waited for when the server starts: a mistake ends the start. Later
//! on nothing ends the server, and what was not reached before and turns out to be a mistake is tried
//! again too, as the other side may be what is mended.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::SharedDevice;
use flagstone_runtime::spawn;
use flagstone_runtime::sync::Semaphore;
use flagstone_runtime::time::{self, Instant};

use crate::config::Config;
use crate::counted::Counted;
use crate::device_spec::DeviceSpec;
use crate::exports::export;
use crate::limits::{OPEN_AT_ONCE, OPEN_PAUSE};
use crate::mirrors::remote_log;
use crate::reload::Limits;
use crate::serve::{ServeError, Server};
use crate::stack::{OpenError, Stack, open_stack};
use crate::subsystems::{add_volume, unservable};

/// The volumes that wait.
pub(crate) struct Waiting {
    waits: RefCell<BTreeMap<usize, Wait>>,
    /// Failed attempts of each volume, those that do not wait any more too.
    failures: Vec<Cell<u64>>,
}

/// A volume that waits.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    /// Why the last attempt failed.
    pub(crate) reason: String,
    /// When the first failed.
    pub(crate) since: Instant,
    /// When the next begins; `None` while one goes on.
    pub(crate) next: Option<Instant>,
}

impl Waiting {
    /// None of so many volumes waits.
    pub(crate) fn new(volumes: usize) -> Waiting {
        let failures = (0..volumes).map(|_| Cell::new(0)).collect();
        Waiting { waits: RefCell::default(), failures }
    }

    /// Indices of the volumes that wait.
    pub(crate) fn volumes(&self) -> Vec<usize> {
        self.waits.borrow().keys().copied().collect()
    }

    /// How the volume at an index waits, if it does.
    pub(crate) fn wait(&self, volume: usize) -> Option<Wait> {
        self.waits.borrow().get(&volume).cloned()
    }

    /// Why it waits, if it does.
    pub(crate) fn reason(&self, volume: usize) -> Option<String> {
        self.waits.borrow().get(&volume).map(|wait| wait.reason.clone())
    }

    /// How often it could not be opened.
    pub(crate) fn failures(&self, volume: usize) -> u64 {
        self.failures[volume].get()
    }

    /// An attempt has failed, and there will be another. The log is told once for each reason.
    pub(crate) fn failed(&self, volume: usize, error: &ServeError) {
        let reason = error.to_string();
        let longest = OPEN_PAUSE.end().as_secs();
        if self.reason(volume).as_ref() == Some(&reason) {
            tracing::debug!("{reason}; tried again");
        } else if error.may_pass() {
            tracing::warn!(
                "{reason}; all else is served, and this is tried again, after {longest} s at most"
            );
        } else {
            tracing::error!(
                "{reason}; this has to be mended: where the device is, and it is tried again, after \
                 {longest} s at most, or in the configuration of this server, which is started anew \
                 then"
            );
        }
        self.note(volume, reason);
    }

    /// Counts an attempt that failed.
    fn note(&self, volume: usize, reason: String) {
        let failures = &self.failures[volume];
        failures.set(failures.get() + 1);
        let mut waits = self.waits.borrow_mut();
        let since = waits.get(&volume).map_or_else(time::now, |wait| wait.since);
        waits.insert(volume, Wait { reason, since, next: None });
    }

    fn set_next(&self, volume: usize, next: Option<Instant>) {
        if let Some(wait) = self.waits.borrow_mut().get_mut(&volume) {
            wait.next = next;
        }
    }

    fn ended(&self, volume: usize) -> Option<Wait> {
        self.waits.borrow_mut().remove(&volume)
    }
}

/// Opens all volumes: what is on other machines at the same time, as it may take seconds to find one
/// out of reach. Those that may be reached later are errors among the results.
///
/// # Errors
/// The first that is wrong otherwise.
pub(crate) async fn open_all(
    config: &Rc<Config>,
    limits: &Limits,
) -> Result<Vec<Result<Stack, OpenError>>, OpenError> {
    let at_once = Semaphore::new(OPEN_AT_ONCE);
    let begin = |index: usize| {
        let (config, at_once) = (config.clone(), at_once.clone());
        let (shared, own) = (limits.shared.clone(), limits.own[index].clone());
        let open = async move {
            let _permit = at_once.acquire(1).await;
            open_stack(&config, index, &shared, own.as_ref()).await
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
            None => open_stack(config, index, &limits.shared, limits.own[index].as_ref()).await,
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
    /// Tries to open and serve a volume that waits until it is. May be dropped at any moment.
    pub(crate) async fn open_later(self: Rc<Self>, volume: usize) {
        let mut pause: Duration = *OPEN_PAUSE.start();
        loop {
            self.waiting.set_next(volume, Some(time::now() + pause));
            time::sleep(pause).await;
            self.waiting.set_next(volume, None);
            pause = (pause * 2).min(*OPEN_PAUSE.end());
            match self.open_now(volume).await {
                Ok(()) => break,
                Err(error) => self.waiting.failed(volume, &error),
            }
        }
        let waited = self.waiting.ended(volume).map(|wait| wait.since.elapsed().as_secs());
        let (name, waited) = (&self.config.volumes[volume].name, waited.unwrap_or_default());
        tracing::info!("volume `{name}` is served now, after {waited} s");
    }

    async fn open_now(&self, volume: usize) -> Result<(), ServeError> {
        let (shared, own) = (&self.limits.shared, self.limits.own[volume].as_ref());
        let stack = open_stack(&self.config, volume, shared, own).await?;
        self.begin(volume, stack).await
    }

    /// Begins to serve a volume: its mirror is started, if it has one, and hosts see it. When that
    /// fails nothing of it is left, and another stack may be opened.
    pub(crate) async fn begin(&self, volume: usize, stack: Stack) -> Result<(), ServeError> {
        let Stack { device, mirrored } = stack;
        let Some(mirrored) = mirrored else { return self.serve_volume(volume, device) };
        {
            // Before it starts: whatever happens meanwhile, it ends in order with the server.
            let mut mirrors = self.mirrors.borrow_mut();
            let place = mirrors.partition_point(|other| other.volume < volume);
            mirrors.insert(place, mirrored.clone());
        }
        let begun = match mirrored.start(&self.target, &self.caps).await {
            Ok(()) => self.serve_volume(volume, device),
            Err(error) => Err(error.into()),
        };
        if begun.is_err() {
            mirrored.give_up().await;
            self.mirrors.borrow_mut().retain(|other| other.volume != volume);
        }
        begun
    }

    /// Lets hosts see a volume whose device has come.
    fn serve_volume(&self, volume: usize, device: SharedDevice) -> Result<(), ServeError> {
        let counted = Counted::with(device, self.counters[volume].clone());
        let device: SharedDevice = Arc::new(counted);
        // What can be wrong with it is wrong with the namespace: names were looked at before.
        add_volume(&self.target, &self.config, volume, &device, &self.machine)?;
        let export = export(&self.config.volumes[volume], &device);
        self.exports.add(export).map_err(unservable)?;
        let _ = self.volumes[volume].set(device);
        Ok(())
    }
}
