//! Provenance given by the user with `--stack` and `--emulated`, which overrides the
//! provenance from the server's API.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flagstone_bench::Error;
use flagstone_bench::limits::STACK_BYTES;
use flagstone_bench::os::read_text;
use flagstone_bench::provenance::{Origin, Provenance};
use flagstone_bench::target::BenchTarget;
use flagstone_config::device_spec::DeviceSpec;
use flagstone_config::{Config, LayerConfig, Volume};

/// Combines the API of a local server, a configuration file and the names of emulated targets.
pub(crate) fn of(
    targets: &[BenchTarget],
    api: Option<&PathBuf>,
    stack: Option<&Path>,
    emulated: &[String],
) -> Result<BTreeMap<String, Origin>, Error> {
    let mut origins = super::local_server::provenance(targets, api)?;
    if let Some(path) = stack {
        origins.extend(of_stack(targets, path)?);
    }
    for name in emulated {
        let target = targets.iter().find(|target| target.name == *name);
        let target = target
            .ok_or_else(|| Error::usage(format!("--emulated={name}: no target has this name")))?;
        for disk in &target.disks {
            let origin: &mut Origin = origins.entry(disk.to_string()).or_default();
            origin.provenance = Provenance::Emulated;
        }
    }
    Ok(origins)
}

fn of_stack(targets: &[BenchTarget], path: &Path) -> Result<BTreeMap<String, Origin>, Error> {
    let stack = read_text(path, STACK_BYTES as u64).map_err(Error::file("cannot read", path))?;
    let config = Config::parse(&path.display().to_string(), &stack)
        .map_err(|mistakes| Error::Usage(mistakes.render(false).trim_end().to_owned()))?;
    let mut origins = BTreeMap::new();
    for disk in targets.iter().flat_map(|target| &target.disks) {
        let name = disk.to_string();
        // Paths are inspected directly.
        let Ok(spec) = name.parse::<DeviceSpec>() else { continue };
        if let Some(volume) = volume_of(&config, &spec) {
            origins.insert(name, Origin { provenance: provenance(volume), stack: stack.clone() });
        }
    }
    if origins.is_empty() {
        let message = format!("--stack={}: no target is one of its volumes", path.display());
        return Err(Error::Usage(message));
    }
    Ok(origins)
}

/// The volume behind a target, if a server with this configuration exports it.
fn volume_of<'a>(config: &'a Config, spec: &DeviceSpec) -> Option<&'a Volume> {
    match spec {
        DeviceSpec::Nbd(nbd) => {
            config.volumes.iter().find(|volume| volume.nbd_export == nbd.export)
        }
        DeviceSpec::NvmeTcp(nvme) => {
            let same = |nqn: &str| nqn == nvme.subsystem_nqn;
            let subsystem = config.subsystems.iter().find(|one| same(&one.nqn))?;
            let at = nvme.namespace_id.unwrap_or(1).checked_sub(1)?;
            let index = subsystem.namespaces.get(usize::try_from(at).ok()?)?;
            config.volumes.get(*index)
        }
        DeviceSpec::Path(_)
        | DeviceSpec::Memory { .. }
        | DeviceSpec::Null { .. }
        | DeviceSpec::PoolVolume(_) => None,
    }
}

/// A rate limit keeps a real disk real. A layer that adds latency or faults emulates another disk.
fn provenance(volume: &Volume) -> Provenance {
    let acts = |layer: &LayerConfig| {
        matches!(layer, LayerConfig::DiskModel(_) | LayerConfig::Delay(_) | LayerConfig::Fault(_))
    };
    if volume.layers.iter().any(acts) {
        return Provenance::Emulated;
    }
    volume.backing.devices().iter().map(provenance_of_device).max().unwrap_or_default()
}

fn provenance_of_device(device: &DeviceSpec) -> Provenance {
    match device {
        DeviceSpec::Path(_) => Provenance::Real,
        DeviceSpec::Memory { .. } | DeviceSpec::Null { .. } => Provenance::Memory,
        // The devices of the pool are unknown here.
        DeviceSpec::PoolVolume(_) => Provenance::Unknown,
        DeviceSpec::NvmeTcp(_) | DeviceSpec::Nbd(_) => Provenance::Served,
    }
}

/// The same for the names of layers and devices in API documents. An unknown name never counts as
/// real.
pub(super) fn provenance_of(layers: &[String], devices: &[String]) -> Provenance {
    let known = ["limit", "shared_limit", "mirror", "stripe"];
    if layers.iter().any(|layer| ["disk_model", "delay", "fault"].contains(&layer.as_str())) {
        return Provenance::Emulated;
    }
    if layers.iter().any(|layer| !known.contains(&layer.as_str())) {
        return Provenance::Unknown;
    }
    let of = |device: &String| {
        device.parse().map_or(Provenance::Unknown, |it| provenance_of_device(&it))
    };
    devices.iter().map(of).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: &str = r#"
[server]
listen = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"]
[volume.real]
limit = { iops = 100 }
device = "/dev/sdb"
[volume.lab]
disk_model = { latency = "1ms" }
device = "/dev/sdb1"
[volume.ram]
device = "memory:1GiB"
"#;

    fn found(address: &str) -> Option<Provenance> {
        let config = Config::parse("x", STACK).unwrap_or_else(|error| panic!("{error}"));
        volume_of(&config, &address.parse().expect("a device")).map(provenance)
    }

    #[test]
    fn provenance_from_api_layers() {
        let of = |layers: &[&str], device: &str| {
            provenance_of(
                &layers.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>(),
                &[device.to_owned()],
            )
        };
        assert_eq!(of(&["limit"], "/dev/sdb"), Provenance::Real);
        assert_eq!(of(&["limit", "disk_model"], "/dev/sdb"), Provenance::Emulated);
        assert_eq!(of(&[], "memory:1GiB"), Provenance::Memory);
        assert_eq!(of(&["of a later version"], "/dev/sdb"), Provenance::Unknown);
        assert_eq!(provenance_of(&[], &[]), Provenance::Unknown);
    }

    #[test]
    fn provenance_from_configuration() {
        let nqn = "nqn.2026-01.io.flagstone";
        assert_eq!(found("nbd://h/real"), Some(Provenance::Real));
        assert_eq!(found("nbd://h/lab"), Some(Provenance::Emulated));
        assert_eq!(found("nbd://h/ram"), Some(Provenance::Memory));
        assert_eq!(found("nbd://h/other"), None);
        assert_eq!(found(&format!("nvme-tcp://h/{nqn}:lab")), Some(Provenance::Emulated));
        assert_eq!(found(&format!("nvme-tcp://h/{nqn}:none")), None);
        assert_eq!(found("/dev/sdb1"), None);
    }
}
