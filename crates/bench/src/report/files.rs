//! Each table and plot as a file of its own.

use std::fs;
use std::path::Path;

use flagstone_plot::{Theme, png};

use super::Report;
use crate::error::Error;
use crate::table::Form;

/// Pixels of a PNG for one unit of the picture, which is 880 wide: sharp in print and on screens.
const PNG_SCALE: f32 = 2.0;

impl Report {
    /// Writes each table as Markdown and CSV, and each plot as SVG and PNG, into a directory that is
    /// made if it is missing; gives how many files it wrote.
    ///
    /// # Errors
    /// The system's, or that a picture is too large to draw.
    pub fn write_files(&self, directory: &Path) -> Result<usize, Error> {
        fs::create_dir_all(directory).map_err(Error::file("cannot make", directory))?;
        let mut count = 0;
        let mut write = |name: String, bytes: &[u8]| {
            count += 1;
            let path = directory.join(name);
            fs::write(&path, bytes).map_err(Error::file("cannot write", path))
        };
        for named in self.extras.iter().flat_map(|shown| &shown.tables).chain(&self.tables) {
            write(format!("{}.md", named.id), named.table.write(Form::Markdown).as_bytes())?;
            write(format!("{}.csv", named.id), named.table.write(Form::Csv).as_bytes())?;
        }
        for plot in self.extras.iter().flat_map(|shown| &shown.plots).chain(&self.plots) {
            write(format!("{}.svg", plot.id), plot.picture.svg(Theme::Auto).as_bytes())?;
            let picture = png(&plot.picture, PNG_SCALE)
                .map_err(|error| Error::Usage(format!("{}: {error}", plot.id)))?;
            write(format!("{}.png", plot.id), &picture)?;
        }
        Ok(count)
    }
}
