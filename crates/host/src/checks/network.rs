//! Network checks of a volume server, and of a host with remote devices.

use crate::facts::{HostFacts, Interface, Observed};

use super::{CheckResults, Evidence, KERNEL, REASONED, SettingChange, Severity};

/// Largest socket buffer to allow: 100 Gbit/s at a round trip of 1 ms need 12.5 MB.
const SOCKET_BYTES: u64 = 16 << 20;
/// Connections waiting for accept: a host connects all queues of all volumes at once.
const BACKLOG: u64 = 1_024;
/// Protocols over TCP that the kernel offers.
pub(crate) const TCP_PROTOCOLS: &str = "net.ipv4.tcp_available_ulp";
/// Packet size that holds a block of 4 KiB.
const JUMBO_BYTES: u64 = 8_000;
/// Receive queues above which one server gains nothing.
const RX_QUEUES: u64 = 16;

const OFFLOADS: [(&str, &str); 5] = [
    ("rx-checksumming", "rx"),
    ("tx-checksumming", "tx"),
    ("scatter-gather", "sg"),
    ("tcp-segmentation-offload", "tso"),
    ("generic-receive-offload", "gro"),
];

pub(super) fn fabrics(facts: &HostFacts, out: &mut CheckResults) {
    for fabric in &facts.fabrics {
        if let Some(seen) = &fabric.ctrl_loss_tmo {
            loss(&fabric.name, seen, out);
        }
        let (Some(queues), Some(cpus)) = (&fabric.queue_count, facts.cpu_count()) else { continue };
        let (io_queues, cpus) = (queues.value.saturating_sub(1), cpus as u64);
        if io_queues >= cpus {
            out.passed("nvme-tcp queues", &fabric.name, format!("{io_queues} for {cpus} CPUs"));
            continue;
        }
        let what = format!("{io_queues} I/O queues for {cpus} CPUs");
        let severity = if io_queues * 2 <= cpus { Severity::Medium } else { Severity::Low };
        out.found("nvme-tcp queues", severity, &fabric.name, what, [queues.into()])
            .effect("a queue, and so a connection, for each CPU", REASONED)
            .by_hand(
                format!(
                    "nvme disconnect -d {0}; nvme connect … --nr-io-queues={cpus}",
                    fabric.name
                ),
                format!("nvme connect … --nr-io-queues={io_queues}"),
                "the device is gone between the two: unmount it before. A server may grant less",
            );
    }
}

fn loss(name: &str, seen: &Observed<String>, out: &mut CheckResults) {
    const CHECK: &str = "nvme-tcp ctrl-loss-tmo";
    let seconds: Option<i64> = seen.value.parse().ok();
    if seen.value == "off" || seconds.is_some_and(|seconds| seconds < 0) {
        return out.passed(CHECK, name, "I/O waits for the server as long as it takes");
    }
    let Some(seconds) = seconds else {
        return out.unknown(&seen.file, "not understood");
    };
    let what = format!("I/O fails, and the device goes, when the server is away for {seconds} s");
    out.found(CHECK, Severity::Info, name, what, [seen.into()])
        .effect("a server that comes back later is used again without a new connect", REASONED)
        .by_hand(
            format!("echo -1 > {}", seen.file),
            format!("echo {seconds} > {}", seen.file),
            "without a limit, programs hang rather than fail when a server never comes back",
        );
}

pub(super) fn judge(facts: &HostFacts, out: &mut CheckResults) {
    for interface in &facts.interfaces {
        mtu(interface, out);
        offloads(interface, out);
        receive_queues(facts, interface, out);
    }
    sockets(facts, out);
    kernel_tls(facts, out);
}

fn kernel_tls(facts: &HostFacts, out: &mut CheckResults) {
    const CHECK: &str = "kernel TLS";
    let Some(seen) = facts.sysctls.get(TCP_PROTOCOLS) else { return };
    if seen.value.split_whitespace().any(|name| name == "tls") {
        return out.passed(CHECK, "tls", "loaded");
    }
    out.found(CHECK, Severity::Info, "tls", "the module is not loaded", [seen.into()])
        .effect("from Linux 6.14 on, the kernel encrypts new TLS connections, without a copy in user space", REASONED)
        .by_hand("modprobe tls", "rmmod tls", "only connections with TLS change");
}

fn mtu(interface: &Interface, out: &mut CheckResults) {
    let Some(seen) = &interface.mtu else { return };
    if seen.value >= JUMBO_BYTES {
        return out.passed("MTU", &interface.name, format!("{} bytes", seen.value));
    }
    let what = format!("packets of at most {} bytes", seen.value);
    let name = &interface.name;
    out.found("MTU", Severity::Low, name, what, [seen.into()])
        .effect("fewer packets for each block, so less CPU", REASONED)
        .by_hand(
            format!("ip link set dev {name} mtu 8896"),
            format!("ip link set dev {name} mtu {}", seen.value),
            "the whole path must take it, or connections hang: set it on the network first, \
                 then test with ping -M do -s 8868",
        );
}

fn offloads(interface: &Interface, out: &mut CheckResults) {
    let Some(seen) = &interface.features else { return };
    let is_off =
        |name: &str| seen.value.iter().any(|(feature, on, fixed)| feature == name && !on && !fixed);
    let off: Vec<_> = OFFLOADS.iter().filter(|(name, _)| is_off(name)).collect();
    let name = &interface.name;
    if off.is_empty() {
        return out.passed("offloads", name, "all that can be on are on");
    }
    let set = |state: &str| {
        let words: Vec<_> = off.iter().map(|(_, short)| format!("{short} {state}")).collect();
        format!("ethtool -K {name} {}", words.join(" "))
    };
    let names: Vec<_> = off.iter().map(|(name, _)| format!("{name}: off")).collect();
    let evidence = [Evidence { file: seen.file.clone(), value: names.join(", ") }];
    let what = format!("{} offloads that the interface has are off", off.len());
    out.found("offloads", Severity::Medium, name, what, evidence)
        .effect(
            "the CPU handles segments of 64 KiB in place of packets",
            format!("{KERNEL}networking/segmentation-offloads.rst"),
        )
        .by_hand(
            set("on"),
            set("off"),
            "an administrator may have turned them off for a fault of the driver",
        );
}

fn receive_queues(facts: &HostFacts, interface: &Interface, out: &mut CheckResults) {
    let (Some(seen), Some(cpus)) = (&interface.rx_queues, facts.cpu_count()) else { return };
    let wanted = RX_QUEUES.min(cpus as u64);
    let name = &interface.name;
    if seen.value.saturating_mul(2) > wanted {
        return out.passed("RSS", name, format!("{} receive queues for {cpus} CPUs", seen.value));
    }
    let what = format!("{} receive queues for {cpus} CPUs", seen.value);
    out.found("RSS", Severity::Medium, name, what, [seen.into()])
        .effect("several CPUs receive at a time", format!("{KERNEL}networking/scaling.rst"))
        .by_hand(
            format!("ethtool -L {name} combined {wanted}"),
            format!("ethtool -L {name} combined {}", seen.value),
            "connections pause while the interface starts again; it may have no more queues",
        );
}

fn sockets(facts: &HostFacts, out: &mut CheckResults) {
    for (name, least) in [
        ("net.core.rmem_max", SOCKET_BYTES),
        ("net.core.wmem_max", SOCKET_BYTES),
        ("net.core.somaxconn", BACKLOG),
        ("net.ipv4.tcp_rmem", SOCKET_BYTES),
        ("net.ipv4.tcp_wmem", SOCKET_BYTES),
    ] {
        let Some(seen) = facts.sysctls.get(name) else { continue };
        let numbers: Option<Vec<u64>> =
            seen.value.split_whitespace().map(|word| word.parse().ok()).collect();
        let Some((last, others)) = numbers.as_ref().and_then(|numbers| numbers.split_last()) else {
            out.unknown(&seen.file, "not understood");
            continue;
        };
        if *last >= least {
            out.passed("socket limits", name, last.to_string());
            continue;
        }
        let line = |last: u64| {
            let words = others.iter().chain([&last]).map(u64::to_string);
            words.collect::<Vec<_>>().join(" ")
        };
        let (file, before, value) = (seen.file.clone(), line(*last), line(least));
        let change = SettingChange { file, before, value };
        let what = format!("{last} is less than the {least} that a fast network fills");
        let source = format!("{KERNEL}networking/ip-sysctl.rst; not measured on this host");
        out.found("socket limits", Severity::Low, name, what, [seen.into()])
            .effect(
                "windows as large as 100 Gbit/s over 1 ms; no burst of connects refused",
                source,
            )
            .by_writing(vec![change]);
    }
}
