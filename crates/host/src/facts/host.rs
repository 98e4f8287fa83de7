//! Facts of a host other than its disks: CPUs, interrupts, processes, mounts, network.

use std::io::ErrorKind;

use crate::checks::TCP_PROTOCOLS;
use crate::parse;

use super::reader::{FactReader, seen};
use super::{Fabric, HostFacts, Interface, Irq, Policy, Processes};

pub(super) fn read(reader: &mut FactReader<'_>, facts: &mut HostFacts) {
    facts.scsi_blk_mq = reader.parsed("/sys/module/scsi_mod/parameters/use_blk_mq", |text| {
        matches!(text, "Y" | "N").then_some(text == "Y")
    });
    cpus(reader, facts);
    facts.irqs = irqs(reader);
    facts.processes = processes(reader);
    facts.mounts = reader.needed("/proc/self/mountinfo").map(|text| parse::mounts(&text));
    fstrim(reader, facts);
    fabrics(reader, facts);
    network(reader, facts);
}

fn cpus(reader: &mut FactReader<'_>, facts: &mut HostFacts) {
    let file = "/sys/devices/system/cpu/online";
    facts.cpus.online = reader.parsed(file, parse::cpu_list);
    facts.cpus.load = reader.parsed("/proc/loadavg", |text| {
        let load: f64 = text.split_whitespace().next()?.parse().ok()?;
        (load.is_finite() && load >= 0.0).then_some(load)
    });
    let base = "/sys/devices/system/cpu/cpufreq";
    for name in reader.names(base).into_iter().filter(|name| name.starts_with("policy")) {
        let available = format!("{base}/{name}/scaling_available_governors");
        let available = reader.text(&available).map(|seen| parse::choices(&seen.value));
        if let Some(governor) = reader.text(&format!("{base}/{name}/scaling_governor")) {
            let available = available.unwrap_or_default();
            facts.cpus.policies.push(Policy { governor, available });
        }
    }
    let supplies = "/sys/class/power_supply";
    let has_battery = |names: Vec<String>| names.iter().any(|name| name.starts_with("BAT"));
    facts.battery = reader.root.exists("/sys/class").then(|| has_battery(reader.names(supplies)));
}

fn irqs(reader: &mut FactReader<'_>) -> Option<Vec<Irq>> {
    let table = parse::interrupts(&reader.needed("/proc/interrupts")?);
    let rows = table.into_iter().map(|row| {
        let file = format!("/proc/irq/{}/effective_affinity_list", row.number);
        let cpus = reader.parsed(&file, parse::cpu_list);
        let cpus = cpus.filter(|seen| !seen.value.is_empty());
        Irq { name: row.name, count: row.count, cpus }
    });
    Some(rows.collect())
}

fn processes(reader: &mut FactReader<'_>) -> Option<Processes> {
    let pids = match reader.root.list("/proc") {
        Ok(names) => names,
        Err(error) => {
            reader.fail("/proc", error);
            return None;
        }
    };
    let pids = pids.into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let mut found = Processes { irqbalance: false, ext4_lazyinit: false };
    let mut has_any = false;
    for pid in pids {
        // A process that has exited does not count.
        let Ok(name) = reader.root.read(&format!("/proc/{pid}/comm")) else { continue };
        has_any = true;
        found.irqbalance |= name == "irqbalance";
        found.ext4_lazyinit |= name == "ext4lazyinit";
    }
    has_any.then_some(found)
}

/// Timers and cron jobs that run `fstrim`.
const FSTRIM: [&str; 4] = [
    "/etc/systemd/system/timers.target.wants/fstrim.timer",
    "/usr/lib/systemd/system/timers.target.wants/fstrim.timer",
    "/lib/systemd/system/timers.target.wants/fstrim.timer",
    "/etc/cron.weekly/fstrim",
];

fn fstrim(reader: &mut FactReader<'_>, facts: &mut HostFacts) {
    let found = FSTRIM.iter().find(|file| reader.root.exists(file));
    facts.fstrim = match found {
        Some(file) => Some(seen(true, file, "is there")),
        None if reader.root.exists("/etc") => Some(seen(false, FSTRIM[0], "is not there")),
        None => None,
    };
}

fn fabrics(reader: &mut FactReader<'_>, facts: &mut HostFacts) {
    let base = "/sys/class/nvme";
    for name in reader.names(base) {
        let transport = reader.text(&format!("{base}/{name}/transport"));
        if transport.is_none_or(|transport| transport.value == "pcie") {
            continue;
        }
        facts.fabrics.push(Fabric {
            queue_count: reader.number(&format!("{base}/{name}/queue_count")),
            ctrl_loss_tmo: reader.text(&format!("{base}/{name}/ctrl_loss_tmo")),
            name,
        });
    }
}

const SYSCTLS: [&str; 6] = [
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.somaxconn",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    TCP_PROTOCOLS,
];

fn network(reader: &mut FactReader<'_>, facts: &mut HostFacts) {
    let base = "/sys/class/net";
    for name in reader.names(base) {
        let is_down = reader
            .text(&format!("{base}/{name}/operstate"))
            .is_some_and(|state| state.value == "down");
        if is_down || !reader.root.exists(&format!("{base}/{name}/device")) {
            continue;
        }
        let queues = format!("{base}/{name}/queues");
        let count = reader.names(&queues).iter().filter(|name| name.starts_with("rx-")).count();
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let command = ["ethtool", "-k", &name];
        let features = reader.root.command(&command);
        let shown = command.join(" ");
        let features = features
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => reader.fail(&shown, "there is no ethtool to ask"),
                _ => reader.fail(&shown, error),
            })
            .ok();
        facts.interfaces.push(Interface {
            mtu: reader.number(&format!("{base}/{name}/mtu")),
            rx_queues: (count > 0).then(|| seen(count, &queues, &format!("{count} rx queues"))),
            features: features.map(|text| seen(parse::features(&text), &shown, "")),
            name,
        });
    }
    for name in SYSCTLS {
        let file = format!("/proc/sys/{}", name.replace('.', "/"));
        if let Some(value) = reader.text(&file) {
            facts.sysctls.insert(name.to_owned(), value);
        }
    }
}
