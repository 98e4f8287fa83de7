//! Seed generator of the fuzz targets: real messages, encoded with the project's own codecs, and
//! the errors known from the tests.
//!
//! ```text
//! cargo run --manifest-path fuzz/Cargo.toml -p flagstone-fuzz-seeds
//! ```
//!
//! Overwrites the files `seed-…` in `fuzz/corpus/TARGET`. Other files, found by fuzzing, stay.

mod bench;
mod mirror;
mod nbd;
mod nvme;
mod pool;
mod text;

use std::io;
use std::path::{Path, PathBuf};

/// Directory of the targets' seeds, and the existing files that seeds are made from.
struct Corpus {
    project: PathBuf,
}

impl Corpus {
    fn put(&self, target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        let folder = self.project.join("fuzz/corpus").join(target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(format!("seed-{name}")), bytes)
    }
}

fn main() -> io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpus = Corpus { project: here.ancestors().nth(2).unwrap_or(here).to_path_buf() };
    nvme::pdu(&corpus)?;
    nvme::commands(&corpus)?;
    nvme::replies(&corpus)?;
    nvme::authentication(&corpus)?;
    nvme::tampered(&corpus)?;
    nbd::handshakes(&corpus)?;
    nbd::requests(&corpus)?;
    nbd::tampered(&corpus)?;
    mirror::replicas(&corpus)?;
    mirror::compressed(&corpus)?;
    pool::structures(&corpus)?;
    bench::fio(&corpus)?;
    bench::diskspd(&corpus)?;
    text::configurations(&corpus)?;
    text::catalogs(&corpus)?;
    text::specs(&corpus)?;
    text::fio_outputs(&corpus)?;
    text::requests(&corpus)
}
