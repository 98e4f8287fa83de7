//! Hostile configuration files: bounded diagnostics, and no panic.

use flagstone_config::Config;
use proptest::prelude::*;

#[test]
fn deep_and_wide_files_are_survived() {
    for text in [
        "[".repeat(100_000),
        format!("a = {}", "[".repeat(100_000)),
        format!("a = {}", "{b=".repeat(50_000)),
        "a.".repeat(100_000),
        (0..40_000).map(|n| format!("[volume.a{n}]\n")).collect(),
        (0..20_000).map(|n| format!("[volume.a{n}]\n")).collect::<String>()
            + "[subsystem.s]\nnamespaces = ["
            + &"\"none\", ".repeat(20_000)
            + "]",
        "[server]\n".to_owned() + &(0..5000).map(|n| format!("k{n} = 1\n")).collect::<String>(),
    ] {
        let diagnostics = Config::parse("f", &text).expect_err("it is broken");
        assert!(diagnostics.items().len() <= 100);
        assert!(diagnostics.render(true).len() < 100_000);
    }
}

/// Pieces that make something near a configuration, so that the checks behind the parser are
/// reached, not only its first line.
fn near_configuration() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("server"),
        Just("volume"),
        Just("subsystem"),
        Just("nvme"),
        Just("nbd"),
        Just("a"),
        Just("listen"),
        Just("buffer_memory"),
        Just("mdts"),
        Just("in_capsule"),
        Just("device"),
        Just("stripe"),
        Just("chunk"),
        Just("devices"),
        Just("delay"),
        Just("fault"),
        Just("limit"),
        Just("shared_limit"),
        Just("disk_model"),
        Just("burst"),
        Just("iops"),
        Just("read_throughput"),
        Just("iops_mix"),
        Just("p99"),
        Just("read"),
        Just("namespaces"),
        Just("block_size"),
        Just("nqn"),
        Just("uuid"),
        Just("\"\u{1b}é\""),
    ];
    let value = prop_oneof![
        Just("1".to_owned()),
        Just("-1".to_owned()),
        Just("true".to_owned()),
        Just("1.5".to_owned()),
        Just("\"64KiB\"".to_owned()),
        Just("\"/dev/sda\"".to_owned()),
        Just("\"1ms\"".to_owned()),
        Just("\"240MB/s\"".to_owned()),
        Just("\"shared\"".to_owned()),
        Just("{ iops = 5, burst = { iops = 4, p99 = 1 } }".to_owned()),
        Just("[\"/a\", 1, \"memory:1GiB\"]".to_owned()),
        Just("1979-05-27".to_owned()),
        Just("{ read = \"1ms\", devices = [\"a\", \"b\"] }".to_owned()),
        Just("{}".to_owned()),
        Just("[]".to_owned()),
        Just("9223372036854775807".to_owned()),
        "\"\\PC{0,30}\"",
    ];
    let line = prop_oneof![
        (word.clone(), word.clone()).prop_map(|(a, b)| format!("[{a}.{b}]")),
        word.clone().prop_map(|a| format!("[{a}]")),
        word.clone().prop_map(|a| format!("[[{a}]]")),
        (word.clone(), value.clone()).prop_map(|(a, b)| format!("{a} = {b}")),
        (word.clone(), word, value).prop_map(|(a, b, c)| format!("{a}.{b} = {c}")),
    ];
    proptest::collection::vec(line, 0..12).prop_map(|lines| lines.join("\n"))
}

fn survives(text: &str) {
    if let Err(diagnostics) = Config::parse("f", text) {
        assert!(!diagnostics.items().is_empty(), "a refusal has a reason");
        let shown = diagnostics.render(false);
        let harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
        assert!(shown.chars().all(harmless), "{shown:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_text_is_survived(text in any::<String>()) {
        survives(&text);
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        survives(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn near_valid_configurations_do_not_panic(text in near_configuration()) {
        survives(&text);
    }
}
