//! Fuzz target for the NVMe/TCP host against a real target whose messages are tampered with.
//!
//! Input: one byte of parameters (bits 1:0: digests; bits 7:2: seed of the network), then the input
//! of `tamper`. Calls may fail or return wrong data, because CRC32C detects accidents, not attacks.
//! They must end in bounded time and memory, and release all resources.

use flagstone_nvme::pdu::Digests;
use flagstone_nvmf_host::{HostOptions, RemoteDevice, discover};
use flagstone_nvmf_target::serve;
use flagstone_runtime::net::Address;
use flagstone_runtime::time;
use std::time::Duration;

use crate::conversation;
use crate::nvme_target::{subsystem, target};
use crate::remote;
use crate::tamper::{Side, Tampering};

/// Time limit for all calls of a host, including its timeouts.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Attaches, uses and detaches a namespace.
pub fn run(input: &[u8]) {
    let Some((&parameters, rest)) = input.split_first() else { return };
    let Some(tampering) = Tampering::parse(Side::Server, rest) else { return };
    let target = target();
    let options = HostOptions {
        queue_depth: 16,
        nsid: (parameters & 4 == 0).then_some(1),
        digests: Digests::from_dgst(parameters & 3),
        keep_alive: Duration::from_secs(2),
        command_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(2),
        loss_timeout: Duration::from_secs(5),
        ..HostOptions::default()
    };
    let serve = move |stream| serve(target.clone(), stream);
    conversation::run_tampered(u64::from(parameters >> 3), tampering, serve, async |address| {
        let all = use_it(address, options);
        time::timeout(TIMEOUT, all).await.expect("a host times out");
    });
}

async fn use_it(address: Address, options: HostOptions) {
    let _ = discover(address.clone(), &options).await;
    if let Ok(device) = RemoteDevice::connect(address, &subsystem(), options).await {
        remote::use_device(&*device).await;
        device.disconnect().await;
    }
}
