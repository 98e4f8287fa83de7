//! The systemd unit: notifications of the server that it starts, and what systemd says of the unit.

use std::fs;
use std::process::Command;

use flagstone_lab::ports::free_ports;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::binary;
use flagstone_tests::service::{Service, unit_command_at};
use flagstone_tests::tools;
use rustix::process::Signal;

/// Microseconds of CLOCK_MONOTONIC.
fn monotonic_usec() -> u128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u128 * 1_000_000 + now.tv_nsec as u128 / 1000
}

const NOT_RELOADED: &str =
    "STATUS=nothing was reloaded, the configuration or a key file has errors: see the log";

#[test]
fn service_notifies_its_manager() {
    let scratch = Scratch::new();
    let [port] = free_ports().unwrap();
    let file = scratch.join("db.toml");
    let write = |iops: &str| {
        let text = format!(
            "[server]\nlisten = [\"nbd://127.0.0.1:{port}\"]\napi = {:?}\n\
             [volume.db]\nlimit = {{ iops = {iops} }}\ndevice = \"memory:1MiB\"\n",
            scratch.join("api.sock")
        );
        fs::write(&file, text).unwrap();
    };
    write("100");
    let mut service = Service::start(unit_command_at(binary(), scratch.path()));
    for _ in 0..3 {
        service.message("WATCHDOG=1");
    }
    for (iops, status) in [("200", "STATUS=volumes: 1"), ("\"many\"", NOT_RELOADED)] {
        write(iops);
        let before = monotonic_usec();
        service.signal(Signal::HUP);
        let reloading = service.message("RELOADING=1");
        let at = reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
        let at: u128 = at.expect(&reloading).parse().expect("a number");
        assert!((before..=monotonic_usec()).contains(&at), "{before} {at}");
        let ready = service.message("READY=1");
        assert!(ready.lines().any(|line| line == status), "{ready}");
    }
    assert!(service.log().contains("is limited to"), "{}", service.log());
    service.signal(Signal::TERM);
    service.message("STOPPING=1");
    assert_eq!(service.wait().code(), Some(0));
}

#[test]
fn systemd_accepts_the_unit() {
    let test = "systemd_accepts_the_unit";
    if tools::find("systemd-analyze").is_none() {
        return tools::unable(test, "systemd-analyze is not installed");
    }
    let scratch = Scratch::new();
    let unit = fs::read_to_string(tools::workspace().join("packaging/flagstone.service")).unwrap();
    let program = binary().canonicalize().unwrap();
    let file = scratch.join("flagstone.service");
    fs::write(&file, unit.replace("/usr/bin/flagstone", program.to_str().unwrap())).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let output = verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&file).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Before 253, the second Type= is ignored as intended.
    let mut complaints = said.lines().filter(|line| {
        line.contains("flagstone.service") && !line.ends_with("ignoring: notify-reload")
    });
    assert_eq!(complaints.next(), None, "{said}");
    // Root without its powers: systemd rates a unit without hardening 9.6.
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=yes", "--threshold=30"]).arg(&file);
    let output = security.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("Overall exposure"), "{said}");
}
