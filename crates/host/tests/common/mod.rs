//! Unpacks recorded machines; `testdata/README.md` describes the format.

use std::fs;
use std::path::Path;

use flagstone_host::root::Root;

/// Recorded machines.
pub(crate) const TREES: [&str; 6] =
    ["cloud-pd-scsi", "cloud-pd-nvme", "local-ssd-nvme", "local-ssd-scsi", "laptop", "container"];

/// Lines of a recorded machine: path, and value unless it is a directory.
pub(crate) fn lines(name: &str) -> Vec<(String, Option<String>)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/{name}.tree"));
    let text = fs::read_to_string(&file).expect("the tree is there");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split_once('=') {
            // The kernel's escapes (\040) have two backslashes.
            Some((path, value)) => {
                let value = value.replace("\\\\", "\u{0}").replace("\\n", "\n");
                let value = value.replace("\\t", "\t").replace('\u{0}', "\\");
                (path.to_owned(), Some(value))
            }
            None => (line.to_owned(), None),
        })
        .collect()
}

/// Writes the lines as files.
pub(crate) fn unpack(lines: &[(String, Option<String>)]) -> (tempfile::TempDir, Root) {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let directory = directory.expect("a directory");
    for (path, value) in lines {
        let path = directory.path().join(path);
        match value {
            None => fs::create_dir_all(path).expect("a directory"),
            Some(value) => {
                fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
                fs::write(path, format!("{value}\n")).expect("a file");
            }
        }
    }
    let root = Root::new(directory.path());
    (directory, root)
}

/// A recorded machine as a directory.
pub(crate) fn tree(name: &str) -> (tempfile::TempDir, Root) {
    unpack(&lines(name))
}
