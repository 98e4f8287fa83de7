//! Additional sections of an experiment in the report of its measurements: tables, pictures,
//! caveats.
//!
//! They are stored with the results in `lab.json` (see `docs/lab.md`), so that a later report of
//! the same results is identical. A file that is read back is bounded, and all of its text is
//! escaped.

use std::path::Path;

use flagstone_plot::{
    Axis, BarValue, Bars, Figure as Picture, Group, Hue, LineSeries, Mark, NumberFormat, Panel,
    PanelContent,
};
use serde::{Deserialize, Serialize};

use super::{Named, Plot, slug};
use crate::error::Error;
use crate::limits::{
    PLOT_GROUPS, PLOT_LINES, REPORT_POINTS, SECTIONS_BYTES, SECTIONS_CAVEATS, SECTIONS_CELLS,
    SECTIONS_MARKS, SECTIONS_PICTURES, SECTIONS_TABLES,
};
use crate::table::Table;

/// Name of the file in a directory of results.
const FILE: &str = "lab.json";
const SCHEMA_VERSION: u32 = 1;
/// Panels of one picture: more do not fit a page.
const PANELS: usize = 4;

/// Additional sections of one experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdditionalSections {
    pub schema_version: u32,
    pub title: String,
    /// Pictures, shown first.
    pub pictures: Vec<Drawing>,
    /// Tables, the most important first.
    pub tables: Vec<Named>,
    /// Caveats: sentences without a full stop.
    pub caveats: Vec<String>,
}

/// A picture as data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drawing {
    /// Name of its files: lowercase letters, digits and `-`.
    pub id: String,
    /// Heading, with the mark of emulated data.
    pub title: String,
    /// Line below the heading; may be empty.
    pub subtitle: String,
    /// Program that measured it.
    pub footer: String,
    pub panels: Vec<Drawn>,
}

/// A panel of a picture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drawn {
    /// Values over time or another number.
    Lines {
        /// Label of the horizontal axis, with the unit.
        x: String,
        /// Label of the vertical axis, with the unit.
        y: String,
        /// Lines: name in the legend, and points in order.
        lines: Vec<(String, Vec<(f64, f64)>)>,
        /// Events: position and text.
        marks: Vec<(f64, String)>,
    },
    Bars {
        /// Label of the groups.
        x: String,
        /// Label of the vertical axis, with the unit.
        y: String,
        /// Names of the bars of a group.
        series: Vec<String>,
        /// Name of each group and its bars, one for each of `series`.
        groups: Vec<(String, Vec<Option<f64>>)>,
    },
}

impl AdditionalSections {
    pub fn new(title: impl Into<String>) -> AdditionalSections {
        AdditionalSections {
            schema_version: SCHEMA_VERSION,
            title: title.into(),
            ..AdditionalSections::default()
        }
    }

    /// Adds tables with the file names `id`, `id-2` and so on.
    #[must_use]
    pub fn with_tables(mut self, id: &str, tables: Vec<Table>) -> AdditionalSections {
        for (at, table) in (1..).zip(tables) {
            let id = if at == 1 { id.to_owned() } else { format!("{id}-{at}") };
            self.tables.push(Named { id, table });
        }
        self
    }

    #[must_use]
    pub fn with_picture(mut self, drawing: Drawing) -> AdditionalSections {
        self.pictures.push(drawing);
        self
    }

    #[must_use]
    pub fn with_caveats(mut self, caveats: &[String]) -> AdditionalSections {
        self.caveats.extend_from_slice(caveats);
        self
    }

    /// Stores the sections with the results in a directory.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self).expect("it is always JSON") + "\n";
        let path = directory.join(FILE);
        std::fs::write(&path, text).map_err(Error::file("cannot write", &path))
    }

    /// Sections stored in a directory; `None` if there are none.
    ///
    /// # Errors
    /// The file cannot be read, is invalid, or is larger than any experiment's.
    pub fn read(directory: &Path) -> Result<Option<AdditionalSections>, Error> {
        let path = directory.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let text = crate::os::read_text(&path, SECTIONS_BYTES)
            .map_err(Error::file("cannot read", &path))?;
        let broken = |line, detail| Error::Results { path: path.clone(), line, detail };
        let additional_sections: AdditionalSections =
            serde_json::from_str(&text).map_err(|error| broken(error.line(), error.to_string()))?;
        match additional_sections.fault() {
            Some(detail) => Err(broken(1, detail)),
            None => Ok(Some(additional_sections)),
        }
    }

    fn fault(&self) -> Option<String> {
        let points = |line: &(String, Vec<(f64, f64)>)| line.1.len();
        let cells = |named: &Named| {
            named.table.rows.iter().map(Vec::len).sum::<usize>() + named.table.head.len()
        };
        if self.schema_version > SCHEMA_VERSION {
            return Some(format!("schema {} is newer than this program", self.schema_version));
        }
        let is_too_large = self.tables.len() > SECTIONS_TABLES
            || self.tables.iter().map(cells).sum::<usize>() > SECTIONS_CELLS
            || self.caveats.len() > SECTIONS_CAVEATS
            || self.pictures.len() > SECTIONS_PICTURES;
        let panel_is_wrong = |panel: &Drawn| match panel {
            Drawn::Lines { lines, marks, .. } => {
                lines.len() > PLOT_LINES
                    || marks.len() > SECTIONS_MARKS
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

    pub(super) fn plots(&self) -> impl Iterator<Item = Plot> {
        let plot = |drawing: &Drawing| Plot { id: slug(&drawing.id), picture: drawing.picture() };
        self.pictures.iter().map(plot)
    }

    /// Tables of the report; their names are made safe for files.
    pub(super) fn named(&self) -> impl Iterator<Item = Named> {
        self.tables.iter().map(|named| Named { id: slug(&named.id), table: named.table.clone() })
    }
}

impl Drawing {
    /// The picture for the renderer.
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
                content: PanelContent::Lines(
                    lines
                        .iter()
                        .enumerate()
                        .map(|(at, (name, points))| LineSeries {
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
                y: Axis { format: NumberFormat::Plain, ..Axis::linear(y) },
                content: PanelContent::Bars(Bars {
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
    Group { name: name.clone(), values: values.iter().map(|v| v.map(BarValue::from)).collect() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// All kinds of sections, with text that would be markup if it were not escaped.
    pub(in crate::report) fn example() -> AdditionalSections {
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
        AdditionalSections::new("An experiment")
            .with_tables("out", vec![table.clone(), table])
            .with_caveats(&["<script>alert(1)</script> is a caveat".to_owned()])
            .with_picture(Drawing {
                id: "../Over time".to_owned(),
                title: "D [EMULATED]".to_owned(),
                panels: vec![lines, bars],
                ..Drawing::default()
            })
    }

    #[test]
    fn additional_sections_round_trip() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(AdditionalSections::read(directory.path()).unwrap(), None);
        example().write(directory.path()).unwrap();
        assert_eq!(AdditionalSections::read(directory.path()).unwrap(), Some(example()));
        let ids: Vec<_> = example().named().map(|named| named.id).collect();
        assert_eq!(ids, ["out", "out-2"]);
        assert_eq!(example().plots().next().unwrap().id, "over-time", "no path");
    }

    #[test]
    fn oversized_additional_sections_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let refuses = |additional_sections: &AdditionalSections| {
            additional_sections.write(directory.path()).unwrap();
            let error = AdditionalSections::read(directory.path()).unwrap_err().to_string();
            assert!(error.contains("lab.json:1: "), "{error}");
        };
        refuses(&AdditionalSections { schema_version: 2, ..example() });
        refuses(&AdditionalSections {
            caveats: vec![String::new(); SECTIONS_CAVEATS + 1],
            ..example()
        });
        let mut many = example();
        many.tables[0].table.rows = vec![vec![String::new(); 100]; SECTIONS_CELLS / 100];
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
        let error = AdditionalSections::read(directory.path()).unwrap_err().to_string();
        assert!(error.contains("lab.json:2: "), "{error}");
    }
}
