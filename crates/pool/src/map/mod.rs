//! Map of a pool: from volume and block to location. Recent changes are in memory ([`recent`]),
//! above a copy-on-write tree per volume ([`tree`]) whose pages are read through a bounded
//! [`cache`].

pub mod cache;
pub(crate) mod orders;
pub mod recent;
pub mod tree;
