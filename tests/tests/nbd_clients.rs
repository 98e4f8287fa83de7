//! Independent NBD clients against Flagstone over TCP and over a Unix socket: libnbd's nbdinfo and
//! nbdcopy, qemu-img and qemu-io, fio's nbd engine.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::Server;
use flagstone_tests::tools::{have, run, run_refused};
use serde_json::Value;

const SIZE_BYTES: u64 = 32 << 20;

/// Server of one volume, `db`, on a new sparse file, and the folder that holds the file.
fn serve(transport: Transport) -> (Server, Scratch) {
    let scratch = Scratch::new();
    let volume = format!("db={}", scratch.disk("disk", SIZE_BYTES).display());
    let server = match transport {
        Transport::Tcp => Server::start_on(&[&volume], &["nbd://127.0.0.1:0"]),
        Transport::Unix => {
            let listener = format!("nbd+unix://{}", scratch.join("nbd.sock").display());
            Server::start_on(&[&volume], &[&listener])
        }
    };
    (server, scratch)
}

#[derive(Debug, Clone, Copy)]
enum Transport {
    Tcp,
    Unix,
}

const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Unix];

fn path(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

fn assert_same(one: &Path, other: &Path) {
    // Not assert_eq!, which would print megabytes.
    assert!(
        fs::read(one).unwrap() == fs::read(other).unwrap(),
        "{} and {} differ",
        one.display(),
        other.display()
    );
}

#[test]
fn nbdinfo_reports_the_export() {
    if !have("nbdinfo", &["nbdinfo"]) {
        return;
    }
    for transport in TRANSPORTS {
        let (server, _scratch) = serve(transport);
        let text = run("nbdinfo", &["--json", &server.nbd_uri("db")]);
        let info: Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
        assert_eq!(info["protocol"], "newstyle-fixed", "{info:#}");
        assert_eq!(info["structured"], true, "{info:#}");

        let export = &info["exports"][0];
        assert_eq!(export["export-name"], "db", "{info:#}");
        assert_eq!(export["export-size"], SIZE_BYTES, "{info:#}");
        assert_eq!(export["is_read_only"], false, "{info:#}");
        for can in ["flush", "fua", "trim", "zero", "fast_zero", "multi_conn"] {
            assert_eq!(export[format!("can_{can}")], true, "{can}: {info:#}");
        }
        let minimum_bytes = export["block_size_minimum"].as_u64().expect("it is announced");
        let maximum_bytes = export["block_size_maximum"].as_u64().expect("it is announced");
        assert!(minimum_bytes.is_power_of_two() && minimum_bytes <= 4096, "{info:#}");
        assert!(maximum_bytes >= 1 << 20, "{info:#}");
    }
}

/// An image of 10 GiB with data at the start, in the middle and at the end.
#[test]
fn clients_see_holes_of_a_sparse_file() {
    const GIB: u64 = 1 << 30;
    if !have("nbdinfo --map", &["nbdinfo", "nbdcopy", "qemu-img"]) {
        return;
    }
    let scratch = Scratch::new();
    let disk = scratch.disk("disk", 10 * GIB);
    let file = fs::File::options().write(true).open(&disk).unwrap();
    let places = [0, 5 * GIB, 10 * GIB - (64 << 10)];
    for offset in places {
        file.write_all_at(&[7; 64 << 10], offset).unwrap();
    }
    file.sync_all().unwrap();
    let volume = format!("db={}", disk.display());
    let server = Server::start_on(&[&volume], &["nbd://127.0.0.1:0"]);
    let uri = server.nbd_uri("db");
    let map: Value = serde_json::from_str(&run("nbdinfo", &["--map", "--json", &uri])).unwrap();
    let data = |entry: &&Value| entry["type"] == 0;
    let starts = map.as_array().unwrap().iter().filter(data).map(|entry| entry["offset"].as_u64());
    assert_eq!(starts.collect::<Option<Vec<_>>>().unwrap(), places, "{map:#}");
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    let map: Value = serde_json::from_str(&map).unwrap();
    let data = |entry: &&Value| entry["data"] == true;
    let starts = map.as_array().unwrap().iter().filter(data).map(|entry| entry["start"].as_u64());
    assert_eq!(starts.collect::<Option<Vec<_>>>().unwrap(), places, "{map:#}");
    // Reads three pieces, not 10 GiB.
    let copy = scratch.join("copy");
    run("nbdcopy", &[&uri, path(&copy)]);
    let copied = fs::metadata(&copy).unwrap();
    assert_eq!(copied.len(), 10 * GIB);
    assert!(copied.blocks() * 512 < 16 << 20, "{} blocks", copied.blocks());
}

/// libnbd 1.14 takes 200 ms for each export of a list.
#[test]
fn nbdinfo_lists_sixty_exports() {
    if !have("nbdinfo --list", &["nbdinfo"]) {
        return;
    }
    let volumes: Vec<_> = (0..60).map(|number| format!("v{number}=memory:1MiB")).collect();
    let volumes: Vec<_> = volumes.iter().map(String::as_str).collect();
    let server = Server::start_on(&volumes, &["nbd://127.0.0.1:0"]);
    let text = run("nbdinfo", &["--list", "--json", server.address("nbd")]);
    let info: Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
    assert_eq!(info["exports"].as_array().map(Vec::len), Some(60), "{text}");
}

#[test]
fn nbdinfo_lists_exports_and_is_refused_a_missing_one() {
    if !have("nbdinfo --list", &["nbdinfo"]) {
        return;
    }
    let scratch = Scratch::new();
    let volumes = [("db", 16 << 20), ("logs", 8 << 20)]
        .map(|(name, size_bytes)| format!("{name}={}", scratch.disk(name, size_bytes).display()));
    let server = Server::start_on(&volumes.each_ref().map(String::as_str), &["nbd://127.0.0.1:0"]);

    let text = run("nbdinfo", &["--list", "--json", server.address("nbd")]);
    let info: Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
    let mut listed: Vec<_> = info["exports"]
        .as_array()
        .expect("exports are a list")
        .iter()
        .map(|export| (export["export-name"].as_str().unwrap(), export["export-size"].as_u64()))
        .collect();
    listed.sort_unstable();
    assert_eq!(listed, [("db", Some(16 << 20)), ("logs", Some(8 << 20))], "{info:#}");

    run_refused("nbdinfo", &["--json", &server.nbd_uri("nothing")]);
    // The server continues to serve.
    run("nbdinfo", &["--size", &server.nbd_uri("logs")]);
}

/// An export that waits for its device is reported differently from a missing one, and does not
/// break the list of exports.
#[test]
fn pending_export_is_refused_and_others_are_listed() {
    if !have("an export that waits", &["nbdinfo", "qemu-img"]) {
        return;
    }
    // No server listens there.
    let late = "late=nbd://127.0.0.1:1/late";
    let server = Server::start_on(&["db=memory:16MiB", late], &["nbd://127.0.0.1:0"]);
    let text = run("nbdinfo", &["--list", "--json", server.address("nbd")]);
    let info: Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
    let listed = info["exports"].as_array().expect("exports are a list");
    assert!(listed.len() == 1 && listed[0]["export-name"] == "db", "{info:#}");

    let said = run_refused("qemu-img", &["info", &server.nbd_uri("late")]);
    assert!(said.contains("not available yet; try again later"), "{said}");
    let said = run_refused("nbdinfo", &[&server.nbd_uri("late")]);
    assert!(said.contains("late"), "{said}");
    run("nbdinfo", &["--size", &server.nbd_uri("db")]);
}

#[test]
fn nbdcopy_round_trip_returns_every_byte() {
    if !have("nbdcopy", &["nbdcopy"]) {
        return;
    }
    for transport in TRANSPORTS {
        let (server, scratch) = serve(transport);
        let uri = server.nbd_uri("db");
        let source = scratch.pattern("source", SIZE_BYTES);
        let copy = scratch.join("copy");
        run("nbdcopy", &["--flush", "--connections=4", "--requests=64", path(&source), &uri]);
        run("nbdcopy", &["--connections=4", &uri, path(&copy)]);
        assert_same(&source, &copy);
        assert_same(&source, &scratch.join("disk"));
    }
}

#[test]
fn data_flushed_by_nbdcopy_survives_a_kill() {
    if !have("nbdcopy, kill", &["nbdcopy"]) {
        return;
    }
    for transport in TRANSPORTS {
        let (mut server, scratch) = serve(transport);
        let source = scratch.pattern("source", SIZE_BYTES);
        run("nbdcopy", &["--flush", path(&source), &server.nbd_uri("db")]);
        server.restart();
        let copy = scratch.join("copy");
        run("nbdcopy", &[&server.nbd_uri("db"), path(&copy)]);
        assert_same(&source, &copy);
        let status = server.terminate();
        assert!(status.success(), "{status}\n{}", server.output());
    }
}

#[test]
fn qemu_img_converts_and_compares() {
    if !have("qemu-img", &["qemu-img", "qemu-io"]) {
        return;
    }
    for transport in TRANSPORTS {
        let (server, scratch) = serve(transport);
        let uri = server.nbd_uri("db");
        let info: Value =
            serde_json::from_str(&run("qemu-img", &["info", "--output=json", &uri])).unwrap();
        assert_eq!(info["virtual-size"], SIZE_BYTES, "{info:#}");

        // An image with data only in its middle: the rest is written as zeroes.
        let raw = scratch.join("raw");
        let pattern = scratch.pattern("pattern", SIZE_BYTES / 4);
        let mut image = vec![0; SIZE_BYTES as usize / 4];
        image.extend(fs::read(pattern).unwrap());
        image.resize(SIZE_BYTES as usize, 0);
        fs::write(&raw, image).unwrap();
        let qcow2 = scratch.join("qcow2");
        run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", path(&raw), path(&qcow2)]);

        // Over old data, so that missing zeroes would be detected.
        run("qemu-io", &["-f", "raw", "-c", &format!("write -P 0x5a 0 {SIZE_BYTES}"), &uri]);
        run("qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", path(&qcow2), &uri]);
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", path(&raw), &uri]);

        let back = scratch.join("back");
        run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, path(&back)]);
        assert_same(&raw, &back);
        run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    }
}

/// Runs qemu-io commands on the volume in order; each `read -P` checks the data.
fn qemu_io(uri: &str, commands: &[&str]) {
    let arguments: Vec<&str> = ["-f", "raw", "-d", "unmap"]
        .into_iter()
        .chain(commands.iter().flat_map(|command| ["-c", *command]))
        .chain([uri])
        .collect();
    let said = run("qemu-io", &arguments);
    assert!(!said.contains("failed"), "{said}");
}

#[test]
fn qemu_io_patterns_zeroes_discards_and_durable_writes() {
    if !have("qemu-io", &["qemu-io"]) {
        return;
    }
    for transport in TRANSPORTS {
        let (server, _scratch) = serve(transport);
        let uri = server.nbd_uri("db");
        qemu_io(
            &uri,
            &[
                "write -P 0xaa 0 1M",
                "write -P 0xbb 1M 1M",
                "read -P 0xaa 0 1M",
                "read -P 0xbb 1M 1M",
                // Zeroes, with and without permission to unmap; the neighbors keep their data.
                "write -z 64k 64k",
                "write -z -u 256k 64k",
                "read -P 0xaa 0 64k",
                "read -P 0 64k 64k",
                "read -P 0xaa 128k 128k",
                "read -P 0 256k 64k",
                "read -P 0xaa 320k 704k",
                // Not on block boundaries.
                "write -P 0xcc 1000 3001",
                "read -P 0xaa 0 1000",
                "read -P 0xcc 1000 3001",
                "read -P 0xaa 4001 61535",
                // Durable writes, and a flush.
                "write -f -P 0xdd 2M 64k",
                "write -f -z 2113536 64k",
                "flush",
                "read -P 0xdd 2M 16k",
                "read -P 0 2113536 64k",
                // The content of a discarded range is undefined; the content around it is kept.
                "discard 1M 512k",
                "read -P 0xaa 320k 704k",
                "read -P 0xbb 1536k 512k",
                "write -P 0xee 1M 512k",
                "read -P 0xee 1M 512k",
                // The last block, and several requests at once.
                "write -P 0x11 33550336 4k",
                "read -P 0x11 33550336 4k",
                "aio_write -P 0x21 4M 64k",
                "aio_write -P 0x22 4160k 64k",
                "aio_write -P 0x23 4224k 64k",
                "aio_flush",
                "read -P 0x21 4M 64k",
                "read -P 0x22 4160k 64k",
                "read -P 0x23 4224k 64k",
            ],
        );
        // Written by one client, read by another.
        qemu_io(&uri, &["read -P 0xee 1M 512k", "read -P 0x23 4224k 64k"]);
        // qemu-io must detect wrong data, or the reads above would prove nothing.
        run_refused("qemu-io", &["-f", "raw", "-c", "read -P 0x99 1M 4k", &uri]);
    }
}

#[test]
fn fio_verifies_checksums_over_its_nbd_engine() {
    if !have("fio's nbd engine", &["fio"]) {
        return;
    }
    if !run("fio", &["--enghelp"]).lines().any(|engine| engine.trim() == "nbd") {
        return flagstone_tests::tools::skip("fio's nbd engine", "this fio is built without it");
    }
    for transport in TRANSPORTS {
        let (server, scratch) = serve(transport);
        let uri = format!("--uri={}", server.nbd_uri("db"));
        let folder = format!("--aux-path={}", path(scratch.path()));
        let common = [
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            &folder,
            "--thread",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--randrepeat=1",
        ];
        for load in [
            &["--rw=randwrite", "--bs=4k", "--iodepth=32", "--size=16m"][..],
            &["--rw=randwrite", "--bssplit=4k/50:64k/40:1m/10", "--iodepth=16", "--size=32m"],
            // Two connections, each to its own half.
            &[
                "--rw=randwrite",
                "--bs=8k",
                "--iodepth=8",
                "--numjobs=2",
                "--size=16m",
                "--offset_increment=16m",
            ],
            // Flushes among the writes.
            &["--rw=write", "--bs=64k", "--iodepth=1", "--size=4m", "--fsync=8"],
        ] {
            run("fio", &[&common[..], load].concat());
        }
    }
}
