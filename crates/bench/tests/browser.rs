//! Screenshots and print of the report in a real browser, light and dark, compared with the style.
//! Without Chromium the tests are skipped. Structure and content are tested in `report.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_bench::job::BenchJob;
use flagstone_bench::measurement::Measurement;
use flagstone_bench::os::Stopwatch;
use flagstone_bench::process::{self, Interrupt};
use flagstone_bench::provenance::Provenance;
use flagstone_bench::report::{HtmlReport, Run};
use flagstone_bench::results::ResultRecord;
use flagstone_bench::target::BenchTarget;

/// Debian's package of that name. A `chromium` of other systems may be sandboxed without access to
/// temporary files.
const BROWSER: &str = "chromium-headless-shell";
/// Time limit for a page, in seconds.
const TIMEOUT_S: f64 = 120.0;
/// A desktop and a telephone.
const WIDTHS: [u32; 2] = [1200, 400];
const HEIGHT: u32 = 1400;
/// `--ground` of the style.
const LIGHT: [u8; 3] = [0xff, 0xff, 0xff];
const DARK: [u8; 3] = [0x14, 0x18, 0x1f];
/// `--alarm-ground`, of the notice.
const NOTICE_LIGHT: [u8; 3] = [0xff, 0xf3, 0xea];
const NOTICE_DARK: [u8; 3] = [0x33, 0x22, 0x1a];

fn has_browser() -> bool {
    let ended = Command::new(BROWSER).arg("--version").output();
    let has = ended.is_ok_and(|ended| ended.status.success());
    if !has {
        eprintln!("SKIPPED: there is no {BROWSER} here (make setup)");
    }
    has
}

/// A report of two targets, one of them emulated.
fn page(directory: &Path) -> PathBuf {
    let mut lines = String::new();
    for repetition in 0..4 {
        for (name, provenance, iops) in
            [("a", Provenance::Real, 9000.0), ("b", Provenance::Emulated, 7000.0)]
        {
            let target: BenchTarget = format!("{name}=/dev/{name}").parse().expect("a target");
            let mut measured = Measurement::default();
            measured.total.ios = 100_000;
            measured.total.iops = iops + f64::from(repetition);
            measured.total.latency_mean_us = 1e6 / iops;
            for (percent, us) in [("50", 100.0), ("99", 400.0), ("99.9", 900.0)] {
                measured.total.percentiles_us.insert(percent.to_owned(), us);
            }
            measured.series_interval_ms = 100;
            measured.series_iops = vec![iops; 50];
            let job = BenchJob { name: "one".to_owned(), ..BenchJob::default() };
            let record = ResultRecord {
                repetition,
                provenance,
                ..ResultRecord::new("s", &job, &target, measured)
            };
            lines += &(serde_json::to_string(&record).expect("JSON") + "\n");
        }
    }
    let results = directory.join("results.jsonl");
    fs::write(&results, lines).expect("it can be written");
    let html = HtmlReport::new(vec![Run::read(&results).expect("it can be read")]).html();
    let page = directory.join("page.html");
    fs::write(&page, html).expect("it can be written");
    page
}

/// Runs the browser on a page, without network access and with a temporary profile.
fn browse(page: &Path, options: &[String]) {
    let profile = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(BROWSER);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--no-zygote", "--no-first-run", "--hide-scrollbars"])
        .args(["--disable-background-networking", "--proxy-server=127.0.0.1:1"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(options)
        .arg(format!("file://{}", page.display()));
    let (interrupt, watch) = (Interrupt::never(), Stopwatch::start());
    let ended = process::run(&mut command, 1 << 20, &interrupt, &mut || {
        if watch.seconds() > TIMEOUT_S {
            interrupt.raise();
        }
    });
    let ended = ended.unwrap_or_else(|error| panic!("{BROWSER}: {error}"));
    assert!(ended.status.success(), "{}", ended.message(2000));
}

/// Width and pixels of a screenshot.
fn picture(path: &Path, width: u32) -> (usize, Vec<[u8; 3]>) {
    let file = std::io::Cursor::new(fs::read(path).expect("the browser wrote it"));
    let mut reader = png::Decoder::new(file).read_info().expect("a PNG");
    let mut bytes = vec![0; reader.output_buffer_size().expect("it is small")];
    let info = reader.next_frame(&mut bytes).expect("a picture");
    assert_eq!((info.width, info.height, info.bit_depth), (width, HEIGHT, png::BitDepth::Eight));
    let samples = info.color_type.samples();
    let pixels = bytes[..info.buffer_size()].chunks(samples).map(|p| [p[0], p[1], p[2]]).collect();
    (info.width as usize, pixels)
}

#[test]
fn report_renders_in_both_themes() {
    if !has_browser() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let page = page(directory.path());
    // The browser's numbers of the themes.
    let themes = [(1, LIGHT, NOTICE_LIGHT), (0, DARK, NOTICE_DARK)];
    for (width, (theme, ground, notice)) in WIDTHS.into_iter().flat_map(|w| themes.map(|t| (w, t)))
    {
        let shot = directory.path().join(format!("{theme}-{width}.png"));
        let options = [
            format!("--blink-settings=preferredColorScheme={theme}"),
            format!("--window-size={width},{HEIGHT}"),
            format!("--screenshot={}", shot.display()),
        ];
        browse(&page, &options);
        let (columns, pixels) = picture(&shot, width);
        let of = |color: [u8; 3]| pixels.iter().filter(|pixel| **pixel == color).count();
        assert!(of(ground) * 2 > pixels.len(), "most of it is the ground");
        assert!(of(notice) * 200 > pixels.len(), "the notice has its own");
        let other = if ground == LIGHT { DARK } else { LIGHT };
        assert!(of(other) * 20 < pixels.len(), "of the other theme there is nothing but ink");
        // Nothing crosses the edges of the page: nothing scrolls sideways.
        for row in pixels.chunks(columns) {
            assert_eq!((row[0], row[columns - 1]), (ground, ground), "{width}");
        }
        // Both halves of the page have content: headline and tables above, plots below.
        let inked = |rows: &[[u8; 3]]| rows.iter().filter(|pixel| **pixel != ground).count();
        let (above, below) = pixels.split_at(pixels.len() / 2);
        assert!(inked(above) * 50 > above.len() && inked(below) * 200 > below.len());
    }
}

#[test]
fn report_prints_to_pdf() {
    if !has_browser() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let page = page(directory.path());
    let paper = directory.path().join("paper.pdf");
    browse(&page, &[format!("--print-to-pdf={}", paper.display())]);
    let pdf = fs::read(&paper).expect("the browser wrote it");
    let has = |what: &[u8]| pdf.windows(what.len()).any(|part| part == what);
    assert!(pdf.starts_with(b"%PDF-") && has(b"/Page") && has(b"%%EOF"));
}
