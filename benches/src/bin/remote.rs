//! Fabric cost benchmark: a null device served by the target on one core and used by the host on
//! another, over loopback.
//!
//! Prints IOPS and the CPU time of the host's core per command, which does not depend on other load
//! of the machine. Compare with `floor`, which exchanges the same bytes without NVMe.
//!
//! `remote [--rw read|write] [--block BYTES] [--depth N] [--queues N] [--seconds S]
//! [--io-engine io_uring|threads] [--tls off|sha256|sha384]`, the last with the suite of that hash
#![allow(clippy::disallowed_methods, reason = "a program's edge: it starts the two runtimes")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use flagstone_auth::TlsRing;
use flagstone_auth::tls::{PskHash, TlsKey};
use flagstone_blockdev::{BlockDevice, NullDevice};
use flagstone_nvme::Nqn;
use flagstone_nvmf_host::{HostOptions, RemoteDevice, RemoteTls};
use flagstone_nvmf_target::{
    self as target, NamespaceConfig, SubsystemConfig, Target, TargetConfig, TlsMode, serve_listener,
};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::{IoEngine, RuntimeConfig, buf, run, spawn, spawn_detached, time};

const SIZE_BYTES: u64 = 1 << 40;

#[derive(Clone, Copy)]
struct Plan {
    write: bool,
    block: usize,
    depth: u16,
    queues: u16,
    seconds: u64,
    io_engine: IoEngine,
    tls: Option<PskHash>,
}

impl Plan {
    fn from_args() -> Result<Plan, String> {
        let mut plan = Plan {
            write: false,
            block: 4096,
            depth: 128,
            queues: 1,
            seconds: 3,
            io_engine: IoEngine::Auto,
            tls: None,
        };
        let mut args = std::env::args().skip(1);
        while let Some(flag) = args.next() {
            let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{flag} takes a number"));
            match flag.as_str() {
                "--rw" => plan.write = value == "write",
                "--block" => plan.block = number()? as usize,
                "--depth" => plan.depth = number()? as u16,
                "--queues" => plan.queues = number()? as u16,
                "--seconds" => plan.seconds = number()?,
                "--tls" if value == "sha256" => plan.tls = Some(PskHash::Sha256),
                "--tls" if value == "sha384" => plan.tls = Some(PskHash::Sha384),
                "--tls" => plan.tls = None,
                "--io-engine" if value == "threads" => plan.io_engine = IoEngine::Threads,
                "--io-engine" => plan.io_engine = IoEngine::IoUring,
                _ => return Err(format!("unknown flag {flag}")),
            }
        }
        Ok(plan)
    }
}

fn subnqn() -> Nqn {
    Nqn::new("nqn.2024-01.example:null").expect("a valid name")
}

fn host_nqn() -> Nqn {
    Nqn::from_uuid([7; 16])
}

fn keys(hash: PskHash) -> TlsRing {
    TlsRing::new(vec![TlsKey::new(&vec![7; hash.bytes()], Some(hash)).expect("a valid length")])
}

async fn serve_null(address: mpsc::Sender<Address>, tls: Option<PskHash>) {
    let target = Target::new(TargetConfig::default()).expect("the default is valid");
    let subsystem = SubsystemConfig {
        nqn: subnqn(),
        serial: "1".to_owned(),
        allow_hosts: None,
        keys: Default::default(),
    };
    target.add_subsystem(subsystem).expect("the first");
    let hosts = tls.map(|hash| (host_nqn(), target::HostTls { keys: keys(hash), required: true }));
    target.set_tls_keys(&subnqn(), hosts.into_iter().collect());
    let mode = if tls.is_some() { TlsMode::Required } else { TlsMode::Off };
    let device = Arc::new(NullDevice::new(SIZE_BYTES, 512).expect("a valid size"));
    let namespace = NamespaceConfig { nsid: None, device, uuid: [1; 16], read_only: false };
    target.add_namespace(&subnqn(), namespace).expect("the first");
    let any = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let listener = Listener::bind(&any).expect("a free port");
    address.send(listener.address().clone()).expect("the host waits");
    let accepting = target.clone();
    spawn_detached(async move {
        while let Ok(stream) = listener.accept().await {
            spawn_detached(serve_listener(accepting.clone(), stream, mode));
        }
    });
    while target.controllers() == 0 {
        time::sleep(Duration::from_millis(10)).await;
    }
    while target.controllers() > 0 {
        time::sleep(Duration::from_millis(100)).await;
    }
}

async fn worker(device: Arc<RemoteDevice>, plan: Plan, seed: u64, end: time::Instant) -> u64 {
    let blocks = SIZE_BYTES / plan.block as u64;
    let mut place = buf::alloc(plan.block).await;
    let data = buf::alloc(plan.block).await.freeze();
    let mut random = seed;
    let mut done = 0;
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let offset = (random >> 20) % blocks * plan.block as u64;
        if plan.write {
            device.write(offset, data.clone(), false).await.expect("the target is there");
        } else {
            place = device.read(offset, place).await.expect("the target is there");
        }
        done += 1;
        if done % 64 == 0 && time::now() >= end {
            return done;
        }
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

async fn measure(device: &Arc<RemoteDevice>, plan: Plan) -> (f64, f64) {
    let (begin, cpu) = (time::now(), cpu_time());
    let end = begin + Duration::from_secs(plan.seconds);
    let workers: Vec<_> = (0..plan.depth)
        .map(|seed| spawn(worker(device.clone(), plan, u64::from(seed), end)))
        .collect();
    let mut done = 0;
    for worker in workers {
        done += worker.await.expect("the task is not aborted");
    }
    let spent = cpu_time() - cpu;
    (done as f64 / begin.elapsed().as_secs_f64(), spent.as_secs_f64() / done as f64)
}

fn main() {
    let plan = Plan::from_args().unwrap_or_else(|error| {
        eprintln!("remote: {error}");
        std::process::exit(2);
    });
    let (sender, receiver) = mpsc::channel();
    let config = RuntimeConfig { io_engine: plan.io_engine, ..RuntimeConfig::default() };
    let server = std::thread::Builder::new().name("target".to_owned()).spawn(move || {
        run(&RuntimeConfig { pin_from: Some(0), ..config }, || serve_null(sender, plan.tls))
    });
    let server = server.expect("a thread");
    let address = receiver.recv().expect("the server has started");
    let (iops, cpu) = run(&RuntimeConfig { pin_from: Some(1), ..config }, || async {
        let queue_depth = (plan.depth / plan.queues).clamp(1, 1023);
        let tls = plan.tls.map(|hash| RemoteTls::required(keys(hash)));
        let options = HostOptions {
            host_nqn: Some(host_nqn()),
            tls,
            queues: plan.queues,
            queue_depth,
            ..HostOptions::default()
        };
        let device =
            RemoteDevice::connect(address, &subnqn(), options).await.expect("the target is there");
        let measured = measure(&device, plan).await;
        device.disconnect().await;
        measured
    })
    .unwrap_or_else(|error| panic!("{error}"));
    server.join().expect("no panic").unwrap_or_else(|error| panic!("{error}"));
    let kind = if plan.write { "write" } else { "read" };
    println!(
        "remote {kind} {} B depth {}: {:.1} kIOPS, {:.0} ns of the host's CPU each",
        plan.block,
        plan.depth,
        iops / 1e3,
        cpu * 1e9
    );
}
