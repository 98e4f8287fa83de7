//! `[arbiter]` of a configuration: the store that decides for mirrors that fail over by themselves.

use super::model::{ArbiterStore, ArbiterTls};
use super::read::{file_path, key_path};
use super::reader::Reader;
use crate::limits::{MAX_ARBITER_PREFIX_BYTES, MAX_ETCD_MEMBERS};
use crate::uri::{HostPort, parse_authority};

/// Port of etcd's clients.
const ETCD_PORT: u16 = 2379;
const PREFIX: &str = "/flagstone";

/// A member, and whether its connection is encrypted.
fn etcd_endpoint(text: &str) -> Result<(HostPort, bool), String> {
    let encrypted = text.strip_prefix("https://");
    let authority = encrypted.or_else(|| text.strip_prefix("http://"));
    let authority = authority.ok_or("write https://HOST:2379, or http://HOST:2379")?;
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let member = parse_authority(authority, ETCD_PORT).map_err(|error| error.to_string())?;
    Ok((member, encrypted.is_some()))
}

pub(crate) fn key_prefix(text: &str) -> Result<String, &'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte);
    let sound =
        text.len() <= MAX_ARBITER_PREFIX_BYTES && text.bytes().all(plain) && !text.ends_with('/');
    sound.then(|| text.to_owned()).ok_or("letters, digits, `/`, `-`, `_`, `.`; no `/` at the end")
}

/// Reads `[arbiter]`.
pub(crate) fn read_arbiter(reader: &Reader<'_>) -> Option<ArbiterStore> {
    let report = reader.report();
    let etcd = reader.list("etcd", MAX_ETCD_MEMBERS, etcd_endpoint);
    if etcd.as_ref().is_none_or(|list| list.written == 0) {
        let help = "write etcd = [\"https://HOST:2379\"]: its members";
        report.error(reader.place(), "[arbiter] has no etcd", help);
    }
    let prefix = reader.parsed("prefix", key_prefix).map(|prefix| prefix.value);
    let user = reader.parsed("user", |text| match text.is_empty() {
        true => Err("write the name of a user"),
        false => Ok(text.to_owned()),
    });
    let password = reader.parsed("password_file", key_path);
    if reader.has("user") != reader.has("password_file") {
        let help = "write both, or none for a cluster without authentication";
        report.error(reader.place(), "`user` and `password_file` belong together", help);
    }
    let file = |key| reader.parsed(key, file_path).map(|path| path.value);
    let own = file("certificate_file").zip(file("key_file"));
    if reader.has("certificate_file") != reader.has("key_file") {
        let help = "write both, or none if etcd asks for no certificate";
        report.error(reader.place(), "`certificate_file` and `key_file` belong together", help);
    }
    let ca_file = file("ca_file");
    let members: Vec<_> = etcd?.entries.into_iter().map(|entry| entry.value).collect();
    let encrypted = members.first().is_some_and(|(_, encrypted)| *encrypted);
    if members.iter().any(|(_, other)| *other != encrypted) {
        let help = "write https:// for all of them: the password goes to each";
        report.error(reader.place(), "some members of etcd are encrypted and some are not", help);
    }
    let tls_key =
        ["ca_file", "certificate_file", "key_file"].into_iter().find(|key| reader.has(key));
    if let Some(key) = tls_key.filter(|_| !encrypted) {
        let help = "write https:// in `etcd`, or remove it";
        report.error(&reader.key_place(key), format!("`{key}` has no effect with http://"), help);
    }
    Some(ArbiterStore {
        etcd: members.into_iter().map(|(member, _)| member).collect(),
        tls: encrypted.then_some(ArbiterTls { ca_file, own }),
        prefix: prefix.unwrap_or_else(|| PREFIX.to_owned()),
        user: user.map(|user| user.value).zip(password.map(|file| file.value)),
    })
}
