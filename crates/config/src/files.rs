//! Files of a configuration: one file, or the files of a directory, read as one text.
//!
//! Sizes and counts are bounded. A table is in one file only, as TOML demands of a single file.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::Diagnostics;
use crate::limits::{MAX_FILE_BYTES, MAX_FILES};

/// Text of the file or directory `path`. For a directory also the first byte and the name of each
/// of its files `*.toml`, in the order of their names.
pub(crate) fn read_texts(
    path: &Path,
    name: &str,
) -> Result<(String, Vec<(usize, String)>), Diagnostics> {
    if !path.is_dir() {
        return Ok((read_text(path, name)?, Vec::new()));
    }
    let found = list(path).map_err(|error| {
        let message = format!("cannot read the directory: {error}");
        let help = format!("give a directory with at most {MAX_FILES} files *.toml");
        Diagnostics::unreadable(name, message, &help)
    })?;
    let (mut text, mut files) = (String::new(), Vec::new());
    for path in &found {
        let file = path.display().to_string();
        let part = read_text(path, &file)?;
        // A key above the first table would belong to the last table of the file before.
        let is_blank = |line: &&str| line.is_empty() || line.starts_with('#');
        let first = part.lines().map(str::trim).find(|line| !is_blank(line));
        if first.is_some_and(|line| !line.starts_with('[')) {
            let message = "the file does not begin with a table".to_owned();
            let help = "begin each file of a directory with a table, such as [volume.NAME]";
            return Err(Diagnostics::unreadable(&file, message, help));
        }
        files.push((text.len(), file));
        text += &part;
        text.push('\n');
        if text.len() as u64 > MAX_FILE_BYTES {
            let message = "the configuration is larger than 1 MiB".to_owned();
            return Err(Diagnostics::unreadable(
                name,
                message,
                "check that these are the right files",
            ));
        }
    }
    Ok((text, files))
}

fn list(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
        if found.len() > MAX_FILES {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
    }
    found.sort();
    Ok(found)
}

pub(crate) fn read_text(path: &Path, name: &str) -> Result<String, Diagnostics> {
    let unreadable = |error: std::io::Error| {
        Diagnostics::unreadable(
            name,
            format!("cannot read the configuration: {error}"),
            "give the path of a TOML file that this user may read",
        )
    };
    let mut bytes = Vec::new();
    // Configuration is read before any executor runs, and when an operator asks for it; simulated
    // runs parse text.
    #[expect(clippy::disallowed_methods)]
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let message = "the configuration is larger than 1 MiB".to_owned();
        return Err(Diagnostics::unreadable(name, message, "check that this is the right file"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        let message = format!("line {line} is not UTF-8 text");
        Diagnostics::unreadable(name, message, "save the file as UTF-8")
    })
}
