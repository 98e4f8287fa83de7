//! Behavior for conforming hosts.

mod controllers;
mod copy;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;

use flagstone_blockdev::{FileDevice, FileOptions, MemoryDevice, NullDevice, SharedDevice};
use flagstone_nvme::command::admin::Identify;
use flagstone_nvme::command::io::{BlockRange, DsmRange, IoOptions};
use flagstone_nvme::feature::FeatureId;
use flagstone_nvme::identify::Cns;
use flagstone_nvme::limits::NAMESPACE_ID_ALL;
use flagstone_nvme::pdu::Digests;
use flagstone_nvme::property::{shutdown, shutdown_status};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::{IoOpcode, Sqe, Status, Wire as _};
use flagstone_nvmf_target::TargetConfig;

use support::client::{done, enabled, range};
use support::{
    BlockingDevice, Host, Options, Pdu, Server, on_each_driver, on_each_real_driver, pattern,
};

const MDTS: usize = 1 << 20;

fn memory(block_bytes: u32) -> SharedDevice {
    Arc::new(MemoryDevice::new(16 << 20, block_bytes).unwrap())
}

/// Reads and writes of all kinds of lengths, with every data transfer method.
async fn all_sizes(host: &mut Host, nsid: u32, block_bytes: usize) {
    let sizes = [1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130, 255, 256, 511, 513];
    let sizes = sizes.into_iter().map(|blocks| blocks * block_bytes);
    let edges = [MDTS - block_bytes, MDTS];
    let block = block_bytes as u64;
    for (seed, bytes) in sizes.chain(edges).filter(|bytes| *bytes <= MDTS).enumerate() {
        let data = pattern(seed as u64, bytes);
        let start = seed as u64 * 3;
        if bytes <= 64 << 10 {
            host.io.write(nsid, start, block, &data).await.unwrap();
            assert_eq!(host.io.read(nsid, start, block, bytes).await.unwrap(), data, "{bytes}");
        }
        let data = pattern(1000 + seed as u64, bytes);
        host.io.write_r2t(nsid, start, block, &data).await.unwrap();
        assert_eq!(host.io.read(nsid, start, block, bytes).await.unwrap(), data, "{bytes}");
    }
}

#[test]
fn reads_and_writes_of_all_sizes() {
    on_each_driver(async || {
        let server = Server::new();
        let small = server.add(memory(512));
        let large = server.add(memory(4096));
        for flow_control in [false, true] {
            let options = Options { flow_control, ..Options::default() };
            let mut host = Host::attach(&server, &options).await;
            all_sizes(&mut host, small, 512).await;
            all_sizes(&mut host, large, 4096).await;
        }
        server.is_sound().await;
    });
}

#[test]
fn reads_and_writes_with_memory_alignment() {
    on_each_driver(async || {
        let server = Server::of(TargetConfig::default(), BlockingDevice::disk());
        let mut host = Host::attach(&server, &Options::default()).await;
        all_sizes(&mut host, 1, 4096).await;
        // Enough PDUs of one shape to start prediction, then others.
        for round in 0..200u64 {
            let bytes = if round % 50 < 40 { 4096 } else { 8192 };
            let data = pattern(round, bytes);
            host.io.write(1, round, 4096, &data).await.unwrap();
            assert_eq!(host.io.read(1, round, 4096, bytes).await.unwrap(), data);
        }
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn reads_and_writes_of_a_file() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    on_each_real_driver(async || {
        let server = Server::new();
        for block_bytes in [512, 4096] {
            let options = FileOptions {
                create_bytes: Some(16 << 20),
                block_bytes: Some(block_bytes),
                ..FileOptions::default()
            };
            let name = format!("{}-{block_bytes}", flagstone_runtime::io_engine_name());
            let Ok(device) = FileDevice::open(dir.path().join(name), &options) else {
                // The device has larger blocks.
                continue;
            };
            let nsid = server.add(device);
            let mut host = Host::attach(&server, &Options::default()).await;
            all_sizes(&mut host, nsid, block_bytes as usize).await;
            assert_eq!(host.io.call(Sqe::flush(1, nsid)).await.status(), Status::SUCCESS);
        }
        server.is_sound().await;
    });
}

#[test]
fn digests_and_alignments() {
    on_each_driver(async || {
        let server = Server::new();
        let nsid = server.add(memory(512));
        for alignment in [0, 1, 3, 7, 17, 31] {
            for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
                let digests = Digests { header, data };
                let options = Options { digests, alignment, max_r2t: 4, ..Options::default() };
                let mut host = Host::attach(&server, &options).await;
                assert_eq!(host.io.encoder.digests(), digests);
                for bytes in [512, 4096, 64 << 10, 100 << 10] {
                    let written = pattern(bytes as u64, bytes);
                    if bytes <= 64 << 10 {
                        host.io.write(nsid, 1, 512, &written).await.unwrap();
                    } else {
                        host.io.write_r2t(nsid, 1, 512, &written).await.unwrap();
                    }
                    assert_eq!(host.io.read(nsid, 1, 512, bytes).await.unwrap(), written);
                }
                let identify = Identify::new(Cns::CONTROLLER, 0).command(1);
                assert_eq!(host.admin.ask(identify).await.unwrap().len(), 4096);
            }
        }
        server.is_sound().await;
    });
}

#[test]
fn disallowed_digests_are_declined() {
    on_each_driver(async || {
        let config = TargetConfig {
            allow_header_digest: false,
            allow_data_digest: false,
            ..TargetConfig::default()
        };
        let server = Server::with(config);
        let digests = Digests { header: true, data: true };
        let options = Options { digests, ..Options::default() };
        let mut host = Host::attach(&server, &options).await;
        assert_eq!(host.io.encoder.digests(), Digests::default());
        host.io.write(1, 0, 512, &[1; 512]).await.unwrap();
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn completions_report_sq_head() {
    on_each_driver(async || {
        let server = Server::of(TargetConfig::default(), BlockingDevice::disk());
        for entries in [2, 3, 8, 128] {
            let options = Options { flow_control: true, entries, ..Options::default() };
            let mut host = Host::attach(&server, &options).await;
            // Connect took the first entry.
            let mut head = 1 % entries;
            for round in 0..40 {
                let data = pattern(round, 4096);
                let sgl = SglDescriptor::in_capsule(4096);
                let writes = Sqe::write(1, 1, range(round, 4096, 4096), false, sgl);
                let completion = match round % 4 {
                    0 => host.io.call(Sqe::flush(1, 1)).await,
                    1 => host.io.call(Sqe::flush(1, 99)).await,
                    2 => host.io.call_with(writes, &data).await,
                    _ => {
                        host.io.submit(Sqe::read(1, 1, range(round, 4096, 4096), 4096)).await;
                        let Pdu::Data { header, .. } = host.io.pdu().await else { panic!() };
                        // Without a completion the host would not learn the queue head.
                        assert!(header.data_flags().last && !header.data_flags().success);
                        host.io.response().await
                    }
                };
                head = (head + 1) % entries;
                assert_eq!(u32::from(completion.sqhd.get()), head, "{entries} {round}");
            }
        }
        server.is_sound().await;
    });
}

#[test]
fn batched_completions_report_sq_head() {
    on_each_driver(async || {
        let server = Server::new();
        for entries in [4, 8, 128] {
            let options = Options { flow_control: true, entries, ..Options::default() };
            let mut host = Host::attach(&server, &options).await;
            let mut head = 1;
            for round in 0..20 {
                let count = 1 + round % (entries - 1).min(20);
                let mut pdus = Vec::new();
                for number in 0..count {
                    let blocks = range(u64::from(number) * 8, 512, 4096);
                    let sgl = SglDescriptor::in_capsule(4096);
                    pdus.extend(match (round + number) % 2 {
                        0 => host.io.capsule(&Sqe::read(1, 1, blocks, 4096), &[]),
                        _ => host.io.capsule(&Sqe::write(1, 1, blocks, false, sgl), &[3; 4096]),
                    });
                }
                host.io.send(&pdus).await;
                let mut reported = 0;
                for _ in 0..count {
                    let completion = match host.io.pdu().await {
                        Pdu::Data { .. } => host.io.response().await,
                        Pdu::Response(completion) => completion,
                        other => panic!("{other:?}"),
                    };
                    assert_eq!(completion.status(), Status::SUCCESS);
                    reported = completion.sqhd.get();
                }
                head = (head + count) % entries;
                assert_eq!(u32::from(reported), head, "{count} of {entries}");
            }
        }
        server.is_sound().await;
    });
}

#[test]
fn read_success_in_data_pdu() {
    on_each_driver(async || {
        let server = Server::new();
        let mut host = Host::attach(&server, &Options::default()).await;
        host.io.submit(Sqe::read(5, 1, range(0, 512, 4096), 4096)).await;
        let Pdu::Data { header, .. } = host.io.pdu().await else { panic!("no data") };
        assert!(header.data_flags().success);
        // No further response was sent for it.
        let completion = host.io.call(Sqe::flush(6, 1)).await;
        assert_eq!(completion.sqhd.get(), 0);
        drop(host);
        server.is_sound().await;
    });
}

// Commands.

#[test]
fn fua_and_flush_reach_device() {
    on_each_driver(async || {
        let server = Server::of(TargetConfig::default(), BlockingDevice::disk());
        let second = BlockingDevice::disk();
        server.add(second.clone());
        let mut host = Host::attach(&server, &Options::default()).await;
        let flushes = || (server.gate.flushes(), second.flushes());
        let mut write =
            Sqe::write(1, 1, range(0, 4096, 4096), true, SglDescriptor::in_capsule(4096));
        assert_eq!(host.io.call_with(write, &[1; 4096]).await.status(), Status::SUCCESS);
        assert_eq!(server.gate.durable(), 1);
        assert_eq!(host.io.call(Sqe::flush(1, 1)).await.status(), Status::SUCCESS);
        assert_eq!(flushes(), (1, 0));
        assert_eq!(host.io.call(Sqe::flush(1, NAMESPACE_ID_ALL)).await.status(), Status::SUCCESS);
        assert_eq!(flushes(), (2, 1));
        // With the volatile cache turned off every write is durable.
        let off = Sqe::set_features(1, FeatureId::VOLATILE_WRITE_CACHE, 0);
        assert_eq!(host.admin.call(off).await.status(), Status::SUCCESS);
        write = Sqe::write(1, 1, range(0, 4096, 4096), false, SglDescriptor::in_capsule(4096));
        assert_eq!(host.io.call_with(write, &[1; 4096]).await.status(), Status::SUCCESS);
        assert_eq!(server.gate.durable(), 2);
        // A shutdown flushes.
        let before = flushes();
        let stop = enabled().with_shutdown(shutdown::NORMAL);
        assert_eq!(host.admin.configure(stop).await, Status::SUCCESS);
        loop {
            let status = host.admin.status().await.shutdown_status();
            if status == shutdown_status::COMPLETE {
                break;
            }
            assert_eq!(status, shutdown_status::OCCURRING);
        }
        assert_eq!(flushes(), (before.0 + 1, before.1 + 1));
        drop((host, second));
        server.is_sound().await;
    });
}

#[test]
fn deallocate_write_zeroes_compare_and_verify() {
    on_each_driver(async || {
        let server = Server::new();
        let nsid = server.add(memory(512));
        let mut host = Host::attach(&server, &Options::default()).await;
        let io = &mut host.io;
        let data = pattern(1, 64 << 10);
        io.write(nsid, 0, 512, &data).await.unwrap();
        // Zeroes, with and without deallocation.
        for (deallocate, start) in [(false, 8), (true, 16)] {
            let options = IoOptions { fua: true, deallocate };
            let zeroes = Sqe::write_zeroes(1, nsid, BlockRange::new(start, 8).unwrap(), options);
            assert_eq!(io.call(zeroes).await.status(), Status::SUCCESS);
            assert_eq!(io.read(nsid, start, 512, 4096).await.unwrap(), [0; 4096]);
        }
        assert_eq!(io.read(nsid, 24, 512, 4096).await.unwrap(), data[12_288..16_384]);
        // Compare.
        let compare = |start, bytes: usize| {
            let sgl = SglDescriptor::in_capsule(bytes as u32);
            Sqe::compare(1, nsid, range(start, 512, bytes), sgl)
        };
        assert_eq!(done(io.call_with(compare(0, 4096), &data[..4096]).await), Ok(()));
        let unequal = io.call_with(compare(0, 4096), &data[1..4097]).await.status();
        assert_eq!(unequal, Status::COMPARE_FAILURE.dnr());
        let transferred = Sqe { data: SglDescriptor::transport(4096), ..compare(24, 4096) };
        io.submit(transferred).await;
        assert_eq!(io.transfer(1, &data[12_288..16_384]).await, Ok(()));
        // Verify.
        let verify = |start, blocks| Sqe::verify(1, nsid, BlockRange::new(start, blocks).unwrap());
        assert_eq!(done(io.call(verify(0, 32_768)).await), Ok(()));
        assert_eq!(io.call(verify(1, 32_768)).await.status(), Status::LBA_OUT_OF_RANGE.dnr());
        // Deallocate, with the ranges in the capsule and transferred.
        let ranges = [DsmRange::new(32, 8), DsmRange::new(0, 0), DsmRange::new(48, 1)];
        let list: Vec<u8> = ranges.iter().flat_map(|range| range.bytes().to_vec()).collect();
        let sgl = SglDescriptor::in_capsule(48);
        let command = Sqe::deallocate(1, nsid, 3, sgl).unwrap();
        assert_eq!(done(io.call_with(command, &list).await), Ok(()));
        let command = Sqe { data: SglDescriptor::transport(48), ..command };
        io.submit(command).await;
        assert_eq!(io.transfer(1, &list).await, Ok(()));
        assert_eq!(io.read(nsid, 40, 512, 512).await.unwrap(), data[20_480..20_992]);
        // A range beyond the end, and a list that is too short.
        let beyond = [DsmRange::new(0, 8), DsmRange::new(32_767, 2)];
        let list: Vec<u8> = beyond.iter().flat_map(|range| range.bytes().to_vec()).collect();
        let sgl = SglDescriptor::in_capsule(32);
        let command = Sqe::deallocate(1, nsid, 2, sgl).unwrap();
        let status = io.call_with(command, &list).await.status();
        assert_eq!(status, Status::LBA_OUT_OF_RANGE.dnr());
        let short = Sqe::deallocate(1, nsid, 3, sgl).unwrap();
        let status = io.call_with(short, &list).await.status();
        assert_eq!(status, Status::DATA_SGL_LENGTH_INVALID.dnr());
        // A failed command changes nothing.
        assert_eq!(io.read(nsid, 0, 512, 4096).await.unwrap(), data[..4096]);
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn invalid_commands_are_refused() {
    on_each_driver(async || {
        let server = Server::new();
        let nsid = server.add(memory(512));
        let read_only = server.try_add(None, memory(512), true);
        let mut host = Host::attach(&server, &Options::default()).await;
        let io = &mut host.io;
        let blocks = (16 << 20) / 512;
        for start in [blocks, blocks - 7, 1 << 40, u64::MAX - 8] {
            let beyond = Err(Status::LBA_OUT_OF_RANGE.dnr());
            assert_eq!(io.read(nsid, start, 512, 4096).await.err(), beyond.err());
            assert_eq!(io.write(nsid, start, 512, &[0; 4096]).await, beyond);
        }
        // Writes to a read-only namespace; reads succeed.
        let refused = Status::WRITE_PROTECTED.dnr();
        assert_eq!(io.write(read_only, 0, 512, &[0; 512]).await, Err(refused));
        assert_eq!(io.write_r2t(read_only, 0, 512, &[0; 4096]).await, Err(refused));
        let zeroes = Sqe::write_zeroes(1, read_only, range(0, 512, 512), IoOptions::default());
        assert_eq!(io.call(zeroes).await.status(), refused);
        let list = DsmRange::new(0, 8);
        let sgl = SglDescriptor::in_capsule(16);
        let command = Sqe::deallocate(1, read_only, 1, sgl).unwrap();
        assert_eq!(io.call_with(command, list.bytes()).await.status(), refused);
        assert_eq!(io.read(read_only, 0, 512, 512).await.unwrap(), [0; 512]);
        // Inactive namespaces.
        for nobody in [0, 4, 1000, NAMESPACE_ID_ALL] {
            let read = io.read(nobody, 0, 512, 512).await;
            assert_eq!(read.err(), Some(Status::INVALID_NAMESPACE.dnr()));
        }
        // More than MDTS, in either direction.
        let sgl = SglDescriptor::transport(MDTS as u32 + 512);
        let large = Sqe::write(1, nsid, range(0, 512, MDTS + 512), false, sgl);
        assert_eq!(io.call(large).await.status().code(), Status::INVALID_FIELD);
        let read = io.read(nsid, 0, 512, MDTS + 512).await;
        assert_eq!(read.err().map(Status::code), Some(Status::INVALID_FIELD));
        // An SGL shorter or longer than the blocks.
        for bytes in [0, 511, 1024] {
            let read = io.ask(Sqe::read(1, nsid, range(0, 512, 512), bytes)).await;
            assert_eq!(read.err(), Some(Status::DATA_SGL_LENGTH_INVALID.dnr()));
        }
        // Opcodes outside this command set, including reservations.
        for opcode in [0x04, 0x0e, 0x15, 0x18, 0x7c, 0x80, 0xc0, 0xff] {
            let mut command = Sqe::flush(1, nsid);
            command.opcode = opcode;
            assert_eq!(
                io.call(command).await.status(),
                Status::INVALID_OPCODE.dnr(),
                "{opcode:#x}"
            );
        }
        for opcode in [IoOpcode::RESERVATION_REGISTER, IoOpcode::RESERVATION_ACQUIRE] {
            let sgl = SglDescriptor::in_capsule(16);
            let command = Sqe::new(opcode.0, 1, nsid, sgl);
            let status = io.call_with(command, &[0; 16]).await.status();
            assert_eq!(status, Status::INVALID_OPCODE.dnr());
        }
        // Regression: the range was checked first, or the data requested.
        let far = BlockRange::new(u64::MAX - 9, 8).unwrap();
        for (opcode, bytes) in [(0x04, 0), (0x0e, 0), (0x11, 4096), (0x15, 4096)] {
            let (opcode, sgl) = (IoOpcode(opcode), SglDescriptor::transport(bytes));
            let command = Sqe::block_io(opcode, 1, nsid, far, IoOptions::default(), sgl);
            let status = io.call(command).await.status();
            assert_eq!(status, Status::INVALID_OPCODE.dnr(), "{opcode}");
        }
        // With PRPs.
        for flags in [0x00, 0x80] {
            let mut command = Sqe::flush(1, nsid);
            command.flags = flags;
            assert_eq!(io.call(command).await.status().code(), Status::INVALID_FIELD);
        }
        io.write(nsid, 0, 512, &[1; 512]).await.unwrap();
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn several_namespaces_of_different_devices() {
    on_each_driver(async || {
        let server = Server::new();
        let null = server.add(Arc::new(NullDevice::new(1 << 40, 4096).unwrap()));
        let nsids = [server.add(memory(512)), server.add(memory(4096))];
        let mut host = Host::attach(&server, &Options::default()).await;
        for (nsid, block) in nsids.into_iter().zip([512, 4096]) {
            host.io.write(nsid, 5, block, &pattern(nsid.into(), 8192)).await.unwrap();
            host.io.write(null, 5, 4096, &pattern(9, 8192)).await.unwrap();
        }
        for (nsid, block) in nsids.into_iter().zip([512, 4096]) {
            let read = host.io.read(nsid, 5, block, 8192).await.unwrap();
            assert_eq!(read, pattern(nsid.into(), 8192));
        }
        assert_eq!(host.io.read(null, 5, 4096, 8192).await.unwrap(), [0; 8192]);
        drop(host);
        server.is_sound().await;
    });
}
