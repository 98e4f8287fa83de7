//! The counting layer is a device like any other, over devices that answer at once and later.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::conformance::{self, Options};
use flagstone_blockdev::{Delay, DelayConfig, Latency, MemoryDevice, SharedDevice};
use flagstone_control::counted::{Call, Counted};
use flagstone_runtime::block_on;

fn memory() -> SharedDevice {
    Arc::new(MemoryDevice::new(1 << 20, 512).expect("a device"))
}

#[test]
fn it_conforms_over_what_answers_at_once() {
    let make = async || Arc::new(Counted::new(memory()).0) as SharedDevice;
    block_on(conformance::run(make, Options::quick(1))).expect("a runtime");
}

#[test]
fn it_conforms_over_what_takes_its_time() {
    let make = async || {
        let latency = Latency { fixed: Duration::ZERO, jitter: Duration::from_micros(50) };
        let config =
            DelayConfig { read: latency, write: latency, flush: latency, discard: latency };
        let delay = Delay::new(memory(), config).expect("a delay");
        Arc::new(Counted::new(Arc::new(delay)).0) as SharedDevice
    };
    block_on(conformance::run(make, Options::quick(2))).expect("a runtime");
}

#[test]
fn nothing_is_in_flight_when_the_suite_has_ended() {
    block_on(async {
        let (counted, counters) = Counted::new(memory());
        let device: SharedDevice = Arc::new(counted);
        conformance::run(async || device.clone(), Options::quick(3)).await;
        let totals = counters.totals();
        for call in Call::ALL {
            let of = totals.of(call);
            assert!(of.count > 0 && of.errors <= of.count && of.in_flight == 0, "{call:?} {of:?}");
            assert_eq!(of.latency.count(), of.count, "{call:?}");
        }
    })
    .expect("a runtime");
}
