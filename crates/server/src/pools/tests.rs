//! Tests of orders on a server without listeners. Its pools are files.

use std::future::Future;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::BlockDevice as _;
use flagstone_config::Config;
use flagstone_nbd::ExportLookup;
use flagstone_nvme::Nqn;
use flagstone_pool::stream::frame::StreamFrame;
use flagstone_runtime::{Buf, block_on};
use flagstone_stack::keys;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::reservations::ReservationSupport;
use crate::serve::open;
use crate::signals::Signals;

/// A server, and the folder of its files.
pub(super) struct Bed {
    pub(super) server: Rc<Server>,
    pub(super) scratch: TempDir,
}

impl Bed {
    pub(super) async fn start() -> Bed {
        Bed::with("").await
    }

    /// A server whose configuration ends with this text.
    pub(super) async fn with(more: &str) -> Bed {
        let scratch = tempfile::tempdir().unwrap();
        let state = scratch.path().join("state");
        let text = format!(
            "[server]\nstate = {state:?}\nlisten = [\"nvme-tcp://127.0.0.1:0\"]\nnode = \"node-a\"\n\
             [server.nvme]\nqueue_depth = 32\n[volume.own]\ndevice = \"memory:1MiB\"\n{more}"
        );
        let config = Config::parse("f", &text).unwrap_or_else(|error| panic!("{error}"));
        let server = open(config, &Signals::catch().unwrap()).await.unwrap().unwrap();
        Bed { server: Rc::new(server), scratch }
    }

    /// A server with pool `fast` on the file `disk`, and volume `db` of 16 MiB.
    pub(super) async fn with_volume() -> Bed {
        let bed = Bed::start().await;
        bed.create_pool("fast", "disk").await;
        bed.create_volume("db", json!({})).await.unwrap();
        bed
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        let path = self.scratch.path().join(name);
        let file = std::fs::File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.unwrap();
        if file.metadata().unwrap().len() == 0 {
            file.set_len(1 << 30).unwrap();
        }
        path
    }

    /// An order on a pool that is on this file.
    pub(super) fn make_pool(&self, name: &str, file: &str) -> MakePool {
        MakePool {
            name: name.to_owned(),
            devices: vec![self.file(file).to_str().unwrap().to_owned()],
            log: None,
            redundancy: Default::default(),
            accept_ephemeral: false,
            destroy_data: Vec::new(),
            accepted_loss: AcceptedLoss::new(false, None),
            dry_run: false,
        }
    }

    pub(super) async fn create_pool(&self, name: &str, file: &str) {
        let make = self.make_pool(name, file);
        // Boxed, because the stack of a test is small.
        Box::pin(self.server.create_pool(make)).await.unwrap();
    }

    pub(super) async fn create_volume(
        &self,
        name: &str,
        settings: Value,
    ) -> Result<Outcome, Problem> {
        let make = MakeVolume {
            name: name.to_owned(),
            pool: "fast".to_owned(),
            size_bytes: 16 << 20,
            thick: false,
            settings: table(settings),
            dry_run: false,
        };
        Box::pin(self.server.create_volume(make)).await
    }

    pub(super) async fn set(&self, settings: Value) -> Result<Outcome, Problem> {
        let set = SetVolume {
            name: "db".to_owned(),
            thick: None,
            settings: table(settings),
            force: false,
            dry_run: false,
        };
        Box::pin(self.server.set_volume(set)).await
    }

    pub(super) async fn remove_device(&self, file: &str, cancel: bool) -> Result<Outcome, Problem> {
        let device = self.scratch.path().join(file).to_str().unwrap().to_owned();
        let (name, dry_run) = ("fast".to_owned(), false);
        self.server.clone().remove_device(RemoveDevice { name, device, cancel, dry_run }).await
    }

    /// Has a pool `slow` that is not open.
    fn with_closed_pool(&self) {
        let error = OpenPoolError::refused("a device is missing".to_owned());
        let set = vec!["/dev/missing".to_owned()].into();
        self.server.pools.insert("slow", PoolSlot::closed(set, error));
        self.server.note_missing_volumes();
    }

    pub(super) async fn write(&self, volume: &str, byte: u8) {
        let pool = self.server.pools.open_pool("fast").unwrap();
        let device = pool.open_volume(volume).unwrap();
        device.write(0, Buf::copy_of(&[byte; 4096]).unwrap(), false).await.unwrap();
    }

    /// The stream of a snapshot.
    pub(super) async fn stream(&self, full: &str) -> Vec<u8> {
        let (mut bytes, mut next) = (Vec::new(), Some(0));
        while let Some(at) = next {
            let part = self.server.send_part(full, None, at).await.unwrap();
            bytes.extend(part.bytes);
            next = part.next;
        }
        bytes
    }

    async fn receive(&self, name: &str, bytes: &[u8]) -> String {
        let part = received(name, None, bytes);
        let answer = self.server.receive_part(part).await.unwrap();
        assert!(answer.complete, "{answer:?}");
        answer.outcome
    }
}

fn received<'a>(name: &'a str, key_file: Option<&'a str>, bytes: &'a [u8]) -> ReceivePart<'a> {
    ReceivePart { name, pool: Some("fast"), compression: None, key_file, force: false, bytes }
}

pub(super) fn table(value: Value) -> Settings {
    value.as_object().unwrap().clone()
}

pub(super) fn test(body: impl Future<Output = ()>) {
    block_on(body).unwrap();
}

/// The answer was that there is nothing to do, with success.
#[test]
fn volume_of_closed_pool_does_not_count_as_deleted() {
    test(async {
        let bed = Bed::with_volume().await;
        bed.with_closed_pool();
        for refused in [
            bed.server.delete_volume(None, "x", false, false).await,
            bed.server.delete_snapshot("x@a", false).await,
            bed.server.rename_volume(None, "x", "db", false, false).await,
        ] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.status, 409, "{refused:?}");
            assert!(refused.detail.contains("pool slow is not open"), "{}", refused.detail);
        }
        let refused = bed.server.resize_volume("x", Some(32 << 20), false).await.unwrap_err();
        assert_eq!(refused.status, 404);
        assert!(refused.detail.contains("slow is not open"), "{}", refused.detail);
        let named = bed.server.delete_volume(Some("fast"), "x", false, false).await.unwrap();
        assert!(!named.changed);
    });
}

/// A fenced host could write again after the volume was renamed.
#[test]
fn reservations_outlive_orders_on_their_volume() {
    test(async {
        let bed = Bed::with_volume().await;
        let state = |name: &str| {
            let volumes = bed.server.volumes();
            let volume = volumes.iter().find(|volume| volume.name() == name).unwrap();
            match bed.server.reservations_of(volume).unwrap() {
                ReservationSupport::Hosts(state) => state,
                ReservationSupport::None => panic!("{name} has no reservations"),
            }
        };
        let before = state("db");
        assert!(before.is_needed(), "{before:?}");
        bed.server.create_snapshots(&["db@a".to_owned()], false).await.unwrap();
        bed.write("db", 1).await;
        bed.server.rollback("db@a", true, false).await.unwrap();
        assert_eq!(state("db"), before);
        bed.server.rename_volume(None, "db", "x", true, false).await.unwrap();
        assert_eq!(state("x"), before);
        bed.server.delete_snapshot("x@a", false).await.unwrap();
        bed.server.delete_volume(None, "x", true, false).await.unwrap();
        bed.create_volume("x", json!({})).await.unwrap();
        assert_ne!(state("x"), before);
        // Regression: a volume with the UUID of a deleted one had its reservations.
        let uuid = json!({ "uuid": "f7f3d3c2-0bd0-4a4c-9d51-1f3f5b2a7f01" });
        bed.create_volume("same", uuid.clone()).await.unwrap();
        let record =
            bed.scratch.path().join("state/reservations").join(uuid["uuid"].as_str().unwrap());
        std::fs::create_dir_all(record.parent().unwrap()).unwrap();
        std::fs::write(&record, "a record").unwrap();
        bed.server.delete_volume(None, "same", true, false).await.unwrap();
        assert!(!record.exists());
        bed.create_volume("same", uuid).await.unwrap();
        assert!(!before.is_needed(), "the server keeps the state of a deleted volume");
    });
}

#[test]
fn deletions_are_idempotent_while_all_pools_are_open() {
    test(async {
        let bed = Bed::with_volume().await;
        for outcome in [
            bed.server.delete_volume(None, "x", false, false).await.unwrap(),
            bed.server.delete_snapshot("db@x", false).await.unwrap(),
            bed.server.delete_snapshot("x@x", false).await.unwrap(),
        ] {
            assert!(!outcome.changed && outcome.outcome.ends_with("nothing to do"), "{outcome:?}");
        }
    });
}

/// The answer was that the volume has these settings already.
#[test]
fn misspelled_setting_is_not_removed() {
    test(async {
        let bed = Bed::with_volume().await;
        let refused = bed.set(json!({"limits": null})).await.unwrap_err();
        assert!(refused.detail.contains("did you mean `limit`?"), "{}", refused.detail);
        assert!(!bed.set(json!({"limit": null})).await.unwrap().changed);
        let refused = bed.create_volume("x", json!({"readonly": null})).await.unwrap_err();
        assert!(refused.detail.contains("`read_only`"), "{}", refused.detail);
    });
}

/// The answer was that the volume has the content of the snapshot.
#[test]
fn repeated_receive_knows_later_writes() {
    test(async {
        let bed = Bed::with_volume().await;
        bed.write("db", 1).await;
        bed.server.create_snapshots(&["db@a".to_owned()], false).await.unwrap();
        let stream = bed.stream("db@a").await;
        let whole = "volume copy has the content of copy@a";
        assert_eq!(bed.receive("copy", &stream).await, whole);
        assert_eq!(bed.receive("copy", &stream).await, whole);
        // The answer was a success, as if the volume were encrypted.
        let with_key = received("copy", Some("/etc/flagstone/key"), &stream);
        let refused = bed.server.receive_part(with_key).await.unwrap_err().detail;
        assert!(refused.contains("is not encrypted"), "{refused}");
        bed.write("copy", 2).await;
        let later = bed.receive("copy", &stream).await;
        assert!(later.contains("copy@a was received before"), "{later}");
        assert!(later.contains("volume copy has changed since"), "{later}");
    });
}

/// The answer was a success, as if it had been removed.
#[test]
fn unknown_device_is_not_removed() {
    test(async {
        let bed = Bed::with_volume().await;
        let refused = bed.remove_device("disc", false).await.unwrap_err();
        assert_eq!(refused.status, 404, "{refused:?}");
        assert_eq!(refused.accepted.len(), 1, "{refused:?}");
        assert!(refused.accepted[0].ends_with("/disk"), "{refused:?}");
    });
}

/// The order ended the removal of the other device, which stayed recorded.
#[test]
fn cancel_of_another_device_keeps_a_removal() {
    test(async {
        let bed = Bed::with_volume().await;
        let device = bed.file("second").to_str().unwrap().to_owned();
        let (name, destroy_data, dry_run) = ("fast".to_owned(), Vec::new(), false);
        let grow = GrowPool { name, devices: vec![device], destroy_data, dry_run };
        bed.server.grow_pool(grow).await.unwrap();
        assert!(bed.remove_device("disk", false).await.unwrap().changed);
        assert!(!bed.remove_device("second", true).await.unwrap().changed);
        for _ in 0..3000 {
            if bed.server.pools.removal("fast").is_none() {
                break;
            }
            time::sleep(Duration::from_millis(10)).await;
        }
        let devices = bed.server.pools.slot("fast").unwrap().set.devices;
        assert!(devices.len() == 1 && devices[0].ends_with("/second"), "{devices:?}");
        // The answer to the order may have been lost.
        let again = bed.remove_device("disk", false).await.unwrap();
        assert!(!again.changed && again.outcome.contains("was removed"), "{again:?}");
        assert!(bed.remove_device("disk", true).await.is_err());
    });
}

#[test]
fn dry_run_refuses_the_sizes_that_the_resize_refuses() {
    test(async {
        let bed = Bed::with_volume().await;
        for size_bytes in [0, 4096, (16 << 20) + 512, 1 << 60] {
            let of = |dry_run| bed.server.resize_volume("db", Some(size_bytes), dry_run);
            let (dry, deed) = (of(true).await, of(false).await);
            assert!(deed.is_err(), "{size_bytes}: {deed:?}");
            assert_eq!(dry, deed, "{size_bytes}");
        }
    });
}

#[test]
fn dry_run_of_a_plain_resize_compares_the_size() {
    test(async {
        let bed = Bed::with_volume().await;
        for size_bytes in [None, Some(1 << 20), Some(2 << 20)] {
            let of = |dry_run| bed.server.resize_volume("own", size_bytes, dry_run);
            let (dry, deed) = (of(true).await, of(false).await);
            assert_eq!(dry, deed, "{size_bytes:?}");
        }
    });
}

/// Hosts would give up a volume that comes back.
#[test]
fn only_hosts_of_missing_volumes_wait() {
    test(async {
        let bed = Bed::with_volume().await;
        let (db, other) = (nqn_of("db"), nqn_of("other"));
        let waits = |nqn: &Nqn| bed.server.target.may_come(nqn);
        assert!(!waits(&db) && !waits(&other));
        let settings = json!({"nqn": "nqn.2026-01.io.x:y"});
        bed.create_volume("named", settings).await.unwrap();
        let unserved = |name: &str| {
            let mut slots = bed.server.pools.slots.borrow_mut();
            let slot = slots.get_mut("fast").unwrap();
            slot.unserved.insert(name.to_owned(), "why".to_owned());
        };
        unserved("db");
        unserved("named");
        bed.server.note_missing_volumes();
        assert!(waits(&db) && waits(&Nqn::new("nqn.2026-01.io.x:y").unwrap()));
        assert!(!waits(&other) && !waits(&nqn_of("named")));
        // A closed pool may have any volume.
        bed.with_closed_pool();
        assert!(waits(&other));
    });
}

fn nqn_of(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.io.flagstone:{name}")).unwrap()
}

/// Hosts of the second volume were told that it does not exist.
#[test]
fn former_owner_of_a_name_does_not_end_its_retirement() {
    test(async {
        let bed = Bed::with_volume().await;
        let served = |name: &str| {
            let volumes = bed.server.volumes();
            volumes.into_iter().find(|volume| volume.name() == name).unwrap()
        };
        let former = served("db");
        let former_id = former.pool.as_ref().unwrap().id;
        bed.server.retire(&former).await.unwrap();
        bed.create_volume("heir", json!({"nqn": nqn_of("db").as_str()})).await.unwrap();
        bed.server.retire(&served("heir")).await.unwrap();
        let moved = Nqn::new("nqn.2026-01.io.x:moved").unwrap();
        bed.server.end_retirement(former_id, Some(&moved));
        assert!(bed.server.target.subsystem_status(&nqn_of("db")).is_ok());
    });
}

/// Hosts of a discovery controller were told about a change.
#[test]
fn dry_run_suspends_no_subsystem() {
    test(async {
        let bed = Bed::with_volume().await;
        bed.server.create_snapshots(&["db@a".to_owned()], false).await.unwrap();
        bed.create_volume("x", json!({})).await.unwrap();
        let before = bed.server.target.discovery_generation();
        bed.server.rollback("db@a", false, true).await.unwrap();
        bed.server.rename_volume(None, "db", "new", false, true).await.unwrap();
        bed.server.delete_volume(None, "x", false, true).await.unwrap();
        let name = "fast".to_owned();
        let destroy = DestroyPool { name, force: false, dry_run: true };
        bed.server.destroy_pool(destroy).await.unwrap();
        assert_eq!(bed.server.target.discovery_generation(), before);
    });
}

/// A client could attach between the question and the retirement.
#[test]
fn detached_volume_admits_no_nbd_client() {
    test(async {
        let bed = Bed::with_volume().await;
        let finds = || bed.server.exports.find("db");
        let detached = bed.server.keep_detached(&bed.server.volumes_of("fast"), false).unwrap();
        assert!(matches!(finds(), ExportLookup::Expected), "{:?}", finds());
        drop(detached);
        assert!(matches!(finds(), ExportLookup::Here(_)), "{:?}", finds());
    });
}

/// Regression: the order began with no settings, and removed the allowed hosts without a word.
#[test]
fn unreadable_settings_are_replaced_only_by_force() {
    test(async {
        let bed = Bed::with_volume().await;
        bed.set(json!({ "allow_hosts": ["nqn.2014-08.org.example:host"] })).await.unwrap();
        let pool = bed.server.pools.open_pool("fast").unwrap();
        let properties = [("settings.version".to_owned(), "9".to_owned())].into();
        pool.set_volume("db", false, properties).await.unwrap();
        let refused = bed.set(json!({ "read_only": true })).await.unwrap_err();
        assert!(refused.detail.contains("--force"), "{}", refused.detail);
        let set = SetVolume {
            name: "db".to_owned(),
            thick: None,
            settings: table(json!({ "read_only": true })),
            force: true,
            dry_run: true,
        };
        let preview = bed.server.set_volume(set).await.unwrap();
        assert!(preview.data_loss.unwrap().contains("allowed hosts"));
    });
}

/// Regression: the refused stream of another client ended a receive in progress.
#[test]
fn refused_stream_does_not_end_a_receive() {
    test(async {
        let bed = Bed::with_volume().await;
        bed.write("db", 1).await;
        let pool = bed.server.pools.open_pool("fast").unwrap();
        pool.create_snapshot(&["db"], "a").await.unwrap();
        bed.write("db", 2).await;
        pool.create_snapshot(&["db"], "b").await.unwrap();
        let (first, second) = (bed.stream("db@a").await, bed.stream("db@b").await);
        let len = |bytes: &[u8]| StreamFrame::decode(bytes).unwrap().unwrap().1;
        let (begin, rest) = first.split_at(len(&first));
        let part = |bytes| ReceivePart {
            name: "copy",
            pool: Some("fast"),
            compression: None,
            key_file: None,
            bytes,
            force: false,
        };
        assert!(!bed.server.receive_part(part(begin)).await.unwrap().complete);
        let other = &second[..len(&second)];
        assert!(bed.server.receive_part(part(other)).await.is_err());
        assert!(bed.server.receive_part(part(rest)).await.unwrap().complete);
    });
}

/// Regression: an order on a volume read the key of the withdrawn host again, for all volumes.
#[test]
fn withdrawn_host_gets_no_key_with_a_new_volume() {
    test(async {
        let secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
        let keys = tempfile::tempdir().unwrap();
        let file = keys.path().join("web.key");
        std::fs::write(&file, secret).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let host = format!("[host.web]\nnqn = \"nqn.2026-01.io.x:web\"\nkey_file = {file:?}\n");
        let bed = Bed::with(&host).await;
        bed.create_pool("fast", "disk").await;
        bed.create_volume("db", json!({})).await.unwrap();
        let ring = keys::host_pair(&file, None).unwrap().host;
        let without_host = Config { hosts: Vec::new(), ..(*bed.server.config).clone() };
        let reloaded = bed.server.reload(Ok(without_host)).unwrap();
        assert_eq!((reloaded.withdrawn_hosts.len(), ring.secrets().len()), (1, 0));
        bed.create_volume("web", json!({})).await.unwrap();
        assert_eq!(ring.secrets().len(), 0);
        std::fs::remove_file(&file).unwrap();
        bed.create_volume("more", json!({})).await.unwrap();
    });
}
