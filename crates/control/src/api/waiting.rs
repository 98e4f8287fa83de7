//! What the API tells of volumes that wait for their devices.

use std::rc::Rc;

use flagstone_api::{Exposition, Kind};
use flagstone_runtime::time;
use serde_json::Value;

use super::Part;
use super::document::WaitingDocument;
use crate::serve::Server;

/// See the module.
pub(super) struct Waits {
    server: Rc<Server>,
}

impl Waits {
    pub(super) fn new(server: Rc<Server>) -> Waits {
        Waits { server }
    }
}

impl Part for Waits {
    fn volume(&self, index: usize) -> Option<(&'static str, Value)> {
        let wait = self.server.waiting.wait(index)?;
        let now = time::now();
        let document = WaitingDocument {
            reason: wait.reason,
            attempts: self.server.waiting.failures(index),
            seconds: now.since(wait.since).as_secs_f64(),
            next_seconds: wait.next.map(|next| next.since(now).as_secs_f64()),
        };
        Some(("waiting", serde_json::to_value(document).expect("its keys are texts")))
    }

    fn metrics(&self, out: &mut Exposition) {
        let volumes = || self.server.config.volumes.iter().enumerate();
        let help = "1 while the volume is not served as its device is not reached yet, else 0.";
        let mut waiting = out.family("flagstone_volume_waiting", Kind::Gauge, help);
        for (index, volume) in volumes() {
            let waits = self.server.waiting.wait(index).is_some();
            waiting.count(&[("volume", &volume.name)], waits.into());
        }
        let help =
            "1 once a flush of the volume's device has failed, until the server is started again.";
        let mut failed = out.family("flagstone_volume_flush_failed", Kind::Gauge, help);
        for (index, volume) in volumes() {
            failed.count(&[("volume", &volume.name)], self.server.has_failed_flush(index).into());
        }
        let help = "Attempts to open the volume's device that failed.";
        let family = "flagstone_volume_open_failures_total";
        let mut failures = out.family(family, Kind::Counter, help);
        for (index, volume) in volumes() {
            let count = self.server.waiting.failures(index);
            failures.count(&[("volume", &volume.name)], count);
        }
    }
}
