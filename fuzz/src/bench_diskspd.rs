//! Fuzz target for diskspd command lines and their translation to fio jobs.
//!
//! Input: one word per line.

use flagstone_bench::diskspd::{parse, text, translate::translate, xml};
use flagstone_bench::limits::{BLOCK_BYTES, DEPTH, THREADS};

/// Parses the command line. An accepted one is within the limits, can be printed again, and is a
/// job that fio's options can express. Every other one is refused with a message.
pub fn run(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    let words: Vec<String> = input.lines().map(str::to_owned).collect();
    let parsed = match parse(&words) {
        Ok(parsed) => parsed,
        Err(said) => return assert!(!said.is_empty()),
    };
    let profile = &parsed.profile;
    assert!(!profile.targets.is_empty());
    assert!((1..=BLOCK_BYTES).contains(&profile.block_bytes));
    assert!((1..=THREADS).contains(&profile.threads) && (1..=DEPTH).contains(&profile.outstanding));
    assert!(profile.end_bytes.is_none_or(|end| end > profile.base_bytes));
    assert!(text::profile(profile).starts_with("\nCommand Line: diskspd"));
    let xml = xml::profile(profile);
    assert!(xml.starts_with("<Profile>") && xml.ends_with("</Profile>\n"));
    match translate(profile, "0-3") {
        Ok(translation) => {
            translation.job.check().expect("it was translated");
            assert_eq!(translation.target.disks.len(), profile.targets.len());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
