//! Namespace identification descriptors (CNS 03h, Base 5.1.13.2.3): the identifiers of a namespace
//! that are the same on every path.

use super::csi;
use crate::limits::IDENTIFY_BYTES;

/// NIDT, NIDL and two reserved bytes.
const HEADER_BYTES: usize = 4;

/// One identifier of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceDescriptor {
    /// IEEE extended unique identifier (type 1). All identifiers are big-endian.
    Eui64([u8; 8]),
    /// Namespace globally unique identifier (type 2).
    Nguid([u8; 16]),
    /// UUID (type 3).
    Uuid([u8; 16]),
    /// Command set identifier (type 4); see [`csi`].
    CommandSet(u8),
}

impl NamespaceDescriptor {
    const fn id_type(&self) -> u8 {
        match self {
            Self::Eui64(_) => 1,
            Self::Nguid(_) => 2,
            Self::Uuid(_) => 3,
            Self::CommandSet(_) => 4,
        }
    }

    fn id(&self) -> &[u8] {
        match self {
            Self::Eui64(id) => id,
            Self::Nguid(id) | Self::Uuid(id) => id,
            Self::CommandSet(id) => core::slice::from_ref(id),
        }
    }

    /// Parses the identifier `id` of type `id_type`; `None` for a wrong length or an unknown type.
    fn parse(id_type: u8, id: &[u8]) -> Option<Self> {
        match id_type {
            1 => id.try_into().ok().map(Self::Eui64),
            2 => id.try_into().ok().map(Self::Nguid),
            3 => id.try_into().ok().map(Self::Uuid),
            4 => <[u8; 1]>::try_from(id).ok().map(|[id]| Self::CommandSet(id)),
            _ => None,
        }
    }
}

/// Writes descriptors one after another into Identify data.
#[derive(Debug)]
pub struct DescriptorWriter<'a> {
    out: &'a mut [u8; IDENTIFY_BYTES],
    at: usize,
}

impl<'a> DescriptorWriter<'a> {
    /// Starts an empty list, which a descriptor of length 0 ends.
    pub fn new(out: &'a mut [u8; IDENTIFY_BYTES]) -> Self {
        out.fill(0);
        Self { out, at: 0 }
    }

    /// Adds a descriptor; `None`, without change, if it does not fit.
    pub fn push(&mut self, descriptor: &NamespaceDescriptor) -> Option<()> {
        let id = descriptor.id();
        let end = self.at + HEADER_BYTES + id.len();
        let slot = self.out.get_mut(self.at..end)?;
        slot[0] = descriptor.id_type();
        slot[1] = id.len() as u8;
        slot[HEADER_BYTES..].copy_from_slice(id);
        self.at = end;
        Some(())
    }

    /// Adds the command set identifier of the NVM command set; fails like
    /// [`DescriptorWriter::push`].
    pub fn push_nvm(&mut self) -> Option<()> {
        self.push(&NamespaceDescriptor::CommandSet(csi::NVM))
    }
}

/// The descriptors in Identify data. Unknown types and wrong lengths are skipped; the list ends at
/// length 0 or at a descriptor that does not fit.
pub fn descriptors(data: &[u8]) -> impl Iterator<Item = NamespaceDescriptor> + '_ {
    let mut rest = data;
    core::iter::from_fn(move || {
        let (header, after) = rest.split_at_checked(HEADER_BYTES)?;
        let (id_type, length) = (header[0], usize::from(header[1]));
        if length == 0 {
            return None;
        }
        let (id, after) = after.split_at_checked(length)?;
        rest = after;
        Some(NamespaceDescriptor::parse(id_type, id))
    })
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_descriptor() -> impl Strategy<Value = NamespaceDescriptor> {
        prop_oneof![
            any::<[u8; 8]>().prop_map(NamespaceDescriptor::Eui64),
            any::<[u8; 16]>().prop_map(NamespaceDescriptor::Nguid),
            any::<[u8; 16]>().prop_map(NamespaceDescriptor::Uuid),
            any::<u8>().prop_map(NamespaceDescriptor::CommandSet),
        ]
    }

    #[test]
    fn descriptor_list_layout_matches_specification() {
        let mut data = [0xff; 4096];
        let mut writer = DescriptorWriter::new(&mut data);
        writer.push(&NamespaceDescriptor::Uuid([5; 16])).unwrap();
        writer.push_nvm().unwrap();
        assert_eq!(data[..4], [3, 16, 0, 0]);
        assert_eq!(data[4..20], [5; 16]);
        assert_eq!(data[20..26], [4, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn unknown_descriptors_are_skipped() {
        let mut data = vec![9, 2, 0, 0, 1, 1, 1, 3, 0, 0, 7, 7, 7, 4, 1, 0, 0, 0];
        let nvm = NamespaceDescriptor::CommandSet(0);
        assert_eq!(descriptors(&data).collect::<Vec<_>>(), [nvm]);
        data.extend([2, 16, 0, 0, 1]);
        assert_eq!(descriptors(&data).collect::<Vec<_>>(), [nvm]);
    }

    proptest! {
        #[test]
        fn descriptor_list_round_trips(
            list in prop::collection::vec(any_descriptor(), 0..300),
        ) {
            let mut data = [0; 4096];
            let mut writer = DescriptorWriter::new(&mut data);
            let fitted = list.iter().take_while(|&one| writer.push(one).is_some()).count();
            prop_assert!(fitted == list.len() || fitted >= 4096 / 20);
            prop_assert_eq!(descriptors(&data).collect::<Vec<_>>(), &list[..fitted]);
        }

        #[test]
        fn any_bytes_terminate(data in prop::collection::vec(any::<u8>(), 0..4096)) {
            prop_assert!(descriptors(&data).count() <= data.len() / 5);
        }
    }
}
