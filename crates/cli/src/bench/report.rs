//! `flagstone bench report`.

use std::path::Path;

use flagstone_bench::Error;
use flagstone_bench::report::{ComparisonDocument, HtmlReport};

use super::args::ReportArgs;
use crate::exit::Exit;
use crate::output::{complain, json, print};

pub(super) fn run(args: &ReportArgs) -> Result<Exit, Error> {
    let runs = args.of.read()?;
    let to_stdout = args.output == Path::new("-");
    if args.json && to_stdout {
        return Err(Error::usage("--json and --output=- both print to standard output"));
    }
    let document = args.json.then(|| json(&ComparisonDocument::new(&runs, &args.of.results)));
    let report = HtmlReport::new(runs);
    let html = report.html();
    if let Some(directory) = &args.files {
        let count = report.write_files(directory)?;
        complain(&format!("{count} tables and plots are in {}\n", directory.display()));
    }
    if to_stdout {
        return Ok(print(&html, Exit::Success));
    }
    std::fs::write(&args.output, html).map_err(Error::file("cannot write", &args.output))?;
    complain(&format!("the report is {}\n", args.output.display()));
    Ok(document.map_or(Exit::Success, |document| print(&document, Exit::Success)))
}
