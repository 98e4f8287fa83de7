//! Doctor: reads the facts of a host, checks them, and applies safe changes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::apply::{ApplyError, ChangeOutcome, apply, preview};
use crate::checks::{self, CheckResults, Expectations, SettingChange};
use crate::facts::{HostFacts, is_name};
use crate::inspect::{DeviceUse, inspect};
use crate::root::Root;

/// Version of the JSON report. It changes when a member is removed or changes its meaning.
pub const REPORT_VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostSummary {
    pub kernel: Option<String>,
    pub cpus: Option<usize>,
    pub disks: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct DoctorReport {
    pub version: u32,
    pub host: HostSummary,
    pub expected: Expectations,
    /// Findings, passed checks, and unreadable facts.
    #[serde(flatten)]
    pub results: CheckResults,
    /// Uses of the named devices, only for this host and not for a recorded tree.
    pub devices: Vec<DeviceUse>,
    /// Results of the changes, if requested.
    pub changes: Option<Vec<ChangeOutcome>>,
}

/// The disk of a device name: `sdb`, `/dev/sdb`, a link or a partition.
pub fn resolve(root: &Root, device: &str) -> Result<String, String> {
    let not_found = |why: &dyn std::fmt::Display| format!("{device}: {why}");
    let name = match device.contains('/') {
        false => device.to_owned(),
        true if root.is_this_host() => {
            let real = std::fs::canonicalize(device).map_err(|error| not_found(&error))?;
            let name = real.strip_prefix("/dev").map_err(|_| not_found(&"not a block device"))?;
            name.to_string_lossy().replace('/', "!")
        }
        true => device.trim_start_matches("/dev/").replace('/', "!"),
    };
    if !is_name(&name) {
        return Err(not_found(&"not the name of a device"));
    }
    if root.exists(&format!("/sys/block/{name}")) {
        return Ok(name);
    }
    let disks =
        root.list("/sys/block").map_err(|error| not_found(&format!("/sys/block: {error}")))?;
    let is_part = |disk: &&String| root.exists(&format!("/sys/block/{disk}/{name}/partition"));
    let disk = disks.iter().find(is_part).filter(|disk| is_name(disk));
    disk.cloned().ok_or_else(|| not_found(&"no such block device"))
}

/// Reads and checks a host. `expected.named` must come from [`resolve`].
pub fn diagnose(root: &Root, expected: &Expectations) -> DoctorReport {
    let mut facts = HostFacts::read(root, &expected.named);
    if root.is_this_host() {
        facts.uses = uses(&expected.named);
    }
    DoctorReport {
        version: REPORT_VERSION,
        host: HostSummary {
            kernel: facts.kernel.as_ref().map(|seen| seen.text.clone()),
            cpus: facts.cpu_count(),
            disks: facts.disks.iter().map(|disk| disk.name.clone()).collect(),
        },
        expected: expected.clone(),
        results: checks::judge(&facts, expected),
        devices: facts.uses.into_values().collect(),
        changes: None,
    }
}

fn uses(names: &[String]) -> BTreeMap<String, DeviceUse> {
    let look = |name: &String| -> io::Result<(String, DeviceUse)> {
        Ok((name.clone(), inspect(Path::new(&checks::node(name)))?))
    };
    names.iter().filter_map(|name| look(name).ok()).collect()
}

impl DoctorReport {
    pub fn safe_changes(&self) -> Vec<SettingChange> {
        let mut changes: Vec<SettingChange> = Vec::new();
        for change in self.results.findings.iter().filter(|f| f.safe).flat_map(|f| &f.changes) {
            if !changes.iter().any(|other| other.file == change.file) {
                changes.push(change.clone());
            }
        }
        changes
    }

    /// Applies the safe changes and stores their results in [`DoctorReport::changes`].
    ///
    /// # Errors
    /// The undo journal failed; no further change was made.
    pub fn apply(&mut self, root: &Root, keep: bool) -> Result<(), ApplyError> {
        self.changes = Some(apply(root, &self.safe_changes(), keep)?);
        Ok(())
    }

    /// Stores in [`DoctorReport::changes`] what [`DoctorReport::apply`] would do.
    ///
    /// # Errors
    /// The journal of earlier changes is unreadable or malformed.
    pub fn preview(&mut self, root: &Root, keep: bool) -> Result<(), ApplyError> {
        self.changes = Some(preview(root, &self.safe_changes(), keep)?);
        Ok(())
    }
}
