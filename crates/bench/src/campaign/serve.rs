//! Who drives a target, and what is known of it before it is measured: the kernel, fio or our own
//! generator; the size of served volumes, and the processes that serve them.

use std::collections::BTreeMap;

use super::Plan;
use super::run::{Campaign, Watcher};
use crate::attach::{Attached, Choice};
use crate::environment::{self, Environment};
use crate::error::Error;
use crate::guard;
use crate::os;
use crate::results::Record;
use crate::server::Servers;
use crate::target::{Place, Target};

/// What our own generator is called in results.
pub(super) const OWN_TOOL: &str = "flagstone load";

/// A target as it is driven. What it attached is detached with it.
#[derive(Debug)]
pub(super) struct Driven {
    /// Devices stand where the kernel attached the plan's addresses.
    pub(super) target: Target,
    /// Who serves it, on this machine.
    pub(super) servers: Servers,
    /// Sizes of served disks, by how they are written, in bytes.
    sizes: BTreeMap<String, u64>,
    /// The plan's disks.
    disks: Vec<Place>,
    /// What drives it, if it is served.
    initiator: Option<String>,
    /// Held until the end.
    _attached: Vec<Attached>,
}

impl Driven {
    /// Of its first disk.
    pub(super) fn size_bytes(&self) -> Option<u64> {
        let first = &self.target.disks[0];
        match first.path() {
            Some(path) => os::size_of(path).ok(),
            None => self.sizes.get(&first.to_string()).copied(),
        }
    }

    /// Of a served disk; 0 if it is none.
    pub(super) fn served_bytes(&self, disk: &Place) -> u64 {
        self.sizes.get(&disk.to_string()).copied().unwrap_or(0)
    }

    /// Adds what the environment cannot see by itself.
    pub(super) fn describe(&self, environment: &mut Environment) {
        for (disk, driven) in self.disks.iter().zip(&self.target.disks) {
            if disk.path().is_some() {
                continue;
            }
            let name = disk.to_string();
            let mut found = environment::disk(driven);
            found.kind = "served".to_owned();
            found.size_bytes = found.size_bytes.or_else(|| self.sizes.get(&name).copied());
            found.initiator.clone_from(&self.initiator);
            environment.disks.insert(name, found);
        }
    }
}

impl Campaign<'_> {
    /// Decides who drives a target, attaches it if the kernel does, and looks at what is served.
    pub(super) fn drive(
        &self,
        target: &Target,
        done: &[Record],
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
            Place::Path(_) => return Ok(driven),
            Place::Nbd(_) => {
                driven.initiator = Some("fio's nbd engine".to_owned());
                if self.plan.jobs.iter().any(|job| job.sync && job.writes()) {
                    watcher.note(&format!(
                        "{}: fio's nbd engine has no durable writes: those that should be are not",
                        target.name
                    ));
                }
            }
            Place::NvmeTcp(_) => self.drive_nvme(&mut driven, done, watcher)?,
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
        done: &[Record],
        watcher: &mut dyn Watcher,
    ) -> Result<(), Error> {
        let choice = choice(self.plan, &driven.target, done);
        let reason = match choice {
            Choice::Flagstone => "as was asked".to_owned(),
            _ => match self.attach_all(&driven.target)? {
                Ok(attached) => {
                    let names: Vec<_> =
                        attached.iter().map(|one| one.device().display().to_string()).collect();
                    watcher.note(&format!(
                        "{} is measured through the kernel, as {}",
                        driven.target.name,
                        names.join(", ")
                    ));
                    driven.target.disks =
                        attached.iter().map(|one| Place::Path(one.device().to_owned())).collect();
                    driven.initiator = Some("the kernel and fio".to_owned());
                    driven._attached = attached;
                    return self.guard_attached(driven);
                }
                Err(reason) => reason,
            },
        };
        let Target { name, disks } = &driven.target;
        if choice == Choice::Kernel {
            return Err(Error::Usage(format!(
                "{name} cannot be measured through the kernel: {reason}"
            )));
        }
        if disks.len() > 1 {
            return Err(Error::Usage(format!(
                "{name}: several nvme-tcp:// disks at once need the kernel: {reason}"
            )));
        }
        if choice == Choice::Auto {
            watcher.note(&format!(
                "{name} is measured with our own generator, not through the kernel: {reason}"
            ));
        }
        driven.initiator = Some(format!("{OWN_TOOL}: {reason}"));
        Ok(())
    }

    /// All of a target's disks, or why one cannot be attached: then none is.
    fn attach_all(&self, target: &Target) -> Result<Result<Vec<Attached>, String>, Error> {
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

    /// One that was attached before may be in use, which no consent overrides.
    fn guard_attached(&self, driven: &Driven) -> Result<(), Error> {
        let agreed: Vec<_> = driven.target.disks.iter().map(Place::to_string).collect();
        guard::check(&driven.target, self.plan.writes(), &agreed).map(drop)
    }
}

/// What drove a target before an interruption goes on driving it.
fn choice(plan: &Plan, target: &Target, done: &[Record]) -> Choice {
    match done.iter().find(|record| record.target == target.name) {
        Some(record) if record.tool == OWN_TOOL => Choice::Flagstone,
        Some(_) => Choice::Kernel,
        None => plan.initiator,
    }
}
