//! Device inspection: the current use of a device or file, which protects data from destruction.
//!
//! Inspection errs toward "in use": [`DeviceUse::unknown`] lists everything that could not be
//! examined, and such a device is not free. It changes nothing on the device. It shows one moment:
//! a free device may be mounted the next.

mod signature;

use std::fs::{File, Metadata};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use crate::limits::HOLDER_LEVELS_MAX;
use crate::parse;
use crate::root::{self, Root};

pub use signature::{DiskSignature, signatures};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum InspectTarget {
    BlockDevice {
        /// Name, such as `sdb` or `nvme0n1p1`; `major:minor` if sysfs does not know it.
        name: String,
        /// Bytes; `None` if sysfs does not know them.
        size_bytes: Option<u64>,
    },
    File {
        size_bytes: u64,
    },
    /// A directory, a character device or another object without data.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Use {
    pub device: String,
    #[serde(flatten)]
    pub kind: UseKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "use")]
pub enum UseKind {
    Mounted {
        at: String,
    },
    Swap,
    /// Part of another device: device mapper (LVM, LUKS, multipath), md, bcache, DRBD.
    Holder {
        holder: String,
    },
    /// A loop device over a file.
    Loop,
    Partitions {
        partitions: Vec<String>,
    },
    /// A file system, a volume or a partition table.
    Signature {
        signature: DiskSignature,
    },
    /// Claimed in the kernel by an unknown user, such as a mount in another container.
    Claimed,
    /// Read-only.
    ReadOnly,
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let device = &self.device;
        match &self.kind {
            UseKind::Mounted { at } => write!(f, "{device} is mounted at {at}"),
            UseKind::Swap => write!(f, "{device} is swap space in use"),
            UseKind::Holder { holder } => write!(f, "{device} is a part of {holder}"),
            UseKind::Loop => write!(f, "it is the loop device {device}"),
            UseKind::Partitions { partitions } => {
                write!(f, "{device} has partitions: {}", partitions.join(", "))
            }
            UseKind::Signature { signature: DiskSignature { kind, offset_bytes } } => {
                write!(f, "{device} holds {kind} (at byte {offset_bytes})")
            }
            UseKind::Claimed => write!(f, "the kernel has {device} claimed for something"),
            UseKind::ReadOnly => write!(f, "{device} is read-only"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceUse {
    pub path: PathBuf,
    pub target: InspectTarget,
    pub uses: Vec<Use>,
    /// Parts that could not be examined, with the reason.
    pub unknown: Vec<String>,
}

impl DeviceUse {
    /// Whether no use was found and everything could be examined. A file with content but without a
    /// signature is free in this sense; the caller must know its owner.
    pub fn is_free(&self) -> bool {
        self.uses.is_empty() && self.unknown.is_empty() && self.target != InspectTarget::Other
    }

    pub fn reasons(&self) -> Vec<String> {
        let other = (self.target == InspectTarget::Other)
            .then(|| "it is neither a block device nor a regular file".to_owned());
        let uses = self.uses.iter().map(ToString::to_string);
        uses.chain(self.unknown.iter().cloned()).chain(other).collect()
    }
}

/// Inspects a block device or file of this host. Follows links.
///
/// # Errors
/// The path does not exist. All other failures are in [`DeviceUse::unknown`].
pub fn inspect(path: &Path) -> io::Result<DeviceUse> {
    let metadata = std::fs::metadata(path)?;
    let mut look = Look::new();
    let target = if metadata.file_type().is_block_device() {
        look.block_device(path, metadata.rdev())
    } else if metadata.is_file() {
        look.file(path, &metadata);
        InspectTarget::File { size_bytes: metadata.len() }
    } else {
        InspectTarget::Other
    };
    Ok(DeviceUse { path: path.to_owned(), target, uses: look.uses, unknown: look.unknown })
}

struct Look {
    host: Root,
    mounts: Vec<parse::Mount>,
    swaps: Vec<String>,
    uses: Vec<Use>,
    unknown: Vec<String>,
}

impl Look {
    fn new() -> Look {
        let mut look = Look {
            host: Root::new("/"),
            mounts: Vec::new(),
            swaps: Vec::new(),
            uses: Vec::new(),
            unknown: Vec::new(),
        };
        look.mounts = parse::mounts(&look.text("/proc/self/mountinfo", "mounts"));
        // A kernel without swap support has no such file.
        if look.host.exists("/proc/swaps") {
            look.swaps = parse::swaps(&look.text("/proc/swaps", "swap space"));
        }
        look
    }

    /// Adds a use, unless it is known.
    fn found(&mut self, device: &str, kind: UseKind) {
        let found = Use { device: device.to_owned(), kind };
        if !self.uses.contains(&found) {
            self.uses.push(found);
        }
    }

    fn cannot_open(&mut self, what: &str, error: &io::Error) {
        self.unknown.push(format!("signatures: cannot open {what}: {error}"));
    }

    fn text(&mut self, path: &str, what: &str) -> String {
        self.host.read(path).unwrap_or_else(|error| {
            self.unknown.push(format!("{what}: cannot read {path}: {error}"));
            String::new()
        })
    }

    fn block_device(&mut self, path: &Path, rdev: u64) -> InspectTarget {
        let number = number(rdev);
        let directory = format!("/sys/dev/block/{number}");
        let name = std::fs::canonicalize(&directory)
            .ok()
            .and_then(|real| real.file_name().map(|name| name.to_string_lossy().into_owned()));
        let name = match name {
            Some(name) => name,
            None => {
                self.unknown.push(format!("holders and partitions: sysfs has no {directory}"));
                number.clone()
            }
        };
        self.in_use(&name, &number);
        self.partitions(&name, &directory);
        self.parent(&directory);
        self.claimed(path, &name);
        match root::open(path) {
            Ok(device) => self.signatures(device, &name),
            Err(error) => self.cannot_open(&path.display().to_string(), &error),
        }
        let sectors = self.host.read(&format!("{directory}/size"));
        let sectors = sectors.ok().and_then(|text| text.parse::<u64>().ok());
        let size_bytes = sectors.map(|sectors| sectors.saturating_mul(512));
        InspectTarget::BlockDevice { name, size_bytes }
    }

    /// Mounts, swap and holders of one device or partition.
    fn in_use(&mut self, name: &str, number: &str) {
        let is_device = |path: &str| {
            std::fs::metadata(path).is_ok_and(|found| {
                found.file_type().is_block_device() && self::number(found.rdev()) == number
            })
        };
        // btrfs has a separate number for each mount, and names one of its devices.
        let is_here = |mount: &&parse::Mount| {
            mount.dev == number || mount.source.starts_with('/') && is_device(&mount.source)
        };
        let mounts: Vec<_> = self.mounts.iter().filter(is_here).map(|one| one.at.clone()).collect();
        let is_swap = self.swaps.iter().any(|swap| is_device(swap));
        for at in mounts {
            self.found(name, UseKind::Mounted { at });
        }
        if is_swap {
            self.found(name, UseKind::Swap);
        }
        self.holders(name, &format!("/sys/dev/block/{number}/holders"), 0);
    }

    fn holders(&mut self, name: &str, directory: &str, level: usize) {
        if level == HOLDER_LEVELS_MAX {
            return;
        }
        for holder in self.host.list(directory).unwrap_or_default() {
            let kind = UseKind::Holder { holder: holder.clone() };
            let found = Use { device: name.to_owned(), kind };
            if self.uses.contains(&found) {
                continue;
            }
            self.uses.push(found);
            if let Ok(number) = self.host.read(&format!("/sys/block/{holder}/dev")) {
                let mounts = self.mounts.iter().filter(|mount| mount.dev == number);
                for at in mounts.map(|mount| mount.at.clone()).collect::<Vec<_>>() {
                    self.found(&holder, UseKind::Mounted { at });
                }
            }
            self.holders(&holder, &format!("/sys/block/{holder}/holders"), level + 1);
        }
    }

    fn partitions(&mut self, name: &str, directory: &str) {
        let inside = self.host.list(directory).unwrap_or_default();
        let is_partition =
            |entry: &String| self.host.exists(&format!("{directory}/{entry}/partition"));
        let partitions: Vec<String> = inside.into_iter().filter(is_partition).collect();
        if partitions.is_empty() {
            return;
        }
        for partition in &partitions {
            if let Ok(number) = self.host.read(&format!("{directory}/{partition}/dev")) {
                self.in_use(partition, &number);
            }
            let node = PathBuf::from("/dev").join(partition.replace('!', "/"));
            if let Ok(device) = root::open(&node) {
                self.signatures(device, partition);
            }
        }
        self.found(name, UseKind::Partitions { partitions });
    }

    /// A partition is also in use if its whole disk is, as part of a mapping or mounted.
    fn parent(&mut self, directory: &str) {
        if !self.host.exists(&format!("{directory}/partition")) {
            return;
        }
        let Ok(real) = std::fs::canonicalize(directory) else { return };
        let Some(parent) = real.parent().and_then(Path::file_name) else { return };
        let parent = parent.to_string_lossy().into_owned();
        if let Ok(number) = self.host.read(&format!("/sys/block/{parent}/dev")) {
            self.in_use(&parent, &number);
        }
    }

    /// An exclusive open fails, at once, for a device in use in any mount namespace.
    fn claimed(&mut self, path: &Path, name: &str) {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let is_busy = rustix::fs::open(path, flags, Mode::empty())
            .is_err_and(|error| error == rustix::io::Errno::BUSY);
        if is_busy && self.uses.is_empty() {
            self.found(name, UseKind::Claimed);
        }
        let read_only = self.host.read(&format!("/sys/class/block/{name}/ro"));
        if read_only.is_ok_and(|text| text == "1") {
            self.found(name, UseKind::ReadOnly);
        }
    }

    fn signatures(&mut self, mut device: File, name: &str) {
        let size = device.seek(SeekFrom::End(0));
        match size.and_then(|size| signatures(&mut device, size)) {
            Ok(found) => {
                for signature in found {
                    self.found(name, UseKind::Signature { signature });
                }
            }
            Err(error) => self.unknown.push(format!("signatures: cannot read {name}: {error}")),
        }
    }

    fn file(&mut self, path: &Path, metadata: &Metadata) {
        let name = path.display().to_string();
        let is_same = |other: &str| {
            std::fs::metadata(other)
                .is_ok_and(|o| o.dev() == metadata.dev() && o.ino() == metadata.ino())
        };
        if self.swaps.iter().any(|swap| is_same(swap)) {
            self.found(&name, UseKind::Swap);
        }
        for device in self.host.list("/sys/block").unwrap_or_default() {
            let backing = self.host.read(&format!("/sys/block/{device}/loop/backing_file"));
            if backing.is_ok_and(|backing| is_same(&backing)) {
                self.found(&device, UseKind::Loop);
            }
        }
        match root::open(path) {
            Ok(file) => self.signatures(file, &name),
            Err(error) => self.cannot_open(&name, &error),
        }
    }
}

fn number(rdev: u64) -> String {
    format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev))
}
