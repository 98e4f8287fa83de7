//! Opening a replica again while the server runs, as a restart of it would.
//!
//! Two things lead here. A mirror has given its replica up to be changed, or has just been made, and
//! the replica could not be opened: its device failed meanwhile. Or a device of the replica is of no use
//! before it is opened again, as a flush of it failed; or it failed another way, and a peer carries the
//! volume. Then the devices are closed and opened too, in files and disks here, and on other machines.
//!
//! After a failed flush nobody knows what is on the device: the kernel may have dropped what it could
//! not write, and shows it still. So it is done where a peer has all of it alone: for a target, and for
//! a source that has handed the role over since. The mirror comes back as one whose data is in doubt
//! (`Replica::doubt`), serves nobody by itself, and is brought up to date by its source, which writes all
//! that was not known to be durable here. A source without a peer that is whole stays as it is, until
//! the operator acts: what was lost cannot be brought back, and must not look as if it were there.
//!
//! A device that fails again and again is opened [`OPENS_MAX`] times, at growing distances, and then
//! left alone until the server is started again.

use std::rc::{Rc, Weak};
use std::time::Duration;

use flagstone_mirror::Mirror;
use flagstone_runtime::time::{self, Instant};
use flagstone_runtime::{spawn, spawn_detached};

use super::Mirrored;
use crate::remote::Failure;

/// Pause before the first attempt, doubled from one to the next.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How often devices are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A device that has worked for so long is a sound one: what went before is forgotten.
const CALM: Duration = Duration::from_secs(600);

/// How often devices are opened that fail again within [`CALM`]. The pauses before these add up to
/// some two minutes.
const OPENS_MAX: u32 = 8;

/// How a replica is opened again, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reopening {
    /// Why.
    pub(crate) reason: String,
    /// How often its devices were opened again since they were sound.
    pub(crate) attempts: u32,
    /// When the next attempt begins; `None` while one goes on, and when there is none.
    pub(crate) next: Option<Instant>,
    /// It is not tried any more.
    pub(crate) given_up: bool,
    /// It is open.
    open: bool,
    /// When it was opened last.
    at: Instant,
}

impl Reopening {
    /// The devices failed, and what they were opened to before is `before`.
    fn begin(before: Option<&Reopening>, reason: String, now: Instant) -> Reopening {
        let attempts = before.filter(|was| !was.is_calm(now)).map_or(0, |was| was.attempts);
        Reopening { reason, attempts, next: None, given_up: false, open: false, at: now }
    }

    /// The devices have worked for so long since they were opened that they are sound.
    fn is_calm(&self, now: Instant) -> bool {
        self.open && !self.given_up && now.since(self.at) >= CALM
    }

    /// They are open.
    fn opened(&mut self, now: Instant) {
        (self.next, self.at, self.open) = (None, now, true);
        self.attempts += 1;
    }

    /// They could not be opened.
    fn failed(&mut self, problem: &str, next: Option<Instant>, now: Instant) {
        (self.next, self.at) = (next, now);
        problem.clone_into(&mut self.reason);
    }

    /// The devices failed again: what is done about it.
    fn after_failure(&mut self, now: Instant) -> Verdict {
        if self.given_up {
            return Verdict::LeftAlone;
        }
        if self.attempts < OPENS_MAX || self.is_calm(now) {
            return Verdict::Open;
        }
        self.given_up = true;
        Verdict::GiveUp
    }
}

/// What is done about devices that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// They are opened again.
    Open,
    /// It was done too often. Said once.
    GiveUp,
    /// That was said before, and holds until the server is started again.
    LeftAlone,
}

impl Mirrored {
    /// True when the mirror has ended and nothing has taken its place.
    pub(super) fn has_ended(&self) -> bool {
        self.mirror().is_some_and(|mirror| mirror.is_closed())
    }

    /// How the replica is opened again, if it is, or was in vain.
    pub(crate) fn reopening(&self) -> Option<Reopening> {
        self.reopening.borrow().clone().filter(|reopening| !reopening.open || reopening.given_up)
    }

    /// Times that the devices of the replica were opened again.
    pub(crate) fn reopens(&self) -> u64 {
        self.reopens.get()
    }

    /// A flush of a device of the replica has failed, and it was not opened again since.
    pub(crate) fn has_failed_flush(&self) -> bool {
        let log = self.log.borrow();
        self.leg.must_reopen() || log.as_ref().is_some_and(|log| log.must_reopen())
    }

    /// Has the replica opened again as soon as that can be done.
    pub(super) fn reopen_soon(self: &Rc<Self>) {
        self.set_access(false);
        let first = self.reopening.borrow().as_ref().map_or(0, |reopening| reopening.attempts);
        let again = try_again(Rc::downgrade(self), pause_after(first));
        *self.watch.borrow_mut() = Some(spawn(again).abort_on_drop());
    }

    /// Why the devices are to be opened again.
    fn failure(&self, mirror: &Mirror) -> Option<String> {
        let why = match (self.leg.must_reopen(), self.has_failed_flush()) {
            (true, _) => "a flush of its device failed",
            (false, true) => "a flush of its log's device failed",
            (false, false) if mirror.has_failed() => "its device failed",
            (false, false) => return None,
        };
        Some(why.to_owned())
    }

    /// Ends the mirror, if a peer has what its devices may have lost, so that they can be opened again.
    async fn open_devices_again(self: Rc<Self>, mirror: Mirror, reason: String) {
        let making = self.making.acquire(1).await;
        if self.growing.get() || !mirror.give_target_up().await {
            return;
        }
        tracing::error!(
            volume = self.name,
            "{reason}: it is closed and opened again, and what it may lack comes from the source"
        );
        self.doubtful.set(true);
        let before = self.reopening.take();
        let reopening = Reopening::begin(before.as_ref(), reason, time::now());
        *self.reopening.borrow_mut() = Some(reopening);
        self.give_mirror_up().await;
        drop(making);
        self.reopen_soon();
    }

    /// False when the devices failed too often.
    fn may_open_again(&self) -> bool {
        let mut reopening = self.reopening.borrow_mut();
        let Some(was) = reopening.as_mut() else { return true };
        let verdict = was.after_failure(time::now());
        if verdict == Verdict::GiveUp {
            tracing::error!(
                volume = self.name,
                "the replica's devices failed again after they were opened {OPENS_MAX} times: they are \
                 left alone until this server is started again"
            );
        }
        verdict == Verdict::Open
    }

    /// Closes the devices whose flushes failed, and opens them.
    async fn exchange_devices(&self) -> Result<(), Failure> {
        if self.log.borrow().as_ref().is_some_and(|log| log.must_reopen())
            && let Some(swap) = self.log_swap.borrow().upgrade()
        {
            // Opened with the replica.
            swap.close();
            self.log.borrow_mut().take();
        }
        let Some(open) = self.open_leg.borrow().clone() else { return Ok(()) };
        self.swap.close();
        let leg = open()
            .await
            .map_err(|error| Failure { problem: error.to_string(), may_pass: error.may_pass })?;
        self.swap.set(leg).map_err(|other| {
            Failure::from(format!(
                "it has blocks of {} B now, or takes no writes",
                other.block_bytes
            ))
        })
    }

    async fn reopen(self: &Rc<Self>) -> Result<(), Failure> {
        let _making = self.making.acquire(1).await;
        if !self.has_ended() {
            // Somebody has deleted it meanwhile.
            return Ok(());
        }
        let text = |problem: &str| problem.to_owned();
        let target =
            self.target.borrow().clone().ok_or_else(|| text("the server is not up yet"))?;
        // What it has in hand ends before its disks are another's.
        self.give_mirror_up().await;
        if self.doubtful.get() {
            self.exchange_devices().await?;
        }
        let found = self.open().await?;
        let missing = self.missing.borrow().clone();
        let missing = missing.as_deref().unwrap_or("no replica is found on it any more").to_owned();
        let replica = found.ok_or(missing)?;
        if self.doubtful.get() {
            // From here on a restart knows it too.
            replica.doubt().await.map_err(|error| error.to_string())?;
        }
        self.run(replica).await?;
        self.doubtful.set(false);
        // The device failed before its size was changed, or after it.
        target
            .resize_namespace(&self.nqn, self.namespace_id)
            .map_err(|error| format!("hosts cannot be told of its size: {error}").into())
    }

    /// Notes an attempt to open the replica again.
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

/// The pause before an attempt that comes after so many.
fn pause_after(attempts: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << attempts.min(5)).min(PAUSE_MAX)
}

async fn try_again(this: Weak<Mirrored>, mut pause: Duration) {
    loop {
        if let Some(this) = this.upgrade()
            && let Some(reopening) = this.reopening.borrow_mut().as_mut()
        {
            reopening.next = Some(time::now() + pause);
        }
        time::sleep(pause).await;
        let Some(this) = this.upgrade() else { return };
        match this.reopen().await {
            // Whoever follows the mirror that runs has taken this task's place.
            Ok(()) => return this.attempted(None, None),
            Err(Failure { problem, .. }) => {
                pause = (2 * pause).min(PAUSE_MAX);
                tracing::warn!(
                    volume = this.name,
                    "the replica cannot be opened ({problem}): it is tried again in {pause:?}"
                );
                this.attempted(Some(time::now() + pause), Some(&problem));
            }
        }
    }
}

/// Looks after the devices of a mirror that runs.
pub(super) async fn look_after(this: Weak<Mirrored>, mirror: Mirror) {
    loop {
        time::sleep(LOOK).await;
        let Some(this) = this.upgrade() else { return };
        let Some(reason) = this.failure(&mirror) else { continue };
        if mirror.is_idle_target() && this.open_leg.borrow().is_some() && this.may_open_again() {
            // A task of its own: this one ends with the mirror that it looks after.
            spawn_detached(this.clone().open_devices_again(mirror.clone(), reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that fails a second after each time that it was opened, until it is left alone: how
    /// often it was opened, and when that was said.
    fn fails_again_and_again(reopening: &mut Reopening, now: &mut Instant) -> u32 {
        let mut opens = 0;
        while reopening.after_failure(*now) == Verdict::Open {
            *reopening = Reopening::begin(Some(reopening), "a flush failed".into(), *now);
            *now = *now + pause_after(reopening.attempts);
            reopening.opened(*now);
            opens += 1;
            assert!(opens <= OPENS_MAX, "it is opened for ever");
            *now = *now + LOOK;
        }
        assert!(reopening.given_up);
        opens
    }

    /// Times are counted from now on, and nothing waits for them.
    fn at_some_time(test: impl FnOnce(Instant)) {
        flagstone_runtime::block_on(async { test(time::now()) }).expect("an executor");
    }

    #[test]
    fn a_device_that_fails_again_and_again_is_left_alone_until_the_server_is_started_again() {
        at_some_time(|mut now| {
            let begun = now;
            let mut reopening = Reopening::begin(None, "a flush failed".into(), now);
            reopening.opened(now);
            assert_eq!(fails_again_and_again(&mut reopening, &mut now), OPENS_MAX - 1);
            let spent = now.since(begun);
            assert!((60..=180).contains(&spent.as_secs()), "some two minutes, and not {spent:?}");
            // It is said once; and to be left alone is not to work.
            for later in [LOOK, CALM, 100 * CALM] {
                let now = now + later;
                assert_eq!(reopening.after_failure(now), Verdict::LeftAlone, "after {later:?}");
            }
        });
    }

    #[test]
    fn a_device_that_worked_for_long_since_is_a_sound_one() {
        at_some_time(|mut now| {
            let mut reopening = Reopening::begin(None, "a flush failed".into(), now);
            for _ in 0..OPENS_MAX {
                reopening.opened(now);
            }
            let (short, long) = (CALM - LOOK, CALM);
            let mut failed = reopening.clone();
            assert_eq!(failed.after_failure(now + short), Verdict::GiveUp);
            assert_eq!(reopening.after_failure(now + long), Verdict::Open);
            now = now + long;
            let mut anew = Reopening::begin(Some(&reopening), "its device failed".into(), now);
            assert_eq!((anew.attempts, anew.reason.as_str()), (0, "its device failed"));
            assert_eq!(fails_again_and_again(&mut anew, &mut now), OPENS_MAX);
        });
    }

    /// What cannot be opened is tried for as long as it takes: it has not failed once it was open.
    #[test]
    fn a_device_that_cannot_be_opened_is_tried_on_and_its_last_problem_is_told() {
        at_some_time(|mut now| {
            let mut reopening = Reopening::begin(None, "a flush failed".into(), now);
            for _ in 0..10 * OPENS_MAX {
                now = now + PAUSE_MAX;
                reopening.failed("no such file", Some(now + PAUSE_MAX), now);
            }
            assert_eq!((reopening.attempts, reopening.reason.as_str()), (0, "no such file"));
            assert!(!reopening.open && !reopening.given_up);
            reopening.opened(now);
            assert_eq!((reopening.next, reopening.attempts), (None, 1));
        });
    }
}
