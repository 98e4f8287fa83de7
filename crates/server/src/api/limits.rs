//! Rate limits of the API: their documents and metrics.

use flagstone_config::LayerConfig;
use flagstone_limit::{Limiter, LimiterStatus};

use super::document::LimitDocument;
use crate::http::Exposition;
use crate::serve::Server;
use crate::volume::ServedVolume;

/// The limits of a volume, from the host's side down.
pub(super) fn documents(server: &Server, volume: &ServedVolume) -> Vec<LimitDocument> {
    let documents = volume.config.layers.iter().filter_map(|layer| match layer {
        LayerConfig::Limit(_) => Some(document(None, volume.limiter.as_ref()?)),
        LayerConfig::SharedLimit(shared) => {
            let name = &server.config.limits[*shared].name;
            Some(document(Some(name), &server.limits.shared[*shared]))
        }
        _ => None,
    });
    documents.collect()
}

fn document(name: Option<&str>, limiter: &Limiter) -> LimitDocument {
    let status = limiter.status();
    LimitDocument {
        name: name.map(str::to_owned),
        waiting: status.waiting,
        waiting_connections: status.waiting_flows,
        immediate: status.immediate,
        delayed: status.delayed,
    }
}

type LimitCounter = fn(&LimiterStatus) -> u64;

const FAMILIES: [(&str, &str, LimitCounter); 3] = [
    ("flagstone_limit_waiting", "Commands waiting for a limit.", |status| status.waiting as u64),
    ("flagstone_limit_immediate_total", "Commands that a limit did not delay.", |status| {
        status.immediate
    }),
    ("flagstone_limit_delayed_total", "Commands delayed by a limit.", |status| status.delayed),
];

pub(super) fn metrics(server: &Server, out: &mut Exposition) {
    let (config, limits) = (&server.config, &server.limits);
    let shared = config.limits.iter().zip(&limits.shared);
    let shared =
        shared.map(|(limit, limiter)| ([("limit", &*limit.name), ("volume", "")], limiter));
    let volumes = server.volumes();
    let own = volumes.iter().filter_map(|volume| {
        Some(([("limit", ""), ("volume", volume.name())], volume.limiter.as_ref()?))
    });
    let all: Vec<_> =
        shared.chain(own).map(|(labels, limiter)| (labels, limiter.status())).collect();
    for (name, help, count) in FAMILIES {
        let mut family = out.family(name, help);
        for (labels, status) in &all {
            family.count(labels, count(status));
        }
    }
}
