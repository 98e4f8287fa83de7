//! The task behind an association: connects, watches over the connection until it breaks, and
//! connects anew, with longer and longer pauses.

use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use flagstone_runtime::time;

use super::HostError;
use super::association::Association;
use super::connect::Place;
use super::gate::Gate;
use super::link::Link;
use super::queue::Queue;
use super::shape::Shape;

/// See the module.
pub(super) struct Supervisor {
    association: Weak<Association>,
    place: Arc<Place>,
    gate: Rc<Gate>,
    shape: Shape,
    /// Before the next attempt to connect.
    pause: Duration,
}

impl Supervisor {
    pub(super) fn new(
        association: Weak<Association>,
        place: Arc<Place>,
        gate: Rc<Gate>,
        shape: Shape,
    ) -> Supervisor {
        Supervisor { association, place, gate, shape, pause: Duration::ZERO }
    }

    /// Until the association is gone; `first` is the first connection, if it is made already.
    pub(super) async fn run(mut self, mut first: Option<Link>) {
        let mut old = Vec::new();
        loop {
            let link = match first.take() {
                Some(link) => link,
                None => self.reconnect(std::mem::take(&mut old)).await,
            };
            if !self.tell(|association| association.up(&link)) {
                return;
            }
            let why = link.tend(self.place.options.command_timeout).await;
            tracing::warn!(address = %self.place.address, "association lost: {why}");
            let mut served = false;
            if !self.tell(|association| served = association.down()) {
                return;
            }
            old = link.end();
            // A connection that breaks before it was of use is no reason to hurry.
            if served {
                self.pause = Duration::ZERO;
            }
        }
    }

    /// False when the association is gone.
    fn tell(&self, what: impl FnOnce(&Association)) -> bool {
        self.association.upgrade().map(|association| what(&association)).is_some()
    }

    /// Connects anew when the target has ended what was before: it may have commands there that it
    /// has not read yet, which must not take effect after those that follow.
    async fn reconnect(&mut self, old: Vec<Rc<Queue>>) -> Link {
        let association = self.association.clone();
        let give_up = move || {
            if let Some(association) = association.upgrade() {
                association.give_up();
            }
        };
        let patience = self.place.options.loss_timeout;
        let attempts = async {
            for queue in &old {
                queue.over().await;
            }
            drop(old);
            self.attempts().await
        };
        with_alarm(patience, give_up, attempts).await
    }

    /// Tries until it is connected.
    async fn attempts(&mut self) -> Link {
        let options = &self.place.options;
        loop {
            if !self.pause.is_zero() {
                time::sleep(self.pause).await;
            }
            let doubled = (self.pause * 2).max(options.reconnect_delay);
            self.pause = doubled.min(options.reconnect_delay_max.max(options.reconnect_delay));
            let attempt = Link::connect(&self.place, self.gate.clone());
            let error = match time::timeout(options.connect_timeout, attempt).await {
                Ok(Ok((link, shape))) => match self.shape.check_still(&shape) {
                    Ok(()) => {
                        tracing::info!(address = %self.place.address, "association is back");
                        return link;
                    }
                    Err(error) => error,
                },
                Ok(Err(error)) => error,
                Err(elapsed) => elapsed.into(),
            };
            tracing::debug!(address = %self.place.address, "cannot connect again: {error}");
            if matches!(error, HostError::Changed(_)) {
                // Waiting would not help, unless the operator does.
                self.tell(Association::give_up);
            }
        }
    }
}

/// Runs `future`; `alarm` is raised once if that takes longer than `patience`.
async fn with_alarm<F: Future>(patience: Duration, alarm: impl FnOnce(), future: F) -> F::Output {
    let mut future = pin!(future);
    match time::timeout(patience, future.as_mut()).await {
        Ok(output) => output,
        Err(_) => {
            alarm();
            future.await
        }
    }
}
