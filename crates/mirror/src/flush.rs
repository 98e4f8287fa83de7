//! Flushes of hosts: all legs that have to be asked at once, and what is done before the host hears of
//! it.
//!
//! Promises: what had completed before a flush that succeeds is durable on the local leg and on peers
//! that acknowledge from memory. Where the local leg fails, a peer that is whole goes on without it;
//! where a peer alone does, it is left behind, and a generation minted before the host hears of it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use flagstone_blockdev::IoError;

use crate::gate::{Going, LegGoing, Passage};
use crate::limits::PEERS_MAX;
use crate::mirror::Inner;
use crate::write::Finish;

/// A flush of a host: durable on the local leg, and on legs that acknowledge from memory.
pub(crate) async fn flush(inner: Arc<Inner>) -> Result<(), IoError> {
    let going = loop {
        match inner.pass_flush() {
            Passage::Go(going) => break going,
            Passage::Mint => inner.ensure_minted().await?,
            Passage::Refused(error) => return Err(error),
            Passage::Moved(successor) => return Box::pin(flush(successor.0)).await,
            passage => inner.wait_for_gate(passage).await,
        }
    };
    Finish::new(fly_flush(inner, going)).await
}

async fn fly_flush(inner: Arc<Inner>, going: Going) -> Result<(), IoError> {
    let mut local = going.local.then(|| inner.local.data().flush());
    let mut remote = [const { None }; PEERS_MAX];
    for (call, leg) in remote.iter_mut().zip(&going.legs) {
        if let LegGoing::Send(sending) = leg {
            *call = Some(sending.session.flush());
        }
    }
    let mut said = [None; PEERS_MAX];
    let mut here = Ok(());
    poll_fn(|cx| {
        if let Some(call) = &mut local
            && let Poll::Ready(result) = Pin::new(call).poll(cx)
        {
            (local, here) = (None, result);
        }
        for (call, said) in remote.iter_mut().zip(&mut said) {
            if let Some(running) = call
                && let Poll::Ready(result) = Pin::new(running).poll(cx)
            {
                (*call, *said) = (None, Some(result));
            }
        }
        let flying = local.is_some() || remote.iter().any(Option::is_some);
        if flying { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    let result = settle_flush(&inner, &going, here, said).await;
    inner.ended();
    result
}

async fn settle_flush(
    inner: &Arc<Inner>,
    going: &Going,
    here: Result<(), IoError>,
    said: [Option<Result<(), IoError>>; PEERS_MAX],
) -> Result<(), IoError> {
    for (leg, said) in said.iter().enumerate() {
        let LegGoing::Send(sending) = &going.legs[leg] else { continue };
        if !matches!(said, Some(Ok(()))) {
            inner.lose(leg, sending.serial);
        }
        inner.sent(leg, sending.half);
    }
    if let Err(error) = here {
        // A leg in mode `sync` that was not asked has all that was completed, durably.
        return inner.go_on_without_local(inner.heir(), error).await;
    }
    if !going.local {
        // All that was completed is durable on a peer that is whole still, and nowhere else.
        return inner.first_whole().map(|_| ()).ok_or(IoError::Unreachable);
    }
    if said.iter().flatten().any(Result::is_err) {
        inner.ensure_minted().await?;
    }
    Ok(())
}
