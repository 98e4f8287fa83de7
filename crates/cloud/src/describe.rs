//! Text of predictions: the explanation of a limit, gaps of the sources, and notes.

use flagstone_units::display::size;
use flagstone_units::grouped;

use crate::caps::{Cap, UnknownLimit, VolumeRule};
use crate::catalog::LimitKind;
use crate::input::{AccessOrder, Workload};
use crate::mix::WorkloadMix;
use crate::placement::{Demand, Placement, size_text};
use crate::prediction::{Dimension, PredictedLimit};
use crate::price::NoPrice;

pub(crate) fn explanation(
    placement: &Placement<'_>,
    demand: &Demand,
    workload: &Workload,
    cap: &Cap<'_>,
) -> String {
    let machine = &placement.machine.name;
    match cap.kind {
        LimitKind::Volume => of_volume(placement, demand, cap),
        LimitKind::Vm => format!("limit of {machine} for {}", placement.kind),
        LimitKind::SharedDisks => {
            format!("limit of {machine} for {}, which {} disks share", placement.kind, demand.disks)
        }
        LimitKind::Egress => of_egress(placement),
        LimitKind::BlockSize => {
            format!("cap of {} for blocks of {}", placement.kind, size(workload.block_bytes))
        }
        LimitKind::QueueDepth => {
            let each = placement.disk.queue.as_ref().map_or_else(String::new, |queue| {
                let low = grouped(queue.iops_per_io_low, 0);
                match queue.iops_per_io_high {
                    Some(high) => format!("{low} to {}", grouped(high, 0)),
                    None => low,
                }
            });
            let in_flight = workload.in_flight().unwrap_or(0);
            format!("{in_flight} in flight, each good for {each} IOPS (Little's law)")
        }
        LimitKind::Cpu => {
            let vcpus = placement.machine.vcpus.unwrap_or(0);
            let each = placement
                .cpu()
                .map_or([0.0; 2], |cpu| [cpu.read_iops_per_vcpu, cpu.write_iops_per_vcpu]);
            let [reads, writes] = each.map(|iops| grouped(iops, 0));
            format!("{vcpus} vCPUs, each good for {reads} reads or {writes} writes a second")
        }
    }
}

fn of_volume(placement: &Placement<'_>, demand: &Demand, cap: &Cap<'_>) -> String {
    let unit = placement.catalog.units.size.name();
    let size = size_text(demand.size, unit);
    let disks = match demand.disks {
        1 => String::new(),
        n => format!("{n} x "),
    };
    if placement.disk.provisioned.is_some() {
        return format!("provisioned for {disks}{size}");
    }
    if placement.count_row(demand.disks).is_some() {
        let machine = &placement.machine.name;
        let with = match placement.catalog.fixed_disks(placement.kind, machine) {
            Some(_) => format!(", with which {machine} comes"),
            None => String::new(),
        };
        return format!("{} disks of {size}{with}", demand.disks);
    }
    let Some(limits) = placement.volume_limits() else { return size };
    let of = match cap.dimension {
        Dimension::Iops => "IOPS",
        Dimension::Throughput => placement.catalog.units.throughput.name(),
    };
    let VolumeRule { baseline, rates, most } = limits.rule(cap.dimension);
    let base = if baseline > 0.0 { format!("{} + ", grouped(baseline, 0)) } else { String::new() };
    let most = match most {
        [None, None] => String::new(),
        both => format!(", at most {}", pair(both)),
    };
    format!("{base}{} {of} a {unit} x {disks}{size}{most}", pair(rates))
}

/// One figure for both, or `read / write`.
fn pair(figures: [Option<f64>; 2]) -> String {
    let text = |n: f64| if n >= 1000.0 { grouped(n, 0) } else { n.to_string() };
    match figures.map(|figure| figure.map(text)) {
        [Some(read), Some(write)] if read == write => read,
        [Some(read), Some(write)] => format!("{read} read, {write} written"),
        [Some(read), None] => format!("{read} read"),
        [None, Some(write)] => format!("{write} written"),
        [None, None] => "?".to_owned(),
    }
}

fn of_egress(placement: &Placement<'_>) -> String {
    let (Some(rule), Some(gbit)) = (&placement.catalog.egress, placement.egress_gbit_per_s) else {
        return String::new();
    };
    let (multiplier, zones) = match placement.regional {
        true => (rule.multiplier_regional, "regional"),
        false => (rule.multiplier_zonal, "zonal"),
    };
    let other = placement.other_egress_gbit_per_s;
    let left = match other {
        0.0 => format!("{gbit} Gbit/s"),
        _ if gbit - other < rule.disk_share * gbit => {
            format!("{} % of {gbit} Gbit/s, the guaranteed share", rule.disk_share * 100.0)
        }
        _ => format!("{gbit} - {other} Gbit/s"),
    };
    format!("{left}, {multiplier} bytes sent per byte written ({zones})")
}

pub(crate) fn not_known(
    placement: &Placement<'_>,
    mix: &WorkloadMix,
    workload: &Workload,
    price: Option<&NoPrice>,
) -> Vec<String> {
    let mut out = Vec::new();
    let (kind, machine) = (placement.kind, &placement.machine.name);
    let local = placement.size_each().is_some();
    if placement.vm.is_none() && !local {
        out.push(format!(
            "the limit of {machine} for {kind}: the prediction covers the other limits"
        ));
    }
    if mix.write > 0.0
        && !placement.disk.uses_egress
        && !local
        && placement.other_egress_gbit_per_s > 0.0
    {
        out.push(format!("the effect of other traffic on {kind}"));
    }
    if mix.is_mixed() && placement.disk.mixing.is_none() {
        out.push(format!(
            "how reads and writes of {kind} share its limits: one budget is assumed, the strictest rule"
        ));
    }
    if placement.disk.queue.is_none() && workload.depth.is_some() {
        out.push(format!("the IOPS per I/O in flight on {kind}, and with it the latency"));
    }
    if placement.cpu().is_some() && placement.machine.vcpus.is_none() {
        out.push(format!("the vCPUs of {machine}"));
    }
    if let Some(limits) = placement.volume_limits() {
        let zonal = placement.disk.volume.as_ref().map_or(0.0, |zonal| zonal.baseline_iops);
        if placement.regional && zonal > 0.0 && limits.baseline_iops == 0.0 {
            out.push(format!(
                "whether regional {kind} has the baseline of {} IOPS of zonal disks: it is left out",
                grouped(zonal, 0)
            ));
        }
    }
    out.extend(placement.unknown_limits(mix).iter().map(|limit| unknown_limit(placement, limit)));
    out.extend(price.map(|why| why.0.clone()));
    out
}

pub(crate) fn unknown_limit(placement: &Placement<'_>, limit: &UnknownLimit) -> String {
    let (kind, machine) = (placement.kind, &placement.machine.name);
    let what = limit.dimension().name();
    match limit {
        UnknownLimit::Disk(_) => {
            let which = if placement.regional { "regional " } else { "" };
            format!("the {what} of {which}{kind} by its size")
        }
        UnknownLimit::Machine(_) => {
            format!("the limit of {machine} for the {what} of {kind}")
        }
        UnknownLimit::Egress => format!("the network egress of {machine}, which bounds writes"),
    }
}

pub(crate) fn notes(
    placement: &Placement<'_>,
    mix: &WorkloadMix,
    workload: &Workload,
    binding: &PredictedLimit,
    disks: u32,
) -> Vec<String> {
    let mut out = Vec::new();
    if placement.by_request {
        let (family, kind) = (&placement.machine.family, placement.kind);
        out.push(format!("{family} supports {kind} only on request"));
    }
    let family = placement.catalog.families.get(&placement.machine.family);
    let local = family.and_then(|family| family.local_ssd.as_ref());
    if let Some(local) = local.filter(|_| placement.size_each().is_some())
        && let Some((vcpus, least)) = placement.machine.vcpus.zip(local.vcpus_for_maximum)
        && vcpus < least
    {
        out.push(format!(
            "the highest figures of {} need {least} vCPUs or more of {}",
            placement.kind, placement.machine.family
        ));
    }
    out.extend(vcpus_for_disks(placement, disks));
    let block = placement.catalog.units.block_of(workload.block_bytes);
    if let Some(least) = placement.disk.block_kb_min_for_throughput
        && binding.dimension == Dimension::Throughput
        && block < least
    {
        let unit = placement.catalog.units.block.name();
        out.push(format!("the highest throughput needs blocks of {least} {unit} or larger"));
    }
    if workload.access == AccessOrder::Sequential && workload.jobs > 1 {
        out.push(
            "give each sequential job its own offset: jobs at equal offsets measure a cache"
                .to_owned(),
        );
    }
    if mix.is_mixed()
        && let Some(note) = placement.disk.mixing.as_ref().and_then(|rule| rule.note.as_ref())
    {
        out.push(note.clone());
    }
    let row = placement.vm.map(|(table, row)| row.note.as_ref().or(table.note.as_ref()));
    if matches!(binding.kind, LimitKind::Vm | LimitKind::SharedDisks)
        && let Some(note) = row.flatten()
    {
        out.push(note.clone());
    }
    out
}

/// The advised vCPUs of several disks, if the machine has fewer.
fn vcpus_for_disks(placement: &Placement<'_>, disks: u32) -> Option<String> {
    let range = placement.disk.vcpus_per_disk?;
    let vcpus = placement.machine.vcpus.filter(|vcpus| *vcpus < range.min * disks)?;
    Some(format!(
        "{range} vCPUs for each local SSD are advised: {disks} disks want {} or more, {} has {vcpus}",
        range.min * disks,
        placement.machine.name
    ))
}
