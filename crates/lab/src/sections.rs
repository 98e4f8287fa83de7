//! Additional sections of each experiment for the report: a picture, tables and caveats.

use flagstone_bench::provenance::Provenance;
use flagstone_bench::report::{AdditionalSections, Plot};
use flagstone_plot::{Axis, Figure, Group, NumberFormat, Panel};

use crate::disk_limits::{self, LimitsSummary};
use crate::fabric::{self, FabricSummary};
use crate::failover::automatic::{self, AutomaticSummary};
use crate::failover::{self, FailoverSummary, timeline};
use crate::figures::Figures;
use crate::mirror::published::PublishedFigures;
use crate::mirror::setup::{MIRROR, PLAIN};
use crate::mirror::summary::{MirrorRow, MirrorSummary};
use crate::mirror::tables;
use crate::provisioned::{self, ProvisionedSummary};

pub fn mirror(summary: &MirrorSummary) -> AdditionalSections {
    let title = format!("Cost of a mirror{}", mark(summary.emulated));
    let sections = AdditionalSections::new(title);
    let sections = match mirror_drawing(summary) {
        Some(drawing) => sections.with_picture(drawing),
        None => sections,
    };
    sections.with_tables("mirror", tables::tables(summary)).with_caveats(&summary.caveats)
}

pub fn failover(summary: &FailoverSummary) -> AdditionalSections {
    AdditionalSections::new("Failover under a verifying load")
        .with_picture(timeline::drawing(summary))
        .with_tables("failover", failover::tables(summary))
        .with_caveats(&summary.caveats)
}

pub fn automatic_failover(summary: &AutomaticSummary) -> AdditionalSections {
    AdditionalSections::new(format!("Automatic failover{}", mark(summary.emulated)))
        .with_picture(automatic::drawing(summary))
        .with_tables("automatic-failover", automatic::tables(summary))
        .with_caveats(&summary.caveats)
}

pub fn fabric(summary: &FabricSummary) -> AdditionalSections {
    AdditionalSections::new(format!("Cost of NVMe/TCP{}", mark(summary.emulated)))
        .with_tables("fabric", fabric::tables(summary))
        .with_caveats(&summary.caveats)
}

pub fn provisioned(summary: &ProvisionedSummary) -> AdditionalSections {
    AdditionalSections::new(format!("Effect of a larger disk{}", mark(summary.emulated)))
        .with_tables("provisioned", vec![provisioned::table(summary)])
        .with_caveats(&summary.caveats)
}

pub fn limits(summary: &LimitsSummary) -> AdditionalSections {
    AdditionalSections::new(format!("Limits of cloud disks{}", mark(summary.emulated)))
        .with_tables("limits", vec![disk_limits::table(summary)])
        .with_caveats(&summary.caveats)
}

fn mark(emulated: bool) -> &'static str {
    if emulated { Provenance::Emulated.suffix() } else { "" }
}

/// The published plots: throughput and latency by write size, measured and published. `None` if no
/// size was measured with and without the mirror.
fn mirror_drawing(summary: &MirrorSummary) -> Option<Plot> {
    let mark = mark(summary.emulated);
    let names = [
        format!("{PLAIN}{mark}"),
        format!("{MIRROR}{mark}"),
        format!("{PLAIN}, published"),
        format!("{MIRROR}, published"),
    ];
    let panel =
        |y: &str, measured: fn(&Figures) -> f64, published: fn(&PublishedFigures) -> f64| {
            let group = |row: &MirrorRow| {
                let (plain, mirror) = (row.plain.as_ref()?, row.mirror.as_ref()?);
                let theirs = [&row.published.plain, &row.published.mirror].map(published);
                let ours = [plain, mirror].map(|cell| measured(&cell.figures));
                let values = ours.into_iter().chain(theirs).map(|v| Some(v.into())).collect();
                Some(Group { name: row.published.size.to_owned(), values })
            };
            let y = Axis { format: NumberFormat::Plain, ..Axis::linear(y) };
            Panel::bars("write size", y, &names, summary.table.iter().filter_map(group).collect())
        };
    let is_complete = |row: &MirrorRow| row.plain.is_some() && row.mirror.is_some();
    summary.table.iter().any(is_complete).then(|| {
        let picture = Figure {
            title: format!("Cost of a synchronous mirror{mark}"),
            subtitle: "24 durable random writes in flight; here, and as SIOS published it"
                .to_owned(),
            footer: format!("flagstone lab mirror {}", env!("CARGO_PKG_VERSION")),
            panels: vec![
                panel("MiB/s", |figures| figures.mib_per_s, |figures| figures.mib_per_s),
                panel(
                    "average latency, ms",
                    |figures| figures.latency_ms,
                    |figures| figures.latency_ms,
                ),
            ],
        };
        Plot { id: "mirror-by-size".to_owned(), picture }
    })
}

#[cfg(test)]
mod tests {
    use flagstone_plot::PanelContent;

    use super::*;

    #[test]
    fn mirror_picture_has_measured_and_published_bars() {
        let sections = mirror(&crate::mirror::summary::tests::example());
        let [drawing] = &sections.pictures[..] else { panic!("one") };
        let drawing = &drawing.picture;
        assert!(drawing.title.contains("EMULATED") && sections.title.contains("EMULATED"));
        let PanelContent::Bars(bars) = &drawing.panels[0].content else { panic!("bars") };
        let names: Vec<_> = bars.series.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[1..3], ["mirror [EMULATED]", "no mirror, published"]);
        let [Group { name: size, values }] = &bars.groups[..] else {
            panic!("8K alone was measured")
        };
        assert_eq!(size, "8K");
        let text = values.iter().map(|value| format!("{:.2}", value.unwrap().value));
        assert_eq!(text.collect::<Vec<_>>(), ["93.75", "75.00", "96.80", "58.87"]);
        assert_eq!((sections.tables.len(), sections.caveats.is_empty()), (4, false));
    }
}
