//! Device set: the devices that a server records for a pool, and which of them an order is adding
//! or removing.
//!
//! A set is recorded before the order writes to a device, and again after it has ended. After a
//! crash between the two the superblocks decide whether the device is part of the pool: a set that
//! is not one complete pool is refused, and nothing is written to it.

/// Devices of a pool, as recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSet<T> {
    /// All devices, with those that are being added or removed.
    pub devices: Vec<T>,
    /// Device that an order is adding.
    pub adding: Option<T>,
    /// Device that an order is removing.
    pub removing: Option<T>,
}

impl<T> From<Vec<T>> for DeviceSet<T> {
    fn from(devices: Vec<T>) -> DeviceSet<T> {
        DeviceSet { devices, adding: None, removing: None }
    }
}

impl<T: Clone + PartialEq> DeviceSet<T> {
    /// The set before an order that adds a device.
    #[must_use]
    pub fn without_added(mut self) -> DeviceSet<T> {
        let added = self.adding.take();
        self.devices.retain(|device| Some(device) != added.as_ref());
        self
    }

    /// Sets to open after a crash, in this order, until one is a pool: all devices, then without
    /// the one being added, the one being removed, or both.
    pub fn alternatives(&self) -> Vec<Vec<T>> {
        let mut sets = vec![self.devices.clone()];
        for left_out in [&self.adding, &self.removing].into_iter().flatten() {
            for index in 0..sets.len() {
                let mut rest = sets[index].clone();
                rest.retain(|device| device != left_out);
                if !rest.is_empty() && !sets.contains(&rest) {
                    sets.push(rest);
                }
            }
        }
        sets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_lack_only_devices_of_orders() {
        let set = DeviceSet::from(vec![1, 2, 3]);
        assert_eq!(set.alternatives(), [vec![1, 2, 3]]);
        let set = DeviceSet { adding: Some(3), ..set };
        assert_eq!(set.alternatives(), [vec![1, 2, 3], vec![1, 2]]);
        assert_eq!(set.clone().without_added(), DeviceSet::from(vec![1, 2]));
        let set = DeviceSet { removing: Some(1), ..set };
        assert_eq!(set.alternatives(), [vec![1, 2, 3], vec![1, 2], vec![2, 3], vec![2]]);
        let alone = DeviceSet { adding: Some(1), ..DeviceSet::from(vec![1]) };
        assert_eq!(alone.alternatives(), [vec![1]]);
    }
}
