//! Tests of orders: their answers are true, dry runs refuse what the orders refuse, and a refused
//! order changes nothing.

use flagstone_blockdev::BlockDevice as _;
use flagstone_pool::PoolError;
use flagstone_runtime::Buf;
use serde_json::{Value, json};

use super::snapshot_orders::CloneVolume;
use super::stream_orders::ReceivePart;
use super::tests::{Bed, test};
use super::volume_orders::{MakeVolume, SetVolume};
use super::volume_state::RECEIVING_KEY;
use super::*;

const MIB: u64 = 1 << 20;

/// Configuration of a mirrored volume with this name.
fn mirrored(name: &str) -> String {
    format!(
        "[volume.{name}]\ndevice = \"pool:fast/{name}-leg\"\nmirror = {{ peer = \"node-b\" }}\n"
    )
}

impl Bed {
    fn pool(&self) -> Pool {
        self.server.pools.open_pool("fast").unwrap()
    }

    async fn snapshot(&self, full: &str) -> Outcome {
        self.server.create_snapshots(&[full.to_owned()], false).await.unwrap()
    }

    async fn clone_of(
        &self,
        snapshot: &str,
        name: &str,
        settings: Value,
    ) -> Result<Outcome, Problem> {
        let (name, snapshot) = (name.to_owned(), snapshot.to_owned());
        let settings = super::tests::table(settings);
        let order = CloneVolume { name, snapshot, settings, dry_run: false };
        Box::pin(self.server.clone_volume(order)).await
    }

    async fn create_thick(&self, name: &str, size_bytes: u64) {
        let (name, pool) = (name.to_owned(), "fast".to_owned());
        let settings = Settings::new();
        let make = MakeVolume { name, pool, size_bytes, thick: true, settings, dry_run: false };
        Box::pin(self.server.create_volume(make)).await.unwrap();
    }

    async fn set_thick(&self, name: &str, dry_run: bool) -> Result<Outcome, Problem> {
        let (name, settings) = (name.to_owned(), Settings::new());
        let set = SetVolume { name, thick: Some(true), settings, force: false, dry_run };
        Box::pin(self.server.set_volume(set)).await
    }

    /// Writes the first 16 MiB of a volume.
    async fn write_all(&self, volume: &str, byte: u8) {
        let device = self.pool().open_volume(volume).unwrap();
        for place in 0..16 {
            let data = Buf::copy_of(&vec![byte; MIB as usize]).unwrap();
            device.write(place * MIB, data, false).await.unwrap();
        }
        self.pool().checkpoint().await.unwrap();
    }

    /// Leaves less than 4 MiB of the pool free.
    async fn fill(&self) {
        let status = self.pool().status();
        let free = status.capacity_bytes - status.used_bytes - status.reserved_bytes;
        self.create_thick("big", free - free % MIB - 2 * MIB).await;
    }

    async fn receive_part(&self, name: &str, force: bool, bytes: &[u8]) -> Result<String, Problem> {
        let (pool, compression, key_file) = (Some("fast"), None, None);
        let part = ReceivePart { name, pool, compression, key_file, force, bytes };
        Box::pin(self.server.receive_part(part)).await.map(|answer| answer.outcome)
    }
}

/// Regression: a snapshot of a clone hid its origin. The promotion did nothing, and the origin
/// could not be deleted.
#[test]
fn clone_with_snapshots_is_promoted() {
    test(async {
        let bed = Bed::with_volume().await;
        bed.snapshot("db@a").await;
        bed.clone_of("db@a", "test", json!({})).await.unwrap();
        bed.snapshot("test@x").await;
        let again = bed.clone_of("db@a", "test", json!({})).await.unwrap();
        assert!(!again.changed, "{again:?}");
        let origin = || bed.server.required("test").unwrap().info.origin;
        assert_eq!(origin().as_deref(), Some("db@a"));
        let listed = bed.pool().snapshots();
        assert_eq!(listed[0].clones, ["test"]);
        let promoted = bed.server.promote_volume("test", false).await.unwrap();
        assert!(promoted.changed, "{promoted:?}");
        assert_eq!(origin(), None);
        let names: Vec<String> =
            bed.pool().snapshots().into_iter().map(|found| found.name).collect();
        assert_eq!(names, ["test@a", "test@x"]);
        let again = bed.server.promote_volume("test", false).await.unwrap();
        assert!(!again.changed, "{again:?}");
    });
}

/// Regression: the volume stayed out of service, as one that was not received in full.
#[test]
fn refused_forced_receive_leaves_the_volume_in_service() {
    test(async {
        let bed = Bed::with_volume().await;
        bed.write("db", 1).await;
        bed.snapshot("db@a").await;
        let whole = bed.stream("db@a").await;
        bed.receive_part("copy", false, &whole).await.unwrap();
        bed.set_thick("copy", false).await.unwrap();
        bed.write_all("copy", 2).await;
        bed.write("db", 3).await;
        bed.snapshot("db@b").await;
        bed.fill().await;
        let part = bed.server.send_part("db@b", Some("db@a"), 0).await.unwrap();
        for _ in 0..2 {
            let refused = bed.receive_part("copy", true, &part.bytes).await.unwrap_err();
            assert!(refused.detail.contains("no space") || refused.status == 409, "{refused:?}");
            let found = bed.server.required("copy").unwrap();
            assert!(!found.info.properties.contains_key(RECEIVING_KEY), "{refused:?}");
            assert!(found.served.is_some(), "{refused:?}");
        }
    });
}

/// Regression: the superblock of the second device stayed, and the answer was that the creation of
/// the pool did not complete.
#[test]
fn interrupted_destruction_is_completed() {
    test(async {
        let bed = Bed::start().await;
        let make = || MakePool {
            devices: ["disk", "disk2"]
                .map(|file| bed.file(file).to_str().unwrap().to_owned())
                .into(),
            ..bed.make_pool("fast", "disk")
        };
        Box::pin(bed.server.create_pool(make())).await.unwrap();
        bed.create_volume("db", json!({})).await.unwrap();
        // As a crash between the two devices leaves them.
        let PoolSlot { set, .. } = bed.server.pools.slot("fast").unwrap();
        Box::pin(bed.server.retire_all(bed.server.volumes_of("fast"))).await.unwrap();
        let mark = |entry: &mut Option<PoolEntry>| entry.as_mut().unwrap().destroying = true;
        bed.server.pools.registry.change("fast", mark).await.unwrap();
        bed.server.pools.insert("fast", PoolSlot::changing(set.clone(), "test"));
        std::fs::File::create(bed.file("disk")).unwrap().set_len(1 << 30).unwrap();
        Box::pin(bed.server.try_open("fast", set, "", OperatorConsent::default())).await;
        let PoolState::Closed { reason, .. } = bed.server.pools.slot("fast").unwrap().state else {
            panic!("it is open")
        };
        assert!(reason.contains("flagstone pool destroy fast"), "{reason}");
        let order = |dry_run| DestroyPool { name: "fast".to_owned(), force: false, dry_run };
        let planned = Box::pin(bed.server.destroy_pool(order(true))).await.unwrap();
        let done = Box::pin(bed.server.destroy_pool(order(false))).await.unwrap();
        assert_eq!((planned.changed, &planned.data_loss), (done.changed, &done.data_loss));
        assert!(done.outcome.starts_with(&planned.outcome), "{planned:?} {done:?}");
        // The new file in place of the first device.
        assert!(done.outcome.contains("disk had no superblock of it"), "{done:?}");
        assert!(done.changed && done.outcome.contains("disk2"), "{done:?}");
        assert!(bed.server.pools.slot("fast").is_err());
        let second = open_devices(&make().devices[1..]).await.unwrap();
        let examined = Pool::examine(&second).await;
        assert!(matches!(examined, Err(PoolError::NotAPool { .. })), "{examined:?}");
    });
}

#[test]
fn dry_runs_refuse_orders_without_space() {
    test(async {
        let bed = Bed::with_volume().await;
        bed.create_thick("thick", 16 * MIB).await;
        bed.snapshot("thick@a").await;
        bed.write_all("thick", 1).await;
        bed.fill().await;
        let names = ["thick@b".to_owned()];
        for dry_run in [true, false] {
            bed.server.create_snapshots(&names, dry_run).await.unwrap_err();
            bed.server.rollback("thick@a", true, dry_run).await.unwrap_err();
            bed.set_thick("db", dry_run).await.unwrap_err();
        }
    });
}

#[test]
fn dry_run_refuses_a_promotion_to_one_name() {
    test(async {
        let bed = Bed::with_volume().await;
        bed.snapshot("db@a").await;
        bed.clone_of("db@a", "test", json!({})).await.unwrap();
        bed.snapshot("test@a").await;
        for dry_run in [true, false] {
            let refused = bed.server.promote_volume("test", dry_run).await.unwrap_err();
            assert_eq!(refused.status, 409, "{refused:?}");
        }
    });
}

/// Regression: the dry run packed compressed units, made a checkpoint, and began to move.
#[test]
fn dry_run_of_a_removal_writes_nothing() {
    test(async {
        let bed = Bed::start().await;
        let mut make = bed.make_pool("fast", "disk");
        let second = bed.file("disk2").to_str().unwrap().to_owned();
        make.devices.push(second.clone());
        Box::pin(bed.server.create_pool(make)).await.unwrap();
        bed.create_volume("db", json!({})).await.unwrap();
        bed.write_all("db", 1).await;
        bed.write("db", 2).await;
        let before = bed.pool().identity().update;
        let order = || RemoveDevice {
            name: "fast".to_owned(),
            device: second.clone(),
            cancel: false,
            dry_run: true,
        };
        let planned = bed.server.clone().remove_device(order()).await.unwrap();
        assert!(planned.changed, "{planned:?}");
        assert_eq!(bed.pool().identity().update, before, "{planned:?}");
        bed.fill().await;
        bed.server.clone().remove_device(order()).await.unwrap_err();
    });
}

/// Regression: a pool whose devices were replaced often enough could not grow any more, without a
/// warning before.
#[test]
fn last_places_for_devices_are_announced() {
    test(async {
        let bed = Bed::start().await;
        let path = |number: usize| bed.file(&format!("disk{number}")).to_str().unwrap().to_owned();
        let devices: Vec<String> = (0..13).map(path).collect();
        let first = devices[0].clone();
        let make = MakePool { devices, ..bed.make_pool("fast", "disk") };
        Box::pin(bed.server.create_pool(make)).await.unwrap();
        let (name, dry_run, cancel) = ("fast".to_owned(), true, false);
        let order = || RemoveDevice { name: name.clone(), device: first.clone(), cancel, dry_run };
        let planned = bed.server.clone().remove_device(order()).await.unwrap();
        assert!(!planned.outcome.contains("can get"), "{planned:?}");
        let device = path(13);
        let (destroy_data, dry_run) = (Vec::new(), false);
        let grow = GrowPool { name: name.clone(), devices: vec![device], destroy_data, dry_run };
        let grown = Box::pin(bed.server.grow_pool(grow)).await.unwrap();
        let planned = bed.server.clone().remove_device(order()).await.unwrap();
        for outcome in [grown, planned] {
            assert!(outcome.outcome.contains("can get 2 devices"), "{outcome:?}");
        }
    });
}

/// Regression: the answers did not say that the volume is a leg, which is not served.
#[test]
fn volume_with_the_name_of_a_leg_is_a_leg() {
    test(async {
        let peer = "[peer.node-b]\naddress = \"127.0.0.1:1\"\ninsecure = true\n";
        let volumes = ["a", "b", "c"].map(mirrored).concat();
        let bed = Bed::with(&format!("{peer}{volumes}")).await;
        bed.create_pool("fast", "disk").await;
        bed.create_volume("other", json!({})).await.unwrap();
        bed.write("other", 1).await;
        bed.snapshot("other@a").await;
        let limit = json!({"limit": {"iops": 1000}});
        let refused = bed.clone_of("other@a", "a-leg", limit).await.unwrap_err();
        assert!(refused.detail.contains("is the leg of mirrored volume a"), "{refused:?}");
        let is_of_leg = |outcome: &Outcome, mirrored: &str| {
            let next = outcome.next.as_deref().unwrap_or_default();
            assert!(next.contains(&format!("flagstone mirror status {mirrored}")), "{outcome:?}");
        };
        is_of_leg(&bed.clone_of("other@a", "a-leg", json!({})).await.unwrap(), "a");
        let whole = bed.stream("other@a").await;
        let outcome = bed.receive_part("b-leg", false, &whole).await.unwrap();
        assert!(outcome.contains("leg of mirrored volume b"), "{outcome}");
        let renamed = bed.server.rename_volume(None, "other", "c-leg", true, false).await.unwrap();
        is_of_leg(&renamed, "c");
        let loss = renamed.data_loss.unwrap();
        assert!(loss.contains("mirror"), "{loss}");
    });
}
