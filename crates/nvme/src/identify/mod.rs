//! Identify: properties of a controller and of its namespaces (Base 5.1.13).
//!
//! Every structure is 4096 bytes. [`controller`] and [`namespace`] contain the structures, this
//! module their numbers and the lists.

pub mod controller;
pub mod descriptor;
pub mod namespace;

pub use controller::{IdentifyController, NvmController};
pub use descriptor::{DescriptorWriter, NamespaceDescriptor, descriptors};
pub use namespace::{
    IdentifyNamespace, IndependentNamespace, LbaFormat, NamespaceInstance, NvmNamespace,
};

use crate::codes::codes;
use crate::limits::NAMESPACE_LIST_ENTRIES;
use crate::wire::{U16, U32, U64, wire};

codes! {
    /// CNS: controller or namespace structure (Base 5.1.13.1).
    pub struct Cns(u8) {
        NAMESPACE = 0x00, "Identify Namespace";
        CONTROLLER = 0x01, "Identify Controller";
        ACTIVE_NAMESPACES = 0x02, "Active Namespace ID list";
        NAMESPACE_DESCRIPTORS = 0x03, "Namespace Identification Descriptor list";
        COMMAND_SET_NAMESPACE = 0x05, "I/O Command Set specific Identify Namespace";
        COMMAND_SET_CONTROLLER = 0x06, "I/O Command Set specific Identify Controller";
        COMMAND_SET_ACTIVE_NAMESPACES = 0x07, "I/O Command Set specific Active Namespace ID list";
        INDEPENDENT_NAMESPACE = 0x08, "I/O Command Set Independent Identify Namespace";
        ALLOCATED_NAMESPACES = 0x10, "Allocated Namespace ID list";
        ALLOCATED_NAMESPACE = 0x11, "Identify Namespace, allocated";
        ATTACHED_CONTROLLERS = 0x12, "Controller list of a namespace";
        CONTROLLERS = 0x13, "Controller list of the NVM subsystem";
        DOMAINS = 0x18, "Domain List";
        COMMAND_SET_ALLOCATED = 0x1a, "I/O Command Set specific Allocated Namespace ID list";
        COMMAND_SETS = 0x1c, "Identify I/O Command Set";
    }
}

/// CSI: command set identifiers.
pub mod csi {
    /// NVM command set.
    pub const NVM: u8 = 0;
}

wire! {
    /// A list of namespace identifiers, ascending; unused entries are 0 (CNS 02h, 07h, 10h).
    pub struct NamespaceList [4096] {
        0 => pub ids: [U32; 1024], "The identifiers.";
    }

    /// A list of controller identifiers, ascending (CNS 12h, 13h).
    pub struct ControllerList [4096] {
        0 => pub count: U16, "Number of identifiers.";
        2 => pub ids: [U16; 2047], "The identifiers.";
    }

    /// Identify I/O Command Set (CNS 1Ch): command sets that can be used together.
    pub struct CommandSets [4096] {
        /// Combinations, of which the I/O command set profile selects one; bit 0 is NVM.
        0 => pub combinations: [U64; 512];
    }
}

impl NamespaceList {
    /// Fills the list with the first identifiers of `active`, which are ascending, above `above`,
    /// the NSID of the command. Returns their number.
    pub fn fill(&mut self, above: u32, active: impl IntoIterator<Item = u32>) -> usize {
        self.ids = [U32::ZERO; NAMESPACE_LIST_ENTRIES];
        let above = active.into_iter().filter(|&id| id > above);
        let mut count = 0;
        for (slot, id) in self.ids.iter_mut().zip(above) {
            *slot = U32::new(id);
            count += 1;
        }
        count
    }

    /// The identifiers up to the first 0.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ids.iter().map(|id| id.get()).take_while(|&id| id != 0)
    }
}

impl ControllerList {
    /// Fills the list with the first of `controllers`, which are ascending, from `from` on. Returns
    /// their number.
    pub fn fill(&mut self, from: u16, controllers: impl IntoIterator<Item = u16>) -> usize {
        *self = Self::default();
        let mut count = 0;
        for (slot, id) in self.ids.iter_mut().zip(controllers.into_iter().filter(|&id| id >= from))
        {
            *slot = U16::new(id);
            count += 1;
        }
        self.count = U16::new(count as u16);
        count
    }
}

impl CommandSets {
    /// The single combination of a controller that only has the NVM command set.
    pub fn nvm_alone() -> Self {
        let mut sets = Self::default();
        sets.combinations[0] = U64::new(1 << csi::NVM);
        sets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;
    use proptest::prelude::*;

    #[test]
    fn controller_list_starts_at_requested_identifier() {
        let mut list = ControllerList::default();
        assert_eq!(list.fill(2, [1, 2, 5]), 2);
        assert_eq!(list.bytes()[..6], [2, 0, 2, 0, 5, 0]);
        assert_eq!(list.fill(0, 0..5000), 2047);
        assert_eq!(list.count.get(), 2047);
    }

    #[test]
    fn nvm_is_combination_0() {
        assert_eq!(CommandSets::nvm_alone().bytes()[..9], [1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn namespace_list_continues_after_last(count in 0u32..3000, step in 1u32..9) {
            let active = || (1..=count).map(|index| index * step);
            let (mut seen, mut above) = (Vec::new(), 0);
            let mut list = NamespaceList::default();
            while list.fill(above, active()) > 0 {
                seen.extend(list.iter());
                prop_assert!(seen.last() > Some(&above), "asking on from {above} makes no progress");
                above = *seen.last().unwrap();
            }
            prop_assert_eq!(seen, active().collect::<Vec<_>>());
        }
    }
}
