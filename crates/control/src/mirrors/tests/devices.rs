//! Devices of a node, and of its log, that come back other than they were, or fail, while its server runs
//! or between two of its runs.

use std::cell::Cell;
use std::time::Duration;

use flagstone_runtime::{block_on, time};

use super::*;

/// A node whose device lost its replica says what tells of it, and makes no other over it, neither as
/// source nor as target, without the operator's word.
#[test]
fn a_device_that_became_smaller_is_no_device_without_a_replica() {
    const SIZE: u64 = 64 << 20;
    block_on(async {
        let file = file(SIZE);
        let begin = || Node::alone((path(&file), None));
        let node = begin().await;
        node.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        node.serves().await;
        write(&node.mirrored.device(), 4096, 7).await.unwrap();
        node.stop().await;

        cut(&file, SIZE - 8192);
        let node = begin().await;
        let missing = node.mirrored.missing().expect("its log begins there still");
        for part in ["it has become smaller", "64MiB or more", "65528KiB", "replica"] {
            assert!(missing.contains(part), "no `{part}`: {missing}");
        }
        assert_eq!(node.access(), AnaState::INACCESSIBLE);
        let before = std::fs::read(file.path()).unwrap();
        for role in [CreateRole::Source, CreateRole::Target] {
            for dry_run in [true, false] {
                let refused = node.mirrored.create(role, false, dry_run).await;
                let Err(CreateError::Refused(why)) = refused else { panic!("{refused:?}") };
                assert!(why.contains(&*missing) && why.contains("Nothing was changed"), "{why}");
            }
        }
        assert!(std::fs::read(file.path()).unwrap() == before, "something was written");
        node.stop().await;

        // Larger again, it would have lost the end: what was there comes from elsewhere.
        let node = begin().await;
        node.mirrored.create(CreateRole::Source, true, false).await.unwrap();
        assert_eq!(node.mirrored.missing(), None);
        node.serves().await;
        assert_eq!(read(&node.mirrored.device(), 4096).await, Some(7));
        node.mirrored.end().await;
    })
    .unwrap();
}

/// A log on a device of its own tells of its replica when that is not there: an empty device in place
/// of it, or a larger one. The device of before is taken as if nothing had been.
#[test]
fn an_empty_device_in_place_of_a_replica_is_told_by_the_log() {
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
        node.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        node.serves().await;
        node.stop().await;
        std::fs::copy(path("own"), path("larger")).unwrap();
        let larger = std::fs::OpenOptions::new().write(true).open(path("larger")).unwrap();
        // At no multiple of anything that is looked at.
        larger.set_len((1 << 40) + 12_288 + 4096 * 77_777).unwrap();
        let before = std::fs::read(&log).unwrap();
        for name in ["empty", "larger"] {
            let node = begin(name).await;
            let missing = node.mirrored.missing().expect("its log is there");
            assert!(missing.contains(&log) && missing.contains("another device"), "{missing}");
            let refused = node.mirrored.create(CreateRole::Source, false, false).await;
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

/// A log whose file was cut off is a lost log, wherever it was cut: all counts as different, also what
/// the part that is left does not name, and the volume is served.
#[test]
fn a_log_that_was_cut_off_is_a_lost_log() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (device, log) = (path("device"), path("log"));
        let begin = || Node::alone((&device, Some(&log)));
        let make = async || {
            let _ = std::fs::remove_file(&log);
            // With several pages of a bitmap.
            std::fs::File::create(&device).unwrap().set_len(5 << 30).unwrap();
            let node = begin().await;
            node.mirrored.create(CreateRole::Source, false, false).await.unwrap();
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
            assert_eq!(status.out_of_date_bytes, whole, "{left} B are left");
            assert_eq!(file.metadata().unwrap().len(), large);
            assert_eq!(read(&node.mirrored.device(), 4096).await, Some(7));
            node.stop().await;
        }
    })
    .unwrap();
}

/// What may be somebody's is left as it is, and a device cannot be made larger from here: the volume is
/// not served and says why, which is no error of the server's start.
#[test]
fn a_log_without_room_that_is_not_for_us_to_make_keeps_its_volume_alone_from_being_served() {
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
        node.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        write(&node.mirrored.device(), 4096, 7).await.unwrap();
        node.stop().await;
        let own = std::fs::read(&log).unwrap();
        let table = b"/dev/sda1 / ext4 defaults 0 1\n".to_vec();
        let mut others = own[..8192].to_vec();
        // Its checksum is wrong then, and it is no log's beginning any more where the magic is.
        others[4096..].fill(b'x');
        for precious in [table, others] {
            std::fs::write(&log, &precious).unwrap();
            let node = begin(log.clone()).await;
            let missing = node.mirrored.missing().expect("it is not to be overwritten");
            for part in [&log, "`bitmap`", "is no log", "mend the configuration"] {
                assert!(missing.contains(part), "no `{part}`: {missing}");
            }
            assert!(node.mirrored.is_without_log() && node.mirrored.mirror().is_none());
            assert_eq!(node.access(), AnaState::INACCESSIBLE);
            for role in [CreateRole::Source, CreateRole::Target] {
                assert!(node.mirrored.create(role, true, false).await.is_err());
            }
            node.stop().await;
            assert!(std::fs::read(&log).unwrap() == precious, "it was written to");
        }
        let node = begin("memory:8KiB".to_owned()).await;
        let missing = node.mirrored.missing().expect("it has no room");
        assert!(missing.contains("make it larger") && missing.contains("8KiB"), "{missing}");
        assert_eq!(node.access(), AnaState::INACCESSIBLE);
        node.stop().await;
        std::fs::write(&log, &own).unwrap();
        let node = begin(log.clone()).await;
        assert_eq!(node.mirrored.missing(), None);
        node.serves().await;
        assert_eq!(read(&node.mirrored.device(), 4096).await, Some(7));
        node.mirrored.end().await;
    })
    .unwrap();
}

/// `bitmap` names something that has room for the log and is none of ours: it is left as it is, the volume
/// is not served and says what was found where, and the log that it had is as good as before. What is zero
/// is a log that was lost.
#[test]
fn what_is_no_log_is_not_overwritten_by_one_when_a_replica_is_opened() {
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
        node.mirrored.create(CreateRole::Source, false, false).await.unwrap();
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
        ] {
            let mut precious = vec![0; 2 << 20];
            precious[at..at + bytes.len()].copy_from_slice(bytes);
            std::fs::write(&other, &precious).unwrap();
            let node = begin(&other).await;
            let missing = node.mirrored.missing().expect("it is not to be overwritten");
            let accepted = "the log of this replica, or a device whose first MiB is zero";
            for part in
                [&other, "`bitmap` of volume `db`", found, accepted, "mend the", "remove it"]
            {
                assert!(missing.contains(part), "no `{part}`: {missing}");
            }
            assert!(node.mirrored.is_without_log() && node.mirrored.mirror().is_none());
            assert_eq!(node.access(), AnaState::INACCESSIBLE);
            for role in [CreateRole::Source, CreateRole::Target] {
                assert!(node.mirrored.create(role, true, false).await.is_err());
            }
            node.stop().await;
            assert!(std::fs::read(&other).unwrap() == precious, "it was written to");
            assert!(std::fs::read(&device).unwrap() == replica, "the replica was changed");
        }
        let node = begin(&log).await;
        assert_eq!(node.mirrored.missing(), None);
        node.stop().await;
        assert_eq!(name_of(&log), own, "it is as good as before, and not made anew");
        std::fs::write(&other, vec![0; 2 << 20]).unwrap();
        let node = begin(&other).await;
        assert_eq!(node.mirrored.missing(), None);
        node.serves().await;
        let bytes = node.mirrored.device().geometry().size_bytes.next_multiple_of(64 << 10);
        let status = node.mirrored.mirror().unwrap().status().peers[0];
        assert_eq!(status.out_of_date_bytes, bytes, "the log is made anew");
        assert_eq!(read(&node.mirrored.device(), 4096).await, Some(7));
        node.mirrored.end().await;
    })
    .unwrap();
}

/// A target whose flush failed is closed, opened and brought up to date while its server runs, and may
/// take over then. After too many times it is left alone.
#[test]
fn a_target_whose_flush_failed_is_opened_again() {
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
        assert!(!b.mirrored.mirror().unwrap().is_doubtful(), "a resync has ended");
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

/// A replica whose devices are being opened again is not half forgotten: the order is refused with when
/// it can be given, and the replica comes back all the same.
#[test]
fn a_replica_that_is_being_opened_again_is_not_deleted_meanwhile() {
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
        refused("a flush of the device of node-b").await;
        eventually("it is closed", || b.mirrored.has_ended()).await;
        refused("is being opened again").await;
        eventually("it is opened again", || b.mirrored.reopens() == 1).await;
        a.is_in_sync().await;
        b.mirrored.delete(false, false).await.unwrap();
        assert!(b.mirrored.mirror().is_none());
        a.mirrored.end().await;
    })
    .unwrap();
}

/// A source that has no peer has nobody who could make up for what a failed flush lost: it is not
/// opened again, and does not look as if all were well.
#[test]
fn a_source_alone_whose_flush_failed_stays_as_it_is() {
    block_on(async {
        let file = file(64 << 20);
        let path = path(&file);
        let node = Node::alone((path, Some("memory:1MiB"))).await;
        let opened = Rc::new(Cell::new(0));
        let opening = opened.clone();
        node.mirrored.reopen_with(Rc::new(move || {
            opening.set(opening.get() + 1);
            Box::pin(async { panic!("nobody asks for it") })
        }));
        node.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        node.serves().await;
        let host = node.mirrored.device();
        write(&host, 4096, 1).await.unwrap();
        let control = node.fails_on(path).await;
        control.fail_next_flush();
        assert!(host.flush().await.is_err());
        assert!(write(&host, 4096, 2).await.is_err());
        let mirror = node.mirrored.mirror().unwrap();
        assert!(!mirror.is_idle_target() && !mirror.give_target_up().await);
        // Three looks.
        time::sleep(Duration::from_millis(3200)).await;
        assert!(write(&host, 4096, 2).await.is_err(), "it is not as if all were well");
        assert_eq!((opened.get(), node.mirrored.reopens()), (0, 0));
        assert!(node.mirrored.has_failed_flush());
        node.mirrored.end().await;
    })
    .unwrap();
}
