//! NBD client: the `nbd://` block device, an export of an NBD server.
//!
//! If the server allows it (CAN_MULTI_CONN), each core has its own connection, made on demand.
//! Otherwise all calls are copied to the core that opened the device. Requests of a core are
//! pipelined, with up to [`crate::limits::CLIENT_WINDOW`] in flight.
//!
//! # Lost connections
//! The device reconnects with increasing pauses, and resends unanswered requests until
//! [`ClientOptions::request_timeout`]. All requests are idempotent, provided that the first
//! execution ends before the second begins. Flagstone's server guarantees that
//! ([`crate::wire::link`]). With other servers, a write still in flight on the old connection may
//! execute after later writes and undo them. The same holds for every NBD client that reconnects
//! (QEMU, nbd-client).
//!
//! Writes that were answered but not flushed need more care. A crashed server loses them if they
//! were in a volatile cache, and NBD cannot distinguish a crash from a network failure. So if a
//! connection is lost while such writes exist, the next flush fails with [`IoError::Poisoned`], and
//! so does every later call until the device is reopened. [`ClientOptions::server_is_durable`]
//! disables this for servers that never lose answered writes. A server without FLUSH is assumed to
//! be one. A flush is sent on every connection with such writes, so that a lost one is noticed
//! before the flush succeeds.

mod coverage;
mod link;
pub mod negotiate;
mod relay;
mod replies;
mod slots;
mod target;
mod tls;

use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, Extent, Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_runtime::net::Address;
use flagstone_runtime::{
    Buf, BufMut, CoreHandle, CoreLocal, buf, random_u64, spawn, spawn_detached,
};

pub use negotiate::NegotiationError;
pub use target::{ClientOptions, ConnectError};
pub use tls::NbdTlsClient;

use crate::limits::{
    CLIENT_EFFECT_BYTES, CLIENT_STATUS_BYTES, CLIENT_ZERO_PIECE_BYTES, MAX_REQUEST_BYTES,
};
use crate::wire::link::LinkId;
use crate::wire::request::{Cookie, NbdRequest, command, command_flag};
use crate::wire::transmission_flag as flag;
use link::{PendingRequest, ServerLink};
use negotiate::ServerInfo;
use slots::RequestData;
use target::{EstablishedConnection, RemoteExport};

/// Remote export as a block device. The module documentation describes lost connections.
#[derive(Debug)]
pub struct NbdDevice(Arc<Inner>);

impl NbdDevice {
    /// Connects from this core and opens `export`; the empty name is the server's default.
    ///
    /// # Errors
    /// [`ConnectError`], after a single attempt.
    pub async fn connect(
        address: Address,
        export: &str,
        options: ClientOptions,
    ) -> Result<Arc<NbdDevice>, ConnectError> {
        NbdDevice::connect_with(address, export, options, None).await
    }

    /// Same as [`NbdDevice::connect`], with TLS, which the server has to speak.
    ///
    /// # Errors
    /// [`ConnectError`], after a single attempt.
    pub async fn connect_tls(
        address: Address,
        export: &str,
        options: ClientOptions,
        tls: NbdTlsClient,
    ) -> Result<Arc<NbdDevice>, ConnectError> {
        NbdDevice::connect_with(address, export, options, Some(tls)).await
    }

    async fn connect_with(
        address: Address,
        export: &str,
        options: ClientOptions,
        tls: Option<NbdTlsClient>,
    ) -> Result<Arc<NbdDevice>, ConnectError> {
        let id = LinkId(random_u64());
        let (target, first) = RemoteExport::open(address, export, options, tls, id).await?;
        let core = flagstone_runtime::core_index();
        let several = target.info.has(flag::CAN_MULTI_CONN);
        let home = (!several).then(|| (core, flagstone_runtime::cores()[core].clone()));
        let (geometry, piece_bytes) = shape(&target.info);
        let target = Arc::new(target);
        let inner =
            Arc::new(Inner { target, geometry, piece_bytes, links: CoreLocal::new(), home });
        inner.start_link(id, Some(first));
        Ok(Arc::new(NbdDevice(inner)))
    }
}

impl NbdDevice {
    fn check_change(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.0.target.check().and(self.0.geometry.check_change(offset, len))
    }

    /// Runs a call without data, on the core that may connect.
    fn command<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Arc<Inner>) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        match self.0.forward_core() {
            None => call(&self.0),
            Some(core) => relay::command(&self.0, core, call),
        }
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.0.target.closing.begin();
    }
}

/// Geometry derived from the server's information, and the longest read or write per request.
fn shape(info: &ServerInfo) -> (Geometry, usize) {
    let [minimum, preferred, maximum] = info.block_sizes;
    let block_bytes = minimum.max(512);
    let size_bytes = info.size_bytes - info.size_bytes % u64::from(block_bytes);
    let geometry = Geometry {
        physical_block_bytes: preferred.max(block_bytes),
        volatile_cache: info.has(flag::SEND_FLUSH),
        read_only: info.has(flag::READ_ONLY),
        can_discard: info.has(flag::SEND_TRIM),
        discard_zeroes: false,
        can_write_zeroes: info.has(flag::SEND_WRITE_ZEROES),
        ..Geometry::new(size_bytes, block_bytes)
    };
    let longest = maximum.min(MAX_REQUEST_BYTES);
    (geometry, (longest - longest % block_bytes) as usize)
}

struct Inner {
    target: Arc<RemoteExport>,
    geometry: Geometry,
    /// Longest read or write per request, in bytes; a multiple of the block size.
    piece_bytes: usize,
    links: CoreLocal<Rc<ServerLink>>,
    /// The only core that may connect, if the server allows one connection.
    home: Option<(usize, CoreHandle)>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "nbd://{}/{}", self.target.address, self.target.export)
    }
}

impl Inner {
    /// This core's link, started on demand.
    fn link(self: &Arc<Self>) -> Rc<ServerLink> {
        match self.links.get() {
            Some(link) => Rc::clone(&link),
            None => self.start_link(LinkId(random_u64()), None),
        }
    }

    fn start_link(
        self: &Arc<Self>,
        id: LinkId,
        first: Option<EstablishedConnection>,
    ) -> Rc<ServerLink> {
        let link = ServerLink::start(self.target.clone(), id, first);
        self.links.get_or_init(|| link.clone());
        let (inner, closing) = (self.clone(), link.clone());
        spawn_detached(async move {
            inner.target.closing.begun().await;
            drop(inner.links.take());
            closing.close();
        });
        link
    }

    /// The core to forward calls to, unless it is this one.
    fn forward_core(&self) -> Option<&CoreHandle> {
        let (core, handle) = self.home.as_ref()?;
        (*core != flagstone_runtime::core_index()).then_some(handle)
    }

    fn submit(
        self: &Arc<Self>,
        command: u16,
        flags: u16,
        range: (u64, u64),
        data: RequestData,
    ) -> PendingRequest {
        let (offset, len) = (range.0, range.1 as u32);
        let request = NbdRequest { flags, command, cookie: Cookie(0), offset, len };
        self.link().submit(request, data)
    }

    fn read(self: &Arc<Self>, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let len = buf.len();
        if len <= self.piece_bytes {
            let data = RequestData::Read(buf);
            let outcome = self.submit(command::READ, 0, (offset, len as u64), data);
            return IoFuture::later(async move {
                match outcome.await? {
                    RequestData::Read(buf) => Ok(buf),
                    _ => Err(IoError::ReadFault),
                }
            });
        }
        let inner = self.clone();
        IoFuture::later(async move {
            let mut rest = buf;
            let mut done = rest.split_to(0);
            while !rest.is_empty() {
                let piece = rest.split_to(inner.piece_bytes.min(rest.len()));
                let piece = inner.read(offset + done.len() as u64, piece).await?;
                done.unsplit(piece).map_err(|_| IoError::ReadFault)?;
            }
            Ok(done)
        })
    }

    fn write(self: &Arc<Self>, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let by_flush = fua && !self.target.info.has(flag::SEND_FUA);
        let len = data.len();
        if len <= self.piece_bytes && !by_flush {
            let flags = if fua { command_flag::FUA } else { 0 };
            let range = (offset, len as u64);
            let outcome = self.submit(command::WRITE, flags, range, RequestData::Write(data));
            return IoFuture::later(async move { outcome.await.map(drop) });
        }
        let inner = self.clone();
        IoFuture::later(async move {
            let mut done = 0;
            while done < len {
                let end = len.min(done + inner.piece_bytes);
                let piece = data.slice(done..end);
                inner.write(offset + done as u64, piece, fua && !by_flush).await?;
                done = end;
            }
            if by_flush { inner.flush().await } else { Ok(()) }
        })
    }

    fn flush(self: &Arc<Self>) -> IoFuture<()> {
        if !self.target.info.has(flag::SEND_FLUSH) {
            return IoFuture::ready(Ok(()));
        }
        let flushed = match self.target.begin_flush() {
            Ok(flushed) => flushed,
            Err(error) => return IoFuture::ready(Err(error)),
        };
        let own = self.flush_link();
        let here = flagstone_runtime::core_index();
        let cores = flagstone_runtime::cores();
        let others = flushed.cores().filter(|core| *core != here);
        let flush = |core: usize| relay::command(self, &cores[core], Inner::flush_link);
        let others = others.map(|core| spawn(flush(core)));
        let others: Vec<_> = others.collect();
        let inner = self.clone();
        IoFuture::later(async move {
            let mut result = own.await;
            for other in others {
                result = other.await.unwrap_or(Err(IoError::Unreachable)).and(result);
            }
            inner.target.end_flush(flushed, result)
        })
    }

    /// Sends a flush on the connection of this core.
    fn flush_link(self: &Arc<Self>) -> IoFuture<()> {
        let outcome = self.submit(command::FLUSH, 0, (0, 0), RequestData::Nothing);
        IoFuture::later(async move { outcome.await.map(drop) })
    }

    /// Sends a command without payload on a range of any length, in pieces.
    fn affect(self: &Arc<Self>, kind: u16, flags: u16, offset: u64, len: u64) -> IoFuture<()> {
        let inner = self.clone();
        IoFuture::later(async move {
            let mut done = 0;
            while done < len {
                let piece = (len - done).min(CLIENT_EFFECT_BYTES);
                inner.submit(kind, flags, (offset + done, piece), RequestData::Nothing).await?;
                done += piece;
            }
            Ok(())
        })
    }

    fn write_zeroes(self: &Arc<Self>, offset: u64, len: u64, how: ZeroFlags) -> IoFuture<()> {
        let info = &self.target.info;
        let zeroes = info.has(flag::SEND_WRITE_ZEROES);
        if how.fast_only && !(zeroes && info.has(flag::SEND_FAST_ZERO)) {
            return IoFuture::ready(Err(IoError::Unsupported));
        }
        let by_flush = how.fua && !info.has(flag::SEND_FUA);
        let inner = self.clone();
        IoFuture::later(async move {
            if zeroes {
                let mut flags = if how.may_deallocate { 0 } else { command_flag::NO_HOLE };
                if how.fast_only {
                    flags |= command_flag::FAST_ZERO;
                }
                if how.fua && !by_flush {
                    flags |= command_flag::FUA;
                }
                inner.affect(command::WRITE_ZEROES, flags, offset, len).await?;
            } else {
                inner.write_plain_zeroes(offset, len, how.fua && !by_flush).await?;
            }
            if by_flush { inner.flush().await } else { Ok(()) }
        })
    }

    /// The first extent of a range, in whole blocks. A server that does not know, or does not say,
    /// has data.
    fn first_extent(self: &Arc<Self>, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        let all = vec![Extent { len, is_hole: false }];
        if !self.target.info.reports_allocation {
            return IoFuture::ready(Ok(all));
        }
        let asked = len.min(CLIENT_STATUS_BYTES);
        let block = u64::from(self.geometry.block_bytes);
        let (one, data) = (command_flag::REQ_ONE, RequestData::Extent(None));
        let outcome = self.submit(command::BLOCK_STATUS, one, (offset, asked), data);
        IoFuture::later(async move {
            match outcome.await {
                Ok(RequestData::Extent(Some((found, is_hole)))) => {
                    let found = u64::from(found);
                    let whole = found - found % block;
                    // A block of which a part is a hole has data.
                    let is_hole = is_hole && whole > 0;
                    let len = if is_hole { whole } else { found.next_multiple_of(block) };
                    Ok(vec![Extent { len: len.min(asked), is_hole }])
                }
                Err(error @ IoError::Unreachable) => Err(error),
                _ => Ok(all),
            }
        })
    }

    async fn write_plain_zeroes(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
        fua: bool,
    ) -> Result<(), IoError> {
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(CLIENT_ZERO_PIECE_BYTES as u64);
            self.write(offset + done, buf::zeroes(piece as usize), fua).await?;
            done += piece;
        }
        Ok(())
    }
}

impl BlockDevice for NbdDevice {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    fn must_reopen(&self) -> bool {
        self.0.target.check().is_err()
    }

    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        let checked = self.0.target.check().and(self.0.geometry.check(offset, len));
        IoFuture::checked(checked, || self.command(move |inner| inner.first_extent(offset, len)))
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let checked = self.0.geometry.check_transfer(offset, buf.len());
        IoFuture::checked(self.0.target.check().and(checked), || match self.0.forward_core() {
            None => self.0.read(offset, buf),
            Some(core) => relay::read(&self.0, core, offset, buf),
        })
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let bounded = self.0.geometry.check_transfer(offset, data.len());
        let checked = self.check_change(offset, data.len() as u64).and(bounded);
        IoFuture::checked(checked, || match self.0.forward_core() {
            None => self.0.write(offset, data, fua),
            Some(core) => relay::write(&self.0, core, offset, &data, fua),
        })
    }

    fn flush(&self) -> IoFuture<()> {
        self.command(Inner::flush)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        IoFuture::checked(self.check_change(offset, len), || {
            if !self.0.geometry.can_discard {
                return IoFuture::ready(Ok(()));
            }
            self.command(move |inner| inner.affect(command::TRIM, 0, offset, len))
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        IoFuture::checked(self.check_change(offset, len), || {
            self.command(move |inner| inner.write_zeroes(offset, len, flags))
        })
    }
}
