//! The report as text: aligned, the most costly first, no wider than its longest evidence.

use std::fmt::Write as _;

use crate::apply::Outcome;
use crate::checks::{Finding, Severity};
use crate::doctor::Report;

/// Colours of severities, for a terminal.
fn severity(severity: Severity, colour: bool) -> String {
    let (word, code) = match severity {
        Severity::High => ("HIGH", "31"),
        Severity::Medium => ("MEDIUM", "33"),
        Severity::Low => ("LOW", "36"),
        Severity::Info => ("INFO", "2"),
    };
    match colour {
        true => format!("\x1b[{code}m{word:<6}\x1b[0m"),
        false => format!("{word:<6}"),
    }
}

/// The report for a person.
pub fn text(report: &Report, colour: bool) -> String {
    let mut out = String::new();
    let host = &report.host;
    let kernel = host.kernel.as_deref().unwrap_or("unknown");
    let cpus = host.cpus.map_or("unknown".to_owned(), |cpus| cpus.to_string());
    let disks = match host.disks.is_empty() {
        true => "none".to_owned(),
        false => host.disks.join(", "),
    };
    let _ = writeln!(out, "kernel {kernel}, {cpus} CPUs, disks: {disks}");
    let findings = &report.judgement.findings;
    match findings.is_empty() {
        true => out += "\nnothing found that costs performance\n",
        false => {
            let _ = writeln!(out, "\ncosts performance: {}, the most costly first", findings.len());
        }
    }
    let width = findings.iter().map(|finding| finding.subject.chars().count()).max().unwrap_or(0);
    for entry in findings {
        finding(&mut out, entry, width.min(24), colour);
    }
    right(&mut out, report);
    let unread = &report.judgement.unread;
    if !unread.is_empty() {
        let _ = writeln!(out, "\nnot known: {}", unread.len());
        let width = unread.iter().map(|u| u.file.chars().count()).max().unwrap_or(0).min(48);
        for entry in unread {
            let _ = writeln!(out, "  {:<width$}  {}", entry.file, entry.why);
        }
    }
    out
}

fn finding(out: &mut String, finding: &Finding, width: usize, colour: bool) {
    let Finding { subject, check, what, .. } = finding;
    let severity = severity(finding.severity, colour);
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

/// A name and its value; more lines of the value go below each other.
fn field(out: &mut String, name: &str, value: &str) {
    for (index, line) in value.lines().enumerate() {
        let _ = writeln!(out, "        {:<8} {line}", if index == 0 { name } else { "" });
    }
}

/// What is right, with the disks of which the same is true on one line.
fn right(out: &mut String, report: &Report) {
    let right = &report.judgement.right;
    if right.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nright: {}", right.len());
    let width = right.iter().map(|right| right.check.len()).max().unwrap_or(0);
    let mut lines: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for entry in right {
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

/// How changes ended, a line each.
pub fn outcomes(outcomes: &[Outcome]) -> String {
    outcomes.iter().fold(String::new(), |text, outcome| format!("{text}  {outcome}\n"))
}
