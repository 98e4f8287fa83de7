//! Requests to a node from a session of its source: refusals, and memory that hosts have taken.

use std::sync::Arc;

use flagstone_blockdev::IoError;
use flagstone_mirror::Mode;
use flagstone_mirror::state::status::MirrorState;
use flagstone_nvme::{Wire as _, replica as wire};
use flagstone_nvmf_host::{CommandData, Compressed, RemoteSession};
use flagstone_replication::{Codec, LinkOptions};
use flagstone_runtime::net::Address;
use flagstone_runtime::{buf, spawn, time};

use crate::{DEVICE_BYTES, MOMENT, Memory, TIMEOUT, World, host_options, subsystem};

/// An attached session of the source of `world`, whose mirror is gone.
async fn attached(address: Address) -> Arc<RemoteSession> {
    let session = RemoteSession::connect(address, &subsystem(), host_options(0))
        .await
        .expect("the node serves");
    let source = [3; 16];
    let asked = wire::ReplicaRequest::Identify { asker: source };
    let command = asked.command(0, session.nsid());
    let place = CommandData::In(buf::alloc_small(asked.reply_bytes()));
    let said =
        session.admin(command, place).await.expect("the peer answers").data.expect("success");
    let number = |at: usize| u64::from_le_bytes(said[at..at + 8].try_into().expect("8 bytes"));
    let (epoch, generation) = (number(48), number(56));
    let attach = wire::Attach::new([7; 16], source, epoch + 1, generation, true);
    let command = wire::ReplicaRequest::Attach { attach, revision: 0 }.command(0, session.nsid());
    let mut data = buf::alloc_small(attach.bytes().len());
    data.copy_from_slice(attach.bytes());
    let answer =
        session.admin(command, CommandData::Out(data.freeze())).await.expect("the peer answers");
    assert!(answer.status.is_success(), "{}", answer.status);
    session
}

/// A session that is not attached fails at once, because retrying is useless. Other sessions of the
/// target are not affected.
#[test]
fn unattached_session_fails_immediately() {
    let world = World::new(3, Mode::Sync);
    world.until_mirroring(0);
    let address = world.address(1);
    let refused = world.sim.spawn_on(world.nodes[0], async move {
        let connected = RemoteSession::connect(address, &subsystem(), host_options(0)).await;
        let session = connected.expect("the node serves");
        let began = time::now();
        let read = session.read(0, buf::alloc_small(4096)).await.map(drop);
        let write = session.write(0, buf::zeroes(4096), false).await;
        let order = wire::WritePosition { number: 1, concurrent: 0 };
        let ordered = session.write_ordered(0, buf::zeroes(4096), false, order).await;
        let flush = session.flush().await;
        assert_eq!([read, write, ordered, flush], [Err(IoError::Unreachable); 4]);
        assert!(began.elapsed() < MOMENT, "{:?}", began.elapsed());
        assert!(!session.is_lost());
    });
    world.sim.block_on(refused).expect("the task completes");
    world.write(0, 0, 1);
    assert_eq!(world.mirror(0).state(0), MirrorState::Mirroring);
}

/// Runs `test` with such a session.
fn with_attached<T: Future<Output = ()>>(
    memory: Memory,
    test: impl FnOnce(Arc<RemoteSession>) -> T + 'static,
) {
    let world = World::with_memory(3, Mode::Sync, LinkOptions::default(), memory);
    world.until_mirroring(0);
    world.stop(0);
    world.sim.restart(world.nodes[0]);
    let address = world.address(1);
    let done =
        world.sim.spawn_on(world.nodes[0], async move { test(attached(address).await).await });
    world.sim.block_on(done).expect("the task completes");
}

/// Invalid compressed data is refused, and the connection stays.
#[test]
fn invalid_compressed_data_is_refused() {
    with_attached(Memory::shared(), async |session| {
        for codec in Codec::ALL {
            for data in [&b"none"[..], &[0; 64], &[0xff; 64], &[0x1f, 0, 1, 0, 0xff, 0xff, 0xff, 9]]
            {
                let mut place = buf::alloc_small(data.len());
                place.copy_from_slice(data);
                let data = place.freeze();
                let compressed = Compressed { bytes: data.len() as u32, data, codec };
                let done = session.write_compressed(0, 4096, compressed, false, None).await;
                assert_eq!(done, Err(IoError::Misaligned), "{codec:?}");
            }
        }
        assert!(!session.is_lost());
    });
}

/// 8 KiB of one byte, in LZ4: the byte, a match of all but the last five, and those.
fn eight_kib_of(byte: u8) -> Compressed {
    let again = 8192 - 1 - 5;
    let more = again - 4 - 15;
    let mut bytes = vec![0x1f, byte, 1, 0];
    bytes.extend(std::iter::repeat_n(0xff, more / 255));
    bytes.push((more % 255) as u8);
    bytes.push(0x50);
    bytes.extend([byte; 5]);
    let len = bytes.len().next_multiple_of(4);
    let mut data = buf::alloc_small(len);
    data.fill(0);
    data[..bytes.len()].copy_from_slice(&bytes);
    Compressed { bytes: bytes.len() as u32, data: data.freeze(), codec: Codec::Lz4 }
}

/// Without memory to inflate a write, the reserved memory of the core is used. Otherwise writes
/// that wait for each other would wait forever.
#[test]
fn ordered_writes_inflate_without_free_memory() {
    with_attached(Memory::own(), async |session| {
        let place = buf::alloc(DEVICE_BYTES as usize / 2).await;
        let mut taken = Vec::new();
        for len in [1 << 20, 4096] {
            while let Some(memory) = buf::try_alloc(len) {
                taken.push(memory);
            }
        }
        // One sent write has a buffer, and that is all.
        taken.pop();
        for index in 0..16 {
            let order = wire::WritePosition { number: index + 1, concurrent: 0 };
            let (offset, data) = (u64::from(index) * 8192, eight_kib_of(index as u8 + 1));
            let write = session.write_compressed(offset, 8192, data, false, Some(order));
            let ended = time::timeout(TIMEOUT, write).await;
            assert_eq!(ended, Ok(Ok(())), "part {}", index + 1);
        }
        drop(taken);
        let mut place = place;
        place.truncate(16 * 8192);
        let read = session.read(0, place).await.expect("the data was written");
        for (index, part) in (1..).zip(read.chunks(8192)) {
            assert!(part.iter().all(|byte| *byte == index), "part {index}");
        }
    });
}

/// Two nodes that are each other's source may both have given all their memory to hosts whose
/// writes wait for the other. Writes from the link are received nevertheless, with data in the
/// command capsule or transferred separately, ordered or not.
#[test]
fn link_writes_are_received_without_free_memory() {
    with_attached(Memory::own(), async |session| {
        let place = buf::alloc(DEVICE_BYTES as usize / 2).await;
        // Host data, which stays with the host side.
        let data = async |len: u64| {
            let mut data = buf::alloc(len as usize).await;
            data.fill((len / 4096) as u8);
            data.freeze()
        };
        let [capsule, transfer] = [data(4096).await, data(8192).await];
        let mut taken = Vec::new();
        for len in [1 << 20, 4096] {
            while let Some(memory) = buf::try_alloc(len) {
                taken.push(memory);
            }
        }
        let mut writes = Vec::new();
        for index in 0..16 {
            let data = if index % 2 == 0 { &transfer } else { &capsule };
            let (offset, data) = (u64::from(index) * 8192, data.clone());
            writes.push(spawn(match index % 4 {
                0 | 1 => session.write(offset, data, false),
                // Numbers start at 1.
                second => {
                    let order =
                        wire::WritePosition { number: index / 4 * 2 + second - 1, concurrent: 0 };
                    session.write_ordered(offset, data, false, order)
                }
            }));
        }
        for (index, write) in writes.into_iter().enumerate() {
            let ended = time::timeout(TIMEOUT, write).await;
            assert!(matches!(ended, Ok(Ok(Ok(())))), "write {index}: {ended:?}");
        }
        drop(taken);
        let mut place = place;
        place.truncate(16 * 8192);
        let read = session.read(0, place).await.expect("the data was written");
        for (index, part) in read.chunks(8192).enumerate() {
            let expected = if index % 2 == 0 { [2, 2] } else { [1, 0] };
            assert_eq!([part[0], part[8191]], expected, "write {index}");
        }
    });
}

/// The previous release, byte for byte: a source that announces no versions can attach, and use the
/// requests of that release without naming a version.
#[test]
fn source_without_version_range_is_served() {
    with_attached(Memory::shared(), async |session| {
        let asked = wire::ReplicaRequest::Identify { asker: [3; 16] };
        let command = asked.command(0, session.nsid());
        let place = CommandData::In(buf::alloc_small(asked.reply_bytes()));
        let said =
            session.admin(command, place).await.expect("the peer answers").data.expect("success");
        assert_eq!(said[..2], [2, 0], "the only bytes it reads");
        let clear = wire::ReplicaRequest::ZeroNewSpace { usable_bytes: 4096 };
        let command = clear.command(0, session.nsid());
        let answer = session.admin(command, CommandData::None).await.expect("the peer answers");
        assert!(answer.status.is_success(), "{}", answer.status);
    });
}

/// A source that chose a version that this target does not speak, as after a downgrade, is refused.
/// A hostile source's version does no harm.
#[test]
fn source_with_unsupported_version_is_refused() {
    with_attached(Memory::shared(), async |session| {
        for version in [1, 5, 0x200, u16::MAX] {
            let attach = wire::Attach::new([7; 16], [3; 16], 99, 1, true).of_version(version);
            let command =
                wire::ReplicaRequest::Attach { attach, revision: 0 }.command(0, session.nsid());
            let mut data = buf::alloc_small(attach.bytes().len());
            data.copy_from_slice(attach.bytes());
            let data = CommandData::Out(data.freeze());
            let answer = session.admin(command, data).await.expect("the peer answers");
            let refusal = wire::ReplicaRefusal::VERSION.status().more();
            assert_eq!(answer.status, refusal, "version {version}");
        }
        // It is still attached.
        session.flush().await.expect("the session stays attached");
    });
}
