//! Control API and metrics of a real server, through raw HTTP, curl and `flagstone status`; and
//! `docs/api.md` compared with the served documents.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use flagstone_tests::http::{ask, ask_port, exchange, get, unix};
use flagstone_tests::load::Load;
use flagstone_tests::process::until;
use flagstone_tests::rng::Rng;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{Server, binary};
use flagstone_tests::tools;
use serde_json::Value;

const VOLUMES: &str = r#"
[server]
metrics = "127.0.0.1:0"

[limit.machine]
iops = 100000

[volume.db]
limit = { iops = 50000 }
shared_limit = "machine"
device = "memory:64MiB"

[volume.faulty]
fault = { write_error_every = 2 }
device = "memory:64MiB"
"#;

/// Server of [`VOLUMES`], with its own file.
fn serve() -> (Server, Scratch) {
    let scratch = Scratch::new();
    let file = scratch.join("flagstone.toml");
    fs::write(&file, VOLUMES).expect("the configuration can be written");
    let file = file.to_str().expect("temporary paths are UTF-8").to_owned();
    let listeners = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"];
    (Server::start_with(&[], &listeners, &["--cores", "2", &file]), scratch)
}

fn status(server: &Server, arguments: &[&str]) -> Output {
    let api = server.api();
    let mut command = Command::new(binary());
    command.arg("status").args(arguments).arg("--api").arg(api).stdin(Stdio::null());
    command.output().expect("flagstone runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Value of a metrics sample.
fn sample(metrics: &str, sample: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    let value = line.unwrap_or_else(|| panic!("no {sample} in:\n{metrics}"));
    value.parse().unwrap_or_else(|error| panic!("{sample}: {error}"))
}

#[test]
fn volume_counters_agree_in_api_and_metrics() {
    let (mut server, _scratch) = serve();
    let api = server.api();
    for target in [server.nvme_uri("db"), server.nbd_uri("db")] {
        let line = "--rw randrw --threads 2 --depth 8 --bs 4k --ios 5000 --verify";
        Load::start(&target, line).wait().assert_complete();
    }
    // The server may still be closing the connection of a client that has exited.
    let connections = || get(&api, "/v1/volumes/db")["connections"].clone();
    let detached = || connections() == serde_json::json!([]);
    until("both are detached", detached, || format!("{:#}", connections()));
    let volume = get(&api, "/v1/volumes/db");
    let (read, write) = (&volume["io"]["read"], &volume["io"]["write"]);
    let reads = read["count"].as_u64().unwrap();
    assert!(reads + write["count"].as_u64().unwrap() >= 10_000, "{volume:#}");
    for calls in [read, write] {
        assert_eq!(calls["errors"], 0, "{volume:#}");
        assert_eq!(calls["in_flight"], 0, "{volume:#}");
        let bytes = calls["bytes"].as_u64().unwrap();
        assert!(bytes >= 4096 * calls["count"].as_u64().unwrap(), "{volume:#}");
        let buckets = calls["latency"]["buckets"].as_array().unwrap();
        let counted: u64 = buckets.iter().map(|bucket| bucket[1].as_u64().unwrap()).sum();
        assert_eq!(counted, calls["count"], "{volume:#}");
    }
    let limits = &volume["limits"];
    assert_eq!((&limits[0]["name"], &limits[1]["name"]), (&Value::from("machine"), &Value::Null));
    assert!(
        limits[1]["immediate"].as_u64().unwrap() + limits[1]["delayed"].as_u64().unwrap() > 9_999
    );
    assert_eq!(volume["layers"], serde_json::json!(["shared_limit", "limit"]));
    // The list contains the same document.
    let all = get(&api, "/v1/volumes");
    assert_eq!(all["volumes"][0], volume);
    assert_eq!(all["volumes"][1]["name"], "faulty");
    // The metrics have the same numbers, on both sockets.
    let port = server.metrics_port();
    for answer in [ask(&api, "GET", "/metrics"), ask_port(port, "GET", "/metrics")] {
        assert!(answer.head.contains("Content-Type: text/plain; version=0.0.4"), "{answer:?}");
        let of = |family: &str| {
            sample(&answer.body, &format!("{family}{{volume=\"db\",kind=\"read\"}}"))
        };
        assert_eq!(of("flagstone_volume_ios_total"), reads as f64);
        assert_eq!(of("flagstone_volume_bytes_total"), read["bytes"].as_f64().unwrap());
        assert_eq!(of("flagstone_volume_latency_seconds_count"), reads as f64);
        let limit = "flagstone_limit_waiting{limit=\"machine\",volume=\"\"}";
        assert_eq!(sample(&answer.body, limit), 0.0);
    }
    // Requests that are refused over TCP.
    for (method, path) in [("GET", "/v1/"), ("GET", "/v1/volumes"), ("POST", "/v1/reload")] {
        assert_eq!(ask_port(port, method, path).status, 404, "{path}");
    }
}

#[test]
fn attached_hosts_are_listed() {
    let (server, _scratch) = serve();
    let api = server.api();
    let connections = || get(&api, "/v1/volumes/db")["connections"].clone();
    assert_eq!(connections(), serde_json::json!([]));
    let line = "--rw randread --depth 4 --time 10m";
    let mut loads =
        [server.nvme_uri("db"), server.nbd_uri("db")].map(|target| Load::start(&target, line));
    // A host connects its queues one after another.
    let both = || {
        let now = connections();
        now.as_array().map(Vec::len) == Some(2) && now[0]["ready"] == true && now[0]["queues"] == 2
    };
    until("both are attached", both, || format!("{:#}", connections()));
    let now = connections();
    assert_eq!((&now[0]["protocol"], &now[0]["ready"]), (&"nvme-tcp".into(), &true.into()));
    assert!(now[0]["host_nqn"].as_str().unwrap().starts_with("nqn."), "{now:#}");
    assert_eq!(now[0]["queues"], 2, "{now:#}");
    assert_eq!(now[1]["protocol"], "nbd");
    assert!(now[1]["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{now:#}");
    let about = get(&api, "/v1/");
    assert_eq!((&about["nvme_connections"], &about["nbd_connections"]), (&2.into(), &1.into()));
    for load in &mut loads {
        load.kill();
    }
    until(
        "they are gone",
        || connections() == serde_json::json!([]),
        || format!("{:#}", connections()),
    );
}

#[test]
fn failed_calls_are_counted_as_errors() {
    let (server, _scratch) = serve();
    let line = "--rw randwrite --depth 1 --ios 10 --errors-max 100";
    Load::start(&server.nvme_uri("faulty"), line).wait();
    let write = get(&server.api(), "/v1/volumes/faulty")["io"]["write"].clone();
    let number = |key: &str| write[key].as_u64().unwrap();
    assert!(number("errors") > 0, "{write:#}");
    assert_eq!(number("errors"), number("count") / 2, "{write:#}");
    assert_eq!(number("bytes"), 4096 * (number("count") - number("errors")), "{write:#}");
}

#[test]
fn reload_reports_changes_or_all_errors() {
    let (server, scratch) = serve();
    let api = server.api();
    let file = scratch.join("flagstone.toml");
    let write = |text: String| fs::write(&file, text).expect("it can be written");
    write(VOLUMES.replace("iops = 50000", "iops = 0"));
    let answer = ask(&api, "POST", "/v1/reload");
    assert_eq!(answer.status, 422, "{answer:?}");
    assert!(answer.head.contains("Content-Type: application/problem+json"), "{answer:?}");
    let problem = answer.json();
    assert_eq!(problem["type"], "urn:flagstone:problem:configuration");
    assert_eq!(problem["mistakes"][0]["line"], 9, "{problem:#}");
    write(VOLUMES.replace("iops = 50000", "iops = 40000"));
    let expected = serde_json::json!({ "limits_changed": 1, "next_start_keys": [] });
    assert_eq!(ask(&api, "POST", "/v1/reload").json(), expected);
    // A second reload changes nothing.
    let expected = serde_json::json!({ "limits_changed": 0, "next_start_keys": [] });
    assert_eq!(ask(&api, "POST", "/v1/reload").json(), expected);
    // Query parameters are refused, because they would be ignored.
    let answer = ask(&api, "POST", "/v1/reload?dry_run=true");
    assert_eq!(answer.status, 422, "{answer:?}");
    let answer = ask(&api, "GET", "/v1/reload");
    assert_eq!(answer.status, 405);
    assert!(answer.head.contains("Allow: POST, OPTIONS"), "{answer:?}");
}

#[test]
fn missing_documents_list_the_existing_ones() {
    let (server, _scratch) = serve();
    let problem = ask(&server.api(), "GET", "/v1/volumes/dbx").json();
    assert_eq!(
        (&problem["status"], &problem["accepted"]),
        (&404.into(), &serde_json::json!(["db", "faulty"]))
    );
    let problem = ask(&server.api(), "GET", "/v2/volumes").json();
    assert_eq!(problem["status"], 404);
    assert!(problem["accepted"].as_array().unwrap().contains(&"/v1/volumes/{name}".into()));
}

#[test]
fn api_socket_is_private_and_removed_on_exit() {
    let mut server = Server::start(&["db=memory:8MiB"]);
    let api = server.api();
    let mode = fs::metadata(&api).expect("the socket is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Another server cannot take the socket, and the first keeps it.
    let other = Command::new(binary())
        .args(["serve", "--volume", "db=memory:8MiB", "--listen", "nbd://127.0.0.1:0", "--api"])
        .arg(&api)
        .output()
        .expect("flagstone runs");
    assert_eq!(other.status.code(), Some(1));
    assert!(text(&other.stderr).contains("another server has it"), "{}", text(&other.stderr));
    assert_eq!(get(&api, "/v1/")["process_id"], server.pid());
    // The socket of a killed server is replaced. A server that stops removes its socket.
    server.kill();
    assert!(api.exists());
    server.restart();
    assert_eq!(get(&api, "/v1/")["process_id"], server.pid());
    assert!(server.terminate().success());
    assert!(!api.exists());
}

#[test]
fn api_survives_garbage_while_hosts_are_served() {
    let (server, _scratch) = serve();
    let api = server.api();
    let line = "--rw randrw --depth 8 --ios 20000 --verify";
    let load = Load::start(&server.nvme_uri("db"), line);
    let mut rng = Rng::new(7);
    let begins = [
        "",
        "GET /v1/ HTTP/1.1\r\nHost: x\r\n",
        "POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n",
    ];
    for round in 0..60_usize {
        let mut bytes = begins[round % begins.len()].as_bytes().to_vec();
        bytes.extend((0..rng.below(3000)).map(|_| rng.below(256) as u8));
        let mut stream = unix(&api);
        let _ = stream.write_all(&bytes);
        // An incomplete request ends when its sender closes its side.
        let side = if round % 2 == 0 { Shutdown::Write } else { Shutdown::Both };
        let _ = stream.shutdown(side);
        let answer = exchange(stream, b"");
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 "), "{}", text(&answer));
    }
    assert_eq!(get(&api, "/v1/")["process_id"], server.pid());
    load.wait().assert_complete();
}

#[test]
fn documented_curl_commands_work() {
    if !tools::have("the API by curl", &["curl"]) {
        return;
    }
    let (server, _scratch) = serve();
    let api = server.api();
    let socket = api.to_str().expect("temporary paths are UTF-8");
    let curl =
        |rest: &[&str]| tools::run("curl", &[&["-sS", "--unix-socket", socket], rest].concat());
    let volumes: Value = serde_json::from_str(&curl(&["http://localhost/v1/volumes"])).unwrap();
    assert_eq!(volumes["volumes"][0]["name"], "db");
    let posted = curl(&["-X", "POST", "http://localhost/v1/reload"]);
    assert!(posted.contains("\"limits_changed\": 0"), "{posted}");
    // Two requests on one connection, one with a body that the server waits for.
    let url = "http://localhost/v1/reload";
    let large = "x".repeat(50_000);
    let both = curl(&["-H", "Expect: 100-continue", "--data", &large, url, url]);
    assert_eq!(both.matches("next_start_keys").count(), 2, "{both}");
    let head = curl(&["-I", "http://localhost/metrics"]);
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
}

#[test]
fn status_prints_the_api_document() {
    let (server, _scratch) = serve();
    let line = "--rw randrw --depth 8 --ios 2000";
    Load::start(&server.nvme_uri("db"), line).wait().assert_complete();
    let output = status(&server, &[]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}{}", text(&output.stderr));
    assert!(
        shown.starts_with(&format!(
            "flagstone {}, process {}, up ",
            env!("CARGO_PKG_VERSION"),
            server.pid()
        )),
        "{shown}"
    );
    let lines: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(
        lines.iter().any(|line| line.starts_with(&["volume", "size", "hosts", "reads"])),
        "{shown}"
    );
    assert!(lines.iter().any(|line| line.starts_with(&["db", "64", "MiB", "0"])), "{shown}");
    let shown = text(&status(&server, &["db"]).stdout);
    for part in [
        "volume db: 64 MiB, blocks of 4096 B, read-write",
        "on memory:64MiB through shared_limit, limit",
        server.address("nvme-tcp"),
        "none",
        "writes",
        "limit machine: 0 wait",
    ] {
        assert!(shown.contains(part), "no {part} in:\n{shown}");
    }
    let document: Value =
        serde_json::from_slice(&status(&server, &["db", "--json"]).stdout).unwrap();
    assert_eq!(document, get(&server.api(), "/v1/volumes/db"));
    let output = status(&server, &["dbx"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("there is no volume `dbx`\n  available: db, faulty"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn status_watch_prints_rates() {
    let (server, _scratch) = serve();
    let mut load = Load::start(&server.nvme_uri("db"), "--rw randwrite --depth 4 --time 10m");
    let mut watch = Command::new(binary())
        .args(["status", "db", "--watch", "--interval", "100ms", "--api"])
        .arg(server.api())
        .stdout(Stdio::piped())
        .spawn()
        .expect("flagstone runs");
    let lines = BufReader::new(watch.stdout.take().expect("it is a pipe")).lines();
    let mut writes = lines.map_while(Result::ok).filter(|line| line.starts_with("writes"));
    let is_rate = |line: &String| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let rate = cells[1].replace(',', "").parse::<f64>();
        // MB/s is the next cell, without a unit; a total has one.
        cells.len() == 7 && rate.is_ok_and(|rate| rate > 0.0) && cells[2].parse::<f64>().is_ok()
    };
    assert!(writes.any(|line| is_rate(&line)), "it ended without a rate");
    watch.kill().expect("it runs");
    watch.wait().expect("it can be waited for");
    load.kill();
}

#[test]
fn status_without_server_names_the_sockets() {
    let scratch = Scratch::new();
    let ask = |arguments: &[&str]| {
        let output = Command::new(binary())
            .arg("status")
            .args(arguments)
            .env("XDG_RUNTIME_DIR", scratch.path())
            .output()
            .expect("flagstone runs");
        assert_eq!(output.stdout, b"");
        (output.status.code(), text(&output.stderr))
    };
    let socket = scratch.join("none.sock");
    let socket = socket.to_str().expect("temporary paths are UTF-8");
    let (code, said) = ask(&["--api", socket]);
    assert_eq!(code, Some(1));
    for part in [socket, "no such socket", "flagstone serve", "--api PATH"] {
        assert!(said.contains(part), "no {part} in:\n{said}");
    }
}

#[test]
fn api_page_documents_everything_served() {
    let (server, _scratch) = serve();
    let api = server.api();
    let path = tools::workspace().join("docs/api.md");
    let doc = fs::read_to_string(&path).expect("docs/api.md exists");
    let documented =
        |what: &str| assert!(doc.contains(what), "docs/api.md does not mention {what}");
    for resource in get(&api, "/v1/")["resources"].as_array().expect("a list") {
        let [method, path, description] =
            ["method", "path", "description"].map(|key| resource[key].as_str().unwrap());
        documented(&format!("`{method} {path}`"));
        documented(description);
    }
    let volume = get(&api, "/v1/volumes/db");
    let openapi = get(&api, "/v1/openapi.json").to_string();
    for document in [
        &get(&api, "/v1/"),
        &volume,
        &volume["io"]["read"],
        &volume["io"]["read"]["latency"],
        &volume["limits"][0],
        &volume["listeners"][0],
        &volume["listeners"][1],
    ] {
        for key in document.as_object().expect("an object").keys() {
            assert!(openapi.contains(&format!("\"{key}\":")), "openapi.json has no {key}");
        }
    }
}

/// The default path, which no test creates.
#[test]
fn api_off_creates_no_socket() {
    let scratch = Scratch::new();
    let volume = format!("db={}", scratch.disk("disk", 8 << 20).display());
    let server = Server::start_with(&[&volume], &["nbd://127.0.0.1:0"], &["--api", "none"]);
    assert!(!Path::new(&server.api()).exists());
    assert!(!server.output().contains("API on"), "{}", server.output());
}
