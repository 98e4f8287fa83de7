//! Broken or malicious targets: the host detects and reports the violation, and continues over a
//! new connection. It neither panics nor hangs, and no wrong data reaches a caller.

mod common;
#[path = "../../nvmf-target/tests/support/harness.rs"]
mod support;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use common::fake::{DISK_BYTES, Fake, Io, Quirks};
use common::{any_port, options, subnqn};
use flagstone_blockdev::{BlockDevice, IoError, ZeroFlags};
use flagstone_nvme::identify::LbaFormat;
use flagstone_nvme::pdu::{DataFlags, Digests, Fatal, FatalStatus, Receiver, encode_term_req};
use flagstone_nvme::wire::{U16, U32, U64};
use flagstone_nvme::{IoOpcode, Status};
use flagstone_nvmf_host::{HostError, HostOptions, RemoteDevice};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::{Buf, buf, spawn, time};
use support::{Dice, eventually, on_each_driver};

const LAST: DataFlags = DataFlags { last: true, success: false };
const PART: DataFlags = DataFlags { last: false, success: false };

async fn connect(fake: &Fake, options: HostOptions) -> Result<Arc<RemoteDevice>, HostError> {
    RemoteDevice::connect(fake.address.clone(), &subnqn(), options).await
}

/// Reads from a fake that answers its first I/O command with `answer`. Checks that correct data
/// arrives over a second connection, and that the host sent `fatal`.
fn read_after(fatal: Option<Fatal>, answer: impl Fn(&Io) -> Vec<u8> + Clone + Sync + 'static) {
    for len in [512, 4096, 65_536] {
        on_each_driver(async || {
            let answer = answer.clone();
            let fake = Fake::with_io(move |io| (io.number == 0).then(|| answer(io)));
            let device = connect(&fake, options()).await.unwrap();
            let mut place = buf::alloc(len).await;
            place.fill(0xee);
            let place = device.read(8192, place).await.unwrap();
            assert_eq!(place[..], fake.content(8192, len));
            check_termination(&fake, fatal);
        });
    }
}

/// Like [`read_after`] for a write.
fn write_after(
    len: usize,
    fatal: Option<Fatal>,
    answer: impl Fn(&Io) -> Vec<u8> + Clone + Sync + 'static,
) {
    on_each_driver(async || {
        let answer = answer.clone();
        let fake = Fake::with_io(move |io| (io.number == 0).then(|| answer(io)));
        let device = connect(&fake, options()).await.unwrap();
        device.write(8192, Buf::copy_of(&vec![0x5a; len]).unwrap(), false).await.unwrap();
        assert!(fake.content(8192, len).iter().all(|byte| *byte == 0x5a));
        check_termination(&fake, fatal);
    });
}

fn check_termination(fake: &Fake, fatal: Option<Fatal>) {
    let reported: Vec<Fatal> =
        fake.state.reported.borrow().iter().map(|header| header.fatal()).collect();
    assert_eq!(reported, Vec::from_iter(fatal));
    assert_eq!(fake.state.connections.get(), 4, "an admin and an I/O queue, twice");
    assert_eq!(fake.state.commands.get(), 2, "the command was sent twice");
}

#[test]
fn data_for_unknown_command() {
    read_after(Some(Fatal::UNKNOWN_COMMAND), |io| io.data(io.cid() + 1, 0, &[1; 512], LAST));
    read_after(Some(Fatal::UNKNOWN_COMMAND), |io| io.data(u16::MAX, 0, &[1; 512], LAST));
}

#[test]
fn c2h_data_for_write() {
    let send = |io: &Io| io.data(io.cid(), 0, &[1; 512], LAST);
    write_after(512, Some(Fatal::UNKNOWN_COMMAND), send);
    write_after(65_536, Some(Fatal::UNKNOWN_COMMAND), send);
}

#[test]
fn data_beyond_requested_range() {
    read_after(Some(Fatal::OUT_OF_RANGE), |io| io.data(io.cid(), 65_536, &[1; 4], LAST));
    read_after(Some(Fatal::OUT_OF_RANGE), |io| io.data(io.cid(), 0, &vec![1; 65_540], LAST));
    read_after(Some(Fatal::OUT_OF_RANGE), |io| io.data(io.cid(), u32::MAX - 8, &[1; 4], LAST));
}

#[test]
fn data_twice_or_out_of_order() {
    read_after(Some(Fatal::SEQUENCE), |io| {
        let piece = io.data(io.cid(), 0, &[1; 256], PART);
        [piece.clone(), piece].concat()
    });
    read_after(Some(Fatal::SEQUENCE), |io| io.data(io.cid(), 256, &[1; 256], PART));
}

#[test]
fn success_without_all_data() {
    read_after(Some(Fatal::SEQUENCE), |io| io.response(io.cid(), Status::SUCCESS));
    read_after(Some(Fatal::SEQUENCE), |io| {
        let part = io.data(io.cid(), 0, &[1; 256], PART);
        [part, io.response(io.cid(), Status::SUCCESS)].concat()
    });
    // The data of this write was never requested.
    write_after(65_536, Some(Fatal::SEQUENCE), |io| io.response(io.cid(), Status::SUCCESS));
    write_after(65_536, Some(Fatal::SEQUENCE), |io| {
        let r2t = io.r2t(io.cid(), 0, 0, 4096);
        [r2t, io.response(io.cid(), Status::SUCCESS)].concat()
    });
}

#[test]
fn response_for_unknown_command() {
    for cid in [1, 126, 127, u16::MAX] {
        read_after(Some(Fatal::UNKNOWN_COMPLETION), move |io| io.response(cid, Status::SUCCESS));
    }
}

#[test]
fn duplicate_response() {
    on_each_driver(async || {
        let fake = Fake::with_io(|io| {
            (io.number == 0).then(|| {
                let response = io.response(io.cid(), Status::SUCCESS);
                [response.clone(), response].concat()
            })
        });
        let device = connect(&fake, options()).await.unwrap();
        // The first flush is completed twice; the second waits for the new connection.
        device.flush().await.unwrap();
        device.flush().await.unwrap();
        let reported = fake.state.reported.borrow()[0].fatal();
        assert_eq!(reported, Fatal::UNKNOWN_COMPLETION);
    });
}

#[test]
fn r2t_beyond_data() {
    write_after(65_536, Some(Fatal::OUT_OF_RANGE), |io| io.r2t(io.cid(), 0, 0, 65_537));
    write_after(65_536, Some(Fatal::OUT_OF_RANGE), |io| io.r2t(io.cid(), 0, u32::MAX, 2));
    write_after(65_536, Some(Fatal::field(16)), |io| io.r2t(io.cid(), 0, 0, 0));
    write_after(65_536, Some(Fatal::UNKNOWN_COMMAND), |io| io.r2t(io.cid() + 1, 0, 0, 4096));
    read_after(Some(Fatal::UNKNOWN_COMMAND), |io| io.r2t(io.cid(), 0, 0, 512));
    // In-capsule data must not be requested again.
    write_after(512, Some(Fatal::OUT_OF_RANGE), |io| io.r2t(io.cid(), 0, 0, 512));
}

#[test]
fn duplicate_r2t() {
    write_after(65_536, Some(Fatal::OUT_OF_RANGE), |io| {
        [io.r2t(io.cid(), 0, 0, 8192), io.r2t(io.cid(), 1, 4096, 8192)].concat()
    });
    write_after(65_536, Some(Fatal::OUT_OF_RANGE), |io| {
        [io.r2t(io.cid(), 0, 0, 65_536), io.r2t(io.cid(), 1, 0, 65_536)].concat()
    });
}

#[test]
fn data_for_command_without_data() {
    on_each_driver(async || {
        let fake = Fake::with_io(|io| {
            let flush = io.command.opcode == IoOpcode::FLUSH.0;
            (flush && io.number == 0).then(|| io.data(io.cid(), 0, &[1; 512], LAST))
        });
        let device = connect(&fake, options()).await.unwrap();
        device.flush().await.unwrap();
        check_termination(&fake, Some(Fatal::UNKNOWN_COMMAND));
    });
}

#[test]
fn invalid_headers() {
    let broken = |change: fn(&mut Vec<u8>)| {
        move |io: &Io| {
            let mut bytes = io.response(io.cid(), Status::SUCCESS);
            change(&mut bytes);
            bytes
        }
    };
    let field = |at| Some(Fatal::field(at));
    read_after(field(0), broken(|bytes| bytes[0] = 0x0a));
    read_after(field(0), broken(|bytes| bytes[0] = 0x04));
    read_after(field(1), broken(|bytes| bytes[1] = 1));
    read_after(field(2), broken(|bytes| bytes[2] = 255));
    read_after(field(4), broken(|bytes| bytes[4..8].fill(0xff)));
    read_after(field(4), broken(|bytes| bytes[4..8].fill(0)));
    let sequence = Some(Fatal::SEQUENCE);
    read_after(sequence, |_| {
        let mut bytes = vec![0; 128];
        bytes[..8].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0]);
        bytes
    });
}

#[test]
fn target_sends_term_req() {
    let term_req = |io: &Io| {
        let mut out = vec![0; 152];
        let offending = [io.cid() as u8; 72];
        let len = encode_term_req(&mut out, Receiver::Controller, Fatal::SEQUENCE, &offending);
        out.truncate(len.unwrap());
        out
    };
    read_after(None, term_req);
    // An invalid length must not be answered.
    read_after(None, move |io| {
        let mut bytes = term_req(io);
        bytes[4..8].copy_from_slice(&1000_u32.to_le_bytes());
        bytes
    });
}

#[test]
fn corrupted_headers_and_data() {
    let digests = Digests { header: true, data: true };
    for (index, status) in [(9, Some(FatalStatus::HEADER_DIGEST_ERROR)), (100, None), (0, None)] {
        for len in [512_usize, 65_536] {
            on_each_driver(async || {
                let fake = Fake::with_io(move |io| {
                    (io.number == 0).then(|| {
                        let mut bytes = io.data(io.cid(), 0, &vec![1; len], LAST);
                        // Index 0 means the data digest itself.
                        let index = if index == 0 { bytes.len() - 1 } else { index };
                        bytes[index] ^= 0x10;
                        bytes
                    })
                });
                let options = HostOptions { digests, ..options() };
                let device = connect(&fake, options).await.unwrap();
                let place = device.read(0, buf::alloc(len).await).await.unwrap();
                assert_eq!(place[..], fake.content(0, len));
                let reported =
                    fake.state.reported.borrow().first().map(|header| header.fatal().status);
                assert_eq!(reported, status);
                assert_eq!(fake.state.connections.get(), 4);
            });
        }
    }
}

#[test]
fn command_status_reaches_caller() {
    for (status, error) in [
        (Status::LBA_OUT_OF_RANGE.dnr(), IoError::OutOfRange),
        (Status::CAPACITY_EXCEEDED, IoError::NoSpace),
        (Status::WRITE_PROTECTED.dnr(), IoError::ReadOnly),
        (Status::WRITE_FAULT, IoError::WriteFault),
        (Status::INVALID_OPCODE.dnr(), IoError::Unsupported),
        (Status::INTERNAL_ERROR.dnr(), IoError::Poisoned),
        (Status::INTERNAL_ERROR, IoError::WriteFault),
        (Status::INTERNAL_PATH_ERROR.dnr(), IoError::Unreachable),
    ] {
        on_each_driver(async || {
            let fake = Fake::with_io(move |io| Some(io.response(io.cid(), status)));
            let device = connect(&fake, options()).await.unwrap();
            let answer = device.write(0, buf::zeroes(512), false).await;
            assert_eq!(answer, Err(error), "{status}");
            // As in Linux: five retries, unless Do Not Retry is set.
            let sent = if status.is_dnr() { 1 } else { 6 };
            assert_eq!(fake.state.commands.get(), sent, "{status}");
            assert_eq!(fake.state.connections.get(), 2);
        });
    }
}

#[test]
fn command_retry_requested_by_target() {
    on_each_driver(async || {
        let fake = Fake::with_io(|io| {
            (io.number < 3).then(|| io.response(io.cid(), Status::COMMAND_INTERRUPTED))
        });
        let device = connect(&fake, options()).await.unwrap();
        device.write(0, buf::zeroes(512), false).await.unwrap();
        assert_eq!(fake.state.commands.get(), 4);
        assert_eq!(fake.state.connections.get(), 2, "over the same connection");
    });
}

/// A failed command is retried, unless Do Not Retry is set.
#[test]
fn failed_command_is_retried() {
    for status in [Status::INTERNAL_ERROR, Status::WRITE_FAULT, Status::CAPACITY_EXCEEDED] {
        on_each_driver(async || {
            let fake =
                Fake::with_io(move |io| (io.number < 5).then(|| io.response(io.cid(), status)));
            let device = connect(&fake, options()).await.unwrap();
            device.write(0, buf::zeroes(512), false).await.unwrap();
            assert_eq!(fake.state.commands.get(), 6);
            assert_eq!(fake.state.connections.get(), 2, "over the same connection");
        });
    }
}

/// A disk that failed a flush may have dropped the data; a later successful flush would hide that.
#[test]
fn failed_flush_is_not_retried() {
    on_each_driver(async || {
        let fake = Fake::with_io(|io| {
            (io.number == 0).then(|| io.response(io.cid(), Status::INTERNAL_ERROR))
        });
        let device = connect(&fake, options()).await.unwrap();
        assert_eq!(device.flush().await, Err(IoError::WriteFault));
        assert_eq!(fake.state.commands.get(), 1);
    });
}

#[test]
fn invalid_icresp() {
    fn refused(
        expected: Fatal,
        change: impl Fn(&mut flagstone_nvme::pdu::InitializeResponse) + Copy + Sync + 'static,
    ) {
        on_each_driver(async || {
            let quirks = Quirks { initialize: Some(Box::new(change)), ..Quirks::default() };
            let fake = Fake::start(quirks);
            let error = connect(&fake, options()).await.err();
            assert!(
                matches!(&error, Some(HostError::Protocol(fatal)) if *fatal == expected),
                "{error:?}"
            );
            while fake.state.reported.borrow().is_empty() {
                time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(fake.state.reported.borrow()[0].fatal(), expected);
        });
    }
    refused(Fatal::SEQUENCE, |response| response.common.kind = 0x09);
    refused(Fatal::field(0), |response| response.common.kind = 0x0a);
    refused(Fatal::field(2), |response| response.common.header_bytes = 24);
    refused(Fatal::field(4), |response| response.common.pdu_bytes = U32::new(u32::MAX));
    refused(Fatal::field(8), |response| response.format_version = U16::new(1));
    refused(Fatal::field(10), |response| response.controller_alignment = 32);
    refused(Fatal::field(11), |response| response.digests = 3);
    refused(Fatal::field(12), |response| response.max_h2c_data_bytes = U32::new(4095));
}

#[test]
fn invalid_controllers_and_namespaces() {
    async fn nonsense(quirks: Quirks) {
        let fake = Fake::start(quirks);
        let error = connect(&fake, options()).await.err();
        assert!(
            matches!(error, Some(HostError::InvalidProperties(_) | HostError::NoNamespace)),
            "{error:?}"
        );
    }
    on_each_driver(async || {
        for exponent in [0, 8, 17, 63, 255] {
            let change = move |namespace: &mut flagstone_nvme::identify::IdentifyNamespace| {
                namespace.formats[0] = LbaFormat::new(exponent);
            };
            nonsense(Quirks { namespace: Some(Box::new(change)), ..Quirks::default() }).await;
        }
        for blocks in [0, u64::MAX, 1 << 55] {
            let change = move |namespace: &mut flagstone_nvme::identify::IdentifyNamespace| {
                namespace.size_blocks = U64::new(blocks);
            };
            nonsense(Quirks { namespace: Some(Box::new(change)), ..Quirks::default() }).await;
        }
        for nsid in [0, u32::MAX] {
            let change = move |list: &mut flagstone_nvme::identify::NamespaceList| {
                list.ids[0] = U32::new(nsid);
            };
            nonsense(Quirks { namespaces: Some(Box::new(change)), ..Quirks::default() }).await;
        }
        let change = |capabilities: &mut flagstone_nvme::property::Capabilities| {
            *capabilities = capabilities.with_max_queue_entries_0based(0);
        };
        nonsense(Quirks { capabilities: Some(Box::new(change)), ..Quirks::default() }).await;
    });
}

#[test]
fn zero_and_huge_limits_are_accepted() {
    for exponent in [0, 31, 255] {
        on_each_driver(async || {
            let change = move |controller: &mut flagstone_nvme::identify::IdentifyController| {
                controller.max_transfer_exponent = exponent;
                controller.capsule_cmd_16b = U32::new(u32::MAX);
                controller.max_commands = U16::new(0);
            };
            let quirks = Quirks { controller: Some(Box::new(change)), ..Quirks::default() };
            let fake = Fake::start(quirks);
            let device = connect(&fake, options()).await.unwrap();
            let whole = device.read(0, buf::alloc(DISK_BYTES).await).await.unwrap();
            assert_eq!(whole[..], fake.content(0, DISK_BYTES));
            assert_eq!(fake.state.commands.get(), 1);
            device.write(0, Buf::copy_of(&vec![3; DISK_BYTES]).unwrap(), false).await.unwrap();
            assert!(fake.content(0, DISK_BYTES).iter().all(|byte| *byte == 3));
        });
    }
}

/// A target without Write Zeroes receives buffers of zeroes.
#[test]
fn zeroes_without_write_zeroes() {
    on_each_driver(async || {
        let change = |controller: &mut flagstone_nvme::identify::IdentifyController| {
            controller.optional_io = U16::ZERO;
        };
        let fake = Fake::start(Quirks { controller: Some(Box::new(change)), ..Quirks::default() });
        let device = connect(&fake, options()).await.unwrap();
        assert!(!device.geometry().can_write_zeroes && !device.geometry().can_discard);
        let fast = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
        assert_eq!(device.write_zeroes(0, 512, fast).await, Err(IoError::Unsupported));
        assert_eq!(fake.state.commands.get(), 0);
        let len = DISK_BYTES as u64 - 1024;
        device.write_zeroes(512, len, ZeroFlags::default()).await.unwrap();
        assert!(fake.content(512, len as usize).iter().all(|byte| *byte == 0));
        assert_ne!(fake.content(0, 512), [0; 512]);
        device.discard(0, 512).await.unwrap();
        assert_ne!(fake.content(0, 512), [0; 512]);
    });
}

/// Connections cut at every stage of setup: each attempt fails with an error, and nothing leaks.
#[test]
fn handshake_cut_at_every_byte() {
    on_each_driver(async || {
        let fake = Fake::start(Quirks::default());
        drop(connect(&fake, options()).await.unwrap());
        let mut places = Vec::new();
        let mut at = 0;
        for len in fake.state.sent.borrow().iter() {
            let inside = [0, 1, 7, 8, 9, 23, 24, 25, 127, len / 2, len - 1];
            places.extend(inside.iter().filter(|inside| *inside < len).map(|inside| at + inside));
            at += len;
        }
        places.dedup();
        assert!(places.len() > 60);
        for place in places {
            fake.state.cut_after.set(place);
            let error = connect(&fake, options()).await.err();
            let cut = |error: &HostError| matches!(error, HostError::Closed | HostError::Broken(_));
            assert!(error.as_ref().is_some_and(cut), "cut after {place} bytes: {error:?}");
        }
        fake.state.cut_after.set(usize::MAX);
        connect(&fake, options()).await.unwrap();
    });
}

#[test]
fn silent_target_during_connect() {
    on_each_driver(async || {
        let fake = Fake::start(Quirks::default());
        drop(connect(&fake, options()).await.unwrap());
        let answers = fake.state.sent.borrow().len();
        for answer in 0..answers {
            fake.state.silent_after.set(answer);
            let options = HostOptions { connect_timeout: Duration::from_millis(20), ..options() };
            let error = connect(&fake, options).await.err();
            assert!(matches!(error, Some(HostError::TimedOut)), "after {answer}: {error:?}");
        }
    });
}

#[test]
fn silent_port_times_out() {
    on_each_driver(async || {
        let listener = Listener::bind(&any_port()).unwrap();
        let address: Address = listener.address().clone();
        let mute = spawn(async move {
            let stream = listener.accept().await.unwrap();
            std::future::pending::<()>().await;
            drop(stream);
        })
        .abort_on_drop();
        let options = HostOptions { connect_timeout: Duration::from_millis(20), ..options() };
        let error = RemoteDevice::connect(address, &subnqn(), options).await.err();
        assert!(matches!(error, Some(HostError::TimedOut)), "{error:?}");
        drop(mute);
    });
}

#[test]
fn overdue_command_breaks_association() {
    on_each_driver(async || {
        let fake = Fake::with_io(|io| (io.number < 2).then(Vec::new));
        let options = HostOptions { command_timeout: Duration::from_millis(40), ..options() };
        let device = connect(&fake, options).await.unwrap();
        let place = device.read(0, buf::alloc(512).await).await.unwrap();
        assert_eq!(place[..], fake.content(0, 512));
        assert_eq!(fake.state.commands.get(), 3);
        assert_eq!(fake.state.connections.get(), 6);
    });
}

/// A target that has not yet read commands of an old connection would execute them after the
/// commands of the next. So the host must not reconnect before the target has ended the old
/// connection.
#[test]
fn reconnect_waits_for_target_to_close() {
    on_each_driver(async || {
        let fake = Fake::with_io(|io| (io.number < 1).then(Vec::new));
        fake.state.lingers.set(true);
        let options =
            HostOptions { command_timeout: Duration::from_millis(40), queues: 2, ..options() };
        let device = connect(&fake, options).await.unwrap();
        let reading = device.clone();
        let reading = spawn(async move { reading.read(0, buf::alloc(512).await).await });
        eventually("the host ends its connections", || fake.state.half_closed.get() == 3).await;
        time::sleep(Duration::from_millis(50)).await;
        assert_eq!((fake.state.connections.get(), fake.state.commands.get()), (3, 1));
        fake.state.lingers.set(false);
        assert!(reading.await.unwrap().is_ok());
        assert_eq!((fake.state.connections.get(), fake.state.commands.get()), (6, 2));
    });
}

#[test]
fn target_that_never_closes_is_given_up() {
    on_each_driver(async || {
        let fake = Fake::with_io(|io| (io.number < 1).then(Vec::new));
        fake.state.lingers.set(true);
        let options = HostOptions {
            command_timeout: Duration::from_millis(40),
            keep_alive: Duration::from_millis(100),
            ..options()
        };
        let device = connect(&fake, options).await.unwrap();
        device.read(0, buf::alloc(512).await).await.unwrap();
        assert_eq!((fake.state.half_closed.get(), fake.state.connections.get()), (2, 4));
        drop(device);
        fake.state.lingers.set(false);
    });
}

#[test]
fn command_breaking_every_connection_fails() {
    on_each_driver(async || {
        let fake = Fake::with_io(|io| Some(io.response(io.cid() + 1, Status::SUCCESS)));
        let options = HostOptions { loss_timeout: Duration::from_millis(100), ..options() };
        let device = connect(&fake, options).await.unwrap();
        let answer = device.read(0, buf::alloc(512).await).await;
        assert_eq!(answer.err(), Some(IoError::Unreachable));
        assert!(fake.state.commands.get() > 1);
    });
}

#[test]
fn missing_keep_alive_breaks_association() {
    on_each_driver(async || {
        let fake = Fake::start(Quirks::default());
        let options = HostOptions {
            keep_alive: Duration::from_millis(40),
            connect_timeout: Duration::from_millis(100),
            ..options()
        };
        let device = connect(&fake, options).await.unwrap();
        fake.state.silent_after.set(0);
        while fake.state.connections.get() < 3 {
            time::sleep(Duration::from_millis(1)).await;
        }
        fake.state.silent_after.set(usize::MAX);
        device.read(0, buf::alloc(512).await).await.unwrap();
    });
}

/// The namespace differs after a reconnect: calls fail instead of reaching the wrong disk.
#[test]
fn changed_namespace_is_not_written() {
    on_each_driver(async || {
        let sizes = std::rc::Rc::new(Cell::new((DISK_BYTES / 512) as u64));
        let reported = sizes.clone();
        let change = move |namespace: &mut flagstone_nvme::identify::IdentifyNamespace| {
            namespace.size_blocks = U64::new(reported.get());
        };
        let broken = |io: &Io| (io.number == 0).then(|| io.response(99, Status::SUCCESS));
        let quirks = Quirks {
            namespace: Some(Box::new(change)),
            io: Some(Box::new(broken)),
            ..Quirks::default()
        };
        let fake = Fake::start(quirks);
        let device = connect(&fake, options()).await.unwrap();
        sizes.set(16);
        let answer = device.write(0, buf::zeroes(512), false).await;
        assert_eq!(answer, Err(IoError::Unreachable));
        assert_eq!(fake.state.commands.get(), 1, "it was not sent to the other disk");
        // Another namespace of the same size, as its UUID alone tells.
        sizes.set((DISK_BYTES / 512) as u64);
        fake.state.uuid.set(2);
        time::sleep(Duration::from_millis(30)).await;
        let answer = device.write(0, buf::zeroes(512), false).await;
        assert_eq!(answer, Err(IoError::Unreachable));
        assert_eq!(fake.state.commands.get(), 1, "it was not sent to the other disk");
        // The original namespace returns, even larger.
        fake.state.uuid.set(1);
        sizes.set(1 << 20);
        while device.write(0, buf::zeroes(512), false).await.is_err() {
            time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Connections cut after any number of bytes, while many reads and writes of all sizes are in
/// flight: each completes with the right data.
#[test]
fn connections_cut_under_load() {
    const TASKS: usize = 16;
    const SHARE: usize = DISK_BYTES / TASKS;
    on_each_driver(async || {
        let fake = Fake::start(Quirks::default());
        let device = connect(&fake, options()).await.unwrap();
        let handshake: usize = fake.state.sent.borrow().iter().sum();
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let device = device.clone();
                spawn(async move {
                    let mut dice = Dice::new(task as u64);
                    for round in 0..12_u8 {
                        let len = 512 * (1 + dice.below(SHARE / 512));
                        let offset =
                            (task * SHARE + dice.below((SHARE - len) / 512 + 1) * 512) as u64;
                        let fill = round ^ (task as u8) << 4;
                        let data = Buf::copy_of(&vec![fill; len]).unwrap();
                        device.write(offset, data, true).await.unwrap();
                        let mut place = buf::alloc(len).await;
                        place.fill(!fill);
                        let back = device.read(offset, place).await.unwrap();
                        assert!(back.iter().all(|byte| *byte == fill));
                    }
                })
            })
            .collect();
        let mut dice = Dice::new(99);
        let mut cuts = 0;
        while !tasks.iter().all(|task| task.is_finished()) {
            if fake.state.cut_after.get() == 0 || cuts == 0 {
                fake.state.cut_after.set(handshake + 1 + dice.below(200_000));
                cuts += 1;
            }
            time::sleep(Duration::from_micros(100)).await;
        }
        fake.state.cut_after.set(usize::MAX);
        for task in tasks {
            task.await.unwrap();
        }
        assert!(cuts > 10, "{cuts} cuts");
    });
}

/// Without an instance from the target, a lost connection may have been a crash.
#[test]
fn foreign_target_with_unflushed_writes_poisons() {
    for flushes in [false, true] {
        on_each_driver(async || {
            let fake = Fake::start(Quirks::default());
            let device = connect(&fake, options()).await.unwrap();
            device.write(0, buf::zeroes(512), false).await.unwrap();
            device.write(512, buf::zeroes(512), true).await.unwrap();
            if flushes {
                device.flush().await.unwrap();
            }
            fake.state.cut_after.set(0);
            let before = fake.state.commands.get();
            let read = spawn({
                let device = device.clone();
                async move { device.read(0, buf::alloc(512).await).await.map(drop) }
            });
            eventually("the read arrives", || fake.state.commands.get() > before).await;
            fake.state.cut_after.set(usize::MAX);
            let expected = if flushes { Ok(()) } else { Err(IoError::Poisoned) };
            assert_eq!(read.await.unwrap(), expected);
            assert_eq!(device.flush().await, expected);
            assert_eq!(device.must_reopen(), !flushes);
        });
    }
}
