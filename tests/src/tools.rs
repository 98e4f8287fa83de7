//! Programs of others: whether they are here, running them, saying that a test is skipped.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Set to have a test that would be skipped fail instead, as a machine that has everything wants.
pub const NO_SKIP: &str = "FLAGSTONE_TESTS_NO_SKIP";

/// The workspace's folder, in which `scripts/` is.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is one folder down")
}

/// Says on the terminal, whether or not the test runner captures output, that `test` is skipped.
///
/// # Panics
/// If [`NO_SKIP`] is set in the environment.
pub fn skip(test: &str, reason: &str) {
    assert!(std::env::var_os(NO_SKIP).is_none(), "{test} would be skipped: {reason}");
    // Not eprintln!: that is shown for failed tests alone.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

/// The same where the machine does not allow what the test needs, such as networks of its own, so
/// that nothing can be installed for it: it never fails the test.
pub fn unable(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

/// Where `program` is, looked for in `PATH` and then where system programs live, which is not in
/// every user's `PATH`.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// Whether `test` can run: true if every one of `programs` is here, else the test is said to be
/// skipped.
pub fn have(test: &str, programs: &[&str]) -> bool {
    let missing: Vec<&str> =
        programs.iter().copied().filter(|program| find(program).is_none()).collect();
    if missing.is_empty() {
        return true;
    }
    skip(test, &format!("{} not installed; scripts/setup.sh installs it", missing.join(", ")));
    false
}

/// Runs a program to its end and returns what it printed on standard output.
///
/// # Panics
/// If the program is missing or fails, with all that it printed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    assert!(output.status.success(), "{}", describe(program, arguments, &output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a program that is expected to fail, and returns what it printed.
///
/// # Panics
/// If the program is missing, succeeds, or is killed by a signal.
pub fn run_refused(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    assert!(
        output.status.code().is_some_and(|code| code != 0),
        "expected to fail: {}",
        describe(program, arguments, &output)
    );
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn output(program: &str, arguments: &[&str]) -> Output {
    let path = find(program).unwrap_or_else(|| panic!("{program} is not installed"));
    Command::new(path)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("running {program}: {error}"))
}

fn describe(program: &str, arguments: &[&str], output: &Output) -> String {
    let mut text = format!("{program} {}: {}\n", arguments.join(" "), output.status);
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        let _ = writeln!(text, "--- {name}\n{}", String::from_utf8_lossy(bytes));
    }
    text
}
