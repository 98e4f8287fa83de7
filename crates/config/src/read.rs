//! Reader of the file's tables: values with their source locations. Checks of a single value are
//! here, checks of several in [`super::check`].

use std::path::{Path, PathBuf};

use toml_edit::Item;

use super::check::{RawBacking, RawConfig, RawServer, RawSubsystem, RawVolume};
use flagstone_runtime::IoEngine;

use super::api;
use super::arbiter;
use super::diagnostic::{Located, Report, SourceLocation, shown};
use super::layers;
use super::mirror;
use super::model::{HostAccess, Nbd, Nvme};
use super::performance;
use super::profile::Catalogs;
use super::reader::{Entries, ListEntry, Reader, bare, place_of, suggestion};
use super::schema::{self, Section};
use crate::api_spec::{ApiSpec, parse_metrics};
use crate::device_spec::DeviceSpec;
use crate::limits::{
    MAX_ALLOWED_HOSTS, MAX_API_USERS, MAX_LISTEN, MAX_NAMESPACES, MAX_NQN_PREFIX_BYTES, MAX_PEERS,
    MAX_SHARED_LIMITS, MAX_STRIPE_DEVICES, MAX_VOLUMES,
};
use crate::listen_spec::{ConfiguredListener, ListenSpec};
use crate::names::{self, NameError};

const ROOT: [&str; 8] =
    ["server", "volume", "limit", "subsystem", "host", "peer", "api_user", "arbiter"];

pub(crate) fn read_root(root: &toml_edit::Table, report: &Report) -> RawConfig {
    for (name, _) in root.iter().filter(|(name, _)| !ROOT.contains(name)) {
        let span = root.key(name).and_then(|key| key.span());
        let message = format!("unknown table `{}`", bare(name));
        report.error(&place_of(span, &SourceLocation::Whole), message, suggestion(name, &ROOT));
    }
    let key_place =
        |name| place_of(root.key(name).and_then(|key| key.span()), &SourceLocation::Whole);
    let server = root
        .get("server")
        .and_then(|item| {
            Reader::new(&schema::SERVER, "server".to_owned(), item, key_place("server"), report)
        })
        .unwrap_or_else(|| Reader::absent(&schema::SERVER, report));
    let tables = |kind, schema, max| named_tables(root.get(kind), kind, schema, max, report);
    let volumes = tables("volume", &schema::VOLUME, MAX_VOLUMES);
    let limits = tables("limit", &schema::LIMIT, MAX_SHARED_LIMITS);
    let subsystems = tables("subsystem", &schema::SUBSYSTEM, MAX_VOLUMES);
    let hosts = tables("host", &schema::HOST, MAX_ALLOWED_HOSTS);
    let peers = tables("peer", &schema::PEER, MAX_PEERS);
    let api_users = tables("api_user", &schema::API_USER, MAX_API_USERS);
    let arbiter_table = root.get("arbiter").and_then(|item| {
        let title = "arbiter".to_owned();
        Reader::new(&schema::ARBITER, title, item, key_place("arbiter"), report)
    });
    let catalogs = Catalogs::default();
    RawConfig {
        arbiter: arbiter_table.as_ref().map(arbiter::read_arbiter),
        server: read_server(&server),
        volumes_mistaken: root.contains_key("volume"),
        volumes: volumes
            .into_iter()
            .map(|(name, reader)| read_volume(name, &reader, &catalogs))
            .collect(),
        limits: limits
            .into_iter()
            .map(|(name, reader)| (name, performance::read_limit(&reader, &catalogs)))
            .collect(),
        subsystems: subsystems
            .into_iter()
            .map(|(name, reader)| read_subsystem(name, &reader))
            .collect(),
        hosts: hosts.into_iter().map(|(name, reader)| read_host(name, &reader)).collect(),
        api_users: api_users
            .into_iter()
            .map(|(name, reader)| api::read_api_user(name, &reader))
            .collect(),
        peers: peers.into_iter().map(|(name, reader)| mirror::read_peer(name, &reader)).collect(),
    }
}

/// The tables `[kind.NAME]`, in the order of the file.
fn named_tables<'a>(
    item: Option<&'a Item>,
    kind: &str,
    schema: &'static Section,
    max: usize,
    report: &'a Report,
) -> Vec<(Located<String>, Reader<'a>)> {
    let Some(item) = item else { return Vec::new() };
    let Some(parent) = item.as_table_like() else {
        let help = format!("write one table for each: [{kind}.NAME]");
        let message = format!("`{kind}` is not a table of tables");
        report.error(&place_of(item.span(), &SourceLocation::Whole), message, help);
        return Vec::new();
    };
    let mut tables = Vec::new();
    for (name, item) in parent.iter() {
        let span = parent.key(name).and_then(|key| key.span());
        let place = place_of(span, &SourceLocation::Whole);
        if let Err(error) = names::check_volume_name(name) {
            report.error(&place, format!("bad name in [{kind}.{}]", bare(name)), error);
        }
        let title = format!("{kind}.{}", bare(name));
        if let Some(reader) = Reader::new(schema, title, item, place.clone(), report) {
            tables.push((Located { value: name.to_owned(), place }, reader));
        }
    }
    if let Some((name, _)) = tables.get(max) {
        let help = format!("write at most {max}");
        report.error(&name.place, format!("too many {kind}s: {}", tables.len()), help);
    }
    tables
}

fn read_server(reader: &Reader<'_>) -> RawServer {
    let report = reader.report();
    let nvme = reader.table("nvme").unwrap_or_else(|| Reader::absent(&schema::NVME, report));
    let nbd = reader.table("nbd").unwrap_or_else(|| Reader::absent(&schema::NBD, report));
    let listen = read_listen(reader);
    let mdts = nvme.size_or_default("mdts");
    let mut in_capsule = nvme.size_or_default("in_capsule");
    if !nvme.has("in_capsule") {
        in_capsule.value = in_capsule.value.min(mdts.value);
    }
    RawServer {
        listen,
        cores: reader.count("cores").map(|n| n.value as u32),
        buffer_memory: reader.size_or_default("buffer_memory"),
        node: reader.parsed("node", mirror::node_name),
        io_engine: io_engine(&reader.choice("io_engine")),
        busy_poll: reader.time_or_default("busy_poll"),
        in_capsule,
        mdts,
        api: reader.parsed("api", str::parse::<ApiSpec>),
        api_tls: api::read_api_tls(reader),
        metrics: reader.parsed("metrics", parse_metrics),
        state: reader.parsed("state", parse_state),
        watchdog: reader.parsed("watchdog", watchdog_path),
        key_command: mirror::command(reader, "key_command"),
        nvme: read_nvme(&nvme),
        nbd: read_nbd(&nbd),
    }
}

fn read_listen(reader: &Reader<'_>) -> Option<Vec<Located<ConfiguredListener>>> {
    let Entries { entries, place } = reader.entries("listen", MAX_LISTEN)?;
    let report = reader.report();
    if entries.is_empty() {
        let help = "write at least one address, such as \"nvme-tcp://127.0.0.1:4420\"";
        report.error(&place, "nothing to listen on", help);
    }
    let listener = |entry| match entry {
        ListEntry::Text(Located { value: text, place }) => match text.parse() {
            Ok(spec) => {
                Some(Located { value: ConfiguredListener { spec, insecure: false }, place })
            }
            Err(error) => {
                report.error(&place, format!("bad entry in `listen`: {}", shown(text)), error);
                None
            }
        },
        ListEntry::Table(table) => {
            if !table.has("url") {
                let help = "write url = \"nvme-tcp://ADDRESS:PORT\"";
                report.error(table.place(), "an entry of `listen` has no url", help);
            }
            let Located { value: spec, place } = table.parsed("url", str::parse::<ListenSpec>)?;
            Some(Located {
                value: ConfiguredListener { spec, insecure: table.boolean("insecure") },
                place,
            })
        }
        ListEntry::Other(_) => None,
    };
    Some(entries.into_iter().take(MAX_LISTEN).filter_map(listener).collect())
}

pub(crate) fn parse_state(text: &str) -> Result<PathBuf, &'static str> {
    match text.is_empty() || text.contains('\0') {
        true => Err("write the path of a directory, such as /var/lib/flagstone"),
        false => Ok(text.into()),
    }
}

fn watchdog_path(text: &str) -> Result<PathBuf, &'static str> {
    file_path(text).map_err(|_| "write an absolute path, such as /dev/watchdog")
}

pub(crate) fn io_engine(word: &str) -> IoEngine {
    match word {
        "io_uring" => IoEngine::IoUring,
        "threads" => IoEngine::Threads,
        _ => IoEngine::Auto,
    }
}

/// The sizes are left at zero: they are checked against each other first.
fn read_nvme(reader: &Reader<'_>) -> Nvme {
    Nvme {
        nqn_prefix: reader
            .parsed("nqn_prefix", parse_nqn_prefix)
            .map_or_else(|| names::DEFAULT_NQN_PREFIX.to_owned(), |prefix| prefix.value),
        in_capsule_bytes: 0,
        max_queues: reader.count_or_default("max_queues") as u16,
        queue_depth: reader.count_or_default("queue_depth") as u16,
        mdts_bytes: 0,
        max_connections: reader.count_or_default("max_connections") as u32,
        header_digest: reader.boolean("header_digest"),
        data_digest: reader.boolean("data_digest"),
        handshake_timeout: reader.time_or_default("handshake_timeout"),
        stall_timeout: reader.time_or_default("stall_timeout"),
    }
}

fn parse_nqn_prefix(text: &str) -> Result<String, NameError> {
    if text.len() > MAX_NQN_PREFIX_BYTES {
        return Err(NameError::NqnTooLong(text.len()));
    }
    names::check_nqn(&format!("{text}:x")).map(|()| text.to_owned())
}

fn read_nbd(reader: &Reader<'_>) -> Nbd {
    let path = |key| reader.parsed(key, key_path).map(|path| path.value);
    Nbd {
        tls_certificates: path("tls_certificates"),
        tls_verify_clients: reader.boolean("tls_verify_clients"),
        tls_psk_file: path("tls_psk_file"),
        max_connections: reader.count_or_default("max_connections") as u32,
        handshake_timeout: reader.time_or_default("handshake_timeout"),
        stall_timeout: reader.time_or_default("stall_timeout"),
    }
}

fn read_volume(name: Located<String>, reader: &Reader<'_>, catalogs: &Catalogs) -> RawVolume {
    RawVolume {
        layers: layers::read_layers(reader, catalogs),
        backing: read_backing(reader),
        block_size: reader.size("block_size"),
        read_only: reader.boolean("read_only"),
        nqn: reader.checked("nqn", names::check_subsystem_nqn),
        uuid: reader.parsed("uuid", names::parse_uuid),
        serial: reader.checked("serial", names::check_serial),
        allow_hosts: read_hosts(reader),
        nbd_export: reader.checked("nbd_export", names::check_export_name),
        nbd_clients: reader
            .list("nbd_clients", MAX_ALLOWED_HOSTS, |text| match text.is_empty() {
                true => Err("a client has a name: in its certificate, or of its pre-shared key"),
                false => Ok(text.to_owned()),
            })
            .map(|list| list.entries.into_iter().map(|entry| entry.value).collect()),
        name,
    }
}

fn read_hosts(reader: &Reader<'_>) -> Option<Located<Vec<String>>> {
    let parse = |text: &str| names::check_nqn(text).map(|()| text.to_owned());
    reader.list("allow_hosts", MAX_ALLOWED_HOSTS, parse).map(|list| Located {
        value: list.entries.into_iter().map(|entry| entry.value).collect(),
        place: list.place,
    })
}

fn read_host(name: Located<String>, reader: &Reader<'_>) -> (Located<String>, Option<HostAccess>) {
    let has_key = reader.has("key_file") || reader.has("tls_key_file");
    for (key, has, help) in [
        ("nqn", reader.has("nqn"), "nqn = \"NQN\""),
        ("key_file", has_key, "key_file = \"/PATH\", or tls_key_file for TLS"),
    ] {
        if !has {
            let message = reader.message(|title| format!("[{title}] has no {key}"));
            reader.report().error(reader.place(), message, format!("write {help}"));
        }
    }
    let nqn = reader.checked("nqn", names::check_nqn);
    let path = |key| reader.parsed(key, key_path).map(|path| path.value);
    let (key_file, tls_key_file) = (path("key_file"), path("tls_key_file"));
    let controller_key_file = path("controller_key_file");
    if let (None, true) = (&key_file, controller_key_file.is_some()) {
        let help = "write key_file too: a host without one asks for no proof";
        reader.report().error(reader.place(), "controller_key_file without key_file", help);
    }
    let own_name = name.value.clone();
    let host = nqn.filter(|_| has_key).map(|nqn| HostAccess {
        name: own_name,
        nqn: nqn.value,
        key_file,
        controller_key_file,
        tls_key_file,
    });
    (name, host)
}

/// Path of a key. A key itself is refused without being repeated.
pub(crate) fn key_path(text: &str) -> Result<PathBuf, &'static str> {
    if text.contains("DHHC-1:") || text.contains("NVMeTLSkey-1:") {
        return Err("this is a key: write it to a file of mode 0600, and the file's path here");
    }
    file_path(text)
}

/// Absolute path of a file.
pub(crate) fn file_path(text: &str) -> Result<PathBuf, &'static str> {
    let path = Path::new(text);
    match path.is_absolute() && !text.contains('\0') {
        true => Ok(path.to_owned()),
        false => Err("write an absolute path, such as /etc/flagstone/keys/NAME"),
    }
}

fn read_backing(reader: &Reader<'_>) -> Option<RawBacking> {
    let report = reader.report();
    if reader.has("device") && reader.has("stripe") {
        let place = reader.key_place("stripe");
        let related = ("the device is given at", &reader.key_place("device"));
        let message = reader.message(|title| format!("[{title}] has both `device` and `stripe`"));
        report.error_with(&place, message, "keep one of them", related);
    }
    if reader.has("device") {
        let device = reader.parsed("device", str::parse::<DeviceSpec>)?;
        return Some(RawBacking { chunk: None, devices: vec![device] });
    }
    if !reader.has("stripe") {
        let help = "write what stores its data, such as device = \"/dev/nvme0n1\" or \
                    device = \"memory:1GiB\"";
        report.error(
            reader.place(),
            reader.message(|title| format!("[{title}] has no device")),
            help,
        );
        return None;
    }
    let stripe = reader.table("stripe")?;
    let chunk = stripe.size_or_default("chunk");
    if !stripe.has("devices") {
        let help = "write devices = [\"/dev/nvme0n1\", \"/dev/nvme1n1\"]";
        let message = stripe.message(|title| format!("[{title}] has no devices"));
        report.error(stripe.place(), message, help);
    }
    let devices = stripe.list("devices", MAX_STRIPE_DEVICES, str::parse::<DeviceSpec>)?;
    if devices.written < 2 {
        let message = format!("a stripe over {} device", devices.written);
        let help = "write at least two devices, or device = \"…\" in place of the stripe";
        report.error(&devices.place, message, help);
    }
    Some(RawBacking { chunk: Some(chunk), devices: devices.entries })
}

fn read_subsystem(name: Located<String>, reader: &Reader<'_>) -> RawSubsystem {
    let parse = |text: &str| names::check_volume_name(text).map(|()| text.to_owned());
    let namespaces = reader.list("namespaces", MAX_NAMESPACES, parse);
    if namespaces.as_ref().is_none_or(|list| list.written == 0) {
        let message = reader.message(|title| format!("[{title}] has no namespaces"));
        let help = "write namespaces = [\"VOLUME\", …] with the names of its volumes";
        reader.report().error(reader.place(), message, help);
    }
    RawSubsystem {
        nqn: reader.checked("nqn", names::check_subsystem_nqn),
        serial: reader.checked("serial", names::check_serial),
        namespaces: namespaces.map(|list| list.entries).unwrap_or_default(),
        allow_hosts: read_hosts(reader),
        name,
    }
}
