//! Histories of snapshots through a store in memory that fails at any request.

mod encrypted;
mod fake;
mod hostile;
mod recovery;
mod storm;

use std::sync::Arc;

use flagstone_pool::WrappingKey;
use flagstone_runtime::rng::Rng;
use object_store::memory::InMemory;

use crate::document::{BackupEntry, Head, SnapshotIdentity, UnfinishedBackup};
use crate::head::HeadChange;
use crate::limits::{BLOCK_BYTES, RANGE_BYTES};
use crate::prune::{PrunePlan, Retention, abandon_unusable, plan_prune, prune};
use crate::tests::fake::{Fault, FaultyStore, History, Stream, run};
use crate::verify::verify;
use crate::{
    BackupError, BackupReader, Options, Plan, Repository, Restore, SameName, back_up, plan,
};

fn repository(store: Arc<dyn object_store::ObjectStore>) -> Arc<Repository> {
    repository_with(store, None)
}

fn repository_with(
    store: Arc<dyn object_store::ObjectStore>,
    key: Option<WrappingKey>,
) -> Arc<Repository> {
    let pause = std::time::Duration::ZERO;
    let options = Options { pause, now: || 1_000_000, key, notify: Box::new(|_| ()) };
    Arc::new(Repository::new(store, "zone/db", options))
}

/// One run of the command: chooses the base, and makes the backup.
async fn command(
    repository: &Repository,
    history: &History,
    number: usize,
) -> Result<BackupEntry, BackupError> {
    let snapshot = history.identity(number);
    let head = repository.head().await?.unwrap_or_default();
    let chosen =
        plan::<BackupError>(&head, &snapshot, false, |entry| Ok(history.has(&entry.snapshot)))?;
    let base = match chosen {
        Plan::Exists(entry) => return Ok(entry),
        Plan::Make { base, .. } => base,
    };
    let since = base.as_ref().map(|entry| history.number_of(&entry.snapshot));
    let mut source = Stream { history, number, since };
    back_up(repository, &snapshot, base.as_ref(), SameName::Refuse, &mut source, |_| ()).await
}

async fn restored(
    repository: &Arc<Repository>,
    entry: &BackupEntry,
) -> Result<Vec<u8>, BackupError> {
    let mut restore = Restore::open(repository.clone(), entry).await?;
    let mut volume = Vec::new();
    loop {
        let chunk = match restore.next().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Ok(volume),
            Err(error) => {
                assert_eq!(restore.next().await, Err(error.clone()), "a failure ends it");
                return Err(error);
            }
        };
        assert_eq!(chunk.offset, volume.len() as u64, "chunks follow each other");
        match chunk.data {
            Some(data) => volume.extend_from_slice(&data),
            None => volume.resize(volume.len() + chunk.len as usize, 0),
        }
    }
}

/// Reads of random ranges, and the runs of data.
async fn check_reader(repository: &Arc<Repository>, entry: &BackupEntry, content: &[u8]) {
    let reader = BackupReader::open(repository.clone(), entry).await.expect("a manifest");
    let mut rng = Rng::new(entry.completed_seconds ^ entry.snapshot.source);
    let blocks = content.len() as u64 / BLOCK_BYTES;
    for _ in 0..40 {
        let first = rng.below(blocks);
        let count = 1 + rng.below((blocks - first).min(200));
        let (offset, len) = (first * BLOCK_BYTES, count * BLOCK_BYTES);
        let mut out = vec![7; len as usize];
        reader.read(offset, &mut out).await.expect("it is whole");
        assert!(out == content[offset as usize..][..len as usize], "{offset} {len}");
        let max = 1 + rng.below(6) as usize;
        let runs = reader.runs(offset, len, max).await.expect("it is whole");
        assert!((1..=max).contains(&runs.len()));
        let mut at = offset;
        for run in &runs {
            let part = &content[at as usize..][..run.len as usize];
            assert!(!run.is_hole || part.iter().all(|byte| *byte == 0), "{at} {run:?}");
            at += run.len;
        }
        assert!(at <= offset + len && (runs.len() == max || at == offset + len), "{runs:?}");
    }
    let end = content.len() as u64;
    let mut out = vec![0; BLOCK_BYTES as usize];
    for offset in [end, end - BLOCK_BYTES + 512, u64::MAX - BLOCK_BYTES + 1] {
        assert!(reader.read(offset, &mut out).await.is_err());
        assert!(reader.runs(offset, BLOCK_BYTES, 9).await.is_err());
    }
}

async fn check_all(repository: &Arc<Repository>, history: &History) {
    let head = repository.head().await.expect("a head").unwrap_or_default();
    for quick in [false, true] {
        let report = verify(repository, &head.backups, quick, |_, _| ()).await.expect("it is read");
        assert_eq!(report.damage, []);
    }
    for entry in &head.backups {
        let volume = restored(repository, entry).await.expect("it can be restored");
        assert!(volume == history.content(&entry.snapshot), "{}", entry.snapshot.full_name());
        check_reader(repository, entry, &volume).await;
    }
}

#[test]
fn random_histories_are_restored() {
    for seed in 0..12 {
        run(async move {
            let mut history = History::new(seed, if seed % 4 == 0 { RANGE_BYTES } else { 0 });
            let key = seed.is_multiple_of(2).then(|| WrappingKey::from_bytes(&[1; 32]));
            let repository = repository_with(Arc::new(InMemory::new()), key);
            let mut rng = Rng::new(seed);
            for _ in 0..6 {
                let number = history.snapshot(rng.below(40) as usize);
                let entry = command(&repository, &history, number).await.expect("it is made");
                let again = command(&repository, &history, number).await.expect("it exists");
                assert_eq!(entry, again);
                if rng.below(3) == 0 {
                    let head = repository.head().await.unwrap().unwrap();
                    let retention = Retention { keep: Some(2), ..Retention::default() };
                    let plan = plan_prune(&head, &retention, 1_000_000);
                    prune(&repository, &plan).await.expect("it prunes");
                }
                if rng.below(3) == 0 {
                    history.forget(rng.below(number as u64 + 1) as usize);
                }
            }
            check_all(&repository, &history).await;
        });
    }
}

/// Unchanged ranges cost nothing, and changed ones little more than the change.
#[test]
fn incremental_backup_stores_changes_only() {
    run(async {
        let mut history = History::new(1, 2 * RANGE_BYTES);
        let repository = repository(Arc::new(InMemory::new()));
        let first = history.snapshot(200);
        let full = command(&repository, &history, first).await.unwrap();
        let second = history.snapshot(1);
        let small = command(&repository, &history, second).await.unwrap();
        assert!(small.space.new_bytes < full.space.new_bytes / 4, "{small:?} {full:?}");
        assert!(small.space.stored_bytes >= small.space.new_bytes);
    });
}

/// Whatever a request's fate, the same commands lead to the same backups.
#[test]
fn interruption_at_each_request_loses_nothing() {
    for fault in [Fault::Before, Fault::After, Fault::Denied] {
        let mut at = 0;
        loop {
            let hit = run(async move {
                let mut history = History::new(7, RANGE_BYTES);
                let store = Arc::new(FaultyStore::new());
                let repository = repository(store.clone());
                for _ in 0..2 {
                    let number = history.snapshot(12);
                    command(&repository, &history, number).await.expect("no fault");
                }
                let number = history.snapshot(12);
                store.fail(at, fault);
                let first = command(&repository, &history, number).await;
                let hit = store.heal();
                assert!(hit || first.is_ok(), "{first:?}");
                let entry = command(&repository, &history, number).await.expect("no fault");
                if let Ok(first) = first {
                    assert_eq!(first, entry);
                }
                check_all(&repository, &history).await;
                hit
            });
            if !hit {
                break;
            }
            at += 1;
        }
        assert!(at > 10, "{at} requests");
    }
}

/// A store with four backups of one volume, and its head.
async fn four_backups() -> (Arc<FaultyStore>, Arc<Repository>, History, Head) {
    let mut history = History::new(9, RANGE_BYTES);
    let store = Arc::new(FaultyStore::new());
    let repository = repository(store.clone());
    for _ in 0..4 {
        let number = history.snapshot(12);
        command(&repository, &history, number).await.expect("no fault");
    }
    let head = repository.head().await.unwrap().unwrap();
    (store, repository, history, head)
}

#[test]
fn interrupted_prune_keeps_backups_and_no_orphans() {
    for fault in [Fault::Before, Fault::After, Fault::Denied] {
        let mut at = 0;
        loop {
            let hit = run(async move {
                let (store, repository, history, head) = four_backups().await;
                let retention = Retention { keep: Some(2), ..Retention::default() };
                let plan = plan_prune(&head, &retention, 0);
                assert_eq!(plan.remove.len(), 2);
                store.fail(at, fault);
                let first = prune(&repository, &plan).await;
                let hit = store.heal();
                assert!(hit || first.is_ok(), "{first:?}");
                check_all(&repository, &history).await;
                prune(&repository, &plan).await.expect("no fault");
                check_all(&repository, &history).await;
                let head = repository.head().await.unwrap().unwrap();
                assert_eq!(head.backups.len(), 2);
                store.assert_no_orphans(&repository, &head).await;
                hit
            });
            if !hit {
                break;
            }
            at += 1;
        }
        assert!(at > 10, "{at} requests");
    }
}

/// A store answers with the index of another backup while an interrupted one continues.
#[test]
fn continued_backup_refuses_the_index_of_another() {
    let mut continued = 0;
    for at in 0.. {
        let (hit, found) = run(async move {
            let mut history = History::new(5, RANGE_BYTES);
            let store = Arc::new(FaultyStore::new());
            let repository = repository(store.clone());
            let first = history.snapshot(30);
            let complete = command(&repository, &history, first).await.expect("no fault");
            history.forget(first);
            let second = history.snapshot(30);
            store.fail(at, Fault::Before);
            let made = command(&repository, &history, second).await;
            let hit = store.heal();
            let head = repository.head().await.unwrap().unwrap();
            let Some(unfinished) = head.unfinished.first().filter(|_| made.is_err()) else {
                return (hit, false);
            };
            let name = |writer| crate::repository::index_name(writer, 0);
            let own = name(unfinished.writers[0]);
            let has_index =
                repository.get(&own, crate::limits::INDEX_OBJECT_BYTES_MAX).await.is_ok();
            if has_index {
                let other = name(complete.id);
                let other = repository.get(&other, crate::limits::INDEX_OBJECT_BYTES_MAX).await;
                repository.put(&own, other.expect("it exists")).await.expect("it is replaced");
            }
            command(&repository, &history, second).await.expect("no fault");
            check_all(&repository, &history).await;
            (hit, has_index)
        });
        continued += u32::from(found);
        if !hit {
            break;
        }
    }
    assert!(continued > 0, "no interruption came after an index");
}

/// A process stops before each of its requests, while a prune abandons its backup or does not.
#[test]
fn stale_writer_does_not_commit() {
    for abandon_after_s in [0, u64::MAX] {
        run(async {
            let mut history = History::new(3, RANGE_BYTES);
            let store = Arc::new(FaultyStore::new());
            let repository = repository(store.clone());
            let first = history.snapshot(20);
            command(&repository, &history, first).await.unwrap();
            let second = history.snapshot(20);
            let retention = Retention { abandon_after_s, ..Retention::default() };
            let mut at = 0;
            loop {
                store.pause(at);
                let mut slow = Box::pin(command(&repository, &history, second));
                let finished = store.until_paused(&mut slow).await;
                if finished {
                    break;
                }
                let head = repository.head().await.unwrap().unwrap();
                let plan = plan_prune(&head, &retention, 2_000_000);
                prune(&repository, &plan).await.unwrap();
                store.resume();
                let result = slow.await;
                match plan.abandon.is_empty() {
                    true => drop(result.expect("nothing stops it")),
                    false => assert_eq!(result, Err(BackupError::Fenced), "{at}"),
                }
                check_all(&repository, &history).await;
                // For the next round, without the second backup.
                let head = repository.head().await.unwrap().unwrap();
                let remove = head.backups[1..].iter().map(|entry| entry.id).collect();
                let plan = plan_prune(&head, &Retention { remove, ..retention.clone() }, 2_000_000);
                prune(&repository, &plan).await.unwrap();
                let head = repository.head().await.unwrap().unwrap();
                store.assert_no_orphans(&repository, &head).await;
                at += 1;
            }
            assert!(at > 8, "{at}");
        });
    }
}

#[test]
fn two_writers_of_one_snapshot_are_one_backup() {
    run(async {
        let mut history = History::new(4, 0);
        let repository = repository(Arc::new(InMemory::new()));
        for _ in 0..2 {
            let number = history.snapshot(20);
            let (one, two) = tokio::join!(
                command(&repository, &history, number),
                command(&repository, &history, number)
            );
            assert!(one.is_ok() || two.is_ok(), "{one:?} {two:?}");
            check_all(&repository, &history).await;
        }
    });
}

/// An unfinished backup keeps its base, which a prune removed from the list.
#[test]
fn pruned_base_serves_unfinished_backup() {
    run(async {
        let mut history = History::new(5, RANGE_BYTES);
        let store = Arc::new(FaultyStore::new());
        let repository = repository(store.clone());
        let first = history.snapshot(20);
        command(&repository, &history, first).await.unwrap();
        let second = history.snapshot(5);
        store.fail(12, Fault::Denied);
        command(&repository, &history, second).await.expect_err("it is interrupted");
        assert!(store.heal());
        let head = repository.head().await.unwrap().unwrap();
        assert_eq!(head.unfinished.len(), 1);
        let remove = vec![head.backups[0].id];
        let retention = Retention { remove, abandon_after_s: 100, ..Retention::default() };
        prune(&repository, &plan_prune(&head, &retention, 1_000_000)).await.unwrap();
        let entry = command(&repository, &history, second).await.unwrap();
        assert_ne!(entry.space.new_bytes, entry.space.stored_bytes);
        check_all(&repository, &history).await;
        prune(&repository, &PrunePlan::default()).await.unwrap();
        check_all(&repository, &history).await;
    });
}

/// The base was removed from the list, or is removed by the prune; its manifest is lost.
#[test]
fn damaged_base_of_unfinished_backup_is_given_up() {
    for is_repeated in [false, true] {
        run(async {
            let mut history = History::new(5, RANGE_BYTES);
            let store = Arc::new(FaultyStore::new());
            let repository = repository(store.clone());
            let first = history.snapshot(20);
            let base = command(&repository, &history, first).await.unwrap();
            let second = history.snapshot(5);
            store.fail(12, Fault::Denied);
            command(&repository, &history, second).await.expect_err("it is interrupted");
            assert!(store.heal());
            let manifest = format!("zone/db/{}", crate::repository::manifest_name(base.id));
            store.replace(&manifest, None).await;
            if is_repeated {
                let error = command(&repository, &history, second).await.expect_err("no manifest");
                assert!(error.is_damage(), "{error}");
                let head = repository.head().await.unwrap().unwrap();
                assert_eq!(head.unfinished, [], "it can never continue");
            }
            let mut source = Stream { history: &history, number: second, since: None };
            let identity = history.identity(second);
            let made =
                back_up(&repository, &identity, None, SameName::Refuse, &mut source, |_| ()).await;
            made.expect("a whole backup needs no base");
            let head = repository.head().await.unwrap().unwrap();
            let retention =
                Retention { remove: vec![base.id], abandon_after_s: 100, ..Retention::default() };
            let plan = plan_prune(&head, &retention, 1_000_000);
            let plan = abandon_unusable(&repository, &head, plan).await.unwrap();
            assert_eq!(plan.abandon.len(), usize::from(!is_repeated));
            prune(&repository, &plan).await.expect("nothing needs the base");
            check_all(&repository, &history).await;
            let head = repository.head().await.unwrap().unwrap();
            store.assert_no_orphans(&repository, &head).await;
        });
    }
}

/// A prune stops before each of its requests, while another one removes a backup.
#[test]
fn prunes_side_by_side_succeed() {
    let mut overtaken = 0;
    for at in 0.. {
        let finished = run(async move {
            let (store, repository, history, head) = four_backups().await;
            let removal = |place: usize| {
                let remove = vec![head.backups[place].id];
                plan_prune(&head, &Retention { remove, ..Retention::default() }, 0)
            };
            let (slow, fast) = (removal(0), removal(1));
            store.pause(at);
            let mut slow = Box::pin(prune(&repository, &slow));
            let finished = store.until_paused(&mut slow).await;
            if finished {
                return true;
            }
            prune(&repository, &fast).await.expect("nothing stops it");
            store.resume();
            slow.await.expect("the other prune is no damage");
            check_all(&repository, &history).await;
            let head = repository.head().await.unwrap().unwrap();
            assert_eq!(head.backups.len(), 2);
            false
        });
        if finished {
            break;
        }
        overtaken += 1;
    }
    assert!(overtaken > 8, "{overtaken}");
}

/// A prune abandons a backup and deletes its base, before each request of the backup.
#[test]
fn abandoned_backup_without_its_base_is_fenced() {
    for at in 0.. {
        let finished = run(async move {
            let mut history = History::new(3, RANGE_BYTES);
            let store = Arc::new(FaultyStore::new());
            let repository = repository(store.clone());
            let first = history.snapshot(20);
            command(&repository, &history, first).await.unwrap();
            let second = history.snapshot(20);
            store.pause(at);
            let mut slow = Box::pin(command(&repository, &history, second));
            if store.until_paused(&mut slow).await {
                return true;
            }
            let head = repository.head().await.unwrap().unwrap();
            let remove = vec![head.backups[0].id];
            let retention = Retention { remove, ..Retention::default() };
            let plan = plan_prune(&head, &retention, 2_000_000);
            prune(&repository, &plan).await.unwrap();
            store.resume();
            match (slow.await, plan.abandon.is_empty()) {
                (Err(error), false) => assert_eq!(error, BackupError::Fenced, "{at}"),
                (Err(BackupError::Limit(text)), true) => assert!(text.contains("pruned"), "{text}"),
                (result, true) => drop(result.expect("it has its base, or needs none")),
                (Ok(_), false) => panic!("it was abandoned"),
            }
            check_all(&repository, &history).await;
            false
        });
        if finished {
            break;
        }
    }
}

/// A backup with finished ranges was interrupted as often as one record allows.
#[test]
fn many_interruptions_keep_finished_ranges() {
    run(async {
        let mut history = History::new(5, RANGE_BYTES);
        let store = Arc::new(FaultyStore::new());
        let repository = repository(store.clone());
        let number = history.snapshot(30);
        // The first range and its index are stored.
        let mut at = 6;
        let head = loop {
            store.fail(at, Fault::Denied);
            command(&repository, &history, number).await.expect_err("it is interrupted");
            assert!(store.heal());
            let head = repository.head().await.unwrap().unwrap_or_default();
            let names = store.names().await;
            if names.iter().any(|name| name.contains("index-")) {
                break head;
            }
            // Each attempt lists the objects of one more writer.
            at += 3;
        };
        let first = head.unfinished[0].writers.clone();
        change(&repository, |head| {
            let writers = &mut head.unfinished[0].writers;
            while writers.len() < crate::limits::ATTEMPTS_MAX {
                writers.push(crate::id::WriterId::random());
            }
        })
        .await;
        let entry = command(&repository, &history, number).await.expect("it continues");
        let manifest = repository.manifest(&entry).await.unwrap();
        assert!(first.iter().any(|writer| manifest.writers.contains(writer)), "{manifest:?}");
        check_all(&repository, &history).await;
    });
}

/// Each object is removed, cut and altered in turn: verify finds it, and no restore has wrong data.
#[test]
fn damage_is_found_and_never_restored() {
    run(async {
        let mut history = History::new(6, 0);
        let store = Arc::new(FaultyStore::new());
        let repository = repository(store.clone());
        for _ in 0..2 {
            let number = history.snapshot(30);
            command(&repository, &history, number).await.unwrap();
        }
        let head = repository.head().await.unwrap().unwrap();
        for name in store.names().await {
            let good = store.content(&name).await;
            let mut altered = good.clone();
            altered[good.len() / 2] ^= 4;
            let cut = good[..good.len() - 1].to_vec();
            for bad in [None, Some(altered), Some(cut)] {
                store.replace(&name, bad).await;
                if name.ends_with("head.json") {
                    let read = repository.head().await;
                    assert!(matches!(read, Err(BackupError::Head { .. })), "{read:?}");
                } else if !name.ends_with("probe") {
                    let report = verify(&repository, &head.backups, false, |_, _| ()).await;
                    let report = report.expect("it is read");
                    assert!(!report.damage.is_empty(), "{name}");
                    let affected: Vec<String> =
                        report.damage.iter().flat_map(|damage| damage.backups.clone()).collect();
                    for entry in &head.backups {
                        match restored(&repository, entry).await {
                            Ok(volume) => assert!(volume == history.content(&entry.snapshot)),
                            Err(error) => {
                                assert!(error.is_damage(), "{error}");
                                assert!(affected.contains(&entry.snapshot.full_name()), "{name}");
                            }
                        }
                    }
                }
                store.replace(&name, Some(good.clone())).await;
            }
        }
        check_all(&repository, &history).await;
    });
}

/// Bytes of JSON documents at random: errors, no panics.
#[test]
fn hostile_documents_are_refused() {
    run(async {
        let mut history = History::new(8, 0);
        let store = Arc::new(FaultyStore::new());
        let repository = repository(store.clone());
        let number = history.snapshot(30);
        command(&repository, &history, number).await.unwrap();
        let mut rng = Rng::new(1);
        for name in store.names().await.into_iter().filter(|name| name.ends_with(".json")) {
            let good = store.content(&name).await;
            for _ in 0..3000 {
                let mut bad = good.clone();
                for _ in 0..1 + rng.below(3) {
                    let at = rng.below(bad.len() as u64) as usize;
                    bad[at] = b"0123456789-\"[]{},:ax"[rng.below(20) as usize];
                }
                let head = serde_json::from_slice::<crate::document::Head>(&bad);
                if let Ok(head) = head {
                    // With the right checksum, so that the later checks are reached.
                    let _ = crate::document::Head::decode(&head.seal());
                }
                assert!(bad == good || crate::document::Head::decode(&bad).is_err());
                let entry: Option<BackupEntry> =
                    repository.head().await.unwrap().map(|head| head.backups[0].clone());
                let entry = BackupEntry {
                    manifest_bytes: bad.len() as u64,
                    manifest_sha256: crate::id::Checksum::of(&bad),
                    ..entry.unwrap()
                };
                if let Ok(manifest) = crate::document::Manifest::decode(&entry, &bad) {
                    assert!(manifest.objects().count() < 1000);
                }
            }
        }
    });
}

#[test]
fn retention_keeps_by_count_or_age() {
    let entry = |volume: &str, created: u64| BackupEntry {
        mac: None,
        id: crate::id::WriterId([created as u8; 16]),
        snapshot: SnapshotIdentity {
            volume: volume.to_owned(),
            volume_id: flagstone_pool::PoolId([2; 16]).to_string(),
            pool_id: flagstone_pool::PoolId([3; 16]).to_string(),
            encrypted: false,
            snapshot: format!("s{created}"),
            snapshot_id: flagstone_pool::PoolId([1; 16]).to_string(),
            source: created << 32,
            size_bytes: BLOCK_BYTES,
            created_seconds: created,
        },
        completed_seconds: created,
        space: Default::default(),
        manifest_bytes: 0,
        manifest_sha256: Default::default(),
    };
    let head = crate::document::Head {
        format: 1,
        backups: vec![entry("a", 10), entry("b", 20), entry("a", 30), entry("a", 40)],
        ..Default::default()
    };
    let removed = |retention: Retention| -> Vec<u64> {
        let plan = plan_prune(&head, &retention, 50);
        plan.remove.iter().map(|entry| entry.snapshot.created_seconds).collect()
    };
    let volume = || Some("a".to_owned());
    let none = Retention::default();
    assert_eq!(removed(none.clone()), [0_u64; 0]);
    assert_eq!(removed(Retention { keep: Some(1), ..none.clone() }), [10, 30]);
    assert_eq!(removed(Retention { keep_within_s: Some(25), ..none.clone() }), [10, 20]);
    let both =
        Retention { keep: Some(1), keep_within_s: Some(25), volume: volume(), ..none.clone() };
    assert_eq!(removed(both), [10]);
    let named = vec![crate::id::WriterId([20; 16])];
    assert_eq!(removed(Retention { remove: named, ..none.clone() }), [20]);
    // Two backups of one snapshot, and a volume that was created anew under the name.
    let mut other = entry("a", 45);
    other.snapshot.volume_id = flagstone_pool::PoolId([4; 16]).to_string();
    let head = crate::document::Head {
        backups: vec![entry("a", 10), entry("a", 30), entry("a", 40), entry("a", 40), other],
        ..head.clone()
    };
    let plan = plan_prune(&head, &Retention { keep: Some(2), ..none }, 50);
    let removed: Vec<u64> =
        plan.remove.iter().map(|entry| entry.snapshot.created_seconds).collect();
    assert_eq!(removed, [10]);
}

/// The clock of a server was wrong when a snapshot was taken.
#[test]
fn snapshot_from_the_future_does_not_stay_for_ever() {
    run(async {
        let mut history = History::new(14, 0);
        let repository = repository(Arc::new(FaultyStore::new()));
        for _ in 0..3 {
            let number = history.snapshot(5);
            command(&repository, &history, number).await.unwrap();
        }
        let mut head = repository.head().await.unwrap().unwrap();
        for (entry, (created, completed)) in
            head.backups.iter_mut().zip([(9_000_000, 100), (200, 200), (300, 300)])
        {
            entry.snapshot.created_seconds = created;
            entry.completed_seconds = completed;
        }
        let rules = [
            Retention { keep: Some(2), ..Retention::default() },
            Retention { keep_within_s: Some(800), ..Retention::default() },
        ];
        for retention in rules {
            let plan = plan_prune(&head, &retention, 1_000);
            assert_eq!(plan.remove, head.backups[..1], "{retention:?}");
        }
    });
}

async fn change(repository: &Repository, mut change: impl FnMut(&mut Head)) {
    let change = |head: &mut Head| {
        change(head);
        Ok(HeadChange::Store(()))
    };
    repository.change_head(change).await.expect("no fault");
}

/// A backup of a smaller snapshot, which has a larger one as its base, could not be restored.
#[test]
fn smaller_snapshot_has_no_larger_base() {
    for is_interrupted in [false, true] {
        run(async {
            let mut history = History::new(11, 0);
            let store = Arc::new(FaultyStore::new());
            let repository = repository(store.clone());
            let small = history.snapshot(20);
            history.fill_last_block();
            let large = history.snapshot(0);
            let base = command(&repository, &history, large).await.unwrap();
            if is_interrupted {
                let mut source = Stream { history: &history, number: small, since: Some(large) };
                let identity = history.identity(small);
                let made = back_up(
                    &repository,
                    &identity,
                    Some(&base),
                    SameName::Refuse,
                    &mut source,
                    |_| (),
                )
                .await;
                assert!(matches!(made, Err(BackupError::Limit(_))), "{made:?}");
                change(&repository, |head| {
                    head.unfinished.push(UnfinishedBackup {
                        snapshot: identity.clone(),
                        base: Some(base.clone()),
                        writers: vec![crate::id::WriterId([1; 16])],
                        renewed_seconds: 1_000_000,
                    })
                })
                .await;
            }
            command(&repository, &history, small).await.expect("it is made");
            check_all(&repository, &history).await;
        });
    }
}

/// The backup shares its index with a larger one, of which the index is sound.
#[test]
fn verify_finds_extents_beyond_the_end() {
    run(async {
        let mut history = History::new(11, 0);
        let repository = repository(Arc::new(FaultyStore::new()));
        let small = history.snapshot(20);
        history.fill_last_block();
        let large = history.snapshot(0);
        let good = command(&repository, &history, large).await.unwrap();
        let id = crate::id::WriterId([1; 16]);
        let snapshot = history.identity(small);
        let manifest = crate::document::Manifest {
            id,
            snapshot: snapshot.clone(),
            ..repository.manifest(&good).await.unwrap()
        };
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let (manifest_bytes, manifest_sha256) =
            (bytes.len() as u64, crate::id::Checksum::of(&bytes));
        let bad = BackupEntry { id, snapshot, manifest_bytes, manifest_sha256, ..good.clone() };
        repository.put(&crate::repository::manifest_name(id), bytes).await.unwrap();
        repository.store_entry(&bad).await.unwrap();
        change(&repository, |head| head.backups.push(bad.clone())).await;
        for selected in [[good.clone(), bad.clone()], [bad.clone(), good.clone()]] {
            let report = verify(&repository, &selected, false, |_, _| ()).await.unwrap();
            assert_eq!(report.damage.len(), 1, "{report:?}");
            assert!(report.damage[0].problem.contains("beyond the end"), "{report:?}");
            assert_eq!(report.damage[0].backups, [bad.snapshot.full_name()]);
        }
    });
}

#[test]
fn verify_omits_backups_that_were_pruned() {
    run(async {
        let mut history = History::new(12, 0);
        let repository = repository(Arc::new(FaultyStore::new()));
        for _ in 0..2 {
            let number = history.snapshot(20);
            command(&repository, &history, number).await.unwrap();
        }
        let head = repository.head().await.unwrap().unwrap();
        let retention = Retention { keep: Some(1), ..Retention::default() };
        prune(&repository, &plan_prune(&head, &retention, 0)).await.unwrap();
        for quick in [false, true] {
            let report = verify(&repository, &head.backups, quick, |_, _| ()).await.unwrap();
            assert!(report.is_sound() && report.backups == 1, "{report:?}");
        }
    });
}

#[test]
fn largest_epoch_of_a_head_can_be_replaced() {
    run(async {
        let mut history = History::new(13, 0);
        let repository = repository(Arc::new(FaultyStore::new()));
        // Stored as the largest, whose successor is 0.
        change(&repository, |head| head.epoch = u64::MAX - 1).await;
        let number = history.snapshot(5);
        command(&repository, &history, number).await.unwrap();
        check_all(&repository, &history).await;
    });
}

#[test]
fn lost_head_is_no_empty_prefix() {
    run(async {
        let mut history = History::new(2, 0);
        let store = Arc::new(FaultyStore::new());
        let repository = repository(store.clone());
        let number = history.snapshot(3);
        command(&repository, &history, number).await.unwrap();
        store.replace("zone/db/head.json", None).await;
        let number = history.snapshot(3);
        for result in [
            command(&repository, &history, number).await.map(drop),
            prune(&repository, &PrunePlan::default()).await.map(drop),
        ] {
            let error = result.expect_err("the backups are not lost");
            assert!(error.to_string().contains("head.json is missing"), "{error}");
        }
    });
}
