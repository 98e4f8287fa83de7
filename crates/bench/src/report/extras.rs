//! What an experiment adds to the report of its measurements: tables of its own, pictures, and what
//! the numbers do not say by themselves.
//!
//! It is kept with the results, in `lab.json` (described in `docs/lab.md`), so that the report that
//! is made of them later is the same. What is read is bounded, and text whatever it says.

use std::path::Path;

use flagstone_plot::{
    Axis, Bars, Content, Figure as Picture, Format, Group, Hue, Line, Mark, Panel, Value,
};
use serde::{Deserialize, Serialize};

use super::{Named, Plot, slug};
use crate::error::Error;
use crate::limits::{
    EXTRAS_BYTES, EXTRAS_CELLS, EXTRAS_DOUBTS, EXTRAS_MARKS, EXTRAS_PICTURES, EXTRAS_TABLES,
    PLOT_GROUPS, PLOT_LINES, REPORT_POINTS,
};
use crate::table::Table;

/// The file in a directory of results.
const FILE: &str = "lab.json";
/// Version of the form.
const SCHEMA_VERSION: u32 = 1;
/// Panels of one picture: more do not fit a page.
const PANELS: usize = 4;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Extras {
    /// Version of the form, 1.
    pub schema_version: u32,
    /// What the experiment is.
    pub title: String,
    /// What is looked at first.
    pub pictures: Vec<Drawing>,
    /// Tables, the most telling first.
    pub tables: Vec<Named>,
    /// What the numbers do not say by themselves: sentences without their full stop.
    pub doubts: Vec<String>,
}

/// A picture as data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drawing {
    /// The name of its files: lower-case letters, digits and `-`.
    pub id: String,
    /// The heading; says so if what is shown is emulated.
    pub title: String,
    /// A line below it; may be empty.
    pub subtitle: String,
    /// What measured it.
    pub footer: String,
    /// From top to bottom.
    pub panels: Vec<Drawn>,
}

/// Axes, and what is drawn between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drawn {
    /// Values over time or any other number.
    Lines {
        /// What the horizontal axis counts, with its unit.
        x: String,
        /// What the vertical axis counts, with its unit.
        y: String,
        /// Each with its name in the legend, and its points in order.
        lines: Vec<(String, Vec<(f64, f64)>)>,
        /// Where something happened, and what.
        marks: Vec<(f64, String)>,
    },
    /// Bars side by side in named groups.
    Bars {
        /// What the groups are.
        x: String,
        /// What the bars count, with its unit.
        y: String,
        /// What the bars of a group are.
        series: Vec<String>,
        /// The name of each group and its bars, one for each of `series`.
        groups: Vec<(String, Vec<Option<f64>>)>,
    },
}

impl Extras {
    /// Without anything yet.
    pub fn new(title: impl Into<String>) -> Extras {
        Extras { schema_version: SCHEMA_VERSION, title: title.into(), ..Extras::default() }
    }

    /// Adds tables, whose files are called `id`, `id-2` and so on.
    #[must_use]
    pub fn with_tables(mut self, id: &str, tables: Vec<Table>) -> Extras {
        for (at, table) in (1..).zip(tables) {
            let id = if at == 1 { id.to_owned() } else { format!("{id}-{at}") };
            self.tables.push(Named { id, table });
        }
        self
    }

    /// Adds a picture.
    #[must_use]
    pub fn with_picture(mut self, drawing: Drawing) -> Extras {
        self.pictures.push(drawing);
        self
    }

    /// Adds sentences.
    #[must_use]
    pub fn with_doubts(mut self, doubts: &[String]) -> Extras {
        self.doubts.extend_from_slice(doubts);
        self
    }

    /// Keeps it with the results in a directory.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, directory: &Path) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self).expect("it is always JSON") + "\n";
        let path = directory.join(FILE);
        std::fs::write(&path, text).map_err(Error::file("cannot write", &path))
    }

    /// What was kept in a directory; `None` where there is none.
    ///
    /// # Errors
    /// What cannot be read, or is larger than any experiment writes.
    pub fn read(directory: &Path) -> Result<Option<Extras>, Error> {
        let path = directory.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let text =
            crate::os::read_text(&path, EXTRAS_BYTES).map_err(Error::file("cannot read", &path))?;
        let broken = |line, detail| Error::Results { path: path.clone(), line, detail };
        let extras: Extras =
            serde_json::from_str(&text).map_err(|error| broken(error.line(), error.to_string()))?;
        match extras.fault() {
            Some(detail) => Err(broken(1, detail)),
            None => Ok(Some(extras)),
        }
    }

    /// What no experiment of this version writes.
    fn fault(&self) -> Option<String> {
        let points = |line: &(String, Vec<(f64, f64)>)| line.1.len();
        let cells = |named: &Named| {
            named.table.rows.iter().map(Vec::len).sum::<usize>() + named.table.head.len()
        };
        if self.schema_version > SCHEMA_VERSION {
            return Some(format!("schema {} is newer than this program", self.schema_version));
        }
        let is_too_large = self.tables.len() > EXTRAS_TABLES
            || self.tables.iter().map(cells).sum::<usize>() > EXTRAS_CELLS
            || self.doubts.len() > EXTRAS_DOUBTS
            || self.pictures.len() > EXTRAS_PICTURES;
        let panel_is_wrong = |panel: &Drawn| match panel {
            Drawn::Lines { lines, marks, .. } => {
                lines.len() > PLOT_LINES
                    || marks.len() > EXTRAS_MARKS
                    || lines.iter().map(points).sum::<usize>() > REPORT_POINTS
            }
            Drawn::Bars { series, groups, .. } => {
                groups.len() > PLOT_GROUPS
                    || series.len() > PLOT_LINES
                    || groups.iter().any(|(_, values)| values.len() != series.len())
            }
        };
        let is_wrong = |drawing: &Drawing| {
            drawing.panels.is_empty()
                || drawing.panels.len() > PANELS
                || drawing.panels.iter().any(panel_is_wrong)
        };
        (is_too_large || self.pictures.iter().any(is_wrong))
            .then(|| "it is larger than any experiment's, or not in its form".to_owned())
    }

    /// The pictures, to be drawn.
    pub(super) fn plots(&self) -> impl Iterator<Item = Plot> {
        let plot = |drawing: &Drawing| Plot { id: slug(&drawing.id), picture: drawing.picture() };
        self.pictures.iter().map(plot)
    }

    /// The tables; names of files stay names of files, whatever was read.
    pub(super) fn named(&self) -> impl Iterator<Item = Named> {
        self.tables.iter().map(|named| Named { id: slug(&named.id), table: named.table.clone() })
    }
}

impl Drawing {
    /// To be drawn.
    pub fn picture(&self) -> Picture {
        Picture {
            title: self.title.clone(),
            subtitle: self.subtitle.clone(),
            panels: self.panels.iter().map(Drawn::panel).collect(),
            footer: self.footer.clone(),
        }
    }
}

impl Drawn {
    fn panel(&self) -> Panel {
        match self {
            Drawn::Lines { x, y, lines, marks } => Panel {
                x: Axis::linear(x),
                y: Axis::linear(y),
                content: Content::Lines(
                    lines
                        .iter()
                        .enumerate()
                        .map(|(at, (name, points))| Line {
                            name: name.clone(),
                            hue: Hue(at),
                            pieces: vec![points.clone()],
                            dots: true,
                        })
                        .collect(),
                ),
                marks: marks.iter().map(|(x, text)| Mark { x: *x, text: text.clone() }).collect(),
            },
            Drawn::Bars { x, y, series, groups } => Panel {
                x: Axis::linear(x),
                y: Axis { format: Format::Plain, ..Axis::linear(y) },
                content: Content::Bars(Bars {
                    series: series
                        .iter()
                        .cloned()
                        .enumerate()
                        .map(|(at, n)| (n, Hue(at)))
                        .collect(),
                    groups: groups.iter().map(group).collect(),
                }),
                marks: Vec::new(),
            },
        }
    }
}

fn group((name, values): &(String, Vec<Option<f64>>)) -> Group {
    Group { name: name.clone(), values: values.iter().map(|v| v.map(Value::from)).collect() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// With everything that there can be, and text that would be markup elsewhere.
    pub(in crate::report) fn example() -> Extras {
        let mut table = Table::new("T <b> [EMULATED]", &["size", "MB/s"]);
        table.rows.push(vec!["</table>".to_owned(), "1.5".to_owned()]);
        let lines = Drawn::Lines {
            x: "seconds".to_owned(),
            y: "IOPS".to_owned(),
            lines: vec![("load".to_owned(), vec![(1.0, 5.0), (2.0, 7.0)])],
            marks: vec![(1.5, "<i>it dies".to_owned())],
        };
        let bars = Drawn::Bars {
            x: "size".to_owned(),
            y: "MB/s".to_owned(),
            series: vec!["ours".to_owned(), "published".to_owned()],
            groups: vec![("4K".to_owned(), vec![Some(3.5), None])],
        };
        Extras::new("An experiment")
            .with_tables("out", vec![table.clone(), table])
            .with_doubts(&["<script>alert(1)</script> is a doubt".to_owned()])
            .with_picture(Drawing {
                id: "../Over time".to_owned(),
                title: "D [EMULATED]".to_owned(),
                panels: vec![lines, bars],
                ..Drawing::default()
            })
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Extras::read(directory.path()).unwrap(), None);
        example().write(directory.path()).unwrap();
        assert_eq!(Extras::read(directory.path()).unwrap(), Some(example()));
        let ids: Vec<_> = example().named().map(|named| named.id).collect();
        assert_eq!(ids, ["out", "out-2"]);
        assert_eq!(example().plots().next().unwrap().id, "over-time", "no path");
    }

    #[test]
    fn what_no_experiment_writes_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let refuses = |extras: &Extras| {
            extras.write(directory.path()).unwrap();
            let error = Extras::read(directory.path()).unwrap_err().to_string();
            assert!(error.contains("lab.json:1: "), "{error}");
        };
        refuses(&Extras { schema_version: 2, ..example() });
        refuses(&Extras { doubts: vec![String::new(); EXTRAS_DOUBTS + 1], ..example() });
        let mut many = example();
        many.tables[0].table.rows = vec![vec![String::new(); 100]; EXTRAS_CELLS / 100];
        refuses(&many);
        let ragged = Drawn::Bars {
            x: String::new(),
            y: String::new(),
            series: vec!["a".to_owned()],
            groups: vec![("g".to_owned(), vec![Some(1.0), None])],
        };
        for panels in [vec![ragged.clone()], Vec::new()] {
            refuses(&example().with_picture(Drawing { panels, ..Drawing::default() }));
        }
        std::fs::write(directory.path().join(FILE), "{\n\"title\": 3}").unwrap();
        let error = Extras::read(directory.path()).unwrap_err().to_string();
        assert!(error.contains("lab.json:2: "), "{error}");
    }
}
