//! Rate limits of the API: their documents and metrics.

use std::rc::Rc;
use std::sync::Arc;

use crate::http::{Exposition, Kind};
use flagstone_limit::{Limiter, LimiterStatus};
use serde_json::Value;

use super::ApiModule;
use super::document::LimitDocument;
use crate::serve::Server;
use flagstone_config::Layer;

/// API module of the rate limits.
pub(super) struct LimitsApi {
    server: Rc<Server>,
}

impl LimitsApi {
    pub(super) fn new(server: Rc<Server>) -> LimitsApi {
        LimitsApi { server }
    }

    /// All limits, each with its metric labels.
    fn all(&self) -> Vec<([(&'static str, &str); 2], LimiterStatus)> {
        let (config, limits) = (&self.server.config, &self.server.limits);
        let shared = config.limits.iter().zip(&limits.shared);
        let shared = shared
            .map(|(limit, limiter)| ([("limit", &*limit.name), ("volume", "")], limiter.status()));
        let own = config.volumes.iter().zip(&limits.own).filter_map(|(volume, limiter)| {
            Some(([("limit", ""), ("volume", &*volume.name)], limiter.as_ref()?.status()))
        });
        shared.chain(own).collect()
    }
}

fn document(name: Option<&str>, limiter: &Arc<Limiter>) -> LimitDocument {
    let status = limiter.status();
    LimitDocument {
        name: name.map(str::to_owned),
        waiting: status.waiting,
        waiting_connections: status.waiting_flows,
        passed: status.passed,
        delayed: status.delayed,
    }
}

impl ApiModule for LimitsApi {
    fn volume(&self, index: usize) -> Option<(&'static str, Value)> {
        let (config, limits) = (&self.server.config, &self.server.limits);
        let layers = config.volumes[index].layers.iter();
        let documents: Vec<_> = layers
            .filter_map(|layer| match layer {
                Layer::Limit(_) => Some(document(None, limits.own[index].as_ref()?)),
                Layer::SharedLimit(shared) => {
                    Some(document(Some(&config.limits[*shared].name), &limits.shared[*shared]))
                }
                _ => None,
            })
            .collect();
        let value = serde_json::to_value(documents).expect("JSON keys are strings");
        Some(("limits", value))
    }

    fn metrics(&self, out: &mut Exposition) {
        let all = self.all();
        type LimitCounter = fn(&LimiterStatus) -> u64;
        let families: [(&str, Kind, &str, LimitCounter); 3] = [
            (
                "flagstone_limit_waiting",
                Kind::Gauge,
                "Commands waiting for a limit: a shared limit by its name, or the limit of a volume.",
                |status| status.waiting as u64,
            ),
            (
                "flagstone_limit_passed_total",
                Kind::Counter,
                "Commands that passed a limit without delay.",
                |status| status.passed,
            ),
            (
                "flagstone_limit_delayed_total",
                Kind::Counter,
                "Commands delayed by a limit.",
                |status| status.delayed,
            ),
        ];
        for (name, kind, help, number) in families {
            let mut family = out.family(name, kind, help);
            for (labels, status) in &all {
                family.count(labels, number(status));
            }
        }
    }
}
