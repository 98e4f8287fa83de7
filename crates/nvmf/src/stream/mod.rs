//! A connection's byte stream, as both ends use it: [`rx`] receives many PDUs at a time, [`tx`]
//! sends many at a time.

pub(crate) mod rx;
pub(crate) mod tx;
