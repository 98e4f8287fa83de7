//! File device on one disk, through kills and power losses, with and without a failing disk.
//!
//! The scenario calls the real file device directly. It leaves out the network and all layers above
//! the device.

use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{FileDevice, FileOptions, SharedDevice};
use flagstone_runtime::sim::{DiskConfig, DiskFaults, NodeId, SimConfig, Simulation};
use flagstone_runtime::time;

use crate::load::{Ended, LoadOptions, run as load, verify};
use crate::model::Shared;
use crate::{Outcome, Scenario};

/// A sound disk.
pub const SCENARIO: Scenario = Scenario {
    name: "disk",
    about: "a file device under load through kill -9 and power loss: no flush or FUA write is lost",
    run: |seed| run(seed, false, |device| device),
};

/// A disk with read, write and flush errors.
pub const FAULTY: Scenario = Scenario {
    name: "faulty-disk",
    about: "the same on a disk with read, write and flush errors and stalls",
    run: |seed| run(seed, true, |device| device),
};

const DISK: &str = "/dev/disk";

/// Wrapper around the device: identity, or in tests a device that violates a guarantee.
type Wrap = fn(SharedDevice) -> SharedDevice;

fn run(seed: u64, faulty: bool, wrap: Wrap) -> Outcome {
    let sim = Simulation::new(seed, SimConfig::default());
    let node = sim.add_node("storage");
    let size_bytes = 512 << sim.random_between(3, 11);
    let config = DiskConfig {
        block_device: sim.chance(0.5),
        logical_block_bytes: if sim.chance(0.5) && size_bytes >= 4096 { 4096 } else { 512 },
        volatile_cache: sim.chance(0.9),
        ..DiskConfig::block_device(size_bytes)
    };
    sim.add_disk(node, DISK, config);
    let model = Shared::new(seed, size_bytes);
    if faulty {
        model.expect_failed_flushes();
    }
    let rounds = sim.random_between(1, 5);
    for _ in 0..rounds {
        one_life(&sim, node, &model, faulty, wrap);
        sim.restart(node);
    }
    let device = checked(&sim, node, &model);
    drop(device);
    Outcome::of(&sim, model.checks(), rounds)
}

/// Opens the device on its node and checks all of its content.
fn checked(sim: &Simulation, node: NodeId, model: &Shared) -> SharedDevice {
    sim.set_faults(node, DISK, DiskFaults::default());
    let model = model.clone();
    let opened = sim.spawn_on(node, async move {
        let device: SharedDevice =
            FileDevice::open(DISK, &FileOptions::default()).expect("the disk is free");
        verify(&device, &model).await.expect("a sound disk");
        device
    });
    sim.block_on(opened).expect("the task is not aborted")
}

/// One process life: opens, checks and loads the device, then ends at a random moment by a kill or
/// a power loss.
fn one_life(sim: &Simulation, node: NodeId, model: &Shared, faulty: bool, wrap: Wrap) {
    let device = wrap(checked(sim, node, model));
    let mut options = LoadOptions::new(sim.random_between(1, 24) as usize);
    options.medium_errors = faulty;
    let stop = options.stop.clone();
    let loading = Rc::new(sim.spawn_on(node, load(device, model.clone(), options)));
    if faulty {
        sim.set_faults(node, DISK, random_faults(sim));
    }
    sim.block_on(async {
        time::sleep(sim.random_span(Duration::ZERO, Duration::from_millis(40))).await;
        if faulty && sim.chance(0.3) {
            sim.stall(node, DISK, sim.random_span(Duration::ZERO, Duration::from_secs(3)));
            time::sleep(sim.random_span(Duration::ZERO, Duration::from_secs(1))).await;
        }
    });
    if sim.chance(0.1) {
        // At rest: all calls have been answered.
        stop.set(true);
        let loading = Rc::into_inner(loading).expect("the only reference");
        let ended = sim.block_on(loading).expect("the task is not aborted");
        assert!(faulty || ended == Ended::Stopped, "the load ended by {ended:?}");
    } else {
        assert!(faulty || !loading.is_finished(), "a sound disk failed the load");
    }
    if sim.chance(0.5) {
        sim.crash(node);
        model.process_ended();
    }
    if sim.is_up(node) || sim.chance(0.3) {
        sim.power_off(node);
        model.power_lost();
    }
}

fn random_faults(sim: &Simulation) -> DiskFaults {
    let chance = |often: f64| if sim.chance(0.5) { often } else { 0.0 };
    DiskFaults {
        read_errors: chance(0.02),
        write_errors: chance(0.02),
        flush_errors: chance(0.05),
        ..DiskFaults::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::run_seed;
    use crate::scenarios::lying_device::{Lie, caught, lying};

    #[test]
    fn sound_device_keeps_guarantees_and_replays() {
        for seed in 0..10 {
            for scenario in [&SCENARIO, &FAULTY] {
                run_seed(scenario, seed, true).unwrap_or_else(|failure| panic!("{failure}"));
            }
        }
    }

    #[test]
    fn faulty_devices_are_detected() {
        let flush = caught(|seed| run(seed, false, |device| lying(Lie::Flush)(device)));
        let fua = caught(|seed| run(seed, false, |device| lying(Lie::Fua)(device)));
        let place = caught(|seed| run(seed, false, |device| lying(Lie::Place)(device)));
        assert!(flush >= 5 && fua >= 5 && place >= 20, "{flush} {fua} {place} of 40");
    }
}
