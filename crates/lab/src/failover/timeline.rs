//! Timeline of a drill: the IOPS of each second with the events, for a terminal and as a picture.

use std::path::Path;

use flagstone_bench::report::Plot;
use flagstone_plot::{Figure, Mark, Panel, Theme};
use flagstone_units::grouped;
use serde::Serialize;

use super::FailoverSummary;
use crate::Error;

const BAR: f64 = 40.0;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DrillEvent {
    /// Time since the load began, in seconds.
    pub at_s: f64,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimelinePoint {
    /// End of the interval, in seconds since the load began.
    pub at_s: f64,
    pub iops: f64,
}

/// Text for a terminal: one bar per second, with its events.
pub fn text(summary: &FailoverSummary) -> String {
    let most = summary.timeline.iter().map(|point| point.iops).fold(0.0, f64::max);
    let mut out = format!("    s    IOPS{}\n", summary.provenance.suffix());
    let mut from_s = 0.0;
    for point in &summary.timeline {
        let happened: Vec<String> = summary
            .events
            .iter()
            .filter(|event| event.at_s >= from_s && event.at_s < point.at_s)
            .map(|event| format!("{:.1} s {}", event.at_s, event.what))
            .collect();
        let letters = if most > 0.0 { (point.iops / most * BAR).round() as usize } else { 0 };
        let bar = "█".repeat(letters);
        let width = if happened.is_empty() { 0 } else { BAR as usize };
        let line = format!(
            "{:>5.0}  {:>6}  {bar:<width$}  {}",
            point.at_s,
            grouped(point.iops, 0),
            happened.join("; ")
        );
        out += line.trim_end();
        out.push('\n');
        from_s = point.at_s;
    }
    out
}

pub(crate) fn drawing(summary: &FailoverSummary) -> Plot {
    let verified = &summary.verified;
    let found = if verified.is_right() { "nothing lost".to_owned() } else { verified.verdict() };
    let suffix = summary.provenance.suffix();
    picture(
        (&summary.timeline, &summary.events),
        format!("Failover under a verifying load{suffix}"),
        format!("verifying load by both nodes{suffix}: {found}"),
    )
}

/// The picture. Events have numbers; their descriptions are in the subtitle, where there is room
/// for events that follow each other closely.
pub(super) fn picture(
    (timeline, events): (&[TimelinePoint], &[DrillEvent]),
    title: String,
    name: String,
) -> Plot {
    let points = timeline.iter().map(|point| (point.at_s, point.iops)).collect();
    let named = (1..).zip(events).map(|(at, event)| format!("{at} {}", event.what));
    let marks = marks(timeline, events).into_iter().map(|(x, text)| Mark { x, text }).collect();
    let panel = Panel { marks, ..Panel::lines("seconds", "IOPS", vec![(name, points)]) };
    let picture = Figure {
        title,
        subtitle: named.collect::<Vec<_>>().join(", "),
        footer: format!("flagstone lab failover {}", env!("CARGO_PKG_VERSION")),
        panels: vec![panel],
    };
    Plot { id: "timeline".to_owned(), picture }
}

/// Events that are closer than this fraction of the whole share a mark.
const NEAR: f64 = 0.02;

fn marks(timeline: &[TimelinePoint], events: &[DrillEvent]) -> Vec<(f64, String)> {
    let whole_s = timeline.last().map_or(0.0, |point| point.at_s);
    let mut marks: Vec<(f64, String)> = Vec::new();
    for (at, event) in (1..).zip(events) {
        match marks.last_mut() {
            Some((last_s, text)) if event.at_s - *last_s < NEAR * whole_s => {
                *text += &format!(", {at}");
            }
            _ => marks.push((event.at_s, at.to_string())),
        }
    }
    marks
}

pub(super) fn write(summary: &FailoverSummary, directory: &Path) -> Result<(), Error> {
    let picture = drawing(summary).picture;
    std::fs::write(directory.join("timeline.svg"), picture.svg(Theme::Auto))
        .map_err(Error::system("cannot write the timeline"))
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::example;
    use super::*;

    #[test]
    fn events_are_in_their_seconds() {
        let text = text(&example());
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("IOPS [EMULATED]"));
        assert_eq!(lines[1], format!("    1   4,000  {}", "█".repeat(40)));
        assert!(lines[2].starts_with("    2   1,000  ██████████ "));
        assert!(lines[2].ends_with("  1.5 s node-a falls silent; 1.6 s node-b serves"));
        assert_eq!(lines[3], "    3       0");
    }

    #[test]
    fn picture_states_provenance_and_events() {
        let svg = drawing(&example()).picture.svg(Theme::Light);
        for text in ["EMULATED", "1 node-a falls silent, 2 node-b serves", "nothing lost"] {
            assert!(svg.contains(text), "{text}");
        }
        let both = |at_s| {
            let mut summary = example();
            summary.events[1].at_s = at_s;
            marks(&summary.timeline, &summary.events)
        };
        assert_eq!(both(1.51), [(1.5, "1, 2".to_owned())]);
        assert_eq!(both(2.5), [(1.5, "1".to_owned()), (2.5, "2".to_owned())]);
    }
}
