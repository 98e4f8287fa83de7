//! The BlockDevice trait, its leaves and simple layers, and the conformance kit.
