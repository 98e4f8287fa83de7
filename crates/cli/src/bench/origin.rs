//! What is told of targets that cannot be looked into: by their server's API, and by the user with
//! `--stack` and `--emulated`, whose word counts.

use std::collections::BTreeMap;
use std::path::Path;

use flagstone_bench::Error;
use flagstone_bench::campaign::Plan;
use flagstone_bench::limits::STACK_BYTES;
use flagstone_bench::nature::{Nature, Origin};
use flagstone_bench::os::read_text;
use flagstone_control::config::{Config, Layer, Volume};
use flagstone_control::device_spec::DeviceSpec;

use super::args::RunArgs;

/// What was told of the plan's disks, by how they are written.
pub(super) fn told(plan: &Plan, args: &RunArgs) -> Result<BTreeMap<String, Origin>, Error> {
    let mut origins = super::asked::told(plan, args.api.as_ref())?;
    if let Some(path) = &args.stack {
        origins.extend(of_stack(plan, path)?);
    }
    for name in &args.emulated {
        let target = plan.targets.iter().find(|target| target.name == *name);
        let target = target
            .ok_or_else(|| Error::usage(format!("--emulated={name}: no target is called that")))?;
        for disk in &target.disks {
            let origin: &mut Origin = origins.entry(disk.to_string()).or_default();
            origin.nature = Nature::Emulated;
        }
    }
    Ok(origins)
}

fn of_stack(plan: &Plan, path: &Path) -> Result<BTreeMap<String, Origin>, Error> {
    let stack = read_text(path, STACK_BYTES as u64).map_err(Error::file("cannot read", path))?;
    let config = Config::parse(&path.display().to_string(), &stack)
        .map_err(|mistakes| Error::Usage(mistakes.render(false).trim_end().to_owned()))?;
    let mut origins = BTreeMap::new();
    for disk in plan.targets.iter().flat_map(|target| &target.disks) {
        let name = disk.to_string();
        // A path is looked into by itself.
        let Ok(spec) = name.parse::<DeviceSpec>() else { continue };
        if let Some(volume) = volume_of(&config, &spec) {
            origins.insert(name, Origin { nature: nature(volume), stack: stack.clone() });
        }
    }
    if origins.is_empty() {
        let message = format!("--stack={}: no target is one of its volumes", path.display());
        return Err(Error::Usage(message));
    }
    Ok(origins)
}

/// The volume that a target is, if it is one of a server with this configuration.
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
        DeviceSpec::Path(_) | DeviceSpec::Memory { .. } | DeviceSpec::Null { .. } => None,
    }
}

/// A limit gives less of a real disk; what adds latency or faults makes another disk of it.
fn nature(volume: &Volume) -> Nature {
    let acts =
        |layer: &Layer| matches!(layer, Layer::Emulate(_) | Layer::Delay(_) | Layer::Fault(_));
    if volume.layers.iter().any(acts) {
        return Nature::Emulated;
    }
    volume.backing.devices().iter().map(nature_of_device).max().unwrap_or_default()
}

fn nature_of_device(device: &DeviceSpec) -> Nature {
    match device {
        DeviceSpec::Path(_) => Nature::Real,
        DeviceSpec::Memory { .. } | DeviceSpec::Null { .. } => Nature::Memory,
        DeviceSpec::NvmeTcp(_) | DeviceSpec::Nbd(_) => Nature::Served,
    }
}

/// The same of the names that the API has for layers and devices. What is not known is not taken
/// for real.
pub(super) fn nature_of(layers: &[String], devices: &[String]) -> Nature {
    let known = ["limit", "shared_limit", "mirror", "stripe"];
    if layers.iter().any(|layer| ["emulate", "delay", "fault"].contains(&layer.as_str())) {
        return Nature::Emulated;
    }
    if layers.iter().any(|layer| !known.contains(&layer.as_str())) {
        return Nature::Unknown;
    }
    let of = |device: &String| device.parse().map_or(Nature::Unknown, |it| nature_of_device(&it));
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
emulate = { latency = "1ms" }
device = "/dev/sdb1"
[volume.ram]
device = "memory:1GiB"
"#;

    fn found(address: &str) -> Option<Nature> {
        let config = Config::parse("x", STACK).unwrap_or_else(|error| panic!("{error}"));
        volume_of(&config, &address.parse().expect("a device")).map(nature)
    }

    #[test]
    fn what_the_api_says_is_judged() {
        let of = |layers: &[&str], device: &str| {
            nature_of(
                &layers.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>(),
                &[device.to_owned()],
            )
        };
        assert_eq!(of(&["limit"], "/dev/sdb"), Nature::Real);
        assert_eq!(of(&["limit", "emulate"], "/dev/sdb"), Nature::Emulated);
        assert_eq!(of(&[], "memory:1GiB"), Nature::Memory);
        assert_eq!(of(&["of a later version"], "/dev/sdb"), Nature::Unknown);
        assert_eq!(nature_of(&[], &[]), Nature::Unknown);
    }

    #[test]
    fn volumes_are_found_and_judged() {
        let nqn = "nqn.2026-01.io.flagstone";
        assert_eq!(found("nbd://h/real"), Some(Nature::Real));
        assert_eq!(found("nbd://h/lab"), Some(Nature::Emulated));
        assert_eq!(found("nbd://h/ram"), Some(Nature::Memory));
        assert_eq!(found("nbd://h/other"), None);
        assert_eq!(found(&format!("nvme-tcp://h/{nqn}:lab")), Some(Nature::Emulated));
        assert_eq!(found(&format!("nvme-tcp://h/{nqn}:none")), None);
        assert_eq!(found("/dev/sdb1"), None);
    }
}
