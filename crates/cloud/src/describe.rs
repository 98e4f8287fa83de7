//! Text of predictions: the explanation of a limit, gaps of the sources, and notes.

use crate::caps::Cap;
use crate::catalogue::LimitKind;
use crate::input::{AccessOrder, Workload};
use crate::mix::WorkloadMix;
use crate::placement::{Demand, Placement, size_text};
use crate::prediction::{Dimension, PredictedLimit};
use crate::price::NoPrice;
use crate::recommendation::{block_text, grouped};

/// Explanation of a limit's number.
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
            format!("cap of {} for blocks of {}", placement.kind, block_text(workload.block_bytes))
        }
        LimitKind::QueueDepth => {
            let queue = placement.disk.queue.as_ref();
            let (low, high) =
                queue.map_or((0.0, None), |q| (q.iops_per_io_low, q.iops_per_io_high));
            let each = match high {
                Some(high) => format!("{} to {}", grouped(low), grouped(high)),
                None => grouped(low),
            };
            let in_flight = workload.in_flight().unwrap_or(0);
            format!("{in_flight} in flight, each good for {each} IOPS (Little's law)")
        }
        LimitKind::Cpu => {
            let vcpus = placement.machine.vcpus.unwrap_or(0);
            let each = placement
                .cpu()
                .map_or((0.0, 0.0), |cpu| (cpu.read_iops_per_vcpu, cpu.write_iops_per_vcpu));
            format!(
                "{vcpus} vCPUs, each good for {} reads or {} writes a second",
                grouped(each.0),
                grouped(each.1)
            )
        }
    }
}

fn of_volume(placement: &Placement<'_>, demand: &Demand, cap: &Cap<'_>) -> String {
    let unit = placement.catalogue.units.size.name();
    let size = size_text(demand.size, unit);
    let disks = match demand.disks {
        1 => String::new(),
        n => format!("{n} x "),
    };
    if placement.disk.provisioned.is_some() {
        return format!("provisioned for {disks}{size}");
    }
    if placement.count_row(demand.disks).is_some() {
        let comes =
            placement.catalogue.fixed_disks(placement.kind, &placement.machine.name).is_some();
        let with = if comes {
            format!(", with which {} comes", placement.machine.name)
        } else {
            String::new()
        };
        return format!("{} disks of {size}{with}", demand.disks);
    }
    let Some(limits) = placement.volume_limits() else { return size };
    let (rate, most, base, of) = match cap.dimension {
        Dimension::Iops => (
            (limits.read_iops_per_gb, limits.write_iops_per_gb),
            (limits.read_iops_max, limits.write_iops_max),
            limits.baseline_iops,
            "IOPS",
        ),
        Dimension::Throughput => (
            (limits.read_mb_per_s_per_gb, limits.write_mb_per_s_per_gb),
            (limits.read_mb_per_s_max, limits.write_mb_per_s_max),
            limits.baseline_mb_per_s,
            placement.catalogue.units.throughput.name(),
        ),
    };
    let rates = pair(rate);
    let base = if base > 0.0 { format!("{} + ", grouped(base)) } else { String::new() };
    let most = match most {
        (None, None) => String::new(),
        both => format!(", at most {}", pair(both)),
    };
    format!("{base}{rates} {of} a {unit} x {disks}{size}{most}")
}

/// One figure for both, or `read / write`.
fn pair((read, write): (Option<f64>, Option<f64>)) -> String {
    let text = |n: f64| if n >= 1000.0 { grouped(n) } else { n.to_string() };
    match (read, write) {
        (Some(read), Some(write)) if read == write => text(read),
        (Some(read), Some(write)) => format!("{} read, {} written", text(read), text(write)),
        (Some(one), None) => format!("{} read", text(one)),
        (None, Some(one)) => format!("{} written", text(one)),
        (None, None) => "?".to_owned(),
    }
}

fn of_egress(placement: &Placement<'_>) -> String {
    let (Some(rule), Some(gbit)) = (&placement.catalogue.egress, placement.egress_gbit_per_s)
    else {
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

/// Relevant gaps of the sources.
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
    if mix.write > 0.0 && placement.disk.uses_egress && placement.egress_gbit_per_s.is_none() {
        out.push(format!("the network egress of {machine}, which bounds writes"));
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
                grouped(zonal)
            ));
        }
        let reads = limits.read_mb_per_s_per_gb.is_none() && limits.read_mb_per_s_max.is_none();
        let writes = limits.write_mb_per_s_per_gb.is_none() && limits.write_mb_per_s_max.is_none();
        if (reads && mix.read > 0.0) || (writes && mix.write > 0.0) {
            let which = if placement.regional { "regional " } else { "" };
            out.push(format!("the throughput of {which}{kind} by its size"));
        }
    }
    out.extend(price.map(|why| why.0.clone()));
    out
}

/// Notes about the result.
pub(crate) fn notes(
    placement: &Placement<'_>,
    mix: &WorkloadMix,
    workload: &Workload,
    binding: &PredictedLimit,
) -> Vec<String> {
    let mut out = Vec::new();
    if placement.by_request {
        out.push(format!(
            "{} supports {} only on request",
            placement.machine.family, placement.kind
        ));
    }
    let block = placement.catalogue.units.block_of(workload.block_bytes);
    if let Some(least) = placement.disk.block_kb_min_for_throughput
        && binding.dimension == Dimension::Throughput
        && block < least
    {
        let unit = placement.catalogue.units.block.name();
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
