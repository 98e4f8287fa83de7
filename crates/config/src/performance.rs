//! Reader of the performance layers, `limit` and `disk_model`.

use std::time::Duration;

use flagstone_limit::{Budget, Burst, DiskModelConfig, IoSize, Limit, Mix, Rate, ServiceTime};

use super::diagnostic::Located;
use super::model::Provisioned;
use super::profile::{self, Catalogs};
use super::reader::Reader;
use flagstone_units::{format_duration, format_rate};

#[derive(Clone, Copy)]
enum Unit {
    Ios,
    Bytes,
}

impl Unit {
    fn read(self, reader: &Reader<'_>, key: &str) -> Option<Located<u64>> {
        match self {
            Unit::Ios => reader.count(key),
            Unit::Bytes => reader.rate(key),
        }
    }

    fn format(self, rate: u64) -> String {
        match self {
            Unit::Ios => rate.to_string(),
            Unit::Bytes => format!("\"{}\"", format_rate(rate)),
        }
    }
}

/// Reads a limit of a volume, or a shared limit. After a mistake, which is reported, the
/// result is arbitrary.
pub(crate) fn read_limit(reader: &Reader<'_>, catalogs: &Catalogs) -> Provisioned {
    if reader.has("profile") {
        profile::refuse_others(reader, &[]);
        return profile::read(reader, catalogs).map(|disk| disk.provisioned).unwrap_or_default();
    }
    profile::refuse_alone(reader);
    read_numbers(reader).into()
}

fn read_numbers(reader: &Reader<'_>) -> Limit {
    let burst = reader.table("burst");
    let limit = Limit {
        ios: read_budget(reader, burst.as_ref(), "iops", Unit::Ios),
        bytes: read_budget(reader, burst.as_ref(), "throughput", Unit::Bytes),
        ..Limit::default()
    };
    let keys = ["", "read_", "write_"].map(|of| [format!("{of}iops"), format!("{of}throughput")]);
    // A misspelled limit is one mistake.
    if !keys.iter().flatten().any(|key| reader.has(key)) && !reader.has_unknown_keys() {
        let help = "write what it is, such as iops = 15000, throughput = \"240MB/s\" or profile = \"pd-ssd\"";
        let message = reader.message(|title| format!("[{title}] limits nothing"));
        reader.report().error(reader.place(), message, help);
    }
    if let Some(burst) = &burst
        && !keys.iter().flatten().any(|key| burst.has(key))
    {
        let help = "write what it is, such as iops = 30000, or remove it";
        let message = burst.message(|title| format!("[{title}] is no burst"));
        burst.report().error(burst.place(), message, help);
    }
    // The range of the schema keeps it to 32 MiB.
    let size = reader.size("io_size");
    let size = size.map_or(IoSize::One, |size| IoSize::Units { bytes: size.value as u32 });
    Limit { read_size: size, write_size: size, ..limit }
}

/// The keys `KEY`, `read_KEY`, `write_KEY` and `KEY_mix`, and their bursts.
fn read_budget(reader: &Reader<'_>, burst: Option<&Reader<'_>>, key: &str, unit: Unit) -> Budget {
    let rate = |key: &str| read_rate(reader, burst, key, unit);
    let (read_key, write_key, mix_key) =
        (format!("read_{key}"), format!("write_{key}"), format!("{key}_mix"));
    let (total, read, write) = (rate(key), rate(&read_key), rate(&write_key));
    let mix = reader.one_of(&mix_key, &Mix::ALL, Mix::name);
    let mistake = |message: String, help: String| {
        reader.report().error(&reader.key_place(&mix_key), message, help);
    };
    if mix == Mix::Shared && !(reader.has(&read_key) && reader.has(&write_key)) {
        mistake(
            format!("`{mix_key}` needs both `{read_key}` and `{write_key}`"),
            format!("write both, or `{key}` alone for a budget that counts both the same"),
        );
    }
    let bursts = [read, write].map(|rate| rate.and_then(|rate| rate.burst).is_some());
    if mix == Mix::Shared && bursts[0] != bursts[1] {
        mistake(
            format!("only one of `{read_key}` and `{write_key}` has a burst"),
            format!("with {mix_key} = \"shared\" they have one budget: write a burst of both"),
        );
    }
    Budget { total, read, write, mix }
}

fn read_rate(
    reader: &Reader<'_>,
    burst: Option<&Reader<'_>>,
    key: &str,
    unit: Unit,
) -> Option<Rate> {
    let sustained = unit.read(reader, key);
    let peak = burst.and_then(|burst| Some((unit.read(burst, key)?, burst)));
    if let Some((peak, _)) = &peak {
        let problem = match &sustained {
            None if !reader.has(key) => Some(format!("a burst of `{key}` without `{key}`")),
            Some(sustained) if peak.value <= sustained.value => {
                Some(format!("the burst of `{key}` is not more than `{key}`"))
            }
            _ => None,
        };
        if let Some(message) = problem {
            let help = match &sustained {
                Some(sustained) => format!("write more than {}", unit.format(sustained.value)),
                None => format!("write {key} = … in the limit: what it is when there is no credit"),
            };
            reader.report().error(&peak.place, message, help);
        }
    }
    let per_second = sustained?.value;
    let burst = peak.map(|(peak, burst)| Burst {
        per_second: peak.value,
        credit: credit(peak.value.saturating_sub(per_second), burst.time_or_default("duration")),
    });
    Some(Rate { per_second, burst })
}

/// Credit that lasts for `duration` at `beyond` above the sustained rate; at least 1.
fn credit(beyond: u64, duration: Duration) -> u64 {
    let credit = u128::from(beyond) * duration.as_millis() / 1000;
    u64::try_from(credit).unwrap_or(u64::MAX).max(1)
}

/// Reads a disk model: the limit of its profile, if it has one, and the latency. After a mistake,
/// which is reported, the result is arbitrary.
pub(crate) fn read_disk_model(
    reader: &Reader<'_>,
    catalogs: &Catalogs,
) -> (Option<Provisioned>, Option<DiskModelConfig>) {
    let disk = match reader.has("profile") {
        true => {
            profile::refuse_others(reader, &LATENCY_KEYS);
            let Some(disk) = profile::read(reader, catalogs) else { return (None, None) };
            Some(disk)
        }
        false => {
            profile::refuse_alone(reader);
            None
        }
    };
    let known = disk.as_ref().and_then(|disk| disk.latency);
    let of = |prefix: &str, known: Option<Duration>| {
        let (latency, p99) = (format!("{prefix}latency"), format!("{prefix}p99"));
        read_service_time(reader, &latency, &p99, known)
    };
    let (all, read, write) = (of("", known), of("read_", None), of("write_", None));
    let written = LATENCY_KEYS.iter().any(|key| *key != "seed" && reader.has(key));
    if !written && disk.is_none() {
        let help = "write the latency, such as latency = \"800us\", p99 = \"3ms\"";
        let message = reader.message(|title| format!("[{title}] emulates nothing"));
        reader.report().error(reader.place(), message, help);
    }
    let (read, write) = (read.or(all), write.or(all));
    let Some(disk) = disk else {
        let seed = reader.count_or_default("seed");
        return (None, Some(DiskModelConfig { read, write, seed }));
    };
    if read.is_none() || write.is_none() {
        profile::latency_is_not_known(reader, &disk);
    }
    let seed = reader.count_or_default("seed");
    let provisioned = disk.with_latency(reader.has("latency"));
    (Some(provisioned), Some(DiskModelConfig { read, write, seed }))
}

/// The keys of `disk_model` that are accepted beside `profile`.
const LATENCY_KEYS: [&str; 7] =
    ["latency", "p99", "read_latency", "read_p99", "write_latency", "write_p99", "seed"];

/// The latency in the file, else the `known` one of the profile.
fn read_service_time(
    reader: &Reader<'_>,
    latency: &str,
    p99: &str,
    known: Option<Duration>,
) -> Option<ServiceTime> {
    let (mut median, tail) = (reader.time(latency), reader.time(p99));
    if let Some(value) = known
        && !reader.has(latency)
    {
        median = Some(Located { value, place: reader.key_place("profile") });
    }
    let Some(median) = median else {
        if let Some(tail) = tail.filter(|_| !reader.has(latency)) {
            let help = format!("write {latency} = … too: the median");
            reader.report().error(&tail.place, format!("`{p99}` without `{latency}`"), help);
        }
        return None;
    };
    let most = median.value * flagstone_limit::limits::TAIL_MAX;
    if let Some(tail) = &tail
        && !(median.value..=most).contains(&tail.value)
    {
        let message = format!("`{p99}` does not go with `{latency}`");
        let (least, most) = (format_duration(median.value), format_duration(most));
        let help = format!("write {least} to {most}: 1 to 100 times the median");
        let related = ("the median is given at", &median.place);
        reader.report().error_with(&tail.place, message, help, related);
    }
    Some(ServiceTime { median: median.value, p99: tail.map_or(median.value, |tail| tail.value) })
}
