//! Seeds of benchmark input: fio output, suites, and diskspd command lines.

use std::io;

use super::Corpus;

/// One job in the json+ format of fio 3.33.
const JSON: &str = r#"fio: a warning before it
{"fio version": "fio-3.33", "jobs": [{"jobname": "j", "error": 0, "usr_cpu": 3.5, "sys_cpu": 8.25, "ctx": 12,
"read": {"io_bytes": 8192, "total_ios": 2, "iops": 1.5, "bw_bytes": 6144, "runtime": 1000, "iops_stddev": 0.5,
"lat_ns": {"min": 1000, "max": 3000, "mean": 2000.5, "stddev": 10.5, "N": 2, "bins": {"1004": 1, "2992": 1}}},
"write": {"io_bytes": 4096, "total_ios": 1, "iops": 1, "bw_bytes": 4096, "runtime": 1000,
"clat_ns": {"min": 5, "max": 5, "mean": 5, "stddev": 0, "N": 1, "percentile": {"50.000000": 5, "99.990000": 5}}}}]}
"#;

/// `bench_fio`: the kind byte, and the text.
pub(crate) fn fio(corpus: &Corpus) -> io::Result<()> {
    let put = |name: &str, kind: u8, text: &str| {
        corpus.put("bench_fio", name, &[&[kind], text.as_bytes()].concat())
    };
    put("json", 0, JSON)?;
    put("log", 1, "500, 100, 0, 0, 0\n500, 7, 1, 0, 0\n1001, 200, 0, 0\n")?;
    for name in ["fabric", "gcp-pd", "mirror", "quick", "sweep"] {
        let path = corpus.project.join(format!("crates/bench/suites/{name}.toml"));
        put(name, 3, &std::fs::read_to_string(path)?)?;
    }
    Ok(())
}

/// `bench_diskspd`: one word per line.
pub(crate) fn diskspd(corpus: &Corpus) -> io::Result<()> {
    let lines = [
        ("published", "-c96G -d10 -r -w100 -t8 -o3 -b64K -Sh -L data.dat"),
        ("pool", "-F4 -O9 -b4K -B1M:2M -f1G -fr -ag0,1,3 -D250 -L a"),
        ("sequential", "-s128K -t2 -T1M -g100i -Sbw -W0 -Zr -v a b"),
        ("shares", "-rs30 -r8K -i8 -j5 -I1 -Su -Sw -z7 -Z1M,data -Rpxml a"),
        ("ranges", "-rdpct90/10:0/10:10/80 -Sm -Nv -n -z -l a"),
        ("absolute", "-rdabs90/1G:10/2b -w30 -Z -C3 -P100 -x -vs -e -:1 a"),
    ];
    lines.iter().try_for_each(|(name, line)| {
        corpus.put("bench_diskspd", name, line.replace(' ', "\n").as_bytes())
    })
}
