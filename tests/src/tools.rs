//! External programs: finds and runs them, and skips tests when they are missing.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Environment variable that makes a skipped test fail, for machines with all tools installed.
pub const NO_SKIP: &str = "FLAGSTONE_TESTS_NO_SKIP";

/// Workspace folder, which contains `scripts/`.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is one folder down")
}

/// Prints on the terminal that `test` is skipped, even if the test runner captures output.
///
/// # Panics
///
/// If [`NO_SKIP`] is set in the environment.
pub fn skip(test: &str, reason: &str) {
    assert!(std::env::var_os(NO_SKIP).is_none(), "{test} would be skipped: {reason}");
    // Not eprintln!, which is shown only for failed tests.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

/// As [`skip`], for restrictions of the machine that no installation can fix, such as missing
/// network namespaces. Never fails the test.
pub fn unable(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

/// Path of `program`, from `PATH`, then the system directories, which are not in every user's
/// `PATH`, and then the folder into which `scripts/test-servers.sh` builds programs.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let built = workspace().join(".cache/tools/bin");
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into(), built])
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// True if all `programs` are installed; otherwise reports that `test` is skipped.
pub fn have(test: &str, programs: &[&str]) -> bool {
    let missing: Vec<&str> =
        programs.iter().copied().filter(|program| find(program).is_none()).collect();
    if missing.is_empty() {
        return true;
    }
    skip(test, &format!("{} not installed; scripts/setup.sh installs it", missing.join(", ")));
    false
}

/// Runs a program to its end and returns its standard output.
///
/// # Panics
///
/// If the program is missing or fails, with all its output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    assert!(output.status.success(), "{}", describe(program, arguments, &output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a program that must fail, and returns its output.
///
/// # Panics
///
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
