//! `flagstone bench compare`.

use std::path::Path;

use flagstone_bench::Error;
use flagstone_bench::compare::Comparison;
use flagstone_bench::results::{self, Record};

use super::args::CompareArgs;
use crate::exit::Exit;
use crate::output::{complain, print};

pub(super) fn run(args: &CompareArgs) -> Result<Exit, Error> {
    let comparison = read(args)?;
    if args.fail_if_slower.is_some() && comparison.names().len() < 2 {
        return Err(Error::usage("--fail-if-slower needs two results, or a result of two targets"));
    }
    let exit = print(&super::tables(&comparison, args.format.into()), Exit::Success);
    let Some(most) = args.fail_if_slower else { return Ok(exit) };
    let few = comparison.undecidable();
    if !few.is_empty() {
        complain(&format!(
            "flagstone: error: too few repetitions to tell whether it is slower: {} (4 of each or \
             more are needed)\n",
            few.join(", ")
        ));
        return Ok(Exit::Failed);
    }
    let slower = comparison.slower(most);
    for found in &slower {
        complain(&format!(
            "flagstone: slower: {} of {} on {} is worse by {:.2} %, and {most} % are allowed\n",
            found.figure.name(),
            found.job,
            found.name,
            found.percent
        ));
    }
    Ok(if slower.is_empty() { exit } else { Exit::Slower })
}

fn read(args: &CompareArgs) -> Result<Comparison, Error> {
    if let [one] = &args.results[..] {
        return Ok(Comparison::of_targets(results::to_compare(one)?));
    }
    let mut things: Vec<(String, Vec<Record>)> = Vec::new();
    for path in &args.results {
        let records = results::to_compare(path)?;
        let several = records.iter().any(|record| record.target != records[0].target);
        for record in records {
            let name = name(path, several.then_some(record.target.as_str()));
            match things.iter_mut().find(|(other, _)| *other == name) {
                Some((_, list)) => list.push(record),
                None => things.push((name, vec![record])),
            }
        }
    }
    Ok(Comparison::new(things))
}

/// A run by the name of its directory, with the target if it has several.
fn name(path: &Path, target: Option<&str>) -> String {
    let run = path.display().to_string();
    let run = run.trim_end_matches('/').to_owned();
    match target {
        Some(target) => format!("{run} {target}"),
        None => run,
    }
}
