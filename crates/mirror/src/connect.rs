//! The life of a link: one task for each peer, which connects, asks who is there, and does what
//! [`plan`] says, again and again.
//!
//! | found | done |
//! | --- | --- |
//! | in sync, and we lead | attach; writes go to both from now on |
//! | out of date, and we lead | attach; ask for its log; flush; mark it as inconsistent; send writes; copy; hand over |
//! | the peer leads | stop serving, if we do; wait for it |
//! | split brain, or nothing in common | say so, and ask again later; or what [`crate::split`] says |
//!
//! Each step is durable before the next one, and a crash between any two leaves what the next
//! meeting decides rightly: `history_tests` goes through all of them.
//!
//! [`plan`]: crate::plan::plan

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::time;

use crate::decide::Amount;
use crate::format::superblock::{Role, Superblock};
use crate::id::{Generation, Uuid};
use crate::limits::{RETRY_MAX_MS, RETRY_MIN_MS};
use crate::mirror::{Inner, LegState, State};
use crate::peer::{About, AskError, Attach, Request, SharedSession, identify, order};
use crate::plan::{Plan, plan};
use crate::state::{Finding, Phase, Wish};
use crate::versions::NoCommonVersion;

/// Why a session ended, or was given up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// The peer, or the way to it.
    #[error("{0}")]
    Peer(#[from] AskError),
    /// Our own leg or log.
    #[error("our own device: {0}")]
    Local(IoError),
    /// Something has changed meanwhile: ask again.
    #[error("things have changed meanwhile")]
    Changed,
    /// Nobody leads, or the peer does: ask again later.
    #[error("there is nothing to lead")]
    Nothing,
    /// The session was lost, or the operator ended it.
    #[error("the session has ended")]
    Lost,
}

/// Runs the link of one leg until the mirror is closed.
pub(crate) async fn run(inner: Arc<Inner>, leg: usize) {
    let mut pause = RETRY_MIN_MS;
    loop {
        let wanted = |state: &mut State| {
            if state.closed {
                return Some(false);
            }
            let own = &state.legs[leg];
            (own.wish == Wish::Mirror && !state.local_failed).then_some(true)
        };
        if !inner.wait(wanted).await {
            return;
        }
        let (kicks, not_before) = {
            let state = inner.lock();
            (state.legs[leg].kicks, state.legs[leg].not_before_ns)
        };
        let early = not_before.saturating_sub(Inner::now_ns());
        time::sleep(Duration::from_nanos(early)).await;
        let ended = match meet(&inner, leg).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        };
        tracing::debug!(replica = %inner.local.superblock().replica, leg, "{ended}");
        pause = match ended {
            Ended::Changed | Ended::Lost => RETRY_MIN_MS,
            _ => (pause * 2).min(RETRY_MAX_MS),
        };
        // A command, or a peer that asks, cuts the pause short.
        let kicked =
            inner.wait(|state| (state.closed || state.legs[leg].kicks != kicks).then_some(()));
        let random = flagstone_runtime::random_u64() % (pause / 2);
        let _ = time::timeout(Duration::from_millis(pause / 2 + random), kicked).await;
    }
}

/// Closes a session that is given up, however that comes.
pub(crate) struct Closing(pub(crate) SharedSession);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

enum Never {}

/// One connection, from beginning to end.
async fn meet(inner: &Arc<Inner>, leg: usize) -> Result<Never, Ended> {
    let way = inner.legs[leg].options().way.clone();
    let connected = way.connect().await;
    let session = match connected {
        Ok(session) => session,
        Err(error) => {
            inner.found(leg, Phase::Lost);
            return Err(Ended::Peer(error.into()));
        }
    };
    let _closing = Closing(session.clone());
    let own = inner.local.superblock().replica;
    let peers = match identify(&session, own, inner.versions).await {
        Ok(peers) => peers,
        Err(AskError::NoCommonVersion(none)) => {
            inner.stranger(leg, none);
            return Err(Ended::Peer(none.into()));
        }
        Err(error) => return Err(error.into()),
    };
    inner.change(|state| {
        let own = &mut state.legs[leg];
        (own.peer, own.met) = (peers.view.replica, Some(peers));
        own.versions = Some(peers.versions);
    });
    let mine = inner.about(peers.view.replica);
    let found = plan(&mine, &peers);
    let (ours, theirs) = (&mine.view.lineage, &peers.view.lineage);
    tracing::debug!(replica = %own, peer = %peers.view.replica, ?ours, ?theirs, "found: {found:?}");
    let finding = match found {
        Plan::Lead { promote: true, .. } if !inner.may_take_role(&peers) => Finding::Idle,
        Plan::Lead { amount, promote } => {
            return lead(inner, leg, session, (mine, peers), amount, promote).await;
        }
        Plan::Follow { step_down } => {
            if step_down {
                step_down_for(inner, &mine, &peers).await?;
            }
            Finding::Following
        }
        Plan::AwaitStepDown => Finding::AwaitStepDown,
        Plan::Idle => Finding::Idle,
        Plan::SplitBrain => {
            if inner.give_up_if_told(leg, &session, &peers).await? {
                // The peer finds that it leads now.
                return Err(Ended::Changed);
            }
            Finding::SplitBrain
        }
        Plan::Unrelated | Plan::Incompatible => {
            inner.tell_of_other_blocks(leg, &mine, &peers);
            Finding::Mismatch
        }
        Plan::NoSource => Finding::NoSource,
    };
    inner.found(leg, Phase::Met(finding));
    Err(if finding == Finding::AwaitStepDown { Ended::Changed } else { Ended::Nothing })
}

/// The peer serves hosts, with data that replaces ours: we were left behind, and wrote nothing.
async fn step_down_for(inner: &Arc<Inner>, mine: &About, peers: &About) -> Result<(), Ended> {
    let _changing = inner.changing().await;
    let hold = inner.hold();
    inner.drained().await;
    // What was in flight may have been the first write without the peer.
    let now = inner.about(peers.view.replica);
    if now.view.lineage != mine.view.lineage || !now.active {
        return Err(Ended::Changed);
    }
    let replica = inner.local.superblock().replica;
    tracing::warn!(%replica, "the peer serves hosts since: this side stops, nothing of it is lost");
    inner.deactivate(Role::Target).await.map_err(Ended::Local)?;
    drop(hold);
    Ok(())
}

impl Inner {
    /// Gives a peer a place of its own in the superblock, durably. Two that are met for the first
    /// time at once find the same place free: who comes second looks again.
    pub(crate) async fn remember(&self, peer: Uuid) -> Result<(), IoError> {
        self.update_with(peer, |_, _| {}).await
    }

    /// The same, with a change of the superblock in the same write, which is told the place.
    pub(crate) async fn update_with(
        &self,
        peer: Uuid,
        change: impl Fn(&mut Superblock, usize) + Copy + 'static,
    ) -> Result<(), IoError> {
        loop {
            let before = self.local.superblock().peers;
            let slot = self.slot_of(peer);
            let keep = move |superblock: &mut Superblock| {
                let place = &mut superblock.peers[slot].replica;
                let unchanged = *place == before[slot].replica;
                if unchanged {
                    *place = peer;
                    change(superblock, slot);
                }
                unchanged
            };
            if self.local.update(keep).await? {
                return Ok(());
            }
        }
    }

    /// The peer was met, and speaks no version of the link that we do.
    fn stranger(&self, leg: usize, none: NoCommonVersion) {
        let before = self.change(|state| state.legs[leg].versions.replace(none.peers));
        // Once, and not at each attempt.
        if before != Some(none.peers) {
            tracing::warn!(replica = %self.local.superblock().replica, leg, "{none}");
        }
        self.found(leg, Phase::Met(Finding::NoCommonVersion));
    }

    /// The peer cannot be mirrored with, be it because its logical blocks are others.
    fn tell_of_other_blocks(&self, leg: usize, mine: &About, peers: &About) {
        let (ours, theirs) = (mine.view.block_bytes, peers.view.block_bytes);
        let told = self.lock().legs[leg].phase == Phase::Met(Finding::Mismatch);
        // Once, and not at each attempt.
        if !told && mine.view.has_other_blocks(&peers.view) {
            tracing::warn!(
                replica = %self.local.superblock().replica,
                leg,
                "the peer's logical blocks are {theirs} B, and those of this node {ours}: they cannot \
                 have one volume"
            );
        }
    }

    /// What a meeting came to, while there is no session.
    fn found(&self, leg: usize, phase: Phase) {
        self.change(|state| {
            let own = &mut state.legs[leg];
            if own.session.is_none() {
                own.phase = phase;
            }
        });
    }

    /// A leg gets its session; writes do not go to it yet.
    fn install(&self, leg: usize, session: &SharedSession, peers: &About, phase: Phase) -> u64 {
        self.change(|state| {
            let own = &mut state.legs[leg];
            own.serial += 1;
            (own.handing_over, own.inconsistent) = (false, false);
            (own.session, own.phase) = (Some(session.clone()), phase);
            (own.volatile_cache, own.numbering) = (peers.volatile_cache, Default::default());
            own.serial
        })
    }

    /// From now on writes go to this session too, unless it is lost already, or `may` objects.
    fn open(&self, leg: usize, serial: u64, may: impl FnOnce(&State) -> bool) -> Result<(), Ended> {
        let opened = self.change(|state| {
            let current = state.active && state.legs[leg].is_current(serial) && may(state);
            if current {
                let own: &mut LegState = &mut state.legs[leg];
                (own.foreground, own.unflushed) = (true, false);
            }
            current
        });
        if opened { Ok(()) } else { Err(Ended::Changed) }
    }
}

/// We are the peer's source.
async fn lead(
    inner: &Arc<Inner>,
    leg: usize,
    session: SharedSession,
    (mine, peers): (About, About),
    amount: Option<Amount>,
    promote: bool,
) -> Result<Never, Ended> {
    let full = std::mem::take(&mut inner.lock().legs[leg].full);
    let amount = if full { Some(Amount::Full) } else { amount };
    // What earlier sessions left in hand is marked before anything is decided for good.
    inner.wait(|state| (state.legs[leg].sending == 0).then_some(())).await;
    inner.remember(peers.view.replica).await.map_err(Ended::Local)?;
    let superblock = inner.local.superblock();
    let next = inner.epoch_after(peers.view.epoch);
    let phase = amount.map_or(Phase::Resync(Amount::Partial), Phase::Resync);
    let serial = inner.install(leg, &session, &peers, phase);
    let _lose = Lose { inner: inner.clone(), leg, serial };
    let attach = Attach {
        volume: superblock.volume,
        source: superblock.replica,
        epoch: if promote { next } else { superblock.epoch },
        expected: peers.view.lineage.current,
        in_sync: amount.is_none(),
        usable_bytes: superblock.shape.usable_bytes,
        version: inner.versions.highest_common(peers.versions).map_err(AskError::from)?,
    };
    // A target of another size takes ours over first, and is there again in a moment.
    order(&session, Request::Attach(attach)).await?;
    if promote {
        // Only now: the peer may have begun to serve meanwhile, and has refused then. From here on
        // it is a target, and begins to serve on an operator's word alone.
        let _changing = inner.changing().await;
        let attached = inner.lock().attached.is_some();
        let may = inner.may_take_role(&peers);
        if attached || !may || inner.epoch_after(peers.view.epoch) != next {
            return Err(Ended::Changed);
        }
        inner.activate(peers.view.epoch, false).await.map_err(|_| Ended::Nothing)?;
    }
    match amount {
        // Of the generation that was found to be equal: one that was minted meanwhile is not.
        None => agree(inner, leg, &session, serial, mine.view.lineage.current).await?,
        Some(amount) => bring_up(inner, leg, &session, serial, amount).await?,
    }
    stay(inner, leg, &session, serial).await
}

/// Gives a session up when the task that looks after it ends.
struct Lose {
    inner: Arc<Inner>,
    leg: usize,
    serial: u64,
}

impl Drop for Lose {
    fn drop(&mut self) {
        self.inner.lose(self.leg, self.serial);
    }
}

/// Both are in sync, if nothing was written since that was found.
async fn agree(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    serial: u64,
    generation: Generation,
) -> Result<(), Ended> {
    tell_ancestors(session, &inner.local.superblock()).await?;
    if !inner.settle_lineage(leg, generation).await.map_err(Ended::Local)? {
        return Err(Ended::Changed);
    }
    // A generation that is being minted, or bits that were set, belong to a write without the peer.
    let unchanged = |_: &State| {
        inner.local.superblock().current == generation && inner.legs[leg].todo.count() == 0
    };
    inner.open(leg, serial, |state| !state.minting && unchanged(state))?;
    inner.in_sync(leg, serial)
}

/// The peer is out of date: brings it up to date and hands over.
async fn bring_up(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    serial: u64,
    amount: Amount,
) -> Result<(), Ended> {
    let base = match amount {
        Amount::Full => inner.mark_all(leg).await?,
        Amount::Partial => Generation::NONE,
    };
    if amount == Amount::Partial {
        inner.unite(leg, session).await?;
    }
    tracing::info!(replica = %inner.local.superblock().replica, leg, ?amount, "a resync begins");
    // What a power loss here would take the target could give back only while it is whole.
    inner.local.data().flush().await.map_err(Ended::Local)?;
    order(session, Request::BeginResync { base }).await?;
    inner.open(leg, serial, |_| true)?;
    inner.change(|state| state.legs[leg].inconsistent = true);
    loop {
        crate::resync::copy(inner, leg, session, serial).await?;
        if inner.is_copied(leg, serial)? {
            return hand_over(inner, leg, session, serial).await;
        }
    }
}

/// The end of a resync, in two steps: the target is durable and has our generation; then we forget
/// what it may have held.
async fn hand_over(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    serial: u64,
) -> Result<(), Ended> {
    let superblock = inner.local.superblock();
    tell_ancestors(session, &superblock).await?;
    let mut request = Request::EndResync { generation: superblock.current };
    loop {
        order(session, request.clone()).await?;
        let (Request::EndResync { generation } | Request::Rename { generation }) = request else {
            return Err(Ended::Changed);
        };
        if inner.settle_lineage(leg, generation).await.map_err(Ended::Local)? {
            return inner.in_sync(leg, serial);
        }
        // Another peer was lost meanwhile, and a generation minted.
        request = Request::Rename { generation: inner.local.superblock().current };
    }
}

/// What our data comes from the peer's does too, once it is in sync: made the source, it knows by
/// that a third replica that was left behind before.
pub(crate) async fn tell_ancestors(
    session: &SharedSession,
    superblock: &Superblock,
) -> Result<(), AskError> {
    let generations = superblock.ancestors();
    order(session, Request::Ancestors { generations }).await
}

impl Inner {
    /// Nothing differs, and what fails from now on ends the session: the target is about to be told
    /// that it is whole. False when a write has failed here since the last copy.
    fn is_copied(&self, leg: usize, serial: u64) -> Result<bool, Ended> {
        self.change(|state| {
            let own = &mut state.legs[leg];
            if !own.is_current(serial) {
                return Err(Ended::Lost);
            }
            own.inconsistent = self.legs[leg].todo.count() > 0;
            Ok(!own.inconsistent)
        })
    }

    fn in_sync(&self, leg: usize, serial: u64) -> Result<(), Ended> {
        let now = time::wall_clock().as_secs();
        let last = &self.legs[leg].counters.last_in_sync_s;
        last.store(now, std::sync::atomic::Ordering::Relaxed);
        let reached = self.change(|state| {
            let own = &mut state.legs[leg];
            let current = own.is_current(serial) && own.foreground;
            if current {
                own.phase = Phase::InSync;
            }
            current
        });
        if !reached {
            return Err(Ended::Lost);
        }
        tracing::info!(replica = %self.local.superblock().replica, leg, "the peer is in sync");
        Ok(())
    }

    /// Everything is to be copied. All bits are durable before the target gets a name that says so:
    /// so the next meeting goes on where this one ended.
    async fn mark_all(&self, leg: usize) -> Result<Generation, Ended> {
        self.mark(leg, 0, self.local.superblock().shape.usable_bytes);
        self.local.persist_marks().await.map_err(Ended::Local)?;
        let base = Generation::random();
        let slot = self.slot_of_leg(leg);
        let name = move |superblock: &mut Superblock| {
            // Whom the role is being handed to was told all names that there are.
            if superblock.flags.in_use {
                let mut lineage = superblock.lineage(slot);
                lineage.expect(base);
                superblock.set_lineage(slot, &lineage);
            }
            superblock.flags.in_use
        };
        if !self.local.update(name).await.map_err(Ended::Local)? {
            return Err(Ended::Changed);
        }
        self.tell_others(leg).await;
        Ok(base)
    }

    /// A peer has got a name that the others have not heard of.
    async fn tell_others(&self, leg: usize) {
        let superblock = self.local.superblock();
        let sessions: Vec<_> = {
            let state = self.lock();
            let others = state.legs.iter().enumerate().filter(|(other, _)| *other != leg);
            let open = others.filter(|(_, own)| own.foreground);
            open.filter_map(|(other, own)| Some((other, own.serial, own.session.clone()?)))
                .collect()
        };
        for (other, serial, session) in sessions {
            if tell_ancestors(&session, &superblock).await.is_err() {
                self.lose(other, serial);
            }
        }
    }

    /// What the peer's log names may differ too.
    async fn unite(&self, leg: usize, session: &SharedSession) -> Result<(), Ended> {
        let words = self.legs[leg].todo.words();
        let per_page = crate::format::bitmap_page::WORDS as u64;
        for page in 0..words.div_ceil(per_page) {
            let theirs = crate::peer::bits(session, page).await?;
            for (word, index) in theirs.iter().zip(page * per_page..) {
                self.legs[leg].todo.merge(index, *word);
            }
        }
        Ok(())
    }
}

/// The session is at work. Ends when it is lost, or not wanted any more.
async fn stay(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    serial: u64,
) -> Result<Never, Ended> {
    let flushing = crate::resync::keep_flushed(inner.clone(), leg, session.clone(), serial);
    let _flushing = flagstone_runtime::spawn(flushing).abort_on_drop();
    let mut lost = session.lost();
    let unwanted = inner.wait(|state| {
        let own = &state.legs[leg];
        let wanted = own.wish == Wish::Mirror && state.active || own.handing_over;
        let stays = own.is_current(serial) && wanted;
        (!stays || own.full || state.closed).then_some(())
    });
    let mut unwanted = std::pin::pin!(unwanted);
    std::future::poll_fn(|cx| {
        let lost = std::pin::Pin::new(&mut lost).poll(cx).is_ready();
        if lost || unwanted.as_mut().poll(cx).is_ready() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    Err(Ended::Lost)
}
