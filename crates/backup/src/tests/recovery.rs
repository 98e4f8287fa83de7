//! Lost and damaged heads, and the copies from which they are made again.

use super::*;
use crate::document::BackupEntry;
use crate::recover::Recovery;

const HEAD: &str = "zone/db/head.json";

fn key(byte: u8) -> Option<WrappingKey> {
    Some(WrappingKey::from_bytes(&[byte; 32]))
}

/// A store with three backups, the key that it needs, and the list of backups.
async fn three_backups(
    key: fn() -> Option<WrappingKey>,
) -> (Arc<FaultyStore>, History, Vec<BackupEntry>) {
    let store = Arc::new(FaultyStore::new());
    let mut history = History::new(21, RANGE_BYTES);
    let repository = repository_with(store.clone(), key());
    for _ in 0..3 {
        let number = history.snapshot(8);
        command(&repository, &history, number).await.expect("no fault");
    }
    let backups = repository.head().await.unwrap().unwrap().backups;
    (store, history, backups)
}

async fn copies(store: &FaultyStore, folder: &str) -> Vec<String> {
    let mut names = store.names().await;
    names.retain(|name| name.starts_with(&format!("zone/db/{folder}/")));
    names
}

#[test]
fn lost_or_damaged_head_is_made_again() {
    for key in [|| None, || key(1)] {
        run(async {
            let (store, mut history, backups) = three_backups(key).await;
            let good = store.content(HEAD).await;
            let cut = good[..good.len() - 1].to_vec();
            for bad in [None, Some(Vec::new()), Some(cut)] {
                store.replace(HEAD, bad.clone()).await;
                let repository = repository_with(store.clone(), key());
                let read = repository.head().await.expect_err("it is no empty prefix");
                assert!(read.to_string().contains("flagstone backup recover"), "{read}");
                let preview = repository.recover(true, &[]).await.expect("copies are there");
                assert_eq!(preview.backups, backups);
                assert!(repository.head().await.is_err(), "a preview changes nothing");
                let repository = repository_with(store.clone(), key());
                let made = repository.recover(false, &[]).await.expect("copies are there");
                let expected =
                    Recovery { is_head_new: true, backups: backups.clone(), ..Recovery::default() };
                assert_eq!(made, expected);
                check_all(&repository_with(store.clone(), key()), &history).await;
            }
            // The chain goes on.
            let number = history.snapshot(3);
            let repository = repository_with(store.clone(), key());
            let entry = command(&repository, &history, number).await.expect("no fault");
            assert!(entry.space.new_bytes < entry.space.stored_bytes);
            check_all(&repository, &history).await;
        });
    }
}

/// Of any member: the sealed key, a checksum, a length.
#[test]
fn changed_byte_of_a_head_is_damage() {
    run(async {
        let (store, ..) = three_backups(|| key(1)).await;
        let good = store.content(HEAD).await;
        for at in (0..good.len()).filter(|at| good[*at].is_ascii_hexdigit()) {
            let mut bad = good.clone();
            bad[at] = if good[at] == b'1' { b'2' } else { b'1' };
            assert!(Head::decode(&bad).is_err(), "byte {at}");
        }
    });
}

#[test]
fn recovery_needs_the_key_and_a_record_of_it() {
    run(async {
        let (store, ..) = three_backups(|| key(1)).await;
        store.replace(HEAD, None).await;
        for wrong in [None, key(2)] {
            let made = repository_with(store.clone(), wrong).recover(false, &[]).await;
            assert!(matches!(made, Err(BackupError::Key { .. })), "{made:?}");
        }
        let record = copies(&store, "keys").await.remove(0);
        store.replace(&record, None).await;
        for any in [None, key(1)] {
            let made = repository_with(store.clone(), any).recover(false, &[]).await;
            assert!(matches!(made, Err(BackupError::Key { .. })), "{made:?}");
        }
        assert!(!store.names().await.contains(&HEAD.to_owned()));
    });
}

/// A store that lost the head may give back altered entries, and not all objects.
#[test]
fn recovery_lists_complete_backups_alone() {
    run(async {
        let (store, history, backups) = three_backups(|| key(1)).await;
        store.replace(HEAD, None).await;
        let altered = format!("zone/db/{}", crate::repository::entry_name(backups[0].id));
        let text = String::from_utf8(store.content(&altered).await).expect("JSON");
        let renamed = text.replace("\"snapshot\":\"s0\"", "\"snapshot\":\"s9\"");
        assert_ne!(text, renamed);
        store.replace(&altered, Some(renamed.into_bytes())).await;
        let manifest = repository_with(store.clone(), key(1));
        let _ = manifest.recover(true, &[]).await;
        let manifest = manifest.manifest(&backups[2]).await.expect("it is sound");
        let pack = manifest.objects().find_map(|(writer, object, _)| match object {
            crate::document::DataObject::Pack(number) if writer == backups[2].id => {
                Some(crate::repository::pack_name(writer, number))
            }
            _ => None,
        });
        store.replace(&format!("zone/db/{}", pack.expect("a new pack")), None).await;
        let repository = repository_with(store.clone(), key(1));
        let made = repository.recover(false, &[]).await;
        assert!(matches!(made, Err(BackupError::Incomplete { .. })), "{made:?}");
        let one = repository.recover(false, &[backups[0].id]).await;
        assert!(matches!(one, Err(BackupError::Incomplete { .. })), "{one:?}");
        let shown = repository.recover(true, &[]).await.expect("a preview").left_out;
        let shown: Vec<_> = shown.iter().map(|left| left.id).collect();
        let made = repository.recover(false, &shown).await.expect("one is complete");
        assert_eq!(made.backups, backups[1..2]);
        let left: std::collections::BTreeSet<_> =
            made.left_out.iter().map(|left| left.id).collect();
        assert_eq!(left, [backups[0].id, backups[2].id].into());
        check_all(&repository, &history).await;
    });
}

/// After a prune, an interrupted backup, and a change of the key.
#[test]
fn recovery_brings_nothing_back_that_was_removed() {
    run(async {
        let (store, mut history, backups) = three_backups(|| key(1)).await;
        let repository = repository_with(store.clone(), key(1));
        let head = repository.head().await.unwrap().unwrap();
        let retention = Retention { keep: Some(2), ..Retention::default() };
        prune(&repository, &plan_prune(&head, &retention, 0)).await.expect("no fault");
        let number = history.snapshot(4);
        store.fail(15, Fault::Denied);
        command(&repository, &history, number).await.expect_err("it is interrupted");
        assert!(store.heal());
        let next = WrappingKey::from_bytes(&[2; 32]);
        repository.change_key(&next).await.expect("it is changed");
        store.replace(HEAD, None).await;
        let former = repository_with(store.clone(), key(1)).recover(false, &[]).await;
        assert!(matches!(former, Err(BackupError::Key { .. })), "{former:?}");
        let repository = repository_with(store.clone(), key(2));
        let made = repository.recover(false, &[]).await.expect("copies are there");
        assert_eq!(made.backups, backups[1..]);
        prune(&repository, &PrunePlan::default()).await.expect("no fault");
        let head = repository.head().await.unwrap().unwrap();
        store.assert_no_orphans(&repository, &head).await;
        command(&repository, &history, number).await.expect("it begins again");
        check_all(&repository, &history).await;
    });
}

#[test]
fn lost_copies_are_found_and_stored_again() {
    run(async {
        let (store, history, backups) = three_backups(|| key(1)).await;
        for folder in ["keys", "entries"] {
            for (name, bad) in copies(&store, folder).await.into_iter().zip([None, Some(vec![7])]) {
                store.replace(&name, bad).await;
            }
        }
        let repository = repository_with(store.clone(), key(1));
        let report = verify(&repository, &backups, true, |_, _| ()).await.expect("it is read");
        assert_eq!(report.damage.len(), 3, "{report:?}");
        assert_eq!(repository.recover(true, &[]).await.expect("a sound head").copies, 3);
        let made = repository.recover(false, &[]).await.expect("a sound head");
        assert!(!made.is_head_new && made.copies == 3, "{made:?}");
        check_all(&repository, &history).await;
        // A prune stores those that are missing.
        for folder in ["keys", "entries"] {
            store.replace(&copies(&store, folder).await.remove(0), None).await;
        }
        prune(&repository, &PrunePlan::default()).await.expect("no fault");
        check_all(&repository, &history).await;
    });
}

/// A running backup's record is in the head that is lost.
#[test]
fn backup_beside_a_recovery_is_fenced_or_complete() {
    for at in 0.. {
        let finished = run(async move {
            let (store, mut history, backups) = three_backups(|| key(1)).await;
            let number = history.snapshot(8);
            store.pause(at);
            let repository = repository_with(store.clone(), key(1));
            let mut slow = Box::pin(command(&repository, &history, number));
            if store.until_paused(&mut slow).await {
                return true;
            }
            store.replace(HEAD, None).await;
            let other = repository_with(store.clone(), key(1));
            let made = other.recover(false, &[]).await.expect("copies are there");
            assert!(made.backups.starts_with(&backups));
            store.resume();
            let _ = slow.await;
            let entry = command(&repository, &history, number).await.expect("no fault");
            assert_eq!(entry.snapshot, history.identity(number));
            check_all(&repository_with(store, key(1)), &history).await;
            false
        });
        if finished {
            assert!(at > 10, "{at} requests");
            break;
        }
    }
}

/// One volume was deleted and created anew; another is on another machine.
#[test]
fn other_volume_of_the_name_needs_a_decision() {
    run(async {
        let (store, mut history, _) = three_backups(|| None).await;
        let repository = repository(store.clone());
        let number = history.snapshot(3);
        for id in 0..2 {
            let mut other = history.identity(number);
            let own = if id == 0 { &mut other.volume_id } else { &mut other.pool_id };
            *own = flagstone_pool::PoolId([7; 16]).to_string();
            let head = repository.head().await.unwrap().unwrap();
            let chosen = plan::<BackupError>(&head, &other, false, |_| Ok(true)).unwrap();
            assert_eq!(chosen, Plan::Make { base: None, continues: false });
            let mut source = Stream { history: &history, number, since: None };
            let make = |same_name| (repository.clone(), other.clone(), same_name);
            let (to, snapshot, same_name) = make(SameName::Refuse);
            let made = back_up(&to, &snapshot, None, same_name, &mut source, |_| ()).await;
            assert!(matches!(made, Err(BackupError::OtherVolume { .. })), "{made:?}");
            let (to, snapshot, same_name) = make(SameName::Separate);
            let entry = back_up(&to, &snapshot, None, same_name, &mut source, |_| ()).await;
            assert_eq!(entry.expect("it is asked for").snapshot, other);
            // From then on it has backups here.
            let (to, snapshot, same_name) = make(SameName::Refuse);
            let again = back_up(&to, &snapshot, None, same_name, &mut source, |_| ()).await;
            again.expect("another one in full");
        }
        command(&repository, &history, number).await.expect("the first volume goes on");
        let head = repository.head().await.unwrap().unwrap();
        let retention = Retention { keep: Some(1), ..Retention::default() };
        let left = head.backups.len() - plan_prune(&head, &retention, 0).remove.len();
        // Both backups of the newest snapshot of each other volume, and one of the first.
        assert_eq!(left, 5);
    });
}
