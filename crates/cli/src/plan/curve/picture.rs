//! Plot of the curves.

use flagstone_cloud::catalog::{Catalog, Confidence, SizeUnit};
use flagstone_cloud::curve::{CurvePoint, CurveSpan, LimitCurve, Over};
use flagstone_cloud::{AccessOrder, LimitKind, Workload};
use flagstone_plot as plot;
use flagstone_plot::{Axis, Figure, Hue, Note, NumberFormat, Panel, PanelContent, Scale, Stretch};
use flagstone_units::{display::size, grouped};

use super::{CurveSet, limit_text};

/// An axis of rates is logarithmic if its ends differ by more than this factor.
const LOG_FROM: f64 = 5.0;

#[derive(Clone, Copy, PartialEq)]
enum Rate {
    Iops,
    Throughput,
}

/// A figure of two panels: IOPS above, MB/s below.
pub(super) fn figure(catalog: &Catalog, found: &CurveSet, rw: &str) -> Figure {
    let across = match found.over {
        Over::Size => "size",
        Over::Vcpus => "vCPUs",
        Over::Block => "block size",
        Over::Depth => "queue depth",
    };
    let kinds: Vec<&str> = found
        .types
        .iter()
        .filter(|of| of.curves.is_ok())
        .map(|of| of.configuration.kind.as_str())
        .collect();
    let of = match kinds[..] {
        [one] => format!("{one}: "),
        _ => String::new(),
    };
    let unit = catalog.units.throughput.name();
    Figure {
        title: format!("{of}IOPS and {unit} by {across}"),
        subtitle: subtitle(catalog, found),
        panels: [Rate::Iops, Rate::Throughput].map(|rate| panel(catalog, found, rw, rate)).to_vec(),
        footer: footer(catalog, found),
    }
}

/// Parameters that are constant along the curves.
fn subtitle(catalog: &Catalog, found: &CurveSet) -> String {
    let Some(first) = found.types.first().map(|of| &of.configuration) else { return String::new() };
    let mut parts = Vec::new();
    let units = &catalog.units;
    if found.over != Over::Size {
        let size = units.size_of(first.size_bytes);
        let size = (size > 0.0).then(|| format!("{} {}", grouped(size, 0), units.size.name()));
        let disks =
            if first.disks > 1 { format!("{} disks of ", first.disks) } else { String::new() };
        parts.extend(size.map(|size| format!("{disks}{size}")));
    } else if first.disks > 1 {
        parts.push(format!("{} disks", first.disks));
    }
    parts.push(match found.over {
        Over::Vcpus => format!("machines of {}", first.machine.family),
        _ => first.machine.name.clone(),
    });
    if first.regional {
        parts.push("in two zones".to_owned());
    }
    if first.other_egress_gbit_per_s > 0.0 {
        parts.push(format!("{} Gbit/s of other traffic", first.other_egress_gbit_per_s));
    }
    if found.over != Over::Depth {
        let in_flight = found.loads.first().and_then(Workload::in_flight);
        parts.push(match in_flight {
            Some(in_flight) => format!("{} I/Os in flight", grouped(in_flight as f64, 0)),
            None => "any number of I/Os in flight".to_owned(),
        });
    }
    if let Some(jobs) = found.loads.first().map(|load| load.jobs).filter(|jobs| *jobs > 1) {
        parts.push(format!("{jobs} jobs"));
    }
    parts.join(" · ")
}

fn footer(catalog: &Catalog, found: &CurveSet) -> String {
    let confidence = found.curves().map(|curve| curve.confidence).max().unwrap_or(Confidence::A);
    let mut lines =
        vec![format!("Catalog {}: {}; confidence {confidence}.", catalog.name, catalog.date)];
    lines.extend(found.types.iter().filter_map(|of| {
        let why = of.curves.as_ref().err()?;
        Some(format!("No curve of {}: {why}.", of.configuration.kind))
    }));
    lines.extend(found.not_known().into_iter().map(|what| format!("Not known: {what}.")));
    lines.join("\n")
}

fn panel(catalog: &Catalog, found: &CurveSet, rw: &str, rate: Rate) -> Panel {
    let load = match rate {
        Rate::Iops => found.loads.first(),
        Rate::Throughput => found.loads.last(),
    };
    let curves: Vec<&LimitCurve> = found
        .types
        .iter()
        .filter_map(|of| of.curves.as_ref().ok())
        .filter_map(|curves| match rate {
            Rate::Iops => curves.first(),
            Rate::Throughput => curves.last(),
        })
        .collect();
    let value = |point: &CurvePoint| match rate {
        Rate::Iops => point.iops,
        Rate::Throughput => point.mb_per_s * 1e6 / catalog.units.throughput.bytes(),
    };
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let (low, high) = all()
        .map(value)
        .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    let log = found.over != Over::Vcpus && high / low > LOG_FROM;
    let what = match rate {
        Rate::Iops => "IOPS",
        Rate::Throughput => catalog.units.throughput.name(),
    };
    let heading = match load {
        Some(load) => format!("{what}, {}", load_text(load, rw, found.over)),
        None => what.to_owned(),
    };
    let scale = if log { Scale::Log } else { Scale::Linear };
    let one =
        |(dash, curve): (usize, &&LimitCurve)| one(catalog, found.over, curve, dash, &value, rate);
    Panel {
        x: across(catalog, found, all().map(|point| point.at).collect()),
        y: Axis { scale, format: NumberFormat::Plain, ..Axis::linear(heading) },
        content: PanelContent::Curves(curves.iter().enumerate().map(one).collect()),
        marks: Vec::new(),
    }
}

fn load_text(load: &Workload, rw: &str, over: Over) -> String {
    let access = match load.access {
        AccessOrder::Random => "random",
        AccessOrder::Sequential => "sequential",
    };
    let what = match load.read_percent {
        100 => format!("{access} reads"),
        0 => format!("{access} writes"),
        percent => format!("{rw}, {percent} % reads"),
    };
    match over {
        Over::Block => what,
        _ => format!("{what} of {}", size(load.block_bytes)),
    }
}

fn across(catalog: &Catalog, found: &CurveSet, mut places: Vec<u64>) -> Axis {
    places.sort_unstable();
    places.dedup();
    let each = |axis: Axis, scale, format| Axis { scale, format, ..axis };
    match found.over {
        Over::Size => match catalog.units.size {
            SizeUnit::Gb => each(Axis::log("size of a disk"), Scale::Log, NumberFormat::Gb),
            SizeUnit::Gib => each(Axis::log("size of a disk"), Scale::Log2, NumberFormat::Gib),
        },
        Over::Vcpus => Axis {
            ticks: places.iter().map(|at| *at as f64).collect(),
            ..each(Axis::log("vCPUs of the machine"), Scale::Log2, NumberFormat::Plain)
        },
        Over::Block => each(Axis::log("bytes of an I/O"), Scale::Log2, NumberFormat::Block),
        Over::Depth => {
            let jobs = found.loads.first().map_or(1, |load| load.jobs);
            let label = if jobs > 1 { "I/Os in flight of each job" } else { "I/Os in flight" };
            each(Axis::log(label), Scale::Log2, NumberFormat::Plain)
        }
    }
}

fn hue(kind: LimitKind) -> Hue {
    Hue(match kind {
        LimitKind::Volume => 0,
        LimitKind::Vm => 1,
        LimitKind::Egress => 2,
        LimitKind::BlockSize => 3,
        LimitKind::QueueDepth => 4,
        LimitKind::Cpu => 5,
        LimitKind::SharedDisks => 6,
    })
}

fn one(
    catalog: &Catalog,
    over: Over,
    curve: &LimitCurve,
    dash: usize,
    value: &dyn Fn(&CurvePoint) -> f64,
    rate: Rate,
) -> plot::Curve {
    let unit = catalog.units.throughput.name();
    let at = |point: &CurvePoint| (point.at as f64, value(point));
    let stretch = |(index, span): (usize, &CurveSpan)| {
        let within = |point: &&CurvePoint| (span.from.at..=span.to.at).contains(&point.at);
        let mut points: Vec<(f64, f64)> = curve.points.iter().filter(within).map(at).collect();
        // A segment extends to the start of the next limit.
        let next = curve.spans.get(index + 1).filter(|_| over != Over::Vcpus);
        points.extend(next.map(|next| at(&next.from)));
        Stretch {
            hue: hue(span.from.binding),
            meaning: span.from.binding.to_string(),
            label: limit_text(span.from.binding, span.from.dimension, unit),
            points,
        }
    };
    let spans = &curve.spans;
    let note = |pair: &[CurveSpan]| {
        // The last position before the change, if both limits are equal there.
        let corner = if pair[0].to.tied { &pair[0].to } else { &pair[1].from };
        let number = match rate {
            Rate::Iops => format!("{} IOPS", grouped(value(corner), 0)),
            Rate::Throughput => format!("{} {unit}", grouped(value(corner), 0)),
        };
        let (x, y) = at(corner);
        let place = super::at_text(over, &catalog.units, corner.at);
        Note { x, y, text: format!("{place}: {number}") }
    };
    plot::Curve {
        name: curve.kind.clone(),
        dash,
        stretches: spans.iter().enumerate().map(stretch).collect(),
        discrete: over == Over::Vcpus,
        notes: spans.windows(2).map(note).collect(),
    }
}
