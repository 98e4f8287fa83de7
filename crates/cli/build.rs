//! Puts the git commit into the program, for `--version`.
//!
//! `FLAGSTONE_COMMIT` in the environment wins (for packages built without a checkout); otherwise
//! git is asked; otherwise the commit is `unknown`. Cargo runs this again when HEAD moves, and
//! only then: every file watched exists, since a missing one would mean a rebuild each time.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FLAGSTONE_COMMIT");
    let given = std::env::var("FLAGSTONE_COMMIT").ok().filter(|commit| is_commit(commit));
    let commit = given.or_else(commit_of_checkout).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=FLAGSTONE_COMMIT={commit}");
}

/// One line of a few plain characters: it ends up in a version string.
fn is_commit(text: &str) -> bool {
    let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+".contains(&b));
    plain && (1..=64).contains(&text.len())
}

fn commit_of_checkout() -> Option<String> {
    // Sources unpacked inside an unrelated repository are not of its commit.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().ok()?;
    let top_level = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
    if top_level != root {
        return None;
    }
    // HEAD changes with the branch, its log with every commit; a branch's own file for those who
    // keep no logs.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--git-path", name]).map(|path| manifest_dir().join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"]).filter(|commit| is_commit(commit))
}

fn manifest_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).current_dir(manifest_dir()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
