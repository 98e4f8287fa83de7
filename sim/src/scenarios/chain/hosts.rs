//! Hosts of a chain scenario: lanes of random calls over a multipath device, each repeated until it
//! succeeds.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, IoError, ZeroFlags};
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
    let device = loop {
        match MultipathDevice::connect(paths.clone(), &volume_nqn(), options.clone()).await {
            Ok(device) => break device,
            Err(_) => time::sleep(Duration::from_millis(50)).await,
        }
    };
    world.history.note(format!("host {host} is connected"));
    for _ in 0..plan.lanes {
        spawn_detached(lane(world.clone(), host, plan, device.clone()));
    }
}

async fn lane(world: Rc<World>, host: usize, plan: HostPlan, device: Arc<MultipathDevice>) {
    let mut rng = Rng::new(random_u64());
    while !world.stop.get() {
        if !world.hold.get() {
            one_call(&world, host, &plan, &device, &mut rng).await;
        }
        // Idle time costs the simulation nothing.
        let pause = rng.between(0, plan.pause.as_micros() as u64);
        time::sleep(Duration::from_micros(pause)).await;
    }
}

async fn one_call(
    world: &World,
    host: usize,
    plan: &HostPlan,
    device: &Arc<MultipathDevice>,
    rng: &mut Rng,
) {
    let history = &world.history;
    let choice = rng.below(100);
    let (offset, len) = plan.range(rng);
    let fua = rng.chance(0.2);
    match choice {
        0..6 => {
            let began = history.begin();
            match device.flush().await {
                Ok(()) => history.end_flush(began),
                Err(error) => {
                    history.note(format!("host {host}: a flush failed: {error}"));
                    history.flush_failed();
                    history.give_up(began);
                }
            }
        }
        6..45 => {
            let began = history.begin();
            match device.read(offset, buf::alloc(len).await).await {
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
            until_done(world, host, || device.write(offset, data.clone(), fua)).await;
            history.end_write(id);
        }
        _ => {
            let id = history.begin_write(host, offset, len, true, fua);
            let flags = ZeroFlags { fua, may_deallocate: rng.chance(0.5), fast_only: false };
            until_done(world, host, || device.write_zeroes(offset, len as u64, flags)).await;
            history.end_write(id);
        }
    }
}

/// Repeats a call until it succeeds.
async fn until_done<F: Future<Output = Result<(), IoError>>>(
    world: &World,
    host: usize,
    call: impl Fn() -> F,
) {
    while let Err(error) = call().await {
        world.history.note(format!("host {host}: a call failed, and is repeated: {error}"));
        time::sleep(RETRY_PAUSE).await;
    }
}
