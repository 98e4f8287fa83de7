//! What happened when: the IOPS of each second with the events among them, for a terminal and as a
//! picture.

use std::path::Path;

use flagstone_bench::nature::Nature;
use flagstone_bench::units::format_number;
use flagstone_plot::{Axis, Content, Figure, Hue, Line, Mark, Panel, Theme};
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

fn suffix(summary: &Summary) -> &'static str {
    if summary.emulated { Nature::Emulated.suffix() } else { Nature::Served.suffix() }
}

/// The picture.
pub fn figure(summary: &Summary) -> Figure {
    let line = Line {
        name: format!("verifying load by both nodes{}", suffix(summary)),
        hue: Hue(0),
        pieces: vec![summary.timeline.iter().map(|point| (point.at_s, point.iops)).collect()],
        dots: true,
    };
    let panel = Panel {
        x: Axis::linear("seconds"),
        y: Axis::linear("IOPS"),
        content: Content::Lines(vec![line]),
        marks: summary
            .events
            .iter()
            .map(|event| Mark { x: event.at_s, text: event.what.clone() })
            .collect(),
    };
    Figure {
        title: format!("A source dies under a verifying load{}", suffix(summary)),
        subtitle: summary.verdict(),
        panels: vec![panel],
        footer: format!("flagstone lab failover {}", env!("CARGO_PKG_VERSION")),
    }
}

/// Writes the picture beside the results.
pub(super) fn write(summary: &Summary, directory: &Path) -> Result<(), Error> {
    std::fs::write(directory.join("timeline.svg"), figure(summary).svg(Theme::Auto))
        .map_err(Error::system("cannot write the timeline"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Summary {
        let point = |at_s, iops| Point { at_s, iops };
        let event = |at_s, what: &str| Event { at_s, what: what.to_owned() };
        Summary {
            schema_version: 1,
            experiment: "failover",
            emulated: true,
            blocks_written: 1,
            blocks_checked: 1,
            wrong_blocks: 0,
            errors: 0,
            longest_ms: 900.0,
            failover_ms: 80.0,
            resynced_bytes: 0,
            volume_bytes: 0,
            return_ms: 0.0,
            switchover_ms: 0.0,
            events: vec![event(1.5, "node-a is killed"), event(1.6, "node-b serves")],
            timeline: vec![point(1.0, 4000.0), point(2.0, 1000.0), point(3.0, 0.0)],
        }
    }

    #[test]
    fn events_stand_in_their_seconds() {
        let text = text(&example());
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("IOPS [EMULATED]"));
        assert_eq!(lines[1], format!("    1   4,000  {}", "█".repeat(40)));
        assert!(lines[2].starts_with("    2   1,000  ██████████ "));
        assert!(lines[2].ends_with("  1.5 s node-a is killed; 1.6 s node-b serves"));
        assert_eq!(lines[3], "    3       0");
    }

    #[test]
    fn the_picture_says_what_it_is_of() {
        let svg = figure(&example()).svg(Theme::Light);
        for text in ["EMULATED", "node-a is killed", "nothing lost"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
