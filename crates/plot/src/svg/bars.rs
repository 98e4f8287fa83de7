//! Grouped bars with their values above them.

use crate::figure::Bars;
use crate::format::NumberFormat;
use crate::scale::Placed;
use crate::svg::panel::Room;
use crate::svg::write::{Anchor, Writer};
use crate::svg::{SMALL, TEXT, width_of};

/// Share of a group's width that its bars fill.
const FILLED: f64 = 0.76;
const BAR_WIDTH_MAX: f64 = 64.0;

pub(super) fn values(bars: &Bars) -> impl Iterator<Item = f64> {
    bars.groups.iter().flat_map(|group| group.values.iter().flatten()).flat_map(|value| {
        let (low, high) = value.between.unwrap_or((value.value, value.value));
        [value.value, low, high]
    })
}

pub(super) fn draw(out: &mut Writer, bars: &Bars, format: NumberFormat, y: &Placed, room: Room) {
    let share = room.width / bars.groups.len().max(1) as f64;
    let width = (share * FILLED / bars.series.len().max(1) as f64).min(BAR_WIDTH_MAX);
    let base = room.y(y.base());
    for (number, group) in bars.groups.iter().enumerate() {
        let middle = room.left + (number as f64 + 0.5) * share;
        out.text(middle, room.bottom() + 18.0, TEXT, "ink", Anchor::Middle, &group.name);
        let left = middle - width * bars.series.len() as f64 / 2.0;
        for (at, ((_, hue), value)) in bars.series.iter().zip(&group.values).enumerate() {
            let Some(value) = value else { continue };
            let Some(place) = y.place(value.value) else { continue };
            let (x, end) = (left + at as f64 * width, room.y(place));
            out.bar(*hue, x + 1.0, end.min(base), width - 2.0, (end - base).abs());
            let mut top = end.min(base);
            let between = value.between.map(|(low, high)| (y.place(low), y.place(high)));
            if let Some((Some(low), Some(high))) = between {
                let center = x + width / 2.0;
                let (low, high) = (room.y(low), room.y(high));
                out.straight("axis whisker", (center, low), (center, high));
                for end in [low, high] {
                    out.straight("axis whisker", (center - 4.0, end), (center + 4.0, end));
                }
                top = top.min(high);
            }
            let text = format.text(value.value);
            if width_of(&text, SMALL) <= width + 4.0 {
                out.text(x + width / 2.0, top - 4.0, SMALL, "ink", Anchor::Middle, &text);
            }
        }
    }
}
