//! Tests of mirrored volumes: two nodes in one process.

mod create;
mod devices;
mod grow;
mod peers;
mod roles;
mod start;
mod testing;

use self::testing::*;
use super::*;

#[test]
fn nodes_have_disjoint_identifiers() {
    let ranges: Vec<_> = (0..NODES).map(identifiers).collect();
    for (at, (ids, port)) in ranges.iter().enumerate() {
        assert!(ids.clone().count() >= 1024 && *ids.start() > 0 && *port > 0);
        for (others, other_port) in &ranges[at + 1..] {
            assert!(ids.end() < others.start() && port + 63 < *other_port);
        }
    }
}
