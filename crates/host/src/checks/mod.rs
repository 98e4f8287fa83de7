//! Checks for settings that cost performance: pure functions from facts to findings.
//!
//! An effect names its source, or says that it was reasoned and not measured.

mod cpu;
mod disk;
mod filesystem;
mod network;

use serde::Serialize;

use crate::facts::{HostFacts, Observed, Unread};

/// Google's page, the source of most advice.
pub(crate) const GOOGLE: &str =
    "Google Cloud, Optimizing persistent disk and local SSD performance (2019)";
pub(crate) const KERNEL: &str = "Linux kernel documentation, Documentation/";
/// Reasoning without a published figure.
pub(crate) const REASONED: &str = "by reasoning; not measured on this host";

/// Tuning goal of the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TuningGoal {
    /// Small random I/O.
    Iops,
    /// Large sequential I/O.
    Throughput,
}

/// Expected use of the host.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Expectations {
    /// Tuning goal. Read-ahead is checked only if it is given.
    pub workload: Option<TuningGoal>,
    /// I/O operations per second.
    pub iops: Option<u64>,
    /// Enables the network checks: the host serves volumes. Remote devices enable them too.
    pub server: bool,
    /// Disks that are about to be used.
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
    /// Percents.
    Low,
    /// A choice with a trade-off.
    #[default]
    Info,
}

/// A file and its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// The file or the command.
    pub file: String,
    /// Contents, shortened.
    pub value: String,
}

impl<T> From<&Observed<T>> for Evidence {
    fn from(seen: &Observed<T>) -> Evidence {
        Evidence { file: seen.file.clone(), value: seen.text.clone() }
    }
}

/// A setting to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SettingChange {
    /// The file to write.
    pub file: String,
    /// Current value.
    pub before: String,
    /// New value.
    pub value: String,
}

/// A setting that costs performance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TuningFinding {
    /// The check that found it.
    pub check: &'static str,
    /// Cost.
    pub severity: Severity,
    /// Disk, interface or part of the host.
    pub subject: String,
    /// The problem.
    pub what: String,
    /// Evidence for the problem.
    pub evidence: Vec<Evidence>,
    /// Effect of the better setting.
    pub effect: String,
    /// Source of the effect.
    pub source: String,
    /// Commands that change the setting, for root.
    pub command: String,
    /// Commands that undo the change.
    pub undo: String,
    /// Whether `--apply` changes it.
    pub safe: bool,
    /// Reason that it is not safe, or a warning.
    pub caution: Option<String>,
    /// Settings that `--apply` writes.
    pub changes: Vec<SettingChange>,
}

/// A check without a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PassedCheck {
    /// The check.
    pub check: &'static str,
    /// Disk, interface or part of the host.
    pub subject: String,
    /// The good setting.
    pub what: String,
}

/// Results of all checks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CheckResults {
    /// Findings, the most costly first.
    pub findings: Vec<TuningFinding>,
    /// Passed checks.
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
