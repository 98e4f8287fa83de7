//! Controller: one host's association with a subsystem, from Connect of its admin queue until that
//! queue ends (dynamic controller model).
//!
//! Connect creates it, CC.EN enables it, and clearing CC.EN resets it and ends its I/O queues. It
//! is destroyed when its admin queue ends, its keep alive expires, or its subsystem is removed. A
//! destroyed controller has fatal status and no queues, and its connections are closed.
//!
//! A closed connection may still have commands in flight to a device while its host resends them on
//! a new connection. An old write that completes after a newer write of the same blocks would undo
//! it. Therefore a controller becomes ready, and a reset completes, only when no closed queue of
//! its host has commands in flight ([`super::queue::OrphanedQueues`]).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use flagstone_nvme::Nqn;
use flagstone_nvme::command::{Cqe, Sqe};
use flagstone_nvme::property::{
    Capabilities, Configuration, ControllerStatus, shutdown, shutdown_status,
};
use flagstone_nvme::status::Status;
use flagstone_runtime::time;
use parking_lot::{Mutex, MutexGuard};

use super::Target;
use super::concatenation::{Concatenated, ConcatenationRefusal};
use super::connect::ConnectRefusal;
use super::error_log::ErrorLog;
use super::event::Events;
use super::feature::Features;
use super::generated_psks::NewPsk;
use super::handshakes::FailureReason;
use super::keep_alive::KeepAliveTimer;
use super::namespace::NamespaceTable;
use super::queue::{ControllerQueue, IoTotals, OrphanedQueues};
use super::subsystem::{ServedSubsystem, SubsystemKind};
use super::tls::ChannelProof;
use super::vendor::Vendor;
use crate::limits::READY_TIMEOUT_500MS;

/// Host identity, as given by Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostIdentity {
    pub(crate) nqn: Nqn,
    pub(crate) id: [u8; 16],
}

/// One controller of an attached host.
pub(crate) struct Controller {
    pub(crate) id: u16,
    pub(crate) host: HostIdentity,
    pub(super) target: Arc<Target>,
    pub(super) subsystem: Arc<ServedSubsystem>,
    /// Local address that the host connected to.
    pub(super) local: Option<SocketAddr>,
    /// Volatile write cache as reported to the host. Fixed, because hosts ask only once.
    pub(super) volatile_cache: bool,
    pub(super) keep_alive: KeepAliveTimer,
    pub(super) events: Events,
    pub(super) features: Mutex<Features>,
    pub(super) errors: Mutex<ErrorLog>,
    /// By namespace; see [`super::vendor`].
    vendor: Mutex<BTreeMap<u32, Vendor>>,
    registers: Mutex<Registers>,
    queues: Mutex<BTreeMap<u16, Arc<ControllerQueue>>>,
    orphaned: Arc<OrphanedQueues>,
    ready: AtomicBool,
    write_through: AtomicBool,
    gone: AtomicBool,
    authenticated: AtomicBool,
    /// Locked inside `queues` only.
    concatenated: Mutex<Concatenated>,
}

/// Properties that change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registers {
    pub(super) configuration: Configuration,
    pub(super) status: ControllerStatus,
    /// Number of the latest shutdown.
    shutdown: ShutdownNumber,
}

/// Number of a shutdown of this controller. A reset may end one before its flushes have ended, and
/// another one begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ShutdownNumber(u64);

pub(super) struct NewController {
    pub(super) host: HostIdentity,
    pub(super) target: Arc<Target>,
    pub(super) subsystem: Arc<ServedSubsystem>,
    pub(super) local: Option<SocketAddr>,
    pub(super) keep_alive_ms: u32,
}

impl Controller {
    /// Creates controller `id`: disabled, without queues.
    pub(super) fn new(id: u16, new: NewController) -> Controller {
        let NewController { host, target, subsystem, local, keep_alive_ms } = new;
        let orphaned = subsystem.orphaned_queues_of(&host);
        Controller {
            id,
            host,
            local,
            volatile_cache: subsystem.volatile_cache(),
            features: Mutex::new(Features::new(target.config())),
            target,
            subsystem,
            keep_alive: KeepAliveTimer::new(keep_alive_ms),
            events: Events::default(),
            errors: Mutex::default(),
            vendor: Mutex::default(),
            registers: Mutex::default(),
            queues: Mutex::default(),
            orphaned,
            ready: AtomicBool::new(false),
            write_through: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            authenticated: AtomicBool::new(false),
            concatenated: Mutex::default(),
        }
    }

    /// Current namespaces. Connections keep the snapshot, and compare [`Controller::generation`]
    /// before each batch of commands.
    pub(crate) fn snapshot(&self) -> Arc<NamespaceTable> {
        self.subsystem.table()
    }

    /// Differs from the snapshot's generation when a newer snapshot exists.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.subsystem.generation()
    }

    /// Enabled, not shut down and not in fatal status. Otherwise commands other than fabrics
    /// commands fail with Command Sequence Error.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// True if a failed command of `queue` may be answered. Not once the queue is closed or the
    /// controller is gone: the connection is about to end, and its host repeats the command on
    /// another one, unless a status forbids that. Call it after the check that failed.
    #[cold]
    pub(crate) fn may_refuse(&self, queue: &ControllerQueue) -> bool {
        // A reader that sees that the controller is not ready also sees why.
        fence(Ordering::Acquire);
        queue.is_open() && !self.gone.load(Ordering::Relaxed)
    }

    /// The host disabled the volatile write cache (feature 06h): every write, write zeroes and
    /// deallocation that starts from now on must be durable when it completes, as with FUA. Earlier
    /// ones are durable after a flush.
    #[inline]
    pub(crate) fn is_write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    pub(super) fn set_write_through(&self, on: bool) {
        self.write_through.store(on, Ordering::Relaxed);
    }

    /// Destroys the controller if a queue of it was opened with a key that was withdrawn since. An
    /// I/O queue concerns it too: not its host alone may have opened that. True if it did.
    pub(super) fn end_if_withdrawn(&self) -> bool {
        let is_withdrawn = self.queues.lock().values().any(|queue| queue.has_withdrawn_key());
        if is_withdrawn {
            let (subsystem, host, controller) = (&self.subsystem.nqn, &self.host.nqn, self.id);
            tracing::warn!(%subsystem, %host, controller, "ending: {}", FailureReason::Withdrawn);
            self.destroy("its host's key was withdrawn");
        }
        is_withdrawn
    }

    /// The host of queue `qid` is authenticated.
    pub(crate) fn passed_authentication(&self, qid: u16) {
        if qid == 0 && !self.authenticated.swap(true, Ordering::Relaxed) {
            let timeout_ms = self.keep_alive.timeout_ms();
            self.log_event(format_args!("host authenticated, keep alive {timeout_ms} ms"));
        }
    }

    /// Promises to keep the PSK of an exchange on the admin queue, before its host is told of it.
    /// No I/O queue without TLS joins any more.
    ///
    /// # Errors
    /// The PSK would open nothing.
    pub(crate) fn promise_psk(&self) -> Result<(), ConcatenationRefusal> {
        let queues = self.queues.lock();
        if self.gone.load(Ordering::Acquire) {
            return Err(ConcatenationRefusal::ControllerEnded);
        }
        self.concatenated.lock().promise(queues.keys().any(|&qid| qid != 0))
    }

    /// Keeps the PSK that the host has made on the admin queue, in place of its last one.
    ///
    /// # Errors
    /// As [`Controller::promise_psk`], though only the end of the controller comes in between.
    pub(crate) fn keep_psk(&self, new: NewPsk) -> Result<(), ConcatenationRefusal> {
        let (identity, proven) = (new.psk.identity.clone(), new.proven);
        let queues = self.queues.lock();
        if self.gone.load(Ordering::Acquire) {
            return Err(ConcatenationRefusal::ControllerEnded);
        }
        let mut concatenated = self.concatenated.lock();
        concatenated.promise(queues.keys().any(|&qid| qid != 0))?;
        let last = concatenated.keep(identity);
        self.target.tls.generated.insert(new, last.as_deref(), time::now());
        drop((concatenated, queues));
        let trust = if proven { "" } else { "; the host did not ask for a proof of this side" };
        // The host has proven its key just now.
        self.log(false, format_args!("TLS PSK generated for the host's next connections{trust}"));
        Ok(())
    }

    /// Ends the PSKs that I/O queues of this controller have used. One without I/O queues by then
    /// is for the next attempt of its host, which may not authenticate again before.
    fn drop_psks(&self) {
        let _queues = self.queues.lock();
        for identity in std::mem::take(&mut *self.concatenated.lock()).used() {
            self.target.tls.generated.remove(&identity);
        }
    }

    /// True if I/O queues have to use TLS, because the host has a PSK for them.
    pub(crate) fn needs_tls(&self) -> bool {
        let _queues = self.queues.lock();
        self.concatenated.lock().needs_tls()
    }

    /// True if the host has proven its key on the admin queue.
    pub(super) fn is_authenticated(&self) -> bool {
        self.authenticated.load(Ordering::Relaxed)
    }

    /// Records traffic on any queue for the keep alive.
    #[inline]
    pub(crate) fn saw_traffic(&self) {
        self.keep_alive.saw_traffic();
    }

    /// Waits for the keep alive timer to expire, then destroys the controller. Runs beside the
    /// admin connection and is dropped with it.
    pub(crate) async fn watch_keep_alive(&self) {
        self.keep_alive.expired().await;
        self.destroy("keep alive timeout expired");
    }

    /// Waits for the next completion of a waiting Asynchronous Event Request. Only the admin
    /// connection may call it, once at a time, on any core.
    pub(crate) async fn wait_event(&self) -> Cqe {
        self.events.next().await
    }

    /// Records a failed command in the error log, with the parameters of [`ErrorLog::add`]. Admin
    /// and fabrics commands record their own errors.
    pub(crate) fn record_error(
        &self,
        qid: u16,
        command: &Sqe,
        status: Status,
        block: u64,
        result: u64,
    ) {
        self.errors.lock().add(qid, command, status, block, result);
    }

    pub(crate) fn is_discovery(&self) -> bool {
        self.subsystem.kind == SubsystemKind::Discovery
    }

    /// CAP.
    pub(super) fn capabilities(&self) -> Capabilities {
        let entries = self.target.config().max_queue_entries;
        Capabilities::default()
            .with_max_queue_entries_0based(u64::from(entries - 1))
            .with_contiguous_queues(1)
            .with_timeout_500ms(u64::from(READY_TIMEOUT_500MS))
            // The NVM command set, and command sets selected by identifier.
            .with_command_sets(1 | 1 << 6)
            .with_ready_modes(1)
    }

    /// CC and CSTS.
    pub(super) fn registers(&self) -> Registers {
        let mut registers = self.registers.lock();
        self.update_ready(&mut registers);
        *registers
    }

    /// Sets CSTS.RDY to follow CC.EN once no closed queue has commands in flight. Hosts poll CSTS,
    /// so evaluating it on their reads is soon enough.
    fn update_ready(&self, registers: &mut Registers) {
        let status = registers.status;
        let enable = registers.configuration.enable();
        if status.fatal() == 0 && status.ready() != enable && self.orphaned.is_empty() {
            registers.status = status.with_ready(enable);
        }
        let working = registers.status.shutdown_status() == shutdown_status::NORMAL_OPERATION;
        let ready = enable == 1 && registers.status.ready() == 1;
        self.ready.store(ready && working, Ordering::Release);
    }

    /// Applies a new CC value: enable, reset or shutdown. Returns the number of a shutdown that
    /// has started, which [`Controller::finish_shutdown`] completes.
    pub(super) fn configure(&self, new: Configuration) -> Option<ShutdownNumber> {
        let mut registers = self.registers.lock();
        if self.gone.load(Ordering::Acquire) {
            return None;
        }
        let old = std::mem::replace(&mut registers.configuration, new);
        let mut status = registers.status;
        match (old.enable(), new.enable()) {
            // The host did not wait for a reset to complete, or requests an unsupported
            // configuration.
            (0, 1) if status.ready() == 1 || !can_enable(new, self.subsystem.kind) => {
                status = status.with_ready(0).with_fatal(1);
            }
            (1, 0) => {
                status = status.with_fatal(0);
                self.reset();
            }
            _ => {}
        }
        let mut begun = None;
        match (old.shutdown(), new.shutdown()) {
            (shutdown::NONE, shutdown::NORMAL | shutdown::ABRUPT) => {
                status = status.with_shutdown_status(shutdown_status::OCCURRING);
                registers.shutdown.0 += 1;
                begun = Some(registers.shutdown);
            }
            (_, shutdown::NONE) => {
                status = status.with_shutdown_status(shutdown_status::NORMAL_OPERATION);
            }
            _ => {}
        }
        registers.status = status;
        self.update_ready(&mut registers);
        if status.fatal() == 0 && registers.status.ready() != new.enable() {
            tracing::info!(controller = self.id, "waiting for commands of closed connections");
        }
        begun
    }

    /// Sets CSTS.SHST to shutdown complete, unless `shutdown` is not the latest one. A host may cut
    /// the power then, so if a flush has failed, this reports a fatal status instead.
    pub(super) fn finish_shutdown(&self, shutdown: ShutdownNumber, flushed: bool) {
        let mut registers = self.registers.lock();
        let status = registers.status;
        if status.shutdown_status() != shutdown_status::OCCURRING || registers.shutdown != shutdown
        {
            return;
        }
        registers.status = match flushed {
            true => status.with_shutdown_status(shutdown_status::COMPLETE),
            false => status.with_fatal(1),
        };
    }

    /// Controller level reset, except for the registers: ends I/O queues, resets features and
    /// events. The admin queue stays (Base 3.7.2).
    fn reset(&self) {
        self.cut_queues(1);
        self.end_vendor_sessions();
        self.events.reset();
        *self.features.lock() = Features::new(self.target.config());
        self.set_write_through(false);
    }

    /// Destroys the controller once: fatal status, all queues closed, identifier released.
    pub(super) fn destroy(&self, why: &'static str) {
        if self.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        {
            let mut registers = self.registers.lock();
            registers.status = registers.status.with_ready(0).with_fatal(1);
        }
        self.cut_queues(0);
        self.drop_psks();
        self.end_vendor_sessions();
        self.events.reset();
        self.subsystem.remove_controller(self.id);
        self.target.release_controller();
        self.log_event(format_args!("controller ended: {why}"));
    }

    /// Logs an event of the controller's life, at debug level if strangers cause as many as they
    /// wish: before the host has proven a key that it needs, and in discovery. So do internal
    /// subsystems: nodes of a mirror connect and disconnect while they wait for each other.
    pub(super) fn log_event(&self, what: std::fmt::Arguments<'_>) {
        let is_of_anyone = self.is_discovery()
            || self.subsystem.requires_authentication() && !self.is_authenticated();
        self.log(is_of_anyone, what);
    }

    fn log(&self, is_of_anyone: bool, what: std::fmt::Arguments<'_>) {
        let (subsystem, host, controller) = (&self.subsystem.nqn, &self.host.nqn, self.id);
        match self.subsystem.is_hidden() || is_of_anyone {
            true => tracing::debug!(%subsystem, %host, controller, "{what}"),
            false => tracing::info!(%subsystem, %host, controller, "{what}"),
        }
    }

    /// Vendor sessions; `None` once the controller is gone.
    pub(super) fn vendor_sessions(&self) -> Option<MutexGuard<'_, BTreeMap<u32, Vendor>>> {
        let sessions = self.vendor.lock();
        // Checked under the lock: a later end finds the sessions added here.
        (!self.gone.load(Ordering::Acquire)).then_some(sessions)
    }

    /// Drops the vendor sessions. Commands that wait in them for further commands of this host stop
    /// waiting.
    pub(crate) fn end_vendor_sessions(&self) {
        let ended = std::mem::take(&mut *self.vendor.lock());
        // Dropped outside the lock.
        drop(ended);
    }

    /// Ends the readiness of the controller, and closes the queues from identifier `first` upward.
    /// Their commands in flight count as orphaned until their connections have finished.
    pub(super) fn cut_queues(&self, first: u16) {
        let cut = {
            let mut queues = self.queues.lock();
            let cut = queues.split_off(&first);
            // Silenced before the controller ceases to be ready: a command that arrives in between
            // must not be refused for good, because its host would repeat it on a new connection.
            for queue in cut.values() {
                queue.silence();
            }
            self.ready.store(false, Ordering::Release);
            // Counted under the lock: a connection that then finds its queue gone decrements the
            // count. Admin commands complete immediately, so they leave nothing in flight.
            self.orphaned.add(cut.keys().filter(|&&qid| qid != 0).count());
            cut
        };
        for queue in cut.values() {
            self.subsystem.add_totals(&self.host.nqn, queue.counters.totals());
            queue.close();
        }
    }

    pub(super) fn has_queue(&self, qid: u16) -> bool {
        self.queues.lock().contains_key(&qid)
    }

    /// Adds a queue.
    ///
    /// # Errors [`ConnectRefusal::QUEUE_IN_USE`]; [`ConnectRefusal::controller_gone`]; Command
    /// Sequence Error when an I/O queue is added before the controller is ready;
    /// [`FailureReason::NoTls`] for an I/O queue without the TLS that its controller needs;
    /// [`FailureReason::PskEnded`]; [`FailureReason::Withdrawn`].
    pub(super) fn attach(
        &self,
        queue: Arc<ControllerQueue>,
        channel: ChannelProof<'_>,
    ) -> Result<(), ConnectRefusal> {
        let mut queues = self.queues.lock();
        // Both are checked under the lock: a later reset or end finds the queue here.
        let ready = queue.qid == 0 || self.is_ready();
        if self.gone.load(Ordering::Acquire) {
            return Err(ConnectRefusal::controller_gone());
        }
        if !ready {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into());
        }
        if queues.contains_key(&queue.qid) {
            return Err(ConnectRefusal::QUEUE_IN_USE);
        }
        let mut concatenated = self.concatenated.lock();
        // Under the lock of the PSKs: a controller that has ended meanwhile, on another core, opens
        // nothing.
        match channel {
            ChannelProof::Plain => {}
            ChannelProof::ConfiguredKey(key) => queue.proved_channel(key.clone()),
            ChannelProof::GeneratedPsk(identity) => {
                let key = self.target.tls.generated.begin_use(identity, time::now());
                queue.proved_channel(key.ok_or_else(ConnectRefusal::psk_ended)?);
            }
        }
        // Under the lock of the queues: a key that is withdrawn later finds the queue here.
        if queue.has_withdrawn_key() {
            return Err(ConnectRefusal::not_allowed(FailureReason::Withdrawn));
        }
        if !concatenated.join(queue.qid, channel) {
            return Err(ConnectRefusal::not_allowed(FailureReason::NoTls));
        }
        drop(concatenated);
        if queue.qid != 0 {
            self.subsystem.add_queue(&queue);
        }
        queues.insert(queue.qid, queue);
        Ok(())
    }

    /// The connection of `queue` has ended and has no command in flight. The admin queue ends the
    /// controller.
    pub(super) fn detach(&self, queue: &Arc<ControllerQueue>) {
        if queue.qid == 0 {
            self.destroy("its admin queue ended");
            return;
        }
        let mut queues = self.queues.lock();
        // After a reset, another connection may use the identifier.
        if queues.get(&queue.qid).is_some_and(|now| Arc::ptr_eq(now, queue)) {
            queues.remove(&queue.qid);
            drop(queues);
            self.subsystem.add_totals(&self.host.nqn, queue.counters.totals());
        } else {
            self.orphaned.remove_one();
        }
    }

    /// True if every queue has answered its last command.
    pub(super) fn has_answered(&self) -> bool {
        self.queues.lock().values().all(|queue| queue.has_answered())
    }

    /// True if it has I/O queues.
    pub(crate) fn has_io_queues(&self) -> bool {
        self.queues.lock().keys().any(|&qid| qid != 0)
    }

    /// Queue identifiers, ascending.
    pub(super) fn queue_ids(&self) -> Vec<u16> {
        self.queues.lock().keys().copied().collect()
    }

    /// I/O totals of its present queues.
    pub(super) fn queue_totals(&self) -> IoTotals {
        let mut totals = IoTotals::default();
        for queue in self.queues.lock().values() {
            totals += queue.counters.totals();
        }
        totals
    }
}

/// True if `configuration` is supported. Discovery controllers have no I/O queues, so their hosts
/// may leave the entry sizes unset.
fn can_enable(configuration: Configuration, kind: SubsystemKind) -> bool {
    let entries = configuration.sqe_exponent() == 6 && configuration.cqe_exponent() == 4;
    // NVM command set, all command sets, or only admin commands.
    let command_set = matches!(configuration.command_set(), 0 | 6 | 7);
    configuration.page_exponent() == 0
        && configuration.arbitration() == 0
        && command_set
        && (entries || kind == SubsystemKind::Discovery)
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("id", &self.id)
            .field("host", &self.host.nqn)
            .finish_non_exhaustive()
    }
}
