//! Test bed of mirrored volumes: nodes in one process, host calls, and failing devices.

use std::time::Duration;

use flagstone_blockdev::{FaultConfig, FaultControl, FaultLayer, IoError};
pub(super) use flagstone_mirror::ondisk::superblock::ReplicaRole;
use flagstone_mirror::state::status::MirrorState;
use flagstone_nvmf_target::{NamespaceConfig, TargetConfig, serve};
use flagstone_runtime::net::Listener;
use flagstone_runtime::{buf, spawn_detached, time};
use tempfile::NamedTempFile;

use super::*;
use crate::pools::legs::LegOpener;
use crate::stack::open_stack;
use flagstone_stack::open_device;

/// A node: its target and its mirrored volume.
pub(super) struct Node {
    pub(super) target: Arc<Target>,
    pub(super) mirrored: Rc<MirroredVolume>,
    pub(super) address: Address,
}

impl Node {
    pub(super) async fn on(
        names: (&str, &str),
        listener: Listener,
        peer_port: u16,
        device: &str,
    ) -> Node {
        let places = (device, Some("memory:1MiB"));
        Node::of(&configuration(names, peer_port, places), listener).await
    }

    /// A node without a reachable peer.
    pub(super) async fn alone(places: (&str, Option<&str>)) -> Node {
        Node::of(&configuration(A, 1, places), listener()).await
    }

    /// A node with the first volume of a configuration.
    pub(super) async fn of(text: &str, listener: Listener) -> Node {
        let config = parsed(text);
        let opened = open_stack(&config, 0, &[], None, &LegOpener::default()).await.unwrap();
        let (ids, port) = identifiers(share(&config).unwrap());
        let target = Target::new(TargetConfig {
            controller_ids: ids,
            first_port_id: port,
            ..TargetConfig::default()
        });
        let target = target.unwrap();
        let mirrored = opened.mirrored.unwrap();
        export(&target, &mirrored, opened.device, &config);
        mirrored.start(&target, &mirror_shares(&config)).await.unwrap();
        let (serving, address) = (target.clone(), listener.address().clone());
        spawn_detached(async move {
            while let Ok(stream) = listener.accept().await {
                spawn_detached(serve(serving.clone(), stream));
            }
        });
        Node { target, mirrored, address }
    }

    /// Stops in order, and closes its devices.
    pub(super) async fn stop(self) {
        let held = self.mirrored.device();
        self.mirrored.end().await;
        self.mirrored.abandon().await;
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

    pub(super) async fn serves(&self) {
        eventually("it serves", || self.access() == AnaState::OPTIMIZED).await;
    }

    pub(super) async fn is_in_sync(&self) {
        eventually("in sync", || self.state() == MirrorState::Mirroring).await;
    }

    /// Replaces its device by the same file with a fault layer.
    pub(super) async fn fails_on(&self, path: &str) -> FaultControl {
        self.mirrored.reopenable.close();
        let device = open_device(&path.parse().unwrap(), &Default::default()).await.unwrap();
        let (fault, control) = FaultLayer::new(device, FaultConfig::default()).unwrap();
        self.mirrored.reopenable.set(Arc::new(fault)).unwrap();
        control
    }
}

/// Names of a node and its peer.
pub(super) const A: (&str, &str) = ("node-a", "node-b");
pub(super) const B: (&str, &str) = ("node-b", "node-a");

/// Configuration of a node. The log is on its own device, or at the end of the data device.
pub(super) fn configuration(
    (name, peer): (&str, &str),
    peer_port: u16,
    (device, log): (&str, Option<&str>),
) -> String {
    let bitmap = log.map_or(String::new(), |log| format!(", intent_log = {log:?}"));
    format!(
        "[server]\nnode = \"{name}\"\n[peer.{peer}]\naddress = \"127.0.0.1:{peer_port}\"\n\
         [volume.db]\nmirror = {{ peer = \"{peer}\"{bitmap} }}\ndevice = {device:?}\n"
    )
}

pub(super) fn parsed(text: &str) -> Config {
    Config::parse("f", text).unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn subsystem(nqn: Nqn) -> SubsystemConfig {
    SubsystemConfig { nqn, serial: "S".to_owned(), allow_hosts: None, keys: Default::default() }
}

/// Exports the first volume of a configuration.
pub(super) fn export(
    target: &Target,
    mirrored: &MirroredVolume,
    device: SharedDevice,
    config: &Config,
) {
    target.add_subsystem(subsystem(mirrored.nqn)).unwrap();
    let uuid = config.volume_uuid(0, b"machine").into_bytes();
    let namespace = NamespaceConfig { nsid: Some(1), device, uuid, read_only: false };
    target.add_namespace(&mirrored.nqn, namespace).unwrap();
}

pub(super) fn listener() -> Listener {
    Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap()
}

pub(super) fn port(listener: &Listener) -> u16 {
    match listener.address() {
        Address::Tcp(tcp) => tcp.port(),
        Address::Unix(_) => unreachable!("bound to TCP"),
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

/// Two nodes without replicas.
pub(super) async fn two_nodes() -> [Node; 2] {
    two_nodes_on(["memory:64MiB"; 2]).await
}

pub(super) async fn two_nodes_on(devices: [&str; 2]) -> [Node; 2] {
    let (a, b) = (listener(), listener());
    let (port_a, port_b) = (port(&a), port(&b));
    [Node::on(A, a, port_b, devices[0]).await, Node::on(B, b, port_a, devices[1]).await]
}

/// Creates both replicas, and waits until they are in sync. The first node is the source.
pub(super) async fn mirror([source, target]: &[Node; 2]) {
    source.mirrored.create(ReplicaRole::Source, false, false).await.unwrap();
    target.mirrored.create(ReplicaRole::Target, false, false).await.unwrap();
    source.is_in_sync().await;
}

pub(super) async fn write(device: &SharedDevice, offset: u64, byte: u8) -> Result<(), IoError> {
    let mut data = buf::acquire(4096).await.unwrap();
    data.fill(byte);
    device.write(offset, data.freeze(), false).await
}

pub(super) async fn read(device: &SharedDevice, offset: u64) -> Option<u8> {
    let data = device.read(offset, buf::acquire(4096).await.unwrap()).await.ok()?;
    data.iter().all(|byte| *byte == data[0]).then(|| data[0])
}

/// A file of this size.
pub(super) fn file(bytes: u64) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    cut(&file, bytes);
    file
}

pub(super) fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

/// Resizes the file.
pub(super) fn cut(file: &NamedTempFile, bytes: u64) {
    file.as_file().set_len(bytes).unwrap();
}
