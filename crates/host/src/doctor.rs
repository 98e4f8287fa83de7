//! The doctor: reads, judges, and changes what it is asked to.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::apply::{ApplyError, Outcome, apply};
use crate::checks::{self, Change, Expectations, Judgement};
use crate::facts::{Facts, Selection, is_name};
use crate::inspect::{DeviceUse, inspect};
use crate::root::Root;

/// Version of the report as JSON; it changes when something is taken away or gets another
/// meaning.
pub const REPORT_VERSION: u32 = 1;

/// What was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// CPUs online.
    pub cpus: Option<usize>,
    /// Disks.
    pub disks: Vec<String>,
}

/// All that the doctor says.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// What was looked at.
    pub host: Host,
    /// What was asked of it.
    pub expected: Expectations,
    /// Findings, what is right, and what could not be read.
    #[serde(flatten)]
    pub judgement: Judgement,
    /// What the named devices are used for; of this host alone, not of a recorded tree.
    pub devices: Vec<DeviceUse>,
    /// How the changes ended, if any were asked for.
    pub changes: Option<Vec<Outcome>>,
}

/// Finds the disk of a device that somebody named: `sdb`, `/dev/sdb`, a link or a partition.
///
/// # Errors
/// That it is no block device of the host.
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

/// Reads and judges a host. `expected.named` must be from [`resolve`].
pub fn diagnose(root: &Root, expected: &Expectations) -> Report {
    let mut facts = Facts::read(root, &Selection { disks: expected.named.clone() });
    if root.is_this_host() {
        facts.uses = uses(&expected.named);
    }
    Report {
        version: REPORT_VERSION,
        host: Host {
            kernel: facts.kernel.as_ref().map(|seen| seen.text.clone()),
            cpus: facts.cpu_count(),
            disks: facts.disks.iter().map(|disk| disk.name.clone()).collect(),
        },
        expected: expected.clone(),
        judgement: checks::judge(&facts, expected),
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

impl Report {
    /// The changes that are safe, each file once.
    pub fn safe_changes(&self) -> Vec<Change> {
        let mut changes: Vec<Change> = Vec::new();
        for change in self.judgement.findings.iter().filter(|f| f.safe).flat_map(|f| &f.changes) {
            if !changes.iter().any(|other| other.file == change.file) {
                changes.push(change.clone());
            }
        }
        changes
    }

    /// Makes the safe changes; how they ended is in [`Report::changes`] then.
    ///
    /// # Errors
    /// That there can be no way back, in which case nothing (more) was changed.
    pub fn apply(&mut self, root: &Root, keep: bool) -> Result<(), ApplyError> {
        self.changes = Some(apply(root, &self.safe_changes(), keep)?);
        Ok(())
    }
}
