//! Panel: frame, grid, ticks and labels; `lines`, `bars` and `curves` draw the contents.

use crate::figure::{Axis, Panel, PanelContent};
use crate::scale::Placed;
use crate::svg::write::{Anchor, Writer};
use crate::svg::{EDGE, TEXT, bars, curves, lines, width_of};

const HEIGHT: f64 = 250.0;
/// Width of the vertical axis' numbers and label.
const LEFT: f64 = EDGE + 66.0;
/// Height of the vertical axis' label where it is a heading.
const HEADING: f64 = 30.0;
/// Height of the horizontal axis' numbers and label.
const BELOW: f64 = 52.0;

#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Room {
    /// Horizontal position of a share of the axis.
    pub(super) fn x(&self, share: f64) -> f64 {
        self.left + share * self.width
    }

    /// Vertical position of a share of the axis, which starts at the bottom.
    pub(super) fn y(&self, share: f64) -> f64 {
        self.top + (1.0 - share) * self.height
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

/// Draws the panel from `top` down; returns its lower end.
pub(super) fn draw(out: &mut Writer, panel: &Panel, width: f64, top: f64) -> f64 {
    let marks = if panel.marks.is_empty() { 0.0 } else { 16.0 };
    let (heading, names) = match &panel.content {
        PanelContent::Curves(of) => (HEADING, curves::room_for_names(of)),
        PanelContent::Lines(_) | PanelContent::Bars(_) => (0.0, 0.0),
    };
    let room = Room {
        left: LEFT,
        top: top + 16.0 + marks + heading,
        width: (width - EDGE - LEFT - names).max(width / 2.0),
        height: HEIGHT,
    };
    match &panel.content {
        PanelContent::Lines(of) => {
            let points = || of.iter().flat_map(|line| line.pieces.iter().flatten());
            let marked = panel.marks.iter().map(|mark| mark.x);
            let x = Placed::new(&panel.x, points().map(|point| point.0).chain(marked));
            let y = Placed::new(&panel.y, points().map(|point| point.1));
            vertical(out, &panel.y, &y, room);
            horizontal(out, &panel.x, &x, width, room);
            lines::draw(out, of, &panel.marks, (&x, &y), room);
        }
        PanelContent::Curves(of) => {
            let x = Placed::new(&panel.x, curves::points(of).map(|point| point.0));
            let y = Placed::roomy(&panel.y, curves::points(of).map(|point| point.1));
            out.text(EDGE, room.top - 20.0, TEXT, "ink strong", Anchor::Start, &panel.y.label);
            numbers(out, &panel.y, &y, room);
            horizontal(out, &panel.x, &x, width, room);
            curves::draw(out, of, (&x, &y), room);
        }
        PanelContent::Bars(of) => {
            let y = Placed::new(&panel.y, bars::values(of));
            vertical(out, &panel.y, &y, room);
            bars::draw(out, of, panel.y.format, &y, room);
        }
    }
    out.straight("axis", (room.left, room.bottom()), (room.x(1.0), room.bottom()));
    let middle = room.x(0.5);
    out.text(middle, room.bottom() + 40.0, TEXT, "faint", Anchor::Middle, &panel.x.label);
    room.bottom() + BELOW
}

fn vertical(out: &mut Writer, axis: &Axis, placed: &Placed, room: Room) {
    numbers(out, axis, placed, room);
    out.upright(EDGE + 10.0, room.y(0.5), TEXT, "faint", &axis.label);
}

fn numbers(out: &mut Writer, axis: &Axis, placed: &Placed, room: Room) {
    for tick in &placed.ticks {
        let Some(place) = placed.place(*tick) else { continue };
        let y = room.y(place);
        out.straight("grid", (room.left, y), (room.x(1.0), y));
        let text = axis.format.text(*tick);
        out.text(room.left - 8.0, y + 5.0, TEXT, "faint", Anchor::End, &text);
    }
}

/// Numbers that would overlap the previous one are omitted; their grid line stays.
fn horizontal(out: &mut Writer, axis: &Axis, placed: &Placed, width: f64, room: Room) {
    let mut free = f64::NEG_INFINITY;
    for tick in &placed.ticks {
        let Some(place) = placed.place(*tick) else { continue };
        let x = room.x(place);
        out.straight("grid", (x, room.top), (x, room.bottom()));
        let text = axis.format.text(*tick);
        let half = width_of(&text, TEXT) / 2.0;
        if x - half < free {
            continue;
        }
        free = x + half + 4.0;
        // Keeps the last number inside the picture.
        let x = x.min(width - 2.0 - half);
        out.text(x, room.bottom() + 18.0, TEXT, "faint", Anchor::Middle, &text);
    }
}
