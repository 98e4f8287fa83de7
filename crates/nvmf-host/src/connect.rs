//! Connection setup: from an initialized connection to an enabled controller and its namespace.
//!
//! Each step is an admin command; the caller's timeout bounds all of them together. `shape`
//! validates what the controller reports.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flagstone_auth::Concatenation;
use flagstone_auth::tls::Psk;
use flagstone_nvme::command::admin::Identify;
use flagstone_nvme::command::fabrics::{
    CONTROLLER_ID_DYNAMIC, ConnectCommand, ConnectData, ConnectResult, PropertyCommand,
};
use flagstone_nvme::event::EventMask;
use flagstone_nvme::feature::{FeatureId, NumberOfQueues};
use flagstone_nvme::identify::namespace::NO_VOLATILE_CACHE;
use flagstone_nvme::identify::{
    Cns, IdentifyController, IdentifyNamespace, IndependentNamespace, NamespaceDescriptor,
    NamespaceList, NvmController, descriptors,
};
use flagstone_nvme::limits::{CONNECT_DATA_BYTES, IDENTIFY_BYTES, NAMESPACE_ID_MAX};
use flagstone_nvme::property::{
    Capabilities, Configuration, ControllerStatus, Property, PropertySize, Version, shutdown,
    shutdown_status,
};
use flagstone_nvme::wire::Wire;
use flagstone_nvme::{Cqe, Nqn, Sqe, Status};
use flagstone_runtime::net::Address;
use flagstone_runtime::{BufMut, buf, random_u64, sync, time};

use super::admission::CommandQueue;
use super::authenticate::{UnaskedOutcome, authenticate, authenticate_unasked};
use super::command::{CommandData, CommandOutcome, CommandSlots};
use super::identify_data::{ControllerLimits, NamespaceShape};
use super::initialize::{OnDrop, initialize};
use super::queue::HostQueue;
use super::{HostError, HostOptions, tls};
use crate::limits::{ADMIN_ENTRIES, POLL_PAUSE};

/// Host identity, target address and options.
#[derive(Clone, Debug)]
pub(super) struct ConnectParams {
    pub(super) address: Address,
    pub(super) subnqn: Nqn,
    pub(super) host_nqn: Nqn,
    pub(super) host_id: [u8; 16],
    pub(super) options: HostOptions,
}

impl ConnectParams {
    /// A missing host name or identifier is replaced by a random one for the life of the device.
    pub(super) fn new(
        address: Address,
        subnqn: Nqn,
        options: HostOptions,
    ) -> Result<ConnectParams, HostError> {
        options.check()?;
        let host_id = options.host_id.unwrap_or_else(random_uuid);
        let host_nqn = options.host_nqn.unwrap_or_else(|| Nqn::from_uuid(host_id));
        Ok(ConnectParams { address, subnqn, host_nqn, host_id, options })
    }

    /// Discovery services do not authenticate.
    fn concatenates(&self) -> bool {
        self.options.concatenate && !self.subnqn.is_discovery()
    }

    /// True if the target has to prove that it knows a key. Discovery services have none.
    pub(super) fn expects_proof(&self) -> bool {
        let keys = self.options.keys.as_ref();
        !self.subnqn.is_discovery() && keys.is_some_and(|keys| keys.controller.is_some())
    }
}

/// True if the target does not know what it was asked, so that it never had another answer.
fn is_unknown(error: &HostError) -> bool {
    let HostError::Refused { status, .. } = error else { return false };
    [Status::INVALID_FIELD, Status::INVALID_OPCODE].contains(&status.code())
}

/// Random UUID, version 4.
fn random_uuid() -> [u8; 16] {
    let bits = u128::from(random_u64()) << 64 | u128::from(random_u64());
    uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid().into_bytes()
}

/// Cause of the end of an association: the first failure of any of its parts.
#[derive(Default)]
pub(super) struct AssociationEnd {
    why: RefCell<Option<HostError>>,
    begun: Cell<bool>,
    rung: sync::Notify,
}

impl AssociationEnd {
    /// Stops sending on all queues of the association.
    pub(super) fn begin(&self) {
        self.begun.set(true);
    }

    #[inline]
    pub(super) fn has_begun(&self) -> bool {
        self.begun.get()
    }

    pub(super) fn set(&self, error: HostError) {
        self.begin();
        self.why.borrow_mut().get_or_insert(error);
        self.rung.notify();
    }

    /// The original cause behind `error`, if it is known.
    pub(super) fn explain(&self, error: HostError) -> HostError {
        match error {
            HostError::Closed => self.why.borrow_mut().take().unwrap_or(error),
            error => error,
        }
    }

    pub(super) async fn wait(&self) -> HostError {
        self.rung.wait_for(|| self.why.borrow_mut().take()).await
    }
}

/// Controller with its admin queue. Dropping it closes its connections.
pub(super) struct AdminController {
    pub(super) queue: Rc<HostQueue>,
    pub(super) end: Rc<AssociationEnd>,
    admission: Rc<CommandQueue>,
    /// The target has proven itself, if it has to.
    is_proven: bool,
    /// PSK for the I/O queues, from concatenation, until they are connected.
    generated: RefCell<Option<Psk>>,
    controller_id: u16,
    capabilities: Capabilities,
    version: Version,
}

impl Drop for AdminController {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Sends an admin command that must succeed.
pub(super) async fn ask(
    queue: &Rc<HostQueue>,
    what: &'static str,
    command: Sqe,
    data: CommandData,
) -> Result<(Cqe, CommandData), HostError> {
    let ended = queue.run(&command, data).await;
    succeeded(what, &command, ended)
}

/// Checks the outcome of a command that must succeed.
pub(super) fn succeeded(
    what: &'static str,
    command: &Sqe,
    ended: (CommandOutcome, CommandData),
) -> Result<(Cqe, CommandData), HostError> {
    match ended {
        (CommandOutcome::Completed(cqe), data) if cqe.status().is_success() => Ok((cqe, data)),
        (CommandOutcome::Completed(cqe), _) => {
            let status = cqe.status();
            Err(match command.fabrics_type() {
                Some(command) => HostError::FabricsRefused { command, status },
                None => HostError::Refused { what, status },
            })
        }
        (CommandOutcome::Lost, _) => Err(HostError::Closed),
    }
}

/// How a queue is encrypted.
#[derive(Clone, Copy)]
enum Channel<'a> {
    /// As the options say.
    Configured,
    /// Not yet: authentication gives the PSK for the queues to come.
    Concatenate,
    /// By the PSK of concatenation.
    Generated(&'a Psk),
}

impl Channel<'_> {
    fn of(generated: Option<&Psk>) -> Channel<'_> {
        generated.map_or(Channel::Configured, Channel::Generated)
    }
}

/// PSK from an admin queue that authenticates, and then ends (Base 8.3.5.5.9).
async fn concatenate(params: &ConnectParams) -> Result<Psk, HostError> {
    let (admission, end) = (Rc::default(), Rc::default());
    let connected =
        connect_queue(params, Channel::Concatenate, &admission, &end, &NewQueue::ADMIN).await;
    let connected = connected.map_err(|error| end.explain(error))?;
    connected.queue.close();
    connected.psk.ok_or(HostError::NoConcatenation)
}

/// Why a plain connection was not initialized. A target that closes it requires TLS, if it answers
/// a ClientHello, and closes the next one too: it has not just restarted.
async fn cause_of_refusal(params: &ConnectParams, error: HostError) -> HostError {
    let is_closed = |error: &HostError| matches!(error, HostError::Closed | HostError::Broken(_));
    if !is_closed(&error) || !tls::is_spoken(params).await {
        return error;
    }
    match initialize(params, None).await {
        Err(again) if is_closed(&again) => HostError::TlsRequired,
        Err(again) => again,
        Ok(connection) => {
            connection.socket.stream().shutdown();
            error
        }
    }
}

/// Queue to connect.
struct NewQueue {
    qid: u16,
    /// Commands in flight.
    depth: u16,
    /// One more than these, for authentication.
    reserves: bool,
    controller_id: u16,
    /// The target has to prove itself even if it does not ask for authentication. False if it has
    /// no key, as it has said on the admin queue.
    is_proven: bool,
}

impl NewQueue {
    /// Admin queue, which creates a controller.
    const ADMIN: NewQueue = NewQueue {
        qid: 0,
        depth: ADMIN_ENTRIES - 1,
        reserves: false,
        controller_id: CONTROLLER_ID_DYNAMIC,
        is_proven: true,
    };
}

struct ConnectedQueue {
    queue: Rc<HostQueue>,
    result: ConnectResult,
    /// False if the target has no key of this host, which may do without.
    is_proven: bool,
    psk: Option<Psk>,
}

/// Connects one queue.
async fn connect_queue(
    params: &ConnectParams,
    channel: Channel<'_>,
    admission: &Rc<CommandQueue>,
    end: &Rc<AssociationEnd>,
    new: &NewQueue,
) -> Result<ConnectedQueue, HostError> {
    let (generated, concatenation) = match channel {
        Channel::Configured => (None, Concatenation::None),
        Channel::Concatenate => (None, Concatenation::NewPsk),
        Channel::Generated(psk) => (Some(psk), Concatenation::None),
    };
    let connection = match initialize(params, generated).await {
        Err(error) if concatenation != Concatenation::None => {
            return Err(cause_of_refusal(params, error).await);
        }
        initialized => initialized?,
    };
    let timeout = params.options.end_timeout();
    let slots = CommandSlots::new(new.depth, new.reserves);
    let queue = HostQueue::start(connection, slots, admission.clone(), end.clone(), timeout);
    let unused = queue.clone();
    let guard = OnDrop::new(move || unused.close());
    // Only the admin queue has a keep alive timeout.
    let keep_alive = if new.qid == 0 { params.options.keep_alive } else { Duration::ZERO };
    let entries = u32::from(new.depth) + u32::from(new.reserves) + 1;
    let command = ConnectCommand::new(0, new.qid, entries, keep_alive.as_millis() as u32, false)
        .ok_or(HostError::Options("a queue needs at least 2 entries"))?;
    let data =
        ConnectData::new(params.host_id, new.controller_id, &params.subnqn, &params.host_nqn);
    let mut payload = buf::alloc_small(CONNECT_DATA_BYTES);
    payload.copy_from_slice(data.bytes());
    let connected =
        ask(&queue, "Connect", command.command(), CommandData::Out(payload.freeze())).await?.0;
    let result = ConnectResult::from_dw0(connected.dw0.get());
    if result.secure_channel_required && concatenation == Concatenation::None {
        return Err(HostError::Unsupported("a secure channel"));
    }
    let mut psk = None;
    // A generated PSK is the proof of all queues. It is not repeated: some targets, as Linux's of
    // today, cannot authenticate over TLS.
    let mut authenticated = false;
    let mut is_proven = new.is_proven;
    if result.authentication_required || result.secure_channel_required {
        psk = authenticate(&queue, params, concatenation).await?;
        authenticated = concatenation == Concatenation::None && generated.is_none();
    } else if concatenation != Concatenation::None {
        return Err(HostError::NoConcatenation);
    } else if params.expects_proof() && generated.is_none() && new.is_proven {
        // A generated PSK proves it, as the exchange that made it did.
        let outcome = authenticate_unasked(&queue, params).await?;
        is_proven = outcome == UnaskedOutcome::Authenticated;
        authenticated = is_proven;
    }
    let repeats = !params.options.reauthentication_interval.is_zero();
    // Without a slot of its own, it would have to compete with calls.
    if authenticated && repeats && (new.qid == 0 || new.reserves) {
        queue.set_reauthenticates();
    }
    guard.disarm();
    Ok(ConnectedQueue { queue, result, is_proven, psk })
}

impl AdminController {
    /// Connects to a controller and enables it.
    pub(super) async fn connect(
        params: &ConnectParams,
        admission: Rc<CommandQueue>,
    ) -> Result<AdminController, HostError> {
        let end = Rc::new(AssociationEnd::default());
        let generated = match params.concatenates() {
            true => Some(concatenate(params).await?),
            false => None,
        };
        let channel = Channel::of(generated.as_ref());
        let connected = connect_queue(params, channel, &admission, &end, &NewQueue::ADMIN).await?;
        let mut admin = AdminController {
            queue: connected.queue,
            end,
            admission,
            is_proven: connected.is_proven,
            generated: RefCell::new(generated),
            controller_id: connected.result.controller_id,
            capabilities: Capabilities::default(),
            version: Version::default(),
        };
        admin.enable().await.map_err(|error| admin.end.explain(error))?;
        Ok(admin)
    }

    async fn enable(&mut self) -> Result<(), HostError> {
        self.capabilities = Capabilities(self.get(Property::CAP, PropertySize::EIGHT).await?);
        self.version = Version(self.get(Property::VS, PropertySize::FOUR).await? as u32);
        self.set(Property::CC, self.enabled().0).await?;
        self.until(|status| status.ready() == 1).await
    }

    /// CC of an enabled controller.
    fn enabled(&self) -> Configuration {
        Configuration::default()
            .with_enable(1)
            .with_page_exponent(self.capabilities.min_page_exponent() as u32)
            .with_sqe_exponent(6)
            .with_cqe_exponent(4)
    }

    /// Waits for a controller status, bounded by the caller's timeout.
    async fn until(&self, reached: impl Fn(ControllerStatus) -> bool) -> Result<(), HostError> {
        loop {
            let status = self.get(Property::CSTS, PropertySize::FOUR).await? as u32;
            let status = ControllerStatus(status);
            if status.fatal() == 1 {
                return Err(HostError::InvalidProperties("the controller has failed (CSTS.CFS)"));
            }
            if reached(status) {
                return Ok(());
            }
            time::sleep(POLL_PAUSE).await;
        }
    }

    async fn get(&self, property: Property, size: PropertySize) -> Result<u64, HostError> {
        let command = PropertyCommand::get(0, property, size).command();
        let answer = ask(&self.queue, "Property Get", command, CommandData::None).await?.0;
        Ok(answer.result())
    }

    async fn set(&self, property: Property, value: u32) -> Result<(), HostError> {
        let command = PropertyCommand::set(0, property, PropertySize::FOUR, value.into());
        ask(&self.queue, "Property Set", command.command(), CommandData::None).await.map(drop)
    }

    /// Shuts the controller down, which makes its cached data durable.
    pub(super) async fn shut_down(&self) -> Result<(), HostError> {
        let configuration = self.enabled().with_shutdown(shutdown::NORMAL);
        self.set(Property::CC, configuration.0).await?;
        self.until(|status| status.shutdown_status() == shutdown_status::COMPLETE).await
    }

    /// Reads the Identify structure `cns`. Its memory may exceed the ceiling, because calls that
    /// wait for this connection may hold all pooled memory.
    async fn identify<T: Wire + Copy>(
        &self,
        what: &'static str,
        cns: Cns,
        nsid: u32,
    ) -> Result<T, HostError> {
        const { assert!(T::BYTES == IDENTIFY_BYTES) };
        let answer = self.identify_bytes(what, cns, nsid).await?;
        Ok(*T::view(&answer).expect("as long as was asked for"))
    }

    async fn identify_bytes(
        &self,
        what: &'static str,
        cns: Cns,
        nsid: u32,
    ) -> Result<BufMut, HostError> {
        let place = CommandData::In(buf::alloc_small(IDENTIFY_BYTES));
        let command = Identify::new(cns, nsid).command(0);
        match ask(&self.queue, what, command, place).await?.1 {
            CommandData::In(answer) => Ok(answer),
            _ => unreachable!("the place comes back"),
        }
    }

    /// Validated properties of the controller.
    pub(super) async fn controller(&self) -> Result<ControllerLimits, HostError> {
        let identify: IdentifyController =
            self.identify("Identify Controller", Cns::CONTROLLER, 0).await?;
        ControllerLimits::new(self.capabilities, &identify)
    }

    /// The requested namespace, or the only one.
    pub(super) async fn namespace(
        &self,
        controller: &ControllerLimits,
        wanted: Option<u32>,
    ) -> Result<NamespaceShape, HostError> {
        let above = match wanted {
            Some(nsid @ 1..=NAMESPACE_ID_MAX) => nsid - 1,
            Some(_) => return Err(HostError::NoNamespace),
            None => 0,
        };
        let list: NamespaceList =
            self.identify("the list of namespaces", Cns::ACTIVE_NAMESPACES, above).await?;
        let mut listed = list.iter();
        let nsid = listed.next().ok_or(HostError::NoNamespace)?;
        match wanted {
            Some(wanted) if wanted != nsid => return Err(HostError::NoNamespace),
            None if listed.next().is_some() => return Err(HostError::SeveralNamespaces),
            _ => {}
        }
        if !(1..=NAMESPACE_ID_MAX).contains(&nsid) {
            return Err(HostError::InvalidProperties("an invalid namespace identifier"));
        }
        let identify: IdentifyNamespace =
            self.identify("Identify Namespace", Cns::NAMESPACE, nsid).await?;
        let limits = self.limits().await?;
        let mut shape = controller.namespace(nsid, &identify, &limits)?;
        shape.geometry.volatile_cache &= !self.is_without_cache(nsid).await?;
        shape.identity.uuid = self.uuid(nsid).await?;
        Ok(shape)
    }

    /// UUID of the namespace. Targets that report one may leave the older identifiers zero.
    async fn uuid(&self, nsid: u32) -> Result<Option<[u8; 16]>, HostError> {
        let what = "the identifiers of the namespace";
        match self.identify_bytes(what, Cns::NAMESPACE_DESCRIPTORS, nsid).await {
            Ok(list) => Ok(descriptors(&list).find_map(|descriptor| match descriptor {
                NamespaceDescriptor::Uuid(uuid) => Some(uuid),
                _ => None,
            })),
            Err(error) if is_unknown(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// True if the namespace reports no volatile write cache, although its controller has one for
    /// others. Such a namespace may come and go, which must not change this one.
    async fn is_without_cache(&self, nsid: u32) -> Result<bool, HostError> {
        if self.version.major() < 2 {
            return Ok(false);
        }
        let what = "Identify Namespace of all command sets";
        match self.identify_bytes(what, Cns::INDEPENDENT_NAMESPACE, nsid).await {
            Ok(data) => Ok(IndependentNamespace::view(&data)
                .is_some_and(|namespace| namespace.features & NO_VOLATILE_CACHE != 0)),
            Err(error) if is_unknown(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Limits of the NVM command set; no limits for older controllers.
    async fn limits(&self) -> Result<NvmController, HostError> {
        let none = NvmController::default();
        if self.version.major() < 2 {
            return Ok(none);
        }
        match self.identify("Identify Controller", Cns::COMMAND_SET_CONTROLLER, 0).await {
            Err(HostError::Refused { .. }) => Ok(none),
            reported => reported,
        }
    }

    /// Enables events for changed namespaces. Returns whether the controller supports them.
    pub(super) async fn subscribe(&self, events: u32) -> Result<bool, HostError> {
        if !EventMask(events).contains(EventMask::NAMESPACE_ATTRIBUTE) {
            return Ok(false);
        }
        let mask = EventMask::NAMESPACE_ATTRIBUTE.0;
        let command = Sqe::set_features(0, FeatureId::ASYNC_EVENTS, mask);
        match ask(&self.queue, "events", command, CommandData::None).await {
            Ok(_) => Ok(true),
            Err(HostError::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Number of I/O queues that the controller grants of `wanted`.
    async fn grant(&self, wanted: u16) -> Result<u16, HostError> {
        let asked = NumberOfQueues { submission: wanted, completion: wanted };
        let command = Sqe::set_features(0, FeatureId::NUMBER_OF_QUEUES, asked.to_dword());
        let answer = ask(&self.queue, "I/O queues", command, CommandData::None).await?.0;
        let given = NumberOfQueues::from_result(answer.dw0.get());
        Ok(given.submission.min(given.completion).min(wanted))
    }

    /// Connects the I/O queues.
    pub(super) async fn io_queues(
        &self,
        params: &ConnectParams,
        controller: &ControllerLimits,
    ) -> Result<IoQueues, HostError> {
        let has_key = self.queue.reauthenticates() && !params.concatenates();
        let (depth, reserves) = controller.depth(params.options.queue_depth, has_key);
        let count = self.grant(params.options.queues).await?;
        let mut queues = IoQueues(Vec::with_capacity(count.into()));
        let generated = self.generated.take();
        if params.concatenates() && generated.is_none() {
            // Never without TLS: another association makes another PSK.
            return Err(HostError::Closed);
        }
        for qid in 1..=count {
            let controller_id = self.controller_id;
            let is_proven = self.is_proven;
            let new = NewQueue { qid, depth, reserves, controller_id, is_proven };
            let channel = Channel::of(generated.as_ref());
            let connected = connect_queue(params, channel, &self.admission, &self.end, &new);
            let queue = connected.await?.queue;
            queue.set_in_capsule_bytes(controller.in_capsule_bytes);
            queues.0.push(queue);
        }
        Ok(queues)
    }
}

/// I/O queues of an association. Dropping it closes them.
pub(super) struct IoQueues(pub(super) Vec<Rc<HostQueue>>);

impl Drop for IoQueues {
    fn drop(&mut self) {
        for queue in &self.0 {
            queue.close();
        }
    }
}
