//! Description of a volume's rate limits and disk model, for the server's announcement and log and
//! for `flagstone check`.

use std::fmt::{self, Display, Formatter};

use flagstone_limit::{DiskModelConfig, IoSize, Limit, Mix, ServiceTime};

use crate::{Config, DiskProfile, LayerConfig, Provisioned, Volume};
use flagstone_units::display;
use flagstone_units::{format_duration, format_rate};

/// Longest throughput that is shown to its last byte, in characters.
const EXACT_CHARS: usize = 9;

impl Config {
    /// Describes the layers of a volume that change its performance: one line for each layer, and
    /// below a layer with a disk profile one line for each remark.
    pub fn performance(&self, volume: &Volume) -> Vec<String> {
        let mut lines = Vec::new();
        for layer in &volume.layers {
            let limit = match layer {
                LayerConfig::Limit(limit) => {
                    lines.push(format!("limited to {limit}"));
                    limit.as_ref()
                }
                LayerConfig::SharedLimit(index) => {
                    let shared = &self.limits[*index];
                    lines.push(format!("shares the limit {}: {}", shared.name, shared.limit));
                    &shared.limit
                }
                LayerConfig::DiskModel(emulation) => {
                    let emulated = emulated(emulation);
                    lines.push(format!("EMULATES a disk, for labs and tests only: {emulated}"));
                    continue;
                }
                LayerConfig::Delay(_) | LayerConfig::Fault(_) | LayerConfig::Mirror(_) => continue,
            };
            let remarks = limit.profile.iter().flat_map(|profile| &profile.remarks);
            lines.extend(remarks.map(|remark| format!("  {remark}")));
        }
        lines
    }
}

impl Display for Provisioned {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&limited(&self.numbers))?;
        match &self.profile {
            Some(profile) => write!(f, ", profile {profile}"),
            None => Ok(()),
        }
    }
}

impl Display for DiskProfile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let DiskProfile { disk, catalog, date, confidence, .. } = self;
        write!(f, "{disk} (catalog {catalog}; date: {date}; confidence {confidence})")
    }
}

fn limited(limit: &Limit) -> String {
    let mut parts = Vec::new();
    let budgets = [(&limit.ios, false), (&limit.bytes, true)];
    for (budget, is_bytes) in budgets {
        let shown = |rate: u64| match is_bytes {
            true => throughput(rate),
            false => format!("{rate} IOPS"),
        };
        let write = match budget.mix == Mix::Shared {
            true => " write, or shares of both",
            false => " write",
        };
        let rates = [("", budget.total), (" read", budget.read), (write, budget.write)];
        for (of, rate) in rates {
            let Some(rate) = rate else { continue };
            let burst = rate.burst.map(|burst| format!(" ({} in bursts)", shown(burst.per_second)));
            parts.push(format!("{}{of}{}", shown(rate.per_second), burst.unwrap_or_default()));
        }
    }
    match limit.read_size == limit.write_size {
        true => parts.extend(counted("I/Os", &limit.read_size)),
        false => {
            parts.extend(counted("reads", &limit.read_size));
            parts.extend(counted("writes", &limit.write_size));
        }
    }
    parts.join(", ")
}

fn counted(what: &str, size: &IoSize) -> Option<String> {
    match size {
        IoSize::One => None,
        IoSize::Units { bytes } => {
            Some(format!("{what} count as one for each {}", display::size((*bytes).into())))
        }
        IoSize::Steps(steps) => {
            let used = steps.iter().filter(|step| step.above_bytes != u32::MAX);
            let texts: Vec<_> = used
                .map(|step| {
                    let ios = f64::from(step.millionths) / 1e6;
                    let above = display::size(step.above_bytes.into());
                    format!("{what} above {above} count as {}", (ios * 100.0).round() / 100.0)
                })
                .collect();
            Some(texts.join(", "))
        }
    }
}

fn throughput(bytes_per_second: u64) -> String {
    let exact = format_rate(bytes_per_second);
    match exact.chars().count() {
        0..=EXACT_CHARS => exact,
        _ => format!("{:.2}MB/s", bytes_per_second as f64 / 1e6),
    }
}

fn emulated(emulation: &DiskModelConfig) -> String {
    let time = |time: ServiceTime| {
        let [median, p99] = [time.median, time.p99].map(format_duration);
        format!("{median} (99th percentile {p99})")
    };
    match (emulation.read, emulation.write) {
        (Some(read), Some(write)) if read == write => format!("latency {}", time(read)),
        (read, write) => {
            let of =
                |name, latency: Option<ServiceTime>| Some(format!("{name} {}", time(latency?)));
            let parts = [of("read latency", read), of("write latency", write)];
            parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
        }
    }
}
