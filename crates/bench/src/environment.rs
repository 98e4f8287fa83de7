//! Environment of a measurement: the machine and its disks. Nothing recorded here identifies the
//! machine or its user.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cloud_machine::{Firmware, machine_type};
use crate::os::read_text;
use crate::target::{BenchTarget, DiskAddress};

/// Upper bound of a file in sysfs or procfs, in bytes.
const FILE_BYTES: u64 = 4 << 20;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Kernel and architecture, such as `Linux 6.1.0 x86_64`.
    pub kernel: String,
    pub cpu_model: String,
    pub cpus: usize,
    pub cpu_governor: Option<String>,
    pub memory_bytes: u64,
    /// Vendor and product of the machine, such as `Google Google Compute Engine`.
    pub machine: Option<String>,
    /// Machine type from the cloud's metadata, such as `n2-standard-8`.
    #[serde(default)]
    pub machine_type: Option<String>,
    pub fio: Option<String>,
    /// I/O engine of jobs that name none.
    pub engine: Option<String>,
    pub flagstone: String,
    pub disks: BTreeMap<String, DiskRecord>,
}

/// What a benchmark accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskKind {
    /// A block device of this machine.
    Device,
    /// A file, or a path that cannot be inspected.
    File,
    /// A volume of a server.
    Served,
    /// Not recorded, or recorded by a later version.
    #[default]
    #[serde(other)]
    Unknown,
}

impl DiskKind {
    pub fn name(self) -> &'static str {
        match self {
            DiskKind::Device => "device",
            DiskKind::File => "file",
            DiskKind::Served => "served",
            DiskKind::Unknown => "unknown",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskRecord {
    pub kind: DiskKind,
    pub size_bytes: Option<u64>,
    /// Driver of a served disk, with the reason for the choice.
    #[serde(default)]
    pub initiator: Option<String>,
    pub device: Option<String>,
    pub model: Option<String>,
    pub mount: Option<String>,
    /// Attributes of `queue/` in sysfs, such as `scheduler` and `nr_requests`.
    pub queue: BTreeMap<String, String>,
}

/// Attributes of a block device's queue that affect performance.
const QUEUE: [&str; 9] = [
    "scheduler",
    "nr_requests",
    "read_ahead_kb",
    "rotational",
    "write_cache",
    "logical_block_size",
    "max_sectors_kb",
    "nomerges",
    "wbt_lat_usec",
];

fn text(path: impl AsRef<Path>) -> Option<String> {
    let text = read_text(path.as_ref(), FILE_BYTES).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

pub fn record(targets: &[BenchTarget], fio: Option<&crate::fio::Fio>) -> Environment {
    let uname = rustix::system::uname();
    let word = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let info = text("/proc/cpuinfo").unwrap_or_default();
    let memory = text("/proc/meminfo").unwrap_or_default();
    let dmi = |name: &str| text(Path::new("/sys/class/dmi/id").join(name));
    let [vendor, product, tag] = ["sys_vendor", "product_name", "chassis_asset_tag"].map(dmi);
    let firmware = Firmware {
        vendor: vendor.as_deref().unwrap_or_default(),
        product: product.as_deref().unwrap_or_default(),
        tag: tag.as_deref().unwrap_or_default(),
    };
    let machine_type = machine_type(firmware);
    let machine: Vec<_> = [vendor, product].into_iter().flatten().collect();
    let disks = targets.iter().flat_map(|target| &target.disks);
    Environment {
        kernel: [uname.sysname(), uname.release(), uname.machine()].map(word).join(" "),
        cpu_model: field(&info, "model name").unwrap_or_default(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        cpu_governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes: field(&memory, "MemTotal")
            .and_then(|value| value.split(' ').next()?.parse::<u64>().ok())
            .map_or(0, |kib| kib.saturating_mul(1024)),
        machine: (!machine.is_empty()).then(|| machine.join(" ")),
        machine_type,
        fio: fio.map(|fio| fio.version().to_owned()),
        engine: fio.map(|fio| fio.engine().to_owned()),
        flagstone: env!("CARGO_PKG_VERSION").to_owned(),
        disks: disks.map(|place| (place.to_string(), disk(place))).collect(),
    }
}

fn field(text: &str, name: &str) -> Option<String> {
    let of = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    };
    text.lines().find_map(of)
}

pub(crate) fn disk(place: &DiskAddress) -> DiskRecord {
    let served = || DiskRecord { kind: DiskKind::Served, ..DiskRecord::default() };
    let Some(path) = place.path() else { return served() };
    let Ok(metadata) = std::fs::metadata(path) else {
        return DiskRecord { kind: DiskKind::File, ..DiskRecord::default() };
    };
    let is_device = metadata.file_type().is_block_device();
    let number = if is_device { metadata.rdev() } else { metadata.dev() };
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let sysfs = whole_disk(&format!("/sys/dev/block/{number}"));
    let mut disk = DiskRecord {
        kind: if is_device { DiskKind::Device } else { DiskKind::File },
        size_bytes: crate::os::size_of(path).ok(),
        mount: if is_device { None } else { mount_of(&number) },
        ..DiskRecord::default()
    };
    if let Some(sysfs) = sysfs {
        disk.device = sysfs.file_name().map(|name| name.to_string_lossy().into_owned());
        disk.model = text(sysfs.join("device/model"));
        for name in QUEUE {
            if let Some(value) = text(sysfs.join("queue").join(name)) {
                disk.queue.insert(name.to_owned(), value);
            }
        }
    }
    disk
}

/// sysfs directory of the whole disk of a partition.
fn whole_disk(path: &str) -> Option<PathBuf> {
    let real = std::fs::canonicalize(path).ok()?;
    if real.join("partition").exists() { real.parent().map(Path::to_owned) } else { Some(real) }
}

fn mount_of(number: &str) -> Option<String> {
    let mounts = flagstone_host::mounts(&text("/proc/self/mountinfo")?);
    let found = mounts.iter().find(|mount| mount.dev == number)?;
    Some(format!("{} {}", found.fs, found.options.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_of_this_machine() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0; 1000]).unwrap();
        let target: BenchTarget = file.path().to_str().unwrap().parse().unwrap();
        let served: BenchTarget = "nbd://h/e".parse().unwrap();
        let found = record(&[target, served], None);
        assert!(found.kernel.starts_with("Linux ") && found.cpus > 0 && found.memory_bytes > 0);
        assert_eq!(found.disks["nbd://h/e"].kind, DiskKind::Served);
        let disk = &found.disks[file.path().to_str().unwrap()];
        assert_eq!((disk.kind, disk.size_bytes), (DiskKind::File, Some(1000)));
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Environment>(&text).unwrap(), found);
    }

    #[test]
    fn unknown_disk_kinds_are_read() {
        for kind in ["", "tape"] {
            let text = format!(r#"{{"kind": "{kind}", "queue": {{}}}}"#);
            let disk: DiskRecord = serde_json::from_str(&text).unwrap();
            assert_eq!(disk, DiskRecord::default());
        }
    }
}
