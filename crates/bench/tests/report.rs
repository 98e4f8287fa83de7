//! Tests of the report: complete, well-formed, self-contained; marks of provenance everywhere; and
//! its size for 1,000 results.

use std::fs;
use std::path::{Path, PathBuf};

use flagstone_bench::campaign::CampaignPlan;
use flagstone_bench::environment::{DiskKind, DiskRecord, Environment};
use flagstone_bench::measurement::{Measurement, PERCENTILES};
use flagstone_bench::os::Stopwatch;
use flagstone_bench::provenance::{Origin, Provenance};
use flagstone_bench::report::{
    AdditionalSections, CombinedReport, HtmlReport, Plot, Run, by_size, comparison,
};
use flagstone_bench::results::{ResultRecord, ResultStore};
use flagstone_bench::suite;
use flagstone_bench::table::Table;
use flagstone_plot::{Figure, Mark, Panel};

/// Deterministic pseudorandom numbers.
struct Numbers(u64);

impl Numbers {
    /// A number from 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn measurement(iops: f64, block_bytes: u64, points: usize, numbers: &mut Numbers) -> Measurement {
    let mut measured = Measurement { series_interval_ms: 100, ..Measurement::default() };
    measured.series_iops = (0..points).map(|_| iops * (0.9 + 0.2 * numbers.next())).collect();
    let total = &mut measured.total;
    total.ios = (iops * 10.0) as u64;
    total.iops = iops;
    total.bytes_per_s = iops * block_bytes as f64;
    total.latency_mean_us = 24e6 / iops;
    total.latency_min_us = total.latency_mean_us * 0.4;
    for (name, percent) in PERCENTILES {
        let nines = -((100.0 - percent) / 100.0f64).ln();
        let us = total.latency_mean_us * (0.5 + 0.6 * nines) * (0.98 + 0.04 * numbers.next());
        total.percentiles_us.insert(name.to_owned(), us);
    }
    measured.write = measured.total.clone();
    measured
}

/// A run of the suite `mirror` with the published figures and some noise.
fn mirror(directory: &Path, provenance: Provenance) -> PathBuf {
    let targets =
        ["plain=/dev/sdb", "mirrored=nbd://host/<m>"].map(|t| t.parse().expect("it is right"));
    let suite = suite::find("mirror").expect("it is built in");
    let mut plan = CampaignPlan::new(&suite, targets.into(), 1 << 30);
    if provenance == Provenance::Emulated {
        let origin = Origin {
            provenance,
            stack: "[volume.m]\nemulate = { latency = \"1ms\" } # </pre>".into(),
        };
        plan.origins.insert("nbd://host/<m>".to_owned(), origin);
    }
    let results = directory.join("mirror");
    let store = ResultStore::create(&results, &plan).expect("it is new");
    let mut environment = Environment {
        kernel: "Linux 6.1.0 x86_64".to_owned(),
        cpu_model: "a CPU".to_owned(),
        cpus: 8,
        fio: Some("fio-3.33".to_owned()),
        ..Environment::default()
    };
    let mut disk = DiskRecord {
        kind: DiskKind::Device,
        size_bytes: Some(500_000_000_000),
        ..DiskRecord::default()
    };
    disk.queue.insert("scheduler".to_owned(), "[none] mq-deadline".to_owned());
    environment.disks.insert("/dev/sdb".to_owned(), disk);
    environment.disks.insert(
        "nbd://host/<m>".to_owned(),
        DiskRecord { kind: DiskKind::Served, ..DiskRecord::default() },
    );
    store.environment(&environment).expect("it is kept");
    let mut numbers = Numbers(1);
    for step in plan.steps() {
        let (job, target) = (&plan.jobs[step.job], &plan.targets[step.target]);
        let mb = [[240.02, 240.01], [96.80, 58.87], [37.54, 29.34]][step.job][step.target];
        let iops = mb * 1e6 / job.block_bytes as f64 * (0.995 + 0.01 * numbers.next());
        let measured = measurement(iops, job.block_bytes, 100, &mut numbers);
        let record = ResultRecord {
            repetition: step.repetition,
            started_unix_s: 1_795_247_333.0,
            tool: "fio-3.33".to_owned(),
            command: format!(
                "fio --name={} --filename={} --note='</script><b>&'",
                job.name,
                target.address()
            ),
            provenance: if step.target == 0 { Provenance::Real } else { provenance },
            ..ResultRecord::new("mirror", job, target, measured)
        };
        store.append(&record).expect("it is kept");
    }
    results
}

/// Parses the body as XML, to find mistakes in the markup.
fn parsed(html: &str) -> roxmltree::Document<'_> {
    let from = html.find("<body>").expect("a body");
    let to = html.find("</body>").expect("its end") + "</body>".len();
    roxmltree::Document::parse(&html[from..to]).unwrap_or_else(|error| panic!("{error}"))
}

fn text_of(node: roxmltree::Node<'_, '_>) -> String {
    node.descendants().filter(roxmltree::Node::is_text).filter_map(|n| n.text()).collect()
}

/// Sections, their contents and the heads of the tables, without numbers and pixels.
fn structure(document: &roxmltree::Document<'_>) -> String {
    let mut out = String::new();
    for node in document.descendants() {
        match node.tag_name().name() {
            "h1" | "h2" | "h3" => {
                out += &format!("{}: {}\n", node.tag_name().name(), text_of(node))
            }
            "caption" => out += &format!("  table: {}\n", text_of(node)),
            "th" if node.attribute("scope") == Some("col") => {
                out += &format!("    | {}\n", text_of(node))
            }
            "tr" if node.parent().is_some_and(|p| p.has_tag_name("tbody")) => {
                out += &format!(
                    "    {} cells\n",
                    node.children().filter(roxmltree::Node::is_element).count()
                );
            }
            "figure" => {
                let title = node.descendants().find(|n| n.has_tag_name("title"));
                out += &format!(
                    "  plot {}: {}\n",
                    node.attribute("id").unwrap_or("?"),
                    title.map(text_of).unwrap_or_default()
                );
            }
            "dt" => out += &format!("    fact: {}\n", text_of(node)),
            "div" if node.attribute("role") == Some("note") => {
                out += &format!("  notice: {}\n", text_of(node))
            }
            _ => {}
        }
    }
    out
}

#[test]
fn mirror_report_structure_and_overhead() {
    let directory = tempfile::tempdir().expect("a directory");
    let run = Run::read(&mirror(directory.path(), Provenance::Emulated)).expect("it can be read");
    let html = HtmlReport::new(vec![run]).html();
    let document = parsed(&html);
    let found = structure(&document);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/report-structure.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &found).expect("it can be written");
    }
    let golden = fs::read_to_string(&path).expect("it is there");
    assert!(found == golden, "the structure differs (UPDATE_GOLDEN=1 writes it); now:\n{found}");

    // The published overheads are reproduced, except for the noise.
    let cell = |table: &str, row: usize, at: usize| {
        let table =
            document.descendants().find(|n| n.attribute("id") == Some(table)).expect("a table");
        let rows: Vec<_> = table.descendants().filter(|n| n.has_tag_name("tr")).collect();
        let cells: Vec<_> = rows[row].children().filter(roxmltree::Node::is_element).collect();
        text_of(cells[at])
    };
    assert!(cell("overhead-1", 2, 0).starts_with("8K (randwrite, 24 in flight)"));
    let percent: f64 =
        cell("overhead-1", 2, 3).trim_end_matches(" %").parse().expect("a percentage");
    assert!((percent - 39.18).abs() < 1.0, "{percent}");
    assert!(
        cell("overhead-1", 2, 7).starts_with("differs")
            && cell("overhead-1", 1, 7).starts_with("no difference")
    );
    assert_eq!(cell("published-mirror", 2, 3), "39.18 %");
}

#[test]
fn report_is_self_contained_and_escaped() {
    let directory = tempfile::tempdir().expect("a directory");
    let run = Run::read(&mirror(directory.path(), Provenance::Emulated)).expect("it can be read");
    let html = HtmlReport::new(vec![run]).html();
    for from_outside in ["src=", "@import", "url(", "<link", "<iframe", "<object", "http-equiv"] {
        assert!(!html.contains(from_outside), "{from_outside}");
    }
    let names = html.matches("http").count();
    assert_eq!(
        names,
        html.matches("xmlns=\"http://www.w3.org/2000/svg\"").count(),
        "names of SVG alone"
    );
    assert_eq!(html.matches("<script").count(), 1, "the data");
    assert_eq!(html.matches("<b>").count(), 0);
    let document = parsed(&html);
    let data = document.descendants().find(|n| n.has_tag_name("script")).expect("the data");
    assert_eq!(data.attribute("type"), Some("application/json"));
    let data: serde_json::Value = serde_json::from_str(data.text().expect("text")).expect("JSON");
    let results = data["runs"][0]["results"].as_array().expect("a list");
    assert_eq!(results.len(), 30);
    assert!(results[0]["command"].as_str().expect("text").ends_with("--note='</script><b>&'"));
    assert_eq!(data["runs"][0]["environments"][0]["cpus"], 8);
    assert_eq!(data["runs"][0]["plan"]["suite"], "mirror");
    let commands: Vec<_> =
        document.descendants().filter(|n| n.has_tag_name("pre")).map(text_of).collect();
    assert!(
        commands.iter().any(|c| c.starts_with("flagstone bench run mirror plain=/dev/sdb")),
        "{commands:?}"
    );
    assert_eq!(commands.iter().filter(|c| c.starts_with("fio --name=")).count(), 6);
}

#[test]
fn report_marks_provenance_everywhere() {
    for (provenance, mark) in [
        (Provenance::Emulated, "[EMULATED]"),
        (Provenance::Memory, "[MEMORY]"),
        (Provenance::Served, "[served]"),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let run = Run::read(&mirror(directory.path(), provenance)).expect("it can be read");
        let report = HtmlReport::new(vec![run]);
        let html = report.html();
        assert!(html.contains("class=\"notice\""));
        let document = parsed(&html);
        for kind in ["caption", "td", "th", "text", "title"] {
            for node in document.descendants().filter(|n| n.has_tag_name(kind)) {
                let text = text_of(node);
                // The address is the user's text.
                let bare = text.replace("nbd://host/<m>", "");
                assert!(!bare.contains("mirrored") || bare.contains(mark), "{kind}: {text}");
            }
        }
        let files = directory.path().join("files");
        let count = report.write_files(&files).expect("they can be written");
        let mut found = 0;
        for entry in fs::read_dir(&files).expect("a directory") {
            let path = entry.expect("an entry").path();
            found += 1;
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if name.starts_with("published") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("text");
            assert!(text.contains(mark), "{name}");
        }
        assert_eq!(found, count);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let run = Run::read(&mirror(directory.path(), Provenance::Real)).expect("it can be read");
    assert!(
        !HtmlReport::new(vec![run]).html().contains("class=\"notice\""),
        "real disks have no notice"
    );
}

/// Additional sections with text that would be markup if it were not escaped.
fn additional_sections() -> AdditionalSections {
    let mut table = Table::new("Ours <b>beside</b> theirs [EMULATED]", &["size", "MB/s"]);
    table.rows.push(vec!["</table><script>".to_owned(), "1.5".to_owned()]);
    let lines = vec![("load".to_owned(), vec![(1.0, 5.0), (2.0, 7.0)])];
    let marks = vec![Mark { x: 1.5, text: "<b>it dies".to_owned() }];
    let panels = vec![Panel { marks, ..Panel::lines("seconds", "IOPS", lines) }];
    let title = "A node dies [EMULATED]".to_owned();
    let picture = Figure { title, panels, ..Figure::default() };
    AdditionalSections::new("An experiment")
        .with_picture(Plot { id: "timeline".to_owned(), picture })
        .with_tables("beside", vec![table])
        .with_caveats(&["<script src=x>caveat</script>".to_owned()])
}

/// Every id in the page is unique.
fn names_are_unique(document: &roxmltree::Document<'_>) {
    let mut ids: Vec<_> = document.descendants().filter_map(|n| n.attribute("id")).collect();
    ids.sort_unstable();
    let twice = ids.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None);
}

#[test]
fn additional_sections_precede_results() {
    let directory = tempfile::tempdir().expect("a directory");
    let results = mirror(directory.path(), Provenance::Emulated);
    let read = || HtmlReport::new(vec![Run::read(&results).expect("it can be read")]);
    assert!(!read().html().contains("id=\"experiment\""), "nothing was added yet");
    additional_sections().write(&results).expect("it can be written");
    let report = read();
    let html = report.html();
    assert_eq!(html, read().html(), "made again, it is the same");
    let document = parsed(&html);
    names_are_unique(&document);
    let found = structure(&document);
    let at = |what: &str| found.find(what).unwrap_or_else(|| panic!("{what}:\n{found}"));
    assert!(at("plot plot-lab-timeline: A node dies [EMULATED]") < at("h2: Results"));
    assert!(at("table: Ours <b>beside</b> theirs") < at("h2: Results"));
    let items: Vec<_> =
        document.descendants().filter(|n| n.has_tag_name("li")).map(text_of).collect();
    assert!(items.contains(&"<script src=x>caveat</script>".to_owned()), "{items:?}");
    assert_eq!((html.matches("<script").count(), html.matches("<b>").count()), (1, 0));
    let files = directory.path().join("files");
    report.write_files(&files).expect("they can be written");
    for name in ["lab-timeline.svg", "lab-beside.md", "lab-beside.csv"] {
        assert!(files.join(name).exists(), "{name}");
    }
}

#[test]
fn combined_report_starts_with_summary() {
    let directory = tempfile::tempdir().expect("a directory");
    let results = mirror(directory.path(), Provenance::Emulated);
    additional_sections().write(&results).expect("it can be written");
    let runs = [(); 2].map(|()| Run::read(&results).expect("it can be read"));
    let html = CombinedReport::new(&additional_sections(), runs.into()).html();
    let document = parsed(&html);
    names_are_unique(&document);
    let found = structure(&document);
    let at = |what: &str| found.find(what).unwrap_or_else(|| panic!("{what}:\n{found}"));
    assert!(at("notice: Not only real disks.") < at("h2: Summary"));
    assert!(at("h2: Summary") < at("h2: Mirrored against not"));
    assert!(found.contains("plot part-2-plot-lab-timeline"), "{found}");
    assert_eq!((html.matches("<script").count(), html.matches("<b>").count()), (1, 0));
    let links = document.descendants().filter_map(|n| n.attribute("href"));
    for link in links {
        let id = link.strip_prefix('#').expect("to this page");
        assert!(document.descendants().any(|n| n.attribute("id") == Some(id)), "{link}");
    }
}

/// A run of the suite `provisioned-iops` on one disk, whose path is the same on every machine.
fn provisioned(directory: &Path, gb: u64, iops: f64) -> PathBuf {
    let suite = suite::find("provisioned-iops").expect("it is built in");
    let target = "/dev/sdb".parse().expect("it is right");
    let plan = CampaignPlan::new(&suite, vec![target], 1 << 30);
    let results = directory.join(format!("{gb}gb"));
    let store = ResultStore::create(&results, &plan).expect("it is new");
    let disk = DiskRecord { size_bytes: Some(gb * 1_000_000_000), ..DiskRecord::default() };
    let mut environment = Environment::default();
    environment.disks.insert("/dev/sdb".to_owned(), disk);
    store.environment(&environment).expect("it is kept");
    let (job, target) = (&plan.jobs[0], &plan.targets[0]);
    let measured = measurement(iops, job.block_bytes, 1, &mut Numbers(3));
    store
        .append(&ResultRecord::new("provisioned-iops", job, target, measured))
        .expect("it is kept");
    results
}

#[test]
fn disk_size_comes_from_its_own_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let runs = [(200, 309.0), (600, 745.0)].map(|(gb, iops)| {
        Run::read(&provisioned(directory.path(), gb, iops)).expect("it can be read")
    });
    let table = by_size(&runs, &comparison(&runs)).expect("sizes are known");
    let figures: Vec<_> = table.rows.iter().map(|row| [&row[2], &row[3], &row[6]]).collect();
    assert_eq!(figures, [["200", "309", "2.06"], ["600", "745", "1.66"]]);
    let other = [Run::read(&mirror(directory.path(), Provenance::Real)).expect("it can be read")];
    assert_eq!(by_size(&other, &comparison(&other)), None, "it measured something else");
}

#[test]
fn report_of_1000_results_is_small() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("results.jsonl");
    let targets = ["a=/dev/a", "b=/dev/b"].map(|t| t.parse().expect("it is right"));
    let suite = suite::find("sweep").expect("it is built in");
    let mut plan = CampaignPlan::new(&suite, targets.into(), 1 << 30);
    plan.repetitions = 13;
    let mut numbers = Numbers(2);
    let mut text = String::new();
    for step in plan.steps() {
        let (job, target) = (&plan.jobs[step.job], &plan.targets[step.target]);
        let measured =
            measurement(1e4 * (1.0 + numbers.next()), job.block_bytes, 600, &mut numbers);
        let command =
            format!("fio --name={} {}", job.name, "--an-option=of-some-length ".repeat(30));
        let record = ResultRecord {
            repetition: step.repetition,
            command,
            ..ResultRecord::new("sweep", job, target, measured)
        };
        text += &(serde_json::to_string(&record).expect("JSON") + "\n");
    }
    fs::write(&path, text).expect("it can be written");
    let watch = Stopwatch::start();
    let run = Run::read(&path).expect("it can be read");
    assert_eq!(run.records.len(), 1040);
    let html = HtmlReport::new(vec![run]).html();
    println!("{} bytes in {:.2} s", html.len(), watch.seconds());
    // 5 MB for a thousand results.
    assert!(html.len() / 1040 < 5_000, "{}", html.len());
    parsed(&html);
}
