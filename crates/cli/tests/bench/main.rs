//! `flagstone bench` end to end: with a fake fio that follows instructions, breaks or fails, and
//! once with the real fio over NBD.

mod served;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use crate::support::{Bench, send, text, wait_for, wait_until};

#[test]
fn bench_run_list_compare_report() {
    let bench = Bench::new();
    let (out, errors) = bench.ends("run quick a=./x b=./y --size 1m --results r", 0);
    assert!(out.contains("medians of n repetitions") && out.contains("randwrite-4k"), "{out}");
    assert!(!out.contains("IOPS by size"), "of a suite that measures it: {out}");
    assert!(errors.contains("results are in r"), "{errors}");
    let results = bench.results("r");
    assert_eq!(results.len(), 4 * 4 * 2);
    assert_eq!(results[0]["iops"], 1001.0);
    assert_eq!(results[0]["provenance"].as_str().map(|n| n == "real" || n == "memory"), Some(true));
    for file in ["r/campaign.json", "r/environment.json", "r/raw/read-1m.1.3.json"] {
        assert!(bench.path(file).is_file(), "{file}");
    }

    let (listed, _) = bench.ends("list .", 0);
    assert!(listed.contains("provisioned-iops") && listed.contains("./r"), "{listed}");
    let (suite, _) = bench.ends("list --suite mirror", 0);
    assert!(suite.contains("name = \"mirror\""), "{suite}");
    bench.ends("list --suite none", 2);

    let (compared, _) = bench.ends("compare r --format markdown", 0);
    assert!(
        compared.contains("| job | ") && compared.contains("no difference shown (p = "),
        "{compared}"
    );
    assert!(compared.contains("% would be)"), "what it could have shown: {compared}");

    let (out, errors) = bench.ends("report r -o page.html --files files", 0);
    assert!(out.is_empty() && errors.contains("the report is page.html"), "{errors}");
    let html = bench.read("page.html");
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    assert!(html.contains("flagstone bench run quick a=./x b=./y --repetitions=4"));
    for file in ["summary.md", "summary.csv", "by-job-small-1-iops.svg", "latency-read-1m.svg"] {
        assert!(bench.path("files").join(file).is_file(), "{file}");
    }
    let (page, _) = bench.ends("report r -o -", 0);
    assert_eq!(page, html);
    let (_, errors) = bench.ends("report none", 1);
    assert!(errors.contains("none"), "{errors}");
}

#[test]
fn bench_prints_json_and_names_series() {
    let bench = Bench::new();
    let json = |line: &str| -> serde_json::Value {
        serde_json::from_str(&bench.ends(line, 0).0).unwrap_or_else(|e| panic!("{line}: {e}"))
    };
    let run = json("run quick a=./x b=./y --size 1m --results r --json");
    assert_eq!(run["results"][0], "r");
    let results = &run["jobs"][0]["results"];
    assert!(results[0]["iops"]["median"].is_number() && results[0]["iops"]["ratio"].is_null());
    assert!(results[1]["iops"]["ratio"].is_number(), "{results}");
    assert!(results[1]["mb_per_s"]["overhead_percent"].is_number(), "{results}");
    assert_eq!(results[1]["iops"]["verdict"], "not_shown");
    assert_eq!(json("compare r --json"), run);
    assert_eq!(json("report r --json -o page.html"), run);
    bench.ends("report r --json -o -", 2);
    bench.ends("compare r --json --format csv", 2);
    let listed = json("list . --json");
    let suites = listed["suites"].as_array().expect("a list");
    for name in ["oltp", "redo-log", "streaming"] {
        assert!(suites.iter().any(|suite| suite["name"] == name), "{name}");
    }
    assert_eq!(
        (&listed["runs"][0]["suite"], &listed["runs"][0]["done"]),
        (&"quick".into(), &32.into())
    );

    let named = json("compare r --name before --name after --json");
    assert_eq!(named["series"][0]["name"], "before");
    assert_eq!(named["series"][1]["name"], "after");
    let (_, errors) = bench.ends("compare r --name before", 2);
    assert!(errors.contains("1 names for 2 series"), "{errors}");
    bench.ends("compare r --name same --name same", 2);
    bench.ends("run quick t=./x --size 1m --results s", 0);
    bench.ends("run quick t=./x --size 1m --results t", 0);
    let (text, _) = bench.ends("compare s t --name old --name new", 0);
    assert!(text.contains("old") && text.contains("new"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    bench.ends("report s t --name old --name new -o named.html", 0);
    assert!(bench.read("named.html").contains("old, new"));
}

#[test]
fn fio_job_files_run_and_discards_are_guarded() {
    let bench = Bench::new();
    let log = "[log]\nrw=write\nbs=4k\nsync=dsync\ntime_based\nruntime=1\nfilename=/dev/sdb\n";
    bench.say("db.fio", log);
    let (_, errors) = bench.ends("run ./db.fio ./x --size 1m --results r", 0);
    assert!(errors.contains("`filename` has no effect"), "{errors}");
    let results = bench.results("r");
    assert!(results.len() == 5 && results[0]["job"] == "log" && results[0]["suite"] == "db");
    let command = results[0]["command"].as_str().expect("a command");
    assert!(command.contains("--sync=dsync") && command.contains("--filename=./x"), "{command}");
    bench.say("bad.fio", &format!("{log}exec_prerun=true\n"));
    let (_, errors) = bench.ends("run ./bad.fio ./x --size 1m", 2);
    assert!(errors.contains("line 8: `exec_prerun=true` is not supported"), "{errors}");

    bench.say("trim.fio", &log.replace("rw=write", "rw=trim").replace("sync=dsync\n", ""));
    let (_, errors) = bench.ends("run ./trim.fio ./x", 2);
    assert!(errors.contains("only devices and volumes can discard"), "{errors}");
    let (_, errors) = bench.ends("run ./trim.fio nbd://127.0.0.1:1/v", 2);
    assert!(errors.contains("--destroy-data=nbd://127.0.0.1:1/v"), "{errors}");
}

#[test]
fn iops_by_size_in_run_and_comparison() {
    let bench = Bench::new();
    let line = "run provisioned-iops small=./s large=./l --size 20m --results r --repetitions 4";
    let (out, _) = bench.ends(line, 0);
    let title = "IOPS by size (0.75 IOPS a GB is a standard persistent disk's)\n";
    let (_, table) = out.split_once(title).unwrap_or_else(|| panic!("{out}"));
    let rows: Vec<Vec<&str>> =
        table.lines().take(3).map(|row| row.split_whitespace().collect()).collect();
    assert!(rows[0].starts_with(&["on", "job", "size,", "GB", "IOPS"]), "{table}");
    // The fake's figures rise from 1,001 and the targets take turns, so the medians differ.
    assert!(rows[1][0].starts_with("small") && rows[2][0].starts_with("large"), "{table}");
    assert!(rows[1..].iter().all(|row| row.contains(&"read-iops") && row.contains(&"0.02")));
    let (compared, _) = bench.ends("compare r", 0);
    assert_eq!(compared, out, "a comparison of the run says what the run said");
    let (csv, _) = bench.ends("compare r --format csv", 0);
    assert!(csv.contains("on,job,\"size, GB\",IOPS,IOPS a GB,"), "{csv}");
    bench.ends("report r -o page.html --files files", 0);
    let (markdown, _) = bench.ends("compare r --format markdown", 0);
    assert!(markdown.contains(&bench.read("files/by-size.md")), "the report's own: {markdown}");
}

#[test]
fn emulated_targets_are_marked() {
    let bench = Bench::new();
    let line = "run quick a=./x lab=./y --size 1m --results r --repetitions 1 --emulated";
    bench.ends(&format!("{line} none"), 2);
    assert!(!bench.path("r").exists(), "nothing was done");
    let (out, _) = bench.ends(&format!("{line} lab"), 0);
    assert!(out.contains("lab [EMULATED]"), "{out}");
    assert!(
        bench
            .results("r")
            .iter()
            .all(|r| (r["provenance"] == "emulated") == (r["target"] == "lab"))
    );
    let (compared, _) = bench.ends("compare r --format csv", 0);
    assert!(compared.contains("lab [EMULATED]"), "{compared}");
    bench.ends("report r", 0);
    assert!(bench.read("report.html").contains("lab is EMULATED"));
    bench.say(
        "stack.toml",
        "[server]\nlisten = [\"nbd://127.0.0.1:0\"]\n[volume.v]\ndevice = \"x\"\n",
    );
    let (_, errors) = bench.ends("run quick ./x --stack stack.toml --dry-run", 2);
    assert!(errors.contains("no target is one of its volumes"), "{errors}");
    let (_, errors) = bench.ends("run quick ./x --stack broken.toml --dry-run", 1);
    assert!(errors.contains("broken.toml"), "{errors}");
}

#[test]
fn failing_fio_is_quoted_and_results_kept() {
    for (how, said) in [("fail-at", "it went up in smoke"), ("break-at", "oh dear")] {
        let bench = Bench::new();
        bench.say(how, "6");
        let (_, errors) = bench.ends("run quick ./x --size 1m --results r", 1);
        assert!(errors.contains(said) && errors.contains("fio --"), "with the command: {errors}");
        let go_on = "results so far are in r; continue with: flagstone bench resume r\n";
        assert!(errors.contains(go_on), "{errors}");
        assert_eq!(bench.results("r").len(), 5);
        let (_, errors) = bench.ends("run quick ./x --size 1m --results r", 2);
        assert!(errors.contains("has results already"), "{errors}");
        // The next measurement is the seventh.
        let (out, _) = bench.ends("resume r", 0);
        assert!(out.contains("randwrite-4k"), "{out}");
        assert_eq!(bench.results("r").len(), 16);
    }
}

#[test]
fn run_without_results_leaves_no_directory() {
    let bench = Bench::new();
    bench.say("fail-at", "1");
    let (_, errors) = bench.ends("run quick ./x --size 1m", 1);
    assert!(
        errors.contains("nothing was measured") && !errors.contains("bench-results"),
        "{errors}"
    );
    let runs = || fs::read_dir(bench.path("bench-results")).expect("it is there").count();
    assert_eq!(runs(), 0);
    let (_, errors) = bench.ends("run quick ./huge --size 1048576t", 2);
    assert!(errors.contains("./huge of ") && errors.contains("does not fit"), "{errors}");
    assert!(!bench.path("huge").exists() && !bench.path("huge.flagstone-bench").exists());
    assert_eq!(runs(), 0);
    // Several runs start in the same second.
    for run in 1..=4 {
        bench.ends("run quick ./x --size 1m --repetitions 1", 0);
        assert_eq!(runs(), run);
    }
}

#[test]
fn missing_or_old_fio_names_package() {
    let bench = Bench::new();
    bench.say("version", "fio-2.16");
    let (_, errors) = bench.ends("run quick ./x --results r", 1);
    assert!(errors.contains("fio-2.16 is too old") && errors.contains("fio-3.12"), "{errors}");
    bench.say("version", "ls (GNU coreutils) 9.1\nCopyright");
    let (_, errors) = bench.ends("run quick ./x --results r", 1);
    let said = "fio is not fio: asked for its version it printed `ls (GNU coreutils) 9.1`; install";
    assert!(errors.contains(said), "{errors}");
    // A file without execute permission is not missing.
    let mode = fs::Permissions::from_mode(0o644);
    fs::set_permissions(bench.path("fio"), mode).expect("a mode");
    let (_, errors) = bench.ends("run quick ./x --results r", 1);
    let said = "fio cannot be run as fio: it is not executable (Permission denied";
    assert!(errors.contains(said) && !errors.contains("there is no fio"), "{errors}");
    fs::remove_file(bench.path("fio")).expect("it was there");
    for line in ["run quick ./x --results r", "diskspd -r ./x"] {
        let (_, errors) = bench.ends(line, 1);
        assert!(errors.contains("apt install fio"), "{errors}");
    }
    assert!(!bench.path("r").exists() && !bench.path("x").exists(), "nothing was done");
}

#[test]
fn data_destruction_needs_consent() {
    let bench = Bench::new();
    bench.say("precious", "data");
    for line in [
        "run quick ./precious --results r",
        "diskspd -r -w1 ./precious",
        "diskspd -c1M -r ./precious",
    ] {
        let (_, errors) = bench.ends(line, 2);
        assert!(
            errors.contains("with data") && errors.contains("--destroy-data=./precious"),
            "{errors}"
        );
    }
    let (_, errors) = bench.ends("run quick ./precious --results r --destroy-data precious", 2);
    assert!(errors.contains("no target has this disk"), "the exact name: {errors}");
    assert_eq!(bench.read("precious"), "data");
    assert!(!bench.path("r").exists());
    bench.ends("run quick ./precious --results r --destroy-data ./precious --no-precondition", 0);
    // Consent is valid for one run.
    bench.say("r/results.jsonl", "");
    bench.say("precious", "more data");
    bench.ends("resume r", 2);
    bench.ends("resume r --destroy-data ./precious", 0);

    // A file of bench is free until something else changes it.
    bench.ends("run quick ./own --size 1m --results s --no-precondition", 0);
    if bench.path("own.flagstone-bench").exists() {
        bench.ends("run quick ./own --results t --no-precondition", 0);
    }
    bench.say("own", "precious too");
    let (_, errors) = bench.ends("run quick ./own --results u", 2);
    assert!(errors.contains("--destroy-data=./own") && !bench.path("u").exists(), "{errors}");
    assert_eq!(bench.read("own"), "precious too");
}

#[test]
fn interrupted_run_resumes() {
    let bench = Bench::new();
    bench.say("hang-at", "4");
    let mut command = bench.command("run quick ./x --size 1m --results r");
    let mut running =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_for(&bench.path("hanging"), &mut running);
    send(&running.id().to_string(), "INT");
    let output = running.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(4));
    let errors = text(&output.stderr);
    assert!(errors.contains("interrupted; continue with: flagstone bench resume r"), "{errors}");
    assert_eq!(bench.results("r").len(), 3);
    bench.ends("resume r", 0);
    assert_eq!(bench.results("r").len(), 16);
    let (_, errors) = bench.ends("resume none", 1);
    assert!(errors.contains("none/campaign.json"), "{errors}");
}

/// The second measurement stays stopped until bench has sampled it.
#[test]
fn stopped_measurement_is_reported() {
    let bench = Bench::new();
    bench.say("stop-at", "2");
    let mut command = bench.command("run quick ./x --size 1m --results r --repetitions 1");
    let mut running =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_for(&bench.path("stopping"), &mut running);
    let fio = bench.read("stopping").trim().to_owned();
    wait_until(|| proc(&fio, "stat").contains(") T "));
    // bench sleeps between samples: two more sleeps enclose a whole sample.
    let slept = sleeps(running.id());
    wait_until(|| sleeps(running.id()) > slept + 1);
    send(&fio, "CONT");
    let output = running.wait_with_output().expect("it ends");
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let reported: Vec<&str> =
        errors.lines().filter(|line| line.contains("(suspended for ")).collect();
    let results = bench.results("r");
    let paused_s = |at: usize| results[at]["measurement"]["paused_s"].as_f64().expect("a number");
    assert!(
        paused_s(1) > 0.0 && reported.iter().any(|line| line.starts_with(&job(&results[1]))),
        "{errors}"
    );
    let said = format!("{} on ./x, repetition 1 (", job(&results[1]));
    assert!(
        out.contains("generator paused during the measurement") && out.contains(&said),
        "{out}"
    );
    bench.ends("report r", 0);
    assert!(bench.read("report.html").contains("generator paused during the measurement"));
}

fn job(result: &serde_json::Value) -> String {
    result["job"].as_str().expect("a name").to_owned()
}

/// A file of a process in /proc.
fn proc(pid: &str, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// Voluntary context switches of a process.
fn sleeps(pid: u32) -> u64 {
    let status = proc(&pid.to_string(), "status");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).expect("it runs")
}

#[test]
fn fail_if_slower_exit_status() {
    let bench = Bench::new();
    bench.ends("run quick t=./x --size 1m --results fast", 0);
    bench.say("iops", "500");
    bench.ends("run quick t=./x --size 1m --results slow", 0);
    let (out, errors) = bench.ends("compare fast slow --fail-if-slower 5% --format markdown", 5);
    assert!(
        out.contains("differs (p = 0.029)") && errors.contains("flagstone: slower: IOPS of"),
        "{out}{errors}"
    );
    let (_, errors) = bench.ends("compare slow fast --fail-if-slower 5%", 0);
    assert_eq!(errors, "flagstone: passed: nothing is significantly worse by more than 5 %\n");
    bench.ends("compare fast slow --fail-if-slower 200%", 0);
    bench.ends("compare fast --fail-if-slower 5%", 2);
    bench.ends("run quick t=./x u=./y --size 1m --results both", 0);
    let (_, errors) = bench.ends("compare fast both --fail-if-slower 5%", 2);
    assert!(errors.contains("has no counterpart of both u"), "{errors}");
    // Duplicate results would count their repetitions twice.
    for line in ["compare fast slow fast", "compare fast ./fast/", "report fast fast/results.jsonl"]
    {
        let (out, errors) = bench.ends(line, 2);
        assert!(out.is_empty() && errors.contains(" is given twice: give each"), "{errors}");
    }
    bench.ends("report fast slow -o both.html", 0);
    assert!(bench.read("both.html").contains("fewer IOPS"));

    let (_, errors) =
        bench.ends("run quick a=./x b=./y --size 1m --results few --repetitions 3", 0);
    assert!(errors.contains("3 repetitions of each can never show"), "{errors}");
    let (_, errors) = bench.ends("compare few --fail-if-slower 5%", 1);
    assert!(errors.contains("too few repetitions") && errors.contains("4 of each"), "{errors}");
}

#[test]
fn broken_results_name_their_line() {
    let bench = Bench::new();
    bench.ends("run quick ./x --size 1m --results r --repetitions 1", 0);
    let lines = bench.read("r/results.jsonl");
    bench.say("r/results.jsonl", &lines.replacen("\"iops\":1002", "\"iops\":\"many\"", 1));
    for command in ["compare", "report"] {
        let (_, errors) = bench.ends(&format!("{command} r"), 1);
        assert!(errors.contains("r/results.jsonl:2: "), "{errors}");
    }
    let (listed, _) = bench.ends("list .", 1);
    assert!(listed.contains("./r") && listed.contains("results.jsonl:2: "), "{listed}");
    let (_, errors) = bench.ends("list none", 1);
    assert!(errors.contains("cannot list none"), "{errors}");
    bench.ends("list", 0);
    bench.say("r/results.jsonl", "");
    bench.ends("list .", 0);
    let (_, errors) = bench.ends("report r", 2);
    assert!(errors.contains("has no results"), "{errors}");
}

#[test]
fn bench_dry_run_changes_nothing() {
    let bench = Bench::new();
    let (out, _) = bench.ends("run mirror a=./x b=nvme-tcp://h/n --dry-run", 0);
    assert!(
        out.contains("# 64k on a\n") && out.contains("[64k]\n") && out.contains("sync=dsync"),
        "{out}"
    );
    assert!(out.contains("flagstone load nvme-tcp://h/n"), "{out}");
    let (out, _) =
        bench.ends("diskspd --dry-run -c96G -d10 -r -w100 -t8 -o3 -b64K -Sh -L data.dat", 0);
    assert!(
        out.starts_with("# fio ") && out.contains("\nnumjobs=8\n") && out.contains("\nbs=65536\n"),
        "{out}"
    );
    assert!(!bench.path("x").exists() && !bench.path("data.dat").exists());
    assert_eq!(bench.read("count"), "0");
}

#[test]
fn diskspd_command_lines() {
    let bench = Bench::new();
    let line = "diskspd -c1M -d1 -W0 -r -o4 -b4K -L -C5 ./x";
    let (out, errors) = bench.ends(line, 0);
    assert!(out.contains("Command Line: diskspd -c1M -d1 -W0 -r -o4 -b4K -L -C5 ./x\n"), "{out}");
    assert!(
        out.contains("\nTotal IO\nthread |") && out.contains("Total latency distribution:"),
        "{out}"
    );
    assert!(errors.contains("warning: -C: fio has no cool-down"), "{errors}");
    let (out, _) = bench.ends("diskspd -c1M -d1 -W0 -r -Rxml ./x", 0);
    assert!(out.starts_with("<Results>") && out.contains("<ReadCount>1002</ReadCount>"), "{out}");
    // -h is diskspd's own flag at any position.
    let (out, _) = bench.ends("diskspd -h -Rp -r ./x", 0);
    assert!(out.contains("\t\tsoftware cache disabled\n"), "{out}");
    let (_, errors) = bench.ends("diskspd -h", 2);
    assert!(errors.contains("a target is missing") && errors.contains("--help"), "{errors}");
    assert!(bench.ends("diskspd --help", 0).0.contains("Usage: flagstone bench diskspd"));
    let (out, _) = bench.ends("diskspd -Rp -r -t8 ./x", 0);
    assert!(out.contains("threads per file: 8"), "{out}");
    for (line, part) in [
        ("diskspd -si ./x", "-si: threads that share"),
        ("diskspd -q ./x", "-q: diskspd has no such flag"),
        ("diskspd -r", "a target is missing"),
        ("diskspd -r ./none", "does not exist: -c<size> creates it"),
    ] {
        let (_, errors) = bench.ends(line, 2);
        assert!(errors.contains(part), "{line}: {errors}");
    }
    bench.say("fail-at", "3");
    let (out, errors) = bench.ends(line, 1);
    assert!(out.is_empty() && errors.contains("it went up in smoke"), "{errors}");
}
