//! Reconnect at the memory ceiling: receiving and connecting never wait for memory, even when
//! waiting calls hold all of it.

mod common;
#[path = "../../nvmf-target/tests/support/harness.rs"]
mod support;

use common::fake::Fake;
use common::{options, subnqn};
use flagstone_blockdev::BlockDevice;
use flagstone_nvme::Status;
use flagstone_nvmf_host::RemoteDevice;
use flagstone_runtime::buf;
use support::on_each_driver;

#[test]
fn reconnect_at_memory_ceiling() {
    on_each_driver(async || {
        // The first response breaks the connection.
        let fake = Fake::with_io(|io| (io.number == 0).then(|| io.response(99, Status::SUCCESS)));
        let device =
            RemoteDevice::connect(fake.address.clone(), &subnqn(), options()).await.unwrap();
        let mut places: Vec<_> = (0..8).map(|_| buf::try_alloc(16 << 10).unwrap()).collect();
        let limit = buf::memory_limit();
        buf::set_memory_limit(0);
        assert!(buf::try_alloc(8192).is_none(), "nothing is to be had");
        for (at, place) in places.drain(..).enumerate() {
            let offset = at * (16 << 10);
            let place = device.read(offset as u64, place).await.unwrap();
            assert_eq!(place[..], fake.content(offset, 16 << 10));
        }
        assert_eq!(fake.state.connections.get(), 4);
        buf::set_memory_limit(limit);
    });
}
