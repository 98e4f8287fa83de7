//! Memory of reads of compressed units. The limit is that of the process, so this test has its own.
#![allow(missing_docs)]

mod common;

use common::units::*;
use flagstone_pool::Compression;
use flagstone_runtime::buf;

#[test]
fn concurrent_reads_of_units_stay_within_memory() {
    simulate(async {
        let (pool, ..) = pool(64).await;
        let v = pool.create_volume("v", &volume(256, Compression::Zstd)).await.unwrap();
        write(&v, 0..128, 5).await;
        write(&v, 128..256, 5).await;
        pool.checkpoint().await.unwrap();
        let limit = buf::memory_held() + (8 << 20);
        buf::set_memory_limit(limit);
        let tasks: Vec<_> = (0..1000)
            .map(|number| {
                let v = v.clone();
                flagstone_runtime::spawn(async move {
                    let at = number * 37 % 256;
                    assert!(read(&v, at..at + 1).await.unwrap() == block(at, 5));
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(buf::memory_under_limit() <= limit);
        buf::set_memory_limit(usize::MAX);
    });
}
