//! Host-facing side of the mirror: its [`BlockDevice`] implementation.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_runtime::{Buf, BufMut, buf};

use crate::io::flush::flush;
use crate::io::repair::RepairPeer;
use crate::io::write::{WriteOp, change};
use crate::mirror::{Inner, Leg, LegState, Mirror, State, count};
use crate::options::Mode;
use crate::session::resync::is_outage;
use crate::state::status::LegPhase;
use crate::wire::peer::SharedSession;

impl BlockDevice for Mirror {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        if let Err(error) = self.0.geometry.check_transfer(offset, buf.len()) {
            return IoFuture::ready(Err(error));
        }
        read(&self.0, offset, buf)
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let bounded = self.0.geometry.check_transfer(offset, data.len());
        let allowed = self.0.geometry.check_change(offset, data.len() as u64);
        if let Err(error) = bounded.and(allowed) {
            return IoFuture::ready(Err(error));
        }
        change(&self.0, (offset, data.len() as u64), WriteOp::Write(data), fua)
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
            // A discard is not passed on: legs may return different data after it.
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
        change(&self.0, (offset, len), WriteOp::Zero { may_deallocate }, fua)
    }
}

struct ReadRoute {
    local: bool,
    peer: Option<ReadablePeer>,
    /// [`State::service_ends`] when the route was chosen.
    service_ends: u64,
}

struct ReadablePeer {
    leg: usize,
    session_id: u64,
    session: SharedSession,
    /// The peer has every completed write. Otherwise its queue has to drain first.
    up_to_date: bool,
}

impl Inner {
    fn count_read(&self, began_ns: u64) {
        count(&self.counters.calls, 1);
        count(&self.counters.calls_ns, Inner::now_ns().saturating_sub(began_ns));
    }

    /// Waits until the changes of these bytes that have begun have ended.
    async fn changes_ended(&self, offset: u64, len: u64) {
        if let Some(guard) = self.range_lock.read(offset, len) {
            guard.granted().await;
        }
    }

    fn read_route(&self, state: &State) -> Result<ReadRoute, IoError> {
        if !state.serving {
            return Err(IoError::Unreachable);
        }
        let other = |(leg, (own, options)): (usize, (&LegState, &Leg))| {
            let session = own.session.clone().filter(|_| own.phase == LegPhase::InSync)?;
            let up_to_date = state.local_device_failed || options.options().mode == Mode::Sync;
            Some(ReadablePeer { leg, session_id: own.session_id, session, up_to_date })
        };
        let others = state.legs.iter().zip(&self.legs).enumerate().filter_map(other);
        let peer = others.min_by_key(|peer| !peer.up_to_date);
        Ok(ReadRoute { local: !state.local_device_failed, peer, service_ends: state.service_ends })
    }
}

/// Reads from the local leg while it is up to date, otherwise from a peer that is. A read waits for
/// changes of the same bytes, because a failure could take back data that is on one leg only:
/// before it starts, and again when it has the data, as a change that began meanwhile may be in it.
///
/// Giving up the role does not wait for reads: a read that hangs in a failing disk would keep the
/// role from a healthy peer. After that, a read may find data of the next source that was never
/// acknowledged, a half-copied resync, or metadata of a volume that has shrunk. Such data is never
/// returned: the read is repeated where hosts are served now, or fails.
fn read(inner: &Arc<Inner>, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
    let began_ns = Inner::now_ns();
    let (version, view) = inner.view();
    let len = buf.len();
    let stale = inner.failover.lease_has_ended();
    if stale || !view.reads_locally || inner.range_lock.read(offset, len as u64).is_some() {
        let inner = inner.clone();
        return IoFuture::later(async move {
            let result = read_anywhere(&inner, offset, buf).await;
            inner.count_read(began_ns);
            result
        });
    }
    // Usually the state is still the same afterwards, and nothing else has to be looked at.
    let call = match inner.local.data().read(offset, buf).try_now() {
        Ok(Ok(buf))
            if inner.range_lock.read(offset, len as u64).is_none()
                && inner.calls.confirm(version) =>
        {
            inner.count_read(began_ns);
            return IoFuture::ready(Ok(buf));
        }
        Ok(result) => IoFuture::ready(result),
        Err(call) => call,
    };
    let inner = inner.clone();
    IoFuture::later(async move {
        let mut result = call.await;
        inner.changes_ended(offset, len as u64).await;
        if !(result.is_ok() && inner.calls.confirm(version)) {
            result = read_again(&inner, (offset, len), version, result).await;
        }
        inner.count_read(began_ns);
        result
    })
}

/// Continues a read of the local leg that failed, or during which the state changed.
#[cold]
async fn read_again(
    inner: &Arc<Inner>,
    (offset, len): (u64, usize),
    version: u64,
    result: Result<BufMut, IoError>,
) -> Result<BufMut, IoError> {
    let buf = match result {
        Ok(buf) => buf,
        Err(error) if inner.calls.confirm(version) => {
            let route = inner.read_route(&inner.lock())?;
            let found = read_from_peer(inner, route.peer, (offset, len), error).await?;
            inner.changes_ended(offset, len as u64).await;
            if inner.lock().service_ends == route.service_ends {
                return Ok(found);
            }
            found
        }
        Err(_) => buf::acquire(len).await.map_err(|_| IoError::NoMemory)?,
    };
    read_anywhere(inner, offset, buf).await
}

async fn read_anywhere(
    inner: &Arc<Inner>,
    offset: u64,
    mut buf: BufMut,
) -> Result<BufMut, IoError> {
    loop {
        let len = buf.len();
        inner.changes_ended(offset, len as u64).await;
        let route = inner.wait(|state| match state.replacement() {
            Some(replacement) => Some(Err(replacement.clone())),
            // The lease is renewed, or this node runs degraded, or it stops serving.
            None if state.serving
                && !state.local_device_failed
                && inner.failover.lease_has_ended() =>
            {
                None
            }
            None => (!state.holds_calls() || state.serving).then(|| Ok(inner.read_route(state))),
        });
        let ReadRoute { local, peer, service_ends } = match route.await {
            Ok(route) => route?,
            Err(replacement) => {
                return Box::pin(read_anywhere(&replacement.0, offset, buf)).await;
            }
        };
        let result = match (local, peer) {
            (false, Some(peer)) => peer.session.read(offset, buf).await,
            (false, None) => Err(IoError::Unreachable),
            (true, peer) => match inner.local.data().read(offset, buf).await {
                Err(error) => read_from_peer(inner, peer, (offset, len), error).await,
                found => found,
            },
        };
        inner.changes_ended(offset, len as u64).await;
        match result {
            result if inner.lock().service_ends == service_ends => return result,
            Ok(memory) => buf = memory,
            Err(_) => return Err(IoError::Unreachable),
        }
    }
}

/// Reads from the peer after the local leg failed to serve a read.
async fn read_from_peer(
    inner: &Arc<Inner>,
    peer: Option<ReadablePeer>,
    (offset, len): (u64, usize),
    error: IoError,
) -> Result<BufMut, IoError> {
    let Some(ReadablePeer { leg, session_id, session, up_to_date }) = peer else {
        return Err(error);
    };
    if !up_to_date && !inner.catch_up(leg, session_id).await {
        return Err(error);
    }
    count(&inner.counters.reads_from_peer, 1);
    let buf = buf::acquire(len).await.map_err(|_| IoError::NoMemory)?;
    let found = session.read(offset, buf).await.map_err(|_| error)?;
    if !is_outage(error) {
        let peer = RepairPeer { leg, session_id, session };
        inner.repair_later(peer, offset..offset + len as u64);
    }
    Ok(found)
}
