//! Agreement between replicas: generation history, the handshake decision and link versions. Pure.

pub mod decide;
pub mod generation;
pub mod plan;
pub mod versions;
