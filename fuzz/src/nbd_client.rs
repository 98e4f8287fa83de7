//! Fuzz target for the NBD client against a real server whose messages are tampered with.
//!
//! Input: one byte of parameters (bit 0: the client requests the export by name; bits 7:1: seed of
//! the network), then the input of `tamper`. As with `nvme_host`, calls must end and all resources
//! must be released.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::MemoryDevice;
use flagstone_nbd::{ClientOptions, Drain, Export, Exports, NbdDevice, NbdServer, ServerOptions};
use flagstone_runtime::time;

use crate::conversation;
use crate::remote;
use crate::tamper::{Side, Tampering};

/// Time limit for all calls of a client, including its timeouts.
const TIMEOUT: Duration = Duration::from_secs(120);
const EXPORT_BYTES: u64 = 1 << 20;

/// Attaches and uses an export.
pub fn run(input: &[u8]) {
    let Some((&parameters, rest)) = input.split_first() else { return };
    let Some(tampering) = Tampering::parse(Side::Server, rest) else { return };
    let device = MemoryDevice::new(EXPORT_BYTES, 512).expect("a valid size");
    let export = Export::new("db", Arc::new(device));
    let exports = Arc::new(Exports::new([export]).expect("one name"));
    let server = NbdServer::new(exports, ServerOptions::default(), Drain::new());
    let serve = move |stream| {
        let server = server.clone();
        async move { drop(server.serve(stream).await) }
    };
    let options = ClientOptions {
        connect_timeout: Duration::from_secs(2),
        stall_timeout: Duration::from_secs(1),
        request_timeout: Duration::from_secs(5),
        ..ClientOptions::default()
    };
    let name = if parameters & 1 == 0 { "" } else { "db" };
    conversation::run_tampered(u64::from(parameters >> 1), tampering, serve, async |address| {
        let all = async {
            if let Ok(device) = NbdDevice::connect(address, name, options).await {
                remote::use_device(&*device).await;
            }
        };
        time::timeout(TIMEOUT, all).await.expect("a client times out");
    });
}
