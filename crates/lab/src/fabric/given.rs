//! Given bed of the fabric experiment: the server's own devices, or volumes that it serves to this
//! client.

use std::path::{Path, PathBuf};

use flagstone_bench::Error as BenchError;
use flagstone_bench::campaign::{CampaignEnd, CampaignPlan, Watcher};
use flagstone_bench::environment::Environment;
use flagstone_bench::fio::Fio;
use flagstone_bench::job::BenchJob;
use flagstone_bench::os::read_text;
use flagstone_bench::process::Interrupt;
use flagstone_bench::results::{ResultRecord, ResultStore};
use flagstone_bench::target::{BenchTarget, DiskAddress};

use super::{DEPTH, DISKS, FABRIC, FabricRow, LOCAL, PUBLISHED, SUITE};
use crate::Error;
use crate::bed::{BedTargets, MeasuredRecords, RunOptions};
use crate::limits::OUTPUT_BYTES;

#[derive(Clone, Debug)]
pub struct GivenFabric {
    pub targets: BedTargets,
    /// Devices of one SSD each; or `nvme-tcp://` volumes, the first of one SSD, the second of two,
    /// and so on.
    pub disks: Vec<String>,
    pub local_results: Option<PathBuf>,
}

impl GivenFabric {
    /// The target of the run.
    ///
    /// # Errors
    /// Too many disks; disks of both kinds, or of neither; missing devices.
    pub fn target(&self) -> Result<BenchTarget, Error> {
        let usage = |text: String| Error::from(BenchError::Usage(text));
        if self.disks.len() > DISKS as usize {
            return Err(usage(format!("name from 1 to {DISKS} disks, as published")));
        }
        let mut disks = Vec::new();
        for disk in &self.disks {
            // Here a comma separates the addresses of one volume, not disks.
            disks.push(match disk.starts_with("nvme-tcp://") {
                true => DiskAddress::NvmeTcp(disk.clone()),
                false => disk.parse::<BenchTarget>().map_err(usage)?.disks.remove(0),
            });
        }
        let first = disks.first().ok_or_else(|| usage("name a disk".to_owned()))?;
        let name = match first {
            DiskAddress::Path(_) => LOCAL,
            DiskAddress::NvmeTcp(_) => FABRIC,
            DiskAddress::Nbd(uri) => {
                return Err(usage(format!("{uri}: name a device, or nvme-tcp://")));
            }
        };
        let kind = std::mem::discriminant(first);
        if disks.iter().any(|disk| std::mem::discriminant(disk) != kind) {
            return Err(usage(
                "devices are measured on the server and nvme-tcp:// on the client: not in one run"
                    .to_owned(),
            ));
        }
        if name == LOCAL && self.local_results.is_some() {
            return Err(usage("--local-results is for nvme-tcp:// volumes".to_owned()));
        }
        let absent = disks.iter().filter_map(DiskAddress::path).find(|path| !path.exists());
        if let Some(path) = absent {
            return Err(usage(format!("{}: there is no such device", path.display())));
        }
        Ok(BenchTarget { name: name.to_owned(), disks })
    }

    pub(super) fn measure(
        &self,
        run: &RunOptions,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<MeasuredRecords, Error> {
        let target = self.target()?;
        // Invalid results of the server fail before anything is measured.
        let local = self.local_results.as_deref().map(local_records).transpose()?;
        let count = target.disks.len() as u32;
        let jobs = PUBLISHED
            .iter()
            .flat_map(|(pattern, _)| (1..=count).map(|disks| super::job(run, *pattern, disks)));
        let is_local = target.name == LOCAL;
        let side = if is_local { "the server's own SSDs" } else { "the same over NVMe/TCP" };
        let title = format!("Experiment B on real machines: {side}");
        let plan = run.plan((SUITE, &title), jobs.collect(), vec![target], &self.targets);
        if is_local {
            let parts = std::slice::from_ref(&plan);
            return run.campaign((&plan, parts), &self.targets, None, watcher, interrupt);
        }
        let store = run.store(&plan, &self.targets)?;
        let fio = plan.fio(interrupt)?;
        let client = FabricClient { run, plan: &plan, store: &store, fio: fio.as_ref() };
        let end = client.measure(watcher, interrupt)?;
        let records = local.unwrap_or_default().into_iter().chain(store.records()?);
        Ok((end, records.collect()))
    }

    pub(super) fn caveats(&self, rows: &[FabricRow]) -> Vec<String> {
        let mut caveats = Vec::new();
        if rows.iter().all(|row| row.fabric.is_none()) {
            caveats.push(
                "this is the server's side: the client's run shows both, with --local-results"
                    .to_owned(),
            );
        }
        if rows.iter().all(|row| row.local.is_none()) {
            caveats.push(
                "the IOPS of the same disks on the server are unknown: name the server's results \
                 with --local-results"
                    .to_owned(),
            );
        }
        caveats.push(format!(
            "{DEPTH} requests in flight on each SSD; the published depth is unknown, and its server and \
             client had 16 vCPUs each"
        ));
        caveats
    }
}

fn local_records(directory: &Path) -> Result<Vec<ResultRecord>, Error> {
    let (store, plan) = ResultStore::open(directory)?;
    let mut records = store.records()?;
    records.retain(|record| record.target == LOCAL);
    match plan.suite == SUITE && !records.is_empty() {
        true => Ok(records),
        false => Err(BenchError::usage(format!(
            "{}: no results of flagstone lab fabric on devices",
            directory.display()
        ))
        .into()),
    }
}

/// The client's side. Each number of SSDs is a separate volume, striped by the server; the records
/// count SSDs, not volumes, so that both runs can be compared.
struct FabricClient<'a> {
    run: &'a RunOptions,
    plan: &'a CampaignPlan,
    store: &'a ResultStore,
    fio: Option<&'a Fio>,
}

impl FabricClient<'_> {
    fn measure(
        &self,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<CampaignEnd, Error> {
        let mut environment = None;
        let mut end = CampaignEnd::Complete;
        for disks in 1..=self.plan.targets[0].disks.len() as u32 {
            end = self.volume(disks, &mut environment, watcher, interrupt)?;
            if end == CampaignEnd::Interrupted {
                break;
            }
        }
        Ok(end)
    }

    /// Measures the volume of a number of SSDs, in a store of its own.
    fn volume(
        &self,
        disks: u32,
        environment: &mut Option<Environment>,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<CampaignEnd, Error> {
        let volume = self.plan.targets[0].disks[disks as usize - 1].clone();
        let name = volume.to_string();
        let jobs = PUBLISHED.iter().map(|(pattern, _)| BenchJob {
            disks: 1,
            // As many threads and requests in flight for each SSD as on the server.
            threads: disks,
            ..super::job(self.run, *pattern, disks)
        });
        let part = CampaignPlan {
            jobs: jobs.collect(),
            targets: vec![BenchTarget { name: FABRIC.to_owned(), disks: vec![volume] }],
            destroy: self.plan.destroy.iter().filter(|other| **other == name).cloned().collect(),
            ..self.plan.clone()
        };
        let scratch =
            tempfile::tempdir().map_err(Error::system("cannot make a temporary directory"))?;
        let own = ResultStore::create(scratch.path(), &part)?;
        let ended = self.run.measure(&part, &own, self.fio, watcher, interrupt);
        // Results are kept after a failure too.
        for record in own.records()? {
            self.keep(record, disks, &own)?;
        }
        for found in own.environments()? {
            let whole = environment.get_or_insert_with(|| found.clone());
            whole.disks.extend(found.disks);
        }
        if let Some(whole) = environment.as_ref().filter(|whole| {
            whole.disks.len() as u32 == disks || !matches!(ended, Ok(CampaignEnd::Complete))
        }) {
            let path = self.store.directory().join("environment.json");
            let text = serde_json::to_string_pretty(whole).expect("it is always JSON") + "\n";
            std::fs::write(&path, text).map_err(BenchError::file("cannot write", &path))?;
        }
        ended
    }

    fn keep(&self, record: ResultRecord, disks: u32, own: &ResultStore) -> Result<(), Error> {
        let raw = match &record.raw {
            Some(name) => {
                let path = own.directory().join("raw").join(name);
                let text = read_text(&path, OUTPUT_BYTES)
                    .map_err(BenchError::file("cannot read", &path))?;
                Some(self.store.raw(&record.job, 0, record.repetition, &text)?)
            }
            None => None,
        };
        let address = self.plan.targets[0].address();
        Ok(self.store.append(&ResultRecord { disks, threads: 1, address, raw, ..record })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::tests::given;

    fn bed(disks: &[&str]) -> GivenFabric {
        GivenFabric {
            targets: given(),
            disks: disks.iter().map(|disk| (*disk).to_owned()).collect(),
            local_results: None,
        }
    }

    #[test]
    fn disks_of_a_run_are_of_one_kind() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(bed(&[path]).target().unwrap().name, LOCAL);
        let volumes = ["nvme-tcp://a,b/nqn.2026-01.io.flagstone:x1", "nvme-tcp://a/nqn.x:y"];
        let target = bed(&volumes).target().unwrap();
        assert_eq!((target.name.as_str(), target.disks.len()), (FABRIC, 2));
        for wrong in
            [&[path, volumes[0]][..], &["nbd://h/e"], &["/no/such/device"], &[path; 5], &[]]
        {
            assert!(bed(wrong).target().is_err(), "{wrong:?}");
        }
        let local = GivenFabric { local_results: Some("r".into()), ..bed(&[path]) };
        assert!(local.target().unwrap_err().to_string().contains("--local-results"));
    }
}
