//! A session with a namespace, for those who must know when it is lost: once lost it stays so.
//!
//! A [`RemoteSession`] has one association for each core that uses it, made at the core's first
//! call, as a [`RemoteDevice`](super::RemoteDevice) has; but when one of them breaks all end. All
//! of them are of one host identifier, which no other session has: by it the target knows which
//! controllers belong together. It does what a remote device does, and beside that vendor specific
//! admin commands and ordered writes. Data digests are always on.
//!
//! Promises:
//! - when [`RemoteSession::lost`] resolves, every later call fails at once, and those in flight
//!   soon, unless they have their answer;
//! - a call whose answer is lost is not sent again: it fails with [`IoError::Unreachable`], and may
//!   have been carried out;
//! - a target that does not answer is given up after [`HostOptions::command_timeout`], or the keep
//!   alive time-out, so every call ends.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use flagstone_blockdev::{Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_nvme::replica::Order;
use flagstone_nvme::{Nqn, Sqe, Status};
use flagstone_runtime::net::Address;
use flagstone_runtime::{Buf, BufMut, CoreHandle, CoreLocal, cores, spawn_detached};

use super::association::Association;
use super::command::Data;
use super::connect::Place;
use super::device::{Compressed, Io};
use super::link::Link;
use super::shape::Shape;
use super::{HostError, HostOptions};

/// See the module.
pub struct RemoteSession {
    place: Arc<Place>,
    associations: Arc<CoreLocal<Association>>,
    cores: Vec<CoreHandle>,
    shape: Shape,
    fate: Arc<Fate>,
}

/// Watches over one core's connection until it breaks or the session is lost, and ends both.
async fn tend(association: Rc<Association>, link: Link, place: Arc<Place>, fate: Arc<Fate>) {
    {
        let mut broken = pin!(link.tend(place.options.command_timeout));
        let mut lost = pin!(fate.wait());
        let why = poll_fn(|cx| match broken.as_mut().poll(cx) {
            Poll::Ready(error) => Poll::Ready(Some(error)),
            Poll::Pending => lost.as_mut().poll(cx).map(|()| None),
        })
        .await;
        if let Some(error) = why {
            tracing::warn!(address = %place.address, "session lost: {error}");
        }
    }
    // Calls that lose their answer by the end of the queues find no other connection.
    association.close();
    link.end();
    fate.lose();
}

/// Connects another core; the session is lost if that cannot be.
async fn join(association: Rc<Association>, place: Arc<Place>, shape: Shape, fate: Arc<Fate>) {
    let refused = match association.connect().await {
        Ok((link, found)) => match shape.check_still(&found) {
            Ok(()) if fate.is_lost() => HostError::Closed,
            Ok(()) => {
                association.up(&link);
                return tend(association, link, place, fate).await;
            }
            Err(error) => error,
        },
        Err(error) => error,
    };
    tracing::warn!(address = %place.address, "session lost: {refused}");
    association.close();
    fate.lose();
}

/// Whether the session is lost: what all cores see.
#[derive(Default)]
struct Fate {
    lost: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Fate {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        let waiting =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }

    async fn wait(&self) {
        poll_fn(|cx| {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // Looked at under the lock: a loss that comes later finds the waker.
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

/// How a vendor specific admin command ended, whatever its status.
#[derive(Debug)]
pub struct AdminAnswer {
    /// Its status.
    pub status: Status,
    /// Dwords 0 and 1 of its completion.
    pub result: u64,
    /// The place for its data, filled if the status is success.
    pub data: Option<BufMut>,
}

/// What an admin command moves.
#[derive(Debug)]
pub enum AdminData {
    /// Nothing.
    None,
    /// To the target.
    Out(Buf),
    /// From the target, into this place, all of it.
    In(BufMut),
}

impl RemoteSession {
    /// Connects this core to subsystem `subnqn` at `address`, with data digests whatever `options`
    /// say of them.
    ///
    /// # Errors
    /// Why that cannot be, in less than [`HostOptions::connect_timeout`]: it is tried once.
    pub async fn connect(
        address: Address,
        subnqn: &Nqn,
        options: HostOptions,
    ) -> Result<Arc<RemoteSession>, HostError> {
        let mut options = HostOptions { host_id: None, ..options };
        options.digests.data = true;
        let place = Arc::new(Place::new(address, *subnqn, options)?);
        let association = Association::new(place.clone());
        let (link, shape) = association.connect().await?;
        if !link.has_data_digests() {
            link.end();
            return Err(HostError::NoDigests);
        }
        association.up(&link);
        let (associations, fate) = (Arc::new(CoreLocal::new()), Arc::new(Fate::default()));
        let association = associations.get_or_init(|| association);
        spawn_detached(tend(association, link, place.clone(), fate.clone()));
        Ok(Arc::new(RemoteSession { place, associations, cores: cores(), shape, fate }))
    }

    /// The namespace's identifier.
    pub fn nsid(&self) -> u32 {
        self.shape.nsid
    }

    /// The namespace's shape.
    pub fn geometry(&self) -> Geometry {
        self.shape.geometry
    }

    /// What one command carries, in bytes: an ordered write of more is several.
    pub fn transfer_bytes(&self) -> u32 {
        self.shape.transfer_bytes
    }

    /// Reads, as a block device does.
    pub fn read(&self, offset: u64, place: BufMut) -> IoFuture<BufMut> {
        self.call(move |io| io.submit_read(offset, place))
    }

    /// Writes, as a block device does.
    pub fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.call(move |io| io.submit_write(offset, data, fua))
    }

    /// Writes when it is its turn. More than [`RemoteSession::transfer_bytes`] is split, and each
    /// part of so many bytes, the last of which may be shorter, counts as one in its order.
    pub fn write_ordered(&self, offset: u64, data: Buf, fua: bool, order: Order) -> IoFuture<()> {
        self.call(move |io| io.submit_ordered(offset, data, fua, order))
    }

    /// Writes `len` bytes that travel compressed, at most [`RemoteSession::transfer_bytes`]; with an
    /// order when it is its turn, and it counts as one. The target must know the codec.
    pub fn write_compressed(
        &self,
        offset: u64,
        len: u64,
        compressed: Compressed,
        fua: bool,
        order: Option<Order>,
    ) -> IoFuture<()> {
        self.call(move |io| io.submit_compressed(offset, len, compressed, fua, order))
    }

    /// Writes zeroes, as a block device does. Where they may be deallocated the target is told so
    /// whatever it says of other deallocated blocks: it reads zeroes there in any case (NVM Command
    /// Set 1.0c, 3.2.8), and one of our own keeps a hole a hole.
    pub fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.call(move |mut io| {
            io.shape.zero_deallocates = true;
            io.submit_zeroes(offset, len, flags)
        })
    }

    /// Writes zeroes when it is its turn, of any length.
    pub fn write_zeroes_ordered(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        order: Order,
    ) -> IoFuture<()> {
        self.call(move |io| io.submit_ordered_zeroes(offset, len, flags, order))
    }

    /// Flushes, as a block device does.
    pub fn flush(&self) -> IoFuture<()> {
        self.call(|io| io.submit_flush())
    }

    /// Sends a vendor specific admin command. It is sent again when the target asks for that, so it
    /// must be idempotent. `data` must be what the opcode's bits 1:0 say.
    pub fn admin(&self, command: Sqe, data: AdminData) -> IoFuture<AdminAnswer> {
        self.call(move |io| {
            IoFuture::later(async move {
                let data = match data {
                    AdminData::None => Data::None,
                    AdminData::Out(data) => Data::Out(data),
                    AdminData::In(place) => Data::In(place),
                };
                let (cqe, data) = io.association.admin_call(command, data).await?;
                let data = match data {
                    Data::In(place) => Some(place),
                    Data::None | Data::Out(_) => None,
                };
                Ok(AdminAnswer { status: cqe.status(), result: cqe.result(), data })
            })
        })
    }

    /// Resolves when the session is lost; never with an error.
    pub fn lost(&self) -> IoFuture<()> {
        let fate = self.fate.clone();
        IoFuture::later(async move {
            fate.wait().await;
            Ok(())
        })
    }

    /// True once it is lost.
    pub fn is_lost(&self) -> bool {
        self.fate.is_lost()
    }

    /// Ends the session: it is lost from now on.
    pub fn close(&self) {
        self.fate.lose();
    }

    /// Makes a call on this core's association, which is made now if there is none.
    fn call<T>(&self, make: impl FnOnce(Io) -> IoFuture<T>) -> IoFuture<T> {
        if self.fate.is_lost() {
            return IoFuture::ready(Err(IoError::Unreachable));
        }
        let association = self.associations.get().unwrap_or_else(|| {
            let place = self.place.clone();
            let association = self.associations.get_or_init(|| Association::new(place.clone()));
            let fate = self.fate.clone();
            spawn_detached(join(association.clone(), place, self.shape, fate));
            association
        });
        make(Io { association, shape: self.shape })
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
