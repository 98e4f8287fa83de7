//! Pending volumes of the API: volumes whose devices are not open yet.

use std::rc::Rc;

use crate::http::{Exposition, Kind};
use flagstone_runtime::time;
use serde_json::Value;

use super::ApiModule;
use super::document::WaitingDocument;
use crate::serve::Server;

/// API module of the pending volumes.
pub(super) struct PendingApi {
    server: Rc<Server>,
}

impl PendingApi {
    pub(super) fn new(server: Rc<Server>) -> PendingApi {
        PendingApi { server }
    }
}

impl ApiModule for PendingApi {
    fn volume(&self, index: usize) -> Option<(&'static str, Value)> {
        let pending = self.server.pending.get(index)?;
        let now = time::now();
        let document = WaitingDocument {
            reason: pending.reason,
            attempts: self.server.pending.failures(index),
            seconds: now.since(pending.since).as_secs_f64(),
            next_seconds: pending.next_attempt.map(|next| next.since(now).as_secs_f64()),
        };
        Some(("waiting", serde_json::to_value(document).expect("JSON keys are strings")))
    }

    fn metrics(&self, out: &mut Exposition) {
        let volumes = || self.server.config.volumes.iter().enumerate();
        let help = "1 while the volume is pending because its device is unreachable, else 0.";
        let mut waiting = out.family("flagstone_volume_waiting", Kind::Gauge, help);
        for (index, volume) in volumes() {
            let waits = self.server.pending.get(index).is_some();
            waiting.count(&[("volume", &volume.name)], waits.into());
        }
        let help = "1 once a flush of the volume's device has failed, until the server restarts.";
        let mut failed = out.family("flagstone_volume_flush_failed", Kind::Gauge, help);
        for (index, volume) in volumes() {
            failed.count(&[("volume", &volume.name)], self.server.has_failed_flush(index).into());
        }
        let help = "Failed attempts to open the volume's device.";
        let family = "flagstone_volume_open_failures_total";
        let mut failures = out.family(family, Kind::Counter, help);
        for (index, volume) in volumes() {
            let count = self.server.pending.failures(index);
            failures.count(&[("volume", &volume.name)], count);
        }
    }
}
