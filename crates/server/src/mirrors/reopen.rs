//! Reopening of a replica on a running server, as a restart would do.
//!
//! A replica whose log device is unusable is opened when the operator has corrected the device. An
//! open replica is reopened for two causes. A replica was closed for a change, or was just created,
//! and could not be opened again because its device failed meanwhile. Or a device failed: a flush
//! failed, or another error made a peer serve the volume. In the second case the devices are closed
//! and reopened too.
//!
//! After a failed flush the contents of the device are unknown: the kernel may have dropped data
//! that it could not write, and still show it. So devices are reopened only if no hosts rely on
//! them: on a target, and on a former source after a switchover or after it was deposed. The
//! replica returns as unverified (`Replica::mark_unverified`). It does not serve, and its source
//! writes everything that was not known to be durable here. A source without a consistent peer
//! stays as it is until the operator acts, because the lost data cannot be restored.
//!
//! A device that keeps failing is reopened [`REOPENS_MAX`] times, ever later, until a restart.

use std::rc::{Rc, Weak};
use std::time::Duration;

use flagstone_mirror::Mirror;
use flagstone_runtime::time::{self, Backoff, Instant};
use flagstone_runtime::{spawn, spawn_detached};

use super::{MirrorFailure, MirroredVolume};

/// Pauses before attempts: the first and the longest.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Pause between looks at a log device that is unusable.
const LOG_RETRY: Duration = Duration::from_secs(2);

/// How long a mirror may take to stop before its device is closed under it.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// A device that has worked for this long is healthy: earlier failures do not count.
const HEALTHY_AFTER: Duration = Duration::from_secs(600);

/// Maximum reopens while devices fail within [`HEALTHY_AFTER`]: about two minutes of pauses.
const REOPENS_MAX: u32 = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reopening {
    /// Reason for it, or failure of the last attempt.
    pub(crate) reason: String,
    /// Number of reopens since the devices were last healthy.
    pub(crate) attempts: u32,
    /// Time of the next attempt; `None` during an attempt, and when there is none.
    pub(crate) next: Option<Instant>,
    /// The devices failed too often, and stay closed.
    pub(crate) abandoned: bool,
    open: bool,
    at: Instant,
}

impl Reopening {
    /// Starts to reopen devices that failed. `before` is the previous progress.
    fn begin(before: Option<&Reopening>, reason: String, now: Instant) -> Reopening {
        let attempts = before.filter(|was| !was.is_healthy(now)).map_or(0, |was| was.attempts);
        Reopening { reason, attempts, next: None, abandoned: false, open: false, at: now }
    }

    /// The devices have worked for [`HEALTHY_AFTER`] since they were opened.
    fn is_healthy(&self, now: Instant) -> bool {
        self.open && !self.abandoned && now.since(self.at) >= HEALTHY_AFTER
    }

    fn opened(&mut self, now: Instant) {
        (self.next, self.at, self.open) = (None, now, true);
        self.attempts += 1;
    }

    fn failed(&mut self, problem: &str, next: Option<Instant>, now: Instant) {
        (self.next, self.at) = (next, now);
        problem.clone_into(&mut self.reason);
    }

    fn decide(&mut self, now: Instant) -> ReopenDecision {
        if self.abandoned {
            return ReopenDecision::Abandoned;
        }
        if self.attempts < REOPENS_MAX || self.is_healthy(now) {
            return ReopenDecision::Open;
        }
        self.abandoned = true;
        ReopenDecision::Abandon
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReopenDecision {
    Open,
    /// They failed too often: abandon them, and log it.
    Abandon,
    /// They were abandoned earlier, until the server restarts.
    Abandoned,
}

impl MirroredVolume {
    /// The mirror is closed, and was not replaced.
    pub(super) fn has_ended(&self) -> bool {
        self.mirror().is_some_and(|mirror| mirror.is_closed())
    }

    /// Progress of reopening; `None` if the replica is open.
    pub(crate) fn reopening(&self) -> Option<Reopening> {
        self.reopening.borrow().clone().filter(|reopening| !reopening.open || reopening.abandoned)
    }

    pub(crate) fn reopens(&self) -> u64 {
        self.reopens.get()
    }

    /// A flush of the data or log device has failed, and the device was not reopened since.
    pub(crate) fn has_failed_flush(&self) -> bool {
        let log = self.log.borrow();
        self.leg.must_reopen() || log.as_ref().is_some_and(|log| log.must_reopen())
    }

    pub(super) fn reopen_soon(self: &Rc<Self>) {
        self.set_ana_state(false);
        if self.ending.get() {
            return;
        }
        let first = self.reopening.borrow().as_ref().map_or(0, |reopening| reopening.attempts);
        let again = retry(Rc::downgrade(self), PAUSES.after(first));
        *self.watch.borrow_mut() = Some(spawn(again).abort_on_drop());
    }

    /// The failure that requires reopening the devices, if any.
    fn failure(&self, mirror: &Mirror) -> Option<String> {
        let why = match (self.leg.must_reopen(), self.has_failed_flush()) {
            (true, _) => "a flush of its device failed",
            (false, true) => "a flush of its log's device failed",
            (false, false) if mirror.has_failed() => "its device failed",
            (false, false) => return None,
        };
        Some(why.to_owned())
    }

    /// Abandons the mirror and reopens its devices, if a peer has all data that they may have lost.
    async fn reopen_devices(self: Rc<Self>, mirror: Mirror, reason: String) {
        let create_lock = self.create_lock.acquire(1).await;
        if self.growing.get() || !mirror.abandon_target().await {
            return;
        }
        tracing::error!(
            volume = self.name,
            "{reason}: reopening the device; the source then resynchronizes it"
        );
        self.unverified.set(true);
        let before = self.reopening.take();
        let reopening = Reopening::begin(before.as_ref(), reason, time::now());
        *self.reopening.borrow_mut() = Some(reopening);
        self.abandon_mirror().await;
        drop(create_lock);
        self.reopen_soon();
    }

    /// Attempts to reopen the devices at once, if they are to be reopened.
    pub(crate) fn retry_now(&self) {
        self.retry_wake.wake();
    }

    /// Stops the mirror and releases its device, which something else is about to close. The
    /// devices are reopened afterwards. If the replica cannot be stopped in order, this is a crash
    /// of it.
    pub(crate) async fn release_device(self: &Rc<Self>, reason: &str) {
        let create_lock = self.create_lock.acquire(1).await;
        self.set_ana_state(false);
        if let Some(mirror) = self.mirror().filter(|mirror| !mirror.is_closed()) {
            let is_unverified = self.has_failed_flush() && mirror.is_idle_target();
            mirror.leave_group_sessions();
            match time::timeout(RELEASE_TIMEOUT, mirror.stop()).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    tracing::error!(volume = self.name, "the mirror did not stop cleanly: {error}");
                }
                Err(_) => tracing::error!(volume = self.name, "the mirror did not stop in time"),
            }
            if is_unverified {
                self.unverified.set(true);
            }
            mirror.close();
            self.abandon_mirror().await;
        }
        self.reopenable.close();
        drop(create_lock);
        if !self.has_ended() {
            // Without a replica, the device is needed for its creation only.
            self.reopen_bare_device();
            return;
        }
        if self.reopening().is_none() {
            let before = self.reopening.take();
            let reopening = Reopening::begin(before.as_ref(), reason.to_owned(), time::now());
            *self.reopening.borrow_mut() = Some(reopening);
        }
        self.reopen_soon();
    }

    /// Opens the device of a volume without a replica, as soon as possible.
    fn reopen_bare_device(self: &Rc<Self>) {
        let (this, wake) = (Rc::downgrade(self), self.retry_wake.clone());
        let (mut pauses, mut seen) = (PAUSES, wake.count());
        let opens = async move {
            loop {
                wake.pause(pauses.advance(), &mut seen).await;
                let Some(this) = this.upgrade() else { return };
                let _create_lock = this.create_lock.acquire(1).await;
                match this.exchange_devices().await {
                    Ok(()) if this.is_without_log() => return this.await_log(),
                    Ok(()) => return,
                    Err(MirrorFailure { problem, .. }) => {
                        tracing::debug!(volume = this.name, "cannot open its device: {problem}");
                    }
                }
            }
        };
        *self.watch.borrow_mut() = Some(spawn(opens).abort_on_drop());
    }

    fn may_reopen(&self) -> bool {
        let mut reopening = self.reopening.borrow_mut();
        let Some(was) = reopening.as_mut() else { return true };
        let verdict = was.decide(time::now());
        if verdict == ReopenDecision::Abandon {
            tracing::error!(
                volume = self.name,
                "the replica's devices failed again after {REOPENS_MAX} reopens: they stay closed until \
                 this server restarts"
            );
        }
        verdict == ReopenDecision::Open
    }

    async fn exchange_devices(&self) -> Result<(), MirrorFailure> {
        if self.log.borrow().as_ref().is_some_and(|log| log.must_reopen())
            && let Some(log) = self.reopenable_log.borrow().upgrade()
        {
            // Reopened with the replica.
            log.close();
            self.log.borrow_mut().take();
        }
        let Some(open) = self.open_local_device.borrow().clone() else { return Ok(()) };
        self.reopenable.close();
        let leg = open().await?;
        self.reopenable.set(leg).map_err(|other| {
            MirrorFailure::from(format!(
                "the reopened device has blocks of {} B, or is read-only",
                other.block_bytes
            ))
        })
    }

    async fn reopen(self: &Rc<Self>) -> Result<(), MirrorFailure> {
        let _create_lock = self.create_lock.acquire(1).await;
        self.reopen_locked().await
    }

    /// Reopens the replica now; if that fails, later and again. The caller has the lock.
    ///
    /// # Errors
    /// The reason of the failure.
    pub(super) async fn reopen_or_retry(self: &Rc<Self>, reason: &str) -> Result<(), String> {
        let Err(MirrorFailure { problem, .. }) = self.reopen_locked().await else { return Ok(()) };
        let before = self.reopening.take();
        let reopening = Reopening::begin(before.as_ref(), reason.to_owned(), time::now());
        *self.reopening.borrow_mut() = Some(reopening);
        self.reopen_soon();
        Err(format!("the replica cannot be opened ({problem}), which is retried"))
    }

    /// As [`MirroredVolume::reopen`]. The caller has the lock.
    async fn reopen_locked(self: &Rc<Self>) -> Result<(), MirrorFailure> {
        if !self.has_ended() || self.ending.get() {
            // It was deleted meanwhile, or the server stops.
            return Ok(());
        }
        let target = self.target()?;
        // Its requests in flight must end before the devices are reused.
        self.abandon_mirror().await;
        // The pool of a leg may have been opened again. It keeps everything that was flushed.
        let is_gone = !self.reopenable.is_open() || self.is_leg && self.leg.must_reopen();
        if self.unverified.get() || is_gone {
            self.exchange_devices().await?;
        }
        let found = self.open().await?;
        let missing = self.missing.borrow().clone();
        let missing = missing.as_deref().unwrap_or("the device has no replica any more").to_owned();
        let replica = found.ok_or(missing)?;
        if self.unverified.get() {
            // Durable, so that a restart knows it too.
            replica.mark_unverified().await.map_err(|error| error.to_string())?;
        }
        self.run(replica).await?;
        self.unverified.set(false);
        // The device may have failed before or after a change of its size.
        target
            .resize_namespace(&self.nqn, self.namespace_id)
            .map_err(|error| format!("cannot notify hosts of the size: {error}").into())
    }

    fn attempted(&self, next: Option<Instant>, problem: Option<&str>) {
        let mut reopening = self.reopening.borrow_mut();
        let Some(reopening) = reopening.as_mut() else { return };
        match problem {
            Some(problem) => reopening.failed(problem, next, time::now()),
            None => {
                reopening.opened(time::now());
                self.reopens.set(self.reopens.get() + 1);
            }
        }
    }
}

impl MirroredVolume {
    /// Opens the replica, whose log device is unusable, when the operator has corrected the device.
    pub(super) fn await_log(self: &Rc<Self>) {
        let this = Rc::downgrade(self);
        let waits = async move {
            let mut reported = String::new();
            loop {
                time::sleep(LOG_RETRY).await;
                let Some(this) = this.upgrade() else { return };
                let _create_lock = this.create_lock.acquire(1).await;
                if this.mirror().is_some() || !this.is_without_log() {
                    return;
                }
                let opened = match this.open().await {
                    Ok(None) => continue,
                    Ok(Some(replica)) => this.run(replica).await,
                    Err(failure) => Err(failure),
                };
                if let Err(MirrorFailure { problem, .. }) = opened
                    && problem != reported
                {
                    tracing::warn!(volume = this.name, "cannot open the replica: {problem}");
                    reported = problem;
                }
            }
        };
        *self.watch.borrow_mut() = Some(spawn(waits).abort_on_drop());
    }
}

async fn retry(this: Weak<MirroredVolume>, mut pauses: Backoff) {
    let mut pause = pauses.advance();
    let Some(wake) = this.upgrade().map(|this| this.retry_wake.clone()) else { return };
    let mut seen = wake.count();
    loop {
        if let Some(this) = this.upgrade()
            && let Some(reopening) = this.reopening.borrow_mut().as_mut()
        {
            reopening.next = Some(time::now() + pause);
        }
        wake.pause(pause, &mut seen).await;
        let Some(this) = this.upgrade() else { return };
        match this.reopen().await {
            // The task that follows the new mirror has replaced this one.
            Ok(()) => return this.attempted(None, None),
            Err(MirrorFailure { problem, .. }) => {
                pause = pauses.advance();
                tracing::warn!(
                    volume = this.name,
                    "cannot open the replica ({problem}): retrying in {pause:?}"
                );
                this.attempted(Some(time::now() + pause), Some(&problem));
            }
        }
    }
}

pub(super) async fn monitor(this: Weak<MirroredVolume>, mirror: Mirror) {
    loop {
        time::sleep(CHECK_PERIOD).await;
        let Some(this) = this.upgrade() else { return };
        // Its device may have been enlarged or shrunk.
        if let Some(bytes) = this.log_room_bytes(&mirror.replica_geometry()) {
            mirror.set_log_room(bytes);
        }
        let Some(reason) = this.failure(&mirror) else { continue };
        if mirror.is_idle_target() && this.open_local_device.borrow().is_some() && this.may_reopen()
        {
            // A separate task, because this one ends with its mirror.
            spawn_detached(this.clone().reopen_devices(mirror.clone(), reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails the device after each reopen until it is abandoned. Returns the number of reopens.
    fn fail_until_abandoned(reopening: &mut Reopening, now: &mut Instant) -> u32 {
        let mut opens = 0;
        while reopening.decide(*now) == ReopenDecision::Open {
            *reopening = Reopening::begin(Some(reopening), "a flush failed".into(), *now);
            *now = *now + PAUSES.after(reopening.attempts).advance();
            reopening.opened(*now);
            opens += 1;
            assert!(opens <= REOPENS_MAX, "never abandoned");
            *now = *now + CHECK_PERIOD;
        }
        assert!(reopening.abandoned);
        opens
    }

    /// Runs a test with a start time. Nothing sleeps.
    fn with_time(test: impl FnOnce(Instant)) {
        flagstone_runtime::block_on(async { test(time::now()) }).expect("an executor");
    }

    #[test]
    fn repeatedly_failing_device_is_abandoned() {
        with_time(|mut now| {
            let begun = now;
            let mut reopening = Reopening::begin(None, "a flush failed".into(), now);
            reopening.opened(now);
            assert_eq!(fail_until_abandoned(&mut reopening, &mut now), REOPENS_MAX - 1);
            let spent = now.since(begun);
            assert!((60..=180).contains(&spent.as_secs()), "about two minutes, not {spent:?}");
            // Logged once; an abandoned device does not become healthy.
            for later in [CHECK_PERIOD, HEALTHY_AFTER, 100 * HEALTHY_AFTER] {
                let now = now + later;
                assert_eq!(reopening.decide(now), ReopenDecision::Abandoned, "after {later:?}");
            }
        });
    }

    #[test]
    fn healthy_period_resets_failure_count() {
        with_time(|mut now| {
            let mut reopening = Reopening::begin(None, "a flush failed".into(), now);
            for _ in 0..REOPENS_MAX {
                reopening.opened(now);
            }
            let (short, long) = (HEALTHY_AFTER - CHECK_PERIOD, HEALTHY_AFTER);
            let mut failed = reopening.clone();
            assert_eq!(failed.decide(now + short), ReopenDecision::Abandon);
            assert_eq!(reopening.decide(now + long), ReopenDecision::Open);
            now = now + long;
            let mut next = Reopening::begin(Some(&reopening), "its device failed".into(), now);
            assert_eq!((next.attempts, next.reason.as_str()), (0, "its device failed"));
            assert_eq!(fail_until_abandoned(&mut next, &mut now), REOPENS_MAX);
        });
    }

    /// Failed attempts to open do not count: only failures of open devices do.
    #[test]
    fn unopenable_device_is_retried_forever() {
        with_time(|mut now| {
            let mut reopening = Reopening::begin(None, "a flush failed".into(), now);
            for attempts in 0..10 * REOPENS_MAX {
                let pause = PAUSES.after(attempts).advance();
                now = now + pause;
                reopening.failed("no such file", Some(now + pause), now);
            }
            assert_eq!((reopening.attempts, reopening.reason.as_str()), (0, "no such file"));
            assert!(!reopening.open && !reopening.abandoned);
            reopening.opened(now);
            assert_eq!((reopening.next, reopening.attempts), (None, 1));
        });
    }
}
