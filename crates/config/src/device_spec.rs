//! Device grammar, the same in a configuration file and on a command line:
//!
//! ```text
//! /dev/nvme0n1   ./disk.img   disk.img        a disk or a file
//! memory:1GiB                                 bytes in memory, gone with the process
//! null:1TiB                                   reads zeroes, forgets writes
//! pool:POOL/VOLUME                            a volume of a pool, as the leg of a mirror
//! nvme-tcp://HOST[:4420][,HOST…]/NQN[?QUERY]  a namespace of an NVMe/TCP subsystem, by its paths
//!       QUERY: queues=4 & header-digest & data-digest & hostnqn=NQN & key-file=PATH &
//!              controller-key-file=PATH & tls-key-file=PATH & tls-identity=0 & concat &
//!              nsid=1
//! nbd://HOST[:10809]/[EXPORT]                 an NBD export (the NBD URI specification)
//! nbd+unix:///[EXPORT]?socket=PATH            the same over a Unix socket
//! nbds://[NAME@]HOST[:10809]/[EXPORT][?QUERY] the same with TLS
//!       QUERY: tls-psk-file=PATH (of NAME) or tls-certificates=DIR & tls-hostname=NAME
//! ```
//!
//! A text is a path unless it begins with a scheme (`word:`); a file that is really called so is
//! written `./word:…`. A scheme that is not in the list is an error, not a file name.
//! [`DeviceSpec`] prints in the same grammar, and the output parses to the same device.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use crate::limits::{
    MAX_DEVICE_BYTES, MAX_IO_QUEUES, MAX_NAMESPACE_ID, MAX_PATHS, MAX_SOCKET_PATH_BYTES,
    MIN_DEVICE_BYTES,
};
use crate::names::{self, NameError};
pub use crate::pool_leg::PoolVolumeSpec;
use crate::read::key_path;
pub use crate::uri::{AuthorityError, HostPort, UriHost};
use crate::uri::{encoded, parse_authority, percent_decode, split_scheme};
use flagstone_units::{SizeError, format_size, missing_size_unit, parse_size};

/// TCP port of NVMe/TCP, assigned by IANA.
pub const NVME_TCP_PORT: u16 = 4420;
/// TCP port of NBD, assigned by IANA.
pub const NBD_PORT: u16 = 10809;

/// A device specification. Its existence is checked when it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSpec {
    Path(PathBuf),
    Memory {
        /// From 4 KiB to 2^62, a multiple of 512.
        size_bytes: u64,
    },
    /// A device that reads zeroes and drops writes.
    Null {
        /// From 4 KiB to 2^62, a multiple of 512.
        size_bytes: u64,
    },
    /// A volume of a pool, which only the server opens.
    PoolVolume(PoolVolumeSpec),
    NvmeTcp(NvmeTcpSpec),
    Nbd(NbdSpec),
}

/// Where an NVMe/TCP namespace is and how to attach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvmeTcpSpec {
    pub address: HostPort,
    /// Others, by which the same namespace is reached: paths.
    pub other_addresses: Vec<HostPort>,
    pub subsystem_nqn: String,
    /// I/O queues to open, 1 to 128; `None` for one a core.
    pub queues: Option<u16>,
    pub header_digest: bool,
    pub data_digest: bool,
    /// The NQN that this side calls itself; `None` for the machine's own.
    pub host_nqn: Option<String>,
    /// Absolute path of the key that this side proves.
    pub key_file: Option<PathBuf>,
    /// Absolute path of the key that the target has to prove.
    pub controller_key_file: Option<PathBuf>,
    /// Absolute path of the key for TLS; `None` for no TLS, or for TLS by concatenation.
    pub tls_key_file: Option<PathBuf>,
    /// Offer the PSK identity of version 0 first, for targets that refuse one of version 1.
    pub tls_identity_0: bool,
    /// TLS with the PSK that authentication with `key_file` and `controller_key_file` generates.
    pub concat: bool,
    /// The namespace identifier; `None` for the only one there is.
    pub namespace_id: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdSpec {
    pub address: NbdAddress,
    /// The export's name; empty for the server's default one.
    pub export: String,
    /// Encryption; `None` for none.
    pub tls: Option<NbdTlsSpec>,
}

/// Encryption of an NBD export, which the server has to speak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdTlsSpec {
    pub trust: NbdTlsTrust,
    /// Name in the server's certificate; `None` for the host of the address.
    pub server_name: Option<String>,
}

/// How both sides of an NBD connection know each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdTlsTrust {
    /// By a pre-shared key: the absolute path of its file, and its name there.
    Psk { file: PathBuf, name: String },
    /// By the certificates in a directory.
    Certificates { folder: PathBuf },
    /// The server by a certificate that this system trusts.
    System,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdAddress {
    Tcp(HostPort),
    /// Over a Unix socket: at most 107 bytes.
    Unix(PathBuf),
}

/// A device that cannot be parsed. Each message says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceSpecError {
    #[error(
        "a device is missing: write a path, memory:1GiB, null:1TiB, nvme-tcp://HOST:4420/NQN or \
         nbd://HOST:10809/EXPORT"
    )]
    Empty,
    #[error("a path has no NUL character")]
    NulInPath,
    #[error(
        "`~` is not expanded here: write the whole path, such as /home/NAME/disk.img (a directory \
         of that name is written ./~/)"
    )]
    HomeDirectory,
    #[error(
        "unknown kind of device `{0}:` (known: memory:, null:, pool:, nvme-tcp://, nbd://, \
         nbd+unix://); a file of that name is written ./{0}:…"
    )]
    UnknownScheme(String),
    #[error("write {0}")]
    WriteInstead(&'static str),
    #[error(
        "a volume of a pool is written pool:POOL/VOLUME, such as pool:fast/db-leg: see flagstone \
         pool status for the names of pools"
    )]
    PoolVolume,
    #[error(
        "NBD over TLS is written nbds://HOST:10809/EXPORT, and there is none over a Unix socket"
    )]
    Tls,
    #[error(transparent)]
    Size(#[from] SizeError),
    #[error("the size of a device is a multiple of 512, at least 4KiB and at most 4096PiB")]
    SizeRange,
    /// A size below the range without a unit, with its correction.
    #[error("{0}")]
    SizeUnit(String),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("port 0 cannot be connected to: write the port that the server listens on")]
    PortZero,
    #[error("at most {MAX_PATHS} addresses lead to one namespace")]
    TooManyPaths,
    #[error(
        "the subsystem's NQN is missing: write nvme-tcp://HOST:4420/nqn.2026-01.io.flagstone:NAME"
    )]
    NoNqn,
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(
        "bad percent encoding: `%` is followed by two hexadecimal digits (a percent sign is %25)"
    )]
    PercentEncoding,
    #[error("`#` has no meaning here: write %23 for the character itself")]
    Fragment,
    #[error("unknown option `{key}`; known: {known}")]
    UnknownOption { key: String, known: &'static str },
    #[error("option `{0}` is given twice")]
    OptionTwice(String),
    #[error("{0}")]
    OptionValue(&'static str),
    #[error("a Unix socket has no host: write nbd+unix:///EXPORT?socket=/path (three slashes)")]
    HostOnUnix,
    #[error(
        "the socket's path is missing or longer than {MAX_SOCKET_PATH_BYTES} bytes: write nbd+unix:///EXPORT?socket=/path"
    )]
    Socket,
}

impl DeviceSpec {
    /// The device by one name, whatever the spelling of its path.
    pub(crate) fn identity(&self) -> String {
        match self {
            DeviceSpec::Path(path) => normalized(path).display().to_string(),
            other => other.to_string(),
        }
    }

    /// Returns true for an NVMe/TCP or NBD device, which is usually on another machine.
    pub fn is_remote(&self) -> bool {
        matches!(self, DeviceSpec::NvmeTcp(_) | DeviceSpec::Nbd(_))
    }

    /// The volume of a pool, if it is one.
    pub fn pool_volume(&self) -> Option<&PoolVolumeSpec> {
        match self {
            DeviceSpec::PoolVolume(spec) => Some(spec),
            _ => None,
        }
    }

    /// Returns true for memory and null devices, whose content is lost when they are closed.
    pub fn is_in_memory(&self) -> bool {
        matches!(self, DeviceSpec::Memory { .. } | DeviceSpec::Null { .. })
    }
}

impl FromStr for DeviceSpec {
    type Err = DeviceSpecError;

    fn from_str(text: &str) -> Result<DeviceSpec, DeviceSpecError> {
        if text.is_empty() {
            return Err(DeviceSpecError::Empty);
        }
        let Some((scheme, rest)) = split_scheme(text) else {
            return match text {
                _ if text.contains('\0') => Err(DeviceSpecError::NulInPath),
                _ if is_home_directory(text) => Err(DeviceSpecError::HomeDirectory),
                _ => Ok(DeviceSpec::Path(text.into())),
            };
        };
        match scheme {
            "memory" => Ok(DeviceSpec::Memory { size_bytes: parse_device_size(rest)? }),
            "null" => Ok(DeviceSpec::Null { size_bytes: parse_device_size(rest)? }),
            "pool" => PoolVolumeSpec::parse(rest).map(DeviceSpec::PoolVolume),
            "nvme-tcp" => parse_nvme_tcp(rest).map(DeviceSpec::NvmeTcp),
            "nbd" => parse_nbd_tcp(rest).map(DeviceSpec::Nbd),
            "nbds" => parse_nbds(rest).map(DeviceSpec::Nbd),
            "nbd+unix" => parse_nbd_unix(rest).map(DeviceSpec::Nbd),
            _ => Err(unknown_scheme(scheme)),
        }
    }
}

/// Returns true for a path that a shell would expand: `~`, `~/disk.img` or `~user/disk.img`.
fn is_home_directory(path: &str) -> bool {
    path == "~" || (path.starts_with('~') && path.contains('/'))
}

fn unknown_scheme(scheme: &str) -> DeviceSpecError {
    use DeviceSpecError::WriteInstead;
    match scheme.to_ascii_lowercase().as_str() {
        "nbds" | "nbds+unix" => DeviceSpecError::Tls,
        "mem" | "ram" | "malloc" | "memory" => WriteInstead("memory:SIZE, such as memory:1GiB"),
        "null" => WriteInstead("null:SIZE, such as null:1TiB"),
        "file" | "path" | "aio" => WriteInstead("the path alone, such as /srv/disk.img"),
        "nvme" | "nvme+tcp" | "nvmf" | "nvme-of" | "nvme-tcp" => {
            WriteInstead("nvme-tcp://HOST:4420/NQN")
        }
        "nbd" | "nbd+unix" => {
            WriteInstead("nbd://HOST:10809/EXPORT or nbd+unix:///EXPORT?socket=/path")
        }
        "pool" | "pools" | "volume" | "zpool" => DeviceSpecError::PoolVolume,
        "unix" => WriteInstead("nbd+unix:///EXPORT?socket=/path"),
        _ => DeviceSpecError::UnknownScheme(scheme.chars().take(32).collect()),
    }
}

fn parse_device_size(text: &str) -> Result<u64, DeviceSpecError> {
    let size_bytes = parse_size(text)?;
    let range = MIN_DEVICE_BYTES..=MAX_DEVICE_BYTES;
    if let Some(unit) = missing_size_unit(text, &range) {
        Err(DeviceSpecError::SizeUnit(unit))
    } else if range.contains(&size_bytes) && size_bytes.is_multiple_of(512) {
        Ok(size_bytes)
    } else {
        Err(DeviceSpecError::SizeRange)
    }
}

/// A URI behind its scheme: `//AUTHORITY/PATH?QUERY`, the path without its first slash.
struct Parts<'a> {
    authority: &'a str,
    path: &'a str,
    query: Option<&'a str>,
}

fn split_uri<'a>(rest: &'a str, shape: &'static str) -> Result<Parts<'a>, DeviceSpecError> {
    if rest.contains('#') {
        return Err(DeviceSpecError::Fragment);
    }
    let rest = rest.strip_prefix("//").ok_or(DeviceSpecError::WriteInstead(shape))?;
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    Ok(Parts { authority, path, query })
}

fn decode(text: &str) -> Result<String, DeviceSpecError> {
    percent_decode(text).ok_or(DeviceSpecError::PercentEncoding)
}

/// The `key=value` pairs of a query, decoded, no key twice.
fn parse_query(query: Option<&str>) -> Result<Vec<(String, Option<String>)>, DeviceSpecError> {
    let mut pairs: Vec<(String, Option<String>)> = Vec::new();
    for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = match pair.split_once('=') {
            Some((key, value)) => (decode(key)?, Some(decode(value)?)),
            None => (decode(pair)?, None),
        };
        if pairs.iter().any(|(seen, _)| *seen == key) {
            return Err(DeviceSpecError::OptionTwice(shortened(&key)));
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

fn shortened(text: &str) -> String {
    text.chars().take(32).flat_map(char::escape_debug).collect()
}

fn parse_connect_address(text: &str, default_port: u16) -> Result<HostPort, DeviceSpecError> {
    let address = parse_authority(text, default_port)?;
    if address.port == 0 { Err(DeviceSpecError::PortZero) } else { Ok(address) }
}

fn parse_nvme_tcp(rest: &str) -> Result<NvmeTcpSpec, DeviceSpecError> {
    let parts = split_uri(rest, "nvme-tcp://HOST:4420/NQN")?;
    let mut addresses = parts.authority.split(',');
    let first = addresses.next().unwrap_or_default();
    let address = parse_connect_address(first, NVME_TCP_PORT)?;
    let other_addresses: Vec<HostPort> = addresses
        .map(|other| parse_connect_address(other, NVME_TCP_PORT))
        .collect::<Result<_, _>>()?;
    if other_addresses.len() >= MAX_PATHS {
        return Err(DeviceSpecError::TooManyPaths);
    }
    if parts.path.is_empty() {
        return Err(DeviceSpecError::NoNqn);
    }
    let subsystem_nqn = decode(parts.path)?;
    names::check_nqn(&subsystem_nqn)?;
    let mut spec = NvmeTcpSpec {
        address,
        other_addresses,
        subsystem_nqn,
        queues: None,
        header_digest: false,
        data_digest: false,
        host_nqn: None,
        key_file: None,
        controller_key_file: None,
        tls_key_file: None,
        tls_identity_0: false,
        concat: false,
        namespace_id: None,
    };
    for (key, value) in parse_query(parts.query)? {
        set_nvme_option(&mut spec, &key, value)?;
    }
    if spec.concat {
        check_concatenation(&spec)?;
    }
    if spec.tls_identity_0 && spec.tls_key_file.is_none() {
        let problem = "tls-identity=0 names a TLS key: add tls-key-file, or remove it";
        return Err(DeviceSpecError::OptionValue(problem));
    }
    Ok(spec)
}

/// The TLS key is made by authentication, which has to be of both sides: it contains no key of
/// theirs.
fn check_concatenation(spec: &NvmeTcpSpec) -> Result<(), DeviceSpecError> {
    let problem = if spec.tls_key_file.is_some() {
        "concat generates the TLS key: remove tls-key-file, or concat"
    } else if spec.key_file.is_none() {
        "concat generates the TLS key by authentication: add key-file"
    } else if spec.controller_key_file.is_none() {
        "concat needs a target that proves its identity: add controller-key-file"
    } else {
        return Ok(());
    };
    Err(DeviceSpecError::OptionValue(problem))
}

fn set_nvme_option(
    spec: &mut NvmeTcpSpec,
    key: &str,
    value: Option<String>,
) -> Result<(), DeviceSpecError> {
    use DeviceSpecError::OptionValue;
    match (key, value) {
        ("queues", value) => {
            let queues = plain_number(value).filter(|n| (1..=u32::from(MAX_IO_QUEUES)).contains(n));
            let wanted = OptionValue("queues is a number from 1 to 128, such as queues=4");
            spec.queues = Some(queues.ok_or(wanted)? as u16);
        }
        ("nsid", value) => {
            let nsid = plain_number(value).filter(|n| (1..=MAX_NAMESPACE_ID).contains(n));
            let wanted = OptionValue("nsid is a number from 1 to 4294967294, such as nsid=1");
            spec.namespace_id = Some(nsid.ok_or(wanted)?);
        }
        ("tls-identity", value) => match value.as_deref() {
            Some("0") => spec.tls_identity_0 = true,
            Some("1") => spec.tls_identity_0 = false,
            _ => {
                return Err(OptionValue(
                    "tls-identity is 0 (for SPDK's target) or 1 (the default)",
                ));
            }
        },
        ("header-digest", None) => spec.header_digest = true,
        ("data-digest", None) => spec.data_digest = true,
        ("concat", None) => spec.concat = true,
        ("header-digest" | "data-digest" | "concat", Some(_)) => {
            return Err(OptionValue(
                "header-digest, data-digest and concat take no value: write them alone",
            ));
        }
        ("hostnqn", Some(nqn)) => {
            names::check_nqn(&nqn)?;
            spec.host_nqn = Some(nqn);
        }
        ("hostnqn", None) => return Err(OptionValue("hostnqn needs a value: write hostnqn=NQN")),
        ("key-file" | "controller-key-file" | "tls-key-file", path) => {
            let path = path.ok_or(OptionValue("key-file needs a path: write key-file=/PATH"))?;
            let path = Some(key_path(&path).map_err(OptionValue)?);
            match key {
                "key-file" => spec.key_file = path,
                "tls-key-file" => spec.tls_key_file = path,
                _ => spec.controller_key_file = path,
            }
        }
        (key, _) => {
            return Err(DeviceSpecError::UnknownOption {
                key: shortened(key),
                known: "queues, header-digest, data-digest, hostnqn, key-file, \
                        controller-key-file, tls-key-file, tls-identity, concat, nsid",
            });
        }
    }
    Ok(())
}

fn plain_number(value: Option<String>) -> Option<u32> {
    value.filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

fn parse_nbd_tcp(rest: &str) -> Result<NbdSpec, DeviceSpecError> {
    let parts = split_uri(rest, "nbd://HOST:10809/EXPORT")?;
    if parts.authority.is_empty() {
        // `nbd:///name` is a URI of the default host to some clients; here it is a slip.
        return Err(AuthorityError::NoHost(NBD_PORT).into());
    }
    let address = parse_connect_address(parts.authority, NBD_PORT)?;
    if let Some((key, _)) = parse_query(parts.query)?.first() {
        let known = "none (a socket belongs to nbd+unix://)";
        return Err(DeviceSpecError::UnknownOption { key: shortened(key), known });
    }
    let export = parse_export(parts.path)?;
    Ok(NbdSpec { address: NbdAddress::Tcp(address), export, tls: None })
}

/// The options have the names of libnbd's URIs.
fn parse_nbds(rest: &str) -> Result<NbdSpec, DeviceSpecError> {
    use DeviceSpecError::OptionValue;
    let parts = split_uri(rest, "nbds://HOST:10809/EXPORT")?;
    let (user, authority) = match parts.authority.rsplit_once('@') {
        Some((user, authority)) => (Some(decode(user)?), authority),
        None => (None, parts.authority),
    };
    let address = parse_connect_address(authority, NBD_PORT)?;
    let (mut psk, mut folder, mut server_name) = (None, None, None);
    for (key, value) in parse_query(parts.query)? {
        let path = |text: Option<String>| {
            let text = text.ok_or(OptionValue("tls-psk-file and tls-certificates need a path"))?;
            key_path(&text).map_err(OptionValue)
        };
        match key.as_str() {
            "tls-psk-file" => psk = Some(path(value)?),
            "tls-certificates" => folder = Some(path(value)?),
            "tls-hostname" => {
                let name = value.filter(|name| !name.is_empty());
                server_name = Some(name.ok_or(OptionValue("tls-hostname needs a name"))?);
            }
            key => {
                let known = "tls-psk-file, tls-certificates, tls-hostname";
                return Err(DeviceSpecError::UnknownOption { key: shortened(key), known });
            }
        }
    }
    let trust = match (psk, folder, user) {
        (Some(file), None, Some(name)) if !name.is_empty() && server_name.is_none() => {
            NbdTlsTrust::Psk { file, name }
        }
        (Some(_), ..) => {
            return Err(OptionValue(
                "tls-psk-file needs the name of a key, and no certificates: write \
                 nbds://NAME@HOST/EXPORT?tls-psk-file=/PATH",
            ));
        }
        (None, _, Some(_)) => return Err(OptionValue("a name before @ needs tls-psk-file=/PATH")),
        (None, Some(folder), None) => NbdTlsTrust::Certificates { folder },
        (None, None, None) => NbdTlsTrust::System,
    };
    let tls = Some(NbdTlsSpec { trust, server_name });
    Ok(NbdSpec { address: NbdAddress::Tcp(address), export: parse_export(parts.path)?, tls })
}

fn parse_nbd_unix(rest: &str) -> Result<NbdSpec, DeviceSpecError> {
    let parts = split_uri(rest, "nbd+unix:///EXPORT?socket=/path")?;
    if !parts.authority.is_empty() {
        return Err(DeviceSpecError::HostOnUnix);
    }
    let mut socket = None;
    for (key, value) in parse_query(parts.query)? {
        if key != "socket" {
            return Err(DeviceSpecError::UnknownOption { key: shortened(&key), known: "socket" });
        }
        socket = value;
    }
    let socket = socket.filter(|path| is_socket_path(path)).ok_or(DeviceSpecError::Socket)?;
    let export = parse_export(parts.path)?;
    Ok(NbdSpec { address: NbdAddress::Unix(socket.into()), export, tls: None })
}

pub(crate) fn is_socket_path(path: &str) -> bool {
    (1..=MAX_SOCKET_PATH_BYTES).contains(&path.len()) && !path.contains('\0')
}

fn parse_export(path: &str) -> Result<String, DeviceSpecError> {
    let export = decode(path)?;
    names::check_export_name(&export)?;
    Ok(export)
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::Path(path) => fmt_path(path, f),
            DeviceSpec::Memory { size_bytes } => write!(f, "memory:{}", format_size(*size_bytes)),
            DeviceSpec::Null { size_bytes } => write!(f, "null:{}", format_size(*size_bytes)),
            DeviceSpec::PoolVolume(spec) => spec.fmt(f),
            DeviceSpec::NvmeTcp(spec) => spec.fmt(f),
            DeviceSpec::Nbd(spec) => spec.fmt(f),
        }
    }
}

/// A relative path that looks like a scheme or a home directory gets a `./`, so that it stays a
/// path.
fn fmt_path(path: &Path, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = path.to_string_lossy();
    let guarded = split_scheme(&text).is_some() || is_home_directory(&text);
    let guard = if guarded { "./" } else { "" };
    write!(f, "{guard}{text}")
}

impl fmt::Display for NvmeTcpSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nvme-tcp://{}", self.address)?;
        for other in &self.other_addresses {
            write!(f, ",{other}")?;
        }
        write!(f, "/{}", encoded(&self.subsystem_nqn))?;
        let mut separator = "?";
        let mut option = |f: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>| {
            let result = write!(f, "{separator}{text}");
            separator = "&";
            result
        };
        if let Some(queues) = self.queues {
            option(f, format_args!("queues={queues}"))?;
        }
        if self.header_digest {
            option(f, format_args!("header-digest"))?;
        }
        if self.data_digest {
            option(f, format_args!("data-digest"))?;
        }
        if let Some(nqn) = &self.host_nqn {
            option(f, format_args!("hostnqn={}", encoded(nqn)))?;
        }
        for (name, path) in [
            ("key-file", &self.key_file),
            ("controller-key-file", &self.controller_key_file),
            ("tls-key-file", &self.tls_key_file),
        ] {
            if let Some(path) = path {
                option(f, format_args!("{name}={}", encoded(&path.to_string_lossy())))?;
            }
        }
        if self.tls_identity_0 {
            option(f, format_args!("tls-identity=0"))?;
        }
        if self.concat {
            option(f, format_args!("concat"))?;
        }
        if let Some(nsid) = self.namespace_id {
            option(f, format_args!("nsid={nsid}"))?;
        }
        Ok(())
    }
}

impl fmt::Display for NbdSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            NbdAddress::Tcp(address) => match &self.tls {
                None => write!(f, "nbd://{address}/{}", encoded(&self.export)),
                Some(tls) => fmt_nbds(f, address, &self.export, tls),
            },
            NbdAddress::Unix(path) => {
                let path = path.to_string_lossy();
                write!(f, "nbd+unix:///{}?socket={}", encoded(&self.export), encoded(&path))
            }
        }
    }
}

fn fmt_nbds(
    f: &mut fmt::Formatter<'_>,
    address: &HostPort,
    export: &str,
    tls: &NbdTlsSpec,
) -> fmt::Result {
    let path = |path: &Path| encoded(&path.to_string_lossy()).to_string();
    let (user, mut options) = match &tls.trust {
        NbdTlsTrust::Psk { file, name } => {
            // A slash would end the authority.
            let name = encoded(name).to_string().replace('/', "%2F");
            (format!("{name}@"), vec![format!("tls-psk-file={}", path(file))])
        }
        NbdTlsTrust::Certificates { folder } => {
            (String::new(), vec![format!("tls-certificates={}", path(folder))])
        }
        NbdTlsTrust::System => (String::new(), Vec::new()),
    };
    options.extend(tls.server_name.iter().map(|name| format!("tls-hostname={}", encoded(name))));
    let query = if options.is_empty() { "" } else { "?" };
    write!(f, "nbds://{user}{address}/{}{query}{}", encoded(export), options.join("&"))
}

/// The path without `.` and repeated slashes. The file system is not asked: links and `..` stay.
pub(crate) fn normalized(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

#[cfg(test)]
#[path = "device_spec_tests.rs"]
mod tests;
