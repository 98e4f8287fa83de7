//! Documentation compared with the parser: tables of keys, examples, ranges and defaults.

use std::fs;
use std::time::Duration;

use flagstone_config::schema::{SECTIONS, ValueKind};
use flagstone_config::{Arguments, Config};
use flagstone_mirror::options::{
    Ack, AfterSplitBrain, IntentLogMode, Mode, OnCongestion, OnPeerLoss,
};
use flagstone_units::{format_rate, format_size};

use crate::{assert_golden, docs_dir};

#[test]
fn documentation_tables_match_schema() {
    let path = docs_dir().join("configuration.md");
    let mut text = fs::read_to_string(&path).expect("docs/configuration.md exists");
    for section in SECTIONS {
        let begin = format!("<!--keys:{}-->\n", section.path);
        let end = "<!--end-->";
        let start = text.find(&begin).unwrap_or_else(|| panic!("{begin} is missing")) + begin.len();
        let length = text[start..].find(end).expect("the end of the keys is marked");
        text.replace_range(start..start + length, &section.markdown());
    }
    assert_golden(&path, &text);
}

#[test]
fn documentation_examples_are_valid() {
    let example = docs_dir().join("examples/flagstone.toml");
    let config = Config::read(&example, &Arguments::default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(config.volumes.len() >= 3);

    let text = fs::read_to_string(docs_dir().join("configuration.md")).expect("it exists");
    let mut examples = 0;
    for example in text.split("```toml\n").skip(1) {
        let (example, _) = example.split_once("```").expect("the example ends");
        Config::parse("configuration.md", example).unwrap_or_else(|e| panic!("{e}"));
        examples += 1;
    }
    assert!(examples >= 2, "only {examples} examples");
}

/// A file with a mirror that has `key`, in the mode that it is for.
fn mirror_with(key: &str, value: &str) -> String {
    let mode = match key {
        "mode" => "",
        "queue" | "on_congestion" => "mode = \"async\", ",
        // For labs only.
        "intent_log_mode" if value.contains("every-write") => {
            "intent_log = \"memory:64MiB\", intent_log_disk_model = { latency = \"1ms\" }, "
        }
        "failover_after" => "failover = \"automatic\", ",
        "failover_max_lag" => {
            "mode = \"async\", failover = \"automatic\", failover_after = \"1s\", "
        }
        _ => "mode = \"sync\", ",
    };
    let arbiter = match key.starts_with("failover_") || value == "\"automatic\"" {
        true => "[arbiter]\netcd = [\"http://10.0.0.3\"]\n",
        false => "",
    };
    let timeout = if key == "failover_max_lag" { "timeout = \"1s\"\n" } else { "" };
    format!(
        "{arbiter}[server]\nnode = \"a\"\nbuffer_memory = \"1024GiB\"\n[peer.b]\naddress = \"127.0.0.2\"\n{timeout}\
         [volume.NAME]\nmirror = {{ peer = \"b\", {mode}{key} = {value} }}\ndevice = \"/a\"\n"
    )
}

/// A file with a command that fences peer `b`, and more lines of that peer.
pub(super) fn fenced(more: &str) -> String {
    let file = mirror_with("failover", "\"automatic\"");
    let peer = "address = \"127.0.0.2\"\n";
    file.replace(peer, &format!("{peer}fence_command = [\"/bin/fence\", \"b\"]\n{more}"))
}

/// A file that writes `key` of the section at `path`, and is otherwise the least there is.
fn file_with(path: &str, key: &str, value: &str) -> String {
    let volume = "[volume.NAME]\ndevice = \"/dev/nvme0n1\"\n";
    match path {
        "volume.NAME" => format!("{volume}{key} = {value}\n"),
        "peer.NAME" if key == "fence_timeout" => fenced(&format!("{key} = {value}\n")),
        // Without key files, these are refused.
        "peer.NAME" if key == "authentication" => {
            file_with(path, "key_file", "\"/k\"") + &format!("{key} = {value}\n")
        }
        "peer.NAME" if key == "tls" => {
            file_with(path, "tls_key_file", "\"/k\"") + &format!("{key} = {value}\n")
        }
        "volume.NAME.stripe" => {
            format!("[volume.NAME]\nstripe = {{ devices = [\"/a\", \"/b\"], {key} = {value} }}\n")
        }
        "volume.NAME.delay" | "volume.NAME.fault" => {
            let layer = path.rsplit('.').next().expect("it has a last part");
            format!("[volume.NAME]\n{layer} = {{ {key} = {value} }}\ndevice = \"/a\"\n")
        }
        "volume.NAME.disk_model" => {
            // A tail goes with its median; a median is not above its tail.
            let median = match key.strip_suffix("p99") {
                Some(of) => format!("{of}latency = \"1s\", "),
                None if key == "seed" => "latency = \"1s\", ".to_owned(),
                None => String::new(),
            };
            format!("[volume.NAME]\ndisk_model = {{ {median}{key} = {value} }}\ndevice = \"/a\"\n")
        }
        "limit.NAME" | "profile" => {
            let mut limit = "read_iops = 1\nwrite_iops = 1\n".to_owned();
            limit += "read_throughput = \"1KB/s\"\nwrite_throughput = \"1KB/s\"\n";
            let others = limit.lines().filter(|line| !line.starts_with(&format!("{key} =")));
            let others: Vec<_> = others.collect();
            format!("{volume}[limit.NAME]\n{}\n{key} = {value}\n", others.join("\n"))
        }
        "limit.NAME.burst" => {
            let mut limit = "iops = 1\nread_iops = 1\nwrite_iops = 1\n".to_owned();
            for of in ["", "read_", "write_"] {
                limit += &format!("{of}throughput = \"1KB/s\"\n");
            }
            let burst = if key == "iops" { "" } else { "burst.iops = 2\n" };
            format!("{volume}[limit.NAME]\n{limit}{burst}burst.{key} = {value}\n")
        }
        "volume.NAME.mirror" => mirror_with(key, value),
        "server.listen" => {
            let entry = format!("{{ url = \"nbd://127.0.0.1:1\", {key} = {value} }}");
            format!("[server]\nlisten = [{entry}]\n{volume}")
        }
        "api_user.NAME" => {
            let token = if key == "token_file" { "" } else { "token_file = \"/t\"\n" };
            format!(
                "{volume}[server.api_tls]\nlisten = \"127.0.0.1\"\ncertificate_file = \"/c\"\n\
                 key_file = \"/k\"\n[api_user.NAME]\n{token}{key} = {value}\n"
            )
        }
        "peer.NAME" => {
            format!("{volume}[peer.NAME]\naddress = \"10.0.0.2\"\n{key} = {value}\n")
        }
        "subsystem.NAME" => {
            format!("{volume}[subsystem.NAME]\nnamespaces = [\"NAME\"]\n{key} = {value}\n")
        }
        "arbiter" => arbiter_with(key, value) + volume,
        _ => format!("[{path}]\n{key} = {value}\n{volume}"),
    }
}

fn arbiter_with(key: &str, value: &str) -> String {
    let more = match key {
        "etcd" => "",
        "user" => "password_file = \"/p\"\n",
        "password_file" => "user = \"u\"\n",
        "certificate_file" => "key_file = \"/k\"\n",
        "key_file" => "certificate_file = \"/c\"\n",
        _ => "",
    };
    let store = match key {
        "etcd" | "object_store" => "",
        "region" | "endpoint" | "credentials_file" => {
            "object_store = \"s3://bucket\"\nregion = \"r\"\n"
        }
        "account" => "object_store = \"az://container\"\n",
        _ => "etcd = [\"https://h\"]\n",
    };
    let store = if key == "region" { "object_store = \"s3://bucket\"\n" } else { store };
    format!("[arbiter]\n{store}{more}{key} = {value}\n")
}

/// Values at and just beyond the ends of each documented range, and the defaults written out.
#[test]
fn parser_accepts_schema_ranges_and_defaults() {
    for (section, key) in SECTIONS.iter().flat_map(|s| s.keys.iter().map(move |k| (s, k))) {
        let parse = |value: &str| Config::parse("f", &file_with(section.path, key.name, value));
        let (inside, outside) = match &key.kind {
            ValueKind::Boolean => (vec!["true".into(), "false".into()], vec!["1".into()]),
            ValueKind::Count(range) => (
                vec![range.start().to_string(), range.end().to_string()],
                vec![(i128::from(*range.start()) - 1).to_string(), (range.end() + 1).to_string()],
            ),
            ValueKind::Size(range, _) => (
                vec![range.end().to_string(), format!("\"{}\"", format_size(*range.end()))],
                vec![
                    (range.end() + 1).to_string(),
                    (range.end() * 2).to_string(),
                    (i128::from(*range.start()) - 1).to_string(),
                ],
            ),
            ValueKind::Rate(range) => (
                [range.start(), range.end()].map(|n| format!("\"{}\"", format_rate(*n))).to_vec(),
                vec![
                    format!("\"{}B/s\"", range.end() + 1),
                    format!("\"{}B/s\"", range.start() - 1),
                    format!("\"{}\"", range.end()),
                    range.end().to_string(),
                ],
            ),
            ValueKind::Time(range) => {
                let text = |time: Duration| format!("\"{}ms\"", time.as_millis());
                let max = *range.end();
                (vec![text(max)], vec![text(max + Duration::from_millis(1)), "1".into()])
            }
            ValueKind::Choice(words) => {
                (words.iter().map(|word| format!("\"{word}\"")).collect(), vec!["\"x\"".into()])
            }
            ValueKind::Text(_)
            | ValueKind::List(_)
            | ValueKind::Command
            | ValueKind::Entries(..)
            | ValueKind::Table(_) => {
                continue;
            }
        };
        // The largest capsule and the smallest memory need their partners; tested on their own.
        // So is a disk profile (`tests/profile.rs` of the stack crate).
        let profile_keys = ["size", "disks", "regional", "other_egress_gbps", "tier1_networking"];
        let profiled = section.key("profile").is_some() && profile_keys.contains(&key.name);
        let paired = profiled || key.name == "in_capsule" || key.name.starts_with("provisioned_");
        for value in inside.iter().filter(|_| !paired) {
            if let Err(error) = parse(value) {
                panic!("{} = {value} in {}: {error}", key.name, section.path);
            }
        }
        for value in outside {
            assert!(parse(&value).is_err(), "{} = {value} in {}", key.name, section.path);
        }
        if !key.default.is_empty() {
            let bare = parse(&key.kind.as_toml(key.default)).unwrap_or_else(|e| panic!("{e}"));
            let other = match section.path {
                "volume.NAME.stripe" => file_with(section.path, "chunk", "\"64KiB\""),
                "volume.NAME.delay" => file_with(section.path, "read", "0"),
                "volume.NAME.fault" | "volume.NAME.disk_model" => {
                    file_with(section.path, "seed", "0")
                }
                "limit.NAME" => file_with(section.path, "read_iops", "1"),
                "volume.NAME.mirror" if matches!(key.name, "queue" | "on_congestion") => {
                    mirror_with("mode", "\"async\"")
                }
                "volume.NAME.mirror" if key.name == "failover_after" => {
                    mirror_with("failover", "\"automatic\"")
                }
                "volume.NAME.mirror" => mirror_with("mode", "\"sync\""),
                "peer.NAME" if key.name == "authentication" => {
                    file_with(section.path, "key_file", "\"/k\"")
                }
                "peer.NAME" if key.name == "tls" => {
                    file_with(section.path, "tls_key_file", "\"/k\"")
                }
                "peer.NAME" if key.name == "fence_timeout" => fenced(""),
                "peer.NAME" => file_with(section.path, "address", "\"10.0.0.2\"").replacen(
                    "address = \"10.0.0.2\"\n",
                    "",
                    1,
                ),
                "limit.NAME.burst" => file_with(section.path, "iops", "2"),
                "api_user.NAME" => file_with(section.path, "token_file", "\"/t\""),
                "server.listen" => file_with("server", "listen", "[\"nbd://127.0.0.1:1\"]"),
                _ => file_with("server.nbd", "max_connections", "256"),
            };
            let absent = Config::parse("f", &other).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(bare, absent, "{} = {} is the default", key.name, key.default);
        }
    }
}

/// Regression test: a renamed word was accepted by the schema and then read as the default.
#[test]
fn every_mirror_option_word_is_read() {
    let mirror = |key: &str, word: &str| {
        let text = mirror_with(key, &format!("{word:?}"));
        let config = Config::parse("f", &text).unwrap_or_else(|error| panic!("{error}"));
        config.volumes[0].mirror().expect("it is mirrored").clone()
    };
    for value in Mode::ALL {
        assert_eq!(mirror("mode", value.name()).mode, value);
    }
    for value in Ack::ALL {
        assert_eq!(mirror("ack", value.name()).ack, value);
    }
    for value in OnPeerLoss::ALL {
        assert_eq!(mirror("on_peer_loss", value.name()).on_peer_loss, value);
    }
    for value in AfterSplitBrain::ALL {
        assert_eq!(mirror("after_split_brain", value.name()).after_split_brain, value);
    }
    for value in OnCongestion::ALL {
        assert_eq!(mirror("on_congestion", value.name()).on_congestion, value);
    }
    for value in IntentLogMode::ALL {
        assert_eq!(mirror("intent_log_mode", value.name()).intent_log_mode, value);
    }
}
