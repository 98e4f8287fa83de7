//! Surveys of known data: exact figures of everything, and intervals that cover the truth.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice as _, FaultConfig, FaultLayer, MemoryDevice, SharedDevice};
use flagstone_runtime::{block_on, buf};
use flagstone_savings::{
    BLOCK_BYTES, FileSource, RUN_BYTES, RunFacts, SampleSize, Selection, Source, SurveyReport,
    Tally, measure, survey,
};

const RUN: usize = RUN_BYTES as usize;

/// Pseudo-random bytes, which do not compress.
fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(len).collect()
}

/// Text whose blocks all differ.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let words = ["disk ", "volume ", "segment ", "of the ", "pool ", "is ", "read ", "written "];
    let choices = random(seed, len);
    choices.iter().flat_map(|at| words[usize::from(*at) % 8].bytes()).take(len).collect()
}

fn everything(data: &[u8]) -> SurveyReport {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), data).expect("it is written");
    let source = Source::File(FileSource::open(file.path()).expect("it opens"));
    let all = Selection::of(source.size_bytes(), SampleSize::All, 1).expect("everything fits");
    let report = block_on(async move { survey(&source, all, |_| ()).await });
    report.expect("a runtime").expect("a report")
}

#[test]
fn zeroes_are_saved_whole() {
    let report = everything(&vec![0; 3 * RUN + 4096]);
    for share in [report.zeroes, report.lz4, report.zstd] {
        assert_eq!((share.low, share.estimate, share.high), (1.0, 1.0, 1.0));
    }
    assert_eq!((report.dedup.low, report.dedup.high), (1.0, 1.0));
    assert_eq!(report.read_bytes, 3 * RUN_BYTES + 4096);
}

#[test]
fn random_data_saves_nothing() {
    let report = everything(&random(1, 3 * RUN));
    for share in [report.zeroes, report.lz4, report.zstd] {
        assert_eq!((share.low, share.estimate, share.high), (0.0, 0.0, 0.0));
    }
    assert_eq!((report.dedup.low, report.dedup.high), (0.0, 0.0));
}

#[test]
fn repeated_data_is_counted_once() {
    // Ten copies of 64 KiB: 16 contents of 160 blocks.
    let report = everything(&random(1, 64 << 10).repeat(10));
    assert_eq!(report.dedup.estimate, Some(0.9));
    assert_eq!((report.dedup.low, report.dedup.high), (0.9, 0.9));
    // Compression does not see repetitions of 64 KiB in units of 32 KiB.
    assert_eq!((report.lz4.estimate, report.zstd.estimate), (0.0, 0.0));
    assert_eq!(report.dedup_and_zstd.estimate, Some(0.9));
}

#[test]
fn text_compresses_by_whole_blocks() {
    let data = text(1, 2 * RUN);
    let report = everything(&data);
    let stored: usize = data
        .chunks(32 << 10)
        .map(|unit| {
            let lz4 = lz4_flex::block::compress(unit);
            assert_eq!(lz4_flex::block::decompress(&lz4, unit.len()).expect("it is whole"), unit);
            lz4.len().div_ceil(BLOCK_BYTES)
        })
        .sum();
    let exact = 1.0 - stored as f64 / (data.len() / BLOCK_BYTES) as f64;
    assert_eq!(report.lz4.estimate, exact);
    assert!(exact > 0.3 && report.zstd.estimate > exact, "{report:#?}");
    assert_eq!(report.dedup.high, 0.0);
}

#[test]
fn short_end_of_a_file_is_measured() {
    let report = everything(&random(1, RUN + 1000));
    assert_eq!(report.size_bytes, RUN_BYTES + 1000);
    assert_eq!(report.method.runs, 2);
    assert_eq!(report.read_bytes, RUN_BYTES + 4096);
    assert_eq!(report.unreadable_bytes, 0);
}

#[test]
fn unreadable_ranges_are_counted_and_left_out() {
    let report = block_on(async {
        let memory = Arc::new(MemoryDevice::new(4 * RUN_BYTES, 4096).expect("a device"));
        for run in 0..4 {
            let mut data = buf::alloc(RUN).await;
            data.copy_from_slice(&random(run, RUN));
            memory.write(run * RUN_BYTES, data.freeze(), false).await.expect("written");
        }
        let (faulty, control) = FaultLayer::new(memory, FaultConfig::default()).expect("a layer");
        control.fail_reads(RUN_BYTES + 8192..RUN_BYTES + 12288 + 512);
        control.fail_reads(3 * RUN_BYTES..4 * RUN_BYTES);
        let faulty: SharedDevice = Arc::new(faulty);
        let all = Selection::of(4 * RUN_BYTES, SampleSize::All, 1).expect("it fits");
        survey(&Source::Device(faulty), all, |_| ()).await
    });
    let report = report.expect("a runtime").expect("a report");
    assert_eq!(report.unreadable_bytes, RUN_BYTES + 8192);
    assert_eq!(report.read_bytes, 3 * RUN_BYTES - 8192);
    let ranges: Vec<_> = report.unreadable.iter().map(|at| (at.offset_bytes, at.bytes)).collect();
    assert_eq!(ranges, [(RUN_BYTES + 8192, 8192), (3 * RUN_BYTES, RUN_BYTES)]);
    assert_eq!(report.zeroes.high, 0.0);
}

/// Runs of unlike kinds in unlike shares, next to each other as files are.
fn population() -> Vec<RunFacts> {
    let mut runs = Vec::new();
    let mut push = |data: &[u8]| {
        let run = runs.len() as u64;
        runs.push(measure(run, data, |_| true));
    };
    for _ in 0..120 {
        push(&vec![0; RUN]);
    }
    for seed in 0..200 {
        push(&random(seed, RUN));
    }
    // A copy of a fifth of these.
    for seed in 0..40 {
        push(&random(seed * 5, RUN));
    }
    for seed in 0..136 {
        push(&text(seed, RUN));
    }
    // One block again and again.
    for _ in 0..16 {
        push(&random(9999, BLOCK_BYTES).repeat(RUN / BLOCK_BYTES));
    }
    runs
}

#[test]
fn intervals_cover_the_truth_in_seeded_samples() {
    let runs = population();
    let size_bytes = runs.len() as u64 * RUN_BYTES;
    let report = |selection: Selection| {
        let mut tally = Tally::new(selection);
        for at in 0..selection.runs {
            tally.add(&runs[selection.run(at) as usize]);
        }
        (tally.zeroes(), tally.lz4(), tally.zstd(), tally.duplicates())
    };
    let all = Selection::of(size_bytes, SampleSize::All, 0).expect("it fits");
    let (zeroes, lz4, zstd, dedup) = report(all);
    let dedup = dedup.estimate.expect("everything was read");
    let exact = (120.0 + 40.0 + 16.0 - 1.0 / 64.0) / 512.0;
    assert!((dedup - exact).abs() < 1e-9, "{dedup} {exact}");
    // The bounds of duplicates assume nothing about unread blocks, which may repeat read ones.
    for (percent, widest) in [(15.0, 0.85), (40.0, 0.75)] {
        let (mut hits, mut width) = ([0; 4], [0.0; 2]);
        let seeds = 300;
        for seed in 0..seeds {
            let size = SampleSize::Percent(percent);
            let found = report(Selection::of(size_bytes, size, seed).expect("it fits"));
            for (at, (share, truth)) in
                [(found.0, zeroes), (found.1, lz4), (found.2, zstd)].iter().enumerate()
            {
                let covered = share.low..=share.high;
                hits[at] += u32::from(covered.contains(&truth.estimate));
                assert!(covered.contains(&share.estimate));
            }
            hits[3] += u32::from((found.3.low..=found.3.high).contains(&dedup));
            width[0] += (found.0.high - found.0.low) / seeds as f64;
            width[1] += (found.3.high - found.3.low) / seeds as f64;
        }
        for (kind, hits) in ["zeroes", "lz4", "zstd", "dedup"].iter().zip(hits) {
            assert!(hits >= 285, "{kind} at {percent} %: {hits} of {seeds} seeds");
        }
        // An interval that is always everything would cover the truth as well.
        assert!(width[0] < 0.2 && width[1] < widest, "{percent} %: {width:?}");
    }
}

#[test]
fn equal_sample_does_not_prove_the_rest() {
    let chosen = Selection::of(10_000 * RUN_BYTES, SampleSize::Percent(1.0), 1).expect("it fits");
    let mut tally = Tally::new(chosen);
    for at in 0..chosen.runs {
        tally.add(&measure(chosen.run(at), &vec![0; RUN], |_| true));
    }
    let share = tally.zeroes();
    assert_eq!((share.estimate, share.high), (1.0, 1.0));
    assert!(share.low > 0.9 && share.low < 0.99, "{share:?}");
}
