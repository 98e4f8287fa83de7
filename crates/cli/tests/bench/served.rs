//! Served volumes: the real fio over NBD, and the built-in generator over NVMe/TCP.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use flagstone_bench::attach::{Initiator, InitiatorChoice};
use flagstone_bench::campaign::{Campaign, CampaignEnd, CampaignPlan, Watcher};
use flagstone_bench::fio::Fio;
use flagstone_bench::generator::Generator;
use flagstone_bench::process::Interrupt;
use flagstone_bench::results::{ResultRecord, ResultStore};
use flagstone_bench::served::is_filled as is_served_filled;
use flagstone_bench::stats::Steady;
use flagstone_bench::suite;

use crate::support::{Bench, text};

/// A server that is killed on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A suite that writes only to the first 1 MiB.
const PART: &str = r#"name = "part"
title = "a part"
[defaults]
ramp = "0s"
runtime = "100ms"
size = "1m"
[[job]]
name = "write"
rw = "randwrite"
"#;

/// A server with four memory volumes, `a` to `d`, and its NBD and NVMe/TCP addresses.
fn served() -> (Server, String, String) {
    served_with_api("none")
}

fn served_with_api(api: &str) -> (Server, String, String) {
    let volumes = ["a", "b", "c", "d"].map(|name| format!("--volume={name}=memory:16MiB"));
    serve(api, &volumes)
}

/// A server with these volumes, or the volumes of a configuration file.
fn serve(api: &str, volumes: &[String]) -> (Server, String, String) {
    let mut serve = Command::new(env!("CARGO_BIN_EXE_flagstone"));
    serve.args(["serve", "--cores", "1", "--api", api]).args(volumes);
    serve.args(["--listen", "nbd://127.0.0.1:0", "--listen", "nvme-tcp://127.0.0.1:0"]);
    let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let server = Server(child);
    let addresses: Vec<String> = lines
        .by_ref()
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("listening on ").map(str::to_owned))
        .take(2)
        .collect();
    let of = |scheme: &str| addresses.iter().find(|a| a.starts_with(scheme)).expect("it listens");
    let (nbd, nvme) = (of("nbd://").clone(), of("nvme-tcp://").clone());
    (server, nbd, nvme)
}

fn has_nbd() -> bool {
    let engine = Command::new("fio").arg("--enghelp=nbd").output();
    let has = engine.is_ok_and(|o| o.status.success() && text(&o.stdout).contains("uri"));
    if !has {
        eprintln!("SKIPPED: there is no fio here, or it has no nbd engine");
    }
    has
}

/// The provenance of a served volume comes from the API of a local server.
#[test]
fn provenance_from_server_api() {
    let bench = Bench::new();
    bench.say("part.toml", PART);
    let socket = bench.path("api");
    let (_server, _, nvme) = served_with_api(socket.to_str().expect("UTF-8"));
    let nvme = format!("{nvme}/nqn.2026-01.io.flagstone:a");
    let line = format!(
        "run ./part.toml t={nvme} --repetitions 1 --initiator flagstone --destroy-data {nvme} --api"
    );
    bench.ends(&format!("{line} {} --results r", socket.display()), 0);
    assert_eq!(bench.results("r")[0]["provenance"], "memory");
    assert!(bench.read("r/campaign.json").contains("devices memory:16MiB"));
    let (_, said) = bench.ends(&format!("{line} {}x --results s", socket.display()), 2);
    assert!(said.contains("no server answers"), "{said}");
}

/// Every kind of job of every suite, shortened. Jobs need properties of the target, such as its
/// size, for served volumes too.
#[test]
fn every_suite_runs_over_nbd() {
    if !has_nbd() {
        return;
    }
    let bench = Bench::new();
    let (_server, nbd, _) = served();
    for suite in [
        "quick",
        "latency",
        "sweep",
        "oltp",
        "redo-log",
        "streaming",
        "mirror",
        "fabric",
        "provisioned-iops",
        "gcp-pd",
        "gcp-local-ssd",
    ] {
        // Fewer jobs that differ only in a number.
        let (jobs, _) = bench.ends(&format!("list --suite {suite}"), 0);
        let jobs = jobs
            .replace("\"16k\", \"64k\", \"256k\", ", "")
            .replace("[1, 4, 16, 64]", "[1, 64]")
            .replace("[1, 32, 128]", "[128]")
            .replace("[1, 8, 32]", "[8]")
            .replace("[1, 8]", "[8]")
            .replace("[1, 2, 3, 4]", "[1, 4]");
        bench.say("suite.toml", &jobs);
        let disks: Vec<String> = match suite {
            "fabric" => ["a", "b", "c", "d"].map(|name| format!("{nbd}/{name}")).into(),
            _ => vec![format!("{nbd}/a")],
        };
        let consent: String = disks.iter().map(|disk| format!(" --destroy-data {disk}")).collect();
        let line = format!(
            "run ./suite.toml t={} --ramp 0s --runtime 100ms --repetitions 1 --results {suite}{consent} --format markdown",
            disks.join(",")
        );
        let output = bench.command(&line).env_remove("FIO").output().expect("the program runs");
        assert_eq!(output.status.code(), Some(0), "{suite}: {}", text(&output.stderr));
        let results = bench.results(suite);
        assert!(!results.is_empty());
        for result in &results {
            assert!(result["iops"].as_f64() > Some(0.0), "{suite}: {result}");
            let server = &result["measurement"]["server"];
            assert_eq!(server["program"], "flagstone", "{suite}: the server is on this machine");
        }
        let environment: serde_json::Value =
            serde_json::from_str(&bench.read(&format!("{suite}/environment.json"))).expect("JSON");
        assert_eq!(environment["disks"][&disks[0]]["size_bytes"], 16 << 20, "{suite}");
        assert!(text(&output.stdout).contains("server, of one CPU"), "{suite}");
        let warned = text(&output.stderr).contains("has no durable writes");
        assert_eq!(warned, matches!(suite, "mirror" | "latency" | "redo-log"), "{suite}");
    }
}

#[test]
fn real_fio_over_nbd_and_generator_over_nvme_tcp() {
    if !has_nbd() {
        return;
    }
    let bench = Bench::new();
    let (_server, nbd, nvme) = served();
    let (nbd, nvme) = (format!("{nbd}/a"), format!("{nvme}/nqn.2026-01.io.flagstone:a"));
    bench.say(
        "stack.toml",
        "[server]\nlisten = [\"nbd://127.0.0.1:0\"]\n[volume.a]\ndevice = \"memory:16MiB\"\n",
    );
    let line = format!(
        "run quick nbd={nbd} nvme={nvme} --runtime 100ms --repetitions 1 --results r --stack stack.toml \
         --destroy-data {nbd} --destroy-data {nvme} --initiator flagstone"
    );
    let output = bench.command(&line).env_remove("FIO").output().expect("the program runs");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results = bench.results("r");
    assert_eq!(results.len(), 8);
    for result in &results {
        assert!(result["iops"].as_f64() > Some(0.0), "{result}");
        assert!(result["latency_p99_us"].as_f64() > Some(0.0), "{result}");
        assert_eq!(result["provenance"], "memory", "the stack says so");
        let tool = result["tool"].as_str().expect("text");
        assert_eq!(tool == "flagstone load", result["target"] == "nvme", "{tool}");
    }
    bench.ends("report r", 0);
    assert!(bench.read("report.html").contains("nbd [MEMORY]"));
    // All jobs of the page except its fill, including those with thread offsets.
    let line = format!(
        "run gcp-pd nvme={nvme} --ramp 0s --runtime 100ms --repetitions 1 --results page \
         --destroy-data {nvme} --initiator flagstone"
    );
    bench.ends(&line, 0);
    assert_eq!(bench.results("page").len(), 8);
    // An unwritten volume is filled before the measurement, by fio or the built-in generator,
    // including the parts that no job touches.
    bench.say("part.toml", PART);
    for initiator in ["nbd", "nvme"] {
        let (_another, nbd, nvme) = served();
        let fresh = match initiator {
            "nbd" => format!("{nbd}/a"),
            _ => format!("{nvme}/nqn.2026-01.io.flagstone:a"),
        };
        let is_filled = || is_served_filled(&fresh, &Interrupt::never()).expect("it can be read");
        assert!(!is_filled(), "{fresh}");
        let line = format!(
            "run ./part.toml {initiator}={fresh} --repetitions 1 --results {initiator} \
             --destroy-data {fresh} --initiator flagstone"
        );
        let output = bench.command(&line).env_remove("FIO").output().expect("the program runs");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(is_filled(), "{fresh}");
    }
}

/// Records fill progress, and stops the campaign at the first measurement.
#[derive(Default)]
struct Fills {
    interrupt: Interrupt,
    /// Completed fraction and remaining seconds of each progress report, by fill.
    reported: Vec<Vec<(f64, f64)>>,
}

impl Watcher for Fills {
    fn note(&mut self, _: &str) {}
    fn begin(&mut self, what: &str, _: f64) {
        match what.starts_with("filling ") {
            true => self.reported.push(Vec::new()),
            false => self.interrupt.raise(),
        }
    }
    fn filled(&mut self, done: f64, remaining_s: f64) {
        self.reported.last_mut().expect("a fill has begun").push((done, remaining_s));
    }
    fn tick(&mut self) {}
    fn done(&mut self, _: &ResultRecord) {
        panic!("nothing is measured");
    }
    fn steadiness(&mut self, _: &str, _: &str, _: u32, _: Option<Steady>) {}
}

/// Each fill takes two seconds at its limit and reports once per second.
#[test]
fn fill_of_served_volume_reports_progress() {
    let bench = Bench::new();
    let volume = |name: &str| {
        format!(
            "[volume.{name}]\nlimit = {{ throughput = \"8MB/s\" }}\ndevice = \"memory:16MiB\"\n"
        )
    };
    bench.say("slow.toml", &(volume("a") + &volume("b")));
    let (_server, nbd, nvme) = serve("none", &[bench.path("slow.toml").display().to_string()]);
    let disks = [format!("{nbd}/a"), format!("{nvme}/nqn.2026-01.io.flagstone:b")];
    let targets = disks.each_ref().map(|disk| disk.parse().expect("a target"));
    let suite = suite::find("quick").expect("it is built in");
    let mut plan = CampaignPlan::new(&suite, targets.into(), 16 << 20);
    (plan.destroy, plan.initiator) = (disks.into(), InitiatorChoice::Flagstone);
    let store = ResultStore::create(&bench.path("r"), &plan).expect("it is new");
    let fio = Fio::at(bench.path("fio"), &Interrupt::never()).expect("it says what it is asked");
    let mut fills = Fills::default();
    let campaign = Campaign {
        plan: &plan,
        store: &store,
        fio: Some(&fio),
        generator: &Generator { program: env!("CARGO_BIN_EXE_flagstone").into() },
        initiator: &Initiator::of_machine(),
        interrupt: &fills.interrupt.clone(),
    };
    let ended = campaign.run(&mut fills).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((ended, fills.reported.len()), (CampaignEnd::Interrupted, 2));
    for reported in fills.reported {
        let half = reported.iter().find(|(done, _)| (0.01..1.0).contains(done));
        assert!(half.is_some_and(|(_, left_s)| *left_s > 0.0), "{reported:?}");
        assert!(reported.is_sorted_by(|one, next| one.0 <= next.0), "{reported:?}");
    }
}
