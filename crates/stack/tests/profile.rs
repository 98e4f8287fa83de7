//! Disk profiles: a volume performs as `flagstone plan predict` predicts for the disk. Tests the
//! configuration's grammar, the model and the layers together, in simulated time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::SharedDevice;
use flagstone_cloud::{Catalog, DiskConfiguration, PlanError, Workload};
use flagstone_config::{Config, LayerConfig, Provisioned};
use flagstone_limit::{Budget, IoSize, IoStep, Limit};
use flagstone_runtime::sim::{self, Simulation};
use flagstone_runtime::{buf, task, time};
use flagstone_stack::open_volume;
use proptest::prelude::*;

fn volume(layer: &str) -> String {
    format!("[volume.v]\n{layer}\ndevice = \"null:1TiB\"\n")
}

fn parse(text: &str) -> Config {
    Config::parse("f", text).unwrap_or_else(|error| panic!("{error}"))
}

fn limit_of(config: &Config) -> &Provisioned {
    let layers = config.volumes[0].layers.iter();
    let mut limits = layers.filter_map(|layer| match layer {
        LayerConfig::Limit(limit) => Some(limit.as_ref()),
        _ => None,
    });
    limits.next().expect("it has a limit")
}

#[test]
fn profile_numbers_match_page_of_2019() {
    let numbers = |rest: &str| {
        let layer = format!("limit = {{ catalog = \"gcp-2019\", {rest} }}");
        limit_of(&parse(&volume(&layer))).numbers
    };
    // 500 GB of SSD: 30 IOPS and 0.48 MB/s a GB, and 8 vCPUs of N1 have 15,000, 800 and 400. IOPS
    // are shared, throughput is independent. Its MB are of 1,000 KB of 1,024 bytes.
    const MB: u64 = 1_024_000;
    let ssd = numbers("profile = \"pd-ssd\", size = \"500GB\", machine = \"n1-standard-8\"");
    let expected = Limit {
        ios: Budget::total(15_000),
        bytes: Budget::separate(240 * MB, 240 * MB),
        ..Limit::default()
    };
    assert_eq!(ssd, expected);
    // A large standard disk: 3,000 reads, 15,000 writes of 8 KB, half of them of larger ones.
    let hdd = numbers("profile = \"pd-standard\", size = \"20TB\", machine = \"n1-standard-32\"");
    assert_eq!(hdd.ios, Budget::shared(3000, 15_000));
    assert_eq!(hdd.bytes, Budget::total(240 * MB));
    let above_bytes = 8 * Catalog::builtin("gcp-2019").unwrap().units.block_bytes as u32;
    let step = IoStep { above_bytes, millionths: 2_000_000 };
    assert_eq!(hdd.write_size, IoSize::steps([step]).unwrap());
}

#[test]
fn profile_names_disk_and_sources() {
    let text = volume(
        "disk_model = { profile = \"pd-ssd\", size = \"500GB\", machine = \"n1-standard-8\", \
         catalog = \"gcp-2019\" }",
    );
    let config = parse(&text);
    let lines = config.performance(&config.volumes[0]);
    assert!(
        lines[0].starts_with(
            "limited to 15000 IOPS, 245.76MB/s read, 245.76MB/s write, profile 500GB of"
        ) && lines[0].contains("pd-ssd on n1-standard-8 (catalog gcp-2019; date: ")
            && lines[0].ends_with("confidence A)"),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.contains("the latency of 2500us is")), "{lines:?}");
    assert!(lines.last().unwrap().contains("latency 2500us"), "{lines:?}");
    // A limit that volumes share may be one too; here the sources are weaker.
    let shared = parse(
        "[limit.vm]\nprofile = \"pd-ssd\"\nsize = \"500GB\"\nmachine = \"n2-standard-8\"\n\
         [volume.v]\nshared_limit = \"vm\"\ndevice = \"null:1TiB\"\n",
    );
    let lines = shared.performance(&shared.volumes[0]);
    assert!(lines[0].contains("confidence C)"), "{lines:?}");
}

#[test]
fn configured_latency_overrides_catalog() {
    let text = |kind: &str| {
        volume(&format!(
            "disk_model = {{ profile = \"{kind}\", size = \"500GB\", machine = \"n2-standard-8\", \
             latency = \"800us\", write_latency = \"1ms\" }}"
        ))
    };
    for kind in ["pd-ssd", "pd-balanced"] {
        let config = parse(&text(kind));
        let Some(LayerConfig::DiskModel(emulation)) = config.volumes[0].layers.last() else {
            panic!("{kind} is emulated");
        };
        let median = |time: Option<flagstone_limit::ServiceTime>| time.unwrap().median.as_micros();
        assert_eq!((median(emulation.read), median(emulation.write)), (800, 1000));
    }
}

#[test]
fn a_catalog_may_be_a_file() {
    let dir = std::env::temp_dir().join(format!("flagstone-like-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("own.toml");
    let own = Catalog::builtin_text("gcp-2019").unwrap();
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write(&own.replacen("gcp-2019", "ours", 1));
    let text = volume(&format!(
        "limit = {{ profile = \"pd-ssd\", size = \"100GB\", machine = \"n1-standard-8\", catalog = '{}' }}",
        file.display()
    ));
    let config = parse(&text);
    let limit = limit_of(&config).clone();
    // It is read again with the configuration.
    write("name = 5\n");
    let mistake = Config::parse("f", &text).expect_err("the catalog is broken").to_string();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(limit.numbers.ios, Budget::total(3000));
    assert!(mistake.contains("f:2:") && mistake.contains("bad catalog"), "{mistake}");
}

/// A disk to be like, as `plan predict` and as the file have it.
#[derive(Debug, Clone)]
struct Disk {
    catalog: &'static str,
    kind: String,
    size_gb: u64,
    machine: String,
    disks: u32,
    regional: bool,
    other_egress_gbps: u32,
    iops: Option<u32>,
    emulated: bool,
}

impl Disk {
    fn configuration(&self) -> Result<DiskConfiguration, PlanError> {
        let catalog = Catalog::builtin(self.catalog).unwrap();
        let local = catalog.disk_type(&self.kind)?.size_gb_each.is_some();
        let size = if local { 0 } else { self.size_gb * catalog.units.size_bytes };
        let mut made = DiskConfiguration::new(catalog, &self.kind, size, &self.machine)?;
        made.disks = self.disks;
        made.regional = self.regional;
        made.other_egress_gbit_per_s = self.other_egress_gbps.into();
        made.provisioned_iops = self.iops.map(f64::from);
        Ok(made)
    }

    fn text(&self, size_bytes: u64) -> String {
        let layer = if self.emulated { "disk_model" } else { "limit" };
        let size = match size_bytes {
            0 => String::new(),
            bytes => format!("size = {bytes}, "),
        };
        let iops = self.iops.map(|iops| format!(", provisioned_iops = {iops}"));
        volume(&format!(
            "{layer} = {{ profile = \"{}\", {size}machine = \"{}\", catalog = \"{}\", disks = {}, \
             regional = {}, other_egress_gbps = {}{} }}",
            self.kind,
            self.machine,
            self.catalog,
            self.disks,
            self.regional,
            self.other_egress_gbps,
            iops.unwrap_or_default()
        ))
    }
}

/// Number of completed I/Os.
#[derive(Clone, Default)]
struct Count(Rc<Cell<u64>>);

/// Keeps `depth` in flight, reads and writes by turns as the mix says.
async fn load(device: &SharedDevice, workload: &Workload, depth: u64) -> Count {
    task::begin_flow();
    let (count, begun) = (Count::default(), Rc::new(Cell::new(0_u64)));
    for _ in 0..depth {
        let (device, count, begun) = (device.clone(), count.clone(), begun.clone());
        let (bytes, reads) = (workload.block_bytes as usize, u64::from(workload.read_percent));
        task::spawn_detached(async move {
            loop {
                let turn = begun.get();
                begun.set(turn + 1);
                if turn * reads / 100 != (turn + 1) * reads / 100 {
                    device.read(0, buf::alloc(bytes).await).await.unwrap();
                } else {
                    let data = buf::alloc(bytes).await.freeze();
                    device.write(0, data, false).await.unwrap();
                }
                count.0.set(count.0.get() + 1);
            }
        });
    }
    count
}

/// I/Os to measure at a depth.
fn ios(depth: u64) -> f64 {
    4000.0 + 100.0 * depth as f64
}

/// I/Os a second of the volume, after its first moments.
fn measured(config: &Config, workload: &Workload, depth: u64, about: f64) -> f64 {
    let mut rate = 0.0;
    // Enough I/Os that those in flight at either end do not matter: reads and writes that do not
    // share a limit queue up one behind the other at first.
    let span = Duration::from_secs_f64((ios(depth) / about).clamp(0.05, 600.0));
    let sim = Simulation::new(1, sim::SimConfig::default());
    sim.block_on(async {
        let device = open_volume(config, 0, &[]).await.unwrap().device;
        let count = load(&device, workload, depth).await;
        // The saved-up credit of a limit, 5 ms, is used up by then.
        time::sleep(span / 4).await;
        let (before, begun) = (count.0.get(), time::now());
        time::sleep(span).await;
        rate = (count.0.get() - before) as f64 / begun.elapsed().as_secs_f64();
    });
    rate
}

fn disks() -> impl Strategy<Value = Disk> {
    let of = |catalog: &'static str, kinds: &'static [&'static str], machines| {
        (
            prop::sample::select(kinds),
            prop::sample::select(machines),
            prop_oneof![10_u64..600, 500_u64..20_000],
            prop_oneof![5 => Just(1_u32), 1 => 2_u32..4],
            prop::bool::weighted(0.15),
            prop_oneof![4 => Just(0_u32), 1 => 1_u32..8],
            prop::option::weighted(0.2, 3000_u32..80_000),
            any::<bool>(),
        )
            .prop_map(
                move |(
                    kind,
                    machine,
                    size_gb,
                    disks,
                    regional,
                    other_egress_gbps,
                    iops,
                    emulated,
                )| {
                    let (kind, machine): (&str, &str) = (kind, machine);
                    Disk {
                        catalog,
                        kind: kind.to_owned(),
                        size_gb,
                        machine: machine.to_owned(),
                        disks,
                        regional,
                        other_egress_gbps,
                        iops,
                        emulated,
                    }
                },
            )
    };
    const OLD: &[&str] =
        &["n1-standard-1", "n1-standard-8", "n1-standard-16", "n1-standard-64", "c2-standard-8"];
    const NEW: &[&str] =
        &["n2-standard-8", "n2-standard-32", "e2-standard-4", "c3-standard-22", "n1-standard-16"];
    prop_oneof![
        of("gcp-2019", &["pd-standard", "pd-ssd"], OLD),
        of(
            "gcp-current",
            &["pd-standard", "pd-balanced", "pd-ssd", "pd-extreme", "hyperdisk-balanced"],
            NEW
        ),
    ]
}

fn workloads() -> impl Strategy<Value = (Workload, u64)> {
    let block = prop::sample::select(vec![4096_u64, 8192, 12_288, 16_384, 65_536, 262_144]);
    let reads = prop_oneof![Just(0_u8), Just(100), 1_u8..100];
    (block, reads, prop_oneof![1_u64..16, 16_u64..200])
        .prop_map(|(block, reads, depth)| (Workload::random(block, reads), depth))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// A limit has the cloud's limits; a disk model also the effect of the queue depth.
    #[test]
    fn volume_performs_as_predicted(
        disk in disks(),
        (workload, depth) in workloads(),
    ) {
        let catalog = Catalog::builtin(disk.catalog).unwrap();
        let configuration = disk.configuration();
        let predicted = configuration.clone().and_then(|one| catalog.predict(&one, &workload));
        let size_bytes = configuration.map_or(1 << 40, |one| one.size_bytes);
        let read = Config::parse("f", &disk.text(size_bytes));
        let predicted = match (predicted, &read) {
            (Ok(predicted), _) => predicted,
            // A configuration that the model refuses is refused in the file too.
            (Err(error), read) => {
                prop_assert!(read.is_err(), "{error}");
                return Ok(());
            }
        };
        let config = match read {
            Ok(config) => config,
            Err(error) => {
                // Latency is not known of every type.
                let known = predicted.ceilings.service_us.is_some();
                prop_assert!(disk.emulated && !known, "{error}");
                prop_assert!(error.to_string().contains("the latency of"), "{error}");
                return Ok(());
            }
        };
        let allowed = predicted.allowed.iops;
        let expected = match (disk.emulated, predicted.ceilings.service_us) {
            (true, Some((sure_us, _))) => allowed.min(depth as f64 * 1e6 / sure_us),
            _ => allowed,
        };
        let rate = measured(&config, &workload, depth, expected);
        // Rates are whole numbers a second, and one I/O more or less is in the span.
        let rounded = 0.5 / expected + 2.0 / ios(depth);
        let error = (rate / expected - 1.0).abs();
        let volume = config.performance(&config.volumes[0]);
        prop_assert!(error < 0.01 + rounded, "{rate} of {expected}: {volume:?}");
    }
}
