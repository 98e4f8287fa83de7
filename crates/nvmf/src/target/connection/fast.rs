//! The short way for the commands that carry the load.
//!
//! Reads and writes whose PDU has arrived whole, in one piece, on a queue without digests, are
//! carried out here without an await and without a reference counted twice. Whatever is not so,
//! and whatever is wrong in any way, is left to the long way in `receive`, which sees the bytes as
//! if nobody had looked at them.

use std::rc::Rc;

use flagstone_nvme::command::io::BlockCommand;
use flagstone_nvme::pdu::{CapsuleCmd, PduKind, Rules};
use flagstone_nvme::sgl::DataPointer;
use flagstone_nvme::wire::Wire;
use flagstone_nvme::{Cqe, IoOpcode, Sqe, Status};
use flagstone_runtime::{Buf, buf, spawn_detached};

use super::{Connection, Session};
use crate::limits::DIRECT_BYTES;
use crate::stream::rx::Rx;
use crate::target::Namespace;

/// A read or write that can go the short way: where it is in the stream, and on the device.
struct Short {
    command: Sqe,
    offset: u64,
    len: usize,
    /// Head of the submission queue once it is taken, as its completion tells.
    sq_head: u16,
    /// Bytes before the payload, and of the payload, in the stream.
    header: usize,
    payload: usize,
}

impl Short {
    /// Bytes of the whole PDU, unless its payload is long enough for a buffer of its own.
    fn awaited(&self) -> usize {
        if self.payload < DIRECT_BYTES { self.header + self.payload } else { 0 }
    }
}

impl Connection {
    /// Carries out commands for as long as they go the short way. Gives how many bytes must have
    /// arrived before the next may do so too: when that is more than there are, it is worth to
    /// receive and to come back here; otherwise what is at the front goes the long way.
    pub(super) fn run_short(self: &Rc<Self>, rx: &mut Rx, rules: &Rules) -> usize {
        let mut session = self.session.borrow_mut();
        let Some(session) = session.as_mut() else { return 0 };
        let (queue, controller) = (&session.connected.queue, &session.connected.controller);
        if queue.qid == 0 || !controller.is_ready() || !queue.is_open() {
            return 0;
        }
        let entries = queue.entries;
        if session.table.generation() != controller.generation() {
            session.table = controller.snapshot();
        }
        let mut any = false;
        let mut awaited = 1;
        while self.has_room(entries)
            && let Some((short, namespace)) = self.short(session, rx.front(), rules)
        {
            let done = match IoOpcode(short.command.opcode) {
                IoOpcode::READ => self.short_read(session, rx, &short, namespace),
                _ => self.short_write(session, rx, &short, namespace),
            };
            if !done {
                awaited = short.awaited();
                break;
            }
            any = true;
            session.sq_head = short.sq_head;
        }
        if any {
            session.connected.controller.saw_traffic();
            self.received.set(self.received.get().wrapping_add(1));
        }
        awaited
    }

    /// The command at the front, if it goes the short way.
    #[inline]
    fn short<'a>(
        &self,
        session: &'a Session,
        front: &[u8],
        rules: &Rules,
    ) -> Option<(Short, &'a Namespace)> {
        let capsule = CapsuleCmd::view(front)?;
        let frame = rules.check(&capsule.common).ok()?;
        let command = &capsule.command;
        let digests = frame.header_digest_bytes | frame.data_digest_bytes;
        let writes = command.opcode == IoOpcode::WRITE.0;
        let is_short = frame.kind == PduKind::CapsuleCmd
            && digests == 0
            && session.table.ana().io_status() == Status::SUCCESS
            && (writes && frame.data_bytes > 0
                || command.opcode == IoOpcode::READ.0 && frame.data_bytes == 0);
        if !is_short || command.check_flags().is_err() {
            return None;
        }
        let namespace = session.table.get(command.nsid.get())?;
        if writes && namespace.read_only || namespace.vendor.is_some() {
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
        let short = Short {
            command: *command,
            offset: fields.range.start() << namespace.block_shift,
            len: len as usize,
            sq_head: session.next_sq_head(),
            header: frame.data_offset.into(),
            payload: frame.data_bytes as usize,
        };
        Some((short, namespace))
    }

    #[inline]
    fn short_read(
        self: &Rc<Self>,
        session: &Session,
        rx: &mut Rx,
        short: &Short,
        namespace: &Namespace,
    ) -> bool {
        if let Some(data) = namespace.device.known(short.offset, short.len) {
            rx.skip(short.header);
            session.connected.queue.counters.read(short.len as u64);
            self.short_data(session, short, data);
            return true;
        }
        let Some(place) = buf::try_alloc(short.len) else { return false };
        rx.skip(short.header);
        session.connected.queue.counters.read(short.len as u64);
        match namespace.device.read(short.offset, place).try_now() {
            Ok(Ok(data)) => self.short_data(session, short, data.freeze()),
            later => {
                self.begin(short.len);
                let (connection, command, len) = (self.admit(), short.command, short.len);
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
    fn short_data(&self, session: &Session, short: &Short, data: Buf) {
        let flow_control = session.connected.queue.flow_control;
        let completion = Cqe::new(short.command.cid.get(), Status::SUCCESS);
        self.send_data(completion, data, flow_control.then_some(short.sq_head));
    }

    #[inline]
    fn short_write(
        self: &Rc<Self>,
        session: &Session,
        rx: &mut Rx,
        short: &Short,
        namespace: &Namespace,
    ) -> bool {
        let align = namespace.geometry.memory_align_bytes as usize;
        if !rx.can_take(short.header, short.payload, align) {
            return false;
        }
        rx.skip(short.header);
        let data = rx.take(short.payload, align).expect("looked at above");
        session.connected.queue.counters.write(short.len as u64);
        let fua = BlockCommand::parse(&short.command).fua()
            || session.connected.controller.is_write_through();
        match namespace.device.write(short.offset, data, fua).try_now() {
            Ok(Ok(())) => {
                let flow_control = session.connected.queue.flow_control;
                let completion = Cqe::new(short.command.cid.get(), Status::SUCCESS);
                self.send_completion(completion, flow_control.then_some(short.sq_head));
            }
            later => {
                self.begin(short.len);
                let (connection, command, len) = (self.admit(), short.command, short.len);
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
