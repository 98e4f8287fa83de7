//! Hosts of a chain scenario: lanes of random calls over a multipath device, each repeated until it
//! succeeds. After a failed flush, a host opens its device again, as the server does with its own.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, IoFuture, ZeroFlags};
use flagstone_nvme::Nqn;
use flagstone_nvme::pdu::Digests;
use flagstone_nvmf_host::{HostOptions, MultipathDevice};
use flagstone_runtime::net::Address;
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::Simulation;
use flagstone_runtime::{buf, random_u64, spawn_detached, time};

use super::cluster::{World, volume_nqn};
use super::history::BLOCK;

/// Pause before a failed call is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Longest pause of a calm host.
const CALM_PAUSE: Duration = Duration::from_secs(4);

/// Load of each host, drawn from the seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostPlan {
    bytes: u64,
    lanes: u64,
    /// Longest pause between two calls of a lane.
    pause: Duration,
    max_blocks: u64,
    queues: u16,
    digests: Digests,
}

impl HostPlan {
    pub(super) fn draw(sim: &Simulation, bytes: u64) -> HostPlan {
        HostPlan {
            bytes,
            lanes: sim.random_between(1, 3),
            pause: Duration::from_millis(sim.random_between(5, 80)),
            max_blocks: sim.random_between(8, 40),
            queues: sim.random_between(1, 2) as u16,
            digests: Digests { header: sim.chance(0.2), data: sim.chance(0.2) },
        }
    }

    /// Offset and length of a call, in bytes: mostly short, and often at the start of the volume,
    /// so that calls overlap.
    fn range(&self, rng: &mut Rng) -> (u64, usize) {
        let blocks = self.bytes / BLOCK as u64;
        let longest = self.max_blocks.min(blocks);
        let mut len = rng.between(1, longest).min(rng.between(1, longest));
        let mut at = rng.between(0, blocks - len).min(rng.between(0, blocks - len));
        if rng.chance(0.6) {
            at -= at % 8;
            len = len.next_multiple_of(8).min(blocks - at);
        }
        (at * BLOCK as u64, len as usize * BLOCK)
    }
}

/// A host's device. A failed flush makes its path refuse changes until it is reopened.
struct HostDevice {
    world: Rc<World>,
    host: usize,
    options: HostOptions,
    paths: Vec<Address>,
    /// `None` while it is opened.
    open: RefCell<Option<Arc<MultipathDevice>>>,
}

impl HostDevice {
    /// The open device.
    async fn get(&self) -> Arc<MultipathDevice> {
        loop {
            let open = self.open.borrow().clone();
            match open {
                Some(device) => return device,
                None => time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    async fn open(&self) {
        let device = loop {
            let (paths, options) = (self.paths.clone(), self.options.clone());
            match MultipathDevice::connect(paths, &volume_nqn(), options).await {
                Ok(device) => break device,
                Err(_) => time::sleep(Duration::from_millis(50)).await,
            }
        };
        self.world.history.note(format!("host {} is connected", self.host));
        self.open.replace(Some(device));
    }

    /// Reopens the device after a failed flush. One lane does this for all.
    async fn reopen_if_failed(&self) {
        let failed = self.open.borrow_mut().take_if(|device| device.must_reopen());
        if failed.is_some() {
            self.open().await;
        }
    }
}

/// Process of a host.
pub(super) async fn run(world: Rc<World>, host: usize, plan: HostPlan, paths: Vec<Address>) {
    let nqn = Nqn::new(&format!("nqn.2026-01.io.flagstone:host{host}")).expect("a valid name");
    let options = HostOptions {
        host_nqn: Some(nqn),
        host_id: Some([100 + host as u8; 16]),
        queues: plan.queues,
        digests: plan.digests,
        keep_alive: Duration::from_secs(2),
        command_timeout: Duration::from_secs(4),
        connect_timeout: Duration::from_secs(2),
        reconnect_delay_max: Duration::from_millis(500),
        loss_timeout: Duration::from_secs(3600),
        ..HostOptions::default()
    };
    let device = Rc::new(HostDevice { world, host, options, paths, open: RefCell::default() });
    device.open().await;
    for _ in 0..plan.lanes {
        spawn_detached(lane(device.clone(), plan));
    }
}

async fn lane(device: Rc<HostDevice>, plan: HostPlan) {
    let mut rng = Rng::new(random_u64());
    while !device.world.stop.get() {
        if !device.world.hold.get() {
            one_call(&device, &plan, &mut rng).await;
        }
        // Idle time costs the simulation nothing.
        let longest = if device.world.calm.get() { CALM_PAUSE } else { plan.pause };
        let pause = rng.between(0, longest.as_micros() as u64);
        time::sleep(Duration::from_micros(pause)).await;
    }
}

async fn one_call(device: &HostDevice, plan: &HostPlan, rng: &mut Rng) {
    let (history, host) = (&device.world.history, device.host);
    let choice = rng.below(100);
    let (offset, len) = plan.range(rng);
    let fua = rng.chance(0.2);
    match choice {
        0..6 => {
            let open = device.get().await;
            let began = history.begin();
            match open.flush().await {
                Ok(()) => history.end_flush(began),
                Err(error) => {
                    history.note(format!("host {host}: a flush failed: {error}"));
                    history.flush_failed();
                    history.give_up(began);
                    device.reopen_if_failed().await;
                }
            }
        }
        6..45 => {
            let open = device.get().await;
            let began = history.begin();
            match open.read(offset, buf::alloc(len).await).await {
                Ok(data) => history.end_read(host, began, offset, &data),
                Err(error) => {
                    history.note(format!("host {host}: a read failed: {error}"));
                    history.give_up(began);
                }
            }
        }
        45..94 => {
            let id = history.begin_write(host, offset, len, false, fua);
            let mut data = buf::alloc(len).await;
            history.fill(id, &mut data);
            let data = data.freeze();
            until_done(device, |open| open.write(offset, data.clone(), fua)).await;
            history.end_write(id);
        }
        _ => {
            let id = history.begin_write(host, offset, len, true, fua);
            let flags = ZeroFlags { fua, may_deallocate: rng.chance(0.5), fast_only: false };
            until_done(device, |open| open.write_zeroes(offset, len as u64, flags)).await;
            history.end_write(id);
        }
    }
}

/// Repeats a call until it succeeds.
async fn until_done(device: &HostDevice, call: impl Fn(&MultipathDevice) -> IoFuture<()>) {
    while let Err(error) = { call(&*device.get().await).await } {
        let host = device.host;
        let note = format!("host {host}: a call failed, and is repeated: {error}");
        device.world.history.note(note);
        device.reopen_if_failed().await;
        time::sleep(RETRY_PAUSE).await;
    }
}
