//! The `flagstone` program.
fn main() {}
