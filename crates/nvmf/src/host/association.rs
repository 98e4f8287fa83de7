//! One core's association with a subsystem, for as long as the device is open: connections come
//! and go, calls do not notice.
//!
//! A supervisor task connects, watches over the connection until it breaks, and connects anew.
//! Calls ([`Association::call`]) belong to their callers: each sends its command, and sends it
//! again when it was lost.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_nvme::command::admin::GetLogPage;
use flagstone_nvme::event::AsyncEvent;
use flagstone_nvme::limits::{IDENTIFY_BYTES, NAMESPACE_ID_ALL};
use flagstone_nvme::log::LogId;
use flagstone_nvme::status::sct;
use flagstone_nvme::{Sqe, Status};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::time::Instant;
use flagstone_runtime::{buf, spawn, time};

use super::HostError;
use super::command::{Data, Outcome};
use super::connect::{Admin, IoQueues, Place};
use super::gate::Gate;
use super::queue::{Ended, Queue};
use super::shape::{Controller, Shape};
use crate::limits::{
    HOST_DISCONNECT_TIMEOUT, HOST_POLL_PAUSE, HOST_RETRY_PAUSE, HOST_RETRY_PAUSE_MAX,
    HOST_SCAN_PERIOD_MAX, HOST_TIMEOUT_TICKS,
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
        let supervisor = Supervisor {
            association: Rc::downgrade(self),
            place: self.place.clone(),
            gate: self.gate.clone(),
            shape,
            pause: Duration::ZERO,
        };
        let task = spawn(supervisor.run(first)).abort_on_drop();
        *self.supervisor.borrow_mut() = Some(task);
    }

    fn enter(&self, state: State) {
        if self.state.get() != State::Closed {
            self.state.set(state);
        }
        self.gate.wake_all();
    }

    fn up(&self, link: &Link) {
        self.queues.borrow_mut().clone_from(&link.queues.0);
        *self.admin.borrow_mut() = Some(link.admin.clone());
        self.enter(State::Live);
    }

    fn down(&self) {
        self.enter(State::Waiting);
        self.queues.borrow_mut().clear();
        *self.admin.borrow_mut() = None;
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
            let ended = match self.begin(&command, &mut data) {
                Some(begun) => begun?,
                None => self.gate.wait(|| self.begin(&command, &mut data)).await?,
            };
            let (outcome, back) = ended.await;
            data = back;
            match outcome {
                Outcome::Completed(cqe) if !is_transient(cqe.status()) => {
                    return Ok((cqe.status(), data));
                }
                Outcome::Completed(_) => {
                    trouble.check(self.place.options.loss_timeout)?;
                    trouble.pause().await;
                }
                Outcome::Lost => trouble.check(self.place.options.loss_timeout)?,
            }
        }
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
        self.enter(State::Closed);
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
}

impl Trouble {
    /// Fails when the trouble has lasted longer than `patience`.
    #[cold]
    fn check(&mut self, patience: Duration) -> Result<(), IoError> {
        let since = *self.since.get_or_insert_with(time::now);
        if since.elapsed() > patience { Err(IoError::Unreachable) } else { Ok(()) }
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

/// A live connection with its tasks. Dropped, all of it ends.
pub(super) struct Link {
    admin: Rc<Admin>,
    queues: IoQueues,
    _tasks: Vec<AbortOnDrop<()>>,
}

impl Link {
    async fn connect(place: &Place, gate: Rc<Gate>) -> Result<(Link, Shape), HostError> {
        let admin = Rc::new(Admin::connect(place, gate).await?);
        match Link::set_up(place, &admin).await {
            Ok(link) => Ok(link),
            Err(error) => Err(admin.end.explain(error)),
        }
    }

    async fn set_up(place: &Place, admin: &Rc<Admin>) -> Result<(Link, Shape), HostError> {
        let controller = admin.controller().await?;
        let shape = admin.namespace(&controller, place.options.nsid).await?;
        let mut tasks = Vec::new();
        if admin.subscribe(controller.events).await? {
            let watch = watch_events(admin.clone(), controller, shape);
            tasks.push(spawn(watch).abort_on_drop());
        }
        let interval = place.options.keep_alive / 2;
        if controller.keeps_alive && !interval.is_zero() {
            tasks.push(spawn(keep_alive(admin.clone(), interval)).abort_on_drop());
        }
        let queues = admin.io_queues(place, &controller).await?;
        Ok((Link { admin: admin.clone(), queues, _tasks: tasks }, shape))
    }

    /// Watches over the connection until it breaks, and says why it did.
    async fn tend(&self, command_timeout: Duration) -> HostError {
        let period = (command_timeout / HOST_TIMEOUT_TICKS).min(HOST_SCAN_PERIOD_MAX);
        let looks = command_timeout.as_nanos().div_ceil(period.as_nanos().max(1)) as u32;
        loop {
            if let Ok(error) = time::timeout(period, self.admin.end.wait()).await {
                return error;
            }
            let mut overdue = self.admin.queue.is_overdue(looks);
            for queue in &self.queues.0 {
                overdue |= queue.is_overdue(looks);
            }
            if overdue {
                return HostError::TimedOut;
            }
        }
    }
}

/// Tells the controller that we are alive. An answer that does not come ends the association.
async fn keep_alive(admin: Rc<Admin>, interval: Duration) {
    loop {
        time::sleep(interval).await;
        let command = Sqe::keep_alive(0);
        let error = match time::timeout(interval, admin.queue.run(&command, Data::None)).await {
            Ok((Outcome::Completed(cqe), _)) if cqe.status().is_success() => continue,
            Ok((Outcome::Completed(cqe), _)) => {
                HostError::Refused { what: "Keep Alive", status: cqe.status() }
            }
            Ok((Outcome::Lost, _)) => HostError::Closed,
            Err(elapsed) => elapsed.into(),
        };
        return admin.end.set(error);
    }
}

/// Waits for events; one that changes the namespace into another ends the association.
async fn watch_events(admin: Rc<Admin>, controller: Controller, shape: Shape) {
    loop {
        let command = Sqe::async_event_request(0);
        let event = match admin.queue.run_timed(&command, Data::None, false).await {
            (Outcome::Completed(cqe), _) if cqe.status().is_success() => cqe.async_event(),
            _ => return,
        };
        if event != AsyncEvent::NAMESPACE_CHANGED {
            tracing::info!(?event, "event of the target");
            continue;
        }
        match look_again(&admin, &controller, &shape).await {
            Ok(now) if now.geometry == shape.geometry => {}
            Ok(now) => {
                let (was, is) = (shape.geometry.size_bytes, now.geometry.size_bytes);
                tracing::warn!(was, is, "the namespace has changed; reopen the device to see it");
            }
            Err(error) => return admin.end.set(error),
        }
    }
}

/// Reads which namespaces changed, without which no further event comes, and looks at ours.
async fn look_again(
    admin: &Rc<Admin>,
    controller: &Controller,
    shape: &Shape,
) -> Result<Shape, HostError> {
    let bytes = IDENTIFY_BYTES as u32;
    let log = GetLogPage::new(LogId::CHANGED_NAMESPACES, NAMESPACE_ID_ALL, 0, bytes);
    let place = Data::In(buf::alloc(IDENTIFY_BYTES).await);
    if let Some(command) = log.command(0) {
        admin.queue.run(&command, place).await;
    }
    let now = admin.namespace(controller, Some(shape.nsid)).await?;
    shape.check_still(&now)?;
    Ok(now)
}

/// The task behind an association.
struct Supervisor {
    association: Weak<Association>,
    place: Arc<Place>,
    gate: Rc<Gate>,
    shape: Shape,
    /// Before the next attempt to connect.
    pause: Duration,
}

impl Supervisor {
    async fn run(mut self, mut first: Option<Link>) {
        loop {
            let link = match first.take() {
                Some(link) => link,
                None => self.reconnect().await,
            };
            let begin = time::now();
            if !self.tell(|association| association.up(&link)) {
                return;
            }
            let why = link.tend(self.place.options.command_timeout).await;
            tracing::warn!(address = %self.place.address, "association lost: {why}");
            if !self.tell(Association::down) {
                return;
            }
            drop(link);
            // A connection that breaks as soon as it is made is no reason to hurry.
            if begin.elapsed() >= self.place.options.reconnect_delay_max {
                self.pause = Duration::ZERO;
            }
        }
    }

    /// False when the association is gone.
    fn tell(&self, what: impl FnOnce(&Association)) -> bool {
        self.association.upgrade().map(|association| what(&association)).is_some()
    }

    async fn reconnect(&mut self) -> Link {
        let association = self.association.clone();
        let give_up = move || {
            if let Some(association) = association.upgrade() {
                association.enter(State::Unreachable);
            }
        };
        let patience = self.place.options.loss_timeout;
        with_alarm(patience, give_up, self.attempts()).await
    }

    /// Tries until it is connected.
    async fn attempts(&mut self) -> Link {
        let options = &self.place.options;
        loop {
            if !self.pause.is_zero() {
                time::sleep(self.pause).await;
            }
            let doubled = (self.pause * 2).max(options.reconnect_delay);
            self.pause = doubled.min(options.reconnect_delay_max.max(options.reconnect_delay));
            let attempt = Link::connect(&self.place, self.gate.clone());
            let error = match time::timeout(options.connect_timeout, attempt).await {
                Ok(Ok((link, shape))) => match self.shape.check_still(&shape) {
                    Ok(()) => {
                        tracing::info!(address = %self.place.address, "association is back");
                        return link;
                    }
                    Err(error) => error,
                },
                Ok(Err(error)) => error,
                Err(elapsed) => elapsed.into(),
            };
            tracing::debug!(address = %self.place.address, "cannot connect again: {error}");
            if matches!(error, HostError::Changed(_)) {
                // Waiting would not help, unless the operator does.
                self.tell(|association| association.enter(State::Unreachable));
            }
        }
    }
}

/// Runs `future`; `alarm` is raised once if that takes longer than `patience`.
async fn with_alarm<F: Future>(patience: Duration, alarm: impl FnOnce(), future: F) -> F::Output {
    let mut future = pin!(future);
    match time::timeout(patience, future.as_mut()).await {
        Ok(output) => output,
        Err(_) => {
            alarm();
            future.await
        }
    }
}
