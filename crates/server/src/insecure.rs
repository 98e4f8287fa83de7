//! Insecure access: the listeners, metrics and peers that need no key because the operator accepted
//! it. The server names each in its log, in `GET /v1/` and in a metric.

use std::collections::BTreeMap;

use flagstone_config::Peer;

use crate::api::document::{InsecureDocument, InsecureKind};
use crate::http::Exposition;
use crate::serve::Server;

/// A listener, the metrics, or a peer of a mirror.
pub(crate) struct InsecureEntry {
    kind: InsecureKind,
    name: String,
    /// Access that it gives without a key; `None`: no access.
    insecure: Option<String>,
}

impl Server {
    /// All listeners, the metrics, then the peers of mirrors.
    pub(crate) fn access(&self) -> Vec<InsecureEntry> {
        let volumes = self.volumes();
        let config = &self.config;
        let made: Vec<_> = volumes.iter().filter(|one| one.pool.is_some()).collect();
        let listeners = self.bound().iter().map(|spec| {
            let exposed = config.exposure(spec, made.iter().map(|one| &one.subsystem));
            InsecureEntry {
                kind: InsecureKind::Listener,
                name: spec.to_string(),
                insecure: exposed.map(|what| format!("anyone who reaches {spec} can use {what}")),
            }
        });
        let metrics = config.server.metrics.map(|address| InsecureEntry {
            kind: InsecureKind::Metrics,
            name: address.to_string(),
            insecure: config.server.metrics_exposure(),
        });
        let peers = self.peers().into_values().map(|peer| InsecureEntry {
            kind: InsecureKind::Peer,
            insecure: peer.exposure(config.opens_replicas()),
            name: peer.name,
        });
        listeners.chain(metrics).chain(peers).collect()
    }

    /// The peers of all mirrors, by name.
    fn peers(&self) -> BTreeMap<String, Peer> {
        let config = &self.config;
        let mirrors = config.volumes.iter().filter_map(|volume| volume.mirror());
        let configured = mirrors.flat_map(|mirror| mirror.peers.iter());
        let configured = configured.map(|index| config.peers[*index].clone());
        let mirrors = self.mirrors.borrow();
        let linked = mirrors.iter().flat_map(|mirrored| mirrored.links());
        configured.chain(linked).map(|peer| (peer.name.clone(), peer)).collect()
    }

    /// What needs no key.
    pub(crate) fn insecure_access(&self) -> Vec<InsecureDocument> {
        let insecure = self.access().into_iter().filter_map(|access| {
            let InsecureEntry { kind, name, insecure } = access;
            Some(InsecureDocument { kind, name, consequence: insecure? })
        });
        insecure.collect()
    }

    pub(crate) fn log_insecure_access(&self) {
        for InsecureDocument { consequence, .. } in self.insecure_access() {
            tracing::warn!("insecure: {consequence}");
        }
    }
}

pub(crate) fn metrics(server: &Server, out: &mut Exposition) {
    let help = "1 for a listener, metrics address or peer of a mirror that needs no key.";
    let mut family = out.family("flagstone_insecure", help);
    for InsecureEntry { kind, name, insecure } in server.access() {
        family.count(&[("kind", kind.name()), ("name", &name)], insecure.is_some().into());
    }
}
