//! Parser of diskspd's command line: options of one token each, then targets.
//!
//! A flag that changes the workload and has no counterpart in fio is refused by name. A flag that
//! only changes the report or Windows specifics is a warning by name. Only `-` starts a flag,
//! because `/` starts a path. `file` converts an XML profile to flags,
//! `flags` parses single flags, `together` their combinations.

mod file;
mod flags;
#[cfg(test)]
mod tests;
mod together;

use super::profile::Profile;
use crate::limits::BLOCK_BYTES;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    pub profile: Profile,
    /// Flags without a counterpart that do not change the workload.
    pub warnings: Vec<String>,
}

/// Parses the words after `diskspd`.
///
/// # Errors
/// A sentence that names the flag that is invalid or cannot be honored.
pub fn parse(words: &[String]) -> Result<Parsed, String> {
    let expanded = file::expanded(words)?;
    let flags = expanded.iter().take_while(|word| word.starts_with('-')).count();
    let (flags, targets) = expanded.split_at(flags);
    let mut reader = Reader::default();
    reader.profile.command_line = command_line(words);
    // Sizes may be in blocks, so the block size is parsed first, wherever it is.
    for flag in flags.iter().filter_map(|flag| flag.strip_prefix("-b")) {
        reader.profile.block_bytes = reader.size("-b", flag)?;
    }
    if !(1..=BLOCK_BYTES).contains(&reader.profile.block_bytes) {
        return Err("-b: a block is from 1 byte to less than 4 GiB".to_owned());
    }
    for flag in flags {
        reader.flag(flag)?;
    }
    for target in targets {
        reader.target(target)?;
    }
    reader.finish()
}

fn command_line(words: &[String]) -> String {
    let mut out = "diskspd".to_owned();
    for word in words {
        let quoted = word.contains([' ', '\t']);
        out += &if quoted { format!(" \"{word}\"") } else { format!(" {word}") };
    }
    out
}

#[derive(Default)]
struct Reader {
    profile: Profile,
    warnings: Vec<String>,
    threads: Option<u32>,
    total_threads: Option<u32>,
    outstanding: Option<u32>,
    total_outstanding: Option<u32>,
    burst: Option<u32>,
    pause_ms: Option<u32>,
    explicit_affinity: bool,
    no_affinity: bool,
    random: Option<Option<u64>>,
    random_percent: Option<u8>,
    stride: Option<Option<u64>>,
    base_length: Option<u64>,
    highest: Option<u64>,
    cache_flags: String,
    flush: bool,
}
