//! Settings of a volume that was created at run time: the keys of its table in a configuration, as
//! JSON.
//!
//! The pool stores them as properties of the volume, with a version. Setting and reading both check
//! them with the code for configurations.

use std::collections::BTreeMap;

use flagstone_config::{Config, Diagnostics, Subsystem, Volume, pool_volume_keys};
use flagstone_pool::{
    COMPRESSION_PROPERTY, Compression, DEDUP_DOMAIN_PROPERTY, DEDUP_PROPERTY, Dedup,
    LEG_PROPERTIES, dedup_domain,
};
use flagstone_units::nearest_name;
use serde_json::{Map, Value};

use crate::http::Problem;
use crate::limits::{DEDUP_DOMAIN_BYTES, KEY_FILE_PATH_BYTES, KEY_NAME_BYTES};

/// Keys and values of a volume's table.
pub(crate) type Settings = Map<String, Value>;

/// Keys that the pool obeys. The others are keys of a volume's table in a configuration.
const COMPRESSION_KEY: &str = COMPRESSION_PROPERTY;
const DEDUP_KEY: &str = DEDUP_PROPERTY;

/// Name that lets volumes of different hosts share blocks.
const DEDUP_DOMAIN_KEY: &str = "dedup_domain";

/// Path of the file with the key of an encrypted volume.
pub(crate) const KEY_FILE_KEY: &str = "encryption_key_file";

/// Keys that no configuration has.
pub(super) const OWN_KEYS: [&str; 4] = [COMPRESSION_KEY, DEDUP_KEY, DEDUP_DOMAIN_KEY, KEY_FILE_KEY];

const VERSION_KEY: &str = "settings.version";
const VERSION: &str = "1";
const TABLE_KEY: &str = "settings";

/// Properties that store the settings in a pool.
pub(crate) fn to_properties(settings: &Settings) -> BTreeMap<String, String> {
    let table = serde_json::to_string(settings).expect("a map of JSON values is JSON");
    let text = |key| settings.get(key).and_then(Value::as_str).map(str::to_owned);
    let domain = share_domain(settings).map(|domain| (DEDUP_DOMAIN_PROPERTY, domain));
    let properties = [(VERSION_KEY, VERSION.to_owned()), (TABLE_KEY, table)]
        .into_iter()
        .chain(text(COMPRESSION_KEY).map(|mode| (COMPRESSION_PROPERTY, mode)))
        .chain(text(DEDUP_KEY).map(|setting| (DEDUP_PROPERTY, setting)))
        .chain(domain);
    properties.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Domain of deduplication: the given one or, without, the set of hosts that may connect. Its
/// prefix keeps a name from being that of a set of hosts.
fn domain(settings: &Settings) -> String {
    match settings.get(DEDUP_DOMAIN_KEY).and_then(Value::as_str) {
        Some(name) => format!("name:{name}"),
        None => {
            let hosts = settings.get("allow_hosts").and_then(Value::as_array);
            let hosts = hosts.into_iter().flatten().filter_map(Value::as_str);
            format!("hosts:{}", dedup_domain(hosts))
        }
    }
}

/// True if equal blocks of the volume are to be shared.
pub(super) fn has_dedup(settings: &Settings) -> bool {
    settings.get(DEDUP_KEY).and_then(Value::as_str) == Some(Dedup::On.name())
}

/// Domain in which equal blocks of the volume are shared; `None` if they are not.
pub(super) fn share_domain(settings: &Settings) -> Option<String> {
    has_dedup(settings).then(|| domain(settings))
}

/// True if a name says with which volumes it shares blocks.
pub(super) fn names_domain(settings: &Settings) -> bool {
    settings.contains_key(DEDUP_DOMAIN_KEY)
}

/// Settings with this compression alone; none if it is empty.
pub(crate) fn compressed(mode: &str) -> Settings {
    let mode = Some(mode).filter(|mode| !mode.is_empty());
    mode.map(|mode| (COMPRESSION_KEY.to_owned(), mode.into())).into_iter().collect()
}

/// Checks the settings that the pool obeys.
///
/// # Errors
/// [`Problem`] for an unknown value, or settings that exclude each other.
pub(crate) fn check_pool_keys(settings: &Settings) -> Result<(), Problem> {
    let is_mode = |value: &Value| value.as_str().and_then(Compression::parse).is_some();
    if let Some(value) = settings.get(COMPRESSION_KEY).filter(|value| !is_mode(value)) {
        let names = Compression::ALL.map(Compression::name).join(", ");
        return Err(Problem::invalid(format!("compression = {value}: write one of {names}")));
    }
    let is_setting = |value: &Value| value.as_str().and_then(Dedup::parse).is_some();
    if let Some(value) = settings.get(DEDUP_KEY).filter(|value| !is_setting(value)) {
        let names = Dedup::ALL.map(Dedup::name).join(", ");
        return Err(Problem::invalid(format!("dedup = {value}: write one of {names}")));
    }
    let is_name = |value: &Value| {
        value.as_str().is_some_and(|name| {
            let is_plain = !name.chars().any(char::is_control);
            !name.is_empty() && name.len() <= DEDUP_DOMAIN_BYTES && is_plain
        })
    };
    if let Some(value) = settings.get(DEDUP_DOMAIN_KEY).filter(|value| !is_name(value)) {
        return Err(Problem::invalid(format!(
            "dedup_domain = {value}: write a name of 1 to {DEDUP_DOMAIN_BYTES} bytes"
        )));
    }
    if has_dedup(settings) && settings.contains_key(KEY_FILE_KEY) {
        return Err(Problem::invalid(
            "dedup = \"on\" with encryption: blocks of encrypted volumes are never shared; leave \
             one of the two out",
        ));
    }
    Ok(())
}

/// Path of the key file of an encrypted volume. It may come from the disks of a stranger.
///
/// # Errors
/// The reason why no such file can exist.
pub(crate) fn key_file(settings: &Settings) -> Result<Option<&str>, String> {
    let Some(value) = settings.get(KEY_FILE_KEY) else { return Ok(None) };
    match value.as_str().filter(|text| KeySource::parse(text).is_some()) {
        Some(text) => Ok(Some(text)),
        None => Err(format!("{KEY_FILE_KEY} is not the absolute path of a file, and no kms:NAME")),
    }
}

/// Place of a volume's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeySource<'a> {
    /// Absolute path of a file.
    File(&'a str),
    /// Name that `key_command` knows.
    Command(&'a str),
}

impl KeySource<'_> {
    /// Reads `/PATH` or `kms:NAME`. A name has letters, digits, `-`, `_`, `.`, `:` and `/`, and is
    /// no option of a program.
    pub(super) fn parse(text: &str) -> Option<KeySource<'_>> {
        if let Some(name) = text.strip_prefix("kms:") {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
            let is_name = (1..=KEY_NAME_BYTES).contains(&name.len())
                && name.bytes().all(is_plain)
                && !name.starts_with('-');
            return is_name.then_some(KeySource::Command(name));
        }
        let is_plain = !text.chars().any(char::is_control);
        let is_path = text.starts_with('/') && text.len() <= KEY_FILE_PATH_BYTES && is_plain;
        is_path.then_some(KeySource::File(text))
    }
}

/// Settings stored in a pool.
///
/// # Errors
/// The reason why they are unusable.
pub(crate) fn from_properties(properties: &BTreeMap<String, String>) -> Result<Settings, String> {
    match properties.get(VERSION_KEY).map(String::as_str) {
        Some(VERSION) => {}
        Some(other) => {
            return Err(format!("its settings have version {other}: use a newer Flagstone"));
        }
        None if properties.keys().all(|key| LEG_PROPERTIES.contains(&key.as_str())) => {
            return Ok(Settings::new());
        }
        None => return Err("its settings have no version".to_owned()),
    }
    let table = properties.get(TABLE_KEY).map_or("{}", String::as_str);
    serde_json::from_str(table).map_err(|error| format!("its settings cannot be read: {error}"))
}

/// NQN of a volume, without a check of its other settings.
///
/// # Errors
/// The reason why the settings are unusable.
pub(crate) fn nqn(
    config: &Config,
    name: &str,
    properties: &BTreeMap<String, String>,
) -> Result<String, String> {
    let settings = from_properties(properties)?;
    let own = settings.get("nqn").and_then(Value::as_str).map(str::to_owned);
    Ok(own.unwrap_or_else(|| config.default_nqn(name)))
}

/// Checks the keys that a change removes: a misspelled key would remove nothing. A stored key may
/// be removed even if it is unknown, because a newer version may have stored it.
///
/// # Errors
/// 422 with the known keys.
pub(crate) fn check_removed(stored: &Settings, change: &Settings) -> Result<(), Problem> {
    let known: Vec<&str> = pool_volume_keys().chain(OWN_KEYS).collect();
    let is_unknown = |key: &str| !known.contains(&key) && !stored.contains_key(key);
    let mut removed = change.iter().filter(|(_, value)| value.is_null()).map(|(key, _)| key);
    let Some(key) = removed.find(|key| is_unknown(key)) else { return Ok(()) };
    let meant = nearest_name(key, known.iter().copied());
    let meant = meant.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
    let key = Value::from(key.as_str());
    Err(Problem::invalid(format!("a volume of a pool has no setting {key}{meant}"))
        .accepting(known))
}

/// Replaces the settings in `change`; `null` removes one (RFC 7396, at the top level).
pub(crate) fn merge(settings: &mut Settings, change: &Settings) {
    for (key, value) in change {
        match value {
            Value::Null => drop(settings.remove(key)),
            value => drop(settings.insert(key.clone(), value.clone())),
        }
    }
}

/// Volume described by the settings.
///
/// # Errors
/// All mistakes.
pub(crate) fn volume(
    config: &Config,
    pool: &str,
    name: &str,
    settings: &Settings,
) -> Result<(Volume, Subsystem), Diagnostics> {
    let keys = settings.iter().filter(|(key, _)| !OWN_KEYS.contains(&key.as_str()));
    let keys = keys.map(|(key, value)| format!("{} = {}\n", toml_text(key), toml(value)));
    let (volume, mut subsystem) = config.pool_volume(pool, name, &keys.collect::<String>())?;
    // Namespaces would be indices of the configuration's volumes.
    subsystem.namespaces.clear();
    Ok((volume, subsystem))
}

/// The mistakes as a problem document.
pub(crate) fn problem(diagnostics: &Diagnostics) -> Problem {
    Problem::invalid(text(diagnostics))
}

/// The mistakes in one line.
pub(crate) fn text(diagnostics: &Diagnostics) -> String {
    let items = diagnostics.items().iter().map(|item| format!("{}: {}", item.message, item.help));
    items.collect::<Vec<_>>().join("; ")
}

/// A JSON value as TOML. A value that TOML does not have becomes a syntax error.
fn toml(value: &Value) -> String {
    match value {
        Value::Object(table) => {
            let keys =
                table.iter().map(|(key, value)| format!("{} = {}", toml_text(key), toml(value)));
            format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "))
        }
        Value::Array(values) => {
            format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => toml_text(text),
        other => other.to_string(),
    }
}

/// A basic string: escaped as in JSON, and DEL in addition.
fn toml_text(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_config::LayerConfig;
    use serde_json::json;

    fn settings(value: Value) -> Settings {
        value.as_object().unwrap().clone()
    }

    fn config() -> Config {
        Config::parse("f", "[volume.a]\ndevice = \"null:1GiB\"\n").unwrap()
    }

    #[test]
    fn compression_is_a_property_of_the_pool() {
        let given = settings(json!({"compression": "lz4", "read_only": true}));
        assert_eq!(check_pool_keys(&given), Ok(()));
        let properties = to_properties(&given);
        assert_eq!(Compression::of(&properties), Compression::Lz4);
        assert_eq!(from_properties(&properties).unwrap(), given);
        let (volume, _) = volume(&config(), "fast", "db", &given).unwrap();
        assert!(volume.read_only);
        for wrong in [json!({"compression": "gzip"}), json!({"compression": 7})] {
            let problem = check_pool_keys(&settings(wrong)).unwrap_err();
            assert!(format!("{problem:?}").contains("off, lz4, zstd, auto"), "{problem:?}");
        }
    }

    #[test]
    fn dedup_is_a_property_with_a_domain() {
        let given = |hosts: &[&str], domain: Option<&str>| {
            let mut given = settings(json!({"dedup": "on", "allow_hosts": hosts}));
            given.extend(domain.map(|name| ("dedup_domain".to_owned(), name.into())));
            assert_eq!(check_pool_keys(&given), Ok(()));
            let properties = to_properties(&given);
            assert_eq!(Dedup::of(&properties), Dedup::On);
            assert_eq!(from_properties(&properties).unwrap(), given);
            volume(&config(), "fast", "db", &given).unwrap();
            properties[DEDUP_DOMAIN_PROPERTY].clone()
        };
        let (a, b) = ("nqn.2026-01.io.h:a", "nqn.2026-01.io.h:b");
        assert_eq!(given(&[a, b], None), given(&[b, a], None));
        assert_ne!(given(&[a], None), given(&[b], None), "other hosts");
        assert_ne!(given(&[a], None), given(&[], None), "any host");
        assert_eq!(given(&[a], Some("images")), given(&[b], Some("images")), "allowed");
        assert_ne!(given(&[a], Some("images")), given(&[a], Some("others")));
        let hosts = given(&[a], None);
        assert_ne!(given(&[b], Some(&hosts)), hosts, "a name is no set of hosts");
        assert_eq!(Dedup::of(&to_properties(&settings(json!({})))), Dedup::Off);
    }

    #[test]
    fn wrong_dedup_settings_are_refused() {
        for (wrong, meant) in [
            (json!({"dedup": true}), "dedup = true: write one of off, on"),
            (json!({"dedup": "yes"}), "off, on"),
            (json!({"dedup_domain": ""}), "1 to 64 bytes"),
            (json!({"dedup_domain": "x".repeat(65)}), "1 to 64 bytes"),
            (json!({"dedup_domain": "a\nb"}), "1 to 64 bytes"),
            (json!({"dedup": "on", "encryption_key_file": "/k"}), "never shared"),
        ] {
            let refused = check_pool_keys(&settings(wrong)).unwrap_err();
            assert_eq!(refused.status, 422);
            assert!(refused.detail.contains(meant), "{}", refused.detail);
        }
        let off = settings(json!({"dedup": "off", "encryption_key_file": "/k"}));
        assert_eq!(check_pool_keys(&off), Ok(()));
    }

    #[test]
    fn settings_survive_the_pool() {
        let given = settings(json!({
            "limit": {"iops": 15000, "throughput": "240MB/s"},
            "allow_hosts": ["nqn.2026-01.io.h:größe"],
            "read_only": true,
            "nbd_export": "a \"b\" \\ c",
        }));
        let read = from_properties(&to_properties(&given)).unwrap();
        assert_eq!(read, given);
        let (volume, subsystem) = volume(&config(), "fast", "db", &read).unwrap();
        assert_eq!(volume.nbd_export, "a \"b\" \\ c");
        assert!(matches!(volume.layers[..], [LayerConfig::Limit(_)]));
        assert_eq!(subsystem.allow_hosts.unwrap(), ["nqn.2026-01.io.h:größe"]);
        assert_eq!(from_properties(&BTreeMap::new()), Ok(Settings::new()));
    }

    #[test]
    fn null_removes_a_setting() {
        let mut now = settings(json!({"read_only": true, "limit": {"iops": 5}}));
        merge(&mut now, &settings(json!({"limit": null, "nbd_export": "x"})));
        assert_eq!(now, settings(json!({"read_only": true, "nbd_export": "x"})));
    }

    /// It answered that the volume has these settings already.
    #[test]
    fn unknown_keys_are_not_removed() {
        let stored = settings(json!({"read_only": true, "of_next_version": 1}));
        for (change, meant) in [
            (json!({"limits": null}), "did you mean `limit`?"),
            (json!({"limit": null, "allow_host": null}), "did you mean `allow_hosts`?"),
            (json!({"device": null}), "has no setting \"device\""),
        ] {
            let refused = check_removed(&stored, &settings(change)).unwrap_err();
            assert_eq!(refused.status, 422);
            assert!(refused.detail.contains(meant), "{}", refused.detail);
            assert!(refused.accepted.iter().any(|key| key == "nbd_export"));
        }
        let change = json!({"limit": null, "compression": null, "of_next_version": null, "x": 1});
        assert_eq!(check_removed(&stored, &settings(change)), Ok(()));
    }

    #[test]
    fn hostile_properties_are_refused() {
        let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        for properties in [
            of(&[("settings.version", "2"), ("settings", "{}")]),
            of(&[("settings", "{}")]),
            of(&[("settings.version", "1"), ("settings", "[")]),
            of(&[("settings.version", "1"), ("settings", "[]")]),
        ] {
            assert!(from_properties(&properties).is_err(), "{properties:?}");
        }
        for (key, value) in [
            ("read_only", json!("yes")),
            ("x]\n[server", json!(1)),
            ("nbd_export", json!("a\u{7f}\n")),
            ("read_only", json!(null)),
            ("device", json!("/dev/sda")),
        ] {
            let hostile = Settings::from_iter([(key.to_owned(), value)]);
            assert!(volume(&config(), "fast", "db", &hostile).is_err(), "{key}");
        }
    }
}
