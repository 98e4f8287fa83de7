//! Asymmetric Namespace Access log page (Base 5.1.12.1): the access state of namespaces at a
//! controller.

use crate::codes::codes;
use crate::status::Status;
use crate::wire::{U16, U32, U64, Wire, wire};

codes! {
    /// State of an ANA group at a controller.
    pub struct AnaState(u8) {
        OPTIMIZED = 0x1, "optimized";
        NON_OPTIMIZED = 0x2, "non-optimized";
        INACCESSIBLE = 0x3, "inaccessible";
        PERSISTENT_LOSS = 0x4, "persistent-loss";
        CHANGE = 0xf, "change";
    }
}

impl AnaState {
    /// The status of an I/O command in a group of this state: success if it can be executed.
    #[inline]
    pub const fn io_status(self) -> Status {
        match self {
            Self::INACCESSIBLE => Status::ANA_INACCESSIBLE,
            Self::PERSISTENT_LOSS => Status::ANA_PERSISTENT_LOSS,
            Self::CHANGE => Status::ANA_TRANSITION,
            _ => Status::SUCCESS,
        }
    }
}

wire! {
    /// Header of the log page.
    pub struct AnaHeader [16] {
        0 => pub change_count: U64, "Change count of the log page; 0 is not used.";
        8 => pub groups: U16, "Number of group descriptors that follow.";
        10 => pub _reserved10: [u8; 6];
    }

    /// One ANA group; the identifiers of its namespaces, 4 bytes each, follow.
    pub struct AnaGroup [32] {
        0 => pub id: U32, "ANA group identifier, from 1.";
        /// Number of namespace identifiers that follow; 0 with "return groups only".
        4 => pub namespaces: U32;
        8 => pub change_count: U64, "Change count of the group; 0 if the last change is unknown.";
        16 => pub state: u8, "[`AnaState`] in bits 3:0.";
        17 => pub _reserved17: [u8; 15];
    }
}

/// Get Log Page, log specific parameter bit 0: groups without their namespaces.
pub const GROUPS_ONLY: u8 = 1;

impl AnaGroup {
    /// Its state.
    pub const fn state(&self) -> AnaState {
        AnaState(self.state & 15)
    }
}

/// The groups in a log page, each with its namespaces. Ends early if a descriptor or its list does
/// not fit.
pub fn groups(log: &[u8]) -> impl Iterator<Item = (&AnaGroup, &[U32])> {
    let left = AnaHeader::view(log).map_or(0, |header| header.groups.get());
    let mut rest = log.get(AnaHeader::BYTES..).unwrap_or_default();
    (0..left).map_while(move |_| {
        let group = AnaGroup::view(rest)?;
        let after = &rest[AnaGroup::BYTES..];
        let list_bytes = usize::try_from(group.namespaces.get()).ok()?.checked_mul(4)?;
        let (list, after) = after.split_at_checked(list_bytes)?;
        rest = after;
        Some((group, U32::view_list(list)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn states_refuse_with_their_status() {
        for (state, status) in [
            (AnaState::OPTIMIZED, Status::SUCCESS),
            (AnaState::NON_OPTIMIZED, Status::SUCCESS),
            (AnaState::INACCESSIBLE, Status::ANA_INACCESSIBLE),
            (AnaState::PERSISTENT_LOSS, Status::ANA_PERSISTENT_LOSS),
            (AnaState::CHANGE, Status::ANA_TRANSITION),
        ] {
            assert_eq!(state.io_status(), status, "{state}");
        }
    }

    fn log(groups: &[(u32, Vec<u32>)]) -> Vec<u8> {
        let count = U16::new(groups.len() as u16);
        let mut log = AnaHeader { groups: count, ..Default::default() }.bytes().to_vec();
        for (id, namespaces) in groups {
            let group = AnaGroup {
                id: U32::new(*id),
                namespaces: U32::new(namespaces.len() as u32),
                state: AnaState::OPTIMIZED.0,
                ..Default::default()
            };
            log.extend(group.bytes());
            log.extend(namespaces.iter().flat_map(|id| id.to_le_bytes()));
        }
        log
    }

    proptest! {
        #[test]
        fn ana_log_round_trips_and_truncates(
            list in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u32>(), 0..9)), 0..9),
            cut: prop::sample::Index,
        ) {
            let bytes = log(&list);
            let read: Vec<_> = groups(&bytes)
                .map(|(group, ids)| (group.id.get(), ids.iter().map(|id| id.get()).collect()))
                .collect();
            prop_assert_eq!(&read, &list);
            let cut = &bytes[..cut.index(bytes.len() + 1)];
            prop_assert!(groups(cut).count() <= list.len());
            if cut.len() < bytes.len() && !list.is_empty() {
                prop_assert!(groups(cut).count() < list.len());
            }
        }

        #[test]
        fn any_bytes_terminate(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            prop_assert!(groups(&bytes).count() <= bytes.len() / 32);
        }
    }
}
