//! Remote devices: connecting to them, and hints for the errors.

use std::net::SocketAddr;
use std::time::Duration;

use flagstone_auth::KeyPair;
use flagstone_blockdev::SharedDevice;
use flagstone_nbd::{ClientOptions, ConnectError, NbdDevice, NegotiationError};
use flagstone_nvme::pdu::Digests;
use flagstone_nvme::{FabricsType, Nqn, Status};
use flagstone_nvmf_host::{
    HostError, HostOptions, IdentityVersion, KeyReload, MultipathDevice, RemoteDevice, RemoteTls,
};
use flagstone_runtime::net::{self, Address};

use crate::host_identity::{HostScope, host_id};
use crate::keys;
use crate::open::OpenOptions;
use crate::tls_files;
use flagstone_config::device_spec::{HostPort, NbdAddress, NbdSpec, NvmeTcpSpec, UriHost};

/// How long calls wait for one of several paths, and for an answer by each.
const PATHS_TIMEOUT: Duration = Duration::from_secs(60);
const PATH_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct RemoteFailure {
    pub(crate) problem: String,
    /// It may come about later, without any change here.
    pub(crate) may_pass: bool,
}

impl From<String> for RemoteFailure {
    fn from(problem: String) -> RemoteFailure {
        RemoteFailure { problem, may_pass: false }
    }
}

impl From<HostError> for RemoteFailure {
    fn from(error: HostError) -> RemoteFailure {
        RemoteFailure { problem: explain_nvme(&error), may_pass: error.may_pass() }
    }
}

impl From<ConnectError> for RemoteFailure {
    fn from(error: ConnectError) -> RemoteFailure {
        RemoteFailure { problem: explain_nbd(&error), may_pass: error.may_pass() }
    }
}

fn connect_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => {
            "; nothing listens there: is the server running, and is this its port?"
        }
        std::io::ErrorKind::NotFound => "; no server has made this socket",
        _ => "",
    }
}

fn explain_nvme(error: &HostError) -> String {
    let hint = match error {
        HostError::Connect(system) => connect_hint(system),
        HostError::FabricsRefused { command: FabricsType::CONNECT, status } => {
            match status.code() {
                Status::CONNECT_INVALID_PARAMETERS => {
                    return "the server refused Connect, most likely because it has no subsystem of \
                        this NQN (Connect Invalid Parameters); `flagstone serve` prints those it \
                        serves, `nvme discover` lists them"
                    .to_owned();
                }
                Status::CONNECT_INVALID_HOST => {
                    return "the subsystem does not admit this host (Connect Invalid Host): add its NQN \
                        to allow_hosts and, if other hosts have keys, in a [host.NAME]; or call it \
                        by one that is there (?hostnqn=NQN)"
                    .to_owned();
                }
                _ => "",
            }
        }
        HostError::KeyRequired => {
            "; write ?key-file=PATH in the device, or key_file in the [peer.NAME]"
        }
        HostError::TlsRequired => {
            "; give this host a TLS key and write ?tls-key-file=PATH instead of concat, or let the server \
             listen with ?tls=allowed"
        }
        HostError::Authentication(_) | HostError::NoProof => {
            "; compare `flagstone key check FILE` on both sides"
        }
        HostError::Tls(_) => {
            "; does the server listen with ?tls=required or ?tls=allowed, and does \
             `flagstone key check FILE` show the same on both sides? SPDK's target needs \
             &tls-identity=0"
        }
        HostError::GeneratedPsk(_) if !error.may_pass() => {
            "; the target derives another TLS key from the same authentication, as Linux before 6.18 does"
        }
        HostError::Closed | HostError::Protocol(_) => "; is it an NVMe/TCP port without TLS?",
        _ => "",
    };
    format!("{error}{hint}")
}

fn explain_nbd(error: &ConnectError) -> String {
    let hint = match error {
        ConnectError::Connect(system) => connect_hint(system),
        ConnectError::TimedOut => "; is it an NBD port?",
        ConnectError::Negotiation(NegotiationError::UnknownExport(_)) => {
            "; `flagstone serve` prints those it serves, `nbdinfo --list` lists them"
        }
        _ => "",
    };
    format!("{error}{hint}")
}

/// Resolves a host name without blocking the executor. A name without an address may get one later:
/// name servers come up no sooner than others.
async fn look_up(host: &HostPort) -> Result<Address, RemoteFailure> {
    let name = match &host.host {
        UriHost::Ip(ip) => return Ok(Address::Tcp(SocketAddr::new(*ip, host.port))),
        UriHost::Name(name) => name,
    };
    let found = chosen(name, net::lookup(name, host.port).await);
    found.map_err(|problem| RemoteFailure { problem, may_pass: true })
}

fn chosen(name: &str, found: std::io::Result<Vec<Address>>) -> Result<Address, String> {
    let found = found.map_err(|error| format!("cannot find the address of `{name}`: {error}"))?;
    found.into_iter().next().ok_or_else(|| format!("`{name}` has no address"))
}

pub(crate) async fn open_nvme(
    spec: &NvmeTcpSpec,
    options: &OpenOptions,
) -> Result<SharedDevice, RemoteFailure> {
    let nqn = |text: &str| Nqn::new(text).map_err(|error| format!("{text}: {error}"));
    let default = HostOptions::default();
    let scope = match &spec.host_nqn {
        Some(nqn) => HostScope::Named(nqn),
        None => HostScope::Namespace { subsystem: &spec.subsystem_nqn, nsid: spec.namespace_id },
    };
    let host = HostOptions {
        host_nqn: spec.host_nqn.as_deref().map(nqn).transpose()?,
        host_id: host_id(&scope),
        keys: keys_of(spec)?,
        tls: tls_of(spec)?,
        key_reload: options.rereads_keys.then(|| reload_of(spec)),
        nsid: spec.namespace_id,
        queues: spec.queues.or(options.queues).unwrap_or(default.queues),
        queue_depth: options.queue_depth.unwrap_or(default.queue_depth),
        digests: Digests { header: spec.header_digest, data: spec.data_digest },
        concatenate: spec.concat,
        ..default
    };
    let subsystem = nqn(&spec.subsystem_nqn)?;
    let first = look_up(&spec.address).await?;
    if spec.other_addresses.is_empty() {
        return Ok(RemoteDevice::connect(first, &subsystem, host).await?);
    }
    let mut addresses = vec![first];
    for other in &spec.other_addresses {
        addresses.push(look_up(other).await?);
    }
    let host = HostOptions { loss_timeout: PATHS_TIMEOUT, command_timeout: PATH_TIMEOUT, ..host };
    Ok(MultipathDevice::connect(addresses, &subsystem, host).await?)
}

/// Without a key of its own, a host has nothing to ask the controller's key for.
fn keys_of(spec: &NvmeTcpSpec) -> Result<Option<KeyPair>, RemoteFailure> {
    let controller = spec.controller_key_file.as_deref();
    match &spec.key_file {
        Some(host) => Ok(Some(keys::pair(host, controller).map_err(|error| error.to_string())?)),
        None if controller.is_some() => {
            Err("controller-key-file needs key-file too".to_owned().into())
        }
        None => Ok(None),
    }
}

/// Reads all key files of a device again.
fn reload_of(spec: &NvmeTcpSpec) -> KeyReload {
    let secrets = [spec.key_file.clone(), spec.controller_key_file.clone()];
    let tls = spec.tls_key_file.clone();
    KeyReload::new(move || {
        secrets.iter().flatten().for_each(|path| keys::read_ring_again(path, keys::ring));
        tls.iter().for_each(|path| keys::read_ring_again(path, keys::tls_ring));
    })
}

fn tls_of(spec: &NvmeTcpSpec) -> Result<Option<RemoteTls>, RemoteFailure> {
    let Some(path) = &spec.tls_key_file else { return Ok(None) };
    let keys = keys::tls_ring(path).map_err(|error| error.to_string())?;
    let first_identity =
        if spec.tls_identity_0 { IdentityVersion::Zero } else { IdentityVersion::One };
    Ok(Some(RemoteTls { first_identity, ..RemoteTls::required(keys) }))
}

pub(crate) async fn open_nbd(spec: &NbdSpec) -> Result<SharedDevice, RemoteFailure> {
    let address = match &spec.address {
        NbdAddress::Tcp(host) => look_up(host).await?,
        NbdAddress::Unix(path) => Address::Unix(path.clone()),
    };
    let (export, options) = (&spec.export, ClientOptions::default());
    let Some(tls) = &spec.tls else {
        return Ok(NbdDevice::connect(address, export, options).await?);
    };
    let host = match &spec.address {
        NbdAddress::Tcp(host) => host.host.to_string(),
        NbdAddress::Unix(_) => String::new(),
    };
    let tls = tls_files::client(tls, &host).map_err(|error| error.to_string())?;
    Ok(NbdDevice::connect_tls(address, export, options, tls).await?)
}
