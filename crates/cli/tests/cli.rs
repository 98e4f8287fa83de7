//! The program as scripts see it: what it prints where, and the code it ends with; and
//! `docs/cli.md` against the definitions of the arguments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use clap::{Args as _, CommandFactory as _};
use flagstone_cli::args::{Cli, LoadArgs, ServeArgs};
use flagstone_cli::exit::Exit;

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
    assert!(output.stderr.is_empty());
}

#[test]
fn check_reports_mistakes_on_standard_error_without_colours() {
    let output = flagstone(&["check", "crates/control/tests/broken/unknown_keys.toml"]);
    assert_eq!(code(&output), Some(2));
    assert!(output.stdout.is_empty());
    let report = text(&output.stderr);
    assert!(
        report.starts_with(
            "crates/control/tests/broken/unknown_keys.toml:2:1: error: unknown key `lisen`"
        ),
        "{report}"
    );
    assert!(!report.contains('\x1b'));
}

#[test]
fn check_reports_as_json_on_standard_output() {
    let file = "crates/control/tests/broken/unknown_keys.toml";
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
fn a_missing_file_is_wrong_usage() {
    for arguments in
        [&["check", "no/such/file"][..], &["check"], &["frobnicate"], &["check", "docs"]]
    {
        let output = flagstone(arguments);
        assert_eq!(code(&output), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn the_version_names_the_commit() {
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

#[test]
fn completions_of_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = flagstone(&["completions", shell]);
        assert_eq!(code(&output), Some(0), "{shell}");
        assert!(text(&output.stdout).contains("completions"), "{shell}");
    }
}

/// The options of a command as a table of Markdown.
fn options(command: &clap::Command) -> String {
    let mut out = String::from("| option | default | meaning |\n| --- | --- | --- |\n");
    for argument in
        command.get_arguments().filter(|a| !["help", "version"].contains(&a.get_id().as_str()))
    {
        let takes_value = argument.get_action().takes_values();
        let value = argument.get_value_names().map(|names| names[0].to_string());
        let value = value.unwrap_or_else(|| argument.get_id().as_str().to_uppercase());
        let name = match argument.get_long() {
            Some(long) if takes_value => format!("--{long} {value}"),
            Some(long) => format!("--{long}"),
            None => value,
        };
        let defaults: Vec<_> = argument.get_default_values().iter().collect();
        let default = match defaults.first().and_then(|default| default.to_str()) {
            Some(default) if takes_value => format!("`{default}`"),
            _ => String::new(),
        };
        let words: Vec<_> = argument
            .get_possible_values()
            .iter()
            .filter(|_| takes_value)
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        let words =
            if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) };
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        out += &format!("| `{name}` | {default} | {help}{words} |\n");
    }
    out
}

fn exit_codes() -> String {
    let rows = Exit::ALL.map(|exit| format!("| {} | {} |\n", exit.code(), exit.meaning()));
    format!("| code | meaning |\n| --- | --- |\n{}", rows.concat())
}

#[test]
fn the_documentation_is_what_the_program_takes() {
    let path = repository().join("docs/cli.md");
    let mut doc = fs::read_to_string(&path).expect("docs/cli.md exists");
    let cli = Cli::command();
    let of = |name: &str| options(cli.find_subcommand(name).expect("it is a command"));
    for (marker, table) in [
        ("exit codes".to_owned(), exit_codes()),
        ("options of check".to_owned(), of("check")),
        ("options of completions".to_owned(), of("completions")),
        (
            "options of serve".to_owned(),
            options(&ServeArgs::augment_args(clap::Command::new("serve"))),
        ),
        (
            "options of load".to_owned(),
            options(&LoadArgs::augment_args(clap::Command::new("load"))),
        ),
    ] {
        let begin = format!("<!-- {marker} -->\n");
        let start = doc.find(&begin).unwrap_or_else(|| panic!("{begin} is missing")) + begin.len();
        let length = doc[start..].find("<!-- end -->").expect("the end is marked");
        doc.replace_range(start..start + length, &table);
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &doc).expect("it can be written");
    }
    let written = fs::read_to_string(&path).expect("docs/cli.md exists");
    assert!(written == doc, "docs/cli.md differs (UPDATE_GOLDEN=1 writes it); now:\n{doc}");
}

#[test]
fn exit_codes_never_change() {
    assert_eq!(Exit::ALL.map(Exit::code), [0, 1, 2, 3, 4]);
}
