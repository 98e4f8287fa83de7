//! Rollback of a mirrored volume: its peers are kept out and its replica is closed, while the leg
//! gets other content.
//!
//! [`flagstone_mirror::manage::roll_back`] has the record that makes this safe. Peers that were
//! connected are paused, durably and at the arbiter, and connected again at the end. If the server
//! stops in between, they stay paused: the operator decides.

use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::SharedDevice;
use flagstone_mirror::Mirror;
use flagstone_mirror::limits::ASK_MS;
use flagstone_mirror::manage::replica::read_superblock;
use flagstone_mirror::manage::roll_back::{RollbackRecord, check_content};
use flagstone_mirror::state::status::DesiredState;
use flagstone_runtime::sync::Permit;
use flagstone_runtime::time;

use super::MirroredVolume;
use super::grow::Changing;

/// How long an order waits until hosts are served again: the peers are asked first.
const SERVE_TIMEOUT: Duration = Duration::from_millis(2 * ASK_MS);

/// A mirrored volume whose replica is closed for a rollback. Nothing else opens or changes the
/// replica meanwhile.
pub(crate) struct StoppedVolume {
    volume: Rc<MirroredVolume>,
    _changing: Changing,
    _create_lock: Permit,
}

impl MirroredVolume {
    /// Name of its consistency group in the configuration.
    pub(crate) fn group_name(&self) -> Option<&str> {
        self.config.group.as_deref()
    }

    /// Checks that a snapshot of the leg has the content of the whole volume.
    ///
    /// # Errors
    /// The reason why not.
    pub(crate) async fn check_snapshot_content(
        &self,
        snapshot: &SharedDevice,
    ) -> Result<(), String> {
        let now = read_superblock(&self.leg).await;
        let now = now.map_err(|error| format!("its replica cannot be read: {error}"))?;
        let then = read_superblock(snapshot).await.map_err(|error| {
            format!("the snapshot has no replica, as before flagstone mirror create ({error})")
        })?;
        check_content(&now, &then).map_err(|why| why.to_string())
    }

    /// Pauses the connected peers, so that none is promoted with the former content. Returns their
    /// legs.
    ///
    /// # Errors
    /// The reason why a peer was not paused. The others are connected again.
    pub(crate) async fn pause_peers(&self, mirror: &Mirror) -> Result<Vec<usize>, String> {
        let legs = mirror.machine_state().legs.into_iter().enumerate();
        let connected = legs
            .filter_map(|(leg, state)| (state?.desired == DesiredState::Connected).then_some(leg));
        let mut paused = Vec::new();
        for leg in connected {
            if let Err(error) = mirror.set_desired_state(leg, DesiredState::Paused).await {
                self.connect_peers(&paused).await?;
                return Err(format!("the mirror was not paused: {error}"));
            }
            paused.push(leg);
        }
        if let Err(error) = mirror.outdate_paused_peers().await {
            self.connect_peers(&paused).await?;
            return Err(format!("the peers were not recorded as out of date: {error}"));
        }
        Ok(paused)
    }

    /// Connects peers again.
    ///
    /// # Errors
    /// The reason, and the next step.
    pub(crate) async fn connect_peers(&self, legs: &[usize]) -> Result<(), String> {
        let name = &self.name;
        let Some(mirror) = self.mirror().filter(|_| !legs.is_empty()) else { return Ok(()) };
        for leg in legs {
            mirror.set_desired_state(*leg, DesiredState::Connected).await.map_err(|error| {
                format!("the mirror stays paused ({error}): run flagstone mirror continue {name}")
            })?;
        }
        Ok(())
    }

    /// Stops the mirror, and opens its replica for the record of a rollback.
    ///
    /// # Errors
    /// The reason. The mirror continues, or is reopened soon.
    pub(crate) async fn stop_for_rollback(
        self: &Rc<Self>,
        mirror: &Mirror,
    ) -> Result<(StoppedVolume, RollbackRecord), String> {
        let create_lock = self.create_lock.acquire(1).await;
        if self.growing.get() || self.growing_to.get().is_some() {
            return Err("the volume is growing: repeat the order after that".to_owned());
        }
        self.check_log_rests()?;
        if mirror.is_closed() {
            return Err("the mirror was stopped meanwhile".to_owned());
        }
        let stopped = StoppedVolume {
            volume: self.clone(),
            _changing: Changing::new(self),
            _create_lock: create_lock,
        };
        self.set_ana_state(false);
        if let Err(error) = mirror.stop().await {
            self.set_ana_state(mirror.is_serving());
            return Err(format!("the mirror did not stop: {error}"));
        }
        self.watch.borrow_mut().take();
        self.abandon_mirror().await;
        let record = match self.open().await {
            Ok(Some(replica)) => {
                let peers = self.links().len();
                RollbackRecord::new(replica, peers).map_err(|why| why.to_string())
            }
            Ok(None) => Err("the replica cannot be opened".to_owned()),
            Err(failure) => Err(failure.problem),
        };
        match record {
            Ok(record) => Ok((stopped, record)),
            Err(why) => {
                let reopened = stopped.reopen().await;
                Err(reopened.err().map_or(why.clone(), |error| format!("{why}; {error}")))
            }
        }
    }
}

impl StoppedVolume {
    /// Closes the leg, whose content is about to change.
    pub(crate) fn close_leg(&self) {
        self.volume.reopenable.close();
    }

    /// Opens leg and replica again, and waits until hosts are served.
    ///
    /// # Errors
    /// The reason why they are not served. Failures to open are retried.
    pub(crate) async fn reopen(self) -> Result<(), String> {
        let volume = self.volume.clone();
        volume.reopen_or_retry("it was closed for a rollback").await?;
        drop(self);
        let mirror = volume.mirror().ok_or("the mirror was deleted")?;
        let serves = time::timeout(SERVE_TIMEOUT, mirror.serving_changed(false)).await;
        serves.map(drop).map_err(|_| {
            format!(
                "the replica is open, and hosts are not served yet: see flagstone mirror status {}",
                volume.name
            )
        })
    }
}
