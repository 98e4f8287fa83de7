//! The floor: a bare TCP exchange of the bytes of an NVMe/TCP command, with the same batching as
//! the target and the host, and no NVMe in it.
//!
//! A read is 72 B there and 24 + 4,096 B back, a write the reverse: 72 + 4,096 B there, 24 B back.
//! The server runs on one core, the client on another; both use Flagstone's runtime. What the
//! fabric reaches of this is what NVMe costs.
//!
//! `floor [--rw read|write] [--block BYTES] [--depth N] [--seconds S] [--driver io_uring|threads]`
#![allow(clippy::disallowed_methods, reason = "a program's edge: it starts the two runtimes")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::time::Duration;

use flagstone_runtime::net::{Address, Listener, Stream};
use flagstone_runtime::{Buf, BufMut, Config, DriverChoice, SendList, buf, run, time};

const REQUEST_BYTES: usize = 72;
const RESPONSE_BYTES: usize = 24;
const STAGING_BYTES: usize = 1 << 20;

#[derive(Clone, Copy)]
struct Plan {
    write: bool,
    block: usize,
    depth: usize,
    seconds: u64,
    driver: DriverChoice,
}

impl Plan {
    fn there(&self) -> usize {
        REQUEST_BYTES + if self.write { self.block } else { 0 }
    }

    fn back(&self) -> usize {
        RESPONSE_BYTES + if self.write { 0 } else { self.block }
    }

    fn from_args() -> Result<Plan, String> {
        let mut plan =
            Plan { write: false, block: 4096, depth: 32, seconds: 3, driver: DriverChoice::Auto };
        let mut args = std::env::args().skip(1);
        while let Some(flag) = args.next() {
            let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{flag} takes a number"));
            match flag.as_str() {
                "--rw" => plan.write = value == "write",
                "--block" => plan.block = number()? as usize,
                "--depth" => plan.depth = number()? as usize,
                "--seconds" => plan.seconds = number()?,
                "--driver" if value == "threads" => plan.driver = DriverChoice::Threads,
                "--driver" => plan.driver = DriverChoice::IoUring,
                _ => return Err(format!("unknown flag {flag}")),
            }
        }
        Ok(plan)
    }
}

/// Bytes received and not yet counted as whole messages.
struct Counter {
    have: usize,
    message: usize,
}

impl Counter {
    fn add(&mut self, bytes: usize) -> usize {
        self.have += bytes;
        let whole = self.have / self.message;
        self.have %= self.message;
        whole
    }
}

fn push_messages(list: &mut SendList, header: &Buf, payload: Option<&Buf>, count: usize) {
    for _ in 0..count {
        list.push(header.clone());
        if let Some(payload) = payload {
            list.push(payload.clone());
        }
    }
}

fn parts(header: usize, payload: usize) -> (Buf, Option<Buf>) {
    let header = buf::zeroes(header);
    let payload = (payload > 0).then(|| buf::try_alloc(payload).expect("memory").freeze());
    (header, payload)
}

async fn serve(stream: Stream, plan: Plan) {
    let (header, payload) = parts(RESPONSE_BYTES, plan.back() - RESPONSE_BYTES);
    let mut counter = Counter { have: 0, message: plan.there() };
    let mut list = SendList::new();
    let mut staging: BufMut = buf::alloc(STAGING_BYTES).await;
    loop {
        let (result, back) = stream.recv(staging).await;
        staging = back;
        let Ok(bytes @ 1..) = result else { return };
        push_messages(&mut list, &header, payload.as_ref(), counter.add(bytes));
        let (result, back) = stream.send_all(list).await;
        list = back;
        if result.is_err() {
            return;
        }
    }
}

async fn drive(stream: Stream, plan: Plan) -> f64 {
    let (header, payload) = parts(REQUEST_BYTES, plan.there() - REQUEST_BYTES);
    let mut counter = Counter { have: 0, message: plan.back() };
    let mut list = SendList::new();
    let mut staging = buf::alloc(STAGING_BYTES).await;
    push_messages(&mut list, &header, payload.as_ref(), plan.depth);
    let begin = time::now();
    let end = begin + Duration::from_secs(plan.seconds);
    let mut done = 0_u64;
    loop {
        if !list.is_empty() {
            let (result, back) = stream.send_all(list).await;
            result.expect("the server is there");
            list = back;
        }
        let (result, back) = stream.recv(staging).await;
        staging = back;
        let whole = counter.add(result.expect("the server is there"));
        done += whole as u64;
        if time::now() >= end {
            return done as f64 / begin.elapsed().as_secs_f64();
        }
        push_messages(&mut list, &header, payload.as_ref(), whole);
    }
}

fn main() {
    let plan = Plan::from_args().unwrap_or_else(|error| {
        eprintln!("floor: {error}");
        std::process::exit(2);
    });
    let (sender, receiver) = mpsc::channel();
    let config = Config { driver: plan.driver, ..Config::default() };
    let server = std::thread::spawn(move || {
        run(&Config { pin_from: Some(0), ..config }, || async {
            let any = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
            let listener = Listener::bind(&any).expect("a free port");
            sender.send(listener.address().clone()).expect("the client waits");
            serve(listener.accept().await.expect("a client"), plan).await;
        })
    });
    let address = receiver.recv().expect("the server has started");
    let iops = run(&Config { pin_from: Some(1), ..config }, || async {
        let stream = Stream::connect(&address).await.expect("the server listens");
        let iops = drive(stream.clone(), plan).await;
        stream.shutdown();
        iops
    })
    .unwrap_or_else(|error| panic!("{error}"));
    server.join().expect("no panic").unwrap_or_else(|error| panic!("{error}"));
    let kind = if plan.write { "write" } else { "read" };
    println!(
        "floor {kind} {} B depth {}: {:.1} kIOPS, {:.2} µs each at this depth",
        plan.block,
        plan.depth,
        iops / 1e3,
        plan.depth as f64 / iops * 1e6
    );
}
