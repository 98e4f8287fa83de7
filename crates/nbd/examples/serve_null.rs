//! Serves a null device (reads zeroes, forgets writes) over NBD, to measure the protocol alone:
//! `cargo run --release -p flagstone-nbd --example serve_null -- 127.0.0.1:10809`, or the path of a
//! Unix socket.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, Geometry, IoFuture, ZeroFlags};
use flagstone_nbd::{Drain, Export, Exports, Server, ServerOptions};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::{Buf, BufMut, Config, run};

/// Reads zeroes, forgets writes.
struct Null(Geometry);

impl BlockDevice for Null {
    fn geometry(&self) -> Geometry {
        self.0
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> IoFuture<BufMut> {
        let checked = self.0.check_transfer(offset, buf.len());
        buf.fill(0);
        IoFuture::ready(checked.map(|()| buf))
    }

    fn write(&self, offset: u64, data: Buf, _fua: bool) -> IoFuture<()> {
        IoFuture::ready(self.0.check_transfer(offset, data.len()))
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        IoFuture::ready(self.0.check(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        IoFuture::ready(self.0.check(offset, len))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:10809".to_owned());
    let cores = std::env::args().nth(2).map_or(Ok(1), |cores| cores.parse())?;
    let address = match target.parse() {
        Ok(tcp) => Address::Tcp(tcp),
        Err(_) => Address::Unix(target.into()),
    };
    run(&Config { cores, ..Config::default() }, || async move {
        let device = Arc::new(Null(Geometry::new(64 << 30, 512)));
        let exports = Exports::new([Export::new("null", device)])?;
        let server = Server::new(Arc::new(exports), ServerOptions::default(), Drain::new());
        let listener = Listener::bind(&address)?;
        println!("serving 64 GiB of nothing on {}", listener.address());
        server.run(listener).await;
        Ok(())
    })?
}
