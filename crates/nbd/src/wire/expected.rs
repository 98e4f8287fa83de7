//! Expected exports: a metadata context that marks an export as not available yet.
//!
//! The protocol has three errors that come close, and none that fits:
//!
//! - UNKNOWN, "The requested export is not available", is sent to every client, with an explanation
//!   in its message, but an unknown export gets the same error;
//! - SHUTDOWN refers to the whole server, "in the process of being shut down", and clients report
//!   it as such;
//! - POLICY means that the server's policy forbids it, which is permanent.
//!
//! The same holds for an export whose device cannot be reached now.
//!
//! An expected export is not listed by LIST either, because some clients query every listed export
//! and give up at the first unavailable one.
//!
//! Metadata contexts of the namespaces `x-*` are for local use. If an export is unavailable,
//! Flagstone's client sends LIST_META_CONTEXT with this context, and the server lists it for an
//! expected export. Other servers do not know the context, or refuse the query. It cannot be
//! selected.

pub const EXPECTED_CONTEXT: &str = "x-flagstone:expected";
