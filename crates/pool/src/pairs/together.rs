//! Calls to several legs at the same time, with a time limit that the last leg of a pair does not
//! have.
//!
//! Invariant: a call is given up only some time after a leg in sync of the same pair has completed
//! its own, and if that leg is still in sync and answers. A stall of a controller or host that all
//! legs share fails none of them, whichever calls it interrupts.

use std::pin::Pin;
use std::task::{Context, Poll};

use flagstone_blockdev::IoError;
use flagstone_runtime::time::{self, Sleep};

use crate::limits::LEG_TIME_LIMIT;
use crate::ondisk::legs::LEGS;

type Outcome = Result<(), IoError>;

/// Decision about a call that takes long. True after the use of its leg has ended.
type Decision<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;

enum Limit<'a> {
    /// No other leg in sync has completed its call.
    None,
    Time(Sleep),
    Decision(Decision<'a>),
}

/// A call to one leg.
pub(super) struct LegCall<'a> {
    call: Pin<&'a mut (dyn Future<Output = Outcome> + 'a)>,
    give_up: Box<dyn Fn() -> Decision<'a> + 'a>,
    /// Number of the pair.
    pair: usize,
    is_in_sync: bool,
    limit: Limit<'a>,
    result: Option<Outcome>,
}

/// Call of the other leg of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    Runs,
    Completed,
    /// The leg in sync failed: the change has failed, and no leg is given up for that.
    Failed,
}

impl<'a> LegCall<'a> {
    /// A call to a leg of this pair. It `has_limit` from now on if a leg in sync of the pair has
    /// completed its own already. `give_up` decides about it after the limit ([`Pair::give_up`]).
    ///
    /// [`Pair::give_up`]: super::pair::Pair::give_up
    pub(super) fn new(
        call: Pin<&'a mut (dyn Future<Output = Outcome> + 'a)>,
        give_up: Box<dyn Fn() -> Decision<'a> + 'a>,
        pair: usize,
        is_in_sync: bool,
        has_limit: bool,
    ) -> LegCall<'a> {
        let limit = match has_limit {
            true => Limit::Time(time::sleep(LEG_TIME_LIMIT)),
            false => Limit::None,
        };
        LegCall { call, give_up, pair, is_in_sync, limit, result: None }
    }

    /// True once the call has a result.
    fn poll(&mut self, other: Other, cx: &mut Context<'_>) -> bool {
        loop {
            if self.result.is_some() {
                return true;
            }
            self.limit = match &mut self.limit {
                Limit::None if other == Other::Runs => return false,
                Limit::None => Limit::Time(time::sleep(LEG_TIME_LIMIT)),
                Limit::Time(timer) => match (Pin::new(timer).poll(cx), other) {
                    (Poll::Pending, _) => return false,
                    (Poll::Ready(()), Other::Failed) => {
                        self.result = Some(Err(IoError::Unreachable));
                        return true;
                    }
                    (Poll::Ready(()), Other::Runs | Other::Completed) => {
                        Limit::Decision((self.give_up)())
                    }
                },
                Limit::Decision(decision) => match decision.as_mut().poll(cx) {
                    Poll::Pending => return false,
                    Poll::Ready(true) => {
                        self.result = Some(Err(IoError::Unreachable));
                        return true;
                    }
                    Poll::Ready(false) => Limit::Time(time::sleep(LEG_TIME_LIMIT)),
                },
            };
        }
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
            let (pair, is_in_sync) = (calls[index].pair, calls[index].is_in_sync);
            let others = calls.iter().filter(|own| own.pair == pair && own.is_in_sync);
            let other = match others.filter_map(|own| own.result).next() {
                Some(Ok(())) => Other::Completed,
                // A leg in sync is not given up for a failed one: it may be the last.
                Some(Err(_)) if !is_in_sync => Other::Failed,
                Some(Err(_)) | None => Other::Runs,
            };
            is_over &= calls[index].poll(other, cx);
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Ends the calls to the legs of one pair.
pub(super) async fn both(calls: [Option<LegCall<'_>>; LEGS]) -> [Option<Outcome>; LEGS] {
    let is_called = calls.each_ref().map(Option::is_some);
    let mut calls: Vec<LegCall<'_>> = calls.into_iter().flatten().collect();
    end(&mut calls).await;
    let mut results = calls.iter().map(result);
    is_called.map(|is_called| is_called.then(|| results.next()).flatten())
}
