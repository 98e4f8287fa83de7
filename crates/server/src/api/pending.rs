//! Pending volumes of the API: volumes whose devices are not open yet.

use flagstone_runtime::time;

use super::document::PendingDocument;
use crate::http::Exposition;
use crate::serve::Server;
use crate::volume::ServedVolume;

pub(super) fn document(server: &Server, volume: usize) -> Option<PendingDocument> {
    let pending = server.pending.get(volume)?;
    let now = time::now();
    Some(PendingDocument {
        reason: pending.reason,
        attempts: server.pending.failures(volume),
        seconds: now.since(pending.since).as_secs_f64(),
        next_seconds: pending.next_attempt.map(|next| next.since(now).as_secs_f64()),
    })
}

type VolumeCounter = fn(&Server, &ServedVolume) -> u64;

const FAMILIES: [(&str, &str, VolumeCounter); 2] = [
    (
        "flagstone_volume_pending",
        "1 while the volume's device is unreachable.",
        |server, volume| server.pending.get(volume.number).is_some().into(),
    ),
    (
        "flagstone_volume_flush_failed",
        "1 after a failed flush, until the server restarts.",
        |_, volume| volume.has_failed_flush().into(),
    ),
];

pub(super) fn metrics(server: &Server, out: &mut Exposition) {
    let volumes = server.volumes();
    for (name, help, count) in FAMILIES {
        let mut family = out.family(name, help);
        for volume in &volumes {
            family.count(&[("volume", volume.name())], count(server, volume));
        }
    }
    let help = "Failed attempts to open the volume's device.";
    let mut family = out.family("flagstone_volume_open_failures_total", help);
    for volume in &volumes {
        let failures = server.pending.failures(volume.number);
        if failures > 0 {
            family.count(&[("volume", volume.name())], failures);
        }
    }
}
