//! The Debian package: installed by dpkg into a root directory of its own, started as its unit
//! does, attached, reloaded, upgraded, removed.
//!
//! The root has a shell and the libraries that the program names, nothing else. systemd, which
//! would make the user, start the unit and restrict it, is left out; `service` checks the unit.
//! cargo-deb builds the package where `make package` has installed it. Elsewhere, because building
//! that takes minutes, the test packs the same assets with dpkg-deb.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flagstone_lab::ports::free_ports;
use flagstone_tests::load::Load;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, binary};
use flagstone_tests::service::{Service, unit_command};
use flagstone_tests::tools;
use rustix::process::Signal;
use serde_json::Value;

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
    let has_cargo_deb = tools::workspace().join(".cache/tools/bin/cargo-deb").exists();
    let script = tools::workspace().join("scripts/package.sh");
    let mut command = Command::new(script);
    command.args(["--fast", "--binary"]).arg(binary()).arg("--output").arg(&output);
    command.arg(if has_cargo_deb { "--deb-only" } else { "--stage-only" });
    let done = command.stdin(Stdio::null()).output().expect("the script runs");
    assert!(done.status.success(), "{done:?}");
    match has_cargo_deb {
        true => fs::read_dir(output).unwrap().next().expect("a package").unwrap().path(),
        false => pack(&output, scratch),
    }
}

/// What the manifest says of the package.
fn manifest() -> Value {
    let path = tools::workspace().join("crates/cli/Cargo.toml");
    let path = format!("--manifest-path={}", path.display());
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version=1", &path])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    packages.iter().find(|package| package["name"] == "flagstone").expect("it is there").clone()
}

/// Packs the assets of the manifest, of which the built ones are in `staged`.
fn pack(staged: &Path, scratch: &Scratch) -> PathBuf {
    let manifest = manifest();
    let deb = &manifest["metadata"]["deb"];
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let tree = scratch.join("tree");
    let put = |from: &Path, to: &str, mode: u32| {
        let to = tree.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).unwrap();
    };
    let package = tools::workspace().join("crates/cli");
    for asset in deb["assets"].as_array().unwrap() {
        let [from, to, mode] = [0, 1, 2].map(|index| text(&asset[index]));
        let mode = u32::from_str_radix(&mode, 8).unwrap();
        let from = match from.strip_prefix("target/release/") {
            Some(built) => staged.join(built),
            None => package.join(from),
        };
        let sources = match from.file_name().unwrap().to_str().unwrap().strip_prefix('*') {
            Some(end) => files_that_end(from.parent().unwrap(), end),
            None => vec![from],
        };
        for source in sources {
            let name = source.file_name().unwrap().to_str().unwrap();
            let to = if to.ends_with('/') { format!("{to}{name}") } else { to.clone() };
            put(&source, &to, mode);
        }
    }
    let license = package.join(text(&deb["license-file"][0]));
    put(&license, "usr/share/doc/flagstone/copyright", 0o644);
    for script in ["postinst", "prerm", "postrm"] {
        let from = package.join(text(&deb["maintainer-scripts"])).join(script);
        put(&from, &format!("DEBIAN/{script}"), 0o755);
    }
    let kept = deb["conf-files"].as_array().unwrap().iter().map(|file| text(file) + "\n");
    fs::write(tree.join("DEBIAN/conffiles"), kept.collect::<String>()).unwrap();
    let architecture = tools::run("dpkg", &["--print-architecture"]);
    let control = format!(
        "Package: flagstone\nVersion: {}-1\nArchitecture: {}\nMaintainer: {}\nSection: {}\n\
         Description: {}\n",
        text(&manifest["version"]),
        architecture.trim(),
        text(&deb["maintainer"]),
        text(&deb["section"]),
        text(&manifest["description"]),
    );
    fs::write(tree.join("DEBIAN/control"), control).unwrap();
    let built = scratch.join("flagstone.deb");
    let [from, to] = [&tree, &built].map(|path| path.to_str().unwrap());
    tools::run("dpkg-deb", &["-Znone", "--root-owner-group", "--build", from, to]);
    built
}

fn files_that_end(folder: &Path, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = entries.filter(|path| path.to_str().unwrap().ends_with(end)).collect();
    assert!(!found.is_empty(), "{}: none ends in {end}", folder.display());
    found
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
    tools::run("dpkg-deb", &["-Znone", "--build", from, to]);
    later
}

#[test]
fn deb_serves_upgrades_and_removes() {
    if !tools::have(TEST, &PROGRAMS) {
        return;
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
    // As systemd-sysusers makes it, for the user who starts the program here.
    fs::write(root.path("etc/passwd"), "flagstone:x:0:0::/var/lib/flagstone:\n").unwrap();
    let options = ["--device", disk, "--listen", &listen, "--iops", "50000"];
    let init = [&["flagstone", "init", "--install"], &options[..]].concat();
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
