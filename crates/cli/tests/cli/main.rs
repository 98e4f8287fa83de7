//! The program from a script's view: output streams and exit statuses, and `docs/cli.md` compared
//! with the definitions of the options.

mod plan;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flagstone_cli::exit::Exit;
use flagstone_cli::{command, option_groups};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn flagstone(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flagstone"))
        .args(arguments)
        .current_dir(repository())
        .env_remove("NO_COLOR")
        .output()
        .expect("the program runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it prints text")
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn check_accepts_the_example() {
    let output = flagstone(&["check", "docs/examples/flagstone.toml"]);
    assert_eq!(code(&output), Some(0));
    assert_eq!(
        text(&output.stdout),
        "docs/examples/flagstone.toml: ok: 3 volumes, 2 subsystems, 3 addresses\n"
    );
    // Its key files exist only on a server.
    let is_key = |line: &str| line.starts_with("warning: key file /etc/flagstone/keys/web");
    let mut lines = text(&output.stderr).lines().filter(|line| !line.starts_with("  help: "));
    assert!(lines.all(is_key), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("`flagstone key generate PATH` makes a key"));
}

#[test]
fn check_reports_mistakes_on_stderr_without_colors() {
    let output = flagstone(&["check", "crates/config/tests/broken/unknown_keys.toml"]);
    assert_eq!(code(&output), Some(2));
    assert!(output.stdout.is_empty());
    let report = text(&output.stderr);
    assert!(report.starts_with("error: unknown key `lisen`"), "{report}");
    assert!(report.contains("--> crates/config/tests/broken/unknown_keys.toml:2:1"), "{report}");
    assert!(!report.contains('\x1b'));
}

#[test]
fn check_reports_json_on_stdout() {
    let file = "crates/config/tests/broken/unknown_keys.toml";
    let output = flagstone(&["check", "--json", file]);
    assert_eq!(code(&output), Some(2));
    assert!(output.stderr.is_empty());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(report["file"], file);
    assert_eq!(report["ok"], false);
    assert_eq!(report["mistakes"].as_array().map(Vec::len), Some(5));
    assert_eq!(report["mistakes"][0]["line"], 2);
    assert_eq!(report["mistakes"][0]["column"], 1);
    assert_eq!(report["mistakes"][0]["help"], "did you mean `listen`?");

    let output = flagstone(&["check", "--json", "docs/examples/flagstone.toml"]);
    assert_eq!(code(&output), Some(0));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(report["ok"], true);
}

#[test]
fn missing_file_is_usage_error() {
    for arguments in
        [&["check", "no/such/file"][..], &["check"], &["frobnicate"], &["check", "docs"]]
    {
        let output = flagstone(arguments);
        assert_eq!(code(&output), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn version_names_commit() {
    let output = flagstone(&["--version"]);
    assert_eq!(code(&output), Some(0));
    let version = text(&output.stdout).trim_end();
    let commit = version
        .strip_prefix(concat!("flagstone ", env!("CARGO_PKG_VERSION"), " ("))
        .and_then(|rest| rest.strip_suffix(')'))
        .unwrap_or_else(|| panic!("{version}"));
    let hash = commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    let given = option_env!("FLAGSTONE_COMMIT") == Some(commit);
    assert!(hash || given || commit == "unknown", "{version}");
}

/// The arguments of a command as a line of Markdown, with defaults in parentheses.
fn options(command: &clap::Command) -> String {
    options_beyond(command, &[])
}

/// The same without the arguments of a common list.
fn options_beyond(command: &clap::Command, without: &[String]) -> String {
    let argument = |argument: &clap::Arg| -> Option<String> {
        let id = argument.get_id().as_str();
        if ["help", "version"].contains(&id) || without.iter().any(|other| other == id) {
            return None;
        }
        let takes_value = argument.get_action().takes_values();
        let words: Vec<_> = argument.get_possible_values();
        let words: Vec<_> = words.iter().filter(|word| !word.is_hide_set()).collect();
        let words: Vec<_> = words.iter().map(|word| word.get_name()).collect();
        let value = argument.get_value_names().map(|names| names[0].to_string());
        let value = value.unwrap_or_else(|| id.to_uppercase());
        let value = if takes_value && !words.is_empty() { words.join("|") } else { value };
        let name = match argument.get_long() {
            Some(long) if takes_value => format!("--{long} {value}"),
            Some(long) => format!("--{long}"),
            None => value,
        };
        let default = argument.get_default_values().first().filter(|_| takes_value);
        let default = default.and_then(|default| default.to_str());
        let default = default.map_or_else(String::new, |default| format!(" ({default})"));
        Some(format!("`{name}`{default}"))
    };
    let all: Vec<_> = command.get_arguments().filter_map(argument).collect();
    all.join(", ")
}

/// The option identifiers of a group.
fn ids(group: &clap::Command) -> Vec<String> {
    group.get_arguments().map(|argument| argument.get_id().as_str().to_owned()).collect()
}

fn exit_codes() -> String {
    let rows = Exit::MEANINGS.map(|(exit, meaning)| format!("- {}: {meaning}\n", exit as u8));
    format!("\n{}", rows.concat())
}

#[test]
fn cli_reference_matches_clap() {
    let path = repository().join("docs/cli.md");
    let mut doc = fs::read_to_string(&path).expect("docs/cli.md exists");
    let cli = command();
    let find = |path: &[&str]| -> clap::Command {
        let step = |command: &clap::Command, name: &&str| {
            command.find_subcommand(name).expect("it is a command").clone()
        };
        path.iter().fold(cli.clone(), |command, name| step(&command, name))
    };
    let of = |name: &str| options(&find(&[name]));
    let bench = |name: &str| options(&find(&["bench", name]));
    let shared = option_groups();
    let ids = |names: &[&str]| -> Vec<String> {
        let named = shared.iter().filter(|(name, _)| names.contains(name));
        named.flat_map(|(_, group)| ids(group)).collect()
    };
    let query = ids(&["query"]);
    let status = options_beyond(&find(&["status"]), &query);
    assert!(status == options_beyond(&find(&["mirror", "status"]), &query));
    let actions = ids(&["query", "mirror-actions"]);
    let mirror = |name: &str| options_beyond(&find(&["mirror", name]), &actions);
    let orders = ids(&["pool-orders", "volume-settings"]);
    let pool = |name: &str| options_beyond(&find(&["pool", name]), &orders);
    let volume = |name: &str| options_beyond(&find(&["volume", name]), &orders);
    let snapshot = |name: &str| options_beyond(&find(&["snapshot", name]), &orders);
    assert!(pool("reopen") == pool("destroy"));
    assert!(status == options_beyond(&find(&["volume", "show"]), &query));
    let stores = ids(&["query", "backup-store"]);
    let backup = |name: &str| options_beyond(&find(&["backup", name]), &stores);
    let peers = ids(&["mirror-peer"]);
    let mirror_peer = |name: &str| options_beyond(&find(&["mirror", name]), &peers);
    let on_disks = ids(&["plan-disk", "plan-jobs", "plan-output"]);
    let on_types = ids(&["plan-machine", "plan-jobs", "plan-output"]);
    let plan_types = |name: &str| options_beyond(&find(&["plan", name]), &on_types);
    let plan = |name: &str| options_beyond(&find(&["plan", name]), &on_disks);
    let disks = ids(&["plan-disk", "plan-output"]);
    let plan_alone_disks = |name: &str| options_beyond(&find(&["plan", name]), &disks);
    let output = ids(&["plan-output"]);
    let plan_alone = |name: &str| options_beyond(&find(&["plan", name]), &output);
    let mut targets = ids(&["lab-results", "lab-lengths", "lab-targets"]);
    let lab = |name: &str| options_beyond(&find(&["lab", name]), &targets);
    let nodes = ["mirror", "failover", "fabric", "pool", "savings"].map(lab);
    targets.extend(ids(&["lab-product"]));
    let lab = |name: &str| options_beyond(&find(&["lab", name]), &targets);
    let shared_options = shared.iter().map(|(name, group)| {
        let without = match *name {
            "mirror-actions" | "pool-orders" => query.clone(),
            "mirror-peer" => actions.clone(),
            "plan-disk" => ids(&["plan-machine"]),
            _ => Vec::new(),
        };
        (format!("options:{name}"), options_beyond(group, &without))
    });
    // These commands have no other options.
    assert!(["pause", "continue", "break"].iter().all(|name| mirror_peer(name).is_empty()));
    assert!(mirror("demote").is_empty() && mirror("failover") == mirror("delete"));
    assert!(options_beyond(&find(&["reload"]), &query).is_empty());
    let commands = [
        ("options:mirror-create".to_owned(), mirror("create")),
        ("options:mirror-resync".to_owned(), mirror_peer("resync")),
        ("options:mirror-switchover".to_owned(), mirror_peer("switchover")),
        ("options:mirror-failover".to_owned(), mirror("failover")),
        ("options:mirror-fence".to_owned(), mirror("fence")),
        ("options:mirror-verify".to_owned(), mirror_peer("verify")),
        ("options:mirror-resolve".to_owned(), mirror_peer("resolve")),
        ("options:mirror-grow".to_owned(), mirror("grow")),
        ("options:mirror-move-log".to_owned(), mirror("move-log")),
        ("options:mirror-add-peer".to_owned(), mirror("add-peer")),
        ("options:pool-create".to_owned(), pool("create")),
        ("options:pool-destroy".to_owned(), pool("destroy")),
        ("options:pool-grow".to_owned(), pool("grow")),
        ("options:pool-remove-device".to_owned(), pool("remove-device")),
        ("options:pool-scrub".to_owned(), pool("scrub")),
        ("options:pool-check".to_owned(), pool("check")),
        ("options:pool-savings".to_owned(), pool("savings")),
        ("options:volume-clone".to_owned(), volume("clone")),
        ("options:volume-promote".to_owned(), volume("promote")),
        ("options:volume-send".to_owned(), volume("send")),
        ("options:volume-receive".to_owned(), volume("receive")),
        ("options:volume-backup".to_owned(), options_beyond(&find(&["volume", "backup"]), &stores)),
        ("options:backup-list".to_owned(), backup("list")),
        ("options:backup-verify".to_owned(), backup("verify")),
        ("options:backup-prune".to_owned(), backup("prune")),
        ("options:backup-restore".to_owned(), backup("restore")),
        ("options:backup-serve".to_owned(), backup("serve")),
        ("options:backup-change-key".to_owned(), backup("change-key")),
        ("options:backup-recover".to_owned(), backup("recover")),
        ("options:snapshot-create".to_owned(), snapshot("create")),
        ("options:snapshot-diff".to_owned(), snapshot("diff")),
        ("options:snapshot-rollback".to_owned(), snapshot("rollback")),
        ("options:snapshot-delete".to_owned(), snapshot("delete")),
        ("options:snapshot-list".to_owned(), options_beyond(&find(&["snapshot", "list"]), &query)),
        ("options:pool-set".to_owned(), pool("set")),
        ("options:pool-replace-device".to_owned(), pool("replace-device")),
        ("options:pool-set-log".to_owned(), pool("set-log")),
        ("options:volume-create".to_owned(), volume("create")),
        ("options:volume-resize".to_owned(), volume("resize")),
        ("options:volume-set".to_owned(), volume("set")),
        ("options:volume-rename".to_owned(), volume("rename")),
        ("options:volume-delete".to_owned(), volume("delete")),
        ("options:bench-run".to_owned(), bench("run")),
        ("options:bench-diskspd".to_owned(), bench("diskspd")),
        ("options:bench-compare".to_owned(), bench("compare")),
        ("options:bench-report".to_owned(), bench("report")),
        ("options:bench-resume".to_owned(), bench("resume")),
        ("options:bench-list".to_owned(), bench("list")),
        ("exit-statuses".to_owned(), exit_codes()),
        ("options:lab-mirror".to_owned(), nodes[0].clone()),
        ("options:lab-failover".to_owned(), nodes[1].clone()),
        ("options:lab-fabric".to_owned(), nodes[2].clone()),
        ("options:lab-provisioned".to_owned(), lab("provisioned")),
        ("options:lab-limits".to_owned(), lab("limits")),
        ("options:lab-pool".to_owned(), nodes[3].clone()),
        ("options:lab-savings".to_owned(), nodes[4].clone()),
        ("options:lab-demo".to_owned(), options(&find(&["lab", "demo"]))),
        ("options:plan-predict".to_owned(), plan("predict")),
        ("options:plan-cheapest".to_owned(), plan_alone("cheapest")),
        ("options:plan-explain".to_owned(), plan("explain")),
        ("options:plan-compare".to_owned(), plan_types("compare")),
        ("options:plan-curve".to_owned(), plan_types("curve")),
        ("options:plan-pool".to_owned(), plan_alone_disks("pool")),
        ("options:plan-savings".to_owned(), plan_alone("savings")),
        ("options:plan-table".to_owned(), plan_alone("table")),
        ("options:plan-catalog".to_owned(), options(&find(&["plan", "catalog"]))),
        ("options:check".to_owned(), of("check")),
        ("options:key-generate".to_owned(), options(&find(&["key", "generate"]))),
        ("options:key-token".to_owned(), options(&find(&["key", "token"]))),
        ("options:key-check".to_owned(), options(&find(&["key", "check"]))),
        ("options:key-convert".to_owned(), options(&find(&["key", "convert"]))),
        ("options:key-identity".to_owned(), options(&find(&["key", "identity"]))),
        ("options:status".to_owned(), status),
        ("options:doctor".to_owned(), of("doctor")),
        ("options:completions".to_owned(), of("completions")),
        ("options:serve".to_owned(), of("serve")),
        ("options:load".to_owned(), of("load")),
        ("options:init".to_owned(), of("init")),
    ];
    for (marker, table) in shared_options.chain(commands) {
        let begin = format!("<!--{marker}-->");
        let start = doc.find(&begin).unwrap_or_else(|| panic!("{begin} is missing")) + begin.len();
        let length = doc[start..].find("<!--end-->").expect("the end is marked");
        doc.replace_range(start..start + length, &table);
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &doc).expect("it can be written");
    }
    let written = fs::read_to_string(&path).expect("docs/cli.md exists");
    assert!(written == doc, "docs/cli.md differs (UPDATE_GOLDEN=1 writes it); now:\n{doc}");
}

#[test]
fn exit_statuses_are_stable() {
    assert_eq!(Exit::MEANINGS.map(|(exit, _)| exit as u8), [0, 1, 2, 3, 4, 5]);
}

fn run(line: &str) -> Output {
    flagstone(&line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn init_writes_files_that_check_accepts() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("init");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("it can be made");
    let file = folder.join("flagstone.toml");
    let path = file.to_str().expect("text");
    let nodes = "--device /dev/sdb --node node-a=10.0.0.1 --peer node-b=10.0.0.2 --iops 5000";
    let pair = &format!("{nodes} --host nqn.2026-01.io.example:h");
    let output = run(&format!("init {path} {pair}"));
    assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let (_, peer) = printed.split_once("# ---- the file of node-b ----\n").expect("both");
    let other = folder.join("peer.toml");
    let other = other.to_str().expect("text");
    let both = run(&format!("init --force {path} {pair} --peer-file {other}"));
    assert_eq!(code(&both), Some(0), "{}", text(&both.stderr));
    assert_eq!(fs::read_to_string(other).expect("it is written"), peer);
    // One stream holds one configuration.
    let output = run(&format!("init {pair}"));
    let printed = text(&output.stdout);
    let of_peer = printed.lines().filter_map(|line| line.strip_prefix("#| "));
    assert_eq!(
        of_peer.map(|line| format!("{line}\n")).collect::<String>(),
        peer.replace("\n\n", "\n")
    );
    let stream = folder.join("stream.toml");
    fs::write(&stream, printed).expect("it can be written");
    let output = run(&format!("check {}", stream.display()));
    assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
    let next = [
        "#   mkdir -p -m 700 /etc/flagstone/keys".to_owned(),
        "#   flagstone key generate /etc/flagstone/keys/host".to_owned(),
        "#   flagstone key generate /etc/flagstone/keys/pair".to_owned(),
        "#   scp -rp /etc/flagstone/keys root@10.0.0.2:/etc/flagstone/".to_owned(),
        format!("#   scp {other} root@10.0.0.2:{path}"),
        format!("#   flagstone serve {path}   # on both nodes"),
        "#   flagstone mirror create db --source   # on node-a, which has the data".to_owned(),
        "#   flagstone mirror create db --target --watch   # on node-b, whose device is overwritten"
            .to_owned(),
    ];
    assert!(text(&both.stdout).ends_with(&(next.join("\n") + "\n")), "{}", text(&both.stdout));
    for file in [path, other] {
        let output = run(&format!("check {file}"));
        let missing = text(&output.stderr).lines().filter(|line| line.contains("No such file"));
        assert_eq!((code(&output), missing.count()), (Some(0), 2), "the keys are made later");
    }
    // Without a key or the word, a node that others reach gets no file.
    let output = run(&format!("init --force {path} {nodes}"));
    assert_eq!(code(&output), Some(2));
    assert!(text(&output.stderr).contains("--host is missing"), "{}", text(&output.stderr));
    let output = run(&format!("init --force {path} {nodes} --insecure"));
    assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
    let output = run(&format!("check {path}"));
    let is_help = |line: &&str| line.starts_with("  help: use keys");
    let warned: Vec<_> = text(&output.stderr).lines().filter(|line| !is_help(line)).collect();
    let insecure = |line: &&str| line.starts_with("warning: insecure: anyone who");
    assert_eq!((code(&output), warned.len()), (Some(0), 2), "{warned:?}");
    assert!(warned.iter().all(insecure), "{warned:?}");
    // No file is replaced without consent, neither of the two, and a mistake writes none.
    let before = fs::read(&file).expect("it is there");
    assert_eq!(code(&run(&format!("init {path} --device /dev/sdc"))), Some(2));
    assert_eq!(fs::read(&file).expect("it is there"), before);
    let new = folder.join("new.toml");
    let output = run(&format!("init {} {pair} --peer-file {path}", new.display()));
    assert_eq!((code(&output), new.exists()), (Some(2), false));
    assert_eq!(fs::read(&file).expect("it is there"), before);
    let wrong = folder.join("wrong.toml");
    let output = run(&format!("init {} --device nul:1GiB", wrong.display()));
    assert_eq!(code(&output), Some(2));
    assert!(text(&output.stderr).contains("unknown kind of device"), "{}", text(&output.stderr));
    assert!(!wrong.exists());
    assert_eq!(code(&run("init")), Some(2), "without a terminal nothing is asked");
}

#[test]
fn manual_pages_are_written_for_each_command() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("man");
    let _ = fs::remove_dir_all(&folder);
    assert_eq!(code(&run(&format!("man {}", folder.display()))), Some(0));
    for name in ["flagstone.1", "flagstone-serve.1", "flagstone-mirror-create.1"] {
        let page = fs::read_to_string(folder.join(name)).expect(name);
        assert!(page.starts_with(".ie ") && page.contains(".TH flagstone"), "{name}: {page}");
    }
    assert!(!folder.join("flagstone-man.1").exists(), "the command is hidden");
}

#[test]
fn completion_scripts_ask_the_program() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&format!("completions {shell}"));
        let script = text(&output.stdout);
        assert_eq!(code(&output), Some(0), "{shell}");
        assert!(script.contains("FLAGSTONE_COMPLETE") && script.contains("flagstone"), "{shell}");
    }
}

#[test]
fn key_commands_print_json() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("key_json");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let at = |name: &str| folder.join(name).display().to_string();
    let (good, missing) = (at("good"), at("missing"));
    let shown = |line: &str, exit| {
        let output = run(line);
        assert_eq!(code(&output), Some(exit), "{line}: {}", text(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("it is JSON")
    };
    let made = shown(&format!("key generate --tls --json {good}"), 0);
    let checked = shown(&format!("key check --json {good} {missing}"), 1);
    assert_eq!(checked["keys"][0]["fingerprint"], made["fingerprint"]);
    assert!(checked["mistakes"][0].as_str().is_some_and(|why| why.contains("missing")));
    assert!(shown("key generate --json", 0)["key"].as_str().is_some_and(|key| key.len() > 40));
    assert!(shown(&format!("key convert --json {good} --to hex"), 0)["key"].is_string());
    assert!(shown(&format!("key token --json {}", at("token")), 0)["hash"].is_string());
    let nqns = "--host nqn.2026-01.io.example:h --subsystem nqn.2026-01.io.example:s";
    let named = shown(&format!("key identity --json {good} {nqns}"), 0);
    assert_eq!(named["identities"].as_array().map(Vec::len), Some(3));
}
