//! Backups of a pool's volume in a real S3-compatible server: made, listed, verified, pruned, and
//! restored to a pool and to a file.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use flagstone_tests::bucket::Bucket;
use flagstone_tests::pools::Bed;
use flagstone_tests::server::binary;
use flagstone_tests::tools::{have, run, workspace};
use serde_json::Value;

fn io(bed: &Bed, command: &str) {
    let printed = run("qemu-io", &["-f", "raw", "-c", command, &bed.server.nbd_uri("db")]);
    assert!(!printed.contains("failed"), "{command}: {printed}");
}

fn content(bed: &Bed, export: &str, name: &str) -> Vec<u8> {
    let file = bed.scratch.join(name);
    let path = file.to_str().expect("temporary paths are UTF-8");
    run("nbdcopy", &[&bed.server.nbd_uri(export), path]);
    fs::read(file).expect("it was copied")
}

/// A command without a server.
fn alone(line: &str) -> Output {
    Command::new(binary()).args(line.split(' ')).output().expect("flagstone runs")
}

#[track_caller]
fn succeeds(line: &str) -> String {
    let output = alone(line);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{line}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The pack of the longest content, of those whose names begin with `prefix`.
fn largest_pack(folder: &Path, prefix: &str) -> std::path::PathBuf {
    let mut packs = Vec::new();
    for writer in fs::read_dir(folder).expect("a folder").flatten() {
        for object in fs::read_dir(writer.path()).expect("a folder").flatten() {
            if object.file_name().to_string_lossy().starts_with(prefix) {
                packs.push((object.metadata().expect("a file").len(), object.path()));
            }
        }
    }
    packs.into_iter().max().expect("a pack").1
}

#[test]
fn backups_are_made_verified_pruned_and_restored() {
    if !have("backups", &["qemu-io", "nbdcopy", "nbdinfo"]) {
        return;
    }
    let Some(bucket) = Bucket::start("backups") else { return };
    let (bed, _) = Bed::with_pool();
    let store = bucket.backup_options("zone");
    bed.run("volume create db --pool fast --size 64MiB");
    io(&bed, "write -P 1 0 9M");
    io(&bed, "write -P 7 40M 64k");
    bed.run("snapshot create db@a");
    let a = content(&bed, "db", "a");
    assert!(succeeds(&format!("backup list {store}")).contains("no backups"));
    let refused = bed.refused(&format!("volume backup db@none {store}"));
    assert!(refused.contains("no snapshot `db@none`"), "{refused}");
    let made = bed.run(&format!("volume backup db@a {store}"));
    assert!(made.contains("in full"), "{made}");
    assert!(bed.run(&format!("volume backup db@a {store}")).contains("exists already"));

    io(&bed, "write -P 2 1M 100k");
    io(&bed, "discard 40M 64k");
    bed.run("snapshot create db@b");
    let b = content(&bed, "db", "b");
    let made = bed.run(&format!("volume backup db@b {store} --json"));
    let made: Value = serde_json::from_str(&made).expect("JSON");
    assert!(made["outcome"].as_str().unwrap().contains("since db@a"), "{made:#}");
    let space = |key: &str| made["backup"][key].as_u64().unwrap();
    assert_eq!(space("data_bytes"), 9 << 20);
    let listed = succeeds(&format!("backup list {store}"));
    assert!(listed.contains("db@a") && listed.contains("db@b"), "{listed}");
    let verified = succeeds(&format!("backup verify {store}"));
    assert!(verified.contains("backups: 2; no damage"), "{verified}");
    succeeds(&format!("backup verify {store} db@a --quick"));

    // Without the snapshot of the last backup, everything is stored again, and said so.
    for snapshot in ["a", "b"] {
        bed.run(&format!("snapshot delete db@{snapshot} --yes"));
    }
    bed.run("snapshot create db@c");
    let output = bed.output(&format!("volume backup db@c {store}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.contains("stores everything"), "{errors}");

    let prune = format!("backup prune {store} --volume db --keep 2");
    let shown = succeeds(&format!("{prune} --dry-run"));
    assert!(shown.contains("would remove db@a"), "{shown}");
    assert_eq!(alone(&prune).status.code(), Some(2), "it asks first");
    let pruned = succeeds(&format!("{prune} --yes"));
    assert!(pruned.contains("backups removed: 1"), "{pruned}");
    let verified = succeeds(&format!("backup verify {store}"));
    assert!(verified.contains("backups: 2; no damage"), "{verified}");

    // To a file, without the server.
    let file = bed.scratch.join("b.img");
    let to_file = format!("backup restore {store} db@b --to-file {}", file.display());
    succeeds(&format!("{to_file} --dry-run"));
    assert!(!file.exists());
    succeeds(&to_file);
    assert!(fs::read(&file).expect("a file") == b);
    assert!(b != a);
    assert_eq!(alone(&to_file).status.code(), Some(1), "the file exists");
    // To the pool.
    bed.run(&format!("backup restore {store} db@b restored --pool fast"));
    assert!(content(&bed, "restored", "restored") == b);
    assert!(bed.run("snapshot list restored").contains("restored@b"));

    // A damaged pack is found, and nothing is restored of it.
    let pack = largest_pack(&bucket.folder().join("zone/data"), "pack-");
    let mut bytes = fs::read(&pack).expect("a pack");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&pack, bytes).expect("it can be written");
    let output = alone(&format!("backup verify {store}"));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{printed}");
    assert!(printed.contains("damaged") && printed.contains("affected: db@"), "{printed}");
    fs::remove_file(&file).expect("a file");
    let damaged = if printed.contains("db@b") { "db@b" } else { "db@c" };
    let to_file = format!("backup restore {store} {damaged} --to-file {}", file.display());
    assert_eq!(alone(&to_file).status.code(), Some(3));
    assert!(!file.exists());
    bucket.set_secret("no-secret");
    let output = alone(&format!("backup list {store}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("credentials"), "{errors}");
}

fn key_file(bed: &Bed, name: &str) -> String {
    let file = bed.scratch.join(name);
    succeeds(&format!("key generate {} --volume", file.display()));
    file.to_str().expect("temporary paths are UTF-8").to_owned()
}

/// True if a file below the folder contains `part`.
fn some_file_contains(folder: &Path, part: &[u8]) -> bool {
    fs::read_dir(folder).expect("a folder").flatten().any(|entry| {
        if entry.file_type().expect("a type").is_dir() {
            return some_file_contains(&entry.path(), part);
        }
        let bytes = fs::read(entry.path()).expect("a file");
        bytes.windows(part.len()).any(|window| window == part)
    })
}

#[test]
fn backups_of_an_encrypted_volume_are_encrypted() {
    if !have("backups", &["qemu-io", "nbdcopy", "nbdinfo"]) {
        return;
    }
    let Some(bucket) = Bucket::start("encrypted-backups") else { return };
    let (bed, _) = Bed::with_pool();
    let store = bucket.backup_options("zone");
    let (key, next) = (key_file(&bed, "key"), key_file(&bed, "next"));
    bed.run(&format!("volume create db --pool fast --size 64MiB --encryption-key-file {key}"));
    let secret = bed.scratch.join("secret");
    // Bytes that compression leaves as they are.
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    let canary: Vec<u8> = noise.take(1 << 16).collect();
    fs::write(&secret, &canary).expect("a file");
    io(&bed, &format!("write -s {} 1M 64k", secret.display()));
    bed.run("snapshot create db@a");
    let a = content(&bed, "db", "a");
    assert!(a[1 << 20..][..1 << 16] == canary, "qemu-io wrote the file");

    let refused = bed.refused(&format!("volume backup db@a {store}"));
    assert!(refused.contains("--backup-key-file") && refused.contains("--plaintext"), "{refused}");
    assert!(succeeds(&format!("backup list {store}")).contains("no backups"), "nothing was stored");
    let keyed = format!("{store} --backup-key-file {key}");
    bed.run(&format!("volume backup db@a {keyed}"));
    io(&bed, "write -P 2 1M 100k");
    bed.run("snapshot create db@b");
    let made = bed.run(&format!("volume backup db@b {keyed}"));
    assert!(made.contains("since db@a"), "{made}");
    let listed = succeeds(&format!("backup list {store} --json"));
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!(listed["encrypted"], true, "{listed:#}");
    succeeds(&format!("backup verify {store} --quick"));
    succeeds(&format!("backup verify {keyed}"));
    assert!(!some_file_contains(&bucket.folder().join("zone"), &canary[..64]));

    let file = bed.scratch.join("a.img");
    let to_file =
        |key: &str| format!("backup restore {store} {key} db@a --to-file {}", file.display());
    let output = alone(&to_file("").replace("  ", " "));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("--backup-key-file"), "{errors}");
    let wrong = alone(&format!("backup verify {store} --backup-key-file {next}"));
    let errors = String::from_utf8_lossy(&wrong.stderr);
    assert!(!wrong.status.success() && errors.contains("another key"), "{errors}");
    let change = format!("backup change-key {keyed} --new-key-file {next}");
    succeeds(&format!("{change} --dry-run"));
    succeeds(&change);
    assert!(!alone(&to_file(&format!("--backup-key-file {key}"))).status.success());
    succeeds(&to_file(&format!("--backup-key-file {next}")));
    assert!(fs::read(&file).expect("a file") == a);

    // A prefix is encrypted or not, and --plaintext is a choice.
    let plain = bucket.backup_options("plain");
    bed.run(&format!("volume backup db@b {plain} --plaintext"));
    let refused = bed.refused(&format!("volume backup db@a {plain} --backup-key-file {key}"));
    assert!(refused.contains("not encrypted"), "{refused}");
}

/// A running `flagstone backup serve`, which ends when dropped.
struct Served {
    process: Child,
    uri: String,
}

impl Served {
    fn start(line: &str) -> Served {
        let mut process = Command::new(binary())
            .args(line.split(' '))
            .stdout(Stdio::piped())
            .spawn()
            .expect("flagstone runs");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("it is piped");
        let mut first = BufReader::new(stdout);
        while !line.ends_with("}\n") && first.read_line(&mut line).expect("UTF-8") > 0 {}
        let printed: Value = serde_json::from_str(&line).expect("JSON");
        let uri = printed["uri"].as_str().expect("a text").to_owned();
        Served { process, uri }
    }

    /// Ends it as Ctrl-C does.
    fn stop(mut self) -> Option<i32> {
        let process = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(process, rustix::process::Signal::INT).expect("it runs");
        self.process.wait().expect("it ends").code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn backup_is_served_from_the_store() {
    if !have("backups", &["qemu-io", "nbdcopy", "nbdinfo", "qemu-img"]) {
        return;
    }
    let Some(bucket) = Bucket::start("served-backups") else { return };
    let (bed, _) = Bed::with_pool();
    let store = bucket.backup_options("zone");
    let keyed = format!("{store} --backup-key-file {}", key_file(&bed, "key"));
    bed.run("volume create db --pool fast --size 1GiB");
    io(&bed, "write -P 1 3M 5M");
    io(&bed, "write -P 2 700M 64k");
    bed.run("snapshot create db@a");
    let a = content(&bed, "db", "a");
    bed.run(&format!("volume backup db@a {keyed}"));
    let refused = alone(&format!("backup serve {keyed} db@a --listen 0.0.0.0:0"));
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(
        refused.status.code() == Some(2) && errors.contains("authenticates no client"),
        "{errors}"
    );

    let served = Served::start(&format!("backup serve {keyed} db@a --listen 127.0.0.1:0 --json"));
    let file = bed.scratch.join("copied");
    run("nbdcopy", &[&served.uri, file.to_str().expect("UTF-8")]);
    assert!(fs::read(&file).expect("it was copied") == a);
    let map = run("qemu-img", &["map", "--output=json", &served.uri]);
    let map: Vec<Value> = serde_json::from_str(&map).expect("JSON");
    let data = map.iter().filter(|extent| extent["data"] == true);
    assert_eq!(
        data.map(|extent| extent["length"].as_u64().unwrap()).sum::<u64>(),
        (5 << 20) + (64 << 10)
    );
    let written = Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write 0 4k", &served.uri])
        .output()
        .expect("qemu-io runs");
    let printed = [written.stdout, written.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(!printed.contains("wrote"), "{printed}");

    // A pack that is gone fails the reads that need it, and no other.
    fs::remove_file(largest_pack(&bucket.folder().join("zone/data"), "pack-")).expect("a pack");
    let again = Served::start(&format!("backup serve {keyed} db@a --listen 127.0.0.1:0 --json"));
    let read = |command: &str| {
        let output = Command::new("qemu-io")
            .args(["-r", "-f", "raw", "-c", command, &again.uri])
            .output()
            .expect("qemu-io runs");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    assert!(read("read -P 1 3M 64k").contains("failed"));
    assert!(!read("read -P 2 700M 64k").contains("failed"));
    assert!(!read("read -P 0 0 1M").contains("failed"));
    assert_eq!(served.stop(), Some(0));
    assert_eq!(again.stop(), Some(0));
}

/// A volume with two snapshots and their backups, of which the second is incremental.
fn two_backups(bed: &Bed, create: &str, store: &str) -> [Vec<u8>; 2] {
    bed.run(&format!("volume create db --pool fast --size 600MiB{create}"));
    io(bed, "write -P 1 3M 5M");
    io(bed, "write -P 2 550M 64k");
    bed.run("snapshot create db@a");
    bed.run(&format!("volume backup db@a {store}"));
    io(bed, "write -P 3 4M 100k");
    io(bed, "discard 550M 32k");
    bed.run("snapshot create db@b");
    let made = bed.run(&format!("volume backup db@b {store}"));
    assert!(made.contains("since db@a"), "{made}");
    ["a", "b"].map(|snapshot| {
        bed.run(&format!("volume clone db@{snapshot} view-{snapshot}"));
        content(bed, &format!("view-{snapshot}"), snapshot)
    })
}

#[test]
fn example_tool_restores_without_flagstone() {
    if !have("backups", &["qemu-io", "nbdcopy", "nbdinfo", "python3"]) {
        return;
    }
    let Some(bucket) = Bucket::start("small-tool") else { return };
    for prefix in ["plain", "sealed"] {
        let (bed, _) = Bed::with_pool();
        let key = (prefix == "sealed").then(|| key_file(&bed, "key"));
        let (create, options) = match &key {
            Some(key) => (
                format!(" --encryption-key-file {key}"),
                format!("{} --backup-key-file {key}", bucket.backup_options(prefix)),
            ),
            None => (String::new(), bucket.backup_options(prefix)),
        };
        let contents = two_backups(&bed, &create, &options);
        let folder = bucket.folder().join(prefix);
        let restore = |name: &str, file: &Path, key: Option<&String>| {
            let tool = workspace().join("docs/examples/restore-backup.py");
            let mut command = Command::new("python3");
            command.arg(tool).arg(&folder).arg(name).arg(file).args(key);
            command.output().expect("python3 runs")
        };
        for (name, content) in ["db@a", "db@b"].into_iter().zip(&contents) {
            let file = bed.scratch.join(name);
            let output = restore(name, &file, key.as_ref());
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(fs::read(&file).expect("a file") == *content, "{prefix} {name}");
        }
        let pack = largest_pack(&folder.join("data"), "pack-");
        let mut bytes = fs::read(&pack).expect("a pack");
        bytes[10] ^= 1;
        fs::write(&pack, bytes).expect("it can be written");
        let output = restore("db@a", &bed.scratch.join("damaged"), key.as_ref());
        assert!(!output.status.success(), "{prefix}: a damaged piece was restored");
        if key.is_some() {
            let other = key_file(&bed, "other");
            let output = restore("db@b", &bed.scratch.join("locked"), Some(&other));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && errors.contains("decrypted"), "{errors}");
        }
    }
}

#[test]
fn lost_list_of_backups_is_recovered() {
    if !have("backups", &["qemu-io", "nbdcopy", "nbdinfo"]) {
        return;
    }
    let Some(bucket) = Bucket::start("lost-head") else { return };
    let (bed, _) = Bed::with_pool();
    let store = bucket.backup_options("zone");
    let keyed = format!("{store} --backup-key-file {}", key_file(&bed, "key"));
    let [a, _] = two_backups(&bed, "", &keyed);
    let head = bucket.folder().join("zone/head.json");
    let good = fs::read(&head).expect("a head");
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    for damage in [None, Some(bad)] {
        match damage {
            None => fs::remove_file(&head).expect("it exists"),
            // In place: the server stores the entity tag with the file.
            Some(bad) => fs::write(&head, bad).expect("it can be written"),
        }
        let output = alone(&format!("backup list {store}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{errors}");
        assert!(errors.contains("flagstone backup recover"), "{errors}");
        assert!(!alone(&format!("backup recover {store}")).status.success(), "it needs the key");
        let shown = succeeds(&format!("backup recover {keyed} --dry-run"));
        assert!(shown.contains("would be made again; backups: 2"), "{shown}");
        let made = succeeds(&format!("backup recover {keyed}"));
        assert!(made.contains("made again; backups: 2"), "{made}");
        succeeds(&format!("backup verify {keyed}"));
    }
    let file = bed.scratch.join("a.img");
    succeeds(&format!("backup restore {keyed} db@a --to-file {}", file.display()));
    assert!(fs::read(&file).expect("a file") == a);
    assert!(succeeds(&format!("backup recover {keyed}")).contains("copies stored again: 0"));

    // A volume that is created anew under the name is another one.
    for line in ["volume delete view-a", "volume delete view-b", "snapshot delete db@a"] {
        bed.run(&format!("{line} --yes"));
    }
    bed.run("snapshot delete db@b --yes");
    bed.run("volume delete db --yes");
    bed.run("volume create db --pool fast --size 64MiB");
    bed.run("snapshot create db@a");
    let refused = bed.refused(&format!("volume backup db@a {keyed}"));
    assert!(refused.contains("another volume db") && refused.contains("--separate"), "{refused}");
    bed.run(&format!("volume backup db@a {keyed} --separate"));
    let output = alone(&format!("backup verify {keyed} db@a"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("several snapshots"), "{errors}");
}

/// Reads fail while the store is down or has another object, and succeed when it is back.
#[test]
fn served_backup_survives_an_outage() {
    if !have("backups", &["qemu-io", "nbdcopy", "nbdinfo"]) {
        return;
    }
    let Some(mut bucket) = Bucket::start("served-outage") else { return };
    let (bed, _) = Bed::with_pool();
    let store = bucket.backup_options("zone");
    two_backups(&bed, "", &store);
    let served = Served::start(&format!("backup serve {store} db@a --listen 127.0.0.1:0 --json"));
    let read = |command: &str| {
        let output = Command::new("qemu-io")
            .args(["-r", "-f", "raw", "-c", command, &served.uri])
            .output()
            .expect("qemu-io runs");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    bucket.kill();
    let down = read("read -P 1 3M 64k");
    assert!(down.contains("Input/output error"), "{down}");
    bucket.run();
    let pack = largest_pack(&bucket.folder().join("zone/data"), "pack-");
    let good = fs::read(&pack).expect("a pack");
    for wrong in [vec![0; good.len()], good[..1].to_vec()] {
        fs::write(&pack, wrong).expect("it can be written");
        let failed = read("read -P 1 3M 64k");
        assert!(failed.contains("Input/output error"), "{failed}");
    }
    fs::write(&pack, &good).expect("it can be written");
    let whole = read("read -P 1 3M 64k");
    assert!(whole.contains("read 65536") && !whole.contains("failed"), "{whole}");
    assert_eq!(served.stop(), Some(0));
}

/// The download of the second piece fails after the first one was sent: its place was a hole.
#[test]
fn failed_download_fails_a_restore_to_a_pool() {
    if !have("backups", &["qemu-io"]) {
        return;
    }
    let Some(bucket) = Bucket::start("backup-damage") else { return };
    let (bed, _) = Bed::with_pool();
    let store = bucket.backup_options("zone");
    bed.run("volume create db --pool fast --size 1GiB");
    io(&bed, "write -P 1 0 4k");
    io(&bed, "write -P 7 600M 64k");
    bed.run("snapshot create db@a");
    bed.run(&format!("volume backup db@a {store}"));
    // The first pack of the second range of 512 MiB.
    let pack = largest_pack(&bucket.folder().join("zone/data"), "pack-00000128");
    let good = fs::read(&pack).expect("a pack");
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    fs::write(&pack, bad).expect("it can be written");
    let restore = format!("backup restore {store} db@a restored --pool fast");
    let output = bed.output(&restore);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("is damaged") && errors.contains("is not served"), "{errors}");
    fs::write(&pack, good).expect("it can be written");
    bed.run(&restore);
}

#[test]
fn wrong_store_options_are_refused() {
    for (options, part) in [
        ("s3://records/zone", "needs --region"),
        ("az://records/zone", "needs --account"),
        ("gs://records --region x", "--region has no effect"),
        ("file:///records", "write s3://BUCKET/PREFIX"),
        ("s3://records --endpoint host", "--endpoint: write https://HOST"),
        ("s3://records --endpoint http://[::1] --store-ca-file x", "--store-ca-file has no effect"),
    ] {
        let output = alone(&format!("backup list {options}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options}: {errors}");
        assert!(errors.contains(part), "{options}: {errors}");
    }
    let output = alone("backup prune s3://records --endpoint http://[::1] --keep 3");
    assert_eq!(output.status.code(), Some(2), "--keep needs --volume");
}
