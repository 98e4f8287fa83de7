//! Live connection of an association: controller, queues and tasks.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_nvme::Sqe;
use flagstone_nvme::command::admin::GetLogPage;
use flagstone_nvme::event::AsyncEvent;
use flagstone_nvme::limits::{IDENTIFY_BYTES, NAMESPACE_ID_ALL};
use flagstone_nvme::log::LogId;
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{buf, random_u64, spawn, time};

use super::HostError;
use super::admission::CommandQueue;
use super::authenticate::{means_no_key, reauthenticate};
use super::command::{CommandData, CommandOutcome};
use super::connect::{AdminController, AssociationEnd, ConnectParams, IoQueues, ask};
use super::durability::CacheInstance;
use super::identify_data::{ControllerLimits, NamespaceShape};
use super::queue::HostQueue;
use crate::limits::{SCAN_PERIOD_MAX, TIMEOUT_TICKS};

/// Live connection with its tasks. Dropping it ends all of them.
pub(super) struct ControllerLink {
    pub(super) shape: NamespaceShape,
    /// Set when the link is first used.
    pub(super) instance: OnceCell<Arc<CacheInstance>>,
    admin: Rc<AdminController>,
    queues: IoQueues,
    _tasks: Vec<AbortOnDrop<()>>,
}

impl ControllerLink {
    /// Connects to namespace `nsid`, or to the only one, bounded by the caller's timeout.
    pub(super) async fn connect(
        params: &ConnectParams,
        nsid: Option<u32>,
        admission: Rc<CommandQueue>,
    ) -> Result<ControllerLink, HostError> {
        if let Some(reload) = &params.options.key_reload {
            reload.run().await;
        }
        let admin = Rc::new(AdminController::connect(params, admission).await?);
        // On the heap: it holds several structures of 4 KiB, and callers move this future.
        let link = Box::pin(ControllerLink::set_up(params, nsid, &admin)).await;
        link.map_err(|error| admin.end.explain(error))
    }

    async fn set_up(
        params: &ConnectParams,
        nsid: Option<u32>,
        admin: &Rc<AdminController>,
    ) -> Result<ControllerLink, HostError> {
        let controller = admin.controller().await?;
        // Before looking: a change in between is then reported.
        let subscribed = admin.subscribe(controller.events).await?;
        let shape = admin.namespace(&controller, nsid).await?;
        let mut tasks = Vec::new();
        if subscribed {
            let watch = watch_events(admin.clone(), controller, shape);
            tasks.push(spawn(watch).abort_on_drop());
        }
        let interval = params.options.keep_alive / 2;
        if controller.keeps_alive && !interval.is_zero() {
            tasks.push(spawn(keep_alive(admin.clone(), interval)).abort_on_drop());
        }
        let queues = admin.io_queues(params, &controller).await?;
        let all = std::iter::once(&admin.queue).chain(&queues.0);
        let again: Vec<_> = all.filter(|queue| queue.reauthenticates()).cloned().collect();
        if !again.is_empty() {
            let repeat = reauthenticate_all(again, params.clone(), admin.end.clone());
            tasks.push(spawn(repeat).abort_on_drop());
        }
        let instance = OnceCell::new();
        Ok(ControllerLink { shape, instance, admin: admin.clone(), queues, _tasks: tasks })
    }

    pub(super) fn has_data_digests(&self) -> bool {
        self.admin.queue.has_data_digests()
    }

    /// I/O queues.
    pub(super) fn queues(&self) -> &Vec<Rc<HostQueue>> {
        &self.queues.0
    }

    /// Ends the link and returns its queues. Each is over when the target has ended it too.
    pub(super) fn end(self) -> Vec<Rc<HostQueue>> {
        let mut queues = self.queues.0.clone();
        queues.push(self.admin.queue.clone());
        queues.iter().for_each(|queue| queue.close());
        queues
    }

    pub(super) fn admin(&self) -> Rc<AdminController> {
        self.admin.clone()
    }

    /// Monitors the connection until it breaks, and returns the cause.
    pub(super) async fn tend(&self, command_timeout: Duration) -> HostError {
        let period = (command_timeout / TIMEOUT_TICKS).min(SCAN_PERIOD_MAX);
        let looks = command_timeout.as_nanos().div_ceil(period.as_nanos().max(1));
        let looks = u32::try_from(looks).unwrap_or(u32::MAX);
        loop {
            if let Ok(error) = time::timeout(period, self.admin.end.wait()).await {
                return error;
            }
            let mut overdue = self.admin.queue.is_overdue(looks);
            for queue in &self.queues.0 {
                overdue |= queue.is_overdue(looks);
            }
            if overdue {
                return HostError::TimedOut;
            }
        }
    }
}

/// Sends keep alives. A missing completion ends the association.
async fn keep_alive(admin: Rc<AdminController>, interval: Duration) {
    loop {
        time::sleep(interval).await;
        let command = Sqe::keep_alive(0);
        let answer = ask(&admin.queue, "Keep Alive", command, CommandData::None);
        match time::timeout(interval, answer).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return admin.end.set(error),
            Err(elapsed) => return admin.end.set(elapsed.into()),
        }
    }
}

/// Repeats the authentication of `queues` at intervals, one queue after the other. A failure ends
/// the association.
async fn reauthenticate_all(
    queues: Vec<Rc<HostQueue>>,
    params: ConnectParams,
    end: Rc<AssociationEnd>,
) {
    let interval = params.options.reauthentication_interval;
    loop {
        // Up to an eighth earlier: many hosts may have connected at the same time.
        time::sleep(interval - interval / 8_000 * (random_u64() % 1_000) as u32).await;
        if let Some(reload) = &params.options.key_reload {
            reload.run().await;
        }
        for queue in &queues {
            match reauthenticate(queue, &params).await {
                Ok(()) => {}
                // The association has ended for another cause.
                Err(HostError::Closed) => return end.set(HostError::Closed),
                // The connection is as good as without an interval.
                Err(HostError::FabricsRefused { status, .. })
                    if means_no_key(status) && !params.expects_proof() =>
                {
                    let address = &params.address;
                    tracing::warn!(%address, "the target repeats no authentication: {status}");
                    return;
                }
                Err(error) => return end.set(HostError::Reauthentication(Box::new(error))),
            }
        }
        tracing::debug!(address = %params.address, "authenticated again");
    }
}

/// Waits for events. An incompatible change of the namespace ends the association.
async fn watch_events(
    admin: Rc<AdminController>,
    controller: ControllerLimits,
    shape: NamespaceShape,
) {
    loop {
        let command = Sqe::async_event_request(0);
        let event = match admin.queue.run_timed(&command, CommandData::None, false).await {
            (CommandOutcome::Completed(cqe), _) if cqe.status().is_success() => cqe.async_event(),
            _ => return,
        };
        if event != AsyncEvent::NAMESPACE_CHANGED {
            tracing::info!(?event, "event of the target");
            continue;
        }
        match look_again(&admin, &controller, &shape).await {
            Ok(now) if now.geometry == shape.geometry => {}
            Ok(now) => {
                let (was, is) = (shape.geometry.size_bytes, now.geometry.size_bytes);
                tracing::warn!(was, is, "the namespace has changed; reopen the device to see it");
            }
            Err(error) => return admin.end.set(error),
        }
    }
}

/// Reads the list of changed namespaces, which re-enables the event, and checks this namespace.
async fn look_again(
    admin: &Rc<AdminController>,
    controller: &ControllerLimits,
    shape: &NamespaceShape,
) -> Result<NamespaceShape, HostError> {
    let bytes = IDENTIFY_BYTES as u32;
    let log = GetLogPage::new(LogId::CHANGED_NAMESPACES, NAMESPACE_ID_ALL, 0, bytes);
    let place = CommandData::In(buf::alloc_small(IDENTIFY_BYTES));
    if let Some(command) = log.command(0) {
        admin.queue.run(&command, place).await;
    }
    let now = admin.namespace(controller, Some(shape.nsid)).await?;
    shape.check_still(&now)?;
    if shape.instance != now.instance {
        return Err(HostError::Reopened);
    }
    Ok(now)
}
