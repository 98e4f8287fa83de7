//! Starter configuration: a commented file for one disk, a mirrored pair or a limited volume.
//!
//! The text is a draft for an operator to read and edit. Values are quoted, not checked:
//! [`Config::check_text`](crate::Config::check_text) of the text reports what is wrong with them.

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::device_spec::NVME_TCP_PORT;
use crate::uri::{AuthorityError, HostPort, UriHost, parse_authority};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Starter {
    pub volume: String,
    pub device: String,
    /// Address to serve NVMe/TCP on, such as `0.0.0.0:4420`.
    pub listen: String,
    pub access: StarterAccess,
    pub pair: Option<StarterPair>,
    pub limit: Option<StarterLimit>,
}

/// Proof that hosts and the peer give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StarterAccess {
    /// None: they are on this machine.
    Local,
    /// Keys of the host with this NQN and of the pair.
    Keys { host_nqn: String },
    /// None, which the file accepts.
    Insecure,
}

/// Key of the host, on a node of the starter.
pub const HOST_KEY: &str = "/etc/flagstone/keys/host";

/// Key of a pair, on both nodes.
pub const PAIR_KEY: &str = "/etc/flagstone/keys/pair";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StarterPair {
    pub node: StarterNode,
    pub peer: StarterNode,
    pub peer_device: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StarterNode {
    pub name: String,
    /// Host name or IP address that the other node reaches, with a port other than 4420 if it has
    /// one.
    pub address: String,
}

impl StarterNode {
    /// # Errors
    /// The address cannot be read.
    pub fn check(&self) -> Result<(), AuthorityError> {
        parse_authority(&self.address, NVME_TCP_PORT).map(drop)
    }

    /// Host name or IP address as ssh and nvme take it: without the port, IPv6 without brackets.
    pub fn bare_host(&self) -> String {
        let host = self.host();
        host.trim_matches(['[', ']']).to_owned()
    }

    /// Host name or IP address, without the port; IPv6 in brackets.
    pub fn host(&self) -> String {
        let parsed = parse_authority(&self.address, NVME_TCP_PORT);
        parsed.map_or_else(|_| self.address.clone(), |address| address.host.to_string())
    }

    /// TCP port at which the other node reaches it.
    pub fn port(&self) -> u16 {
        parse_authority(&self.address, NVME_TCP_PORT).map_or(NVME_TCP_PORT, |address| address.port)
    }

    /// Returns true if only this machine can reach its address.
    pub fn is_local(&self) -> bool {
        let parsed = parse_authority(&self.address, NVME_TCP_PORT);
        parsed.is_ok_and(|address| address.host.is_loopback())
    }

    /// All addresses of the node of the family of its own, with the port at which the other node
    /// reaches it. A node of a pair on one machine listens only there.
    pub fn listen(&self) -> String {
        let parsed = parse_authority(&self.address, NVME_TCP_PORT);
        let is_ipv6 = matches!(&parsed, Ok(HostPort { host: UriHost::Ip(IpAddr::V6(_)), .. }));
        let all = match (is_ipv6, self.is_local()) {
            (true, true) => "[::1]",
            (true, false) => "[::]",
            (false, true) => "127.0.0.1",
            (false, false) => "0.0.0.0",
        };
        format!("{all}:{}", self.port())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StarterLimit {
    Profile {
        /// Type of disk, such as `pd-ssd`.
        kind: String,
        /// Its size, such as `500GB`.
        size: String,
        /// Machine type, such as `n2-standard-8`.
        machine: String,
    },
    Rates {
        iops: Option<u64>,
        /// Bytes a second, such as `240MB/s`.
        throughput: Option<String>,
    },
}

/// A text as a basic string of TOML 1.0.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => drop(write!(out, "\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out + "\""
}

/// A name as a key of TOML: bare if it can be.
pub(crate) fn key(name: &str) -> String {
    let bare = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
    match !name.is_empty() && name.bytes().all(bare) {
        true => name.to_owned(),
        false => quoted(name),
    }
}

impl Starter {
    pub fn text(&self) -> String {
        let mut out = format!(
            "# Flagstone serves the volume `{0}`. Check this file with `flagstone check FILE`, serve it\n\
             # with `flagstone serve FILE`. Every key: docs/configuration.md.\n\n[server]\n",
            self.volume.escape_default()
        );
        if let Some(pair) = &self.pair {
            let _ = writeln!(
                out,
                "# The name of this node for its peer.\nnode = {}",
                quoted(&pair.node.name)
            );
        }
        let listen = quoted(&format!("nvme-tcp://{}", self.listen));
        let _ = match &self.access {
            StarterAccess::Local => {
                writeln!(out, "# Hosts on this machine attach here.\nlisten = [{listen}]")
            }
            StarterAccess::Keys { host_nqn } => writeln!(
                out,
                "# Hosts attach here. `flagstone key generate PATH` makes a key.\nlisten = [{listen}]\n\n\
                 # The host's /etc/nvme/hostnqn. It has the same key.\n[host.host]\nnqn = {}\n\
                 key_file = {}",
                quoted(host_nqn),
                quoted(HOST_KEY)
            ),
            StarterAccess::Insecure => writeln!(
                out,
                "# Hosts attach here. Anyone who reaches the address can read and write the volume: keys\n\
                 # change that, see docs/guides/keys.md.\n\
                 listen = [{{ url = {listen}, insecure = true }}]"
            ),
        };
        if let Some(pair) = &self.pair {
            let _ = writeln!(
                out,
                "\n# The other node: where its own file listens.\n[peer.{}]\naddress = {}",
                key(&pair.peer.name),
                quoted(&pair.peer.address)
            );
            let _ = match &self.access {
                StarterAccess::Local => Ok(()),
                StarterAccess::Keys { .. } => writeln!(
                    out,
                    "# Both nodes have the same key.\nkey_file = {}",
                    quoted(PAIR_KEY)
                ),
                StarterAccess::Insecure => writeln!(
                    out,
                    "# Anyone who takes its name or address can overwrite the mirror.\ninsecure = true"
                ),
            };
        }
        let _ = writeln!(out, "\n[volume.{}]", key(&self.volume));
        if let Some(pair) = &self.pair {
            let _ = writeln!(
                out,
                "# Neither node is the source by configuration: the role moves. Make the mirror with\n\
                 # `flagstone mirror create {0} --source` on the node with the data, then\n\
                 # `flagstone mirror create {0} --target` on the other, which is overwritten.\n\
                 mirror = {{ peer = {1} }}",
                self.volume.escape_default(),
                quoted(&pair.peer.name)
            );
        }
        if let Some(limit) = &self.limit {
            out += &limit.text();
        }
        let device = quoted(&self.device);
        let _ = writeln!(out, "# A disk, a partition or a file; it must exist.\ndevice = {device}");
        out
    }

    /// The other node's file, for a mirrored pair.
    pub fn peer_text(&self) -> Option<String> {
        let pair = self.pair.as_ref()?;
        let other = Starter {
            device: pair.peer_device.clone(),
            listen: pair.peer.listen(),
            pair: Some(StarterPair {
                node: pair.peer.clone(),
                peer: pair.node.clone(),
                peer_device: self.device.clone(),
            }),
            ..self.clone()
        };
        Some(other.text())
    }
}

impl StarterLimit {
    fn text(&self) -> String {
        match self {
            StarterLimit::Profile { kind, size, machine } => format!(
                "# The limits of a cloud disk; `flagstone plan predict` shows their numbers.\n\
                 limit = {{ profile = {}, size = {}, machine = {} }}\n",
                quoted(kind),
                quoted(size),
                quoted(machine)
            ),
            StarterLimit::Rates { iops, throughput } => {
                let iops = iops.map(|iops| format!("iops = {iops}"));
                let throughput =
                    throughput.as_ref().map(|rate| format!("throughput = {}", quoted(rate)));
                let rates: Vec<_> = iops.into_iter().chain(throughput).collect();
                format!(
                    "# Reads and writes together; SIGHUP applies other numbers.\nlimit = {{ {} }}\n",
                    rates.join(", ")
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arguments, Checked, Config};

    fn starter() -> Starter {
        Starter {
            volume: "db".to_owned(),
            device: "/dev/sdb".to_owned(),
            listen: "0.0.0.0:4420".to_owned(),
            access: StarterAccess::Keys { host_nqn: "nqn.2026-01.io.example:h".to_owned() },
            pair: None,
            limit: None,
        }
    }

    fn node(name: &str, address: &str) -> StarterNode {
        StarterNode { name: name.to_owned(), address: address.to_owned() }
    }

    fn checked(text: &str) -> Config {
        let checked = Config::check_text("starter", text, &Arguments::default());
        let Checked { config, warnings } = checked.unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert!(warnings.is_none(), "{text}");
        config
    }

    #[test]
    fn starters_pass_check_without_warnings() {
        assert_eq!(checked(&starter().text()).volumes.len(), 1);
        let profile = StarterLimit::Profile {
            kind: "pd-ssd".to_owned(),
            size: "500GB".to_owned(),
            machine: "n2-standard-8".to_owned(),
        };
        let throughput = Some("240MB/s".to_owned());
        let rates = StarterLimit::Rates { iops: Some(15_000), throughput };
        for limit in [profile, rates] {
            let limited = checked(&Starter { limit: Some(limit), ..starter() }.text());
            assert_eq!(limited.volumes[0].layers.len(), 1);
        }
        assert_eq!(starter().peer_text(), None);
    }

    #[test]
    fn starters_name_keys_or_accept_their_absence() {
        let pair = StarterPair {
            node: node("node-a", "10.0.0.1"),
            peer: node("node-b", "10.0.0.2"),
            peer_device: "/dev/sdc".to_owned(),
        };
        let with = |access| Starter { pair: Some(pair.clone()), access, ..starter() };
        let keyed = with(starter().access);
        for text in [keyed.text(), keyed.peer_text().unwrap()] {
            let config = checked(&text);
            assert_eq!(config.hosts[0].key_file.as_deref(), Some(std::path::Path::new(HOST_KEY)));
            assert_eq!(config.peers[0].key_file.as_ref().unwrap().to_str(), Some(PAIR_KEY));
            assert!(!config.server.listen[0].insecure && !config.peers[0].insecure);
        }
        let open = with(StarterAccess::Insecure);
        for text in [open.text(), open.peer_text().unwrap()] {
            let config = checked(&text);
            assert!(config.server.listen[0].insecure && config.peers[0].insecure);
        }
        let text = with(StarterAccess::Local).text();
        assert!(Config::parse("starter", &text).is_err(), "other machines reach it");
    }

    #[test]
    fn files_of_a_pair_mirror_each_other() {
        let pair = StarterPair {
            node: node("node-a", "10.0.0.1"),
            peer: node("node-b", "10.0.0.2"),
            peer_device: "/dev/sdc".to_owned(),
        };
        let starter = Starter { pair: Some(pair), ..starter() };
        let (here, there) = (checked(&starter.text()), checked(&starter.peer_text().unwrap()));
        assert_eq!(
            (here.server.node.as_deref(), there.peers[0].name.as_str()),
            (Some("node-a"), "node-a")
        );
        assert_eq!(
            (there.server.node.as_deref(), here.peers[0].name.as_str()),
            (Some("node-b"), "node-b")
        );
        assert_eq!(here.peers[0].address.to_string(), "10.0.0.2:4420");
        assert_eq!(there.peers[0].address.to_string(), "10.0.0.1:4420");
        let listens = [&here, &there].map(|config| config.server.listen[0].spec.to_string());
        assert_eq!(listens, ["nvme-tcp://0.0.0.0:4420"; 2]);
        assert_eq!(there.volumes[0].backing.devices()[0].to_string(), "/dev/sdc");
        assert!(here.volumes[0].mirror().is_some() && there.volumes[0].mirror().is_some());
    }

    #[test]
    fn each_node_listens_where_its_peer_connects() {
        let [a, b] = [node("a", "10.0.0.1:4500"), node("b", "[fd00::2]:4600")];
        let listen = a.listen();
        let pair = StarterPair { node: a, peer: b, peer_device: "/dev/sdb".to_owned() };
        let starter = Starter { pair: Some(pair), listen, ..starter() };
        let files = [checked(&starter.text()), checked(&starter.peer_text().unwrap())];
        let listens = files.each_ref().map(|config| config.server.listen[0].spec.to_string());
        assert_eq!(listens, ["nvme-tcp://0.0.0.0:4500", "nvme-tcp://[::]:4600"]);
        assert_eq!(files[0].peers[0].address.to_string(), "[fd00::2]:4600");
        assert_eq!(node("a", "[::1]:4600").listen(), "[::1]:4600");
        let bare = node("b", "[fd00::2]:4600");
        assert_eq!((bare.bare_host(), bare.host()), ("fd00::2".into(), "[fd00::2]".into()));
        assert!(bare.check().is_ok() && node("b", "fd00::2").check().is_err());
    }

    #[test]
    fn hostile_values_stay_values() {
        let hostile = "x\"]\n[volume.evil]\ndevice = \"/dev/sda\"".to_owned();
        let text = Starter { device: hostile.clone(), ..starter() }.text();
        assert_eq!(checked(&text).volumes.len(), 1);
        let text = Starter { volume: hostile, ..starter() }.text();
        let refused = Config::parse("starter", &text).expect_err("no name");
        assert!(refused.items()[0].message.contains("bad name"), "{refused}");
    }
}
