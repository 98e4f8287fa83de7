//! Volume of a pool as a device: the leg of a mirrored volume.
//!
//! Other uses are refused: the server serves volumes of pools by itself, and an intent log has its
//! place on the leg.

use std::collections::BTreeMap;
use std::fmt;

use super::check::{RawConfig, RawLayer, RawVolume};
use super::diagnostic::{Located, Report, SourceLocation};
use crate::device_spec::{DeviceSpec, DeviceSpecError};
use crate::names::check_volume_name;

/// A volume of a pool of this server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolVolumeSpec {
    pub pool: String,
    pub volume: String,
}

impl PoolVolumeSpec {
    /// Parses `POOL/VOLUME`.
    pub(crate) fn parse(text: &str) -> Result<PoolVolumeSpec, DeviceSpecError> {
        let (pool, volume) = text.split_once('/').ok_or(DeviceSpecError::PoolVolume)?;
        if pool.is_empty() || volume.is_empty() {
            return Err(DeviceSpecError::PoolVolume);
        }
        check_volume_name(pool)?;
        check_volume_name(volume)?;
        Ok(PoolVolumeSpec { pool: pool.to_owned(), volume: volume.to_owned() })
    }
}

impl fmt::Display for PoolVolumeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool:{}/{}", self.pool, self.volume)
    }
}

fn of_pool(device: &Located<DeviceSpec>) -> Option<(&PoolVolumeSpec, &SourceLocation)> {
    match &device.value {
        DeviceSpec::PoolVolume(spec) => Some((spec, &device.place)),
        _ => None,
    }
}

/// Volumes of pools are legs of mirrored volumes, and have other names than volumes of this
/// configuration: the orders on both take names.
pub(crate) fn check_legs(raw: &RawConfig, report: &Report) {
    let names: BTreeMap<&str, &SourceLocation> =
        raw.volumes.iter().map(|volume| (volume.name.value.as_str(), &volume.name.place)).collect();
    for volume in &raw.volumes {
        let devices = volume.backing.iter().flat_map(|backing| &backing.devices);
        for (leg, place) in devices.filter_map(of_pool) {
            check_use(volume, leg, place, report);
            if let Some(first) = names.get(leg.volume.as_str()) {
                let message = format!("{leg} has the name of a volume of this configuration");
                let help = format!(
                    "give the leg a name of its own, such as pool:{}/{}-leg",
                    leg.pool, leg.volume
                );
                report.error_with(place, message, help, ("that is at", first));
            }
        }
        for mirror in mirrors(volume) {
            if let Some((leg, place)) = mirror.intent_log.as_ref().and_then(of_pool) {
                let message = format!("the intent log cannot be on {leg}");
                let help = "remove `intent_log`: the log is then on the leg, which a pool with a \
                            log device makes as fast; or write a path";
                report.error(place, message, help);
            }
        }
    }
}

fn mirrors(volume: &RawVolume) -> impl Iterator<Item = &super::mirror::RawMirror> {
    volume.layers.iter().filter_map(|layer| match layer {
        RawLayer::Mirror(mirror) => Some(&**mirror),
        RawLayer::SharedLimit(_) | RawLayer::Own(_) => None,
    })
}

fn check_use(volume: &RawVolume, leg: &PoolVolumeSpec, place: &SourceLocation, report: &Report) {
    let PoolVolumeSpec { pool, volume: name } = leg;
    if volume.backing.as_ref().is_some_and(|backing| backing.chunk.is_some()) {
        let help = format!("write device = \"{leg}\": a pool uses all its devices by itself");
        report.error(place, "a stripe over a volume of a pool", help);
    } else if mirrors(volume).next().is_none() {
        let own = &volume.name.value;
        let help = format!(
            "remove [volume.{own}], and run flagstone volume create {name} --pool {pool} --size \
             SIZE: the server serves it by itself; or add mirror = {{ peer = \"NAME\" }}"
        );
        report.error(place, "only a mirrored volume has a volume of a pool as its device", help);
    }
}
