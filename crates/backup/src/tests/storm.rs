//! Interruptions of backups, prunes, recoveries, changes of the key and restores at each request.

use super::*;

const HEAD: &str = "zone/db/head.json";

fn open(store: &Arc<FaultyStore>, key: u8) -> Arc<Repository> {
    repository_with(store.clone(), Some(WrappingKey::from_bytes(&[key; 32])))
}

/// Command that is interrupted.
#[derive(Clone, Copy, Debug)]
enum Step {
    Backup,
    Prune,
    Recover,
    ChangeKey,
}

const STEPS: [Step; 4] = [Step::Backup, Step::Prune, Step::Recover, Step::ChangeKey];
const FAULTS: [Fault; 6] =
    [Fault::Before, Fault::After, Fault::Denied, Fault::Once, Fault::Torn, Fault::Wrong];

impl Step {
    async fn run(self, store: &Arc<FaultyStore>, history: &History) -> Result<(), BackupError> {
        let mut repository = open(store, 1);
        match self {
            Step::Backup => command(&repository, history, 2).await.map(drop),
            Step::Prune => {
                let head = repository.head().await?.unwrap_or_default();
                let remove = head.backups.iter().filter(|entry| entry.snapshot.snapshot == "s0");
                let remove = remove.map(|entry| entry.id).collect();
                let plan = plan_prune(&head, &Retention { remove, ..Retention::default() }, 0);
                prune(&repository, &plan).await.map(drop)
            }
            Step::Recover => repository.recover(false, &[]).await.map(drop),
            Step::ChangeKey => {
                // An interrupted change may have been made.
                if let Err(BackupError::Key { .. }) = repository.head().await {
                    repository = open(store, 2);
                }
                repository.change_key(&WrappingKey::from_bytes(&[2; 32])).await
            }
        }
    }

    /// A store before the command: two backups of three snapshots.
    async fn prepared(self) -> (FaultyStore, History) {
        let store = Arc::new(FaultyStore::new());
        // Only a backup works range by range.
        let border = if let Step::Backup = self { RANGE_BYTES } else { 0 };
        let mut history = History::new(31, border);
        for _ in 0..3 {
            history.snapshot(6);
        }
        for number in 0..2 {
            command(&open(&store, 1), &history, number).await.expect("no fault");
        }
        if let Step::Recover = self {
            store.replace(HEAD, None).await;
        }
        (store.fork(), history)
    }

    /// Names of the snapshots that have backups after the command.
    fn expected(self) -> &'static [&'static str] {
        match self {
            Step::Backup => &["s0", "s1", "s2"],
            Step::Prune => &["s1"],
            Step::Recover | Step::ChangeKey => &["s0", "s1"],
        }
    }
}

async fn current(store: &Arc<FaultyStore>) -> Arc<Repository> {
    let repository = open(store, 1);
    match repository.head().await {
        Err(BackupError::Key { .. }) => open(store, 2),
        _ => repository,
    }
}

/// All pieces of the listed backups are sound. Returns the names of their snapshots.
async fn sound(store: &Arc<FaultyStore>) -> Vec<String> {
    let repository = current(store).await;
    let head = repository.head().await.expect("it is sound").unwrap_or_default();
    let report = verify(&repository, &head.backups, false, |_, _| ()).await.expect("it is read");
    let copies = |damage: &crate::verify::Damage| damage.problem.contains("backup recover");
    assert!(report.damage.iter().all(copies), "{report:?}");
    head.backups.into_iter().map(|entry| entry.snapshot.snapshot).collect()
}

/// The same command again, and a prune: nothing is lost, and nothing left over.
async fn finish(step: Step, store: &Arc<FaultyStore>, history: &History, what: &str) {
    step.run(store, history).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(sound(store).await, step.expected(), "{what}");
    let repository = current(store).await;
    let head = repository.head().await.unwrap().unwrap();
    let plan = plan_prune(&head, &Retention::default(), 2_000_000);
    prune(&repository, &plan).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let head = repository.head().await.unwrap().unwrap();
    for entry in &head.backups {
        let volume = restored(&repository, entry).await.expect("it can be restored");
        assert!(volume == history.content(&entry.snapshot), "{}", entry.snapshot.full_name());
    }
    store.assert_no_orphans(&repository, &head).await;
    let report = verify(&repository, &head.backups, true, |_, _| ()).await.expect("it is read");
    assert_eq!(report.damage, [], "{what}");
}

#[test]
fn fault_at_each_request_loses_nothing() {
    let mut interruptions = 0;
    for step in STEPS {
        run(async {
            let (prepared, history) = step.prepared().await;
            for fault in FAULTS {
                for at in 0.. {
                    let store = Arc::new(prepared.fork());
                    store.fail(at, fault);
                    let first = step.run(&store, &history).await;
                    let hit = store.heal();
                    let what = format!("{step:?} {fault:?} {at}");
                    assert!(hit || first.is_ok(), "{what}: {first:?}");
                    if !hit && store.remaining() >= 0 {
                        break;
                    }
                    interruptions += u32::from(hit);
                    if !matches!(step, Step::Recover) {
                        let left = sound(&store).await;
                        let all = step.expected().iter();
                        let kept = |name: &&&str| **name != "s2";
                        for name in all.filter(kept) {
                            assert!(left.iter().any(|other| other == name), "{what}: {left:?}");
                        }
                    }
                    finish(step, &store, &history, &what).await;
                }
            }
        });
    }
    assert!(interruptions > 300, "{interruptions}");
}

#[test]
fn kill_before_each_request_loses_nothing() {
    for step in STEPS {
        run(async {
            let (prepared, history) = step.prepared().await;
            for at in 0.. {
                let store = Arc::new(prepared.fork());
                store.pause(at);
                let mut killed = Box::pin(step.run(&store, &history));
                if store.until_paused(&mut killed).await {
                    assert!(at > 5, "{step:?} {at}");
                    break;
                }
                drop(killed);
                store.resume();
                finish(step, &store, &history, &format!("{step:?} {at}")).await;
            }
        });
    }
}

#[test]
fn fault_of_a_restore_gives_no_wrong_data() {
    run(async {
        let (prepared, history) = Step::Backup.prepared().await;
        let mut refused = 0;
        for fault in FAULTS {
            for at in 0.. {
                let store = Arc::new(prepared.fork());
                let repository = open(&store, 1);
                store.fail(at, fault);
                let volume = async {
                    let head = repository.head().await?.unwrap_or_default();
                    let entry = head.backups.last().expect("two backups").clone();
                    Ok::<_, BackupError>((restored(&repository, &entry).await?, entry))
                };
                let volume = volume.await;
                if !store.heal() && store.remaining() >= 0 {
                    assert!(volume.is_ok());
                    break;
                }
                match volume {
                    Ok((volume, entry)) => assert!(volume == history.content(&entry.snapshot)),
                    Err(_) => refused += 1,
                }
                assert_eq!(sound(&store).await, ["s0", "s1"]);
            }
        }
        assert!(refused > 15, "{refused}");
    });
}
