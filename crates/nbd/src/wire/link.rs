//! A name for a client's connection that survives the connection.
//!
//! A client that lost a connection sends what was not answered once more, over a new one. A write
//! that still is on its way over the old one, in the network or in the server, could be carried out
//! after the new one's and after later ones, and undo them. NBD has no word for this, but has room
//! for one: metadata contexts of the namespaces `x-*` are for local use, and servers that do not
//! know one ignore it. So our client selects the context `x-flagstone:link-ID` with a random number
//! of its own for each connection that it keeps up, and our server, when it selects it too, has
//! ended the earlier connection of that number, with all of its requests, before the new one's
//! first request. The context has no extents; nobody asks for them.

/// What the name of a link's metadata context begins with.
pub const LINK_CONTEXT: &str = "x-flagstone:link-";

/// The number of a link, chosen at random by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u64);

impl LinkId {
    /// Reads the name of a metadata context; `None` when it is no link's.
    pub fn decode(context: &str) -> Option<LinkId> {
        let digits = context.strip_prefix(LINK_CONTEXT)?;
        if digits.len() != 16 {
            return None;
        }
        u64::from_str_radix(digits, 16).ok().map(LinkId)
    }

    /// The name of the link's metadata context.
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
        fn other_contexts_are_no_links(context: String) {
            prop_assert_eq!(LinkId::decode(&context), None);
        }
    }

    #[test]
    fn a_link_has_sixteen_digits() {
        assert_eq!(LinkId::decode("x-flagstone:link-1"), None);
        assert_eq!(LinkId::decode("x-flagstone:link-00000000000000000"), None);
        assert_eq!(LinkId::decode("x-flagstone:link-000000000000000g"), None);
    }
}
