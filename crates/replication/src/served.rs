//! Receiving end of the link: a mirror's own leg as a namespace with vendor-specific commands.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_mirror::Mirror;
use flagstone_mirror::session::target::TargetSession;
use flagstone_nvme::limits::NQN_BYTES;
use flagstone_nvme::replica::compressed::INFLATED_MAX_BYTES;
use flagstone_nvme::replica::{
    CompressedWrite, OrderedWrite, OrderedZeroes, ReplicaRequest, admin, io,
};
use flagstone_nvme::{AdminOpcode, IoOpcode, Nqn, Sqe, Status};
use flagstone_nvmf_target::{
    Charge, CommandReply, NamespaceConfig, SubsystemConfig, Target, TargetError, VendorCommands,
    VendorHandler, VendorHost, VendorSession,
};
use flagstone_runtime::{Buf, BufMut, buf};
use parking_lot::Mutex;

use crate::codec::inflate;
use crate::convert;

/// Suffix that makes the name of a volume's replication subsystem from the volume's name.
const SUFFIX: &str = ":replica";

/// Name of the replication subsystem of the volume that hosts know as `volume`; `None` when it
/// would be too long.
pub fn replication_nqn(volume: &Nqn) -> Option<Nqn> {
    let name = format!("{volume}{SUFFIX}");
    (name.len() <= NQN_BYTES).then(|| Nqn::new(&name).ok()).flatten()
}

/// Serves the mirror's own leg to its peers, as namespace 1 of the hidden subsystem `config`, whose
/// allow-list should name the peers. `uuid` identifies the namespace; it must not be 0 or the
/// volume's.
pub fn serve_replica(
    target: &Target,
    config: SubsystemConfig,
    uuid: [u8; 16],
    mirror: Arc<Mirror>,
) -> Result<(), TargetError> {
    let nqn = config.nqn;
    let handler = Arc::new(ReplicaHandler::new(mirror));
    let device: SharedDevice = Arc::new(LegDevice { geometry: handler.geometry, session: None });
    target.add_hidden_subsystem(config)?;
    let namespace = NamespaceConfig { nsid: Some(1), device, uuid, read_only: false };
    let added = target.add_vendor_namespace(&nqn, namespace, handler);
    if added.is_err() {
        target.remove_subsystem(&nqn)?;
    }
    added.map(drop)
}

/// Executes the requests of peers on a mirror's own leg.
pub struct ReplicaHandler {
    mirror: Arc<Mirror>,
    geometry: Geometry,
    /// By host name and identifier: all controllers of one host share a session.
    sessions: Mutex<BTreeMap<SourceKey, Weak<TargetSession>>>,
}

/// Name and identifier of a source's host.
type SourceKey = (Nqn, [u8; 16]);

impl ReplicaHandler {
    /// For the leg of `mirror`.
    pub fn new(mirror: Arc<Mirror>) -> ReplicaHandler {
        // The result of a discard depends on the device, so a leg is sent zeroes instead.
        let geometry = Geometry {
            can_discard: false,
            discard_zeroes: false,
            read_only: false,
            ..mirror.geometry()
        };
        ReplicaHandler { mirror, geometry, sessions: Mutex::default() }
    }
}

impl VendorHandler for ReplicaHandler {
    fn commands(&self) -> VendorCommands {
        VendorCommands { admin: &admin::ALL, io: &io::ALL }
    }

    fn session(&self, host: &VendorHost) -> Arc<dyn VendorSession> {
        let mut sessions = self.sessions.lock();
        sessions.retain(|_, session| session.strong_count() > 0);
        let known = sessions.entry((host.nqn, host.id)).or_default();
        let session = known.upgrade().unwrap_or_else(|| {
            let session = self.mirror.session();
            *known = Arc::downgrade(&session);
            session
        });
        Arc::new(ControllerSession { session, geometry: self.geometry })
    }
}

struct ControllerSession {
    session: Arc<TargetSession>,
    geometry: Geometry,
}

impl ControllerSession {
    fn ordered_write(
        &self,
        command: &Sqe,
        data: Option<Buf>,
        charge: Charge,
    ) -> Result<IoFuture<()>, Status> {
        let OrderedWrite { range, fua, order } = OrderedWrite::parse(command)?;
        let shift = self.geometry.block_bytes.trailing_zeros();
        range.check_within(self.geometry.blocks())?;
        let len = u64::from(range.blocks()) << shift;
        let data = data.filter(|data| data.len() as u64 == len);
        let data = data.ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
        let order = Some(convert::order_from_wire(order));
        let offset = range.start() << shift;
        let write = move |leg: &SharedDevice, durable| leg.write(offset, data, fua || durable);
        Ok(self.session.submit_in_order(order, || charge.queue(), write))
    }

    /// The inflated size is known in advance, and bounded.
    fn compressed_write(
        &self,
        command: &Sqe,
        data: Option<Buf>,
        charge: Charge,
    ) -> Result<IoFuture<()>, Status> {
        let write = CompressedWrite::parse(command)?;
        let shift = self.geometry.block_bytes.trailing_zeros();
        write.range.check_within(self.geometry.blocks())?;
        let len = u64::from(write.range.blocks()) << shift;
        if len > INFLATED_MAX_BYTES {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let data = data.filter(|data| u32::try_from(data.len()).ok() == write.sent_bytes());
        let data = data.ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
        let offset = write.range.start() << shift;
        let order = write.order.map(convert::order_from_wire);
        // Inflate only when the order permits it: waiting writes hold as little memory as possible.
        Ok(self.session.submit_in_order(
            order,
            || charge.queue(),
            move |leg, durable| {
                let leg = leg.clone();
                IoFuture::later(async move {
                    let mut place = buf::acquire_more(len as usize).await;
                    if !inflate(write.codec, &data[..write.compressed_bytes as usize], &mut place) {
                        // Reported as Invalid Field in Command.
                        return Err(IoError::Misaligned);
                    }
                    drop(data);
                    leg.write(offset, place.freeze(), write.fua || durable).await
                })
            },
        ))
    }

    fn ordered_zeroes(&self, command: &Sqe, charge: Charge) -> Result<IoFuture<()>, Status> {
        let zeroes = OrderedZeroes::parse(command)?;
        let shift = self.geometry.block_bytes.trailing_zeros();
        zeroes.check_within(self.geometry.blocks())?;
        let (offset, len) = (zeroes.start << shift, zeroes.blocks << shift);
        let order = Some(convert::order_from_wire(zeroes.order));
        let zero = move |leg: &SharedDevice, durable| {
            let (fua, may_deallocate) = (zeroes.fua || durable, zeroes.deallocate);
            leg.write_zeroes(offset, len, ZeroFlags { fua, may_deallocate, fast_only: false })
        };
        Ok(self.session.submit_in_order(order, || charge.queue(), zero))
    }
}

impl VendorSession for ControllerSession {
    fn device(&self) -> SharedDevice {
        Arc::new(LegDevice { geometry: self.geometry, session: Some(self.session.clone()) })
    }

    /// True until the session attaches, which is the task of its host.
    fn is_cut_off(&self) -> bool {
        !self.session.is_attached()
    }

    fn reply_bytes(&self, command: &Sqe) -> Result<usize, Status> {
        // Data goes in one direction: a request with data is parsed together with it.
        match ReplicaRequest::sent_bytes(AdminOpcode(command.opcode)) {
            Some(1..) => Ok(0),
            _ => ReplicaRequest::parse(command, &[]).map(|request| request.reply_bytes()),
        }
    }

    fn admin(&self, command: &Sqe, data: &[u8], place: Option<BufMut>) -> IoFuture<CommandReply> {
        let request = match ReplicaRequest::parse(command, data) {
            Ok(request) => convert::from_wire(request),
            Err(status) => return IoFuture::ready(Ok(CommandReply::failure(status, 0))),
        };
        let Some(request) = request else {
            let status = Status::INVALID_FIELD.dnr();
            return IoFuture::ready(Ok(CommandReply::failure(status, 0)));
        };
        let answer = self.session.ask(request);
        IoFuture::later(async move {
            Ok(match answer.await? {
                Ok(reply) => {
                    let mut place = place;
                    match convert::put_reply(&reply, place.as_deref_mut().unwrap_or_default()) {
                        true => CommandReply::success(place),
                        false => CommandReply::failure(Status::INTERNAL_ERROR.dnr(), 0),
                    }
                }
                Err(refusal) => {
                    let (status, result) = convert::refusal_to_wire(refusal);
                    CommandReply::failure(status, result)
                }
            })
        })
    }

    fn io(&self, command: &Sqe, data: Option<Buf>, charge: Charge) -> IoFuture<CommandReply> {
        let begun = match IoOpcode(command.opcode) {
            io::WRITE => self.ordered_write(command, data, charge),
            io::COMPRESSED_WRITE => self.compressed_write(command, data, charge),
            _ => self.ordered_zeroes(command, charge),
        };
        match begun {
            Err(status) => IoFuture::ready(Ok(CommandReply::failure(status, 0))),
            Ok(done) => IoFuture::later(async move {
                done.await?;
                Ok(CommandReply::success(None))
            }),
        }
    }
}

/// The leg as read and written by a source, attached or not. Without a session, all calls fail.
struct LegDevice {
    geometry: Geometry,
    session: Option<Arc<TargetSession>>,
}

impl LegDevice {
    fn call<T>(&self, make: impl FnOnce(&TargetSession) -> IoFuture<T>) -> IoFuture<T> {
        match &self.session {
            Some(session) => make(session),
            None => IoFuture::ready(Err(IoError::Unreachable)),
        }
    }
}

impl BlockDevice for LegDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.call(|session| session.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.call(|session| session.write(offset, data, fua, None))
    }

    fn flush(&self) -> IoFuture<()> {
        self.call(TargetSession::flush)
    }

    fn discard(&self, _: u64, _: u64) -> IoFuture<()> {
        // A discard is only a hint.
        IoFuture::ready(Ok(()))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.call(|session| session.write_zeroes(offset, len, flags, None))
    }
}
