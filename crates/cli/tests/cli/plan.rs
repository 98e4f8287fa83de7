//! `flagstone plan`: recorded outputs, JSON, and mistakes.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{code, flagstone, repository, run, text};

const EXAMPLE: &str = "plan predict --type pd-ssd --size 500GB --machine n1-standard-8 --bs 8K \
                       --rw randwrite --depth 24 --catalog gcp-2019";

/// Compares a command's output with the recorded one in `tests/plan-outputs`.
fn is_recorded(line: &str, name: &str) {
    let output = run(line);
    assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert!(!printed.contains('\x1b'), "no colors without a terminal");
    let path = repository().join("crates/cli/tests/plan-outputs").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, printed).expect("it can be written");
    }
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    assert!(recorded == printed, "{name} differs (UPDATE_GOLDEN=1 writes it); now:\n{printed}");
}

/// Compares a shortened sample in the documentation with a command's output: every line must occur
/// in it, in order. A line `…` stands for omitted lines.
fn is_excerpt(file: &str, line: &str) {
    let output = run(line);
    let doc = fs::read_to_string(repository().join(file)).expect("it exists");
    let (_, rest) = doc.split_once(&format!("$ flagstone {line}\n")).expect("the sample is there");
    let sample = rest.split("```").next().unwrap_or_default();
    let mut printed = text(&output.stdout).lines();
    for wanted in sample.lines().filter(|wanted| *wanted != "…") {
        assert!(printed.any(|line| line == wanted), "{file}: not printed: {wanted}");
    }
}

#[test]
fn prediction_output_is_recorded() {
    is_recorded(EXAMPLE, "predict.txt");
    is_excerpt("docs/cli.md", EXAMPLE);
}

#[test]
fn prediction_json() {
    let output = run(&format!("{EXAMPLE} --json"));
    assert_eq!(code(&output), Some(0));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(report["schema_version"], 1);
    assert_eq!(report["catalog"]["name"], "gcp-2019");
    let found = &report["prediction"];
    assert_eq!(found["total"]["iops"], 9600.0);
    assert_eq!(found["latency_us"], 2500.0);
    assert_eq!(found["binding"]["kind"], "queue-depth");
    assert_eq!(found["binding"]["recommendations"][0]["action"], "deeper-queue");
    assert_eq!(found["binding"]["recommendations"][0]["in_flight"], 38);
    assert_eq!(found["next"]["kind"], "volume");
    assert_eq!(found["inconsistencies"][0]["id"], "I11");
    let doc = fs::read_to_string(repository().join("docs/plan-json.md")).expect("it exists");
    let limit = &found["limits"][0];
    for object in [found, limit, &found["ceilings"], &found["configuration"], &found["cost"]] {
        for key in object.as_object().expect("an object").keys() {
            assert!(doc.contains(&format!("`{key}`")), "docs/plan-json.md lacks {key}");
        }
    }
}

const CHEAPEST: &str = "plan cheapest --read-iops 20000 --write-iops 10000 --throughput 400MB/s \
                        --capacity 1TB --machines n1,n2 --type pd-ssd,pd-balanced,pd-standard";

#[test]
fn cheapest_output_is_recorded() {
    is_recorded(CHEAPEST, "cheapest.txt");
}

#[test]
fn cheapest_json_and_errors() {
    let output = run(&format!("{CHEAPEST} --json"));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let answer = &report["answer"];
    let doc = fs::read_to_string(repository().join("docs/plan-json.md")).expect("it exists");
    for object in [answer, &answer["found"][0], &answer["cheaper"][0], &answer["need"]] {
        for key in object.as_object().expect("an object").keys() {
            assert!(doc.contains(&format!("`{key}`")), "docs/plan-json.md lacks {key}");
        }
    }
    for (line, part) in [
        ("", "nothing is needed"),
        ("--read-iops many", "a number from 0"),
        ("--read-iops 5 --local-ssd maybe", "write ok or no"),
        ("--read-iops 5 --machines zz", "unknown machine `zz`"),
        ("--read-iops 5 --type pd-fast", "unknown type of disk `pd-fast`"),
        ("--throughput 400", "such as 240MB/s"),
        ("--capacity 1XB", "--capacity 1XB: "),
        ("--read-iops 5 --price-file no/such/file", "cannot read a price file"),
        ("--read-iops 5 --price-file Cargo.toml", "unknown key"),
    ] {
        let output = run(&format!("plan cheapest {line}"));
        let said = text(&output.stderr);
        assert_eq!(code(&output), Some(2), "{line}: {said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{line}: {said}");
    }
    let output = run("plan cheapest --read-iops 900000000");
    assert_eq!(code(&output), Some(1));
    assert!(text(&output.stdout).contains("nothing in the catalog is sufficient"));
    assert_eq!(code(&run("plan cheapest --read-iops 900000000 --json")), Some(1));
}

/// Regression test: rows of up to 184 characters.
#[test]
fn cheapest_tables_fit_100_columns() {
    for line in [
        CHEAPEST,
        "plan cheapest --read-iops 50000 --write-iops 20000 --throughput 900MB/s --capacity 20TB \
         --variants --top 1000",
        "plan cheapest --read-iops 50000 --capacity 20TB --regional --top 1000",
        "plan cheapest --read-iops 200000 --capacity 1TB --local-ssd ok --top 1000",
        "plan cheapest --read-iops 900000000 --capacity 1TB",
    ] {
        let output = run(line);
        let printed = text(&output.stdout);
        let body = printed.split("\nnot known\n").next().unwrap_or_default();
        let body = body.split("\nsources\n").next().unwrap_or_default();
        for row in body.lines().skip(2) {
            assert!(row.chars().count() <= 100, "{line}: {row}");
        }
    }
}

/// Regression test: the head said MB/s of 10^6 bytes, and the tables have the page's.
#[test]
fn page_tables_say_whose_units_they_have() {
    let head = |line: &str| {
        let output = run(line);
        text(&output.stdout).lines().nth(1).unwrap_or_default().to_owned()
    };
    let tables = head("plan table --catalog gcp-2019");
    assert_eq!(tables, "the tables repeat the source's MB/s, of 1,024,000 bytes each");
    assert!(head(EXAMPLE).starts_with("rates are in MB/s of 1,000,000 bytes;"));
}

#[test]
fn several_disks_are_predicted_or_refused() {
    let on = "plan predict --machine n2-standard-8";
    for (disks, code_wanted, part) in [
        ("--disk pd-ssd:2TB", 0, "15,000 by itself"),
        ("--disk pd-ssd:2TB --disk pd-balanced:5TB", 0, "one budget is assumed"),
        ("--disk pd-ssd:500", 2, "--disk 500: "),
        ("--disk pd-ssd", 2, "such as pd-ssd:500GB"),
        ("--disk local-ssd-nvme --disk local-ssd-nvme --disk local-ssd-nvme", 2, "write 1, 2, 4"),
        ("--type hyperdisk-balanced --size 10GiB --iops 100000", 1, "not known: whether"),
        ("--type pd-balanced --size 8PB", 2, "65,536 GiB"),
    ] {
        let output = run(&format!("{on} {disks}"));
        let said = text(if code_wanted == 0 { &output.stdout } else { &output.stderr });
        assert_eq!(code(&output), Some(code_wanted), "{disks}: {said}");
        assert!(said.contains(part), "{disks}: {said}");
    }
}

const EXPLAIN: &str = "plan explain docs/examples/randwrite-8k.json --type pd-ssd --size 500GB \
                       --machine n2-standard-8 --catalog gcp-2019";
const EXPLAIN_ABOVE: &str = "plan explain crates/bench/tests/outputs/experiment-c-200gb.json \
                             --type pd-standard --size 200GB --catalog gcp-2019";

#[test]
fn explain_output_is_recorded() {
    is_recorded(EXPLAIN, "explain.txt");
    is_recorded(EXPLAIN_ABOVE, "explain-above.txt");
}

fn explained(line: &str) -> serde_json::Value {
    let output = run(&format!("plan explain {line} --json"));
    assert_eq!(code(&output), Some(0), "{line}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// Verdict, bottleneck and kind of the most used limit of each judgment.
fn verdicts(report: &serde_json::Value) -> Vec<[String; 3]> {
    let word = |value: &serde_json::Value| value.as_str().expect("a word").to_owned();
    let of = |entry: &serde_json::Value| {
        let found = &entry["judgment"];
        [&found["verdict"], &found["bottleneck"], &found["limits"][0]["kind"]].map(word)
    };
    report["judgments"].as_array().expect("a list").iter().map(of).collect()
}

#[test]
fn published_experiments_are_judged() {
    let outputs = "crates/bench/tests/outputs";
    let ssd = "--type pd-ssd --size 500GB --machine n2-standard-8 --catalog gcp-2019";
    let alone = explained(&format!("{outputs}/experiment-a-none.json {ssd}"));
    assert_eq!(
        verdicts(&alone),
        [
            ["as-predicted", "limit", "volume"],
            ["as-predicted", "likely-latency", "volume"],
            ["as-predicted", "likely-latency", "volume"]
        ]
    );
    let mirrored = explained(&format!("{outputs}/experiment-a-mirror.json {ssd}"));
    assert_eq!(
        verdicts(&mirrored),
        [
            ["as-predicted", "limit", "volume"],
            ["below", "latency-or-cap", "volume"],
            ["below", "latency-or-cap", "volume"]
        ]
    );
    for (gb, ratio) in [(200, 2.06), (600, 1.66)] {
        let file = format!("{outputs}/experiment-c-{gb}gb.json");
        let line = format!("{file} --type pd-standard --size {gb}GB --catalog gcp-2019");
        let report = explained(&line);
        assert_eq!(verdicts(&report), [["above", "limit", "volume"]]);
        let found = report["judgments"][0]["judgment"]["ratio"].as_f64().expect("a number");
        assert!((found - ratio).abs() < 0.005, "{found}");
    }
}

#[test]
fn explain_json_is_documented() {
    let doc = fs::read_to_string(repository().join("docs/plan-json.md")).expect("it exists");
    let reported = |key: &str| {
        assert!(doc.contains(&format!("`{key}`")), "docs/plan-json.md lacks {key}");
    };
    let outputs = "crates/bench/tests/outputs";
    for file in [
        "experiment-a-mirror.json",
        "experiment-c-200gb.json",
        "mixed-jobs-json-plus.json",
        "text-around.txt",
        "paced.json",
    ] {
        let report = explained(&format!("{outputs}/{file} --type pd-ssd --size 500GB"));
        assert_eq!(report["schema_version"], 1);
        for entry in report["judgments"].as_array().expect("a list") {
            let found = &entry["judgment"];
            for object in [entry, found, &found["measured"], &found["limits"][0]] {
                object.as_object().expect("an object").keys().for_each(|key| reported(key));
            }
            for (list, tag) in
                [("causes", "cause"), ("hypotheses", "cause"), ("recommendations", "action")]
            {
                for one in found[list].as_array().expect("a list") {
                    reported(one[tag].as_str().expect("a word"));
                    one.as_object().expect("an object").keys().for_each(|key| reported(key));
                }
            }
        }
    }
}

#[test]
fn invalid_fio_result_is_one_line_usage_error() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain");
    fs::create_dir_all(&folder).expect("it can be made");
    let outputs = repository().join("crates/bench/tests/outputs");
    let good = fs::read_to_string(outputs.join("grouped.json")).expect("it exists");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).expect("it can be written");
        path.to_str().expect("a plain path").to_owned()
    };
    let deep = format!("{{\"fio version\": \"fio-3.33\", \"jobs\": {}", "[".repeat(1 << 20));
    let tiny = good.replace("\"io_bytes\" : 1638400", "\"io_bytes\" : 16");
    assert_ne!(tiny, good);
    for (path, part) in [
        ("no/such/file".to_owned(), "No such file"),
        ("docs".to_owned(), "Is a directory"),
        (file("empty", b""), "there is no JSON in it"),
        (file("text", b"fio: engine nbd not loadable\n"), "there is no JSON in it"),
        (file("binary", &[0xff, 0xfe, 0x00]), "UTF-8"),
        (file("cut", &good.as_bytes()[..2000]), "ends in the middle"),
        (file("other", b"{\"jobs\": []}"), "missing field `fio version`"),
        (file("deep", deep.as_bytes()), "give the output of fio 3"),
        (file("nan", good.replace("\"iops\" : ", "\"iops\" : nan").as_bytes()), "expected"),
        (file("negative", good.replace("\"iops\" : ", "\"iops\" : -").as_bytes()), "iops` of job"),
        (
            file("huge", good.replace("\"iops\" : ", "\"iops\" : 9e99").as_bytes()),
            "give the output",
        ),
        (file("tiny", tiny.as_bytes()), "from 512 to 32MiB"),
        (file("old", good.replace("fio-3.33", "fio-2.16").as_bytes()), "fio 3 is needed"),
        ("crates/bench/tests/outputs/trim.json".to_owned(), "no reads and no writes"),
        ("crates/bench/tests/outputs/failed.txt".to_owned(), "no reads and no writes"),
    ] {
        let output = flagstone(&["plan", "explain", &path, "--type", "pd-ssd", "--size", "1TB"]);
        let said = text(&output.stderr);
        assert_eq!(code(&output), Some(2), "{path}: {said}");
        assert!(output.stdout.is_empty(), "{path}");
        assert!(said.contains(part) && said.lines().count() == 1, "{path}: {said}");
        assert!(said.len() < 500, "{path}: {said}");
    }
    let line = "plan explain docs/examples/randwrite-8k.json --type pd-ssd --size 1TB";
    for (option, part) in [
        ("--tolerance -1", "from 0 to less than 100"),
        ("--tolerance 100", "from 0 to less than 100"),
        ("--machine zz", "unknown machine `zz`"),
    ] {
        let output = run(&format!("{line} {option}"));
        assert_eq!(code(&output), Some(2), "{option}");
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
}

#[test]
fn fio_result_from_stdin() {
    let result = fs::read(repository().join("docs/examples/randwrite-8k.json"));
    let mut program = Command::new(env!("CARGO_BIN_EXE_flagstone"))
        .args(EXPLAIN.replace("docs/examples/randwrite-8k.json", "-").split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    // The program reads all input before it prints.
    let mut input = program.stdin.take().expect("it is piped");
    input.write_all(&result.expect("it exists")).expect("it is read");
    drop(input);
    let output = program.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, run(EXPLAIN).stdout);
}

#[test]
fn plan_table_text_and_json() {
    let output = run("plan table --type pd-standard --catalog gcp-2019");
    assert_eq!(code(&output), Some(0));
    let row = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<_> = text(&output.stdout).lines().map(row).collect();
    assert!(lines.iter().any(|line| line == "8,192 3,000 12,288 7,500 240 240"), "{lines:#?}");
    let output = run("plan table --json");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(report["catalog"]["name"], "gcp-current");
    let tables = report["tables"].as_array().expect("a list");
    let doc = fs::read_to_string(repository().join("docs/plan-json.md")).expect("it exists");
    for table in tables {
        let columns = table["columns"].as_array().expect("a list").len();
        for row in table["rows"].as_array().expect("a list") {
            assert_eq!(row.as_array().map(Vec::len), Some(columns), "{}", table["title"]);
        }
        for key in table.as_object().expect("an object").keys() {
            assert!(doc.contains(&format!("`{key}`")), "docs/plan-json.md lacks {key}");
        }
    }
    assert!(tables.len() > 60, "{}", tables.len());
}

#[test]
fn printed_catalog_is_usable() {
    let output = run("plan catalog gcp-2019");
    assert_eq!(code(&output), Some(0));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("printed.toml");
    fs::write(&path, &output.stdout).expect("it can be written");
    let line = EXAMPLE.replace("--catalog gcp-2019", "--catalog");
    let mut words: Vec<_> = line.split_whitespace().collect();
    words.push(path.to_str().expect("a plain path"));
    assert_eq!(flagstone(&words).stdout, run(EXAMPLE).stdout);
    assert_eq!(text(&run("plan catalog").stdout).lines().count(), 2);
}

#[test]
fn plan_mistakes_are_one_line_usage_errors() {
    for (line, part) in [
        ("--type pd-fast --size 1TB", "gcp-current has hyperdisk-balanced"),
        ("--type pd-ssd", "--size is missing"),
        ("--type pd-ssd --size -5GB", "expected a size"),
        ("--type pd-ssd --size 500X", "unknown unit"),
        ("--type pd-ssd --size 5", "the unit is missing"),
        ("--type pd-ssd --size 100TB", "10 GiB to 65,536 GiB"),
        ("--type pd-ssd --size 1TB --machine n1-standard-7", "n1 has 1, 2, 4"),
        ("--type pd-ssd --size 1TB --machine z9-standard-8", "write a family"),
        ("--type pd-ssd --size 1TB --machine c4-standard-8", "c4 takes hyperdisk-balanced"),
        ("--type pd-ssd --size 1TB --depth -1", "from 1 to"),
        ("--type pd-ssd --size 1TB --depth many", "from 1 to"),
        ("--type pd-ssd --size 1TB --bs 4x", "unknown unit"),
        ("--type pd-ssd --size 1TB --bs 0", "from 512 to 32MiB"),
        ("--type pd-ssd --size 1TB --rw random", "randread"),
        ("--type pd-ssd --size 1TB --read-percent 30", "--rw randrw"),
        ("--type pd-ssd --size 1TB --rw randrw --read-percent 101", "from 0 to 100"),
        ("--type pd-ssd --size 1TB --other-egress-gbps -1", "a number from 0"),
        ("--type pd-ssd --size 1TB --other-egress-gbps 99", "at most 16 Gbit/s"),
        ("--type pd-ssd --size 1TB --disks 0", "from 1 to 128"),
        ("--type pd-ssd --size 1TB --iops 5", "it follows the size"),
        ("--type hyperdisk-extreme --size 1TB --machine c3-standard-88", "--iops is missing"),
        ("--type hyperdisk-balanced --size 1TB --machine c3-standard-88 --throughput 5", "240MB/s"),
        ("--type pd-ssd --size 1TB --catalog no/such/file", "gcp-2019 or gcp-current"),
        ("--type pd-ssd --size 1TB --catalog Cargo.toml", "Cargo.toml:1: "),
    ] {
        let output = run(&format!("plan predict {line}"));
        assert_eq!(code(&output), Some(2), "{line}");
        assert!(output.stdout.is_empty(), "{line}");
        let said = text(&output.stderr);
        assert!(said.contains(part) && said.lines().count() == 1, "{line}: {said}");
    }
    let output = run("plan predict --type local-ssd-nvme --machine c4-standard-96-lssd");
    assert_eq!(code(&output), Some(1));
    assert!(text(&output.stderr).starts_with("flagstone: error: not known: "));
}
