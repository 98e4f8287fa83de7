//! Fast path for reads and writes.
//!
//! It handles a read or write whose PDU has arrived completely, with its payload in one segment, on
//! a queue without header digests. A data digest is computed where the payload was received. The
//! command then runs without an await and without extra reference counting. Anything else,
//! including every invalid command, goes through the general path in `receive`, which sees the same
//! unconsumed bytes.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_nvme::command::io::BlockCommand;
use flagstone_nvme::digest::crc32c;
use flagstone_nvme::pdu::{CapsuleCmd, PduKind, Rules};
use flagstone_nvme::sgl::DataPointer;
use flagstone_nvme::wire::Wire;
use flagstone_nvme::{Cqe, IoOpcode, Sqe, Status};
use flagstone_runtime::{Buf, buf, spawn_detached};

use super::receive::arrived_digest;
use super::{Connection, QueueSession};
use crate::Namespace;
use crate::reservation::DataUse;
use flagstone_transport::Rx;
use flagstone_transport::limits::DIRECT_BYTES;

/// Read or write that the fast path accepts: its place in the stream and on the device.
struct FastCommand {
    command: Sqe,
    offset: u64,
    len: usize,
    /// Submission queue head after this command, reported in its completion.
    sq_head: u16,
    /// Bytes before the payload in the stream, and bytes of the payload.
    header: usize,
    payload: usize,
    /// Bytes of the data digest after the payload: 0 or 4.
    digest: usize,
}

impl FastCommand {
    /// Length of the whole PDU, or 0 if its payload is large enough to be received into its own
    /// buffer.
    fn awaited(&self) -> usize {
        if self.payload < DIRECT_BYTES { self.bytes() } else { 0 }
    }

    /// Length of the whole PDU.
    fn bytes(&self) -> usize {
        self.header + self.payload + self.digest
    }
}

/// Namespace of a fast command.
enum FastNamespace<'a> {
    Shared(&'a Namespace),
    /// As its controller sees it, with the session of a vendor handler.
    Own(Arc<Namespace>),
}

impl Deref for FastNamespace<'_> {
    type Target = Namespace;

    #[inline]
    fn deref(&self) -> &Namespace {
        match self {
            FastNamespace::Shared(namespace) => namespace,
            FastNamespace::Own(namespace) => namespace,
        }
    }
}

impl Connection {
    /// Executes commands while the fast path accepts them. Returns the number of bytes that must be
    /// available before it can continue. If that is more than has arrived, receive and call again;
    /// otherwise the command at the front needs the general path.
    pub(super) fn run_fast(self: &Rc<Self>, rx: &mut Rx, rules: &Rules) -> usize {
        let mut session = self.session.borrow_mut();
        let Some(session) = session.as_mut() else { return 0 };
        let (queue, controller) = (&session.connected.queue, &session.connected.controller);
        let open = queue.is_open() && session.authentication.is_open();
        let after_half = !self.fused_first.borrow().is_nothing();
        if queue.qid == 0 || !controller.is_ready() || !open || after_half {
            return 0;
        }
        let entries = queue.entries;
        session.refresh();
        let mut any = false;
        let mut awaited = 1;
        while self.has_room(entries)
            && let Some((fast, namespace)) = self.fast_command(session, rx.front(), rules)
        {
            let done = match IoOpcode(fast.command.opcode) {
                IoOpcode::READ => self.fast_read(session, rx, &fast, &namespace),
                _ => self.fast_write(session, rx, &fast, &namespace),
            };
            if !done {
                awaited = fast.awaited();
                break;
            }
            any = true;
            session.sq_head = fast.sq_head;
        }
        if any {
            session.connected.controller.saw_traffic();
            self.received.set(self.received.get().wrapping_add(1));
        }
        awaited
    }

    /// Parses the command at the front if the fast path accepts it.
    #[inline]
    fn fast_command<'a>(
        &self,
        session: &'a QueueSession,
        front: &[u8],
        rules: &Rules,
    ) -> Option<(FastCommand, FastNamespace<'a>)> {
        let capsule = CapsuleCmd::view(front)?;
        let frame = rules.check(&capsule.common).ok()?;
        let command = &capsule.command;
        let writes = command.opcode == IoOpcode::WRITE.0;
        let is_fast = frame.kind == PduKind::CapsuleCmd
            && frame.header_digest_bytes == 0
            && session.table.ana().io_status() == Status::SUCCESS
            && (writes && frame.data_bytes > 0
                || command.opcode == IoOpcode::READ.0 && frame.data_bytes == 0);
        if !is_fast || command.check_flags().is_err() {
            return None;
        }
        let shared = session.table.get(command.nsid.get())?;
        let namespace = match &shared.vendor {
            None => FastNamespace::Shared(shared),
            Some(_) => FastNamespace::Own(session.own_namespace(shared)?),
        };
        let data = if writes { DataUse::Writes } else { DataUse::Reads };
        let host = &session.connected.controller.host;
        if writes && namespace.read_only || namespace.check_reservation(host, data).is_err() {
            return None;
        }
        let fields = BlockCommand::parse(command);
        if fields.wants_protection() || fields.namespace_zeroes() {
            return None;
        }
        fields.range.check_within(namespace.blocks).ok()?;
        let len = u64::from(fields.range.blocks()) << namespace.block_shift;
        let pointer = DataPointer::parse(&command.data, frame.data_bytes).ok()?;
        if len != u64::from(pointer.data_bytes())
            || len > u64::from(self.target.config().mdts_bytes)
        {
            return None;
        }
        let fast = FastCommand {
            command: *command,
            offset: fields.range.start() << namespace.block_shift,
            len: len as usize,
            sq_head: session.next_sq_head(),
            header: frame.data_offset.into(),
            payload: frame.data_bytes as usize,
            digest: frame.data_digest_bytes.into(),
        };
        Some((fast, namespace))
    }

    #[inline]
    fn fast_read(
        self: &Rc<Self>,
        session: &QueueSession,
        rx: &mut Rx,
        fast: &FastCommand,
        namespace: &Namespace,
    ) -> bool {
        if let Some(data) = namespace.device.try_read_cached(fast.offset, fast.len) {
            rx.skip(fast.header);
            session.connected.queue.counters.read(fast.len as u64);
            self.fast_data(session, fast, data);
            return true;
        }
        // The general path asks for more.
        if self.held() + fast.len > self.share.granted() {
            return false;
        }
        let Some(place) = buf::try_alloc(fast.len) else { return false };
        rx.skip(fast.header);
        session.connected.queue.counters.read(fast.len as u64);
        match namespace.device.read(fast.offset, place).try_now() {
            Ok(Ok(data)) => self.fast_data(session, fast, data.freeze()),
            later => {
                self.begin(fast.len);
                let (connection, command, len) = (self.admit(), fast.command, fast.len);
                spawn_detached(async move {
                    let result = match later {
                        Ok(result) => result,
                        Err(later) => later.await,
                    };
                    connection.read_done(&command, result, len);
                });
            }
        }
        true
    }

    #[inline]
    fn fast_data(&self, session: &QueueSession, fast: &FastCommand, data: Buf) {
        let flow_control = session.connected.queue.flow_control;
        let completion = Cqe::new(fast.command.cid.get(), Status::SUCCESS);
        self.send_data(completion, data, flow_control.then_some(fast.sq_head));
    }

    #[inline]
    fn fast_completion(&self, session: &QueueSession, fast: &FastCommand, status: Status) {
        let flow_control = session.connected.queue.flow_control;
        let completion = Cqe::new(fast.command.cid.get(), status);
        self.send_completion(completion, flow_control.then_some(fast.sq_head));
    }

    #[inline]
    fn fast_write(
        self: &Rc<Self>,
        session: &QueueSession,
        rx: &mut Rx,
        fast: &FastCommand,
        namespace: &Namespace,
    ) -> bool {
        let align = namespace.geometry.memory_align_bytes as usize;
        if rx.available() < fast.bytes() || !rx.can_take(fast.header, fast.payload, align) {
            return false;
        }
        rx.skip(fast.header);
        let data = rx.take(fast.payload, align).expect("looked at above");
        self.share.moved(fast.len as u64);
        if fast.digest > 0 && arrived_digest(rx) != crc32c(&data) {
            self.fast_completion(session, fast, Status::TRANSIENT_TRANSPORT_ERROR);
            return true;
        }
        session.connected.queue.counters.write(fast.len as u64);
        let fua = BlockCommand::parse(&fast.command).fua()
            || session.connected.controller.is_write_through();
        match namespace.device.write(fast.offset, data, fua).try_now() {
            Ok(Ok(())) => self.fast_completion(session, fast, Status::SUCCESS),
            later => {
                self.begin(fast.len);
                let (connection, command, len) = (self.admit(), fast.command, fast.len);
                spawn_detached(async move {
                    let result = match later {
                        Ok(result) => result,
                        Err(later) => later.await,
                    };
                    connection.write_done(&command, result, len);
                });
            }
        }
        true
    }
}
