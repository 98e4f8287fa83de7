//! Tests of legs on a server without listeners: older copies of pools, volumes that hosts still
//! use, pools that are closed meanwhile, and volumes that the configuration does not name any more.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use flagstone_config::device_spec::PoolVolumeSpec;
use flagstone_nbd::ExportLookup;
use flagstone_nvme::Nqn;
use flagstone_runtime::Buf;
use flagstone_runtime::task::yield_now;
use serde_json::json;

use super::encryption_tests::restart;
use super::tests::{Bed, test};
use super::*;

const MIRROR: &str = "[peer.node-b]\naddress = \"127.0.0.1:1\"\ninsecure = true\n[volume.db]\n\
                      device = \"pool:fast/db-leg\"\nmirror = { peer = \"node-b\" }\n";

const DISK_BYTES: u64 = 320 << 20;

fn spec() -> PoolVolumeSpec {
    PoolVolumeSpec { pool: "fast".to_owned(), volume: "db-leg".to_owned() }
}

fn pool(bed: &Bed) -> Pool {
    bed.server.pools.open_pool("fast").unwrap()
}

fn is_leg(bed: &Bed) -> bool {
    pool(bed).volume("db-leg").unwrap().is_leg()
}

/// Opens the leg of `db`, and closes it.
async fn open_leg(bed: &Bed) -> Result<(), String> {
    let db = bed.server.config.volumes.iter().find(|volume| volume.name == "db").unwrap();
    let opened = bed.server.pools.leg_opener().open(db, &spec()).await;
    opened.map(drop).map_err(|error| error.problem)
}

/// A server with pool `fast` on the file `disk` of 320 MiB.
async fn with_pool(more: &str) -> Bed {
    let bed = Bed::with(more).await;
    restore(&bed, &Copy::new());
    bed.create_pool("fast", "disk").await;
    bed
}

/// The same with the leg of `db`, which only its mirror has changed.
async fn with_leg() -> Bed {
    let bed = with_pool(MIRROR).await;
    bed.create_volume("db-leg", json!({})).await.unwrap();
    open_leg(&bed).await.unwrap();
    assert!(is_leg(&bed));
    bed
}

fn disk(bed: &Bed) -> PathBuf {
    bed.scratch.path().join("disk")
}

/// The parts of the disk that have data, by offset.
type Copy = Vec<(u64, Vec<u8>)>;

fn copy(bed: &Bed) -> Copy {
    let file = fs::File::options().read(true).open(disk(bed)).unwrap();
    let read = |offset| {
        let mut part = vec![0; 1 << 20];
        file.read_exact_at(&mut part, offset).unwrap();
        part.iter().any(|byte| *byte != 0).then_some((offset, part))
    };
    (0..DISK_BYTES).step_by(1 << 20).filter_map(read).collect()
}

fn restore(bed: &Bed, copy: &Copy) {
    let file = fs::File::options().create(true).truncate(true).write(true).open(disk(bed)).unwrap();
    file.set_len(DISK_BYTES).unwrap();
    copy.iter().for_each(|(offset, part)| file.write_all_at(part, *offset).unwrap());
}

/// Closes the pool in order.
async fn close(bed: &Bed) {
    let pool = pool(bed);
    pool.close().await.unwrap();
    bed.server.pools.remember_all().await;
    let PoolSlot { set, .. } = bed.server.pools.slot("fast").unwrap();
    let error = OpenPoolError::refused("test".to_owned());
    bed.server.pools.insert("fast", PoolSlot::closed(set, error));
}

/// Removes a mirrored volume that is open, as if it were pending.
fn forget(bed: &Bed, volume: usize) {
    bed.server.mirrors.borrow_mut().clear();
    let configured = bed.server.configured(volume);
    let nqn = Nqn::new(&configured.subsystem.nqn).unwrap();
    bed.server.target.remove_namespace(&nqn, configured.nsid).unwrap();
    bed.server.exports.remove("db");
    bed.server.exports.expect("db").unwrap();
    let fresh = ServedVolume { device: Default::default(), ..(*configured).clone() };
    bed.server.volumes.borrow_mut()[volume] = Rc::new(fresh);
}

async fn import(bed: &Bed) -> Result<Outcome, Problem> {
    let order = bed.make_pool("fast", "disk");
    let order = MakePool { accepted_loss: AcceptedLoss::Any, ..order };
    Box::pin(bed.server.import_pool(order)).await
}

async fn reopen(bed: &Bed) {
    let PoolSlot { set, .. } = bed.server.pools.slot("fast").unwrap();
    Box::pin(bed.server.try_open("fast", set, "", OperatorConsent::default())).await;
}

fn superblock(bed: &Bed) -> Vec<u8> {
    let mut part = vec![0; 64 << 10];
    fs::File::options().read(true).open(disk(bed)).unwrap().read_exact(&mut part).unwrap();
    part
}

#[test]
fn import_records_an_older_copy_before_it_opens_it() {
    test(async {
        let bed = with_leg().await;
        close(&bed).await;
        let older = copy(&bed);
        // The recorded update is by one opening newer.
        reopen(&bed).await;
        assert!(is_leg(&bed), "an opening of the same pool keeps its legs");
        close(&bed).await;
        restore(&bed, &older);
        let before = superblock(&bed);
        let server = bed.server.clone();
        let order = bed.make_pool("fast", "disk");
        let order = MakePool { accepted_loss: AcceptedLoss::Any, ..order };
        let import = spawn(async move { server.import_pool(order).await.map(drop) });
        while superblock(&bed) == before {
            assert!(!import.is_finished(), "the import opens the pool");
            yield_now().await;
        }
        assert!(bed.server.pools.registry.may_be_older("fast"), "before the pool is opened");
        import.await.unwrap().unwrap();
        assert!(!bed.server.pools.registry.may_be_older("fast") && !is_leg(&bed));
    });
}

/// The legs of the older copy counted as current at the next start.
#[test]
fn recorded_release_of_legs_is_done_when_a_pool_opens() {
    test(async {
        let bed = with_leg().await;
        let note = |entry: &mut Option<PoolEntry>| entry.as_mut().unwrap().has_old_legs = true;
        bed.server.pools.registry.change("fast", note).await.unwrap();
        close(&bed).await;
        reopen(&bed).await;
        assert!(!is_leg(&bed), "its content is of an earlier time");
        open_leg(&bed).await.unwrap();
        close(&bed).await;
        reopen(&bed).await;
        assert!(is_leg(&bed), "once");
    });
}

#[test]
fn legs_of_an_imported_older_copy_are_released() {
    test(async {
        let bed = with_leg().await;
        close(&bed).await;
        let older = copy(&bed);
        reopen(&bed).await;
        close(&bed).await;
        import(&bed).await.unwrap();
        assert!(is_leg(&bed), "it is the pool that was open last");
        close(&bed).await;
        restore(&bed, &older);
        import(&bed).await.unwrap();
        assert!(!is_leg(&bed));
    });
}

/// It may be an older copy than its mirrors used last.
#[test]
fn legs_of_an_unknown_pool_are_released() {
    test(async {
        for forget_pool in [true, false] {
            let bed = with_leg().await;
            close(&bed).await;
            let forget = |entry: &mut Option<PoolEntry>| match forget_pool {
                true => *entry = None,
                false => entry.as_mut().unwrap().last_seen = None,
            };
            bed.server.pools.registry.change("fast", forget).await.unwrap();
            match forget_pool {
                true => drop(import(&bed).await.unwrap()),
                false => reopen(&bed).await,
            }
            assert!(!is_leg(&bed));
            open_leg(&bed).await.unwrap();
            close(&bed).await;
            reopen(&bed).await;
            assert!(is_leg(&bed), "it is known now");
        }
    });
}

/// A mirror opened the leg while hosts could still write to it.
#[test]
fn volume_of_hosts_is_no_leg_after_a_rename() {
    test(async {
        let bed = with_pool(MIRROR).await;
        bed.create_volume("other", json!({})).await.unwrap();
        let ExportLookup::Here(used) = bed.server.exports.find("other") else { panic!("served") };
        let server = bed.server.clone();
        let renames =
            async move { server.rename_volume(None, "other", "db-leg", true, false).await };
        let renamed = spawn(renames);
        while pool(&bed).volume("db-leg").is_none() {
            yield_now().await;
        }
        for _ in 0..100 {
            let refused = open_leg(&bed).await.unwrap_err();
            assert!(refused.contains("have not ended"), "{refused}");
            yield_now().await;
        }
        assert!(!is_leg(&bed));
        drop(used);
        renamed.await.unwrap().unwrap();
        open_leg(&bed).await.unwrap();
    });
}

/// A mirror that began meanwhile kept the pool open, and a device of the closed pool.
#[test]
fn leg_that_is_opened_while_its_pool_closes_is_missing() {
    test(async {
        let bed = with_leg().await;
        let volume = bed.server.config.volumes.iter().position(|volume| volume.name == "db");
        let volume = volume.unwrap();
        for steps in (0..60).chain([80, 120, 160, 320]) {
            let server = bed.server.clone();
            let opened = spawn(async move { server.open_now(volume).await });
            for _ in 0..steps {
                yield_now().await;
            }
            let PoolSlot { set, state, .. } = bed.server.pools.slot("fast").unwrap();
            bed.server.pools.insert("fast", PoolSlot::changing(set.clone(), "test"));
            bed.server.release_legs("fast").await;
            drop(state);
            let consent = OperatorConsent::default();
            Box::pin(bed.server.try_open("fast", set, "", consent)).await;
            let slot = bed.server.pools.slot("fast").unwrap();
            if let PoolState::Closed { reason, .. } = slot.state {
                panic!("after {steps} steps: {reason}");
            }
            match opened.await.unwrap() {
                Ok(()) => {
                    let mirrored = bed.server.mirror_of(volume).unwrap();
                    while !mirrored.has_device() {
                        mirrored.retry_now();
                        yield_now().await;
                    }
                    mirrored.abandon().await;
                    forget(&bed, volume);
                }
                Err(error) => assert!(error.may_pass(), "{error}"),
            }
        }
    });
}

/// Both copies were stale, although no host had written.
#[test]
fn former_leg_is_current_until_hosts_write() {
    test(async {
        let bed = with_pool("").await;
        bed.create_volume("db", json!({})).await.unwrap();
        let info = || pool(&bed).volume("db").unwrap();
        pool(&bed).take_leg(&info()).await.unwrap();
        let served = || {
            let volumes = bed.server.volumes();
            let db = volumes.into_iter().find(|volume| volume.name() == "db").unwrap();
            db.device.get().unwrap().clone()
        };
        restart(&bed).await;
        bed.set(json!({"read_only": true})).await.unwrap();
        bed.set(json!({"read_only": null, "limit": {"iops": 1000}})).await.unwrap();
        restart(&bed).await;
        served().flush().await.unwrap();
        assert!(info().is_leg());
        served().write(0, Buf::copy_of(&[1; 4096]).unwrap(), false).await.unwrap();
        assert!(!info().is_leg());
        restart(&bed).await;
        assert!(!info().is_leg());
    });
}

#[test]
fn rollback_of_a_former_leg_makes_it_stale() {
    test(async {
        let bed = with_pool("").await;
        bed.create_volume("db", json!({})).await.unwrap();
        let info = || pool(&bed).volume("db").unwrap();
        pool(&bed).take_leg(&info()).await.unwrap();
        bed.server.create_snapshots(&["db@a".to_owned()], false).await.unwrap();
        assert!(info().is_leg());
        bed.server.rollback("db@a", false, false).await.unwrap();
        assert!(!info().is_leg());
    });
}

/// The answer was that no volume lacks writes which its mirror does not have.
#[test]
fn lost_tail_names_the_mirrored_volumes() {
    test(async {
        let bed = with_leg().await;
        let preview = async || bed.server.give_up_tail("fast", true).await.unwrap();
        let open = preview().await;
        assert!(!open.changed && !open.outcome.contains("db"), "{open:?}");
        close(&bed).await;
        let closed = preview().await;
        let loss = closed.data_loss.unwrap();
        assert!(loss.contains("mirrored volume db (leg db-leg), unless node-b"), "{loss}");
    });
}
