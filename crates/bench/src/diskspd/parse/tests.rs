//! Tests of each flag, of refusals and of warnings.

use proptest::prelude::*;

use super::*;
use crate::diskspd::profile::{
    Affinity, Cache, DiskspdAccess, DiskspdFormat, DiskspdRate, Distribution, WriteContent,
};

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn profile(line: &str) -> Profile {
    parse(&words(&format!("{line} f"))).unwrap_or_else(|error| panic!("{line}: {error}")).profile
}

#[test]
fn published_diskspd_command() {
    let found = profile("-c96G -d10 -r -w100 -t8 -o3 -b64K -Sh -L");
    let expected = Profile {
        command_line: "diskspd -c96G -d10 -r -w100 -t8 -o3 -b64K -Sh -L f".to_owned(),
        targets: vec!["f".to_owned()],
        create_bytes: Some(96 << 30),
        threads: 8,
        outstanding: 3,
        latency: true,
        access: DiskspdAccess::Random { align_bytes: None, percent: 100 },
        cache: Cache::Unbuffered,
        write_through: true,
        write_percent: 100,
        ..Profile::default()
    };
    assert_eq!(found, expected);
    assert_eq!((found.warm_up_s, found.duration_s, found.seed), (5, 10, Some(0)));
}

/// Each flag on its own, as a change from the defaults.
#[test]
fn each_diskspd_flag_parses() {
    type Change = fn(&mut Profile);
    let cases: &[(&str, Change)] = &[
        ("-ag", |_| {}),
        ("-a0,2", |p| p.affinity = Affinity::Cpus(vec![0, 2])),
        ("-ag0,1,3", |p| p.affinity = Affinity::Cpus(vec![1, 3])),
        ("-n", |p| p.affinity = Affinity::None),
        ("-b4K", |p| p.block_bytes = 4096),
        ("-B1M", |p| p.base_bytes = 1 << 20),
        ("-B2b", |p| p.base_bytes = 128 << 10),
        ("-B1M:2M", |p| (p.base_bytes, p.end_bytes) = (1 << 20, Some(3 << 20))),
        ("-f1G", |p| p.end_bytes = Some(1 << 30)),
        ("-fr", |p| p.random_hint = true),
        ("-fs", |p| p.sequential_hint = true),
        ("-ft", |_| {}),
        ("-c1T", |p| p.create_bytes = Some(1 << 40)),
        ("-C3", |p| p.cool_down_s = 3),
        ("-d60", |p| p.duration_s = 60),
        ("-W0", |p| p.warm_up_s = 0),
        ("-D", |p| p.interval_ms = Some(1000)),
        ("-D250", |p| p.interval_ms = Some(250)),
        ("-F4", |p| (p.threads, p.total_threads) = (4, true)),
        ("-F4 -O9", |p| {
            (p.threads, p.total_threads, p.outstanding) = (4, true, 9);
            p.total_outstanding = true;
        }),
        ("-t1", |_| {}),
        ("-o32", |p| p.outstanding = 32),
        ("-g100", |p| p.rate = Some(DiskspdRate::BytesPerMs(100))),
        ("-g100i", |p| p.rate = Some(DiskspdRate::Iops(100))),
        ("-i8 -j5", |p| p.burst = Some((8, 5))),
        ("-i8 -j5 -g7", |p| p.rate = Some(DiskspdRate::BytesPerMs(7))),
        ("-I1", |p| p.priority = 1),
        ("-l", |p| p.large_pages = true),
        ("-L", |p| p.latency = true),
        ("-Sm -Nv", |p| (p.cache, p.flush_views) = (Cache::Mapped, true)),
        ("-P100", |_| {}),
        ("-r", |p| p.access = DiskspdAccess::Random { align_bytes: None, percent: 100 }),
        ("-r4K", |p| p.access = DiskspdAccess::Random { align_bytes: Some(4096), percent: 100 }),
        ("-rs30", |p| p.access = DiskspdAccess::Random { align_bytes: None, percent: 30 }),
        ("-rs30 -r8K", |p| {
            p.access = DiskspdAccess::Random { align_bytes: Some(8192), percent: 30 }
        }),
        ("-Rtext", |_| {}),
        ("-Rxml", |p| p.format = DiskspdFormat::Xml),
        ("-Rp", |p| p.profile_only = true),
        ("-Rpxml", |p| (p.format, p.profile_only) = (DiskspdFormat::Xml, true)),
        ("-s", |_| {}),
        ("-s128K", |p| p.access = DiskspdAccess::Sequential { stride_bytes: Some(128 << 10) }),
        ("-t2 -T1M", |p| (p.threads, p.thread_stride_bytes) = (2, 1 << 20)),
        ("-S", |p| p.cache = Cache::Unbuffered),
        ("-Su", |p| p.cache = Cache::Unbuffered),
        ("-Sw", |p| p.write_through = true),
        ("-Suw", |p| (p.cache, p.write_through) = (Cache::Unbuffered, true)),
        ("-Su -Sw", |p| (p.cache, p.write_through) = (Cache::Unbuffered, true)),
        ("-h", |p| (p.cache, p.write_through) = (Cache::Unbuffered, true)),
        ("-Sb", |_| {}),
        ("-Sbw", |p| p.write_through = true),
        ("-v", |p| p.verbose = true),
        ("-vs", |_| {}),
        ("-e", |_| {}),
        ("-x", |_| {}),
        ("-:1", |_| {}),
        ("-w30", |p| p.write_percent = 30),
        ("-w0", |_| {}),
        ("-z", |p| p.seed = None),
        ("-z7", |p| p.seed = Some(7)),
        ("-Z", |p| p.content = WriteContent::Zero),
        ("-Zr", |p| p.content = WriteContent::Random),
        ("-Z1M", |p| p.content = WriteContent::Buffer { bytes: 1 << 20, file: None }),
        ("-Z1M,data", |p| {
            p.content = WriteContent::Buffer { bytes: 1 << 20, file: Some("data".to_owned()) };
        }),
    ];
    for (line, change) in cases {
        let mut expected = Profile {
            command_line: format!("diskspd {line} f"),
            targets: vec!["f".to_owned()],
            ..Profile::default()
        };
        change(&mut expected);
        assert_eq!(profile(line), expected, "{line}");
    }
}

#[test]
fn diskspd_distribution_flags() {
    let of = |line| profile(line).distribution;
    assert_eq!(of("-rdpct90/10:10/90"), Some(Distribution::Percent(vec![(90, 10), (10, 90)])));
    assert_eq!(
        of("-rdpct90/10"),
        Some(Distribution::Percent(vec![(90, 10), (10, 90)])),
        "the rest"
    );
    assert_eq!(of("-rdpct90/10:0/10:10/80").map(|_| ()), Some(()), "a hole");
    assert_eq!(of("-rdabs90/1G"), Some(Distribution::Absolute(vec![(90, 1 << 30)])));
    assert!(profile("-rdpct100/10").is_random());
}

#[test]
fn refused_diskspd_flags_are_named() {
    for (line, part) in [
        ("-r -p", "-p: all requests at the same place"),
        ("-si", "-si: threads that share"),
        ("-Sr", "-Sr: a cache of the remote side"),
        ("-Sm -Nn", "-N: flushes of non-volatile"),
        ("-Nv", "-Nv: it needs -Sm"),
        ("-ysGo", "-y: Windows events"),
        ("-ag1,0", "processor groups"),
        ("-r -T1M -t2", "-T: it is for sequential"),
        ("-T1M", "-T: it needs more than one thread"),
        ("-n -a1", "-n and -a"),
        ("-F2 -t3", "-F and -t"),
        ("-O3", "-O: it needs -F"),
        ("-F2 -O3 -g5", "-O: not with"),
        ("-i3", "-i: the pause, -j"),
        ("-j3", "-j: the burst, -i"),
        ("-Sum", "memory mapped"),
        ("-Sbu", "cached and not cached"),
        ("-r -s", "-r and -s"),
        ("-w", "-w: a whole number"),
        ("-w101", "-w101: a whole number from 0 to 100"),
        ("-b", "-b: a size"),
        ("-b0", "a block is from 1"),
        ("-b4G", "less than 4 GiB"),
        ("-c99999999999T", "-c99999999999T: a size"),
        ("-o0", "-o0"),
        ("-d0", "-d0"),
        ("-Rjson", "-Rjson: text or xml"),
        ("-Z1K", "smaller than a block"),
        ("-q", "-q: diskspd has no such flag"),
        ("-f1M -B2M", "ends before"),
        ("-rdpct90/10:20/80", "more than 100 %"),
        ("-rdpct50/100", "have no place"),
        ("-", "a flag is missing"),
        ("-Lx", "no such flag"),
    ] {
        let error = parse(&words(&format!("{line} f"))).expect_err(line);
        assert!(error.contains(part), "{line}: {error}");
    }
    for (line, part) in [
        ("-r", "a target is missing"),
        ("-r #1", "there are no such drives"),
        ("-r D:data.dat", "no drive letters"),
        ("-r X:", "no drive letters"),
        ("-r f -L", "flags stand before"),
        ("-F2 a b", "-F: threads that share several targets"),
    ] {
        let error = parse(&words(line)).expect_err(line);
        assert!(error.contains(part), "{line}: {error}");
    }
}

#[test]
fn ignored_diskspd_flags_warn() {
    for (line, part) in [
        ("-C3", "-C:"),
        ("-e", "-e:"),
        ("-ft", "-ft:"),
        ("-P", "-P:"),
        ("-vs", "-vs:"),
        ("-x", "-x:"),
        ("-:1", "-:"),
        ("-t2", "several threads begin"),
        ("-i1 -j1 -g1", "-i and -j"),
    ] {
        let found = parse(&words(&format!("{line} f"))).unwrap().warnings;
        assert!(found.len() == 1 && found[0].contains(part), "{line}: {found:?}");
    }
    assert!(parse(&words("-r -t8 f")).unwrap().warnings.is_empty());
}

proptest! {
    #[test]
    fn any_diskspd_command_line_is_survived(
        words in proptest::collection::vec("-?[a-zA-Z:#/]{0,2}[0-9a-zKMGi,/:é]{0,6}", 0..6)
    ) {
        if let Ok(parsed) = parse(&words) {
            prop_assert!(!parsed.profile.targets.is_empty() && parsed.profile.threads > 0);
        }
    }
}
