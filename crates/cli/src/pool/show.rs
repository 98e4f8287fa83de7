//! Text of pools, and of orders on them and their volumes.

use std::fmt::Write as _;

use flagstone_runtime::time::wall_clock;
use flagstone_server::api::pool_document::{
    DedupDocument, LegDocument, OrderDocument, PairDeviceDocument, PairDeviceStateName,
    PoolDocument, PoolStateName, RedundancyDocument, RemovalDocument, ScrubDocument,
};
use flagstone_units::display::size;

use flagstone_units::columns::{Left, Right, lines};

use crate::output::compressed;

pub(super) fn order(order: &OrderDocument) -> String {
    let prefix = match (order.dry_run, order.changed) {
        (true, true) => "would be done: ",
        _ => "",
    };
    let mut text = format!("{prefix}{}\n", order.outcome);
    if let Some(loss) = order.data_loss.as_ref().filter(|_| order.dry_run && order.changed) {
        let _ = writeln!(text, "data loss: {loss}");
    }
    if let Some(next) = &order.next {
        let _ = writeln!(text, "next: {next}");
    }
    text
}

/// A line for each pool, then what needs the operator.
pub(super) fn pools(pools: &[PoolDocument]) -> String {
    if pools.is_empty() {
        return "no pools; next: flagstone pool create NAME DEVICE…\n".to_owned();
    }
    let head = [
        ("pool", Left),
        ("state", Left),
        ("capacity", Right),
        ("used", Right),
        ("reserved", Right),
        ("full", Right),
        ("volumes", Right),
    ];
    let rows: Vec<Vec<String>> = pools
        .iter()
        .map(|pool| {
            let known = |text: String| if pool.id.is_some() { text } else { "-".to_owned() };
            vec![
                pool.name.clone(),
                state(pool),
                known(size(pool.capacity_bytes)),
                known(size(pool.used_bytes)),
                known(size(pool.reserved_bytes)),
                known(format!("{} %", pool.used_percent)),
                known((pool.volumes.len() + pool.legs.len() + pool.unserved.len()).to_string()),
            ]
        })
        .collect();
    let mut text: String = lines(&head, &rows).iter().map(|line| format!("{line}\n")).collect();
    for pool in pools.iter().filter(|pool| needs_operator(pool)) {
        let _ = writeln!(text);
        text += &advice(pool);
    }
    text
}

fn needs_operator(pool: &PoolDocument) -> bool {
    pool.state != PoolStateName::Open || !pool.unserved.is_empty() || pool.next.is_some()
}

/// State of a pool and of its copies.
fn state(pool: &PoolDocument) -> String {
    match &pool.redundancy {
        Some(RedundancyDocument { missing_devices, pairs, .. }) if *missing_devices > 0 => {
            let all: usize = pairs.iter().map(|pair| pair.devices.len()).sum();
            format!("{}, degraded: {missing_devices} of {all} devices missing", pool.state)
        }
        Some(RedundancyDocument { rebuild_bytes, .. }) if *rebuild_bytes > 0 => {
            format!("{}, degraded: {} to rebuild", pool.state, size(*rebuild_bytes))
        }
        _ => pool.state.to_string(),
    }
}

/// Two lines for each pair, then what was repaired.
fn redundancy(copies: &RedundancyDocument, now_seconds: u64) -> String {
    let mut text = String::new();
    for pair in &copies.pairs {
        for (index, device) in pair.devices.iter().enumerate() {
            let begin = if index == 0 { "  pair: " } else { "        " };
            let _ =
                writeln!(text, "{begin}{}: {}", device.device, pair_device(device, now_seconds));
        }
    }
    if copies.left_out_bytes > 0 {
        let _ = writeln!(text, "  {} that no rebuild could read", size(copies.left_out_bytes));
    }
    if copies.repaired_bytes > 0 {
        let _ = writeln!(
            text,
            "  {} rewritten from the other device of their pair",
            size(copies.repaired_bytes)
        );
    }
    text
}

fn pair_device(device: &PairDeviceDocument, now_seconds: u64) -> String {
    let PairDeviceDocument { state, reason, rebuilt_bytes, total_bytes, .. } = device;
    match state {
        PairDeviceStateName::Rebuilding => format!(
            "{state}, {} of {}, {}/s",
            size(*rebuilt_bytes),
            size(*total_bytes),
            size(device.bytes_per_second)
        ),
        PairDeviceStateName::Missing | PairDeviceStateName::Failed => {
            let minutes = now_seconds.saturating_sub(device.since_seconds) / 60;
            let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("{state} for {minutes} min or more{reason}")
        }
        PairDeviceStateName::InSync | PairDeviceStateName::Unknown => state.to_string(),
    }
}

pub(super) fn pool(pool: &PoolDocument) -> String {
    let mut text = format!("pool {}: {}\n", pool.name, state(pool));
    match &pool.redundancy {
        Some(copies) => text += &redundancy(copies, wall_clock().as_secs()),
        None => drop(writeln!(text, "  on {}", pool.devices.join(", "))),
    }
    if let Some(log) = &pool.log_device {
        let state = match &pool.log {
            Some(log) if log.present => format!(
                "{} not written out yet, of {} before hosts slow down",
                size(log.tail_bytes),
                size(log.limit_bytes)
            ),
            Some(_) => "missing".to_owned(),
            None => "unknown".to_owned(),
        };
        let _ = writeln!(text, "  log device {log}: {state}");
    }
    if let Some(id) = &pool.id {
        let _ = writeln!(text, "  UUID {id}");
        let _ = writeln!(
            text,
            "  {} used and {} reserved of {}: {} %",
            size(pool.used_bytes),
            size(pool.reserved_bytes),
            size(pool.capacity_bytes),
            pool.used_percent
        );
        if pool.stored_bytes < pool.data_bytes {
            let compressed = compressed(pool.data_bytes, pool.stored_bytes);
            let _ = writeln!(text, "  {} of data {compressed}", size(pool.data_bytes));
        }
        if pool.held_bytes > 0 {
            let held = size(pool.held_bytes);
            let _ = writeln!(text, "  up to {held} held by overwritten parts of compressed data");
        }
        let _ = writeln!(
            text,
            "  {} checkpoints; the cleaner emptied {} segments and copied {}",
            pool.checkpoints,
            pool.cleaned_segments,
            size(pool.copied_bytes)
        );
        if let Some(dedup) = &pool.dedup {
            let _ = writeln!(text, "  {}", deduplication(dedup, pool.deduplicated_bytes));
        }
        let has_others = !pool.legs.is_empty() || !pool.unserved.is_empty();
        let _ = match pool.volumes.is_empty() {
            true if has_others => writeln!(text, "  no volumes are served"),
            true => writeln!(text, "  no volumes"),
            false => writeln!(text, "  volumes {}", pool.volumes.join(", ")),
        };
        for LegDocument { name, mirrored } in &pool.legs {
            let _ = writeln!(text, "  volume {name} is the leg of mirrored volume {mirrored}");
        }
    }
    if let Some(RemovalDocument { device, state, reason, left_bytes, .. }) = &pool.removal {
        let left = size(*left_bytes);
        let _ = writeln!(text, "  removal of {device} {state}: {left} are still on it");
        if let Some(reason) = reason {
            let _ = writeln!(text, "  {reason}");
        }
    }
    if let Some(found) = &pool.scrub {
        text += &format!("  {}", scrub(found).trim_end().replace('\n', "\n  "));
        text.push('\n');
    }
    text + &advice(pool)
}

fn deduplication(dedup: &DedupDocument, freed_bytes: u64) -> String {
    let DedupDocument { volumes, unscanned_bytes, .. } = dedup;
    let left = match unscanned_bytes {
        0 => String::new(),
        left => format!(", {} to scan", size(*left)),
    };
    let freed = size(freed_bytes);
    format!("deduplication of {volumes} volumes: {freed} freed since the pool was opened{left}")
}

/// A line for the scrub, then the damage that it found.
pub(super) fn scrub(scrub: &ScrubDocument) -> String {
    let mut text = format!(
        "scrub {}: {} of {} verified, {} damages\n",
        scrub.state,
        size(scrub.verified_bytes),
        size(scrub.total_bytes),
        scrub.damages
    );
    if scrub.repaired_bytes > 0 {
        let repaired = size(scrub.repaired_bytes);
        let _ = writeln!(text, "{repaired} damaged on one device, and rewritten from the other");
    }
    if let Some(reason) = &scrub.reason {
        let _ = writeln!(text, "{reason}");
    }
    for damage in &scrub.damage {
        let _ = writeln!(text, "damaged: {}", damage.text);
    }
    text
}

fn advice(pool: &PoolDocument) -> String {
    let mut text = String::new();
    if let Some(reason) = &pool.reason {
        let _ = writeln!(text, "pool {} is {}: {reason}", pool.name, pool.state);
    }
    for volume in &pool.unserved {
        let _ = writeln!(text, "volume {} is not served: {}", volume.name, volume.reason);
    }
    if let Some(next) = &pool.next {
        let _ = writeln!(text, "next: {next}");
    }
    text
}
