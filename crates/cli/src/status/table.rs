//! Text of `flagstone status`: a line for each volume, or the details of one.

use std::fmt::Write as _;
use std::iter::zip;

use flagstone_server::api::document::{
    CallsDocument, ConnectionDocument, ListenerDocument, PendingDocument, ServerDocument,
    VolumeDocument,
};
use flagstone_units::display::{count, counted, duration, size, three_digits};
use flagstone_units::{exact_size, grouped};

use super::rates::{CallRates, VolumeRates, by_kind};
use flagstone_units::columns::{Left, Right, lines};

use crate::output::compressed;

pub(crate) fn rate(per_second: f64) -> String {
    let decimals = usize::from(per_second > 0.0 && per_second < 10.0);
    grouped(per_second, decimals)
}

/// A latency in microseconds; `-` without calls. The first histogram bucket, of immediate answers,
/// ends at 1.024 µs.
fn micros(us: f64, calls: bool) -> String {
    match us {
        _ if !calls => "-".to_owned(),
        us if us <= 1.024 => "<1".to_owned(),
        us => grouped(us, usize::from(us < 100.0)),
    }
}

/// A line for the server and one for each volume: rates if known, else totals since the start.
pub(super) fn all(
    server: &ServerDocument,
    volumes: &[VolumeDocument],
    rates: &[Option<VolumeRates>],
) -> String {
    let mut text = format!(
        "flagstone {}, process {}, up {}, {} on {}, I/O buffers {} of {}\n\n",
        server.version,
        server.process_id,
        duration(server.uptime_seconds),
        server.io_engine,
        counted(server.cores as u64, "core"),
        size(server.buffer_memory.held_bytes as u64),
        size(server.buffer_memory.limit_bytes as u64),
    );
    let shows_rates = rates.iter().any(Option::is_some);
    let calls = match shows_rates {
        true => {
            ["read IOPS", "MB/s", "mean µs", "p99 µs", "write IOPS", "MB/s", "mean µs", "p99 µs"]
        }
        false => ["reads", "bytes", "mean µs", "p99 µs", "writes", "bytes", "mean µs", "p99 µs"],
    };
    let mut head = vec![("volume", Left), ("size", Right), ("hosts", Right)];
    head.extend(calls.map(|name| (name, Right)));
    head.extend([("in flight", Right), ("errors", Right), ("waiting", Right)]);
    let rows: Vec<Vec<String>> = volumes
        .iter()
        .zip(rates)
        .map(|(volume, rates)| {
            let io = &volume.io;
            let mut row = vec![
                volume.name.clone(),
                match &volume.pending {
                    Some(_) => "-".to_owned(),
                    None => exact_size(volume.size_bytes),
                },
                volume.connections.len().to_string(),
            ];
            match rates {
                Some(rates) => row.extend(rates[..2].iter().flat_map(rated)),
                None if shows_rates => row.extend(vec!["-".to_owned(); 8]),
                None => row.extend([&io.read, &io.write].into_iter().flat_map(totaled)),
            }
            let all = by_kind(io);
            row.push(count(all.iter().map(|calls| calls.in_flight).sum()));
            row.push(count(all.iter().map(|calls| calls.errors).sum()));
            row.push(count(volume.limits.iter().map(|limit| limit.waiting as u64).sum()));
            row
        })
        .collect();
    for line in lines(&head, &rows) {
        let _ = writeln!(text, "{line}");
    }
    for insecure in &server.insecure {
        let _ = writeln!(text, "\ninsecure: {}", insecure.consequence);
    }
    let mut first = true;
    for (volume, wait) in
        volumes.iter().filter_map(|volume| Some((volume, volume.pending.as_ref()?)))
    {
        let blank = if std::mem::take(&mut first) { "\n" } else { "" };
        let _ = writeln!(text, "{blank}{} is {}", volume.name, waiting(wait));
    }
    for volume in volumes.iter().filter(|volume| volume.flush_failed) {
        let blank = if std::mem::take(&mut first) { "\n" } else { "" };
        let _ = writeln!(text, "{blank}{}: {FLUSH_FAILED}", volume.name);
    }
    for (volume, why) in volumes.iter().filter_map(|volume| Some((volume, not_served(volume)?))) {
        let blank = if std::mem::take(&mut first) { "\n" } else { "" };
        let _ = writeln!(text, "{blank}{} is {why}", volume.name);
    }
    text
}

/// Why this node does not serve an open volume to hosts; `None` if it does, or is about to open it.
pub(crate) fn not_served(volume: &VolumeDocument) -> Option<String> {
    let mirror = volume.mirror.as_ref().filter(|_| volume.pending.is_none())?;
    let why = match &mirror.replica {
        Some(replica) if replica.serving => return None,
        Some(replica) => match &replica.source {
            Some(source) => format!("{source} is the source of its mirror"),
            None => "no source of its mirror is attached".to_owned(),
        },
        None => "its mirror has no replica here".to_owned(),
    };
    Some(format!("not served here, because {why}: see `flagstone mirror status {}`", volume.name))
}

/// Warning about a volume whose device has failed a flush.
const FLUSH_FAILED: &str = "a flush of its device failed: it rejects writes, and writes since the last successful flush may be lost although they are still readable. Restart the server to continue with the data on the device";

pub(super) fn volume(volume: &VolumeDocument, rates: Option<&VolumeRates>) -> String {
    let access = if volume.read_only { "read-only" } else { "read-write" };
    let wait = &volume.pending;
    let shape = match wait {
        Some(wait) => waiting(wait),
        None => {
            let size = exact_size(volume.size_bytes);
            format!("{size}, blocks of {} B, {access}", volume.block_bytes)
        }
    };
    let mut text = format!(
        "volume {}: {shape}\n  UUID {}\n  on {}",
        volume.name,
        volume.uuid,
        volume.devices.join(", "),
    );
    if !volume.layers.is_empty() {
        let _ = write!(text, " through {}", volume.layers.join(", "));
    }
    if let Some(place) = &volume.pool {
        let kind = if place.thick { "thick" } else { "thin" };
        let _ = write!(text, "\n  {kind}, {} used", size(place.used_bytes));
        if place.stored_bytes < place.used_bytes {
            let compressed = compressed(place.used_bytes, place.stored_bytes);
            let _ = write!(text, ", {compressed}");
        }
        if let Some(origin) = &place.origin {
            let _ = write!(text, ", clone of {origin}");
        }
        let setting = |key| place.settings.get(key).and_then(serde_json::Value::as_str);
        if setting("dedup") == Some("on") {
            let others = match setting("dedup_domain") {
                Some(domain) => format!("domain {domain}"),
                None => "with volumes for the same hosts".to_owned(),
            };
            let _ = write!(text, "\n  deduplication: {others}");
        }
        if let Some(encryption) = &place.encryption {
            let key_file = encryption.key_file.as_deref().unwrap_or("unknown");
            let _ = write!(text, "\n  encryption: {}, key file {key_file}", encryption.algorithm);
            if let Some(next) = &encryption.locked {
                let _ = write!(text, "; LOCKED: {next}");
            }
        }
    }
    if let Some(mirrored) = &volume.leg_of {
        let _ = writeln!(
            text,
            "\n  leg of mirrored volume {mirrored}, which hosts use instead: see flagstone status \
             {mirrored}"
        );
        return text;
    }
    if volume.flush_failed {
        let _ = write!(text, "\n  {FLUSH_FAILED}");
    }
    let not_served = not_served(volume);
    if let Some(why) = &not_served {
        let _ = write!(text, "\n  {why}");
    }
    let serves = wait.is_none() && not_served.is_none();
    text.push_str(if serves { "\n\nserved on\n" } else { "\n\nto be served on\n" });
    for listener in &volume.listeners {
        let _ = match listener {
            ListenerDocument::NvmeTcp { address, nqn, namespace } => {
                writeln!(text, "  {address}  subsystem {nqn}, namespace {namespace}")
            }
            ListenerDocument::Nbd { address, export } => {
                writeln!(text, "  {address}  export {export}")
            }
        };
    }
    text.push_str("\nattached\n");
    for connection in &volume.connections {
        let _ = match connection {
            ConnectionDocument::NvmeTcp {
                host_nqn,
                controller,
                queues,
                authenticated,
                ready,
                ..
            } => {
                let proven = if *authenticated { ", authenticated" } else { "" };
                let state = if *ready { proven } else { ", not enabled yet" };
                writeln!(
                    text,
                    "  NVMe/TCP  {host_nqn}  controller {controller}, {queues} connections{state}"
                )
            }
            ConnectionDocument::Nbd { peer } => writeln!(text, "  NBD       {peer}"),
        };
    }
    if volume.connections.is_empty() {
        text.push_str("  none\n");
    }
    text.push('\n');
    for line in calls(volume, rates) {
        let _ = writeln!(text, "{line}");
    }
    let limits = &volume.limits;
    if !limits.is_empty() {
        text.push('\n');
    }
    for limit in limits {
        let name =
            limit.name.as_ref().map_or("its own limit".into(), |name| format!("limit {name}"));
        let _ = writeln!(
            text,
            "{name}: {} waiting on {} connections; {} delayed and {} immediate since the start",
            count(limit.waiting as u64),
            limit.waiting_connections,
            count(limit.delayed),
            count(limit.immediate),
        );
    }
    text
}

fn calls(volume: &VolumeDocument, rates: Option<&VolumeRates>) -> Vec<String> {
    let right =
        |names: &[&'static str]| -> Vec<_> { names.iter().map(|name| (*name, Right)).collect() };
    let mut head = vec![("", Left)];
    head.extend(right(match rates {
        Some(_) => &["a second", "MB/s", "mean µs", "p99 µs", "in flight", "errors"],
        None => &["calls", "bytes", "mean µs", "p99 µs", "in flight", "errors"],
    }));
    let row = |(index, (name, calls)): (usize, (&str, &CallsDocument))| {
        let mut row = vec![name.to_owned()];
        match rates {
            Some(rates) => row.extend(rated(&rates[index])),
            None => row.extend(totaled(calls)),
        }
        row.extend([count(calls.in_flight), count(calls.errors)]);
        row
    };
    let rows: Vec<_> = kinds(volume).enumerate().map(row).collect();
    lines(&head, &rows)
}

fn kinds(volume: &VolumeDocument) -> impl Iterator<Item = (&'static str, &CallsDocument)> {
    zip(["reads", "writes", "flushes", "discards", "zeroes"], by_kind(&volume.io))
}

fn rated(of: &CallRates) -> [String; 4] {
    let calls = of.per_second > 0.0;
    [
        rate(of.per_second),
        three_digits(of.bytes_per_second / 1e6),
        micros(of.mean_us, calls),
        micros(of.p99_us, calls),
    ]
}

fn totaled(of: &CallsDocument) -> [String; 4] {
    let (calls, latency) = (of.count > 0, &of.latency);
    [count(of.count), size(of.bytes), micros(latency.mean_us, calls), micros(latency.p99_us, calls)]
}

fn waiting(wait: &PendingDocument) -> String {
    let next = match wait.next_seconds {
        Some(seconds) => format!(", the next in {}", duration(seconds.ceil())),
        None => String::new(),
    };
    format!(
        "not served yet, after {} in {}{next}: {}",
        counted(wait.attempts, "attempt"),
        duration(wait.seconds),
        wait.reason
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_latencies_have_few_digits() {
        assert_eq!([0.0, 0.26, 12.4, 12_345.6].map(rate), ["0", "0.3", "12", "12,346"]);
        assert_eq!([0.5, 12.34, 1234.4].map(|us| micros(us, true)), ["<1", "12.3", "1,234"]);
        assert_eq!(micros(0.0, false), "-");
    }
}
