//! Tests of `nvme-tcp://` targets through the kernel, with a fake `nvme` that creates the files of
//! the kernel: commands, detection, and removal of connections.

#[path = "support/executable.rs"]
mod executable;

use std::fs;
use std::path::{Path, PathBuf};

use flagstone_bench::attach::{Initiator, InitiatorChoice};
use flagstone_bench::campaign::{Campaign, CampaignEnd, CampaignPlan, Watcher};
use flagstone_bench::environment::{DiskKind, Environment};
use flagstone_bench::error::Error;
use flagstone_bench::fio::Fio;
use flagstone_bench::generator::Generator;
use flagstone_bench::process::Interrupt;
use flagstone_bench::results::{ResultRecord, ResultStore};
use flagstone_bench::stats::Steady;
use flagstone_bench::suite;

const URI: &str = "nvme-tcp://127.0.0.1:4420/nqn.2026-01.io.flagstone:v?queues=2";

/// Fake `nvme`: logs its arguments, and creates or removes the kernel's files of `nvme7` with the
/// namespace `nvme3n1` on two paths. A file `fail` makes it fail, a file `empty` makes it show no
/// namespace.
const FAKE_NVME: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "nvme $*" >>"$here/said"
case "$1" in
version) echo "nvme version 2.3" ;;
connect)
  if [ -f "$here/fail" ]; then echo "could not add new controller: failed to write to nvme-fabrics device" >&2; exit 1; fi
  at="$here/new"; mkdir "$at"
  echo tcp >"$at/transport"
  echo nqn.2026-01.io.flagstone:v >"$at/subsysnqn"
  echo traddr=127.0.0.1,trsvcid=4420,src_addr=127.0.0.1 >"$at/address"
  if [ ! -f "$here/empty" ]; then
    mkdir "$at/nvme3c7n1" "$at/hwmon0"; echo 1 >"$at/nvme3c7n1/nsid"
    truncate -s 4M "$here/dev/nvme3n1"
  fi
  # At once, as the kernel does.
  mv "$at" "$here/sys/class/nvme/nvme7" ;;
disconnect) rm -rf "$here/sys/class/nvme/nvme7" "$here/dev/nvme3n1" ;;
esac
"#;

/// A machine with the fake programs.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Machine {
        let machine = Machine(tempfile::tempdir().expect("a directory"));
        fs::create_dir_all(machine.path("sys/class/nvme")).expect("it can be made");
        fs::create_dir(machine.path("dev")).expect("it can be made");
        machine.program("nvme", FAKE_NVME);
        machine
            .program("modprobe", "#!/bin/sh\necho \"modprobe $*\" >>\"$(dirname \"$0\")/said\"\n");
        fs::write(machine.path("dev/nvme-fabrics"), "").expect("it can be written");
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        executable::write_script(&self.path(name), script);
    }

    fn initiator(&self) -> Initiator {
        Initiator::at(&self.path("nvme"), &self.path("modprobe"), self.0.path(), true)
    }

    fn said(&self) -> Vec<String> {
        let said = fs::read_to_string(self.path("said")).unwrap_or_default();
        said.lines().map(str::to_owned).collect()
    }

    fn why_not(&self, initiator: &Initiator) -> Option<String> {
        initiator.why_not(&Interrupt::never()).expect("nobody interrupts")
    }
}

#[test]
fn attach_reports_missing_prerequisites() {
    let machine = Machine::new();
    assert_eq!(machine.why_not(&machine.initiator()), None);
    let (nvme, modprobe) = (machine.path("nvme"), machine.path("modprobe"));
    let user = Initiator::at(&nvme, &modprobe, machine.0.path(), false);
    assert!(machine.why_not(&user).expect("a reason").contains("only root"));
    let none = Initiator::at(Path::new("/no/such/nvme"), &modprobe, machine.0.path(), true);
    assert!(machine.why_not(&none).expect("a reason").contains("apt install nvme-cli"));

    fs::remove_file(machine.path("dev/nvme-fabrics")).expect("it was there");
    let reason = machine.why_not(&machine.initiator()).expect("a reason");
    assert!(reason.contains("no /dev/nvme-fabrics"), "{reason}");
    assert_eq!(machine.said().last().map(String::as_str), Some("modprobe nvme-tcp"));
    machine.program("modprobe", "#!/bin/sh\necho 'Module nvme-tcp not found' >&2; exit 1\n");
    let reason = machine.why_not(&machine.initiator()).expect("a reason");
    assert!(reason.contains("cannot be loaded: Module nvme-tcp not found"), "{reason}");
    machine.program("modprobe", "#!/bin/sh\n: >\"$(dirname \"$0\")/dev/nvme-fabrics\"\n");
    assert_eq!(machine.why_not(&machine.initiator()), None, "it was loaded");
}

#[test]
fn attached_namespace_is_disconnected_on_drop() {
    let machine = Machine::new();
    let never = Interrupt::never();
    let initiator = machine.initiator();
    let attached = initiator.attach(URI, &never).expect("nobody interrupts").expect("it can be");
    assert_eq!(attached.device(), machine.path("dev/nvme3n1"));
    let connect = "nvme connect --transport=tcp --traddr=127.0.0.1 --trsvcid=4420 \
                   --nqn=nqn.2026-01.io.flagstone:v --nr-io-queues=2";
    assert_eq!(machine.said(), [connect]);

    // An existing connection is used and stays.
    let again = initiator.attach(URI, &never).expect("nobody interrupts").expect("it is there");
    assert!(again.device() == attached.device());
    drop(again);
    assert_eq!(machine.said(), [connect]);
    drop(attached);
    assert_eq!(machine.said()[1..], ["nvme disconnect --device=nvme7"]);

    let no_address = initiator.attach("nbd://h/e", &never).expect("nobody interrupts");
    assert!(no_address.expect_err("not over NVMe").contains("no nvme-tcp://"));
    fs::write(machine.path("fail"), "").expect("it can be written");
    let refused = initiator.attach(URI, &never).expect("nobody interrupts");
    let reason = refused.expect_err("it fails");
    assert!(
        reason.contains("could not add new controller") && reason.contains(connect),
        "{reason}"
    );
}

#[test]
fn interrupt_disconnects_namespace() {
    let machine = Machine::new();
    fs::write(machine.path("empty"), "").expect("it can be written");
    let interrupt = Interrupt::never();
    // Raised while `nvme connect` runs, or while the namespace is awaited.
    let raise = interrupt.clone();
    let said = machine.path("said");
    let initiator = machine.initiator();
    let waits = std::thread::scope(|scope| {
        scope.spawn(move || {
            while !fs::read_to_string(&said).is_ok_and(|text| text.contains("connect")) {
                std::thread::yield_now();
            }
            raise.raise();
        });
        initiator.attach(URI, &interrupt)
    });
    match waits {
        Err(Error::Interrupted) => {}
        other => panic!("{other:?}"),
    }
    assert!(!machine.path("sys/class/nvme/nvme7").exists(), "{:?}", machine.said());
}

#[derive(Default)]
struct Notes(Vec<String>);

impl Watcher for Notes {
    fn note(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
    fn begin(&mut self, _: &str, _: f64) {}
    fn tick(&mut self) {}
    fn done(&mut self, _: &ResultRecord) {}
    fn steadiness(&mut self, _: &str, _: &str, _: u32, _: Option<Steady>) {}
}

fn plan(machine: &Machine) -> (CampaignPlan, ResultStore) {
    let mut suite = suite::find("quick").expect("it is built in");
    suite.repetitions = 1;
    suite.jobs.truncate(1);
    for job in &mut suite.jobs {
        // The tests' file system may lack direct I/O.
        (job.ramp_ms, job.runtime_ms, job.direct) = (0, 100, false);
    }
    let plan =
        CampaignPlan::new(&suite, vec![format!("v={URI}").parse().expect("a target")], 1 << 20);
    let store = ResultStore::create(&machine.path("results"), &plan).expect("it is new");
    (plan, store)
}

fn run(
    machine: &Machine,
    plan: &CampaignPlan,
    store: &ResultStore,
    fio: &Fio,
) -> (Result<CampaignEnd, Error>, Notes) {
    let mut notes = Notes::default();
    let generator = Generator { program: "/no/such/program".into() };
    let (initiator, interrupt) = (machine.initiator(), Interrupt::never());
    let campaign = Campaign {
        plan,
        store,
        fio: Some(fio),
        generator: &generator,
        initiator: &initiator,
        interrupt: &interrupt,
    };
    (campaign.run(&mut notes), notes)
}

#[test]
fn kernel_campaign_records_original_address() {
    let fio = match Fio::find(&Interrupt::never()) {
        Ok(fio) => fio,
        Err(error) => return eprintln!("SKIPPED: {error}"),
    };
    let machine = Machine::new();
    let (plan, store) = plan(&machine);
    let (ended, notes) = run(&machine, &plan, &store, &fio);
    assert_eq!(ended.expect("it ends"), CampaignEnd::Complete, "{:?}", notes.0);
    assert!(notes.0.iter().any(|note| note.contains("through the kernel, as ")), "{:?}", notes.0);
    let records = store.records().expect("results");
    assert_eq!((records.len(), records[0].address.as_str()), (1, URI));
    assert!(records[0].iops > 0.0 && records[0].command.contains("dev/nvme3n1"), "{records:?}");
    let environments: Vec<Environment> = store.environments().expect("it is kept");
    let disk = &environments[0].disks[URI];
    assert_eq!((disk.kind, disk.size_bytes), (DiskKind::Served, Some(4 << 20)));
    assert_eq!(disk.initiator.as_deref(), Some("the kernel and fio"));
    assert_eq!(machine.said().pop().as_deref(), Some("nvme disconnect --device=nvme7"));
}

#[test]
fn kernel_initiator_refusal_has_a_reason() {
    let fio = match Fio::find(&Interrupt::never()) {
        Ok(fio) => fio,
        Err(error) => return eprintln!("SKIPPED: {error}"),
    };
    let machine = Machine::new();
    fs::write(machine.path("fail"), "").expect("it can be written");
    let (mut plan, store) = plan(&machine);
    // The generator is missing too: the note comes first.
    let (ended, notes) = run(&machine, &plan, &store, &fio);
    assert!(ended.is_err());
    let note = notes.0.first().expect("a note");
    assert!(note.contains("our own generator") && note.contains("could not add new"), "{note}");

    plan.initiator = InitiatorChoice::Kernel;
    let (ended, _) = run(&machine, &plan, &store, &fio);
    let error = ended.expect_err("there is no other way").to_string();
    assert!(error.contains("cannot be measured through the kernel: it could not be"), "{error}");

    plan.initiator = InitiatorChoice::Auto;
    let two = format!("v={URI},{URI}1");
    plan.targets = vec![two.parse().expect("a target")];
    let (ended, _) = run(&machine, &plan, &store, &fio);
    let error = ended.expect_err("our generator has one").to_string();
    assert!(error.contains("several nvme-tcp:// disks at once need the kernel"), "{error}");
}
