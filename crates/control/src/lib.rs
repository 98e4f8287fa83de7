//! Configuration, device stacks and the serving daemon.
