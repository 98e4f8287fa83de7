//! A live connection of an association: its controller, its queues, and the tasks that keep it.

use std::rc::Rc;
use std::time::Duration;

use flagstone_nvme::Sqe;
use flagstone_nvme::command::admin::GetLogPage;
use flagstone_nvme::event::AsyncEvent;
use flagstone_nvme::limits::{IDENTIFY_BYTES, NAMESPACE_ID_ALL};
use flagstone_nvme::log::LogId;
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{buf, spawn, time};

use super::HostError;
use super::command::{Data, Outcome};
use super::connect::{Admin, IoQueues, Place};
use super::gate::Gate;
use super::queue::Queue;
use super::shape::{Controller, Shape};
use crate::limits::{HOST_SCAN_PERIOD_MAX, HOST_TIMEOUT_TICKS};

/// A live connection with its tasks. Dropped, all of it ends.
pub(super) struct Link {
    admin: Rc<Admin>,
    queues: IoQueues,
    _tasks: Vec<AbortOnDrop<()>>,
}

impl Link {
    /// Connects; bounded by the caller's time-out.
    pub(super) async fn connect(place: &Place, gate: Rc<Gate>) -> Result<(Link, Shape), HostError> {
        let admin = Rc::new(Admin::connect(place, gate).await?);
        match Link::set_up(place, &admin).await {
            Ok(link) => Ok(link),
            Err(error) => Err(admin.end.explain(error)),
        }
    }

    async fn set_up(place: &Place, admin: &Rc<Admin>) -> Result<(Link, Shape), HostError> {
        let controller = admin.controller().await?;
        let shape = admin.namespace(&controller, place.options.nsid).await?;
        let mut tasks = Vec::new();
        if admin.subscribe(controller.events).await? {
            let watch = watch_events(admin.clone(), controller, shape);
            tasks.push(spawn(watch).abort_on_drop());
        }
        let interval = place.options.keep_alive / 2;
        if controller.keeps_alive && !interval.is_zero() {
            tasks.push(spawn(keep_alive(admin.clone(), interval)).abort_on_drop());
        }
        let queues = admin.io_queues(place, &controller).await?;
        Ok((Link { admin: admin.clone(), queues, _tasks: tasks }, shape))
    }

    /// Whether data is protected by digests.
    pub(super) fn has_data_digests(&self) -> bool {
        self.admin.queue.has_data_digests()
    }

    /// Its I/O queues.
    pub(super) fn queues(&self) -> &Vec<Rc<Queue>> {
        &self.queues.0
    }

    /// Ends it, and gives its queues: each is over when the target has ended it too.
    pub(super) fn end(self) -> Vec<Rc<Queue>> {
        let mut queues = self.queues.0.clone();
        queues.push(self.admin.queue.clone());
        queues.iter().for_each(|queue| queue.close());
        queues
    }

    /// Its controller.
    pub(super) fn admin(&self) -> Rc<Admin> {
        self.admin.clone()
    }

    /// Watches over the connection until it breaks, and says why it did.
    pub(super) async fn tend(&self, command_timeout: Duration) -> HostError {
        let period = (command_timeout / HOST_TIMEOUT_TICKS).min(HOST_SCAN_PERIOD_MAX);
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

/// Tells the controller that we are alive. An answer that does not come ends the association.
async fn keep_alive(admin: Rc<Admin>, interval: Duration) {
    loop {
        time::sleep(interval).await;
        let command = Sqe::keep_alive(0);
        let error = match time::timeout(interval, admin.queue.run(&command, Data::None)).await {
            Ok((Outcome::Completed(cqe), _)) if cqe.status().is_success() => continue,
            Ok((Outcome::Completed(cqe), _)) => {
                HostError::Refused { what: "Keep Alive", status: cqe.status() }
            }
            Ok((Outcome::Lost, _)) => HostError::Closed,
            Err(elapsed) => elapsed.into(),
        };
        return admin.end.set(error);
    }
}

/// Waits for events; one that changes the namespace into another ends the association.
async fn watch_events(admin: Rc<Admin>, controller: Controller, shape: Shape) {
    loop {
        let command = Sqe::async_event_request(0);
        let event = match admin.queue.run_timed(&command, Data::None, false).await {
            (Outcome::Completed(cqe), _) if cqe.status().is_success() => cqe.async_event(),
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

/// Reads which namespaces changed, without which no further event comes, and looks at ours.
async fn look_again(
    admin: &Rc<Admin>,
    controller: &Controller,
    shape: &Shape,
) -> Result<Shape, HostError> {
    let bytes = IDENTIFY_BYTES as u32;
    let log = GetLogPage::new(LogId::CHANGED_NAMESPACES, NAMESPACE_ID_ALL, 0, bytes);
    let place = Data::In(buf::alloc_small(IDENTIFY_BYTES));
    if let Some(command) = log.command(0) {
        admin.queue.run(&command, place).await;
    }
    let now = admin.namespace(controller, Some(shape.nsid)).await?;
    shape.check_still(&now)?;
    Ok(now)
}
