//! Additional sections of an experiment in the report of its measurements: tables, pictures,
//! caveats.
//!
//! They are stored with the results in `lab.json` (see `docs/lab.md`), so that a later report of
//! the same results is identical. A file that is read back is bounded, and all of its text is
//! escaped.

use std::path::Path;

use flagstone_plot::{Bars, Panel, PanelContent};
use serde::{Deserialize, Serialize};

use super::{Named, Plot, slug};
use crate::error::Error;
use crate::limits::report::{
    PLOT_GROUPS, PLOT_LINES, REPORT_POINTS, SECTIONS_BYTES, SECTIONS_CAVEATS, SECTIONS_CELLS,
    SECTIONS_MARKS, SECTIONS_PICTURES, SECTIONS_TABLES,
};
use crate::table::Table;

/// Name of the file in a directory of results.
const FILE: &str = "lab.json";
const SCHEMA_VERSION: u32 = 1;
/// Panels of one picture: more do not fit a page.
const PANELS: usize = 4;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdditionalSections {
    pub schema_version: u32,
    pub title: String,
    /// Pictures, shown first.
    pub pictures: Vec<Plot>,
    /// Tables, the most important first.
    pub tables: Vec<Named>,
    /// Caveats: sentences without a full stop.
    pub caveats: Vec<String>,
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
    pub fn with_picture(mut self, plot: Plot) -> AdditionalSections {
        self.pictures.push(plot);
        self
    }

    #[must_use]
    pub fn with_caveats(mut self, caveats: &[String]) -> AdditionalSections {
        self.caveats.extend_from_slice(caveats);
        self
    }

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
        let panel_is_wrong = |panel: &Panel| match &panel.content {
            PanelContent::Lines(lines) => {
                lines.len() > PLOT_LINES
                    || panel.marks.len() > SECTIONS_MARKS
                    || lines.iter().any(|line| line.hue.0 >= PLOT_LINES)
                    || lines.iter().flat_map(|line| &line.pieces).flatten().count() > REPORT_POINTS
            }
            PanelContent::Bars(Bars { series, groups }) => {
                groups.len() > PLOT_GROUPS
                    || series.len() > PLOT_LINES
                    || series.iter().any(|(_, hue)| hue.0 >= PLOT_LINES)
                    || groups.iter().any(|group| group.values.len() != series.len())
            }
            PanelContent::Curves(_) => true,
        };
        let is_wrong = |plot: &Plot| {
            let panels = &plot.picture.panels;
            panels.is_empty() || panels.len() > PANELS || panels.iter().any(panel_is_wrong)
        };
        (is_too_large || self.pictures.iter().any(is_wrong))
            .then(|| "it is larger than any experiment's, or not in its form".to_owned())
    }

    pub(super) fn plots(&self) -> impl Iterator<Item = Plot> {
        self.pictures.iter().map(|plot| Plot { id: slug(&plot.id), ..plot.clone() })
    }

    /// Tables of the report; their names are made safe for files.
    pub(super) fn named(&self) -> impl Iterator<Item = Named> {
        self.tables.iter().map(|named| Named { id: slug(&named.id), table: named.table.clone() })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use flagstone_plot::{Axis, Figure, Group, Hue, Mark};

    use super::*;

    /// All kinds of sections, with text that would be markup if it were not escaped.
    pub(in crate::report) fn example() -> AdditionalSections {
        let mut table = Table::new("T <b> [EMULATED]", &["size", "MB/s"]);
        table.rows.push(vec!["</table>".to_owned(), "1.5".to_owned()]);
        let lines = vec![("load".to_owned(), vec![(1.0, 5.0), (2.0, 7.0)])];
        let marks = vec![Mark { x: 1.5, text: "<i>it dies".to_owned() }];
        let lines = Panel { marks, ..Panel::lines("seconds", "IOPS", lines) };
        let names = ["ours", "published"].map(str::to_owned);
        let group = Group { name: "4K".to_owned(), values: vec![Some(3.5.into()), None] };
        let bars = Panel::bars("size", Axis::linear("MB/s"), &names, vec![group]);
        let title = "D [EMULATED]".to_owned();
        let picture = Figure { title, panels: vec![lines, bars], ..Figure::default() };
        AdditionalSections::new("An experiment")
            .with_tables("out", vec![table.clone(), table])
            .with_caveats(&["<script>alert(1)</script> is a caveat".to_owned()])
            .with_picture(Plot { id: "../Over time".to_owned(), picture })
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
        let group = Group { name: "g".to_owned(), values: vec![Some(1.0.into()), None] };
        let axis = || Axis::linear("y");
        let ragged = Panel::bars("x", axis(), &["a".to_owned()], vec![group]);
        let mut hue = Panel::lines("x", "y", vec![("a".to_owned(), vec![(1.0, 1.0)])]);
        let PanelContent::Lines(lines) = &mut hue.content else { panic!("lines") };
        lines[0].hue = Hue(usize::MAX);
        let content = PanelContent::Curves(Vec::new());
        let curves = Panel { x: axis(), y: axis(), content, marks: Vec::new() };
        for panels in [vec![ragged], vec![hue], vec![curves], Vec::new()] {
            let picture = Figure { panels, ..Figure::default() };
            refuses(&example().with_picture(Plot { id: String::new(), picture }));
        }
        std::fs::write(directory.path().join(FILE), "{\n\"title\": 3}").unwrap();
        let error = AdditionalSections::read(directory.path()).unwrap_err().to_string();
        assert!(error.contains("lab.json:2: "), "{error}");
    }
}
