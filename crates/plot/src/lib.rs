//! Charts: lines and bars as SVG, and as PNG.
//!
//! What it promises: the same [`Figure`] gives the same bytes everywhere; a picture needs nothing
//! from outside (no script, no font, no address); it reads well in print, in light and in dark; it
//! can be told apart without seeing colours, as lines differ in their dashes too; and any text and
//! any number may be in it: text is escaped, and what is not finite or does not fit a logarithmic
//! axis is left out, never drawn somewhere else.
//!
//! A [`Figure`] is one or more [`Panel`]s under each other, with one legend. Begin there; `scale`
//! places numbers, `svg` writes, [`png`] draws what was written.

mod figure;
mod format;
mod png;
mod scale;
mod svg;
mod theme;

pub use figure::{
    Axis, Bars, Content, Curve, Figure, Group, Hue, Line, Mark, Note, Panel, Scale, Stretch, Value,
};
pub use format::Format;
pub use png::{PngError, png};
pub use theme::Theme;
