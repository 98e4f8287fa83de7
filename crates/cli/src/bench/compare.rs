//! `flagstone bench compare`.

use flagstone_bench::Error;
use flagstone_bench::compare::Comparison;
use flagstone_bench::report::comparison;
use flagstone_bench::stats::REPETITIONS_LEAST;

use super::args::BenchCompareArgs;
use crate::exit::Exit;
use crate::output::{complain, print};

pub(super) fn run(args: &BenchCompareArgs) -> Result<Exit, Error> {
    let runs = args.of.read()?;
    let comparison = comparison(&runs);
    if args.fail_if_slower.is_some() {
        check_pairs(&comparison)?;
    }
    let exit = print(&args.output.shown(&runs, &args.of.results), Exit::Success);
    let Some(most) = args.fail_if_slower else { return Ok(exit) };
    let few = comparison.undecidable();
    if !few.is_empty() {
        complain(&format!(
            "flagstone: error: too few repetitions to compare {}: --fail-if-slower needs {REPETITIONS_LEAST} of each or more\n",
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
    if !slower.is_empty() {
        return Ok(Exit::Slower);
    }
    complain(&format!("flagstone: passed: nothing is significantly worse by more than {most} %\n"));
    Ok(exit)
}

/// Refuses a verdict that would leave out a target.
fn check_pairs(comparison: &Comparison) -> Result<(), Error> {
    if !comparison.unmatched().is_empty() {
        return Err(Error::Usage(format!(
            "--fail-if-slower compares targets of the same name in each result, and has no \
             counterpart of {}",
            comparison.unmatched().join(", ")
        )));
    }
    if !comparison.has_pairs() {
        return Err(Error::usage("--fail-if-slower needs two results, or a result of two targets"));
    }
    let unlike = comparison.unlike_jobs();
    if !unlike.is_empty() {
        return Err(Error::Usage(format!(
            "--fail-if-slower compares the same jobs, and these share only the name: {}",
            unlike.join("; ")
        )));
    }
    Ok(())
}
