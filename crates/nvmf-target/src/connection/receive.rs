//! PDU parser of a connection: from bytes to commands.
//!
//! It parses everything that has arrived synchronously, and waits only for more bytes, admission or
//! memory. While it waits it does not receive, so a full queue applies back-pressure through TCP.

use std::rc::Rc;

use flagstone_nvme::command::Fuse;
use flagstone_nvme::command::fabrics::{ConnectCommand, ConnectData};
use flagstone_nvme::digest::crc32c;
use flagstone_nvme::limits::{
    ADMIN_IN_CAPSULE_BYTES, COMMON_HEADER_BYTES, DIGEST_BYTES, HEADER_MAX_BYTES, INITIALIZE_BYTES,
    TERM_REQ_MAX_BYTES,
};
use flagstone_nvme::opcode::DataDirection;
use flagstone_nvme::pdu::{
    CapsuleCmd, CommonHeader, DataHeader, Digests, Encoder, Fatal, Frame, InitializeRequest,
    InitializeResponse, PduKind, PduViolation, Receiver, Rules, TermReqHeader,
};
use flagstone_nvme::sgl::{DataPointer, SglError};
use flagstone_nvme::wire::Wire;
use flagstone_nvme::{AdminOpcode, Cqe, FabricsType, Sqe, Status};
use flagstone_runtime::{Buf, BufMut, buf, time};

use super::waiting::TransferOf;
use super::{Awaits, Connection, ConnectionEnd};
use crate::connect::ConnectRefusal;
use crate::limits::{
    CONTROLLER_DATA_ALIGNMENT, QUEUE_RELEASE_PERIOD, QUEUE_RELEASE_TIMEOUT, TX_HEADERS_BYTES,
    VENDOR_DATA_BYTES,
};
use crate::{Connected, admin_data_bytes, connect};
use flagstone_transport::limits::DIRECT_BYTES;
use flagstone_transport::{MessageShape, Rx, ShapePredictor};

/// End of the connection for a violation, with the header that is returned to the peer.
fn violation(violation: impl Into<PduViolation>, offending: &[u8]) -> ConnectionEnd {
    match violation.into() {
        PduViolation::Terminate(fatal) => {
            ConnectionEnd::Violation { fatal, offending: offending.to_vec() }
        }
        PduViolation::Close => ConnectionEnd::Terminated("its TermReq is malformed".to_owned()),
    }
}

impl Connection {
    pub(super) async fn receive(self: &Rc<Self>, rx: &mut Rx) -> ConnectionEnd {
        let mut rules = match self.initialize(rx).await {
            Ok(rules) => rules,
            Err(end) => return end,
        };
        let mut predictor = ShapePredictor::default();
        loop {
            let awaited = self.run_fast(rx, &rules);
            if rx.available() < awaited {
                if let Err(end) = self.arrive(rx, awaited).await {
                    return end;
                }
                continue;
            }
            match self.next_pdu(rx, &rules, &mut predictor).await {
                Ok(changed) => rules = changed.unwrap_or(rules),
                Err(end) => return end,
            }
        }
    }

    /// Exchanges ICReq and ICResp.
    async fn initialize(&self, rx: &mut Rx) -> Result<Rules, ConnectionEnd> {
        let rules = Rules::initial(Receiver::Controller);
        let (frame, mut scratch) = self.header(rx, &rules).await?;
        let bytes = arrived(rx, frame.header_end(), &mut scratch);
        if frame.kind != PduKind::IcReq {
            return Err(terminated(bytes));
        }
        let request = *InitializeRequest::view(bytes).expect("a whole ICReq has arrived");
        request.check().map_err(|fatal| violation(fatal, bytes))?;
        rx.skip(INITIALIZE_BYTES);
        let config = self.target.config();
        let allowed =
            Digests { header: config.allow_header_digest, data: config.allow_data_digest };
        let digests = request.digests().and(allowed);
        let response =
            InitializeResponse::new(digests, CONTROLLER_DATA_ALIGNMENT, config.max_h2c_data_bytes);
        self.tx.header(TERM_REQ_MAX_BYTES, |out| response.encode(out));
        self.encoder.set(Encoder::new(digests, request.host_alignment));
        Ok(Rules::of_controller(
            digests,
            CONTROLLER_DATA_ALIGNMENT,
            ADMIN_IN_CAPSULE_BYTES,
            config.max_h2c_data_bytes,
        ))
    }

    /// Waits for the header of the next PDU, and checks it and its digest.
    #[inline]
    async fn header(
        &self,
        rx: &mut Rx,
        rules: &Rules,
    ) -> Result<(Frame, [u8; HEADER_MAX_BYTES + 4]), ConnectionEnd> {
        let mut scratch = [0; HEADER_MAX_BYTES + 4];
        self.arrive(rx, COMMON_HEADER_BYTES).await?;
        let bytes = arrived(rx, COMMON_HEADER_BYTES, &mut scratch);
        let common = CommonHeader::view(bytes).expect("8 bytes have arrived");
        let frame = match rules.check(common) {
            Ok(frame) => frame,
            Err(error) => {
                // Return as much of the header as has arrived, at most its own HLEN.
                let shown = usize::from(common.header_bytes).clamp(COMMON_HEADER_BYTES, 128);
                let shown = shown.min(rx.available());
                return Err(violation(error, arrived(rx, shown, &mut scratch)));
            }
        };
        // Includes the padding, so that it can be skipped.
        self.arrive(rx, frame.data_offset.into()).await?;
        let bytes = arrived(rx, frame.header_end(), &mut scratch);
        frame.check_header_digest(bytes).map_err(|fatal| violation(fatal, bytes))?;
        Ok((frame, scratch))
    }

    /// Waits until `len` bytes can be peeked at.
    #[inline]
    async fn arrive(&self, rx: &mut Rx, len: usize) -> Result<(), ConnectionEnd> {
        while rx.available() < len {
            let begun = rx.available() > 0;
            self.awaits.set(if begun { Awaits::RestOfPdu } else { Awaits::NextPdu });
            let more = rx.more().await;
            self.awaits.set(Awaits::Nothing);
            more?;
        }
        Ok(())
    }

    /// Receives the rest of a PDU into the buffer `place`.
    async fn fill(&self, rx: &mut Rx, place: BufMut) -> Result<BufMut, ConnectionEnd> {
        self.awaits.set(Awaits::RestOfPdu);
        let (result, place) = rx.fill(place).await;
        self.awaits.set(Awaits::Nothing);
        result?;
        Ok(place)
    }

    /// Handles one PDU. Returns new rules after a Connect.
    async fn next_pdu(
        self: &Rc<Self>,
        rx: &mut Rx,
        rules: &Rules,
        predictor: &mut ShapePredictor,
    ) -> Result<Option<Rules>, ConnectionEnd> {
        let (frame, mut scratch) = self.header(rx, rules).await?;
        self.received.set(self.received.get().wrapping_add(1));
        match frame.kind {
            PduKind::CapsuleCmd => {
                let bytes = arrived(rx, frame.header_end(), &mut scratch);
                let command = CapsuleCmd::view(bytes).expect("a whole header has arrived").command;
                self.wait_for_room().await;
                let fuse = self.fuse(&command);
                self.before_fused(fuse);
                let changed = self.capsule(rx, rules, &frame, command, predictor).await;
                self.after_fused(fuse);
                changed
            }
            PduKind::Data => {
                predictor.reset();
                self.data(rx, &frame).await.map(|()| None)
            }
            _ => {
                self.arrive(rx, frame.pdu_bytes() as usize).await?;
                Err(terminated(arrived(rx, frame.header_end(), &mut scratch)))
            }
        }
    }

    /// Waits while the queue is full or the payload budget is exhausted. R2T transfers never
    /// block by themselves: they complete by receiving further.
    #[inline]
    async fn wait_for_room(&self) {
        let entries = self.with_controller(|_, queue| queue.entries).unwrap_or(1);
        if !self.has_room(entries) {
            // Once the sender is closed the connection is about to end, and room may never appear.
            let go_on = || self.has_room(entries) || self.tx.is_closed();
            self.room.wait_for(|| go_on().then_some(())).await;
        }
    }

    /// True if another command may be admitted.
    #[inline]
    pub(super) fn has_room(&self, entries: u16) -> bool {
        let budget = self.target.config().connection_payload_bytes;
        let payload = self.payload_bytes.get();
        // Transfers by themselves must not block admission: their data follows the blocked
        // commands.
        self.outstanding.get() < u32::from(entries)
            && (payload < budget || payload == self.transfer_bytes.get())
            && self.tx.queued_bytes() < self.queued_bytes_max.get()
            && self.tx.queued_header_bytes() < TX_HEADERS_BYTES
    }

    /// Handles a command capsule, with or without data.
    #[inline]
    async fn capsule(
        self: &Rc<Self>,
        rx: &mut Rx,
        rules: &Rules,
        frame: &Frame,
        command: Sqe,
        predictor: &mut ShapePredictor,
    ) -> Result<Option<Rules>, ConnectionEnd> {
        let without = frame.data_bytes == 0;
        if without && (direction(&command) == DataDirection::None || command.data.data_bytes == 0) {
            // No data moves: the data pointer is reserved, and hosts leave arbitrary bytes in it.
            rx.skip(frame.data_offset.into());
            return self.execute_without_data(command).map(|()| None);
        }
        let pointer = DataPointer::parse(&command.data, frame.data_bytes);
        if let Err(error @ (SglError::Type(_) | SglError::Offset)) = pointer {
            let mut scratch = [0; HEADER_MAX_BYTES + 4];
            return Err(violation(error.fatal(), arrived(rx, frame.header_end(), &mut scratch)));
        }
        rx.skip(frame.data_offset.into());
        if without && let Ok(DataPointer::Transport { data_bytes }) = pointer {
            return self.without_data(command, data_bytes).map(|()| None);
        }
        let align = self.memory_align(&command);
        let data = self.payload(rx, frame, align).await?;
        let shape = MessageShape {
            header: frame.data_offset.into(),
            payload: data.bytes.len(),
            digest: frame.data_digest_bytes.into(),
        };
        let wants_place = align > 8;
        rx.expect(predictor.observe(wants_place.then_some(shape)));
        let status = match pointer {
            Err(error) => error.status().dnr(),
            Ok(_) => match data.state {
                DataState::Whole => return self.execute(rules, command, Some(data.bytes)).await,
                DataState::Damaged => Status::TRANSIENT_TRANSPORT_ERROR,
                DataState::TooLarge => Status::INTERNAL_ERROR.dnr(),
            },
        };
        self.advance_queue();
        self.respond(Cqe::new(command.cid.get(), status));
        Ok(None)
    }

    /// Handles a command whose `data_bytes` move in separate data PDUs, in either direction.
    fn without_data(self: &Rc<Self>, command: Sqe, data_bytes: u32) -> Result<(), ConnectionEnd> {
        match self.data_from_host(&command, data_bytes) {
            Ok(0) => self.execute_without_data(command)?,
            Ok(wanted) => {
                self.advance_queue();
                if self.fuse(&command) == Fuse::None {
                    self.take_transfer(TransferOf::Command(command), wanted as usize);
                } else {
                    self.begin(0);
                    self.run_io(command, None, 0);
                }
            }
            Err(status) => {
                self.advance_queue();
                self.respond(Cqe::new(command.cid.get(), status));
            }
        }
        Ok(())
    }

    /// Bytes to request from the host with an R2T, bounded by MDTS; 0 for none.
    fn data_from_host(&self, command: &Sqe, data_bytes: u32) -> Result<u32, Status> {
        if direction(command) != DataDirection::HostToController || data_bytes == 0 {
            return Ok(0);
        }
        let Some(qid) = self.with_controller(|_, queue| queue.qid) else {
            return Err(Status::SGL_TYPE_INVALID.dnr());
        };
        self.check_authenticated(command)?;
        if command.fabrics_type().is_some() {
            // Fabrics commands carry their data in the capsule (NVMe/TCP 3.3.2.1.2).
            return Err(Status::SGL_TYPE_INVALID.dnr());
        }
        if qid == 0 && AdminOpcode(command.opcode).is_vendor_specific() {
            let fits = data_bytes <= VENDOR_DATA_BYTES as u32;
            return if fits { Ok(data_bytes) } else { Err(Status::INVALID_FIELD.dnr()) };
        }
        if qid == 0 {
            return Ok(admin_data_bytes(command).min(data_bytes));
        }
        self.check_io_opcode(command)?;
        let max = self.target.config().mdts_bytes;
        if data_bytes > max { Err(Status::INVALID_FIELD.dnr()) } else { Ok(data_bytes) }
    }

    /// Memory alignment for the data of a write, in bytes.
    #[inline]
    fn memory_align(&self, command: &Sqe) -> usize {
        if self.with_controller(|_, queue| queue.qid).unwrap_or(0) == 0 {
            return 1;
        }
        self.namespace(command.nsid.get())
            .map_or(1, |namespace| namespace.geometry.memory_align_bytes as usize)
    }

    /// Receives a PDU's data and checks its digest, if there is one.
    #[inline]
    async fn payload(
        &self,
        rx: &mut Rx,
        frame: &Frame,
        align: usize,
    ) -> Result<Payload, ConnectionEnd> {
        let len = frame.data_bytes as usize;
        let digest_bytes = usize::from(frame.data_digest_bytes);
        if rx.available() < len + digest_bytes && len < DIRECT_BYTES {
            self.arrive(rx, len + digest_bytes).await?;
        }
        let bytes = match rx.take(len, align) {
            Some(bytes) => bytes,
            None => {
                let Ok(place) = self.place_for_capsule(len).await else {
                    return self.throw_away(rx, len, digest_bytes).await;
                };
                // Counted while the host sends it.
                self.payload_bytes.set(self.payload_bytes.get() + len);
                let filled = self.fill(rx, place).await;
                self.payload_bytes.set(self.payload_bytes.get() - len);
                filled?.freeze()
            }
        };
        let intact = digest_bytes == 0 || self.digest(rx, crc32c(&bytes)).await?;
        Ok(Payload { bytes, state: if intact { DataState::Whole } else { DataState::Damaged } })
    }

    /// Receives and discards data that exceeds every buffer size.
    async fn throw_away(
        &self,
        rx: &mut Rx,
        len: usize,
        digest: usize,
    ) -> Result<Payload, ConnectionEnd> {
        let mut left = len + digest;
        while left > 0 {
            self.arrive(rx, 1).await?;
            let part = left.min(rx.available());
            rx.skip(part);
            left -= part;
        }
        Ok(Payload { bytes: buf::alloc_small(0).freeze(), state: DataState::TooLarge })
    }

    /// Receives a data digest and compares it.
    async fn digest(&self, rx: &mut Rx, computed: u32) -> Result<bool, ConnectionEnd> {
        self.arrive(rx, 4).await?;
        Ok(arrived_digest(rx) == computed)
    }

    /// Receives an H2CData PDU, requested with an R2T.
    async fn data(self: &Rc<Self>, rx: &mut Rx, frame: &Frame) -> Result<(), ConnectionEnd> {
        let mut scratch = [0; HEADER_MAX_BYTES + 4];
        let bytes = arrived(rx, frame.header_end(), &mut scratch);
        let header = *DataHeader::view(bytes).expect("a whole header has arrived");
        let tag = header.transfer_tag.get();
        let accepted = header.check(frame).and_then(|()| {
            let mut transfers = self.transfers.borrow_mut();
            let (pending, piece) = transfers.accept(&header)?;
            Ok((pending.data.take(), piece))
        });
        let (data, piece) = accepted.map_err(|fatal| violation(fatal, bytes))?;
        let mut data = data.expect("pieces are received one after the other");
        rx.skip(frame.data_offset.into());
        let mut place = data.split_off(piece.offset as usize);
        let rest = place.split_off(piece.data_bytes as usize);
        let mut place = self.fill(rx, place).await?;
        let intact = frame.data_digest_bytes == 0 || self.digest(rx, crc32c(&place)).await?;
        if place.unsplit(rest).is_err() || data.unsplit(place).is_err() {
            unreachable!("the pieces were cut from one buffer");
        }
        self.received.set(self.received.get().wrapping_add(1));
        self.piece_done(tag, data, piece.last, intact).await
    }

    /// Stores a command's partial data, or executes the command when all of it has arrived.
    async fn piece_done(
        self: &Rc<Self>,
        tag: u16,
        data: BufMut,
        last: bool,
        intact: bool,
    ) -> Result<(), ConnectionEnd> {
        let mut done = {
            let mut transfers = self.transfers.borrow_mut();
            let pending = transfers.get(tag).expect("accepted just now");
            pending.digest_error |= !intact;
            if !last {
                pending.data = Some(data);
                return Ok(());
            }
            transfers.remove(tag).expect("accepted just now")
        };
        if let Some(half) = done.half.take() {
            self.fused_transferred(done, data, *half);
            return Ok(());
        }
        let (cid, payload) = (done.command.cid.get(), data.len());
        self.transferred(payload);
        self.share.moved(payload as u64);
        if done.digest_error {
            self.complete(cid, Status::TRANSIENT_TRANSPORT_ERROR, payload);
            return Ok(());
        }
        self.run(done.command, Some(data.freeze()), payload);
        Ok(())
    }

    fn execute_without_data(self: &Rc<Self>, command: Sqe) -> Result<(), ConnectionEnd> {
        if self.session.borrow().is_none() {
            self.refuse_first(command, &ConnectData::default());
            return Ok(());
        }
        self.advance_queue();
        let payload = self.read_bytes(&command);
        self.begin(payload);
        self.run(command, None, payload);
        Ok(())
    }

    /// Executes a command whose data, if any, has arrived. Returns new rules after a Connect.
    async fn execute(
        self: &Rc<Self>,
        rules: &Rules,
        command: Sqe,
        data: Option<Buf>,
    ) -> Result<Option<Rules>, ConnectionEnd> {
        if self.session.borrow().is_none() {
            let in_capsule = self.first_command(command, data).await?;
            return Ok(in_capsule.map(|bytes| rules.with_max_in_capsule_bytes(bytes)));
        }
        self.advance_queue();
        let payload = data.as_ref().map_or(0, |data| data.len());
        self.share.moved(payload as u64);
        self.begin(payload);
        self.run(command, data, payload);
        Ok(None)
    }

    /// Starts a command that is counted as in flight.
    #[inline]
    fn run(self: &Rc<Self>, command: Sqe, data: Option<Buf>, payload: usize) {
        if let Err(status) = self.check_authenticated(&command) {
            return self.complete(command.cid.get(), status, payload);
        }
        let qid = self.with_controller(|_, queue| queue.qid).unwrap_or(0);
        if qid == 0 || command.fabrics_type().is_some() {
            self.run_admin(command, data, payload);
        } else {
            self.run_io(command, data, payload);
        }
    }

    /// Counts a submission queue entry as taken.
    #[inline]
    fn advance_queue(&self) {
        if let Some(session) = self.session.borrow_mut().as_mut() {
            session.sq_head = session.next_sq_head();
            session.saw_traffic();
        }
    }

    /// The first command of a connection must be Connect. Returns the in-capsule data size of the
    /// new queue.
    async fn first_command(
        self: &Rc<Self>,
        command: Sqe,
        data: Option<Buf>,
    ) -> Result<Option<u32>, ConnectionEnd> {
        let Some(data) = data.as_deref().and_then(ConnectData::view) else {
            self.refuse_first(command, &ConnectData::default());
            return Ok(None);
        };
        if command.fabrics_type() != Some(FabricsType::CONNECT) {
            self.refuse_first(command, data);
            return Ok(None);
        }
        match self.connect(ConnectCommand::of(&command), data).await {
            Ok(connected) => {
                let (qid, result) = (connected.queue.qid, connected.result);
                let authenticates = connected.handshake.is_some() || connected.may_authenticate;
                self.adopt(connected);
                self.advance_queue();
                let cid = command.cid.get();
                self.respond(Cqe::with_result(cid, Status::SUCCESS, u64::from(result)));
                let io_bytes = self.target.config().in_capsule_bytes;
                let bytes = if qid == 0 { ADMIN_IN_CAPSULE_BYTES } else { io_bytes };
                // Fabrics commands always carry their data in the capsule.
                let bytes = if authenticates { bytes.max(ADMIN_IN_CAPSULE_BYTES) } else { bytes };
                self.in_capsule_bytes.set(bytes);
                if qid != 0 {
                    self.queued_bytes_max.set(self.target.config().connection_payload_bytes);
                }
                Ok(Some(bytes))
            }
            Err(refusal) => {
                self.refuse(command, data, refusal);
                Ok(None)
            }
        }
    }

    /// Connects the queue. Waits in bounded time for a queue identifier that is being released.
    async fn connect(
        &self,
        command: &ConnectCommand,
        data: &ConnectData,
    ) -> Result<Connected, ConnectRefusal> {
        self.check_names(data)?;
        let (subsystem, _) = data.check()?;
        if self.target.subsystem(&subsystem).is_some_and(|one| one.requires_authentication()) {
            // Before the exchange takes a place, which others could use. A refusal waits too: a
            // source that guesses would repeat it without end.
            let most = self.target.config().handshake_timeout / 2;
            let delay = self.target.handshakes.delay(self.source()).min(most);
            if !delay.is_zero() {
                time::sleep(delay).await;
            }
        }
        let begin = time::now();
        loop {
            let hangup = Box::new(self.stream.clone());
            let addresses = (self.stream.local(), self.source());
            let channel = self.channel();
            let connected = connect(&self.target, command, data, addresses, channel, hangup);
            let in_use =
                connected.as_ref().is_err_and(|refusal| *refusal == ConnectRefusal::QUEUE_IN_USE);
            if !in_use || begin.elapsed() >= QUEUE_RELEASE_TIMEOUT {
                return connected;
            }
            time::sleep(QUEUE_RELEASE_PERIOD).await;
        }
    }

    /// Refuses a first command that is no Connect with its data.
    fn refuse_first(&self, command: Sqe, data: &ConnectData) {
        let status = match command.fabrics_type() {
            Some(FabricsType::CONNECT) => Status::DATA_SGL_LENGTH_INVALID.dnr(),
            _ => Status::COMMAND_SEQUENCE_ERROR.dnr(),
        };
        self.refuse(command, data, status.into());
    }

    /// Refuses a Connect, and logs it: a host shows a number at best.
    fn refuse(&self, command: Sqe, data: &ConnectData, refusal: ConnectRefusal) {
        let [host, subsystem] = [&data.hostnqn, &data.subnqn].map(|field| {
            let len = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
            &field[..len]
        });
        let reason = format!("{refusal}; subsystem {}", subsystem.escape_ascii());
        self.target.refusals.refused(&self.stream.peer(), host, &reason);
        self.respond(Cqe::with_result(command.cid.get(), refusal.status, refusal.result.into()));
    }

    /// Bytes that a read will occupy, counted against the payload budget.
    #[inline]
    fn read_bytes(&self, command: &Sqe) -> usize {
        let max = self.target.config().mdts_bytes;
        command.data.data_bytes.get().min(max) as usize
    }
}

#[inline]
fn direction(command: &Sqe) -> DataDirection {
    DataDirection::of(command.fabrics_type().map_or(command.opcode, |kind| kind.0))
}

/// Data of a PDU.
struct Payload {
    bytes: Buf,
    state: DataState,
}

/// Condition of received data.
enum DataState {
    /// Complete, with a matching digest if there is one.
    Whole,
    /// The digest does not match.
    Damaged,
    /// Discarded: larger than any buffer.
    TooLarge,
}

/// The first `len` bytes, which must have arrived.
#[inline]
fn arrived<'a>(rx: &'a Rx, len: usize, scratch: &'a mut [u8]) -> &'a [u8] {
    rx.peek(len, scratch).expect("as many bytes have arrived")
}

/// Consumes a data digest, which must have arrived.
#[inline]
pub(super) fn arrived_digest(rx: &mut Rx) -> u32 {
    let mut scratch = [0; DIGEST_BYTES];
    let bytes = arrived(rx, DIGEST_BYTES, &mut scratch);
    let digest = u32::from_le_bytes(bytes.try_into().expect("as long"));
    rx.skip(DIGEST_BYTES);
    digest
}

/// End of the connection for a TermReq of the host.
fn terminated(bytes: &[u8]) -> ConnectionEnd {
    match TermReqHeader::view(bytes) {
        Some(header) => ConnectionEnd::Terminated(header.fatal().to_string()),
        None => ConnectionEnd::Violation { fatal: Fatal::SEQUENCE, offending: bytes.to_vec() },
    }
}
