//! Join: runs several futures at the same time, in one task.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Runs all futures to their end. Returns their results in the same order.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(ended) = future.as_mut().poll(cx)
            {
                *result = Some(ended);
            }
        }
        match results.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    results.into_iter().flatten().collect()
}
