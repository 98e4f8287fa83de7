//! Results of the experiment; `docs/lab.md` has the JSON form.

use flagstone_bench::compare::ComparedMetric::{Latency, Throughput};
use flagstone_bench::environment::Environment;
use flagstone_bench::results::ResultRecord;
use flagstone_bench::stats::{median, run_to_run_variation, run_to_run_variation_percent};
use flagstone_units::format_block_size;
use serde::Serialize;

use super::given::BYTES_MOST;
use super::published::{IN_FLIGHT, PublishedRow, ROWS};
use super::setup::{FAR, MIRROR, PLAIN, SETUPS, writes_per_s_most};
use super::{MeasuredMirror, MirrorBed, MirrorLink, customer, is_plain, job_name};
use crate::bed::{self, RunOptions, SCHEMA_VERSION};
use crate::figures::{Figures, matching, throughputs};
use crate::limits::BUSY_PERCENT;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Calibrated {
    pub size: &'static str,
    /// Published mean latency without a mirror, in µs.
    pub(crate) published_us: f64,
    pub(crate) write_latency_us: u64,
    /// Median time of the path to the disk and back on this machine, in µs; none where the disk's
    /// throughput binds.
    pub(crate) way_us: Option<f64>,
    /// Round trip of a write of this size between two processes of this machine, in µs; part of the
    /// link's round trip.
    pub(crate) loopback_us: f64,
}

impl Calibrated {
    /// Medians of all rows. Each repetition calibrated the disks of all rows.
    pub(super) fn medians(calibrations: &[Vec<Calibrated>]) -> Vec<Calibrated> {
        let rows = 0..calibrations.first().map_or(0, Vec::len);
        let of = |row| calibrations.iter().filter_map(|all| all.get(row)).collect::<Vec<_>>();
        rows.filter_map(|row| Calibrated::median(&of(row))).collect()
    }

    fn median(of: &[&Calibrated]) -> Option<Calibrated> {
        let median_of = |pick: &dyn Fn(&Calibrated) -> Option<f64>| {
            median(&of.iter().filter_map(|found| pick(found)).collect::<Vec<_>>())
        };
        let write_latency_us = median_of(&|found| Some(found.write_latency_us as f64))?;
        Some(Calibrated {
            write_latency_us: write_latency_us.round() as u64,
            way_us: median_of(&|found| found.way_us),
            loopback_us: median_of(&|found| Some(found.loopback_us))?,
            ..**of.first()?
        })
    }

    /// Actual round trip of the link, in µs: at least the loopback's.
    fn link_us(&self, rtt_us: f64) -> f64 {
        rtt_us.max(self.loopback_us)
    }

    /// Least mean latency of a synchronous mirror, in ms, if it is `plain_ms` without a mirror: the
    /// peer's disk answers one round trip later. Where a limit of `most_per_s` writes binds, writes
    /// wait for it on both nodes, and only the part of the round trip that exceeds this wait adds
    /// latency.
    fn bound_ms(&self, plain_ms: f64, rtt_us: f64, most_per_s: f64) -> f64 {
        let link_ms = self.link_us(rtt_us) / 1e3;
        let disk_ms = (self.write_latency_us as f64 + self.way_us.unwrap_or(0.0)) / 1e3;
        match f64::from(IN_FLIGHT) / disk_ms * 1e3 > most_per_s {
            true => plain_ms.max(disk_ms + link_ms),
            false => plain_ms + link_ms,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MirrorCell {
    pub size: &'static str,
    /// Whether two of three writes go to regions that are not active.
    pub cold: bool,
    pub setup: &'static str,
    #[serde(flatten)]
    pub figures: Figures,
    /// Run-to-run variation of the throughput, in %; see [`run_to_run_variation_percent`].
    pub run_to_run_variation_percent: Option<f64>,
    /// Share of the throughput without a mirror that is lost, in %.
    pub(crate) throughput_overhead_percent: Option<f64>,
    /// Latency that the mirror adds, in % of the latency without a mirror.
    pub latency_overhead_percent: Option<f64>,
}

impl MirrorCell {
    /// Write size, with a mark for cold jobs.
    pub fn job(&self) -> String {
        self.size.to_owned() + if self.cold { " cold" } else { "" }
    }
}

/// Network share of the overhead: the part that no synchronous mirror on this link can avoid, in
/// the overhead's own percents.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NetworkShare {
    pub(crate) throughput_percent: f64,
    pub latency_percent: f64,
}

/// A published row with the figures measured here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MirrorRow {
    pub published: PublishedRow,
    pub mirror: Option<MirrorCell>,
    pub plain: Option<MirrorCell>,
    pub remote_disk: Option<MirrorCell>,
    /// Network share of the overhead; only known for emulated disks.
    pub network_share: Option<NetworkShare>,
    /// Run-to-run variation of the mirror's throughput overhead, in percentage points; see
    /// [`run_to_run_variation`].
    pub(crate) run_to_run_variation_points: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MirrorSummary {
    pub schema_version: u32,
    pub experiment: &'static str,
    pub emulated: bool,
    pub real_nodes: bool,
    pub link: Option<MirrorLink>,
    /// Machine type: of the nodes as stated by the user, or of the limits of emulated disks.
    pub machine: Option<String>,
    pub cpu_model: String,
    pub cpus: usize,
    pub runtime_ms: u64,
    /// Bytes in use of the volumes; of hot volumes in the emulated experiment.
    pub(crate) range_bytes: u64,
    /// Calibration of the emulated disks: medians of the repetitions.
    pub disks: Vec<Calibrated>,
    /// The published table with the figures measured here.
    pub table: Vec<MirrorRow>,
    /// Every setup at every write size.
    pub cells: Vec<MirrorCell>,
    pub caveats: Vec<String>,
}

impl MirrorSummary {
    /// Summary of what was measured, which may be a part of the plan.
    pub(super) fn new(
        run: &RunOptions,
        bed: &MirrorBed,
        measured: &MeasuredMirror,
        environment: &Environment,
    ) -> MirrorSummary {
        let cells = cells(&measured.records);
        let (machine, real_nodes) = match bed {
            MirrorBed::Emulated(bed) => (bed.machine.clone(), false),
            MirrorBed::Given(bed) => (bed.targets.machine.clone(), true),
        };
        let limits = machine.as_deref().filter(|_| !real_nodes);
        let table = ROWS.iter().map(|row| mirror_row(row, &cells, measured, limits)).collect();
        let is_emulated = |cell: &MirrorCell| bed::is_emulated(cell.figures.provenance);
        let mut summary = MirrorSummary {
            schema_version: SCHEMA_VERSION,
            experiment: "mirror",
            emulated: !real_nodes || cells.iter().any(is_emulated),
            real_nodes,
            link: measured.link,
            machine,
            cpu_model: environment.cpu_model.clone(),
            cpus: environment.cpus,
            runtime_ms: run.runtime_ms,
            range_bytes: measured.range_bytes,
            disks: measured.disks.clone(),
            table,
            cells,
            caveats: Vec::new(),
        };
        summary.caveats = summary.caveats();
        summary
    }

    pub(super) fn figures(&self) -> Vec<&Figures> {
        self.cells.iter().map(|cell| &cell.figures).collect()
    }

    fn caveats(&self) -> Vec<String> {
        let mut caveats = match self.real_nodes {
            true => self.given_caveats(),
            false => self.emulated_caveats(),
        };
        caveats.push(
            "the published MB/s are MiB/s (24 in flight divided by their latencies), and so are these"
                .to_owned(),
        );
        caveats
    }

    fn given_caveats(&self) -> Vec<String> {
        let mut caveats = bed::caveats(self.machine.as_ref(), &self.figures());
        caveats.push(match self.link {
            Some(MirrorLink { is_measured: true, round_trip_us }) => format!(
                "a request of 4 KiB to node B takes {:.3} ms from here; that is the link's round trip \
                 if this is node A. A synchronous write waits for one round trip",
                round_trip_us / 1e3
            ),
            Some(MirrorLink { round_trip_us, .. }) => format!(
                "the link's round trip of {:.3} ms was stated by the user, not measured",
                round_trip_us / 1e3
            ),
            None => "the network share of the overhead is unknown: use --node-b or --rtt".to_owned(),
        });
        if self.range_bytes < BYTES_MOST {
            caveats.push(format!(
                "{} of the volumes are in use, where 96 GiB were published: caches and active regions \
                 cover a larger part",
                format_block_size(self.range_bytes)
            ));
        }
        caveats.push(
            "whether the mirror was in sync all the time is unknown: see flagstone mirror status on a \
             node"
                .to_owned(),
        );
        caveats
    }

    fn emulated_caveats(&self) -> Vec<String> {
        let mut caveats = vec![
            "disks and link are EMULATED: nothing here is a measurement of a cloud".to_owned(),
            format!(
                "host, both nodes and the kernel's TCP share the {} CPUs of this machine: {}",
                self.cpus,
                self.busy_cpus()
            ),
            "ack memory is no faster than ack disk here: all writes are durable (diskspd -Sh), and a \
             persistent disk has no volatile cache"
                .to_owned(),
            "cold: two of three writes go to a region that is not active and wait for the intent log; \
             in the other rows all regions in use are active, which takes an `activity_log_size` \
             of the size of the data in use"
                .to_owned(),
        ];
        caveats.push(self.link_caveat());
        caveats.push(self.run_to_run_caveat());
        let fewest = self.cells.iter().map(|cell| cell.figures.repetitions).min().unwrap_or(0);
        caveats.extend(bed::repetitions_caveat(fewest));
        caveats.extend(customer::caveats(self));
        if let Some(machine) = &self.machine {
            caveats.push(format!(
                "the disks have the limits of {machine}, so the volume without a mirror is not the \
                 published one"
            ));
        }
        caveats
    }

    fn link_caveat(&self) -> String {
        let of = |disk: &Calibrated| format!("{:.0} µs at {}", disk.loopback_us, disk.size);
        let loopback: Vec<_> = self.disks.iter().map(of).collect();
        let rtt_us = self.link.map_or(0.0, |link| link.round_trip_us);
        let is_slower = self.disks.iter().any(|disk| disk.loopback_us > rtt_us);
        format!(
            "of the link's round trip of {rtt_us:.0} µs the loopback of this machine takes {}, and the \
             target's disk adds the rest{}; network share: the overhead that no synchronous mirror on \
             such a link can avoid; remote disk, no mirror: the target's disk over the link, which \
             shows what any write over NVMe/TCP takes on these CPUs",
            loopback.join(", "),
            if is_slower {
                ", which is nothing where the loopback takes longer: there the link is slower than \
                 requested"
            } else {
                ""
            }
        )
    }

    fn run_to_run_caveat(&self) -> String {
        let of = |row: &MirrorRow| {
            Some(format!(
                "{:.1} points at {}",
                row.run_to_run_variation_points?, row.published.size
            ))
        };
        let points: Vec<_> = self.table.iter().filter_map(of).collect();
        match points.is_empty() {
            true => "one repetition has neither a coefficient of variation nor a run-to-run \
                     variation: use --repetitions=4 or more"
                .to_owned(),
            false => format!(
                "run-to-run: 19 of 20 rows of another run like this one are within this distance, if \
                 the machine stays the same; each repetition calibrates its disks and restarts its \
                 nodes, so all differences between runs are included. Throughput overhead of the \
                 mirror: within {}",
                points.join(", ")
            ),
        }
    }

    fn busy_cpus(&self) -> String {
        let percent = |cell: &MirrorCell| cell.figures.cpu_percent.unwrap_or(0.0);
        let busy: Vec<String> = self
            .cells
            .iter()
            .filter(|cell| percent(cell) >= BUSY_PERCENT)
            .map(|cell| match is_plain(cell.setup) {
                true => format!("{} {}", cell.job(), cell.setup),
                false => format!("{} {}", cell.size, cell.setup),
            })
            .collect();
        let most = self.cells.iter().map(percent).fold(0.0, f64::max);
        match busy.len() {
            all if all == self.cells.len() && all > 0 => format!(
                "they were {BUSY_PERCENT:.0} % busy or more in all measurements and may have limited \
                 them"
            ),
            0 => format!("they were at most {most:.0} % busy"),
            _ => format!(
                "they were {BUSY_PERCENT:.0} % busy or more, and may have limited the results, in: {}",
                busy.join("; ")
            ),
        }
    }
}

fn cells(records: &[ResultRecord]) -> Vec<MirrorCell> {
    let mut cells = Vec::new();
    for row in &ROWS {
        for hot in [true, false] {
            let plain = cell(records, row, hot, PLAIN);
            for setup in SETUPS.iter().filter(|setup| setup.is_in(hot)) {
                let Some(mut cell) = cell(records, row, hot, setup.name) else { continue };
                if let Some(plain) = plain.as_ref().filter(|_| !is_plain(setup.name)) {
                    let (here, plain) = (cell.figures, plain.figures);
                    cell.throughput_overhead_percent =
                        Throughput.overhead_percent(here.mib_per_s, plain.mib_per_s);
                    cell.latency_overhead_percent =
                        Latency.overhead_percent(here.latency_ms, plain.latency_ms);
                }
                cells.push(cell);
            }
        }
    }
    cells
}

fn cell(
    records: &[ResultRecord],
    row: &PublishedRow,
    hot: bool,
    setup: &'static str,
) -> Option<MirrorCell> {
    let job = job_name(row, hot);
    let of = matching(records, &job, setup);
    Some(MirrorCell {
        size: row.size,
        cold: !hot,
        setup,
        figures: Figures::of(records, &job, setup)?,
        run_to_run_variation_percent: run_to_run_variation_percent(&throughputs(&of)),
        throughput_overhead_percent: None,
        latency_overhead_percent: None,
    })
}

fn mirror_row(
    row: &PublishedRow,
    cells: &[MirrorCell],
    measured: &MeasuredMirror,
    machine: Option<&str>,
) -> MirrorRow {
    let find = |setup: &str| {
        let is = |cell: &&MirrorCell| cell.size == row.size && !cell.cold && cell.setup == setup;
        cells.iter().find(is).cloned()
    };
    let most_per_s = writes_per_s_most(row.block_bytes, machine).unwrap_or(f64::INFINITY);
    let rtt_us = measured.link.map_or(0.0, |link| link.round_trip_us);
    let (mirror, plain, remote_disk) = (find(MIRROR), find(PLAIN), find(FAR));
    let disk = measured.disks.iter().find(|disk| disk.size == row.size);
    let network_share = plain.as_ref().zip(disk).and_then(|(plain, disk)| {
        let plain_ms = plain.figures.latency_ms;
        let bound_ms = disk.bound_ms(plain_ms, rtt_us, most_per_s);
        Some(NetworkShare {
            // The same number of requests is in flight, so throughput is the inverse of latency.
            throughput_percent: Throughput.overhead_percent(1.0 / bound_ms, 1.0 / plain_ms)?,
            latency_percent: Latency.overhead_percent(bound_ms, plain_ms)?,
        })
    });
    let run_to_run_variation_points = run_to_run_variation(&overheads(&measured.records, row));
    MirrorRow {
        published: *row,
        mirror,
        plain,
        remote_disk,
        network_share,
        run_to_run_variation_points,
    }
}

/// Throughput overhead of the mirror in each repetition, in %.
fn overheads(records: &[ResultRecord], row: &PublishedRow) -> Vec<f64> {
    let job = job_name(row, true);
    let overhead = |mirror: &ResultRecord| {
        let plain = matching(records, &job, PLAIN);
        let plain = plain.into_iter().find(|plain| plain.repetition == mirror.repetition)?;
        Throughput.overhead_percent(mirror.mb_per_s, plain.mb_per_s)
    };
    matching(records, &job, MIRROR).into_iter().filter_map(overhead).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::bed::tests::run_options;
    use crate::mirror::EmulatedMirror;
    use crate::mirror::setup::{CUSTOMER_PD, CUSTOMER_SSD, NO_LINK};
    use flagstone_bench::campaign::CampaignEnd;
    use flagstone_bench::cpu::CpuUse;
    use flagstone_bench::job::BenchJob;
    use flagstone_bench::measurement::Measurement;
    use flagstone_bench::provenance::Provenance;
    use flagstone_bench::target::{BenchTarget, DiskAddress};

    fn disk() -> Calibrated {
        Calibrated {
            size: "8K",
            published_us: 2000.0,
            write_latency_us: 1900,
            way_us: Some(100.0),
            loopback_us: 90.0,
        }
    }

    /// Twice at 8K: 2 ms without a mirror, 2.5 with it, of which the link takes 0.3.
    pub(crate) fn example() -> MirrorSummary {
        let record = |repetition: u32, setup: &str, job: &str, latency_ms: f64| {
            let target =
                BenchTarget { name: setup.to_owned(), disks: vec![DiskAddress::Path("/x".into())] };
            let mut measurement = Measurement::default();
            measurement.total.latency_mean_us = latency_ms * 1e3;
            measurement.total.iops = 24e3 / latency_ms;
            measurement.total.bytes_per_s = 24e3 / latency_ms * 8192.0;
            measurement.cpu =
                Some(CpuUse { user_percent: 40.0, kernel_percent: 55.0, idle_percent: 5.0 });
            let job = BenchJob { name: job.to_owned(), block_bytes: 8192, ..BenchJob::default() };
            ResultRecord {
                repetition,
                provenance: Provenance::Emulated,
                ..ResultRecord::new("mirror", &job, &target, measurement)
            }
        };
        let mut records = Vec::new();
        for at in 0..2 {
            records.push(record(at, PLAIN, "8k", 2.0));
            records.push(record(at, MIRROR, "8k", 2.5));
            records.push(record(at, FAR, "8k", 2.4));
            records.push(record(at, NO_LINK, "8k", 2.2));
            records.push(record(at, CUSTOMER_SSD, "8k", 3.0));
            records.push(record(at, CUSTOMER_PD, "8k", 25.0));
            records.push(record(at, PLAIN, "8k-cold", 2.0));
            records.push(record(at, "cold, log on persistent disk", "8k-cold", 8.0));
        }
        let bed = EmulatedMirror { rtt_us: 300, machine: None, only: &[] };
        let (run, bed) = (run_options("r".into()), MirrorBed::Emulated(bed));
        let measured = MeasuredMirror {
            end: CampaignEnd::Complete,
            records,
            link: Some(MirrorLink { is_measured: false, round_trip_us: 300.0 }),
            range_bytes: 96 << 20,
            disks: vec![disk()],
        };
        let environment = Environment { cpus: 2, ..Environment::default() };
        MirrorSummary::new(&run, &bed, &measured, &environment)
    }

    /// Once at 8K on nodes of the user: 2 ms on a real disk without a mirror, 2.5 on a served
    /// volume.
    pub(crate) fn given_example(link: Option<MirrorLink>) -> MirrorSummary {
        let bed = super::super::given::tests::bed();
        let run = run_options("r".into());
        let volumes = bed.volumes().unwrap();
        let record = |target: usize, latency_ms: f64, provenance| {
            let mut measurement = Measurement::default();
            measurement.total.latency_mean_us = latency_ms * 1e3;
            measurement.total.iops = 24e3 / latency_ms;
            measurement.total.bytes_per_s = 24e3 / latency_ms * 8192.0;
            let job = super::super::job(&run, &ROWS[1], "8k".to_owned(), 1 << 30);
            let record = ResultRecord::new("mirror", &job, &volumes[target], measurement);
            ResultRecord { provenance, ..record }
        };
        let records = vec![record(0, 2.0, Provenance::Real), record(1, 2.5, Provenance::Served)];
        let bed = MirrorBed::Given(bed);
        let measured = MeasuredMirror {
            end: CampaignEnd::Complete,
            records,
            link,
            range_bytes: 1 << 30,
            disks: Vec::new(),
        };
        MirrorSummary::new(&run, &bed, &measured, &Environment::default())
    }

    #[test]
    fn given_caveats_state_the_link_and_the_size() {
        let caveats = given_example(None).caveats.join("\n");
        assert!(caveats.contains("--node-b") && caveats.contains("1g of the volumes"), "{caveats}");
        let link = MirrorLink { is_measured: true, round_trip_us: 310.0 };
        let caveats = given_example(Some(link)).caveats.join("\n");
        assert!(caveats.contains("takes 0.310 ms"), "{caveats}");
    }

    #[test]
    fn overheads_and_network_share() {
        let summary = example();
        let [none, side, _] = &summary.table[..] else { panic!("three sizes") };
        assert_eq!((none.mirror.as_ref(), none.network_share), (None, None));
        let mirror = side.mirror.as_ref().unwrap();
        assert!((mirror.throughput_overhead_percent.unwrap() - 20.0).abs() < 1e-9);
        assert!((mirror.latency_overhead_percent.unwrap() - 25.0).abs() < 1e-9);
        let link = side.network_share.unwrap();
        // 0.3 added to 2.0: the loopback is part of the round trip.
        assert!((link.latency_percent - 15.0).abs() < 1e-9);
        assert!((link.throughput_percent - 13.0435).abs() < 1e-3);
        let cold = summary.cells.iter().find(|c| c.cold && c.setup.contains("persistent")).unwrap();
        assert!(cold.cold && (cold.throughput_overhead_percent.unwrap() - 75.0).abs() < 1e-9);
    }

    #[test]
    fn run_to_run_variation_is_reported() {
        let summary = example();
        assert_eq!(summary.table[0].run_to_run_variation_points, None);
        assert_eq!(summary.table[1].run_to_run_variation_points, Some(0.0));
        assert!(summary.run_to_run_caveat().contains("within 0.0 points at 8K"));
        let mut none = summary.clone();
        none.table.iter_mut().for_each(|side| side.run_to_run_variation_points = None);
        assert!(none.run_to_run_caveat().contains("--repetitions=4"));
        let found = [(1900, 100.0, 90.0), (1890, 110.0, 80.0), (1800, 200.0, 120.0)];
        let found = found.map(|(write_latency_us, way_us, loopback_us)| Calibrated {
            write_latency_us,
            way_us: Some(way_us),
            loopback_us,
            ..disk()
        });
        let middle = Calibrated::median(&found.iter().collect::<Vec<_>>()).unwrap();
        let seen = (middle.write_latency_us, middle.way_us, middle.loopback_us);
        assert_eq!(seen, (1890, Some(110.0), 90.0));
    }

    #[test]
    fn link_bounds_any_synchronous_mirror() {
        let disk = disk();
        let (free, bound) = (15_000.0, 3840.0);
        assert!((disk.bound_ms(2.0, 300.0, free) - 2.3).abs() < 1e-9);
        // A slow machine: no more writes wait for its disk.
        assert!((disk.bound_ms(4.0, 300.0, free) - 4.3).abs() < 1e-9);
        // The disk's limit binds: writes wait longer for it than for the link.
        assert!((disk.bound_ms(6.25, 300.0, bound) - 6.25).abs() < 1e-9);
        assert!((disk.bound_ms(6.25, 5000.0, bound) - 7.0).abs() < 1e-9);
        // The loopback takes longer than requested.
        assert!((disk.bound_ms(2.0, 0.0, free) - 2.09).abs() < 1e-9);
        let mut summary = example();
        assert!(summary.link_caveat().contains("takes 90 µs at 8K, and the target's"));
        assert!(!summary.link_caveat().contains("slower"));
        summary.link = Some(MirrorLink { is_measured: false, round_trip_us: 50.0 });
        assert!(summary.link_caveat().contains("the link is slower than requested"));
    }

    #[test]
    fn busy_cpus_and_few_repetitions_are_reported() {
        let caveats = example().caveats.join("\n");
        assert!(caveats.contains("EMULATED") && caveats.contains("the 2 CPUs"), "{caveats}");
        assert!(caveats.contains("90 % busy or more in all"), "{caveats}");
        let mut summary = example();
        summary.cells[0].figures.cpu_percent = Some(20.0);
        let busy = summary.busy_cpus();
        assert!(busy.contains("8K mirror") && busy.contains("8K cold no mirror"), "{busy}");
        assert!(caveats.contains("2 repetitions of some"), "{caveats}");
    }
}
