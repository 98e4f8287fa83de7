//! Operator of a pool scenario: one random order or fault after another. After an order that was
//! not answered, it looks whether that took effect.

use flagstone_pool::{Pool, VolumeError};
use flagstone_runtime::time;

use super::checks::content;
use super::cluster::{Answer, Cluster, Snapshot, TIMEOUT};
use super::faults;

const VOLUMES_MAX: usize = 4;
const SNAPSHOTS_MAX: usize = 5;
const BLOCKS_MAX: u64 = 256;

/// One order or fault.
pub(super) async fn step(cluster: &mut Cluster) {
    if cluster.needs_reopening() {
        cluster.kill(false);
        cluster.restart();
    }
    if cluster.reopened().await.is_none() {
        return;
    }
    // Faulty disks have twice as many disturbances.
    let choice = cluster.sim.random_between(0, if cluster.profile.faulty { 17 } else { 15 });
    // Models no longer know what damaged volumes have.
    if cluster.damaged && choice < 10 {
        return faults::crash(cluster).await;
    }
    match choice {
        0..3 => snapshot(cluster).await,
        3 => delete_snapshot(cluster).await,
        4 | 5 => clone(cluster).await,
        6 => roll_back(cluster).await,
        7 => delete_clone(cluster).await,
        8 => resize(cluster).await,
        9 => look(cluster).await,
        10 => stop_in_order(cluster).await,
        11..14 => faults::crash(cluster).await,
        _ => faults::disturb(cluster).await,
    }
}

/// What an order does in a full pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It always works.
    Deletion,
    Other,
}

impl Cluster {
    /// Whether an order took effect. After a crash, or a failure of a device, the pool says.
    async fn took_effect(
        &mut self,
        kind: Kind,
        answer: Answer,
        exists: impl Fn(&Pool) -> bool,
    ) -> Option<bool> {
        match answer {
            Answer::Done(Ok(())) => return Some(true),
            Answer::Done(Err(VolumeError::InUse { .. } | VolumeError::HasSnapshots { .. })) => {
                return Some(false);
            }
            Answer::Done(Err(
                VolumeError::Full { .. }
                | VolumeError::NoSpace { .. }
                | VolumeError::VolumeTableFull { .. },
            )) if self.profile.full && kind == Kind::Other => return Some(false),
            Answer::Done(Err(VolumeError::Io(_))) if self.profile.faulty => {
                // A failed read of a map fails the order, and not the pool.
                if self.needs_reopening() {
                    self.kill(false);
                    self.restart();
                }
            }
            Answer::Done(Err(error)) => panic!("an order is refused: {error}"),
            Answer::Unknown => {}
        }
        self.reopened().await.as_ref().map(exists)
    }

    fn pick(&self, count: usize) -> Option<usize> {
        (count > 0).then(|| self.sim.random_between(0, count as u64 - 1) as usize)
    }
}

fn has_snapshot(pool: &Pool, name: &str) -> bool {
    pool.snapshots().iter().any(|snapshot| snapshot.name == name)
}

async fn snapshot(cluster: &mut Cluster) {
    let Some(index) = cluster.pick(cluster.volumes.len()) else { return };
    if cluster.snapshots.len() >= SNAPSHOTS_MAX {
        return delete_snapshot(cluster).await;
    }
    let volume = &cluster.volumes[index];
    let (model, mut point) = (volume.model.clone(), volume.model.point());
    let size_bytes = volume.size_bytes;
    let (of, own) = (volume.name.clone(), format!("s{}", cluster.next_number));
    cluster.next_number += 1;
    let name = format!("{of}@{own}");
    let answer = cluster
        .order(async move |pool: Pool| pool.create_snapshot(&[&of], &own).await.map(drop))
        .await;
    if cluster.took_effect(Kind::Other, answer, |pool| has_snapshot(pool, &name)).await
        == Some(true)
    {
        model.end_point(&mut point);
        cluster.snapshots.push(Snapshot { name, model, point, size_bytes, content: None });
        if cluster.sim.chance(0.5) {
            cluster.check_snapshot(cluster.snapshots.len() - 1).await;
        }
    }
}

async fn delete_snapshot(cluster: &mut Cluster) {
    let Some(index) = cluster.pick(cluster.snapshots.len()) else { return };
    let name = cluster.snapshots[index].name.clone();
    let deleted = name.clone();
    let answer = cluster.order(async move |pool: Pool| pool.delete_snapshot(&deleted).await).await;
    if cluster.took_effect(Kind::Deletion, answer, |pool| !has_snapshot(pool, &name)).await
        == Some(true)
    {
        cluster.snapshots.remove(index);
    }
}

/// A snapshot whose content is known.
async fn known_snapshot(cluster: &mut Cluster) -> Option<(String, Vec<u8>, usize)> {
    let index = cluster.pick(cluster.snapshots.len())?;
    cluster.check_snapshot(index).await;
    let snapshot = &cluster.snapshots[index];
    Some((snapshot.name.clone(), snapshot.content.clone()?, index))
}

async fn clone(cluster: &mut Cluster) {
    if cluster.volumes.len() >= VOLUMES_MAX {
        return delete_clone(cluster).await;
    }
    let Some((snapshot, content, index)) = known_snapshot(cluster).await else { return };
    let name = format!("c{}", cluster.next_number);
    let (of, new) = (snapshot.clone(), name.clone());
    let answer = cluster
        .order(async move |pool: Pool| {
            pool.clone_volume(&of, &new, Default::default()).await.map(drop)
        })
        .await;
    if cluster.took_effect(Kind::Other, answer, |pool| pool.volume(&name).is_some()).await
        == Some(true)
    {
        let model = cluster.snapshots[index].model.continued(&content);
        cluster.add_volume(name, model, content.len() as u64, Some(snapshot));
    }
}

async fn roll_back(cluster: &mut Cluster) {
    let Some((full, content, _)) = known_snapshot(cluster).await else { return };
    let Some((volume, own)) = full.split_once('@') else { return };
    let index = cluster.volumes.iter().position(|other| other.name == volume);
    let index = index.expect("a volume with snapshots cannot be deleted");
    cluster.stop_load(index).await;
    if cluster.needs_reopening() {
        return cluster.start_load(index);
    }
    let size = content.len() as u64;
    let is_other_size = size != cluster.volumes[index].size_bytes;
    let (of, to) = (volume.to_owned(), own.to_owned());
    let answer = cluster.order(async move |pool: Pool| pool.rollback(&of, &to).await).await;
    let is_answered = matches!(answer, Answer::Done(Ok(())));
    let has_size =
        |pool: &Pool| pool.volume(volume).is_some_and(|volume| volume.size_bytes == size);
    let has_effect = cluster.took_effect(Kind::Other, answer, has_size).await;
    let Some(pool) = cluster.reopened().await else { return };
    let model = cluster.volumes[index].model.clone();
    match has_effect {
        Some(true) if is_answered || is_other_size => model.becomes(&content),
        Some(true) => {
            // All of it, or nothing.
            let device = pool.open_volume(volume).expect("it exists");
            let read = cluster
                .sim
                .spawn_on(cluster.server, async move { super::checks::content(&*device).await });
            let found = time::timeout(TIMEOUT, read).await.expect("reads end");
            match found.expect("the task is not aborted") {
                Some(found) if found == content => model.becomes(&content),
                Some(found) => {
                    let claim = model.claim(0, found.len(), None).expect("it runs alone");
                    claim.returned(&found);
                }
                None => assert!(cluster.profile.faulty, "{volume} cannot be read"),
            }
        }
        Some(false) | None => {}
    }
    if has_effect == Some(true) && is_other_size {
        cluster.volumes[index].size_bytes = size;
        // Front ends are told of a smaller size by a new start.
        drop(pool);
        cluster.kill(false);
        cluster.restart();
    }
    cluster.start_load(index);
}

async fn delete_clone(cluster: &mut Cluster) {
    let is_clone = |volume: &super::cluster::Volume| volume.origin.is_some();
    let Some(index) = cluster.volumes.iter().position(is_clone) else { return };
    cluster.stop_load(index).await;
    if cluster.needs_reopening() {
        return cluster.start_load(index);
    }
    let name = cluster.volumes[index].name.clone();
    let deleted = name.clone();
    let answer = cluster.order(async move |pool: Pool| pool.delete_volume(&deleted).await).await;
    match cluster.took_effect(Kind::Deletion, answer, |pool| pool.volume(&name).is_none()).await {
        Some(true) => drop(cluster.remove_volume(index)),
        Some(false) | None => cluster.start_load(index),
    }
}

async fn resize(cluster: &mut Cluster) {
    let Some(index) = cluster.pick(cluster.volumes.len()) else { return };
    let volume = &cluster.volumes[index];
    let most = BLOCKS_MAX.saturating_sub(volume.size_bytes / 4096);
    if most == 0 {
        return;
    }
    let (name, former) = (volume.name.clone(), volume.size_bytes);
    let size = former + cluster.sim.random_between(1, most) * 4096;
    // Hosts that attach again see the new size before the order is answered.
    volume.model.grow_zeroed(size);
    let grown = name.clone();
    let answer =
        cluster.order(async move |pool: Pool| pool.resize_volume(&grown, size).await).await;
    let is_grown = |pool: &Pool| pool.volume(&name).is_some_and(|volume| volume.size_bytes == size);
    let is_grown = cluster.took_effect(Kind::Other, answer, is_grown).await == Some(true);
    let volume = &mut cluster.volumes[index];
    // The model stays larger: hosts may have seen the new size.
    volume.size_bytes = if is_grown { size } else { former };
}

/// Looks at everything that exists.
async fn look(cluster: &mut Cluster) {
    cluster.check_names();
    for index in 0..cluster.snapshots.len() {
        cluster.check_snapshot(index).await;
    }
}

/// Stops the server after a checkpoint, and starts it again.
async fn stop_in_order(cluster: &mut Cluster) {
    cluster.stop_loads().await;
    if cluster.needs_reopening() {
        return cluster.start_loads();
    }
    let closing = cluster.order_without_crash(async |pool: Pool| Ok(pool.close().await?)).await;
    let may_fail = cluster.profile.faulty;
    assert!(matches!(closing, Answer::Done(Ok(()))) || may_fail, "a stop fails: {closing:?}");
    cluster.kill(false);
    cluster.restart();
    cluster.start_loads();
}

/// After the loss of the log device, volumes that were withheld have one earlier state, and volumes
/// that were made since may be gone. All others lack nothing.
pub(super) async fn adopt(cluster: &mut Cluster) {
    let Some(pool) = cluster.reopened().await else { return };
    let withheld = cluster.node.withheld.take();
    let of = |name: &str| name.split('@').next().unwrap_or_default().to_owned();
    let mut gone = Vec::new();
    let mut index = 0;
    while index < cluster.volumes.len() {
        let name = cluster.volumes[index].name.clone();
        let Ok(device) = pool.open_volume(&name) else {
            let volume = cluster.remove_volume(index);
            assert!(volume.origin.is_some(), "{name} was in a checkpoint, and is gone");
            gone.push(name);
            continue;
        };
        if withheld.contains(&name) {
            let read = cluster.sim.spawn_on(cluster.server, async move { content(&*device).await });
            let found = time::timeout(TIMEOUT, read).await.expect("reads end");
            let found = found.expect("the task is not aborted").expect("sound disks");
            cluster.volumes[index].size_bytes = found.len() as u64;
            cluster.volumes[index].model.becomes(&found);
        }
        index += 1;
    }
    let may_lack = |name: &String| withheld.contains(&of(name)) || gone.contains(&of(name));
    cluster
        .snapshots
        .retain(|snapshot| has_snapshot(&pool, &snapshot.name) || !may_lack(&snapshot.name));
    let volumes = pool.volumes().into_iter().map(|volume| volume.name);
    let all = volumes.chain(pool.snapshots().into_iter().map(|snapshot| snapshot.name));
    let own = |name: &String| {
        cluster.volumes.iter().any(|volume| volume.name == *name)
            || cluster.snapshots.iter().any(|snapshot| snapshot.name == *name)
    };
    // A deletion may be undone.
    let ghosts = all.filter(|name| !own(name) && may_lack(name)).collect::<Vec<_>>();
    cluster.ghosts.retain(|ghost| pool.volume(ghost).is_some() || has_snapshot(&pool, ghost));
    cluster.ghosts.extend(ghosts);
    cluster.check_names();
}
