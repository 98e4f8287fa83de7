//! Run of a survey on the current core, with the measuring on the compute threads.

use std::collections::VecDeque;
use std::io;

use flagstone_runtime::spawn;

use crate::estimate::Tally;
use crate::report::{Method, SurveyReport, Unreadable};
use crate::sample::Selection;
use crate::source::Source;
use crate::{BLOCK_BYTES, IN_FLIGHT, RUN_BYTES, UNIT_BYTES};

/// Unreadable ranges that a report names.
const UNREADABLE_NAMED: usize = 16;

/// Progress of a survey, in runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SurveyProgress {
    pub runs: u64,
    pub of: u64,
}

/// Reads and measures the selected runs of a source, in ascending order.
///
/// # Errors
/// A thread could not be started. Data that cannot be read is no error: the report counts it.
pub async fn survey(
    source: &Source,
    selection: Selection,
    mut progress: impl FnMut(SurveyProgress),
) -> io::Result<SurveyReport> {
    let mut tally = Tally::new(selection);
    let mut waiting = VecDeque::new();
    let (mut next, mut done) = (0, 0);
    let (mut unreadable, mut unreadable_bytes) = (Vec::new(), 0);
    while done < selection.runs {
        while next < selection.runs && waiting.len() < IN_FLIGHT {
            let (source, run) = (source.clone(), selection.run(next));
            waiting.push_back(spawn(async move { source.facts(run).await }).abort_on_drop());
            next += 1;
        }
        let mut first = waiting.pop_front().expect("some are in flight");
        let facts = first.handle().await.map_err(|_| io::Error::other("a task ended early"))??;
        tally.add(&facts);
        for (offset_bytes, bytes, error) in facts.unreadable {
            unreadable_bytes += bytes;
            if unreadable.len() < UNREADABLE_NAMED {
                unreadable.push(Unreadable { offset_bytes, bytes, error });
            }
        }
        done += 1;
        progress(SurveyProgress { runs: done, of: selection.runs });
    }
    Ok(report(source.size_bytes(), tally, selection, unreadable, unreadable_bytes))
}

fn report(
    size_bytes: u64,
    mut tally: Tally,
    selection: Selection,
    unreadable: Vec<Unreadable>,
    unreadable_bytes: u64,
) -> SurveyReport {
    let (zeroes, lz4, zstd) = (tally.zeroes(), tally.lz4(), tally.zstd());
    let dedup = tally.duplicates();
    SurveyReport {
        size_bytes,
        read_bytes: tally.blocks() * BLOCK_BYTES as u64,
        method: Method {
            everything: selection.is_everything(),
            run_bytes: RUN_BYTES,
            runs: selection.runs,
            runs_total: selection.population,
            seed: selection.seed,
            compression_unit_bytes: UNIT_BYTES as u64,
            dedup_block_bytes: BLOCK_BYTES as u64,
            confidence_percent: 95,
        },
        zeroes,
        lz4,
        zstd,
        dedup,
        dedup_and_zstd: SurveyReport::together(zeroes, zstd, dedup),
        unreadable_bytes,
        unreadable,
    }
}
