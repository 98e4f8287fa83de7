//! Checks for settings that cost performance: pure functions from facts to findings.
//!
//! An effect names its source, or says that it was reasoned and not measured.

mod cpu;
mod disk;
mod filesystem;
mod network;

use serde::Serialize;

use crate::facts::{HostFacts, Observed, Unread};

pub(crate) use network::TCP_PROTOCOLS;

/// Google's page, the source of most advice.
pub(crate) const GOOGLE: &str =
    "Google Cloud, Optimizing persistent disk and local SSD performance (2019)";
pub(crate) const KERNEL: &str = "Linux kernel documentation, Documentation/";
/// Reasoning without a published figure.
pub(crate) const REASONED: &str = "by reasoning; not measured on this host";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TuningGoal {
    /// Small random I/O.
    Iops,
    /// Large sequential I/O.
    Throughput,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Expectations {
    /// Tuning goal. Read-ahead is checked only if it is given.
    pub workload: Option<TuningGoal>,
    /// I/O operations per second.
    pub iops: Option<u64>,
    /// Enables the network checks: the host serves volumes. Remote devices enable them too.
    pub server: bool,
    pub named: Vec<String>,
}

/// Cost of a finding. The most costly sorts first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A multiple, or the expected rate is out of reach.
    High,
    /// Tens of percents for affected workloads.
    Medium,
    Low,
    /// A choice with a trade-off.
    #[default]
    Info,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    pub file: String,
    pub value: String,
}

impl<T> From<&Observed<T>> for Evidence {
    fn from(seen: &Observed<T>) -> Evidence {
        Evidence { file: seen.file.clone(), value: seen.text.clone() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SettingChange {
    pub file: String,
    pub before: String,
    pub value: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TuningFinding {
    pub check: &'static str,
    pub severity: Severity,
    /// Disk, interface or part of the host.
    pub subject: String,
    pub what: String,
    pub evidence: Vec<Evidence>,
    pub effect: String,
    pub source: String,
    pub command: String,
    pub undo: String,
    pub safe: bool,
    /// Reason that it is not safe, or a warning.
    pub caution: Option<String>,
    pub changes: Vec<SettingChange>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PassedCheck {
    pub check: &'static str,
    /// Disk, interface or part of the host.
    pub subject: String,
    pub what: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CheckResults {
    pub findings: Vec<TuningFinding>,
    pub passed: Vec<PassedCheck>,
    /// Facts that could not be read or judged, with the reason.
    pub unread: Vec<Unread>,
}

impl CheckResults {
    pub(crate) fn passed(&mut self, check: &'static str, subject: &str, what: impl Into<String>) {
        self.passed.push(PassedCheck { check, subject: subject.to_owned(), what: what.into() });
    }

    /// Adds a finding that needs a person to act.
    pub(crate) fn found(
        &mut self,
        check: &'static str,
        severity: Severity,
        subject: &str,
        what: impl Into<String>,
        evidence: impl IntoIterator<Item = Evidence>,
    ) -> &mut TuningFinding {
        self.findings.push_mut(TuningFinding {
            check,
            severity,
            subject: subject.to_owned(),
            what: what.into(),
            evidence: evidence.into_iter().collect(),
            ..TuningFinding::default()
        })
    }

    pub(crate) fn unknown(&mut self, what: &str, why: &str) {
        self.unread.push(Unread { file: what.to_owned(), why: why.to_owned() });
    }
}

pub(crate) fn judge(facts: &HostFacts, expected: &Expectations) -> CheckResults {
    let mut results = CheckResults { unread: facts.unread.clone(), ..CheckResults::default() };
    for disk in &facts.disks {
        disk::judge(facts, expected, disk, &mut results);
        filesystem::judge(facts, expected, disk, &mut results);
    }
    filesystem::lazy_initialization(facts, &mut results);
    cpu::judge(facts, expected, &mut results);
    network::fabrics(facts, &mut results);
    if expected.server || !facts.fabrics.is_empty() {
        network::judge(facts, &mut results);
    }
    // A stable sort keeps checks of equal cost in the order of the disks.
    results.findings.sort_by_key(|finding| finding.severity);
    results
}

impl TuningFinding {
    pub(crate) fn effect(
        &mut self,
        effect: impl Into<String>,
        source: impl Into<String>,
    ) -> &mut TuningFinding {
        (self.effect, self.source) = (effect.into(), source.into());
        self
    }

    pub(crate) fn by_hand(
        &mut self,
        command: impl Into<String>,
        undo: impl Into<String>,
        caution: impl Into<String>,
    ) {
        (self.command, self.undo) = (command.into(), undo.into());
        self.caution = Some(caution.into());
    }

    /// Makes the finding safe to apply: writes of settings, from which the commands follow.
    pub(crate) fn by_writing(&mut self, changes: Vec<SettingChange>) -> &mut TuningFinding {
        let write = |change: &SettingChange, value: &str| match sysctl_name(&change.file) {
            Some(name) => format!("sysctl -w {name}={}", quote(value)),
            None => format!("echo {} > {}", quote(value), quote(&change.file)),
        };
        let lines = |value: fn(&SettingChange) -> &str| {
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

pub(crate) fn quote(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:,=+@%".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

pub(crate) fn node(name: &str) -> String {
    format!("/dev/{}", name.replace('!', "/"))
}

/// sysctl name of a file below `/proc/sys`.
pub(crate) fn sysctl_name(file: &str) -> Option<String> {
    Some(file.strip_prefix("/proc/sys/")?.replace('/', "."))
}
