//! Opening of one pool: its devices, and its log device, which may be missing, under another path,
//! or hung.

use std::collections::BTreeMap;
use std::path::Path;

use flagstone_pool::{
    AbsentLegs, DeviceSet, ExaminedPool, ExpectedPool, LostTail, NamedDevice, OpenOptions, Pool,
    PoolError, PoolIdentity,
};
use flagstone_runtime::{buf, spawn, time};

use super::disk_search::{Silent, Sought};
use super::orders::check_device;
use super::redundancy::PresentDevices;
use super::{ClosedCause, OpenPoolError, Pools, open_devices};
use crate::connections::DRAIN_PERIOD;
use crate::limits::{ABSENT_WAIT, OPEN_TIMEOUT};

/// Identifies the pool on some devices.
pub(super) async fn examine(paths: &[String]) -> Result<ExaminedPool, String> {
    let devices = open_devices(paths).await?;
    Pool::examine(&devices).await.map_err(|error| error.to_string())
}

/// Opens a log device and reads from it, so that a hung one is detected before a pool waits for it.
async fn ask(path: &str) -> Result<NamedDevice, String> {
    let mut opened = open_devices(&[path.to_owned()]).await?;
    let named = opened.pop().ok_or("it was not opened")?;
    let block = named.device.geometry().block_bytes as usize;
    let read = named.device.read(0, buf::alloc(block).await).await;
    read.map(|_| named).map_err(|error| format!("{path}: {error}"))
}

/// True if two paths lead to the same file.
fn is_same(one: &str, other: &str) -> bool {
    let real = |path: &str| Path::new(path).canonicalize().ok();
    one == other || real(one).is_some_and(|one| Some(one) == real(other))
}

/// Consent of an operator to losses at an opening.
#[derive(Clone, Debug, Default)]
pub(super) struct OperatorConsent {
    /// Gives up writes that only the log device had.
    pub(super) lost_tail: bool,
    /// Identity that the operator accepted: allows an older copy than recorded, or another pool of
    /// this name, with this update or a later one.
    pub(super) devices: Option<PoolIdentity>,
    /// Gives up writes that only these absent devices may have.
    pub(super) absent: AbsentLegs,
}

/// Use of the log device in an attempt to open a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogDecision {
    /// Used the device with the recorded path.
    Named(LostTail),
    /// Opened no log device: it was not found, or does not answer.
    Without(LostTail),
}

impl LogDecision {
    /// Consent of the operator, which holds until the pool is open.
    pub(super) fn consent(self) -> OperatorConsent {
        let (LogDecision::Named(tail) | LogDecision::Without(tail)) = self;
        let lost_tail = tail == LostTail::GiveUp;
        OperatorConsent { lost_tail, ..OperatorConsent::default() }
    }
}

/// Command line of the order that opens the present devices.
fn import_line(name: &str, paths: &[String], log: Option<&String>) -> String {
    let log = log.map_or(String::new(), |log| format!(" --log-device {log}"));
    format!("flagstone pool import {name} {}{log}", paths.join(" "))
}

/// Refusal of two devices of a pair that were used without each other, with the orders that keep
/// the data of one.
fn apart(name: &str, error: &PoolError, paths: &[String], rivals: [&String; 2]) -> String {
    let without = |rival: &String| -> Vec<String> {
        paths.iter().filter(|path| *path != rival).cloned().collect()
    };
    let [first, second] = rivals;
    format!(
        "{error}: {} keeps what {first} has, {} what {second} has; then flagstone pool \
         replace-device {name} ID DEVICE rebuilds the other one",
        import_line(name, &without(second), None),
        import_line(name, &without(first), None)
    )
}

/// Context of a refusal, besides the error.
struct RefusedOpening<'a> {
    /// True if the state directory has an identity of the pool.
    was_open: bool,
    /// True if the devices had to have this identity.
    is_expected: bool,
    /// Problem of the log device.
    log: Option<&'a str>,
    /// Command line of the order that opens the present devices.
    import: String,
}

impl RefusedOpening<'_> {
    fn explain(self, error: &PoolError) -> OpenPoolError {
        let RefusedOpening { was_open, is_expected, log, import } = self;
        OpenPoolError {
            cause: Some(match error {
                PoolError::NotAPool { .. } if !was_open => ClosedCause::Absent,
                _ => ClosedCause::Refused,
            }),
            reason: match (error, log) {
                (PoolError::LogDeviceMissing { .. }, Some(why)) => format!("{error}; {why}"),
                (PoolError::NotAPool { .. }, _) if was_open => format!("{error}, but was one"),
                (PoolError::OldCopy { .. }, _) => {
                    format!("{error}, or continue without later writes: {import}")
                }
                (PoolError::AbsentLeg { .. }, _) => {
                    format!("{error}; to open the pool without it: {import}")
                }
                (PoolError::Unexpected { .. }, _) if is_expected => format!(
                    "{error}, which was open last: attach its devices, or take what is there: {import}"
                ),
                _ => error.to_string(),
            },
        }
    }
}

impl Pools {
    /// Opens a log device with a time limit. At most one task waits for a hung device.
    async fn open_log(&self, path: &str) -> Result<NamedDevice, String> {
        let opened = async {
            while !self.asked.borrow_mut().insert(path.to_owned()) {
                time::sleep(DRAIN_PERIOD).await;
            }
            let (asked, path) = (self.asked.clone(), path.to_owned());
            let task = spawn(async move {
                let opened = ask(&path).await;
                asked.borrow_mut().remove(&path);
                opened
            });
            task.await.unwrap_or(Err("it was not opened".to_owned()))
        };
        let opened = time::timeout(OPEN_TIMEOUT, opened).await;
        opened.unwrap_or_else(|_| Err(format!("{path} does not answer")))
    }

    /// Opens the pool `name` on these devices.
    pub(super) async fn open(
        &self,
        name: &str,
        paths: &[String],
        log: Option<&String>,
        consent: OperatorConsent,
    ) -> Result<Pool, OpenPoolError> {
        // On the heap: this future is part of large ones.
        let opened = Box::pin(self.open_present(name, paths)).await?;
        let PresentDevices { devices, left_out } = opened;
        let present: Vec<String> = devices.iter().map(|named| named.name.clone()).collect();
        let recorded = self.registry.identity(name);
        if consent.devices.is_none() {
            self.check_waiting(name, &devices, &left_out, log).await?;
            self.check_copies(name, &devices, paths).await?;
        }
        let identity = consent.devices.or(recorded);
        let expected = ExpectedPool { name: Some(name.to_owned()), identity };
        // The pool decides about a missing log device.
        let (mut log_device, mut why) = (None, None);
        if let Some(path) = log {
            match self.open_log(path).await {
                Ok(named) => log_device = Some(named),
                Err(error) => why = Some(error),
            }
        }
        let open = async |log, tail| {
            let mirrored = self.leg_names(name);
            let options = OpenOptions {
                log,
                tail,
                expected: expected.clone(),
                mirrored,
                absent: consent.absent.clone(),
            };
            Box::pin(Pool::open_with(devices.clone(), &options)).await
        };
        let full = |error: &PoolError, log| OpenPoolError {
            cause: Some(ClosedCause::Full { devices: paths.to_vec(), log }),
            reason: format!("{error}; {} adds some", self.growth_command(name)),
        };
        let mut tail = if consent.lost_tail { LostTail::GiveUp } else { LostTail::Keep };
        let mut has_log = log_device.is_some();
        let opened = match open(log_device.clone(), tail).await {
            Err(PoolError::LogDeviceMissing { id, update, is_blank, .. }) => {
                // With an empty tail, the pool needs no log device.
                let without = async |reason: String| match open(None, LostTail::Keep).await {
                    Ok(pool) => {
                        tracing::warn!("pool {name} opened without its log device: {reason}");
                        Ok(pool)
                    }
                    Err(error @ PoolError::Full { .. }) => {
                        Err(full(&error, LogDecision::Without(LostTail::Keep)))
                    }
                    Err(_) => Err(OpenPoolError::refused(reason)),
                };
                let found = match self.search.find_log(Sought { id, update }).await {
                    Ok(found) => found,
                    Err(Silent(disks)) => {
                        return without(format!(
                            "its log device was not found, and may be a disk that was not read ({disks})"
                        ))
                        .await;
                    }
                };
                if let Some(found) = found {
                    // The pool already examined the device under the recorded path.
                    let is_named = log.is_some_and(|path| is_same(path, &found));
                    match (is_named, why.clone()) {
                        (true, None) => {}
                        (true, Some(why)) => return Err(why.into()),
                        (false, _) => {
                            let devices = paths.join(" ");
                            let reason = format!(
                                "its log device has another name now: flagstone pool import {name} \
                                 {devices} --log-device {found}"
                            );
                            return without(reason).await;
                        }
                    }
                }
                if is_blank && let Some(path) = log {
                    // The device begins with zeroes, but may be in use by something else. The check
                    // for that needs it closed.
                    log_device = None;
                    match check_device(path, false).await {
                        Ok(()) => log_device = self.open_log(path).await.ok(),
                        Err(problem) => why = Some(problem.detail),
                    }
                }
                (tail, has_log) = (LostTail::Withhold, log_device.is_some());
                open(log_device, tail).await
            }
            opened => opened,
        };
        let pool = opened.map_err(|error| match error {
            PoolError::Full { .. } if has_log => full(&error, LogDecision::Named(tail)),
            PoolError::Full { .. } => full(&error, LogDecision::Without(tail)),
            _ => {
                let was_open = recorded.is_some();
                let import = import_line(name, &present, log);
                let is_expected = identity.is_some();
                if let PoolError::UsedApart { first, second, .. } = &error {
                    return OpenPoolError::refused(apart(name, &error, &present, [first, second]));
                }
                RefusedOpening { was_open, is_expected, log: why.as_deref(), import }
                    .explain(&error)
            }
        })?;
        if let Some(why) = why {
            tracing::warn!("pool {name} opened without its log device: {why}");
        }
        self.waits.borrow_mut().remove(name);
        self.note_left_out(name, left_out);
        Ok(pool)
    }

    /// Devices of a closed pool, and the options of the attempt that found it too full.
    ///
    /// # Errors
    /// Errors of a device.
    pub(super) async fn closed_pool(
        &self,
        name: &str,
        paths: &[String],
        decision: LogDecision,
    ) -> Result<(Vec<NamedDevice>, OpenOptions), String> {
        let PresentDevices { devices, .. } = Box::pin(self.open_present(name, paths)).await?;
        let (log, tail) = match decision {
            LogDecision::Named(tail) => (self.log_path(name), tail),
            LogDecision::Without(tail) => (None, tail),
        };
        let log = match log {
            Some(path) => self.open_log(&path).await.ok(),
            None => None,
        };
        let identity = self.registry.identity(name);
        let expected = ExpectedPool { name: Some(name.to_owned()), identity };
        Ok((
            devices,
            OpenOptions {
                log,
                tail,
                expected,
                mirrored: self.leg_names(name),
                ..OpenOptions::default()
            },
        ))
    }

    /// Refuses an opening without devices that are called in sync for some time: they may be late,
    /// and the opening would cost their redundancy.
    async fn check_waiting(
        &self,
        name: &str,
        devices: &[NamedDevice],
        left_out: &BTreeMap<String, String>,
        log: Option<&String>,
    ) -> Result<(), OpenPoolError> {
        let examined = match left_out.is_empty() {
            true => None,
            false => Pool::examine(devices).await.ok(),
        };
        // Devices that may have later writes need consent at any time.
        let waits = |found: &ExaminedPool| !found.absent.is_empty() && found.unproven.is_empty();
        if !examined.as_ref().is_some_and(waits) {
            self.waits.borrow_mut().remove(name);
            return Ok(());
        }
        let begun = *self.waits.borrow_mut().entry(name.to_owned()).or_insert_with(time::now);
        if begun.elapsed() >= ABSENT_WAIT {
            return Ok(());
        }
        let present: Vec<String> = devices.iter().map(|named| named.name.clone()).collect();
        let reasons: Vec<&str> = left_out.values().map(String::as_str).collect();
        Err(OpenPoolError::refused(format!(
            "it waits {} s for a device ({}); to open it without the device now: {}",
            ABSENT_WAIT.as_secs(),
            reasons.join("; "),
            import_line(name, &present, log)
        )))
    }

    /// Checks that no other disk is a copy of a device of the pool, unless the copy is older.
    async fn check_copies(
        &self,
        name: &str,
        devices: &[NamedDevice],
        paths: &[String],
    ) -> Result<(), OpenPoolError> {
        // The opening reports errors of the devices.
        let Ok(pool) = Pool::examine(devices).await else { return Ok(()) };
        let update = pool.identity.update;
        let found = self.search.find_copy(pool, paths).await;
        let unread = found.as_ref().err().map(|Silent(disks)| disks.as_str());
        let is_news = self.attempts.note(name, unread, time::now());
        match found {
            Ok(None) => Ok(()),
            Ok(Some(copy)) => Err(OpenPoolError::refused(format!(
                "{} is another device of the pool or a copy of one, and not older than {} (update {}, and {update}): \
                 detach the older one, or name the current devices: flagstone pool import {name} DEVICE…",
                copy.path,
                paths.join(", "),
                copy.update
            ))),
            Err(Silent(disks)) => {
                if is_news {
                    tracing::warn!(
                        "disks that were not read may be copies of pool {name}: {disks}"
                    );
                }
                Ok(())
            }
        }
    }

    /// Opens the pool `name` on its recorded devices, with or without devices that an order was
    /// adding or removing.
    pub(super) async fn open_recorded(
        &self,
        name: &str,
        set: &DeviceSet<String>,
        consent: OperatorConsent,
    ) -> Result<Pool, OpenPoolError> {
        if self.registry.is_destroying(name) {
            let reason = format!(
                "it was not destroyed completely: flagstone pool destroy {name} removes the rest; \
                 with --force, the pool is only forgotten, and flagstone pool import brings back what \
                 is whole"
            );
            return Err(OpenPoolError::refused(reason));
        }
        let log = self.log_path(name);
        let mut first: Option<OpenPoolError> = None;
        let alternatives = set.alternatives();
        for (index, paths) in alternatives.iter().enumerate() {
            // The device that is added or removed may hang. If the pool needs it, the set without
            // it is refused.
            let answers = index + 1 == alternatives.len()
                || time::timeout(OPEN_TIMEOUT, examine(paths)).await.is_ok();
            if !answers {
                let silent = || format!("a device does not answer ({})", paths.join(", "));
                first.get_or_insert_with(|| silent().into());
                continue;
            }
            match Box::pin(self.open(name, paths, log.as_ref(), consent.clone())).await {
                Ok(pool) => return Ok(pool),
                Err(error) if matches!(error.cause, Some(ClosedCause::Full { .. })) => {
                    first = Some(error)
                }
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        Err(first.unwrap_or_else(|| "it has no devices".to_owned().into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::disk_search::DiskSearch;
    use flagstone_host::root::Root;
    use flagstone_pool::{CreateOptions, VolumeOptions};

    #[test]
    fn drained_pool_opens_when_its_log_device_is_elsewhere() {
        let scratch = tempfile::tempdir().unwrap();
        let file = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        for directory in ["sys/class/block", "dev"] {
            std::fs::create_dir_all(scratch.path().join(directory)).unwrap();
        }
        std::fs::write(file("sys/class/block/sdz"), "").unwrap();
        // Names of disks changed: `sdz` is the log device, and an unused disk has its former path.
        let paths = ["disk", "dev/sdz", "blank"].map(file);
        for path in &paths {
            std::fs::File::create(path).unwrap().set_len(64 << 20).unwrap();
        }
        flagstone_runtime::block_on(async move {
            let [disk, log, blank] = paths;
            let mut pools = Pools::read(None, 1).await;
            pools.search = DiskSearch::new(Root::new(scratch.path()));
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let devices = open_devices(std::slice::from_ref(&disk)).await.unwrap();
            let log_device = open_devices(std::slice::from_ref(&log)).await.unwrap().pop();
            let pool = Pool::create_with_log(devices, log_device, &options).await.unwrap();
            pool.close().await.unwrap();
            drop(pool);
            let devices = [disk];
            let open = async |lost_tail| {
                let consent = OperatorConsent { lost_tail, ..OperatorConsent::default() };
                pools.open("fast", &devices, Some(&blank), consent).await
            };
            let pool = open(false).await.map_err(|error| error.reason).unwrap();
            assert_eq!(pool.status().log.unwrap().name, None, "the blank disk is not used");
            pool.close().await.unwrap();
            drop(pool);
            let pool = pools.open("fast", &devices, Some(&log), OperatorConsent::default()).await;
            let pool = pool.map_err(|error| error.reason).unwrap();
            assert_eq!(pool.status().log.unwrap().name, Some(log));
            // The volume exists only in the tail.
            let size = VolumeOptions { size_bytes: 1 << 20, ..VolumeOptions::default() };
            drop(pool.create_volume("db", &size).await.unwrap());
            drop(pool);
            let refused = open(false).await.map(drop).map_err(|error| error.reason);
            assert!(refused.unwrap_err().contains("another name now"));
            let pool = open(true).await.map_err(|error| error.reason).unwrap();
            assert_eq!(pool.status().log.unwrap().name, None, "the blank disk is not used");
        })
        .unwrap();
    }

    /// Devices are exchanged between their examination and their opening.
    #[test]
    fn import_opens_only_what_was_examined() {
        let scratch = tempfile::tempdir().unwrap();
        let file = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let [disk, old] = ["disk", "old"].map(file);
        std::fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
        flagstone_runtime::block_on(async move {
            let mut pools = Pools::read(None, 1).await;
            pools.search = DiskSearch::new(Root::new(scratch.path()));
            let paths = [disk.clone()];
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let pool = Pool::create(open_devices(&paths).await.unwrap(), &options).await.unwrap();
            pool.close().await.unwrap();
            drop(pool);
            std::fs::copy(&disk, &old).unwrap();
            let pool = Pool::open(open_devices(&paths).await.unwrap()).await.unwrap();
            pool.close().await.unwrap();
            drop(pool);
            let examined = examine(&paths).await.unwrap().identity;
            std::fs::copy(&old, &disk).unwrap();
            let consent = OperatorConsent { devices: Some(examined), ..OperatorConsent::default() };
            let refused = pools.open("fast", &paths, None, consent.clone()).await.map(drop);
            let reason = refused.map_err(|error| error.reason).unwrap_err();
            assert!(reason.contains("is an old copy"), "{reason}");
            let consent = OperatorConsent {
                devices: Some(examine(&paths).await.unwrap().identity),
                ..consent
            };
            pools.open("fast", &paths, None, consent).await.map_err(|error| error.reason).unwrap();
        })
        .unwrap();
    }
}
