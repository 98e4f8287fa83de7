//! Log devices that hold something else because the name was mistyped.

use super::*;
use crate::ondisk::layout::log_layout;

const LOG_BYTES: usize = 64 << 10;
const PAGE: usize = 4096;
const DATA_BYTES: usize = (BLOCKS as usize + 7) * PAGE;

/// Opens the replica with the present contents of the log device. Returns the reason why its log
/// was lost, or why the replica cannot be opened.
fn opened(sim: &Simulation, node: NodeId) -> Result<Option<LogLost>, ReplicaError> {
    on(sim, node, async {
        let (data, log) = devices(true);
        Replica::open(data, log).await.map(|replica| replica.log_lost())
    })
}

/// Zeroes with some bytes in them.
fn zeroes_but(parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; LOG_BYTES];
    for (at, part) in parts {
        bytes[*at..at + part.len()].copy_from_slice(part);
    }
    bytes
}

/// Signatures at any position: file systems, volume managers, partition tables, files, and
/// arbitrary data.
#[test]
fn foreign_data_on_log_device_is_kept() {
    let (sim, node) = world(30, true);
    on(&sim, node, use_once(true));
    let own = sim.peek(node, LOG, 0, LOG_BYTES);
    for other in [
        zeroes_but(&[(0, b"/dev/sda1 / ext4 defaults 0 1\n")]),
        zeroes_but(&[(0, b"XFSB")]),
        zeroes_but(&[(510, b"\x55\xaa"), (512, b"EFI PART")]),
        zeroes_but(&[(1080, b"\x53\xef")]),
        zeroes_but(&[(4086, b"SWAPSPACE2")]),
        zeroes_but(&[(4096, b"\xfc\x4e\x2b\xa9")]),
        zeroes_but(&[(0x8001, b"CD001")]),
        zeroes_but(&[(LOG_BYTES - 1, b"?")]),
        vec![0xFF; LOG_BYTES],
        // Another user has overwritten part of a log.
        [&[b'x'; 2 * PAGE], &own[2 * PAGE..]].concat(),
        // A replica so small that its superblocks are within the checked range.
        zeroes_but(&[(LOG_BYTES - 2 * PAGE, b"FSMIRSB\n")]),
    ] {
        let begins = other.iter().position(|byte| *byte != 0);
        sim.poke(node, LOG, 0, &other);
        let before = sim.peek(node, DATA, 0, DATA_BYTES);
        for _ in 0..2 {
            let found = opened(&sim, node);
            assert_eq!(found, Err(ReplicaError::LogDeviceInUse), "from {begins:?} on");
        }
        assert!(sim.peek(node, LOG, 0, LOG_BYTES) == other, "from {begins:?} on: written to");
        assert!(sim.peek(node, DATA, 0, DATA_BYTES) == before, "the replica was changed");
    }
    sim.poke(node, LOG, 0, &own);
    assert_eq!(opened(&sim, node), Ok(None), "the replica opens as before");
}

/// Zeroes, and a former log in any condition, count as a lost log.
#[test]
fn empty_or_former_log_is_replaced() {
    let (sim, node) = world(31, true);
    on(&sim, node, use_once(true));
    let layout = log_layout(&create().geometry);
    let damage = |log: &mut [u8], at: u64| log[at as usize] ^= 1;
    let [first, second] = layout.headers;
    type Change = Box<dyn Fn(&mut Vec<u8>)>;
    let changes: [(Change, Option<LogLost>); 7] = [
        (Box::new(|log| log.fill(0)), Some(LogLost::Header(FormatError::Absent))),
        // Removed, or wiped by the operator.
        (Box::new(|log| log[..2 * PAGE].fill(0)), Some(LogLost::Header(FormatError::Absent))),
        (
            Box::new(move |log| [first, second].into_iter().for_each(|at| damage(log, at + 100))),
            Some(LogLost::Header(FormatError::Checksum)),
        ),
        (
            Box::new(|log| {
                log[PAGE..2 * PAGE].fill(0);
                log[100] ^= 1;
            }),
            Some(LogLost::Header(FormatError::Checksum)),
        ),
        // Everything except the first bytes of a header.
        (
            Box::new(|log| {
                log[16..].fill(0xAA);
                log[PAGE..2 * PAGE].fill(0);
            }),
            Some(LogLost::Header(FormatError::Checksum)),
        ),
        // A log of a later version.
        (
            Box::new(|log| [8, PAGE + 8].into_iter().for_each(|at| log[at] = 3)),
            Some(LogLost::Header(FormatError::Version(3))),
        ),
        // The valid header decides; the other slot may be torn and contain anything.
        (Box::new(move |log| log[..PAGE].fill(0xAA)), None),
    ];
    for (index, (change, expected)) in changes.iter().enumerate() {
        let mut log = sim.peek(node, LOG, 0, LOG_BYTES);
        change(&mut log);
        sim.poke(node, LOG, 0, &log);
        assert_eq!(opened(&sim, node), Ok(*expected), "change {index}");
        assert_eq!(found(&sim, node).0, None, "change {index}: the log was replaced");
    }
}

/// Unreadable blocks neither prevent a log from being created nor hide a reason against it.
#[test]
fn unreadable_blocks_are_ignored() {
    let (sim, node) = world(32, true);
    let headers = DiskFaults::default().unreadable_at(0..2 * PAGE as u64);
    for (at, expected) in [
        (None, Ok(Some(LogLost::Unreadable(IoError::ReadFault)))),
        (Some(9 * PAGE), Err(ReplicaError::LogDeviceInUse)),
    ] {
        let log = at.map_or(vec![0; LOG_BYTES], |at| zeroes_but(&[(at, b"?")]));
        sim.poke(node, LOG, 0, &log);
        sim.set_faults(node, LOG, headers.clone());
        assert_eq!(opened(&sim, node), expected, "{at:?}");
        sim.set_faults(node, LOG, DiskFaults::default());
    }
}

/// The power fails at every point while a log is created on an empty device, or over a former log,
/// with torn pages. The result must never look like foreign data.
#[test]
fn interrupted_log_creation_is_recognized() {
    let mut seed = 33;
    for empty in [true, false] {
        let (mut cut, mut in_the_midst) = (0, 0);
        loop {
            let mut ended = true;
            for _ in 0..8 {
                seed += 1;
                let (sim, node) = world(seed, true);
                let damage: &[u8] = if empty { &[0; LOG_BYTES] } else { &[b'?'; 16] };
                for at in [16, PAGE as u64 + 16] {
                    sim.poke(node, LOG, if empty { 0 } else { at }, damage);
                }
                let began = served(&sim, node);
                let opening = sim.spawn_on(node, open(true));
                sim.block_on(async {
                    while !opening.is_finished() && served(&sim, node) - began < cut {
                        time::sleep(Duration::from_micros(10)).await;
                    }
                });
                ended &= opening.is_finished();
                sim.run_for(sim.random_span(Duration::ZERO, Duration::from_micros(100)));
                sim.power_off(node);
                sim.restart(node);
                let left = opened(&sim, node);
                let lost = left.unwrap_or_else(|error| panic!("cut at {cut}, {seed}: {error}"));
                in_the_midst += u64::from(lost.is_some());
                assert_eq!(found(&sim, node), (None, BLOCKS), "cut at {cut}, seed {seed}");
            }
            if ended {
                break;
            }
            cut += 1;
        }
        assert!(in_the_midst > 50, "{in_the_midst} of {cut} cuts interrupted the creation");
    }
}
