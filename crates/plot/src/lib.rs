//! Charts: lines, bars and curves as SVG.
//!
//! Invariants: the same [`Figure`] gives the same bytes on every machine. A picture is
//! self-contained (no script, font or address). It is readable in print, in light and dark themes,
//! and without colors, because lines differ in their dashes too. Any text and number may be in it:
//! text is escaped, and numbers that are not finite or not positive on a logarithmic axis are
//! omitted, never drawn elsewhere.
//!
//! A [`Figure`] has one or more [`Panel`]s and one legend. `scale` maps numbers to positions, `svg`
//! writes the picture.

#![allow(missing_docs, reason = "the names of most members say it")]

mod figure;
mod format;
mod scale;
mod svg;
mod theme;

pub use figure::{
    Axis, BarValue, Bars, Curve, Figure, Group, Hue, LineSeries, Mark, Note, Panel, PanelContent,
    Scale, Stretch,
};
pub use format::NumberFormat;
pub use theme::Theme;
