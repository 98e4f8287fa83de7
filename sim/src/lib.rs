//! Whole clusters in one thread from one seed.
