//! Host flushes: sent to all legs that need one, with everything that has to be recorded before the
//! host is answered.
//!
//! Guarantee: after a successful flush, all writes completed before it are durable on the local leg
//! and on peers that acknowledge from memory. If the local leg fails, an up-to-date peer runs
//! degraded without it. If only a peer fails, it is disconnected and a new generation is durable
//! before the host is answered.
//!
//! With [`OnPeerLoss::Block`](crate::options::OnPeerLoss::Block), completed writes that a lost peer
//! has not flushed keep a flush from being admitted, as writes are, until the peer is attached
//! again. From then on, it is brought up to date, and a flush does not wait for the end of that: a
//! peer that is not in sync never serves, so the source's guarantees count.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use flagstone_blockdev::IoError;

use crate::io::admission::{Dispatch, LegDispatch, MirrorAdmission};
use crate::io::call_admission::Counted;
use crate::io::memory::with_memory;
use crate::io::request::RunToCompletion;
use crate::limits::PEERS_MAX;
use crate::mirror::Inner;

/// Flushes the local leg and the legs that acknowledge from memory.
pub(crate) async fn flush(inner: Arc<Inner>) -> Result<(), IoError> {
    loop {
        match inner.admit_flush() {
            MirrorAdmission::Admitted(dispatch) => {
                RunToCompletion::new(run_flush(inner.clone(), dispatch)).await?;
                // Repeated if a peer was lost meanwhile.
                if !inner.blocks_flushes(&inner.lock()) {
                    return Ok(());
                }
            }
            MirrorAdmission::NeedsGeneration => {
                let begun = inner.ensure_new_generation().await;
                // Abandoned when the replica begins to move to another mirror.
                if inner.lock().moved().is_none() {
                    begun?;
                }
            }
            MirrorAdmission::Refused(error) => return Err(error),
            MirrorAdmission::Moved(replacement) => return Box::pin(flush(replacement.0)).await,
            admission => inner.wait_for_admission(admission).await?,
        }
    }
}

async fn run_flush(inner: Arc<Inner>, dispatch: Dispatch) -> Result<(), IoError> {
    let mut local = dispatch.local.then(|| inner.local.data().flush());
    let mut remote = [const { None }; PEERS_MAX];
    for (call, leg) in remote.iter_mut().zip(&dispatch.legs) {
        if let LegDispatch::Send(leg_call) = leg {
            *call = Some(leg_call.session.flush());
        }
    }
    let mut results = [None; PEERS_MAX];
    let mut local_result = Ok(());
    poll_fn(|cx| {
        if let Some(call) = &mut local
            && let Poll::Ready(result) = Pin::new(call).poll(cx)
        {
            (local, local_result) = (None, result);
        }
        for (call, results) in remote.iter_mut().zip(&mut results) {
            if let Some(running) = call
                && let Poll::Ready(result) = Pin::new(running).poll(cx)
            {
                (*call, *results) = (None, Some(result));
            }
        }
        let pending = local.is_some() || remote.iter().any(Option::is_some);
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    if local_result == Err(IoError::NoMemory) {
        local_result = with_memory(|| inner.local.data().flush()).await;
    }
    let result = complete_flush(&inner, &dispatch, local_result, results).await;
    let serving = inner.call_completed(&dispatch);
    result.and(if serving { Ok(()) } else { Err(IoError::Unreachable) })
}

async fn complete_flush(
    inner: &Arc<Inner>,
    dispatch: &Dispatch,
    local_result: Result<(), IoError>,
    results: [Option<Result<(), IoError>>; PEERS_MAX],
) -> Result<(), IoError> {
    for (leg, results) in results.iter().enumerate() {
        let LegDispatch::Send(leg_call) = &dispatch.legs[leg] else { continue };
        if !matches!(results, Some(Ok(()))) {
            inner.disconnect(leg, leg_call.session_id);
        }
        inner.call_ended(Counted::Leg(leg, leg_call.half));
    }
    if let Err(error) = local_result {
        // A leg in mode `sync` that was not asked has every completed write durably.
        return inner.run_degraded(inner.successor_candidate(), error).await;
    }
    if !dispatch.local {
        // Completed writes are durable only on a peer that is still up to date.
        return inner.first_up_to_date().map(|_| ()).ok_or(IoError::Unreachable);
    }
    if results.iter().flatten().any(Result::is_err) {
        inner.ensure_new_generation().await?;
    }
    Ok(())
}
