//! Changes of hosts: both legs in parallel, and what is done before the host hears of it.
//!
//! 1. The range is held against overlapping calls, and its regions are hot.
//! 2. The gate says which legs it goes to; a leg that lacks it is marked.
//! 3. All legs at once.
//! 4. A peer that failed is marked and given up, and a generation minted, durably. A local leg that
//!    failed is left, and a peer that is whole goes on alone; where none is, the local leg counts
//!    still, and what a peer may have got that is not here is marked. A peer that may look equal is
//!    given up for it, and a generation minted; where that cannot be recorded nothing is served any
//!    more. Only then the host is told.
//!
//! From step 3 on the call goes to its end though the host's side of it is dropped: data that is on
//! one leg and not on the other, with nothing that says so, must not be.

use flagstone_blockdev::{IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::buf::Parked;
use flagstone_runtime::{Buf, spawn_detached};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::gate::{Going, LegGoing, Passage, Sending};
use crate::limits::PEERS_MAX;
use crate::mirror::{Inner, count};
use crate::options::Mode;
use crate::order::Order;
use crate::overlap::Held;
use crate::queue::{Place, Post};
use crate::replica::Pin as HotPin;
use crate::state::Phase;

/// What is done to a range.
#[derive(Clone)]
pub(crate) enum Op {
    /// These bytes are written.
    Write(Buf),
    /// It is zeroed.
    Zero {
        /// And may be deallocated.
        may_deallocate: bool,
    },
}

impl Op {
    /// Data that goes with it, in bytes.
    fn data_bytes(&self) -> u64 {
        match self {
            Op::Write(data) => data.len() as u64,
            Op::Zero { .. } => 0,
        }
    }

    fn into_data(self) -> Option<Buf> {
        match self {
            Op::Write(data) => Some(data),
            Op::Zero { .. } => None,
        }
    }

    /// So many bytes of it, and what comes after them.
    fn cut(self, at: u64) -> (Op, Option<Op>) {
        match self {
            Op::Write(mut data) => {
                let first = data.slice(0..at as usize);
                data.advance(at as usize);
                (Op::Write(first), Some(Op::Write(data)))
            }
            Op::Zero { .. } => (self.clone(), Some(self)),
        }
    }

    fn to_device(&self, device: &SharedDevice, offset: u64, len: u64, fua: bool) -> IoFuture<()> {
        match self {
            Op::Write(data) => device.write(offset, data.clone(), fua),
            Op::Zero { may_deallocate } => {
                let may_deallocate = *may_deallocate;
                let flags = ZeroFlags { fua, may_deallocate, fast_only: false };
                device.write_zeroes(offset, len, flags)
            }
        }
    }

    fn to_session(
        &self,
        sending: &Sending,
        (offset, len): (u64, u64),
        fua: bool,
        order: Option<Order>,
    ) -> IoFuture<()> {
        let fua = fua || sending.durable;
        match self {
            Op::Write(data) => sending.session.write(offset, data.clone(), fua, order),
            Op::Zero { may_deallocate } => {
                let may_deallocate = *may_deallocate;
                let flags = ZeroFlags { fua, may_deallocate, fast_only: false };
                sending.session.write_zeroes(offset, len, flags, order)
            }
        }
    }
}

/// A call that goes to its end, whether or not anybody waits for it.
pub(crate) struct Finish(Option<IoFuture<()>>);

impl Finish {
    pub(crate) fn new(work: impl Future<Output = Result<(), IoError>> + 'static) -> Finish {
        Finish(Some(IoFuture::later(work)))
    }
}

impl Future for Finish {
    type Output = Result<(), IoError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.0 else { return Poll::Pending };
        let polled = Pin::new(work).poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            spawn_detached(async move {
                // Nobody waits for what it says; what it had to record it has.
                let _ = work.await;
            });
        }
    }
}

/// A change under way.
struct Flight {
    going: Going,
    op: Op,
    offset: u64,
    len: u64,
    fua: bool,
    held: Held,
    pin: Option<HotPin>,
    /// Nothing of its call comes after it.
    is_last: bool,
}

/// A change of a host, piece by piece where it is long: the number of hot regions is bounded.
pub(crate) async fn change(
    inner: Arc<Inner>,
    (offset, len): (u64, u64),
    op: Op,
    fua: bool,
) -> Result<(), IoError> {
    let longest = inner.local.longest_piece();
    let (mut at, end, mut op) = (offset, offset + len, op);
    loop {
        let piece = (longest - at % longest).min(end - at);
        let (part, rest) = match at + piece == end {
            true => (op, None),
            false => op.cut(piece),
        };
        match change_piece(inner.clone(), (at, piece), part, rest, fua).await? {
            Some(rest) => op = rest,
            None => return Ok(()),
        }
        at += piece;
    }
}

/// Gives back what comes after it.
async fn change_piece(
    inner: Arc<Inner>,
    (offset, len): (u64, u64),
    op: Op,
    rest: Option<Op>,
    fua: bool,
) -> Result<Option<Op>, IoError> {
    let began = Inner::now_ns();
    let mut parked = None;
    let flight = loop {
        let held = inner.overlap.change(offset, len).held().await;
        match depart(&inner, (offset, len), op.data_bytes()).await? {
            Departure::Go(going, pin) => {
                let is_last = rest.is_none();
                break Flight { going, op, offset, len, fua, held, pin, is_last };
            }
            Departure::Wait(passage) => {
                // Without the range: a resync may need it before the gate opens.
                drop(held);
                if let Passage::Moved(successor) = passage {
                    Box::pin(change(successor.0, (offset, len), op, fua)).await?;
                    return Ok(rest);
                }
                if let (Passage::Held(_), None, Op::Write(data)) = (&passage, &parked, &op) {
                    parked = Parked::hold(data);
                    if parked.is_none() {
                        drop((op, rest));
                        return Err(inner.turned_away().await);
                    }
                }
                inner.wait_for_gate(passage).await;
            }
        }
    };
    drop(parked);
    let result = Finish::new(fly(inner.clone(), flight)).await;
    count(&inner.counters.writes, 1);
    count(&inner.counters.calls, 1);
    count(&inner.counters.calls_ns, Inner::now_ns().saturating_sub(began));
    result.map(|()| rest)
}

enum Departure {
    Go(Going, Option<HotPin>),
    Wait(Passage),
}

/// Makes the regions hot and passes the gate.
async fn depart(
    inner: &Arc<Inner>,
    range: (u64, u64),
    data_bytes: u64,
) -> Result<Departure, IoError> {
    let pin = match inner.lock().local_failed {
        true => None,
        false => Some(inner.local.pin(range.0, range.1)),
    };
    let pin = match pin {
        None => None,
        Some(pin) => match pin.await {
            Ok(pin) => Some(pin),
            Err(error) => {
                // The log is closed before the replica goes to another mirror.
                let elsewhere = inner.lock().elsewhere();
                if let Some(elsewhere) = elsewhere {
                    return Ok(Departure::Wait(elsewhere));
                }
                inner.go_on_elsewhere(error).await?;
                None
            }
        },
    };
    loop {
        match inner.pass(range, data_bytes) {
            Passage::Go(going) => return Ok(Departure::Go(going, pin)),
            Passage::Mint => {
                if let Err(error) = inner.ensure_minted().await {
                    inner.go_on_elsewhere(error).await?;
                }
            }
            Passage::Refused(error) => return Err(error),
            passage => return Ok(Departure::Wait(passage)),
        }
    }
}

impl Inner {
    /// The own log or superblock cannot be written, before any data was: a peer that has all goes on
    /// without this leg, or the host hears of it.
    async fn go_on_elsewhere(self: &Arc<Self>, error: IoError) -> Result<(), IoError> {
        // The log is closed where the role is given up.
        if error == IoError::Unreachable || !self.lock().active {
            return Err(error);
        }
        self.go_on_without_local(self.heir(), error).await
    }
}

/// What the legs said, and when the last of each kind had.
struct Landed {
    local: Option<Result<(), IoError>>,
    remote: [Option<Result<(), IoError>>; PEERS_MAX],
    local_ns: u64,
    all_ns: u64,
}

/// Makes all calls at once and waits for all of them.
async fn land(inner: &Arc<Inner>, flight: &Flight) -> Landed {
    let range = (flight.offset, flight.len);
    let began = Inner::now_ns();
    let mut remote = [const { None }; PEERS_MAX];
    for (index, leg) in flight.going.legs.iter().enumerate() {
        match leg {
            LegGoing::Marked => {}
            LegGoing::Send(sending) => {
                remote[index] = Some(flight.op.to_session(sending, range, flight.fua, None));
            }
            LegGoing::Queue(sending, place, span) => {
                let letter = Letter { leg: index, sending: sending.clone(), place: *place };
                let (inner, op, order) = (inner.clone(), flight.op.clone(), span.first);
                spawn_detached(deliver(inner, letter, op, range, order));
            }
        }
    }
    let device = inner.local.data();
    let mut local = flight
        .going
        .local
        .then(|| flight.op.to_device(device, flight.offset, flight.len, flight.fua));
    let mut landed = Landed { local: None, remote: [None; PEERS_MAX], local_ns: 0, all_ns: 0 };
    poll_fn(|cx| {
        if let Some(call) = &mut local
            && let Poll::Ready(result) = Pin::new(call).poll(cx)
        {
            (local, landed.local) = (None, Some(result));
            landed.local_ns = Inner::now_ns().saturating_sub(began);
        }
        for (call, landed) in remote.iter_mut().zip(&mut landed.remote) {
            if let Some(running) = call
                && let Poll::Ready(result) = Pin::new(running).poll(cx)
            {
                (*call, *landed) = (None, Some(result));
            }
        }
        let flying = local.is_some() || remote.iter().any(Option::is_some);
        if flying { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    landed.all_ns = Inner::now_ns().saturating_sub(began);
    landed
}

/// From the gate to the end.
async fn fly(inner: Arc<Inner>, flight: Flight) -> Result<(), IoError> {
    let landed = land(&inner, &flight).await;
    count(&inner.counters.local_ns, landed.local_ns);
    let result = settle(&inner, &flight, &landed).await;
    inner.ended();
    let Flight { held, pin, op, is_last, .. } = flight;
    drop((held, pin));
    result?;
    if landed.remote.iter().flatten().any(Result::is_err) {
        // The data is written, so what waits now has none of it, but for what comes after a part.
        let rest = if is_last { None } else { op.into_data() };
        inner.wait_if_strict(rest).await?;
    }
    Ok(())
}

/// Records what the legs said. Only then the next session to a peer may decide anything.
async fn settle(inner: &Arc<Inner>, flight: &Flight, landed: &Landed) -> Result<(), IoError> {
    let result = record(inner, flight, landed).await;
    for (leg, going) in flight.going.legs.iter().enumerate() {
        if let LegGoing::Send(sending) = going {
            inner.sent(leg, sending.half);
        }
    }
    result
}

async fn record(inner: &Arc<Inner>, flight: &Flight, landed: &Landed) -> Result<(), IoError> {
    // Also of one that fails: to be waited for costs little, and it may still go on elsewhere.
    inner.complete_orders(&flight.going);
    let (mut whole, mut following, mut lacking) = (None, None, false);
    for (leg, said) in landed.remote.iter().enumerate() {
        let sending = match &flight.going.legs[leg] {
            LegGoing::Send(sending) => sending,
            LegGoing::Queue(sending, ..) => {
                following = following.or(Some((leg, sending.serial)));
                continue;
            }
            LegGoing::Marked => continue,
        };
        if !matches!(said, Some(Ok(()))) {
            inner.mark_unproven(leg, flight.offset, flight.len);
            inner.lose(leg, sending.serial);
            lacking = true;
            continue;
        }
        let added = landed.all_ns.saturating_sub(landed.local_ns);
        count(&inner.legs[leg].counters.added_ns, added);
        count(&inner.legs[leg].counters.added_writes, 1);
        if inner.is_whole(leg, sending.serial) {
            whole = Some((leg, sending.serial));
        }
    }
    let Err(error) = landed.local.unwrap_or(Err(IoError::WriteFault)) else {
        return if lacking { inner.record_difference().await } else { Ok(()) };
    };
    let gone_on = inner.go_on_without_local(whole.or(following), error).await;
    if gone_on.is_err() {
        // What reads find from now on is what is here. A peer may have what was to be written, and
        // must not look equal: a crash here would make that the better.
        let mut equal = false;
        for (leg, going) in flight.going.legs.iter().enumerate() {
            if !matches!(going, LegGoing::Marked) {
                inner.mark(leg, flight.offset, flight.len);
                equal |= inner.lose_if_it_looks_equal(leg);
            }
        }
        if equal || lacking {
            // The host hears of the first error.
            let _ = inner.record_difference().await;
        }
    }
    gone_on
}

impl Inner {
    /// After a mark: ends the session, also one that has begun since, unless all that is marked is
    /// copied before the peer is told that it is whole. True when it does.
    fn lose_if_it_looks_equal(&self, leg: usize) -> bool {
        let (serial, inconsistent) = {
            let own = &self.lock().legs[leg];
            (own.serial, own.session.is_some() && own.inconsistent)
        };
        if !inconsistent {
            self.lose(leg, serial);
        }
        !inconsistent
    }

    /// The write has completed towards its host, as far as the order of later ones is concerned.
    fn complete_orders(&self, going: &Going) {
        for (leg, going) in going.legs.iter().enumerate() {
            if let LegGoing::Queue(sending, _, span) = going {
                let mut state = self.lock();
                let own = &mut state.legs[leg];
                if own.serial == sending.serial {
                    own.numbering.completed(*span);
                }
            }
        }
    }

    /// A session whose peer can go on alone: it has all that was completed, or follows.
    pub(crate) fn heir(&self) -> Option<(usize, u64)> {
        let following = || {
            let state = self.lock();
            let mut legs = state.legs.iter().enumerate();
            let found = legs.find(|(_, own)| own.phase == Phase::InSync && own.session.is_some());
            found.map(|(leg, own)| (leg, own.serial))
        };
        self.first_whole().or_else(following)
    }

    /// Waits until an asynchronous peer has all that was completed so far; false when its session
    /// ended before.
    pub(crate) async fn catch_up(&self, leg: usize, serial: u64) -> bool {
        self.wait_for_queue(leg).await;
        // A write that it did not get has ended the session, before it left the queue.
        self.lock().legs[leg].is_current(serial)
    }

    /// True when this session's peer has all that was completed.
    pub(crate) fn is_whole(&self, leg: usize, serial: u64) -> bool {
        let state = self.lock();
        let in_sync = state.legs[leg].phase == Phase::InSync;
        let at_once = state.local_failed || self.legs[leg].options().mode == Mode::Sync;
        state.legs[leg].is_current(serial) && in_sync && at_once
    }

    /// A session whose peer has all that was completed.
    pub(crate) fn first_whole(&self) -> Option<(usize, u64)> {
        let found = |leg: usize| (leg, self.lock().legs[leg].serial);
        (0..self.legs.len()).map(found).find(|(leg, serial)| self.is_whole(*leg, *serial))
    }
}

/// A write that is left to a peer's queue.
struct Letter {
    leg: usize,
    sending: Sending,
    place: Place,
}

/// Sends a queued write when it is its turn.
async fn deliver(inner: Arc<Inner>, letter: Letter, op: Op, range: (u64, u64), order: Order) {
    let Letter { leg, sending, place } = letter;
    let goes = poll_fn(|cx| {
        let post = inner.legs[leg].queue().send(place, cx.waker());
        if let Post::Now { next } = post {
            next.into_iter().for_each(std::task::Waker::wake);
            return Poll::Ready(true);
        }
        // After the waker was left: a session that ends from now on wakes us.
        let lost = !inner.lock().legs[leg].is_current(sending.serial);
        if lost { Poll::Ready(false) } else { Poll::Pending }
    })
    .await;
    let result = match goes {
        true => op.to_session(&sending, range, false, Some(order)).await,
        false => Err(IoError::Unreachable),
    };
    if result.is_err() {
        inner.mark_unproven(leg, range.0, range.1);
        inner.lose(leg, sending.serial);
    }
    inner.leave_queue(leg, place);
    inner.sent(leg, sending.half);
}

impl Inner {
    fn leave_queue(&self, leg: usize, place: Place) {
        let mut queue = self.legs[leg].queue();
        queue.ended(place);
        let next = queue.next_to_send();
        let door = queue.take_door();
        drop(queue);
        next.into_iter().chain(door).for_each(std::task::Waker::wake);
    }
}
