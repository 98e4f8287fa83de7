//! Supervisor: the task that connects an association and reconnects it with increasing pauses.

use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use flagstone_runtime::time::{self, Backoff};

use super::HostError;
use super::admission::CommandQueue;
use super::association::Association;
use super::connect::ConnectParams;
use super::identify_data::NamespaceShape;
use super::link::ControllerLink;
use super::queue::HostQueue;

/// Reconnect state of one association.
pub(super) struct Supervisor {
    association: Weak<Association>,
    params: Arc<ConnectParams>,
    admission: Rc<CommandQueue>,
    shape: NamespaceShape,
    /// Pauses before further attempts; `None` before the first.
    pauses: Option<Backoff>,
}

impl Supervisor {
    pub(super) fn new(
        association: Weak<Association>,
        params: Arc<ConnectParams>,
        admission: Rc<CommandQueue>,
        shape: NamespaceShape,
    ) -> Supervisor {
        Supervisor { association, params, admission, shape, pauses: None }
    }

    /// Runs until the association is gone; `first` is an existing first connection.
    pub(super) async fn run(mut self, mut first: Option<ControllerLink>) {
        let mut old = Vec::new();
        loop {
            let link = match first.take() {
                Some(link) => link,
                None => self.reconnect(std::mem::take(&mut old)).await,
            };
            if !self.tell(|association| association.up(&link)) {
                return;
            }
            let why = link.tend(self.params.options.command_timeout).await;
            tracing::warn!(address = %self.params.address, "association lost: {why}");
            let mut served = false;
            if !self.tell(|association| served = association.down()) {
                return;
            }
            old = link.end();
            // Keep the long pause if the connection broke before it completed a command.
            if served {
                self.pauses = None;
            }
        }
    }

    /// Calls `what` on the association; false when it is gone.
    fn tell(&self, what: impl FnOnce(&Association)) -> bool {
        self.association.upgrade().map(|association| what(&association)).is_some()
    }

    /// Reconnects after the target has ended the old connection. The target may still have unread
    /// commands there, which must not take effect after later ones.
    async fn reconnect(&mut self, old: Vec<Rc<HostQueue>>) -> ControllerLink {
        let association = self.association.clone();
        let give_up = move || {
            if let Some(association) = association.upgrade() {
                association.give_up();
            }
        };
        let timeout = self.params.options.loss_timeout;
        let attempts = async {
            for queue in &old {
                queue.over().await;
            }
            drop(old);
            self.attempts().await
        };
        with_alarm(timeout, give_up, attempts).await
    }

    /// Tries until it is connected.
    async fn attempts(&mut self) -> ControllerLink {
        let options = &self.params.options;
        loop {
            match &mut self.pauses {
                Some(pauses) => time::sleep(pauses.advance()).await,
                None => {
                    let (min, max) = (options.reconnect_delay, options.reconnect_delay_max);
                    self.pauses = Some(Backoff::new(min, max.max(min)));
                }
            }
            // The only namespace may be another one by now: after a restart, a target may serve
            // the namespaces whose devices are already open.
            let nsid = Some(self.shape.nsid);
            let attempt = ControllerLink::connect(&self.params, nsid, self.admission.clone());
            let error = match time::timeout(options.connect_timeout, attempt).await {
                Ok(Ok(link)) => match self.shape.check_still(&link.shape) {
                    Ok(()) => {
                        tracing::info!(address = %self.params.address, "reconnected");
                        return link;
                    }
                    Err(error) => error,
                },
                Ok(Err(error)) => error,
                Err(elapsed) => elapsed.into(),
            };
            tracing::debug!(address = %self.params.address, "reconnect failed: {error}");
            if matches!(error, HostError::Changed(_)) {
                // Only an operator can resolve this error, so calls need not wait.
                self.tell(Association::give_up);
            }
        }
    }
}

/// Runs `future`; calls `alarm` once if that takes longer than `timeout`.
async fn with_alarm<F: Future>(timeout: Duration, alarm: impl FnOnce(), future: F) -> F::Output {
    let mut future = pin!(future);
    match time::timeout(timeout, future.as_mut()).await {
        Ok(output) => output,
        Err(_) => {
            alarm();
            future.await
        }
    }
}
