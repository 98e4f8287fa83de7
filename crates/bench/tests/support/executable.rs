//! Executable files of tests.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes an executable script. Another process does: a fork of a test beside this one could
/// inherit a file that is open for writing, and Linux does not execute such a file (`ETXTBSY`).
pub(crate) fn write_script(path: &Path, script: &str) {
    let mut shell = Command::new("sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut input = shell.stdin.take().expect("its input");
    input.write_all(script.as_bytes()).expect("it reads");
    drop(input);
    assert!(shell.wait().expect("it ends").success());
}
