//! Cost of the rate limit layer for a command within its limit: reads of a null device, alternately
//! with and without the layer, in one run. Prints the minimum over the rounds, in nanoseconds per
//! call.
//!
//! ```text
//! cargo run --release -p flagstone-limit --example limit_cost
//! ```

use std::sync::Arc;

use flagstone_blockdev::{NullDevice, SharedDevice};
use flagstone_limit::{Budget, Limit, Limiter, RateLimitLayer};
use flagstone_runtime::{block_on, buf, task, time};

const CALLS: u32 = 200_000;
const ROUNDS: usize = 15;

/// Nanoseconds per call.
async fn measure(device: &SharedDevice) -> f64 {
    let mut place = buf::alloc(512).await;
    let begun = time::now();
    for _ in 0..CALLS {
        place = device.read(0, place).await.expect("it reads zeroes");
    }
    begun.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

fn main() {
    let null = || Arc::new(NullDevice::new(1 << 30, 512).expect("a size")) as SharedDevice;
    let limited = |limit: Limit| -> SharedDevice {
        Arc::new(RateLimitLayer::new(null(), Limiter::new(limit).expect("a limit")))
    };
    let high = 1_000_000_000_000;
    let all = Limit {
        ios: Budget { total: Budget::total(high).total, ..Budget::separate(high, high) },
        bytes: Budget { total: Budget::total(high).total, ..Budget::separate(high, high) },
        ..Limit::default()
    };
    let devices = [
        ("no layer", null()),
        ("no numbers", limited(Limit::default())),
        ("iops", limited(Limit { ios: Budget::total(high), ..Limit::default() })),
        (
            "iops and throughput",
            limited(Limit {
                ios: Budget::total(high),
                bytes: Budget::total(high),
                ..Limit::default()
            }),
        ),
        ("all six rates", limited(all)),
    ];
    let mut least = [f64::MAX; 5];
    block_on(async {
        task::begin_flow();
        for _ in 0..ROUNDS {
            for ((_, device), least) in devices.iter().zip(&mut least) {
                *least = least.min(measure(device).await);
            }
        }
    })
    .expect("the runtime starts");
    for ((name, _), nanos) in devices.iter().zip(least) {
        println!("{name:20} {nanos:6.1} ns  (+{:.1})", nanos - least[0]);
    }
}
