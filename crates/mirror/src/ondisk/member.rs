//! Member entries of a superblock: changes of a mirror's peers at run time, which the configuration
//! does not have.

use std::ops::Range;

use crate::limits::MEMBER_TEXT_MAX;
use crate::ondisk::FormatError;

/// Bytes of an entry: its kind, the lengths of both texts, and the texts.
pub(super) const MEMBER_BYTES: usize = 3 + MEMBER_TEXT_MAX;

/// A change of the mirror's peers at run time, in addition to the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name of the peer's node.
    pub name: String,
    /// The change. With the name at most [`MEMBER_TEXT_MAX`] bytes.
    pub change: MemberChange,
}

/// See [`Member`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// A peer that the configuration does not have, at this address.
    Added(String),
    /// No peer any more, although the configuration may name it.
    Removed,
}

impl Member {
    /// Both texts fit into the superblock, and can be shown.
    pub fn is_sound(&self) -> bool {
        let address = match &self.change {
            MemberChange::Added(address) => address.as_str(),
            MemberChange::Removed => "",
        };
        let printable = |text: &str| !text.contains(char::is_control);
        !self.name.is_empty()
            && (self.change == MemberChange::Removed) == address.is_empty()
            && self.name.len() + address.len() <= MEMBER_TEXT_MAX
            && printable(&self.name)
            && printable(address)
    }

    pub(super) fn encode(&self, to: &mut [u8]) {
        let (kind, address) = match &self.change {
            MemberChange::Added(address) => (1, address.as_str()),
            MemberChange::Removed => (2, ""),
        };
        let (name_end, end) = (3 + self.name.len(), 3 + self.name.len() + address.len());
        to[..3].copy_from_slice(&[kind, self.name.len() as u8, address.len() as u8]);
        to[3..name_end].copy_from_slice(self.name.as_bytes());
        to[name_end..end].copy_from_slice(address.as_bytes());
    }

    /// `None` for a free place.
    pub(super) fn decode(from: &[u8]) -> Result<Option<Member>, FormatError> {
        let wrong = || FormatError::Field("members");
        let (kind, name_end) = (from[0], 3 + usize::from(from[1]));
        let text = |range: Range<usize>| {
            let text = from.get(range).and_then(|text| std::str::from_utf8(text).ok());
            text.map(str::to_owned).ok_or_else(wrong)
        };
        let (name, address) =
            (text(3..name_end)?, text(name_end..name_end + usize::from(from[2]))?);
        let change = match kind {
            0 => return Ok(None),
            1 => MemberChange::Added(address),
            2 if address.is_empty() => MemberChange::Removed,
            _ => return Err(wrong()),
        };
        let member = Member { name, change };
        if member.is_sound() { Ok(Some(member)) } else { Err(wrong()) }
    }
}
