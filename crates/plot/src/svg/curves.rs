//! Curves: colors for what applies along them, dashes and names for the curves themselves, and
//! annotations where there is room.

use crate::figure::{Curve, Note, Stretch};
use crate::scale::Placed;
use crate::svg::panel::Room;
use crate::svg::places::{Places, Rect, spread};
use crate::svg::write::{Anchor, Writer};
use crate::svg::{hue_class, width_of};
use crate::theme::CURVE_DASHES;

const LETTERS: f64 = super::SMALL;
/// Height of a name at the right edge.
const NAME_ROW: f64 = 15.0;
const NAME_GAP: f64 = 12.0;

pub(super) fn points(curves: &[Curve]) -> impl Iterator<Item = (f64, f64)> + '_ {
    curves.iter().flat_map(|curve| &curve.stretches).flat_map(|s| s.points.iter().copied())
}

/// Width of the names at the right of the axes.
pub(super) fn room_for_names(curves: &[Curve]) -> f64 {
    match curves {
        [] | [_] => 0.0,
        many => {
            let widths = many.iter().map(|curve| width_of(&curve.name, LETTERS));
            widths.fold(0.0, f64::max) + NAME_GAP
        }
    }
}

struct Drawn<'a> {
    stretch: &'a Stretch,
    points: Vec<(f64, f64)>,
}

pub(super) fn draw(out: &mut Writer, curves: &[Curve], (x, y): (&Placed, &Placed), room: Room) {
    let place = |(px, py): (f64, f64)| Some((room.x(x.place(px)?), room.y(y.place(py)?)));
    let drawn: Vec<Vec<Drawn<'_>>> = curves
        .iter()
        .map(|curve| {
            let of =
                |stretch: &'_ Stretch| stretch.points.iter().filter_map(|p| place(*p)).collect();
            curve.stretches.iter().map(|stretch| Drawn { stretch, points: of(stretch) }).collect()
        })
        .collect();
    let mut places = Places::new(Rect {
        left: room.left + 2.0,
        // The area below the heading is free too.
        top: room.top - 14.0,
        right: room.x(1.0) - 1.0,
        bottom: room.bottom() - 3.0,
    });
    for (curve, pieces) in curves.iter().zip(&drawn) {
        one(out, curve, pieces, &mut places);
    }
    for (curve, pieces) in curves.iter().zip(&drawn) {
        rings(out, curve, pieces, &mut places);
    }
    names(out, curves, &drawn, room);
    let mut said: Vec<&str> = Vec::new();
    for piece in drawn.iter().flatten() {
        let text = piece.stretch.label.as_str();
        // Among several curves the same label is written once: its color is the same.
        if curves.len() > 1 && said.contains(&text) {
            continue;
        }
        if label(out, piece, &mut places) {
            said.push(text);
        }
    }
    for curve in curves {
        for note in &curve.notes {
            if let Some(at) = place((note.x, note.y)) {
                words(out, note, at, &mut places);
            }
        }
    }
}

fn one(out: &mut Writer, curve: &Curve, pieces: &[Drawn<'_>], places: &mut Places) {
    let dash = CURVE_DASHES[curve.dash % CURVE_DASHES.len()];
    if curve.discrete {
        let all: Vec<(f64, f64)> = pieces.iter().flat_map(|piece| piece.points.clone()).collect();
        out.dashed("lead", dash, &all);
        places.line(&all);
        for piece in pieces {
            for (x, y) in &piece.points {
                out.ring(piece.stretch.hue, *x, *y);
                places.take(around(*x, *y, 6.0));
            }
        }
        return;
    }
    for piece in pieces {
        match piece.points[..] {
            [] => {}
            [(x, y)] => out.dot(piece.stretch.hue, x, y),
            ref points => {
                let class = format!("line curve l{}", hue_class(piece.stretch.hue));
                out.dashed(&class, dash, points);
                places.line(points);
            }
        }
    }
}

/// Marks the points at which the color changes.
fn rings(out: &mut Writer, curve: &Curve, pieces: &[Drawn<'_>], places: &mut Places) {
    if curve.discrete {
        return;
    }
    for pair in pieces.windows(2) {
        if let (Some(end), Some(start)) = (pair[0].points.last(), pair[1].points.first())
            && end == start
        {
            out.ring(pair[1].stretch.hue, start.0, start.1);
            places.take(around(start.0, start.1, 6.0));
        }
    }
}

fn around(x: f64, y: f64, by: f64) -> Rect {
    Rect { left: x - by, top: y - by, right: x + by, bottom: y + by }
}

/// Names of several curves at their ends, without overlaps, each connected to its end.
fn names(out: &mut Writer, curves: &[Curve], drawn: &[Vec<Drawn<'_>>], room: Room) {
    if curves.len() < 2 {
        return;
    }
    let end = |pieces: &Vec<Drawn<'_>>| pieces.iter().flat_map(|p| &p.points).last().copied();
    let ends: Vec<(&Curve, (f64, f64))> =
        curves.iter().zip(drawn).filter_map(|(curve, p)| Some((curve, end(p)?))).collect();
    let wanted: Vec<f64> = ends.iter().map(|(_, (_, y))| *y).collect();
    let heights = spread(&wanted, NAME_ROW, room.top, room.bottom());
    for ((curve, (x, y)), height) in ends.iter().zip(heights) {
        let left = room.x(1.0) + NAME_GAP;
        let near = (left - *x).abs() < 2.0 * NAME_GAP;
        if !near || (height - y).abs() > 3.0 {
            let knee = (left - 8.0).max(*x);
            out.dashed("lead", "", &[(*x, *y), (knee, *y), (left - 3.0, height)]);
        }
        out.text(left, height + 4.0, LETTERS, "ink", Anchor::Start, &curve.name);
    }
}

/// A position for a text, with the area that it would cover.
type Candidate = (Anchor, f64, f64, Rect);

/// Candidate positions for a text of this width beside (x, y), the best first.
fn beside((x, y): (f64, f64), width: f64) -> Vec<Candidate> {
    let text = |anchor, x: f64, base: f64| {
        let left = match anchor {
            Anchor::Start => x,
            Anchor::Middle => x - width / 2.0,
            Anchor::End => x - width,
        };
        let rect =
            Rect { left, top: base - LETTERS, right: left + width, bottom: base + LETTERS * 0.3 };
        (anchor, x, base, rect)
    };
    let mut out = Vec::new();
    for far in [0.0, 6.0, 14.0] {
        out.extend([
            text(Anchor::Start, x + 9.0 + far, y + 15.0 + far),
            text(Anchor::End, x - 9.0 - far, y - 8.0 - far),
            text(Anchor::Middle, x, y - 9.0 - far),
            text(Anchor::Middle, x, y + 18.0 + far),
            text(Anchor::Start, x + 9.0 + far, y - 8.0 - far),
            text(Anchor::End, x - 9.0 - far, y + 15.0 + far),
        ]);
    }
    out
}

fn words(out: &mut Writer, note: &Note, at: (f64, f64), places: &mut Places) {
    let candidates = beside(at, width_of(&note.text, LETTERS));
    write_free(out, &candidates, "faint halo", &note.text, places);
}

/// Writes a text at the first free candidate; returns whether there was room.
fn write_free(
    out: &mut Writer,
    candidates: &[Candidate],
    class: &str,
    text: &str,
    places: &mut Places,
) -> bool {
    let rects: Vec<Rect> = candidates.iter().map(|(_, _, _, rect)| *rect).collect();
    let Some(found) = places.first_free(&rects) else { return false };
    let (anchor, x, y, _) = candidates[found];
    out.text(x, y, LETTERS, class, anchor, text);
    true
}

/// Writes the label of a piece where it is free; returns whether there was room.
fn label(out: &mut Writer, piece: &Drawn<'_>, places: &mut Places) -> bool {
    let text = &piece.stretch.label;
    if text.is_empty() {
        return false;
    }
    let width = width_of(text, LETTERS);
    let mut candidates = Vec::new();
    for part in [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8] {
        let Some((x, y)) = along(&piece.points, part) else { continue };
        let mut all = beside((x, y), width);
        // Labels of a level line are above it, then below; other labels at either side.
        all.sort_by_key(|(anchor, ..)| !matches!(anchor, Anchor::Middle));
        candidates.extend(all);
    }
    write_free(out, &candidates, "ink halo", text, places)
}

/// Point at a share of the length of a line.
fn along(points: &[(f64, f64)], part: f64) -> Option<(f64, f64)> {
    let length = |(x1, y1): (f64, f64), (x2, y2): (f64, f64)| (x2 - x1).hypot(y2 - y1);
    let all: f64 = points.windows(2).map(|pair| length(pair[0], pair[1])).sum();
    let mut left = all * part;
    for pair in points.windows(2) {
        let own = length(pair[0], pair[1]);
        if own >= left && own > 0.0 {
            let of = |from: f64, to: f64| from + (to - from) * left / own;
            return Some((of(pair[0].0, pair[1].0), of(pair[0].1, pair[1].1)));
        }
        left -= own;
    }
    points.last().copied()
}
