//! One panel: its frame, grid, ticks and labels; what is in it is drawn by `lines` and `bars`.

use crate::figure::{Axis, Content, Panel};
use crate::scale::Placed;
use crate::svg::write::{Anchor, Writer};
use crate::svg::{EDGE, WIDTH, bars, curves, lines, width_of};

/// Height between the axes.
const HEIGHT: f64 = 250.0;

/// Room for the numbers of the vertical axis and its label.
const LEFT: f64 = EDGE + 66.0;

/// Above the axes where the label of the vertical one is a heading.
const HEADING: f64 = 30.0;

/// Below the axes: numbers and a label.
const BELOW: f64 = 52.0;

/// The room between the axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Room {
    /// The horizontal place of a share of the axis.
    pub(super) fn x(&self, share: f64) -> f64 {
        self.left + share * self.width
    }

    /// The vertical place of a share of the axis, which begins below.
    pub(super) fn y(&self, share: f64) -> f64 {
        self.top + (1.0 - share) * self.height
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

/// Draws the panel from `top` down; the end of it.
pub(super) fn draw(out: &mut Writer, panel: &Panel, top: f64) -> f64 {
    let marks = if panel.marks.is_empty() { 0.0 } else { 16.0 };
    let (heading, names) = match &panel.content {
        Content::Curves(of) => (HEADING, curves::room_for_names(of)),
        Content::Lines(_) | Content::Bars(_) => (0.0, 0.0),
    };
    let room = Room {
        left: LEFT,
        top: top + 16.0 + marks + heading,
        width: (WIDTH - EDGE - LEFT - names).max(WIDTH / 2.0),
        height: HEIGHT,
    };
    match &panel.content {
        Content::Lines(of) => {
            let points = || of.iter().flat_map(|line| line.pieces.iter().flatten());
            let marked = panel.marks.iter().map(|mark| mark.x);
            let x = Placed::new(&panel.x, points().map(|point| point.0).chain(marked));
            let y = Placed::new(&panel.y, points().map(|point| point.1));
            vertical(out, &panel.y, &y, room);
            horizontal(out, &panel.x, &x, room);
            lines::draw(out, of, &panel.marks, (&x, &y), room);
        }
        Content::Curves(of) => {
            let x = Placed::new(&panel.x, curves::points(of).map(|point| point.0));
            let y = Placed::roomy(&panel.y, curves::points(of).map(|point| point.1));
            out.text(EDGE, room.top - 20.0, 13.0, "ink strong", Anchor::Start, &panel.y.label);
            numbers(out, &panel.y, &y, room);
            horizontal(out, &panel.x, &x, room);
            curves::draw(out, of, (&x, &y), room);
        }
        Content::Bars(of) => {
            let y = Placed::new(&panel.y, bars::values(of));
            vertical(out, &panel.y, &y, room);
            bars::draw(out, of, panel.y.format, &y, room);
        }
    }
    out.straight("axis", (room.left, room.bottom()), (room.x(1.0), room.bottom()));
    let middle = room.x(0.5);
    out.text(middle, room.bottom() + 38.0, 12.0, "faint", Anchor::Middle, &panel.x.label);
    room.bottom() + BELOW
}

fn vertical(out: &mut Writer, axis: &Axis, placed: &Placed, room: Room) {
    numbers(out, axis, placed, room);
    out.upright(EDGE + 10.0, room.y(0.5), 12.0, "faint", &axis.label);
}

fn numbers(out: &mut Writer, axis: &Axis, placed: &Placed, room: Room) {
    for tick in &placed.ticks {
        let Some(place) = placed.place(*tick) else { continue };
        let y = room.y(place);
        out.straight("grid", (room.left, y), (room.x(1.0), y));
        let text = axis.format.text(*tick);
        out.text(room.left - 8.0, y + 4.0, 11.0, "faint", Anchor::End, &text);
    }
}

/// Numbers that would run into the one before are left out, and keep their line.
fn horizontal(out: &mut Writer, axis: &Axis, placed: &Placed, room: Room) {
    let mut free = f64::NEG_INFINITY;
    for tick in &placed.ticks {
        let Some(place) = placed.place(*tick) else { continue };
        let x = room.x(place);
        out.straight("grid", (x, room.top), (x, room.bottom()));
        let text = axis.format.text(*tick);
        let half = width_of(&text, 11.0) / 2.0;
        if x - half < free {
            continue;
        }
        free = x + half + 4.0;
        // The last number of an axis would be cut off at the picture's edge.
        let x = x.min(WIDTH - 2.0 - half);
        out.text(x, room.bottom() + 18.0, 11.0, "faint", Anchor::Middle, &text);
    }
}
