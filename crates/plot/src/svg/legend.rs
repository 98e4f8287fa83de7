//! Legend: meaning of colors and dashes, one entry for the whole picture.

use crate::figure::{Curve, Figure, Hue, PanelContent};
use crate::svg::write::{Anchor, Writer};
use crate::svg::{EDGE, TEXT, width_of};
use crate::theme::CURVE_DASHES;

const ROW: f64 = 22.0;

#[derive(Clone, Copy, PartialEq)]
enum Look {
    Line(Hue),
    Bar(Hue),
    Stretch(Hue),
    Dash(usize),
}

/// Draws all entries from `y` down and returns the lower end. Names of curves have separate rows.
pub(super) fn draw(out: &mut Writer, figure: &Figure, width: f64, y: f64) -> f64 {
    let mut entries: Vec<(&str, Look)> = Vec::new();
    let mut names: Vec<(&str, Look)> = Vec::new();
    for panel in &figure.panels {
        match &panel.content {
            PanelContent::Lines(lines) => {
                let all = lines.iter().map(|line| (line.name.as_str(), Look::Line(line.hue)));
                all.for_each(|entry| add(&mut entries, entry));
            }
            PanelContent::Bars(bars) => {
                let all = bars.series.iter().map(|(name, hue)| (name.as_str(), Look::Bar(*hue)));
                all.for_each(|entry| add(&mut entries, entry));
            }
            PanelContent::Curves(curves) => {
                let all = curves.iter().flat_map(|curve| &curve.stretches);
                all.for_each(|s| add(&mut entries, (s.meaning.as_str(), Look::Stretch(s.hue))));
                if curves.len() > 1 {
                    let dash = |curve: &Curve| Look::Dash(curve.dash);
                    curves.iter().for_each(|c| add(&mut names, (c.name.as_str(), dash(c))));
                }
            }
        }
    }
    // Colors with a meaning of their own are sorted by hue.
    if entries.iter().all(|(_, look)| matches!(look, Look::Stretch(_))) {
        entries.sort_by_key(|(_, look)| if let Look::Stretch(hue) = look { hue.0 } else { 0 });
    }
    let y = rows(out, &entries, width, y);
    rows(out, &names, width, if entries.is_empty() { y } else { y + 4.0 })
}

fn add<'f>(entries: &mut Vec<(&'f str, Look)>, entry: (&'f str, Look)) {
    if !entry.0.is_empty() && !entries.contains(&entry) {
        entries.push(entry);
    }
}

fn rows(out: &mut Writer, entries: &[(&str, Look)], most: f64, y: f64) -> f64 {
    if entries.is_empty() {
        return y;
    }
    let (mut x, mut y) = (EDGE, y + 12.0);
    for (name, look) in entries {
        let width = 34.0 + width_of(name, TEXT) + 18.0;
        if x > EDGE && x + width > most - EDGE {
            (x, y) = (EDGE, y + ROW);
        }
        let line = [(x, y - 4.0), (x + 28.0, y - 4.0)];
        match *look {
            Look::Line(hue) => out.polyline(hue, &line),
            Look::Bar(hue) => out.bar(hue, x + 8.0, y - 10.0, 14.0, 12.0),
            Look::Stretch(hue) => out.bar(hue, x, y - 7.0, 28.0, 5.0),
            Look::Dash(dash) => {
                out.dashed("line curve axis", CURVE_DASHES[dash % CURVE_DASHES.len()], &line);
            }
        }
        out.text(x + 34.0, y, TEXT, "ink", Anchor::Start, name);
        x += width;
    }
    y + 4.0
}
