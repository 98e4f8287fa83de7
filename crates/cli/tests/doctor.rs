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
    fs::create_dir_all(host.path().join("var/lib/flagstone-doctor")).expect("a directory");
    fs::write(host.path().join("var/lib/flagstone-doctor/journal"), "nonsense\n").expect("a file");
    let output = doctor(host.path(), &["--apply"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 1"));
    assert!(host.path().join("sys/block/sda/queue/scheduler").exists());
}

#[test]
fn dry_run_shows_changes_and_makes_none() {
    let host = host();
    let planned = doctor(host.path(), &["--apply", "--persist", "--dry-run", "--json"]);
    assert_eq!(planned.status.code(), Some(0), "{planned:?}");
    let changes = json(&planned)["changes"].clone();
    assert_eq!(changes[0]["result"], "would_change");
    assert_eq!(changes[0]["file"], "/sys/block/sda/queue/scheduler");
    assert_eq!((&changes[0]["before"], &changes[0]["now"]), (&"bfq".into(), &"none".into()));
    assert_eq!(changes[1]["file"], "/etc/udev/rules.d/99-flagstone-doctor.rules");
    let shown = doctor(host.path(), &["--apply", "--dry-run"]);
    let line = "would change /sys/block/sda/queue/scheduler: bfq -> none";
    assert!(text(&shown).contains(line), "{}", text(&shown));
    let scheduler = fs::read_to_string(host.path().join("sys/block/sda/queue/scheduler"));
    assert_eq!(scheduler.expect("it is there"), "[bfq] none");
    assert!(!host.path().join("var").exists() && !host.path().join("etc").exists());
    assert_eq!(doctor(host.path(), &["--dry-run"]).status.code(), Some(2), "it needs --apply");
}

/// Names and contents of a tar archive's files, as `tar` reads them.
fn unpacked(archive: &Path) -> std::collections::BTreeMap<String, String> {
    let folder = tempfile::tempdir().expect("a directory");
    let tar = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(folder.path()).status();
    assert!(tar.expect("tar runs").success());
    let top = fs::read_dir(folder.path()).expect("it is there").next().expect("one folder");
    let top = top.expect("one folder").path();
    let mut found = std::collections::BTreeMap::new();
    let mut folders = vec![top.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&top).expect("below it").display().to_string();
            found.insert(name, fs::read_to_string(path).expect("text"));
        }
    }
    found
}

#[test]
fn support_archive_has_no_secrets() {
    const SECRET: &str = "hunter2";
    let host = host();
    let write = |file: &str, text: &str| {
        let path = host.path().join(file);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
        fs::write(path, text).expect("a file");
    };
    write(
        "etc/flagstone/conf.d/db.toml",
        &format!(
            "# {SECRET}\n[volume.db]\ndevice = \"/dev/sdb\"\nsecret = \"{SECRET}\"\n\
             [peer.b]\nfence_command = [\"/sbin/fence\", \"-P\", \"{SECRET}\"]\n"
        ),
    );
    let log = "commands/journalctl --unit=flagstone --lines=5000 --no-pager --output=short-iso --utc --quiet";
    write(log, &format!("connected nbd://u:{SECRET}@h/x\nkey DHHC-1:00:{SECRET}:\n"));
    let archive = host.path().join("a.tar.gz");
    let (name, api) = (archive.to_str().expect("text"), host.path().join("none.sock"));
    let arguments = ["--support", "--archive", name, "--api", api.to_str().expect("text")];
    let made = doctor(host.path(), &[&arguments[..], &["--json"]].concat());
    assert_eq!(made.status.code(), Some(1), "no server answers at the named socket: {made:?}");
    let files = unpacked(&archive);
    let listed = json(&made)["files"].as_array().expect("a list").clone();
    let listed: Vec<_> = listed.iter().filter_map(|file| file["name"].as_str()).collect();
    for name in ["contents.txt", "host.json", "config.toml", "log.txt", "versions.txt"] {
        assert!(files.contains_key(name) && listed.contains(&name), "{name}: {listed:?}");
        assert!(name == "contents.txt" || files["contents.txt"].contains(name), "{name}");
    }
    assert_eq!(json(&made)["missing"][0]["name"], "server/");
    assert!(files.values().all(|text| !text.contains(SECRET)), "{files:?}");
    assert!(files["config.toml"].contains("volume.db.device = \"/dev/sdb\""), "{files:?}");
    assert!(files["log.txt"].contains("connected nbd://(redacted)@h/x"), "{files:?}");
    assert!(files["versions.txt"].starts_with("flagstone 0."), "{files:?}");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(&archive).expect("it is there").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    // An existing file is never replaced. What no option names may be missing.
    let other = host.path().join("b.tar.gz");
    let unnamed = ["--support", "--archive", other.to_str().expect("text")];
    assert_eq!(doctor(host.path(), &unnamed).status.code(), Some(0));
    assert_eq!(doctor(host.path(), &arguments).status.code(), Some(2));
}
