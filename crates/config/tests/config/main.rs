//! Configuration files from the outside: exact diagnostics of broken files, the documentation
//! compared with the parser, and hostile bytes.

mod documentation;
mod hostile;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flagstone_blockdev::{FaultConfig, FaultRate};
use flagstone_config::api_spec::ApiSpec;
use flagstone_config::{
    ArbiterStore, Arguments, Backing, Cloud, Config, Diagnostics, IoEngine, LayerConfig,
};
use flagstone_limit::{Budget, Burst, DiskModelConfig, IoSize, Limit, Mix, Rate, ServiceTime};

use documentation::fenced;

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn docs_dir() -> PathBuf {
    crate_dir().join("../../docs")
}

/// Compares `actual` with a file in the repository; with UPDATE_GOLDEN=1, writes it instead.
fn assert_golden(path: &Path, actual: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path, actual).expect("the golden file can be written");
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    assert!(
        expected == actual,
        "{} differs (UPDATE_GOLDEN=1 writes it); now:\n{actual}",
        path.display()
    );
}

#[test]
fn broken_files_get_exactly_these_messages() {
    let mut count = 0;
    for entry in fs::read_dir(crate_dir().join("tests/broken")).expect("the directory exists") {
        let path = entry.expect("it can be listed").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("it can be read");
        let diagnostics = Config::parse("flagstone.toml", &text).expect_err("it is broken");
        assert_golden(&path.with_extension("txt"), &diagnostics.render(false));
        count += 1;
    }
    assert!(count >= 12, "only {count} broken files");
}

#[test]
fn all_command_line_mistakes_are_reported() {
    let arguments = Arguments {
        volumes: ["db", "a b=memory:1GiB", "x=nul:1GiB", "y=/dev/sda", "y=/dev/sda"]
            .map(String::from)
            .to_vec(),
        listen: vec!["tcp://0.0.0.0".into(), "nbd://127.0.0.1:1".into(), "nbd://0.0.0.0:1".into()],
        listen_insecure: vec!["nbd://127.0.0.1:2".into()],
        cores: Some("none".into()),
        buffer_memory: Some("64z".into()),
        io_engine: Some("aio".into()),
        busy_poll: Some("1h".into()),
        api: Some("off".into()),
        metrics: Some("localhost".into()),
        state: None,
    };
    let diagnostics = Config::from_args(&arguments).expect_err("it is broken");
    let path = crate_dir().join("tests/broken/command_line.txt");
    assert_golden(&path, &diagnostics.render(false));
}

#[test]
fn unused_limits_and_peers_warn() {
    let text = "[server]\nnode = \"a\"\n[limit.used]\niops = 5\n[limit.spare]\niops = 6\n\
                [peer.b]\naddress = \"10.0.0.2\"\n[peer.c]\naddress = \"localhost\"\n\
                [volume.v]\nshared_limit = \"used\"\nmirror = { peer = \"c\" }\ndevice = \"/a\"\n";
    let checked = Config::check_text("flagstone.toml", text, &Arguments::default());
    let checked = checked.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((checked.config.limits.len(), checked.config.peers.len()), (2, 2));
    let warnings = checked.warnings.expect("two tables have no effect");
    let path = crate_dir().join("tests/warnings/unused.txt");
    assert_golden(&path, &warnings.render(false));
    let used = text.replace("[limit.spare]\niops = 6\n", "");
    let used = used.replace("[peer.b]\naddress = \"10.0.0.2\"\n", "");
    let checked = Config::check_text("f", &used, &Arguments::default());
    assert!(checked.is_ok_and(|checked| checked.warnings.is_none()));
}

/// Mistakes of a file, and its warnings, with `listen` and the tables `more`.
fn access(listen: &str, more: &str) -> (Vec<String>, Vec<String>) {
    let text = format!(
        "[server]\nnode = \"a\"\nlisten = {listen}\n{more}\n[volume.v]\ndevice = \"null:1GiB\"\n"
    );
    let messages =
        |found: &Diagnostics| found.items().iter().map(|one| one.message.clone()).collect();
    match Config::check_text("f", &text, &Arguments::default()) {
        Ok(checked) => (Vec::new(), checked.warnings.as_ref().map(messages).unwrap_or_default()),
        Err(mistakes) => (messages(&mistakes), Vec::new()),
    }
}

#[test]
fn listener_off_loopback_needs_keys_or_insecure() {
    let keys = "[host.h]\nnqn = \"nqn.2026-01.io.x:h\"\nkey_file = \"/k\"\n";
    let tls_keys = "[host.h]\nnqn = \"nqn.2026-01.io.x:h\"\ntls_key_file = \"/k\"\n";
    let nbd = |key: &str| format!("[server.nbd]\ntls_{key} = \"/p\"\n");
    let verified = nbd("certificates") + "tls_verify_clients = true\n";
    let others = "[volume.w]\nallow_hosts = [\"nqn.2026-01.io.x:i\"]\ndevice = \"null:1GiB\"\n";
    for local in ["nvme-tcp://127.0.0.1", "nvme-tcp://[::1]", "nbd://127.9.9.9", "nbd+unix:///s"] {
        assert_eq!(access(&format!("[{local:?}]"), ""), (vec![], vec![]), "{local}");
        let warned = access(&format!("[{{ url = {local:?}, insecure = true }}]"), "").1;
        assert!(warned.len() == 1 && warned[0].contains("no effect"), "{local}: {warned:?}");
    }
    for (listen, tables, what) in [
        ("nvme-tcp://0.0.0.0", "", Some("volume `v`")),
        ("nvme-tcp://[::]", "", Some("volume `v`")),
        ("nvme-tcp://192.0.2.1", "", Some("volume `v`")),
        ("nvme-tcp://0.0.0.0", keys, None),
        ("nvme-tcp://0.0.0.0", &format!("{keys}{others}"), Some("volume `w`")),
        ("nbd://0.0.0.0", keys, Some("NBD clients prove no key")),
        // A host with only a TLS key proves it to listeners that require TLS.
        ("nvme-tcp://0.0.0.0", tls_keys, Some("volume `v`")),
        ("nvme-tcp://0.0.0.0?tls=allowed", tls_keys, Some("volume `v`")),
        ("nvme-tcp://0.0.0.0?tls=required", tls_keys, None),
        ("nvme-tcp://0.0.0.0?tls=allowed", keys, None),
        ("nbd://0.0.0.0?tls=required", &nbd("psk_file"), None),
        ("nbd://0.0.0.0?tls=allowed", &nbd("psk_file"), Some("NBD clients prove no key")),
        ("nbd://0.0.0.0?tls=required", &nbd("certificates"), Some("NBD clients prove no key")),
        ("nbd://0.0.0.0?tls=required", &verified, None),
    ] {
        let bare = access(&format!("[{listen:?}]"), tables).0;
        let word = access(&format!("[{{ url = {listen:?}, insecure = true }}]"), tables);
        match what {
            Some(what) => {
                let unused = tables == tls_keys && !listen.contains("?tls=");
                assert!(bare[0].contains(what), "{listen} {tables}: {bare:?}");
                assert_eq!(bare.len(), 1 + usize::from(unused), "{listen} {tables}: {bare:?}");
                assert_eq!((word.0.len(), word.1.len()), (0, unused.into()), "{listen} {tables}");
            }
            None => {
                assert_eq!(bare, Vec::<String>::new(), "{listen} {tables}");
                assert!(word.1[0].contains("no effect"), "{word:?}");
            }
        }
    }
    let pools = |more: &str| {
        let text = format!("[server]\nstate = \"/s\"\nlisten = [\"nvme-tcp://0.0.0.0\"]\n{more}");
        Config::parse("f", &text)
    };
    assert!(pools("").is_err_and(|error| error.to_string().contains("volumes of pools")));
    let config = pools(keys).unwrap_or_else(|error| panic!("{error}"));
    let subsystem = |settings| config.pool_volume("p", "v", settings).unwrap().1;
    assert!(config.forbids_open(&subsystem("")).is_none());
    let open = subsystem("allow_hosts = [\"nqn.2026-01.io.x:i\"]");
    assert!(config.forbids_open(&open).is_some());
}

/// `check` said nothing.
#[test]
fn tls_without_keys_and_keys_without_tls_warn() {
    let host = |key: &str| format!("[host.h]\nnqn = \"nqn.2026-01.io.x:h\"\n{key} = \"/k\"\n");
    let (key, tls_key) = (host("key_file"), host("tls_key_file"));
    let peer = "[peer.b]\naddress = \"b\"\ntls_key_file = \"/k\"\n\
                [volume.m]\nmirror.peer = \"b\"\ndevice = \"/m\"\n";
    let psk = "[server.nbd]\ntls_psk_file = \"/p\"\n";
    let limited = "[volume.w]\nnbd_clients = [\"c\"]\ndevice = \"null:1GiB\"\n";
    let both = format!("{psk}{limited}");
    for (listen, tables, part) in [
        ("nvme-tcp://127.0.0.1", &*tls_key, Some("no listener has TLS")),
        ("nvme-tcp://127.0.0.1\", \"nvme-tcp://127.0.0.2:1?tls=allowed", &tls_key, None),
        ("nbd://127.0.0.1", &tls_key, None),
        ("nvme-tcp://127.0.0.1?tls=required", &tls_key, None),
        ("nvme-tcp://127.0.0.1?tls=required", &key, Some("no host has a TLS key")),
        ("nvme-tcp://127.0.0.1?tls=required", peer, None),
        // For concatenation.
        ("nvme-tcp://127.0.0.1?tls=allowed", &key, None),
        ("nbd://127.0.0.1", limited, Some("`nbd_clients` admits no client")),
        ("nbd+unix:///s", limited, Some("`nbd_clients` admits no client")),
        ("nbd://127.0.0.1?tls=allowed", &both, None),
        ("nvme-tcp://127.0.0.1", limited, None),
    ] {
        let (mistakes, warnings) = access(&format!("[\"{listen}\"]"), tables);
        assert_eq!(mistakes, Vec::<String>::new(), "{listen} {tables}");
        assert_eq!(warnings.len(), usize::from(part.is_some()), "{listen} {tables}: {warnings:?}");
        assert!(warnings.iter().all(|one| one.contains(part.unwrap())), "{warnings:?}");
    }
}

/// As the target does.
#[test]
fn peers_of_one_mirror_have_keys_together() {
    let (key, tls) = ("key_file = \"/k\"\n", "tls_key_file = \"/t\"\n");
    let changing = "tls_key_file = \"/t\"\ntls = \"allowed\"\n";
    for (one, other, refused) in [
        (key, "", Some("`key_file`")),
        (tls, "", Some("`tls_key_file`")),
        // Both are known by their keys.
        (key, tls, None),
        (tls, tls, None),
        // The other one is admitted in plain text.
        (changing, "", None),
        ("", "", None),
    ] {
        let text = format!(
            "[server]\nnode = \"a\"\nlisten = [\"nvme-tcp://127.0.0.1:4420?tls=allowed\"]\n\
             [peer.b]\naddress = \"127.0.0.2\"\n{one}[peer.c]\naddress = \"127.0.0.3\"\n{other}\
             [volume.db]\nmirror.peers = [\"b\", \"c\"]\ndevice = \"/d\"\n"
        );
        let errors = Config::parse("f", &text).err().map_or(String::new(), |e| e.to_string());
        assert_eq!(errors.is_empty(), refused.is_none(), "{errors}");
        let expected = refused.map_or(String::new(), |key| {
            format!("peer `b` has a {key} and peer `c` has none, so it cannot reach the replica")
        });
        assert!(errors.contains(&expected), "{errors}");
    }
}

/// The peer counted as one with a key, and was refused when it connected without TLS.
#[test]
fn peer_that_may_leave_out_tls_needs_a_key_too() {
    for (tls, refused) in [("\ntls = \"allowed\"", true), ("", false)] {
        for more in ["", "key_file = \"/k\"\n"] {
            let text = format!(
                "[server]\nnode = \"a\"\nlisten = [\"nvme-tcp://127.0.0.1:4420?tls=allowed\"]\n\
                 [peer.b]\naddress = \"127.0.0.2\"\nkey_file = \"/k\"\n\
                 [peer.c]\naddress = \"127.0.0.3\"\n{more}tls_key_file = \"/t\"{tls}\n\
                 [volume.db]\nmirror.peers = [\"b\", \"c\"]\ndevice = \"/d\"\n"
            );
            let errors = Config::parse("f", &text).err().map_or(String::new(), |e| e.to_string());
            let is_refused = errors.contains("so peer `c` cannot reach the replica without TLS");
            assert_eq!(is_refused, refused && more.is_empty(), "{errors}");
            assert_eq!(errors.is_empty(), !is_refused, "{errors}");
        }
    }
}

#[test]
fn peer_off_loopback_needs_a_key_or_the_word() {
    let mirror = |address: &str, key: &str| {
        let keys = "[host.h]\nnqn = \"nqn.2026-01.io.x:h\"\nkey_file = \"/k\"\n";
        let peer = format!("[peer.b]\naddress = {address:?}\n{key}");
        format!("{keys}{peer}\n[volume.m]\nmirror.peer = \"b\"\ndevice = \"null:1GiB\"")
    };
    let [local, open] = ["[\"nvme-tcp://127.0.0.1\"]", "[{ url = \"nvme-tcp://0.0.0.0\" }]"];
    let tls = "[\"nvme-tcp://0.0.0.0?tls=required\"]";
    for (listen, address, key, refused) in [
        (local, "localhost:4421", "", false),
        (local, "[::1]:4421", "", false),
        (local, "10.0.0.2", "", true),
        (local, "b.example.com", "", true),
        (local, "10.0.0.2", "insecure = true", false),
        (local, "10.0.0.2", "key_file = \"/p\"", false),
        (local, "10.0.0.2", "key_file = \"/p\"\nauthentication = \"allowed\"", true),
        (local, "10.0.0.2", "tls_key_file = \"/p\"", false),
        (local, "10.0.0.2", "tls_key_file = \"/p\"\ntls = \"allowed\"", true),
        (tls, "localhost:4421", "", false),
        // Other machines reach the replica here.
        (open, "localhost:4421", "", true),
        (open, "localhost:4421", "insecure = true", false),
    ] {
        let (mistakes, warnings) = access(listen, &mirror(address, key));
        // Hosts have no TLS key.
        let warned = listen == tls;
        assert_eq!((mistakes.len(), warnings.len()), (refused.into(), warned.into()), "{address}");
        assert!(mistakes.iter().all(|one| one.contains("peer `b`")), "{mistakes:?}");
    }
}

#[test]
fn colors_are_optional() {
    let diagnostics = Config::parse("f.toml", "[volume.a]\n").expect_err("it is broken");
    assert!(!diagnostics.render(false).contains('\x1b'));
    let colored = diagnostics.render(true);
    assert!(colored.contains("\x1b["), "{colored}");
}

#[test]
fn automatic_failover_is_refused_without_its_conditions() {
    let file = |arbiter: &str, peer: &str, mirror: &str| {
        format!(
            "[server]\nnode = \"a\"\nlisten = [\"nvme-tcp://127.0.0.1:4420\"]\n{arbiter}\n\
             [peer.b]\naddress = \"127.0.0.2\"\n{peer}\n[peer.c]\naddress = \"127.0.0.4\"\n\
             [volume.v]\nmirror = {{ {mirror} }}\ndevice = \"/a\"\n"
        )
    };
    let etcd = "[arbiter]\netcd = [\"http://10.0.0.3\", \"http://etcd:2380/\"]";
    let automatic = "peer = \"b\", failover = \"automatic\"";
    let watchdog = "watchdog = \"/dev/watchdog\"";
    let watched = format!("{watchdog}\n{etcd}");
    assert!(Config::parse("f", &file(&watched, "", automatic)).is_ok());
    let short = format!("{automatic}, failover_after = \"1500ms\"");
    let lag = "failover_max_lag = \"4s\"";
    let lossy = format!("{automatic}, mode = \"async\", failover_max_lag = \"5s\"");
    assert!(Config::parse("f", &file(etcd, "", &lossy)).is_ok());
    let config = Config::parse("f", &file(etcd, "", automatic)).unwrap_or_else(|e| panic!("{e}"));
    let Some(ArbiterStore::Etcd(arbiter)) = config.arbiter else { panic!("it is configured") };
    let members: Vec<String> = arbiter.etcd.iter().map(ToString::to_string).collect();
    assert_eq!(
        (&members[..], arbiter.prefix.as_str()),
        (&["10.0.0.3:2379".to_owned(), "etcd:2380".to_owned()][..], "/flagstone")
    );
    for (arbiter, peer, mirror, named) in [
        ("", "", automatic, "without an arbiter"),
        (etcd, "timeout = \"6s\"", automatic, "below the `timeout`"),
        (etcd, "", "peers = [\"b\", \"c\"], failover = \"automatic\"", "several peers"),
        (etcd, "", &format!("{automatic}, mode = \"async\""), "without `failover_max_lag`"),
        (etcd, "", &format!("{automatic}, {lag}"), "no effect in mode `sync`"),
        (etcd, "", &format!("{automatic}, mode = \"async\", {lag}"), "below `failover_after`"),
        (etcd, "", &format!("{lossy}, group = \"g\""), "asynchronous consistency group"),
        (etcd, "", "peer = \"b\", mode = \"async\", failover_max_lag = \"9s\"", "no effect"),
        (etcd, "", &format!("{automatic}, on_peer_loss = \"block\""), "on_peer_loss"),
        (etcd, "", "peer = \"b\", failover_after = \"9s\"", "no effect"),
        (watchdog, "", "peer = \"b\"", "no effect without automatic"),
        (&watched, "timeout = \"1s\"", &short, "`watchdog` with a `failover_after` of 1.5s"),
        ("[arbiter]\netcd = [\"10.0.0.3\"]", "", automatic, "write https://"),
        ("[arbiter]\netcd = [\"http://a\", \"https://b\"]", "", automatic, "some are not"),
        ("[arbiter]\netcd = [\"http://a\"]\nca_file = \"/c\"", "", automatic, "no effect"),
        ("[arbiter]\netcd = [\"https://a\"]\nkey_file = \"/k\"", "", automatic, "belong together"),
        ("[arbiter]\netcd = []", "", automatic, "no etcd"),
        ("[arbiter]", "", automatic, "no store"),
        (etcd, "fence_command = [\"fence\"]", automatic, "no absolute path"),
        (etcd, "fence_command = []", automatic, "no absolute path"),
        (etcd, "fence_timeout = \"9s\"", automatic, "no effect"),
        (etcd, "fence_command = [\"/f\"]", "peer = \"b\"", "is never run"),
        ("[arbiter]\netcd = [\"http://e\"]\nuser = \"u\"", "", automatic, "belong together"),
    ] {
        let refused = Config::parse("f", &file(arbiter, peer, mirror)).expect_err(named);
        assert!(refused.to_string().contains(named), "{named}: {refused}");
    }
    let config = Config::parse("f", &fenced("")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.peers[0].fence_command, ["/bin/fence", "b"]);
    let encrypted = "[arbiter]\netcd = [\"https://a\"]\nca_file = \"/c\"\n\
                     certificate_file = \"/d\"\nkey_file = \"/k\"";
    let config =
        Config::parse("f", &file(encrypted, "", automatic)).unwrap_or_else(|e| panic!("{e}"));
    let Some(ArbiterStore::Etcd(arbiter)) = config.arbiter else { panic!("it is configured") };
    let tls = arbiter.tls.expect("it is encrypted");
    assert_eq!(tls.own, Some(("/d".into(), "/k".into())));
}

/// The arbiter decides once for all volumes of a group.
#[test]
fn volumes_of_group_have_same_failover_settings() {
    let parse = |other: &str| {
        let text = format!(
            "[server]\nnode = \"a\"\nlisten = [\"nvme-tcp://127.0.0.1:4420\"]\n\
             [arbiter]\netcd = [\"http://10.0.0.3\"]\n[peer.b]\naddress = \"127.0.0.2\"\n\
             [volume.v]\nmirror = {{ peer = \"b\", group = \"g\", failover = \"automatic\" }}\n\
             device = \"/a\"\n[volume.w]\nmirror = {{ peer = \"b\", group = \"g\"{other} }}\n\
             device = \"/b\"\n"
        );
        Config::parse("f", &text).map(drop).map_err(|error| error.to_string())
    };
    let automatic = ", failover = \"automatic\"";
    assert_eq!(parse(automatic), Ok(()));
    for (other, named) in [
        (String::new(), "another `failover`"),
        (format!("{automatic}, failover_after = \"9s\""), "another `failover_after`"),
    ] {
        let refused = parse(&other).expect_err(named);
        assert!(refused.contains(named), "{refused}");
    }
}

#[test]
fn bucket_of_arbiter_is_checked() {
    let parse = |lines: &str| {
        let text = format!("[arbiter]\n{lines}\n[volume.v]\ndevice = \"/a\"\n");
        Config::parse("f", &text).map(|config| match config.arbiter {
            Some(ArbiterStore::Bucket(bucket)) => bucket,
            other => panic!("{other:?}"),
        })
    };
    let found = parse("object_store = \"s3://bucket\"\nregion = \"eu-central-1\"").expect("sound");
    assert_eq!((found.object_store.prefix.as_str(), found.endpoint), ("flagstone", None));
    let server = "object_store = \"s3://bucket/a/b/\"\nendpoint = \"https://10.0.0.3/\"";
    let found = parse(server).expect("sound");
    assert_eq!((found.object_store.prefix.as_str(), found.region.as_str()), ("a/b", "us-east-1"));
    assert_eq!(found.endpoint.as_deref(), Some("https://10.0.0.3"));
    for (written, read) in [
        ("https://H:443", "https://h"),
        ("http://h:80/", "http://h"),
        ("http://h:443", "http://h:443"),
        ("https://[::443]", "https://[::443]"),
        ("https://[::443]:9000", "https://[::443]:9000"),
    ] {
        let found = parse(&format!("object_store = \"s3://bucket\"\nendpoint = \"{written}\""));
        let endpoint = found.expect("sound").endpoint;
        assert_eq!(endpoint.map(|text| text.to_lowercase()).as_deref(), Some(read), "{written}");
    }
    let found = parse("object_store = \"az://container\"\naccount = \"acc\"").expect("sound");
    assert_eq!((found.object_store.cloud, found.account.as_str()), (Cloud::Azure, "acc"));
    for (lines, named) in [
        ("object_store = \"bucket\"", "write s3://"),
        ("object_store = \"http://h/bucket\"", "write s3://"),
        ("object_store = \"s3://Bucket\"", "names of buckets"),
        ("object_store = \"s3://b\"", "names of buckets"),
        ("object_store = \"s3://key:secret@bucket\"", "names of buckets"),
        ("object_store = \"s3://bucket/a//b\"", "a part of the prefix"),
        ("object_store = \"s3://bucket/../b\"", "a part of the prefix"),
        ("object_store = \"s3://bucket\"", "no `region`"),
        ("object_store = \"az://container\"", "no `account`"),
        ("object_store = \"gs://bucket\"\nregion = \"r\"", "no effect"),
        ("object_store = \"gs://bucket\"\naccount = \"a\"", "no effect"),
        ("object_store = \"gs://bucket\"\nprefix = \"/p\"", "no effect"),
        ("object_store = \"gs://bucket\"\nendpoint = \"ftp://h\"", "write https://"),
        ("object_store = \"gs://bucket\"\nendpoint = \"https://h/path\"", "endpoint"),
        ("object_store = \"gs://bucket\"\nendpoint = \"https://u:p@h\"", "endpoint"),
        ("object_store = \"gs://bucket\"\nendpoint = \"http://h\"\nca_file = \"/c\"", "no effect"),
        ("object_store = \"gs://bucket\"\ncredentials_file = \"key\"", "absolute path"),
        ("object_store = \"gs://bucket\"\netcd = [\"https://h\"]", "both"),
        ("etcd = [\"https://h\"]\ncredentials_file = \"/c\"", "no effect"),
    ] {
        let refused = parse(lines).expect_err(named);
        assert!(refused.to_string().contains(named), "{lines}: {refused}");
    }
}

const LAYERS: [&str; 6] = [
    "shared_limit = \"vm\"",
    "limit.iops = 5",
    "mirror.peer = \"b\"",
    "disk_model.latency = \"1ms\"",
    "delay.read = \"1ms\"",
    "fault.seed = 7",
];

/// The layers of a volume that has these lines, by name.
fn layers_of<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<&'static str> {
    let lines: Vec<_> = lines.into_iter().collect();
    let text = format!(
        "[server]\nnode = \"a\"\n[peer.b]\naddress = \"127.0.0.2\"\n[limit.vm]\niops = 9\n\
         [volume.v]\n{}\n",
        lines.join("\n")
    );
    let config = Config::parse("f", &text).unwrap_or_else(|e| panic!("{e}"));
    let name = |layer: &LayerConfig| match layer {
        LayerConfig::SharedLimit(_) => "shared_limit",
        LayerConfig::Limit(_) => "limit",
        LayerConfig::Mirror(_) => "mirror",
        LayerConfig::DiskModel(_) => "disk_model",
        LayerConfig::Delay(_) => "delay",
        LayerConfig::Fault(_) => "fault",
    };
    config.volumes[0].layers.iter().map(name).collect()
}

#[test]
fn layer_order_is_independent_of_key_order() {
    let canonical = ["shared_limit", "limit", "mirror", "disk_model", "delay", "fault"];
    let mut lines: Vec<_> = LAYERS.into_iter().chain(["device = \"/a\""]).collect();
    for _ in 0..lines.len() {
        assert_eq!(layers_of(lines.iter().copied()), canonical, "{lines:?}");
        assert_eq!(layers_of(lines.iter().rev().copied()), canonical, "{lines:?}");
        lines.rotate_left(1);
    }
}

#[test]
fn layers_key_sets_another_order() {
    let order = ["fault", "disk_model", "mirror", "delay", "limit", "shared_limit"];
    let list = format!("layers = {order:?}");
    let lines = LAYERS.into_iter().chain(["device = \"/a\"", list.as_str()]);
    assert_eq!(layers_of(lines), order);
}

#[test]
fn repeated_mistake_is_reported_once() {
    let volumes: String = (0..1000)
        .map(|n| format!("[volume.v{n}]\ndevice = \"/dev/d{n}\"\nread-only = true\n"))
        .collect();
    let diagnostics = Config::parse("f", &volumes).expect_err("it is broken");
    assert_eq!(diagnostics.items().len(), 1);
    let item = &diagnostics.items()[0];
    assert_eq!((item.count, item.line, item.also_at.len()), (1000, Some(3), 3));
    assert_eq!(item.also_at[0], "f:6:1");
    let shown = diagnostics.render(false);
    assert!(shown.contains("999 more places, such as f:6:1, f:9:1, f:12:1"), "{shown}");
    assert!(shown.ends_with("f: 1,000 mistakes\n"), "{shown}");
}

#[test]
fn faults_are_periodic_or_random() {
    let text = "[volume.a]\nfault = { read_error_every = 9, write_errors_per_million = 50 }\n\
                stripe = { chunk = \"1536\", devices = [\"/a\", \"/b\", \"/c\"] }\n";
    let config = Config::parse("f", text).unwrap_or_else(|e| panic!("{e}"));
    let fault = FaultConfig {
        read: FaultRate::Every(9),
        write: FaultRate::PerMillion(50),
        flush: FaultRate::Never,
        seed: 0,
    };
    assert_eq!(config.volumes[0].layers, [LayerConfig::Fault(fault)]);
    let Backing::Stripe { chunk_bytes, devices } = &config.volumes[0].backing else {
        panic!("it is a stripe");
    };
    assert_eq!((*chunk_bytes, devices.len()), (1536, 3));
}

#[test]
fn own_and_shared_limits_and_their_mix() {
    let text = r#"
        [limit.machine]
        iops = 25000
        read_throughput = "1200MB/s"
        burst = { iops = 50000, duration = "2s" }

        [volume.a]
        limit = { iops = 15000, throughput = "240MB/s", io_size = "256KiB" }
        shared_limit = "machine"
        disk_model = { latency = "800us", p99 = "3ms", write_latency = "1ms", seed = 7 }
        device = "/a"

        [volume.b]
        shared_limit = "machine"
        limit = { read_iops = 3000, write_iops = 15000, iops_mix = "shared" }
        device = "/b"
    "#;
    let config = Config::parse("f", text).unwrap_or_else(|e| panic!("{e}"));
    let bursting =
        Rate { per_second: 25_000, burst: Some(Burst { per_second: 50_000, credit: 50_000 }) };
    let machine = Limit {
        ios: Budget { total: Some(bursting), ..Budget::default() },
        bytes: Budget { read: Some(Rate::new(1_200_000_000)), ..Budget::default() },
        ..Limit::default()
    };
    assert_eq!(config.limits.len(), 1);
    assert_eq!(
        (config.limits[0].name.as_str(), config.limits[0].limit.numbers),
        ("machine", machine)
    );
    let size = IoSize::Units { bytes: 256 << 10 };
    let own = Limit {
        ios: Budget::total(15_000),
        bytes: Budget::total(240_000_000),
        read_size: size,
        write_size: size,
    };
    let us = Duration::from_micros;
    let emulation = DiskModelConfig {
        read: Some(ServiceTime { median: us(800), p99: us(3000) }),
        write: Some(ServiceTime::constant(us(1000))),
        seed: 7,
    };
    let layers = [
        LayerConfig::SharedLimit(0),
        LayerConfig::Limit(Box::new(own.into())),
        LayerConfig::DiskModel(emulation),
    ];
    assert_eq!(config.volumes[0].layers, layers);
    let mixed = Limit { ios: Budget::shared(3000, 15_000), ..Limit::default() };
    assert_eq!(mixed.ios.mix, Mix::Shared);
    assert_eq!(
        config.volumes[1].layers,
        [LayerConfig::SharedLimit(0), LayerConfig::Limit(Box::new(mixed.into()))]
    );
}

#[test]
fn default_in_capsule_is_at_most_mdts() {
    let parse = |nvme: &str| {
        let text = format!("[server.nvme]\n{nvme}\n[volume.a]\ndevice = \"/a\"\n");
        Config::parse("f", &text).map(|config| config.server.nvme.in_capsule_bytes)
    };
    assert_eq!(parse("mdts = \"8KiB\"").ok(), Some(8192));
    assert_eq!(parse("mdts = \"32MiB\"").ok(), Some(65_536));
    assert!(parse("mdts = \"8KiB\"\nin_capsule = \"64KiB\"").is_err());
}

#[test]
fn every_volume_is_in_one_subsystem() {
    let config = Config::parse(
        "f",
        "[volume.a]\ndevice = \"/a\"\n[volume.b]\ndevice = \"/b\"\nserial = \"B1\"\n\
         [volume.c]\ndevice = \"/c\"\n[subsystem.both]\nnamespaces = [\"c\", \"a\"]\n",
    )
    .unwrap_or_else(|e| panic!("{e}"));
    let seen: Vec<_> =
        config.subsystems.iter().map(|s| (s.nqn.as_str(), s.namespaces.as_slice())).collect();
    assert_eq!(
        seen,
        [("nqn.2026-01.io.flagstone:both", &[2, 0][..]), ("nqn.2026-01.io.flagstone:b", &[1][..])]
    );
    assert_eq!(config.serial_number(&config.subsystems[1], b"machine"), "B1");
    assert_eq!(config.serial_number(&config.subsystems[0], b"machine").len(), 20);
    assert_ne!(config.volume_uuid(0, b"machine"), config.volume_uuid(2, b"machine"));
    assert_ne!(config.volume_uuid(0, b"machine"), config.volume_uuid(0, b"another"));
}

#[test]
fn command_line_overrides_file() {
    let arguments = Arguments {
        volumes: vec!["b=memory:1GiB".into()],
        listen: vec!["nbd://127.0.0.1:0".into()],
        listen_insecure: vec!["nvme-tcp://0.0.0.0:0".into()],
        cores: Some("3".into()),
        buffer_memory: Some("1GiB".into()),
        io_engine: Some("threads".into()),
        busy_poll: Some("0".into()),
        api: Some("none".into()),
        metrics: Some("127.0.0.1".into()),
        state: Some("state".into()),
    };
    let text = "[server]\ncores = 1\napi = \"/a.sock\"\n[volume.a]\ndevice = \"/a\"\n";
    let config = Config::parse_with("f", text, &arguments).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.server.cores, Some(3));
    assert_eq!(config.server.buffer_memory_bytes, 1 << 30);
    assert_eq!(config.server.io_engine, IoEngine::Threads);
    assert_eq!(config.server.busy_poll, Duration::ZERO);
    let insecure: Vec<_> = config.server.listen.iter().map(|one| one.insecure).collect();
    assert_eq!(insecure, [false, true]);
    assert_eq!(config.server.api, ApiSpec::None);
    assert_eq!(config.server.metrics, Some(([127, 0, 0, 1], 9469).into()));
    assert_eq!(config.server.state, Some("state".into()));
    let names: Vec<_> = config.volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(matches!(config.volumes[1].backing, Backing::Device(_)));
}

#[test]
fn a_file_that_cannot_be_read_says_so() {
    let missing = Config::read(Path::new("no/such/file.toml"), &Arguments::default());
    let text = missing.expect_err("there is no such file").to_string();
    assert!(text.starts_with("error: cannot read") && text.contains("no/such/file.toml"), "{text}");
}

#[test]
fn files_of_a_directory_are_one_configuration() {
    let folder = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("it can be written");
    };
    let check = || Config::read(folder.path(), &Arguments::default());
    write("20-b.toml", "# No new line at the end.\n[volume.b]\ndevice = \"null:1GiB\"");
    write("10-a.toml", "[volume.a]\ndevice = \"null:1GiB\"");
    write("README", "not TOML");
    let config = check().unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<_> = config.volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    // A mistake is reported at its own file and line.
    write("30-c.toml", "\n[volume.c]\ndevise = \"null:1GiB\"\n");
    let text = check().expect_err("an unknown key").to_string();
    assert!(text.contains("30-c.toml:3:1"), "{text}");
    // A key above the first table would belong to the table of another file.
    write("30-c.toml", "device = \"null:2GiB\"\n");
    let text = check().expect_err("no table").to_string();
    assert!(text.contains("30-c.toml") && text.contains("begin with a table"), "{text}");
    write("30-c.toml", "[volume.a]\ndevice = \"null:1GiB\"\n");
    let text = check().expect_err("two tables").to_string();
    assert!(text.contains("30-c.toml:1:9") && text.contains("duplicate key"), "{text}");
}
