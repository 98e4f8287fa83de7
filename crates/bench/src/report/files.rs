//! Files of a report: each table and plot on its own.

use std::fs;
use std::path::Path;

use flagstone_plot::Theme;

use super::HtmlReport;
use crate::error::Error;
use crate::table::Form;

impl HtmlReport {
    /// Writes each table as Markdown and CSV, and each plot as SVG, into a directory that is made
    /// if it is missing. Returns the number of files.
    pub fn write_files(&self, directory: &Path) -> Result<usize, Error> {
        fs::create_dir_all(directory).map_err(Error::file("cannot make", directory))?;
        let mut count = 0;
        let mut write = |name: String, bytes: &[u8]| {
            count += 1;
            let path = directory.join(name);
            fs::write(&path, bytes).map_err(Error::file("cannot write", path))
        };
        for named in
            self.additional_sections.iter().flat_map(|shown| &shown.tables).chain(&self.tables)
        {
            write(format!("{}.md", named.id), named.table.write(Form::Markdown).as_bytes())?;
            write(format!("{}.csv", named.id), named.table.write(Form::Csv).as_bytes())?;
        }
        for plot in
            self.additional_sections.iter().flat_map(|shown| &shown.plots).chain(&self.plots)
        {
            write(format!("{}.svg", plot.id), plot.picture.svg(Theme::Auto).as_bytes())?;
        }
        Ok(count)
    }
}
