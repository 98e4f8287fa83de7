//! Split calls: several commands with a bounded number in flight.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use flagstone_blockdev::{IoError, IoFuture};

use crate::limits::SPLIT_WINDOW;

/// Runs the futures of `next`, [`SPLIT_WINDOW`] at a time, and passes each value with its index to
/// `done`. After an error no more are started, and those in flight are awaited.
///
/// # Errors
/// The first error.
pub(super) async fn run_all<T>(
    next: impl FnMut() -> Option<IoFuture<T>>,
    done: impl FnMut(usize, T),
) -> Result<(), IoError> {
    run(SPLIT_WINDOW, next, done).await
}

/// Like [`run_all`] with all of them in flight. All start before any command of a later call.
///
/// # Errors
/// The first error.
pub(super) async fn run_at_once(next: impl FnMut() -> Option<IoFuture<()>>) -> Result<(), IoError> {
    run(usize::MAX, next, |_, ()| {}).await
}

async fn run<T>(
    most: usize,
    mut next: impl FnMut() -> Option<IoFuture<T>>,
    mut done: impl FnMut(usize, T),
) -> Result<(), IoError> {
    let in_flight = Vec::with_capacity(SPLIT_WINDOW);
    let mut window = Window { most, in_flight, begun: 0, failed: None };
    poll_fn(|cx| window.poll(cx, &mut next, &mut done)).await
}

struct Window<T> {
    most: usize,
    in_flight: Vec<(usize, IoFuture<T>)>,
    begun: usize,
    failed: Option<IoError>,
}

impl<T> Window<T> {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        next: &mut impl FnMut() -> Option<IoFuture<T>>,
        done: &mut impl FnMut(usize, T),
    ) -> Poll<Result<(), IoError>> {
        self.reap(cx, done);
        while self.failed.is_none() && self.in_flight.len() < self.most {
            let Some(mut future) = next() else { break };
            let number = self.begun;
            self.begun += 1;
            match Pin::new(&mut future).poll(cx) {
                Poll::Ready(result) => self.ended(number, result, done),
                Poll::Pending => self.in_flight.push((number, future)),
            }
        }
        match self.in_flight.is_empty() {
            true => Poll::Ready(self.failed.map_or(Ok(()), Err)),
            false => Poll::Pending,
        }
    }

    fn reap(&mut self, cx: &mut Context<'_>, done: &mut impl FnMut(usize, T)) {
        let mut at = 0;
        while at < self.in_flight.len() {
            let (number, future) = &mut self.in_flight[at];
            let number = *number;
            match Pin::new(future).poll(cx) {
                Poll::Ready(result) => {
                    self.in_flight.swap_remove(at);
                    self.ended(number, result, done);
                }
                Poll::Pending => at += 1,
            }
        }
    }

    fn ended(
        &mut self,
        number: usize,
        result: Result<T, IoError>,
        done: &mut impl FnMut(usize, T),
    ) {
        match result {
            Ok(value) => done(number, value),
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_runtime::{block_on, task};
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    #[test]
    fn window_bounds_commands_in_flight() {
        block_on(async {
            let (flying, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let mut left = 0..100_usize;
            let next = || {
                let number = left.next()?;
                let (flying, most) = (flying.clone(), most.clone());
                Some(IoFuture::later(async move {
                    flying.set(flying.get() + 1);
                    most.set(most.get().max(flying.get()));
                    for _ in 0..number % 7 {
                        task::yield_now().await;
                    }
                    flying.set(flying.get() - 1);
                    Ok(number * 2)
                }))
            };
            let seen = RefCell::new(vec![0; 100]);
            run_all(next, |number, value| seen.borrow_mut()[number] = value).await.unwrap();
            assert!(seen.borrow().iter().enumerate().all(|(number, value)| *value == number * 2));
            assert_eq!(most.get(), SPLIT_WINDOW);
        })
        .unwrap();
    }

    #[test]
    fn error_stops_window_and_awaits_in_flight() {
        block_on(async {
            let (begun, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let next = || {
                let number = begun.get();
                begun.set(number + 1);
                let ended = ended.clone();
                Some(IoFuture::later(async move {
                    task::yield_now().await;
                    if number != 3 {
                        task::yield_now().await;
                    }
                    ended.set(ended.get() + 1);
                    if number == 3 { Err(IoError::ReadFault) } else { Ok(()) }
                }))
            };
            assert_eq!(run_all(next, |_, ()| {}).await, Err(IoError::ReadFault));
            assert_eq!((begun.get(), ended.get()), (SPLIT_WINDOW, SPLIT_WINDOW));
        })
        .unwrap();
    }
}
