//! Lines and marked positions.

use crate::figure::{LineSeries, Mark};
use crate::scale::Placed;
use crate::svg::SMALL;
use crate::svg::panel::Room;
use crate::svg::write::{Anchor, Writer};

pub(super) fn draw(
    out: &mut Writer,
    lines: &[LineSeries],
    marks: &[Mark],
    (x, y): (&Placed, &Placed),
    room: Room,
) {
    for mark in marks {
        let Some(place) = x.place(mark.x) else { continue };
        let at = room.x(place);
        out.straight("axis", (at, room.top - 4.0), (at, room.bottom()));
        // Texts near an edge are aligned so that they stay in the picture.
        let anchor = match place {
            _ if place < 0.15 => Anchor::Start,
            _ if place > 0.85 => Anchor::End,
            _ => Anchor::Middle,
        };
        out.text(at, room.top - 8.0, SMALL, "ink", anchor, &mark.text);
    }
    for line in lines {
        let edge = |(px, py)| Some((room.x(x.place(px)?), room.y(y.place(py)?)));
        let low = line.band.iter().filter_map(|(x, low, _)| edge((*x, *low)));
        let high = line.band.iter().rev().filter_map(|(x, _, high)| edge((*x, *high)));
        out.area(line.hue, &low.chain(high).collect::<Vec<_>>());
    }
    for line in lines {
        for piece in &line.pieces {
            let placed =
                |(px, py): &(f64, f64)| Some((room.x(x.place(*px)?), room.y(y.place(*py)?)));
            // A point outside of the axes interrupts the line.
            for run in piece.iter().map(placed).collect::<Vec<_>>().split(Option::is_none) {
                let run: Vec<(f64, f64)> = run.iter().flatten().copied().collect();
                if run.len() > 1 {
                    out.polyline(line.hue, &run);
                }
                if line.dots || run.len() == 1 {
                    run.iter().for_each(|(x, y)| out.dot(line.hue, *x, *y));
                }
            }
        }
    }
}
