//! fio command lines and job files: pure functions of a job and a target.

use std::fmt::Write as _;
use std::path::Path;

use crate::error::Error;
use crate::job::{BenchJob, Buffers};
use crate::target::{BenchTarget, DiskAddress};

/// fio's options for a job: global ones, and a section for each disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FioJobOptions {
    pub global: Vec<(String, String)>,
    /// Name and options of each disk's section.
    pub sections: Vec<(String, Vec<(String, String)>)>,
}

#[derive(Clone, Copy, Debug)]
pub struct Logs<'a> {
    pub prefix: &'a Path,
    pub interval_ms: u64,
}

/// fio's options for a job. `engine` is for disks with a path and jobs without an engine.
///
/// # Errors
/// A target or job that fio does not support.
pub fn options(
    job: &BenchJob,
    target: &BenchTarget,
    engine: &str,
    logs: Option<Logs<'_>>,
) -> Result<FioJobOptions, Error> {
    job.check().map_err(Error::Usage)?;
    let mut global = of_job(job);
    if let Some(logs) = logs {
        let per_job = u8::from(job.per_thread).to_string();
        let interval = logs.interval_ms.to_string();
        let prefix = logs.prefix.display().to_string();
        for (key, value) in
            [("write_iops_log", prefix), ("log_avg_msec", interval), ("per_job_logs", per_job)]
        {
            global.push((key.to_owned(), value));
        }
    }
    let used = match job.disks as usize {
        0 => target.disks.len(),
        disks if disks <= target.disks.len() => disks,
        disks => {
            return Err(Error::Usage(format!(
                "job {} uses {disks} disks and {} has {}",
                job.name,
                target.name,
                target.disks.len()
            )));
        }
    };
    let mut sections = Vec::new();
    for (at, disk) in target.disks[..used].iter().enumerate() {
        let name = if used == 1 { job.name.clone() } else { format!("{}.{at}", job.name) };
        sections.push((name, of_disk(disk, job.engine.as_deref().unwrap_or(engine))?));
    }
    Ok(FioJobOptions { global, sections })
}

fn of_disk(disk: &DiskAddress, engine: &str) -> Result<Vec<(String, String)>, Error> {
    let pair = |key: &str, value: String| (key.to_owned(), value);
    match disk {
        DiskAddress::Path(path) => {
            let path = path.to_str().ok_or_else(|| {
                Error::Usage(format!("{}: fio takes no path that is not UTF-8", path.display()))
            })?;
            // A colon separates file names in fio.
            let name = path.replace('\\', "\\\\").replace(':', "\\:");
            Ok(vec![pair("ioengine", engine.to_owned()), pair("filename", name)])
        }
        DiskAddress::Nbd(uri) => {
            Ok(vec![pair("ioengine", "nbd".to_owned()), pair("uri", uri.clone())])
        }
        DiskAddress::NvmeTcp(uri) => Err(Error::Usage(format!(
            "{uri}: fio has no engine for it: use nvme connect and name the device, or leave it to \
             our own generator"
        ))),
    }
}

fn of_job(job: &BenchJob) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    let mut add = |key: &str, value: String| out.push((key.to_owned(), value));
    let skip = if job.skip_bytes > 0 { format!(":{}", job.skip_bytes) } else { String::new() };
    add("rw", format!("{}{skip}", job.pattern.name()));
    if job.pattern.is_mixed() {
        add("rwmixwrite", job.write_percent.to_string());
    }
    add("bs", job.block_bytes.to_string());
    add("iodepth", job.depth.to_string());
    add("numjobs", job.threads.to_string());
    add("thread", "1".to_owned());
    add("direct", u8::from(job.direct).to_string());
    if job.sync {
        add("sync", "dsync".to_owned());
    }
    add("time_based", "1".to_owned());
    if job.ramp_ms > 0 {
        add("ramp_time", format!("{}ms", job.ramp_ms));
    }
    add("runtime", format!("{}ms", job.runtime_ms));
    if job.offset_bytes > 0 {
        add("offset", job.offset_bytes.to_string());
    }
    if let Some(size) = job.size_bytes {
        add("size", size.to_string());
    }
    if job.offset_increment_bytes > 0 {
        add("offset_increment", job.offset_increment_bytes.to_string());
    }
    if job.pattern.is_random() && !job.random_map {
        add("norandommap", "1".to_owned());
    }
    match job.seed {
        Some(seed) => add("randseed", seed.to_string()),
        None => add("randrepeat", "0".to_owned()),
    }
    match job.rate_iops {
        // fio limits reads and writes separately.
        Some(rate) if job.pattern.is_mixed() => {
            let writes = rate * u64::from(job.write_percent) / 100;
            // 0 would be no limit.
            add("rate_iops", format!("{},{}", (rate - writes).max(1), writes.max(1)));
        }
        Some(rate) => add("rate_iops", rate.to_string()),
        None => {}
    }
    match &job.buffers {
        Buffers::Scrambled => {}
        Buffers::Random => add("refill_buffers", "1".to_owned()),
        Buffers::Zero => add("zero_buffers", "1".to_owned()),
        Buffers::Pattern(bytes) => {
            let mut hex = String::from("0x");
            for byte in bytes {
                let _ = write!(hex, "{byte:02x}");
            }
            add("buffer_pattern", hex);
        }
        Buffers::File(path) => add("buffer_pattern", format!("'{path}'")),
    }
    if !job.extra.iter().any(|(key, _)| key == "gtod_reduce") {
        // Percentiles of the total latency from submission to completion, as users see it.
        add("lat_percentiles", "1".to_owned());
        add("clat_percentiles", "0".to_owned());
    }
    if !job.per_thread {
        add("group_reporting", "1".to_owned());
    }
    for (key, value) in &job.extra {
        add(key, value.clone());
    }
    out
}

impl FioJobOptions {
    /// Arguments of fio, without the program's name.
    pub fn arguments(&self) -> Vec<String> {
        let option = |(key, value): &(String, String)| format!("--{key}={value}");
        let mut out = vec!["--output-format=json+".to_owned()];
        out.extend(self.global.iter().map(option));
        for (name, own) in &self.sections {
            out.push(format!("--name={name}"));
            out.extend(own.iter().map(option));
        }
        out
    }

    pub fn job_file(&self) -> String {
        let mut out = String::from("[global]\n");
        for (key, value) in &self.global {
            let _ = writeln!(out, "{key}={value}");
        }
        for (name, own) in &self.sections {
            let _ = writeln!(out, "\n[{name}]");
            for (key, value) in own {
                let _ = writeln!(out, "{key}={value}");
            }
        }
        out
    }

    /// The complete command line, quoted for a shell.
    pub fn command(&self) -> String {
        shell("fio", &self.arguments())
    }
}

/// A command line, quoted for a shell.
pub fn shell(program: &str, arguments: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,%@".contains(c);
    let mut out = program.to_owned();
    for argument in arguments {
        out.push(' ');
        if !argument.is_empty() && argument.chars().all(plain) {
            out += argument;
        } else {
            out += &format!("'{}'", argument.replace('\'', "'\\''"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobPattern;

    fn target(text: &str) -> BenchTarget {
        text.parse().unwrap()
    }

    #[test]
    fn default_job_arguments() {
        let job = BenchJob { name: "quick".to_owned(), seed: Some(7), ..BenchJob::default() };
        let file = options(&job, &target("/dev/x:1"), "libaio", None).unwrap().job_file();
        assert_eq!(
            file,
            "[global]\nrw=randread\nbs=4096\niodepth=1\nnumjobs=1\nthread=1\ndirect=1\n\
             time_based=1\nramp_time=2000ms\nruntime=10000ms\nnorandommap=1\nrandseed=7\n\
             lat_percentiles=1\nclat_percentiles=0\ngroup_reporting=1\n\
             \n[quick]\nioengine=libaio\nfilename=/dev/x\\:1\n"
        );
    }

    #[test]
    fn all_job_options_on_two_disks_of_three() {
        let job = BenchJob {
            name: "all".to_owned(),
            pattern: JobPattern::RandRw,
            write_percent: 30,
            block_bytes: 8192,
            depth: 3,
            threads: 8,
            disks: 2,
            ramp_ms: 0,
            runtime_ms: 1500,
            offset_bytes: 4096,
            size_bytes: Some(1 << 30),
            offset_increment_bytes: 512,
            sync: true,
            buffers: Buffers::Pattern(vec![0, 255]),
            rate_iops: Some(100),
            random_map: true,
            per_thread: true,
            extra: vec![("iomem".to_owned(), "mmap".to_owned())],
            ..BenchJob::default()
        };
        let logs = Logs { prefix: Path::new("log"), interval_ms: 500 };
        let made =
            options(&job, &target("nbd://h/a,nbd://h/b,nbd://h/c"), "x", Some(logs)).unwrap();
        assert_eq!(
            made.command(),
            "fio --output-format=json+ --rw=randrw --rwmixwrite=30 --bs=8192 --iodepth=3 --numjobs=8 \
             --thread=1 --direct=1 --sync=dsync --time_based=1 --runtime=1500ms --offset=4096 \
             --size=1073741824 --offset_increment=512 --randrepeat=0 --rate_iops=70,30 \
             --buffer_pattern=0x00ff --lat_percentiles=1 --clat_percentiles=0 --iomem=mmap \
             --write_iops_log=log --log_avg_msec=500 --per_job_logs=1 \
             --name=all.0 --ioengine=nbd --uri=nbd://h/a --name=all.1 --ioengine=nbd --uri=nbd://h/b"
        );
    }

    #[test]
    fn unsupported_fio_jobs_are_refused() {
        let job = BenchJob { disks: 2, ..BenchJob::default() };
        assert!(options(&job, &target("/a"), "x", None).is_err());
        assert!(options(&BenchJob::default(), &target("nvme-tcp://h/n"), "x", None).is_err());
    }

    #[test]
    fn shell_quoting_of_commands() {
        let words = ["a b".to_owned(), "it's".to_owned(), "--x=1".to_owned(), String::new()];
        assert_eq!(shell("fio", &words), r"fio 'a b' 'it'\''s' --x=1 ''");
    }
}
