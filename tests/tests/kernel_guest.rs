//! Linux kernel's NVMe/TCP host against Flagstone, in a guest under QEMU.
//!
//! The steps are in `tests/guest/nvme.sh`: discover, connect, identify, read and write with
//! checksums, a filesystem, discard, digests, two kills of the server under load, disconnect.
//! `tests/guest/multipath.sh` has the steps for a volume mirrored by two nodes,
//! `tests/guest/backing_restart.sh` those for a volume whose server restarts before its backing
//! server, alone and beside another volume,
//! `tests/guest/volumes.sh` those for volumes that are created, resized and deleted,
//! `tests/guest/reservations.sh` those for two hosts that fence each other,
//! `tests/guest/authentication.sh` those for a host with keys,
//! `tests/guest/ktls.sh` those for TLS, by the kernel from 6.14 on,
//! `tests/guest/records.sh` those for hostile records of TLS, by such a kernel.
//!
//! In `tests/guest/replica.sh`, nvme-cli sends all vendor-specific commands of a replication
//! subsystem, exactly as `docs/nvme-vendor-commands.md` prints them, and acts as the source of a
//! mirror. The answers are compared with the nodes' status and their disks
//! ([`flagstone_tests::vendor_commands`]).

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_tests::guest::{self, HOST_ADDRESS, Image, Script};
use flagstone_tests::mirror::{Pair, Setup, VOLUME};
use flagstone_tests::pools::Bed;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, Server, binary};
use flagstone_tests::tools;
use flagstone_tests::vendor_commands::{self, Witness};

const SIZE_BYTES: u64 = 128 << 20;
/// The guest's host, as `scripts/guest/build.sh` names it.
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:5f1a7e00-0000-4000-8000-000000000001";

/// Runs a script that may ask for a restart of `server`.
fn assert_passes(image: &Image, script: &Script<'_>, server: &mut Server) {
    let report = guest::run(image, script, |request| match request {
        "restart" => {
            server.restart();
            Ok(())
        }
        _ => Err("no such request".into()),
    });
    println!("{}", report.summary());
    report.assert_passed();
}

#[test]
fn linux_host_survives_server_restarts() {
    let image = match Image::build() {
        Ok(image) => image,
        Err(reason) => return tools::skip("the Linux kernel's NVMe/TCP host", &reason),
    };
    let scratch = Scratch::new();
    let disk = scratch.disk("disk", SIZE_BYTES);
    let mut server = Server::start(&[&format!("db={}", disk.display())]);

    let script = Script {
        files: &["host.sh", "volume.sh", "nvme.sh"],
        variables: &[
            ("ADDRESS", HOST_ADDRESS),
            ("PORT", &server.port("nvme-tcp").to_string()),
            ("NQN", &format!("{NQN_PREFIX}db")),
            ("SIZE_BYTES", &SIZE_BYTES.to_string()),
        ],
        kernel_arguments: "",
        ..Script::default()
    };
    assert_passes(&image, &script, &mut server);

    let status = server.terminate();
    assert!(status.success(), "after a clean stop: {status}\n{}", server.output());
}

/// Two hosts that fence each other with nvme-cli, across a restart of the server. Then the guest
/// runs this program, with TLS by its kernel: one boot is cheaper than two.
#[test]
fn linux_hosts_fence_each_other_with_reservations() {
    let image = match Image::build() {
        Ok(image) => image,
        Err(reason) => return tools::skip("reservations of Linux hosts", &reason),
    };
    let scratch = Scratch::new();
    let (disk, state) = (scratch.disk("disk", SIZE_BYTES), scratch.path().join("state"));
    let state = state.to_str().expect("a name in UTF-8");
    let volume = format!("db={}", disk.display());
    let listener = "nvme-tcp://127.0.0.1:0";
    let mut server = Server::start_with(&[&volume], &[listener], &["--state", state]);
    let script = Script {
        files: &["host.sh", "reservations.sh", "ktls.sh"],
        variables: &[
            ("ADDRESS", HOST_ADDRESS),
            ("PORT", &server.port("nvme-tcp").to_string()),
            ("NQN", &format!("{NQN_PREFIX}db")),
        ],
        kernel_arguments: "nvme_core.multipath=N",
        program: Some(binary()),
    };
    assert_passes(&image, &script, &mut server);
}

/// Forged data, alerts and key updates, which this machine's own run of the runtime's tests leaves
/// to the library if its kernel has no TLS. `FLAGSTONE_RUNTIME_TESTS` names the program of these
/// tests, as `cargo test -p flagstone-runtime --lib --no-run` prints it, and `GUEST_KERNEL` of
/// `scripts/guest/build.sh` a kernel from 6.14 on.
#[test]
fn kernel_has_records_of_hostile_peers() {
    let Some(tests) = std::env::var_os("FLAGSTONE_RUNTIME_TESTS").map(PathBuf::from) else {
        println!("not tried: FLAGSTONE_RUNTIME_TESTS names no program");
        return;
    };
    let image = match Image::build() {
        Ok(image) => image,
        Err(reason) => return tools::skip("TLS records of the guest's kernel", &reason),
    };
    let name = tests.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
    let script = Script {
        files: &["records.sh"],
        variables: &[("TESTS", name)],
        program: Some(&tests),
        ..Script::default()
    };
    let report = guest::run(&image, &script, |_| Err("no such request".into()));
    println!("{}", report.summary());
    report.assert_passed();
}

/// Keys of nvme-cli in Linux's host, by the commands of the guides. Debian 12's kernel cannot
/// authenticate; `GUEST_KERNEL` of `scripts/guest/build.sh` names a newer one.
#[test]
fn linux_host_authenticates() {
    let image = match Image::build() {
        Ok(image) => image,
        Err(reason) => return tools::skip("authentication of the Linux kernel's host", &reason),
    };
    if !image.has_module("nvme-auth") {
        println!("not tried: the guest's kernel has no NVME_AUTH");
        return;
    }
    let scratch = Scratch::new();
    let disk = scratch.disk("disk", SIZE_BYTES);
    let keys = ["host", "controller", "wrong"].map(|name| nvme_cli_key(scratch.path(), name));
    let configuration = scratch.path().join("keys.toml");
    fs::write(
        &configuration,
        format!(
            "[host.guest]\nnqn = \"{HOST_NQN}\"\nkey_file = \"{0}/host\"\ncontroller_key_file = \"{0}/controller\"\n",
            scratch.path().display()
        ),
    )
    .expect("a file can be written in a fresh folder");
    let volume = format!("db={}", disk.display());
    let configuration = configuration.to_str().expect("a name in UTF-8");
    let mut server = Server::start_with(&[&volume], &["nvme-tcp://127.0.0.1:0"], &[configuration]);
    let port = server.port("nvme-tcp").to_string();
    let nqn = format!("{NQN_PREFIX}db");
    let commands = [("keys.md", "nvme connect "), ("first-steps.md", "nvme connect-all ")].map(
        |(guide, words)| {
            let command = guide_command(guide, words);
            let command =
                command.replace("-a 10.0.0.1 -s 4420", &format!("-a {HOST_ADDRESS} -s {port}"));
            command.replace("-n NQN", &format!("-n {nqn}"))
        },
    );
    assert!(commands.iter().all(|command| command.contains("--dhchap-secret")), "{commands:?}");
    let script = Script {
        files: &["host.sh", "volume.sh", "authentication.sh"],
        variables: &[
            ("ADDRESS", HOST_ADDRESS),
            ("PORT", &port),
            ("NQN", &nqn),
            ("KEY", &keys[0]),
            ("CONTROLLER_KEY", &keys[1]),
            ("WRONG_KEY", &keys[2]),
            ("CONNECT", &commands[0]),
            ("CONNECT_ALL", &commands[1]),
        ],
        kernel_arguments: "",
        ..Script::default()
    };
    let report = guest::run(&image, &script, |request| match request {
        "restart" => {
            server.restart();
            Ok(())
        }
        "authenticated" => {
            let mut status = Command::new(binary());
            let output = status.args(["status", "db", "--api"]).arg(server.api()).output();
            let status = String::from_utf8_lossy(&output.expect("it runs").stdout).into_owned();
            if status.contains("authenticated") { Ok(()) } else { Err(status) }
        }
        _ => Err("no such request".into()),
    });
    println!("{}", report.summary());
    report.assert_passed();
}

/// The first command of a guide that begins with these words, for a host.
fn guide_command(guide: &str, words: &str) -> String {
    let guide = fs::read_to_string(tools::workspace().join("docs/guides").join(guide));
    let guide = guide.expect("the guide is there");
    let mut commands = guide.lines().filter_map(|line| line.trim().strip_prefix("host# "));
    commands.find(|command| command.starts_with(words)).expect("the guide has it").to_owned()
}

/// A key that nvme-cli makes for SHA-256, kept in this file.
fn nvme_cli_key(directory: &Path, name: &str) -> String {
    let nvme = tools::find("nvme").expect("the guest has nvme-cli of this machine");
    let made = Command::new(nvme).args(["gen-dhchap-key", "--hmac=1"]).output().expect("it runs");
    let key = String::from_utf8(made.stdout).expect("a key is text").trim().to_owned();
    assert!(key.starts_with("DHHC-1:01:"), "{key}");
    let path = directory.join(name);
    fs::write(&path, &key).expect("a file can be written in a fresh folder");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("the file is ours");
    key
}

/// A server that starts before its backing server keeps the host waiting. The host loses neither
/// the device nor a write. In a shared subsystem, it keeps the disk of a volume whose device leaves
/// and comes beside a namespace in use.
#[test]
fn linux_host_keeps_a_late_volume() {
    let image = match Image::build() {
        Ok(image) => image,
        Err(reason) => return tools::skip("a volume that comes late to Linux", &reason),
    };
    let scratch = Scratch::new();
    let [db, near, other] = ["db", "near", "other"].map(|name| scratch.disk(name, SIZE_BYTES));
    let volumes = [("db", db), ("other", other)];
    let volumes = volumes.map(|(name, disk)| format!("{name}={}", disk.display()));
    let mut far = Server::start(&volumes.each_ref().map(String::as_str));
    let configuration = scratch.join("shared.toml");
    let text = format!(
        "[volume.db]\ndevice = \"{}\"\n[volume.near]\ndevice = {near:?}\n\
         [volume.other]\ndevice = \"{}\"\n[subsystem.shared]\nnamespaces = [\"near\", \"other\"]\n",
        far.nvme_uri("db"),
        far.nvme_uri("other"),
    );
    fs::write(&configuration, text).expect("a file can be written in a fresh folder");
    let configuration = configuration.to_str().expect("a name in UTF-8");
    let mut server = Server::start_with(&[], &["nvme-tcp://127.0.0.1:0"], &[configuration]);
    let script = Script {
        files: &["host.sh", "volume.sh", "backing_restart.sh"],
        variables: &[
            ("ADDRESS", HOST_ADDRESS),
            ("PORT", &server.port("nvme-tcp").to_string()),
            ("NQN", &format!("{NQN_PREFIX}db")),
            ("SHARED", &format!("{NQN_PREFIX}shared")),
        ],
        kernel_arguments: "",
        ..Script::default()
    };
    let report = guest::run(&image, &script, |request| {
        match request {
            "lose" => {
                server.kill();
                far.kill();
                server.restart();
            }
            "return" => far.restart(),
            _ => return Err("no such request".into()),
        }
        Ok(())
    });
    println!("{}", report.summary());
    report.assert_passed();
}

/// Sizes of a volume before and after it grows.
const SMALL_BYTES: u64 = 16 << 20;
const LARGE_BYTES: u64 = 48 << 20;

/// A volume is created, resized and deleted with the program beneath the host.
#[test]
fn linux_host_follows_created_resized_and_deleted_volumes() {
    let image = match Image::build() {
        Ok(image) => image,
        Err(reason) => return tools::skip("changes of volumes under the Linux kernel", &reason),
    };
    let (bed, _) = Bed::with_pool();
    let script = Script {
        files: &["host.sh", "volume.sh", "volumes.sh"],
        variables: &[
            ("ADDRESS", HOST_ADDRESS),
            ("PORT", &bed.server.port("nvme-tcp").to_string()),
            ("NQN", &format!("{NQN_PREFIX}own")),
            ("SECOND", &format!("{NQN_PREFIX}second")),
            ("SMALL_BYTES", &SMALL_BYTES.to_string()),
            ("LARGE_BYTES", &LARGE_BYTES.to_string()),
        ],
        kernel_arguments: "",
        ..Script::default()
    };
    let report = guest::run(&image, &script, |request| {
        let order = match request {
            "create" => format!("volume create second --pool fast --size {SMALL_BYTES}"),
            "resize" => format!("volume resize second {LARGE_BYTES}"),
            "delete" => "volume delete second --yes --force".to_owned(),
            _ => return Err("no such request".into()),
        };
        let output = bed.output(&order);
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    });
    println!("{}", report.summary());
    report.assert_passed();
}

/// The kernel's own multipath follows a mirrored volume from node to node. Its user sees no error
/// through planned switchovers, the death of the source, and its return.
#[test]
fn linux_multipath_follows_a_mirrored_volume() {
    let image = match Image::build() {
        Ok(image) => image,
        Err(reason) => return tools::skip("the Linux kernel's multipath", &reason),
    };
    let setup = Setup { size_bytes: SIZE_BYTES, ..Setup::default() };
    let pair = Pair::linked("cut links under the Linux kernel's multipath", setup);
    let mut pair = pair.unwrap_or_else(|| Pair::in_sync(SIZE_BYTES, ""));
    let linked = pair.is_linked();
    // The guest cannot use this machine's loopback address.
    let address = |node| if linked { pair.host_address(node).0 } else { HOST_ADDRESS };
    let addresses = [0, 1].map(address).join(" ");
    let ports = [0, 1].map(|node| pair.host_address(node).1).join(" ");
    let script = Script {
        files: &["host.sh", "multipath.sh"],
        variables: &[
            ("ADDRESSES", &addresses),
            ("PORTS", &ports),
            ("LINKED", if linked { "yes" } else { "" }),
            ("NQN", &format!("{NQN_PREFIX}{VOLUME}")),
        ],
        kernel_arguments: "nvme_core.multipath=Y",
        ..Script::default()
    };
    let mut source = 0;
    let report = guest::run_at(&pair.host(), &image, &script, |request| {
        let target = 1 - source;
        match request {
            "switchover" => {
                pair.wait_for(source, "mirroring");
                pair.order(target, "switchover", &[]);
                source = target;
            }
            "die" => {
                pair.wait_for(source, "mirroring");
                pair.node(source).kill();
                pair.fail_over_to(target);
                source = target;
            }
            "return" => {
                pair.node(target).restart();
                pair.wait_for(source, "mirroring");
            }
            "cut" => [0, 1].iter().for_each(|node| pair.network().cut(*node)),
            "cut-one-way" => pair.network().cut(source),
            "unplug" => pair.network().unplug(target),
            "heal" => {
                pair.network().heal();
                pair.wait_for(source, "mirroring");
            }
            _ => return Err("no such request".into()),
        }
        Ok(())
    });
    println!("{}", report.summary());
    report.assert_passed();
    pair.end(source);
}

/// All vendor-specific commands of a replication subsystem, sent by nvme-cli. Refused commands do
/// not disturb a mirroring pair, and a foreign host brings a target up to date and makes it the
/// source.
#[test]
fn nvme_cli_sends_every_vendor_command() {
    let image = match Image::build() {
        Ok(image) => image,
        Err(reason) => return tools::skip("vendor specific commands by nvme-cli", &reason),
    };
    // The examples assume blocks of 512 bytes, whatever this machine's disk has.
    let volume = ["block_size = 512"; 2];
    let pair = Pair::set_up(Setup { size_bytes: SIZE_BYTES, volume, ..Setup::default() });
    let mut witness = Witness::of(pair.synchronized());
    let ports = [0, 1].map(|node| witness.pair.host_address(node).1.to_owned()).join(" ");
    let script = Script {
        files: &["host.sh", "replica.sh"],
        variables: &[
            ("ADDRESS", HOST_ADDRESS),
            ("PORTS", &ports),
            ("SIZE_BYTES", &witness.size_bytes().to_string()),
        ],
        // The default: a host with one of several paths must choose which errors it retries.
        kernel_arguments: "nvme_core.multipath=Y",
        ..Script::default()
    };
    let report = guest::run(&image, &script, |request| witness.answer(request));
    println!("{}", report.summary());
    report.assert_passed();
    witness.pair.end(1);
}

/// The scenario runs every documented command.
#[test]
fn documented_vendor_commands_are_run() {
    vendor_commands::assert_examples_are_run();
}

/// The scenario must pass against Linux's own target too. If this fails, the scenario is wrong, not
/// Flagstone.
#[test]
#[ignore = "checks the scenario, not Flagstone; run it after a change of tests/guest"]
fn linux_own_target_passes_the_same_scenario() {
    let image = match Image::build() {
        Ok(image) => image,
        Err(reason) => return tools::skip("Linux's own NVMe/TCP target", &reason),
    };
    let script = Script {
        files: &["nvmet.sh", "host.sh", "volume.sh", "nvme.sh"],
        variables: &[("NQN", &format!("{NQN_PREFIX}db")), ("SIZE_BYTES", &SIZE_BYTES.to_string())],
        // Host and target run in one kernel: pages sent without a copy arrive as they are, and
        // Linux 6.1 treats such a page as a leak and stops.
        kernel_arguments: "hardened_usercopy=off",
        ..Script::default()
    };
    let report = guest::run(&image, &script, |_| Err("the script serves itself".into()));
    println!("{}", report.summary());
    report.assert_passed();
}

/// An unreachable target is reported by the kernel and by the harness, step by step.
#[test]
#[ignore = "checks the harness, not Flagstone; run it after a change of tests/src/guest.rs"]
fn refused_connection_fails_only_the_first_step() {
    let image = match Image::build() {
        Ok(image) => image,
        Err(reason) => return tools::skip("a refused connection", &reason),
    };
    let script = Script {
        files: &["host.sh", "volume.sh", "nvme.sh"],
        // Port 1 of the loopback: only root may listen there.
        variables: &[("ADDRESS", HOST_ADDRESS), ("PORT", "1"), ("NQN", NQN_PREFIX)],
        kernel_arguments: "",
        ..Script::default()
    };
    let report = guest::run(&image, &script, |_| Err("nothing to ask".into()));
    assert!(!report.passed());
    assert_eq!(report.exit.as_deref(), Some("1"));
    let outcomes: Vec<_> =
        report.steps.iter().map(|step| (step.name.as_str(), step.outcome)).collect();
    assert_eq!(outcomes, [("discover", guest::Outcome::Failed)]);
}
