//! Device set: the devices that a server records for a pool, and the device that an order adds or
//! removes.
//!
//! The set is recorded before the order writes to a device, and again after the order. After a
//! crash in between, the superblocks decide whether the device is part of the pool: a set that is
//! not one complete pool is refused, and nothing is written to its devices.

/// Devices of a pool, as recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSet<T> {
    /// All devices, including devices that an order adds or removes.
    pub devices: Vec<T>,
    /// Device that an order adds.
    pub adding: Option<T>,
    /// Device that an order removes.
    pub removing: Option<T>,
}

impl<T> From<Vec<T>> for DeviceSet<T> {
    fn from(devices: Vec<T>) -> DeviceSet<T> {
        DeviceSet { devices, adding: None, removing: None }
    }
}

impl<T: Clone + PartialEq> DeviceSet<T> {
    /// Sets to try after a crash, in this order, until one is a pool: all devices; then without the
    /// added one, without the removed one, without both.
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
        let set = DeviceSet { removing: Some(1), ..set };
        assert_eq!(set.alternatives(), [vec![1, 2, 3], vec![1, 2], vec![2, 3], vec![2]]);
        let alone = DeviceSet { adding: Some(1), ..DeviceSet::from(vec![1]) };
        assert_eq!(alone.alternatives(), [vec![1]]);
    }
}
