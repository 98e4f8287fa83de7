//! One core's association with a subsystem, for as long as the device is open: connections come
//! and go, calls do not notice.
//!
//! A task (`supervisor`) makes connections (`link`). Calls ([`Association::call`]) belong to their
//! callers: each sends its command, and sends it again when it was lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_nvme::status::sct;
use flagstone_nvme::{Cqe, IoOpcode, Sqe, Status};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::time::Instant;
use flagstone_runtime::{spawn, time};

use super::HostError;
use super::command::{Data, Outcome};
use super::connect::{Admin, Place};
use super::gate::{Gate, Line};
use super::link::Link;
use super::queue::{Ended, Queue};
use super::shape::Shape;
use super::supervisor::Supervisor;
use crate::limits::{
    HOST_ADMIN_ENTRIES, HOST_ADMIN_SPARE, HOST_DISCONNECT_TIMEOUT, HOST_POLL_PAUSE,
    HOST_REPEATS_MAX, HOST_RETRY_PAUSE, HOST_RETRY_PAUSE_MAX,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No connection; calls wait.
    Waiting,
    /// Calls go through.
    Live,
    /// No connection for longer than calls wait; they fail, and connecting goes on.
    Unreachable,
    /// The device is being closed: calls fail.
    Closed,
}

/// See the module.
pub(super) struct Association {
    place: Arc<Place>,
    gate: Rc<Gate>,
    state: Cell<State>,
    /// The connection has carried a command to its end.
    served: Cell<bool>,
    queues: RefCell<Vec<Rc<Queue>>>,
    admin: RefCell<Option<Rc<Admin>>>,
    /// Where the search for a queue begins.
    turn: Cell<usize>,
    supervisor: RefCell<Option<AbortOnDrop<()>>>,
}

impl Association {
    /// An association that is not connected, nor trying to be until [`Association::start`].
    pub(super) fn new(place: Arc<Place>) -> Association {
        Association {
            place,
            gate: Rc::default(),
            state: Cell::new(State::Waiting),
            served: Cell::new(false),
            queues: RefCell::default(),
            admin: RefCell::default(),
            turn: Cell::new(0),
            supervisor: RefCell::new(None),
        }
    }

    /// Connects once, and says what was found.
    pub(super) async fn connect(&self) -> Result<(Link, Shape), HostError> {
        let link = Link::connect(&self.place, self.gate.clone());
        time::timeout(self.place.options.connect_timeout, link).await?
    }

    /// Starts the supervisor, with the first connection if there is one.
    pub(super) fn start(self: &Rc<Self>, shape: Shape, first: Option<Link>) {
        if let Some(link) = &first {
            self.up(link);
        }
        let (place, gate) = (self.place.clone(), self.gate.clone());
        let supervisor = Supervisor::new(Rc::downgrade(self), place, gate, shape);
        let task = spawn(supervisor.run(first)).abort_on_drop();
        *self.supervisor.borrow_mut() = Some(task);
    }

    /// Calls fail from now on.
    pub(super) fn close(&self) {
        self.enter(State::Closed);
    }

    /// Calls have waited long enough: they fail, until [`Association::up`].
    pub(super) fn give_up(&self) {
        self.enter(State::Unreachable);
    }

    fn enter(&self, state: State) {
        if self.state.get() != State::Closed {
            self.state.set(state);
        }
        self.gate.wake_all();
    }

    /// Calls go through.
    pub(super) fn up(&self, link: &Link) {
        self.queues.borrow_mut().clone_from(link.queues());
        *self.admin.borrow_mut() = Some(link.admin());
        self.enter(State::Live);
    }

    /// Calls wait. True when one was answered since [`Association::up`].
    pub(super) fn down(&self) -> bool {
        self.enter(State::Waiting);
        self.queues.borrow_mut().clear();
        *self.admin.borrow_mut() = None;
        self.served.replace(false)
    }

    /// Sends a command and waits until the target has answered it, whatever happens to
    /// connections meanwhile. The data comes back.
    ///
    /// # Errors
    /// [`IoError::Unreachable`] when there is no connection, or none that the command survives, for
    /// longer than the loss time-out.
    pub(super) async fn call(
        &self,
        command: Sqe,
        mut data: Data,
    ) -> Result<(Status, Data), IoError> {
        let mut trouble = Trouble::default();
        loop {
            let (outcome, back) = self.begin_in(Line::Any, &command, &mut data).await?.await;
            data = back;
            match outcome {
                Outcome::Completed(cqe) if is_transient(cqe.status()) => {
                    trouble.check(self.place.options.loss_timeout)?;
                    trouble.pause().await;
                }
                Outcome::Completed(cqe) if !trouble.repeats(&command, cqe.status()) => {
                    self.served.set(true);
                    return Ok((cqe.status(), data));
                }
                Outcome::Completed(_) => trouble.pause().await,
                Outcome::Lost => trouble.check(self.place.options.loss_timeout)?,
            }
        }
    }

    /// Sends a command that keeps an order, after those that were called before it, and waits until
    /// the target has answered it. One that the target turns away for now keeps its slot until it is
    /// sent again: the target may have those of all others, and keep each waiting for this one.
    ///
    /// # Errors
    /// [`IoError::Unreachable`] when there is no connection, or it breaks: it is not sent again over
    /// another, where its place would be another's. Or when it is turned away for longer than the
    /// loss time-out; where that is for want of memory, than the command time-out: while others are
    /// waited for, those that are waiting have the memory.
    pub(super) async fn call_in_order(
        &self,
        command: Sqe,
        mut data: Data,
    ) -> Result<Status, IoError> {
        let mut trouble = Trouble::default();
        let mut begun = self.begin_in(Line::InOrder, &command, &mut data).await?;
        loop {
            let (outcome, back, slot) = begun.keeping().await;
            data = back;
            let Outcome::Completed(cqe) = outcome else { return Err(IoError::Unreachable) };
            let status = cqe.status();
            if is_transient(status) {
                let options = &self.place.options;
                trouble.check(match status.code() {
                    Status::COMMAND_INTERRUPTED => options.command_timeout,
                    _ => options.loss_timeout,
                })?;
            } else if !trouble.repeats(&command, status) {
                self.served.set(true);
                return Ok(status);
            }
            trouble.pause().await;
            begun = slot.send_again(&command, &mut data).ok_or(IoError::Unreachable)?;
        }
    }

    /// Sends a command when it is its turn and there is a slot for it.
    #[inline]
    async fn begin_in(&self, line: Line, command: &Sqe, data: &mut Data) -> Result<Ended, IoError> {
        if self.gate.is_open(line)
            && let Some(begun) = self.begin(command, data)
        {
            return begun;
        }
        let begun = self.gate.wait(line, || self.begin(command, data)).await;
        // One behind us may have been woken, and have had to let us go first.
        if begun.is_err() || self.has_room() {
            self.gate.wake_one();
        }
        begun
    }

    /// Sends an idempotent command on the admin queue and waits for its answer, whatever that is.
    /// It is sent again when the target asks for that, but not when its answer is lost.
    ///
    /// # Errors
    /// [`IoError::Unreachable`] when there is no connection, or it breaks.
    pub(super) async fn admin_call(
        &self,
        command: Sqe,
        mut data: Data,
    ) -> Result<(Cqe, Data), IoError> {
        let mut trouble = Trouble::default();
        loop {
            let Some(ended) = self.begin_admin(&command, &mut data)? else {
                // Rare, and none of the business of calls for I/O, whose gate it is not to crowd.
                time::sleep(HOST_POLL_PAUSE).await;
                continue;
            };
            match ended.await {
                (Outcome::Completed(cqe), back) => {
                    data = back;
                    let again = is_transient(cqe.status());
                    if !again || trouble.check(self.place.options.loss_timeout).is_err() {
                        return Ok((cqe, data));
                    }
                    trouble.pause().await;
                }
                (Outcome::Lost, _) => return Err(IoError::Unreachable),
            }
        }
    }

    /// Sends an admin command; `None` without a connection as yet, and when the queue is full but
    /// for what is kept free.
    fn begin_admin(&self, command: &Sqe, data: &mut Data) -> Result<Option<Ended>, IoError> {
        if self.state.get() == State::Waiting {
            return Ok(None);
        }
        let admin = self.admin.borrow();
        let admin = admin.as_ref().filter(|_| self.state.get() == State::Live);
        let queue = &admin.ok_or(IoError::Unreachable)?.queue;
        let room = usize::from(HOST_ADMIN_ENTRIES - 1 - HOST_ADMIN_SPARE);
        if queue.is_broken() {
            return Err(IoError::Unreachable);
        }
        if queue.taken() >= room {
            return Ok(None);
        }
        queue.begin(command, data, true).map(Some).ok_or(IoError::Unreachable)
    }

    /// Sends a command if it can be sent now; `None` when the call has to wait.
    #[inline]
    fn begin(&self, command: &Sqe, data: &mut Data) -> Option<Result<Ended, IoError>> {
        match self.state.get() {
            State::Live => {}
            State::Waiting => return None,
            State::Unreachable | State::Closed => return Some(Err(IoError::Unreachable)),
        }
        let queues = self.queues.borrow();
        let queue = match &queues[..] {
            [queue] => queue,
            queues => self.least_busy(queues)?,
        };
        queue.begin(command, data, true).map(Ok)
    }

    /// Whether a slot is free.
    fn has_room(&self) -> bool {
        self.queues.borrow().iter().any(|queue| queue.has_room())
    }

    /// The queue with the fewest commands in flight, from another one on each time.
    fn least_busy<'a>(&self, queues: &'a [Rc<Queue>]) -> Option<&'a Rc<Queue>> {
        let turn = self.turn.get().wrapping_add(1);
        self.turn.set(turn);
        let (before, from) = queues.split_at(turn.checked_rem(queues.len())?);
        from.iter().chain(before).min_by_key(|queue| queue.taken())
    }

    /// Ends in order: no new calls, those in flight awaited, the controller shut down. Bounded in
    /// time.
    pub(super) async fn disconnect(&self) {
        self.close();
        let admin = self.admin.borrow().clone();
        let graceful = async {
            while self.queues.borrow().iter().any(|queue| queue.taken() > 0) {
                time::sleep(HOST_POLL_PAUSE).await;
            }
            match &admin {
                Some(admin) => admin.shut_down().await,
                None => Ok(()),
            }
        };
        match time::timeout(HOST_DISCONNECT_TIMEOUT, graceful).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("disconnecting: {error}"),
            Err(_) => tracing::warn!(address = %self.place.address, "disconnecting takes too long"),
        }
        // The supervisor holds the connections: they go with it.
        *self.supervisor.borrow_mut() = None;
        self.down();
    }
}

/// A call whose command was lost, or turned away for now.
#[derive(Default)]
struct Trouble {
    since: Option<Instant>,
    pause: Duration,
    /// Times that it was sent again after it had failed.
    repeats: u8,
}

impl Trouble {
    /// Fails when the trouble has lasted longer than `patience`.
    #[cold]
    fn check(&mut self, patience: Duration) -> Result<(), IoError> {
        let since = *self.since.get_or_insert_with(time::now);
        if since.elapsed() > patience { Err(IoError::Unreachable) } else { Ok(()) }
    }

    /// Whether a command that ended with this status, and is not turned away for now, is sent again: one
    /// that failed without Do Not Retry (Base 4.2.3: it may succeed then), some times. The target says
    /// by its Command Retry Delay how long to wait only where the host has asked for that (Advanced
    /// Command Retry), which this one does not. A flush is never sent again: a disk that failed one may
    /// have dropped what it was to write, and the next would succeed without it.
    fn repeats(&mut self, command: &Sqe, status: Status) -> bool {
        let may = !status.is_success()
            && !status.is_dnr()
            && IoOpcode(command.opcode) != IoOpcode::FLUSH
            && self.repeats < HOST_REPEATS_MAX;
        self.repeats += u8::from(may);
        may
    }

    async fn pause(&mut self) {
        self.pause = (self.pause * 2).clamp(HOST_RETRY_PAUSE, HOST_RETRY_PAUSE_MAX);
        time::sleep(self.pause).await;
    }
}

/// Whether a command may succeed when it is sent again a little later.
fn is_transient(status: Status) -> bool {
    if status.is_success() || status.is_dnr() {
        return false;
    }
    let persistent = status.code() == Status::ANA_PERSISTENT_LOSS;
    match status.code() {
        Status::COMMAND_INTERRUPTED
        | Status::TRANSIENT_TRANSPORT_ERROR
        | Status::NAMESPACE_NOT_READY
        | Status::ABORT_REQUESTED
        | Status::ABORTED_SQ_DELETION
        | Status::ABORTED_POWER_LOSS
        | Status::KEEP_ALIVE_EXPIRED
        | Status::DATA_TRANSFER_ERROR => true,
        _ => status.sct() == sct::PATH && !persistent,
    }
}
