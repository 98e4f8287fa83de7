//! Figure model: contents of a picture, independent of the drawing.

use serde::{Deserialize, Serialize};

use crate::format::NumberFormat;
use crate::svg;
use crate::theme::Theme;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub title: String,
    /// Line below the title in smaller letters; may be empty.
    pub subtitle: String,
    pub panels: Vec<Panel>,
    /// Source of the numbers, below all panels; may be empty.
    pub footer: String,
}

impl Figure {
    pub fn svg(&self, theme: Theme) -> String {
        svg::document(self, theme)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// Horizontal axis; for bars only its label is used.
    pub x: Axis,
    pub y: Axis,
    pub content: PanelContent,
    /// Marked positions, such as a failure; lines only.
    pub marks: Vec<Mark>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// Label with the unit: `IOPS`, `latency, µs`.
    pub label: String,
    pub scale: Scale,
    pub format: NumberFormat,
    /// Tick values in order; chosen from the range if empty.
    pub ticks: Vec<f64>,
}

impl Panel {
    /// Lines with dots over linear axes.
    pub fn lines(x: &str, y: &str, lines: Vec<(String, Vec<(f64, f64)>)>) -> Panel {
        let line = |(at, (name, points))| {
            let hue = Hue(at);
            LineSeries { name, hue, pieces: vec![points], dots: true, ..LineSeries::default() }
        };
        Panel {
            x: Axis::linear(x),
            y: Axis::linear(y),
            content: PanelContent::Lines(lines.into_iter().enumerate().map(line).collect()),
            marks: Vec::new(),
        }
    }

    /// Grouped bars with the names of the bars of each group.
    pub fn bars(x: &str, y: Axis, names: &[String], groups: Vec<Group>) -> Panel {
        let series = names.iter().cloned().enumerate().map(|(at, name)| (name, Hue(at))).collect();
        let content = PanelContent::Bars(Bars { series, groups });
        Panel { x: Axis::linear(x), y, content, marks: Vec::new() }
    }
}

impl Axis {
    /// A linear axis with numbers such as `15k`.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis {
            label: label.into(),
            scale: Scale::Linear,
            format: NumberFormat::Si,
            ticks: Vec::new(),
        }
    }

    /// A logarithmic axis with numbers such as `15k`.
    pub fn log(label: impl Into<String>) -> Axis {
        Axis { scale: Scale::Log, ..Axis::linear(label) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Linear; 0 is always shown.
    Linear,
    /// Logarithmic; numbers up to 0 are not drawn.
    Log,
    /// As [`Scale::Log`], with ticks at powers of two: block sizes, queue depths, CPUs.
    Log2,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PanelContent {
    Lines(Vec<LineSeries>),
    Bars(Bars),
    /// Lines whose color changes along them. The label of the vertical axis is above the panel.
    Curves(Vec<Curve>),
}

/// Index of a color and dash, which look the same in all panels of all pictures.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Hue(pub usize);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LineSeries {
    /// Name in the legend; equal names and hues of several panels are one entry.
    pub name: String,
    pub hue: Hue,
    /// Pieces of (x, y) with gaps between them; a piece of one point is a dot.
    pub pieces: Vec<Vec<(f64, f64)>>,
    pub dots: bool,
    /// Range around the line, such as the range of repetitions: x, lowest and highest y.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub band: Vec<(f64, f64, f64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bars {
    /// Name and hue of the bars of a group, in order.
    pub series: Vec<(String, Hue)>,
    pub groups: Vec<Group>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub name: String,
    /// One value for each of [`Bars::series`]; `None` leaves a gap.
    pub values: Vec<Option<BarValue>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BarValue {
    pub value: f64,
    /// Confidence interval, drawn as a whisker.
    pub between: Option<(f64, f64)>,
}

impl From<f64> for BarValue {
    fn from(value: f64) -> BarValue {
        BarValue { value, between: None }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    pub x: f64,
    pub text: String,
}

/// A line whose color shows what applies along it. Several curves of a panel are distinguished by
/// their dashes and by their names at the ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Name, at the end and in the legend if there are several curves.
    pub name: String,
    /// Index of the dash; 0 is a solid line.
    pub dash: usize,
    pub stretches: Vec<Stretch>,
    /// Whether only the points are meaningful, as for numbers of CPUs: they are dots on a thin
    /// line.
    pub discrete: bool,
    /// Annotations, drawn where there is room.
    pub notes: Vec<Note>,
}

/// A piece of a curve in one color.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// Color; the same number is the same color in all panels.
    pub hue: Hue,
    pub meaning: String,
    /// Text beside the piece, where there is room; may be empty.
    pub label: String,
    /// Points in order; points outside of the axes are omitted. Pieces are connected if they share
    /// a point.
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    pub x: f64,
    pub y: f64,
    pub text: String,
}
