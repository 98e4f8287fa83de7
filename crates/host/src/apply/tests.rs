use std::fs;

use proptest::prelude::*;

use super::*;

const SCHEDULER: &str = "/sys/block/sda/queue/scheduler";
const BACKLOG: &str = "/proc/sys/net/core/somaxconn";

/// A host with two settings as plain files, which read back as written.
fn host() -> (tempfile::TempDir, Root) {
    // In memory if possible, because the journal syncs often.
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let directory = directory.expect("a directory");
    let root = Root::new(directory.path());
    for (file, value) in [(SCHEDULER, "[mq-deadline] none"), (BACKLOG, "128")] {
        let path = root.locate(file);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
        fs::write(path, value).expect("a file");
    }
    (directory, root)
}

fn journal_directory(root: &Root) {
    let directory = root.locate(JOURNAL);
    fs::create_dir_all(directory.parent().expect("it has one")).expect("a directory");
}

fn change(file: &str, value: &str) -> SettingChange {
    SettingChange { file: file.to_owned(), before: String::new(), value: value.to_owned() }
}

fn changes() -> [SettingChange; 2] {
    [change(SCHEDULER, "none"), change(BACKLOG, "1024")]
}

fn value(root: &Root, file: &str) -> String {
    current(root, file).expect("it is there")
}

#[test]
fn apply_persist_and_undo() {
    let (_directory, root) = host();
    let outcomes = apply(&root, &changes(), true).expect("it can");
    assert!(
        outcomes.iter().all(|o| matches!(o.result, ChangeResult::Changed { .. })),
        "{outcomes:?}"
    );
    assert_eq!((value(&root, SCHEDULER), value(&root, BACKLOG)), ("none".into(), "1024".into()));
    let udev = root.read(UDEV_FILE).expect("written");
    let rule = r#"ACTION=="add|change", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", KERNEL=="sda", ATTR{queue/scheduler}="none""#;
    assert!(udev.lines().any(|line| line == rule), "{udev}");
    assert!(root.read(SYSCTL_FILE).expect("written").ends_with("net.core.somaxconn = 1024"));

    // A second run changes nothing and keeps the undo information.
    let outcomes = apply(&root, &changes(), true).expect("it can");
    assert!(
        outcomes.iter().all(|o| matches!(o.result, ChangeResult::Unchanged { .. })),
        "{outcomes:?}"
    );

    let outcomes = undo(&root).expect("it can");
    assert_eq!(outcomes.len(), 4);
    assert!(
        outcomes.iter().all(|o| matches!(o.result, ChangeResult::Changed { .. })),
        "{outcomes:?}"
    );
    assert_eq!(value(&root, SCHEDULER), "mq-deadline");
    assert_eq!(value(&root, BACKLOG), "128");
    assert!(!root.exists(UDEV_FILE) && !root.exists(SYSCTL_FILE) && !root.exists(JOURNAL));
    assert!(undo(&root).expect("nothing to do").is_empty());
}

/// Every file below the root, with its content.
fn content(directory: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => found.extend(content(&path)),
            false => found.push((path.clone(), fs::read(path).expect("a file"))),
        }
    }
    found.sort();
    found
}

#[test]
fn preview_announces_what_apply_does() {
    let (directory, root) = host();
    // Before any change; with a change of an earlier run that is not persistent; and after all.
    for earlier in [None, Some((1, false)), Some((2, true))] {
        if let Some((count, keep)) = earlier {
            apply(&root, &changes()[..count], keep).expect("it can");
        }
        let before = content(directory.path());
        for keep in [false, true] {
            let announced = preview(&root, &changes(), keep).expect("it can");
            assert_eq!(content(directory.path()), before, "a dry run changes nothing");
            let (other_directory, other) = host();
            if let Some((count, keep)) = earlier {
                apply(&other, &changes()[..count], keep).expect("it can");
            }
            let done = apply(&other, &changes(), keep).expect("it can");
            drop(other_directory);
            let as_done = announced.into_iter().map(|outcome| match outcome.result {
                ChangeResult::WouldChange { before, now } => {
                    ChangeResult::Changed { before, now }.of(&outcome.file)
                }
                result => result.of(&outcome.file),
            });
            assert_eq!(as_done.collect::<Vec<_>>(), done, "{earlier:?} {keep}");
        }
    }
}

const REQUESTS: &str = "/sys/block/sda/queue/nr_requests";

/// A scheduler makes the kernel choose the number of requests. On a loop device with 32 requests
/// and mq-deadline, apply and undo used to end with the kernel's 256.
#[test]
fn scheduler_side_effect_is_undone() {
    let (_directory, root) = host();
    let apply_none = || {
        fs::write(root.locate(SCHEDULER), "[mq-deadline] none").expect("written");
        fs::write(root.locate(REQUESTS), "256\n").expect("written");
        apply(&root, &changes()[..1], false).expect("it can");
        fs::read_to_string(root.locate(JOURNAL)).expect("it is there")
    };
    let journal = apply_none();
    let lines: Vec<&str> = journal.lines().collect();
    assert_eq!(lines.len(), 3, "{journal}");
    assert!(lines[0].contains("nr_requests") && lines[0].contains(r#""before":"256""#));
    assert!(lines[1].contains("scheduler") && lines[2].contains(r#""entry":"took""#), "{journal}");

    // Three cases: the kernel reduced the value to 128 and reset it; a crash came before the
    // journal noted that; another program changed the value since.
    let of_kernel = journal.replace(r#""value":"256""#, r#""value":"128""#);
    let cut_off = lines[..2].join("\n") + "\n";
    for (journal, now, given_back) in
        [(&of_kernel, "128", "256"), (&cut_off, "128", "256"), (&journal, "300", "300")]
    {
        apply_none();
        fs::write(root.locate(JOURNAL), journal).expect("written");
        fs::write(root.locate(REQUESTS), now).expect("written");
        let outcomes = undo(&root).expect("it can");
        assert_eq!(value(&root, SCHEDULER), "mq-deadline");
        assert_eq!(value(&root, REQUESTS), given_back, "{journal}: {outcomes:?}");
        assert!(!root.exists(JOURNAL));
    }
    apply_none();
    assert_eq!(undo(&root).expect("it can").len(), 1, "settings that stayed are not listed");
}

#[test]
fn scheduler_rule_precedes_nr_requests_rule() {
    let (_directory, root) = host();
    fs::write(root.locate(REQUESTS), "32\n").expect("written");
    apply(&root, &[change(REQUESTS, "64")], true).expect("it can");
    apply(&root, &changes()[..1], true).expect("it can");
    let rules = root.read(UDEV_FILE).expect("written");
    let place = |name: &str| rules.find(name).unwrap_or_else(|| panic!("{name}: {rules}"));
    assert!(rules.starts_with("# Written by") && place("scheduler") < place("nr_requests"));
    assert_eq!(rules.lines().count(), 3, "{rules}");
}

#[test]
fn repeated_changes_undo_to_first_value() {
    let (_directory, root) = host();
    for value in ["512", "1024", "2048"] {
        apply(&root, &[change(BACKLOG, value)], true).expect("it can");
    }
    assert_eq!(root.read(SYSCTL_FILE).expect("written").lines().count(), 2, "the last alone");
    undo(&root).expect("it can");
    assert_eq!(value(&root, BACKLOG), "128");
    assert!(!root.exists(SYSCTL_FILE) && !root.exists(JOURNAL));
}

#[test]
fn persist_includes_earlier_changes() {
    let (_directory, root) = host();
    apply(&root, &changes(), false).expect("it can");
    assert!(!root.exists(UDEV_FILE));
    apply(&root, &[], true).expect("it can");
    assert!(root.exists(UDEV_FILE) && root.exists(SYSCTL_FILE));
}

#[test]
fn undo_leaves_foreign_changes() {
    let (_directory, root) = host();
    apply(&root, &changes(), true).expect("it can");
    fs::write(root.locate(BACKLOG), "4096\n").expect("written");
    fs::write(root.locate(SYSCTL_FILE), "mine = 1\n").expect("written");
    let outcomes = undo(&root).expect("it can");
    let left =
        outcomes.iter().filter(|o| matches!(o.result, ChangeResult::ChangedSince { .. })).count();
    assert_eq!(left, 2, "{outcomes:?}");
    assert_eq!(value(&root, BACKLOG), "4096");
    assert_eq!(root.read(SYSCTL_FILE).expect("left"), "mine = 1");
    assert_eq!(value(&root, SCHEDULER), "mq-deadline");
    assert!(!root.exists(JOURNAL));
}

#[test]
fn undo_keeps_lines_of_other_programs() {
    let (_directory, root) = host();
    let path = root.locate(SYSCTL_FILE);
    fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
    let old = "net.core.somaxconn = 1\nnet.core.somaxconn_other = 2";
    fs::write(&path, old).expect("written");
    apply(&root, &changes(), true).expect("it can");
    let new = fs::read_to_string(&path).expect("written");
    assert_eq!(new, "net.core.somaxconn_other = 2\nnet.core.somaxconn = 1024\n");
    undo(&root).expect("it can");
    assert_eq!(fs::read_to_string(&path).expect("restored"), old);
}

/// A crash leaves a prefix of the journal, with or without the change after it.
#[test]
fn undo_after_crash_at_any_journal_byte() {
    let (_directory, root) = host();
    apply(&root, &changes(), false).expect("it can");
    let journal = fs::read(root.locate(JOURNAL)).expect("it is there");
    let lines = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte == b'\n').count();
    for cut in 0..=journal.len() {
        for is_last_made in [false, true] {
            let whole = lines(&journal[..cut]);
            let made = whole.saturating_sub(usize::from(!is_last_made));
            let texts = [["[mq-deadline] none", "none"], ["128", "1024"]];
            for (index, file) in [SCHEDULER, BACKLOG].into_iter().enumerate() {
                let text = texts[index][usize::from(index < made)];
                fs::write(root.locate(file), text).expect("written");
            }
            fs::write(root.locate(JOURNAL), &journal[..cut]).expect("written");
            undo(&root).expect("it can");
            assert_eq!(value(&root, SCHEDULER), "mq-deadline", "cut at {cut}");
            assert_eq!(value(&root, BACKLOG), "128", "cut at {cut}");
            assert!(!root.exists(JOURNAL));
        }
    }
}

#[test]
fn failed_change_keeps_undo_and_others_continue() {
    let (_directory, root) = host();
    let missing = "/sys/block/sdz/queue/scheduler";
    let outcomes = apply(&root, &[change(missing, "none"), change(BACKLOG, "1024")], false);
    let outcomes = outcomes.expect("it can");
    assert!(outcomes[0].is_failure() && !outcomes[1].is_failure(), "{outcomes:?}");
    assert!(apply(&root, &[change("/etc/passwd", "x")], false).expect("it can")[0].is_failure());

    // A setting that is unreadable during undo stays in the journal.
    fs::remove_file(root.locate(BACKLOG)).expect("removed");
    fs::create_dir(root.locate(BACKLOG)).expect("a directory");
    assert!(undo(&root).expect("it can")[0].is_failure());
    fs::remove_dir(root.locate(BACKLOG)).expect("removed");
    fs::write(root.locate(BACKLOG), "1024").expect("written");
    undo(&root).expect("it can");
    assert_eq!(value(&root, BACKLOG), "128");
}

#[test]
fn hostile_journal_is_refused() {
    let (_directory, root) = host();
    journal_directory(&root);
    fs::create_dir_all(root.locate("/etc")).expect("a directory");
    fs::write(root.locate("/etc/passwd"), "x").expect("written");
    for line in [
        r#"{"entry":"setting","file":"/etc/passwd","before":"y","after":"x"}"#,
        r#"{"entry":"setting","file":"/sys/block/../../etc/passwd","before":"y","after":"x"}"#,
        r#"{"entry":"setting","file":"/sys/block/../queue/scheduler","before":"y","after":"x"}"#,
        r#"{"entry":"file","file":"/etc/passwd","before":null,"after":"x"}"#,
        r#"{"entry":"other"}"#,
        r#"{"entry":"file","file":"/etc/udev/rules.d/99-flagstone-doctor.rules","before":"RUN+=\"/x\"","after":"x"}"#,
        "nonsense",
    ] {
        fs::write(root.locate(JOURNAL), format!("{line}\n")).expect("written");
        let error = undo(&root).expect_err(line);
        assert!(matches!(error, ApplyError::Corrupt { line: 1, .. }), "{error}");
        assert!(apply(&root, &changes(), false).is_err(), "{line}");
        assert_eq!(value(&root, BACKLOG), "128");
        assert_eq!(root.read("/etc/passwd").expect("whole"), "x");
    }
}

/// The service's user could dictate a rule that root runs.
#[test]
fn undo_restores_only_lines_of_the_doctor() {
    let (_directory, root) = host();
    let rule = |disk: &str, value: &str| {
        let matches = r#"SUBSYSTEM=="block", ENV{DEVTYPE}=="disk""#;
        let attribute = "ATTR{queue/scheduler}";
        format!(r#"ACTION=="add|change", {matches}, KERNEL=="{disk}", {attribute}="{value}""#)
    };
    let cpu = r#"ACTION=="add|change", SUBSYSTEM=="cpu", ATTR{cpufreq/scaling_governor}="x""#;
    for ours in [rule("sda", "none"), cpu.to_owned(), String::new()] {
        assert!(persist::is_ours(UDEV_FILE, &ours), "{ours}");
        assert!(ours.is_empty() || !persist::is_ours(SYSCTL_FILE, &ours), "{ours}");
    }
    assert!(persist::is_ours(SYSCTL_FILE, "net.ipv4.tcp_rmem = 4096 1 2\n"));
    let foreign = [
        r#"RUN+="/x""#.to_owned(),
        rule("sda", r#"none", RUN+="/x"#),
        rule("sda", "$env{X}"),
        rule(r#"sda", RUN+="/x"#, "none"),
        rule("sd*", "none"),
        rule("sda", "none") + r#", RUN+="/x""#,
        rule("sda", "none").replace("queue/scheduler", "../x"),
        cpu.replace("ATTR", r#"RUN+="/x", ATTR"#),
    ];
    for foreign in &foreign {
        assert!(!persist::is_ours(UDEV_FILE, foreign), "{foreign}");
    }
    for foreign in ["kernel.core_pattern = x", "net.core.a = |/x", "net.core.a = 1\nvm.x = 1"] {
        assert!(!persist::is_ours(SYSCTL_FILE, foreign), "{foreign}");
    }
    // Nor is a file replaced that undo would not restore.
    let path = root.locate(SYSCTL_FILE);
    fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
    fs::write(&path, "vm.swappiness = 1\n").expect("written");
    let outcomes = apply(&root, &changes()[1..], true).expect("it can");
    assert!(outcomes[1].is_failure(), "{outcomes:?}");
    assert_eq!(fs::read_to_string(&path).expect("left"), "vm.swappiness = 1\n");
}

#[test]
fn journal_of_another_user_is_refused() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    let (base, root) = host();
    apply(&root, &changes(), false).expect("it can");
    let journal = root.locate(JOURNAL);
    let directory = journal.parent().expect("it has one");
    assert_eq!(fs::metadata(directory).expect("made").mode() & 0o777, 0o700);
    let refused = || {
        let error = undo(&root).expect_err("it is not the caller's");
        assert!(matches!(error, ApplyError::Journal(_)), "{error}");
        assert!(Journal::peek(&root).is_err());
        assert_eq!(value(&root, BACKLOG), "1024");
    };
    let allow = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
    };
    allow(&journal, 0o666);
    refused();
    allow(&journal, 0o600);
    allow(directory, 0o777);
    refused();
    allow(directory, 0o700);
    let moved = base.path().join("elsewhere");
    fs::rename(directory, &moved).expect("moved");
    symlink(&moved, directory).expect("linked");
    refused();
    fs::remove_file(directory).expect("removed");
    fs::rename(&moved, directory).expect("moved back");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(directory, Some(65534), None).expect("changed");
        refused();
        std::os::unix::fs::chown(directory, Some(0), None).expect("changed");
    }
    undo(&root).expect("it can");
    assert_eq!(value(&root, BACKLOG), "128");
}

#[test]
fn concurrent_apply_is_refused() {
    let (_directory, root) = host();
    let held = Journal::open(&root).expect("it can");
    assert!(matches!(apply(&root, &changes(), false), Err(ApplyError::Busy)));
    drop(held);
    apply(&root, &changes(), false).expect("it can");
}

proptest! {
    #[test]
    fn arbitrary_journal_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let (_directory, root) = host();
        journal_directory(&root);
        fs::write(root.locate(JOURNAL), bytes).expect("written");
        let _ = undo(&root);
        prop_assert_eq!(value(&root, BACKLOG), "128");
    }
}
