//! Driver of a target: the kernel, fio or our own generator, with the size of served volumes and
//! the processes that serve them.

use std::collections::BTreeMap;

use super::CampaignPlan;
use super::run::{Campaign, Watcher};
use crate::attach::{Attached, InitiatorChoice};
use crate::environment::{self, DiskKind, Environment};
use crate::error::Error;
use crate::guard;
use crate::os;
use crate::results::ResultRecord;
use crate::server::Servers;
use crate::target::{BenchTarget, DiskAddress};

pub(super) const OWN_TOOL: &str = "flagstone load";

/// A target with its driver. Kernel attachments are detached when it is dropped.
#[derive(Debug)]
pub(super) struct Driven {
    /// The target, with block devices in place of addresses that the kernel attached.
    pub(super) target: BenchTarget,
    pub(super) servers: Servers,
    /// Sizes of served disks by address, in bytes.
    sizes: BTreeMap<String, u64>,
    disks: Vec<DiskAddress>,
    initiator: Option<String>,
    /// Kernel attachments, held until the end.
    _attached: Vec<Attached>,
}

impl Driven {
    pub(super) fn size_bytes(&self) -> Option<u64> {
        let first = &self.target.disks[0];
        match first.path() {
            Some(path) => os::size_of(path).ok(),
            None => self.sizes.get(&first.to_string()).copied(),
        }
    }

    /// Size of a served disk, in bytes; 0 if the disk is not served.
    pub(super) fn served_bytes(&self, disk: &DiskAddress) -> u64 {
        self.sizes.get(&disk.to_string()).copied().unwrap_or(0)
    }

    pub(super) fn describe(&self, environment: &mut Environment) {
        for (disk, driven) in self.disks.iter().zip(&self.target.disks) {
            if disk.path().is_some() {
                continue;
            }
            let name = disk.to_string();
            let mut found = environment::disk(driven);
            found.kind = DiskKind::Served;
            found.size_bytes = found.size_bytes.or_else(|| self.sizes.get(&name).copied());
            found.initiator.clone_from(&self.initiator);
            environment.disks.insert(name, found);
        }
    }
}

impl Campaign<'_> {
    /// Chooses the driver of a target, attaches it if that is the kernel, and reads the sizes.
    pub(super) fn drive(
        &self,
        target: &BenchTarget,
        done: &[ResultRecord],
        watcher: &mut dyn Watcher,
    ) -> Result<Driven, Error> {
        let mut driven = Driven {
            target: target.clone(),
            servers: Servers::of(&target.disks),
            sizes: BTreeMap::new(),
            disks: target.disks.clone(),
            initiator: None,
            _attached: Vec::new(),
        };
        match &target.disks[0] {
            DiskAddress::Path(_) => return Ok(driven),
            DiskAddress::Nbd(_) => {
                driven.initiator = Some("fio's nbd engine".to_owned());
                if self.plan.jobs.iter().any(|job| job.sync && job.writes()) {
                    watcher.note(&format!(
                        "{}: fio's nbd engine has no durable writes: `sync` has no effect",
                        target.name
                    ));
                }
            }
            DiskAddress::NvmeTcp(_) => self.drive_nvme(&mut driven, done, watcher)?,
        }
        for disk in driven.target.disks.iter().filter(|disk| disk.path().is_none()) {
            let name = disk.to_string();
            let bytes = self.generator.size_bytes(&name, self.interrupt)?;
            driven.sizes.insert(name, bytes);
        }
        Ok(driven)
    }

    fn drive_nvme(
        &self,
        driven: &mut Driven,
        done: &[ResultRecord],
        watcher: &mut dyn Watcher,
    ) -> Result<(), Error> {
        let choice = choice(self.plan, &driven.target, done);
        let reason = match choice {
            InitiatorChoice::Flagstone => "as was asked".to_owned(),
            _ => match self.attach_all(&driven.target)? {
                Ok(attached) => {
                    let names: Vec<_> =
                        attached.iter().map(|one| one.device().display().to_string()).collect();
                    watcher.note(&format!(
                        "{} is measured through the kernel, as {}",
                        driven.target.name,
                        names.join(", ")
                    ));
                    driven.target.disks = attached
                        .iter()
                        .map(|one| DiskAddress::Path(one.device().to_owned()))
                        .collect();
                    driven.initiator = Some("the kernel and fio".to_owned());
                    driven._attached = attached;
                    return self.guard_attached(driven);
                }
                Err(reason) => reason,
            },
        };
        let BenchTarget { name, disks } = &driven.target;
        if choice == InitiatorChoice::Kernel {
            return Err(Error::Usage(format!(
                "{name} cannot be measured through the kernel: {reason}"
            )));
        }
        if disks.len() > 1 {
            return Err(Error::Usage(format!(
                "{name}: several nvme-tcp:// disks at once need the kernel: {reason}"
            )));
        }
        if choice == InitiatorChoice::Auto {
            watcher.note(&format!(
                "{name} is measured with our own generator, not through the kernel: {reason}"
            ));
        }
        driven.initiator = Some(format!("{OWN_TOOL}: {reason}"));
        Ok(())
    }

    /// Attaches all disks of a target, or none; then the inner error is the reason.
    fn attach_all(&self, target: &BenchTarget) -> Result<Result<Vec<Attached>, String>, Error> {
        if self.fio.is_none() {
            return Ok(Err("there is no fio here".to_owned()));
        }
        if let Some(reason) = self.initiator.why_not(self.interrupt)? {
            return Ok(Err(reason));
        }
        let mut attached = Vec::new();
        for disk in &target.disks {
            match self.initiator.attach(&disk.to_string(), self.interrupt)? {
                Ok(one) => attached.push(one),
                Err(reason) => return Ok(Err(reason)),
            }
        }
        Ok(Ok(attached))
    }

    /// A disk that was attached before may be in use, which no consent overrides.
    fn guard_attached(&self, driven: &Driven) -> Result<(), Error> {
        let agreed: Vec<_> = driven.target.disks.iter().map(DiskAddress::to_string).collect();
        guard::check(&driven.target, self.plan.destroys(), &agreed).map(drop)
    }
}

/// A resumed run keeps the driver of each target.
fn choice(plan: &CampaignPlan, target: &BenchTarget, done: &[ResultRecord]) -> InitiatorChoice {
    match done.iter().find(|record| record.target == target.name) {
        Some(record) if record.tool == OWN_TOOL => InitiatorChoice::Flagstone,
        Some(_) => InitiatorChoice::Kernel,
        None => plan.initiator,
    }
}
