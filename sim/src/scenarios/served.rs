//! Volume on a file, served over a simulated network to one client, through all faults.
//!
//! The server, the client and the file device are the real code, with and without TLS.
//! Authentication and multiple hosts are left out.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_auth::TlsRing;
use flagstone_auth::tls::{Psk, PskHash, TlsKey};
use flagstone_blockdev::{FileDevice, FileOptions, IoFuture, SharedDevice};
use flagstone_nbd::{
    ClientOptions, Drain, Export, Exports, NbdDevice, NbdServer, NbdTls, NbdTlsClient,
    ServerOptions,
};
use flagstone_nvme::Nqn;
use flagstone_nvme::pdu::Digests;
use flagstone_nvmf_host::{HostOptions, RemoteDevice, RemoteTls};
use flagstone_nvmf_target::{
    self as target, NamespaceConfig, SubsystemConfig, Target, TargetConfig, TlsMode, serve_listener,
};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::sim::{DiskConfig, NodeId, SimConfig, Simulation};
use flagstone_runtime::tls::{TlsClient, TlsServer};
use flagstone_runtime::{JoinHandle, random_u64, spawn_detached, time};

use flagstone_transport::{PskChooser, PskKeys, tls_psk};
use zeroize::Zeroizing;

use crate::load::{Ended, LoadOptions, run as load, verify};
use crate::model::Shared;
use crate::{Outcome, Scenario};

/// Over NBD.
pub const NBD: Scenario = Scenario {
    name: "nbd",
    about: "a volume over NBD: no acknowledged flush or FUA write is lost, and nothing is carried \
            out late or twice, whatever fails",
    run: |seed| run(seed, &NBD_FRONT, |device| device),
};

/// Over NVMe/TCP.
pub const NVME: Scenario = Scenario {
    name: "nvme-tcp",
    about: "a volume over NVMe/TCP: the same",
    run: |seed| run(seed, &NVME_FRONT, |device| device),
};

/// Over NVMe/TCP with TLS.
pub const NVME_TLS: Scenario = Scenario {
    name: "nvme-tcp-tls",
    about: "a volume over NVMe/TCP with TLS, whose handshakes and records are cut and stalled: the \
            same",
    run: |seed| run(seed, &NVME_TLS_FRONT, |device| device).with_random_contents(),
};

/// Over NBD with TLS.
pub const NBD_TLS: Scenario = Scenario {
    name: "nbd-tls",
    about: "a volume over NBD with TLS: the same",
    run: |seed| run(seed, &NBD_TLS_FRONT, |device| device).with_random_contents(),
};

const DISK: &str = "/dev/disk";
/// Longer than any disk or server needs to finish its pending work.
const QUIET: Duration = Duration::from_secs(60);

/// Wrapper around the served device: identity, or in tests a device that violates a guarantee.
type Wrap = fn(SharedDevice) -> SharedDevice;

/// A protocol: how to serve a device, and how to attach to it.
pub(super) struct Front {
    pub(super) port: u16,
    /// Serves until the node dies.
    pub(super) serve: fn(SharedDevice, Address) -> IoFuture<()>,
    /// Attempts to attach once.
    pub(super) attach: fn(Address) -> IoFuture<Option<SharedDevice>>,
}

pub(super) const NBD_FRONT: Front = Front { port: 10809, serve: serve_nbd, attach: attach_nbd };

const NBD_TLS_FRONT: Front = Front { port: 10809, serve: serve_nbd_tls, attach: attach_nbd_tls };

fn serve_nbd(device: SharedDevice, address: Address) -> IoFuture<()> {
    serve_nbd_with(device, address, None)
}

fn serve_nbd_tls(device: SharedDevice, address: Address) -> IoFuture<()> {
    let server = TlsServer::with_psks(Arc::new(PskChooser(Arc::new(OnePsk))));
    serve_nbd_with(device, address, Some(NbdTls::new(server.expect("a valid key")).required()))
}

fn serve_nbd_with(device: SharedDevice, address: Address, tls: Option<NbdTls>) -> IoFuture<()> {
    IoFuture::later(async move {
        let exports = Exports::new([Export::new("volume", device)]).expect("one export");
        let listener = Listener::bind(&address).expect("the port is free");
        let options = ServerOptions::default();
        NbdServer::new(Arc::new(exports), options, Drain::new()).run_tls(listener, tls).await;
        Ok(())
    })
}

fn attach_nbd(address: Address) -> IoFuture<Option<SharedDevice>> {
    IoFuture::later(async move {
        let device = NbdDevice::connect(address, "volume", ClientOptions::default()).await;
        Ok(device.ok().map(|device| -> SharedDevice { device }))
    })
}

fn attach_nbd_tls(address: Address) -> IoFuture<Option<SharedDevice>> {
    IoFuture::later(async move {
        let client =
            TlsClient::with_psks(OnePsk.candidates(NAME).into_iter().map(tls_psk).collect());
        let client = NbdTlsClient::new(client.expect("a valid key"));
        let options = ClientOptions::default();
        let device = NbdDevice::connect_tls(address, "volume", options, client).await;
        Ok(device.ok().map(|device| -> SharedDevice { device }))
    })
}

const NAME: &[u8] = b"client";

/// The key of the client.
struct OnePsk;

impl PskKeys for OnePsk {
    fn candidates(&self, identity: &[u8]) -> Vec<Psk> {
        let (secret, hash) = (Zeroizing::new(vec![7; 32]), PskHash::Sha256);
        let psk = Psk { identity: NAME.to_vec(), secret, hash };
        Vec::from_iter((identity == NAME).then_some(psk))
    }
}

const NVME_TLS_FRONT: Front = Front { port: 4420, serve: serve_nvme_tls, attach: attach_nvme_tls };

fn host_nqn() -> Nqn {
    Nqn::from_uuid([7; 16])
}

fn nvme_key() -> TlsRing {
    TlsRing::new(vec![TlsKey::new(&[7; 32], None).expect("a valid length")])
}

pub(super) const NVME_FRONT: Front = Front { port: 4420, serve: serve_nvme, attach: attach_nvme };
const NVME_SUBSYSTEM: &str = "nqn.2026-01.io.flagstone:volume";

fn subsystem() -> Nqn {
    NVME_SUBSYSTEM.parse().expect("a valid name")
}

fn serve_nvme(device: SharedDevice, address: Address) -> IoFuture<()> {
    serve_nvme_with(device, address, TlsMode::Off)
}

fn serve_nvme_tls(device: SharedDevice, address: Address) -> IoFuture<()> {
    serve_nvme_with(device, address, TlsMode::Required)
}

fn serve_nvme_with(device: SharedDevice, address: Address, mode: TlsMode) -> IoFuture<()> {
    IoFuture::later(async move {
        let target = Target::new(TargetConfig::default()).expect("the default is valid");
        let (nqn, serial) = (subsystem(), "1".to_owned());
        let subsystem =
            SubsystemConfig { nqn, serial, allow_hosts: None, keys: Default::default() };
        target.add_subsystem(subsystem).expect("it is the first");
        let namespace = NamespaceConfig { nsid: None, device, uuid: [1; 16], read_only: false };
        target.add_namespace(&nqn, namespace).expect("it is the first");
        let listener = Listener::bind(&address).expect("the port is free");
        target.add_tls_listener(&address, mode).expect("an address of TCP");
        let tls = target::HostTls { keys: nvme_key(), required: mode == TlsMode::Required };
        target.set_tls_keys(&nqn, BTreeMap::from([(host_nqn(), tls)]));
        while let Ok(stream) = listener.accept().await {
            spawn_detached(serve_listener(target.clone(), stream, mode));
        }
        Ok(())
    })
}

fn attach_nvme(address: Address) -> IoFuture<Option<SharedDevice>> {
    attach_nvme_with(address, None)
}

fn attach_nvme_tls(address: Address) -> IoFuture<Option<SharedDevice>> {
    attach_nvme_with(address, Some(RemoteTls::required(nvme_key())))
}

fn attach_nvme_with(address: Address, tls: Option<RemoteTls>) -> IoFuture<Option<SharedDevice>> {
    IoFuture::later(async move {
        let digests = Digests {
            header: random_u64().is_multiple_of(4),
            data: random_u64().is_multiple_of(4),
        };
        let queues = 1 + (random_u64() % 3) as u16;
        let options = HostOptions { digests, queues, tls, ..HostOptions::default() };
        let options = HostOptions { host_nqn: Some(host_nqn()), ..options };
        let device = RemoteDevice::connect(address, &subsystem(), options).await;
        Ok(device.ok().map(|device| -> SharedDevice { device }))
    })
}

/// The simulated world and the model of its volume.
struct Cluster {
    sim: Simulation,
    server: NodeId,
    client: NodeId,
    model: Shared,
    front: &'static Front,
    wrap: Wrap,
    stop: Rc<Cell<bool>>,
    depth: usize,
}

fn run(seed: u64, front: &'static Front, wrap: Wrap) -> Outcome {
    let sim = Simulation::new(seed, SimConfig::default());
    let (server, client) = (sim.add_node("server"), sim.add_node("client"));
    let size_bytes = 4096 << sim.random_between(0, 8);
    sim.add_disk(server, DISK, DiskConfig::block_device(size_bytes));
    let model = Shared::new(seed, size_bytes);
    model.expect_late_changes();
    let depth = sim.random_between(1, 16) as usize;
    let stop = Rc::default();
    let cluster = Cluster { sim, server, client, model, front, wrap, stop, depth };
    cluster.start_server();
    let mut loading = cluster.start_client();
    let faults = cluster.sim.random_between(1, 6);
    cluster.sim.block_on(async {
        for _ in 0..faults {
            let sim = &cluster.sim;
            time::sleep(sim.random_span(Duration::ZERO, Duration::from_millis(60))).await;
            cluster.break_something(&mut loading).await;
        }
        cluster.sim.heal_all();
        cluster.stop.set(true);
        loading.await.expect("the task is not aborted");
    });
    cluster.check_at_rest();
    let sim = &cluster.sim;
    assert_eq!(sim.connections(), 0, "a connection was not released\n{}", sim.report());
    Outcome::of(sim, cluster.model.checks(), faults)
}

impl Cluster {
    fn address(&self) -> Address {
        Address::Tcp((self.sim.ip(self.server), self.front.port).into())
    }

    fn start_server(&self) {
        let (serve, address, wrap) = (self.front.serve, self.address(), self.wrap);
        self.sim.spawn_on(self.server, async move {
            let device = FileDevice::open(DISK, &FileOptions::default()).expect("it is free");
            let _ = serve(wrap(device), address).await;
        });
    }

    /// Loads the volume until the stop flag is set, and attaches again after each permanent
    /// failure.
    fn start_client(&self) -> JoinHandle<()> {
        let (attach, address) = (self.front.attach, self.address());
        let (model, stop, depth) = (self.model.clone(), self.stop.clone(), self.depth);
        self.sim.spawn_on(self.client, async move {
            while !stop.get() {
                let device = attached(attach, &address).await;
                let options = LoadOptions { stop: stop.clone(), ..LoadOptions::new(depth) };
                if load(device, model.clone(), options).await == Ended::Stopped {
                    return;
                }
            }
        })
    }

    async fn break_something(&self, loading: &mut JoinHandle<()>) {
        let (sim, server, client) = (&self.sim, self.server, self.client);
        let mut pause = sim.random_span(Duration::ZERO, Duration::from_secs(3));
        match sim.random_between(0, 8) {
            0 => sim.partition(server, client),
            1 => sim.partition_one_way(server, client),
            2 => sim.partition_one_way(client, server),
            3 => {
                sim.reset_connections(server, client);
                pause = Duration::ZERO;
            }
            4 => {
                sim.stall(server, DISK, sim.random_span(Duration::ZERO, Duration::from_secs(3)));
                pause = Duration::ZERO;
            }
            5 | 6 => {
                sim.crash(server);
                self.model.process_ended();
            }
            7 => {
                sim.power_off(server);
                self.model.power_lost();
            }
            _ => sim.crash(client),
        }
        // Most outages are short; a long one exceeds every timeout.
        if sim.chance(0.1) {
            pause *= 60;
        }
        time::sleep(pause).await;
        if !sim.is_up(server) {
            sim.restart(server);
            self.start_server();
        }
        sim.heal(server, client);
        if !sim.is_up(client) {
            // The requests that the dead client sent are carried out first.
            time::sleep(QUIET).await;
            self.model.process_ended();
            sim.restart(client);
            *loading = self.start_client();
        }
    }

    /// Stops all faults, checks the volume over the network, and closes everything.
    fn check_at_rest(&self) {
        let (attach, address) = (self.front.attach, self.address());
        let model = self.model.clone();
        self.sim.run_for(QUIET);
        self.model.process_ended();
        let checking = self.sim.spawn_on(self.client, async move {
            let device = attached(attach, &address).await;
            verify(&device, &model).await.expect("a sound network and disk");
        });
        self.sim.block_on(checking).expect("the task is not aborted");
        self.sim.run_for(Duration::from_secs(2000));
    }
}

/// Attaches as soon as the server accepts.
pub(super) async fn attached(
    attach: fn(Address) -> IoFuture<Option<SharedDevice>>,
    address: &Address,
) -> SharedDevice {
    loop {
        if let Ok(Some(device)) = attach(address.clone()).await {
            return device;
        }
        time::sleep(Duration::from_millis(200)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::run_seed;
    use crate::scenarios::lying_device::{Lie, caught, lying};

    #[test]
    fn nvme_tcp_keeps_guarantees_and_replays() {
        for seed in 0..5 {
            run_seed(&NVME, seed, true).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }

    #[test]
    fn nbd_keeps_guarantees_and_replays() {
        for seed in 0..5 {
            run_seed(&NBD, seed, true).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }

    #[test]
    fn tls_keeps_guarantees_and_replays() {
        for (scenario, seed) in (0..5).flat_map(|seed| [(NVME_TLS, seed), (NBD_TLS, seed)]) {
            run_seed(&scenario, seed, true).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }

    #[test]
    fn servers_of_faulty_devices_are_detected() {
        let nvme = [
            caught(|seed| run(seed, &NVME_FRONT, |device| lying(Lie::Flush)(device))),
            caught(|seed| run(seed, &NVME_FRONT, |device| lying(Lie::Place)(device))),
        ];
        let nbd = [
            caught(|seed| run(seed, &NBD_FRONT, |device| lying(Lie::Flush)(device))),
            caught(|seed| run(seed, &NBD_FRONT, |device| lying(Lie::Place)(device))),
        ];
        let enough = |[flush, place]: [usize; 2]| flush >= 2 && place >= 20;
        assert!(enough(nvme) && enough(nbd), "{nvme:?} {nbd:?} of 40");
    }
}
