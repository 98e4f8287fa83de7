//! TLS of the replication link, to which an operator changes a running pair as the guide says: each
//! node is restarted with TLS allowed, and then each with TLS required.

use std::collections::BTreeMap;
use std::time::Duration;

use flagstone_auth::TlsRing;
use flagstone_auth::tls::TlsKey;
use flagstone_nvmf_host::RemoteTls;
use flagstone_nvmf_target::{self as target, Target, TlsMode};

use super::cluster::{Cluster, node_nqn, replica_nqn};

/// Configuration of a node: a peer without `tls_key_file`, with `tls = "allowed"`, or with its key
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LinkTls {
    Off,
    Allowed,
    Required,
}

impl LinkTls {
    fn next(self) -> Option<LinkTls> {
        match self {
            LinkTls::Off => Some(LinkTls::Allowed),
            LinkTls::Allowed => Some(LinkTls::Required),
            LinkTls::Required => None,
        }
    }

    /// TLS of the node as its peer's host.
    pub(super) fn of_host(self) -> Option<RemoteTls> {
        let allow_plain = self == LinkTls::Allowed;
        (self != LinkTls::Off).then(|| RemoteTls { allow_plain, ..RemoteTls::required(pair_key()) })
    }

    /// Sets the TLS of the replica at the target of node `index`.
    pub(super) fn set_keys(self, target: &Target, index: usize) {
        if self != LinkTls::Off {
            let required = self == LinkTls::Required;
            let peer = target::HostTls { keys: pair_key(), required };
            target.set_tls_keys(&replica_nqn(), BTreeMap::from([(node_nqn(1 - index), peer)]));
        }
    }
}

fn pair_key() -> TlsRing {
    TlsRing::new(vec![TlsKey::new(&[7; 32], None).expect("a valid length")])
}

/// Encryption of the listeners: hosts of the volume have no keys.
pub(super) fn listener(changes_to_tls: bool) -> TlsMode {
    if changes_to_tls { TlsMode::Allowed } else { TlsMode::Off }
}

/// Moves one node by one step: the one that is behind, or any. False if both are done.
pub(super) fn change_one(cluster: &Cluster) -> bool {
    let steps = [0, 1].map(|index: usize| cluster.world.link_tls[index].get());
    let any = cluster.sim.random_between(0, 1) as usize;
    let index = match steps[0].cmp(&steps[1]) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Greater => 1,
        std::cmp::Ordering::Equal => any,
    };
    let Some(next) = steps[index].next() else { return false };
    cluster.world.history.note(format!("operator: the link of node {index} has TLS {next:?}"));
    cluster.end(index, false);
    cluster.world.link_tls[index].set(next);
    cluster.restart(index);
    true
}

/// Changes both nodes to required TLS.
pub(super) fn change_all(cluster: &Cluster) {
    while change_one(cluster) {
        cluster.pass(Duration::from_millis(500));
    }
}

/// Checks that the replica of the target is reached over TLS.
pub(super) fn check_link(cluster: &Cluster) {
    let Some(source) = cluster.active() else { cluster.fail("no node serves") };
    let encrypted = cluster.world.targets.borrow()[1 - source]
        .as_ref()
        .is_some_and(|target| target.tls_totals().succeeded > 0);
    if !encrypted {
        cluster.fail("the link is in sync without TLS");
    }
}
