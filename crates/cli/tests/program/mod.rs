//! Program under test of the measurements.

use std::path::PathBuf;

/// The `flagstone` program: `FLAGSTONE_BIN`, or the program that cargo built for this test.
pub(crate) fn program() -> PathBuf {
    let given = std::env::var_os("FLAGSTONE_BIN");
    given.unwrap_or_else(|| env!("CARGO_BIN_EXE_flagstone").into()).into()
}
