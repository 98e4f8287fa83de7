//! The Debian package: installed by dpkg into a root directory of its own, started as its unit
//! does, attached, reloaded, upgraded, removed.
//!
//! The root has a shell and the libraries that the program names, nothing else. systemd, which
//! would start the unit and restrict it, is left out; `service` checks the unit.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flagstone_lab::ports::free_ports;
use flagstone_tests::load::Load;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, binary};
use flagstone_tests::service::{Service, unit_command};
use flagstone_tests::tools;
use rustix::process::Signal;

const TEST: &str = "deb_serves_upgrades_and_removes";

/// The programs of the test that `tools::run` does not find missing by itself.
const PROGRAMS: [&str; 7] = ["dpkg", "dpkg-deb", "dpkg-query", "ldd", "chroot", "busybox", "strip"];

/// A root directory in which a package is installed.
struct Root(PathBuf);

impl Root {
    fn new(scratch: &Scratch) -> Root {
        let root = Root(scratch.join("root"));
        for folder in ["bin", "run/flagstone", "tmp", "var/lib/dpkg/info", "var/lib/dpkg/updates"] {
            fs::create_dir_all(root.path(folder)).unwrap();
        }
        fs::write(root.path("var/lib/dpkg/status"), "").unwrap();
        fs::copy(tools::find("busybox").unwrap(), root.path("bin/busybox")).unwrap();
        symlink("busybox", root.path("bin/sh")).unwrap();
        let libraries = tools::run("ldd", &[binary().to_str().unwrap()]);
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            let path = root.path(library);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::copy(library, path).unwrap();
        }
        root
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// Runs dpkg in the root. The libraries of `Depends` are there, though not as packages.
    fn dpkg(&self, arguments: &[&str]) {
        let root = format!("--root={}", self.0.display());
        let log = format!("--log={}", self.path("tmp/dpkg.log").display());
        tools::run("dpkg", &[&[&*root, &*log, "--force-depends"], arguments].concat());
    }

    /// Version of the installed package.
    fn version(&self) -> String {
        let admin = format!("--admindir={}", self.path("var/lib/dpkg").display());
        tools::run("dpkg-query", &[&admin, "--show", "--showformat=${Version}", "flagstone"])
    }

    fn command(&self, words: &[impl AsRef<str>]) -> Command {
        let mut command = Command::new(tools::find("chroot").unwrap());
        command.arg(&self.0).args(words.iter().map(AsRef::as_ref));
        command
    }
}

/// Builds the package of the program under test.
fn build(scratch: &Scratch) -> PathBuf {
    let output = scratch.join("packages");
    let script = tools::workspace().join("scripts/package.sh");
    let mut command = Command::new(script);
    command.args(["--deb-only", "--fast", "--binary"]).arg(binary()).arg("--output").arg(&output);
    let done = command.stdin(Stdio::null()).output().expect("the script runs");
    assert!(done.status.success(), "{done:?}");
    let built = fs::read_dir(output).unwrap().next().expect("a package");
    built.unwrap().path()
}

/// The same package with a later version.
fn later(package: &Path, scratch: &Scratch) -> PathBuf {
    let (folder, later) = (scratch.join("unpacked"), scratch.join("later.deb"));
    let [package, from, to] = [package, &folder, &later].map(|path| path.to_str().unwrap());
    tools::run("dpkg-deb", &["--raw-extract", package, from]);
    let control = folder.join("DEBIAN/control");
    let text = fs::read_to_string(&control).unwrap();
    let version = text.lines().find(|line| line.starts_with("Version: ")).unwrap();
    fs::write(&control, text.replace(version, "Version: 99.0-1")).unwrap();
    tools::run("dpkg-deb", &["-Zgzip", "-z1", "--build", from, to]);
    later
}

#[test]
fn deb_serves_upgrades_and_removes() {
    if !tools::have(TEST, &PROGRAMS) {
        return;
    }
    if !tools::workspace().join(".cache/tools/bin/cargo-deb").exists() {
        return tools::unable(TEST, "cargo-deb is not here; `make package` installs it");
    }
    if !rustix::process::geteuid().is_root() {
        return tools::unable(TEST, "only root may change the root directory");
    }
    let scratch = Scratch::new();
    let package = build(&scratch);
    let root = Root::new(&scratch);
    root.dpkg(&["--install", package.to_str().unwrap()]);
    for file in [
        "usr/bin/flagstone",
        "usr/lib/systemd/system/flagstone.service",
        "usr/lib/sysusers.d/flagstone.conf",
        "usr/share/man/man1/flagstone-serve.1.gz",
        "usr/share/bash-completion/completions/flagstone",
        "usr/share/doc/flagstone/THIRD-PARTY-LICENSES",
        "usr/share/doc/flagstone/NOTICE",
        "usr/share/doc/flagstone/examples/dashboard.json",
        "usr/share/doc/flagstone/examples/alerts.yaml",
        "usr/share/doc/flagstone/copyright",
        "etc/flagstone/conf.d/README",
    ] {
        assert!(root.path(file).is_file(), "{file}");
    }

    let [port] = free_ports().unwrap();
    let listen = format!("127.0.0.1:{port}");
    let (config, disk) = ("/etc/flagstone/conf.d/db.toml", "/var/lib/flagstone/db.img");
    fs::create_dir_all(root.path("var/lib/flagstone")).unwrap();
    fs::File::create(root.path(disk)).and_then(|file| file.set_len(16 << 20)).unwrap();
    let init =
        ["flagstone", "init", config, "--device", disk, "--listen", &listen, "--iops", "50000"];
    let init = root.command(&init).env("PATH", "/usr/bin").output().unwrap();
    assert!(init.status.success(), "{init:?}");

    let mut service = Service::start(root.command(&unit_command()));
    assert!(root.path("run/flagstone/flagstone.sock").exists(), "{}", service.log());
    let target = format!("nvme-tcp://{listen}/{NQN_PREFIX}db");
    let state = scratch.join("state");
    let load = |line: &str| Load::start_verified(&target, line, &state).wait();
    load("--rw randwrite --ios 500 --depth 8 --bs 16k").assert_complete();

    let text = fs::read_to_string(root.path(config)).unwrap();
    let changed = text.replace("iops = 50000", "iops = 60000");
    assert_ne!(text, changed);
    fs::write(root.path(config), &changed).unwrap();
    service.signal(Signal::HUP);
    service.message("RELOADING=1");
    service.message("READY=1");
    assert!(service.log().contains("volume `db` is limited to"), "{}", service.log());

    let before = root.version();
    root.dpkg(&["--install", later(&package, &scratch).to_str().unwrap()]);
    assert_ne!(before, root.version());
    // The running server keeps serving, and the new one finds the configuration and the data.
    let check = "--rw randread --depth 4 --bs 64k --after-crash client";
    assert_eq!(load(check).code, Some(0));
    service.signal(Signal::TERM);
    service.message("STOPPING=1");
    assert_eq!(service.wait().code(), Some(0), "{}", service.log());
    assert_eq!(fs::read_to_string(root.path(config)).unwrap(), changed);
    let mut service = Service::start(root.command(&unit_command()));
    let ended = load(check);
    assert_eq!(ended.code, Some(0), "{}\n{:#}", ended.log, ended.results);
    service.signal(Signal::TERM);
    assert_eq!(service.wait().code(), Some(0), "{}", service.log());

    root.dpkg(&["--remove", "flagstone"]);
    assert!(!root.path("usr/bin/flagstone").exists() && root.path(disk).exists());
    root.dpkg(&["--purge", "flagstone"]);
    assert!(!root.path("etc/flagstone/conf.d/README").exists());
    assert_eq!(fs::read_to_string(root.path(config)).unwrap(), changed);
}
