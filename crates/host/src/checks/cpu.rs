//! CPU checks: enough of them, at full clock, and each with its share of the interrupts.

use std::collections::BTreeSet;

use crate::facts::{HostFacts, Irq, Observed};

use super::{
    CheckResults, Evidence, Expectations, GOOGLE, KERNEL, REASONED, SettingChange, Severity,
};

/// IOPS per free CPU, from Google's page: of reads, and of writes.
const IOPS_PER_CPU: (u64, u64) = (2_000, 2_500);
/// Interrupts with fewer occurrences since boot are idle.
const BUSY_INTERRUPTS: u64 = 10_000;

pub(super) fn judge(facts: &HostFacts, expected: &Expectations, out: &mut CheckResults) {
    free(facts, expected, out);
    governor(facts, out);
    nvme_queues(facts, out);
    balance(facts, out);
}

fn free(facts: &HostFacts, expected: &Expectations, out: &mut CheckResults) {
    const CHECK: &str = "free CPUs";
    let (Some(free), Some(count)) = (facts.cpus_free(), facts.cpu_count()) else {
        return out.unknown("CPUs", "how many are free is not known");
    };
    let (fewest, most) = (IOPS_PER_CPU.0 as f64, IOPS_PER_CPU.1 as f64);
    let good_for = format!("good for {:.0} to {:.0} IOPS", free * fewest, free * most);
    let Some(iops) = expected.iops else {
        if free < 1.0 {
            return busy(facts, free, count, out);
        }
        return out.passed(CHECK, "host", format!("{free:.1} of {count} free, {good_for}"));
    };
    if free * fewest >= iops as f64 {
        return out.passed(CHECK, "host", format!("{free:.1} of {count} free, {good_for}"));
    }
    let wanted = (iops.div_ceil(IOPS_PER_CPU.1), iops.div_ceil(IOPS_PER_CPU.0));
    let severity = match free * most >= iops as f64 {
        true => Severity::Medium,
        false => Severity::High,
    };
    let seen = facts.cpus.online.as_ref().map(Evidence::from).into_iter();
    let seen = seen.chain(facts.cpus.load.as_ref().map(Evidence::from));
    let what = format!(
        "{free:.1} of {count} CPUs are free; {iops} IOPS want {} to {} of them",
        wanted.0, wanted.1
    );
    out.found(CHECK, severity, "host", what, seen)
        .effect(format!("one free CPU for each 2,000 to 2,500 IOPS: {good_for} now"), GOOGLE)
        .by_hand(
            "take a machine with more CPUs, or move other work away: top -o %CPU",
            "the machine as it was",
            "costs money or another machine",
        );
}

/// Without an expected rate, no free CPU is still a finding.
fn busy(facts: &HostFacts, free: f64, count: usize, out: &mut CheckResults) {
    let evidence = facts.cpus.load.as_ref().map(Evidence::from);
    let what = format!("{free:.1} of {count} CPUs are free: not one for I/O");
    out.found("free CPUs", Severity::Medium, "host", what, evidence)
        .effect("one free CPU for each 2,000 to 2,500 IOPS", GOOGLE)
        .by_hand(
            "top -o %CPU   # what takes them",
            "nothing was changed",
            "the load is the last minute's mean, and counts tasks that wait for disks too",
        );
}

fn governor(facts: &HostFacts, out: &mut CheckResults) {
    const CHECK: &str = "CPU governor";
    let slow: Vec<_> = facts
        .cpus
        .policies
        .iter()
        .filter(|policy| policy.governor.value != "performance")
        .filter(|policy| policy.available.iter().any(|name| name == "performance"))
        .collect();
    let Some(first) = slow.first() else {
        if !facts.cpus.policies.is_empty() {
            out.passed(CHECK, "host", "performance, or the only governor");
        } else if facts.cpus.online.is_some() {
            out.passed(CHECK, "host", "the clock is not this kernel's to set");
        }
        return;
    };
    let what =
        format!("{} policies slow CPUs down, the first by {}", slow.len(), first.governor.value);
    let change = |policy: &&crate::facts::Policy| SettingChange {
        file: policy.governor.file.clone(),
        before: policy.governor.value.clone(),
        value: "performance".to_owned(),
    };
    let finding = out
        .found(CHECK, Severity::Medium, "host", what, [(&first.governor).into()])
        .effect(
            "no wait for the clock to rise after each idle moment: latency at low depth",
            format!("{KERNEL}admin-guide/pm/cpufreq.rst; not measured on this host"),
        )
        .by_writing(slow.iter().map(change).collect());
    if facts.battery == Some(true) {
        finding.safe = false;
        finding.changes.clear();
        finding.caution =
            Some("this host has a battery, which it empties: by hand only".to_owned());
    }
}

/// CPUs that receive a device's interrupts.
fn cpus_of<'a>(irqs: impl Iterator<Item = &'a Irq>) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for irq in irqs {
        cpus.extend(irq.cpus.as_ref()?.value.iter().copied());
    }
    Some(cpus)
}

/// Device and queue number of an NVMe interrupt: `nvme0q3` is queue 3 of `nvme0`.
fn nvme_queue(name: &str) -> Option<(&str, u32)> {
    let (device, queue) = name.rsplit_once('q')?;
    let digits = device.strip_prefix("nvme")?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some((device, queue.parse().ok()?))
}

fn nvme_queues(facts: &HostFacts, out: &mut CheckResults) {
    const CHECK: &str = "NVMe interrupts";
    let (Some(irqs), Some(count)) = (&facts.irqs, facts.cpu_count()) else { return };
    let queues =
        |irq: &Irq| nvme_queue(&irq.name).filter(|queue| queue.1 > 0).map(|q| q.0.to_owned());
    let devices: BTreeSet<String> = irqs.iter().filter_map(queues).collect();
    for device in devices {
        let of_device: Vec<&Irq> =
            irqs.iter().filter(|irq| queues(irq).as_deref() == Some(device.as_str())).collect();
        let Some(cpus) = cpus_of(of_device.iter().copied()) else {
            out.unknown(&device, "which CPUs get its interrupts is not known");
            continue;
        };
        let (queue_count, cpu_count) = (of_device.len(), cpus.len());
        let evidence = of_device.iter().filter_map(|irq| irq.cpus.as_ref()).take(4);
        let evidence = evidence.map(Evidence::from);
        if cpu_count * 2 <= queue_count.min(count) && count > 1 {
            let what = format!("{queue_count} queues interrupt {cpu_count} of {count} CPUs");
            let commands = spread(&of_device, count);
            out.found(CHECK, Severity::High, &device, what, evidence)
                .effect("completions are handled where they were asked for", REASONED)
                .by_hand(
                    commands,
                    restore(&of_device),
                    "a kernel that manages them itself (4.8 and later, most drivers) refuses; \
                         then look for isolcpus= or irqaffinity= on its command line",
                );
        } else if queue_count * 2 <= count {
            let what = format!("{queue_count} queues for {count} CPUs: CPUs share a queue");
            out.found(CHECK, Severity::Low, &device, what, evidence)
                .effect("CPUs do not wait for each other at a queue", REASONED)
                .by_hand(
                    format!("nvme get-feature /dev/{device} -f 7 -H   # what the device grants"),
                    "nothing was changed",
                    "the device decides; some clouds give more queues to larger machines",
                );
        } else {
            out.passed(CHECK, &device, format!("{queue_count} queues on {cpu_count} CPUs"));
        }
    }
}

/// The writable file behind the effective affinity list.
fn wanted_file(seen: &Observed<Vec<u32>>) -> String {
    seen.file.replace("effective_affinity_list", "smp_affinity_list")
}

fn spread(irqs: &[&Irq], cpus: usize) -> String {
    let files = irqs.iter().filter_map(|irq| irq.cpus.as_ref()).map(wanted_file);
    let lines = files.enumerate().map(|(i, file)| format!("echo {} > {file}", i % cpus));
    lines.collect::<Vec<_>>().join("\n")
}

fn restore(irqs: &[&Irq]) -> String {
    let seen = irqs.iter().filter_map(|irq| irq.cpus.as_ref());
    let lines = seen.map(|seen| format!("echo {} > {}", seen.text, wanted_file(seen)));
    lines.collect::<Vec<_>>().join("\n")
}

fn balance(facts: &HostFacts, out: &mut CheckResults) {
    const CHECK: &str = "irqbalance";
    let (Some(irqs), Some(count)) = (&facts.irqs, facts.cpu_count()) else { return };
    if facts.processes.is_some_and(|processes| processes.irqbalance) {
        return out.passed(CHECK, "host", "irqbalance runs");
    }
    let busy = || irqs.iter().filter(|irq| irq.count >= BUSY_INTERRUPTS && irq.cpus.is_some());
    let cpus = cpus_of(busy()).unwrap_or_default();
    if facts.processes.is_none() || count == 1 || busy().count() < 2 || cpus.len() > 1 {
        return out.passed(CHECK, "host", "not needed: no CPU has all of the interrupts");
    }
    let evidence = busy().filter_map(|irq| irq.cpus.as_ref()).take(4).map(Evidence::from);
    let what = format!("one CPU of {count} gets the interrupts of all busy devices");
    out.found(CHECK, Severity::Medium, "host", what, evidence)
        .effect("the CPU that gets them all is the first to be full", REASONED)
        .by_hand(
            "systemctl enable --now irqbalance",
            "systemctl disable --now irqbalance",
            "it starts a service that goes on moving interrupts",
        );
}
