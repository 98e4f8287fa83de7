//! Two nodes in one process: their configurations differ in their roles alone.

use std::cell::Cell;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use flagstone_blockdev::{Fault, FaultConfig, FaultControl, MemoryDevice};
use flagstone_mirror::state::MirrorState;
use flagstone_nvmf::host::MultipathDevice;
use flagstone_nvmf::target::{NamespaceConfig, TargetConfig, serve};
use flagstone_runtime::net::Listener;
use flagstone_runtime::{block_on, buf, spawn_detached, time};

use super::grow::Grown;
use super::*;
use crate::stack::open_stack;

/// A node as `serve` has it: its target, and its mirrored volume.
pub(super) struct Node {
    target: Arc<Target>,
    pub(super) mirrored: Rc<Mirrored>,
    address: Address,
}

impl Node {
    async fn start(name: &str, peer: &str, listener: Listener, peer_port: u16) -> Node {
        Node::on(name, peer, listener, peer_port, "memory:64MiB").await
    }

    pub(super) async fn on(
        name: &str,
        peer: &str,
        listener: Listener,
        peer_port: u16,
        device: &str,
    ) -> Node {
        Node::with_log((name, peer), listener, peer_port, (device, Some("memory:1MiB"))).await
    }

    /// With its log there, or at the end of the device.
    pub(super) async fn with_log(
        (name, peer): (&str, &str),
        listener: Listener,
        peer_port: u16,
        (device, log): (&str, Option<&str>),
    ) -> Node {
        let bitmap = log.map_or(String::new(), |log| format!(", bitmap = {log:?}"));
        let text = format!(
            "[server]\nnode = \"{name}\"\n[peer.{peer}]\naddress = \"127.0.0.1:{peer_port}\"\n\
             [volume.db]\nmirror = {{ peer = \"{peer}\"{bitmap} }}\ndevice = {device:?}\n"
        );
        Node::of(&text, listener).await
    }

    /// The first volume of a configuration.
    async fn of(text: &str, listener: Listener) -> Node {
        let config = Config::parse("f", text).unwrap_or_else(|error| panic!("{error}"));
        let opened = open_stack(&config, 0, &[], None).await.unwrap();
        let (ids, port) = identifiers(share(&config).unwrap());
        let target = Target::new(TargetConfig {
            controller_ids: ids,
            first_port_id: port,
            ..TargetConfig::default()
        });
        let target = target.unwrap();
        let mirrored = opened.mirrored.unwrap();
        let nqn = mirrored.nqn;
        let subsystem = SubsystemConfig { nqn, serial: "S".to_owned(), allow_hosts: Vec::new() };
        target.add_subsystem(subsystem).unwrap();
        let uuid = config.volume_uuid(0, b"machine").0;
        let namespace =
            NamespaceConfig { nsid: Some(1), device: opened.device, uuid, read_only: false };
        target.add_namespace(&nqn, namespace).unwrap();
        mirrored.start(&target, &caps(&config)).await.unwrap();
        let (serving, address) = (target.clone(), listener.address().clone());
        spawn_detached(async move {
            while let Ok(stream) = listener.accept().await {
                spawn_detached(serve(serving.clone(), stream));
            }
        });
        Node { target, mirrored, address }
    }

    /// Ends in order, and lets its devices go.
    pub(super) async fn stop(self) {
        let held = self.mirrored.device();
        self.mirrored.end().await;
        self.mirrored.give_up().await;
        let Node { target, mirrored, .. } = self;
        let leg = Arc::downgrade(&mirrored.leg);
        let _ = target.remove_subsystem(&mirrored.nqn);
        *mirrored.target.borrow_mut() = None;
        drop((held, mirrored, target));
        eventually("its device is closed", || leg.strong_count() == 0).await;
    }

    pub(super) fn access(&self) -> AnaState {
        self.target.subsystem_status(&self.mirrored.nqn).unwrap().ana
    }

    pub(super) fn state(&self) -> MirrorState {
        self.mirrored.mirror().unwrap().state(0)
    }
}

pub(super) async fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is() {
            return;
        }
        time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}");
}

async fn two_nodes() -> [Node; 2] {
    two_nodes_on(["memory:64MiB"; 2]).await
}

pub(super) async fn two_nodes_on(devices: [&str; 2]) -> [Node; 2] {
    let listener = || Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
    let (a, b) = (listener(), listener());
    let port = |listener: &Listener| match listener.address() {
        Address::Tcp(tcp) => tcp.port(),
        Address::Unix(_) => unreachable!("bound to TCP"),
    };
    let (port_a, port_b) = (port(&a), port(&b));
    [
        Node::on("node-a", "node-b", a, port_b, devices[0]).await,
        Node::on("node-b", "node-a", b, port_a, devices[1]).await,
    ]
}

pub(super) async fn write(
    device: &SharedDevice,
    offset: u64,
    byte: u8,
) -> Result<(), flagstone_blockdev::IoError> {
    let mut data = buf::acquire(4096).await.unwrap();
    data.fill(byte);
    device.write(offset, data.freeze(), false).await
}

pub(super) async fn read(device: &SharedDevice, offset: u64) -> Option<u8> {
    let data = device.read(offset, buf::acquire(4096).await.unwrap()).await.ok()?;
    data.iter().all(|byte| *byte == data[0]).then(|| data[0])
}

#[test]
fn a_volume_is_made_mirrored_and_switched_over() {
    block_on(async {
        let [a, b] = two_nodes().await;
        let hosts = [a.mirrored.device(), b.mirrored.device()];
        // Nobody has a replica: hosts are sent away, and a target has nobody to ask.
        assert_eq!([a.access(), b.access()], [AnaState::INACCESSIBLE; 2]);
        assert!(write(&hosts[0], 0, 1).await.is_err());
        let refused = b.mirrored.create(CreateRole::Target, false, false).await;
        assert!(matches!(refused, Err(CreateError::Refused(text)) if text.contains("node-a")));

        let planned = a.mirrored.create(CreateRole::Source, false, true).await.unwrap();
        assert!(a.mirrored.mirror().is_none());
        let made = a.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        assert_eq!((made.usable_bytes, made.already), (planned.usable_bytes, false));
        assert_eq!(hosts[0].geometry().size_bytes, made.usable_bytes);
        eventually("the source serves", || a.access() == AnaState::OPTIMIZED).await;
        write(&hosts[0], 8192, 1).await.unwrap();
        assert!(a.mirrored.create(CreateRole::Source, false, false).await.unwrap().already);

        let target = b.mirrored.create(CreateRole::Target, false, false).await.unwrap();
        assert_eq!((target.volume, target.usable_bytes), (made.volume, made.usable_bytes));
        eventually("in sync", || a.state() == MirrorState::Mirroring).await;
        write(&hosts[0], 4096, 2).await.unwrap();
        assert_eq!(b.access(), AnaState::INACCESSIBLE);
        assert!(write(&hosts[1], 0, 9).await.is_err());

        b.mirrored.mirror().unwrap().switchover(0).await.unwrap();
        eventually("the other serves", || b.access() == AnaState::OPTIMIZED).await;
        eventually("this one does not", || a.access() == AnaState::INACCESSIBLE).await;
        assert_eq!(read(&hosts[1], 8192).await, Some(1));
        assert_eq!(read(&hosts[1], 4096).await, Some(2));
        eventually("in sync again", || b.state() == MirrorState::Mirroring).await;
        write(&hosts[1], 4096, 3).await.unwrap();
        assert!(write(&hosts[0], 0, 9).await.is_err());

        // A target that is full of data is not overwritten by mistake.
        a.mirrored.delete(false, false).await.unwrap();
        assert!(a.mirrored.mirror().is_none());
        let refused = a.mirrored.create(CreateRole::Target, false, false).await;
        assert!(matches!(refused, Err(CreateError::Refused(text)) if text.contains("not empty")));
        a.mirrored.create(CreateRole::Target, true, false).await.unwrap();
        write(&hosts[1], 0, 5).await.unwrap();
        eventually("the new replica is in sync", || b.state() == MirrorState::Mirroring).await;
        b.mirrored.end().await;
        a.mirrored.end().await;
    })
    .unwrap();
}

/// Of two that ask at a time one makes the replica, and the other finds it: it is made once.
#[test]
fn a_replica_is_made_once_though_two_ask_for_it_at_a_time() {
    block_on(async {
        let [a, b] = two_nodes().await;
        for (node, role) in [(&a, CreateRole::Source), (&b, CreateRole::Target)] {
            let ask = || {
                let mirrored = node.mirrored.clone();
                flagstone_runtime::spawn(async move { mirrored.create(role, false, false).await })
            };
            let (first, second) = (ask(), ask());
            let made = [first.await.unwrap().unwrap(), second.await.unwrap().unwrap()];
            assert_eq!(made.map(|made| made.already), [false, true]);
            assert_eq!(made[0].replica, made[1].replica);
        }
        eventually("in sync", || a.state() == MirrorState::Mirroring).await;
        a.mirrored.end().await;
        b.mirrored.end().await;
    })
    .unwrap();
}

/// A replica that cannot be served to peers is not left running, unseen.
#[test]
fn a_mirror_that_cannot_be_served_is_closed() {
    block_on(async {
        let [a, b] = two_nodes().await;
        let nqn = a.mirrored.replica_nqn;
        let taken = SubsystemConfig { nqn, serial: "T".to_owned(), allow_hosts: Vec::new() };
        a.target.add_subsystem(taken).unwrap();
        let held = Arc::strong_count(&a.mirrored.leg);
        let failed = a.mirrored.create(CreateRole::Source, false, false).await;
        assert!(matches!(failed, Err(CreateError::Failed(_))), "{failed:?}");
        assert!(a.mirrored.mirror().is_none());
        eventually("its tasks end", || Arc::strong_count(&a.mirrored.leg) == held).await;
        drop(b);
    })
    .unwrap();
}

/// A host with both paths writes and reads while the role goes to and fro: it waits, and has no error.
#[test]
fn hosts_follow_a_switchover_without_an_error() {
    block_on(async {
        let nodes = two_nodes().await;
        nodes[0].mirrored.create(CreateRole::Source, false, false).await.unwrap();
        nodes[1].mirrored.create(CreateRole::Target, false, false).await.unwrap();
        eventually("in sync", || nodes[0].state() == MirrorState::Mirroring).await;
        let addresses = nodes.iter().map(|node| node.address.clone()).collect();
        let options =
            HostOptions { loss_timeout: Duration::from_secs(60), ..HostOptions::default() };
        let host =
            MultipathDevice::connect(addresses, &nodes[0].mirrored.nqn, options).await.unwrap();
        let (done, rounds) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0u64)));
        let (ended, counted, device): (_, _, SharedDevice) = (done.clone(), rounds.clone(), host);
        let writer = flagstone_runtime::spawn(async move {
            while !ended.get() {
                let round = counted.get() + 1;
                for block in 0..8 {
                    write(&device, block * 4096, round as u8).await.unwrap();
                }
                for block in 0..8 {
                    assert_eq!(read(&device, block * 4096).await, Some(round as u8));
                }
                device.flush().await.unwrap();
                counted.set(round);
            }
        });
        for turn in 0..6 {
            let (from, to) = (&nodes[turn % 2], &nodes[(turn + 1) % 2]);
            let before = rounds.get();
            eventually("some rounds", || rounds.get() > before + 2).await;
            eventually("in sync", || from.state() == MirrorState::Mirroring).await;
            from.mirrored.mirror().unwrap().switchover(0).await.unwrap();
            eventually("it has gone over", || to.access() == AnaState::OPTIMIZED).await;
        }
        let before = rounds.get();
        eventually("some rounds", || rounds.get() > before + 2).await;
        done.set(true);
        writer.await.unwrap();
        for node in &nodes {
            node.mirrored.end().await;
        }
    })
    .unwrap();
}

/// The device fails in the midst of growing, after the one mirror and before the other: the volume
/// comes back by itself, as large as it was.
#[test]
fn a_device_that_fails_while_the_volume_grows_is_opened_again() {
    block_on(async {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 20).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[server]\nnode = \"node-a\"\n[peer.node-b]\naddress = \"127.0.0.1:1\"\n\
             [volume.db]\nmirror = {{ peer = \"node-b\", bitmap = {:?} }}\ndevice = {:?}\n",
            // A log in a file, which cannot be opened twice.
            folder.path().join("log"),
            file.path()
        );
        let config = Config::parse("f", &text).unwrap_or_else(|error| panic!("{error}"));
        let spec: crate::device_spec::DeviceSpec = file.path().to_str().unwrap().parse().unwrap();
        let device = crate::stack::open_device(&spec, &Default::default()).await.unwrap();
        let (fault, control) = Fault::new(device, FaultConfig::default()).unwrap();
        let leg: SharedDevice = Arc::new(fault);
        let mirrored = Rc::new(Mirrored::over(&config, 0, leg, None).await.unwrap());
        let target = Target::new(TargetConfig::default()).unwrap();
        let subsystem =
            SubsystemConfig { nqn: mirrored.nqn, serial: "S".to_owned(), allow_hosts: Vec::new() };
        target.add_subsystem(subsystem).unwrap();
        let namespace = NamespaceConfig {
            nsid: Some(1),
            device: mirrored.device(),
            uuid: config.volume_uuid(0, b"machine").0,
            read_only: false,
        };
        target.add_namespace(&mirrored.nqn, namespace).unwrap();
        mirrored.start(&target, &caps(&config)).await.unwrap();
        mirrored.create(CreateRole::Source, false, false).await.unwrap();
        let access = || target.subsystem_status(&mirrored.nqn).unwrap().ana;
        let device = mirrored.device();
        eventually("it serves", || access() == AnaState::OPTIMIZED).await;
        write(&device, 4096, 7).await.unwrap();
        let size_bytes = device.geometry().size_bytes;

        file.as_file().set_len(96 << 20).unwrap();
        // The mirror that ends only writes there; the one that takes its place reads first.
        let faults: [fn(&FaultControl, u64); 2] = [
            |control, from| control.fail_writes(from..u64::MAX),
            |control, from| control.fail_reads(from..u64::MAX),
        ];
        for fault in faults {
            fault(&control, size_bytes);
            let failed = mirrored.resize(&mirrored.mirror().unwrap(), size_bytes + (1 << 20)).await;
            assert!(failed.is_err_and(|error| error.contains("tried again")));
            assert_eq!(access(), AnaState::INACCESSIBLE);
            assert_eq!(read(&device, 4096).await, None);
            time::sleep(Duration::from_millis(1500)).await;
            assert_eq!(access(), AnaState::INACCESSIBLE, "its device fails still");
            control.heal();
            eventually("it serves again", || access() == AnaState::OPTIMIZED).await;
            assert_eq!(device.geometry().size_bytes, size_bytes);
            assert_eq!(read(&device, 4096).await, Some(7));
        }
        mirrored.resize(&mirrored.mirror().unwrap(), size_bytes + (1 << 20)).await.unwrap();
        assert_eq!(read(&device, 4096).await, Some(7));
        assert_eq!(device.geometry().size_bytes, size_bytes + (1 << 20));

        control.fail_reads(size_bytes..u64::MAX);
        let failed = mirrored.resize(&mirrored.mirror().unwrap(), size_bytes + (2 << 20)).await;
        assert!(failed.is_err());
        mirrored.end().await;
        control.heal();
        time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(access(), AnaState::INACCESSIBLE, "it has ended, and is not opened again");
    })
    .unwrap();
}

/// A mirror that could not be started has left nothing behind, so another is started over its devices
/// as soon as they answer. What cannot be reached may pass, and a log there is not lost.
#[test]
fn a_mirror_that_does_not_start_is_started_anew() {
    block_on(async {
        let text = "[server]\nnode = \"node-a\"\n[peer.node-b]\naddress = \"127.0.0.1:1\"\n\
                    [volume.db]\nmirror = { peer = \"node-b\", bitmap = \"nbd://127.0.0.1:1/log\" }\n\
                    device = \"memory:64MiB\"\n";
        let config = Config::parse("f", text).unwrap_or_else(|error| panic!("{error}"));
        let faulty = |bytes| {
            let memory = Arc::new(MemoryDevice::new(bytes, 4096).unwrap());
            let (fault, control) = Fault::new(memory, FaultConfig::default()).unwrap();
            (Arc::new(fault) as SharedDevice, control)
        };
        let ((leg, legs_faults), (log, logs_faults)) = (faulty(64 << 20), faulty(1 << 20));
        let target = Target::new(TargetConfig::default()).unwrap();
        let over = || Mirrored::over(&config, 0, leg.clone(), Some(log.clone()));
        let made = Rc::new(over().await.unwrap());
        let subsystem =
            SubsystemConfig { nqn: made.nqn, serial: "S".to_owned(), allow_hosts: Vec::new() };
        target.add_subsystem(subsystem).unwrap();
        made.start(&target, &caps(&config)).await.unwrap();
        made.create(CreateRole::Source, false, false).await.unwrap();
        write(&made.device(), 4096, 7).await.unwrap();
        let replica_nqn = made.replica_nqn;
        made.give_up().await;
        drop(made);

        type Inject = fn(&FaultControl);
        let faults: [(Inject, &FaultControl, bool); 4] = [
            (|control| control.set_unreachable(true), &legs_faults, true),
            (|control| control.set_unreachable(true), &logs_faults, true),
            (|control| control.fail_reads(0..u64::MAX), &legs_faults, false),
            // Opened, and not to be begun with: it serves its peers by then.
            (|control| control.fail_writes(0..u64::MAX), &legs_faults, false),
        ];
        for (fault, control, may_pass) in faults {
            let held = Arc::strong_count(&leg);
            let mirrored = Rc::new(over().await.unwrap());
            fault(control);
            let failed = mirrored.start(&target, &caps(&config)).await.unwrap_err();
            assert_eq!(failed.may_pass, may_pass, "{failed}");
            assert!(target.subsystem_status(&replica_nqn).is_err(), "{failed}");
            drop(mirrored);
            eventually("its tasks end", || Arc::strong_count(&leg) == held).await;
            control.heal();
        }
        let mirrored = Rc::new(over().await.unwrap());
        mirrored.start(&target, &caps(&config)).await.unwrap();
        let status = mirrored.mirror().unwrap().status();
        assert!(status.active, "it was the source, and met nobody");
        assert_eq!(read(&mirrored.device(), 4096).await, Some(7));
        mirrored.give_up().await;
        drop(mirrored);
        let replica = Replica::open(leg.clone(), Some(log.clone())).await.unwrap();
        assert_eq!(replica.lost(), None);
        replica.retire().await;

        // One that this version does not know is not taken for none, over which another is made.
        let end = leg.geometry().size_bytes;
        for superblock in [end - 8192, end - 4096] {
            let mut page = leg.read(superblock, buf::acquire(4096).await.unwrap()).await.unwrap();
            page[8] += 1;
            leg.write(superblock, page.freeze(), true).await.unwrap();
        }
        let later = Rc::new(over().await.unwrap());
        let failed = later.start(&target, &caps(&config)).await.unwrap_err();
        assert!(failed.to_string().contains("later version"), "{failed}");
    })
    .unwrap();
}

/// Two nodes, of these versions of the link, whose volume has grown over what was not zero, and with
/// it how much of it was copied then, in bytes.
async fn two_that_grew(versions: [Versions; 2]) -> ([Node; 2], Grown, u64) {
    const NEW: u64 = 256 << 20;
    let files = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
    files.iter().for_each(|file| file.as_file().set_len(64 << 20).unwrap());
    let paths = files.each_ref().map(|file| file.path().to_str().unwrap());
    let nodes = two_nodes_on(paths).await;
    nodes.iter().zip(versions).for_each(|(node, versions)| node.mirrored.versions.set(versions));
    nodes[0].mirrored.create(CreateRole::Source, false, false).await.unwrap();
    nodes[1].mirrored.create(CreateRole::Target, false, false).await.unwrap();
    eventually("in sync", || nodes[0].state() == MirrorState::Mirroring).await;
    let host = nodes[0].mirrored.device();
    write(&host, 8192, 7).await.unwrap();
    let before = host.geometry().size_bytes;
    for (file, rest) in files.iter().zip([0xaa, 0xbb]) {
        file.as_file().set_len(NEW).unwrap();
        file.as_file().write_all_at(&vec![rest; 1 << 20], 100 << 20).unwrap();
    }
    let foreseen = nodes[0].mirrored.grow(None, true).await.unwrap();
    let grown = nodes[0].mirrored.grow(None, false).await.unwrap();
    assert_eq!(grown, foreseen);
    assert_eq!((grown.from_bytes, grown.goes_on), (before, false));
    assert!(grown.to_bytes > 240 << 20, "{grown:?}");
    eventually("in sync", || nodes[0].state() == MirrorState::Mirroring).await;
    let sizes = nodes.each_ref().map(|node| node.mirrored.mirror().unwrap().usable_bytes());
    assert_eq!(sizes, [grown.to_bytes; 2]);
    let status = nodes[0].mirrored.mirror().unwrap().status().peers[0];
    assert_eq!(read(&host, 100 << 20).await, Some(0));
    write(&host, 110 << 20, 9).await.unwrap();
    (nodes, grown, status.resync_total_bytes)
}

/// The source dies, and what was written and what nobody wrote is at its target.
async fn source_dies(nodes: [Node; 2]) {
    // It is gone as one whose process has died: nothing of it goes on.
    nodes[0].mirrored.mirror().unwrap().close();
    let has_source = || nodes[1].mirrored.mirror().unwrap().has_source();
    eventually("its death is noticed", || !has_source()).await;
    nodes[1].mirrored.mirror().unwrap().failover().await.unwrap();
    let host = nodes[1].mirrored.device();
    for (offset, byte) in [(8192, 7), (100 << 20, 0), (110 << 20, 9)] {
        assert_eq!(read(&host, offset).await, Some(byte), "at {offset}");
    }
    nodes[1].mirrored.end().await;
}

/// What is new is zeroed on both nodes before the volume grows, so that nothing of it is copied, and
/// the target is whole at once.
#[test]
fn a_volume_grows_into_zeroes_and_its_target_takes_over() {
    block_on(async {
        let (nodes, grown, copied) = two_that_grew([Versions::SPOKEN; 2]).await;
        assert!(grown.copied_to.is_empty(), "{grown:?}");
        // Bits that the first resync has cleared need not have reached the log's device yet.
        assert!(copied <= 64 << 20, "{copied} B were copied");
        source_dies(nodes).await;
    })
    .unwrap();
}

/// A node of the version before cannot be asked to zero what is new: it is told to the operator, and
/// copied.
#[test]
fn what_a_volume_grows_over_is_copied_to_a_node_of_the_version_before() {
    block_on(async {
        let before = Versions::new(2, 2).unwrap();
        let (nodes, grown, copied) = two_that_grew([Versions::SPOKEN, before]).await;
        assert_eq!(grown.copied_to, ["node-b"]);
        let new = grown.to_bytes - grown.from_bytes;
        assert!(copied >= new, "{copied} of {new} B were copied");
        source_dies(nodes).await;
    })
    .unwrap();
}

/// Nothing is made of what a node says that speaks no version of the link that this one does, and the
/// operator is told which of the two is behind.
#[test]
fn a_target_of_versions_too_far_from_its_source_is_not_made() {
    block_on(async {
        let [a, b] = two_nodes().await;
        a.mirrored.versions.set(Versions::new(4, 6).unwrap());
        a.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        let refused = b.mirrored.create(CreateRole::Target, false, false).await;
        let Err(CreateError::Refused(said)) = refused else { panic!("{refused:?}") };
        let part = "speaks versions 4 to 6 of the replication link, and this node versions 2 to 3: \
                    upgrade Flagstone on this node";
        assert!(said.contains(part), "{said}");
        assert!(b.mirrored.mirror().is_none());
        a.mirrored.end().await;
    })
    .unwrap();
}

/// Hosts would see another size by each path.
#[test]
fn a_target_of_another_size_is_refused() {
    block_on(async {
        let listener = || Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
        let a = listener();
        let Address::Tcp(tcp) = a.address().clone() else { unreachable!("bound to TCP") };
        let source = Node::start("node-a", "node-b", a, 1).await;
        source.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        for (size, said) in [("memory:65MiB", "one size"), ("memory:63MiB", "larger one")] {
            let target = Node::on("node-b", "node-a", listener(), tcp.port(), size).await;
            let refused = target.mirrored.create(CreateRole::Target, false, false).await;
            assert!(
                matches!(&refused, Err(CreateError::Refused(text)) if text.contains(said)),
                "{refused:?}"
            );
            assert!(target.mirrored.mirror().is_none());
        }
        source.mirrored.end().await;
    })
    .unwrap();
}

/// Hosts would see other blocks by each path, and the target's device may not take what they write.
#[test]
fn a_target_of_other_blocks_is_refused() {
    block_on(async {
        let listener = || Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
        for (ours, theirs) in [("4KiB", "512"), ("512", "4KiB")] {
            let a = listener();
            let Address::Tcp(tcp) = a.address().clone() else { unreachable!("bound to TCP") };
            let text = |name: &str, peer: &str, port: u16, blocks: &str| {
                format!(
                    "[server]\nnode = \"{name}\"\n[peer.{peer}]\naddress = \"127.0.0.1:{port}\"\n\
                     [volume.db]\nmirror = {{ peer = \"{peer}\", bitmap = \"memory:1MiB\" }}\n\
                     block_size = \"{blocks}\"\ndevice = \"memory:64MiB\"\n"
                )
            };
            let source = Node::of(&text("node-a", "node-b", 1, theirs), a).await;
            source.mirrored.create(CreateRole::Source, false, false).await.unwrap();
            let other = text("node-b", "node-a", tcp.port(), ours);
            let target = Node::of(&other, listener()).await;
            for dry_run in [true, false] {
                let refused = target.mirrored.create(CreateRole::Target, true, dry_run).await;
                let Err(CreateError::Refused(why)) = refused else { panic!("{refused:?}") };
                for part in ["B on node-a", "B on node-b", "`block_size` in [volume.db]"] {
                    assert!(why.contains(part), "no `{part}`: {why}");
                }
            }
            assert!(target.mirrored.mirror().is_none());
            let same = text("node-b", "node-a", tcp.port(), theirs);
            let target = Node::of(&same, listener()).await;
            target.mirrored.create(CreateRole::Target, false, false).await.unwrap();
            target.mirrored.end().await;
            source.mirrored.end().await;
        }
    })
    .unwrap();
}

#[test]
fn nodes_have_identifiers_of_their_own() {
    let ranges: Vec<_> = (0..NODES).map(identifiers).collect();
    for (at, (ids, port)) in ranges.iter().enumerate() {
        assert!(ids.clone().count() >= 1024 && *ids.start() > 0 && *port > 0);
        for (others, other_port) in &ranges[at + 1..] {
            assert!(ids.end() < others.start() && port + 63 < *other_port);
        }
    }
}

/// The end of a device of a node, with its replica, as a device of so many bytes has it.
pub(super) fn cut(file: &tempfile::NamedTempFile, bytes: u64) {
    file.as_file().set_len(bytes).unwrap();
}

/// A name server that is not up yet is no reason not to serve: a source whose peer's name nobody knows
/// is one whose peer cannot be reached.
#[test]
fn a_peer_whose_name_nobody_knows_is_waited_for() {
    block_on(async {
        let listener = Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
        // RFC 6761: never a name of anything.
        let text = "[server]\nnode = \"node-a\"\n[peer.node-b]\naddress = \"node-b.invalid\"\n\
                    [volume.db]\nmirror = { peer = \"node-b\", bitmap = \"memory:1MiB\" }\n\
                    device = \"memory:64MiB\"\n";
        let node = Node::of(text, listener).await;
        node.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        eventually("it serves", || node.access() == AnaState::OPTIMIZED).await;
        write(&node.mirrored.device(), 4096, 1).await.unwrap();
        let unknown = || {
            let status = node.mirrored.mirror().unwrap().status();
            status.peers[0].link.is_name_unknown
        };
        eventually("the name was looked up", unknown).await;
        let refused = node.mirrored.delete(false, true).await;
        assert!(matches!(refused, Err(CreateError::Refused(_))), "it serves: {refused:?}");
        node.mirrored.end().await;
    })
    .unwrap();
}

/// Two volumes of a server whose devices were exchanged for each other: hosts of the one would find
/// the data of the other.
#[test]
fn the_replica_of_another_volume_is_not_served() {
    block_on(async {
        let file = tempfile::NamedTempFile::new().unwrap();
        cut(&file, 64 << 20);
        let text = |volume: &str| {
            format!(
                "[server]\nnode = \"node-a\"\n[peer.node-b]\naddress = \"127.0.0.1:1\"\n\
                 [volume.{volume}]\nmirror = {{ peer = \"node-b\" }}\ndevice = {:?}\n",
                file.path()
            )
        };
        let listener = || Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
        let db = Node::of(&text("db"), listener()).await;
        db.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        eventually("it serves", || db.access() == AnaState::OPTIMIZED).await;
        db.stop().await;
        let other = Node::of(&text("other"), listener()).await;
        let missing = other.mirrored.missing().expect("it is another's");
        assert!(missing.contains("of another volume") && missing.contains("by-id"), "{missing}");
        assert_eq!(other.access(), AnaState::INACCESSIBLE);
        let refused = other.mirrored.create(CreateRole::Source, false, false).await;
        assert!(matches!(&refused, Err(CreateError::Refused(why)) if why.contains(&*missing)));
        other.stop().await;
        let db = Node::of(&text("db"), listener()).await;
        eventually("it serves", || db.access() == AnaState::OPTIMIZED).await;
        db.mirrored.end().await;
    })
    .unwrap();
}

/// An empty device tells nothing, but a peer that has a replica does: what would be made beside it is
/// another volume.
#[test]
fn a_volume_that_a_peer_has_is_not_begun_anew() {
    block_on(async {
        let [a, b] = two_nodes().await;
        a.mirrored.create(CreateRole::Source, false, false).await.unwrap();
        let refused = b.mirrored.create(CreateRole::Source, false, false).await;
        let Err(CreateError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("node-a has replica") && why.contains("--target"), "{why}");
        assert!(b.mirrored.mirror().is_none());
        b.mirrored.create(CreateRole::Source, true, false).await.unwrap();
        a.mirrored.end().await;
        b.mirrored.end().await;
    })
    .unwrap();
}
