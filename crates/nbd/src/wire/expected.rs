//! How a client learns that an export is not available yet, and so is worth asking for again.
//!
//! The protocol has three errors that come near, and none that says it:
//!
//! - UNKNOWN, "The requested export is not available", is what holds, and what everybody is
//!   answered, with the rest in its message; but an export that nobody knows has the same;
//! - SHUTDOWN is of the whole server, "in the process of being shut down", and clients tell people
//!   so;
//! - POLICY says that the server's policy forbids it: a refusal, which does not pass.
//!
//! Nor is such an export in the answer to LIST: there are clients that want to know more of each
//! export there, and give up at the first that they cannot have.
//!
//! Metadata contexts of the namespaces `x-*` are for local use. So our client, when an export is not
//! available, asks with LIST_META_CONTEXT whether that export has the context of this name, and
//! our server names it for one that is expected. Other servers know no such context, or refuse the
//! question. It cannot be selected.

/// The name of the metadata context.
pub const EXPECTED_CONTEXT: &str = "x-flagstone:expected";
