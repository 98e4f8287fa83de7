//! Stores with objects of impossible lengths and foreign names, and wrong clocks.

use super::*;

fn open(store: &Arc<FaultyStore>) -> Arc<Repository> {
    repository_with(store.clone(), Some(WrappingKey::from_bytes(&[1; 32])))
}

/// An encrypted prefix of two backups.
async fn two_backups() -> (Arc<FaultyStore>, History) {
    let store = Arc::new(FaultyStore::new());
    let mut history = History::new(17, RANGE_BYTES);
    for _ in 0..2 {
        let number = history.snapshot(9);
        command(&open(&store), &history, number).await.expect("no fault");
    }
    (store, history)
}

/// Objects that are longer than any of this program. Packs are read in parts.
#[test]
fn huge_objects_are_damage() {
    run(async {
        let (store, _) = two_backups().await;
        let head = open(&store).head().await.unwrap().unwrap();
        let huge = vec![b' '; crate::limits::MANIFEST_BYTES_MAX + 1];
        for name in store.names().await {
            if name.contains("/pack-") || name.ends_with("/probe") {
                continue;
            }
            let good = store.content(&name).await;
            store.replace(&name, Some(huge.clone())).await;
            let repository = open(&store);
            match repository.head().await {
                Err(error) => {
                    assert!(name.ends_with("head.json") && error.is_damage(), "{name}: {error}");
                }
                Ok(_) => {
                    let report = verify(&repository, &head.backups, false, |_, _| ()).await;
                    assert!(!report.expect("it is read").is_sound(), "{name}");
                }
            }
            store.replace(&name, Some(good)).await;
        }
    });
}

/// Names that other programs, or a hostile store, put into the folders.
#[test]
fn foreign_names_are_neither_used_nor_deleted() {
    run(async {
        let (store, history) = two_backups().await;
        let head = open(&store).head().await.unwrap().unwrap();
        let id = head.backups[0].id;
        let long = "x".repeat(900);
        let mut foreign = Vec::new();
        for folder in ["keys", "entries", "manifests", "data", &format!("data/{id}")] {
            for name in ["a.json", "deep/er/00.json", "..%2Fhead.json", "index-", "pack-x", &long] {
                foreign.push(format!("zone/db/{folder}/{name}"));
            }
        }
        for name in &foreign {
            store.replace(name, Some(b"foreign".to_vec())).await;
        }
        let repository = open(&store);
        prune(&repository, &PrunePlan::default()).await.expect("it prunes");
        check_all(&repository, &history).await;
        let names = store.names().await;
        for name in &foreign {
            let stored = object_store::path::Path::from(name.as_str()).to_string();
            assert!(names.contains(&stored), "{name} was deleted");
        }
        store.replace("zone/db/head.json", None).await;
        let made = open(&store).recover(false, &[]).await.expect("copies are there");
        assert!(made.backups == head.backups && made.left_out.is_empty(), "{made:?}");
        check_all(&open(&store), &history).await;
    });
}

/// Backups of one machine are from the future: they are kept, and are not counted as the newest.
#[test]
fn backup_from_the_future_displaces_no_other() {
    run(async {
        let mut history = History::new(14, 0);
        let repository = repository(Arc::new(FaultyStore::new()));
        for _ in 0..3 {
            let number = history.snapshot(5);
            command(&repository, &history, number).await.unwrap();
        }
        let mut head = repository.head().await.unwrap().unwrap();
        for (entry, time) in head.backups.iter_mut().zip([100, 9_000_000, 300]) {
            (entry.snapshot.created_seconds, entry.completed_seconds) = (time, time);
        }
        let retention = Retention { keep: Some(1), ..Retention::default() };
        assert_eq!(plan_prune(&head, &retention, 1_000).remove, head.backups[..1]);
        // The clock of this machine is set back: nothing is removed.
        let retention = Retention { keep: Some(1), keep_within_s: Some(1), ..Retention::default() };
        let mut head = head.clone();
        head.backups.iter_mut().for_each(|entry| {
            (entry.snapshot.created_seconds, entry.completed_seconds) = (9_000_000, 9_000_000);
        });
        assert_eq!(plan_prune(&head, &retention, 0).remove, []);
    });
}
