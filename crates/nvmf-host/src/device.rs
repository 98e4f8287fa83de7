//! Remote block device: translates calls into commands.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_nvme::command::io::{BlockRange, DsmRange, IoOptions};
use flagstone_nvme::replica::{Codec, CompressedWrite, OrderedWrite, OrderedZeroes, WritePosition};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::status::sct;
use flagstone_nvme::wire::Wire;
use flagstone_nvme::{Nqn, Sqe, Status};
use flagstone_runtime::net::Address;
use flagstone_runtime::{Buf, BufMut, CoreHandle, CoreLocal, buf, cores, time};

use super::association::Association;
use super::command::CommandData;
use super::connect::ConnectParams;
use super::durability::Durability;
use super::identify_data::NamespaceShape;
use super::window::{run_all, run_at_once};
use super::{HostError, HostOptions};
use crate::limits::{DISCONNECT_TIMEOUT, ZERO_BYTES};
use flagstone_transport::WaitGroup;

/// Namespace of a remote subsystem, reached over NVMe/TCP.
///
/// Each core that uses it connects on its first call. Broken connections are re-established; see
/// the [crate] for the guarantees. Dropping the device closes the connections after the
/// calls in flight have ended.
pub struct RemoteDevice {
    params: Arc<ConnectParams>,
    shape: NamespaceShape,
    associations: Arc<CoreLocal<Association>>,
    cores: Arc<[CoreHandle]>,
    durability: Arc<Durability>,
    /// [`RemoteDevice::disconnect`] was called: no core reconnects.
    closed: AtomicBool,
}

impl RemoteDevice {
    /// Connects this core to subsystem `subnqn` at `address`.
    ///
    /// # Errors
    /// The cause of the failure of a single attempt, within [`HostOptions::connect_timeout`].
    pub async fn connect(
        address: Address,
        subnqn: &Nqn,
        options: HostOptions,
    ) -> Result<Arc<RemoteDevice>, HostError> {
        let durability = Durability::new(options.target_is_durable);
        RemoteDevice::connect_path(address, subnqn, options, durability).await
    }

    /// As [`RemoteDevice::connect`], for one of several paths.
    pub(super) async fn connect_path(
        address: Address,
        subnqn: &Nqn,
        options: HostOptions,
        durability: Arc<Durability>,
    ) -> Result<Arc<RemoteDevice>, HostError> {
        let params = Arc::new(ConnectParams::new(address, *subnqn, options)?);
        let association = Association::new(params.clone(), durability.clone());
        let link = association.connect(params.options.nsid).await?;
        let shape = link.shape;
        let associations = Arc::new(CoreLocal::new());
        associations.get_or_init(|| association).start(shape, Some(link));
        let closed = AtomicBool::new(false);
        let cores = cores().into();
        Ok(Arc::new(RemoteDevice { params, shape, associations, cores, durability, closed }))
    }

    /// Namespace identifier.
    pub fn nsid(&self) -> u32 {
        self.shape.nsid
    }

    pub(super) fn shape(&self) -> &NamespaceShape {
        &self.shape
    }

    /// Disconnects gracefully on every core: awaits calls in flight, shuts down the controllers,
    /// closes the connections. Later calls fail with [`IoError::Unreachable`]. Takes bounded time,
    /// whatever the target does.
    pub async fn disconnect(&self) {
        self.closed.store(true, Ordering::Release);
        let left = Arc::new(WaitGroup::default());
        for core in self.cores.iter() {
            let (associations, part) = (self.associations.clone(), left.part());
            core.spawn(move || async move {
                if let Some(association) = associations.get() {
                    association.disconnect().await;
                }
                drop(part);
            });
        }
        // Each core's disconnect is bounded, but a core that is stopping may never report.
        let _ = time::timeout(DISCONNECT_TIMEOUT * 2, left.wait()).await;
    }

    /// This core's association, created on demand.
    #[inline]
    fn association(&self) -> Rc<Association> {
        match self.associations.get() {
            Some(association) => association,
            None => {
                let (params, durability) = (self.params.clone(), self.durability.clone());
                let association =
                    self.associations.get_or_init(|| Association::new(params, durability));
                match self.closed.load(Ordering::Acquire) {
                    true => association.close(),
                    false => association.start(self.shape, None),
                }
                association
            }
        }
    }

    fn io(&self) -> RemoteIo {
        RemoteIo { association: self.association(), shape: self.shape }
    }
}

/// Flushes the writes of all cores, and records a failure.
async fn flush(
    io: RemoteIo,
    durability: Arc<Durability>,
    associations: Arc<CoreLocal<Association>>,
    cores: Arc<[CoreHandle]>,
) -> Result<(), IoError> {
    let own = io.clone();
    let flushed = async {
        own.flush().await?;
        if durability.has_unflushed_besides(io.association.instance().as_ref()) {
            flush_other_links(io.shape, &associations, &cores).await?;
        }
        durability.check_change()
    };
    flushed.await.inspect_err(|error| durability.flush_failed(*error))
}

/// Flushes over each core's own link. That it still answers proves that the target has kept the
/// writes that completed over it.
async fn flush_other_links(
    shape: NamespaceShape,
    associations: &Arc<CoreLocal<Association>>,
    cores: &[CoreHandle],
) -> Result<(), IoError> {
    let flushes: Vec<_> = cores
        .iter()
        .map(|core| {
            let associations = associations.clone();
            core.call(move || async move {
                let association = associations.get().filter(|association| {
                    association.instance().is_some_and(|instance| instance.has_unflushed())
                });
                match association {
                    Some(association) => RemoteIo { association, shape }.flush().await,
                    None => Ok(()),
                }
            })
        })
        .collect();
    for flush in flushes {
        flush.await.unwrap_or(Err(IoError::Unreachable))?;
    }
    Ok(())
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        drop(self.associations.take());
        for core in self.cores.iter() {
            let associations = self.associations.clone();
            core.spawn(move || async move { drop(associations.take()) });
        }
    }
}

impl std::fmt::Debug for RemoteDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteDevice")
            .field("address", &self.params.address)
            .field("subsystem", &self.params.subnqn)
            .field("nsid", &self.shape.nsid)
            .finish_non_exhaustive()
    }
}

/// State of a call, whose future outlives the borrow of the device.
#[derive(Clone)]
pub(super) struct RemoteIo {
    pub(super) association: Rc<Association>,
    pub(super) shape: NamespaceShape,
}

impl RemoteIo {
    #[inline]
    fn range(&self, offset: u64, len: u64) -> BlockRange {
        let shift = self.shape.block_shift;
        BlockRange::new(offset >> shift, (len >> shift) as u32).expect("checked and split")
    }

    /// Reads at most one transfer.
    #[inline]
    fn read(&self, offset: u64, place: BufMut) -> IoFuture<BufMut> {
        let range = self.range(offset, place.len() as u64);
        let command = Sqe::read(0, self.shape.nsid, range, place.len() as u32);
        let association = self.association.clone();
        IoFuture::later(async move {
            let (status, data) = association.call(command, CommandData::In(place)).await?;
            match data {
                CommandData::In(place) if status.is_success() => Ok(place),
                _ => Err(io_error(status, IoError::ReadFault)),
            }
        })
    }

    /// Writes at most one transfer.
    #[inline]
    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let range = self.range(offset, data.len() as u64);
        let sgl = SglDescriptor::transport(data.len() as u32);
        self.change(Sqe::write(0, self.shape.nsid, range, fua, sgl), CommandData::Out(data))
    }

    /// Sends a command that returns no data.
    #[inline]
    fn change(&self, command: Sqe, data: CommandData) -> IoFuture<()> {
        let association = self.association.clone();
        IoFuture::later(async move {
            let (status, _) = association.call(command, data).await?;
            if status.is_success() { Ok(()) } else { Err(io_error(status, IoError::WriteFault)) }
        })
    }

    /// Sends an ordered command that returns no data.
    #[inline]
    fn change_in_order(&self, command: Sqe, data: CommandData) -> IoFuture<()> {
        let association = self.association.clone();
        IoFuture::later(async move {
            let status = association.call_in_order(command, data).await?;
            if status.is_success() { Ok(()) } else { Err(io_error(status, IoError::WriteFault)) }
        })
    }

    async fn read_pieces(self, offset: u64, mut rest: BufMut) -> Result<BufMut, IoError> {
        let transfer = self.shape.transfer_bytes as usize;
        let mut pieces: Vec<Option<BufMut>> =
            (0..rest.len().div_ceil(transfer)).map(|_| None).collect();
        let mut at = offset;
        let next = || {
            let len = rest.len().min(transfer);
            (len > 0).then(|| {
                let piece = self.read(at, rest.split_to(len));
                at += len as u64;
                piece
            })
        };
        run_all(next, |number, piece| pieces[number] = Some(piece)).await?;
        let mut whole: Option<BufMut> = None;
        for piece in pieces.into_iter().flatten() {
            match &mut whole {
                None => whole = Some(piece),
                Some(whole) => {
                    whole.unsplit(piece).expect("the pieces were cut from one buffer, in order");
                }
            }
        }
        Ok(whole.expect("a read is not empty"))
    }

    async fn write_pieces(self, offset: u64, data: Buf, fua: bool) -> Result<(), IoError> {
        let transfer = u64::from(self.shape.transfer_bytes);
        let mut pieces = pieces(offset, data.len() as u64, transfer);
        let next = || {
            let (at, len) = pieces.next()?;
            let start = (at - offset) as usize;
            Some(self.write(at, data.slice(start..start + len as usize), fua))
        };
        run_all(next, |_, ()| {}).await
    }

    async fn zero(self, offset: u64, len: u64, flags: ZeroFlags) -> Result<(), IoError> {
        let shape = self.shape;
        let unit = u64::from(shape.zero_blocks) << shape.block_shift;
        let deallocate = flags.may_deallocate && shape.zero_deallocates;
        let options = IoOptions { fua: flags.fua, deallocate };
        let mut pieces = pieces(offset, len, unit);
        let next = || {
            let (at, len) = pieces.next()?;
            let command = Sqe::write_zeroes(0, shape.nsid, self.range(at, len), options);
            Some(self.change(command, CommandData::None))
        };
        run_all(next, |_, ()| {}).await
    }

    /// Fallback for a target without Write Zeroes.
    async fn write_buffers_of_zeroes(
        self,
        offset: u64,
        len: u64,
        fua: bool,
    ) -> Result<(), IoError> {
        let unit = u64::from(self.shape.transfer_bytes.min(ZERO_BYTES));
        let mut pieces = pieces(offset, len, unit);
        let next = || {
            let (at, len) = pieces.next()?;
            Some(self.write(at, buf::zeroes(len as usize), fua))
        };
        run_all(next, |_, ()| {}).await
    }

    /// Sends as many ranges per command as allowed, command after command.
    async fn discard(self, offset: u64, len: u64) -> Result<(), IoError> {
        let limits = self.shape.discard;
        let shift = self.shape.block_shift;
        let mut pieces = pieces(offset >> shift, len >> shift, limits.range_blocks.into());
        let mut more = true;
        while more {
            let mut list = buf::alloc(limits.ranges * DsmRange::BYTES).await;
            let (mut count, mut blocks) = (0, 0);
            while count < limits.ranges && limits.blocks - blocks >= limits.range_blocks.into() {
                let Some((start, len)) = pieces.next() else {
                    more = false;
                    break;
                };
                let range = DsmRange::new(start, len as u32);
                range.encode(&mut list[count * DsmRange::BYTES..]).expect("room for every range");
                count += 1;
                blocks += len;
            }
            let data = list.freeze().slice(0..count * DsmRange::BYTES);
            let sgl = SglDescriptor::transport(data.len() as u32);
            if let Some(command) = Sqe::deallocate(0, self.shape.nsid, count, sgl) {
                self.change(command, CommandData::Out(data)).await?;
            }
        }
        Ok(())
    }
}

/// Compressed payload of a write.
#[derive(Debug)]
pub struct Compressed {
    /// Compressed bytes, padded to a multiple of
    /// [`COMPRESSED_ALIGN_BYTES`](flagstone_nvme::replica::compressed::COMPRESSED_ALIGN_BYTES).
    pub data: Buf,
    /// Length without padding, in bytes.
    pub bytes: u32,
    /// Compression codec.
    pub codec: Codec,
}

/// Offset and length of the parts, of at most `unit`, of a range.
fn pieces(offset: u64, len: u64, unit: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset + len;
    (offset..end).step_by(unit as usize).map(move |at| (at, (end - at).min(unit)))
}

impl BlockDevice for RemoteDevice {
    fn geometry(&self) -> Geometry {
        self.shape.geometry
    }

    fn must_reopen(&self) -> bool {
        self.durability.check_change().is_err()
    }

    fn read(&self, offset: u64, place: BufMut) -> IoFuture<BufMut> {
        IoFuture::checked(self.durability.check_read(), || self.io().submit_read(offset, place))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let checked = self.durability.check_change();
        IoFuture::checked(checked, || self.io().submit_write(offset, data, fua))
    }

    fn flush(&self) -> IoFuture<()> {
        if let Err(error) = self.durability.check_change() {
            return IoFuture::ready(Err(error));
        }
        if !self.shape.geometry.volatile_cache {
            // Completed writes are already durable.
            return IoFuture::ready(Ok(()));
        }
        let (durability, associations) = (self.durability.clone(), self.associations.clone());
        IoFuture::later(flush(self.io(), durability, associations, self.cores.clone()))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let geometry = &self.shape.geometry;
        let checked = self.durability.check_change();
        if let Err(error) = checked.and(geometry.check_change(offset, len)) {
            return IoFuture::ready(Err(error));
        }
        if !geometry.can_discard {
            return IoFuture::ready(Ok(()));
        }
        IoFuture::later(self.io().discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let checked = self.durability.check_change();
        IoFuture::checked(checked, || self.io().submit_zeroes(offset, len, flags))
    }
}

/// Block device calls, and ordered calls.
impl RemoteIo {
    #[inline]
    pub(super) fn submit_read(self, offset: u64, place: BufMut) -> IoFuture<BufMut> {
        if let Err(error) = self.shape.geometry.check_transfer(offset, place.len()) {
            return IoFuture::ready(Err(error));
        }
        if place.len() <= self.shape.transfer_bytes as usize {
            return self.read(offset, place);
        }
        IoFuture::later(self.read_pieces(offset, place))
    }

    #[inline]
    fn check_write(&self, offset: u64, len: usize) -> Result<(), IoError> {
        let geometry = &self.shape.geometry;
        geometry.check_transfer(offset, len)?;
        geometry.check_change(offset, len as u64)
    }

    #[inline]
    pub(super) fn submit_write(self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        if let Err(error) = self.check_write(offset, data.len()) {
            return IoFuture::ready(Err(error));
        }
        if data.len() <= self.shape.transfer_bytes as usize {
            return self.write(offset, data, fua);
        }
        IoFuture::later(self.write_pieces(offset, data, fua))
    }

    /// Flushes the writes of this core's link, and the writes of its instance on other cores.
    pub(super) async fn flush(self) -> Result<(), IoError> {
        if !self.shape.geometry.volatile_cache {
            // Completed writes are already durable.
            return Ok(());
        }
        let status = self.association.flush(self.shape.nsid).await?;
        if status.is_success() { Ok(()) } else { Err(io_error(status, IoError::WriteFault)) }
    }

    pub(super) fn submit_zeroes(self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let geometry = &self.shape.geometry;
        if let Err(error) = geometry.check_change(offset, len) {
            return IoFuture::ready(Err(error));
        }
        match (geometry.can_write_zeroes, flags.fast_only) {
            (true, _) => IoFuture::later(self.zero(offset, len, flags)),
            (false, true) => IoFuture::ready(Err(IoError::Unsupported)),
            (false, false) => IoFuture::later(self.write_buffers_of_zeroes(offset, len, flags.fua)),
        }
    }

    /// Writes in order: one command per transfer, each with its own sequence number.
    pub(super) fn submit_ordered(
        self,
        offset: u64,
        data: Buf,
        fua: bool,
        order: WritePosition,
    ) -> IoFuture<()> {
        if let Err(error) = self.check_write(offset, data.len()) {
            return IoFuture::ready(Err(error));
        }
        if data.len() <= self.shape.transfer_bytes as usize {
            return self.ordered(offset, data, fua, order);
        }
        IoFuture::later(self.ordered_pieces(offset, data, fua, order))
    }

    /// Writes at most one transfer, in order.
    #[inline]
    fn ordered(&self, offset: u64, data: Buf, fua: bool, order: WritePosition) -> IoFuture<()> {
        let range = self.range(offset, data.len() as u64);
        let sgl = SglDescriptor::transport(data.len() as u32);
        let command = OrderedWrite { range, fua, order }.command(0, self.shape.nsid, sgl);
        self.change_in_order(command, CommandData::Out(data))
    }

    /// Starts all pieces at once. A later write may wait at the target for every piece, so no piece
    /// may wait for a slot that such a write occupies.
    async fn ordered_pieces(
        self,
        offset: u64,
        data: Buf,
        fua: bool,
        order: WritePosition,
    ) -> Result<(), IoError> {
        let transfer = u64::from(self.shape.transfer_bytes);
        let mut pieces = (0..).zip(pieces(offset, data.len() as u64, transfer));
        run_at_once(|| {
            let (part, (at, len)) = pieces.next()?;
            let start = (at - offset) as usize;
            let order = order.part(part);
            Some(self.ordered(at, data.slice(start..start + len as usize), fua, order))
        })
        .await
    }

    /// Writes at most one transfer of compressed data.
    pub(super) fn submit_compressed(
        self,
        offset: u64,
        len: u64,
        compressed: Compressed,
        fua: bool,
        order: Option<WritePosition>,
    ) -> IoFuture<()> {
        let Compressed { data, bytes, codec } = compressed;
        if let Err(error) = self.check_write(offset, len as usize) {
            return IoFuture::ready(Err(error));
        }
        let range = self.range(offset, len);
        let write = CompressedWrite { range, fua, codec, compressed_bytes: bytes, order };
        let fits = len <= u64::from(self.shape.transfer_bytes);
        if !fits || write.sent_bytes() != u32::try_from(data.len()).ok() {
            return IoFuture::ready(Err(IoError::Misaligned));
        }
        let sgl = SglDescriptor::transport(data.len() as u32);
        let command = write.command(0, self.shape.nsid, sgl);
        match order {
            Some(_) => self.change_in_order(command, CommandData::Out(data)),
            None => self.change(command, CommandData::Out(data)),
        }
    }

    /// Writes zeroes of any length, in order.
    pub(super) fn submit_ordered_zeroes(
        self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        order: WritePosition,
    ) -> IoFuture<()> {
        if let Err(error) = self.shape.geometry.check_change(offset, len) {
            return IoFuture::ready(Err(error));
        }
        let shift = self.shape.block_shift;
        let (fua, deallocate) = (flags.fua, flags.may_deallocate);
        let (start, blocks) = (offset >> shift, len >> shift);
        let zeroes = OrderedZeroes { start, blocks, fua, deallocate, order };
        self.change_in_order(zeroes.command(0, self.shape.nsid), CommandData::None)
    }
}

/// Device error for a status; `fault` if the status is not specific.
fn io_error(status: Status, fault: IoError) -> IoError {
    match status.code() {
        Status::LBA_OUT_OF_RANGE => IoError::OutOfRange,
        Status::CAPACITY_EXCEEDED => IoError::NoSpace,
        Status::WRITE_PROTECTED | Status::WRITE_TO_READ_ONLY_RANGE => IoError::ReadOnly,
        Status::INVALID_OPCODE => IoError::Unsupported,
        Status::INVALID_FIELD => IoError::Misaligned,
        Status::COMMAND_INTERRUPTED => IoError::NoMemory,
        Status::INTERNAL_ERROR if status.is_dnr() => IoError::Poisoned,
        Status::UNRECOVERED_READ_ERROR => IoError::ReadFault,
        Status::WRITE_FAULT => IoError::WriteFault,
        _ if status.sct() == sct::PATH => IoError::Unreachable,
        _ => fault,
    }
}
