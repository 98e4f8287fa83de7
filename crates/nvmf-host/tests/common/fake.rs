//! Fake target at protocol level: behaves like a small target except where a test overrides it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flagstone_nvme::command::admin::GetLogPage;
use flagstone_nvme::command::fabrics::{ConnectCommand, ConnectResult, PropertyCommand};
use flagstone_nvme::command::io::BlockCommand;
use flagstone_nvme::digest::wire_digest;
use flagstone_nvme::feature::{FeatureId, NumberOfQueues};
use flagstone_nvme::identify::controller::optional_io;
use flagstone_nvme::identify::{
    Cns, DescriptorWriter, IdentifyController, IdentifyNamespace, LbaFormat, NamespaceDescriptor,
    NamespaceList,
};
use flagstone_nvme::log::LogId;
use flagstone_nvme::pdu::{
    CapsuleCmd, DataFlags, DataHeader, Digests, Encoder, InitializeRequest, InitializeResponse,
    PduType, TermReqHeader,
};
use flagstone_nvme::property::{Capabilities, Configuration, ControllerStatus, Property, Version};
use flagstone_nvme::wire::{U16, U32, U64, Wire};
use flagstone_nvme::{AdminOpcode, Cqe, FabricsType, IoOpcode, Sqe, Status};
use flagstone_runtime::limits::BUF_MIN_BYTES;
use flagstone_runtime::net::{Address, Listener, Stream};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{buf, spawn, spawn_detached, time};

use super::any_port;

pub const BLOCK_BYTES: usize = 512;
pub const DISK_BYTES: usize = 1 << 20;
/// Largest in-capsule data, in bytes.
pub const IN_CAPSULE_BYTES: u32 = 8192;

/// Received I/O command, with helpers for wrong responses.
pub struct Io {
    pub command: Sqe,
    pub encoder: Encoder,
    /// I/O commands before it, over all connections.
    pub number: usize,
}

impl Io {
    pub fn cid(&self) -> u16 {
        self.command.cid.get()
    }

    pub fn response(&self, cid: u16, status: Status) -> Vec<u8> {
        pdu(|out| self.encoder.capsule_resp(out, &Cqe::new(cid, status)))
    }

    pub fn data(&self, cid: u16, offset: u32, data: &[u8], flags: DataFlags) -> Vec<u8> {
        let mut bytes =
            pdu(|out| self.encoder.c2h_data(out, cid, offset, data.len() as u32, flags));
        bytes.extend_from_slice(data);
        if self.encoder.digests().data {
            bytes.extend_from_slice(&wire_digest(data));
        }
        bytes
    }

    pub fn r2t(&self, cid: u16, tag: u16, offset: u32, len: u32) -> Vec<u8> {
        pdu(|out| self.encoder.r2t(out, cid, tag, offset, len))
    }
}

fn pdu(write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Vec<u8> {
    let mut out = vec![0; 256];
    let len = write(&mut out).expect("a PDU that can be written");
    out.truncate(len);
    out
}

type Change<T> = Option<Box<dyn Fn(&mut T)>>;

/// Response to an I/O command; `None` for the correct one.
type OnIo = Box<dyn Fn(&Io) -> Option<Vec<u8>>>;

/// Current contents of the discovery log.
type OnLog = Box<dyn Fn() -> Vec<u8>>;

/// Answer to an authentication command.
pub enum AuthenticationAnswer {
    Status(Status),
    /// The message that is fetched.
    Message(Vec<u8>),
    Silence,
}

/// Answer to an authentication command with its message.
type OnAuthentication = Box<dyn Fn(FabricsType, &[u8]) -> AuthenticationAnswer>;

/// Deviations from a conforming target.
#[derive(Default)]
pub struct Quirks {
    pub initialize: Change<InitializeResponse>,
    pub capabilities: Change<Capabilities>,
    pub controller: Change<IdentifyController>,
    pub namespace: Change<IdentifyNamespace>,
    pub namespaces: Change<NamespaceList>,
    pub io: Option<OnIo>,
    /// Connect asks for authentication.
    pub requires_authentication: bool,
    pub authentication: Option<OnAuthentication>,
    /// The discovery log.
    pub discovery: Option<OnLog>,
}

/// State shared by all connections of a fake.
pub struct State {
    quirks: Quirks,
    pub disk: RefCell<Vec<u8>>,
    configuration: Cell<Configuration>,
    /// Byte of the UUID of the namespace, which has no other identifier.
    pub uuid: Cell<u8>,
    /// TermReqs received from the host.
    pub reported: RefCell<Vec<TermReqHeader>>,
    /// I/O commands received.
    pub commands: Cell<usize>,
    pub connections: Cell<usize>,
    /// Connections that the host has ended and the fake has not.
    pub half_closed: Cell<usize>,
    /// Do not end connections that the host has ended.
    pub lingers: Cell<bool>,
    /// Length of each PDU sent.
    pub sent: RefCell<Vec<usize>>,
    /// Bytes to send before connections are cut.
    pub cut_after: Cell<usize>,
    /// PDUs to send before it stops responding.
    pub silent_after: Cell<usize>,
}

pub struct Fake {
    pub address: Address,
    pub state: Rc<State>,
    _accept: AbortOnDrop<()>,
}

impl Fake {
    pub fn start(quirks: Quirks) -> Fake {
        let disk = (0..DISK_BYTES).map(|at| (at / BLOCK_BYTES) as u8 ^ at as u8).collect();
        let state = Rc::new(State {
            quirks,
            disk: RefCell::new(disk),
            configuration: Cell::default(),
            uuid: Cell::new(1),
            reported: RefCell::default(),
            commands: Cell::new(0),
            connections: Cell::new(0),
            half_closed: Cell::new(0),
            lingers: Cell::new(false),
            sent: RefCell::default(),
            cut_after: Cell::new(usize::MAX),
            silent_after: Cell::new(usize::MAX),
        });
        let listener = Listener::bind(&any_port()).unwrap();
        let address = listener.address().clone();
        let shared = state.clone();
        let accept = spawn(async move {
            while let Ok(stream) = listener.accept().await {
                shared.connections.set(shared.connections.get() + 1);
                let mut peer = Peer::new(shared.clone());
                spawn_detached(async move {
                    peer.serve(&stream).await;
                    let half_closed = &peer.state.half_closed;
                    half_closed.set(half_closed.get() + 1);
                    while peer.state.lingers.get() {
                        time::sleep(Duration::from_millis(1)).await;
                    }
                    half_closed.set(half_closed.get() - 1);
                    stream.shutdown();
                });
            }
        });
        Fake { address, state, _accept: accept.abort_on_drop() }
    }

    /// Fake with I/O responses from `io`.
    pub fn with_io(io: impl Fn(&Io) -> Option<Vec<u8>> + 'static) -> Fake {
        Fake::start(Quirks { io: Some(Box::new(io)), ..Quirks::default() })
    }

    /// Disk contents at `offset`.
    pub fn content(&self, offset: usize, len: usize) -> Vec<u8> {
        self.state.disk.borrow()[offset..offset + len].to_vec()
    }
}

/// Write whose data was requested.
struct Write {
    cid: u16,
    at: usize,
    left: usize,
}

struct Peer {
    state: Rc<State>,
    encoder: Encoder,
    qid: u16,
    received: Vec<u8>,
    writes: Vec<Write>,
    ended: bool,
}

impl Peer {
    fn new(state: Rc<State>) -> Peer {
        Peer {
            state,
            encoder: Encoder::new(Digests::default(), 0),
            qid: 0,
            received: Vec::new(),
            writes: Vec::new(),
            ended: false,
        }
    }

    async fn serve(&mut self, stream: &Stream) {
        loop {
            while let Some(pdu) = self.next_pdu() {
                for answer in self.answer(&pdu) {
                    if !self.send(stream, &answer).await {
                        return;
                    }
                }
                if self.ended {
                    return;
                }
            }
            let place = buf::try_alloc(256 << 10);
            let place = place.unwrap_or_else(|| buf::alloc_small(BUF_MIN_BYTES));
            let (result, bytes) = stream.recv(place).await;
            match result {
                Ok(count @ 1..) => self.received.extend_from_slice(&bytes[..count]),
                _ => return,
            }
        }
    }

    fn next_pdu(&mut self) -> Option<Vec<u8>> {
        let len = u32::from_le_bytes(self.received.get(4..8)?.try_into().unwrap()) as usize;
        (self.received.len() >= len).then(|| self.received.drain(..len).collect())
    }

    /// Returns false when the connection is to be cut.
    async fn send(&self, stream: &Stream, bytes: &[u8]) -> bool {
        let silent = self.state.silent_after.get();
        if silent == 0 {
            return true;
        }
        self.state.silent_after.set(silent - 1);
        self.state.sent.borrow_mut().push(bytes.len());
        let allowed = self.state.cut_after.get();
        let part = bytes.len().min(allowed);
        self.state.cut_after.set(allowed - part);
        // Small buffers, so that the fake works at the memory ceiling.
        for piece in bytes[..part].chunks(BUF_MIN_BYTES) {
            let mut out = buf::alloc_small(piece.len());
            out.copy_from_slice(piece);
            if stream.send_buf(out.freeze()).await.is_err() {
                return false;
            }
        }
        part == bytes.len()
    }

    fn answer(&mut self, pdu: &[u8]) -> Vec<Vec<u8>> {
        match PduType(pdu[0]) {
            PduType::IC_REQ => vec![self.initialize(pdu)],
            PduType::CAPSULE_CMD => {
                let command = CapsuleCmd::view(pdu).unwrap().command;
                let offset = usize::from(pdu[3]);
                let len = if offset == 0 { 0 } else { command.data.data_bytes.get() as usize };
                self.command(&command, &pdu[offset..offset + len])
            }
            PduType::H2C_DATA => self.h2c_data(pdu),
            PduType::H2C_TERM_REQ => {
                self.state.reported.borrow_mut().push(*TermReqHeader::view(pdu).unwrap());
                self.ended = true;
                Vec::new()
            }
            other => panic!("a host does not send {other}"),
        }
    }

    fn initialize(&mut self, pdu: &[u8]) -> Vec<u8> {
        let request = InitializeRequest::view(pdu).unwrap();
        request.check().unwrap();
        let mut response = InitializeResponse::new(request.digests(), 0, 8192);
        if let Some(change) = &self.state.quirks.initialize {
            change(&mut response);
        }
        self.encoder = Encoder::new(request.digests(), 0);
        response.bytes().to_vec()
    }

    fn command(&mut self, command: &Sqe, data: &[u8]) -> Vec<Vec<u8>> {
        if command.opcode == FabricsType::OPCODE {
            return vec![self.fabrics(command, data)];
        }
        if self.qid == 0 { self.admin(command) } else { self.io(command, data) }
    }

    fn done(&self, command: &Sqe, result: u64) -> Vec<u8> {
        let cqe = Cqe::with_result(command.cid.get(), Status::SUCCESS, result);
        pdu(|out| self.encoder.capsule_resp(out, &cqe))
    }

    fn authentication(&self, command: &Sqe, message: &[u8]) -> Vec<u8> {
        let io = self.as_io(command, 0);
        let answer = self.state.quirks.authentication.as_ref().expect("no host needs it");
        match answer(command.fabrics_type().unwrap(), message) {
            AuthenticationAnswer::Status(status) => io.response(io.cid(), status),
            AuthenticationAnswer::Silence => Vec::new(),
            AuthenticationAnswer::Message(message) => {
                let flags = DataFlags { last: true, success: false };
                [io.data(io.cid(), 0, &message, flags), self.done(command, 0)].concat()
            }
        }
    }

    fn fabrics(&mut self, command: &Sqe, data: &[u8]) -> Vec<u8> {
        let state = self.state.clone();
        let property = PropertyCommand::of(command);
        match command.fabrics_type().unwrap() {
            FabricsType::CONNECT => {
                self.qid = ConnectCommand::of(command).qid.get();
                let result = ConnectResult {
                    controller_id: 1,
                    authentication_required: state.quirks.requires_authentication,
                    secure_channel_required: false,
                };
                self.done(command, result.to_dw0().into())
            }
            FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE => {
                self.authentication(command, data)
            }
            FabricsType::PROPERTY_SET => {
                state.configuration.set(Configuration(property.value.get() as u32));
                self.done(command, 0)
            }
            FabricsType::PROPERTY_GET => {
                let configuration = state.configuration.get();
                let value = match property.property() {
                    Property::CAP => {
                        let mut capabilities = Capabilities::default()
                            .with_max_queue_entries_0based(127)
                            .with_timeout_500ms(20)
                            .with_command_sets(1);
                        if let Some(change) = &state.quirks.capabilities {
                            change(&mut capabilities);
                        }
                        capabilities.0
                    }
                    Property::VS => Version::V1_4.0.into(),
                    Property::CSTS => {
                        let status = ControllerStatus::default().with_ready(configuration.enable());
                        let shut = if configuration.shutdown() == 0 { 0 } else { 2 };
                        status.with_shutdown_status(shut).0.into()
                    }
                    other => panic!("no host needs {other}"),
                };
                self.done(command, value)
            }
            other => panic!("no host needs {other}"),
        }
    }

    fn admin(&self, command: &Sqe) -> Vec<Vec<u8>> {
        match AdminOpcode(command.opcode) {
            AdminOpcode::IDENTIFY => self.identify(command),
            AdminOpcode::SET_FEATURES => {
                let queues = command.cdw10.get() as u8 == FeatureId::NUMBER_OF_QUEUES.0;
                let asked = NumberOfQueues::from_request(command.cdw11.get());
                let result = if queues { asked.unwrap().to_dword() } else { 0 };
                vec![self.done(command, result.into())]
            }
            AdminOpcode::GET_LOG_PAGE => self.log(&GetLogPage::parse(command), command),
            AdminOpcode::KEEP_ALIVE => vec![self.done(command, 0)],
            // No events.
            AdminOpcode::ASYNC_EVENT_REQUEST => Vec::new(),
            other => panic!("no host needs {other}"),
        }
    }

    fn log(&self, page: &GetLogPage, command: &Sqe) -> Vec<Vec<u8>> {
        let log = match (&self.state.quirks.discovery, page.log) {
            (Some(discovery), LogId::DISCOVERY) => discovery(),
            (_, LogId::CHANGED_NAMESPACES) => vec![0; 4096],
            (_, other) => panic!("no host needs {other}"),
        };
        let (start, len) = (page.offset as usize, page.data_bytes as usize);
        self.with_data(command, &log[start..start + len])
    }

    fn identify(&self, command: &Sqe) -> Vec<Vec<u8>> {
        let quirks = &self.state.quirks;
        match Cns(command.cdw10.get() as u8) {
            Cns::CONTROLLER => {
                let mut controller = IdentifyController {
                    sgl: U32::new(1),
                    max_transfer_exponent: 5,
                    keep_alive_100ms: U16::new(1),
                    max_commands: U16::new(127),
                    optional_io: U16::new(
                        optional_io::WRITE_ZEROES | optional_io::DATASET_MANAGEMENT,
                    ),
                    volatile_write_cache: 1,
                    ..Default::default()
                };
                controller.set_capsules(IN_CAPSULE_BYTES);
                if let Some(change) = &quirks.controller {
                    change(&mut controller);
                }
                self.with_data(command, controller.bytes())
            }
            Cns::ACTIVE_NAMESPACES => {
                let mut list = NamespaceList { ids: [U32::ZERO; 1024] };
                list.fill(command.nsid.get(), [1]);
                if let Some(change) = &quirks.namespaces {
                    change(&mut list);
                }
                self.with_data(command, list.bytes())
            }
            Cns::NAMESPACE => {
                let mut namespace = IdentifyNamespace {
                    size_blocks: U64::new((DISK_BYTES / BLOCK_BYTES) as u64),
                    deallocate_features: 0b1001,
                    ..Default::default()
                };
                namespace.formats[0] = LbaFormat::new(BLOCK_BYTES.trailing_zeros() as u8);
                if let Some(change) = &quirks.namespace {
                    change(&mut namespace);
                }
                self.with_data(command, namespace.bytes())
            }
            Cns::NAMESPACE_DESCRIPTORS => {
                let mut list = [0; 4096];
                let mut writer = DescriptorWriter::new(&mut list);
                writer.push(&NamespaceDescriptor::Uuid([self.state.uuid.get(); 16])).unwrap();
                self.with_data(command, &list)
            }
            other => panic!("no host needs {other}"),
        }
    }

    fn as_io(&self, command: &Sqe, number: usize) -> Io {
        Io { command: *command, encoder: self.encoder, number }
    }

    fn with_data(&self, command: &Sqe, data: &[u8]) -> Vec<Vec<u8>> {
        let flags = DataFlags { last: true, success: false };
        let io = self.as_io(command, 0);
        vec![io.data(io.cid(), 0, data, flags), self.done(command, 0)]
    }

    fn io(&mut self, command: &Sqe, data: &[u8]) -> Vec<Vec<u8>> {
        let state = self.state.clone();
        let number = state.commands.replace(state.commands.get() + 1);
        if let Some(answer) = &state.quirks.io
            && let Some(bytes) = answer(&self.as_io(command, number))
        {
            return if bytes.is_empty() { Vec::new() } else { vec![bytes] };
        }
        let range = BlockCommand::parse(command).range;
        let at = range.start() as usize * BLOCK_BYTES;
        let len = range.blocks() as usize * BLOCK_BYTES;
        let mut disk = state.disk.borrow_mut();
        match IoOpcode(command.opcode) {
            IoOpcode::READ => return self.with_data(command, &disk[at..at + len]),
            IoOpcode::WRITE if data.is_empty() => {
                let write = Write { cid: command.cid.get(), at, left: len };
                self.writes.push(write);
                let io = self.as_io(command, number);
                return vec![io.r2t(io.cid(), io.cid(), 0, len as u32)];
            }
            IoOpcode::WRITE => disk[at..at + len].copy_from_slice(data),
            IoOpcode::WRITE_ZEROES => disk[at..at + len].fill(0),
            IoOpcode::FLUSH | IoOpcode::DATASET_MANAGEMENT => {}
            other => panic!("no host needs {other}"),
        }
        vec![self.done(command, 0)]
    }

    fn h2c_data(&mut self, pdu: &[u8]) -> Vec<Vec<u8>> {
        let header = DataHeader::view(pdu).unwrap();
        let (cid, offset) = (header.cid.get(), header.offset.get() as usize);
        let (start, len) = (usize::from(pdu[3]), header.data_bytes.get() as usize);
        let Some(index) = self.writes.iter().position(|write| write.cid == cid) else {
            return Vec::new();
        };
        let write = &mut self.writes[index];
        self.state.disk.borrow_mut()[write.at + offset..write.at + offset + len]
            .copy_from_slice(&pdu[start..start + len]);
        write.left -= len;
        if write.left > 0 {
            return Vec::new();
        }
        self.writes.remove(index);
        let cqe = Cqe::new(cid, Status::SUCCESS);
        vec![pdu_of(&self.encoder, &cqe)]
    }
}

fn pdu_of(encoder: &Encoder, cqe: &Cqe) -> Vec<u8> {
    pdu(|out| encoder.capsule_resp(out, cqe))
}
