//! XML report of diskspd, in the form of version 2.2.

use std::fmt::Display;

use quick_xml::events::{BytesEnd, BytesStart, BytesText, Event};

use super::distribution::{self, Range};
use super::profile::{
    Affinity, Cache, DiskspdAccess, DiskspdFormat, DiskspdRate, Distribution, Profile, WriteContent,
};
use super::report::{DiskspdReport, Section, Thread, count, deviation};
use crate::cpu::CpuUse;
use crate::fio::series::Series;
use crate::measurement::LatencySum;

struct Writer {
    out: quick_xml::Writer<Vec<u8>>,
    open: Vec<String>,
}

impl Writer {
    fn new() -> Writer {
        let out = quick_xml::Writer::new_with_indent(Vec::new(), b' ', 2);
        Writer { out, open: Vec::new() }
    }

    fn write(&mut self, event: Event<'_>) {
        self.out.write_event(event).expect("memory can be written");
    }

    fn begin_with(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.write(Event::Start(element(name, attributes)));
        self.open.push(name.to_owned());
    }

    fn begin(&mut self, name: &str) {
        self.begin_with(name, &[]);
    }

    fn end(&mut self) {
        if let Some(name) = self.open.pop() {
            self.write(Event::End(BytesEnd::new(name)));
        }
    }

    fn empty(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.write(Event::Empty(element(name, attributes)));
    }

    fn leaf_with(&mut self, name: &str, attributes: &[(&str, &str)], value: impl Display) {
        self.begin_with(name, attributes);
        self.write(Event::Text(BytesText::new(&clean(&value.to_string()))));
        self.end();
    }

    fn leaf(&mut self, name: &str, value: impl Display) {
        self.leaf_with(name, &[], value);
    }

    fn ms(&mut self, name: &str, us: f64) {
        self.leaf(name, format_args!("{:.3}", us / 1e3));
    }

    fn finish(self) -> String {
        String::from_utf8_lossy(&self.out.into_inner()).into_owned() + "\n"
    }
}

fn element<'a>(name: &'a str, attributes: &[(&str, &str)]) -> BytesStart<'a> {
    let mut element = BytesStart::new(name);
    attributes.iter().for_each(|(key, value)| element.push_attribute((*key, &*clean(value))));
    element
}

/// A text without control characters, which XML 1.0 does not have.
fn clean(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\t', "\u{fffd}")
}

/// The profile only: the output of `-Rpxml`.
pub fn profile(profile: &Profile) -> String {
    let mut xml = Writer::new();
    profile_element(&mut xml, profile);
    xml.finish()
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
            let cpu = cpu.to_string();
            xml.empty("AffinityGroupAssignment", &[("Group", "0"), ("Processor", &cpu)]);
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
            xml.leaf_with("Throughput", &[("unit", "IOPS")], iops);
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
        DiskspdAccess::Sequential { .. } => {
            xml.leaf("StrideSize", profile.align_bytes());
            xml.leaf("InterlockedSequential", false);
        }
        DiskspdAccess::Random { percent, .. } => {
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
        xml.leaf_with("Range", &[("IO", &range.io_percent.to_string())], range.length);
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
            xml.leaf_with("Range", &[("IO", "0")], range.from - at);
        }
        xml.leaf_with("Range", &[("IO", &range.io_percent.to_string())], range.length);
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
    pub fn xml(&self) -> String {
        let mut xml = Writer::new();
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
        xml.finish()
    }

    fn system_element(&self, xml: &mut Writer) {
        xml.begin("System");
        xml.leaf("ComputerName", &self.system.computer);
        xml.begin("Tool");
        xml.leaf("Version", "2.2.0");
        xml.leaf("VersionDate", "2024/6/3");
        xml.end();
        xml.leaf("RunTime", self.system.started());
        xml.empty("PowerScheme", &[("Name", &self.system.power_scheme), ("Guid", "")]);
        self.topology(xml);
        xml.end();
    }

    /// All CPUs are one group, node and socket, as in the text report.
    fn topology(&self, xml: &mut Writer) {
        let cpus = self.system.cpus.to_string();
        let all = mask_of(self.system.cpus);
        xml.begin_with("ProcessorTopology", &[("Heterogeneous", "false")]);
        let active = [("MaximumProcessors", &*cpus), ("ActiveProcessors", &cpus)];
        let mask = [("ActiveProcessorMask", &*all)];
        xml.empty("Group", &[&[("Group", "0")], &active[..], &mask].concat());
        for name in ["Node", "Socket"] {
            xml.begin_with(name, &[(name, "0")]);
            xml.empty("Group", &[("Group", "0"), ("Mask", &all)]);
            xml.end();
        }
        for cpu in 0..self.system.cpus {
            let mask = format!("0x{:x}{}", 1 << (cpu % 4), "0".repeat(cpu / 4));
            let core = [("Group", "0"), ("Core", &*cpu.to_string()), ("Mask", &mask)];
            xml.empty("Core", &[&core[..], &[("EfficiencyClass", "0")]].concat());
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
        let buckets = [0, 1, 2].map(|at: usize| sums[at].1.bins().to_string());
        let names = ["ReadHistoBuckets", "WriteHistoBuckets", "TotalHistoBuckets"];
        let attributes: Vec<_> =
            names.into_iter().zip(buckets.iter().map(String::as_str)).collect();
        xml.begin_with("Latency", &attributes);
        for (name, sum) in sums.iter().filter(|(_, sum)| !sum.is_empty()) {
            let deviation = if *name == "Total" { "" } else { name };
            xml.ms(&format!("Average{name}Milliseconds"), sum.mean_us());
            xml.ms(&format!("{deviation}LatencyStdev"), sum.stddev_us());
        }
        let mut bucket = |name: &str, figure: &dyn Fn(&LatencySum) -> f64| {
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
        let names = ["SampleMillisecond", "Read", "Write", "Total"];
        let end_ms = (interval_ms * (at as u64 + 1)).to_string();
        let values = [end_ms, format!("{read:.0}"), format!("{write:.0}"), format!("{total:.0}")];
        let attributes: Vec<_> = names.into_iter().zip(values.iter().map(String::as_str)).collect();
        xml.empty("Bucket", &attributes);
    }
    xml.end();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xml_cpu_masks() {
        assert_eq!([1, 2, 4, 6, 8].map(mask_of), ["0x1", "0x3", "0xf", "0x3f", "0xff"]);
        assert_eq!(mask_of(66), "0x3ffffffffffffffff");
    }

    #[test]
    fn text_in_xml_is_escaped() {
        let mut xml = Writer::new();
        xml.empty("e", &[("a", "<\"\u{1}")]);
        xml.leaf("t", "a<b>&\u{1}");
        let escaped = "<e a=\"&lt;&quot;\u{fffd}\"/>\n<t>a&lt;b&gt;&amp;\u{fffd}</t>\n";
        assert_eq!(xml.finish(), escaped);
        let words = ["-r", "-Rpxml", "a&b"].map(str::to_owned);
        let text = profile(&crate::diskspd::parse(&words).unwrap().profile);
        assert!(text.contains("<Path>a&amp;b</Path>") && text.contains("<Random>65536</Random>"));
        assert!(text.starts_with("<Profile>\n  <Progress>") && text.ends_with("</Profile>\n"));
    }
}
