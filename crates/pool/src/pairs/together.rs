//! Calls to several legs at the same time, with a time limit that the last leg of a pair does not
//! have.
//!
//! Invariant: a call is given up only some time after a leg in sync of the same pair has completed
//! its own. A stall of a controller or host that all legs share fails none of them.

use std::pin::Pin;
use std::task::Poll;

use flagstone_blockdev::IoError;
use flagstone_runtime::time::{self, Sleep};

use crate::limits::LEG_TIME_LIMIT;
use crate::ondisk::legs::LEGS;

type Outcome = Result<(), IoError>;

/// A call to one leg.
pub(super) struct LegCall<'a> {
    call: Pin<&'a mut (dyn Future<Output = Outcome> + 'a)>,
    /// Number of the pair.
    pair: usize,
    is_in_sync: bool,
    /// Runs once the call can be given up.
    timer: Option<Sleep>,
    result: Option<Outcome>,
}

impl<'a> LegCall<'a> {
    /// A call to a leg of this pair. It `has_limit` from now on if a leg in sync of the pair has
    /// completed its own already.
    pub(super) fn new(
        call: Pin<&'a mut (dyn Future<Output = Outcome> + 'a)>,
        pair: usize,
        is_in_sync: bool,
        has_limit: bool,
    ) -> LegCall<'a> {
        let timer = has_limit.then(|| time::sleep(LEG_TIME_LIMIT));
        LegCall { call, pair, is_in_sync, timer, result: None }
    }
}

/// Ends all calls. One that is given up counts as [`IoError::Unreachable`].
pub(super) async fn together(calls: &mut [LegCall<'_>]) -> Vec<Outcome> {
    end(calls).await;
    calls.iter().map(result).collect()
}

fn result(call: &LegCall<'_>) -> Outcome {
    call.result.unwrap_or(Err(IoError::Unreachable))
}

async fn end(calls: &mut [LegCall<'_>]) {
    std::future::poll_fn(|cx| {
        for own in calls.iter_mut().filter(|own| own.result.is_none()) {
            if let Poll::Ready(result) = own.call.as_mut().poll(cx) {
                own.result = Some(result);
            }
        }
        let mut is_over = true;
        for index in 0..calls.len() {
            let pair = calls[index].pair;
            // A leg in sync is not given up for one that failed: it may be the last.
            let needs_success = calls[index].is_in_sync;
            let is_done = |own: &LegCall<'_>| {
                let is_enough = |result: Outcome| result.is_ok() || !needs_success;
                own.pair == pair && own.is_in_sync && own.result.is_some_and(is_enough)
            };
            let has_other = calls.iter().any(is_done);
            let own = &mut calls[index];
            if own.result.is_some() {
                continue;
            }
            if has_other && own.timer.is_none() {
                own.timer = Some(time::sleep(LEG_TIME_LIMIT));
            }
            match own.timer.as_mut().map(|timer| Pin::new(timer).poll(cx)) {
                Some(Poll::Ready(())) => own.result = Some(Err(IoError::Unreachable)),
                Some(Poll::Pending) | None => is_over = false,
            }
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Ends the calls to the legs of one pair, each with whether its leg is in sync.
pub(super) async fn both<'a>(
    calls: [Option<(bool, Pin<&'a mut (dyn Future<Output = Outcome> + 'a)>)>; LEGS],
) -> [Option<Outcome>; LEGS] {
    match calls {
        [None, None] => [None, None],
        [Some((_, call)), None] => [Some(call.await), None],
        [None, Some((_, call))] => [None, Some(call.await)],
        [Some((one_in_sync, one)), Some((other_in_sync, other))] => {
            let one = LegCall::new(one, 0, one_in_sync, false);
            let mut calls = [one, LegCall::new(other, 0, other_in_sync, false)];
            end(&mut calls).await;
            [Some(result(&calls[0])), Some(result(&calls[1]))]
        }
    }
}
