//! Who serves: taking the role of the source, and giving it up.
//!
//! One change of role at a time. Epochs are unique among the replicas of a volume: each takes
//! numbers of its own residue, so that two that promote themselves out of each other's sight never
//! take the same.

use std::sync::Arc;

use flagstone_blockdev::IoError;

use crate::format::superblock::{Role, Superblock};
use crate::id::{Generation, Uuid};
use crate::mint::Minting;
use crate::mirror::{Inner, State};
use crate::peer::{About, Request, order};

/// Epochs are dealt out to so many replicas: the own and two peers, and one for good measure.
const EPOCH_STRIDE: u64 = 4;

/// The least epoch after all that were seen, whoever takes it: a peer that is asked to be the source
/// takes its own next one from there on. There is none after the last number, which only a forged
/// one comes near: it is never an earlier one.
pub(crate) fn least_epoch(seen: u64) -> u64 {
    seen.saturating_add(1)
}

/// The epoch that the replica which is `rank`-th of its volume takes after all that were seen: its
/// first from [`least_epoch`] on.
pub(crate) fn next_epoch(seen: u64, rank: u64) -> u64 {
    let least = least_epoch(seen);
    let first = (least - least % EPOCH_STRIDE).saturating_add(rank % EPOCH_STRIDE);
    if first >= least { first } else { first.saturating_add(EPOCH_STRIDE) }
}

/// A change of role under way; ended when dropped.
pub(crate) struct Changing(Arc<Inner>);

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.change(|state| state.changing = false);
    }
}

/// The local leg is being left.
struct Leaving(Arc<Inner>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.change(|state| state.leaving_local = false);
    }
}

/// New calls of hosts wait while this is there.
pub(crate) struct Hold(Arc<Inner>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.change(|state| state.holds -= 1);
    }
}

/// Why a change of role came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// The local leg or log.
    #[error("the replica's device fails: {0}")]
    Io(#[from] IoError),
    /// A resync to it began and has not ended.
    #[error("the data here is inconsistent: a resync to it has not ended")]
    Inconsistent,
    /// It never held data.
    #[error("the replica holds no data yet")]
    Blank,
    /// The local leg has failed.
    #[error("the local leg has failed")]
    LocalFailed,
    /// See [`crate::replica::Replica::doubt`].
    #[error(
        "a flush of the device here failed, and its source has not brought it up to date since: what it \
         shows may be lost with its power; bring back the node that was the source, or, if that is gone \
         for good, go on with what the device shows by a failover with `--force`"
    )]
    Doubtful,
}

impl Inner {
    /// Begins a change of role, after any other.
    pub(crate) async fn changing(self: &Arc<Self>) -> Changing {
        let begin =
            |state: &mut State| (!std::mem::replace(&mut state.changing, true)).then_some(());
        self.wait(begin).await;
        Changing(self.clone())
    }

    /// Holds new calls of hosts.
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        self.change(|state| state.holds += 1);
        Hold(self.clone())
    }

    /// Waits until no change and no flush of a host is under way. Reads are not waited for: see
    /// [`crate::device`].
    pub(crate) async fn drained(&self) {
        self.wait(|state| (state.in_flight == 0 && !state.minting).then_some(())).await;
    }

    fn rank(&self) -> u64 {
        let superblock = self.local.superblock();
        let mine = superblock.replica;
        let others = superblock.peers.iter().map(|peer| peer.replica);
        others.filter(|other: &Uuid| !other.is_none() && *other < mine).count() as u64
    }

    /// Whether meeting this peer is enough to take the role of the source by ourselves. A source
    /// that asked another to be it has to hear of that one: it may serve, out of this one's sight.
    /// If that one has been the source since, it may have handed the role on. And of several
    /// targets each would find that it has to: that is for the operator to say.
    pub(crate) fn may_take_role(&self, peers: &About) -> bool {
        let superblock = self.local.superblock();
        let several = self.legs.len() > 1;
        if several && self.lock().role == Role::Target {
            return false;
        }
        let Some(heir) = superblock.heir.map(|place| superblock.peers[place].replica) else {
            return true;
        };
        heir == peers.view.replica && !(several && peers.view.epoch > superblock.epoch)
    }

    pub(crate) fn may_serve(&self) -> Result<(), RoleError> {
        let superblock = self.local.superblock();
        if superblock.flags.inconsistent {
            return Err(RoleError::Inconsistent);
        }
        if superblock.current.is_none() {
            return Err(RoleError::Blank);
        }
        let state = self.lock();
        if state.local_failed {
            return Err(RoleError::LocalFailed);
        }
        if state.doubtful { Err(RoleError::Doubtful) } else { Ok(()) }
    }

    /// The epoch that this replica takes next, after all that were seen here and `seen`.
    pub(crate) fn epoch_after(&self, seen: u64) -> u64 {
        next_epoch(self.local.superblock().epoch.max(seen), self.rank())
    }

    /// Becomes the source, of an epoch later than `seen` and than all that were seen here. `forced`
    /// when the peer was not asked.
    pub(crate) async fn activate(
        self: &Arc<Self>,
        seen: u64,
        forced: bool,
    ) -> Result<u64, RoleError> {
        self.may_serve()?;
        // A source of the past must not write here from now on. What it has begun may be a resync:
        // so ask again.
        self.end_attachment().await;
        self.may_serve()?;
        let active = self.lock().active;
        let rank = self.rank();
        let alone = forced && !active;
        let parts = alone && self.legs.len() > 1;
        if parts {
            self.doubt_all().await?;
        }
        let minting = Minting::alone(self);
        let promote = move |superblock: &mut Superblock| {
            (superblock.role, superblock.heir) = (Role::Source, None);
            superblock.epoch = next_epoch(superblock.epoch.max(seen), rank);
            // Hosts will have read what is here, whatever the peer may have.
            superblock.flags.served_alone |= alone && superblock.flags.crashed;
            if parts {
                minting.apply(superblock);
            }
        };
        if active {
            self.local.update(promote).await?;
            return Ok(self.local.superblock().epoch);
        }
        self.local.begin_use(promote).await?;
        self.take_marks_over();
        self.change(|state| {
            (state.role, state.active) = (Role::Source, true);
            for leg in &mut state.legs {
                if !leg.foreground {
                    leg.minted = parts;
                }
                // Its targets wait: as of now there is nothing but this copy.
                leg.kicks += 1;
            }
        });
        let Superblock { replica, epoch, .. } = self.local.superblock();
        tracing::info!(%replica, epoch, forced, "this side serves hosts");
        Ok(epoch)
    }

    /// The role is taken by force from a source that had several targets: what it had in hand may
    /// have reached any of them, and no log says what. So everything may differ from here.
    async fn doubt_all(&self) -> Result<(), IoError> {
        self.local.data().flush().await?;
        for leg in 0..self.legs.len() {
            self.mark(leg, 0, self.local.superblock().shape.usable_bytes);
        }
        self.local.persist_marks().await
    }

    /// Stops serving. What hosts have in flight ends first, but for reads; what they ask for next
    /// fails, and so do reads that have not ended.
    pub(crate) async fn deactivate(self: &Arc<Self>, role: Role) -> Result<(), IoError> {
        if !self.lock().active {
            return Ok(());
        }
        let _hold = self.hold();
        self.drained().await;
        let serials: Vec<u64> = self.lock().legs.iter().map(|leg| leg.serial).collect();
        for (leg, serial) in serials.into_iter().enumerate() {
            self.lose(leg, serial);
        }
        self.change(State::end_term);
        tracing::info!(replica = %self.local.superblock().replica, "this side serves no hosts");
        self.put_away(role, None).await
    }

    /// The same of a mirror that is given up as by a crash: nothing is recorded.
    pub(crate) async fn end_service(self: &Arc<Self>) {
        let _hold = self.hold();
        self.drained().await;
        self.change(|state| {
            if state.active {
                state.end_term();
            }
        });
    }

    /// The superblock says that nobody uses the replica any more, and that the peer in the place
    /// `heir` is about to be asked to.
    pub(crate) async fn put_away(
        self: &Arc<Self>,
        role: Role,
        heir: Option<usize>,
    ) -> Result<(), IoError> {
        self.local.data().flush().await?;
        let put = move |superblock: &mut Superblock| {
            (superblock.role, superblock.heir) = (role, heir);
        };
        if self.local.superblock().flags.in_use {
            self.local.end_use(put).await?;
        } else {
            self.local.update(put).await?;
        }
        self.change(|state| state.role = role);
        Ok(())
    }

    /// The local leg has failed. A peer that has all, or gets it by its queue, goes on without it;
    /// else the host gets `error`, and the caller makes sure that no peer looks equal that is not.
    pub(crate) async fn go_on_without_local(
        self: &Arc<Self>,
        heir: Option<(usize, u64)>,
        error: IoError,
    ) -> Result<(), IoError> {
        let Some((leg, serial)) = heir else { return Err(error) };
        // Not a change of role: those wait for the calls in flight, of which this is one.
        let begin =
            |state: &mut State| (!std::mem::replace(&mut state.leaving_local, true)).then_some(());
        self.wait(begin).await;
        let _leaving = Leaving(self.clone());
        if self.lock().local_failed {
            return if self.is_whole(leg, serial) { Ok(()) } else { Err(error) };
        }
        // Any other peer is left behind: who would keep track of what it lacks?
        let others: Vec<(usize, u64)> =
            self.lock().legs.iter().map(|leg| leg.serial).enumerate().collect();
        for (other, serial) in others.into_iter().filter(|(other, _)| *other != leg) {
            self.lose(other, serial);
        }
        let session = self.lock().legs[leg].session.clone().ok_or(error)?;
        // From the last write that is left to a queue to the first that is waited for.
        let _hold = self.hold();
        if !self.is_whole(leg, serial) && !self.catch_up(leg, serial).await {
            self.lose(leg, serial);
            return Err(error);
        }
        // Before it has the name it flushes: what hosts flushed here is durable there.
        let lost = self.local.superblock().replica;
        let generation = Generation::random();
        self.lock().legs[leg].alone_as = generation;
        let request = Request::GoAlone { generation, lost };
        if order(&session, request).await.is_err() {
            self.lose(leg, serial);
            return Err(error);
        }
        tracing::error!(
            replica = %lost,
            "the local leg has failed ({error}): the peer carries the volume alone"
        );
        self.change(|state| state.local_failed = true);
        if self.is_whole(leg, serial) { Ok(()) } else { Err(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_grow_and_belong_to_one_replica() {
        for seen in 0..40 {
            for rank in 0..3 {
                let next = next_epoch(seen, rank);
                assert!(next > seen && next <= seen + EPOCH_STRIDE);
                assert_eq!(next % EPOCH_STRIDE, rank);
            }
        }
    }

    #[test]
    fn who_is_asked_takes_the_first_of_its_epochs_from_the_one_that_is_named() {
        for seen in (0..40).chain(u64::MAX - 8..u64::MAX - EPOCH_STRIDE) {
            let named = least_epoch(seen);
            assert!(named > seen);
            let taken = [0, 1, 2, 3].map(|rank| next_epoch(seen, rank));
            assert!(taken.iter().all(|epoch| *epoch >= named), "{seen}: {taken:?}");
            assert!(taken.contains(&named), "{seen}: {taken:?} leave out what may be taken");
        }
        assert_eq!(least_epoch(u64::MAX), u64::MAX, "never an earlier one");
    }

    #[test]
    fn no_epoch_is_before_a_forged_one() {
        for below in 0..2 * EPOCH_STRIDE {
            for rank in 0..EPOCH_STRIDE {
                let seen = u64::MAX - below;
                let next = next_epoch(seen, rank);
                assert!(next > seen || next == u64::MAX, "{seen}: {next}");
            }
        }
    }
}
