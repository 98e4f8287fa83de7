//! Heap allocations per command: none for reads and writes in the steady state.

mod support;

use std::sync::Arc;

use flagstone_blockdev::{FileDevice, FileOptions, NullDevice, SharedDevice};
use flagstone_nvme::Sqe;
use flagstone_nvme::pdu::Digests;
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_runtime::{Buf, IoEngine, RuntimeConfig, buf, run};

use support::client::range;
use support::{Host, Options, Server};

const DEPTH: u64 = 8;
/// Allowance for containers that grow late by doubling. An allocation per command would exceed it
/// by thousands.
const SLACK: u64 = 24;

/// Bytes of one round of commands, and of its responses.
struct Round {
    request: Buf,
    answer_bytes: usize,
}

/// Eight reads and eight writes of 4 KiB. Success is reported in the data PDU, or by a response of
/// 24 B.
fn round(host: &Host, nsid: u32) -> Round {
    let mut pdus = Vec::new();
    for number in 0..DEPTH {
        let blocks = range(number * 8, 4096, 4096);
        pdus.extend(host.io.capsule(&Sqe::read(number as u16, nsid, blocks, 4096), &[]));
        let sgl = SglDescriptor::in_capsule(4096);
        let write = Sqe::write(100 + number as u16, nsid, blocks, false, sgl);
        pdus.extend(host.io.capsule(&write, &[7; 4096]));
    }
    let digest = host.io.encoder.data_digest_bytes();
    let answer_bytes = DEPTH as usize * (24 + 4096 + digest + 24);
    Round { request: Buf::copy_of(&pdus).unwrap(), answer_bytes }
}

/// Heap allocations of this thread, target and host together, for `rounds` rounds.
fn allocations(make: &Make<'_>, rounds: u64, transfers: bool, data: bool) -> u64 {
    let config = RuntimeConfig { io_engine: IoEngine::IoUring, ..RuntimeConfig::default() };
    let counted = allocation_counter::measure(|| {
        run(&config, async || {
            let server = Server::new();
            let nsid = server.add(make());
            let digests = Digests { header: false, data };
            let mut host = Host::attach(&server, &Options { digests, ..Options::default() }).await;
            if transfers {
                by_transfer(&mut host, nsid, rounds).await;
            } else {
                let round = round(&host, nsid);
                for _ in 0..rounds {
                    host.io.stream.send_buf_counted(&round.request).await;
                    let place = buf::alloc(round.answer_bytes).await;
                    host.io.stream.recv_exact(place).await.0.unwrap();
                }
            }
        })
        .unwrap();
    });
    counted.count_total
}

/// Host that sends without allocating.
trait Plain {
    async fn send_buf_counted(&self, bytes: &Buf);
}

impl Plain for flagstone_runtime::net::Stream {
    async fn send_buf_counted(&self, bytes: &Buf) {
        thread_local! {
            static LIST: std::cell::RefCell<Option<flagstone_runtime::SendList>> =
                const { std::cell::RefCell::new(None) };
        }
        let mut list = LIST.take().unwrap_or_default();
        list.push(bytes.clone());
        let (result, list) = self.send_all(list).await;
        result.unwrap();
        LIST.set(Some(list));
    }
}

/// Writes with R2Ts.
async fn by_transfer(host: &mut Host, nsid: u32, rounds: u64) {
    let sgl = SglDescriptor::transport(8192);
    let command = Sqe::write(1, nsid, range(0, 4096, 8192), false, sgl);
    let command = Buf::copy_of(&host.io.capsule(&command, &[])).unwrap();
    let mut data = None;
    for _ in 0..rounds {
        host.io.stream.send_buf_counted(&command).await;
        let (result, r2t) = host.io.stream.recv_exact(buf::alloc(24).await).await;
        result.unwrap();
        // It is the only command on its queue, so the tag is the same each time.
        let tag = u16::from_le_bytes(r2t[10..12].try_into().unwrap());
        let data = data.get_or_insert_with(|| {
            Buf::copy_of(&host.io.h2c_data(1, tag, 0, &[5; 8192], true)).unwrap()
        });
        host.io.stream.send_buf_counted(data).await;
        host.io.stream.recv_exact(buf::alloc(24).await).await.0.unwrap();
    }
}

type Make<'a> = dyn Fn() -> SharedDevice + Sync + 'a;

fn check(name: &str, transfers: bool, make: &Make<'_>) {
    for data_digest in [false, true] {
        let few = allocations(make, 200, transfers, data_digest);
        let many = allocations(make, 1200, transfers, data_digest);
        assert!(many < few + SLACK, "{name}: {} allocations in 1,000 rounds", many - few);
    }
}

#[test]
fn reads_and_writes_allocate_nothing() {
    let null = || Arc::new(NullDevice::new(1 << 30, 4096).unwrap()) as SharedDevice;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = || -> SharedDevice {
        let options = FileOptions {
            create_bytes: Some(1 << 20),
            block_bytes: Some(4096),
            ..FileOptions::default()
        };
        let path = dir.path().join("disk");
        let _ = std::fs::remove_file(&path);
        FileDevice::open(path, &options).unwrap()
    };
    // Only io_uring must be free of allocations.
    let driver = IoEngine::IoUring;
    if let Err(error) =
        run(&RuntimeConfig { io_engine: driver, ..RuntimeConfig::default() }, async || {})
    {
        return eprintln!("skipped: {error}");
    }
    for transfers in [false, true] {
        check("null", transfers, &null);
        check("file", transfers, &file);
    }
}
