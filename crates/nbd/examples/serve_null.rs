//! NBD server for one device, to measure the protocol in isolation: `cargo run --release -p
//! flagstone-nbd --example serve_null -- 127.0.0.1:10809 null`. The address may be the path of a
//! Unix socket. The device is `null` (64 GiB), `memory` (1 GiB) or the path of a file or disk. A
//! third argument sets the number of cores.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use flagstone_blockdev::{FileDevice, FileOptions, MemoryDevice, NullDevice, SharedDevice};
use flagstone_nbd::{Drain, Export, Exports, NbdServer, ServerOptions};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::{RuntimeConfig, run, signal, spawn_detached};

type Error = Box<dyn std::error::Error>;

fn open(device: &str) -> Result<SharedDevice, Error> {
    Ok(match device {
        "null" => Arc::new(NullDevice::new(64 << 30, 512)?),
        "memory" => Arc::new(MemoryDevice::new(1 << 30, 512)?),
        path => FileDevice::open(path, &FileOptions::default())?,
    })
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().unwrap_or_else(|| "127.0.0.1:10809".to_owned());
    let device = arguments.next().unwrap_or_else(|| "null".to_owned());
    let cores = arguments.next().map_or(Ok(1), |cores| cores.parse())?;
    let address = match target.parse() {
        Ok(tcp) => Address::Tcp(tcp),
        Err(_) => Address::Unix(target.into()),
    };
    signal::catch_termination()?;
    run(&RuntimeConfig { cores, ..RuntimeConfig::default() }, || async move {
        let exports = Arc::new(Exports::new([Export::new("disk", open(&device)?)])?);
        let drain = Drain::new();
        let server = NbdServer::new(exports, ServerOptions::default(), drain.clone());
        let listener = Listener::bind(&address)?;
        println!("serving {device} on {}", listener.address());
        spawn_detached(async move {
            signal::terminated().await;
            drain.begin();
        });
        server.run(listener).await;
        Ok(())
    })?
}
