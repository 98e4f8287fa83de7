//! What costs performance: pure functions from facts to findings.
//!
//! No figure is invented. An effect names where it is from; where nobody has published one, it
//! says what is saved and that it was not measured.

mod cpu;
mod disk;
mod filesystem;
mod network;

use serde::Serialize;

use crate::facts::{Facts, Seen, Unread};

/// Google's page, from which most of the advice is.
pub(crate) const GOOGLE: &str =
    "Google Cloud, Optimizing persistent disk and local SSD performance (2019)";
/// The kernel's own documentation.
pub(crate) const KERNEL: &str = "Linux kernel documentation, Documentation/";
/// Nobody's figure.
pub(crate) const REASONED: &str = "by reasoning; not measured on this host";

/// What the disks are to be good at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// Small I/O at random places.
    Iops,
    /// Large I/O, one after the other.
    Throughput,
}

/// What is asked of the host.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Expectations {
    /// Read-ahead is judged only when this is known.
    pub workload: Option<Workload>,
    /// I/O operations per second.
    pub iops: Option<u64>,
    /// It serves volumes: the network is judged too. So it is where remote devices are attached.
    pub server: bool,
    /// Disks that were named, and so are about to be used.
    pub named: Vec<String>,
}

/// How much a finding costs. Ordered: the most costly is the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A multiple, or what was expected cannot be had.
    High,
    /// Tens of percents, for the loads that meet it.
    Medium,
    /// Percents.
    Low,
    /// A choice, with its price.
    Info,
}

/// A file and what it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// The file or the command.
    pub file: String,
    /// What it says, shortened.
    pub value: String,
}

impl<T> From<&Seen<T>> for Evidence {
    fn from(seen: &Seen<T>) -> Evidence {
        Evidence { file: seen.file.clone(), value: seen.text.clone() }
    }
}

/// One setting to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The file to write.
    pub file: String,
    /// What it holds now.
    pub before: String,
    /// What to write.
    pub value: String,
}

/// Something that costs performance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check that found it.
    pub check: &'static str,
    /// How much it costs.
    pub severity: Severity,
    /// The disk, interface or part of the host.
    pub subject: String,
    /// What is wrong.
    pub what: String,
    /// Where that is seen.
    pub evidence: Vec<Evidence>,
    /// What better settings give.
    pub effect: String,
    /// Where the effect is known from.
    pub source: String,
    /// The commands that change it, to be run by root.
    pub command: String,
    /// The commands that change it back.
    pub undo: String,
    /// Whether `--apply` does it.
    pub safe: bool,
    /// Why it is not safe, or what to know before.
    pub caution: Option<String>,
    /// What `--apply` writes.
    pub changes: Vec<Change>,
}

/// Something that was looked at and is right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Right {
    /// The check.
    pub check: &'static str,
    /// The disk, interface or part of the host.
    pub subject: String,
    /// What is right.
    pub what: String,
}

/// The judgement of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// What costs performance, the most costly first.
    pub findings: Vec<Finding>,
    /// What is right.
    pub right: Vec<Right>,
    /// What could not be read, or not be judged, and why.
    pub unread: Vec<Unread>,
}

impl Judgement {
    pub(crate) fn right(&mut self, check: &'static str, subject: &str, what: impl Into<String>) {
        self.right.push(Right { check, subject: subject.to_owned(), what: what.into() });
    }

    pub(crate) fn unknown(&mut self, what: &str, why: &str) {
        self.unread.push(Unread { file: what.to_owned(), why: why.to_owned() });
    }
}

/// Judges a host.
pub fn judge(facts: &Facts, expected: &Expectations) -> Judgement {
    let mut judgement = Judgement { unread: facts.unread.clone(), ..Judgement::default() };
    for disk in &facts.disks {
        disk::judge(facts, expected, disk, &mut judgement);
        filesystem::judge(facts, expected, disk, &mut judgement);
    }
    filesystem::lazy_initialisation(facts, &mut judgement);
    cpu::judge(facts, expected, &mut judgement);
    network::fabrics(facts, &mut judgement);
    if expected.server || !facts.fabrics.is_empty() {
        network::judge(facts, &mut judgement);
    }
    // Stable: checks of the same cost stay in the order of the disks.
    judgement.findings.sort_by_key(|finding| finding.severity);
    judgement
}

impl Finding {
    /// A finding that a person has to act on.
    pub(crate) fn advice(
        check: &'static str,
        severity: Severity,
        subject: &str,
        what: String,
        evidence: Vec<Evidence>,
    ) -> Finding {
        Finding {
            check,
            severity,
            subject: subject.to_owned(),
            what,
            evidence,
            effect: String::new(),
            source: String::new(),
            command: String::new(),
            undo: String::new(),
            safe: false,
            caution: None,
            changes: Vec::new(),
        }
    }

    pub(crate) fn effect(
        mut self,
        effect: impl Into<String>,
        source: impl Into<String>,
    ) -> Finding {
        (self.effect, self.source) = (effect.into(), source.into());
        self
    }

    pub(crate) fn by_hand(
        mut self,
        command: impl Into<String>,
        undo: impl Into<String>,
        caution: impl Into<String>,
    ) -> Finding {
        (self.command, self.undo) = (command.into(), undo.into());
        self.caution = Some(caution.into());
        self
    }

    /// Makes it safe, by writing settings. Their commands come from the changes.
    pub(crate) fn by_writing(mut self, changes: Vec<Change>) -> Finding {
        let write = |change: &Change, value: &str| match sysctl_name(&change.file) {
            Some(name) => format!("sysctl -w {name}={}", quote(value)),
            None => format!("echo {} > {}", quote(value), quote(&change.file)),
        };
        let lines = |value: fn(&Change) -> &str| {
            let lines = changes.iter().map(|change| write(change, value(change)));
            lines.collect::<Vec<_>>().join("\n")
        };
        self.command = lines(|change| &change.value);
        self.undo = lines(|change| &change.before);
        self.safe = true;
        self.changes = changes;
        self
    }
}

/// A word for the shell.
pub(crate) fn quote(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:,=+@%".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Where a disk's device node is.
pub(crate) fn node(name: &str) -> String {
    format!("/dev/{}", name.replace('!', "/"))
}

/// The name for `sysctl` of a file of `/proc/sys`.
pub(crate) fn sysctl_name(file: &str) -> Option<String> {
    Some(file.strip_prefix("/proc/sys/")?.replace('/', "."))
}
