//! A panic on a core other than the first ends the server.
//!
//! This program starts itself as the child: a server on two cores with the product's serving code,
//! logging and panic hook, and one more task, on core 1, that panics after a client has connected.

#![allow(clippy::disallowed_methods, reason = "the client is outside of the runtime")]

use std::io::Read as _;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use flagstone_cli::logging::{self, LogFormat};
use flagstone_cli::panic;
use flagstone_config::Config;
use flagstone_runtime::{RuntimeConfig, cores, run};
use flagstone_server::serve::serve;
use flagstone_server::service_manager::ServiceManager;

const CHILD: &str = "FLAGSTONE_TEST_PANICKING_SERVER";
const SIGABRT: i32 = 6;
const CONFIG: &str = r#"
[server]
listen = ["nbd://127.0.0.1:0"]
api = "none"

[volume.db]
device = "memory:1MiB"
"#;

/// Connects to the announced address, then makes core 1 panic.
fn panic_on_core_1(announcement: &str) {
    let address = announcement
        .split_whitespace()
        .find_map(|word| word.strip_prefix("nbd://"))
        .expect("an NBD listener")
        .to_owned();
    let mut greeting = [0; 8];
    cores()[1].spawn(move || async move {
        let mut client = TcpStream::connect(address).expect("the server listens");
        let _ = std::thread::Builder::new().spawn(move || client.read_exact(&mut greeting));
        panic!("injected on core 1");
    });
}

fn serve_until_panic() {
    panic::install_hook();
    logging::init(LogFormat::Text).expect("logging starts once");
    let config = Config::parse("test", CONFIG).unwrap_or_else(|error| panic!("{error}"));
    let reread = || Config::parse("test", CONFIG);
    let runtime = RuntimeConfig { cores: 2, ..RuntimeConfig::default() };
    let ended = run(&runtime, || serve(config, panic_on_core_1, reread, ServiceManager::default()));
    panic!("the server outlived the panic: {:?}", ended.map(|served| served.is_ok()));
}

#[test]
fn panic_on_second_core_ends_server() {
    if std::env::var_os(CHILD).is_some() {
        return serve_until_panic();
    }
    let child = Command::new(std::env::current_exe().expect("its own path"))
        .args(["--exact", "panic_on_second_core_ends_server", "--nocapture"])
        .env(CHILD, "1")
        .env_remove("RUST_LOG")
        .env_remove("RUST_BACKTRACE")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts itself");
    let output = child.wait_with_output().expect("it ends");
    let log = String::from_utf8_lossy(&output.stderr);
    // A shell reports the signal as exit status 128 + 6 = 134, as docs/cli.md says.
    assert_eq!(output.status.signal(), Some(SIGABRT), "{}\n{log}", output.status);
    assert!(log.contains("panic, the process ends: injected on core 1"), "{log}");
    assert!(log.contains("core-1"), "{log}");
    let backtrace = log.split("backtrace=").nth(1).unwrap_or_default();
    assert!(backtrace.contains("tests/panic.rs"), "the backtrace names this file:\n{log}");
}
