//! Raw NVMe/TCP client: sends arbitrary bytes, and checks everything that it receives.

use flagstone_nvme::command::fabrics::{
    CONTROLLER_ID_DYNAMIC, ConnectCommand, ConnectData, ConnectResult, PropertyCommand,
};
use flagstone_nvme::command::io::BlockRange;
use flagstone_nvme::digest::{crc32c, wire_digest};
use flagstone_nvme::limits::ENCODED_HEADER_MAX_BYTES;
use flagstone_nvme::pdu::{
    CapsuleResp, CommonHeader, DataHeader, Digests, Encoder, Fatal, Frame, InitializeRequest,
    InitializeResponse, PduKind, R2tHeader, Receiver, Rules, TermReqHeader,
};
use flagstone_nvme::property::{Configuration, ControllerStatus, Property, PropertySize};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::{Cqe, Nqn, Sqe, Status, Wire};
use flagstone_runtime::net::{Socket, Stream};
use flagstone_runtime::{Buf, BufMut, buf, io_engine_name, time};

use super::{Server, eventually, net, subsystem};

/// Largest read of these tests.
const DATA_MAX_BYTES: u32 = 32 << 20;

/// Received PDU.
#[derive(Debug)]
pub enum Pdu {
    Initialized(InitializeResponse),
    Response(Cqe),
    Data { header: DataHeader, data: Vec<u8> },
    R2t(R2tHeader),
    Terminated { fatal: Fatal, offending: Vec<u8> },
    Closed,
}

/// Connect options of a host.
#[derive(Clone, Debug)]
pub struct Options {
    pub digests: Digests,
    pub alignment: u8,
    pub max_r2t: u32,
    pub entries: u32,
    pub flow_control: bool,
    pub keep_alive_ms: u32,
    pub host: Nqn,
    pub host_id: [u8; 16],
    pub subsystem: Nqn,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            digests: Digests::default(),
            alignment: 0,
            max_r2t: 1,
            entries: 128,
            flow_control: false,
            keep_alive_ms: 0,
            host: Nqn::from_uuid([7; 16]),
            host_id: [9; 16],
            subsystem: subsystem(),
        }
    }
}

/// One connection.
pub struct Client {
    pub stream: Stream,
    /// The same, or TLS over it.
    socket: Socket,
    /// Receive buffer, once memory was set aside for it.
    place: Option<BufMut>,
    received: Vec<u8>,
    at: usize,
    rules: Rules,
    pub encoder: Encoder,
    pub max_h2c_data_bytes: usize,
    flow_control: bool,
}

impl Client {
    /// Opens a TCP connection without sending.
    pub async fn open(server: &Server) -> Client {
        let stream = Stream::connect(&server.address).await.unwrap();
        Client::over(stream.into())
    }

    fn over(socket: Socket) -> Client {
        Client {
            stream: socket.stream().clone(),
            socket,
            place: None,
            received: Vec::new(),
            at: 0,
            rules: Rules::initial(Receiver::Host),
            encoder: Encoder::new(Digests::default(), 0),
            max_h2c_data_bytes: 0,
            flow_control: false,
        }
    }

    /// Also exchanges ICReq and ICResp.
    pub async fn initialized(server: &Server, options: &Options) -> Client {
        Client::open(server).await.initialize(options).await
    }

    /// The same over an encrypted stream.
    pub async fn initialized_over(socket: Socket, options: &Options) -> Client {
        Client::over(socket).initialize(options).await
    }

    async fn initialize(self, options: &Options) -> Client {
        let mut client = self;
        let request = InitializeRequest::new(options.digests, options.alignment, options.max_r2t);
        client.send(request.bytes()).await;
        let Pdu::Initialized(response) = client.pdu().await else { panic!("no ICResp") };
        response.check(options.digests).unwrap();
        let digests = response.digests();
        client.rules = Rules::of_host(digests, options.alignment, DATA_MAX_BYTES);
        client.encoder = Encoder::new(digests, response.controller_alignment);
        client.max_h2c_data_bytes = response.max_h2c_data_bytes.get() as usize;
        client
    }

    /// Connects queue `qid` of `controller`; returns the completion.
    pub async fn connect(&mut self, options: &Options, qid: u16, controller: u16) -> Cqe {
        let entries = if qid == 0 { 32 } else { options.entries };
        let keep_alive_ms = if qid == 0 { options.keep_alive_ms } else { 0 };
        let command =
            ConnectCommand::new(0xc0, qid, entries, keep_alive_ms, options.flow_control).unwrap();
        self.connect_as(options, command, controller).await
    }

    /// Sends a given Connect command.
    pub async fn connect_as(
        &mut self,
        options: &Options,
        command: ConnectCommand,
        controller: u16,
    ) -> Cqe {
        let Options { host_id, subsystem, host, .. } = options;
        let data = ConnectData::new(*host_id, controller, subsystem, host);
        self.flow_control = options.flow_control;
        self.call_with(command.command(), data.bytes()).await
    }

    /// Sends raw bytes. An error is ignored when the target has closed.
    pub async fn send(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(1 << 20) {
            let mut place = buf::alloc(part.len()).await;
            place.copy_from_slice(part);
            if self.socket.send_buf(place.freeze()).await.is_err() {
                return;
            }
        }
    }

    /// Sends from preallocated memory.
    pub async fn send_through(&mut self, mut place: BufMut, bytes: &[u8]) -> BufMut {
        for part in bytes.chunks(place.len()) {
            place[..part.len()].copy_from_slice(part);
            let whole = place.freeze();
            let _ = self.socket.send_buf(whole.slice(0..part.len())).await;
            place = whole.try_into_mut().expect("it was sent");
        }
        place
    }

    /// Receives without allocating from now on.
    pub async fn set_memory_aside(&mut self) {
        self.place = Some(buf::alloc(8 << 10).await);
    }

    /// Bytes of a command capsule with optional data.
    pub fn capsule(&self, command: &Sqe, data: &[u8]) -> Vec<u8> {
        let mut pdu = vec![0; ENCODED_HEADER_MAX_BYTES];
        let len = self.encoder.capsule_cmd(&mut pdu, command, data.len() as u32).unwrap();
        pdu.truncate(len);
        self.add_data(&mut pdu, data);
        pdu
    }

    /// Bytes of an H2CData PDU.
    pub fn h2c_data(&self, cid: u16, tag: u16, offset: u32, data: &[u8], last: bool) -> Vec<u8> {
        let mut pdu = vec![0; ENCODED_HEADER_MAX_BYTES];
        let bytes = data.len() as u32;
        let len = self.encoder.h2c_data(&mut pdu, cid, tag, offset, bytes, last).unwrap();
        pdu.truncate(len);
        self.add_data(&mut pdu, data);
        pdu
    }

    fn add_data(&self, pdu: &mut Vec<u8>, data: &[u8]) {
        pdu.extend_from_slice(data);
        if self.encoder.data_digest_bytes() > 0 && !data.is_empty() {
            pdu.extend_from_slice(&wire_digest(data));
        }
    }

    async fn have(&mut self, len: usize) -> bool {
        if self.received.len() - self.at >= len {
            return true;
        }
        self.received.drain(..std::mem::take(&mut self.at));
        while self.received.len() < len {
            let kept = self.place.take();
            let keeps = kept.is_some();
            let place = match kept {
                Some(place) => place,
                None => buf::alloc(64 << 10).await,
            };
            let (result, place) = self.socket.recv(place).await;
            match result {
                Ok(count @ 1..) => self.received.extend_from_slice(&place[..count]),
                _ => return false,
            }
            self.place = keeps.then_some(place);
        }
        true
    }

    /// Next PDU, which must be well-formed.
    pub async fn pdu(&mut self) -> Pdu {
        time::timeout(net(), self.next()).await.expect("the target says something")
    }

    async fn next(&mut self) -> Pdu {
        if !self.have(8).await {
            return Pdu::Closed;
        }
        let common = *CommonHeader::view(&self.received[self.at..]).unwrap();
        let frame = self.rules.check(&common).expect("what the target sends is well-formed");
        if !self.have(frame.pdu_bytes() as usize).await {
            return Pdu::Closed;
        }
        let bytes = &self.received[self.at..self.at + frame.pdu_bytes() as usize];
        frame.check_header_digest(bytes).unwrap();
        let pdu = meaning(&frame, bytes);
        self.at += bytes.len();
        pdu
    }

    /// Next PDU, which must be a response.
    pub async fn response(&mut self) -> Cqe {
        match self.pdu().await {
            Pdu::Response(completion) => completion,
            other => panic!("no response: {other:?}"),
        }
    }

    /// Next PDU, which must be an R2T.
    pub async fn r2t(&mut self) -> R2tHeader {
        match self.pdu().await {
            Pdu::R2t(r2t) => r2t,
            other => panic!("no R2T: {other:?}"),
        }
    }

    /// Expects a TermReq followed by the end of the stream. Earlier PDUs are skipped.
    pub async fn terminated(&mut self) -> Fatal {
        loop {
            match self.pdu().await {
                Pdu::Terminated { fatal, offending } => {
                    assert!(!offending.is_empty());
                    // A host closes immediately. In the simulation, check that the target closes by
                    // itself and sends nothing further.
                    if io_engine_name() != "simulation" {
                        self.stream.shutdown();
                    } else {
                        assert!(matches!(self.pdu().await, Pdu::Closed), "more after a TermReq");
                    }
                    return fatal;
                }
                Pdu::Closed => panic!("closed without a reason"),
                _ => {}
            }
        }
    }

    /// Expects the end of the stream without a TermReq.
    pub async fn closed(&mut self) {
        match self.pdu().await {
            Pdu::Closed => {}
            other => panic!("not closed: {other:?}"),
        }
    }

    /// Expects the target to end its side while a command is running. The close may wait for that
    /// command, so the check uses the target's state.
    pub async fn closed_soon(&mut self, server: &Server) {
        eventually("its controller is gone", || server.target.controllers() == 0).await;
    }

    /// Sends a command without host data.
    pub async fn submit(&mut self, command: Sqe) {
        let pdu = self.capsule(&command, &[]);
        self.send(&pdu).await;
    }

    /// Executes a command without data.
    pub async fn call(&mut self, command: Sqe) -> Cqe {
        self.submit(command).await;
        let completion = self.response().await;
        assert_eq!(completion.cid, command.cid);
        completion
    }

    /// Executes a command with in-capsule data.
    pub async fn call_with(&mut self, command: Sqe, data: &[u8]) -> Cqe {
        let pdu = self.capsule(&command, data);
        self.send(&pdu).await;
        let completion = self.response().await;
        assert_eq!(completion.cid, command.cid);
        completion
    }

    /// Executes a command that returns data.
    pub async fn ask(&mut self, command: Sqe) -> Result<Vec<u8>, Status> {
        self.submit(command).await;
        self.answer(command.cid.get(), command.data.data_bytes.get() as usize).await
    }

    /// Receives `bytes` bytes of data and success for command `cid`, or another status.
    pub async fn answer(&mut self, cid: u16, bytes: usize) -> Result<Vec<u8>, Status> {
        let (mut all, mut ended) = (Vec::new(), false);
        loop {
            match self.pdu().await {
                Pdu::Data { header, data } => {
                    assert!(!ended && header.cid.get() == cid);
                    assert_eq!(header.offset.get() as usize, all.len());
                    all.extend_from_slice(&data);
                    let flags = header.data_flags();
                    ended = flags.last;
                    assert!(!flags.success || (flags.last && !self.flow_control));
                    if flags.success {
                        assert_eq!(all.len(), bytes);
                        return Ok(all);
                    }
                }
                Pdu::Response(completion) => {
                    assert_eq!(completion.cid.get(), cid);
                    let status = completion.status();
                    if !status.is_success() {
                        return Err(status);
                    }
                    assert_eq!(all.len(), bytes);
                    return Ok(all);
                }
                other => panic!("no data: {other:?}"),
            }
        }
    }

    /// Reads `bytes` from block `start`.
    pub async fn read(
        &mut self,
        nsid: u32,
        start: u64,
        block_bytes: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, Status> {
        self.ask(Sqe::read(21, nsid, range(start, block_bytes, bytes), bytes as u32)).await
    }

    /// Writes `data` at block `start` with in-capsule data.
    pub async fn write(
        &mut self,
        nsid: u32,
        start: u64,
        block_bytes: u64,
        data: &[u8],
    ) -> Result<(), Status> {
        let sgl = SglDescriptor::in_capsule(data.len() as u32);
        let command = Sqe::write(22, nsid, range(start, block_bytes, data.len()), false, sgl);
        done(self.call_with(command, data).await)
    }

    /// Writes `data` at block `start` with R2Ts.
    pub async fn write_r2t(
        &mut self,
        nsid: u32,
        start: u64,
        block_bytes: u64,
        data: &[u8],
    ) -> Result<(), Status> {
        let sgl = SglDescriptor::transport(data.len() as u32);
        self.submit(Sqe::write(23, nsid, range(start, block_bytes, data.len()), false, sgl)).await;
        self.transfer(23, data).await
    }

    /// Sends `data` of command `cid` as requested by R2Ts, until the command completes.
    pub async fn transfer(&mut self, cid: u16, data: &[u8]) -> Result<(), Status> {
        loop {
            match self.pdu().await {
                Pdu::R2t(r2t) => {
                    assert_eq!(r2t.cid.get(), cid);
                    r2t.check(data.len() as u32).unwrap();
                    let pdus = self.data_for(&r2t, data);
                    self.send(&pdus).await;
                }
                Pdu::Response(completion) => {
                    assert_eq!(completion.cid.get(), cid);
                    return done(completion);
                }
                other => panic!("no R2T: {other:?}"),
            }
        }
    }

    /// Data requested by an R2T, in as few PDUs as possible.
    pub fn data_for(&self, r2t: &R2tHeader, data: &[u8]) -> Vec<u8> {
        let (mut at, end) =
            (r2t.offset.get() as usize, (r2t.offset.get() + r2t.data_bytes.get()) as usize);
        let mut pdus = Vec::new();
        while at < end {
            let next = end.min(at + self.max_h2c_data_bytes);
            let (cid, tag) = (r2t.cid.get(), r2t.transfer_tag.get());
            pdus.extend(self.h2c_data(cid, tag, at as u32, &data[at..next], next == end));
            at = next;
        }
        pdus
    }

    pub async fn property(&mut self, property: Property) -> u64 {
        let size = if property == Property::CAP { PropertySize::EIGHT } else { PropertySize::FOUR };
        let completion = self.call(PropertyCommand::get(31, property, size).command()).await;
        assert_eq!(completion.status(), Status::SUCCESS);
        completion.result()
    }

    pub async fn configure(&mut self, configuration: Configuration) -> Status {
        let value = u64::from(configuration.0);
        let set = PropertyCommand::set(32, Property::CC, PropertySize::FOUR, value);
        self.call(set.command()).await.status()
    }

    pub async fn status(&mut self) -> ControllerStatus {
        ControllerStatus(self.property(Property::CSTS).await as u32)
    }
}

fn meaning(frame: &Frame, bytes: &[u8]) -> Pdu {
    let start = usize::from(frame.data_offset);
    let end = start + frame.data_bytes as usize;
    match frame.kind {
        PduKind::IcResp => Pdu::Initialized(*InitializeResponse::view(bytes).unwrap()),
        PduKind::CapsuleResp => Pdu::Response(CapsuleResp::view(bytes).unwrap().completion),
        PduKind::R2t => Pdu::R2t(*R2tHeader::view(bytes).unwrap()),
        PduKind::TermReq => {
            let fatal = TermReqHeader::view(bytes).unwrap().fatal();
            Pdu::Terminated { fatal, offending: bytes[start..end].to_vec() }
        }
        PduKind::Data => {
            let header = *DataHeader::view(bytes).unwrap();
            header.check(frame).unwrap();
            let data = bytes[start..end].to_vec();
            if frame.data_digest_bytes > 0 {
                assert_eq!(bytes[end..end + 4], crc32c(&data).to_le_bytes());
            }
            Pdu::Data { header, data }
        }
        other => panic!("a target does not send {other:?}"),
    }
}

/// Success, or the status.
pub fn done(completion: Cqe) -> Result<(), Status> {
    if completion.status().is_success() { Ok(()) } else { Err(completion.status()) }
}

pub fn range(start: u64, block_bytes: u64, bytes: usize) -> BlockRange {
    BlockRange::new(start, (bytes as u64 / block_bytes) as u32).unwrap()
}

/// CC value with which Linux enables a controller.
pub fn enabled() -> Configuration {
    Configuration::default().with_enable(1).with_sqe_exponent(6).with_cqe_exponent(4)
}

/// Enabled controller with I/O queue 1.
pub struct Host {
    pub admin: Client,
    pub io: Client,
    pub id: u16,
    pub options: Options,
}

impl Host {
    /// Enabled admin queue without I/O queues.
    pub async fn admin(server: &Server, options: &Options) -> (Client, u16) {
        let mut admin = Client::initialized(server, options).await;
        let connected = admin.connect(options, 0, CONTROLLER_ID_DYNAMIC).await;
        assert_eq!(connected.status(), Status::SUCCESS);
        let id = ConnectResult::from_dw0(connected.dw0.get()).controller_id;
        assert_eq!(admin.configure(enabled()).await, Status::SUCCESS);
        assert_eq!(admin.status().await.ready(), 1);
        (admin, id)
    }

    pub async fn attach(server: &Server, options: &Options) -> Host {
        let (admin, id) = Host::admin(server, options).await;
        let io = Host::queue_of(server, options, id, 1).await;
        Host { admin, io, id, options: options.clone() }
    }

    async fn queue_of(server: &Server, options: &Options, id: u16, qid: u16) -> Client {
        let mut io = Client::initialized(server, options).await;
        assert_eq!(io.connect(options, qid, id).await.status(), Status::SUCCESS);
        io
    }

    /// Connects another I/O queue.
    pub async fn queue(&self, server: &Server, qid: u16) -> Client {
        Host::queue_of(server, &self.options, self.id, qid).await
    }
}
