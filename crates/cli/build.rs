//! Build script: puts the git commit into the program, for `--version`.
//!
//! `FLAGSTONE_COMMIT` in the environment wins, for packages built without a checkout. Otherwise the
//! script asks git. Without git the commit is `unknown`. Cargo runs the script again only when HEAD
//! moves: every watched file exists, because a missing one would cause a rebuild each time.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FLAGSTONE_COMMIT");
    let given = std::env::var("FLAGSTONE_COMMIT").ok().filter(|commit| is_commit(commit));
    let commit = given.or_else(commit_of_checkout).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=FLAGSTONE_COMMIT={commit}");
}

/// Whether the text is one short line of plain characters, fit for a version string.
fn is_commit(text: &str) -> bool {
    let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+".contains(&b));
    plain && (1..=64).contains(&text.len())
}

fn commit_of_checkout() -> Option<String> {
    // Sources unpacked inside an unrelated repository do not belong to its commit.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().ok()?;
    let top_level = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
    if top_level != root {
        return None;
    }
    // HEAD changes with the branch and its log with every commit. The branch's own file covers
    // repositories without reflogs.
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
