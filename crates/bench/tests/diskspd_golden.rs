//! Byte-exact comparison of diskspd's reports from a fixed run of fio: existing parsers read them
//! by column and element. The parts of the format that diskspd 2.2's source fixes (headings,
//! widths, order, format strings) have separate assertions, so that a new golden file cannot drift
//! from them.

use std::fs;
use std::path::Path;

use flagstone_bench::cpu::CpuUse;
use flagstone_bench::diskspd::report::System;
use flagstone_bench::diskspd::{DiskspdReport, Profile, parse};
use flagstone_bench::fio::output;
use flagstone_bench::fio::program::FioRun;
use flagstone_bench::fio::series::Series;

/// Four threads: two on each of two files, mixed, with latency and intervals.
const COMMAND: &str = "-c1M -d2 -r -w40 -t2 -o4 -b8K -Sh -L -D500 a.dat b.dat";

fn side(ios: u64, mean_ns: u64) -> String {
    let bytes = ios * 8192;
    let bins =
        [(mean_ns / 2, ios / 2), (mean_ns, ios - ios / 2 - ios / 10), (mean_ns * 5, ios / 10)];
    let bins: Vec<_> = bins.iter().map(|(ns, count)| format!("\"{ns}\": {count}")).collect();
    format!(
        r#"{{"io_bytes": {bytes}, "total_ios": {ios}, "iops": {}, "bw_bytes": {}, "runtime": 2000,
            "lat_ns": {{"min": {}, "max": {}, "mean": {mean_ns}, "stddev": 1000, "N": {ios}, "bins": {{{}}}}}}}"#,
        ios / 2,
        bytes / 2,
        mean_ns / 4,
        mean_ns * 6,
        bins.join(", ")
    )
}

fn run() -> FioRun {
    let jobs: Vec<String> = (1..=4u64)
        .map(|n| {
            format!(
                r#"{{"jobname": "j", "read": {}, "write": {}}}"#,
                side(600 * n, 200_000),
                side(400 * n, 300_000 * n)
            )
        })
        .collect();
    let raw = format!(r#"{{"fio version": "fio-3.33", "jobs": [{}]}}"#, jobs.join(", "));
    let series = |n: f64| Series {
        interval_ms: 500,
        read_iops: [290.0, 300.0, 310.0, 300.0].map(|iops| iops * n).into(),
        write_iops: [210.0, 200.0, 190.0, 200.0].map(|iops| iops * n).into(),
    };
    FioRun {
        output: output::parse(&raw).expect("it is fio's"),
        raw,
        series: [1.0, 2.0, 3.0, 4.0].map(series).into(),
        cpus: vec![
            CpuUse { user_percent: 10.0, kernel_percent: 20.5, idle_percent: 69.5 },
            CpuUse { user_percent: 0.0, kernel_percent: 0.0, idle_percent: 100.0 },
        ],
        threads: 4,
        paused_s: 0.0,
        command: "fio".to_owned(),
    }
}

fn profile(line: &str) -> Profile {
    let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
    parse(&words).expect("it is right").profile
}

fn report(profile: &Profile) -> DiskspdReport<'_> {
    let system = System {
        computer: "host".to_owned(),
        started_unix_s: 1_795_247_333.0,
        cpus: 2,
        power_scheme: "performance".to_owned(),
    };
    DiskspdReport::new(profile, system, &run(), &[1 << 20, 1 << 20]).expect("four threads")
}

fn golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, found).expect("it can be written");
    }
    let expected = fs::read_to_string(&path).expect("it is there");
    assert!(found == expected, "{name} differs (UPDATE_GOLDEN=1 writes it); now:\n{found}");
}

#[test]
fn diskspd_text_report() {
    let profile = profile(COMMAND);
    let text = report(&profile).text();
    golden("diskspd.txt", &text);

    let order = [
        "\nCommand Line: ",
        "\nInput parameters:\n",
        "System information:\n",
        "\n\tactive power scheme:\tperformance\n",
        "\nResults for timespan 1:\n*******************************************************************************\n",
        "\nactual test time:\t2.00s\nthread count:\t\t4\n",
        "\nCPU |  Usage |  User  | Kernel |  Idle\n",
        "\n   0|  30.50%|  10.00%|  20.50%|  69.50%\n",
        "\navg.|  15.25%|   5.00%|  10.25%|  84.75%\n",
        "\nTotal IO\n",
        "\nRead IO\n",
        "\nWrite IO\n",
        "\nLatency distribution: a.dat\n",
        "\nLatency distribution: b.dat\n",
        "\nTotal latency distribution:\n",
        "  %-ile |  Read (ms) | Write (ms) | Total (ms)\n----------------------------------------------\n    min |",
    ];
    let mut from = 0;
    for part in order {
        let at =
            text[from..].find(part).unwrap_or_else(|| panic!("{part} is not in its place: {text}"));
        from += at;
    }
    let head = "thread |       bytes     |     I/Os     |    MiB/s   |  I/O per s |  AvgLat  | IopsStdDev | LatStdDev |  file\n";
    assert_eq!(text.matches(head).count(), 3);
    // %6u | %15llu | %12llu | %10.2f | %10.2f | %8.3f | %10.2f |  %8.3f | path (size)
    let row = "     0 |         8192000 |         1000 |       3.91 |     500.00 |    0.240 |       0.00 |     0.049 | a.dat (1MiB)\n";
    assert!(text.contains(row), "{text}");
    let total = text.lines().find(|line| line.starts_with("total:")).expect("a total");
    assert!(
        total.starts_with("total:          81920000 |        10000 |      39.06 |    5000.00 |"),
        "{total}"
    );
    assert!(!total.contains("dat"), "it has no file");
    let rows = [
        "min", "25th", "50th", "75th", "90th", "95th", "99th", "3-nines", "4-nines", "5-nines",
        "6-nines", "7-nines", "8-nines", "9-nines", "max",
    ];
    let last = text.rsplit("Total latency distribution:").next().expect("the last table");
    let names: Vec<_> =
        last.lines().skip(3).map(|line| line.split('|').next().unwrap_or("").trim()).collect();
    assert_eq!(names, rows);
}

#[test]
fn diskspd_xml_report() {
    let profile = profile(&COMMAND.replace("-c1M", "-Rxml -c1M"));
    let xml = report(&profile).xml();
    golden("diskspd.xml", &xml);

    let document = roxmltree::Document::parse(&xml).expect("it is XML");
    let names = |path: &[&str]| -> Vec<String> {
        let mut node = document.root_element();
        for name in path {
            node =
                node.children().find(|n| n.has_tag_name(*name)).unwrap_or_else(|| panic!("{name}"));
        }
        let mut names: Vec<_> = node
            .children()
            .filter(roxmltree::Node::is_element)
            .map(|n| n.tag_name().name().to_owned())
            .collect();
        names.dedup();
        names
    };
    assert_eq!(document.root_element().tag_name().name(), "Results");
    assert_eq!(names(&[]), ["System", "Profile", "TimeSpan"]);
    assert_eq!(
        names(&["TimeSpan"]),
        [
            "TestTimeSeconds",
            "ThreadCount",
            "RequestCount",
            "ProcCount",
            "CpuUtilization",
            "Latency",
            "Iops",
            "Thread"
        ]
    );
    assert_eq!(names(&["TimeSpan", "Thread"]), ["Id", "Target"]);
    let target = names(&["TimeSpan", "Thread", "Target"]);
    assert_eq!(
        target[..8],
        [
            "Path",
            "BytesCount",
            "FileSize",
            "IOCount",
            "ReadBytes",
            "ReadCount",
            "WriteBytes",
            "WriteCount"
        ]
    );
    for name in [
        "AverageReadLatencyMilliseconds",
        "ReadLatencyStdev",
        "AverageWriteLatencyMilliseconds",
        "WriteLatencyStdev",
        "AverageLatencyMilliseconds",
        "LatencyStdev",
        "Iops",
    ] {
        assert!(target.contains(&name.to_owned()), "{name}: {target:?}");
    }
    assert_eq!(
        names(&["TimeSpan", "Latency", "Bucket"]),
        ["Percentile", "ReadMilliseconds", "WriteMilliseconds", "TotalMilliseconds"]
    );
    let iops = names(&["TimeSpan", "Iops"]);
    assert_eq!(iops, ["ReadIopsStdDev", "WriteIopsStdDev", "IopsStdDev", "Bucket"]);
    let bucket =
        document.descendants().find(|n| n.has_attribute("SampleMillisecond")).expect("an interval");
    assert_eq!(bucket.attribute("Total"), Some("5000"));
}

#[test]
fn diskspd_columns_follow_flags() {
    for (flags, columns) in [
        ("", "|  I/O per s |  file"),
        ("-L", "|  I/O per s |  AvgLat  | LatStdDev |  file"),
        ("-D", "|  I/O per s | IopsStdDev |  file"),
    ] {
        let profile = profile(format!("-r -w40 -t2 {flags} a b").replace("  ", " ").as_str());
        let text = report(&profile).text();
        assert_eq!(text.matches(columns).count(), 3, "{flags}: {text}");
        assert_eq!(text.contains("latency distribution:"), flags == "-L");
    }
}

#[test]
fn diskspd_thread_pool_report() {
    let profile = profile("-F4 -O3 a");
    let text = report(&profile).text();
    for line in [
        "\tthread pool with 4 threads\n\tnumber of outstanding I/O operations per thread: 3\n",
        "\t\trelative IO weight in thread pool: 1\n",
        "thread count:\t\t4\nrequest count:\t\t3\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("threads per file"), "{text}");
    let xml = report(&profile).xml();
    assert!(xml.contains("<ThreadCount>4</ThreadCount>\n        <RequestCount>3</RequestCount>"));
    assert!(xml.contains("<RequestCount>2</RequestCount>\n            <WriteRatio>"), "{xml}");

    let without = self::profile("-F4 a");
    let text = report(&without).text();
    for line in [
        "threads\n\tnumber of outstanding I/O operations per thread: 0\n",
        "\t\tnumber of outstanding I/O operations per thread: 2\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("request count"), "{text}");
}

/// Expected lines from diskspd's own unit tests.
#[test]
fn diskspd_distribution_report() {
    let percent = profile("-b4K -t2 -rdpct10/10:10/10:0/10 a b");
    let mut found = report(&percent);
    let text = found.text();
    assert!(
        text.contains(
            "\t\tIO Distribution:\n\
             \t\t    10% of IO => [ 0% -  10%) of target\n\
             \t\t    10% of IO => [10% -  20%) of target\n\
             \t\t     0% of IO => [20% -  30%) of target\n\
             \t\t    80% of IO => [30% - 100%) of target\n"
        ),
        "{text}"
    );
    let system = System { cpus: 2, ..System::default() };
    found = DiskspdReport::new(&percent, system, &run(), &[100 << 10, 100 << 10])
        .expect("four threads");
    let text = found.text();
    assert!(
        text.contains(
            "\nEffective IO Distributions\n--------------------------\n\
             target: a [thread: 0 1]\ntarget: b [thread: 2 3]\n\
             \x20   10% of IO => [     0    -      8KiB)\n\
             \x20   10% of IO => [     8KiB -     20KiB)\n\
             \x20   80% of IO => [    28KiB -    100KiB)\n\nTotal IO\n"
        ),
        "{text}"
    );
    assert_eq!(found.xml().matches("<Range IO=\"0\">8192</Range>").count(), 4);

    let absolute = profile("-Rptext -rdabs10/1G:10/1G:0/100G a");
    assert!(flagstone_bench::diskspd::text::profile(&absolute).contains(
        "\t\t    10% of IO => [     0    -      1GiB)\n\
             \t\t    10% of IO => [     1GiB -      2GiB)\n\
             \t\t     0% of IO => [     2GiB -    102GiB)\n\
             \t\t    80% of IO => [   102GiB -       end)\n"
    ));
}
