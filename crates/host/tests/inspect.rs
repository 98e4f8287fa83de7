//! Uses of real loop devices and files, and setting changes of a loop device. Tests skip parts that
//! need missing loop devices or mkfs programs, and print that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_host::apply::{ChangeOutcome, apply, undo};
use flagstone_host::checks::{Expectations, SettingChange, TuningGoal};
use flagstone_host::doctor::diagnose;
use flagstone_host::inspect::{InspectTarget, Use, UseKind, inspect};
use flagstone_host::root::Root;

const SIZE_BYTES: u64 = 8 << 20;

/// Runs a command and returns its output; `None` on failure.
fn run(words: &[&str]) -> Option<String> {
    let output = Command::new(words[0]).args(&words[1..]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A loop device over a new file, detached on drop.
struct Loop {
    device: PathBuf,
}

impl Loop {
    fn new(file: &Path) -> Option<Loop> {
        let device = run(&["losetup", "--find", "--show", file.to_str()?])?;
        Some(Loop { device: device.into() })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

fn blank(directory: &Path) -> PathBuf {
    let file = directory.join("disk");
    fs::File::create(&file).and_then(|file| file.set_len(SIZE_BYTES)).expect("a sparse file");
    file
}

fn kinds(uses: &[Use]) -> Vec<&'static str> {
    uses.iter()
        .filter_map(|found| match &found.kind {
            UseKind::Signature { signature } => Some(signature.kind),
            _ => None,
        })
        .collect()
}

#[test]
fn file_system_makes_file_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = blank(directory.path());
    let found = inspect(&file).expect("it is there");
    assert!(found.is_free(), "{:?}", found.reasons());
    assert_eq!(found.target, InspectTarget::File { size_bytes: SIZE_BYTES });
    if run(&["mkfs.ext4", "-q", file.to_str().expect("UTF-8")]).is_none() {
        return eprintln!("skipped: no mkfs.ext4 here");
    }
    let found = inspect(&file).expect("it is there");
    assert!(!found.is_free());
    assert_eq!(kinds(&found.uses), ["ext4"]);
}

#[test]
fn directories_and_char_devices_are_not_free() {
    for path in ["/", "/dev/null"] {
        let found = inspect(Path::new(path)).expect("it is there");
        assert!(!found.is_free() && found.target == InspectTarget::Other, "{path}");
        assert_eq!(found.reasons().len(), 1);
    }
    assert!(inspect(Path::new("/no/such/device")).is_err());
}

#[test]
fn loop_device_uses() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = blank(directory.path());
    let Some(device) = Loop::new(&file) else {
        return eprintln!("skipped: no loop devices here (root is needed)");
    };
    let found = inspect(&device.device).expect("it is there");
    assert!(found.is_free(), "{:?}", found.reasons());
    let name = device.device.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    assert_eq!(
        found.target,
        InspectTarget::BlockDevice { name: name.clone(), size_bytes: Some(SIZE_BYTES) }
    );
    let of_file = inspect(&file).expect("it is there");
    assert_eq!(of_file.uses, [Use { device: name.clone(), kind: UseKind::Loop }]);

    let node = device.device.to_str().expect("UTF-8");
    if run(&["mkswap", node]).is_some() {
        assert_eq!(kinds(&inspect(&device.device).expect("there").uses), ["swap"]);
    }
    if run(&["mkfs.ext4", "-q", "-F", node]).is_none() {
        return eprintln!("skipped in part: no mkfs.ext4 here");
    }
    assert_eq!(kinds(&inspect(&device.device).expect("there").uses), ["ext4"]);
    let at = directory.path().join("mounted");
    fs::create_dir(&at).expect("a directory");
    if run(&["mount", node, at.to_str().expect("UTF-8")]).is_none() {
        return eprintln!("skipped in part: cannot mount here");
    }
    let found = inspect(&device.device);
    run(&["umount", at.to_str().expect("UTF-8")]).expect("it was mounted");
    let found = found.expect("it is there");
    let at = at.display().to_string();
    assert_eq!(found.uses[0], Use { device: name, kind: UseKind::Mounted { at } });
    assert!(found.reasons()[0].contains("is mounted at"));
}

/// The host's sysfs and procfs, with everything else below a test directory: the settings are real,
/// the journal is the test's.
#[test]
fn loop_device_settings_apply_and_undo() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = blank(directory.path());
    let Some(device) = Loop::new(&file) else {
        return eprintln!("skipped: no loop devices here (root is needed)");
    };
    let name = device.device.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    for kernels in ["sys", "proc"] {
        let link = directory.path().join(kernels);
        std::os::unix::fs::symlink(Path::new("/").join(kernels), link).expect("a link");
    }
    let root = Root::new(directory.path());
    let scheduler = format!("/sys/block/{name}/queue/scheduler");
    let read_ahead = format!("/sys/block/{name}/queue/read_ahead_kb");
    if fs::write(&read_ahead, "128").is_err() {
        return eprintln!("skipped: sysfs cannot be written here");
    }
    let has_scheduler = fs::write(&scheduler, "mq-deadline").is_ok();
    // More than a loop device has without a scheduler (128), and not the kernel's choice with one
    // (256): only a recorded value can restore it.
    let requests = format!("/sys/block/{name}/queue/nr_requests");
    let has_requests = has_scheduler && fs::write(&requests, "200").is_ok();
    let workload = Some(TuningGoal::Iops);
    let named = vec![name.clone()];
    let report = diagnose(&root, &Expectations { workload, named, ..Expectations::default() });
    assert_eq!(report.host.disks.join(","), name);
    let mut changes = report.safe_changes();
    changes.retain(|change| change.file.contains(&name));
    assert_eq!(changes.len(), 1 + usize::from(has_scheduler), "{changes:?}");

    let outcomes = apply(&root, &changes, true).expect("it can");
    assert!(!outcomes.iter().any(ChangeOutcome::is_failure), "{outcomes:?}");
    assert_eq!(root.read(&read_ahead).expect("it is there"), "16");
    if has_scheduler {
        assert!(root.read(&scheduler).expect("it is there").contains("[none]"));
    }
    let outcomes = undo(&root).expect("it can");
    assert!(!outcomes.iter().any(ChangeOutcome::is_failure), "{outcomes:?}");
    assert_eq!(root.read(&read_ahead).expect("it is there"), "128");
    if has_scheduler {
        assert!(root.read(&scheduler).expect("it is there").contains("[mq-deadline]"));
    }
    if has_requests {
        assert_eq!(root.read(&requests).expect("it is there"), "200");
    }
    // The kernel rejects an unsupported value.
    let refused =
        SettingChange { file: scheduler, before: String::new(), value: "nonsense".to_owned() };
    assert!(apply(&root, &[refused], false).expect("it has a journal")[0].is_failure());
    undo(&root).expect("there is nothing to give back");
}
