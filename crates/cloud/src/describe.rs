//! The words of a prediction: where a limit comes from, what is not known, what to know besides.

use crate::caps::Cap;
use crate::catalogue::LimitKind;
use crate::input::{Access, Workload};
use crate::mix::Mix;
use crate::prediction::{Dimension, Limit};
use crate::price::NoPrice;
use crate::remedy::{block_text, grouped};
use crate::site::{Demand, Site, size_text};

/// Where the number of a limit comes from.
pub(crate) fn because(
    site: &Site<'_>,
    demand: &Demand,
    workload: &Workload,
    cap: &Cap<'_>,
) -> String {
    let machine = &site.machine.name;
    match cap.kind {
        LimitKind::Volume => of_volume(site, demand, cap),
        LimitKind::Vm => format!("limit of {machine} for {}", site.kind),
        LimitKind::SharedDisks => {
            format!("limit of {machine} for {}, which {} disks share", site.kind, demand.disks)
        }
        LimitKind::Egress => of_egress(site),
        LimitKind::BlockSize => {
            format!("cap of {} for blocks of {}", site.kind, block_text(workload.block_bytes))
        }
        LimitKind::QueueDepth => {
            let queue = site.disk.queue.as_ref();
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
            let vcpus = site.machine.vcpus.unwrap_or(0);
            let each = site
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

fn of_volume(site: &Site<'_>, demand: &Demand, cap: &Cap<'_>) -> String {
    let unit = site.catalogue.units.size.name();
    let size = size_text(demand.size, unit);
    let disks = match demand.disks {
        1 => String::new(),
        n => format!("{n} x "),
    };
    if site.disk.provisioned.is_some() {
        return format!("what is provisioned for {disks}{size}");
    }
    if site.count_row(demand.disks).is_some() {
        let comes = site.catalogue.fixed_disks(site.kind, &site.machine.name).is_some();
        let with =
            if comes { format!(", with which {} comes", site.machine.name) } else { String::new() };
        return format!("{} disks of {size}{with}", demand.disks);
    }
    let Some(limits) = site.volume_limits() else { return size };
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
            site.catalogue.units.throughput.name(),
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

fn of_egress(site: &Site<'_>) -> String {
    let (Some(rule), Some(gbit)) = (&site.catalogue.egress, site.egress_gbit_per_s) else {
        return String::new();
    };
    let (multiplier, zones) = match site.regional {
        true => (rule.multiplier_regional, "regional"),
        false => (rule.multiplier_zonal, "zonal"),
    };
    let other = site.network_gbit_per_s;
    let left = match other {
        0.0 => format!("{gbit} Gbit/s"),
        _ if gbit - other < rule.disk_share * gbit => {
            format!("{} % of {gbit} Gbit/s, the rest being wanted", rule.disk_share * 100.0)
        }
        _ => format!("{gbit} - {other} Gbit/s"),
    };
    format!("{left}, {multiplier} bytes sent for each written ({zones})")
}

/// What the sources do not say and would matter.
pub(crate) fn not_known(
    site: &Site<'_>,
    mix: &Mix,
    workload: &Workload,
    price: Option<&NoPrice>,
) -> Vec<String> {
    let mut out = Vec::new();
    let (kind, machine) = (site.kind, &site.machine.name);
    let local = site.size_each().is_some();
    if site.vm.is_none() && !local {
        out.push(format!(
            "the limit of {machine} for {kind}: the prediction is what the disk and the rest allow"
        ));
    }
    if mix.write > 0.0 && site.disk.uses_egress && site.egress_gbit_per_s.is_none() {
        out.push(format!("the network egress of {machine}, which bounds writes"));
    }
    if mix.write > 0.0 && !site.disk.uses_egress && !local && site.network_gbit_per_s > 0.0 {
        out.push(format!("what other traffic takes from {kind}"));
    }
    if mix.is_mixed() && site.disk.mixing.is_none() {
        out.push(format!(
            "how reads and writes of {kind} share its limits: they are taken to share one budget, which is the least"
        ));
    }
    if site.disk.queue.is_none() && workload.depth.is_some() {
        out.push(format!("what one I/O in flight brings on {kind}, and so latency and whether the depth is enough"));
    }
    if site.cpu().is_some() && site.machine.vcpus.is_none() {
        out.push(format!("the vCPUs of {machine}"));
    }
    if let Some(limits) = site.volume_limits() {
        let zonal = site.disk.volume.as_ref().map_or(0.0, |zonal| zonal.baseline_iops);
        if site.regional && zonal > 0.0 && limits.baseline_iops == 0.0 {
            out.push(format!(
                "whether regional {kind} has the baseline of {} IOPS of zonal disks: it is left out",
                grouped(zonal)
            ));
        }
        let reads = limits.read_mb_per_s_per_gb.is_none() && limits.read_mb_per_s_max.is_none();
        let writes = limits.write_mb_per_s_per_gb.is_none() && limits.write_mb_per_s_max.is_none();
        if (reads && mix.read > 0.0) || (writes && mix.write > 0.0) {
            let which = if site.regional { "regional " } else { "" };
            out.push(format!("the throughput of {which}{kind} by its size"));
        }
    }
    out.extend(price.map(|why| why.0.clone()));
    out
}

/// Anything else worth knowing.
pub(crate) fn notes(
    site: &Site<'_>,
    mix: &Mix,
    workload: &Workload,
    binding: &Limit,
) -> Vec<String> {
    let mut out = Vec::new();
    if site.by_request {
        out.push(format!("{} takes {} by request alone", site.machine.family, site.kind));
    }
    let block = site.catalogue.units.block_of(workload.block_bytes);
    if let Some(least) = site.disk.block_kb_min_for_throughput
        && binding.dimension == Dimension::Throughput
        && block < least
    {
        let unit = site.catalogue.units.block.name();
        out.push(format!("the highest throughput needs blocks of {least} {unit} or larger"));
    }
    if workload.access == Access::Sequential && workload.jobs > 1 {
        out.push(
            "give each sequential job its own offset: jobs at the same place measure a cache"
                .to_owned(),
        );
    }
    if mix.is_mixed()
        && let Some(note) = site.disk.mixing.as_ref().and_then(|rule| rule.note.as_ref())
    {
        out.push(note.clone());
    }
    let row = site.vm.map(|(table, row)| row.note.as_ref().or(table.note.as_ref()));
    if matches!(binding.kind, LimitKind::Vm | LimitKind::SharedDisks)
        && let Some(note) = row.flatten()
    {
        out.push(note.clone());
    }
    out
}
