//! Copy command.

use flagstone_nvme::command::io::CopyRange;
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::wire::U32;
use flagstone_nvme::{Sqe, Status, Wire as _};

use crate::memory;
use crate::support::client::done;
use crate::support::{Host, Options, Server, on_each_driver, pattern};

/// A Copy of `ranges` to the blocks from `start`, and its list.
fn copy(nsid: u32, start: u64, ranges: &[CopyRange]) -> (Sqe, Vec<u8>) {
    let list: Vec<u8> = ranges.iter().flat_map(|range| range.bytes().to_vec()).collect();
    let sgl = SglDescriptor::in_capsule(list.len() as u32);
    (Sqe::copy(1, nsid, start, ranges.len(), false, sgl).unwrap(), list)
}

#[test]
fn copy_moves_ranges_within_a_namespace() {
    on_each_driver(async || {
        let server = Server::new();
        let nsid = server.add(memory(512));
        let mut host = Host::attach(&server, &Options::default()).await;
        let io = &mut host.io;
        let data = pattern(7, 16 * 512);
        io.write(nsid, 0, 512, &data).await.unwrap();
        let ranges = [CopyRange::new(8, 4), CopyRange::new(0, 2), CopyRange::new(1, 1)];
        let (command, list) = copy(nsid, 100, &ranges);
        assert_eq!(done(io.call_with(command, &list).await), Ok(()));
        let expected = [&data[4096..6144], &data[..1024], &data[512..1024]].concat();
        assert_eq!(io.read(nsid, 100, 512, 7 * 512).await.unwrap(), expected);
        // With a transferred list; source and destination overlap.
        let (command, list) = copy(nsid, 4, &[CopyRange::new(0, 8)]);
        io.submit(Sqe { data: SglDescriptor::transport(32), ..command }).await;
        assert_eq!(io.transfer(1, &list).await, Ok(()));
        assert_eq!(io.read(nsid, 4, 512, 4096).await.unwrap(), data[..4096]);
        // The limits, 1 MiB and 128 ranges, are exact.
        let (command, list) = copy(nsid, 4096, &[CopyRange::new(0, 2048)]);
        assert_eq!(done(io.call_with(command, &list).await), Ok(()));
        let (command, list) = copy(nsid, 8192, &[CopyRange::new(0, 16); 128]);
        assert_eq!(done(io.call_with(command, &list).await), Ok(()));
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn invalid_copies_are_refused() {
    on_each_driver(async || {
        let server = Server::new();
        let nsid = server.add(memory(512));
        let read_only = server.try_add(None, memory(512), true);
        let mut host = Host::attach(&server, &Options::default()).await;
        let io = &mut host.io;
        let blocks = (16 << 20) / 512;
        let limit = Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr();
        let beyond = Status::LBA_OUT_OF_RANGE.dnr();
        let good = CopyRange::new(0, 1);
        let cases = [
            (0, vec![good; 129], limit, 0),
            (0, vec![CopyRange::new(0, 2049)], limit, 0),
            (0, vec![CopyRange::new(0, 1024), CopyRange::new(0, 1025)], limit, 1),
            (0, vec![good, good, CopyRange::new(blocks, 1)], beyond, 2),
            (0, vec![good, CopyRange::new(u64::MAX, 2)], beyond, 1),
            (blocks - 1, vec![good, good], beyond, 0),
            (u64::MAX, vec![good], beyond, 0),
        ];
        for (start, ranges, status, number) in cases {
            let (command, list) = copy(nsid, start, &ranges);
            let completion = io.call_with(command, &list).await;
            assert_eq!((completion.status(), completion.dw0.get()), (status, number), "{ranges:?}");
        }
        let (command, list) = copy(read_only, 0, &[good]);
        let status = io.call_with(command, &list).await.status();
        assert_eq!(status, Status::WRITE_PROTECTED.dnr());
        // An unknown format, protection information, and a list that is too short.
        for bits in [1 << 8, 1 << 12, 1 << 26, 1] {
            let (mut command, list) = copy(nsid, 0, &[good]);
            command.cdw12 = U32::new(command.cdw12.get() | bits);
            let expected =
                if bits == 1 { Status::DATA_SGL_LENGTH_INVALID } else { Status::INVALID_FIELD };
            let status = io.call_with(command, &list).await.status();
            assert_eq!(status, expected.dnr(), "{bits:#x}");
        }
        drop(host);
        server.is_sound().await;
    });
}
