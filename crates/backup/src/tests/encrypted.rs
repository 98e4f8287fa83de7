//! Encrypted prefixes: their keys, and what a store sees of them.

use object_store::ObjectStoreExt as _;
use object_store::path::Path;

use super::*;

fn key(byte: u8) -> Option<WrappingKey> {
    Some(WrappingKey::from_bytes(&[byte; 32]))
}

/// All objects of a store, by name.
async fn objects(store: &InMemory) -> Vec<(Path, Vec<u8>)> {
    use futures_util::TryStreamExt as _;
    use object_store::ObjectStore as _;
    let listed: Vec<_> = store.list(None).try_collect().await.expect("a list");
    let mut objects = Vec::new();
    for meta in listed {
        let bytes = store.get(&meta.location).await.expect("it exists").bytes().await;
        objects.push((meta.location, bytes.expect("its content").to_vec()));
    }
    objects
}

/// A prefix of two backups, encrypted with key 1.
async fn encrypted() -> (Arc<InMemory>, History) {
    let store = Arc::new(InMemory::new());
    let mut history = History::new(3, RANGE_BYTES);
    for _ in 0..2 {
        let number = history.snapshot(30);
        let repository = repository_with(store.clone(), key(1));
        command(&repository, &history, number).await.expect("it is made");
    }
    (store, history)
}

#[test]
fn store_of_an_encrypted_prefix_sees_no_content() {
    run(async {
        let (store, history) = encrypted().await;
        let repository = repository_with(store.clone(), key(1));
        check_all(&repository, &history).await;
        let head = repository.head().await.unwrap().unwrap();
        // Blocks of noise, which would be stored as they are.
        let mut noise: Vec<Vec<u8>> = Vec::new();
        for entry in &head.backups {
            let content = history.content(&entry.snapshot);
            let blocks = content.chunks(BLOCK_BYTES as usize);
            let blocks = blocks.filter(|block| block[..32] != [block[0]; 32]);
            noise.extend(blocks.take(3).map(|block| block[..32].to_vec()));
        }
        assert!(noise.len() == 6, "the history has noise");
        for (name, bytes) in objects(&store).await {
            assert!(!bytes.starts_with(b"FSBINDEX"), "{name}");
            let is_known = |part: &[u8]| noise.iter().any(|known| known == part);
            assert!(!bytes.windows(32).any(is_known), "{name}");
        }
    });
}

#[test]
fn encrypted_prefix_needs_its_key() {
    run(async {
        let (store, mut history) = encrypted().await;
        let number = history.snapshot(3);
        for wrong in [None, key(2)] {
            let has_none = wrong.is_none();
            let repository = repository_with(store.clone(), wrong);
            let made = command(&repository, &history, number).await;
            assert!(matches!(made, Err(BackupError::Key { .. })), "{made:?}");
            match repository.head().await {
                // A list, a quick verification and a prune need no key.
                Ok(Some(head)) if has_none => {
                    let backups = &head.backups;
                    let report = verify(&repository, backups, true, |_, _| ()).await.unwrap();
                    assert!(report.is_sound());
                    let whole = verify(&repository, backups, false, |_, _| ()).await;
                    assert!(matches!(whole, Err(BackupError::Key { .. })), "{whole:?}");
                    let volume = restored(&repository, &backups[0]).await;
                    assert!(matches!(volume, Err(BackupError::Key { .. })));
                    let retention = Retention { abandon_after_s: u64::MAX, ..Retention::default() };
                    let plan = plan_prune(&head, &retention, 1_000_000);
                    prune(&repository, &plan).await.expect("it deletes unneeded objects");
                }
                answer => assert!(matches!(answer, Err(BackupError::Key { .. })) && !has_none),
            }
        }
        check_all(&repository_with(store, key(1)), &history).await;
    });
}

#[test]
fn key_for_a_plain_prefix_is_refused() {
    run(async {
        let store = Arc::new(InMemory::new());
        let mut history = History::new(3, 0);
        let first = history.snapshot(9);
        command(&repository(store.clone()), &history, first).await.expect("it is made");
        let second = history.snapshot(9);
        let made = command(&repository_with(store.clone(), key(1)), &history, second).await;
        assert!(matches!(made, Err(BackupError::Key { .. })), "{made:?}");
        check_all(&repository(store), &history).await;
    });
}

/// Also if the answer to the change was lost.
#[test]
fn key_of_the_operator_can_be_changed() {
    run(async {
        let (store, mut history) = encrypted().await;
        let repository = repository_with(store.clone(), key(1));
        let next = WrappingKey::from_bytes(&[2; 32]);
        repository.change_key(&next).await.expect("it is changed");
        repository.change_key(&next).await.expect("the prefix is open");
        let former = repository_with(store.clone(), key(1)).head().await;
        assert!(matches!(former, Err(BackupError::Key { .. })), "{former:?}");
        let number = history.snapshot(9);
        let repository = repository_with(store, key(2));
        let entry = command(&repository, &history, number).await.expect("it is made");
        assert!(entry.space.new_bytes < entry.space.stored_bytes, "it uses the earlier backups");
        check_all(&repository, &history).await;
        let plain = super::repository(Arc::new(InMemory::new()));
        assert!(plain.change_key(&next).await.is_err());
    });
}

/// Objects that a store exchanges are found, although their checksums are those of its head.
#[test]
fn exchanged_objects_of_an_encrypted_prefix_are_damage() {
    run(async {
        let (store, _) = encrypted().await;
        let packs: Vec<(Path, Vec<u8>)> = objects(&store)
            .await
            .into_iter()
            .filter(|(name, _)| name.as_ref().contains("/pack-"))
            .collect();
        assert!(packs.len() > 1);
        for (at, (name, _)) in packs.iter().enumerate() {
            let other = packs[(at + 1) % packs.len()].1.clone();
            store.put(name, other.into()).await.expect("it is replaced");
        }
        let repository = repository_with(store, key(1));
        let head = repository.head().await.unwrap().unwrap();
        let report = verify(&repository, &head.backups, false, |_, _| ()).await.unwrap();
        assert!(!report.is_sound());
        assert!(restored(&repository, &head.backups[0]).await.is_err());
    });
}

/// The head is not encrypted, and its store could give a backup the content of another one.
#[test]
fn altered_head_of_an_encrypted_prefix_is_damage() {
    run(async {
        let (store, _) = encrypted().await;
        let name = Path::from("zone/db/head.json");
        let bytes = store.get(&name).await.unwrap().bytes().await.unwrap();
        let mut head: Head = serde_json::from_slice(&bytes).expect("JSON");
        let [first, second] = &mut head.backups[..] else { panic!("two backups") };
        std::mem::swap(&mut first.snapshot.snapshot, &mut second.snapshot.snapshot);
        let altered = head.seal();
        store.put(&name, altered.into()).await.expect("it is replaced");
        let repository = repository_with(store, key(1));
        for entry in &repository.head().await.unwrap().unwrap().backups {
            let volume = restored(&repository, entry).await;
            assert!(matches!(&volume, Err(error) if error.is_damage()), "{:?}", volume.err());
        }
    });
}
