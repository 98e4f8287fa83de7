//! Keys of the replication link, for authentication, TLS or both, which an operator gives to a
//! running pair as the guide says: each node is restarted with keys allowed, and then each with
//! keys required.

use std::collections::BTreeMap;
use std::time::Duration;

use flagstone_auth::tls::TlsKey;
use flagstone_auth::{Hash, KeyDemand, KeyPair, KeyRing, Secret, TlsRing};
use flagstone_nvmf_host::RemoteTls;
use flagstone_nvmf_target::{self as target, Target, TlsMode};
use flagstone_runtime::sim::Simulation;

use super::cluster::{Cluster, node_nqn, replica_nqn};

/// What the operator gives to the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkKeys {
    Tls,
    Authentication,
    Both,
}

impl LinkKeys {
    pub(super) fn random(sim: &Simulation) -> LinkKeys {
        [LinkKeys::Tls, LinkKeys::Authentication, LinkKeys::Both][sim.random_between(0, 2) as usize]
    }

    fn encrypts(self) -> bool {
        self != LinkKeys::Authentication
    }

    fn authenticates(self) -> bool {
        self != LinkKeys::Tls
    }
}

/// Configuration of a node: a peer without a key, with its keys `"allowed"`, or required.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LinkStep {
    Off,
    Allowed,
    Required,
}

impl LinkStep {
    fn next(self) -> Option<LinkStep> {
        match self {
            LinkStep::Off => Some(LinkStep::Allowed),
            LinkStep::Allowed => Some(LinkStep::Required),
            LinkStep::Required => None,
        }
    }

    /// TLS of the node as its peer's host.
    pub(super) fn tls(self, keys: LinkKeys) -> Option<RemoteTls> {
        let allow_plain = self == LinkStep::Allowed;
        let has_key = self != LinkStep::Off && keys.encrypts();
        has_key.then(|| RemoteTls { allow_plain, ..RemoteTls::required(tls_key()) })
    }

    /// Keys for authentication, of the node as host and as target.
    pub(super) fn secrets(self, keys: LinkKeys) -> Option<KeyPair> {
        let demand = match self {
            LinkStep::Off => return None,
            LinkStep::Allowed => KeyDemand::Optional,
            LinkStep::Required => KeyDemand::Required,
        };
        let secret = Secret::new(&[8; 32], Some(Hash::Sha256)).expect("a valid length");
        let pair = KeyPair { demand, ..KeyPair::shared(&KeyRing::new(vec![secret])) };
        keys.authenticates().then_some(pair)
    }

    /// Sets the TLS of the replica at the target of node `index`.
    pub(super) fn set_tls_keys(self, keys: LinkKeys, target: &Target, index: usize) {
        if self != LinkStep::Off && keys.encrypts() {
            let required = self == LinkStep::Required;
            let peer = target::HostTls { keys: tls_key(), required };
            target.set_tls_keys(&replica_nqn(), BTreeMap::from([(node_nqn(1 - index), peer)]));
        }
    }
}

fn tls_key() -> TlsRing {
    TlsRing::new(vec![TlsKey::new(&[7; 32], None).expect("a valid length")])
}

/// Encryption of the listeners: hosts of the volume have no keys.
pub(super) fn listener(gets_keys: bool) -> TlsMode {
    if gets_keys { TlsMode::Allowed } else { TlsMode::Off }
}

/// Moves one node by one step: the node that is behind, or any. False if both are done.
pub(super) fn change_one(cluster: &Cluster) -> bool {
    let steps = [0, 1].map(|index: usize| cluster.world.link_steps[index].get());
    let any = cluster.sim.random_between(0, 1) as usize;
    let index = match steps[0].cmp(&steps[1]) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Greater => 1,
        std::cmp::Ordering::Equal => any,
    };
    let Some(next) = steps[index].next() else { return false };
    cluster.world.history.note(format!("operator: keys of the link of node {index}: {next:?}"));
    cluster.end(index, false);
    cluster.world.link_steps[index].set(next);
    cluster.restart(index);
    true
}

/// Changes both nodes to required keys.
pub(super) fn change_all(cluster: &Cluster) {
    while change_one(cluster) {
        cluster.pass(Duration::from_millis(500));
    }
}

/// Checks that the replica of the target is reached with the keys.
pub(super) fn check_link(cluster: &Cluster) {
    let Some(source) = cluster.active() else { cluster.fail("no node serves") };
    let targets = cluster.world.targets.borrow();
    let Some(target) = &targets[1 - source] else { cluster.fail("the target is down") };
    let keys = cluster.world.link_keys;
    if keys.encrypts() && target.tls_totals().succeeded == 0 {
        cluster.fail("the link is in sync without TLS");
    }
    if keys.authenticates() && target.authentication_totals().succeeded == 0 {
        cluster.fail("the link is in sync without authentication");
    }
}
