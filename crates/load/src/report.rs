//! Text report of the results, aligned for terminals.

use std::fmt::{self, Formatter};

use flagstone_units::display::{count, size};
use flagstone_units::grouped;

use crate::results::{JobSummary, LatencySummary, LoadResults, OpKind, VerifyResults};

pub(crate) fn write(results: &LoadResults, f: &mut Formatter<'_>) -> fmt::Result {
    headline(results, f)?;
    rates(results, f)?;
    latencies(results, f)?;
    if let Some(cpu) = &results.cpu {
        writeln!(
            f,
            "  cpu        {:.2} µs user + {:.2} µs system an I/O, {:.2} CPUs busy",
            cpu.user_us_per_io, cpu.system_us_per_io, cpu.cpus
        )?;
    }
    errors(results, f)?;
    results.verify.as_ref().map_or(Ok(()), |verify| verified(verify, f))
}

fn headline(results: &LoadResults, f: &mut Formatter<'_>) -> fmt::Result {
    let JobSummary { pattern, depth, cores, seed, .. } = &results.job;
    let sizes: Vec<String> =
        results.job.block_sizes.iter().map(|one| size(one.bytes as u64)).collect();
    write!(f, "{pattern} {}", sizes.join(", "))?;
    if let Some(percent) = results.job.read_percent {
        write!(f, ", {percent} % reads")?;
    }
    match cores {
        1 => write!(f, ", depth {depth}, 1 core, seed {seed}")?,
        _ => write!(f, ", depth {depth} over {cores} cores, seed {seed}")?,
    }
    writeln!(f, ": {} after {:.2} s", results.outcome.describe(), results.elapsed_s)?;
    writeln!(
        f,
        "  range      {} at offset {}, of {} in blocks of {}",
        size(results.job.size_bytes),
        results.job.offset_bytes,
        size(results.device.size_bytes),
        size(results.device.block_bytes.into()),
    )
}

fn rates(results: &LoadResults, f: &mut Formatter<'_>) -> fmt::Result {
    if results.operations.is_empty() {
        return writeln!(f, "  no I/O completed");
    }
    writeln!(f, "  {:<10} {:>14} {:>12} {:>12} {:>16}", "", "IOPS", "MB/s", "MiB/s", "I/Os")?;
    let several =
        results.operations.iter().filter(|op| op.operation != Some(OpKind::Flush)).count() > 1;
    let total = results.total.iter().filter(|_| several);
    for op in results.operations.iter().chain(total) {
        let name = op.operation.map_or("total", OpKind::name);
        writeln!(
            f,
            "  {name:<10} {:>14} {:>12} {:>12} {:>16}",
            grouped(op.iops, 0),
            grouped(op.mb_per_s, 1),
            grouped(op.mib_per_s, 1),
            count(op.ios),
        )?;
    }
    Ok(())
}

fn latencies(results: &LoadResults, f: &mut Formatter<'_>) -> fmt::Result {
    let names = ["mean", "stddev", "min", "max"];
    let Some(first) = results.operations.first() else { return Ok(()) };
    let header = names.into_iter().chain(first.latency_us.percentiles().map(|(name, _)| name));
    write!(f, "  {:<10}", "µs")?;
    for name in header {
        let percentile = name.starts_with(|c: char| c.is_ascii_digit());
        let name = if percentile { format!("p{name}") } else { name.to_owned() };
        write!(f, " {name:>9}")?;
    }
    writeln!(f)?;
    for op in &results.operations {
        let LatencySummary { mean, stddev, min, max, .. } = op.latency_us;
        write!(f, "  {:<10}", op.operation.map_or("total", OpKind::name))?;
        let percentiles = op.latency_us.percentiles().map(|(_, value)| value);
        for value in [mean, stddev, min, max].into_iter().chain(percentiles) {
            write!(f, " {:>9}", grouped(value, if value < 100.0 { 2 } else { 0 }))?;
        }
        writeln!(f)?;
    }
    Ok(())
}

fn errors(results: &LoadResults, f: &mut Formatter<'_>) -> fmt::Result {
    for error in &results.errors {
        writeln!(f, "  errors     {} {}: {}", error.count, error.operation.name(), error.error)?;
    }
    if results.unfinished_ios > 0 {
        writeln!(f, "  unfinished {} I/Os did not end", results.unfinished_ios)?;
    }
    Ok(())
}

fn verified(verify: &VerifyResults, f: &mut Formatter<'_>) -> fmt::Result {
    let VerifyResults { blocks_written, blocks_checked, violations, read_back, .. } = verify;
    let unread = if *read_back { "" } else { " (not read back at the end)" };
    writeln!(
        f,
        "  verify     {blocks_written} blocks written, {blocks_checked} checked{unread}, \
         {violations} violations"
    )?;
    for violation in &verify.first {
        writeln!(f, "    {}", violation.message)?;
    }
    let untold = violations.saturating_sub(verify.first.len() as u64);
    if untold > 0 {
        writeln!(f, "    and {untold} more")?;
    }
    Ok(())
}
