//! Mirrored volumes as their servers have them: two nodes in one process.

mod devices;
mod grow;
mod make;
mod roles;
mod start;

use super::testing::*;
use super::*;

#[test]
fn nodes_have_identifiers_of_their_own() {
    let ranges: Vec<_> = (0..NODES).map(identifiers).collect();
    for (at, (ids, port)) in ranges.iter().enumerate() {
        assert!(ids.clone().count() >= 1024 && *ids.start() > 0 && *port > 0);
        for (others, other_port) in &ranges[at + 1..] {
            assert!(ids.end() < others.start() && port + 63 < *other_port);
        }
    }
}
