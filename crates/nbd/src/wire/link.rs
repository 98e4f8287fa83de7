//! Links: a client identity that survives reconnects.
//!
//! A client that lost a connection resends unanswered requests on a new one. A write still in
//! flight on the old connection, in the network or in the server, could execute after newer writes
//! and undo them. NBD has no mechanism against this, but reserves metadata contexts of the
//! namespaces `x-*` for local use, and servers ignore unknown contexts. Flagstone's
//! client selects the context `x-flagstone:link-ID` with a random identifier per link. If the
//! server selects it too, it has ended the previous connection of that link, with all its requests,
//! before the first request of the new one. The context has no extents.

pub const LINK_CONTEXT: &str = "x-flagstone:link-";

/// Link identifier, chosen at random by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u64);

impl LinkId {
    /// Parses a metadata context name; `None` if it is not a link's.
    pub fn decode(context: &str) -> Option<LinkId> {
        let digits = context.strip_prefix(LINK_CONTEXT)?;
        if digits.len() != 16 {
            return None;
        }
        u64::from_str_radix(digits, 16).ok().map(LinkId)
    }

    pub fn encode(self) -> String {
        format!("{LINK_CONTEXT}{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn links_round_trip(number: u64) {
            prop_assert_eq!(LinkId::decode(&LinkId(number).encode()), Some(LinkId(number)));
        }

        #[test]
        fn other_contexts_are_not_links(context: String) {
            prop_assert_eq!(LinkId::decode(&context), None);
        }
    }

    #[test]
    fn link_has_sixteen_digits() {
        assert_eq!(LinkId::decode("x-flagstone:link-1"), None);
        assert_eq!(LinkId::decode("x-flagstone:link-00000000000000000"), None);
        assert_eq!(LinkId::decode("x-flagstone:link-000000000000000g"), None);
    }
}
