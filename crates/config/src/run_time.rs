//! Volumes made at run time: the table of a volume without its device, checked as in a file.

use super::check::{self, default_nqn};
use super::diagnostic::{ConfigText, Diagnostics, Located, Report, SourceLocation};
use super::{Backing, Config, Subsystem, Volume, parse_toml, syntax_help};
use crate::names::check_volume_name;
use crate::schema::VOLUME;

/// Keys of a volume's table that a volume of a pool does not have.
const REFUSED: [&str; 3] = ["device", "stripe", "mirror"];

/// Keys of the table of a volume that a pool stores.
pub fn pool_volume_keys() -> impl Iterator<Item = &'static str> {
    VOLUME.keys.iter().map(|key| key.name).filter(|name| !REFUSED.contains(name))
}

impl Config {
    /// NQN of a volume that has none in its settings.
    pub fn default_nqn(&self, name: &str) -> String {
        default_nqn(&self.server.nvme, name)
    }

    /// Checks the volume `name` of a pool and its settings: the keys of a volume's table, as TOML.
    /// Limits and the prefix of NQNs come from this configuration. The index in the subsystem's
    /// `namespaces` has no meaning.
    ///
    /// # Errors
    /// Every mistake.
    pub fn pool_volume(
        &self,
        pool: &str,
        name: &str,
        settings: &str,
    ) -> Result<(Volume, Subsystem), Diagnostics> {
        let report = Report::default();
        let text = format!("[volume.\"{name}\"]\n{settings}");
        let source = ConfigText::file("settings", &text);
        if let Err(error) = check_volume_name(name) {
            report.error(&SourceLocation::Whole, "bad volume name", error);
        } else {
            refuse_others(name, &text, &report);
        }
        let made = match report.count() {
            0 => self.read_pool_volume(pool, &text, &report),
            _ => None,
        };
        made.ok_or_else(|| report.into_diagnostics(Some(source)).expect("a mistake was reported"))
    }

    fn read_pool_volume(
        &self,
        pool: &str,
        text: &str,
        report: &Report,
    ) -> Option<(Volume, Subsystem)> {
        // A stand-in that fits every block size.
        let text = format!("{text}\ndevice = \"null:4KiB\"\n");
        let mut raw = parse_toml(&text, report)?;
        raw.server.nvme.nqn_prefix.clone_from(&self.server.nvme.nqn_prefix);
        let limits = self.limits.iter().map(|shared| {
            let name = Located { value: shared.name.clone(), place: SourceLocation::Whole };
            (name, shared.limit.clone())
        });
        raw.limits = limits.collect();
        let mut config = check::finish(raw, report)?;
        let mut volume = config.volumes.pop()?;
        volume.backing = Backing::Pool(pool.to_owned());
        Some((volume, config.subsystems.pop()?))
    }
}

/// The text has the volume's table only, and no key that is not for pools.
fn refuse_others(name: &str, text: &str, report: &Report) {
    let document = match toml_edit::Document::parse(text) {
        Ok(document) => document,
        Err(error) => {
            let message = format!("the settings are not TOML: {}", error.message());
            return report.error(&SourceLocation::Whole, message, syntax_help(error.message()));
        }
    };
    let root = document.as_table();
    let tables = root.get("volume").and_then(|volumes| volumes.as_table_like());
    let table = tables.and_then(|tables| tables.get(name)?.as_table_like());
    let only = root.len() == 1 && tables.is_some_and(|tables| tables.len() == 1);
    let Some(table) = table.filter(|_| only) else {
        return report.error(
            &SourceLocation::Whole,
            "settings have no tables of their own",
            "remove them",
        );
    };
    for key in REFUSED.iter().filter(|key| table.contains_key(key)) {
        let help = "the pool stores its data: remove the key";
        report.error(&SourceLocation::Whole, format!("a volume of a pool has no `{key}`"), help);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LayerConfig;

    fn running() -> Config {
        let text = "[server.nvme]\nnqn_prefix = \"nqn.2026-01.io.x\"\n[limit.spare]\niops = 7\n\
                    [limit.vm]\niops = 9\n[volume.a]\ndevice = \"null:1GiB\"\n";
        Config::parse("f", text).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn pool_volume_has_the_keys_of_a_table() {
        let settings = "\"limit\" = {\"iops\" = 15000}\nshared_limit = \"vm\"\nread_only = true\n\
                        block_size = 512\nallow_hosts = [\"nqn.2026-01.io.h:1\"]";
        let (volume, subsystem) = running().pool_volume("fast", "d.b", settings).unwrap();
        assert_eq!(volume.backing, Backing::Pool("fast".to_owned()));
        assert!(matches!(volume.layers[..], [LayerConfig::SharedLimit(1), LayerConfig::Limit(_)]));
        assert_eq!((volume.read_only, volume.block_size_bytes), (true, Some(512)));
        assert_eq!(subsystem.nqn, "nqn.2026-01.io.x:d.b");
        assert_eq!(subsystem.allow_hosts.unwrap(), ["nqn.2026-01.io.h:1"]);
    }

    #[test]
    fn keys_of_a_pool_volume_leave_its_device_out() {
        let keys: Vec<_> = pool_volume_keys().collect();
        assert!(keys.contains(&"limit") && keys.contains(&"allow_hosts"), "{keys:?}");
        assert!(REFUSED.iter().all(|key| !keys.contains(key)), "{keys:?}");
    }

    #[test]
    fn mistakes_in_settings_are_refused() {
        for (name, settings, part) in [
            ("a/b", "", "bad volume name"),
            ("db", "device = \"/dev/sda\"", "no `device`"),
            ("db", "mirror = { peer = \"b\" }", "no `mirror`"),
            ("db", "[server]\ncores = 1", "no tables of their own"),
            ("db", "[volume.other]\ndevice = \"/x\"", "no tables of their own"),
            ("db", "iops = 5", "unknown key `iops`"),
            ("db", "shared_limit = \"none\"", "no limit `none`"),
            ("db", "limit = ", "not TOML"),
        ] {
            let refused = running().pool_volume("fast", name, settings).unwrap_err();
            assert!(refused.items()[0].message.contains(part), "{settings}: {refused}");
        }
    }
}
