//! fio command lines and job files: pure functions of a job and a target.

use std::fmt::Write as _;
use std::path::Path;

use crate::error::Error;
use crate::job::{BenchJob, Buffers};
use crate::target::{BenchTarget, DiskAddress};

/// fio's options for a job: global ones, and a section for each disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FioJobOptions {
    pub(crate) global: Vec<(String, String)>,
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
    let one = |on: bool| on.then(|| "1".to_owned());
    let above_zero = |value: u64| (value > 0).then(|| value.to_string());
    let skip = above_zero(job.skip_bytes).map_or_else(String::new, |bytes| format!(":{bytes}"));
    let mixed = job.pattern.is_mixed();
    let rate = |rate: u64| {
        // fio limits reads and writes separately; 0 would be no limit.
        let writes = rate * u64::from(job.write_percent) / 100;
        match mixed {
            true => format!("{},{}", (rate - writes).max(1), writes.max(1)),
            false => rate.to_string(),
        }
    };
    let seed = job.seed.map_or(("randrepeat", 0), |seed| ("randseed", seed));
    let content = match &job.buffers {
        Buffers::Scrambled => ("", None),
        Buffers::Random => ("refill_buffers", one(true)),
        Buffers::Zero => ("zero_buffers", one(true)),
        Buffers::Pattern(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            ("buffer_pattern", Some(format!("0x{hex}")))
        }
        Buffers::File(path) => ("buffer_pattern", Some(format!("'{path}'"))),
    };
    // Percentiles of the total latency from submission to completion, as users see it.
    let percentiles = !job.extra.iter().any(|(key, _)| key == "gtod_reduce");
    let options = [
        ("rw", Some(format!("{}{skip}", job.pattern))),
        ("rwmixwrite", mixed.then(|| job.write_percent.to_string())),
        ("bs", Some(job.block_bytes.to_string())),
        ("iodepth", Some(job.depth.to_string())),
        ("numjobs", Some(job.threads.to_string())),
        ("thread", one(true)),
        ("direct", Some(u8::from(job.direct).to_string())),
        ("sync", job.sync.then(|| "dsync".to_owned())),
        ("time_based", one(true)),
        ("ramp_time", above_zero(job.ramp_ms).map(|ms| ms + "ms")),
        ("runtime", Some(format!("{}ms", job.runtime_ms))),
        ("offset", above_zero(job.offset_bytes)),
        ("size", job.size_bytes.map(|bytes| bytes.to_string())),
        ("offset_increment", above_zero(job.offset_increment_bytes)),
        ("norandommap", one(job.pattern.is_random() && !job.random_map)),
        (seed.0, Some(seed.1.to_string())),
        ("rate_iops", job.rate_iops.map(rate)),
        content,
        ("lat_percentiles", one(percentiles)),
        ("clat_percentiles", percentiles.then(|| "0".to_owned())),
        ("group_reporting", one(!job.per_thread)),
    ];
    let given = options.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    given.chain(job.extra.iter().cloned()).collect()
}

impl FioJobOptions {
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
    use crate::job::AccessPattern;

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
            pattern: AccessPattern::RandRw,
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
