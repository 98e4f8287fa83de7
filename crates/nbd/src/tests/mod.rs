//! Parts of this crate's tests.

pub(crate) mod device;
