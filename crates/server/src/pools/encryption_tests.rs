//! Tests of encrypted volumes on a server without listeners.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::tests::{Bed, table, test};
use super::*;

const KEYS: [&str; 2] = [
    "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00",
    "facade11facade11facade11facade11facade11facade11facade11facade11",
];

fn key_file(bed: &Bed, name: &str, text: &str) -> String {
    let path = bed.scratch.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn with_key(path: &str) -> serde_json::Value {
    serde_json::json!({ "encryption_key_file": path })
}

/// A server with an encrypted volume `db` and a plain volume `open`.
async fn encrypted() -> (Bed, String) {
    let bed = Bed::start().await;
    bed.create_pool("fast", "disk").await;
    let path = key_file(&bed, "key", KEYS[0]);
    bed.create_volume("open", serde_json::json!({})).await.unwrap();
    let made = bed.create_volume("db", with_key(&path)).await.unwrap();
    assert!(made.outcome.contains("encrypted"), "{made:?}");
    (bed, path)
}

/// Closes the pool and opens it again, as a restart does.
pub(super) async fn restart(bed: &Bed) {
    let server = &bed.server;
    Box::pin(server.retire_all(server.volumes_of("fast"))).await.unwrap();
    let PoolSlot { set, state, .. } = server.pools.slot("fast").unwrap();
    server.pools.insert("fast", PoolSlot::changing(set.clone(), "test"));
    drop(state);
    Box::pin(server.try_open("fast", set, "", OperatorConsent::default())).await;
    server.pools.open_pool("fast").unwrap();
}

async fn reopen(bed: &Bed, dry_run: bool) -> Result<Outcome, Problem> {
    let order = DestroyPool { name: "fast".to_owned(), force: false, dry_run };
    Box::pin(bed.server.reopen_pool(order)).await
}

fn served(bed: &Bed) -> Vec<String> {
    let mut names: Vec<_> =
        bed.server.volumes_of("fast").iter().map(|volume| volume.name().to_owned()).collect();
    names.sort();
    names
}

fn reason(bed: &Bed) -> Option<String> {
    bed.server.pools.slot("fast").unwrap().unserved.get("db").cloned()
}

/// No part of a key is in a text.
fn has_no_key(text: &str) {
    assert!(!text.contains("c0ffee") && !text.contains("facade"), "{text}");
}

#[test]
fn volume_without_its_key_is_locked_until_reopen() {
    test(async {
        let (bed, path) = encrypted().await;
        let away = bed.scratch.path().join("away");
        bed.write("db", 7).await;
        restart(&bed).await;
        assert_eq!(served(&bed), ["db", "open"]);
        fs::rename(&path, &away).unwrap();
        restart(&bed).await;
        assert_eq!(served(&bed), ["open"]);
        let why = reason(&bed).unwrap();
        assert!(why.contains(&path) && why.contains("flagstone pool reopen fast"), "{why}");
        let unknown = bed.server.find_volume("db").err().unwrap();
        assert!(unknown.detail.contains(&why), "not that there is none: {unknown:?}");
        for dry_run in [true, false] {
            let refused = reopen(&bed, dry_run).await.unwrap_err();
            assert!(refused.detail.contains(&path), "{refused:?}");
        }
        fs::rename(&away, &path).unwrap();
        let preview = reopen(&bed, true).await.unwrap();
        assert!(preview.changed && served(&bed) == ["open"], "{preview:?}");
        assert_eq!(reopen(&bed, false).await.unwrap(), preview);
        assert_eq!((served(&bed), reason(&bed)), (vec!["db".into(), "open".into()], None));
        assert!(!reopen(&bed, false).await.unwrap().changed);
        bed.write("db", 8).await;
    });
}

#[test]
fn key_that_comes_back_is_found_without_an_order() {
    test(async {
        let (bed, path) = encrypted().await;
        let away = bed.scratch.path().join("away");
        let found = || bed.server.pools.openings.borrow().is_empty();
        let look = async || {
            bed.server.begin_unlocks();
            while !found() {
                flagstone_runtime::task::yield_now().await;
            }
        };
        look().await;
        fs::rename(&path, &away).unwrap();
        restart(&bed).await;
        look().await;
        assert_eq!(served(&bed), ["open"]);
        fs::rename(&away, &path).unwrap();
        // Not during an order.
        let order = bed.server.pools.order("fast").await.unwrap();
        look().await;
        assert_eq!(served(&bed), ["open"]);
        drop(order);
        look().await;
        assert_eq!((served(&bed), reason(&bed)), (vec!["db".into(), "open".into()], None));
        bed.write("db", 8).await;
    });
}

#[test]
fn unusable_key_files_lock_without_showing_text() {
    test(async {
        let (bed, path) = encrypted().await;
        for (text, mode, part) in [
            (&KEYS[0][..60], 0o600, "64 hexadecimal"),
            (&KEYS[0].repeat(8), 0o600, "more than"),
            (KEYS[0], 0o644, "chmod 600"),
            // Last, because another volume may have this key.
            (KEYS[1], 0o600, "not the key"),
        ] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            restart(&bed).await;
            assert_eq!(served(&bed), ["open"]);
            let why = reason(&bed).unwrap();
            assert!(why.contains(part), "{why}");
            has_no_key(&why);
            let refused = bed.create_volume("other", with_key(&path)).await;
            match part {
                "not the key" => drop(refused.unwrap()),
                _ => has_no_key(&format!("{:?}", refused.unwrap_err())),
            }
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        restart(&bed).await;
        assert!(reason(&bed).unwrap().contains("not a regular file"));
    });
}

#[test]
fn repeated_creation_and_dry_run_agree() {
    test(async {
        let (bed, path) = encrypted().await;
        let again = bed.create_volume("db", with_key(&path)).await.unwrap();
        assert!(!again.changed, "{again:?}");
        assert_eq!(bed.create_volume("db", serde_json::json!({})).await.unwrap_err().status, 409);
        let make = |path: &str, dry_run| {
            let make = MakeVolume {
                name: "new".to_owned(),
                pool: "fast".to_owned(),
                size_bytes: 16 << 20,
                thick: false,
                settings: table(with_key(path)),
                dry_run,
            };
            Box::pin(bed.server.create_volume(make))
        };
        for wrong in ["/missing/key", "key", "/a\nb"] {
            let (dry, deed) = (make(wrong, true).await, make(wrong, false).await);
            assert!(deed.is_err(), "{wrong}");
            assert_eq!(dry, deed, "{wrong}");
        }
        let dry = make(&path, true).await.unwrap();
        assert_eq!(served(&bed), ["db", "open"]);
        assert_eq!(make(&path, false).await.unwrap(), dry);
    });
}

#[test]
fn key_is_changed_while_the_former_file_is_readable() {
    test(async {
        let (bed, path) = encrypted().await;
        let next = key_file(&bed, "next", KEYS[1]);
        bed.write("db", 7).await;
        assert!(!bed.set(with_key(&path)).await.unwrap().changed);
        let none = serde_json::json!({ "encryption_key_file": null });
        assert_eq!(bed.set(none).await.unwrap_err().status, 422);
        let empty = serde_json::json!({ "encryption_key_file": "" });
        assert_eq!(bed.set(empty).await.unwrap_err().status, 422);
        assert!(!bed.set(serde_json::json!({})).await.unwrap().changed);
        fs::rename(&path, bed.scratch.path().join("away")).unwrap();
        let refused = bed.set(with_key(&next)).await.unwrap_err();
        assert!(refused.detail.contains(&path), "{refused:?}");
        has_no_key(&format!("{refused:?}"));
        // The file has another place now.
        let away = bed.scratch.path().join("away").to_str().unwrap().to_owned();
        assert!(bed.set(with_key(&away)).await.unwrap().changed);
        let changed = bed.set(with_key(&next)).await.unwrap();
        assert!(changed.outcome.contains("former key"), "{changed:?}");
        has_no_key(&format!("{changed:?}"));
        assert!(!bed.set(with_key(&next)).await.unwrap().changed);
        fs::remove_file(&away).unwrap();
        restart(&bed).await;
        assert_eq!(served(&bed), ["db", "open"]);
        // A locked volume is unlocked by the file with its key, wherever that is.
        let moved = key_file(&bed, "moved", KEYS[1]);
        fs::remove_file(&next).unwrap();
        restart(&bed).await;
        assert_eq!(served(&bed), ["open"]);
        assert!(bed.set(with_key(&moved)).await.unwrap().outcome.contains("unlocked"));
        assert_eq!(served(&bed), ["db", "open"]);
    });
}

#[test]
fn plain_volume_gets_no_key_and_a_clone_inherits_one() {
    test(async {
        let (bed, path) = encrypted().await;
        let set = SetVolume {
            name: "open".to_owned(),
            thick: None,
            settings: table(with_key(&path)),
            force: false,
            dry_run: false,
        };
        let refused = bed.server.set_volume(set).await.unwrap_err();
        assert!(refused.detail.contains("not encrypted"), "{refused:?}");
        bed.server.create_snapshots(&["db@s".to_owned()], false).await.unwrap();
        let clone = |settings| {
            let (name, snapshot) = ("c".to_owned(), "db@s".to_owned());
            Box::pin(bed.server.clone_volume(CloneVolume {
                name,
                snapshot,
                settings,
                dry_run: false,
            }))
        };
        assert_eq!(clone(table(with_key("/other"))).await.unwrap_err().status, 422);
        assert!(clone(Settings::new()).await.unwrap().changed);
        assert!(!clone(Settings::new()).await.unwrap().changed);
        restart(&bed).await;
        assert_eq!(served(&bed), ["c", "db", "open"]);
        let pool = bed.server.pools.open_pool("fast").unwrap();
        let shown = encryption("fast", &pool.volume("c").unwrap()).unwrap();
        assert_eq!((shown.key_file.as_deref(), shown.locked), (Some(path.as_str()), None));
        assert_eq!(encryption("fast", &pool.volume("open").unwrap()), None);
        let next = key_file(&bed, "next", KEYS[1]);
        let changed = bed.set(with_key(&next)).await.unwrap();
        assert!(changed.outcome.contains("these volumes still have it: c"), "{changed:?}");
    });
}
