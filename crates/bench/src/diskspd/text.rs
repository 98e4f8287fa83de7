//! Text report of diskspd, in the form of version 2.2.

use std::fmt::Write as _;

use super::distribution::{self, by_threads, listed};
use super::profile::{
    Affinity, Cache, DiskspdAccess, DiskspdRate, Distribution, Profile, WriteContent,
};
use super::report::{Count, DiskspdReport, Section, count, deviation};
use crate::cpu::CpuUse;
use crate::measurement::LatencySum;

const ROWS: [(&str, f64); 13] = [
    ("25th", 25.0),
    ("50th", 50.0),
    ("75th", 75.0),
    ("90th", 90.0),
    ("95th", 95.0),
    ("99th", 99.0),
    ("3-nines", 99.9),
    ("4-nines", 99.99),
    ("5-nines", 99.999),
    ("6-nines", 99.9999),
    ("7-nines", 99.99999),
    ("8-nines", 99.999_999),
    ("9-nines", 99.999_999_9),
];

/// diskspd's size format: `64KiB`, `1.50MiB`, `100`.
fn size(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        let whole = 1u64 << shift;
        if bytes >= whole {
            return match bytes.is_multiple_of(whole) {
                true => format!("{}{unit}", bytes >> shift),
                false => format!("{:.2}{unit}", bytes as f64 / whole as f64),
            };
        }
    }
    bytes.to_string()
}

/// Input parameters: the output of `-Rp`, and the first part of a report.
pub fn profile(profile: &Profile) -> String {
    let mut out = format!("\nCommand Line: {}\n\nInput parameters:\n\n", profile.command_line);
    if profile.verbose {
        out += "\tusing verbose mode\n";
    }
    out += "\ttimespan:   1\n\t-------------\n";
    let _ = writeln!(out, "\tduration: {}s", profile.duration_s);
    let _ = writeln!(out, "\twarm up time: {}s", profile.warm_up_s);
    let _ = writeln!(out, "\tcool down time: {}s", profile.cool_down_s);
    if profile.affinity == Affinity::None {
        out += "\taffinity disabled\n";
    }
    if profile.latency {
        out += "\tmeasuring latency\n";
    }
    if let Some(ms) = profile.interval_ms {
        let _ = writeln!(out, "\tgathering IOPS at intervals of {ms}ms");
    }
    let _ = writeln!(out, "\trandom seed: {}", profile.seed.unwrap_or(0));
    if profile.total_threads {
        let _ = writeln!(out, "\tthread pool with {} threads", profile.threads);
        let each = profile.pool().1;
        let _ = writeln!(out, "\tnumber of outstanding I/O operations per thread: {each}");
    }
    if let Affinity::Cpus(cpus) = &profile.affinity {
        let cpus: Vec<_> = cpus.iter().map(|cpu| format!("0/{cpu}")).collect();
        let _ = writeln!(out, "\tadvanced affinity round robin (group/core): {}", cpus.join(", "));
    }
    if profile.content == WriteContent::Random {
        out += "\tgenerating random data for each write IO\n";
        out += "\t  WARNING: this increases the CPU cost of issuing writes and should only\n";
        out += "\t           be compared to other results using the -Zr flag\n";
    }
    profile.targets.iter().for_each(|path| target(&mut out, profile, path));
    out.push('\n');
    out
}

fn target(out: &mut String, profile: &Profile, path: &str) {
    let (burst, think) = profile.burst.unwrap_or((0, 0));
    let _ = writeln!(out, "\tpath: '{path}'");
    let mut line = |text: String| {
        let _ = writeln!(out, "\t\t{text}");
    };
    line(format!("think time: {think}ms"));
    line(format!("burst size: {burst}"));
    data(profile, &mut line);
    requests(profile, &mut line);
    range(profile, &mut line);
    threads(profile, &mut line);
    if let Some(asked) = &profile.distribution {
        line("IO Distribution:".to_owned());
        for range in distribution::asked(asked) {
            line(match asked {
                Distribution::Percent(_) => format!(
                    "   {:>3}% of IO => [{:>2}% - {:>3}%) of target",
                    range.io_percent,
                    range.from,
                    range.from + range.length
                ),
                Distribution::Absolute(_) => absolute(&range),
            });
        }
    }
}

fn data(profile: &Profile, line: &mut impl FnMut(String)) {
    line(match profile.cache {
        Cache::Cached | Cache::Mapped => "using software cache".to_owned(),
        Cache::Unbuffered => "software cache disabled".to_owned(),
    });
    line(match (profile.write_through, profile.cache) {
        (true, Cache::Unbuffered) => "hardware write cache disabled, writethrough on".to_owned(),
        (true, _) => "hardware and software write caches disabled, writethrough on".to_owned(),
        (false, _) => "using hardware write cache, writethrough off".to_owned(),
    });
    if profile.cache == Cache::Mapped {
        let flush = if profile.flush_views { ", flush mode: FlushViewOfFile" } else { "" };
        line(format!("memory mapped I/O enabled{flush}"));
    }
    match &profile.content {
        WriteContent::Zero => line("zeroing write buffers".to_owned()),
        WriteContent::Buffer { bytes, file } => {
            line(format!("write buffer size: {}", size(*bytes)));
            let source = file.as_ref().map_or("random fill".to_owned(), |file| format!("'{file}'"));
            line(format!("write buffer source: {source}"));
        }
        WriteContent::Pattern | WriteContent::Random => {}
    }
    line(match profile.write_percent {
        0 => "performing read test".to_owned(),
        100 => "performing write test".to_owned(),
        w => format!("performing mix test (read/write ratio: {}/{w})", 100 - w),
    });
}

fn requests(profile: &Profile, line: &mut impl FnMut(String)) {
    line(format!("block size: {}", size(profile.block_bytes)));
    let align = size(profile.align_bytes());
    line(match profile.access {
        DiskspdAccess::Random { percent: 100, .. } => {
            format!("using random I/O (alignment: {align})")
        }
        DiskspdAccess::Random { percent, .. } => format!(
            "using mixed random/sequential I/O ({percent}% random) (alignment/stride: {align})"
        ),
        DiskspdAccess::Sequential { .. } => format!("using sequential I/O (stride: {align})"),
    });
    line(match profile.total_outstanding {
        false => {
            format!("number of outstanding I/O operations per thread: {}", profile.of_target())
        }
        true => "relative IO weight in thread pool: 1".to_owned(),
    });
}

/// Accessed range of the target, and hints to the operating system.
fn range(profile: &Profile, line: &mut impl FnMut(String)) {
    if profile.base_bytes > 0 {
        line(format!("base file offset: {}", size(profile.base_bytes)));
    }
    if let Some(end) = profile.end_bytes {
        line(format!("max file size: {}", size(end)));
    }
    if profile.thread_stride_bytes > 0 {
        line(format!("thread stride size: {}", size(profile.thread_stride_bytes)));
    }
    if profile.sequential_hint {
        line("using FILE_FLAG_SEQUENTIAL_SCAN hint".to_owned());
    }
    if profile.random_hint {
        line("using FILE_FLAG_RANDOM_ACCESS hint".to_owned());
    }
}

fn threads(profile: &Profile, line: &mut impl FnMut(String)) {
    if !profile.total_threads {
        line(format!("threads per file: {}", profile.threads));
        if profile.outstanding > 1 {
            line("using I/O Completion Ports".to_owned());
        }
    }
    let priority = match profile.priority {
        1 => "very low",
        2 => "low",
        _ => "normal",
    };
    line(format!("IO priority: {priority}"));
    match profile.rate {
        Some(DiskspdRate::Iops(iops)) => line(format!("throughput rate-limited to {iops} IOPS")),
        Some(DiskspdRate::BytesPerMs(bytes)) => {
            line(format!("throughput rate-limited to {bytes} B/ms"))
        }
        None => {}
    }
}

/// A range in bytes, in columns of six characters and the unit.
fn absolute(range: &distribution::Range) -> String {
    let column = |bytes: u64| {
        let text = size(bytes);
        let unit = text.find(|c: char| c.is_ascii_alphabetic()).map_or("", |at| &text[at..]);
        format!("{:>6}{unit}", &text[..text.len() - unit.len()])
    };
    let from = if range.from == 0 { "     0   ".to_owned() } else { column(range.from) };
    let to = match range.length {
        0 => "      end".to_owned(),
        length => column(range.from.saturating_add(length)),
    };
    format!("   {:>3}% of IO => [{from} - {to})", range.io_percent)
}

impl DiskspdReport<'_> {
    pub fn text(&self) -> String {
        let mut out = profile(self.profile);
        self.system(&mut out);
        out += "\nResults for timespan 1:\n";
        out += &"*".repeat(79);
        out.push('\n');
        if self.seconds <= 0.0 {
            out += "The test was interrupted before the measurements began. No results are displayed.\n";
            return out;
        }
        let _ = write!(out, "\nactual test time:\t{:.2}s\n", self.seconds);
        let _ = writeln!(out, "thread count:\t\t{}", self.threads.len());
        if self.profile.total_outstanding {
            let _ = writeln!(out, "request count:\t\t{}", self.profile.outstanding);
        }
        self.cpu_table(&mut out);
        self.distributions(&mut out);
        for (title, section) in
            [("Total", Section::Total), ("Read", Section::Read), ("Write", Section::Write)]
        {
            let _ = writeln!(out, "\n{title} IO");
            self.section(&mut out, section);
        }
        if self.profile.latency {
            self.latencies(&mut out);
        }
        out
    }

    fn system(&self, out: &mut String) {
        let _ = write!(
            out,
            "System information:\n\n\tcomputer name: {}\n\tstart time: {}\n\n",
            self.system.computer,
            self.system.started()
        );
        let _ = write!(
            out,
            "\tcpu count:\t\t{0}\n\tcore count:\t\t{0}\n\tgroup count:\t\t1\n\tnode count:\t\t1\n\
             \tsocket count:\t\t1\n\theterogeneous cores:\tn\n\n\tactive power scheme:\t{1}\n",
            self.system.cpus, self.system.power_scheme
        );
    }

    /// Effective distribution of `-rd` on the targets.
    fn distributions(&self, out: &mut String) {
        for (at, (ranges, targets)) in
            by_threads(self.profile, &self.threads).into_iter().enumerate()
        {
            if at == 0 {
                out.push_str("\nEffective IO Distributions\n--------------------------\n");
            }
            for (path, threads) in targets {
                let _ = writeln!(out, "target: {path} [thread:{}]", listed(&threads));
            }
            for range in ranges {
                let _ = writeln!(out, "{}", absolute(&range));
            }
        }
    }

    fn cpu_table(&self, out: &mut String) {
        let rule = "-".repeat(40);
        let row = |cpu: &CpuUse| {
            let CpuUse { user_percent, kernel_percent, idle_percent } = cpu;
            let busy = cpu.busy_percent();
            format!("{busy:6.2}%| {user_percent:6.2}%| {kernel_percent:6.2}%| {idle_percent:6.2}%")
        };
        let _ = write!(out, "\nCPU |  Usage |  User  | Kernel |  Idle\n{rule}\n");
        for (at, cpu) in self.cpus.iter().enumerate() {
            let _ = writeln!(out, "{at:>4}| {}", row(cpu));
        }
        let _ = writeln!(out, "{rule}\navg.| {}", row(&CpuUse::mean(&self.cpus)));
    }

    fn section(&self, out: &mut String, section: Section) {
        let (latency, intervals) = (self.profile.latency, self.profile.interval_ms.is_some());
        let when = |shown: bool, text: &'static str| if shown { text } else { "" };
        let _ = writeln!(
            out,
            "thread |       bytes     |     I/Os     |    MiB/s   |  I/O per s {}{}{}|  file",
            when(latency, "|  AvgLat  "),
            when(intervals, "| IopsStdDev "),
            when(latency, "| LatStdDev ")
        );
        let width = 66 + 12 + if latency { 11 + 12 } else { 0 } + if intervals { 13 } else { 0 };
        let rule = "-".repeat(width);
        let _ = writeln!(out, "{rule}");
        for (at, thread) in self.threads.iter().enumerate() {
            let counted = thread.count(section);
            let figures = self.figures(&counted, &section.iops(&thread.series));
            let file = size(thread.file_bytes);
            let _ = writeln!(out, "{at:>6} | {figures} | {} ({file})", thread.path);
        }
        let total = count(section, self.threads.iter());
        let figures = self.figures(&total, &section.iops(&self.series()));
        let _ = writeln!(out, "{rule}\ntotal:   {figures}");
    }

    fn figures(&self, counted: &Count, iops: &[f64]) -> String {
        let mut out = format!(
            "{:>15} | {:>12} | {:>10.2} | {:>10.2}",
            counted.bytes,
            counted.ios,
            counted.bytes as f64 / 1024.0 / 1024.0 / self.seconds,
            counted.ios as f64 / self.seconds
        );
        if self.profile.latency {
            let _ = write!(out, " | {:>8.3}", counted.latency.mean_us() / 1e3);
        }
        if self.profile.interval_ms.is_some() {
            let _ = write!(out, " | {:>10.2}", deviation(iops));
        }
        if self.profile.latency {
            out += &match counted.latency.is_empty() {
                true => " |       N/A".to_owned(),
                false => format!(" |  {:>8.3}", counted.latency.stddev_us() / 1e3),
            };
        }
        out
    }

    fn latencies(&self, out: &mut String) {
        if self.profile.targets.len() > 1 {
            for path in &self.profile.targets {
                let _ = writeln!(out, "\nLatency distribution: {path}");
                self.latency_table(out, Some(path));
            }
        }
        out.push_str("\nTotal latency distribution:\n");
        self.latency_table(out, None);
    }

    fn latency_table(&self, out: &mut String, path: Option<&String>) {
        let of = |section| {
            let threads = self.threads.iter().filter(|t| path.is_none_or(|path| t.path == *path));
            count(section, threads).latency
        };
        let (read, write, total) = (of(Section::Read), of(Section::Write), of(Section::Total));
        let _ = writeln!(out, "  %-ile |  Read (ms) | Write (ms) | Total (ms)");
        let _ = writeln!(out, "{}", "-".repeat(46));
        let mut row = |name: &str, figure: &dyn Fn(&LatencySum) -> f64| {
            let text = |sum: &LatencySum| match sum.is_empty() {
                true => "N/A".to_owned(),
                false => format!("{:.3}", figure(sum) / 1e3),
            };
            let all = figure(&total) / 1e3;
            let _ = writeln!(
                out,
                "{name:>7} | {:>10} | {:>10} | {all:>10.3}",
                text(&read),
                text(&write)
            );
        };
        row("min", &|sum| sum.min_us());
        for (name, percent) in ROWS {
            row(name, &|sum| sum.percentile_us(percent).unwrap_or(0.0));
        }
        row("max", &|sum| sum.max_us());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diskspd_size_format() {
        assert_eq!([0, 100, 1024, 65536, 1 << 40].map(size), ["0", "100", "1KiB", "64KiB", "1TiB"]);
        assert_eq!(size(3 << 19), "1.50MiB");
    }

    #[test]
    fn diskspd_profile_text() {
        let words: Vec<_> = "-c96G -d10 -r -w100 -t8 -o3 -b64K -Sh -L data.dat"
            .split(' ')
            .map(str::to_owned)
            .collect();
        let text = profile(&crate::diskspd::parse(&words).unwrap().profile);
        assert_eq!(
            text,
            "\nCommand Line: diskspd -c96G -d10 -r -w100 -t8 -o3 -b64K -Sh -L data.dat\n\n\
             Input parameters:\n\n\ttimespan:   1\n\t-------------\n\tduration: 10s\n\
             \twarm up time: 5s\n\tcool down time: 0s\n\tmeasuring latency\n\trandom seed: 0\n\
             \tpath: 'data.dat'\n\t\tthink time: 0ms\n\t\tburst size: 0\n\t\tsoftware cache disabled\n\
             \t\thardware write cache disabled, writethrough on\n\t\tperforming write test\n\
             \t\tblock size: 64KiB\n\t\tusing random I/O (alignment: 64KiB)\n\
             \t\tnumber of outstanding I/O operations per thread: 3\n\t\tthreads per file: 8\n\
             \t\tusing I/O Completion Ports\n\t\tIO priority: normal\n\n"
        );
    }
}
