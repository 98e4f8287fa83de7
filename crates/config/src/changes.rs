//! Changes between two configurations: the keys that a running server applies only at its next
//! start.

use crate::{
    ArbiterStore, BucketStore, Config, EtcdStore, HostAccess, LayerConfig, MirrorConfig, Nbd, Nvme,
    Peer, ServerSettings, Subsystem, Volume,
};

/// Adds `PREFIX.KEY` for each field that differs; a field is called like its key, or `field: key`.
/// Every field is named, so that the compiler finds a forgotten field.
macro_rules! compare {
    ($out:ident, $prefix:expr, $type:ident, $old:expr, $new:expr,
     { $($field:ident $(: $key:ident)?),* }, compared_separately { $($other:ident),* }) => {
        let $type { $($field,)* $($other: _,)* } = $old;
        $(if *$field != $new.$field {
            let key = [$(stringify!($key),)? stringify!($field)][0];
            $out.push(format!("{}.{key}", $prefix));
        })*
    };
}

impl Config {
    /// The keys whose values differ in `read` and that a reload does not apply, such as
    /// `server.cores` or `volume.db.device`. A table that is new or gone is named as a whole. A
    /// reload applies the numbers of existing limits.
    pub fn keys_for_next_start(&self, read: &Config) -> Vec<String> {
        let mut keys = Vec::new();
        compare_servers(&self.server, &read.server, &mut keys);
        let names = |config: &Config| -> Vec<String> {
            config.volumes.iter().map(|volume| format!("volume.{}", volume.name)).collect()
        };
        add_or_removed(&names(self), &names(read), &mut keys);
        for old in &self.volumes {
            if let Some(new) = read.volumes.iter().find(|new| new.name == old.name) {
                compare_volumes((self, old), (read, new), &mut keys);
            }
        }
        let names = |config: &Config| -> Vec<String> {
            config.limits.iter().map(|limit| format!("limit.{}", limit.name)).collect()
        };
        add_or_removed(&names(self), &names(read), &mut keys);
        let names = |config: &Config| -> Vec<String> {
            config.peers.iter().map(|peer| format!("peer.{}", peer.name)).collect()
        };
        add_or_removed(&names(self), &names(read), &mut keys);
        for old in &self.peers {
            if let Some(new) = read.peers.iter().find(|new| new.name == old.name) {
                compare_peers(old, new, &mut keys);
            }
        }
        let names = |config: &Config| -> Vec<String> {
            config.hosts.iter().map(|host| format!("host.{}", host.name)).collect()
        };
        add_or_removed(&names(self), &names(read), &mut keys);
        for old in &self.hosts {
            if let Some(new) = read.hosts.iter().find(|new| new.name == old.name) {
                compare!(keys, format!("host.{}", old.name), HostAccess, old, new, {
                    nqn, key_file, controller_key_file, tls_key_file
                }, compared_separately { name });
            }
        }
        match (&self.arbiter, &read.arbiter) {
            (Some(ArbiterStore::Etcd(old)), Some(ArbiterStore::Etcd(new))) => {
                compare!(keys, "arbiter", EtcdStore, old, new, { etcd, tls, prefix, user },
                    compared_separately {});
            }
            (Some(ArbiterStore::Bucket(old)), Some(ArbiterStore::Bucket(new))) => {
                compare!(keys, "arbiter", BucketStore, old, new, {
                    object_store, region, account, endpoint, ca_file, credentials_file
                }, compared_separately {});
            }
            (None, None) => {}
            _ => keys.push("arbiter".to_owned()),
        }
        compare_subsystems(self, read, &mut keys);
        keys
    }
}

/// Adds the tables that only one side has.
fn add_or_removed(old: &[String], new: &[String], keys: &mut Vec<String>) {
    keys.extend(old.iter().filter(|table| !new.contains(table)).cloned());
    keys.extend(new.iter().filter(|table| !old.contains(table)).cloned());
}

fn compare_servers(old: &ServerSettings, new: &ServerSettings, keys: &mut Vec<String>) {
    compare!(keys, "server", ServerSettings, old, new, {
        listen, cores, buffer_memory_bytes: buffer_memory, node, io_engine, busy_poll, api,
        metrics, state, watchdog, key_command
    }, compared_separately { nvme, nbd, api_tls });
    // A reload applies its files.
    let listen = |server: &ServerSettings| server.api_tls.as_ref().map(|tls| tls.listen);
    if listen(old) != listen(new) {
        keys.push("server.api_tls.listen".to_owned());
    }
    compare!(keys, "server.nvme", Nvme, &old.nvme, new.nvme, {
        nqn_prefix, in_capsule_bytes: in_capsule, max_queues, queue_depth, mdts_bytes: mdts,
        max_connections, header_digest, data_digest, handshake_timeout, stall_timeout
    }, compared_separately {});
    compare!(keys, "server.nbd", Nbd, &old.nbd, new.nbd, {
        max_connections, handshake_timeout, stall_timeout, tls_certificates, tls_verify_clients,
        tls_psk_file
    }, compared_separately {});
}

fn compare_volumes(
    (running, old): (&Config, &Volume),
    (read, new): (&Config, &Volume),
    keys: &mut Vec<String>,
) {
    let table = format!("volume.{}", old.name);
    compare!(keys, table, Volume, old, new, {
        backing: device, block_size_bytes: block_size, read_only, uuid, nbd_export, nbd_clients
    }, compared_separately { name, layers });
    let before = keys.len();
    let layers = |config: &Config, volume: &Volume| -> Vec<(&'static str, LayerValue)> {
        volume.layers.iter().map(|layer| comparable(config, layer)).collect()
    };
    let (old, new) = (layers(running, old), layers(read, new));
    for (key, value) in &old {
        if !new.iter().any(|(other, same)| other == key && same == value) {
            keys.push(format!("{table}.{key}"));
        }
    }
    for (key, _) in &new {
        if !old.iter().any(|(other, _)| other == key) {
            keys.push(format!("{table}.{key}"));
        }
    }
    if keys.len() == before && old != new {
        keys.push(format!("{table}.layers"));
    }
}

/// Properties by which layers are compared, without the numbers that a reload applies and with
/// names in place of indices.
#[derive(PartialEq)]
enum LayerValue {
    Own(LayerConfig),
    Limit,
    SharedLimit(String),
    Mirror(Vec<String>, Box<MirrorConfig>),
}

fn comparable(config: &Config, layer: &LayerConfig) -> (&'static str, LayerValue) {
    match layer {
        LayerConfig::Delay(_) => ("delay", LayerValue::Own(layer.clone())),
        LayerConfig::Fault(_) => ("fault", LayerValue::Own(layer.clone())),
        LayerConfig::DiskModel(_) => ("disk_model", LayerValue::Own(layer.clone())),
        LayerConfig::Limit(_) => ("limit", LayerValue::Limit),
        LayerConfig::SharedLimit(index) => {
            ("shared_limit", LayerValue::SharedLimit(config.limits[*index].name.clone()))
        }
        LayerConfig::Mirror(mirror) => {
            let names = mirror.peers.iter().map(|index| config.peers[*index].name.clone());
            let own = Box::new(MirrorConfig { peers: Vec::new(), ..(**mirror).clone() });
            ("mirror", LayerValue::Mirror(names.collect(), own))
        }
    }
}

fn compare_peers(old: &Peer, new: &Peer, keys: &mut Vec<String>) {
    compare!(keys, format!("peer.{}", old.name), Peer, old, new, {
        address, key_file, authentication, insecure, tls_key_file, tls, host_addresses,
        connections, timeout, compression,
        max_bytes_per_s: bandwidth_max, fence_command, fence_timeout
    }, compared_separately { name });
}

/// A volume's own subsystem has the keys of the volume.
fn compare_subsystems(running: &Config, read: &Config, keys: &mut Vec<String>) {
    let table = |config: &Config, subsystem: &Subsystem| match subsystem.namespaces.as_slice() {
        [only] if config.volumes[*only].name == subsystem.name => {
            format!("volume.{}", subsystem.name)
        }
        _ => format!("subsystem.{}", subsystem.name),
    };
    let tables = |config: &Config| -> Vec<String> {
        config.subsystems.iter().map(|subsystem| table(config, subsystem)).collect()
    };
    let (old_tables, new_tables) = (tables(running), tables(read));
    let named = |tables: &[String]| -> Vec<String> {
        tables.iter().filter(|table| table.starts_with("subsystem.")).cloned().collect()
    };
    add_or_removed(&named(&old_tables), &named(&new_tables), keys);
    for (old, table) in running.subsystems.iter().zip(&old_tables) {
        let Some(index) = new_tables.iter().position(|new| new == table) else { continue };
        let new = &read.subsystems[index];
        compare!(keys, table, Subsystem, old, new, {
            nqn, serial, allow_hosts
        }, compared_separately { name, namespaces });
        let names = |config: &Config, subsystem: &Subsystem| -> Vec<String> {
            subsystem.namespaces.iter().map(|index| config.volumes[*index].name.clone()).collect()
        };
        if names(running, old) != names(read, new) {
            keys.push(format!("{table}.namespaces"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: &str = "[server]\nnode = \"a\"\n\
        [server.nbd]\nmax_connections = 5\n\
        [limit.vm]\niops = 100\n[limit.spare]\niops = 7\n\
        [peer.b]\naddress = \"10.0.0.2\"\ninsecure = true\n\
        [volume.x]\nlimit.iops = 5\nshared_limit = \"vm\"\ndevice = \"null:1GiB\"\n\
        [volume.y]\nmirror.peer = \"b\"\ndelay.read = \"1ms\"\nnqn = \"nqn.2026-01.io.x:y\"\n\
        device = \"/y\"\n[volume.z]\ndevice = \"/z\"\n[volume.w]\ndevice = \"/w\"\n\
        [subsystem.zw]\nnamespaces = [\"z\", \"w\"]\n";

    fn keys(edits: &[(&str, &str)]) -> Vec<String> {
        let parse = |text: &str| Config::parse("f", text).unwrap_or_else(|error| panic!("{error}"));
        let mut text = RUNNING.to_owned();
        for (old, new) in edits {
            assert!(text.contains(old), "{old}");
            text = text.replace(old, new);
        }
        parse(RUNNING).keys_for_next_start(&parse(&text))
    }

    #[test]
    fn reload_applies_numbers_of_limits() {
        assert!(keys(&[]).is_empty());
        let numbers = keys(&[("limit.iops = 5", "limit.throughput = \"9MB/s\""), ("100", "1")]);
        assert!(numbers.is_empty(), "{numbers:?}");
    }

    #[test]
    fn changed_keys_are_named() {
        for (old, new, named) in [
            ("max_connections = 5", "max_connections = 6", "server.nbd.max_connections"),
            ("node = \"a\"", "node = \"a\"\ncores = 2", "server.cores"),
            ("limit.iops = 5\n", "", "volume.x.limit"),
            ("shared_limit = \"vm\"", "shared_limit = \"spare\"", "volume.x.shared_limit"),
            (
                "limit.iops = 5",
                "layers = [\"limit\", \"shared_limit\"]\nlimit.iops = 5",
                "volume.x.layers",
            ),
            ("\"/y\"", "\"/yy\"", "volume.y.device"),
            ("read = \"1ms\"", "read = \"2ms\"", "volume.y.delay"),
            (
                "mirror.peer = \"b\"",
                "mirror = { peer = \"b\", mode = \"async\" }",
                "volume.y.mirror",
            ),
            ("x:y", "x:yy", "volume.y.nqn"),
            ("10.0.0.2", "10.0.0.3", "peer.b.address"),
            ("[limit.spare]\niops = 7\n", "", "limit.spare"),
            ("[peer.b]", "[peer.c]\naddress = \"c\"\n[peer.b]", "peer.c"),
            ("[\"z\", \"w\"]", "[\"w\", \"z\"]", "subsystem.zw.namespaces"),
            ("[volume.z]", "[volume.new]\ndevice = \"/new\"\n[volume.z]", "volume.new"),
        ] {
            assert_eq!(keys(&[(old, new)]), [named], "{old} -> {new}");
        }
    }
}
