//! File system checks: discard, ext4 initialization after mkfs, barriers on local SSD.

use crate::facts::{DiskFacts, HostFacts, Media};
use crate::inspect::DeviceUse;
use crate::parse::Mount;

use super::{CheckResults, Evidence, Expectations, GOOGLE, REASONED, Severity, node, quote};

/// File systems that pass discards on.
const DISCARDING: [&str; 5] = ["ext4", "xfs", "btrfs", "f2fs", "vfat"];

pub(super) fn judge(
    facts: &HostFacts,
    expected: &Expectations,
    disk: &DiskFacts,
    out: &mut CheckResults,
) {
    for mount in facts.mounts_of(disk).filter(|mount| DISCARDING.contains(&mount.fs.as_str())) {
        discard(facts, disk, mount, out);
        barrier(disk, mount, out);
    }
    let is_mounted = facts.mounts_of(disk).next().is_some();
    let is_free = facts.uses.get(&disk.name).is_none_or(DeviceUse::is_free);
    let is_blank = is_free && !is_mounted && disk.partitions.is_empty() && disk.holders.is_empty();
    if expected.named.contains(&disk.name) && facts.mounts.is_some() && is_blank {
        format(disk, out);
    }
}

fn evidence(mount: &Mount) -> Evidence {
    let value = format!("{} {} {}", mount.source, mount.at, mount.options.join(","));
    let value = value.chars().map(|c| if c.is_control() { ' ' } else { c }).take(160).collect();
    Evidence { file: "/proc/self/mountinfo".to_owned(), value }
}

fn discard(facts: &HostFacts, disk: &DiskFacts, mount: &Mount, out: &mut CheckResults) {
    const CHECK: &str = "discard";
    let Some(most) = disk.discard_max_bytes.as_ref().filter(|most| most.value > 0) else { return };
    if mount.options.iter().any(|o| o == "discard" || o.starts_with("discard=")) {
        return out.passed(CHECK, &mount.at, "mounted with discard");
    }
    match &facts.fstrim {
        Some(seen) if seen.value => out.passed(CHECK, &mount.at, "fstrim runs regularly"),
        None => out.unknown(&mount.at, "whether fstrim runs regularly is not known"),
        Some(seen) => {
            let what = "the disk is never informed of freed blocks";
            let evidence = [evidence(mount), most.into(), seen.into()];
            out.found(CHECK, Severity::Medium, &mount.at, what, evidence)
                .effect("an SSD that knows its free blocks has less to move on writes", GOOGLE)
                .by_hand(
                    format!(
                        "systemctl enable --now fstrim.timer\n# or, at once and always: \
                             mount -o remount,discard {}",
                        quote(&mount.at)
                    ),
                    "systemctl disable --now fstrim.timer",
                    "discarded blocks cannot be recovered by an undelete tool",
                );
        }
    }
}

fn barrier(disk: &DiskFacts, mount: &Mount, out: &mut CheckResults) {
    const CHECK: &str = "barriers";
    let is_off = mount.has("nobarrier") || mount.has("barrier=0");
    // xfs and btrfs dropped the option, or never recommended it.
    let can_be_off = mount.fs == "ext4";
    let remount = |option: &str| format!("mount -o remount,{option} {}", quote(&mount.at));
    let (off, on) = (remount("nobarrier"), remount("barrier"));
    match (disk.media == Media::LocalSsd, is_off) {
        (true, true) => {
            out.passed(CHECK, &mount.at, "off, on a local SSD; a crash may cost its data")
        }
        (true, false) if can_be_off => {
            let what = "barriers are on; on a local SSD they may be traded for speed";
            out.found(CHECK, Severity::Info, &mount.at, what, [evidence(mount)])
                .effect("fsync does not wait for the SSD's flush", GOOGLE)
                .by_hand(
                    off,
                    on,
                    "after a crash of the machine or a loss of power, what fsync promised may be \
                     lost and the file system be damaged; the page lets a local SSD flush within 2 \
                     s. Only for data that can be made again",
                );
        }
        (_, false) => out.passed(CHECK, &mount.at, "on"),
        (false, true) => {
            let what = "barriers are off on a disk that outlives its machine";
            out.found(CHECK, Severity::Info, &mount.at, what, [evidence(mount)])
                .effect("on, they cost the wait for a flush at fsync, and keep promises", REASONED)
                .by_hand(
                    on,
                    off,
                    "as it is, a crash may damage the file system and lose what fsync promised",
                );
        }
    }
}

/// mkfs options for a disk that is about to be used.
fn format(disk: &DiskFacts, out: &mut CheckResults) {
    let node = node(&disk.name);
    let what = "for ext4, initialize everything at mkfs";
    let evidence = disk.discard_max_bytes.as_ref().map(Evidence::from);
    let options = match disk.discard_max_bytes.as_ref().is_some_and(|most| most.value > 0) {
        true => "lazy_itable_init=0,lazy_journal_init=0,discard",
        false => "lazy_itable_init=0,lazy_journal_init=0",
    };
    out.found("mkfs", Severity::Info, &disk.name, what, evidence)
        .effect("no background writes of ext4 after mkfs", GOOGLE)
        .by_hand(
            format!("mkfs.ext4 -E {options} {node}"),
            "none: mkfs destroys what was there",
            format!("destroys what is on {node}; look first: blkid {node}"),
        );
}

/// ext4's background initialization, while it runs.
pub(super) fn lazy_initialization(facts: &HostFacts, out: &mut CheckResults) {
    const CHECK: &str = "ext4 initialization";
    let Some(processes) = facts.processes else { return };
    if !processes.ext4_lazyinit {
        return out.passed(CHECK, "host", "no ext4 is being initialized in the background");
    }
    let value = "ext4lazyinit".to_owned();
    let evidence = [Evidence { file: "/proc/*/comm".to_owned(), value }];
    let what = "the kernel still writes tables of a new ext4 in the background";
    let mounts = facts.mounts.iter().flatten().filter(|mount| mount.fs == "ext4");
    let command: Vec<String> = mounts
        .map(|mount| format!("mount -o remount,init_itable=0 {}", quote(&mount.at)))
        .collect();
    out.found(CHECK, Severity::Medium, "host", what, evidence)
        .effect("measurements are disturbed until it is done", REASONED)
        .by_hand(
            format!("# full speed, to be done sooner\n{}", command.join("\n")),
            command.join("\n").replace("init_itable=0", "init_itable=10"),
            "at full speed it takes more of the disk until it is done",
        );
}
