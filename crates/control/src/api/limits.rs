//! What the API tells of limits: who waits for them.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_api::{Exposition, Kind};
use flagstone_limit::{Limiter, Status};
use serde_json::Value;

use super::Part;
use super::document::LimitDocument;
use crate::config::Layer;
use crate::serve::Server;

/// See the module.
pub(super) struct Limits {
    server: Rc<Server>,
}

impl Limits {
    pub(super) fn new(server: Rc<Server>) -> Limits {
        Limits { server }
    }

    /// All limits: what metrics call each, and how it does.
    fn all(&self) -> Vec<([(&'static str, &str); 2], Status)> {
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

impl Part for Limits {
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
        let value = serde_json::to_value(documents).expect("its keys are texts");
        Some(("limits", value))
    }

    fn metrics(&self, out: &mut Exposition) {
        let all = self.all();
        type Number = fn(&Status) -> u64;
        let families: [(&str, Kind, &str, Number); 3] = [
            (
                "flagstone_limit_waiting",
                Kind::Gauge,
                "Commands that wait for a limit: a shared one by its name, or a volume's own.",
                |status| status.waiting as u64,
            ),
            (
                "flagstone_limit_passed_total",
                Kind::Counter,
                "Commands that a limit let go at once.",
                |status| status.passed,
            ),
            (
                "flagstone_limit_delayed_total",
                Kind::Counter,
                "Commands that had to wait for a limit.",
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
