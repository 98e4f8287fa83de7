//! What a picture shows, without how it is drawn.

use crate::format::Format;
use crate::svg;
use crate::theme::Theme;

/// A picture: a title, panels under each other, one legend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// The heading.
    pub title: String,
    /// A line below it in smaller letters; may be empty.
    pub subtitle: String,
    /// From top to bottom.
    pub panels: Vec<Panel>,
    /// Where the numbers come from, below everything; may be empty.
    pub footer: String,
}

impl Figure {
    /// The picture as an SVG document.
    pub fn svg(&self, theme: Theme) -> String {
        svg::document(self, theme)
    }
}

/// Axes, and what is drawn between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// The horizontal axis. Of bars, its label alone counts.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn.
    pub content: Content,
    /// Moments to point at, such as a failure; of lines alone.
    pub marks: Vec<Mark>,
}

/// How an axis counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it counts, with its unit: `IOPS`, `latency, µs`.
    pub label: String,
    /// Even steps or factors.
    pub scale: Scale,
    /// How its numbers are written.
    pub format: Format,
    /// Where numbers are written, in order; chosen from the range if empty.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// Even steps, numbers such as `15k`.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), scale: Scale::Linear, format: Format::Si, ticks: Vec::new() }
    }

    /// Factors, numbers such as `15k`.
    pub fn log(label: impl Into<String>) -> Axis {
        Axis { scale: Scale::Log, ..Axis::linear(label) }
    }
}

/// How numbers become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps are equally long; 0 is always shown.
    Linear,
    /// Equal factors are equally long; numbers up to 0 have no place.
    Log,
    /// As [`Scale::Log`], with powers of two written: blocks, queue depths, CPUs.
    Log2,
}

/// What stands between the axes.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Lines over a horizontal axis of numbers.
    Lines(Vec<Line>),
    /// Bars in groups.
    Bars(Bars),
    /// Lines whose colour changes with what holds along them. The label of the vertical axis
    /// stands above the panel.
    Curves(Vec<Curve>),
}

/// Which colour and dash: the same number looks the same in all panels of all pictures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hue(pub usize);

/// One entry of the legend and its pieces of line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// In the legend; the same name and hue in another panel is the same entry.
    pub name: String,
    /// Its colour and dash.
    pub hue: Hue,
    /// Pieces of (x, y), each joined within and not with the next; a piece of one point is a dot.
    pub pieces: Vec<Vec<(f64, f64)>>,
    /// A dot at each point.
    pub dots: bool,
}

/// Bars side by side in named groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// What the bars of a group are, in order, as the legend tells.
    pub series: Vec<(String, Hue)>,
    /// From left to right.
    pub groups: Vec<Group>,
}

/// Some bars and the name below them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Below the bars.
    pub name: String,
    /// One for each of [`Bars::series`]; `None` leaves a gap.
    pub values: Vec<Option<Value>>,
}

/// The height of a bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The bar's end.
    pub value: f64,
    /// The range of doubt, drawn as a whisker.
    pub between: Option<(f64, f64)>,
}

impl From<f64> for Value {
    fn from(value: f64) -> Value {
        Value { value, between: None }
    }
}

/// A moment or place on the horizontal axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Where.
    pub x: f64,
    /// What happened there.
    pub text: String,
}

/// A line whose colour says what holds along it. Several in a panel are told apart by their dashes,
/// and by their names at their ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// At its end and in the legend, where there are several.
    pub name: String,
    /// Its dash, from 0 on; 0 is a full line.
    pub dash: usize,
    /// Pieces of one colour, in order.
    pub stretches: Vec<Stretch>,
    /// Whether there is nothing between its points, as between numbers of CPUs: they are dots then,
    /// and a thin line leads the eye.
    pub discrete: bool,
    /// Places to point at, as far as there is room for their words.
    pub notes: Vec<Note>,
}

/// A piece of a curve along which one thing holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stretch {
    /// Its colour: the same number is the same in all panels.
    pub hue: Hue,
    /// What the colour means, in the legend.
    pub meaning: String,
    /// Beside it, where there is room; may be empty.
    pub label: String,
    /// Joined; what has no place on the axes is left out. The next stretch begins where this ends,
    /// if it has the same point.
    pub points: Vec<(f64, f64)>,
}

/// A place on a curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Where.
    pub x: f64,
    /// Where.
    pub y: f64,
    /// What is there.
    pub text: String,
}
