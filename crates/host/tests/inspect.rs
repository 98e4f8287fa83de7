//! What real loop devices and files are used for, and changing the settings of one. Where loop devices, or what makes file
//! systems, are not to be had, a test says so and tests the rest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_host::apply::{Outcome, apply, undo};
use flagstone_host::checks::{Change, Expectations, Workload};
use flagstone_host::doctor::diagnose;
use flagstone_host::inspect::{Target, Use, inspect};
use flagstone_host::root::Root;

const SIZE_BYTES: u64 = 8 << 20;

/// Runs a command; what it printed if it did well.
fn run(words: &[&str]) -> Option<String> {
    let output = Command::new(words[0]).args(&words[1..]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A loop device over a new file, detached when dropped.
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
        .filter_map(|found| match found {
            Use::Signature { signature, .. } => Some(signature.kind),
            _ => None,
        })
        .collect()
}

#[test]
fn a_blank_file_is_free_and_one_with_a_file_system_is_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = blank(directory.path());
    let found = inspect(&file).expect("it is there");
    assert!(found.is_free(), "{:?}", found.reasons());
    assert_eq!(found.target, Target::File { size_bytes: SIZE_BYTES });
    if run(&["mkfs.ext4", "-q", file.to_str().expect("UTF-8")]).is_none() {
        return eprintln!("skipped: no mkfs.ext4 here");
    }
    let found = inspect(&file).expect("it is there");
    assert!(!found.is_free());
    assert_eq!(kinds(&found.uses), ["ext4"]);
}

#[test]
fn what_holds_no_data_is_not_free() {
    for path in ["/", "/dev/null"] {
        let found = inspect(Path::new(path)).expect("it is there");
        assert!(!found.is_free() && found.target == Target::Other, "{path}");
        assert_eq!(found.reasons().len(), 1);
    }
    assert!(inspect(Path::new("/no/such/device")).is_err());
}

#[test]
fn a_loop_device_through_its_life() {
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
        Target::BlockDevice { name: name.clone(), size_bytes: Some(SIZE_BYTES) }
    );
    let of_file = inspect(&file).expect("it is there");
    assert_eq!(of_file.uses, [Use::Loop { device: name.clone() }]);

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
    assert_eq!(found.uses[0], Use::Mounted { device: name, at });
    assert!(found.reasons()[0].contains("is mounted at"));
}

/// The host's own sysfs and procfs, with everything else below a directory of the test: settings
/// are the kernel's, the journal is the test's.
#[test]
fn settings_of_a_loop_device_are_changed_and_undone() {
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
    // More than a loop device has without a scheduler (128), and not what the kernel chooses with
    // one (256): it comes back if it was noted, and not by itself.
    let requests = format!("/sys/block/{name}/queue/nr_requests");
    let has_requests = has_scheduler && fs::write(&requests, "200").is_ok();
    let workload = Some(Workload::Iops);
    let named = vec![name.clone()];
    let report = diagnose(&root, &Expectations { workload, named, ..Expectations::default() });
    assert_eq!(report.host.disks.join(","), name);
    let mut changes = report.safe_changes();
    changes.retain(|change| change.file.contains(&name));
    assert_eq!(changes.len(), 1 + usize::from(has_scheduler), "{changes:?}");

    let outcomes = apply(&root, &changes, true).expect("it can");
    assert!(!outcomes.iter().any(Outcome::is_failure), "{outcomes:?}");
    assert_eq!(root.read(&read_ahead).expect("it is there"), "16");
    if has_scheduler {
        assert!(root.read(&scheduler).expect("it is there").contains("[none]"));
    }
    let outcomes = undo(&root).expect("it can");
    assert!(!outcomes.iter().any(Outcome::is_failure), "{outcomes:?}");
    assert_eq!(root.read(&read_ahead).expect("it is there"), "128");
    if has_scheduler {
        assert!(root.read(&scheduler).expect("it is there").contains("[mq-deadline]"));
    }
    if has_requests {
        assert_eq!(root.read(&requests).expect("it is there"), "200");
    }
    // The kernel has the last word on a value that it does not take.
    let refused = Change { file: scheduler, before: String::new(), value: "nonsense".to_owned() };
    assert!(apply(&root, &[refused], false).expect("it has a journal")[0].is_failure());
    undo(&root).expect("there is nothing to give back");
}
