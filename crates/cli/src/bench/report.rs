//! `flagstone bench report`.

use std::path::Path;

use flagstone_bench::Error;
use flagstone_bench::report::{HtmlReport, Run};

use super::args::ReportArgs;
use crate::exit::Exit;
use crate::output::{complain, print};

pub(super) fn run(args: &ReportArgs) -> Result<Exit, Error> {
    let report = HtmlReport::new(Run::read_all(&args.results)?);
    let html = report.html();
    if let Some(directory) = &args.files {
        let count = report.write_files(directory)?;
        complain(&format!("{count} tables and plots are in {}\n", directory.display()));
    }
    if args.output == Path::new("-") {
        return Ok(print(&html, Exit::Success));
    }
    std::fs::write(&args.output, html).map_err(Error::file("cannot write", &args.output))?;
    complain(&format!("the report is {}\n", args.output.display()));
    Ok(Exit::Success)
}
