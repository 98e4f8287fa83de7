//! Floor benchmark: a bare TCP exchange of the bytes of an NVMe/TCP command, with the batching of
//! the target and the host but without NVMe; and the target with the same client, as a ratio of it.
//!
//! A read sends 72 B and receives 24 + 4,096 B. A write sends 72 + 4,096 B and receives 24 B. The
//! server runs on one core, the client on another; both use Flagstone's runtime.
//!
//! `floor [--rw read|write] [--block BYTES] [--depth N] [--seconds S] [--rounds N]
//!        [--device null|memory|PATH] [--io-engine io_uring|threads] [--only floor|target|counted]`
//!
//! `counted` is the target with the stats layer on the device, as in `flagstone serve`; `--only
//! counted` runs it beside the target. A file at PATH is accessed through the page cache, within
//! its first GiB.
//!
//! Rounds are interleaved, so that drift of the machine affects all of them.
#![allow(clippy::disallowed_methods, reason = "a program's edge: it starts the two runtimes")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use flagstone_benches::exchange::{Exchange, Outcome, drive};
use flagstone_benches::nvme;
use flagstone_blockdev::StatsLayer;
use flagstone_blockdev::{FileDevice, FileOptions, MemoryDevice, NullDevice, SharedDevice};
use flagstone_nvme::Nqn;
use flagstone_nvmf_target as target;
use flagstone_nvmf_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig};
use flagstone_runtime::net::{Address, Listener, Stream};
use flagstone_runtime::{Buf, BufMut, IoEngine, RuntimeConfig, SendList, buf, run, spawn_detached};

const REQUEST_BYTES: usize = 72;
const RESPONSE_BYTES: usize = 24;
const STAGING_BYTES: usize = 1 << 20;
const NQN: &str = "nqn.2026-01.io.flagstone:floor";

#[derive(Clone, Debug)]
struct Plan {
    write: bool,
    block: usize,
    depth: usize,
    seconds: u64,
    rounds: usize,
    device: String,
    only: Option<String>,
    io_engine: IoEngine,
}

impl Plan {
    fn there(&self) -> usize {
        REQUEST_BYTES + if self.write { self.block } else { 0 }
    }

    fn back(&self) -> usize {
        RESPONSE_BYTES + if self.write { 0 } else { self.block }
    }

    fn from_args() -> Result<Plan, String> {
        let mut plan = Plan {
            write: false,
            block: 4096,
            depth: 32,
            seconds: 2,
            rounds: 3,
            device: "null".to_owned(),
            only: None,
            io_engine: IoEngine::Auto,
        };
        let mut args = std::env::args().skip(1);
        while let Some(flag) = args.next() {
            let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{flag} takes a number"));
            match flag.as_str() {
                "--rw" => plan.write = value == "write",
                "--block" => plan.block = number()? as usize,
                "--depth" => plan.depth = number()? as usize,
                "--seconds" => plan.seconds = number()?,
                "--rounds" => plan.rounds = number()? as usize,
                "--device" => plan.device = value,
                "--only" => plan.only = Some(value),
                "--io-engine" if value == "threads" => plan.io_engine = IoEngine::Threads,
                "--io-engine" => plan.io_engine = IoEngine::IoUring,
                _ => return Err(format!("unknown flag {flag}")),
            }
        }
        Ok(plan)
    }

    fn runs(&self, what: &str) -> bool {
        match self.only.as_deref() {
            None => what != "counted",
            Some("counted") => what != "floor",
            Some(only) => only == what,
        }
    }
}

fn parts(header: usize, payload: usize) -> Vec<Buf> {
    let mut parts = vec![buf::zeroes(header)];
    if payload > 0 {
        parts.push(buf::try_alloc(payload).expect("memory").freeze());
    }
    parts
}

/// Server of the bare TCP exchange.
async fn serve_floor(stream: Stream, plan: &Plan) {
    let response = parts(RESPONSE_BYTES, plan.back() - RESPONSE_BYTES);
    let mut have = 0;
    let mut list = SendList::new();
    let mut staging: BufMut = buf::alloc(STAGING_BYTES).await;
    loop {
        let (result, back) = stream.recv(staging).await;
        staging = back;
        let Ok(bytes @ 1..) = result else { return };
        have += bytes;
        for _ in 0..have / plan.there() {
            response.iter().for_each(|part| list.push(part.clone()));
        }
        have %= plan.there();
        let (result, back) = stream.send_all(list).await;
        list = back;
        if result.is_err() {
            return;
        }
    }
}

fn new_target(plan: &Plan, counted: bool) -> Arc<Target> {
    let device: SharedDevice = match plan.device.as_str() {
        "memory" => Arc::new(MemoryDevice::new(1 << 30, 4096).expect("a device")),
        "null" => Arc::new(NullDevice::new(1 << 40, 4096).expect("a device")),
        path => {
            let options = FileOptions {
                direct: false,
                exclusive: false,
                create_bytes: Some(1 << 30),
                block_bytes: Some(4096),
                ..FileOptions::default()
            };
            FileDevice::open(path, &options).expect("a file")
        }
    };
    let device = if counted { Arc::new(StatsLayer::new(device).0) } else { device };
    let target = Target::new(TargetConfig::default()).expect("the default is valid");
    let nqn = Nqn::new(NQN).expect("a name");
    let serial = "floor".to_owned();
    let subsystem = SubsystemConfig { nqn, serial, allow_hosts: None, keys: Default::default() };
    target.add_subsystem(subsystem).expect("the first");
    let namespace = NamespaceConfig { nsid: Some(1), device, uuid: [1; 16], read_only: false };
    target.add_namespace(&nqn, namespace).expect("the first");
    target
}

/// Runs `serve` on one core and `measure` on another. Returns the measurement.
fn measured(
    plan: &Plan,
    serve: impl AsyncFnOnce(Listener) + Send + 'static,
    measure: impl AsyncFnOnce(&Address) -> Outcome,
) -> Outcome {
    let config = RuntimeConfig { io_engine: plan.io_engine, ..RuntimeConfig::default() };
    let (sender, receiver) = mpsc::channel();
    let server = std::thread::spawn(move || {
        run(&RuntimeConfig { pin_from: Some(0), ..config }, || async {
            let any = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
            let listener = Listener::bind(&any).expect("a free port");
            sender.send(listener.address().clone()).expect("the client waits");
            serve(listener).await;
        })
    });
    let address = receiver.recv().expect("the server has started");
    let client = RuntimeConfig { pin_from: Some(1), ..config };
    let outcome = run(&client, || measure(&address)).unwrap_or_else(|error| panic!("{error}"));
    server.join().expect("no panic").unwrap_or_else(|error| panic!("{error}"));
    outcome
}

fn floor(plan: &Plan) -> Outcome {
    let server = plan.clone();
    measured(
        plan,
        async move |listener| {
            serve_floor(listener.accept().await.expect("a client"), &server).await;
        },
        async |address| {
            let stream = Stream::connect(address).await.expect("the server listens");
            let request = parts(REQUEST_BYTES, plan.there() - REQUEST_BYTES);
            let exchange = Exchange {
                requests: vec![request; plan.depth],
                response_bytes: plan.back(),
                span: Duration::from_secs(plan.seconds),
            };
            let outcome = drive(&stream, &exchange).await;
            stream.shutdown();
            outcome
        },
    )
}

fn fabric(plan: &Plan, counted: bool) -> Outcome {
    let server = plan.clone();
    measured(
        plan,
        async move |listener| {
            let target = new_target(&server, counted);
            let admin = listener.accept().await.expect("a host");
            spawn_detached(target::serve(target.clone(), admin));
            target::serve(target, listener.accept().await.expect("a host")).await;
        },
        async |address| {
            let nqn = Nqn::new(NQN).expect("a name");
            let (stream, admin) = nvme::io_queue(address, &nqn, plan.depth as u32 + 1).await;
            let exchange = Exchange {
                requests: nvme::requests(plan.depth, plan.block, plan.write),
                response_bytes: plan.back(),
                span: Duration::from_secs(plan.seconds),
            };
            let outcome = drive(&stream, &exchange).await;
            stream.shutdown();
            admin.shutdown();
            outcome
        },
    )
}

fn median(mut outcomes: Vec<Outcome>) -> Option<Outcome> {
    outcomes.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    outcomes.get(outcomes.len() / 2).copied()
}

fn report(name: &str, plan: &Plan, outcome: Option<Outcome>) {
    let Some(outcome) = outcome else { return };
    let kind = if plan.write { "write" } else { "read" };
    let rate = outcome.per_second / 1e3;
    println!(
        "{name:<7} {kind:<5} {:>6} B  depth {:>4}  {rate:>8.1} kIOPS  {:>8.2} µs",
        plan.block, plan.depth, outcome.latency_us
    );
}

fn main() {
    let plan = Plan::from_args().unwrap_or_else(|error| {
        eprintln!("floor: {error}");
        std::process::exit(2);
    });
    let (mut floors, mut targets, mut counteds) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        if plan.runs("floor") {
            floors.push(floor(&plan));
        }
        if plan.runs("target") {
            targets.push(fabric(&plan, false));
        }
        if plan.runs("counted") {
            counteds.push(fabric(&plan, true));
        }
    }
    let (floor, target, counted) = (median(floors), median(targets), median(counteds));
    report("floor", &plan, floor);
    report("target", &plan, target);
    report("counted", &plan, counted);
    if let (Some(target), Some(counted)) = (target, counted) {
        let ratio = counted.per_second / target.per_second;
        println!("counted is {ratio:.3} of the target");
    }
    if let (Some(floor), Some(target)) = (floor, target) {
        let ratio = target.per_second / floor.per_second;
        let added = target.latency_us - floor.latency_us;
        println!("target is {ratio:.2} of the floor; {added:+.2} µs at this depth");
    }
}
