//! Metrics of a real server: naming by promtool, size of a scrape, `docs/metrics.md`; and the alert
//! rules and the dashboard in `docs/examples`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use flagstone_tests::http::ask;
use flagstone_tests::load::Load;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::Server;
use flagstone_tests::tools;
use serde_json::Value;

const LISTENERS: [&str; 2] = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"];

/// A server with a limited volume, a mirrored one without a replica, and idle ones.
fn serve() -> (Server, Scratch) {
    let scratch = Scratch::new();
    let file = scratch.join("flagstone.toml");
    let text = r#"
[server]
node = "node-a"
[peer.node-b]
address = "127.0.0.1:1"
[volume.db]
limit = { iops = 100000 }
device = "memory:64MiB"
[volume.pair]
mirror = { peer = "node-b" }
device = "memory:64MiB"
[volume.idle-1]
device = "memory:64MiB"
[volume.idle-2]
device = "memory:64MiB"
"#;
    fs::write(&file, text).expect("the configuration can be written");
    let file = file.to_str().expect("temporary paths are UTF-8").to_owned();
    let server = Server::start_with(&[], &LISTENERS, &["--cores", "2", &file]);
    let line = "--rw randrw --depth 8 --bs 4k --ios 2000";
    Load::start(&server.nvme_uri("db"), line).wait().assert_complete();
    Load::start(&server.nbd_uri("db"), line).wait().assert_complete();
    (server, scratch)
}

fn scrape(server: &Server) -> String {
    ask(&server.api(), "GET", "/metrics").body
}

fn examples() -> PathBuf {
    tools::workspace().join("docs/examples")
}

/// Name, type and help of each family.
fn families(metrics: &str) -> Vec<(&str, &str, &str)> {
    let helps = metrics.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    let kind = |name: &str| {
        let prefix = format!("# TYPE {name} ");
        metrics.lines().find_map(|line| line.strip_prefix(&prefix)).expect("each has a type")
    };
    helps.map(|(name, help)| (name, kind(name), help)).collect()
}

fn promtool(arguments: &[&str], input: &str) {
    let mut child = Command::new(tools::find("promtool").expect("looked up before"))
        .args(arguments)
        .current_dir(examples())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool runs");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    stdin.write_all(input.as_bytes()).expect("promtool reads its input");
    drop(stdin);
    let output = child.wait_with_output().expect("promtool ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
}

#[test]
fn scrape_passes_promtool() {
    if !tools::have("scrape_passes_promtool", &["promtool"]) {
        return;
    }
    let (server, _scratch) = serve();
    promtool(&["check", "metrics"], &scrape(&server));
}

#[test]
fn alert_rules_pass_promtool() {
    if !tools::have("alert_rules_pass_promtool", &["promtool"]) {
        return;
    }
    promtool(&["check", "rules", "alerts.yaml"], "");
    promtool(&["test", "rules", "alerts-test.yaml"], "");
}

#[test]
fn every_alert_rule_has_a_test() {
    let read = |name: &str| fs::read_to_string(examples().join(name)).expect(name);
    let (rules, tests) = (read("alerts.yaml"), read("alerts-test.yaml"));
    let names = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(tests.contains(&format!("        alertname: {name}\n")), "no test of {name}");
    }
}

/// Names in an expression or a document that look like a metric of the server.
fn mentioned(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c: char| !is_name(c));
    let ours = words.filter(|word| word.starts_with("flagstone_") || word.starts_with("process_"));
    ours.map(str::to_owned).collect()
}

#[test]
fn dashboard_and_rules_use_served_metrics() {
    let (server, _scratch) = serve();
    let metrics = scrape(&server);
    let mut served: BTreeSet<String> = BTreeSet::new();
    for (name, kind, _) in families(&metrics) {
        let histogram = ["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}"));
        match kind {
            "histogram" => served.extend(histogram),
            _ => drop(served.insert(name.to_owned())),
        }
    }
    for file in ["alerts.yaml", "alerts-test.yaml", "dashboard.json"] {
        let text = fs::read_to_string(examples().join(file)).expect(file);
        let used = mentioned(&text);
        let unknown: Vec<_> = used.difference(&served).collect();
        assert!(used.len() > 5 && unknown.is_empty(), "{file} uses {unknown:?}");
    }
    let text = fs::read_to_string(examples().join("dashboard.json")).expect("it exists");
    let dashboard: Value = serde_json::from_str(&text).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("a list");
    assert!(panels.iter().any(|panel| panel["type"] == "timeseries"), "{dashboard:#}");
}

#[test]
fn start_times_do_not_change() {
    let (server, _scratch) = serve();
    let start_times = || {
        let metrics = scrape(&server);
        let times = metrics.lines().filter(|line| line.contains("_start_time_seconds "));
        times.filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    let first = start_times();
    assert_eq!(first.len(), 2, "{first:?}");
    for _ in 0..10 {
        assert_eq!(start_times(), first);
    }
}

#[test]
fn only_calls_that_happened_have_series() {
    let (server, _scratch) = serve();
    let metrics = scrape(&server);
    let lines = |label: &str| metrics.lines().filter(|line| line.contains(label)).count();
    assert_eq!(lines("volume=\"idle-1\""), 4, "{metrics}");
    assert_eq!(lines("volume=\"db\",kind=\"discard\""), 0, "{metrics}");
    // Four counts; 13 buckets, a sum and a count.
    assert_eq!(lines("volume=\"db\",kind=\"read\""), 4 + 15, "{metrics}");
    assert_eq!(lines("volume=\"db\",layer=\"limit\",kind=\"read\""), 2, "{metrics}");
    assert!(lines("flagstone_host_ios_total{host=\"nqn.") >= 2, "{metrics}");
    for core in ["0", "1"] {
        assert_eq!(lines(&format!("{{core=\"{core}\"}}")), 5, "{metrics}");
    }
}

#[test]
fn metrics_page_lists_every_family() {
    let (server, _scratch) = serve();
    let metrics = scrape(&server);
    let mut table = String::new();
    for (name, kind, help) in families(&metrics) {
        // The page names them together.
        if name.starts_with("process_") {
            continue;
        }
        // The page says which names are counters; all others are gauges.
        let kind = match (kind, name.ends_with("_total")) {
            ("counter", true) | ("gauge", false) => String::new(),
            _ => format!(" ({kind})"),
        };
        table += &format!("- `{name}`{kind}: {help}\n");
    }
    let path = tools::workspace().join("docs/metrics.md");
    let page = fs::read_to_string(&path).expect("docs/metrics.md exists");
    let (before, rest) = page.split_once("<!--metrics-->\n").expect("the list begins");
    let (found, after) = rest.split_once("<!--end-->").expect("the list ends");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let page = format!("{before}<!--metrics-->\n{table}<!--end-->{after}");
        return fs::write(path, page).expect("docs/metrics.md can be written");
    }
    assert!(
        found == table,
        "docs/metrics.md is out of date; run: \
         UPDATE_DOCS=1 cargo test -p flagstone-tests --test metrics"
    );
}
