//! Mirror state: the state machine of roles and orders, and the state as operators see it.

pub mod arbitration;
pub mod machine;
pub mod members;
pub mod outlook;
pub mod status;
