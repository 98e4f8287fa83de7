//! Measuring block storage.
