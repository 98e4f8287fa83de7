//! Two nodes and a host, each with a network of its own, and cables between them that can be cut.
//!
//! ```text
//!        host 198.51.100.2          host 198.51.100.6
//!              |                          |
//!    node 0: 198.51.100.1       node 1: 198.51.100.5
//!            192.0.2.1 ---- link ---- 192.0.2.2
//! ```
//!
//! What is cut is the link between the nodes: hosts reach both all the time. Networks need root;
//! [`Network::make`] says what is missing.

use crate::place::{Namespaces, Place};

/// The nodes' addresses on the link.
pub const LINK: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// The nodes' addresses for hosts.
pub const HOSTS: [&str; 2] = ["198.51.100.1", "198.51.100.5"];

/// The ports there: by them a host can tell the nodes apart.
pub const HOST_PORTS: [u16; 2] = [4420, 4421];

/// The host's own on the same cables.
const HOST: [&str; 2] = ["198.51.100.2", "198.51.100.6"];

/// Addresses of the cards at the ends of the link.
const CARDS: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];

/// The address of no card: what is sent to it is dropped where it arrives, without a word.
const NO_CARD: &str = "02:00:00:00:00:ff";

/// See the module.
#[derive(Debug)]
pub struct Network {
    nodes: [Namespaces; 2],
    host: Namespaces,
}

impl Network {
    /// Makes them.
    ///
    /// # Errors
    /// Why that is not possible here.
    pub fn make() -> Result<Network, String> {
        let nodes = [Namespaces::make()?, Namespaces::make()?];
        let network = Network { nodes, host: Namespaces::make()? };
        cable((&network.nodes[0], "mirror", LINK[0]), (&network.nodes[1], "mirror", LINK[1]))?;
        for (node, own) in network.nodes.iter().enumerate() {
            let card = ["link", "set", "mirror", "address", CARDS[node]];
            own.place().run("ip", &card);
            let name = format!("node{node}");
            cable((own, "hosts", HOSTS[node]), (&network.host, &name, HOST[node]))?;
        }
        network.heal();
        Ok(network)
    }

    /// Where a node runs.
    pub fn node(&self, node: usize) -> &Place {
        self.nodes[node].place()
    }

    /// Where programs of hosts run.
    pub fn host(&self) -> &Place {
        self.host.place()
    }

    /// Has what `node` sends by the link arrive, or be dropped at the other end: nobody is told.
    fn reach(&self, node: usize, arrives: bool) {
        let card = if arrives { CARDS[1 - node] } else { NO_CARD };
        let to = ["neigh", "replace", LINK[1 - node], "lladdr", card];
        self.node(node).run("ip", &[&to[..], &["dev", "mirror", "nud", "permanent"]].concat());
    }

    /// Drops what `node` sends by the link, without a word to anybody, until [`Network::heal`].
    ///
    /// # Panics
    /// If it cannot be done.
    pub fn cut(&self, node: usize) {
        self.reach(node, false);
    }

    /// Takes the link's card of `node` down: both sides are told that there is no way.
    ///
    /// # Panics
    /// If it cannot be done.
    pub fn unplug(&self, node: usize) {
        self.node(node).run("ip", &["link", "set", "mirror", "down"]);
    }

    /// Lets no more than this through the link in each direction.
    ///
    /// # Panics
    /// If it cannot be done.
    pub fn slow(&self, bits_per_second: u64) {
        let rate = bits_per_second.to_string();
        let shape = ["rate", &rate, "burst", "64kb", "latency", "100ms"];
        for node in [0, 1] {
            let line = ["qdisc", "replace", "dev", "mirror", "root", "tbf"];
            self.node(node).run("tc", &[&line[..], &shape].concat());
        }
    }

    /// The link is as it was at first.
    ///
    /// # Panics
    /// If it cannot be done.
    pub fn heal(&self) {
        for node in [0, 1] {
            let place = self.node(node);
            // There may be none.
            let _ = place.try_run("tc", &["qdisc", "del", "dev", "mirror", "root"]);
            place.run("ip", &["link", "set", "mirror", "up"]);
            self.reach(node, true);
        }
    }
}

/// One end of a cable: where, the card's name there, and its address.
type End<'a> = (&'a Namespaces, &'a str, &'a str);

fn cable(one: End<'_>, other: End<'_>) -> Result<(), String> {
    let pid = other.0.pid().to_string();
    let peer = ["peer", "name", other.1, "netns", &pid];
    let line = [&["link", "add", one.1, "type", "veth"][..], &peer].concat();
    one.0.place().try_run("ip", &line)?;
    // Where that works so does the rest.
    for (at, card, address) in [one, other] {
        at.place().run("ip", &["address", "add", &format!("{address}/30"), "dev", card]);
        at.place().run("ip", &["link", "set", card, "up"]);
    }
    Ok(())
}
