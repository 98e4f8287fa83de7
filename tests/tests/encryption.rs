//! Encryption at rest with the real server and command line: no plaintext and no key on the
//! device, volumes without their key, new keys, and copies of encrypted volumes.

#![allow(clippy::disallowed_methods, reason = "the command line reads a stream from a file")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_tests::bucket::Bucket;
use flagstone_tests::http::get;
use flagstone_tests::pools::Bed;
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{Server, binary};
use flagstone_tests::tools::{have, run};
use serde_json::Value;

/// A repeated text, which compression keeps at least once.
const PATTERN: &[u8] = b"flagstone secret pattern of volume db\n";

fn key(bed: &Bed, name: &str) -> PathBuf {
    let path = bed.scratch.join(name);
    let line = format!("key generate {} --volume", path.display());
    let made = Command::new(binary()).args(line.split(' ')).output().expect("flagstone runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    path
}

/// Writes the pattern at the beginning of a volume.
fn fill(bed: &Bed, volume: &str) {
    let data: Vec<u8> = PATTERN.iter().copied().cycle().take(1 << 20).collect();
    let file = bed.scratch.join("pattern");
    fs::write(&file, data).expect("a file");
    let command = format!("write -s {} 0 1M", file.display());
    let printed = run("qemu-io", &["-f", "raw", "-c", &command, &bed.server.nbd_uri(volume)]);
    assert!(!printed.contains("failed"), "{printed}");
    let printed = run("qemu-io", &["-f", "raw", "-c", "flush", &bed.server.nbd_uri(volume)]);
    assert!(!printed.contains("failed"), "{printed}");
}

/// True if a volume begins with the pattern.
fn is_filled(bed: &Bed, volume: &str) -> bool {
    let file = bed.scratch.join("copy");
    run("nbdcopy", &[&bed.server.nbd_uri(volume), file.to_str().expect("a text")]);
    fs::read(file).expect("it was copied").starts_with(PATTERN)
}

/// True if a part of the device has these bytes. The file is sparse: only a part has data.
fn has(device: &Path, bytes: &[u8]) -> bool {
    let data = fs::read(device).expect("a file");
    data.chunks(4096).zip((0..).step_by(4096)).filter(|(part, _)| *part != [0; 4096]).any(
        |(_, at)| {
            let end = data.len().min(at + 4096 + bytes.len());
            data[at..end].windows(bytes.len()).any(|part| part == bytes)
        },
    )
}

fn key_bytes(path: &Path) -> Vec<u8> {
    let text = fs::read_to_string(path).expect("a key");
    let digits = text.trim().as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("hexadecimal");
    digits.chunks(2).map(|pair| (digit(pair[0]) * 16 + digit(pair[1])) as u8).collect()
}

/// Encryption of a served volume.
fn encryption(bed: &Bed, name: &str) -> Value {
    get(&bed.server.api(), &format!("/v1/volumes/{name}"))["pool"]["encryption"].clone()
}

/// Reason why a volume is not served.
fn reason(bed: &Bed, name: &str) -> Option<String> {
    let pool = bed.pool();
    let unserved = pool["unserved"].as_array().into_iter().flatten();
    let found = unserved.into_iter().find(|volume| volume["name"] == name)?;
    found["reason"].as_str().map(str::to_owned)
}

fn is_locked(bed: &Bed, name: &str) -> bool {
    reason(bed, name).is_some()
}

/// Waits until the server has found a key that is back. It looks every few seconds.
fn until_unlocked(bed: &Bed, name: &str) {
    until("the key is found", || !is_locked(bed, name), || format!("{:?}", reason(bed, name)));
}

/// Sends a snapshot to a file.
fn send(bed: &Bed, snapshot: &str, file: &Path) {
    let output = bed.output(&format!("volume send {snapshot}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(file, output.stdout).expect("a file");
}

/// A pool on a server whose `key_command` prints files of a folder.
fn bed_with_key_command() -> (Bed, PathBuf) {
    let scratch = Scratch::new();
    let keys = scratch.join("keys");
    fs::create_dir(&keys).expect("a folder");
    let script = scratch.join("key-command");
    let text = format!("#!/bin/sh\nexec cat \"{}/$2\"\n", keys.display());
    fs::write(&script, text).expect("a file");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("a mode");
    let file = scratch.join("flagstone.toml");
    let text = format!("[server]\nkey_command = [{script:?}, \"print\"]\n");
    fs::write(&file, text).expect("a file");
    let state = scratch.join("state");
    let own = format!("own={}", scratch.disk("own", 16 << 20).display());
    let listeners = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"];
    let arguments = [file.to_str().expect("UTF-8"), "--state", state.to_str().expect("UTF-8")];
    let bed = Bed { server: Server::start_with(&[&own], &listeners, &arguments), scratch };
    let device = bed.device("a");
    bed.run(&format!("pool create fast {}", device.display()));
    (bed, keys)
}

#[test]
fn key_comes_from_a_command() {
    if !have("encryption", &["qemu-io", "nbdcopy", "nbdinfo"]) {
        return;
    }
    let (mut bed, keys) = bed_with_key_command();
    let refused =
        bed.refused("volume create db --pool fast --size 64MiB --encryption-key-file kms:db");
    assert!(refused.contains("kms:db") && refused.contains("key-command"), "{refused}");
    for name in ["kms:", "kms:-x", "kms:a b"] {
        let mut command = Command::new(binary());
        command.args(["volume", "create", "db", "--pool", "fast", "--size", "64MiB"]);
        command.args(["--encryption-key-file", name, "--api"]).arg(bed.server.api());
        assert_eq!(command.output().expect("flagstone runs").status.code(), Some(1), "{name}");
    }
    fs::rename(key(&bed, "key"), keys.join("db")).expect("renamed");
    bed.run("volume create db --pool fast --size 64MiB --encryption-key-file kms:db");
    fill(&bed, "db");
    assert_eq!(encryption(&bed, "db")["key_file"], "kms:db");
    bed.server.restart();
    assert!(is_filled(&bed, "db"));
    // Without an answer, the volume is locked until there is one.
    fs::rename(keys.join("db"), keys.join("away")).expect("renamed");
    bed.server.restart();
    assert!(is_locked(&bed, "db"));
    fs::rename(keys.join("away"), keys.join("db")).expect("renamed");
    until_unlocked(&bed, "db");
    assert!(is_filled(&bed, "db"));
    // From the command to a file.
    let file = key(&bed, "file");
    bed.run(&format!("volume set db --encryption-key-file {}", file.display()));
    fs::remove_file(keys.join("db")).expect("a key");
    bed.server.restart();
    assert!(is_filled(&bed, "db"));
}

/// Receives a stream from a file.
fn receive(bed: &Bed, options: &str, file: &Path) -> std::process::Output {
    let line = format!("volume receive {options}");
    let stream = fs::File::open(file).expect("a stream");
    let mut command = Command::new(binary());
    command.args(line.split(' ')).arg("--api").arg(bed.server.api());
    command.stdin(stream).output().expect("flagstone runs")
}

#[test]
fn volume_is_encrypted_locked_and_rotated() {
    if !have("encryption", &["qemu-io", "nbdcopy", "nbdinfo"]) {
        return;
    }
    let (mut bed, device) = Bed::with_pool();
    let first = key(&bed, "first");
    bed.run(&format!(
        "volume create db --pool fast --size 64MiB --compression lz4 --encryption-key-file {}",
        first.display()
    ));
    fill(&bed, "db");
    bed.run("snapshot create db@a");
    bed.run("volume clone db@a copy");
    assert!(is_filled(&bed, "copy"));
    bed.server.terminate();
    assert!(!has(&device, PATTERN), "the device has plaintext");
    assert!(!has(&device, &key_bytes(&first)), "the device has the key");
    assert!(has(&device, b"copy"), "names are found, so the search works");

    // Without its key.
    let away = bed.scratch.join("away");
    fs::rename(&first, &away).expect("renamed");
    bed.server.restart();
    assert!(is_locked(&bed, "db") && is_locked(&bed, "copy"));
    let missing = format!("key file {}: No such file", first.display());
    assert!(reason(&bed, "db").expect("a reason").contains(&missing));
    for line in ["volume show db", "pool reopen fast"] {
        let refused = bed.refused(line);
        assert!(refused.contains(&missing) && refused.contains("put the key back"), "{refused}");
    }
    let shown = bed.run("pool status fast");
    assert!(shown.contains("db") && shown.contains(&missing), "{shown}");
    let output = Command::new("nbdinfo").arg(bed.server.nbd_uri("db")).output().expect("nbdinfo");
    assert!(!output.status.success(), "a locked volume is not served");
    bed.run("snapshot create db@b");
    bed.run("snapshot diff db@a db@b");
    for line in ["volume clone db@b other", "volume send db@a"] {
        let refused = bed.refused(line);
        assert!(refused.contains("key"), "{line}: {refused}");
    }

    // The key comes back, and no order is needed.
    fs::rename(&away, &first).expect("renamed");
    until_unlocked(&bed, "db");
    until_unlocked(&bed, "copy");
    assert!(is_filled(&bed, "db") && is_filled(&bed, "copy"));

    // Another key. The clone has its own wrapping.
    let second = key(&bed, "second");
    let set = bed.run(&format!("volume set db --encryption-key-file {}", second.display()));
    assert!(set.contains("copy") && set.contains("former key"), "{set}");
    bed.server.terminate();
    fs::rename(&first, &away).expect("renamed");
    bed.server.restart();
    assert!(!is_locked(&bed, "db") && is_locked(&bed, "copy"));
    assert!(is_filled(&bed, "db"));
    fs::rename(&away, &first).expect("renamed");
    until_unlocked(&bed, "copy");

    // A volume and its key are erased.
    bed.run("volume delete copy --yes");
    fs::remove_file(&second).expect("removed");
    bed.server.terminate();
    bed.server.restart();
    assert!(is_locked(&bed, "db"));
    let refused = bed.refused(&format!("volume set db --encryption-key-file {}", first.display()));
    assert!(refused.contains("not the key"), "{refused}");
    for snapshot in ["a", "b"] {
        bed.run(&format!("snapshot delete db@{snapshot} --yes"));
    }
    bed.run("volume delete db --yes");
}

#[test]
fn received_and_restored_volumes_are_encrypted() {
    if !have("encryption", &["qemu-io", "nbdcopy", "nbdinfo"]) {
        return;
    }
    let (mut bed, device) = Bed::with_pool();
    let (first, second) = (key(&bed, "first"), key(&bed, "second"));
    let with = |path: &Path| format!("--encryption-key-file {}", path.display());
    bed.run(&format!("volume create db --pool fast --size 16MiB {}", with(&first)));
    fill(&bed, "db");
    bed.run("snapshot create db@a");
    let stream = bed.scratch.join("stream");
    send(&bed, "db@a", &stream);
    let missing = receive(&bed, "to --pool fast --encryption-key-file /missing/key", &stream);
    let errors = String::from_utf8_lossy(&missing.stderr);
    assert!(!missing.status.success() && errors.contains("/missing/key"), "{errors}");
    assert!(bed.refused("volume show to").contains("to"), "nothing was created");
    let received = receive(&bed, &format!("to --pool fast {}", with(&second)), &stream);
    assert!(received.status.success(), "{}", String::from_utf8_lossy(&received.stderr));
    assert!(is_filled(&bed, "to"));
    assert_eq!(encryption(&bed, "to")["key_file"].as_str(), second.to_str());

    let bucket = Bucket::start("encryption");
    if let Some(bucket) = &bucket {
        let store = bucket.backup_options("zone");
        bed.run(&format!("volume backup db@a {store} --plaintext"));
        let restore = format!("backup restore {store} db@a restored --pool fast");
        bed.run(&format!("{restore} --compression lz4 {}", with(&second)));
        assert!(is_filled(&bed, "restored"));
        assert_eq!(encryption(&bed, "restored")["key_file"].as_str(), second.to_str());
        // Never silently without a key, also from encrypted backups.
        let sealed =
            format!("{} --backup-key-file {}", bucket.backup_options("sealed"), first.display());
        bed.run(&format!("volume backup db@a {sealed}"));
        for store in [&store, &sealed] {
            let restore = format!("backup restore {store} db@a plain --pool fast");
            let refused = bed.refused(&restore);
            assert!(refused.contains("encrypted at rest"), "{refused}");
            assert!(bed.refused("volume show plain").contains("plain"), "nothing was created");
        }
        bed.run(&format!("backup restore {sealed} db@a sealed --pool fast {}", with(&second)));
        assert!(is_filled(&bed, "sealed"));
        let asked = format!("backup restore {sealed} db@a plain --pool fast --plaintext --dry-run");
        bed.run(&asked);
    }
    bed.server.terminate();
    assert!(!has(&device, PATTERN), "the device has plaintext");
    fs::remove_file(&first).expect("removed");
    bed.server.restart();
    assert!(is_locked(&bed, "db") && !is_locked(&bed, "to"));
    if let Some(bucket) = &bucket {
        // The key of the original is erased; restored volumes have one of their own.
        assert!(is_filled(&bed, "restored") && is_filled(&bed, "sealed"));
        let refused =
            bed.refused(&format!("volume backup db@a {}", bucket.backup_options("other")));
        assert!(refused.contains("key"), "{refused}");
    }
}
