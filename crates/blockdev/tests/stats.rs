//! Conformance of the stats layer, over devices that complete immediately and later.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::stats::{CallKind, StatsLayer};
use flagstone_blockdev::{DelayConfig, DelayLayer, DelayTime, MemoryDevice, SharedDevice};
use flagstone_conformance::{self as conformance, Options};
use flagstone_runtime::block_on;

fn memory() -> SharedDevice {
    Arc::new(MemoryDevice::new(1 << 20, 512).expect("a device"))
}

#[test]
fn stats_layer_conforms_over_immediate_device() {
    let make = async || Arc::new(StatsLayer::new(memory()).0) as SharedDevice;
    block_on(conformance::run(make, Options::quick(1))).expect("a runtime");
}

#[test]
fn stats_layer_conforms_over_delayed_device() {
    let make = async || {
        let latency = DelayTime { fixed: Duration::ZERO, jitter: Duration::from_micros(50) };
        let config =
            DelayConfig { read: latency, write: latency, flush: latency, discard: latency };
        let delay = DelayLayer::new(memory(), config).expect("a delay");
        Arc::new(StatsLayer::new(Arc::new(delay)).0) as SharedDevice
    };
    block_on(conformance::run(make, Options::quick(2))).expect("a runtime");
}

#[test]
fn no_calls_in_flight_after_suite() {
    block_on(async {
        let (counted, counters) = StatsLayer::new(memory());
        let device: SharedDevice = Arc::new(counted);
        conformance::run(async || device.clone(), Options::quick(3)).await;
        let totals = counters.totals();
        for call in CallKind::ALL {
            let of = totals.of(call);
            assert!(of.count > 0 && of.errors <= of.count && of.in_flight == 0, "{call:?} {of:?}");
            assert_eq!(of.latency.count(), of.count, "{call:?}");
        }
    })
    .expect("a runtime");
}
