//! The mirror as hosts see it: a [`BlockDevice`].

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_runtime::{Buf, BufMut};

use crate::flush::flush;
use crate::mirror::{Inner, Leg, LegState, Mirror, State, count};
use crate::options::Mode;
use crate::peer::SharedSession;
use crate::state::Phase;
use crate::write::{Op, change};

impl BlockDevice for Mirror {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        if let Err(error) = self.0.geometry.check_transfer(offset, buf.len()) {
            return IoFuture::ready(Err(error));
        }
        let inner = self.0.clone();
        IoFuture::later(async move { read(inner, offset, buf).await })
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let bounded = self.0.geometry.check_transfer(offset, data.len());
        let allowed = self.0.geometry.check_change(offset, data.len() as u64);
        if let Err(error) = bounded.and(allowed) {
            return IoFuture::ready(Err(error));
        }
        let (inner, len) = (self.0.clone(), data.len() as u64);
        IoFuture::later(change(inner, (offset, len), Op::Write(data), fua))
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::later(flush(self.0.clone()))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let geometry = &self.0.geometry;
        if let Err(error) = geometry.check_change(offset, len) {
            return IoFuture::ready(Err(error));
        }
        if !geometry.can_discard || !geometry.can_write_zeroes {
            // A hint. What a discard leaves may differ from leg to leg, so it is not passed on.
            return IoFuture::ready(Ok(()));
        }
        self.zero(offset, len, true, false)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        if let Err(error) = self.0.geometry.check_change(offset, len) {
            return IoFuture::ready(Err(error));
        }
        if flags.fast_only && !self.0.geometry.can_write_zeroes {
            return IoFuture::ready(Err(IoError::Unsupported));
        }
        self.zero(offset, len, flags.may_deallocate, flags.fua)
    }
}

impl Mirror {
    fn zero(&self, offset: u64, len: u64, may_deallocate: bool, fua: bool) -> IoFuture<()> {
        IoFuture::later(change(self.0.clone(), (offset, len), Op::Zero { may_deallocate }, fua))
    }
}

/// Where a read goes.
struct Reading {
    local: bool,
    peer: Option<Other>,
    /// See [`State::terms`].
    term: u64,
}

/// A peer that may be read.
struct Other {
    leg: usize,
    serial: u64,
    session: SharedSession,
    /// It has all that was completed; else it gets it by its queue.
    whole: bool,
}

impl Inner {
    /// A read of a host asks where to.
    fn reading(&self, state: &State) -> Result<Reading, IoError> {
        if !state.active {
            return Err(IoError::Unreachable);
        }
        let other = |(leg, (own, options)): (usize, (&LegState, &Leg))| {
            let session = own.session.clone().filter(|_| own.phase == Phase::InSync)?;
            let whole = state.local_failed || options.options().mode == Mode::Sync;
            Some(Other { leg, serial: own.serial, session, whole })
        };
        let others = state.legs.iter().zip(&self.legs).enumerate().filter_map(other);
        let peer = others.min_by_key(|peer| !peer.whole);
        Ok(Reading { local: !state.local_failed, peer, term: state.terms })
    }
}

/// From the local leg while it is there and up to date, else from a peer that is. Behind changes of
/// the same bytes: what is on one leg alone a failure may take back.
///
/// Nobody waits for reads before the role is given up, for one that hangs in a disk would keep it
/// from a peer that is sound. What a read finds after that another source may have written: its
/// hosts may not have been promised it, or never be; it may be part of a resync, or of metadata
/// where the volume is smaller now. So it is given to nobody, and looked for where hosts are served.
async fn read(inner: Arc<Inner>, offset: u64, mut buf: BufMut) -> Result<BufMut, IoError> {
    let began = Inner::now_ns();
    let result = loop {
        let len = buf.len();
        if let Some(held) = inner.overlap.read(offset, len as u64) {
            held.turn().await;
        }
        let reading = inner.wait(|state| match &state.successor {
            Some(successor) => Some(Err(successor.clone())),
            None => (!state.moving || state.active).then(|| Ok(inner.reading(state))),
        });
        let Reading { local, peer, term } = match reading.await {
            Ok(reading) => reading?,
            Err(successor) => return Box::pin(read(successor.0, offset, buf)).await,
        };
        let result = match (local, peer) {
            (false, Some(peer)) => peer.session.read(offset, buf).await,
            (false, None) => Err(IoError::Unreachable),
            (true, peer) => match inner.local.data().read(offset, buf).await {
                Err(error) => read_elsewhere(&inner, peer, (offset, len), error).await,
                found => found,
            },
        };
        match result {
            result if inner.lock().terms == term => break result,
            Ok(memory) => buf = memory,
            Err(_) => break Err(IoError::Unreachable),
        }
    };
    count(&inner.counters.calls, 1);
    count(&inner.counters.calls_ns, Inner::now_ns().saturating_sub(began));
    result
}

/// The local leg could not be read: the peer may have it.
async fn read_elsewhere(
    inner: &Arc<Inner>,
    peer: Option<Other>,
    (offset, len): (u64, usize),
    error: IoError,
) -> Result<BufMut, IoError> {
    let Some(Other { leg, serial, session, whole }) = peer else { return Err(error) };
    if !whole && !inner.catch_up(leg, serial).await {
        return Err(error);
    }
    count(&inner.counters.reads_from_peer, 1);
    let buf = flagstone_runtime::buf::acquire(len).await.map_err(|_| IoError::NoMemory)?;
    session.read(offset, buf).await.map_err(|_| error)
}
