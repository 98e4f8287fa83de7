//! Translation of a diskspd profile into one fio job.

use std::path::PathBuf;

use super::profile::{
    Affinity, Cache, DiskspdAccess, DiskspdRate, Distribution, Profile, WriteContent,
};
use crate::error::Error;
use crate::job::{AccessPattern, BenchJob, Buffers};
use crate::target::{BenchTarget, DiskAddress};

#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    pub job: BenchJob,
    pub target: BenchTarget,
    pub warnings: Vec<String>,
}

/// diskspd's default contents of writes: bytes 0 to 255, repeated.
fn pattern() -> Vec<u8> {
    (0..=255).collect()
}

/// Translates a profile. `cpus` is the list of usable CPUs, such as `0-3,8`.
pub fn translate(profile: &Profile, cpus: &str) -> Result<Translation, Error> {
    let mut warnings = Vec::new();
    let mut job = BenchJob {
        name: "diskspd".to_owned(),
        pattern: fio_pattern(profile),
        block_bytes: profile.block_bytes,
        write_percent: profile.write_percent,
        depth: profile.outstanding,
        threads: profile.threads,
        ramp_ms: profile.warm_up_s.saturating_mul(1000),
        runtime_ms: profile.duration_s.saturating_mul(1000),
        offset_bytes: profile.base_bytes,
        size_bytes: size(profile)?,
        offset_increment_bytes: profile.thread_stride_bytes,
        direct: profile.cache == Cache::Unbuffered,
        sync: profile.write_through,
        seed: profile.seed,
        interval_ms: profile.interval_ms,
        per_thread: true,
        ..BenchJob::default()
    };
    let mut extra: Vec<(&str, String)> = Vec::new();
    access(profile, &mut job, &mut extra)?;
    content(profile, &mut job, &mut warnings);
    rate(profile, &mut job, &mut extra, &mut warnings);
    match &profile.affinity {
        Affinity::None => {}
        Affinity::All => extra.push(("cpus_allowed", cpus.to_owned())),
        Affinity::Cpus(list) => {
            let list: Vec<_> = list.iter().map(u32::to_string).collect();
            extra.push(("cpus_allowed", list.join(",")));
        }
    }
    if profile.affinity != Affinity::None {
        extra.push(("cpus_allowed_policy", "split".to_owned()));
    }
    match profile.priority {
        1 => extra.push(("prioclass", "3".to_owned())),
        2 => extra.push(("prio", "7".to_owned())),
        _ => {}
    }
    if profile.cache == Cache::Mapped {
        job.engine = Some("mmap".to_owned());
        if profile.outstanding > 1 {
            warnings.push("-Sm: fio's mapped I/O has one request in flight a thread".to_owned());
        }
        if profile.flush_views {
            extra.push(("fsync", "1".to_owned()));
        }
    }
    if profile.large_pages {
        extra.push(("iomem", "mmaphuge".to_owned()));
    }
    if profile.random_hint || profile.sequential_hint {
        let hint = if profile.random_hint { "random" } else { "sequential" };
        extra.push(("fadvise_hint", hint.to_owned()));
    }
    if !profile.latency {
        extra.push(("gtod_reduce", "1".to_owned()));
    }
    job.extra = extra.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    job.check().map_err(Error::Usage)?;
    let disks = profile.targets.iter().map(|path| DiskAddress::Path(PathBuf::from(path))).collect();
    Ok(Translation { job, target: BenchTarget { name: "diskspd".to_owned(), disks }, warnings })
}

fn fio_pattern(profile: &Profile) -> AccessPattern {
    match (profile.is_random(), profile.write_percent) {
        (true, 0) => AccessPattern::RandRead,
        (true, 100) => AccessPattern::RandWrite,
        (true, _) => AccessPattern::RandRw,
        (false, 0) => AccessPattern::Read,
        (false, 100) => AccessPattern::Write,
        (false, _) => AccessPattern::Rw,
    }
}

/// Size of the accessed range from the base on, in bytes.
fn size(profile: &Profile) -> Result<Option<u64>, Error> {
    let end = match (profile.end_bytes, profile.create_bytes) {
        (Some(end), Some(created)) => Some(end.min(created)),
        (end, created) => end.or(created),
    };
    let Some(end) = end else { return Ok(None) };
    let too_small = || Error::usage(format!("-b: no block of {} bytes fits", profile.block_bytes));
    let size = end.checked_sub(profile.base_bytes).ok_or_else(too_small)?;
    if size < profile.block_bytes { Err(too_small()) } else { Ok(Some(size)) }
}

fn access(
    profile: &Profile,
    job: &mut BenchJob,
    extra: &mut Vec<(&str, String)>,
) -> Result<(), Error> {
    match profile.access {
        DiskspdAccess::Sequential { stride_bytes } => {
            let stride = stride_bytes.unwrap_or(profile.block_bytes);
            job.skip_bytes = stride.checked_sub(profile.block_bytes).ok_or_else(|| {
                Error::usage("-s: strides smaller than a block cannot be done with fio")
            })?;
        }
        DiskspdAccess::Random { align_bytes, percent } => {
            if let Some(align) = align_bytes.filter(|align| *align != profile.block_bytes) {
                extra.push(("blockalign", align.to_string()));
            }
            if percent < 100 {
                extra.push(("percentage_random", percent.to_string()));
            }
        }
    }
    let Some(distribution) = &profile.distribution else { return Ok(()) };
    let join = |name: &str, ranges: &[(u64, u64)]| {
        let ranges: Vec<_> = ranges.iter().map(|(io, target)| format!("{io}/{target}")).collect();
        format!("{name}:{}", ranges.join(":"))
    };
    let value = match distribution {
        Distribution::Percent(ranges) => join("zoned", ranges),
        Distribution::Absolute(ranges) => {
            let mut ranges = ranges.clone();
            let left = 100 - ranges.iter().map(|(io, _)| io).sum::<u64>();
            if left > 0 {
                let used = ranges.iter().fold(0u64, |sum, (_, size)| sum.saturating_add(*size));
                let rest =
                    job.size_bytes.and_then(|size| size.checked_sub(used)).filter(|r| *r > 0);
                let rest = rest.ok_or_else(|| {
                    Error::usage(format!(
                        "-rdabs: {left} % of the requests go to the rest, and its size is not known: \
                         say it with -c or -f"
                    ))
                })?;
                ranges.push((left, rest));
            }
            join("zoned_abs", &ranges)
        }
    };
    extra.push(("random_distribution", value));
    Ok(())
}

fn content(profile: &Profile, job: &mut BenchJob, warnings: &mut Vec<String>) {
    job.buffers = match &profile.content {
        WriteContent::Pattern => Buffers::Pattern(pattern()),
        WriteContent::Zero => Buffers::Zero,
        WriteContent::Random => Buffers::Random,
        WriteContent::Buffer { file: Some(file), .. } => Buffers::File(file.clone()),
        WriteContent::Buffer { file: None, .. } => {
            if profile.write_percent > 0 {
                warnings
                    .push("-Z: fio's random data changes a little with each request".to_owned());
            }
            Buffers::Scrambled
        }
    };
    if profile.write_percent == 0 {
        job.buffers = Buffers::Scrambled;
    }
}

fn rate(
    profile: &Profile,
    job: &mut BenchJob,
    extra: &mut Vec<(&str, String)>,
    warnings: &mut Vec<String>,
) {
    match profile.rate {
        Some(DiskspdRate::Iops(iops)) => job.rate_iops = Some(iops),
        Some(DiskspdRate::BytesPerMs(bytes)) => {
            let rate = bytes.saturating_mul(1000);
            // fio limits reads and writes separately.
            let writes = rate / 100 * u64::from(profile.write_percent);
            let mixed = job.pattern.is_mixed();
            let value =
                if mixed { format!("{},{writes}", rate - writes) } else { rate.to_string() };
            extra.push(("rate", value));
        }
        None => {}
    }
    if let Some((requests, pause_ms)) = profile.burst {
        extra.push(("thinktime", format!("{pause_ms}ms")));
        extra.push(("thinktime_blocks", requests.to_string()));
        if requests < profile.outstanding {
            // fio counts completed requests: in a deeper queue up to twice the burst would start
            // meanwhile.
            job.depth = requests;
            warnings.push("-i: fio keeps no more requests in flight than a burst has".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diskspd::parse;
    use crate::fio::arguments::options;

    fn translation(line: &str) -> Result<Translation, Error> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        translate(&parse(&words).unwrap_or_else(|error| panic!("{line}: {error}")).profile, "0-1")
    }

    fn command(line: &str) -> String {
        let found = translation(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        options(&found.job, &found.target, "libaio", None).unwrap().command()
    }

    #[test]
    fn published_diskspd_command() {
        let pattern: String = (0..=255).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            command("-c96G -d10 -r -w100 -t8 -o3 -b64K -Sh -L data.dat"),
            format!(
                "fio --output-format=json+ --rw=randwrite --bs=65536 --iodepth=3 --numjobs=8 --thread=1 \
                 --direct=1 --sync=dsync --time_based=1 --ramp_time=5000ms --runtime=10000ms \
                 --size=103079215104 --norandommap=1 --randseed=0 --buffer_pattern=0x{pattern} \
                 --lat_percentiles=1 --clat_percentiles=0 --cpus_allowed=0-1 \
                 --cpus_allowed_policy=split --name=diskspd --ioengine=libaio --filename=data.dat"
            )
        );
    }

    #[test]
    fn each_diskspd_flag_translates() {
        for (line, parts) in [
            ("f", &["--rw=read ", "--bs=65536", "--iodepth=2", "--direct=0", "gtod_reduce=1"][..]),
            ("-s128K f", &["--rw=read:65536 "]),
            ("-w30 f", &["--rw=rw ", "--rwmixwrite=30"]),
            ("-r -w30 -g100i f", &["--rw=randrw ", "--rate_iops=70,30"]),
            ("-r -w30 -g10 f", &["--rate=7000,3000"]),
            ("-g10 f", &["--rate=10000"]),
            ("-r4K f", &["--blockalign=4096"]),
            ("-rs30 f", &["--percentage_random=30"]),
            ("-rdpct90/10 f", &["--random_distribution=zoned:90/10:10/90"]),
            (
                "-rdabs90/1G -c4G f",
                &["--random_distribution=zoned_abs:90/1073741824:10/3221225472"],
            ),
            ("-B1M:2M f", &["--offset=1048576", "--size=2097152"]),
            ("-f4M -B1M f", &["--size=3145728"]),
            ("-t2 -T1M f", &["--offset_increment=1048576"]),
            ("-D250 f", &["--rw=read"]),
            ("-i8 -j5 -o4 f", &["--iodepth=4", "--thinktime=5ms", "--thinktime_blocks=8"]),
            ("-i8 -j5 -o16 f", &["--iodepth=8", "--thinktime=5ms", "--thinktime_blocks=8"]),
            ("-g1 -w1 f", &["--rate=990,10"]),
            ("-g1i -w30 f", &["--rate_iops=1,1"]),
            ("-I1 f", &["--prioclass=3"]),
            ("-I2 f", &["--prio=7"]),
            ("-l f", &["--iomem=mmaphuge"]),
            ("-Sm -Nv f", &["--ioengine=mmap", "--fsync=1"]),
            ("-Su f", &["--direct=1"]),
            ("-Sw f", &["--sync=dsync", "--direct=0"]),
            ("-fr f", &["--fadvise_hint=random"]),
            ("-w1 -Z f", &["--zero_buffers=1"]),
            ("-w1 -Zr f", &["--refill_buffers=1"]),
            ("-w1 -Z1M,x.bin f", &["--buffer_pattern='\\''x.bin'\\''"]),
            ("-z5 f", &["--randseed=5"]),
            ("-z f", &["--randrepeat=0"]),
            ("-a1 f", &["--cpus_allowed=1 "]),
            ("-W0 -d3 f", &["--runtime=3000ms"]),
            (
                "./a:b c",
                &["--name=diskspd.0", "'--filename=./a\\:b'", "--name=diskspd.1", "--filename=c"],
            ),
        ] {
            let found = command(line);
            for part in parts {
                assert!(found.contains(part), "{line}: {part} in {found}");
            }
        }
        assert!(!command("-n f").contains("cpus_allowed"));
        assert!(!command("-W0 f").contains("ramp_time"));
        assert!(!command("-L f").contains("gtod_reduce"));
        assert!(!command("-Z f").contains("zero_buffers"), "reads write nothing");
    }

    #[test]
    fn unsupported_diskspd_flags_are_refused() {
        for (line, part) in [
            ("-s4K f", "-s: strides smaller"),
            ("-rdabs90/1G f", "-rdabs: 10 %"),
            ("-c4K f", "-b: no block"),
            ("-c1M -B2M f", "-b: no block"),
        ] {
            let error = translation(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
        assert_eq!(translation("-i1 -j1 f").unwrap().warnings.len(), 1);
        assert_eq!(translation("-Sm f").unwrap().warnings.len(), 1);
    }
}
