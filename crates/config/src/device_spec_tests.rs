use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Result<DeviceSpec, DeviceSpecError> {
    text.parse()
}

#[test]
fn text_without_scheme_is_a_path() {
    for text in [
        "/dev/nvme0n1",
        "./a:b",
        "disk.img",
        "../x",
        "/dev/disk/by-path/pci-0000:00:1f.2-ata-1",
        "3:4",
        " ",
    ] {
        assert_eq!(parse(text), Ok(DeviceSpec::Path(text.into())), "{text}");
    }
    assert_eq!(DeviceSpec::Path("memory:1GiB".into()).to_string(), "./memory:1GiB");
}

#[test]
fn home_directories_are_not_expanded() {
    for text in ["~", "~/disk.img", "~user/disk.img"] {
        assert_eq!(parse(text), Err(DeviceSpecError::HomeDirectory), "{text}");
    }
    for text in ["~backup", "./~/disk.img", "/~/x"] {
        assert_eq!(parse(text), Ok(DeviceSpec::Path(text.into())), "{text}");
    }
    assert_eq!(DeviceSpec::Path("~/x".into()).to_string(), "./~/x");
}

#[test]
fn sizes() {
    assert_eq!(parse("memory:1GiB"), Ok(DeviceSpec::Memory { size_bytes: 1 << 30 }));
    assert_eq!(parse("null:1TiB"), Ok(DeviceSpec::Null { size_bytes: 1 << 40 }));
    assert!(matches!(parse("null:4095"), Err(DeviceSpecError::SizeUnit(_))));
    assert_eq!(parse("null:4097"), Err(DeviceSpecError::SizeRange));
    assert_eq!(parse("null:8192PiB"), Err(DeviceSpecError::SizeRange));
    assert_eq!(parse("memory:"), Err(DeviceSpecError::Size(SizeError::NotANumber)));
}

#[test]
fn volume_of_a_pool_has_two_names() {
    let spec = PoolVolumeSpec { pool: "fast".to_owned(), volume: "db-leg".to_owned() };
    assert_eq!(parse("pool:fast/db-leg"), Ok(DeviceSpec::PoolVolume(spec)));
    for text in ["pool:fast", "pool:", "pool:/db", "pool:fast/", "pools:fast/db", "POOL:fast/db"] {
        assert_eq!(parse(text), Err(DeviceSpecError::PoolVolume), "{text}");
    }
    for text in ["pool:fast/db/x", "pool:-/db", "pool:fast/d b", "pool://fast/db"] {
        assert!(parse(text).is_err(), "{text}");
    }
}

#[test]
fn nvme_tcp_with_and_without_options() {
    let nqn = "nqn.2026-01.io.flagstone:db";
    let Ok(DeviceSpec::NvmeTcp(plain)) = parse(&format!("nvme-tcp://192.0.2.1/{nqn}")) else {
        panic!("the plain form is accepted");
    };
    assert_eq!(plain.address.to_string(), "192.0.2.1:4420");
    assert_eq!(plain.subsystem_nqn, nqn);
    assert_eq!((plain.queues, plain.namespace_id), (None, None));

    let text = format!(
        "nvme-tcp://[2001:db8::1]:4421/{nqn}?queues=4&header-digest&data-digest&hostnqn=nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6&nsid=2"
    );
    let full = parse(&text).expect("the full form is accepted");
    assert_eq!(full.to_string(), text);
    let DeviceSpec::NvmeTcp(full) = full else { panic!("it is NVMe/TCP") };
    assert_eq!(full.queues, Some(4));
    assert!(full.header_digest && full.data_digest);
    assert_eq!(full.namespace_id, Some(2));

    let spdk =
        parse(&format!("nvme-tcp://192.0.2.1/{nqn}?tls-key-file=/k&tls-identity=0")).unwrap();
    assert_eq!(parse(&spdk.to_string()), Ok(spdk.clone()));
    assert!(matches!(spdk, DeviceSpec::NvmeTcp(spec) if spec.tls_identity_0));
    let concat =
        parse(&format!("nvme-tcp://192.0.2.1/{nqn}?key-file=/k&controller-key-file=/c&concat"))
            .unwrap();
    assert_eq!(parse(&concat.to_string()), Ok(concat.clone()));
    assert!(matches!(concat, DeviceSpec::NvmeTcp(spec) if spec.concat));
}

#[test]
fn nbd_uris_from_the_specification() {
    for (text, export) in [
        ("nbd://example.com:10809/export", "export"),
        ("nbd://example.com/disk", "disk"),
        ("nbd+unix:///disk?socket=sock", "disk"),
        ("nbd://example.com/", ""),
        ("nbd://example.com", ""),
        ("nbd://example.com//disk", "/disk"),
        ("nbd://example.com/hello%20world", "hello world"),
    ] {
        let Ok(DeviceSpec::Nbd(spec)) = parse(text) else { panic!("{text} is accepted") };
        assert_eq!(spec.export, export, "{text}");
    }
}

#[test]
fn mistakes_are_explained() {
    for (text, part) in [
        ("", "a device is missing"),
        ("a\0b", "NUL"),
        ("zfs:pool", "./zfs:"),
        ("ram:1GiB", "write memory:"),
        ("Memory:1GiB", "write memory:"),
        ("file:///srv/a", "the path alone"),
        ("memory:1k", "at least 4KiB"),
        ("nvme-tcp:192.0.2.1", "write nvme-tcp://HOST:4420/NQN"),
        ("nvme-tcp://192.0.2.1", "NQN is missing"),
        ("nvme-tcp://192.0.2.1/db", "nqn.YYYY-MM"),
        ("nvme-tcp://h:0/nqn.2026-01.a:b", "port 0"),
        ("nvme-tcp://::1/nqn.2026-01.a:b", "brackets"),
        ("nvme-tcp://h/nqn.2026-01.a:b?queues=0", "1 to 128"),
        ("nvme-tcp://h/nqn.2026-01.a:b?queues=129", "1 to 128"),
        ("nvme-tcp://h/nqn.2026-01.a:b?queues", "1 to 128"),
        ("nvme-tcp://h/nqn.2026-01.a:b?nsid=4294967295", "4294967294"),
        ("nvme-tcp://h/nqn.2026-01.a:b?data-digest=1", "take no value"),
        ("nvme-tcp://h/nqn.2026-01.a:b?hostnqn=x", "nqn.YYYY-MM"),
        ("nvme-tcp://h/nqn.2026-01.a:b?hostnqn", "hostnqn=NQN"),
        ("nvme-tcp://h/nqn.2026-01.a:b?key-file", "key-file=/PATH"),
        ("nvme-tcp://h/nqn.2026-01.a:b?key-file=k", "an absolute path"),
        ("nvme-tcp://h/nqn.2026-01.a:b?controller-key-file=DHHC-1:00:x:", "this is a key"),
        ("nvme-tcp://h/nqn.2026-01.a:b?tls-key-file=NVMeTLSkey-1:01:x:", "this is a key"),
        ("nvme-tcp://h/nqn.2026-01.a:b?concat&controller-key-file=/c", "add key-file"),
        ("nvme-tcp://h/nqn.2026-01.a:b?concat&key-file=/k", "add controller-key-file"),
        ("nvme-tcp://h/nqn.2026-01.a:b?tls-identity=0", "add tls-key-file"),
        ("nvme-tcp://h/nqn.2026-01.a:b?tls-key-file=/t&tls-identity=2", "is 0"),
        (
            "nvme-tcp://h/nqn.2026-01.a:b?concat&key-file=/k&controller-key-file=/c&tls-key-file=/t",
            "remove tls-key-file",
        ),
        ("nvme-tcp://h/nqn.2026-01.a:b?concat=1&key-file=/k", "take no value"),
        ("nvme-tcp://h/nqn.2026-01.a:b?nsid=1&nsid=1", "twice"),
        ("nvme-tcp://h/nqn.2026-01.a:b?depth=1", "unknown option `depth`"),
        ("nvme-tcp://h/nqn.2026-01.a:b%2", "percent"),
        ("nvme-tcp://h/nqn.2026-01.a:b#1", "%23"),
        ("nbds+unix:///x?socket=/s", "TLS"),
        ("nbds://h/x?tls-psk-file=/p", "needs the name of a key"),
        ("nbds://a@h/x", "needs tls-psk-file"),
        ("nbds://h/x?tls-verify-peer=false", "unknown option"),
        ("nbds://h/x?tls-certificates=dir", "absolute path"),
        ("nbd:///x", "host is missing"),
        ("nbd://h/x?socket=/s", "nbd+unix"),
        ("nbd+unix://h/x?socket=/s", "three slashes"),
        ("nbd+unix:///x", "socket"),
        ("nbd+unix:///x?socket=", "socket"),
        ("nbd+unix:///x?socket=%00a", "socket"),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    let long = format!("nbd+unix:///x?socket=/{}", "a".repeat(107));
    assert_eq!(parse(&long), Err(DeviceSpecError::Socket));
}

fn host_port() -> impl Strategy<Value = HostPort> {
    let host = prop_oneof![
        any::<[u8; 4]>().prop_map(|ip| UriHost::Ip(ip.into())),
        any::<[u16; 8]>().prop_map(|ip| UriHost::Ip(ip.into())),
        "[a-z][a-z0-9-]{0,20}(\\.[a-z0-9]{1,10}){0,3}".prop_map(UriHost::Name),
    ];
    (host, 1..=u16::MAX).prop_map(|(host, port)| HostPort { host, port })
}

fn nqn() -> impl Strategy<Value = String> {
    "nqn\\.20[0-9]{2}-(0[1-9]|1[0-2])\\.[a-z]{1,8}(\\.[a-z]{1,8}){0,2}:[!-~é]{1,40}"
}

fn nvme() -> impl Strategy<Value = DeviceSpec> {
    let options = (
        proptest::option::of(1u16..=MAX_IO_QUEUES),
        any::<(bool, bool)>(),
        proptest::option::of(nqn()),
        proptest::option::of("/[^\\x00:]{1,20}".prop_map(PathBuf::from)),
        proptest::option::of(1..=MAX_NAMESPACE_ID),
    );
    let addresses = (host_port(), proptest::collection::vec(host_port(), 0..3));
    (addresses, nqn(), options).prop_map(|(addresses, subsystem_nqn, options)| {
        let (address, other_addresses) = addresses;
        let (queues, (header_digest, data_digest), host_nqn, key_file, namespace_id) = options;
        DeviceSpec::NvmeTcp(NvmeTcpSpec {
            address,
            other_addresses,
            subsystem_nqn,
            queues,
            header_digest,
            data_digest,
            host_nqn,
            controller_key_file: key_file.clone(),
            tls_key_file: key_file.clone(),
            tls_identity_0: false,
            concat: false,
            key_file,
            namespace_id,
        })
    })
}

fn nbd_tls() -> impl Strategy<Value = NbdTlsSpec> {
    let path = "/[^\\x00]{1,26}".prop_map(PathBuf::from);
    let named = proptest::option::of("[^\\x00]{1,20}");
    prop_oneof![
        (path.clone(), "[^\\x00]{1,20}").prop_map(|(file, name)| NbdTlsSpec {
            trust: NbdTlsTrust::Psk { file, name },
            server_name: None,
        }),
        (path, named.clone()).prop_map(|(folder, server_name)| NbdTlsSpec {
            trust: NbdTlsTrust::Certificates { folder },
            server_name,
        }),
        named.prop_map(|server_name| NbdTlsSpec { trust: NbdTlsTrust::System, server_name }),
    ]
}

fn spec() -> impl Strategy<Value = DeviceSpec> {
    let size = (8u64..1 << 53).prop_map(|blocks| blocks * 512);
    let address = prop_oneof![
        host_port().prop_map(NbdAddress::Tcp),
        "[^\\x00]{1,26}".prop_map(|path| NbdAddress::Unix(path.into())),
    ];
    prop_oneof![
        "/[^\\x00]{0,40}".prop_map(|path| DeviceSpec::Path(path.into())),
        size.clone().prop_map(|size_bytes| DeviceSpec::Memory { size_bytes }),
        ("[a-z0-9][a-z0-9._-]{0,9}", "[a-z0-9][a-z0-9._-]{0,9}")
            .prop_map(|(pool, volume)| { DeviceSpec::PoolVolume(PoolVolumeSpec { pool, volume }) }),
        size.prop_map(|size_bytes| DeviceSpec::Null { size_bytes }),
        nvme(),
        (address, "\\PC{0,40}").prop_map(|(address, export)| {
            DeviceSpec::Nbd(NbdSpec { address, export, tls: None })
        }),
        (host_port(), "\\PC{0,40}", nbd_tls()).prop_map(|(address, export, tls)| {
            let address = NbdAddress::Tcp(address);
            DeviceSpec::Nbd(NbdSpec { address, export, tls: Some(tls) })
        }),
    ]
}

proptest! {
    #[test]
    fn printing_and_parsing_agree(spec in spec()) {
        prop_assert_eq!(parse(&spec.to_string()), Ok(spec));
    }

    #[test]
    fn accepted_spec_prints_as_itself(text in any::<String>()) {
        if let Ok(spec) = parse(&text) {
            prop_assert_eq!(parse(&spec.to_string()), Ok(spec));
        }
    }

    #[test]
    fn hostile_uris_do_not_panic(
        text in "(nvme-tcp|nbd|nbd\\+unix|memory)(://|:)[a-z0-9:/@%?&=\\[\\]#.-]{0,40}"
    ) {
        if let Ok(spec) = parse(&text) {
            prop_assert_eq!(parse(&spec.to_string()), Ok(spec));
        }
    }
}

/// The check compared the texts of paths, and the server refused what it had accepted.
#[test]
fn one_path_in_two_spellings_is_used_twice() {
    let refused = |text: &str| crate::Config::parse("f", text).err().map(|error| error.to_string());
    let volumes = |a: &str, b: &str| {
        refused(&format!("[volume.a]\ndevice = \"{a}\"\n[volume.b]\ndevice = \"{b}\"\n"))
    };
    for (a, b) in [("disk.img", "./disk.img"), ("/dev/sdb", "/dev//sdb"), ("/a/b", "/a/./b")] {
        assert!(volumes(a, b).is_some_and(|said| said.contains("is used twice")), "{a} {b}");
    }
    assert_eq!(volumes("/a/b", "/a/../b"), None);
    let log = |path: &str| {
        let peer = "[server]\nnode = \"a\"\n[peer.b]\naddress = \"b\"\ninsecure = true\n";
        let mirror = format!("mirror = {{ peers = [\"b\"], intent_log = \"{path}\" }}");
        refused(&format!("{peer}[volume.a]\ndevice = \"/a/b\"\n{mirror}\n"))
    };
    assert!(log("/a//b").is_some_and(|said| said.contains("/a/b is used twice")));
    assert!(log("/a/c").is_none_or(|said| !said.contains("used twice")));
    let listen = |key: &str, path: &str| {
        refused(&format!(
            "[server]\nlisten = [\"nbd+unix://{path}\"]\n{key}\n[volume.a]\ndevice = \"/d\"\n"
        ))
    };
    let said = listen("", "/run/flagstone/./flagstone.sock").expect("it is the API's");
    assert!(said.contains("default socket of the API"), "{said}");
    assert_eq!(listen("api = \"none\"", "/run/flagstone/flagstone.sock"), None);
    assert!(listen("api = \"/run/a.sock\"", "/run//a.sock").is_some());
}
