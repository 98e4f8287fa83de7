//! What happened when: the IOPS of each second with the events among them, for a terminal and as a
//! picture.

use std::path::Path;

use flagstone_bench::nature::Nature;
use flagstone_bench::report::{Drawing, Drawn};
use flagstone_bench::units::format_number;
use flagstone_plot::Theme;
use serde::Serialize;

use super::Summary;
use crate::Error;

/// Letters of the longest bar.
const BAR: f64 = 40.0;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// When, in seconds since the load began.
    pub at_s: f64,
    /// What.
    pub what: String,
}

/// An interval of the load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Its end, in seconds since the load began.
    pub at_s: f64,
    /// Requests a second in it.
    pub iops: f64,
}

/// For a terminal: a bar a second, with what happened in it.
pub fn text(summary: &Summary) -> String {
    let most = summary.timeline.iter().map(|point| point.iops).fold(0.0, f64::max);
    let mut out = format!("    s    IOPS{}\n", suffix(summary));
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
            format_number(point.iops, 0),
            happened.join("; ")
        );
        out += line.trim_end();
        out.push('\n');
        from_s = point.at_s;
    }
    out
}

/// Marks what the nodes' disks are not.
pub(super) fn suffix(summary: &Summary) -> &'static str {
    if summary.emulated { Nature::Emulated.suffix() } else { Nature::Served.suffix() }
}

/// The picture. Moments have numbers: what happened stands in its second line, where it has room
/// however soon one follows another.
pub fn drawing(summary: &Summary) -> Drawing {
    let found = if summary.is_right() { "nothing lost".to_owned() } else { summary.verdict() };
    let name = format!("verifying load by both nodes{}: {found}", suffix(summary));
    let points = summary.timeline.iter().map(|point| (point.at_s, point.iops)).collect();
    let named = (1..).zip(&summary.events).map(|(at, event)| format!("{at} {}", event.what));
    Drawing {
        id: "timeline".to_owned(),
        title: format!("A source dies under a verifying load{}", suffix(summary)),
        subtitle: named.collect::<Vec<_>>().join(", "),
        footer: format!("flagstone lab failover {}", env!("CARGO_PKG_VERSION")),
        panels: vec![Drawn::Lines {
            x: "seconds".to_owned(),
            y: "IOPS".to_owned(),
            lines: vec![(name, points)],
            marks: marks(summary),
        }],
    }
}

/// Nearer to each other than this part of the whole, two moments have one mark.
const NEAR: f64 = 0.02;

/// The events' numbers where they happened.
fn marks(summary: &Summary) -> Vec<(f64, String)> {
    let whole_s = summary.timeline.last().map_or(0.0, |point| point.at_s);
    let mut marks: Vec<(f64, String)> = Vec::new();
    for (at, event) in (1..).zip(&summary.events) {
        match marks.last_mut() {
            Some((last_s, text)) if event.at_s - *last_s < NEAR * whole_s => {
                *text += &format!(", {at}");
            }
            _ => marks.push((event.at_s, at.to_string())),
        }
    }
    marks
}

/// Writes the picture beside the results.
pub(super) fn write(summary: &Summary, directory: &Path) -> Result<(), Error> {
    let picture = drawing(summary).picture();
    std::fs::write(directory.join("timeline.svg"), picture.svg(Theme::Auto))
        .map_err(Error::system("cannot write the timeline"))
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::example;
    use super::*;

    #[test]
    fn events_stand_in_their_seconds() {
        let text = text(&example());
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("IOPS [EMULATED]"));
        assert_eq!(lines[1], format!("    1   4,000  {}", "█".repeat(40)));
        assert!(lines[2].starts_with("    2   1,000  ██████████ "));
        assert!(lines[2].ends_with("  1.5 s node-a falls silent; 1.6 s node-b serves"));
        assert_eq!(lines[3], "    3       0");
    }

    #[test]
    fn the_picture_says_what_it_is_of() {
        let svg = drawing(&example()).picture().svg(Theme::Light);
        for text in ["EMULATED", "1 node-a falls silent, 2 node-b serves", "nothing lost"] {
            assert!(svg.contains(text), "{text}");
        }
        let both = |at_s| {
            let mut summary = example();
            summary.events[1].at_s = at_s;
            marks(&summary)
        };
        assert_eq!(both(1.51), [(1.5, "1, 2".to_owned())]);
        assert_eq!(both(2.5), [(1.5, "1".to_owned()), (2.5, "2".to_owned())]);
    }
}
