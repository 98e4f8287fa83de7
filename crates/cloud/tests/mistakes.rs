//! Catalog mistakes: one line with the file, the line number and the accepted input.

use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::{DiskConfiguration, Workload};
use proptest::prelude::*;

/// A small valid catalog.
const RIGHT: &str = r#"format = 1
name = "mine"
title = "My disks"
date = "2026"
about = "what I measured"
confidence = "B"

[units]
size = "GiB"
size_bytes = 1073741824
throughput = "MiB/s"
block = "KiB"
block_bytes = 1024
blocks_per_throughput = 1024

[source.me]
address = "my notes"
date = "2026-01-01"
confidence = "B"

[type.fast]
title = "Fast"
source = ["me"]

[type.fast.volume]
source = ["me"]
read_iops_per_gib = 10
write_iops_per_gib = 5.5

[family.box]
source = ["me"]
vcpus = [2, 4]
egress = [{ vcpus = "2-4", gbit_per_s = 10 }]

[[per_vm]]
types = ["fast"]
families = ["box"]
source = ["me"]
rows = [
  { vcpus = "2", read_iops = 1000, write_iops = 1000 },
  { vcpus = "4", iops = 2000 },
]
"#;

#[test]
fn small_catalog_parses() {
    let catalog = Catalog::parse("mine.toml", RIGHT).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(catalog.types["fast"].volume.as_ref().and_then(|v| v.read_iops_per_gb), Some(10.0));
}

#[test]
fn type_that_no_machine_takes_is_not_known() {
    let local = "[type.local]\ntitle = \"Local\"\nsource = [\"me\"]\nsize_gib_each = 375\n\
        [type.local.volume]\nsource = [\"me\"]\nread_iops_per_gib = 100\nwrite_iops_per_gib = 50\n\n";
    let text = RIGHT.replace("[family.box]", &format!("{local}[family.box]"));
    let catalog = Catalog::parse("mine.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    let configuration = DiskConfiguration::new(&catalog, "local", 0, "box-standard-2").unwrap();
    let error = catalog.predict(&configuration, &Workload::random(4096, 100)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "not known: box-standard-2 has no local, and no machine of mine takes local"
    );
    let tables = catalog.tables(None).unwrap_or_else(|error| panic!("{error}"));
    assert!(!tables.is_empty(), "the other types have theirs");
}

/// The error after replacing `from` with `to`.
#[track_caller]
fn error(from: &str, to: &str) -> String {
    assert_eq!(RIGHT.matches(from).count(), 1, "{from} stands once");
    let text = RIGHT.replace(from, to);
    match Catalog::parse("mine.toml", &text) {
        Ok(_) => panic!("{to} is accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn catalog_mistakes_are_one_line() {
    let mut different = Vec::new();
    for (from, to, wanted) in [
        ("title = \"My disks\"\n", "", "mine.toml:1: `title` is missing"),
        (
            "write_iops_per_gib = 5.5",
            "write_iops_per_gib = \"5.5\"",
            "mine.toml:28: string \"5.5\" is not what belongs here: write a number without quotes",
        ),
        (
            "vcpus = [2, 4]",
            "vcpus = [2, 4.5]",
            "mine.toml:32: floating point `4.5` is not what belongs here: write a whole number",
        ),
        (
            "vcpus = [2, 4]",
            "vcpus = 2",
            "mine.toml:32: integer `2` is not what belongs here: write a list",
        ),
        (
            "write_iops_per_gib = 5.5",
            "write_iops_per_gb = 5.5",
            "mine.toml:28: `write_iops_per_gb` is not in the units of this catalog: write write_iops_per_gib",
        ),
        (
            "write_iops_per_gib = 5.5",
            "write_iopses = 5.5",
            "mine.toml:28: unknown key `write_iopses`: accepted here: source, confidence, read_iops_per_gib, write_iops_per_gib, read_mib_per_s_per_gib,",
        ),
        (
            "write_iops_per_gib = 5.5",
            "write_iops_per_gib = -5.5",
            "mine.toml:28: a negative or endless number: write a number from 0",
        ),
        (
            "write_iops_per_gib = 5.5",
            "write_iops_per_gib = inf",
            "mine.toml:28: a negative or endless number",
        ),
        (
            "write_iops_per_gib = 5.5",
            "write_iops_per_gib = 5.5.5",
            "mine.toml:28: this is not TOML",
        ),
        (
            "title = \"Fast\"\nsource = [\"me\"]",
            "title = \"Fast\"\nsource = [\"you\"]",
            "mine.toml:23: no table [source.you]: add it, or write one of me",
        ),
        (
            "title = \"Fast\"\nsource = [\"me\"]",
            "title = \"Fast\"\nsource = []",
            "mine.toml:23: no source is named",
        ),
        (
            "title = \"Fast\"\nsource = [\"me\"]",
            "title = \"Fast\"",
            "mine.toml:21: `source` is missing in `[type.fast]`: write source = [\"KEY\"]",
        ),
        (
            "types = [\"fast\"]",
            "types = [\"slow\"]",
            "mine.toml:36: no table [type.slow]: add it, or write one of fast",
        ),
        ("families = [\"box\"]", "families = [\"bax\"]", "mine.toml:37: no table [family.bax]"),
        (
            "vcpus = \"4\", iops",
            "vcpus = \"2-4\", iops",
            "mine.toml:41: vcpus \"2-4\" overlaps \"2\" of a row above",
        ),
        (
            "vcpus = \"4\", iops",
            "vcpus = \"4-2\", iops",
            "mine.toml:41: string \"4-2\" cannot be: write a range of whole numbers",
        ),
        (
            "vcpus = \"4\", iops",
            "vcpus = 4, iops",
            "mine.toml:41: integer `4` is not what belongs here: write a range of whole numbers: \"4\", \"2-7\" or \"64+\"",
        ),
        ("vcpus = \"4\", iops", "iops", "mine.toml:41: a row is for vCPUs or for a machine"),
        (
            "iops = 2000",
            "iops = 2000, read_iops = 1",
            "mine.toml:41: a row limits reads and writes together, or each",
        ),
        ("format = 1", "format = 2", "mine.toml:1: format 2 is unknown: write format = 1"),
        (
            "confidence = \"B\"\n\n[units]",
            "confidence = \"D\"\n\n[units]",
            "mine.toml:6: unknown word \"D\": write one of \"A\", \"B\", \"C\"",
        ),
        (
            "size = \"GiB\"",
            "size = \"TiB\"",
            "mine.toml:9: unknown word \"TiB\": write \"GB\" or \"GiB\"",
        ),
        ("block_bytes = 1024\n", "block_bytes = 0\n", "mine.toml:13: block_bytes = 0 is no unit"),
    ] {
        let error = error(from, to);
        assert!(!error.contains('\n'), "{error}");
        if !error.starts_with(wanted) {
            different.push(format!("{error}\n  wanted {wanted}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn unreadable_catalogs_are_refused() {
    for path in ["no/such/file", "src"] {
        let error = Catalog::open(path).expect_err("there is none").to_string();
        assert!(error.starts_with(&format!("{path}: cannot read")), "{error}");
        assert!(error.contains("gcp-2019 or gcp-current") && !error.contains('\n'), "{error}");
    }
}

proptest! {
    /// A lost, doubled or truncated line of a built-in catalog gives at most a one-line error.
    #[test]
    fn damaged_catalogs_never_panic(line in 0usize..1000, at in 0usize..80, what in 0u8..3) {
        let text = Catalog::builtin_text("gcp-2019").expect("it is in the program");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let line = line % lines.len();
        match what {
            0 => { lines.remove(line); }
            1 => { let again = lines[line].clone(); lines.insert(line, again); }
            _ => { lines[line] = lines[line].chars().take(at).collect(); }
        }
        if let Err(error) = Catalog::parse("damaged", &lines.join("\n")) {
            let text = error.to_string();
            prop_assert!(text.starts_with("damaged:") && !text.contains('\n'), "{text}");
        }
    }
}
