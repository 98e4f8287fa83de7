//! Grammar of addresses to serve on:
//!
//! ```text
//! nvme-tcp://ADDRESS[:4420][?tls=required|allowed|off]
//! nbd://ADDRESS[:10809][?tls=…]
//! nbd+unix:///path.sock
//! ```
//!
//! ADDRESS is an IP address, IPv6 in brackets. Port 0 picks a free port, which is printed at the
//! start. The path is absolute.
//!
//! The output of [`ListenSpec`] parses to the same address.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::device_spec::{NBD_PORT, NVME_TCP_PORT, is_socket_path, normalized};
use crate::limits::MAX_SOCKET_PATH_BYTES;
use crate::uri::{AuthorityError, encoded, parse_authority, percent_decode, split_scheme};

/// A listener: its address, and the access that it gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredListener {
    pub spec: ListenSpec,
    /// The operator accepts hosts that prove no key.
    pub insecure: bool,
}

/// Where a protocol is served over TCP, and how connections there are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpListen {
    pub address: SocketAddr,
    pub tls: ListenTls,
}

impl From<SocketAddr> for TcpListen {
    fn from(address: SocketAddr) -> TcpListen {
        TcpListen { address, tls: ListenTls::Off }
    }
}

/// Encryption of a listener's connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ListenTls {
    #[default]
    Off,
    /// Of hosts that begin it.
    Allowed,
    /// Of all hosts.
    Required,
}

impl ListenTls {
    pub const ALL: [ListenTls; 3] = [ListenTls::Off, ListenTls::Allowed, ListenTls::Required];

    pub fn name(self) -> &'static str {
        match self {
            ListenTls::Off => "off",
            ListenTls::Allowed => "allowed",
            ListenTls::Required => "required",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenSpec {
    /// NVMe/TCP, with the discovery subsystem on the same address.
    NvmeTcp(TcpListen),
    NbdTcp(TcpListen),
    /// NBD over a Unix socket: an absolute path of at most 107 bytes.
    NbdUnix(PathBuf),
}

/// An address that cannot be parsed. Each message says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenSpecError {
    #[error(
        "a listen address begins with its protocol: nvme-tcp://0.0.0.0:4420, nbd://127.0.0.1:10809 or nbd+unix:///path.sock"
    )]
    Scheme,
    #[error("NBD over TLS is written nbd://ADDRESS:PORT?tls=required, or ?tls=allowed")]
    Tls,
    #[error("the only option of an address is tls: ?tls=required, ?tls=allowed or ?tls=off")]
    TlsOption,
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error(
        "`{0}` is a name: a listen address is an IP address, such as 0.0.0.0 (all), [::] (all, IPv6) or 127.0.0.1"
    )]
    Name(String),
    #[error("a listen address ends after the port: volumes are named in their own tables")]
    Path,
    #[error(
        "the socket is an absolute path of at most {MAX_SOCKET_PATH_BYTES} bytes: write nbd+unix:///run/flagstone.sock (three slashes)"
    )]
    Socket,
}

impl ListenSpec {
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self {
            ListenSpec::NvmeTcp(listen) | ListenSpec::NbdTcp(listen) => Some(listen.address),
            ListenSpec::NbdUnix(_) => None,
        }
    }

    pub fn socket_path(&self) -> Option<&Path> {
        match self {
            ListenSpec::NbdUnix(path) => Some(path),
            _ => None,
        }
    }

    /// Returns true for NBD whose clients may or have to use TLS.
    pub fn is_nbd_with_tls(&self) -> bool {
        matches!(self, ListenSpec::NbdTcp(listen) if listen.tls != ListenTls::Off)
    }

    /// Returns true if only this machine can reach it.
    pub fn is_local(&self) -> bool {
        self.socket_addr().is_none_or(|address| address.ip().to_canonical().is_loopback())
    }

    /// Returns true if both cannot be served at once: the same port of the same address (or of all
    /// addresses of that family), or the same socket. Port 0 never collides.
    pub fn collides_with(&self, other: &ListenSpec) -> bool {
        match (self.socket_addr(), other.socket_addr()) {
            (Some(a), Some(b)) => {
                let same_ip = a.ip() == b.ip()
                    || a.is_ipv4() == b.is_ipv4()
                        && (a.ip().is_unspecified() || b.ip().is_unspecified());
                a.port() != 0 && a.port() == b.port() && same_ip
            }
            (None, None) => match (self.socket_path(), other.socket_path()) {
                (Some(a), Some(b)) => normalized(a) == normalized(b),
                _ => self == other,
            },
            _ => false,
        }
    }
}

impl FromStr for ListenSpec {
    type Err = ListenSpecError;

    fn from_str(text: &str) -> Result<ListenSpec, ListenSpecError> {
        let (scheme, rest) = split_scheme(text).ok_or(ListenSpecError::Scheme)?;
        let rest = rest.strip_prefix("//").ok_or(ListenSpecError::Scheme)?;
        match scheme {
            "nvme-tcp" => parse_tls(rest, NVME_TCP_PORT).map(ListenSpec::NvmeTcp),
            "nbd" => parse_tls(rest, NBD_PORT).map(ListenSpec::NbdTcp),
            "nbd+unix" => parse_unix(rest).map(ListenSpec::NbdUnix),
            "nbds" | "nbds+unix" => Err(ListenSpecError::Tls),
            _ => Err(ListenSpecError::Scheme),
        }
    }
}

fn parse_tls(rest: &str, default_port: u16) -> Result<TcpListen, ListenSpecError> {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let address = parse_tcp(rest, default_port)?;
    let tls = match query.strip_prefix("tls=") {
        Some(word) => ListenTls::ALL.into_iter().find(|tls| tls.name() == word),
        None if query.is_empty() => Some(ListenTls::Off),
        None => None,
    };
    Ok(TcpListen { address, tls: tls.ok_or(ListenSpecError::TlsOption)? })
}

fn parse_tcp(rest: &str, default_port: u16) -> Result<SocketAddr, ListenSpecError> {
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#']) {
        return Err(ListenSpecError::Path);
    }
    let address = parse_authority(authority, default_port)?;
    address.socket_addr().ok_or_else(|| ListenSpecError::Name(address.host.to_string()))
}

fn parse_unix(rest: &str) -> Result<PathBuf, ListenSpecError> {
    if rest.contains(['?', '#']) {
        return Err(ListenSpecError::Socket);
    }
    percent_decode(rest)
        .filter(|path| path.starts_with('/') && path.len() > 1 && is_socket_path(path))
        .map(PathBuf::from)
        .ok_or(ListenSpecError::Socket)
}

impl fmt::Display for TcpListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        match self.tls {
            ListenTls::Off => Ok(()),
            other => write!(f, "?tls={}", other.name()),
        }
    }
}

impl fmt::Display for ListenSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenSpec::NvmeTcp(listen) => write!(f, "nvme-tcp://{listen}"),
            ListenSpec::NbdTcp(listen) => write!(f, "nbd://{listen}"),
            ListenSpec::NbdUnix(path) => {
                write!(f, "nbd+unix://{}", encoded(&path.to_string_lossy()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<ListenSpec, ListenSpecError> {
        text.parse()
    }

    #[test]
    fn addresses() {
        for (text, printed) in [
            ("nvme-tcp://0.0.0.0:4420", "nvme-tcp://0.0.0.0:4420"),
            ("nvme-tcp://[::]", "nvme-tcp://[::]:4420"),
            ("nvme-tcp://127.0.0.1:0", "nvme-tcp://127.0.0.1:0"),
            ("nvme-tcp://[::]?tls=required", "nvme-tcp://[::]:4420?tls=required"),
            ("nvme-tcp://[::]:1/?tls=allowed", "nvme-tcp://[::]:1?tls=allowed"),
            ("nvme-tcp://[::]:1?tls=off", "nvme-tcp://[::]:1"),
            ("nbd://[::]?tls=required", "nbd://[::]:10809?tls=required"),
            ("nbd://127.0.0.1/", "nbd://127.0.0.1:10809"),
            ("nbd+unix:///run/a%20b.sock", "nbd+unix:///run/a%20b.sock"),
        ] {
            assert_eq!(parse(text).expect(text).to_string(), printed);
        }
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, part) in [
            ("", "begins with its protocol"),
            ("0.0.0.0:4420", "begins with its protocol"),
            ("tcp://0.0.0.0:4420", "begins with its protocol"),
            ("nbd:127.0.0.1", "begins with its protocol"),
            ("nbds://127.0.0.1", "TLS"),
            ("nvme-tcp://127.0.0.1?tls=yes", "the only option"),
            ("nvme-tcp://127.0.0.1?tls", "the only option"),
            ("nbd://127.0.0.1?tls=always", "the only option"),
            ("nbd+unix:///run/a.sock?tls=required", "three slashes"),
            ("nvme-tcp://localhost", "`localhost` is a name"),
            ("nvme-tcp://:4420", "host is missing"),
            ("nbd://127.0.0.1/db", "ends after the port"),
            ("nbd://127.0.0.1:99999", "the port is a number"),
            ("nbd+unix://run/a.sock", "three slashes"),
            ("nbd+unix:///?socket=/run/a.sock", "three slashes"),
            ("nbd+unix:///", "three slashes"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn collisions_are_seen_through_wildcards() {
        for (a, b, collide) in [
            ("nbd://127.0.0.1:1", "nvme-tcp://127.0.0.1:1", true),
            ("nbd://0.0.0.0:1", "nvme-tcp://127.0.0.1:1", true),
            ("nbd://127.0.0.1:1", "nbd://127.0.0.2:1", false),
            ("nbd://127.0.0.1:0", "nbd://127.0.0.1:0", false),
            ("nbd://0.0.0.0:1", "nbd://[::1]:1", false),
            ("nbd+unix:///a", "nbd+unix:///a", true),
            ("nbd+unix:///a", "nbd+unix:///b", false),
        ] {
            let (left, right) = (parse(a).expect(a), parse(b).expect(b));
            assert_eq!(left.collides_with(&right), collide, "{a} {b}");
            assert_eq!(right.collides_with(&left), collide, "{b} {a}");
        }
    }

    proptest! {
        #[test]
        fn printing_and_parsing_agree(ip4: [u8; 4], ip6: [u16; 8], port: u16, path in "/[^\\x00]{1,26}") {
            for spec in [
                ListenSpec::NvmeTcp(SocketAddr::from((ip4, port)).into()),
                ListenSpec::NvmeTcp(TcpListen {
                    address: (ip6, port).into(),
                    tls: ListenTls::Required,
                }),
                ListenSpec::NbdTcp(SocketAddr::from((ip6, port)).into()),
                ListenSpec::NbdUnix(path.into()),
            ] {
                prop_assert_eq!(parse(&spec.to_string()), Ok(spec));
            }
        }

        #[test]
        fn any_text_is_survived(text in "((nbd|nvme-tcp|nbd\\+unix)://)?\\PC{0,40}") {
            if let Ok(spec) = parse(&text) {
                prop_assert_eq!(parse(&spec.to_string()), Ok(spec));
            }
        }
    }
}
