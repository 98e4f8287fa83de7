//! XML report of diskspd, in the form of version 2.2.

use std::fmt::Display;

use super::distribution::{self, Range};
use super::profile::{
    Access, Affinity, Cache, DiskspdFormat, DiskspdRate, Distribution, Profile, WriteContent,
};
use super::report::{DiskspdReport, Section, Thread, count, deviation};
use crate::cpu::CpuUse;
use crate::fio::series::Series;
use crate::units::format_utc;

/// XML writer: nested elements and leaves.
#[derive(Default)]
struct Writer {
    out: String,
    open: Vec<String>,
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\t' => out.push(c),
            // XML 1.0 has no control characters.
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

impl Writer {
    fn line(&mut self, text: &str) {
        self.out += &"  ".repeat(self.open.len());
        self.out += text;
        self.out.push('\n');
    }

    fn begin(&mut self, name: &str) {
        self.line(&format!("<{name}>"));
        self.open.push(name.split(' ').next().unwrap_or(name).to_owned());
    }

    fn end(&mut self) {
        if let Some(name) = self.open.pop() {
            self.line(&format!("</{name}>"));
        }
    }

    fn leaf(&mut self, name: &str, value: impl Display) {
        self.line(&format!("<{name}>{}</{name}>", escaped(&value.to_string())));
    }

    fn ms(&mut self, name: &str, us: f64) {
        self.leaf(name, format_args!("{:.3}", us / 1e3));
    }
}

/// The profile only: the output of `-Rpxml`.
pub fn profile(profile: &Profile) -> String {
    let mut xml = Writer::default();
    profile_element(&mut xml, profile);
    xml.out
}

fn profile_element(xml: &mut Writer, profile: &Profile) {
    xml.begin("Profile");
    xml.leaf("Progress", 0);
    xml.leaf("ResultFormat", if profile.format == DiskspdFormat::Xml { "xml" } else { "text" });
    xml.leaf("Verbose", profile.verbose);
    xml.begin("TimeSpans");
    xml.begin("TimeSpan");
    xml.leaf("CompletionRoutines", false);
    xml.leaf("MeasureLatency", profile.latency);
    xml.leaf("CalculateIopsStdDev", profile.interval_ms.is_some());
    xml.leaf("DisableAffinity", profile.affinity == Affinity::None);
    xml.leaf("Duration", profile.duration_s);
    xml.leaf("Warmup", profile.warm_up_s);
    xml.leaf("Cooldown", profile.cool_down_s);
    let (threads, requests) = profile.pool();
    xml.leaf("ThreadCount", threads);
    xml.leaf("RequestCount", requests);
    xml.leaf("IoBucketDuration", profile.interval_ms.unwrap_or(1000));
    xml.leaf("RandSeed", profile.seed.unwrap_or(0));
    if let Affinity::Cpus(cpus) = &profile.affinity {
        xml.begin("Affinity");
        for cpu in cpus {
            xml.line(&format!("<AffinityGroupAssignment Group=\"0\" Processor=\"{cpu}\"/>"));
        }
        xml.end();
    }
    xml.begin("Targets");
    profile.targets.iter().for_each(|path| target(xml, profile, path));
    (0..4).for_each(|_| xml.end());
}

fn target(xml: &mut Writer, profile: &Profile, path: &str) {
    xml.begin("Target");
    xml.leaf("Path", path);
    xml.leaf("BlockSize", profile.block_bytes);
    xml.leaf("BaseFileOffset", profile.base_bytes);
    xml.leaf("SequentialScan", profile.sequential_hint);
    xml.leaf("RandomAccess", profile.random_hint);
    xml.leaf("TemporaryFile", false);
    xml.leaf("UseLargePages", profile.large_pages);
    if profile.cache == Cache::Unbuffered {
        xml.leaf("DisableOSCache", true);
    }
    if profile.write_through {
        xml.leaf("WriteThrough", true);
    }
    if profile.cache == Cache::Mapped {
        xml.leaf("MemoryMappedIo", true);
    }
    if profile.flush_views {
        xml.leaf("FlushType", "ViewOfFile");
    }
    xml.begin("WriteBufferContent");
    match &profile.content {
        WriteContent::Zero => xml.leaf("Pattern", "zero"),
        WriteContent::Pattern | WriteContent::Random => xml.leaf("Pattern", "sequential"),
        WriteContent::Buffer { bytes, file } => {
            xml.leaf("Pattern", "random");
            xml.begin("RandomDataSource");
            xml.leaf("SizeInBytes", bytes);
            if let Some(file) = file {
                xml.leaf("FilePath", file);
            }
            xml.end();
        }
    }
    xml.end();
    xml.leaf("ParallelAsyncIO", false);
    if let Some((burst, think)) = profile.burst {
        xml.leaf("BurstSize", burst);
        xml.leaf("ThinkTime", think);
    }
    if let Some(bytes) = profile.create_bytes {
        xml.leaf("FileSize", bytes);
    }
    access(xml, profile);
    xml.leaf("ThreadStride", profile.thread_stride_bytes);
    xml.leaf("MaxFileSize", profile.end_bytes.unwrap_or(0));
    xml.leaf("RequestCount", profile.of_target());
    xml.leaf("WriteRatio", profile.write_percent);
    match profile.rate {
        Some(DiskspdRate::Iops(iops)) => {
            xml.line(&format!("<Throughput unit=\"IOPS\">{iops}</Throughput>"));
        }
        Some(DiskspdRate::BytesPerMs(bytes)) => xml.leaf("Throughput", bytes),
        None => xml.leaf("Throughput", 0),
    }
    xml.leaf("ThreadsPerFile", if profile.total_threads { 1 } else { profile.threads });
    xml.leaf("IOPriority", profile.priority);
    xml.leaf("Weight", 1);
    xml.end();
}

fn access(xml: &mut Writer, profile: &Profile) {
    match profile.access {
        Access::Sequential { .. } => {
            xml.leaf("StrideSize", profile.align_bytes());
            xml.leaf("InterlockedSequential", false);
        }
        Access::Random { percent, .. } => {
            xml.leaf("Random", profile.align_bytes());
            if percent < 100 {
                xml.leaf("RandomRatio", percent);
            }
        }
    }
    let Some(asked) = &profile.distribution else { return };
    let name = match asked {
        Distribution::Percent(_) => "Percent",
        Distribution::Absolute(_) => "Absolute",
    };
    xml.begin("Distribution");
    xml.begin(name);
    for range in distribution::asked(asked) {
        xml.line(&format!("<Range IO=\"{}\">{}</Range>", range.io_percent, range.length));
    }
    xml.end();
    xml.end();
}

/// Effective distribution of `-rd` on a target; holes are ranges without requests.
fn effective(xml: &mut Writer, ranges: &[Range]) {
    if ranges.is_empty() {
        return;
    }
    xml.begin("Distribution");
    xml.begin("Absolute");
    let mut at = 0;
    for range in ranges {
        if range.from > at {
            xml.line(&format!("<Range IO=\"0\">{}</Range>", range.from - at));
        }
        xml.line(&format!("<Range IO=\"{}\">{}</Range>", range.io_percent, range.length));
        at = range.from.saturating_add(range.length);
    }
    xml.end();
    xml.end();
}

/// Hexadecimal mask of the first `cpus` CPUs, of any number.
fn mask_of(cpus: usize) -> String {
    let first = match cpus % 4 {
        0 => String::new(),
        rest => format!("{:x}", (1 << rest) - 1),
    };
    format!("0x{first}{}", "f".repeat(cpus / 4))
}

impl DiskspdReport<'_> {
    /// The complete report.
    pub fn xml(&self) -> String {
        let mut xml = Writer::default();
        xml.begin("Results");
        self.system_element(&mut xml);
        profile_element(&mut xml, self.profile);
        xml.begin("TimeSpan");
        if self.seconds > 0.0 {
            self.time_span(&mut xml);
        } else {
            let text =
                "The test was interrupted before the measurements began. No results are displayed.";
            xml.leaf("Error", text);
        }
        xml.end();
        xml.end();
        xml.out
    }

    fn system_element(&self, xml: &mut Writer) {
        let utc = format_utc(self.system.started_unix_s);
        let part = |from: usize, to: usize| utc.get(from..to).unwrap_or("00").to_owned();
        xml.begin("System");
        xml.leaf("ComputerName", &self.system.computer);
        xml.begin("Tool");
        xml.leaf("Version", "2.2.0");
        xml.leaf("VersionDate", "2024/6/3");
        xml.end();
        xml.leaf(
            "RunTime",
            format_args!(
                "{}/{}/{} {}:{}:{} UTC",
                part(0, 4),
                part(4, 6),
                part(6, 8),
                part(9, 11),
                part(11, 13),
                part(13, 15)
            ),
        );
        let scheme = escaped(&self.system.power_scheme);
        xml.line(&format!("<PowerScheme Name=\"{scheme}\" Guid=\"\"/>"));
        self.topology(xml);
        xml.end();
    }

    /// All CPUs are one group, node and socket, as in the text report.
    fn topology(&self, xml: &mut Writer) {
        let cpus = self.system.cpus;
        let all = mask_of(cpus);
        xml.begin("ProcessorTopology Heterogeneous=\"false\"");
        xml.line(&format!(
            "<Group Group=\"0\" MaximumProcessors=\"{cpus}\" ActiveProcessors=\"{cpus}\" ActiveProcessorMask=\"{all}\"/>"
        ));
        for name in ["Node", "Socket"] {
            xml.begin(&format!("{name} {name}=\"0\""));
            xml.line(&format!("<Group Group=\"0\" Mask=\"{all}\"/>"));
            xml.end();
        }
        for cpu in 0..cpus {
            let mask = format!("0x{:x}{}", 1 << (cpu % 4), "0".repeat(cpu / 4));
            xml.line(&format!(
                "<Core Group=\"0\" Core=\"{cpu}\" Mask=\"{mask}\" EfficiencyClass=\"0\"/>"
            ));
        }
        xml.end();
    }

    fn time_span(&self, xml: &mut Writer) {
        xml.leaf("TestTimeSeconds", format_args!("{:.2}", self.seconds));
        xml.leaf("ThreadCount", self.threads.len());
        xml.leaf("RequestCount", self.profile.pool().1);
        xml.leaf("ProcCount", self.system.cpus);
        self.cpu_element(xml);
        if self.profile.latency {
            self.latency_element(xml);
        }
        if let Some(ms) = self.profile.interval_ms {
            iops_element(xml, &self.series(), ms);
        }
        for (at, thread) in self.threads.iter().enumerate() {
            xml.begin("Thread");
            xml.leaf("Id", at);
            self.thread_target(xml, thread);
            xml.end();
        }
    }

    fn cpu_element(&self, xml: &mut Writer) {
        let figures = |xml: &mut Writer, cpu: &CpuUse| {
            xml.leaf("UsagePercent", format_args!("{:.2}", cpu.busy_percent()));
            xml.leaf("UserPercent", format_args!("{:.2}", cpu.user_percent));
            xml.leaf("KernelPercent", format_args!("{:.2}", cpu.kernel_percent));
            xml.leaf("IdlePercent", format_args!("{:.2}", cpu.idle_percent));
        };
        xml.begin("CpuUtilization");
        for (at, cpu) in self.cpus.iter().enumerate() {
            xml.begin("CPU");
            for name in ["Socket", "Node", "Group"] {
                xml.leaf(name, 0);
            }
            xml.leaf("Core", at);
            xml.leaf("EfficiencyClass", 0);
            xml.leaf("Id", at);
            figures(xml, cpu);
            xml.end();
        }
        xml.begin("Average");
        figures(xml, &CpuUse::mean(&self.cpus));
        xml.end();
        xml.end();
    }

    fn latency_element(&self, xml: &mut Writer) {
        let of = |section| count(section, self.threads.iter()).latency;
        let sums = [
            ("Read", of(Section::Read)),
            ("Write", of(Section::Write)),
            ("Total", of(Section::Total)),
        ];
        let [read, write, total] = [0, 1, 2].map(|at: usize| sums[at].1.bins());
        xml.begin(&format!(
            "Latency ReadHistoBuckets=\"{read}\" WriteHistoBuckets=\"{write}\" TotalHistoBuckets=\"{total}\""
        ));
        for (name, sum) in sums.iter().filter(|(_, sum)| !sum.is_empty()) {
            let deviation = if *name == "Total" { "" } else { name };
            xml.ms(&format!("Average{name}Milliseconds"), sum.mean_us());
            xml.ms(&format!("{deviation}LatencyStdev"), sum.stddev_us());
        }
        let mut bucket = |name: &str, figure: &dyn Fn(&crate::measurement::LatencySum) -> f64| {
            xml.begin("Bucket");
            xml.leaf("Percentile", name);
            for (name, sum) in sums.iter().filter(|(_, sum)| !sum.is_empty()) {
                xml.ms(&format!("{name}Milliseconds"), figure(sum));
            }
            xml.end();
        };
        bucket("0", &|sum| sum.min_us());
        let nines = ["99.9", "99.99", "99.999", "99.9999", "99.99999", "99.999999", "99.9999999"];
        let whole = (1..=99).map(|percent: u32| percent.to_string());
        for name in whole.chain(nines.map(str::to_owned)) {
            let percent: f64 = name.parse().expect("the names are numbers");
            bucket(&name, &|sum| sum.percentile_us(percent).unwrap_or(0.0));
        }
        bucket("100", &|sum| sum.max_us());
        xml.end();
    }

    fn thread_target(&self, xml: &mut Writer, thread: &Thread) {
        let of = |section| thread.count(section);
        let (read, write, total) = (of(Section::Read), of(Section::Write), of(Section::Total));
        xml.begin("Target");
        xml.leaf("Path", &thread.path);
        xml.leaf("BytesCount", total.bytes);
        xml.leaf("FileSize", thread.file_bytes);
        xml.leaf("IOCount", total.ios);
        xml.leaf("ReadBytes", read.bytes);
        xml.leaf("ReadCount", read.ios);
        xml.leaf("WriteBytes", write.bytes);
        xml.leaf("WriteCount", write.ios);
        effective(xml, &distribution::effective(self.profile, thread.file_bytes));
        if self.profile.latency {
            for (name, sum) in [("Read", &read), ("Write", &write), ("", &total)] {
                if !sum.latency.is_empty() {
                    xml.ms(&format!("Average{name}LatencyMilliseconds"), sum.latency.mean_us());
                    xml.ms(&format!("{name}LatencyStdev"), sum.latency.stddev_us());
                }
            }
        }
        if let Some(ms) = self.profile.interval_ms {
            iops_element(xml, &thread.series, ms);
        }
        xml.end();
    }
}

fn iops_element(xml: &mut Writer, series: &Series, interval_ms: u64) {
    xml.begin("Iops");
    for (name, iops) in
        [("Read", &series.read_iops), ("Write", &series.write_iops), ("", &series.total_iops())]
    {
        xml.leaf(&format!("{name}IopsStdDev"), format_args!("{:.3}", deviation(iops)));
    }
    for (at, (read, write)) in series.read_iops.iter().zip(&series.write_iops).enumerate() {
        let total = read + write;
        xml.line(&format!(
            "<Bucket SampleMillisecond=\"{}\" Read=\"{read:.0}\" Write=\"{write:.0}\" Total=\"{total:.0}\"/>",
            interval_ms * (at as u64 + 1)
        ));
    }
    xml.end();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_cpus() {
        assert_eq!([1, 2, 4, 6, 8].map(mask_of), ["0x1", "0x3", "0xf", "0x3f", "0xff"]);
        assert_eq!(mask_of(66), "0x3ffffffffffffffff");
    }

    #[test]
    fn text_in_xml_is_escaped() {
        assert_eq!(escaped("a<b>&\"c\"\u{1}"), "a&lt;b&gt;&amp;&quot;c&quot;\u{fffd}");
        let words = ["-r", "-Rpxml", "a&b"].map(str::to_owned);
        let text = profile(&crate::diskspd::parse(&words).unwrap().profile);
        assert!(text.contains("<Path>a&amp;b</Path>") && text.contains("<Random>65536</Random>"));
        assert!(text.starts_with("<Profile>\n  <Progress>") && text.ends_with("</Profile>\n"));
    }
}
