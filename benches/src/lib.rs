//! Measurements kept as ratios in docs/performance.md.
