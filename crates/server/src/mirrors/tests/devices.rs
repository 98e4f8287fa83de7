//! Tests of data and log devices that fail or change, on a running server or across a restart.

use std::cell::Cell;
use std::time::Duration;

use flagstone_runtime::task::yield_now;
use flagstone_runtime::{block_on, time};

use super::*;

/// A node whose device lost its replica reports its traces, and creates no other replica over it
/// without confirmation.
#[test]
fn shrunken_device_is_not_overwritten() {
    const SIZE: u64 = 64 << 20;
    block_on(async {
        let file = file(SIZE);
        let begin = || Node::alone((path(&file), None));
        let node = begin().await;
        node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        node.serves().await;
        write(&node.mirrored.device(), 4096, 7).await.unwrap();
        node.stop().await;

        cut(&file, SIZE - 8192);
        let node = begin().await;
        let missing = node.mirrored.missing().expect("its log begins there still");
        for part in ["it has become smaller", "64 MiB or more", "(67100672 bytes)", "replica"] {
            assert!(missing.contains(part), "no `{part}`: {missing}");
        }
        assert_eq!(node.access(), AnaState::INACCESSIBLE);
        let before = std::fs::read(file.path()).unwrap();
        for role in [ReplicaRole::Source, ReplicaRole::Target] {
            for dry_run in [true, false] {
                let refused = node.mirrored.create(role, false, dry_run).await;
                let Err(CreateError::Refused(why)) = refused else { panic!("{refused:?}") };
                assert!(why.contains(&*missing) && why.contains("Nothing was changed"), "{why}");
            }
        }
        assert!(std::fs::read(file.path()).unwrap() == before, "something was written");
        node.stop().await;

        // Enlarging it would not restore the lost end. `new_volume` keeps the remaining data.
        let node = begin().await;
        node.mirrored.create(ReplicaRole::Source, true, false).await.unwrap();
        assert_eq!(node.mirrored.missing(), None);
        node.serves().await;
        assert_eq!(read(&node.mirrored.device(), 4096).await, Some(7));
        node.mirrored.end().await;
    })
    .unwrap();
}

/// A separate log shows that its replica is missing: the device was replaced by an empty or a
/// larger one. With the original device everything works.
#[test]
fn log_detects_exchanged_device() {
    const SIZE: u64 = 64 << 20;
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        for name in ["own", "empty", "larger"] {
            std::fs::File::create(path(name)).unwrap().set_len(SIZE).unwrap();
        }
        let log = path("log");
        let begin = async |name: &str| {
            let device = path(name);
            Node::alone((&device, Some(&log))).await
        };
        let node = begin("own").await;
        node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        node.serves().await;
        node.stop().await;
        std::fs::copy(path("own"), path("larger")).unwrap();
        let larger = std::fs::OpenOptions::new().write(true).open(path("larger")).unwrap();
        // Not a multiple of any size that is probed.
        larger.set_len((1 << 40) + 12_288 + 4096 * 77_777).unwrap();
        let before = std::fs::read(&log).unwrap();
        for name in ["empty", "larger"] {
            let node = begin(name).await;
            let missing = node.mirrored.missing().expect("its log is there");
            assert!(missing.contains(&log) && missing.contains("another device"), "{missing}");
            let refused = node.mirrored.create(ReplicaRole::Source, false, false).await;
            assert!(matches!(refused, Err(CreateError::Refused(_))), "{refused:?}");
            node.stop().await;
            assert!(std::fs::read(&log).unwrap() == before, "the log was written to");
        }
        let node = begin("own").await;
        assert_eq!(node.mirrored.missing(), None);
        node.serves().await;
        node.mirrored.end().await;
    })
    .unwrap();
}

/// Wherever the log file is truncated, all blocks count as out of sync, including blocks that the
/// rest does not name, and the volume is served.
#[test]
fn truncated_log_counts_as_lost() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (device, log) = (path("device"), path("log"));
        let begin = || Node::alone((&device, Some(&log)));
        let make = async || {
            let _ = std::fs::remove_file(&log);
            // Large enough for several bitmap pages.
            std::fs::File::create(&device).unwrap().set_len(5 << 30).unwrap();
            let node = begin().await;
            node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
            let whole = node.mirrored.device().geometry().size_bytes.next_multiple_of(64 << 10);
            write(&node.mirrored.device(), 4096, 7).await.unwrap();
            node.stop().await;
            whole
        };
        let whole = make().await;
        let large = std::fs::metadata(&log).unwrap().len();
        for left in [large - 1, large - 4096, 5 * 4096, 2 * 4096 + 1, 4096, 100, 0] {
            make().await;
            let file = std::fs::OpenOptions::new().write(true).open(&log).unwrap();
            file.set_len(left).unwrap();
            let node = begin().await;
            assert_eq!(node.mirrored.missing(), None, "{left} B are left");
            node.serves().await;
            let status = node.mirrored.mirror().unwrap().status().peers[0];
            assert_eq!(status.out_of_sync_bytes, whole, "{left} B are left");
            assert_eq!(file.metadata().unwrap().len(), large);
            assert_eq!(read(&node.mirrored.device(), 4096).await, Some(7));
            node.stop().await;
        }
    })
    .unwrap();
}

/// Other data is kept, and a device cannot be enlarged from here: the volume is not served and
/// reports why, but the server starts.
#[test]
fn undersized_log_with_other_data_blocks_its_volume() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (device, log) = (path("device"), path("log"));
        std::fs::File::create(&device).unwrap().set_len(64 << 20).unwrap();
        let begin = |log: String| {
            let device = device.clone();
            async move { Node::alone((&device, Some(&log))).await }
        };
        let node = begin(log.clone()).await;
        node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        write(&node.mirrored.device(), 4096, 7).await.unwrap();
        node.stop().await;
        let own = std::fs::read(&log).unwrap();
        let table = b"/dev/sda1 / ext4 defaults 0 1\n".to_vec();
        let mut others = own[..8192].to_vec();
        // Invalid checksum and magic: not the start of a log any more.
        others[4096..].fill(b'x');
        for precious in [table, others] {
            std::fs::write(&log, &precious).unwrap();
            let node = begin(log.clone()).await;
            let missing = node.mirrored.missing().expect("it is not to be overwritten");
            for part in [&log, "`intent_log`", "is no log", "correct the configuration"] {
                assert!(missing.contains(part), "no `{part}`: {missing}");
            }
            assert!(node.mirrored.is_without_log() && node.mirrored.mirror().is_none());
            assert_eq!(node.access(), AnaState::INACCESSIBLE);
            for role in [ReplicaRole::Source, ReplicaRole::Target] {
                assert!(node.mirrored.create(role, true, false).await.is_err());
            }
            node.stop().await;
            assert!(std::fs::read(&log).unwrap() == precious, "it was written to");
        }
        let node = begin("memory:8KiB".to_owned()).await;
        let missing = node.mirrored.missing().expect("it has no room");
        assert!(missing.contains("make it larger") && missing.contains("8 KiB"), "{missing}");
        assert_eq!(node.access(), AnaState::INACCESSIBLE);
        node.stop().await;
        // The file is brought back while the server runs.
        std::fs::write(&log, b"# notes").unwrap();
        let node = begin(log.clone()).await;
        assert!(node.mirrored.is_without_log());
        std::fs::write(&log, &own).unwrap();
        node.serves().await;
        assert_eq!(node.mirrored.missing(), None);
        assert_eq!(read(&node.mirrored.device(), 4096).await, Some(7));
        node.mirrored.end().await;
    })
    .unwrap();
}

/// The log of a serving volume moves to a new file and onto the data device. With the old line in
/// the configuration the volume is not served, and nothing is lost; with the new one it is.
#[test]
fn log_moves_while_hosts_are_served() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (device, old, new) = (path("device"), path("old"), path("new"));
        std::fs::File::create(&device).unwrap().set_len(64 << 20).unwrap();
        let begin = async |log: Option<&str>| Node::alone((&device, log)).await;
        let spec = |text: &str| Some(text.parse::<DeviceSpec>().unwrap());
        let node = begin(Some(&old)).await;
        node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        write(&node.mirrored.device(), 4096, 7).await.unwrap();
        let dry = node.mirrored.move_log(spec(&new), true).await.unwrap();
        assert!(!dry.already && !std::path::Path::new(&new).exists(), "a dry run");
        let (mover, to) = (node.mirrored.clone(), spec(&new));
        let moving = spawn(async move { mover.move_log(to, false).await });
        yield_now().await;
        let mirror = node.mirrored.mirror().unwrap();
        let refused = node.mirrored.resize(&mirror, mirror.usable_bytes()).await.unwrap_err();
        assert!(refused.contains("the log is being moved"), "{refused}");
        drop(mirror);
        let moved = moving.await.unwrap().unwrap();
        assert_eq!((&moved.from, &moved.to), (&old, &new));
        assert!(moved.configure.contains(&format!("intent_log = {new:?}")), "{}", moved.configure);
        assert!(node.mirrored.move_log(spec(&new), false).await.unwrap().already);
        write(&node.mirrored.device(), 1 << 20, 8).await.unwrap();
        node.stop().await;

        // The operator may have truncated or deleted the old file, or the volume has grown since.
        let whole = std::fs::metadata(&old).unwrap().len();
        for left in [Some(whole), Some(whole - 4096), Some(100), None] {
            match left {
                Some(left) => {
                    std::fs::OpenOptions::new().write(true).open(&old).unwrap().set_len(left)
                }
                None => std::fs::remove_file(&old),
            }
            .unwrap();
            let node = begin(Some(&old)).await;
            let missing = node.mirrored.missing().expect("its log is elsewhere");
            for part in ["was moved from", &old, &new, "set `intent_log = "] {
                assert!(missing.contains(part), "no `{part}`: {missing}");
            }
            assert!(node.mirrored.is_without_log() && node.access() == AnaState::INACCESSIBLE);
            assert_eq!(std::fs::metadata(&old).ok().map(|file| file.len()), left);
            node.stop().await;
        }

        let node = begin(Some(&new)).await;
        node.serves().await;
        assert_eq!(node.mirrored.mirror().unwrap().log_lost(), None);
        assert_eq!(read(&node.mirrored.device(), 1 << 20).await, Some(8));
        let precious = path("precious");
        // Also behind a first MiB without data, as a disk with one late partition has it.
        for (zeroes, found) in [(0, "byte 0"), (2 << 20, "byte 2097152")] {
            std::fs::write(&precious, [vec![0; zeroes], vec![b'x'; 1 << 20]].concat()).unwrap();
            for dry_run in [true, false] {
                let refused = node.mirrored.move_log(spec(&precious), dry_run).await;
                let Err(CreateError::Refused(why)) = refused else { panic!("{refused:?}") };
                assert!(why.contains("which is no log") && why.contains(found), "{why}");
            }
        }
        let moved = node.mirrored.move_log(None, false).await.unwrap();
        assert!(moved.configure.starts_with("remove `intent_log`"), "{}", moved.configure);
        node.stop().await;

        let node = begin(Some(&new)).await;
        let missing = node.mirrored.missing().expect("its log is on the data device");
        assert!(missing.contains("remove `intent_log`"), "{missing}");
        node.stop().await;
        let node = begin(None).await;
        node.serves().await;
        assert_eq!(node.mirrored.mirror().unwrap().log_lost(), None);
        node.stop().await;

        // An existing empty file replaces a log that was lost.
        std::fs::File::create(&old).unwrap();
        let node = begin(Some(&old)).await;
        assert!(node.mirrored.mirror().unwrap().log_lost().is_some());
        node.mirrored.end().await;
    })
    .unwrap();
}

/// `intent_log` names a large enough device with other data: the data is kept, the volume is not
/// served and reports the data and its place, and the former log stays valid. A zeroed device is a
/// lost log.
#[test]
fn opening_replica_does_not_overwrite_other_data() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (device, log, other) = (path("device"), path("log"), path("other"));
        std::fs::File::create(&device).unwrap().set_len(64 << 20).unwrap();
        let begin = |log: &str| {
            let (device, log) = (device.clone(), log.to_owned());
            async move { Node::alone((&device, Some(&log))).await }
        };
        let node = begin(&log).await;
        node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        write(&node.mirrored.device(), 4096, 7).await.unwrap();
        node.stop().await;
        let replica = std::fs::read(&device).unwrap();
        let name_of = |log: &str| std::fs::read(log).unwrap()[24..40].to_vec();
        let own = name_of(&log);
        for (at, bytes, found) in [
            (0, &b"# notes"[..], "it is not zero from byte 0 on"),
            (70_000, b"data", "it is not zero from byte 70000 on"),
            (0, b"XFSB", "the signature of xfs at byte 0"),
            (4086, b"SWAPSPACE2", "the signature of swap at byte 4086"),
            (0x1_0040, b"_BHRfS_M", "the signature of btrfs at byte 65600"),
            (512, b"EFI PART", "the signature of GPT at byte 512"),
            // Regression: data behind a first MiB of zeroes was overwritten.
            (3 << 19, b"data", "byte 1572864"),
        ] {
            let mut precious = vec![0; 2 << 20];
            precious[at..at + bytes.len()].copy_from_slice(bytes);
            std::fs::write(&other, &precious).unwrap();
            let node = begin(&other).await;
            let missing = node.mirrored.missing().expect("it is not to be overwritten");
            let accepted = "the log of this replica, or a zeroed device";
            for part in
                [&other, "`intent_log` of volume `db`", found, accepted, "correct the", "remove it"]
            {
                assert!(missing.contains(part), "no `{part}`: {missing}");
            }
            assert!(node.mirrored.is_without_log() && node.mirrored.mirror().is_none());
            assert_eq!(node.access(), AnaState::INACCESSIBLE);
            for role in [ReplicaRole::Source, ReplicaRole::Target] {
                assert!(node.mirrored.create(role, true, false).await.is_err());
            }
            node.stop().await;
            assert!(std::fs::read(&other).unwrap() == precious, "it was written to");
            assert!(std::fs::read(&device).unwrap() == replica, "the replica was changed");
        }
        let node = begin(&log).await;
        assert_eq!(node.mirrored.missing(), None);
        node.stop().await;
        assert_eq!(name_of(&log), own, "the log is kept");
        std::fs::write(&other, vec![0; 2 << 20]).unwrap();
        let node = begin(&other).await;
        assert_eq!(node.mirrored.missing(), None);
        node.serves().await;
        let bytes = node.mirrored.device().geometry().size_bytes.next_multiple_of(64 << 10);
        let status = node.mirrored.mirror().unwrap().status().peers[0];
        assert_eq!(status.out_of_sync_bytes, bytes, "the log is created again");
        assert_eq!(read(&node.mirrored.device(), 4096).await, Some(7));
        node.mirrored.end().await;
    })
    .unwrap();
}

/// A target whose flush failed is closed, reopened and resynchronized on a running server, and can
/// then take over.
#[test]
fn target_with_failed_flush_is_reopened() {
    block_on(async {
        let files = [(); 2].map(|()| file(64 << 20));
        let paths = files.each_ref().map(path);
        let nodes = two_nodes_on(paths).await;
        mirror(&nodes).await;
        let [a, b] = nodes;
        let hosts = [&a, &b].map(|node| node.mirrored.device());
        write(&hosts[0], 8192, 1).await.unwrap();
        let control = b.fails_on(paths[1]).await;
        control.fail_next_flush();
        assert!(b.mirrored.leg.flush().await.is_err());
        assert!(b.mirrored.has_failed_flush());
        write(&hosts[0], 4096, 2).await.unwrap();
        eventually("it is opened again", || b.mirrored.reopens() == 1).await;
        a.is_in_sync().await;
        assert!(!b.mirrored.has_failed_flush() && b.mirrored.reopening().is_none());
        assert!(!b.mirrored.mirror().unwrap().is_unverified(), "a resync has ended");
        b.mirrored.mirror().unwrap().switchover(0).await.unwrap();
        eventually("the other serves", || b.access() == AnaState::OPTIMIZED).await;
        for (offset, byte) in [(8192, 1), (4096, 2)] {
            assert_eq!(read(&hosts[1], offset).await, Some(byte), "at {offset}");
        }
        a.mirrored.end().await;
        b.mirrored.end().await;
    })
    .unwrap();
}

/// The delete is refused with advice, and the replica returns.
#[test]
fn reopening_replica_cannot_be_deleted() {
    block_on(async {
        let files = [(); 2].map(|()| file(64 << 20));
        let paths = files.each_ref().map(path);
        let nodes = two_nodes_on(paths).await;
        mirror(&nodes).await;
        let [a, b] = nodes;
        let control = b.fails_on(paths[1]).await;
        control.fail_next_flush();
        assert!(b.mirrored.leg.flush().await.is_err());
        let refused = async |part: &str| {
            for dry_run in [true, false] {
                let said = b.mirrored.delete(true, dry_run).await;
                let Err(CreateError::Refused(why)) = said else { panic!("{said:?}") };
                assert!(why.contains(part) && why.contains("can be deleted when it"), "{why}");
            }
        };
        refused("a flush of the data or log device of node-b").await;
        eventually("it is closed", || b.mirrored.has_ended()).await;
        refused("is being reopened").await;
        eventually("it is opened again", || b.mirrored.reopens() == 1).await;
        a.is_in_sync().await;
        b.mirrored.delete(false, false).await.unwrap();
        assert!(b.mirrored.mirror().is_none());
        a.mirrored.end().await;
    })
    .unwrap();
}

/// Without a peer nothing replaces the data that a failed flush lost, so the source is not
/// reopened.
/// Regression: the server exited with status 0 although the only copy had not been flushed.
#[test]
fn failed_flush_at_the_end_is_an_error() {
    block_on(async {
        let file = file(64 << 20);
        let path = path(&file);
        let node = Node::alone((path, Some("memory:1MiB"))).await;
        node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        node.serves().await;
        write(&node.mirrored.device(), 4096, 1).await.unwrap();
        let control = node.fails_on(path).await;
        control.fail_next_flush();
        let MirrorEnd { undelivered, failure } = node.mirrored.end().await;
        assert_eq!(undelivered, Vec::<String>::new());
        assert!(failure.is_some_and(|failure| failure.starts_with("volume `db`: ")));
    })
    .unwrap();
}

#[test]
fn source_without_peer_is_not_reopened() {
    block_on(async {
        let file = file(64 << 20);
        let path = path(&file);
        let node = Node::alone((path, Some("memory:1MiB"))).await;
        let opened = Rc::new(Cell::new(0));
        let opening = opened.clone();
        node.mirrored.set_reopen(Rc::new(move || {
            opening.set(opening.get() + 1);
            Box::pin(async { panic!("nobody asks for it") })
        }));
        node.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
        node.serves().await;
        let host = node.mirrored.device();
        write(&host, 4096, 1).await.unwrap();
        let control = node.fails_on(path).await;
        control.fail_next_flush();
        assert!(host.flush().await.is_err());
        assert!(write(&host, 4096, 2).await.is_err());
        let mirror = node.mirrored.mirror().unwrap();
        assert!(!mirror.is_idle_target() && !mirror.abandon_target().await);
        // Three checks of the devices.
        time::sleep(Duration::from_millis(3200)).await;
        assert!(write(&host, 4096, 2).await.is_err(), "it is not as if all were well");
        assert_eq!((opened.get(), node.mirrored.reopens()), (0, 0));
        assert!(node.mirrored.has_failed_flush());
        node.mirrored.end().await;
    })
    .unwrap();
}
