//! Device calls that the fuzz targets of the host and the client make on an attached device.

use flagstone_blockdev::{BlockDevice, ZeroFlags};
use flagstone_runtime::{Buf, buf};

/// Longest read and write, in bytes: larger than in-capsule data, so that R2Ts are used.
const MOST_BYTES: u64 = 16 << 10;

/// Makes every call once. Ignores the results, which the server controls, except that a read
/// returns the requested length.
pub(crate) async fn use_device(device: &dyn BlockDevice) {
    let geometry = device.geometry();
    let block_bytes = u64::from(geometry.block_bytes);
    assert!(block_bytes.is_power_of_two() && block_bytes >= 512);
    for len in [block_bytes, MOST_BYTES] {
        if len > MOST_BYTES || len > geometry.size_bytes || !len.is_multiple_of(block_bytes) {
            continue;
        }
        let len = len as usize;
        let data = Buf::copy_of(&vec![0x5a; len]).expect("memory below the limit");
        let _ = device.write(0, data, true).await;
        if let Ok(read) = device.read(0, buf::alloc(len).await).await {
            assert_eq!(read.len(), len, "a read returns the requested length");
        }
    }
    let _ = device.flush().await;
    if block_bytes <= geometry.size_bytes {
        let _ = device.discard(0, block_bytes).await;
        let flags = ZeroFlags { fua: true, may_deallocate: true, fast_only: false };
        let _ = device.write_zeroes(0, block_bytes, flags).await;
    }
}
