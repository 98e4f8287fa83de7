//! `[arbiter]` of a configuration: the store that decides for mirrors that fail over by themselves.

use std::path::PathBuf;

use super::model::{ArbiterStore, ArbiterTls, BucketStore, BucketUrl, Cloud, EtcdStore};
use super::read::{file_path, key_path};
use super::reader::Reader;
use crate::limits::{MAX_ARBITER_PREFIX_BYTES, MAX_BUCKET_BYTES, MAX_ETCD_MEMBERS};
use crate::uri::{HostPort, parse_authority};

/// Port of etcd's clients.
const ETCD_PORT: u16 = 2379;
const PREFIX: &str = "/flagstone";
/// Beginning of the objects' names.
const BUCKET_PREFIX: &str = "flagstone";
/// Region that servers compatible with S3 expect.
const REGION: &str = "us-east-1";
const ETCD_KEYS: [&str; 5] = ["prefix", "user", "password_file", "certificate_file", "key_file"];
const BUCKET_KEYS: [&str; 4] = ["region", "account", "endpoint", "credentials_file"];

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
    let (foreign, other): (&[_], _) = match (reader.has("etcd"), reader.has("object_store")) {
        (true, true) => {
            let place = reader.key_place("object_store");
            let related = ("etcd is given at", &reader.key_place("etcd"));
            let message = "[arbiter] has both `etcd` and `object_store`";
            report.error_with(&place, message, "keep one of them: one store decides", related);
            return None;
        }
        (true, false) => (&BUCKET_KEYS, "`etcd`"),
        (false, true) => (&ETCD_KEYS, "`object_store`"),
        (false, false) => {
            let help = "write etcd = [\"https://HOST:2379\"], or object_store = \"s3://BUCKET\"";
            report.error(reader.place(), "[arbiter] has no store", help);
            return None;
        }
    };
    for key in foreign.iter().filter(|key| reader.has(key)) {
        let message = format!("`{key}` has no effect with {other}");
        report.error(&reader.key_place(key), message, "remove it");
    }
    match reader.has("etcd") {
        true => read_etcd(reader).map(ArbiterStore::Etcd),
        false => read_bucket(reader).map(ArbiterStore::Bucket),
    }
}

fn bucket_url(text: &str) -> Result<BucketUrl, &'static str> {
    let form = "write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX";
    let (scheme, rest) = text.split_once("://").ok_or(form)?;
    let cloud = Cloud::ALL.into_iter().find(|cloud| cloud.scheme() == scheme).ok_or(form)?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_');
    if !(3..=MAX_BUCKET_BYTES).contains(&bucket.len()) || !bucket.bytes().all(plain) {
        return Err("names of buckets have 3 characters or more: a-z, 0-9, `-`, `.`, `_`");
    }
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    if prefix.split('/').any(|part| matches!(part, "." | "..")) || prefix.contains("//") {
        return Err("a part of the prefix is empty, `.` or `..`");
    }
    let prefix = if prefix.is_empty() { BUCKET_PREFIX } else { prefix };
    Ok(BucketUrl { cloud, bucket: bucket.to_owned(), prefix: key_prefix(prefix)? })
}

/// An endpoint in the form of a URL, without a slash at the end, and without the scheme's default
/// port: requests are signed without it.
fn bucket_endpoint(text: &str) -> Result<String, String> {
    let (scheme, authority) = text.split_once("://").unwrap_or_default();
    let port = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return Err("write https://HOST, or http://HOST:PORT".to_owned()),
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let server = parse_authority(authority, port).map_err(|error| error.to_string())?;
    let server = server.to_string();
    let shown = server.strip_suffix(&format!(":{port}")).unwrap_or(&server);
    Ok(format!("{scheme}://{shown}"))
}

fn word(text: &str) -> Result<String, &'static str> {
    let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let sound = (1..=63).contains(&text.len()) && text.bytes().all(plain);
    sound.then(|| text.to_owned()).ok_or("write a-z, 0-9 and `-`")
}

/// Keys of one cloud, whether it needs them, and their meaning.
fn keys_of_clouds(has_endpoint: bool) -> [(&'static str, Cloud, bool, &'static str); 2] {
    [
        ("region", Cloud::S3, !has_endpoint, "the bucket's, such as \"eu-central-1\""),
        ("account", Cloud::Azure, true, "the storage account of the container"),
    ]
}

/// Settings of an object store as options of a command, which have the names of the keys.
#[derive(Debug, Clone, Default)]
pub struct BucketOptions<'a> {
    /// `s3://BUCKET/PREFIX`
    pub url: &'a str,
    /// Region of S3.
    pub region: Option<&'a str>,
    /// Storage account of Azure.
    pub account: Option<&'a str>,
    /// Server; the cloud's own if `None`.
    pub endpoint: Option<&'a str>,
    /// Authorities that are trusted; the machine's if `None`.
    pub ca_file: Option<PathBuf>,
    /// Credentials; the machine's identity in its cloud if `None`.
    pub credentials_file: Option<PathBuf>,
}

impl BucketOptions<'_> {
    /// Checks the options, by the rules of the keys.
    ///
    /// # Errors
    /// The first mistake, and what is accepted.
    pub fn check(&self) -> Result<BucketStore, String> {
        let url = bucket_url(self.url).map_err(|error| format!("{}: {error}", self.url))?;
        let endpoint = self.endpoint.map(bucket_endpoint).transpose();
        let endpoint = endpoint.map_err(|error| format!("--endpoint: {error}"))?;
        for (key, cloud, required, help) in keys_of_clouds(endpoint.is_some()) {
            let option = if key == "region" { self.region } else { self.account };
            match option {
                Some(_) if url.cloud != cloud => {
                    return Err(format!("--{key} has no effect with {}: remove it", self.url));
                }
                Some(text) => drop(word(text).map_err(|error| format!("--{key}: {error}"))?),
                None if url.cloud == cloud && required => {
                    return Err(format!("{} needs --{key}: {help}", self.url));
                }
                None => {}
            }
        }
        if self.ca_file.is_some() && endpoint.as_ref().is_some_and(|url| url.starts_with("http:")) {
            return Err("--store-ca-file has no effect with http://: remove it".to_owned());
        }
        Ok(BucketStore {
            object_store: url,
            region: self.region.unwrap_or(REGION).to_owned(),
            account: self.account.unwrap_or_default().to_owned(),
            endpoint,
            ca_file: self.ca_file.clone(),
            credentials_file: self.credentials_file.clone(),
        })
    }
}

fn read_bucket(reader: &Reader<'_>) -> Option<BucketStore> {
    let report = reader.report();
    let url = reader.parsed("object_store", bucket_url).map(|url| url.value);
    let endpoint = reader.parsed("endpoint", bucket_endpoint).map(|endpoint| endpoint.value);
    let [region, account] =
        ["region", "account"].map(|key| reader.parsed(key, word).map(|word| word.value));
    let ca_file = reader.parsed("ca_file", file_path).map(|path| path.value);
    let credentials_file = reader.parsed("credentials_file", key_path).map(|path| path.value);
    let url = url?;
    for (key, cloud, required, help) in keys_of_clouds(reader.has("endpoint")) {
        if reader.has(key) && url.cloud != cloud {
            let message = format!("`{key}` has no effect with this `object_store`");
            report.error(&reader.key_place(key), message, "remove it");
        } else if !reader.has(key) && url.cloud == cloud && required {
            let place = reader.key_place("object_store");
            report.error(&place, format!("[arbiter] has no `{key}`"), format!("write {help}"));
        }
    }
    if reader.has("ca_file") && endpoint.as_ref().is_some_and(|url| url.starts_with("http:")) {
        let help = "write https:// in `endpoint`, or remove it";
        report.error(&reader.key_place("ca_file"), "`ca_file` has no effect with http://", help);
    }
    Some(BucketStore {
        object_store: url,
        region: region.unwrap_or_else(|| REGION.to_owned()),
        account: account.unwrap_or_default(),
        endpoint,
        ca_file,
        credentials_file,
    })
}

fn read_etcd(reader: &Reader<'_>) -> Option<EtcdStore> {
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
    Some(EtcdStore {
        etcd: members.into_iter().map(|(member, _)| member).collect(),
        tls: encrypted.then_some(ArbiterTls { ca_file, own }),
        prefix: prefix.unwrap_or_else(|| PREFIX.to_owned()),
        user: user.map(|user| user.value).zip(password.map(|file| file.value)),
    })
}
