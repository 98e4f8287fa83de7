//! Network namespaces of two nodes and a host, connected by virtual cables that can be cut.
//!
//! ```text
//!        host 198.51.100.2          host 198.51.100.6
//!              |                          |
//!    node 0: 198.51.100.1       node 1: 198.51.100.5
//!            192.0.2.1 ---- link ---- 192.0.2.2
//! ```
//!
//! Hosts always reach both nodes. The link between them is cut, and the way to [`SERVICES`].
//! Namespaces need root; [`Network::make`] reports missing prerequisites.

use crate::environment::{Namespaces, RunEnvironment};

/// Addresses of the nodes on the link.
pub const LINK: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// Addresses of the nodes for hosts.
pub const HOSTS: [&str; 2] = ["198.51.100.1", "198.51.100.5"];

/// Ports for hosts, by which a host distinguishes the nodes.
pub const HOST_PORTS: [u16; 2] = [4420, 4421];

/// Addresses of the host on the same cables.
const HOST: [&str; 2] = ["198.51.100.2", "198.51.100.6"];

/// Address of programs beside the host that both nodes reach, such as an arbiter.
pub const SERVICES: &str = "203.0.113.1";

/// MAC addresses of the interfaces at the ends of the link.
const CARDS: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];

/// MAC address that no interface has: frames sent to it are dropped silently.
const NO_CARD: &str = "02:00:00:00:00:ff";

/// The network; the module documentation has a diagram.
#[derive(Debug)]
pub struct Network {
    nodes: [Namespaces; 2],
    host: Namespaces,
}

impl Network {
    /// Creates the network.
    ///
    /// # Errors
    ///
    /// Reason why it cannot be created here.
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
        network.host().run("ip", &["address", "add", &format!("{SERVICES}/32"), "dev", "lo"]);
        network.heal();
        Ok(network)
    }

    /// Where the programs of a node run.
    pub fn node(&self, node: usize) -> &RunEnvironment {
        self.nodes[node].place()
    }

    /// Where host programs run.
    pub fn host(&self) -> &RunEnvironment {
        self.host.place()
    }

    /// Lets frames that `node` sends over the link arrive, or drops them silently at the other end.
    fn reach(&self, node: usize, arrives: bool) {
        let card = if arrives { CARDS[1 - node] } else { NO_CARD };
        let to = ["neigh", "replace", LINK[1 - node], "lladdr", card];
        self.node(node).run("ip", &[&to[..], &["dev", "mirror", "nud", "permanent"]].concat());
    }

    /// Drops frames that `node` sends over the link silently, until [`Network::heal`].
    ///
    /// # Panics
    ///
    /// If the command fails.
    pub fn cut(&self, node: usize) {
        self.reach(node, false);
    }

    /// Cuts a node off from [`SERVICES`], until [`Network::heal`]. Hosts still reach it.
    ///
    /// # Panics
    ///
    /// If the command fails.
    pub fn cut_services(&self, node: usize) {
        self.node(node).run("ip", &["route", "replace", "blackhole", SERVICES]);
    }

    /// Takes the link interface of `node` down: both sides notice the loss of carrier.
    ///
    /// # Panics
    ///
    /// If the command fails.
    pub fn unplug(&self, node: usize) {
        self.node(node).run("ip", &["link", "set", "mirror", "down"]);
    }

    /// Limits the link's bandwidth in each direction.
    ///
    /// # Panics
    ///
    /// If the command fails.
    pub fn slow(&self, bits_per_second: u64) {
        let rate = bits_per_second.to_string();
        let shape = ["rate", &rate, "burst", "64kb", "latency", "100ms"];
        for node in [0, 1] {
            let line = ["qdisc", "replace", "dev", "mirror", "root", "tbf"];
            self.node(node).run("tc", &[&line[..], &shape].concat());
        }
    }

    /// Restores the link's initial state.
    ///
    /// # Panics
    ///
    /// If the command fails.
    pub fn heal(&self) {
        for node in [0, 1] {
            let place = self.node(node);
            // There may be no queuing discipline.
            let _ = place.try_run("tc", &["qdisc", "del", "dev", "mirror", "root"]);
            place.run("ip", &["link", "set", "mirror", "up"]);
            self.reach(node, true);
            let _ = place.try_run("ip", &["route", "del", "blackhole", SERVICES]);
            place.run("ip", &["route", "replace", SERVICES, "via", HOST[node]]);
        }
    }
}

/// One end of a cable: namespaces, interface name and address.
type End<'a> = (&'a Namespaces, &'a str, &'a str);

fn cable(one: End<'_>, other: End<'_>) -> Result<(), String> {
    let pid = other.0.pid().to_string();
    let peer = ["peer", "name", other.1, "netns", &pid];
    let line = [&["link", "add", one.1, "type", "veth"][..], &peer].concat();
    one.0.place().try_run("ip", &line)?;
    // If this works, the rest does too.
    for (at, card, address) in [one, other] {
        at.place().run("ip", &["address", "add", &format!("{address}/30"), "dev", card]);
        at.place().run("ip", &["link", "set", card, "up"]);
    }
    Ok(())
}
