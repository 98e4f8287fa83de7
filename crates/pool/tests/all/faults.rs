//! Devices that fail calls: remaining functions of the pool, and its content after it was reopened.

use std::sync::Arc;

use flagstone_blockdev::{
    BlockDevice, FaultConfig, FaultControl, FaultLayer, IoError, MemoryDevice, SharedDevice,
};
use flagstone_pool::{
    CreateOptions, NamedDevice, Pool, PoolError, PoolVolume, VolumeError, VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, block_on, buf};

const BLOCK: u64 = 4096;

async fn create() -> (Vec<NamedDevice>, FaultControl, Pool, Arc<PoolVolume>) {
    let memory = Arc::new(MemoryDevice::new(32 << 20, 512).unwrap()) as SharedDevice;
    let (layer, control) = FaultLayer::new(memory, FaultConfig::default()).unwrap();
    let device = Arc::new(layer) as SharedDevice;
    let devices = vec![NamedDevice { name: "/dev/faulty".to_owned(), device }];
    let options = CreateOptions { segment_blocks: 64, ..CreateOptions::new("fast") };
    let pool = Pool::create(devices.clone(), &options).await.unwrap();
    let size = VolumeOptions { size_bytes: 100 * BLOCK, ..VolumeOptions::default() };
    let volume = pool.create_volume("db", &size).await.unwrap();
    (devices, control, pool, volume)
}

async fn write(volume: &PoolVolume, block: u64, value: u8, fua: bool) -> Result<(), IoError> {
    let data = Buf::copy_of(&[value; BLOCK as usize]).unwrap();
    volume.write(block * BLOCK, data, fua).await
}

async fn read(volume: &PoolVolume, block: u64) -> Result<u8, IoError> {
    let read = volume.read(block * BLOCK, buf::alloc(BLOCK as usize).await).await?;
    Ok(read[0])
}

#[test]
fn failed_write_fails_changes_until_pool_is_reopened() {
    block_on(async {
        let (devices, control, pool, volume) = create().await;
        write(&volume, 1, 7, true).await.unwrap();
        control.fail_next_writes(1);
        assert_eq!(write(&volume, 1, 8, false).await, Err(IoError::WriteFault));
        assert_eq!(write(&volume, 2, 9, false).await, Err(IoError::WriteFault));
        assert_eq!(volume.discard(0, BLOCK).await, Err(IoError::WriteFault));
        assert_eq!(volume.flush().await, Err(IoError::WriteFault));
        let order = pool.rename_volume("db", "dc").await;
        assert_eq!(order, Err(VolumeError::Io(IoError::WriteFault)));
        assert_eq!(pool.status().failed, Some(IoError::WriteFault));
        assert_eq!(pool.close().await, Err(IoError::WriteFault));
        assert_eq!(read(&volume, 1).await, Ok(7), "reads go on");
        drop((pool, volume));
        let pool = Pool::open(devices).await.unwrap();
        let volume = pool.open_volume("db").unwrap();
        assert_eq!(read(&volume, 1).await, Ok(7));
        assert_eq!(read(&volume, 2).await, Ok(0));
        write(&volume, 2, 9, true).await.unwrap();
    })
    .unwrap();
}

/// Regression: the mark of the failed creation on the first device looked like data.
#[test]
fn creation_that_failed_can_be_repeated() {
    block_on(async {
        let memory = || Arc::new(MemoryDevice::new(32 << 20, 512).unwrap()) as SharedDevice;
        let (layer, control) = FaultLayer::new(memory(), FaultConfig::default()).unwrap();
        let named = |name: &str, device| NamedDevice { name: name.to_owned(), device };
        let devices = vec![named("/dev/a", memory()), named("/dev/b", Arc::new(layer) as _)];
        let options = CreateOptions { segment_blocks: 64, ..CreateOptions::new("fast") };
        control.fail_next_writes(1);
        let failed = Pool::create(devices.clone(), &options).await.unwrap_err();
        assert!(matches!(failed, PoolError::Device { .. }), "{failed}");
        control.reopen();
        Pool::create(devices, &options).await.unwrap();
    })
    .unwrap();
}

/// Offset of a block with this content on the device.
async fn find(device: &SharedDevice, value: u8) -> u64 {
    let mut at = 1 << 20;
    loop {
        let read = device.read(at, buf::alloc(BLOCK as usize).await).await.unwrap();
        if read.iter().all(|byte| *byte == value) {
            return at;
        }
        at += BLOCK;
    }
}

/// Regression: the reads around a failed one were joined, which ended the server.
#[test]
fn read_error_in_the_middle_fails_the_read_only() {
    block_on(async {
        let (devices, control, _pool, volume) = create().await;
        for block in [2, 0, 1] {
            write(&volume, block, 10 + block as u8, true).await.unwrap();
        }
        let place = find(&devices[0].device, 11).await;
        control.fail_reads(place..place + BLOCK);
        let three = async || volume.read(0, buf::alloc(3 * BLOCK as usize).await).await;
        assert!(matches!(three().await, Err(IoError::ReadFault)));
        control.heal();
        let read = three().await.unwrap();
        assert_eq!([0, 1, 2].map(|block| read[block * BLOCK as usize]), [10, 11, 12]);
    })
    .unwrap();
}

#[test]
fn failed_flush_poisons_volumes_until_pool_is_reopened() {
    block_on(async {
        let (devices, control, pool, volume) = create().await;
        write(&volume, 1, 7, false).await.unwrap();
        control.fail_next_flush();
        assert_eq!(volume.flush().await, Err(IoError::WriteFault));
        assert!(volume.must_reopen());
        assert_eq!(volume.flush().await, Err(IoError::Poisoned));
        assert_eq!(write(&volume, 1, 8, false).await, Err(IoError::Poisoned));
        assert_eq!(read(&volume, 1).await, Ok(7));
        drop((pool, volume));
        control.reopen();
        let pool = Pool::open(devices).await.unwrap();
        write(&pool.open_volume("db").unwrap(), 1, 8, true).await.unwrap();
    })
    .unwrap();
}

/// The cleaner reads blocks that hosts never read again. Regression: a failed read failed the pool,
/// before and after a reopening.
#[test]
fn unreadable_sector_does_not_stop_the_cleaner() {
    const BLOCKS: u64 = 400;
    // A chunk header, and its payload.
    for sector in [0, 1] {
        block_on(async {
            let memory = MemoryDevice::new((1 << 20) + 64 * 16 * BLOCK, 512).unwrap();
            let (layer, control) =
                FaultLayer::new(Arc::new(memory), FaultConfig::default()).unwrap();
            let device = Arc::new(layer) as SharedDevice;
            let devices = vec![NamedDevice { name: "/dev/faulty".to_owned(), device }];
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let mut pool = Pool::create(devices.clone(), &options).await.unwrap();
            let size = VolumeOptions { size_bytes: BLOCKS * BLOCK, ..VolumeOptions::default() };
            let mut volume = pool.create_volume("db", &size).await.unwrap();
            for block in 0..BLOCKS {
                write(&volume, block, 1, false).await.unwrap();
            }
            pool.checkpoint().await.unwrap();
            let at = (1 << 20) + (10 * 16 + sector) * BLOCK;
            control.fail_reads(at..at + BLOCK);
            let mut rng = Rng::new(3);
            for _ in 0..2 {
                for step in 0..3000 {
                    let written = write(&volume, rng.below(BLOCKS), step as u8, false).await;
                    assert_eq!(written, Ok(()), "step {step}: {:?}", pool.status());
                }
                assert!(pool.status().cleaned_segments > 100, "{:?}", pool.status());
                drop((volume, pool));
                pool = Pool::open(devices.clone()).await.unwrap();
                volume = pool.open_volume("db").unwrap();
            }
        })
        .unwrap();
    }
}

#[test]
fn superblock_update_survives_one_failing_copy() {
    block_on(async {
        let (devices, control, pool, volume) = create().await;
        control.fail_writes(256 << 10..(256 << 10) + BLOCK);
        for value in 1..5 {
            write(&volume, 1, value, true).await.unwrap();
            pool.checkpoint().await.unwrap();
        }
        drop((pool, volume));
        let pool = Pool::open(devices.clone()).await.unwrap();
        assert_eq!(read(&pool.open_volume("db").unwrap(), 1).await, Ok(4));
        control.fail_writes(512 << 10..(512 << 10) + BLOCK);
        assert_eq!(pool.checkpoint().await, Err(IoError::WriteFault));
        drop(pool);
        control.heal();
        let pool = Pool::open(devices).await.unwrap();
        assert_eq!(read(&pool.open_volume("db").unwrap(), 1).await, Ok(4));
    })
    .unwrap();
}
