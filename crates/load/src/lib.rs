//! Closed-loop load generator and data verifier.
