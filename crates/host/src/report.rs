//! Report as text: aligned, the most costly finding first.

use std::fmt::Write as _;

use crate::apply::ChangeOutcome;
use crate::checks::{Severity, TuningFinding};
use crate::doctor::DoctorReport;

fn severity(severity: Severity, color: bool) -> String {
    let (word, code) = match severity {
        Severity::High => ("HIGH", "31"),
        Severity::Medium => ("MEDIUM", "33"),
        Severity::Low => ("LOW", "36"),
        Severity::Info => ("INFO", "2"),
    };
    match color {
        true => format!("\x1b[{code}m{word:<6}\x1b[0m"),
        false => format!("{word:<6}"),
    }
}

pub fn text(report: &DoctorReport, color: bool) -> String {
    let mut out = String::new();
    let host = &report.host;
    let kernel = host.kernel.as_deref().unwrap_or("unknown");
    let cpus = host.cpus.map_or("unknown".to_owned(), |cpus| cpus.to_string());
    let disks = match host.disks.is_empty() {
        true => "none".to_owned(),
        false => host.disks.join(", "),
    };
    let _ = writeln!(out, "kernel {kernel}, {cpus} CPUs, disks: {disks}");
    let findings = &report.results.findings;
    match findings.is_empty() {
        true => out += "\nnothing found that costs performance\n",
        false => {
            let _ = writeln!(out, "\ncosts performance: {}, the most costly first", findings.len());
        }
    }
    let width = findings.iter().map(|finding| finding.subject.chars().count()).max().unwrap_or(0);
    for entry in findings {
        finding(&mut out, entry, width.min(24), color);
    }
    passed(&mut out, report);
    let unread = &report.results.unread;
    if !unread.is_empty() {
        let _ = writeln!(out, "\nnot known: {}", unread.len());
        let width = unread.iter().map(|u| u.file.chars().count()).max().unwrap_or(0).min(48);
        for entry in unread {
            let _ = writeln!(out, "  {:<width$}  {}", entry.file, entry.why);
        }
    }
    out
}

fn finding(out: &mut String, finding: &TuningFinding, width: usize, color: bool) {
    let TuningFinding { subject, check, what, .. } = finding;
    let severity = severity(finding.severity, color);
    let _ = writeln!(out, "\n{severity}  {subject:<width$}  {check}: {what}");
    for (index, evidence) in finding.evidence.iter().enumerate() {
        field(
            out,
            if index == 0 { "seen" } else { "" },
            &match evidence.value.is_empty() {
                true => evidence.file.clone(),
                false => format!("{}: {}", evidence.file, evidence.value),
            },
        );
    }
    field(out, "effect", &format!("{} ({})", finding.effect, finding.source));
    if let Some(caution) = &finding.caution {
        field(out, "caution", caution);
    }
    field(out, "change", &finding.command);
    field(out, "undo", &finding.undo);
    let by = if finding.safe { "yes" } else { "no: by hand" };
    field(out, "--apply", by);
}

/// A name and its value, whose further lines are indented below.
fn field(out: &mut String, name: &str, value: &str) {
    for (index, line) in value.lines().enumerate() {
        let _ = writeln!(out, "        {:<8} {line}", if index == 0 { name } else { "" });
    }
}

/// Passed checks; disks with equal results share a line.
fn passed(out: &mut String, report: &DoctorReport) {
    let all = &report.results.passed;
    if all.is_empty() {
        return;
    }
    let _ = writeln!(out, "\npassed: {}", all.len());
    let width = all.iter().map(|passed| passed.check.len()).max().unwrap_or(0);
    let mut lines: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for entry in all {
        let (check, what) = (entry.check, entry.what.as_str());
        match lines.iter_mut().find(|line| (line.0, line.1) == (check, what)) {
            Some(line) => line.2.push(&entry.subject),
            None => lines.push((check, what, vec![&entry.subject])),
        }
    }
    for (check, what, subjects) in lines {
        let _ = writeln!(out, "  {check:<width$}  {}: {what}", subjects.join(", "));
    }
}

pub fn outcomes(outcomes: &[ChangeOutcome]) -> String {
    outcomes.iter().fold(String::new(), |text, outcome| format!("{text}  {outcome}\n"))
}
