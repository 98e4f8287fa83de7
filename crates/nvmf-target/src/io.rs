//! Commands of an I/O queue.
//!
//! A device call that completes immediately is answered in the same turn. Other calls continue in a
//! pooled task.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::{IoError, ZeroFlags};
use flagstone_nvme::command::Fuse;
use flagstone_nvme::command::io::{BlockCommand, DatasetManagement, DsmRange};
use flagstone_nvme::command::reservation::ReservationReport;
use flagstone_nvme::limits::NAMESPACE_ID_ALL;
use flagstone_nvme::status::sct;
use flagstone_nvme::wire::Wire;
use flagstone_nvme::{Cqe, IoOpcode, Sqe, Status};
use flagstone_runtime::{Buf, BufMut, buf, spawn_detached};

use super::connection::Connection;
use super::reservation::DataUse;
use super::{Charge, Controller, Namespace};
use crate::limits::{SCAN_BYTES, SCAN_LEAST_BYTES};

/// NVMe status for a device error.
pub(crate) fn status_of(error: IoError) -> Status {
    match error {
        IoError::OutOfRange => Status::LBA_OUT_OF_RANGE.dnr(),
        IoError::Misaligned => Status::INVALID_FIELD.dnr(),
        IoError::ReadOnly => Status::WRITE_PROTECTED.dnr(),
        IoError::NoSpace => Status::CAPACITY_EXCEEDED,
        IoError::Unsupported => Status::INVALID_OPCODE.dnr(),
        IoError::ReadFault => Status::UNRECOVERED_READ_ERROR,
        IoError::WriteFault => Status::WRITE_FAULT,
        IoError::Poisoned => Status::INTERNAL_ERROR.dnr(),
        IoError::Unreachable => Status::INTERNAL_PATH_ERROR,
        IoError::NoMemory => Status::COMMAND_INTERRUPTED,
    }
}

/// Byte range of a namespace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) len: usize,
}

impl Connection {
    /// Executes an in-flight I/O command with `payload` bytes.
    #[inline]
    pub(super) fn run_io(self: &Rc<Self>, command: Sqe, data: Option<Buf>, payload: usize) {
        if command.fuse() != Fuse::None {
            return self.run_fused(command, data, payload);
        }
        let result = self.checked(&command).and_then(|namespace| match IoOpcode(command.opcode) {
            IoOpcode::READ => self.read(namespace, &command, payload),
            IoOpcode::WRITE => self.write(namespace, &command, data, payload),
            _ => self.rare(namespace, command, data, payload),
        });
        if let Err(status) = result {
            self.fail(&command, status, payload);
        }
    }

    /// Completes a failed command, and records it in the error log.
    #[cold]
    pub(super) fn fail(&self, command: &Sqe, status: Status, payload: usize) {
        self.fail_with_result(command, status, 0, payload);
    }

    /// Like [`Connection::fail`], with dword 0 of the completion.
    #[cold]
    pub(super) fn fail_with_result(
        &self,
        command: &Sqe,
        status: Status,
        result: u32,
        payload: usize,
    ) {
        let block = BlockCommand::parse(command).range.start();
        let status = if self.is_cut_off(command, status) { status.dnr() } else { status };
        let answered = self.with_controller(|controller, queue| {
            controller.record_error(queue.qid, command, status, block, 0);
            if status.sct() == sct::MEDIA && status.code() != Status::COMPARE_FAILURE {
                queue.counters.media_error();
            }
            controller.may_refuse(queue)
        });
        if answered != Some(false) {
            self.respond(Cqe::with_result(command.cid.get(), status, result.into()));
        }
        self.release(payload);
    }

    /// True if the command failed because its host is cut off from the device: see
    /// [`super::VendorSession::is_cut_off`].
    fn is_cut_off(&self, command: &Sqe, status: Status) -> bool {
        let nsid = command.nsid.get();
        let cut_off = |namespace: &Arc<Namespace>| {
            let named = namespace.nsid == nsid || nsid == NAMESPACE_ID_ALL;
            named && namespace.session.as_ref().is_some_and(|session| session.is_cut_off())
        };
        status == Status::INTERNAL_PATH_ERROR
            && self.namespaces().is_ok_and(|all| all.iter().any(cut_off))
    }

    /// Completes an executed command.
    #[inline]
    fn done(&self, command: &Sqe, status: Status, payload: usize) {
        if status.is_success() {
            self.complete(command.cid.get(), status, payload);
        } else {
            self.fail(command, status, payload);
        }
    }

    /// Refuses an unsupported I/O opcode, before its fields are looked at or its data is requested.
    #[inline]
    pub(super) fn check_io_opcode(&self, command: &Sqe) -> Result<(), Status> {
        let opcode = IoOpcode(command.opcode);
        match opcode {
            IoOpcode::READ
            | IoOpcode::WRITE
            | IoOpcode::FLUSH
            | IoOpcode::COMPARE
            | IoOpcode::WRITE_ZEROES
            | IoOpcode::DATASET_MANAGEMENT
            | IoOpcode::VERIFY
            | IoOpcode::COPY => Ok(()),
            IoOpcode::RESERVATION_REGISTER
            | IoOpcode::RESERVATION_ACQUIRE
            | IoOpcode::RESERVATION_RELEASE
            | IoOpcode::RESERVATION_REPORT
                if self.takes(command, |namespace| namespace.reservations.is_some()) =>
            {
                Ok(())
            }
            _ if opcode.is_vendor_specific() && self.takes_vendor_opcode(command, opcode) => Ok(()),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// True unless the command's namespace is known and lacks the vendor specific command.
    fn takes_vendor_opcode(&self, command: &Sqe, opcode: IoOpcode) -> bool {
        self.takes(command, |namespace| {
            namespace.vendor.as_ref().is_some_and(|one| one.commands().io.contains(&opcode))
        })
    }

    /// True unless the command's namespace is known and `takes` denies it.
    fn takes(&self, command: &Sqe, takes: impl FnOnce(&Namespace) -> bool) -> bool {
        self.namespace(command.nsid.get()).map_or(true, |namespace| takes(&namespace))
    }

    /// Checks common to all I/O commands; `None` for a flush of all namespaces.
    #[inline]
    pub(super) fn checked(&self, command: &Sqe) -> Result<Option<Arc<Namespace>>, Status> {
        command.check_pointer().map_err(Status::dnr)?;
        let ready =
            self.with_controller(|controller, queue| controller.is_ready() && queue.is_open());
        if ready != Some(true) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        self.check_io_opcode(command)?;
        let nsid = command.nsid.get();
        if nsid == NAMESPACE_ID_ALL && command.opcode == IoOpcode::FLUSH.0 {
            return Ok(None);
        }
        let namespace = self.namespace(nsid)?;
        self.check_reservation(&namespace, IoOpcode(command.opcode))?;
        Ok(Some(namespace))
    }

    /// Checks that a reservation of the namespace admits a command of this host (Base 2.0 8.19.1).
    #[inline]
    fn check_reservation(&self, namespace: &Namespace, opcode: IoOpcode) -> Result<(), Status> {
        if namespace.restriction.is_none() {
            return Ok(());
        }
        let data = match opcode {
            IoOpcode::READ | IoOpcode::COMPARE | IoOpcode::VERIFY => DataUse::Reads,
            // These have rules of their own.
            IoOpcode::RESERVATION_REGISTER
            | IoOpcode::RESERVATION_ACQUIRE
            | IoOpcode::RESERVATION_RELEASE
            | IoOpcode::RESERVATION_REPORT => return Ok(()),
            _ => DataUse::Writes,
        };
        let host = self.with_controller(|controller, _| controller.host);
        let host = host.ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        namespace.check_reservation(&host, data)
    }

    #[inline]
    fn read(
        self: &Rc<Self>,
        namespace: Option<Arc<Namespace>>,
        command: &Sqe,
        payload: usize,
    ) -> Result<(), Status> {
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE.dnr())?;
        let span = self.span(&namespace, &BlockCommand::parse(command))?;
        check_length(command, span)?;
        self.with_controller(|_, queue| queue.counters.read(span.len as u64));
        match self.try_place(span.len) {
            Some(place) => self.read_into(&namespace, *command, span.offset, place, payload),
            None => self.wait_to_read(&namespace, command, span.len, payload),
        }
        Ok(())
    }

    /// Reads into an allocated buffer; the command is in flight with `payload` bytes.
    #[inline]
    pub(super) fn read_into(
        self: &Rc<Self>,
        namespace: &Namespace,
        command: Sqe,
        offset: u64,
        place: BufMut,
        payload: usize,
    ) {
        match namespace.device.read(offset, place).try_now() {
            Ok(result) => self.read_done(&command, result, payload),
            Err(later) => {
                let connection = self.admit();
                spawn_detached(async move {
                    connection.read_done(&command, later.await, payload);
                });
            }
        }
    }

    #[inline]
    pub(super) fn read_done(
        &self,
        command: &Sqe,
        result: Result<flagstone_runtime::BufMut, IoError>,
        payload: usize,
    ) {
        match result {
            Ok(data) => {
                let completion = Cqe::new(command.cid.get(), Status::SUCCESS);
                self.complete_with_data(completion, data.freeze());
                self.release(payload);
            }
            Err(error) => self.fail(command, status_of(error), payload),
        }
    }

    #[inline]
    fn write(
        self: &Rc<Self>,
        namespace: Option<Arc<Namespace>>,
        command: &Sqe,
        data: Option<Buf>,
        payload: usize,
    ) -> Result<(), Status> {
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE.dnr())?;
        check_writable(&namespace)?;
        let fields = BlockCommand::parse(command);
        let span = self.span(&namespace, &fields)?;
        check_length(command, span)?;
        let data = data.ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
        let through = self.with_controller(|controller, queue| {
            queue.counters.write(span.len as u64);
            controller.is_write_through()
        });
        let fua = fields.fua() || through == Some(true);
        let command = *command;
        match namespace.device.write(span.offset, data, fua).try_now() {
            Ok(result) => self.write_done(&command, result, payload),
            Err(later) => {
                let connection = self.admit();
                spawn_detached(async move {
                    connection.write_done(&command, later.await, payload);
                });
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn write_done(&self, command: &Sqe, result: Result<(), IoError>, payload: usize) {
        self.done(command, status(result), payload);
    }

    /// Commands other than read and write.
    fn rare(
        self: &Rc<Self>,
        namespace: Option<Arc<Namespace>>,
        command: Sqe,
        data: Option<Buf>,
        payload: usize,
    ) -> Result<(), Status> {
        let opcode = IoOpcode(command.opcode);
        if opcode.is_vendor_specific() {
            return self.vendor(namespace, command, data, payload);
        }
        if opcode == IoOpcode::FLUSH {
            let namespaces = match namespace {
                Some(one) => vec![one],
                None => self.namespaces()?,
            };
            for namespace in &namespaces {
                self.check_reservation(namespace, opcode)?;
            }
            self.later(command, payload, async move { flush(namespaces).await });
            return Ok(());
        }
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE.dnr())?;
        if opcode == IoOpcode::DATASET_MANAGEMENT {
            let fields = DatasetManagement::parse(&command);
            let data = data.ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
            if data.len() < fields.data_bytes() as usize {
                return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
            }
            let through = self.is_write_through();
            self.later(command, payload, async move {
                let status = deallocate(&namespace, fields, &data).await;
                // With the volatile cache disabled, a deallocation must be durable when it
                // completes.
                if status.is_success() && through { flush(vec![namespace]).await } else { status }
            });
            return Ok(());
        }
        match opcode {
            IoOpcode::COPY => return self.copy(namespace, command, data, payload),
            IoOpcode::RESERVATION_REPORT => {
                return self.report_reservations(&namespace, &command, payload);
            }
            IoOpcode::RESERVATION_REGISTER
            | IoOpcode::RESERVATION_ACQUIRE
            | IoOpcode::RESERVATION_RELEASE => {
                return self.change_reservations(command, data, payload);
            }
            _ => {}
        }
        let fields = BlockCommand::parse(&command);
        let range = self.range(&namespace, &fields)?;
        match opcode {
            IoOpcode::WRITE_ZEROES => {
                check_writable(&namespace)?;
                let through = self.is_write_through();
                let flags = ZeroFlags {
                    fua: fields.fua() || through,
                    may_deallocate: fields.deallocate(),
                    fast_only: false,
                };
                let (offset, len) = range;
                self.later(command, payload, async move {
                    status(namespace.device.write_zeroes(offset, len, flags).await)
                });
            }
            IoOpcode::COMPARE => {
                let span = self.span(&namespace, &fields)?;
                check_length(&command, span)?;
                let data = data.ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
                self.later(command, payload, async move { compare(&namespace, span, &data).await });
            }
            IoOpcode::VERIFY => {
                self.later(command, payload, async move { verify(&namespace, range).await });
            }
            _ => return Err(Status::INVALID_OPCODE.dnr()),
        }
        Ok(())
    }

    /// Answers Reservation Report.
    fn report_reservations(
        self: &Rc<Self>,
        namespace: &Namespace,
        command: &Sqe,
        payload: usize,
    ) -> Result<(), Status> {
        let reservations = namespace.reservations.as_ref().ok_or(Status::INVALID_OPCODE.dnr())?;
        if !self.admits_reply(ReservationReport::parse(command)?.data_bytes) {
            return Err(Status::INTERNAL_ERROR);
        }
        let data = reservations.report(command, self.target.config())?;
        self.complete_with_data(Cqe::new(command.cid.get(), Status::SUCCESS), data.freeze());
        self.release(payload);
        Ok(())
    }

    /// Executes Reservation Register, Acquire or Release. It does not count as admitted: hosts that
    /// preempt each other would wait for each other's commands.
    fn change_reservations(
        self: &Rc<Self>,
        command: Sqe,
        data: Option<Buf>,
        payload: usize,
    ) -> Result<(), Status> {
        let data = data.ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
        let of = |controller: &Arc<Controller>| (controller.subsystem.clone(), controller.host);
        let host = self.with_controller(|controller, _| of(controller));
        let (subsystem, host) = host.ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        let connection = self.clone();
        spawn_detached(async move {
            let nsid = command.nsid.get();
            let changed = subsystem.change_reservations(nsid, host, &command, &data).await;
            connection.done(&command, changed.err().unwrap_or(Status::SUCCESS), payload);
        });
        Ok(())
    }

    /// Passes a vendor specific command to its session.
    fn vendor(
        self: &Rc<Self>,
        namespace: Option<Arc<Namespace>>,
        command: Sqe,
        data: Option<Buf>,
        payload: usize,
    ) -> Result<(), Status> {
        let session = namespace.as_ref().and_then(|one| one.session.as_ref());
        let namespace = namespace.as_ref().ok_or(Status::INVALID_NAMESPACE.dnr())?;
        let session = session.ok_or(Status::INVALID_OPCODE.dnr())?;
        check_writable(namespace)?;
        let sent = data.as_ref().map_or(0, |data| data.len());
        self.with_controller(|_, queue| queue.counters.write(sent as u64));
        let charge = Charge::new(self.clone(), payload, data.clone());
        let (connection, reply) = (self.admit(), session.io(&command, data, charge));
        spawn_detached(async move {
            match reply.await {
                Ok(reply) if reply.status.is_success() => {
                    let cid = command.cid.get();
                    connection.respond(Cqe::with_result(cid, reply.status, reply.result));
                    connection.release(payload);
                }
                Ok(reply) => connection.fail(&command, reply.status, payload),
                Err(error) => connection.fail(&command, status_of(error), payload),
            }
        });
        Ok(())
    }

    pub(super) fn is_write_through(&self) -> bool {
        self.with_controller(|controller, _| controller.is_write_through()) == Some(true)
    }

    /// Runs `work` in a task, and completes the command with its status.
    fn later(
        self: &Rc<Self>,
        command: Sqe,
        payload: usize,
        work: impl Future<Output = Status> + 'static,
    ) {
        let connection = self.admit();
        spawn_detached(async move {
            let status = work.await;
            connection.done(&command, status, payload);
        });
    }

    /// Byte range of a command, not bounded by MDTS.
    #[inline]
    fn range(&self, namespace: &Namespace, fields: &BlockCommand) -> Result<(u64, u64), Status> {
        if fields.wants_protection() || fields.namespace_zeroes() {
            return Err(Status::INVALID_FIELD.dnr());
        }
        fields.range.check_within(namespace.blocks)?;
        let shift = namespace.block_shift;
        Ok((fields.range.start() << shift, u64::from(fields.range.blocks()) << shift))
    }

    /// Like [`Connection::range`] for a command that transfers data, bounded by MDTS.
    #[inline]
    pub(super) fn span(
        &self,
        namespace: &Namespace,
        fields: &BlockCommand,
    ) -> Result<Span, Status> {
        let (offset, len) = self.range(namespace, fields)?;
        if len > u64::from(self.target.config().mdts_bytes) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        Ok(Span { offset, len: len as usize })
    }
}

/// The data pointer must describe exactly the length of the blocks.
#[inline]
pub(super) fn check_length(command: &Sqe, span: Span) -> Result<(), Status> {
    if command.data.data_bytes.get() as usize == span.len {
        Ok(())
    } else {
        Err(Status::DATA_SGL_LENGTH_INVALID.dnr())
    }
}

/// A namespace may be read-only even if its device is writable.
#[inline]
pub(super) fn check_writable(namespace: &Namespace) -> Result<(), Status> {
    if namespace.read_only { Err(Status::WRITE_PROTECTED.dnr()) } else { Ok(()) }
}

pub(super) fn status(result: Result<(), IoError>) -> Status {
    match result {
        Ok(()) => Status::SUCCESS,
        Err(error) => status_of(error),
    }
}

async fn flush(namespaces: Vec<Arc<Namespace>>) -> Status {
    for namespace in namespaces {
        if let Err(error) = namespace.device.flush().await {
            return status_of(error);
        }
    }
    Status::SUCCESS
}

/// Checks all ranges before it discards the first. Attributes other than deallocate are hints.
async fn deallocate(namespace: &Namespace, fields: DatasetManagement, data: &[u8]) -> Status {
    let ranges = &DsmRange::view_list(data)[..usize::from(fields.ranges)];
    let blocks = namespace.blocks;
    if let Some(status) = ranges.iter().find_map(|range| range.check_within(blocks).err()) {
        return status;
    }
    if namespace.read_only {
        return Status::WRITE_PROTECTED.dnr();
    }
    if !fields.deallocate {
        return Status::SUCCESS;
    }
    for range in ranges.iter().filter(|range| range.blocks.get() > 0) {
        let offset = range.start.get() << namespace.block_shift;
        let len = u64::from(range.blocks.get()) << namespace.block_shift;
        if let Err(error) = namespace.device.discard(offset, len).await {
            return status_of(error);
        }
    }
    Status::SUCCESS
}

/// Compares piecewise: the command already holds its data and must not wait for the same amount
/// again.
async fn compare(namespace: &Namespace, span: Span, data: &[u8]) -> Status {
    let mut at = 0;
    while at < span.len {
        let Some(place) = scan_place(namespace, (span.len - at) as u64) else {
            return status_of(IoError::NoMemory);
        };
        match namespace.device.read(span.offset + at as u64, place).await {
            Ok(found) if found[..] == data[at..at + found.len()] => at += found.len(),
            Ok(_) => return Status::COMPARE_FAILURE.dnr(),
            Err(error) => return status_of(error),
        }
    }
    Status::SUCCESS
}

/// Reads the range piecewise and discards the data.
async fn verify(namespace: &Namespace, (offset, len): (u64, u64)) -> Status {
    let mut at = 0;
    while at < len {
        let Some(place) = scan_place(namespace, len - at) else {
            return status_of(IoError::NoMemory);
        };
        let part = place.len() as u64;
        if let Err(error) = namespace.device.read(offset + at, place).await {
            return status_of(error);
        }
        at += part;
    }
    Status::SUCCESS
}

/// Buffer for the next of `left` bytes, at most 4 KiB at the memory ceiling. Returns `None` if one
/// block is larger than that; the host is then asked to retry.
fn scan_place(namespace: &Namespace, left: u64) -> Option<BufMut> {
    let part = left.min(SCAN_BYTES as u64) as usize;
    let least = part.min(SCAN_LEAST_BYTES);
    buf::try_alloc(part).or_else(|| {
        least.is_multiple_of(1 << namespace.block_shift).then(|| buf::alloc_small(least))
    })
}
