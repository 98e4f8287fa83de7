//! `flagstone plan compare` and `plan curve` end to end, and `docs/plan.md` with its pictures
//! compared with the program's output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flagstone"))
        .args(line.split_whitespace())
        .current_dir(repository())
        .output()
        .expect("the program runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it prints text")
}

fn report(line: &str) -> Value {
    let output = run(&format!("{line} --json"));
    assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// A temporary directory whose path has no spaces.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

fn documented(objects: &[&Value]) {
    let doc = fs::read_to_string(repository().join("docs/plan-json.md")).expect("it exists");
    for object in objects {
        for key in object.as_object().expect("an object").keys() {
            assert!(doc.contains(&format!("`{key}`")), "docs/plan-json.md lacks {key}");
        }
    }
}

/// Runs the tour's commands with pictures in `to`, and returns the expected tour.
fn tour(doc: &str, to: &Path) -> String {
    let mut out = String::new();
    let mut rest = doc;
    while let Some((before, after)) = rest.split_once("```\n$ flagstone ") {
        let (line, block) = after.split_once('\n').expect("a command is a line");
        let (_, after) = block.split_once("```").expect("a block ends");
        let to = format!("{}/", to.display());
        let output = run(&line.replace("docs/images/", &to));
        assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
        // A picture replaces the text output.
        let printed = if line.contains("--output") { "" } else { text(&output.stdout) };
        out += &format!("{before}```\n$ flagstone {line}\n{printed}```");
        rest = after;
    }
    out + rest
}

#[test]
fn planning_tour_matches_program() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let path = repository().join("docs/plan.md");
    let doc = fs::read_to_string(&path).expect("docs/plan.md exists");
    let made = scratch();
    let now = tour(&doc, made.path());
    if update {
        fs::write(&path, &now).expect("it can be written");
    }
    assert!(update || doc == now, "docs/plan.md differs (UPDATE_GOLDEN=1 writes it); now:\n{now}");
    let mut pictures = 0;
    for entry in fs::read_dir(made.path()).expect("it is a directory") {
        let entry = entry.expect("an entry");
        let committed = repository().join("docs/images").join(entry.file_name());
        let picture = fs::read_to_string(entry.path()).expect("an SVG is text");
        if update {
            fs::write(&committed, &picture).expect("it can be written");
        }
        let known = fs::read_to_string(&committed).unwrap_or_default();
        assert!(known == picture, "{} differs (UPDATE_GOLDEN=1 writes it)", committed.display());
        let name = entry.file_name().into_string().expect("a plain name");
        assert!(now.contains(&format!("](images/{name})")), "{name} is not shown");
        pictures += 1;
    }
    assert_eq!(pictures, now.matches("](images/").count());
}

#[test]
fn comparison_has_column_per_type() {
    let line = "plan compare --type pd-ssd,pd-balanced,hyperdisk-throughput,pd-extreme \
                --capacity 1TB --machine n2-standard-16";
    let report = report(line);
    let columns = report["columns"].as_array().expect("a list");
    let ssd = &columns[0];
    documented(&[&report, ssd, &ssd["results"][0], &report["request"]]);
    assert_eq!(ssd["type"], "pd-ssd");
    assert!(ssd["error"].is_null());
    assert_eq!(ssd["results"].as_array().map(Vec::len), Some(4));
    assert_eq!(report["request"]["workloads"][2]["block_bytes"], 256 << 10);
    let month = ssd["cost"]["usd_per_month"].as_f64().expect("a price");
    let iops = ssd["results"][0]["total"]["iops"].as_f64().expect("a number");
    let each = ssd["results"][0]["usd_per_iops"].as_f64().expect("a number");
    assert!((month / iops - each).abs() < 1e-12);
    // `plan predict` gives the same.
    let predict = "plan predict --type pd-ssd --size 1TB --machine n2-standard-16 --rw randwrite \
                   --bs 256k --json";
    let predicted: Value = serde_json::from_slice(&run(predict).stdout).expect("it is JSON");
    assert_eq!(predicted["prediction"]["total"], ssd["results"][3]["total"]);
    assert_eq!(predicted["prediction"]["binding"], ssd["results"][3]["binding"]);
    // Impossible types are columns with the reason.
    let size = columns[2]["error"].as_str().expect("a reason");
    assert!(size.contains("2,048 GiB to 32,768 GiB"), "{size}");
    let bought = columns[3]["error"].as_str().expect("a reason");
    assert!(bought.contains("--iops is missing"), "{bought}");
    let output = run(line);
    let said = text(&output.stdout);
    for part in ["none: ", "USD a read IOPS", "machine (IOPS)", "confidence", "sources"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn comparison_uses_purchases_and_price_file() {
    let line =
        "plan compare --type pd-ssd,hyperdisk-balanced --capacity 1TB --machine c3-standard-8";
    let free = report(line);
    let bought = report(&format!("{line} --iops 10000 --throughput 400MiB/s --rw randrw"));
    assert_eq!(free["columns"][1]["iops"], 3000.0);
    assert_eq!(bought["columns"][1]["iops"], 10000.0);
    assert_eq!(bought["columns"][1]["throughput"], 400.0);
    assert!(bought["columns"][0]["iops"].is_null(), "pd-ssd sells no IOPS");
    assert_eq!(bought["columns"][0]["results"].as_array().map(Vec::len), Some(2));
    let made = scratch();
    let file = made.path().join("prices.toml");
    fs::write(&file, "title = \"ours\"\n[disk.pd-ssd]\nusd_per_gib = 1.0\n").expect("written");
    let own = report(&format!("{line} --price-file {}", file.display()));
    let month = own["columns"][0]["cost"]["usd_per_month"].as_f64().expect("a price");
    assert!((month - 931.32).abs() < 0.01, "{month}");
}

#[test]
fn curve_spans_change_with_limit() {
    let line = "plan curve --over size --type pd-ssd --machine n1-standard-8 --catalog gcp-2019";
    let report = report(line);
    let of = &report["types"][0];
    let curve = &of["curves"][0];
    documented(&[&report, of, curve, &curve["points"][0], &curve["spans"][0]]);
    assert_eq!(of["curves"].as_array().map(Vec::len), Some(2));
    // 30 IOPS a GB reach the 15,000 of 8 vCPUs at 500 GB.
    let spans = curve["spans"].as_array().expect("a list");
    assert_eq!(spans.len(), 2, "{spans:#?}");
    assert_eq!(spans[0]["from"]["at"], 10);
    assert_eq!(spans[0]["to"]["at"], 500);
    assert_eq!(spans[0]["to"]["iops"], 15000.0);
    assert_eq!((&spans[0]["to"]["tied"], &spans[1]["from"]["tied"]), (&true.into(), &false.into()));
    assert_eq!(
        (&spans[0]["to"]["binding"], &spans[1]["from"]["binding"]),
        (&"volume".into(), &"vm".into())
    );
    assert_eq!(spans[1]["from"]["at"], 501);
    // `plan predict` gives every point.
    for point in curve["points"].as_array().expect("a list").iter().step_by(9) {
        let predict = format!(
            "plan predict --type pd-ssd --size {}GB --machine n1-standard-8 --catalog gcp-2019",
            point["at"]
        );
        let predicted: Value =
            serde_json::from_slice(&run(&format!("{predict} --json")).stdout).expect("JSON");
        assert_eq!(predicted["prediction"]["total"]["iops"], point["iops"], "{point}");
        assert_eq!(predicted["prediction"]["binding"]["kind"], point["binding"], "{point}");
    }
}

#[test]
fn curves_cover_every_dimension() {
    for (over, more, at, kinds) in [
        ("bs", "--size 500GB --rw randwrite", 4096, &["volume"][..]),
        ("depth", "--size 500GB", 1, &["queue-depth", "volume"]),
        ("vcpus", "--size 4TB", 1, &["vm", "volume"]),
    ] {
        let line = format!(
            "plan curve --over {over} --type pd-ssd --machine n1-standard-8 --catalog gcp-2019 {more}"
        );
        let report = report(&line);
        let curve = &report["types"][0]["curves"][0];
        let points = curve["points"].as_array().expect("a list");
        assert_eq!(points[0]["at"], at, "{over}");
        assert!(points.windows(2).all(|pair| pair[0]["at"].as_u64() < pair[1]["at"].as_u64()));
        for kind in kinds {
            assert!(
                points.iter().any(|point| point["binding"] == *kind),
                "{over} {kind}: {curve:#}"
            );
        }
    }
}

#[test]
fn curve_pictures_are_written() {
    let made = scratch();
    let line = "plan curve --over depth --type pd-ssd,pd-balanced --size 1TB --output";
    let file = |name: &str| made.path().join(name);
    for (name, files) in
        [("one.svg", &["one.svg"][..]), ("two", &["two.svg"]), ("v1.2", &["v1.2.svg"])]
    {
        let output = run(&format!("{line} {}", file(name).display()));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        for name in files {
            let bytes = fs::read(file(name)).expect("it was written");
            assert!(bytes.starts_with(b"<svg "), "{name}");
        }
    }
    let svg = fs::read_to_string(file("one.svg")).expect("it was written");
    assert!(svg.contains("No curve of pd-balanced: not known"), "{svg}");
    assert_eq!(fs::read_dir(made.path()).expect("a directory").count(), 3);
    let output = run(&format!("{line} {}", file("two.png").display()));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("pictures are SVG"));
    let output = run(&format!("{line} {}", file("no/such/directory.svg").display()));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write"));
}

#[test]
fn compare_and_curve_mistakes_are_one_line() {
    for (line, part) in [
        ("compare --type pd-ssd --capacity lots", "--capacity lots: "),
        ("compare --type pd-ssd --capacity 0", "a size above 0"),
        ("compare --type pd-fast --capacity 1TB", "unknown type of disk `pd-fast`"),
        ("compare --type , --capacity 1TB", "write 1 to 6 types"),
        ("compare --type pd-ssd --capacity 1TB --bs 4k,8k,16k", "write one size, or two"),
        ("compare --type pd-ssd --capacity 1TB --bs 4x", "unknown unit"),
        ("compare --type pd-ssd --capacity 1TB --rw random", "randread"),
        ("compare --type pd-ssd --capacity 1TB --rw trim", "randread"),
        ("compare --type pd-ssd --capacity 1TB --read-percent 30", "--rw randrw"),
        ("compare --type pd-ssd --capacity 1TB --machine z9-x-8", "unknown machine"),
        ("compare --type pd-ssd --capacity 1TB --iops -1", "a number from 0"),
        ("compare --type pd-ssd --capacity 1TB --depth 0", "from 1 to"),
        ("compare --type pd-ssd --capacity 1TB --price-file no/such", "cannot read a price file"),
        ("compare --type pd-ssd --capacity 1TB --catalog no/such", "gcp-2019 or gcp-current"),
        ("compare --type pd-ssd --capacity 1PB", "10 GiB to 65,536 GiB"),
        ("curve --over time --type pd-ssd", "write size, vcpus, bs or depth"),
        ("curve --over size --type pd-fast", "unknown type of disk `pd-fast`"),
        ("curve --over size --type pd-ssd --size 1TB", "leave it out"),
        ("curve --over depth --type pd-ssd --size 1TB --depth 4", "leave it out"),
        ("curve --over bs --type pd-ssd", "--size is missing"),
        ("curve --over bs --type pd-ssd --size 1PB", "10 GiB to 65,536 GiB"),
        ("curve --over bs --type pd-ssd --size 1TB --from 8k --to 4k", "the smaller end first"),
        ("curve --over bs --type pd-ssd --size 1TB --from 1 --to 4k", "512 to 33554432"),
        ("curve --over size --type pd-ssd --from large", "--from large: "),
        ("curve --over depth --type pd-ssd --size 1TB --to 0", "a whole number from 1"),
        ("curve --over vcpus --type pd-ssd --size 1TB --machine a2-highgpu-1g", "states its vCPUs"),
        ("curve --over vcpus --type pd-ssd --size 1TB --from 5000", "states its vCPUs"),
        ("curve --over size --type local-ssd-nvme", "each is of 375 GiB"),
    ] {
        let output = run(&format!("plan {line}"));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}{}", text(&output.stdout));
        assert!(output.stdout.is_empty(), "{line}");
        assert!(said.contains(part) && said.lines().count() == 1, "{line}: {said}");
    }
    let output = run("plan curve --over depth --type pd-balanced --size 1TB");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("flagstone: error: not known: "));
}

#[test]
fn distinct_search_counts_hidden_configurations() {
    let need = "plan cheapest --read-iops 30000 --throughput 1000MB/s --capacity 2TB";
    let all = report(&format!("{need} --variants"));
    let once = report(need);
    let kinds = |report: &Value| -> Vec<String> {
        let found = report["answer"]["found"].as_array().expect("a list").iter();
        found.map(|found| found["type"].as_str().expect("a name").to_owned()).collect()
    };
    // The cheapest configuration is first in both.
    let first = |report: &Value| report["answer"]["found"][0]["usd_per_month"].clone();
    assert_eq!(first(&all), first(&once));
    assert!(kinds(&all).len() > 1);
    assert!(kinds(&once).len() > 1);
    let found = once["answer"]["found"].as_array().expect("a list");
    let with =
        found.iter().find(|found| !found["others"].is_null()).expect("one stands for others");
    documented(&[with, &with["others"]]);
    let dearest = with["others"]["usd_per_month_max"].as_f64();
    assert!(dearest >= with["usd_per_month"].as_f64());
}

#[test]
fn unlike_disks_are_predicted_together() {
    let line = "plan predict --disk pd-ssd:2TB --disk pd-standard:1TB --disk pd-ssd:500GB \
                --machine n2-standard-8";
    let output = run(line);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for part in ["together", "machine, shared by its disks allows pd-ssd"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let output = run(&format!("{line} --json"));
    let json: serde_json::Value = serde_json::from_str(text(&output.stdout)).expect("JSON");
    let total = &json["together"]["total"];
    let (bytes, mb) = (total["bytes_per_s"].as_f64(), total["mb_per_s"].as_f64());
    assert!((bytes.unwrap() / 1e6 - mb.unwrap()).abs() < 1e-6, "{total}");
    for (wrong, part) in [
        ("--disk pd-ssd --machine n2-standard-8", "write its size too, such as pd-ssd:500GB"),
        ("--disk pd-sdd:1TB --machine n2-standard-8", "pd-ssd"),
        ("--disk pd-ssd:1TB --type pd-ssd --machine n2-standard-8", "cannot be used with"),
        ("--machine n2-standard-8", "--type is missing"),
    ] {
        let output = run(&format!("plan predict {wrong}"));
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{wrong}: {errors}");
        assert!(errors.contains(part), "{wrong}: {errors}");
    }
}

#[test]
fn savings_of_a_known_file_are_exact() {
    let made = scratch();
    let file = made.path().join("data");
    // 8 zero blocks, 8 equal blocks of text, and half a block that is continued with zeroes.
    let mut data = vec![0_u8; 8 * 4096];
    data.extend(
        b"flagstone is a volume of blocks. "
            .iter()
            .copied()
            .cycle()
            .take(4096)
            .collect::<Vec<_>>()
            .repeat(8),
    );
    data.extend([7; 2048]);
    fs::write(&file, &data).expect("written");
    let line = format!("plan savings {} --type pd-ssd", file.display());
    let report = report(&line);
    let (body, survey) = (&report["savings"], &report["savings"]["survey"]);
    documented(&[&report, body, survey, &survey["method"], &body["savings"][0], &body["price"]]);
    for (name, blocks) in [("zeroes", 8.0), ("lz4", 15.0), ("zstd", 15.0), ("dedup", 15.0)] {
        for bound in ["estimate", "low", "high"] {
            let share = survey[name][bound].as_f64().expect("a share");
            assert!((share - blocks / 17.0).abs() < 1e-12, "{name} {bound}: {share}");
        }
    }
    assert_eq!(survey["size_bytes"], 16 * 4096 + 2048);
    assert_eq!(fs::read(&file).expect("it is there"), data);
    let usd = body["savings"][0]["usd_per_month"]["estimate"].as_f64().expect("a price");
    let size = (16.0 * 4096.0 + 2048.0) / f64::from(1 << 30);
    assert!((usd - 8.0 / 17.0 * size * 0.17).abs() < 1e-9, "{usd}");
    let output = run(&line);
    let said = text(&output.stdout);
    for part in ["read whole", "zeroes, zstd", "exact", "cold data", "USD/month"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn savings_report_mistakes_in_one_line() {
    let made = scratch();
    let empty = made.path().join("empty");
    fs::write(&empty, "").expect("written");
    for (line, status, part) in [
        ("plan savings no-such-file".to_owned(), 1, "nbd://localhost/NAME"),
        (format!("plan savings {}", made.path().display()), 1, "directory"),
        (format!("plan savings {}", empty.display()), 1, "empty"),
        (format!("plan savings {} --sample 0%", empty.display()), 2, "--sample 0%"),
        (format!("plan savings {} --type pd-sdd", empty.display()), 2, "no price of pd-sdd"),
        (format!("plan savings {} --regional", empty.display()), 2, "--type"),
        ("plan savings null:1PiB --sample 1%".to_owned(), 2, "at most 16 GiB"),
    ] {
        let output = run(&line);
        assert_eq!(output.status.code(), Some(status), "{line}");
        let said = text(&output.stderr);
        assert!(said.contains(part) && said.trim_end().lines().count() == 1, "{line}: {said}");
    }
}
