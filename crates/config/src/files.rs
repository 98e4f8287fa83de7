//! Files of a configuration: one file, or the files of a directory, read as one text.
//!
//! Sizes and counts are bounded. A table is in one file only, as TOML demands of a single file.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::Diagnostics;
use crate::limits::{MAX_FILE_BYTES, MAX_FILES};

/// Text of a file or directory.
#[derive(Debug, Default)]
pub(crate) struct ConfigTexts {
    pub(crate) text: String,
    /// For a directory: first byte and name of each of its files `*.toml`, in the order of their
    /// names.
    pub(crate) files: Vec<(usize, String)>,
    /// Mistakes of files whose other tables are in the text.
    pub(crate) mistakes: Vec<Diagnostics>,
}

pub(crate) fn read_texts(path: &Path, name: &str) -> Result<ConfigTexts, Diagnostics> {
    let mut all = ConfigTexts::default();
    if !path.is_dir() {
        all.text = read_text(path, name)?;
        return Ok(all);
    }
    let found = list(path).map_err(|error| {
        let message = format!("cannot read the directory: {error}");
        let help = format!("give a directory with at most {MAX_FILES} files *.toml");
        Diagnostics::unreadable(name, message, &help)
    })?;
    for path in &found {
        let file = path.display().to_string();
        let part = read_text(path, &file)?;
        // TOML allows a byte order mark only at the beginning of the whole text.
        let mut part = part.strip_prefix('\u{feff}').unwrap_or(&part).to_owned();
        // A key above the first table would belong to the last table of the file before.
        let is_blank = |line: &&str| line.is_empty() || line.starts_with('#');
        let first = part.lines().map(str::trim).find(|line| !is_blank(line));
        if first.is_some_and(|line| !line.starts_with('[')) {
            let message = "the file does not begin with a table".to_owned();
            let help = "begin each file of a directory with a table, such as [volume.NAME]";
            all.mistakes.push(Diagnostics::unreadable(&file, message, help));
            part = from_first_table(&part);
        }
        all.files.push((all.text.len(), file));
        all.text += &part;
        all.text.push('\n');
        if all.text.len() as u64 > MAX_FILE_BYTES {
            let message = "the configuration is larger than 1 MiB".to_owned();
            return Err(Diagnostics::unreadable(
                name,
                message,
                "check that these are the right files",
            ));
        }
    }
    Ok(all)
}

/// The text with empty lines in place of those above the first table.
fn from_first_table(text: &str) -> String {
    let is_above = |line: &&str| !line.trim_start().starts_with('[');
    let above = text.lines().take_while(is_above).count();
    "\n".repeat(above)
        + &text.lines().skip(above).map(|line| line.to_owned() + "\n").collect::<String>()
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

#[cfg(test)]
mod tests {
    use crate::{Arguments, Config};

    /// One file ended the check, and the JSON did not name the file of a mistake.
    #[test]
    fn mistakes_of_all_files_are_found_with_their_files() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("a.toml", "device = \"/a\"\n[volume.a]\ndevice = \"/a\"\nwrong = 1\n"),
            ("b.toml", "\u{feff}[volume.b]\ndevice = \"/b\"\nbad = 1\n"),
            ("c.toml", "\u{feff}# only\n[volume.c]\ndevice = \"/c\"\n"),
        ] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let mistakes = Config::check(directory.path(), &Arguments::default()).unwrap_err();
        let found: Vec<_> = mistakes
            .items()
            .iter()
            .map(|item| {
                let json = serde_json::to_value(item).unwrap();
                let file = json["file"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
                (file, item.line)
            })
            .collect();
        let expected = [("a.toml", None), ("a.toml", Some(4)), ("b.toml", Some(3))];
        assert_eq!(found, expected.map(|(file, line)| (file.to_owned(), line)), "{mistakes}");
    }
}
