//! Join: runs several futures at the same time, in one task.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Runs all futures to their end. Returns their results in the same order.
pub(crate) async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let running = futures.into_iter().map(|future| (Box::pin(future), None));
    let mut running: Vec<(Pin<Box<F>>, Option<F::Output>)> = running.collect();
    poll_fn(|cx| {
        for (future, result) in running.iter_mut().filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(ended) = future.as_mut().poll(cx) {
                *result = Some(ended);
            }
        }
        match running.iter().all(|(_, result)| result.is_some()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    running.into_iter().filter_map(|(_, result)| result).collect()
}
