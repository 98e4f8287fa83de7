//! A controller: one host's view of a subsystem, from Connect of its admin queue until that queue
//! is gone (the dynamic controller model).
//!
//! Its life: made by Connect, enabled by CC.EN, reset by clearing CC.EN (its I/O queues end), and
//! destroyed when its admin queue ends, its keep alive expires, or what it serves is taken away.
//! A destroyed controller has fatal status, no queues, and all its connections are hung up.
//!
//! A connection that was cut may still have commands on their way to a device, and its host sends
//! them again on a new one. An old write that lands after a newer one of the same blocks would undo
//! it. So a controller is ready, and a reset complete, only when no cut queue of its host has a
//! command left ([`super::queue::Leftovers`]).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use flagstone_nvme::Nqn;
use flagstone_nvme::command::{Cqe, Sqe};
use flagstone_nvme::property::{
    Capabilities, Configuration, ControllerStatus, shutdown, shutdown_status,
};
use flagstone_nvme::status::Status;

use super::error_log::ErrorLog;
use super::event::Events;
use super::feature::Features;
use super::keep_alive::KeepAlive;
use super::namespace::NamespaceTable;
use super::queue::{IoTotals, Leftovers, Queue};
use super::subsystem::{Kind, Subsystem};
use super::vendor::Vendor;
use super::{Target, lock};
use crate::limits::READY_TIMEOUT_500MS;

/// A host, as Connect names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) nqn: Nqn,
    pub(crate) id: [u8; 16],
}

/// See the module.
pub(crate) struct Controller {
    pub(crate) id: u16,
    pub(crate) host: Host,
    pub(super) target: Arc<Target>,
    pub(super) subsystem: Arc<Subsystem>,
    /// The address that its host connected to.
    pub(super) local: Option<SocketAddr>,
    /// What its host is told: there is a volatile write cache. Fixed, as hosts ask once.
    pub(super) volatile_cache: bool,
    pub(super) keep_alive: KeepAlive,
    pub(super) events: Events,
    pub(super) features: Mutex<Features>,
    pub(super) errors: Mutex<ErrorLog>,
    /// By namespace; see [`super::vendor`].
    vendor: Mutex<BTreeMap<u32, Vendor>>,
    registers: Mutex<Registers>,
    queues: Mutex<BTreeMap<u16, Arc<Queue>>>,
    leftovers: Arc<Leftovers>,
    ready: AtomicBool,
    write_through: AtomicBool,
    gone: AtomicBool,
}

/// The properties that change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registers {
    pub(super) configuration: Configuration,
    pub(super) status: ControllerStatus,
}

/// What of a controller is known at Connect.
pub(super) struct NewController {
    pub(super) host: Host,
    pub(super) target: Arc<Target>,
    pub(super) subsystem: Arc<Subsystem>,
    pub(super) local: Option<SocketAddr>,
    pub(super) keep_alive_ms: u32,
}

impl Controller {
    /// The controller `id`, disabled, without queues.
    pub(super) fn new(id: u16, new: NewController) -> Controller {
        let NewController { host, target, subsystem, local, keep_alive_ms } = new;
        let leftovers = subsystem.leftovers_of(&host);
        Controller {
            id,
            host,
            local,
            volatile_cache: subsystem.volatile_cache(),
            features: Mutex::new(Features::new(target.config())),
            target,
            subsystem,
            keep_alive: KeepAlive::new(keep_alive_ms),
            events: Events::default(),
            errors: Mutex::default(),
            vendor: Mutex::default(),
            registers: Mutex::default(),
            queues: Mutex::default(),
            leftovers,
            ready: AtomicBool::new(false),
            write_through: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }

    /// The namespaces as they are now. Connections keep this and look at
    /// [`Controller::generation`] before each batch of commands.
    pub(crate) fn snapshot(&self) -> Arc<NamespaceTable> {
        self.subsystem.table()
    }

    /// Differs from the snapshot's own when there is a newer one.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.subsystem.generation()
    }

    /// Enabled, not shut down and not fatal: commands other than fabrics commands are carried out;
    /// otherwise they are answered with Command Sequence Error.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// The host turned the volatile write cache off (feature 06h): every write, write of zeroes
    /// and deallocation must be durable when it completes, as if it had FUA.
    #[inline]
    pub(crate) fn is_write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    pub(super) fn set_write_through(&self, on: bool) {
        self.write_through.store(on, Ordering::Relaxed);
    }

    /// Counts a command of any queue for the keep alive.
    #[inline]
    pub(crate) fn saw_traffic(&self) {
        self.keep_alive.saw_traffic();
    }

    /// Waits for the keep alive to expire, and destroys the controller then. Run beside the admin
    /// connection, and dropped with it.
    pub(crate) async fn watch_keep_alive(&self) {
        self.keep_alive.expired().await;
        self.destroy("its host did not keep it alive");
    }

    /// Waits for the next completion of a parked Asynchronous Event Request. Of the admin
    /// connection, one wait at a time, on any core.
    pub(crate) async fn wait_event(&self) -> Cqe {
        self.events.next().await
    }

    /// Notes a failed command in the error log: `location` is the byte of the command that is
    /// wrong or [`super::NO_LOCATION`], `block` the first block that failed or 0, `result` what is
    /// specific to the command or 0. Admin and fabrics commands are noted by themselves.
    pub(crate) fn record_error(
        &self,
        qid: u16,
        command: &Sqe,
        status: Status,
        location: u16,
        block: u64,
        result: u64,
    ) {
        lock(&self.errors).add(qid, command, status, location, block, result);
    }

    /// Whether it serves the discovery log, not namespaces.
    pub(crate) fn is_discovery(&self) -> bool {
        self.subsystem.kind == Kind::Discovery
    }

    pub(super) fn namespace_changed(&self, nsid: u32) {
        self.events.namespace_changed(nsid);
    }

    /// CAP.
    pub(super) fn capabilities(&self) -> Capabilities {
        let entries = self.target.config().max_queue_entries;
        Capabilities::default()
            .with_max_queue_entries_0based(u64::from(entries - 1))
            .with_contiguous_queues(1)
            .with_timeout_500ms(u64::from(READY_TIMEOUT_500MS))
            // The NVM command set, and command sets that are told apart by identifier.
            .with_command_sets(1 | 1 << 6)
            .with_ready_modes(1)
    }

    /// CC and CSTS.
    pub(super) fn registers(&self) -> Registers {
        let mut registers = lock(&self.registers);
        self.settle(&mut registers);
        *registers
    }

    /// Lets CSTS.RDY follow CC.EN when nothing is left of queues that were cut. Hosts poll CSTS, so
    /// looking when they do is soon enough.
    fn settle(&self, registers: &mut Registers) {
        let status = registers.status;
        let enable = registers.configuration.enable();
        if status.fatal() == 0 && status.ready() != enable && self.leftovers.are_none() {
            registers.status = status.with_ready(enable);
        }
        let working = registers.status.shutdown_status() == shutdown_status::NORMAL_OPERATION;
        let ready = enable == 1 && registers.status.ready() == 1;
        self.ready.store(ready && working, Ordering::Release);
    }

    /// Takes a new CC: enables, resets or shuts down. True when a shutdown has begun, which
    /// [`Controller::finish_shutdown`] ends.
    pub(super) fn configure(&self, new: Configuration) -> bool {
        let mut registers = lock(&self.registers);
        if self.gone.load(Ordering::Acquire) {
            return false;
        }
        let old = std::mem::replace(&mut registers.configuration, new);
        let mut status = registers.status;
        match (old.enable(), new.enable()) {
            // The host did not wait for a reset to be complete, or wants what cannot be.
            (0, 1) if status.ready() == 1 || !can_enable(new, self.subsystem.kind) => {
                status = status.with_ready(0).with_fatal(1);
            }
            (1, 0) => {
                status = status.with_fatal(0);
                self.ready.store(false, Ordering::Release);
                self.reset();
            }
            _ => {}
        }
        let mut shuts_down = false;
        match (old.shutdown(), new.shutdown()) {
            (shutdown::NONE, shutdown::NORMAL | shutdown::ABRUPT) => {
                status = status.with_shutdown_status(shutdown_status::OCCURRING);
                shuts_down = true;
            }
            (_, shutdown::NONE) => {
                status = status.with_shutdown_status(shutdown_status::NORMAL_OPERATION);
            }
            _ => {}
        }
        registers.status = status;
        self.settle(&mut registers);
        if status.fatal() == 0 && registers.status.ready() != new.enable() {
            tracing::info!(controller = self.id, "waits for commands of connections that were cut");
        }
        shuts_down
    }

    /// Shutdown is complete: CSTS.SHST says so.
    pub(super) fn finish_shutdown(&self) {
        let mut registers = lock(&self.registers);
        if registers.status.shutdown_status() == shutdown_status::OCCURRING {
            registers.status = registers.status.with_shutdown_status(shutdown_status::COMPLETE);
        }
    }

    /// What a controller level reset does beside the registers: I/O queues end, features and
    /// events are as at the beginning. The admin queue stays (Base 3.7.2).
    fn reset(&self) {
        self.cut_queues(1);
        self.end_vendor_sessions();
        self.events.reset();
        *lock(&self.features) = Features::new(self.target.config());
        self.set_write_through(false);
    }

    /// Takes the controller away: fatal status, every queue ends, its identifier is free. Once.
    pub(super) fn destroy(&self, why: &'static str) {
        if self.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        {
            let mut registers = lock(&self.registers);
            registers.status = registers.status.with_ready(0).with_fatal(1);
            self.ready.store(false, Ordering::Release);
        }
        self.cut_queues(0);
        self.end_vendor_sessions();
        self.events.reset();
        self.subsystem.remove_controller(self.id);
        self.target.release_controller();
        self.tell(format_args!("controller ended: {why}"));
    }

    /// Logs what became of it: not among what operators read where programs come and go by
    /// themselves, as nodes of a mirror do that wait for each other.
    pub(super) fn tell(&self, what: std::fmt::Arguments<'_>) {
        let (subsystem, host, controller) = (&self.subsystem.nqn, &self.host.nqn, self.id);
        match self.subsystem.is_hidden() {
            true => tracing::debug!(%subsystem, %host, controller, "{what}"),
            false => tracing::info!(%subsystem, %host, controller, "{what}"),
        }
    }

    /// The sessions with handlers of vendor specific commands; `None` once it is gone.
    pub(super) fn vendor_sessions(&self) -> Option<MutexGuard<'_, BTreeMap<u32, Vendor>>> {
        let sessions = lock(&self.vendor);
        // Looked at under the lock: an end that comes later finds what is put there.
        (!self.gone.load(Ordering::Acquire)).then_some(sessions)
    }

    /// Lets the sessions go: what waits in them for more from this host need wait no longer.
    pub(crate) fn end_vendor_sessions(&self) {
        let ended = std::mem::take(&mut *lock(&self.vendor));
        // Not under the lock.
        drop(ended);
    }

    /// Ends the queues from `first` up. What they still do is left over until their connections
    /// are done with it.
    fn cut_queues(&self, first: u16) {
        let cut = {
            let mut queues = lock(&self.queues);
            let cut = queues.split_off(&first);
            // Under the lock: a connection that then finds its queue gone takes its part back.
            // Admin commands are answered at once: nothing is left of theirs.
            self.leftovers.add(cut.keys().filter(|&&qid| qid != 0).count());
            cut
        };
        for queue in cut.values() {
            self.subsystem.add_totals(queue.counters.totals());
            queue.close();
        }
    }

    /// Adds a queue.
    ///
    /// # Errors
    /// Command Sequence Error when a queue of this identifier exists, when the controller is gone,
    /// or, of an I/O queue, when it is not ready.
    pub(super) fn attach(&self, queue: Arc<Queue>) -> Result<(), Status> {
        let mut queues = lock(&self.queues);
        // Looked at under the lock: a reset or an end that comes later finds the queue here.
        let ready = queue.qid == 0 || self.is_ready();
        if !ready || self.gone.load(Ordering::Acquire) || queues.contains_key(&queue.qid) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        if queue.qid != 0 {
            self.subsystem.add_queue(&queue);
        }
        queues.insert(queue.qid, queue);
        Ok(())
    }

    /// The connection of `queue` has ended, and no command of it is left. With the admin queue the
    /// controller ends.
    pub(super) fn detach(&self, queue: &Arc<Queue>) {
        if queue.qid == 0 {
            self.destroy("its admin queue ended");
            return;
        }
        let mut queues = lock(&self.queues);
        // After a reset the identifier may be another connection's.
        if queues.get(&queue.qid).is_some_and(|now| Arc::ptr_eq(now, queue)) {
            queues.remove(&queue.qid);
            drop(queues);
            self.subsystem.add_totals(queue.counters.totals());
        } else {
            self.leftovers.take_one();
        }
    }

    /// Whether it has I/O queues.
    pub(super) fn has_io_queues(&self) -> bool {
        lock(&self.queues).keys().any(|&qid| qid != 0)
    }

    /// Identifiers of its queues, ascending.
    pub(super) fn queue_ids(&self) -> Vec<u16> {
        lock(&self.queues).keys().copied().collect()
    }

    /// What went through its present queues.
    pub(super) fn queue_totals(&self) -> IoTotals {
        let mut totals = IoTotals::default();
        for queue in lock(&self.queues).values() {
            totals += queue.counters.totals();
        }
        totals
    }
}

/// Whether a controller can run as `configuration` wants. Discovery controllers have no I/O queues,
/// and hosts set the sizes of their entries or not.
fn can_enable(configuration: Configuration, kind: Kind) -> bool {
    let entries = configuration.sqe_exponent() == 6 && configuration.cqe_exponent() == 4;
    // NVM command set, all command sets, or admin commands alone.
    let command_set = matches!(configuration.command_set(), 0 | 6 | 7);
    configuration.page_exponent() == 0
        && configuration.arbitration() == 0
        && command_set
        && (entries || kind == Kind::Discovery)
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("id", &self.id)
            .field("host", &self.host.nqn)
            .finish_non_exhaustive()
    }
}
