//! `flagstone doctor` end to end, on a recorded host.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// A host with one SSD that has the wrong scheduler and read-ahead.
const FILES: [(&str, &str); 10] = [
    ("proc/sys/kernel/osrelease", "6.1.0"),
    ("proc/loadavg", "0.00 0.00 0.00 1/2 3"),
    ("proc/self/mountinfo", ""),
    ("proc/interrupts", "  CPU0 CPU1"),
    ("proc/1/comm", "init"),
    ("sys/devices/system/cpu/online", "0-1"),
    ("sys/block/sda/size", "2048"),
    ("sys/block/sda/queue/rotational", "0"),
    ("sys/block/sda/queue/scheduler", "[bfq] none"),
    ("sys/block/sda/queue/read_ahead_kb", "128"),
];

fn host() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (file, value) in FILES {
        let path = directory.path().join(file);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
        fs::write(path, value).expect("a file");
    }
    directory
}

fn doctor(root: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flagstone"))
        .arg("doctor")
        .arg("--root")
        .arg(root)
        .args(arguments)
        .output()
        .expect("the program runs")
}

fn text(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("it prints text")
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

#[test]
fn doctor_applies_and_undoes() {
    let host = host();
    let read = |file: &str| fs::read_to_string(host.path().join(file)).expect("it is there");
    let looked = doctor(host.path(), &["/dev/sda", "--workload", "throughput"]);
    assert_eq!(looked.status.code(), Some(0));
    for part in [
        "costs performance: 3, the most costly first",
        "MEDIUM  sda  scheduler: the I/O scheduler is bfq",
        "        change   echo none > /sys/block/sda/queue/scheduler",
        "        undo     echo bfq > /sys/block/sda/queue/scheduler",
        "        change   echo 8192 > /sys/block/sda/queue/read_ahead_kb",
        "INFO    sda  mkfs:",
    ] {
        assert!(text(&looked).contains(part), "{part}:\n{}", text(&looked));
    }
    assert!(!text(&looked).contains('\x1b'));
    assert_eq!(read("sys/block/sda/queue/scheduler"), "[bfq] none", "looking changes nothing");

    let applied = doctor(host.path(), &["--workload", "throughput", "--apply", "--persist"]);
    assert_eq!(applied.status.code(), Some(0), "{applied:?}");
    assert!(text(&applied).contains("changed    /sys/block/sda/queue/scheduler: bfq -> none"));
    assert_eq!(read("sys/block/sda/queue/read_ahead_kb"), "8192\n");
    let rules = read("etc/udev/rules.d/99-flagstone-doctor.rules");
    assert_eq!(rules.lines().filter(|line| line.contains(r#"KERNEL=="sda""#)).count(), 2);

    let undone = doctor(host.path(), &["--undo", "--json"]);
    assert_eq!(undone.status.code(), Some(0));
    assert_eq!(json(&undone)["changes"].as_array().map(Vec::len), Some(3));
    assert_eq!(read("sys/block/sda/queue/scheduler"), "bfq\n");
    assert_eq!(read("sys/block/sda/queue/read_ahead_kb"), "128\n");
    assert!(!host.path().join("etc/udev/rules.d/99-flagstone-doctor.rules").exists());
    let again = doctor(host.path(), &["--undo"]);
    assert_eq!((again.status.code(), text(&again)), (Some(0), "\nnothing to undo\n"));
}

#[test]
fn doctor_json_is_documented() {
    let host = host();
    let report = json(&doctor(host.path(), &["--json", "--iops", "6000"]));
    let keys = |value: &serde_json::Value| {
        value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>()
    };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
    let page = fs::read_to_string(page).expect("docs/doctor.md exists");
    let finding = &report["findings"][0];
    assert_eq!(finding["severity"], "high");
    assert_eq!(finding["check"], "free CPUs");
    let scheduler = &report["findings"][1];
    assert_eq!(scheduler["changes"][0]["value"], "none");
    for object in [&report, &report["host"], &report["expected"], finding, &scheduler["changes"][0]]
    {
        for key in keys(object) {
            assert!(page.contains(&format!("`{key}`")), "docs/doctor.md lacks {key}");
        }
    }
    assert_eq!(report["version"], 1);
    assert!(report["changes"].is_null());
}

#[test]
fn doctor_mistakes_change_nothing() {
    let host = host();
    for arguments in [
        &["/dev/sdz"][..],
        &["../../etc"],
        &["--persist"],
        &["--undo", "--apply"],
        &["--workload", "fast"],
        &["--iops", "0"],
        &["--root", "/no/such/directory"],
    ] {
        let output = doctor(host.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
    fs::create_dir_all(host.path().join("var/lib/flagstone")).expect("a directory");
    fs::write(host.path().join("var/lib/flagstone/doctor.journal"), "nonsense\n").expect("a file");
    let output = doctor(host.path(), &["--apply"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 1"));
    assert!(host.path().join("sys/block/sda/queue/scheduler").exists());
}
