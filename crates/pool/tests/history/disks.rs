//! Disk changer: adds and removes disks, and records them like a server.

use super::*;

/// Task that adds and removes disks while hosts write and snapshots are taken.
pub(super) struct DiskChanger {
    pub(super) pool: Pool,
    pub(super) trace: SharedTrace,
    pub(super) history: Shared,
    pub(super) rng: Rng,
    /// All disks, by number.
    pub(super) disks: Vec<NamedDevice>,
    pub(super) spares: Vec<usize>,
    pub(super) set: DeviceSet<usize>,
}

impl DiskChanger {
    fn record(&mut self, change: impl FnOnce(&mut DeviceSet<usize>)) {
        change(&mut self.set);
        let from = self.trace.lock().now();
        self.history.borrow_mut().sets.push(Recorded { from, set: self.set.clone() });
    }

    async fn grow(&mut self) {
        let Some(new) = self.spares.pop() else { return };
        self.record(|set| {
            set.devices.push(new);
            set.adding = Some(new);
        });
        // A disk that was in the pool earlier may still have a superblock.
        self.pool.grow(self.disks[new].clone(), true).await.unwrap();
        self.record(|set| set.adding = None);
        self.history.borrow_mut().grown += 1;
    }

    /// Removes a disk. The order may be canceled, or its caller dropped at the end.
    async fn shrink(&mut self) {
        let old = self.set.devices[self.rng.below(self.set.devices.len() as u64) as usize];
        let evacuation = match self.pool.evacuate(&self.disks[old].name).await {
            Ok(evacuation) => evacuation,
            Err(DeviceOrderError::NoRoom { .. } | DeviceOrderError::Last { .. }) => return,
            Err(error) => panic!("disk {old}: {error}"),
        };
        self.record(|set| set.removing = Some(old));
        let (gives_up, grows) = (self.rng.chance(0.2), self.rng.chance(0.3));
        loop {
            match evacuation.step().await {
                Ok(true) => break,
                Ok(false) => {}
                // Hosts filled the other disks meanwhile.
                Err(DeviceOrderError::NoRoom { .. }) => {
                    drop(evacuation);
                    return self.record(|set| set.removing = None);
                }
                Err(error) => panic!("disk {old}: {error}"),
            }
            if gives_up && self.rng.chance(0.3) {
                drop(evacuation);
                return self.record(|set| set.removing = None);
            }
            if grows {
                self.grow().await;
            }
        }
        let removed = match self.rng.chance(0.3) {
            true => {
                let timeout = Duration::from_micros(1 + self.rng.below(600));
                let ended = time::timeout(timeout, evacuation.complete()).await;
                // The removal continues without its caller.
                while self.pool.status().devices.contains(&self.disks[old].name) {
                    time::sleep(Duration::from_micros(100)).await;
                }
                ended.ok().map(Result::unwrap)
            }
            false => Some(evacuation.complete().await.unwrap()),
        };
        self.record(|set| {
            set.removing = None;
            set.devices.retain(|other| *other != old);
        });
        self.history.borrow_mut().removed += 1;
        if let Some(removed) = removed.filter(|_| self.rng.chance(0.7)) {
            release(&self.disks[old], removed).await.unwrap();
        }
        self.spares.insert(0, old);
    }

    pub(super) async fn run(mut self, orders: u64) {
        for _ in 0..orders {
            time::sleep(Duration::from_micros(self.rng.below(2000))).await;
            match self.set.devices.len() < 2 || self.rng.chance(0.5) {
                true => self.grow().await,
                false => self.shrink().await,
            }
        }
    }
}
