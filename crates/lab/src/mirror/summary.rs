//! What came out, as data; its JSON form is in `docs/lab.md`.

use flagstone_bench::environment::Environment;
use flagstone_bench::results::Record;
use flagstone_bench::stats::{
    REPETITIONS_LEAST, another_run, another_run_percent, median, noise_percent,
};
use serde::Serialize;

use super::customer;
use super::published::{IN_FLIGHT, ROWS, Row, latency_overhead, throughput_overhead};
use super::setup::{FAR, MIRROR, PLAIN, SETUPS, writes_per_s_most};
use super::{Options, job_name};
use crate::limits::BUSY_PERCENT;

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;

/// How a disk was made to be like the published one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Calibrated {
    /// For which size of write.
    pub size: &'static str,
    /// Average latency that was published of what is not mirrored, in µs.
    pub published_us: f64,
    /// The latency that the emulated disk was given, in µs.
    pub write_latency_us: u64,
    /// What the way to the disk and back takes on this machine, in µs: the middle of some looks; none
    /// where the disk's throughput binds.
    pub way_us: Option<f64>,
    /// What a write of this size and its answer take between two processes of this machine, in µs:
    /// it is part of the link's round trip.
    pub loopback_us: f64,
}

impl Calibrated {
    /// The middle of what the repetitions found of one row.
    fn middle(of: &[&Calibrated]) -> Option<Calibrated> {
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

    /// The link's round trip as it is here, in µs: never less than the loopback's own.
    fn link_us(&self, rtt_us: u64) -> f64 {
        (rtt_us as f64).max(self.loopback_us)
    }

    /// The mean latency that no synchronous mirror can be below, in ms, where what is not mirrored
    /// has `plain_ms`: the other side's disk answers a round trip later than this one's. Where a
    /// limit of `most_per_s` writes binds and not the disk's latency, writes wait for the limit on
    /// both sides alike, and the round trip shows only as far as it is more than that wait.
    fn bound_ms(&self, plain_ms: f64, rtt_us: u64, most_per_s: f64) -> f64 {
        let link_ms = self.link_us(rtt_us) / 1e3;
        let disk_ms = (self.write_latency_us as f64 + self.way_us.unwrap_or(0.0)) / 1e3;
        match f64::from(IN_FLIGHT) / disk_ms * 1e3 > most_per_s {
            true => plain_ms.max(disk_ms + link_ms),
            false => plain_ms + link_ms,
        }
    }
}

/// A set-up at one size of write: medians of its repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// As published.
    pub size: &'static str,
    /// Whether two of three writes go to regions that the log does not call hot.
    pub cold: bool,
    /// What was measured.
    pub setup: &'static str,
    /// How often.
    pub repetitions: usize,
    /// 2^20 bytes a second.
    pub mib_per_s: f64,
    /// Writes a second.
    pub iops: f64,
    /// Mean latency, in ms.
    pub latency_ms: f64,
    /// 99th percentile, in ms.
    pub latency_p99_ms: Option<f64>,
    /// Standard deviation over mean of the throughput, in %.
    pub noise_percent: Option<f64>,
    /// How far the throughput of another run like this one may be from it, in %: see
    /// [`another_run_percent`].
    pub another_run_percent: Option<f64>,
    /// How busy this machine's CPUs were, in %.
    pub cpu_percent: Option<f64>,
    /// What is lost of the throughput without a mirror, in %.
    pub throughput_overhead_percent: Option<f64>,
    /// What is more than the latency without a mirror, in % of this one.
    pub latency_overhead_percent: Option<f64>,
}

impl Cell {
    /// The size of its writes, and whether they are cold.
    pub fn job(&self) -> String {
        self.size.to_owned() + if self.cold { " cold" } else { "" }
    }
}

/// What the link's round trip costs at least, whatever mirrors over it synchronously, in the
/// overhead's own percents.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Of the throughput's.
    pub throughput_percent: f64,
    /// Of the latency's.
    pub latency_percent: f64,
}

/// A row of the published table with what came out here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// What was published.
    pub published: Row,
    /// With the mirror, here.
    pub mirror: Option<Cell>,
    /// Without, here.
    pub plain: Option<Cell>,
    /// Without, the disk being the target's, at the far end of the link.
    pub far: Option<Cell>,
    /// What the link has of the overhead.
    pub link: Option<Link>,
    /// How far the mirror's overhead in throughput may be from this in another run, in points of %: see
    /// [`another_run`].
    pub another_run_points: Option<f64>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `mirror`.
    pub experiment: &'static str,
    /// Always true: disks and link are.
    pub emulated: bool,
    /// The link's round trip, in µs.
    pub rtt_us: u64,
    /// The machine type whose limits held, if one was named.
    pub machine: Option<String>,
    /// Of this machine.
    pub cpu_model: String,
    /// Of this machine.
    pub cpus: usize,
    /// Length of each measurement, in ms.
    pub runtime_ms: u64,
    /// How the disks were made: the middle of all repetitions.
    pub disks: Vec<Calibrated>,
    /// The published table beside ours.
    pub table: Vec<Side>,
    /// Every set-up at every size.
    pub cells: Vec<Cell>,
    /// What the numbers do not say by themselves.
    pub doubts: Vec<String>,
}

impl Summary {
    /// Of the results of a run that may not have been done to its end. Each repetition calibrated the
    /// disks of all rows.
    pub fn new(
        options: &Options,
        calibrations: &[Vec<Calibrated>],
        machine: &Environment,
        records: &[Record],
    ) -> Summary {
        let cells = cells(records);
        let rows = 0..calibrations.first().map_or(0, Vec::len);
        let of = |row| calibrations.iter().filter_map(|all| all.get(row)).collect::<Vec<_>>();
        let disks: Vec<_> = rows.filter_map(|row| Calibrated::middle(&of(row))).collect();
        let mut summary = Summary {
            schema_version: SCHEMA_VERSION,
            experiment: "mirror",
            emulated: true,
            rtt_us: options.rtt_us,
            machine: options.machine.clone(),
            cpu_model: machine.cpu_model.clone(),
            cpus: machine.cpus,
            runtime_ms: options.runtime_ms,
            table: ROWS.iter().map(|row| side(row, &cells, &disks, options, records)).collect(),
            disks,
            cells,
            doubts: Vec::new(),
        };
        summary.doubts = summary.doubts();
        summary
    }

    fn doubts(&self) -> Vec<String> {
        let mut doubts = vec![
            "disks and link are EMULATED: nothing here is a measurement of a cloud".to_owned(),
            format!(
                "host, both nodes and the kernel's TCP share the {} CPUs of this machine: {}",
                self.cpus,
                self.binding()
            ),
            "the published MB/s are of 2^20 bytes (24 in flight over their latencies), and so are \
             these"
                .to_owned(),
            "ack memory is no faster than ack disk here: each write is written through (diskspd -Sh), \
             and a persistent disk has no volatile cache"
                .to_owned(),
            "cold: two of three writes go to a region that the log does not call hot, and wait for \
             its record; in the other rows all that is written is hot, which takes a `crash_resync` \
             as large as what is written to"
                .to_owned(),
        ];
        doubts.push(self.link_doubt());
        doubts.push(self.another_run_doubt());
        let fewest = self.cells.iter().map(|cell| cell.repetitions).min().unwrap_or(0);
        if fewest < REPETITIONS_LEAST {
            doubts.push(format!(
                "{fewest} repetitions of some: fewer than {REPETITIONS_LEAST} can never show that two \
                 set-ups differ"
            ));
        }
        doubts.extend(customer::doubts(self));
        if let Some(machine) = &self.machine {
            doubts.push(format!(
                "with the limits of {machine}, so what is not mirrored is not the published row"
            ));
        }
        doubts
    }

    /// How the link was made, and what of it this machine had already.
    fn link_doubt(&self) -> String {
        let of = |disk: &Calibrated| format!("{:.0} µs at {}", disk.loopback_us, disk.size);
        let loopback: Vec<_> = self.disks.iter().map(of).collect();
        let short = self.disks.iter().any(|disk| disk.loopback_us > self.rtt_us as f64);
        format!(
            "of the link's round trip of {} µs the loopback of this machine takes {} by itself, and \
             the target's disk adds the rest{}; of it the link: what no synchronous mirror over \
             such a link can be without; a disk over it: the target's, with no mirror, so where it \
             costs as much the rest is what any write over NVMe/TCP takes on these CPUs",
            self.rtt_us,
            loopback.join(", "),
            if short {
                ", which is nothing where the loopback takes more: the link is slower there \
                       than was asked for"
            } else {
                ""
            }
        )
    }

    /// What another run may come to.
    fn another_run_doubt(&self) -> String {
        let of = |side: &Side| {
            Some(format!("{:.1} points at {}", side.another_run_points?, side.published.size))
        };
        let points: Vec<_> = self.table.iter().filter_map(of).collect();
        match points.is_empty() {
            true => {
                "one repetition says nothing of its noise, nor how far another run may be from \
                     it: ask for --repetitions=4 and more"
                    .to_owned()
            }
            false => format!(
                "another run: 19 of 20 rows of another run like this one are within so much of this \
                 one's, if the machine stays as it is; each repetition calibrates its disks and \
                 starts its nodes anew, so what differs between runs is in it. The mirror's \
                 overhead in throughput: within {}",
                points.join(", ")
            ),
        }
    }

    /// Where the CPUs were the limit.
    fn binding(&self) -> String {
        let busy: Vec<String> = self
            .cells
            .iter()
            .filter(|cell| cell.cpu_percent.is_some_and(|percent| percent >= BUSY_PERCENT))
            .map(|cell| match cell.setup == PLAIN {
                true => format!("{} {}", cell.job(), cell.setup),
                false => format!("{} {}", cell.size, cell.setup),
            })
            .collect();
        let most = self.cells.iter().filter_map(|cell| cell.cpu_percent).fold(0.0, f64::max);
        match busy.len() {
            all if all == self.cells.len() && all > 0 => {
                format!(
                    "they were {BUSY_PERCENT:.0} % busy or more in all of it, and may be what was measured"
                )
            }
            0 => format!("they were never busier than {most:.0} %"),
            _ => format!(
                "they were {BUSY_PERCENT:.0} % busy or more, and may be what was measured, in: {}",
                busy.join("; ")
            ),
        }
    }
}

fn cells(records: &[Record]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for row in &ROWS {
        for hot in [true, false] {
            let plain = cell(records, row, hot, PLAIN);
            for setup in SETUPS.iter().filter(|setup| setup.is_in(hot)) {
                let Some(mut cell) = cell(records, row, hot, setup.name) else { continue };
                if let Some(plain) = plain.as_ref().filter(|_| !super::is_plain(setup.name)) {
                    cell.throughput_overhead_percent =
                        Some(throughput_overhead(cell.mib_per_s, plain.mib_per_s));
                    cell.latency_overhead_percent =
                        Some(latency_overhead(cell.latency_ms, plain.latency_ms));
                }
                cells.push(cell);
            }
        }
    }
    cells
}

fn cell(records: &[Record], row: &Row, hot: bool, setup: &'static str) -> Option<Cell> {
    let job = job_name(row, hot);
    let of: Vec<&Record> =
        records.iter().filter(|record| record.job == job && record.target == setup).collect();
    let middle = |pick: &dyn Fn(&Record) -> Option<f64>| {
        median(&of.iter().filter_map(|record| pick(record)).collect::<Vec<_>>())
    };
    let mib = f64::from(1 << 20);
    let throughputs: Vec<f64> = of.iter().map(|record| record.mb_per_s * 1e6 / mib).collect();
    Some(Cell {
        size: row.size,
        cold: !hot,
        setup,
        repetitions: of.len(),
        mib_per_s: median(&throughputs)?,
        iops: middle(&|record| Some(record.iops))?,
        latency_ms: middle(&|record| Some(record.latency_mean_us / 1e3))?,
        latency_p99_ms: middle(&|record| Some(record.latency_p99_us? / 1e3)),
        noise_percent: noise_percent(&throughputs),
        another_run_percent: another_run_percent(&throughputs),
        cpu_percent: middle(&|record| Some(record.measurement.cpu.as_ref()?.busy_percent())),
        throughput_overhead_percent: None,
        latency_overhead_percent: None,
    })
}

fn side(
    row: &Row,
    cells: &[Cell],
    disks: &[Calibrated],
    options: &Options,
    records: &[Record],
) -> Side {
    let find = |setup: &str| {
        let is = |cell: &&Cell| cell.size == row.size && !cell.cold && cell.setup == setup;
        cells.iter().find(is).cloned()
    };
    let most_per_s = writes_per_s_most(row.block_bytes, options.machine.as_deref());
    let most_per_s = most_per_s.unwrap_or(f64::INFINITY);
    let (mirror, plain, far) = (find(MIRROR), find(PLAIN), find(FAR));
    let disk = disks.iter().find(|disk| disk.size == row.size);
    let link = plain.as_ref().zip(disk).map(|(plain, disk)| {
        // As many are in flight either way, so the throughput follows from the latency.
        let percent = latency_overhead(
            disk.bound_ms(plain.latency_ms, options.rtt_us, most_per_s),
            plain.latency_ms,
        );
        Link { throughput_percent: percent, latency_percent: percent }
    });
    let another_run_points = another_run(&overheads(records, row));
    Side { published: *row, mirror, plain, far, link, another_run_points }
}

/// The mirror's overhead in throughput in each repetition, in %.
fn overheads(records: &[Record], row: &Row) -> Vec<f64> {
    let job = job_name(row, true);
    let of = |setup| {
        records
            .iter()
            .filter(|record| record.job == job)
            .filter(move |record| record.target == setup)
    };
    let overhead = |mirror: &Record| {
        let plain = of(PLAIN).find(|plain| plain.repetition == mirror.repetition)?;
        Some(throughput_overhead(mirror.mb_per_s, plain.mb_per_s))
    };
    of(MIRROR).filter_map(overhead).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::mirror::setup::{CUSTOMER_PD, CUSTOMER_SSD, NO_LINK};
    use flagstone_bench::cpu::CpuUse;
    use flagstone_bench::job::Job;
    use flagstone_bench::measurement::Measurement;
    use flagstone_bench::target::{Place, Target};

    fn disk() -> Calibrated {
        Calibrated {
            size: "8K",
            published_us: 2000.0,
            write_latency_us: 1900,
            way_us: Some(100.0),
            loopback_us: 90.0,
        }
    }

    /// Twice at 8K: without a mirror 2 ms, with it 2.5, of which the link has 0.3.
    pub(crate) fn example() -> Summary {
        let record = |repetition: u32, setup: &str, job: &str, latency_ms: f64| {
            let target = Target { name: setup.to_owned(), disks: vec![Place::Path("/x".into())] };
            let mut measurement = Measurement::default();
            measurement.total.latency_mean_us = latency_ms * 1e3;
            measurement.total.iops = 24e3 / latency_ms;
            measurement.total.bytes_per_s = 24e3 / latency_ms * 8192.0;
            measurement.cpu =
                Some(CpuUse { user_percent: 40.0, kernel_percent: 55.0, idle_percent: 5.0 });
            let job = Job { name: job.to_owned(), block_bytes: 8192, ..Job::default() };
            Record { repetition, ..Record::new("mirror", &job, &target, measurement) }
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
        let options = Options {
            program: "flagstone".into(),
            command: "flagstone lab".to_owned(),
            results: "results".into(),
            rtt_us: 300,
            machine: None,
            ramp_ms: 1000,
            runtime_ms: 2000,
            repetitions: 2,
            only: &[],
        };
        let machine = Environment { cpus: 2, ..Environment::default() };
        Summary::new(&options, &[vec![disk()]], &machine, &records)
    }

    #[test]
    fn overheads_and_the_links_share_of_them() {
        let summary = example();
        let [none, side, _] = &summary.table[..] else { panic!("three sizes") };
        assert_eq!((none.mirror.as_ref(), none.link), (None, None));
        let mirror = side.mirror.as_ref().unwrap();
        assert!((mirror.throughput_overhead_percent.unwrap() - 20.0).abs() < 1e-9);
        assert!((mirror.latency_overhead_percent.unwrap() - 20.0).abs() < 1e-9);
        let link = side.link.unwrap();
        // 0.3 of 2.3: the round trip, of which the loopback's part is no addition.
        assert!((link.latency_percent - 13.0435).abs() < 1e-3);
        assert_eq!(link.latency_percent, link.throughput_percent);
        let cold = summary.cells.iter().find(|c| c.cold && c.setup.contains("persistent")).unwrap();
        assert!(cold.cold && (cold.throughput_overhead_percent.unwrap() - 75.0).abs() < 1e-9);
    }

    /// Each repetition has disks of its own, and two of them say how far a third may be.
    #[test]
    fn what_another_run_may_come_to_is_told() {
        let summary = example();
        assert_eq!(summary.table[0].another_run_points, None);
        assert_eq!(summary.table[1].another_run_points, Some(0.0));
        assert!(summary.another_run_doubt().contains("within 0.0 points at 8K"));
        let mut none = summary.clone();
        none.table.iter_mut().for_each(|side| side.another_run_points = None);
        assert!(none.another_run_doubt().contains("--repetitions=4"));
        let found = [(1900, 100.0, 90.0), (1890, 110.0, 80.0), (1800, 200.0, 120.0)];
        let found = found.map(|(write_latency_us, way_us, loopback_us)| Calibrated {
            write_latency_us,
            way_us: Some(way_us),
            loopback_us,
            ..disk()
        });
        let middle = Calibrated::middle(&found.iter().collect::<Vec<_>>()).unwrap();
        let seen = (middle.write_latency_us, middle.way_us, middle.loopback_us);
        assert_eq!(seen, (1890, Some(110.0), 90.0));
    }

    #[test]
    fn the_link_bounds_what_any_mirror_can_do() {
        let disk = disk();
        let (free, bound) = (15_000.0, 3840.0);
        assert!((disk.bound_ms(2.0, 300, free) - 2.3).abs() < 1e-9);
        // This machine is slow, and its disk has no more writes waiting for it.
        assert!((disk.bound_ms(4.0, 300, free) - 4.3).abs() < 1e-9);
        // The limit of the disk binds: writes wait for it longer than for the link.
        assert!((disk.bound_ms(6.25, 300, bound) - 6.25).abs() < 1e-9);
        assert!((disk.bound_ms(6.25, 5000, bound) - 7.0).abs() < 1e-9);
        // The loopback takes longer than was asked for.
        assert!((disk.bound_ms(2.0, 0, free) - 2.09).abs() < 1e-9);
        let mut summary = example();
        assert!(summary.link_doubt().contains("90 µs at 8K by itself, and the target's disk"));
        assert!(!summary.link_doubt().contains("slower"));
        summary.rtt_us = 50;
        assert!(summary.link_doubt().contains("the link is slower there than was asked for"));
    }

    #[test]
    fn a_busy_machine_and_too_few_repetitions_are_told() {
        let doubts = example().doubts.join("\n");
        assert!(doubts.contains("EMULATED") && doubts.contains("the 2 CPUs"), "{doubts}");
        assert!(doubts.contains("90 % busy or more in all of it"), "{doubts}");
        let mut summary = example();
        summary.cells[0].cpu_percent = Some(20.0);
        let busy = summary.binding();
        assert!(busy.contains("8K mirror") && busy.contains("8K cold no mirror"), "{busy}");
        assert!(doubts.contains("2 repetitions of some"), "{doubts}");
    }
}
