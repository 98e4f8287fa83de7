//! URI parts (RFC 3986) that device and listen addresses share: scheme, authority,
//! percent-encoding. Parsing is strict: anything unexpected is an error.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode_str, utf8_percent_encode,
};

use crate::limits::MAX_HOST_NAME_BYTES;

/// A host of an address: a literal address, or a name to be resolved when connecting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum UriHost {
    Ip(IpAddr),
    /// A DNS name, letters, digits, `-`, `_` and `.`, at most 253 bytes.
    Name(String),
}

/// A host and a port. Prints as `HOST:PORT`, IPv6 in brackets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    pub host: UriHost,
    /// TCP port; 0 only in a listen address, where it means any free one.
    pub port: u16,
}

impl fmt::Display for UriHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UriHost::Ip(IpAddr::V4(ip)) => write!(f, "{ip}"),
            UriHost::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            UriHost::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl HostPort {
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self.host {
            UriHost::Ip(ip) => Some(SocketAddr::new(ip, self.port)),
            UriHost::Name(_) => None,
        }
    }
}

/// Why a `HOST:PORT` was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    #[error("the host is missing: write HOST:PORT, such as 192.0.2.1:{0} or [2001:db8::1]:{0}")]
    NoHost(u16),
    #[error("a user name before the host is not supported: write HOST:PORT alone")]
    UserInfo,
    #[error("no IPv6 address between the brackets: write it as [2001:db8::1]:{0}")]
    BadIpv6(u16),
    #[error("an IPv6 address needs brackets: write [2001:db8::1]:{0}")]
    BareIpv6(u16),
    #[error("the host is neither an IP address nor a host name (letters, digits, `-`, `_`, `.`)")]
    BadHost,
    #[error("the port is a number up to 65535, such as {0}")]
    BadPort(u16),
}

/// Reads `HOST[:PORT]`; without a port it is `default_port`.
///
/// # Errors
/// See [`AuthorityError`].
pub fn parse_authority(text: &str, default_port: u16) -> Result<HostPort, AuthorityError> {
    if text.contains('@') {
        return Err(AuthorityError::UserInfo);
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, port) = rest.split_once(']').ok_or(AuthorityError::BadIpv6(default_port))?;
        let ip: Ipv6Addr = ip.parse().map_err(|_| AuthorityError::BadIpv6(default_port))?;
        let port = match port.strip_prefix(':') {
            Some(port) => parse_port(port, default_port)?,
            None if port.is_empty() => default_port,
            None => return Err(AuthorityError::BadPort(default_port)),
        };
        return Ok(HostPort { host: UriHost::Ip(ip.into()), port });
    }
    if text.matches(':').count() > 1 {
        return Err(AuthorityError::BareIpv6(default_port));
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, parse_port(port, default_port)?),
        None => (text, default_port),
    };
    Ok(HostPort { host: parse_host(host, default_port)?, port })
}

fn parse_port(text: &str, default_port: u16) -> Result<u16, AuthorityError> {
    // `u16::from_str` also takes a plus sign, which no URI means.
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(AuthorityError::BadPort(default_port));
    }
    text.parse().map_err(|_| AuthorityError::BadPort(default_port))
}

fn parse_host(text: &str, default_port: u16) -> Result<UriHost, AuthorityError> {
    if text.is_empty() {
        return Err(AuthorityError::NoHost(default_port));
    }
    if let Ok(ip) = text.parse::<Ipv4Addr>() {
        return Ok(UriHost::Ip(ip.into()));
    }
    let letters = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    // A name of only digits and dots is a mistyped address (RFC 1123, section 2.1).
    let an_address = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let shaped = text.len() <= MAX_HOST_NAME_BYTES
        && !text.starts_with(['.', '-'])
        && text.split('.').all(|label| label.len() <= 63)
        && !text.contains("..");
    if !letters || an_address || !shaped {
        return Err(AuthorityError::BadHost);
    }
    Ok(UriHost::Name(text.to_ascii_lowercase()))
}

/// Splits `scheme:rest`, if `text` has a scheme (RFC 3986, section 3.1).
pub(crate) fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let mut bytes = scheme.bytes();
    let first = bytes.next()?.is_ascii_alphabetic();
    (first && bytes.all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)))
        .then_some((scheme, rest))
}

/// Undoes percent encoding. `None` for a bad escape, or bytes that are not UTF-8.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let is_escape = |tail: &str| matches!(tail.as_bytes(), [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit());
    let escapes = text.split('%').skip(1).all(is_escape);
    escapes.then(|| percent_decode_str(text).decode_utf8().ok())?.map(Into::into)
}

/// All but what stays as it is: unreserved characters (RFC 3986, section 2.3), and `:`, `/` and
/// `@`, which paths and query values may hold.
const ENCODED: AsciiSet = NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':')
    .remove(b'/')
    .remove(b'@');

/// Percent-encodes `text` for a path or a query value.
pub fn encoded(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, &ENCODED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_and_ports() {
        for (text, printed) in [
            ("127.0.0.1", "127.0.0.1:4420"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("[::1]", "[::1]:4420"),
            ("[2001:DB8::1]:65535", "[2001:db8::1]:65535"),
            ("Storage-1.example:80", "storage-1.example:80"),
        ] {
            assert_eq!(parse_authority(text, 4420).unwrap().to_string(), printed);
        }
    }

    #[test]
    fn bad_hosts_and_ports_are_explained() {
        use AuthorityError::*;
        for (text, error) in [
            ("", NoHost(4420)),
            (":4420", NoHost(4420)),
            ("me@host", UserInfo),
            ("::1", BareIpv6(4420)),
            ("[::1", BadIpv6(4420)),
            ("[localhost]:1", BadIpv6(4420)),
            ("[::1]1", BadPort(4420)),
            ("host:", BadPort(4420)),
            ("host:+1", BadPort(4420)),
            ("host:65536", BadPort(4420)),
            ("1.2.3", BadHost),
            ("1.2.3.256", BadHost),
            ("a b", BadHost),
            ("a..b", BadHost),
        ] {
            assert_eq!(parse_authority(text, 4420), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn percent_encoding_round_trips(text in any::<String>()) {
            prop_assert_eq!(percent_decode(&encoded(&text).to_string()), Some(text));
        }

        #[test]
        fn authorities_round_trip(text in any::<String>()) {
            if let Ok(parsed) = parse_authority(&text, 4420) {
                prop_assert_eq!(parse_authority(&parsed.to_string(), 1), Ok(parsed));
            }
        }
    }
}
