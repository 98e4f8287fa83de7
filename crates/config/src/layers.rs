//! Layers of a volume: which keys make them, and their order.
//!
//! The order of keys in a TOML table has no meaning, so layers have one canonical order:
//! [`LayerKey::ALL`]. `layers = […]` replaces it.

use flagstone_blockdev::{DelayConfig, DelayTime, FaultConfig, FaultRate};

use super::check::RawLayer;
use super::mirror;
use super::model::LayerConfig;
use super::performance;
use super::profile::Catalogs;
use super::reader::{Reader, suggestion};
use crate::limits::MAX_LISTED_LAYERS;
use crate::names;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerKey {
    SharedLimit,
    Limit,
    Mirror,
    DiskModel,
    Delay,
    Fault,
}

impl LayerKey {
    /// From the host's side down: limits apply to hosts; what imitates a disk is the disk of one
    /// node, below the mirror.
    const ALL: [LayerKey; 6] = [
        LayerKey::SharedLimit,
        LayerKey::Limit,
        LayerKey::Mirror,
        LayerKey::DiskModel,
        LayerKey::Delay,
        LayerKey::Fault,
    ];

    fn name(self) -> &'static str {
        match self {
            LayerKey::SharedLimit => "shared_limit",
            LayerKey::Limit => "limit",
            LayerKey::Mirror => "mirror",
            LayerKey::DiskModel => "disk_model",
            LayerKey::Delay => "delay",
            LayerKey::Fault => "fault",
        }
    }

    fn parse(text: &str) -> Result<LayerKey, String> {
        let names = LayerKey::ALL.map(LayerKey::name);
        let found = LayerKey::ALL.into_iter().find(|key| key.name() == text);
        found.ok_or_else(|| suggestion(text, &names))
    }
}

/// The layers from the host's side down.
pub(crate) fn read_layers(volume: &Reader<'_>, catalogs: &Catalogs) -> Vec<RawLayer> {
    order(volume).into_iter().flat_map(|key| read_layer(key, volume, catalogs)).collect()
}

fn order(volume: &Reader<'_>) -> Vec<LayerKey> {
    let mut written: Vec<_> =
        LayerKey::ALL.into_iter().filter(|key| volume.has(key.name())).collect();
    let report = volume.report();
    let Some(list) = volume.list("layers", MAX_LISTED_LAYERS, LayerKey::parse) else {
        return written;
    };
    for (index, entry) in list.entries.iter().enumerate() {
        let key = entry.value;
        if list.entries[..index].iter().any(|earlier| earlier.value == key) {
            let message = format!("layer `{}` is listed twice", key.name());
            report.error(&entry.place, message, "list each layer once");
        } else if !written.contains(&key) {
            let message = format!("layer `{0}` is listed, but the volume has no `{0}`", key.name());
            report.error(&entry.place, message, format!("write {} = …, or remove it", key.name()));
        }
    }
    let position = |key: &LayerKey| list.entries.iter().position(|entry| entry.value == *key);
    // An entry that cannot be read may be the missing one.
    let complete = list.entries.len() == list.written;
    for key in written.iter().filter(|key| complete && position(key).is_none()) {
        let message = format!("`{}` is missing from `layers`", key.name());
        let help = "list every layer of the volume, from the host's side to the device";
        let related = ("the layer is given at", &volume.key_place(key.name()));
        report.error_with(&list.place, message, help, related);
    }
    written.sort_by_key(position);
    written
}

/// The layers of one key, if it can be read: one, except for a disk model with a profile, which
/// has a limit and below it a latency.
fn read_layer(key: LayerKey, volume: &Reader<'_>, catalogs: &Catalogs) -> Vec<RawLayer> {
    let own = |read: &dyn Fn(&Reader<'_>) -> Vec<LayerConfig>| {
        let layers = volume.table(key.name()).map(|reader| read(&reader)).unwrap_or_default();
        layers.into_iter().map(|layer| RawLayer::Own(Box::new(layer))).collect()
    };
    match key {
        LayerKey::SharedLimit => {
            let name = volume.checked(key.name(), names::check_volume_name);
            name.map(RawLayer::SharedLimit).into_iter().collect()
        }
        LayerKey::Mirror => {
            let mirror = volume.table(key.name());
            mirror.and_then(|reader| mirror::read_mirror(&reader, catalogs)).into_iter().collect()
        }
        LayerKey::Limit => own(&|reader| {
            vec![LayerConfig::Limit(Box::new(performance::read_limit(reader, catalogs)))]
        }),
        LayerKey::DiskModel => own(&|reader| read_disk_model(volume, reader, catalogs)),
        LayerKey::Delay => own(&|reader| vec![LayerConfig::Delay(read_delay(reader))]),
        LayerKey::Fault => own(&|reader| vec![LayerConfig::Fault(read_fault(reader))]),
    }
}

fn read_disk_model(
    volume: &Reader<'_>,
    reader: &Reader<'_>,
    catalogs: &Catalogs,
) -> Vec<LayerConfig> {
    let (limit, latency) = performance::read_disk_model(reader, catalogs);
    if limit.is_some() && volume.has("limit") {
        let message = "`disk_model` with `profile` has the limits of the disk already";
        let help = "remove `limit`, or write the latency in `disk_model` in place of `profile`";
        let related = ("the limit is given at", &volume.key_place("limit"));
        reader.report().error_with(&reader.key_place("profile"), message, help, related);
    }
    let limit = limit.map(|limit| LayerConfig::Limit(Box::new(limit)));
    limit.into_iter().chain(latency.map(LayerConfig::DiskModel)).collect()
}

fn read_delay(reader: &Reader<'_>) -> DelayConfig {
    let jitter = reader.time_or_default("jitter");
    let time = |name| DelayTime { fixed: reader.time_or_default(name), jitter };
    DelayConfig {
        read: time("read"),
        write: time("write"),
        flush: time("flush"),
        discard: time("discard"),
    }
}

fn read_fault(reader: &Reader<'_>) -> FaultConfig {
    FaultConfig {
        read: read_rate(reader, "read_error_every", "read_errors_per_million"),
        write: read_rate(reader, "write_error_every", "write_errors_per_million"),
        flush: read_rate(reader, "flush_error_every", "flush_errors_per_million"),
        seed: reader.count_or_default("seed"),
    }
}

fn read_rate(reader: &Reader<'_>, every: &str, per_million: &str) -> FaultRate {
    if reader.has(every) && reader.has(per_million) {
        let message = format!("both `{every}` and `{per_million}`");
        let related = ("the other is given at", &reader.key_place(every));
        let help = "keep one of them";
        reader.report().error_with(&reader.key_place(per_million), message, help, related);
    }
    match (reader.count(every), reader.count(per_million)) {
        (Some(every), _) => FaultRate::Every(every.value),
        // The range of the schema keeps it to a million.
        (None, Some(rate)) => FaultRate::PerMillion(rate.value as u32),
        (None, None) => FaultRate::Never,
    }
}
