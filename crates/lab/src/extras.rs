//! What each experiment adds to the report of its measurements: the published figures beside ours,
//! a picture, and the doubts. What is emulated says so in each title.

use flagstone_bench::nature::Nature;
use flagstone_bench::report::{Drawing, Drawn, Extras};

use crate::failover::timeline;
use crate::mirror::published::Figures;
use crate::mirror::setup::{MIRROR, PLAIN};
use crate::mirror::summary::{Cell, Side};
use crate::{fabric, failover, mirror, page, provisioned};

/// Of `lab mirror`.
pub fn mirror(summary: &mirror::summary::Summary) -> Extras {
    let title = format!("What a mirror costs{}", mark(summary.emulated));
    let extras = Extras::new(title);
    let extras = match mirror_drawing(summary) {
        Some(drawing) => extras.with_picture(drawing),
        None => extras,
    };
    extras.with_tables("mirror", mirror::tables::tables(summary)).with_doubts(&summary.doubts)
}

/// Of `lab failover`.
pub fn failover(summary: &failover::Summary) -> Extras {
    Extras::new("A source dies under a verifying load")
        .with_picture(timeline::drawing(summary))
        .with_tables("failover", failover::tables(summary))
        .with_doubts(&failover::doubts(summary))
}

/// Of `lab fabric`.
pub fn fabric(outcome: &fabric::Outcome) -> Extras {
    let summary = &outcome.summary;
    let mut tables = outcome.tables.clone();
    tables.push(fabric::table(summary));
    Extras::new(format!("What NVMe/TCP costs{}", mark(summary.emulated)))
        .with_tables("fabric", tables)
        .with_doubts(&summary.doubts)
}

/// Of `lab provisioned`.
pub fn provisioned(summary: &provisioned::Summary) -> Extras {
    Extras::new(format!("What a larger disk brings{}", mark(summary.emulated)))
        .with_tables("provisioned", vec![provisioned::table(summary)])
        .with_doubts(&summary.doubts)
}

/// Of `lab limits`.
pub fn limits(summary: &page::Summary) -> Extras {
    Extras::new(format!("What cloud disks are sold as{}", mark(summary.emulated)))
        .with_tables("limits", vec![page::table(summary)])
        .with_doubts(&summary.doubts)
}

fn mark(emulated: bool) -> &'static str {
    if emulated { Nature::Emulated.suffix() } else { "" }
}

/// The published plots: throughput and latency against the size of a write, ours and theirs.
/// `None` of what was measured at no size.
fn mirror_drawing(summary: &mirror::summary::Summary) -> Option<Drawing> {
    let ours = mark(summary.emulated);
    let series = || {
        vec![
            format!("{PLAIN}{ours}"),
            format!("{MIRROR}{ours}"),
            format!("{PLAIN}, published"),
            format!("{MIRROR}, published"),
        ]
    };
    let panel = |y: &str, here: fn(&Cell) -> f64, there: fn(&Figures) -> f64| {
        let group = |side: &Side| {
            let (plain, mirror) = (side.plain.as_ref()?, side.mirror.as_ref()?);
            let published = [&side.published.plain, &side.published.mirror];
            let values = [plain, mirror].map(here).into_iter().chain(published.map(there));
            Some((side.published.size.to_owned(), values.map(Some).collect()))
        };
        Drawn::Bars {
            x: "size of a write".to_owned(),
            y: y.to_owned(),
            series: series(),
            groups: summary.table.iter().filter_map(group).collect(),
        }
    };
    let is_there = |side: &Side| side.plain.is_some() && side.mirror.is_some();
    summary.table.iter().any(is_there).then(|| Drawing {
        id: "mirror-by-size".to_owned(),
        title: format!("What a synchronous mirror costs{ours}"),
        subtitle: "24 random writes in flight, written through; here, and as SIOS published it"
            .to_owned(),
        footer: format!("flagstone lab mirror {}", env!("CARGO_PKG_VERSION")),
        panels: vec![
            panel("MiB/s", |cell| cell.mib_per_s, |figures| figures.mib_per_s),
            panel("average latency, ms", |cell| cell.latency_ms, |figures| figures.latency_ms),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_plots_have_ours_beside_theirs() {
        let extras = mirror(&mirror::summary::tests::example());
        let [drawing] = &extras.pictures[..] else { panic!("one") };
        assert!(drawing.title.contains("EMULATED") && extras.title.contains("EMULATED"));
        let [Drawn::Bars { series, groups, .. }, _] = &drawing.panels[..] else { panic!("bars") };
        assert_eq!(series[1..3], ["mirror [EMULATED]", "no mirror, published"]);
        let [(size, values)] = &groups[..] else { panic!("8K alone was measured") };
        assert_eq!(size, "8K");
        let text = values.iter().map(|value| format!("{:.2}", value.unwrap()));
        assert_eq!(text.collect::<Vec<_>>(), ["93.75", "75.00", "96.80", "58.87"]);
        assert_eq!((extras.tables.len(), extras.doubts.is_empty()), (4, false));
    }
}
