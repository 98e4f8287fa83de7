//! Disk queue checks: scheduler, read-ahead, depth, blk-mq, interface and alignment.

use crate::facts::{DiskFacts, HostFacts, Media, Observed};

use super::{
    CheckResults, Evidence, Expectations, GOOGLE, REASONED, SettingChange, Severity, TuningGoal,
    node,
};

/// Read-ahead for throughput: 8 MiB, from Google's page.
const READ_AHEAD_THROUGHPUT_KB: u64 = 8_192;
/// Maximum read-ahead for small random I/O: four blocks of 4 KiB.
const READ_AHEAD_IOPS_KB: u64 = 16;
/// Requests in flight for large volumes, from Google's page.
const IN_FLIGHT: u64 = 64;
/// Minimum IOPS per request in flight, from Google's page.
const IOPS_PER_IN_FLIGHT: u64 = 400;
/// Maximum queue depth of SATA native command queuing.
const SATA_QUEUE_DEPTH: u64 = 32;
/// First kernel with blk-mq for SCSI, and first kernel without the old path.
const SCSI_BLK_MQ_FROM: (u32, u32) = (3, 19);
const SCSI_BLK_MQ_ALWAYS: (u32, u32) = (5, 0);

pub(super) fn judge(
    facts: &HostFacts,
    expected: &Expectations,
    disk: &DiskFacts,
    out: &mut CheckResults,
) {
    scheduler(disk, out);
    read_ahead(expected, disk, out);
    depth(expected, disk, out);
    blk_mq(facts, disk, out);
    interface(disk, out);
    alignment(disk, out);
    out_of_use(facts, expected, disk, out);
}

fn setting<T>(seen: &Observed<T>, before: String, value: String) -> SettingChange {
    SettingChange { file: seen.file.clone(), before, value }
}

fn scheduler(disk: &DiskFacts, out: &mut CheckResults) {
    const CHECK: &str = "scheduler";
    let Some(seen) = &disk.scheduler else { return };
    let current = &seen.value;
    if disk.media == Media::Hdd {
        return out.passed(CHECK, &disk.name, format!("{current}, on a disk that rotates"));
    }
    if matches!(current.as_str(), "none" | "noop") {
        return out.passed(CHECK, &disk.name, current.clone());
    }
    let Some(wanted) = ["none", "noop"].iter().find(|w| disk.schedulers.iter().any(|s| s == *w))
    else {
        return out.unknown(&seen.file, "neither none nor noop can be chosen here");
    };
    let what = format!("the I/O scheduler is {current}; SSD, NVMe and cloud disks want {wanted}");
    let change = setting(seen, current.clone(), (*wanted).to_owned());
    out.found(CHECK, Severity::Medium, &disk.name, what, [seen.into()])
        .effect("saves sorting and locking for each request; more with more IOPS", GOOGLE)
        .by_writing(vec![change]);
}

fn read_ahead(expected: &Expectations, disk: &DiskFacts, out: &mut CheckResults) {
    const CHECK: &str = "read-ahead";
    let Some(seen) = &disk.read_ahead_kb else { return };
    let current = seen.value;
    let (wanted, what, effect, source) = match expected.workload {
        None => return,
        Some(TuningGoal::Throughput) if current < READ_AHEAD_THROUGHPUT_KB => (
            READ_AHEAD_THROUGHPUT_KB,
            format!("read-ahead of {current} KiB is little for throughput"),
            "sequential buffered reads keep the disk busy; costs memory and IOPS",
            GOOGLE,
        ),
        Some(TuningGoal::Iops) if current > READ_AHEAD_IOPS_KB => (
            READ_AHEAD_IOPS_KB,
            format!("read-ahead of {current} KiB reads what small random I/O does not want"),
            "no IOPS and throughput spent on unrequested blocks; buffered reads alone",
            REASONED,
        ),
        Some(_) => return out.passed(CHECK, &disk.name, format!("{current} KiB")),
    };
    let change = setting(seen, current.to_string(), wanted.to_string());
    out.found(CHECK, Severity::Medium, &disk.name, what, [seen.into()])
        .effect(effect, source)
        .by_writing(vec![change]);
}

fn depth(expected: &Expectations, disk: &DiskFacts, out: &mut CheckResults) {
    const CHECK: &str = "queue depth";
    let for_iops = expected.iops.map_or(0, |iops| iops.div_ceil(IOPS_PER_IN_FLIGHT));
    let is_sata = disk.vendor.as_ref().is_some_and(|vendor| vendor.value == "ATA");
    let wanted = if is_sata { SATA_QUEUE_DEPTH - 1 } else { IN_FLIGHT.max(for_iops) };
    if matches!(disk.media, Media::Hdd | Media::Virtual) {
        return;
    }
    for (seen, name) in [(&disk.queue_depth, "queue_depth"), (&disk.nr_requests, "nr_requests")] {
        let Some(seen) = seen else { continue };
        if seen.value >= wanted {
            out.passed(CHECK, &disk.name, format!("{name} {}", seen.value));
            continue;
        }
        let what = format!("{name} is {}; up to {wanted} are wanted in flight", seen.value);
        let change = setting(seen, seen.value.to_string(), wanted.to_string());
        let severity = if expected.iops.is_some() { Severity::High } else { Severity::Medium };
        let effect = format!(
            "one request in flight for each 400 to 800 IOPS: now at most {} to {} IOPS",
            seen.value.saturating_mul(400),
            seen.value.saturating_mul(800)
        );
        let finding = out.found(CHECK, severity, &disk.name, what, [seen.into()]);
        finding.effect(effect, GOOGLE).by_writing(vec![change]).caution =
            Some("a kernel refuses more than the device can take".to_owned());
    }
}

fn blk_mq(facts: &HostFacts, disk: &DiskFacts, out: &mut CheckResults) {
    const CHECK: &str = "multi-queue";
    let Some(kernel) = &facts.kernel else { return };
    let Some(queues) = disk.hardware_queues.filter(|_| disk.is_scsi()) else { return };
    if queues > 0 || kernel.value >= SCSI_BLK_MQ_ALWAYS {
        return out.passed(CHECK, &disk.name, format!("blk-mq with {} queues", queues.max(1)));
    }
    let scsi = facts.scsi_blk_mq.as_ref().map(Evidence::from);
    let evidence = [Evidence::from(kernel)].into_iter().chain(scsi);
    let what = "SCSI goes through one queue of the old block layer";
    let finding = out
        .found(CHECK, Severity::High, &disk.name, what, evidence)
        .effect("several CPUs send I/O at a time; wanted for SCSI local SSD", GOOGLE);
    let caution = "takes effect at the next start of the machine";
    if kernel.value >= SCSI_BLK_MQ_FROM {
        finding.by_hand(
            "add scsi_mod.use_blk_mq=Y to the kernel's command line (GRUB_CMDLINE_LINUX in \
             /etc/default/grub), then: update-grub; reboot",
            "take it away again, then: update-grub; reboot",
            caution,
        );
    } else {
        finding.by_hand("install a kernel of 3.19 or later", "start the old kernel", caution);
    }
}

fn interface(disk: &DiskFacts, out: &mut CheckResults) {
    const CHECK: &str = "interface";
    let Some(model) = disk.model.as_ref().filter(|_| disk.media == Media::LocalSsd) else { return };
    if !disk.is_scsi() {
        return out.passed(CHECK, &disk.name, "local SSD over NVMe");
    }
    let what = "local SSD over SCSI; the same SSD over NVMe does more";
    out.found(CHECK, Severity::High, &disk.name, what, [model.into()])
        .effect(
            "of a machine with four: 680,000 read and 360,000 write IOPS over NVMe, against \
                 400,000 and 280,000 over SCSI",
            GOOGLE,
        )
        .by_hand(
            "create the machine again with: --local-ssd interface=NVME",
            "create the machine again with: --local-ssd interface=SCSI",
            "a local SSD loses its data with its machine: copy it before",
        );
}

fn alignment(disk: &DiskFacts, out: &mut CheckResults) {
    const CHECK: &str = "alignment";
    let physical = disk.physical_block_bytes.as_ref().map_or(0, |seen| seen.value);
    // Some bridges report invented optimal sizes: huge, or not a power of two.
    let optimal = disk.optimal_io_bytes.as_ref().map_or(0, |seen| seen.value);
    let optimal = if optimal.is_power_of_two() && optimal <= 1 << 20 { optimal } else { 0 };
    let unit = physical.max(optimal).max(4_096);
    for partition in &disk.partitions {
        let Some(seen) = &partition.start_sectors else { continue };
        let start_bytes = u128::from(seen.value) * 512;
        if start_bytes.is_multiple_of(u128::from(unit)) {
            out.passed(CHECK, &partition.name, format!("begins at a multiple of {unit} bytes"));
            continue;
        }
        let physical = disk.physical_block_bytes.as_ref().map(Evidence::from);
        let evidence = [Evidence::from(seen)].into_iter().chain(physical);
        let what = format!("begins at byte {start_bytes}, no multiple of {unit}");
        let disk_node = node(&disk.name);
        out.found(CHECK, Severity::High, &partition.name, what, evidence)
            .effect("aligned writes of a block touch one block of the disk, not two", REASONED)
            .by_hand(
                format!("parted -a optimal {disk_node} mkpart … 1MiB 100%"),
                "none: restore the partition table and the data from a copy",
                "making the partition again destroys what is on it: copy it before",
            );
    }
}

/// A named disk is about to be used: report its current use, or how to format it.
fn out_of_use(
    facts: &HostFacts,
    expected: &Expectations,
    disk: &DiskFacts,
    out: &mut CheckResults,
) {
    const CHECK: &str = "in use";
    if !expected.named.contains(&disk.name) {
        return;
    }
    let mounts = facts.mounts_of(disk).map(|mount| format!("mounted at {}", mount.at));
    let holders = disk.holders.iter().map(|holder| format!("a part of {holder}"));
    let parts = disk.partitions.iter().map(|part| format!("has partition {}", part.name));
    let mut uses: Vec<String> = mounts.chain(holders).chain(parts).collect();
    if let Some(found) = facts.uses.get(&disk.name) {
        uses = found.reasons();
    }
    if facts.mounts.is_none() {
        return out.unknown(&node(&disk.name), "whether it is mounted is not known");
    }
    if uses.is_empty() {
        return out.passed(CHECK, &disk.name, "not mounted, and nothing found on it");
    }
    let file = format!("/sys/block/{} and /proc/self/mountinfo", disk.name);
    let evidence = [Evidence { file, value: uses.join("; ") }];
    let what = "it is in use: writing to it as a whole, as a benchmark does, destroys data";
    out.found(CHECK, Severity::Info, &disk.name, what, evidence)
        .effect("a benchmark of it shares the disk with its users", REASONED)
        .by_hand(
            format!("use a file on it, or another disk; lsblk -f {}", node(&disk.name)),
            "nothing was changed",
            "flagstone never takes a disk out of use",
        );
}
