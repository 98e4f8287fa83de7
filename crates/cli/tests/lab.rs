//! `flagstone lab` end to end: short runs with real nodes. No assertion depends on the speed of the
//! machine.

mod program;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use program::program;
use serde_json::Value;

/// A directory for commands, with a separate directory for the nodes' files.
struct Lab {
    directory: tempfile::TempDir,
}

impl Lab {
    fn new() -> Lab {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        fs::create_dir(directory.path().join("scratch")).expect("it can be made");
        Lab { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(program());
        command.args(line.split_whitespace()).current_dir(self.directory.path());
        // The nodes' sockets are below TMPDIR, and socket paths have at most 108 bytes.
        command.env("TMPDIR", self.path("scratch")).stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().expect("it runs")
    }

    fn json(&self, line: &str) -> Value {
        let output = self.run(line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {}\n{errors}", output.status);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}\n{errors}"))
    }

    fn report(&self) -> String {
        fs::read_to_string(self.path("results/report.html")).expect("there is a report")
    }

    /// Command lines of running processes that name the directory.
    fn left_behind(&self) -> Vec<String> {
        let scratch = self.path("scratch").display().to_string();
        let line = |process: fs::DirEntry| fs::read(process.path().join("cmdline")).ok();
        fs::read_dir("/proc")
            .expect("there is /proc")
            .filter_map(|entry| line(entry.ok()?))
            .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
            .filter(|line| line.contains(&scratch))
            .collect()
    }

    /// Asserts that no process and no file of a node is left.
    fn is_clean(&self) {
        assert_eq!(self.left_behind(), Vec::<String>::new());
        let files: Vec<_> = fs::read_dir(self.path("scratch"))
            .expect("it is there")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        assert_eq!(files, Vec::<PathBuf>::new());
    }
}

const MIRROR: &str = "lab mirror --runtime 100ms --ramp 0 --repetitions 1 --results results";

#[test]
fn mirror_beside_published_figures() {
    let lab = Lab::new();
    let summary = lab.json(&format!("{MIRROR} --json"));
    assert_eq!((&summary["schema_version"], &summary["emulated"]), (&1.into(), &true.into()));
    let table = summary["table"].as_array().expect("rows");
    assert_eq!(table.len(), 3);
    for row in table {
        assert!(row["mirror"]["mib_per_s"].as_f64().expect("a number") > 0.0);
        assert!(row["plain"]["latency_ms"].as_f64().expect("a number") > 0.0);
        assert!(row["remote_disk"]["latency_ms"].as_f64().expect("a number") > 0.0);
        assert!(row["network_share"]["latency_percent"].is_number());
    }
    // Eight with all regions active, four with none, of three sizes.
    assert_eq!(summary["cells"].as_array().expect("cells").len(), 36);
    let report = lab.report();
    assert!(report.contains("EMULATED") && report.contains("SIOS DataKeeper"));
    assert!(report.contains("plot-lab-mirror-by-size") && report.contains("as SIOS published it"));
    assert!(report.contains(MIRROR), "what to type to do it again");
    let resumed = lab.run("bench resume results");
    assert_eq!(resumed.status.code(), Some(2), "its nodes are there no more");
    let again = lab.run(&format!("{MIRROR} --json"));
    assert_eq!(again.status.code(), Some(2), "results are not overwritten");
    lab.is_clean();
}

#[test]
fn unknown_machine_is_refused() {
    let lab = Lab::new();
    let output = lab.run(&format!("{MIRROR} --machine z9-standard-8"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--machine=z9-standard-8: "), "{errors}");
    assert!(!lab.path("results").exists());
    lab.is_clean();
}

#[test]
fn automatic_failover_loses_nothing() {
    let lab = Lab::new();
    let is_installed = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join("etcd").is_file())
    });
    let line = "lab failover --automatic --repetitions 1 --results results --json";
    if !is_installed {
        let output = lab.run(line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("etcd is not installed"), "{errors}");
        assert_eq!(output.status.code(), Some(2));
        return lab.is_clean();
    }
    let summary = lab.json(line);
    assert_eq!((&summary["wrong_blocks"], &summary["errors"]), (&0.into(), &0.into()));
    assert!(summary["blocks_checked"].as_u64().expect("a number") > 0);
    let deaths = summary["deaths"].as_array().expect("deaths");
    let kinds: Vec<_> = deaths.iter().map(|kind| kind["death"].as_str().expect("words")).collect();
    assert_eq!(kinds, ["kill", "stall", "link_cut", "isolation", "stop"]);
    for kind in deaths {
        let worst_ms = kind["worst_ms"].as_f64().expect("a number");
        // The machine is shared; the figures are for people.
        assert!(worst_ms > 0.0 && worst_ms < 60_000.0, "{kind}");
    }
    let picture = fs::read_to_string(lab.path("results/timeline.svg")).expect("a picture");
    assert!(picture.contains("killed (SIGKILL)") && picture.contains("nothing lost"));
    let report = lab.report();
    assert!(report.contains("MayaScale") && report.contains("Cloud Volumes ONTAP"));
    lab.is_clean();
}

#[test]
fn failover_loses_nothing() {
    let lab = Lab::new();
    let summary = lab.json("lab failover --time 10s --no-emulation --results results --json");
    assert_eq!((&summary["wrong_blocks"], &summary["errors"]), (&0.into(), &0.into()));
    assert!(summary["blocks_checked"].as_u64().expect("a number") > 0);
    let happened: Vec<_> = summary["events"]
        .as_array()
        .expect("events")
        .iter()
        .map(|event| event["what"].as_str().expect("words"))
        .collect();
    let expected = [
        "node-a falls silent",
        "node-b serves",
        "node-a returns",
        "both in sync",
        "switchover to node-a",
    ];
    assert_eq!(happened, expected);
    let (copied, all) = (&summary["resynced_bytes"], &summary["volume_bytes"]);
    assert!(copied.as_u64() < all.as_u64(), "only what may differ is copied");
    let picture = fs::read_to_string(lab.path("results/timeline.svg")).expect("a picture");
    assert!(picture.contains("node-a falls silent") && picture.contains("nothing lost"));
    // A peer is dead after two seconds of silence.
    assert!(summary["failover_ms"].as_f64().expect("a number") >= 1000.0);
    let report = lab.report();
    assert!(report.contains("flagstone load") && report.contains("plot-lab-timeline"));
    let again = lab.run("bench report results -o -");
    assert_eq!(String::from_utf8_lossy(&again.stdout), report, "made again, it is the same");
    lab.is_clean();
}

#[test]
fn local_disks_against_fabric() {
    let lab = Lab::new();
    let line = "lab fabric --scale 100 --runtime 100ms --ramp 0 --repetitions 1 --results results";
    let summary = lab.json(&format!("{line} --json"));
    let rows = summary["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert!(row["local"]["iops"].as_f64().expect("a number") > 0.0);
        assert!(row["fabric"]["iops"].as_f64().expect("a number") > 0.0);
    }
    let report = lab.report();
    assert!(report.contains("EMULATED") && report.contains("MayaScale") && report.contains(line));
    lab.is_clean();
}

#[test]
fn two_disk_sizes_are_judged() {
    let lab = Lab::new();
    let line = "lab provisioned --runtime 200ms --repetitions 1 --results results --json";
    let summary = lab.json(line);
    let rows = summary["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row["measured"]["iops"].as_f64().expect("a number") > 0.0);
        assert_eq!(row["measured"]["verdict"], "as-predicted");
        assert_eq!(row["published"]["verdict"], "above");
    }
    assert!(lab.report().contains("EMULATED"));
    lab.is_clean();
}

#[test]
fn published_limits_are_measured() {
    let lab = Lab::new();
    let line = "lab limits --runtime 100ms --ramp 0 --results results --json";
    let summary = lab.json(line);
    let cells = summary["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 75);
    // On a busy machine, no I/O of a cell may end within its 100 ms.
    let measured = |cell: &serde_json::Value| cell["measured"].as_f64().expect("a number");
    assert!(cells.iter().all(|cell| measured(cell) >= 0.0));
    assert!(cells.iter().any(|cell| measured(cell) > 0.0));
    assert!(summary["caveats"][0].as_str().expect("a sentence").contains("of 75 cells"));
    assert!(lab.report().contains("EMULATED"));
    lab.is_clean();
}

/// Waits until a file exists while the program runs.
#[allow(clippy::disallowed_methods, reason = "a test waits for another program")]
fn wait_for(path: &Path, child: &mut Child) {
    while !path.exists() {
        assert!(child.try_wait().expect("it can be asked").is_none(), "it ended before");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn interrupted_lab_leaves_only_its_results() {
    let lab = Lab::new();
    let mut command = lab.command("lab mirror --runtime 1h --ramp 0 --results results");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    wait_for(&lab.path("results/environment.json"), &mut child);
    assert!(!lab.left_behind().is_empty(), "the nodes run");
    let pid = child.id().to_string();
    let killed = Command::new("kill").args(["-INT", &pid]).status().expect("kill runs");
    assert!(killed.success());
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(4));
    assert!(lab.path("results/campaign.json").exists());
    lab.is_clean();
}
