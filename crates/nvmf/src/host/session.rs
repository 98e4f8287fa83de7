//! One connection to a namespace, for those who must know when it is lost: once lost it stays so.
//!
//! A [`RemoteSession`] is a controller with its I/O queues, on the core that made it; other cores'
//! calls are carried there. It speaks what a [`RemoteDevice`](super::RemoteDevice) does, and beside
//! that vendor specific admin commands and ordered writes. Data digests are always on.
//!
//! Promises:
//! - once [`RemoteSession::lost`] resolves every call in flight fails, or has its answer already;
//!   every later one fails at once;
//! - a call whose answer is lost is not sent again: it fails with [`IoError::Unreachable`], and may
//!   have been carried out;
//! - a target that does not answer is given up after [`HostOptions::command_timeout`], or the keep
//!   alive time-out, so every call ends.

use std::cell::Cell;
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
use flagstone_runtime::{
    Buf, BufMut, CoreHandle, CoreLocal, core_index, cores, spawn_detached, sync,
};

use super::association::Association;
use super::command::Data;
use super::connect::Place;
use super::device::Io;
use super::link::Link;
use super::shape::Shape;
use super::{HostError, HostOptions};

/// See the module.
pub struct RemoteSession {
    home: CoreHandle,
    live: Arc<CoreLocal<Live>>,
    shape: Shape,
    fate: Arc<Fate>,
}

/// The connection, on its core.
struct Live {
    association: Rc<Association>,
    stopped: Cell<bool>,
    rung: sync::Notify,
}

impl Live {
    fn stop(&self) {
        self.association.close();
        self.stopped.set(true);
        self.rung.notify();
    }

    /// Watches over the connection until it breaks or is to end, and ends it.
    async fn tend(self: Rc<Self>, link: Link, fate: Arc<Fate>, options: HostOptions) {
        {
            let mut broken = pin!(link.tend(options.command_timeout));
            let mut stopped = pin!(self.rung.wait_for(|| self.stopped.get().then_some(())));
            let why = poll_fn(|cx| match broken.as_mut().poll(cx) {
                Poll::Ready(error) => Poll::Ready(Some(error)),
                Poll::Pending => stopped.as_mut().poll(cx).map(|()| None),
            })
            .await;
            if let Some(error) = why {
                tracing::warn!("session lost: {error}");
            }
        }
        // Calls that lose their answer by the end of the queues find no other connection.
        self.association.close();
        link.end();
        fate.lose();
    }
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
        let mut options = options;
        options.digests.data = true;
        let place = Arc::new(Place::new(address, *subnqn, options.clone())?);
        let association = Rc::new(Association::new(place));
        let (link, shape) = association.connect().await?;
        if !link.has_data_digests() {
            link.end();
            return Err(HostError::NoDigests);
        }
        association.up(&link);
        let home = cores().into_iter().nth(core_index()).ok_or(HostError::Closed)?;
        let (live, fate) = (Arc::new(CoreLocal::new()), Arc::new(Fate::default()));
        let here = live.get_or_init(|| Live {
            association,
            stopped: Cell::new(false),
            rung: sync::Notify::new(),
        });
        spawn_detached(here.tend(link, fate.clone(), options));
        Ok(Arc::new(RemoteSession { home, live, shape, fate }))
    }

    /// The namespace's identifier.
    pub fn nsid(&self) -> u32 {
        self.shape.nsid
    }

    /// The namespace's shape.
    pub fn geometry(&self) -> Geometry {
        self.shape.geometry
    }

    /// Longest ordered write, in bytes: what one command carries.
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

    /// Writes when it is its turn. At most [`RemoteSession::transfer_bytes`]: a write counts as one
    /// in its order, so it is not split; a longer one fails with [`IoError::Unsupported`].
    pub fn write_ordered(&self, offset: u64, data: Buf, fua: bool, order: Order) -> IoFuture<()> {
        self.call(move |io| io.submit_ordered(offset, data, fua, order))
    }

    /// Writes zeroes, as a block device does.
    pub fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.call(move |io| io.submit_zeroes(offset, len, flags))
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

    /// Ends the session: it is lost when its connections have been ended, very soon.
    pub fn close(&self) {
        if let Some(live) = self.live.get() {
            return live.stop();
        }
        let live = self.live.clone();
        self.home.spawn(move || async move {
            if let Some(live) = live.get() {
                live.stop();
            }
        });
    }

    /// Makes a call on the session's core.
    fn call<T: Send + 'static>(
        &self,
        make: impl FnOnce(Io) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        if self.fate.is_lost() {
            return IoFuture::ready(Err(IoError::Unreachable));
        }
        let shape = self.shape;
        if let Some(live) = self.live.get() {
            return make(Io { association: live.association.clone(), shape });
        }
        let answer = Arc::new(Answer::default());
        let (teller, live) = (Teller(answer.clone()), self.live.clone());
        self.home.spawn(move || async move {
            let result = match live.get() {
                Some(live) => make(Io { association: live.association.clone(), shape }).await,
                None => Err(IoError::Unreachable),
            };
            teller.0.tell(result);
        });
        IoFuture::later(async move { answer.heard().await })
    }
}

impl Drop for RemoteSession {
    fn drop(&mut self) {
        self.close();
        let live = self.live.clone();
        self.home.spawn(move || async move { drop(live.take()) });
    }
}

impl std::fmt::Debug for RemoteSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteSession").field("nsid", &self.shape.nsid).finish_non_exhaustive()
    }
}

/// An answer on its way from core to core.
struct Answer<T>(Mutex<(Option<Result<T, IoError>>, Option<Waker>)>);

impl<T> Default for Answer<T> {
    fn default() -> Answer<T> {
        Answer(Mutex::new((None, None)))
    }
}

impl<T> Answer<T> {
    /// Tells it, unless it was told already.
    fn tell(&self, result: Result<T, IoError>) {
        let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answer.0.get_or_insert(result);
        if let Some(waker) = answer.1.take() {
            waker.wake();
        }
    }

    async fn heard(&self) -> Result<T, IoError> {
        poll_fn(|cx| {
            let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match answer.0.take() {
                Some(result) => Poll::Ready(result),
                None => {
                    answer.1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// Tells that there will be no answer when its task ends without one: its core is stopping.
struct Teller<T>(Arc<Answer<T>>);

impl<T> Drop for Teller<T> {
    fn drop(&mut self) {
        self.0.tell(Err(IoError::Unreachable));
    }
}
