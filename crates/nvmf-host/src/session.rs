//! Session: a connection to a namespace that is never re-established once lost.
//!
//! Like a [`RemoteDevice`](super::RemoteDevice), a [`RemoteSession`] has one association per core,
//! created at the core's first call. If one breaks, all end. All of them use one unique host
//! identifier, by which the target associates their controllers. In addition to block
//! device calls, a session sends vendor specific admin commands and ordered writes. Data digests
//! are always enabled.
//!
//! Invariants:
//! - after [`RemoteSession::lost`] resolves, every new call fails immediately, and calls in flight
//!   without a completion fail soon;
//! - a call whose completion is lost is not resent: it fails with [`IoError::Unreachable`] and may
//!   have been executed;
//! - a target that does not answer is given up after [`HostOptions::command_timeout`] or the keep
//!   alive timeout, so every call ends.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use flagstone_blockdev::{Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_nvme::replica::WritePosition;
use flagstone_nvme::{Nqn, Sqe, Status};
use flagstone_runtime::net::Address;
use flagstone_runtime::{Buf, BufMut, CoreHandle, CoreLocal, cores, spawn_detached};
use parking_lot::Mutex;

use super::association::Association;
use super::command::CommandData;
use super::connect::ConnectParams;
use super::device::{Compressed, RemoteIo};
use super::durability::Durability;
use super::identify_data::NamespaceShape;
use super::link::ControllerLink;
use super::{HostError, HostOptions};

/// Non-reconnecting session with a namespace.
pub struct RemoteSession {
    params: Arc<ConnectParams>,
    associations: Arc<CoreLocal<Association>>,
    cores: Vec<CoreHandle>,
    shape: NamespaceShape,
    /// Unused, because a session ends with its first connection.
    durability: Arc<Durability>,
    state: Arc<SessionState>,
}

/// Monitors one core's connection until it breaks or the session is lost, then ends both.
async fn tend(
    association: Rc<Association>,
    link: ControllerLink,
    params: Arc<ConnectParams>,
    state: Arc<SessionState>,
) {
    {
        let mut broken = pin!(link.tend(params.options.command_timeout));
        let mut lost = pin!(state.wait());
        let why = poll_fn(|cx| match broken.as_mut().poll(cx) {
            Poll::Ready(error) => Poll::Ready(Some(error)),
            Poll::Pending => lost.as_mut().poll(cx).map(|()| None),
        })
        .await;
        if let Some(error) = why {
            tracing::warn!(address = %params.address, "session lost: {error}");
        }
    }
    // Close first: calls that lose their completion must not find another connection.
    association.close();
    link.end();
    state.disconnect();
}

/// Connects another core. A failure ends the session.
async fn join(
    association: Rc<Association>,
    params: Arc<ConnectParams>,
    shape: NamespaceShape,
    state: Arc<SessionState>,
) {
    let refused = match association.connect(Some(shape.nsid)).await {
        Ok(link) => match shape.check_still(&link.shape) {
            Ok(()) if state.is_lost() => HostError::Closed,
            // A flush on this core would not cover the writes of the others.
            Ok(()) if link.shape.instance != shape.instance => HostError::Reopened,
            Ok(()) => {
                association.up(&link);
                return tend(association, link, params, state).await;
            }
            Err(error) => error,
        },
        Err(error) => error,
    };
    tracing::warn!(address = %params.address, "session lost: {refused}");
    association.close();
    state.disconnect();
}

/// Session state: lost or not, as seen by all cores.
#[derive(Default)]
struct SessionState {
    lost: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl SessionState {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    fn disconnect(&self) {
        self.lost.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }

    async fn wait(&self) {
        poll_fn(|cx| {
            let mut waiting = self.waiting.lock();
            // Checked under the lock: a later loss finds the waker.
            if self.is_lost() {
                return Poll::Ready(());
            }
            if !waiting.iter().any(|known| known.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

/// Completion of a vendor specific admin command, whatever its status.
#[derive(Debug)]
pub struct AdminCompletion {
    /// Status.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// The data buffer, filled on success.
    pub data: Option<BufMut>,
}

impl RemoteSession {
    /// Connects this core to subsystem `subnqn` at `address`. Data digests are enabled regardless
    /// of `options`.
    ///
    /// # Errors
    /// The cause of the failure of a single attempt, within [`HostOptions::connect_timeout`].
    pub async fn connect(
        address: Address,
        subnqn: &Nqn,
        options: HostOptions,
    ) -> Result<Arc<RemoteSession>, HostError> {
        let mut options = HostOptions { host_id: None, ..options };
        options.digests.data = true;
        let params = Arc::new(ConnectParams::new(address, *subnqn, options)?);
        let durability = Durability::new(true);
        let association = Association::new(params.clone(), durability.clone());
        let link = association.connect(params.options.nsid).await?;
        let shape = link.shape;
        if !link.has_data_digests() {
            link.end();
            return Err(HostError::NoDigests);
        }
        association.up(&link);
        let (associations, state) = (Arc::new(CoreLocal::new()), Arc::new(SessionState::default()));
        let association = associations.get_or_init(|| association);
        spawn_detached(tend(association, link, params.clone(), state.clone()));
        Ok(Arc::new(RemoteSession {
            params,
            associations,
            cores: cores(),
            shape,
            durability,
            state,
        }))
    }

    /// Namespace identifier.
    pub fn nsid(&self) -> u32 {
        self.shape.nsid
    }

    /// Geometry of the namespace.
    pub fn geometry(&self) -> Geometry {
        self.shape.geometry
    }

    /// Largest transfer of one command, in bytes. A longer ordered write is split into several.
    pub fn transfer_bytes(&self) -> u32 {
        self.shape.transfer_bytes
    }

    /// Reads, like a block device.
    pub fn read(&self, offset: u64, place: BufMut) -> IoFuture<BufMut> {
        self.call(move |io| io.submit_read(offset, place))
    }

    /// Writes, like a block device.
    pub fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.call(move |io| io.submit_write(offset, data, fua))
    }

    /// Writes in order. More than [`RemoteSession::transfer_bytes`] is split, and each part counts
    /// as one in the order; the last part may be shorter.
    pub fn write_ordered(
        &self,
        offset: u64,
        data: Buf,
        fua: bool,
        order: WritePosition,
    ) -> IoFuture<()> {
        self.call(move |io| io.submit_ordered(offset, data, fua, order))
    }

    /// Writes `len` bytes of compressed data, at most [`RemoteSession::transfer_bytes`]. With an
    /// order, it is submitted in sequence and counts as one. The target must support the codec.
    pub fn write_compressed(
        &self,
        offset: u64,
        len: u64,
        compressed: Compressed,
        fua: bool,
        order: Option<WritePosition>,
    ) -> IoFuture<()> {
        self.call(move |io| io.submit_compressed(offset, len, compressed, fua, order))
    }

    /// Writes zeroes, like a block device. `may_deallocate` is passed on even if the target reports
    /// nothing about reading deallocated blocks: blocks deallocated by Write Zeroes read as zeroes
    /// (NVM Command Set 1.0c, 3.2.8), and Flagstone targets thereby preserve holes.
    pub fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.call(move |mut io| {
            io.shape.zero_deallocates = true;
            io.submit_zeroes(offset, len, flags)
        })
    }

    /// Writes zeroes of any length, in order.
    pub fn write_zeroes_ordered(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        order: WritePosition,
    ) -> IoFuture<()> {
        self.call(move |io| io.submit_ordered_zeroes(offset, len, flags, order))
    }

    /// Flushes, like a block device.
    pub fn flush(&self) -> IoFuture<()> {
        self.call(|io| IoFuture::later(io.flush()))
    }

    /// Sends a vendor specific admin command. It must be idempotent, because it is resent when the
    /// target asks for a retry. `data` must match bits 1:0 of the opcode.
    pub fn admin(&self, command: Sqe, data: CommandData) -> IoFuture<AdminCompletion> {
        self.call(move |io| {
            IoFuture::later(async move {
                let (cqe, data) = io.association.admin_call(command, data).await?;
                let data = match data {
                    CommandData::In(place) | CommandData::UpTo(place) => Some(place),
                    CommandData::None | CommandData::Out(_) => None,
                };
                Ok(AdminCompletion { status: cqe.status(), result: cqe.result(), data })
            })
        })
    }

    /// Resolves when the session is lost; never fails.
    pub fn lost(&self) -> IoFuture<()> {
        let state = self.state.clone();
        IoFuture::later(async move {
            state.wait().await;
            Ok(())
        })
    }

    /// True once the session is lost.
    pub fn is_lost(&self) -> bool {
        self.state.is_lost()
    }

    /// Ends the session, which counts as lost from now on.
    pub fn close(&self) {
        self.state.disconnect();
    }

    /// Makes a call on this core's association, which is created on demand.
    fn call<T>(&self, make: impl FnOnce(RemoteIo) -> IoFuture<T>) -> IoFuture<T> {
        if self.state.is_lost() {
            return IoFuture::ready(Err(IoError::Unreachable));
        }
        let association = self.associations.get().unwrap_or_else(|| {
            let params = self.params.clone();
            let association = self
                .associations
                .get_or_init(|| Association::new(params.clone(), self.durability.clone()));
            let state = self.state.clone();
            spawn_detached(join(association.clone(), params, self.shape, state));
            association
        });
        make(RemoteIo { association, shape: self.shape })
    }
}

impl Drop for RemoteSession {
    fn drop(&mut self) {
        self.close();
        drop(self.associations.take());
        for core in &self.cores {
            let associations = self.associations.clone();
            core.spawn(move || async move { drop(associations.take()) });
        }
    }
}

impl std::fmt::Debug for RemoteSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteSession").field("nsid", &self.shape.nsid).finish_non_exhaustive()
    }
}
