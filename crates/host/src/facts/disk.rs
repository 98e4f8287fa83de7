//! Facts of a disk.

use crate::limits::DISKS_MAX;
use crate::parse::{self, Mount};

use super::HostFacts;
use super::reader::{FactReader, Observed};

/// Kind of a disk, as far as its settings depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Media {
    /// A cloud's network disk, identified by its model.
    CloudDisk,
    /// A cloud's local SSD, identified by its model; lost with its machine.
    LocalSsd,
    /// Not rotating, or a virtual disk of unknown kind.
    Ssd,
    Hdd,
    /// Built from other devices: device mapper, md, loop.
    Virtual,
}

#[derive(Debug, Clone)]
pub(crate) struct Partition {
    pub(crate) name: String,
    pub(crate) dev: Option<String>,
    /// Start, in sectors of 512 bytes.
    pub(crate) start_sectors: Option<Observed<u64>>,
}

/// A disk as the kernel shows it. A setting that the kernel or the disk lacks is `None`.
#[derive(Debug, Clone)]
pub(crate) struct DiskFacts {
    pub(crate) name: String,
    pub(crate) media: Media,
    pub(crate) dev: Option<String>,
    pub(crate) size_bytes: Option<u64>,
    /// Manufacturer, for SCSI.
    pub(crate) vendor: Option<Observed<String>>,
    pub(crate) model: Option<Observed<String>>,
    pub(crate) scheduler: Option<Observed<String>>,
    pub(crate) schedulers: Vec<String>,
    pub(crate) read_ahead_kb: Option<Observed<u64>>,
    /// Requests kept for each queue.
    pub(crate) nr_requests: Option<Observed<u64>>,
    /// Requests in flight at the device, for SCSI.
    pub(crate) queue_depth: Option<Observed<u64>>,
    /// Hardware queues of blk-mq; 0 without blk-mq.
    pub(crate) hardware_queues: Option<usize>,
    pub(crate) physical_block_bytes: Option<Observed<u64>>,
    /// Optimal I/O size, in bytes; 0 if unknown.
    pub(crate) optimal_io_bytes: Option<Observed<u64>>,
    /// Maximum bytes of one discard; 0 without discard.
    pub(crate) discard_max_bytes: Option<Observed<u64>>,
    pub(crate) partitions: Vec<Partition>,
    pub(crate) holders: Vec<String>,
}

impl DiskFacts {
    /// Whether a mount is on this disk or one of its partitions.
    pub(crate) fn is_mounted_as(&self, mount: &Mount) -> bool {
        let parts = self.partitions.iter().map(|part| (&part.name, &part.dev));
        std::iter::once((&self.name, &self.dev)).chain(parts).any(|(name, dev)| {
            dev.as_ref() == Some(&mount.dev)
                || mount.source.strip_prefix("/dev/") == Some(&name.replace('!', "/"))
        })
    }

    pub(crate) fn is_scsi(&self) -> bool {
        self.name.starts_with("sd")
    }
}

/// Disks without data of their own are examined only if named.
const UNASKED: [&str; 7] = ["loop", "ram", "zram", "sr", "fd", "nbd", "mtdblock"];

pub(super) fn read(
    reader: &mut FactReader<'_>,
    named: &[String],
    facts: &HostFacts,
) -> Vec<DiskFacts> {
    let mut names = match named.is_empty() {
        true => reader.names("/sys/block"),
        false => named.to_vec(),
    };
    if !reader.root.exists("/sys/block") {
        reader.fail("/sys/block", "there is none: sysfs is not mounted here");
        return Vec::new();
    }
    if named.is_empty() {
        names.retain(|name| !UNASKED.iter().any(|prefix| name.starts_with(prefix)));
    }
    if names.len() > DISKS_MAX {
        reader.fail("/sys/block", format!("more than {DISKS_MAX} disks; the rest is left out"));
        names.truncate(DISKS_MAX);
    }
    let is_present = |disk: &DiskFacts| disk.size_bytes != Some(0) || !named.is_empty();
    names.iter().map(|name| disk(reader, name, facts)).filter(is_present).collect()
}

fn disk(reader: &mut FactReader<'_>, name: &str, facts: &HostFacts) -> DiskFacts {
    let base = format!("/sys/block/{name}");
    let queue = format!("{base}/queue");
    let vendor = reader.text(&format!("{base}/device/vendor"));
    let model = reader.text(&format!("{base}/device/model"));
    let rotational = reader.number(&format!("{queue}/rotational")).map(|seen| seen.value != 0);
    let scheduler = format!("{queue}/scheduler");
    let schedulers = reader.text(&scheduler);
    let partitions: Vec<Partition> = partitions(reader, &base);
    let mut holders = reader.names(&format!("{base}/holders"));
    for partition in &partitions {
        holders.extend(reader.names(&format!("{base}/{}/holders", partition.name)));
    }
    DiskFacts {
        name: name.to_owned(),
        media: media(name, model.as_ref().map(|seen| seen.value.as_str()), rotational),
        dev: reader.text(&format!("{base}/dev")).map(|seen| seen.value),
        size_bytes: reader
            .number(&format!("{base}/size"))
            .map(|seen| seen.value.saturating_mul(512)),
        vendor,
        model,
        scheduler: match schedulers {
            Some(_) => reader.parsed(&scheduler, |text| parse::chosen(text).map(str::to_owned)),
            None => None,
        },
        schedulers: schedulers.map(|seen| parse::choices(&seen.value)).unwrap_or_default(),
        read_ahead_kb: reader.number(&format!("{queue}/read_ahead_kb")),
        nr_requests: reader.number(&format!("{queue}/nr_requests")),
        queue_depth: reader.number(&format!("{base}/device/queue_depth")),
        hardware_queues: facts.kernel.is_some().then(|| reader.names(&format!("{base}/mq")).len()),
        physical_block_bytes: reader.number(&format!("{queue}/physical_block_size")),
        optimal_io_bytes: reader.number(&format!("{queue}/optimal_io_size")),
        discard_max_bytes: reader.number(&format!("{queue}/discard_max_bytes")),
        partitions,
        holders,
    }
}

fn partitions(reader: &mut FactReader<'_>, base: &str) -> Vec<Partition> {
    let mut names = reader.names(base);
    names.retain(|name| reader.root.exists(&format!("{base}/{name}/partition")));
    names
        .into_iter()
        .map(|name| Partition {
            dev: reader.text(&format!("{base}/{name}/dev")).map(|seen| seen.value),
            start_sectors: reader.number(&format!("{base}/{name}/start")),
            name,
        })
        .collect()
}

const MODELS: [(&str, Media); 6] = [
    ("PersistentDisk", Media::CloudDisk),
    ("nvme_card-pd", Media::CloudDisk),
    ("EphemeralDisk", Media::LocalSsd),
    ("nvme_card", Media::LocalSsd),
    ("Amazon Elastic Block Store", Media::CloudDisk),
    ("Amazon EC2 NVMe Instance Storage", Media::LocalSsd),
];

/// Whether a disk of this name and model loses its content when its machine stops.
pub(crate) fn is_lost_with_machine(name: &str, model: Option<&str>) -> bool {
    let is_memory = ["zram", "ram"].iter().any(|prefix| name.starts_with(prefix));
    is_memory || media(name, model, None) == Media::LocalSsd
}

fn media(name: &str, model: Option<&str>, rotational: Option<bool>) -> Media {
    let known = model
        .and_then(|model| MODELS.iter().find(|(known, _)| model.starts_with(known)))
        .map(|&(_, media)| media);
    let is_virtual = ["dm-", "md", "loop", "zram", "ram"].iter().any(|p| name.starts_with(p));
    let is_paravirtual = name.starts_with("vd") || name.starts_with("xvd");
    match (known, rotational) {
        (Some(media), _) => media,
        _ if is_virtual => Media::Virtual,
        // A virtual disk claims to rotate if it knows nothing; its host schedules for it.
        (None, Some(true)) if !is_paravirtual => Media::Hdd,
        (None, _) => Media::Ssd,
    }
}
