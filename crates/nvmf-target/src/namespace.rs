//! Namespaces, and the immutable table in which connections look them up.
//!
//! A [`NamespaceTable`] never changes once published. Adding or removing a namespace creates a new
//! table that shares all but one leaf with the old one. A lookup takes two array accesses and no
//! lock. A connection detects a new table by comparing one number.
//!
//! # Pending namespaces
//!
//! The device of a namespace may be out of reach when its subsystem begins to serve, and may stay
//! so for any time. The subsystem has the namespace nevertheless, as a *pending* one:
//! - it is in the active namespace list. Linux removes the disk of a namespace that is not in the
//!   list when it connects again, and a file system that was mounted on it fails for good;
//! - commands that describe it fail with Namespace Not Ready, without Do Not Retry (Base 4.2.3.1),
//!   and NRDY is clear in the structure that is independent of the command set. Zeroes would mean
//!   an inactive namespace, and an invented size a disk that has shrunk. Linux keeps the disk as it
//!   was, and looks again after a Namespace Attribute Changed event. SPDK's host cannot use a
//!   controller with such a namespace, and connects again later;
//! - I/O commands fail with Asymmetric Access Inaccessible, and the ANA log has the pending
//!   namespaces in a group of their own, which is inaccessible (Base 8.1.1). A host queues I/O
//!   until that changes or another path takes it. Namespace Not Ready, the other candidate, is no
//!   path error: Linux repeats such a command five times within milliseconds, and then fails it.
//!
//! The other namespaces of the subsystem are served meanwhile. When the device is there, the
//! namespace moves to the group of all others, and hosts are notified of both changes. Therefore
//! ANACAP does not promise that groups stay.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::sync::Arc;

use flagstone_blockdev::{Geometry, SharedDevice};
use flagstone_nvme::identify::NamespaceInstance;
use flagstone_nvme::log::AnaState;
use flagstone_nvme::status::Status;

use super::controller::HostIdentity;
use super::reservation::{DataUse, NamespaceReservations, Restriction};
use super::vendor::{VendorHandler, VendorSession};
use crate::limits::NAMESPACE_LEAF;

/// Configuration of a namespace.
pub struct NamespaceConfig {
    /// Namespace identifier, from 1; the lowest free one when `None`.
    pub nsid: Option<u32>,
    /// The device.
    pub device: SharedDevice,
    /// UUID, also reported as NGUID, which identifies the namespace on every path. Not 0.
    pub uuid: [u8; 16],
    /// Serve it read-only even if the device is writable.
    pub read_only: bool,
}

/// ANA state of pending namespaces.
pub(crate) const PENDING_ANA: AnaState = AnaState::INACCESSIBLE;

/// User of a namespace.
pub(crate) enum NamespaceAccess {
    /// Hosts, with reservations or without.
    Hosts { reservations: Option<Arc<NamespaceReservations>> },
    /// Another node, with vendor specific commands.
    Node { vendor: Arc<dyn VendorHandler> },
}

/// Device served as a namespace of a subsystem.
#[derive(Clone)]
pub struct Namespace {
    /// Namespace identifier, from 1.
    pub nsid: u32,
    /// The device.
    pub device: SharedDevice,
    /// Geometry of the device when it was added or resized.
    pub geometry: Geometry,
    /// Binary logarithm of the block size: 9 to 16.
    pub block_shift: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Writes are refused with Namespace is Write Protected.
    pub read_only: bool,
    /// UUID and NGUID.
    pub uuid: [u8; 16],
    /// This use of the device: another one after it was removed and added, or in another process.
    pub(crate) instance: NamespaceInstance,
    /// Executes its vendor specific commands.
    pub(crate) vendor: Option<Arc<dyn VendorHandler>>,
    /// In one controller's view of the namespace: the session that provides `device`.
    pub(crate) session: Option<Arc<dyn VendorSession>>,
    /// Reservations; `None` if hosts cannot use them.
    pub(crate) reservations: Option<Arc<NamespaceReservations>>,
    /// The restriction of its present reservation.
    pub(crate) restriction: Option<Arc<Restriction>>,
}

impl Namespace {
    /// Creates namespace `nsid` from `config`. `None` when the device has no blocks, or a block
    /// size that is not a power of two of at least 512.
    pub(crate) fn new(
        nsid: u32,
        config: NamespaceConfig,
        access: NamespaceAccess,
    ) -> Option<Namespace> {
        let (vendor, reservations) = match access {
            NamespaceAccess::Node { vendor } => (Some(vendor), None),
            NamespaceAccess::Hosts { reservations } => (None, reservations),
        };
        let geometry = config.device.geometry();
        let block_bytes = geometry.block_bytes;
        if !block_bytes.is_power_of_two() || !(512..=1 << 16).contains(&block_bytes) {
            return None;
        }
        let blocks = geometry.blocks();
        (blocks > 0).then_some(Namespace {
            nsid,
            geometry,
            block_shift: block_bytes.trailing_zeros(),
            blocks,
            read_only: config.read_only || geometry.read_only,
            uuid: config.uuid,
            instance: NamespaceInstance(random_instance()),
            device: config.device,
            vendor,
            session: None,
            restriction: reservations.as_ref().and_then(|of| of.restriction()),
            reservations,
        })
    }

    /// Copy with the current size of the device; `None` when it has no blocks.
    pub(crate) fn resized(&self) -> Option<Namespace> {
        let size_bytes = self.device.geometry().size_bytes;
        let geometry = Geometry { size_bytes, ..self.geometry };
        let blocks = geometry.blocks();
        (blocks > 0).then(|| Namespace { geometry, blocks, ..self.clone() })
    }

    /// Checks that a reservation admits a command of `host`.
    ///
    /// # Errors
    /// Reservation Conflict.
    #[inline]
    pub(crate) fn check_reservation(
        &self,
        host: &HostIdentity,
        data: DataUse,
    ) -> Result<(), Status> {
        self.restriction.as_ref().map_or(Ok(()), |restriction| restriction.check(host, data))
    }

    /// Copy as seen by the controller of `session`.
    pub(crate) fn of_session(&self, session: Arc<dyn VendorSession>) -> Namespace {
        Namespace { device: session.device(), session: Some(session), ..self.clone() }
    }
}

/// Random, and not 0. Not from the runtime, because namespaces are added from any thread. A
/// simulated run does not depend on it: hosts only compare it.
fn random_instance() -> [u8; 16] {
    let half = |number: u8| u128::from(RandomState::new().hash_one(number));
    (half(0) << 64 | half(1)).max(1).to_le_bytes()
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Namespace")
            .field("nsid", &self.nsid)
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}

/// Namespaces of a subsystem at one point in time, by identifier.
#[derive(Clone, Debug)]
pub struct NamespaceTable {
    leaves: Vec<Option<Arc<Leaf>>>,
    count: u32,
    /// Identifiers of the pending namespaces.
    pending: BTreeSet<u32>,
    generation: u64,
    ana: AnaState,
}

type Leaf = [Option<Arc<Namespace>>; NAMESPACE_LEAF];

impl NamespaceTable {
    /// Empty table in the ANA optimized state.
    pub(crate) fn empty() -> NamespaceTable {
        NamespaceTable {
            leaves: Vec::new(),
            count: 0,
            pending: BTreeSet::new(),
            generation: 0,
            ana: AnaState::OPTIMIZED,
        }
    }

    /// Namespace `nsid`, if it is active and not pending.
    #[inline]
    pub fn get(&self, nsid: u32) -> Option<&Arc<Namespace>> {
        let nsid = nsid as usize;
        self.leaves.get(nsid / NAMESPACE_LEAF)?.as_ref()?[nsid % NAMESPACE_LEAF].as_ref()
    }

    /// Namespace `nsid`, for a command that describes it.
    ///
    /// # Errors
    /// Namespace Not Ready for a pending one, Invalid Namespace for an inactive one.
    pub(crate) fn find(&self, nsid: u32) -> Result<&Arc<Namespace>, Status> {
        self.get(nsid).ok_or(match self.is_pending(nsid) {
            true => Status::NAMESPACE_NOT_READY,
            false => Status::INVALID_NAMESPACE.dnr(),
        })
    }

    /// Status of an I/O command to namespace `nsid`, which the table does not have.
    #[cold]
    pub(crate) fn absent_status(&self, nsid: u32) -> Status {
        match self.is_pending(nsid) {
            true => PENDING_ANA.io_status(),
            false => Status::INVALID_NAMESPACE.dnr(),
        }
    }

    /// True if the namespace is active, and its device is not there yet.
    pub(crate) fn is_pending(&self, nsid: u32) -> bool {
        self.pending.contains(&nsid)
    }

    /// Pending namespaces, ascending.
    pub(crate) fn pending(&self) -> impl ExactSizeIterator<Item = u32> {
        self.pending.iter().copied()
    }

    /// Identifiers above `above` of all active namespaces, ascending.
    pub(crate) fn active_above(&self, above: u32) -> Vec<u32> {
        let pending = self.pending.range((Bound::Excluded(above), Bound::Unbounded));
        let mut active: Vec<u32> = self.above(above).map(|namespace| namespace.nsid).collect();
        active.extend(pending);
        active.sort_unstable();
        active
    }

    /// Namespaces with identifiers above `above`, ascending, without the pending ones.
    pub fn above(&self, above: u32) -> impl Iterator<Item = &Arc<Namespace>> {
        let first = above as usize / NAMESPACE_LEAF;
        let leaves = self.leaves.iter().skip(first).flatten();
        leaves.flat_map(|leaf| leaf.iter().flatten()).filter(move |ns| ns.nsid > above)
    }

    /// All namespaces but the pending ones, by ascending identifier.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Namespace>> {
        self.above(0)
    }

    /// Number of namespaces without the pending ones.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// True if there is no namespace, or if all are pending.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Increases with each change of the subsystem's table.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// ANA state. I/O commands fail with [`AnaState::io_status`] unless it is success.
    #[inline]
    pub fn ana(&self) -> AnaState {
        self.ana
    }

    /// Lowest free identifier, from 1 to `most`.
    pub(crate) fn first_free(&self, most: u32) -> Option<u32> {
        let active = self.active_above(0);
        let taken = (1..).zip(&active).take_while(|(expected, nsid)| expected == *nsid).count();
        u32::try_from(taken + 1).ok().filter(|free| *free <= most)
    }

    /// Adds a pending namespace. [`NamespaceTable::insert`] ends that.
    pub(crate) fn insert_pending(&mut self, nsid: u32) {
        self.pending.insert(nsid);
        self.generation += 1;
    }

    /// Adds a namespace, or replaces the one with the same identifier.
    pub(crate) fn insert(&mut self, namespace: Arc<Namespace>) {
        self.pending.remove(&namespace.nsid);
        let nsid = namespace.nsid as usize;
        let leaf = nsid / NAMESPACE_LEAF;
        if self.leaves.len() <= leaf {
            self.leaves.resize(leaf + 1, None);
        }
        let empty = || Arc::new([const { None }; NAMESPACE_LEAF]);
        let slots = Arc::make_mut(self.leaves[leaf].get_or_insert_with(empty));
        if slots[nsid % NAMESPACE_LEAF].replace(namespace).is_none() {
            self.count += 1;
        }
        self.generation += 1;
    }

    pub(crate) fn remove(&mut self, nsid: u32) -> Option<Arc<Namespace>> {
        let nsid = nsid as usize;
        let leaf = self.leaves.get_mut(nsid / NAMESPACE_LEAF)?.as_mut()?;
        leaf[nsid % NAMESPACE_LEAF].as_ref()?;
        let namespace = Arc::make_mut(leaf)[nsid % NAMESPACE_LEAF].take();
        self.count -= 1;
        self.generation += 1;
        namespace
    }

    pub(crate) fn set_ana(&mut self, state: AnaState) {
        self.ana = state;
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::null_device;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn namespace(nsid: u32) -> Arc<Namespace> {
        let config = NamespaceConfig {
            nsid: Some(nsid),
            device: null_device(Geometry::new(1 << 20, 4096)),
            uuid: [1; 16],
            read_only: false,
        };
        Arc::new(
            Namespace::new(nsid, config, NamespaceAccess::Hosts { reservations: None }).unwrap(),
        )
    }

    #[test]
    fn unsupported_block_sizes_are_refused() {
        for (size_bytes, block_bytes) in [(0, 512), (1 << 20, 256), (1 << 20, 1 << 17)] {
            let config = NamespaceConfig {
                nsid: None,
                device: null_device(Geometry::new(size_bytes, block_bytes)),
                uuid: [1; 16],
                read_only: false,
            };
            let access = NamespaceAccess::Hosts { reservations: None };
            assert!(Namespace::new(1, config, access).is_none());
        }
    }

    #[test]
    fn table_snapshot_is_immutable() {
        let mut table = Arc::new(NamespaceTable::empty());
        Arc::make_mut(&mut table).insert(namespace(1));
        let snapshot = table.clone();
        Arc::make_mut(&mut table).insert(namespace(2));
        Arc::make_mut(&mut table).remove(1);
        assert!(snapshot.get(1).is_some() && snapshot.get(2).is_none());
        assert!(table.get(1).is_none() && table.get(2).is_some());
        assert!(table.generation() > snapshot.generation());
        assert_eq!((snapshot.len(), table.len()), (1, 1));
    }

    proptest! {
        #[test]
        fn table_behaves_like_set_of_ids(
            changes in prop::collection::vec((any::<bool>(), 1u32..600), 0..80),
            above in 0u32..700,
        ) {
            let (mut table, mut model) = (NamespaceTable::empty(), BTreeSet::new());
            for (add, nsid) in changes {
                if add {
                    table.insert(namespace(nsid));
                    model.insert(nsid);
                } else {
                    prop_assert_eq!(table.remove(nsid).is_some(), model.remove(&nsid));
                }
            }
            let got: Vec<u32> = table.above(above).map(|ns| ns.nsid).collect();
            let want: Vec<u32> = model.iter().copied().filter(|&nsid| nsid > above).collect();
            prop_assert_eq!(got, want);
            prop_assert_eq!(table.len() as usize, model.len());
            let free = (1..=600).find(|nsid| !model.contains(nsid));
            prop_assert_eq!(table.first_free(600), free);
        }
    }
}
