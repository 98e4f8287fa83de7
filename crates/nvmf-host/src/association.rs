//! Association: one core's use of a subsystem, which lasts while the device is open and hides
//! reconnects from calls.
//!
//! The `supervisor` task makes connections (`link`). Each call ([`Association::call`]) sends its
//! own command, and resends it if its completion was lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_nvme::command::io::BlockCommand;
use flagstone_nvme::status::sct;
use flagstone_nvme::{Cqe, IoOpcode, Sqe, Status};
use flagstone_runtime::spawn;
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::time::{self, Backoff, Instant};

use super::HostError;
use super::admission::{CallOrder, CommandQueue};
use super::command::{CommandData, CommandOutcome};
use super::connect::{AdminController, ConnectParams};
use super::durability::{CacheInstance, Durability};
use super::identify_data::NamespaceShape;
use super::link::ControllerLink;
use super::queue::{CommandEnd, HostQueue};
use super::supervisor::Supervisor;
use crate::limits::{
    ADMIN_ENTRIES, ADMIN_RESERVED_ENTRIES, DISCONNECT_TIMEOUT, POLL_PAUSE, RETRIES_MAX,
    RETRY_PAUSE, RETRY_PAUSE_MAX,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No connection; calls wait.
    Waiting,
    /// Connected; calls are sent.
    Live,
    /// No connection for longer than the loss timeout; calls fail, and reconnecting continues.
    Unreachable,
    /// The device is being closed: calls fail.
    Closed,
}

/// One core's association with a subsystem.
pub(super) struct Association {
    params: Arc<ConnectParams>,
    admission: Rc<CommandQueue>,
    state: Cell<State>,
    /// The current connection has completed a command.
    served: Cell<bool>,
    queues: RefCell<Vec<Rc<HostQueue>>>,
    admin: RefCell<Option<Rc<AdminController>>>,
    durability: Arc<Durability>,
    /// Instance of the current connection.
    instance: RefCell<Option<Arc<CacheInstance>>>,
    /// Start of the next search for a queue.
    turn: Cell<usize>,
    supervisor: RefCell<Option<AbortOnDrop<()>>>,
}

impl Association {
    /// Creates an association that does not connect until [`Association::start`].
    pub(super) fn new(params: Arc<ConnectParams>, durability: Arc<Durability>) -> Association {
        Association {
            params,
            admission: Rc::default(),
            state: Cell::new(State::Waiting),
            served: Cell::new(false),
            queues: RefCell::default(),
            admin: RefCell::default(),
            durability,
            instance: RefCell::default(),
            turn: Cell::new(0),
            supervisor: RefCell::new(None),
        }
    }

    /// Connects once, to namespace `nsid` or to the only one.
    pub(super) async fn connect(&self, nsid: Option<u32>) -> Result<ControllerLink, HostError> {
        let link = ControllerLink::connect(&self.params, nsid, self.admission.clone());
        time::timeout(self.params.options.connect_timeout, link).await?
    }

    /// Starts the supervisor, with the first connection if it exists already.
    pub(super) fn start(self: &Rc<Self>, shape: NamespaceShape, first: Option<ControllerLink>) {
        if let Some(link) = &first {
            self.up(link);
        }
        let (params, admission) = (self.params.clone(), self.admission.clone());
        let supervisor = Supervisor::new(Rc::downgrade(self), params, admission, shape);
        let task = spawn(supervisor.run(first)).abort_on_drop();
        *self.supervisor.borrow_mut() = Some(task);
    }

    /// Fails all calls from now on.
    pub(super) fn close(&self) {
        self.enter(State::Closed);
    }

    /// Fails calls that have waited for the loss timeout, until [`Association::up`].
    pub(super) fn give_up(&self) {
        self.enter(State::Unreachable);
    }

    fn enter(&self, state: State) {
        if self.state.get() != State::Closed {
            self.state.set(state);
        }
        self.admission.wake_all();
    }

    /// Lets calls through on a new connection.
    pub(super) fn up(&self, link: &ControllerLink) {
        let join = || self.durability.join(link.shape.instance);
        let instance = link.instance.get_or_init(join).clone();
        if link.shape.geometry.volatile_cache {
            link.queues().iter().for_each(|queue| queue.set_instance(instance.clone()));
        }
        *self.instance.borrow_mut() = Some(instance);
        self.queues.borrow_mut().clone_from(link.queues());
        *self.admin.borrow_mut() = Some(link.admin());
        self.enter(State::Live);
    }

    /// Lets calls wait. Returns true if a command completed since [`Association::up`].
    pub(super) fn down(&self) -> bool {
        self.enter(State::Waiting);
        self.queues.borrow_mut().clear();
        *self.admin.borrow_mut() = None;
        if let Some(instance) = self.instance.take() {
            self.durability.leave(&instance);
        }
        self.served.replace(false)
    }

    /// Sends a command and waits for its completion across reconnects. Returns its data.
    ///
    /// # Errors
    /// [`IoError::Unreachable`] when there was no connection, or none that lasted long enough, for
    /// the loss timeout.
    pub(super) async fn call(
        &self,
        command: Sqe,
        data: CommandData,
    ) -> Result<(Status, CommandData), IoError> {
        let (status, data, _) = self.call_on_queue(command, data).await?;
        Ok((status, data))
    }

    /// Flushes the writes that completed on this association's instance of the namespace before
    /// this call.
    ///
    /// # Errors
    /// As [`Association::call`].
    pub(super) async fn flush(&self, nsid: u32) -> Result<Status, IoError> {
        // Without a connection at present, any instance may execute it.
        let own = self.instance().map(|instance| (instance.completed(), instance));
        let others = if own.is_none() { self.durability.completed() } else { Vec::new() };
        let flush = self.call_on_queue(Sqe::flush(0, nsid), CommandData::None);
        let (status, _, queue) = flush.await?;
        if status.is_success()
            && let Some(flushed) = queue.instance()
            && let Some((count, _)) =
                own.iter().chain(&others).find(|(_, covered)| Arc::ptr_eq(covered, flushed))
        {
            flushed.flushed(*count);
        }
        Ok(status)
    }

    /// Instance of the current connection.
    pub(super) fn instance(&self) -> Option<Arc<CacheInstance>> {
        self.instance.borrow().clone()
    }

    /// Like [`Association::call`], with the queue that completed the command.
    async fn call_on_queue(
        &self,
        command: Sqe,
        mut data: CommandData,
    ) -> Result<(Status, CommandData, Rc<HostQueue>), IoError> {
        let mut retry = RetryState::default();
        loop {
            let begun = self.begin_in(CallOrder::Any, &command, &mut data).await?;
            let queue = begun.queue();
            let (outcome, back) = begun.await;
            data = back;
            match outcome {
                CommandOutcome::Completed(cqe) if is_transient(cqe.status()) => {
                    retry.check(self.params.options.loss_timeout)?;
                    retry.pause().await;
                }
                CommandOutcome::Completed(cqe) if !retry.repeats(&command, cqe.status()) => {
                    self.served.set(true);
                    self.account(&command, cqe.status(), &queue)?;
                    return Ok((cqe.status(), data, queue));
                }
                CommandOutcome::Completed(_) => retry.pause().await,
                CommandOutcome::Lost => retry.check(self.params.options.loss_timeout)?,
            }
        }
    }

    /// Counts a completed write that is not durable. Fails if writes that completed before this
    /// command are lost: it may have been resent after that, and have read old data.
    #[inline]
    fn account(&self, command: &Sqe, status: Status, queue: &HostQueue) -> Result<(), IoError> {
        if let Some(instance) = queue.instance()
            && status.is_success()
            && is_volatile_write(command)
        {
            self.durability.write_completed(instance);
        }
        self.durability.check_read()
    }

    /// Sends an ordered command after those called earlier, and waits for its completion. A command
    /// that the target asks to retry keeps its slot until it is resent: later commands may occupy
    /// all other slots while they wait at the target for this one.
    ///
    /// # Errors
    /// [`IoError::Unreachable`] when there is no connection, or it breaks: on another connection
    /// its number would belong to a different command. Also when the target asks for retries for
    /// longer than the loss timeout, or, for lack of memory, longer than the command timeout:
    /// commands that wait for earlier ones hold that memory.
    pub(super) async fn call_in_order(
        &self,
        command: Sqe,
        mut data: CommandData,
    ) -> Result<Status, IoError> {
        let mut retry = RetryState::default();
        let mut begun = self.begin_in(CallOrder::InOrder, &command, &mut data).await?;
        loop {
            let (outcome, back, slot) = begun.keeping().await;
            data = back;
            let CommandOutcome::Completed(cqe) = outcome else { return Err(IoError::Unreachable) };
            let status = cqe.status();
            if is_transient(status) {
                let options = &self.params.options;
                retry.check(match status.code() {
                    Status::COMMAND_INTERRUPTED => options.command_timeout,
                    _ => options.loss_timeout,
                })?;
            } else if !retry.repeats(&command, status) {
                self.served.set(true);
                return Ok(status);
            }
            retry.pause().await;
            begun = slot.send_again(&command, &mut data).ok_or(IoError::Unreachable)?;
        }
    }

    /// Sends a command when it is its turn and a slot is free.
    #[inline]
    async fn begin_in(
        &self,
        order: CallOrder,
        command: &Sqe,
        data: &mut CommandData,
    ) -> Result<CommandEnd, IoError> {
        if self.admission.is_open(order)
            && let Some(begun) = self.begin(command, data)
        {
            return begun;
        }
        let begun = self.admission.wait(order, || self.begin(command, data)).await;
        // A later waiter may have been woken and yielded to this one.
        if begun.is_err() || self.has_room() {
            self.admission.wake_one();
        }
        begun
    }

    /// Sends an idempotent command on the admin queue and returns its completion, whatever the
    /// status. It is resent if the target asks for a retry, but not if its completion is lost.
    ///
    /// # Errors
    /// [`IoError::Unreachable`] when there is no connection, or it breaks.
    pub(super) async fn admin_call(
        &self,
        command: Sqe,
        mut data: CommandData,
    ) -> Result<(Cqe, CommandData), IoError> {
        let mut retry = RetryState::default();
        loop {
            let Some(ended) = self.begin_admin(&command, &mut data)? else {
                // Rare, so it polls instead of crowding the admission queue of I/O calls.
                time::sleep(POLL_PAUSE).await;
                continue;
            };
            match ended.await {
                (CommandOutcome::Completed(cqe), back) => {
                    data = back;
                    let again = is_transient(cqe.status());
                    if !again || retry.check(self.params.options.loss_timeout).is_err() {
                        return Ok((cqe, data));
                    }
                    retry.pause().await;
                }
                (CommandOutcome::Lost, _) => return Err(IoError::Unreachable),
            }
        }
    }

    /// Sends an admin command. `None` while there is no connection, or while only reserved slots
    /// are free.
    fn begin_admin(
        &self,
        command: &Sqe,
        data: &mut CommandData,
    ) -> Result<Option<CommandEnd>, IoError> {
        if self.state.get() == State::Waiting {
            return Ok(None);
        }
        let admin = self.admin.borrow();
        let admin = admin.as_ref().filter(|_| self.state.get() == State::Live);
        let queue = &admin.ok_or(IoError::Unreachable)?.queue;
        let room = usize::from(ADMIN_ENTRIES - 1 - ADMIN_RESERVED_ENTRIES);
        if queue.is_broken() {
            return Err(IoError::Unreachable);
        }
        if queue.taken() >= room {
            return Ok(None);
        }
        queue.begin(command, data, true).map(Some).ok_or(IoError::Unreachable)
    }

    /// Sends a command immediately; `None` when the call has to wait.
    #[inline]
    fn begin(&self, command: &Sqe, data: &mut CommandData) -> Option<Result<CommandEnd, IoError>> {
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

    /// True if a slot is free.
    fn has_room(&self) -> bool {
        self.queues.borrow().iter().any(|queue| queue.has_room())
    }

    /// Queue with the fewest commands in flight; the search starts at a different queue each time.
    fn least_busy<'a>(&self, queues: &'a [Rc<HostQueue>]) -> Option<&'a Rc<HostQueue>> {
        let turn = self.turn.get().wrapping_add(1);
        self.turn.set(turn);
        let (before, from) = queues.split_at(turn.checked_rem(queues.len())?);
        from.iter().chain(before).min_by_key(|queue| queue.taken())
    }

    /// Disconnects gracefully in bounded time: refuses new calls, awaits those in flight, shuts the
    /// controller down.
    pub(super) async fn disconnect(&self) {
        self.close();
        let admin = self.admin.borrow().clone();
        let graceful = async {
            while self.queues.borrow().iter().any(|queue| queue.taken() > 0) {
                time::sleep(POLL_PAUSE).await;
            }
            match &admin {
                Some(admin) => admin.shut_down().await,
                None => Ok(()),
            }
        };
        match time::timeout(DISCONNECT_TIMEOUT, graceful).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("disconnect: {error}"),
            Err(_) => {
                tracing::warn!(address = %self.params.address, "disconnect timed out")
            }
        }
        // The supervisor owns the connections, so dropping it closes them.
        *self.supervisor.borrow_mut() = None;
        self.down();
    }
}

/// Retry state of a call whose command was lost or refused for now.
#[derive(Default)]
struct RetryState {
    since: Option<Instant>,
    /// Number of pauses before retries.
    pauses: u32,
    /// Number of retries after failures.
    repeats: u8,
}

impl RetryState {
    /// Pauses before a retry; fails when retries have lasted longer than `timeout`.
    #[cold]
    fn check(&mut self, timeout: Duration) -> Result<(), IoError> {
        let since = *self.since.get_or_insert_with(time::now);
        if since.elapsed() > timeout { Err(IoError::Unreachable) } else { Ok(()) }
    }

    /// True if a failed command is resent. That applies to a status without Do Not Retry, a limited
    /// number of times (Base 4.2.3). The Command Retry Delay is meaningful only if the host enables
    /// Advanced Command Retry, which this one does not. A flush is never resent: a disk that failed
    /// one may have dropped the data, and the next flush would succeed without it.
    fn repeats(&mut self, command: &Sqe, status: Status) -> bool {
        let may = !status.is_success()
            && !status.is_dnr()
            && IoOpcode(command.opcode) != IoOpcode::FLUSH
            && self.repeats < RETRIES_MAX;
        self.repeats += u8::from(may);
        may
    }

    async fn pause(&mut self) {
        let mut pauses = Backoff::new(RETRY_PAUSE, RETRY_PAUSE_MAX).after(self.pauses);
        self.pauses = self.pauses.saturating_add(1);
        time::sleep(pauses.advance()).await;
    }
}

/// True for a write that may complete in the volatile cache. A lost deallocation leaves old data,
/// which is allowed anyway.
#[inline]
fn is_volatile_write(command: &Sqe) -> bool {
    let opcode = IoOpcode(command.opcode);
    matches!(opcode, IoOpcode::WRITE | IoOpcode::WRITE_ZEROES)
        && !BlockCommand::parse(command).fua()
}

/// True if the status asks for a retry shortly afterwards.
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
