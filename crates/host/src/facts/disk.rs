//! The facts of a disk.

use crate::limits::DISKS_MAX;
use crate::parse::{self, Mount};

use super::reader::{Reader, Seen};
use super::{Facts, Selection};

/// What a disk is, as far as its settings care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// A network disk of a cloud that says so.
    CloudDisk,
    /// A local SSD of a cloud that says so, lost with its machine.
    LocalSsd,
    /// It does not rotate, or is a virtual machine's view of a disk that may or may not.
    Ssd,
    /// It rotates.
    Hdd,
    /// Made of other devices: device mapper, md, loop.
    Virtual,
}

/// A partition.
#[derive(Debug, Clone)]
pub struct Partition {
    /// The kernel's name.
    pub name: String,
    /// `major:minor`.
    pub dev: Option<String>,
    /// Where it begins, in sectors of 512 bytes.
    pub start_sectors: Option<Seen<u64>>,
}

/// A disk, as the kernel shows it. Each setting is absent where the kernel or the disk has none.
#[derive(Debug, Clone)]
pub struct Disk {
    /// The kernel's name.
    pub name: String,
    /// What it is.
    pub media: Media,
    /// `major:minor`.
    pub dev: Option<String>,
    /// Bytes.
    pub size_bytes: Option<u64>,
    /// Manufacturer, for SCSI.
    pub vendor: Option<Seen<String>>,
    /// What the disk calls itself.
    pub model: Option<Seen<String>>,
    /// The I/O scheduler in force.
    pub scheduler: Option<Seen<String>>,
    /// The schedulers it may have.
    pub schedulers: Vec<String>,
    /// Read-ahead, in KiB.
    pub read_ahead_kb: Option<Seen<u64>>,
    /// Requests that are kept for each queue.
    pub nr_requests: Option<Seen<u64>>,
    /// Requests that the device takes at a time, for SCSI.
    pub queue_depth: Option<Seen<u64>>,
    /// Hardware queues of blk-mq; 0 when the disk is not under blk-mq.
    pub hardware_queues: Option<usize>,
    /// Largest unit of its blocks, in bytes.
    pub physical_block_bytes: Option<Seen<u64>>,
    /// The size of I/O that it does best, in bytes; 0 when it does not say.
    pub optimal_io_bytes: Option<Seen<u64>>,
    /// Most bytes of one discard; 0 when it has none.
    pub discard_max_bytes: Option<Seen<u64>>,
    /// Its partitions.
    pub partitions: Vec<Partition>,
    /// Devices that are made of it or of its partitions.
    pub holders: Vec<String>,
}

impl Disk {
    /// Whether a mount is of this disk or of one of its partitions.
    pub fn is_mounted_as(&self, mount: &Mount) -> bool {
        let parts = self.partitions.iter().map(|part| (&part.name, &part.dev));
        std::iter::once((&self.name, &self.dev)).chain(parts).any(|(name, dev)| {
            dev.as_ref() == Some(&mount.dev)
                || mount.source.strip_prefix("/dev/") == Some(&name.replace('!', "/"))
        })
    }

    /// Whether it is reached through the kernel's SCSI layer.
    pub fn is_scsi(&self) -> bool {
        self.name.starts_with("sd")
    }
}

/// Disks that hold nobody's data, or none of their own, are looked at only when named.
const UNASKED: [&str; 7] = ["loop", "ram", "zram", "sr", "fd", "nbd", "mtdblock"];

pub(super) fn read(reader: &mut Reader<'_>, selection: &Selection, facts: &Facts) -> Vec<Disk> {
    let mut names = match selection.disks.is_empty() {
        true => reader.names("/sys/block"),
        false => selection.disks.clone(),
    };
    if !reader.root.exists("/sys/block") {
        reader.fail("/sys/block", "there is none: sysfs is not mounted here");
        return Vec::new();
    }
    if selection.disks.is_empty() {
        names.retain(|name| !UNASKED.iter().any(|prefix| name.starts_with(prefix)));
    }
    if names.len() > DISKS_MAX {
        reader.fail("/sys/block", format!("more than {DISKS_MAX} disks; the rest is left out"));
        names.truncate(DISKS_MAX);
    }
    let is_present = |disk: &Disk| disk.size_bytes != Some(0) || !selection.disks.is_empty();
    names.iter().map(|name| disk(reader, name, facts)).filter(is_present).collect()
}

fn disk(reader: &mut Reader<'_>, name: &str, facts: &Facts) -> Disk {
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
    Disk {
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

fn partitions(reader: &mut Reader<'_>, base: &str) -> Vec<Partition> {
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

/// The names by which clouds' disks are known.
const MODELS: [(&str, Media); 6] = [
    ("PersistentDisk", Media::CloudDisk),
    ("nvme_card-pd", Media::CloudDisk),
    ("EphemeralDisk", Media::LocalSsd),
    ("nvme_card", Media::LocalSsd),
    ("Amazon Elastic Block Store", Media::CloudDisk),
    ("Amazon EC2 NVMe Instance Storage", Media::LocalSsd),
];

fn media(name: &str, model: Option<&str>, rotational: Option<bool>) -> Media {
    let known = model
        .and_then(|model| MODELS.iter().find(|(known, _)| model.starts_with(known)))
        .map(|&(_, media)| media);
    let is_virtual = ["dm-", "md", "loop", "zram", "ram"].iter().any(|p| name.starts_with(p));
    let is_paravirtual = name.starts_with("vd") || name.starts_with("xvd");
    match (known, rotational) {
        (Some(media), _) => media,
        _ if is_virtual => Media::Virtual,
        // A virtual disk says that it rotates when it knows nothing; its host schedules for it.
        (None, Some(true)) if !is_paravirtual => Media::Hdd,
        (None, _) => Media::Ssd,
    }
}
