//! Stripe: several devices as one, chunk by chunk in turn (RAID-0).
//!
//! Invariants: chunk `c` of the stripe is chunk `c / n` of child `c % n`, so the layout on disk
//! depends only on the order of the children and the chunk size. A request within a chunk passes to
//! its child unchanged. A larger one is split at the chunks and its parts run concurrently, a
//! bounded number at a time. Of several failures, the one at the lowest offset is returned, when no
//! part is in flight any more. The loss of a child loses the stripe.

use std::sync::Arc;

use flagstone_runtime::{Buf, BufMut};

use crate::limits::{DEVICE_MAX_BYTES, STRIPE_MAX_CHILDREN, STRIPE_MAX_CHUNK_BYTES};
use crate::pieces::{Piece, pieces};
use crate::window::run_all;
use crate::{BlockDevice, Geometry, IoError, IoFuture, LayerConfigError, SharedDevice, ZeroFlags};

/// Stripe over several devices.
#[derive(Debug)]
pub struct StripeDevice {
    geometry: Geometry,
    map: Map,
    children: Arc<[SharedDevice]>,
}

/// Mapping of stripe offsets to children.
#[derive(Clone, Copy, Debug)]
struct Map {
    chunk_bytes: u64,
    children: u64,
}

impl Map {
    /// The child, and the offset on it, for an offset of the stripe.
    fn locate(self, offset: u64) -> (usize, u64) {
        let (chunk, within) = (offset / self.chunk_bytes, offset % self.chunk_bytes);
        let (row, child) = (chunk / self.children, chunk % self.children);
        (child as usize, row * self.chunk_bytes + within)
    }

    /// True if the range lies within one chunk.
    fn is_whole(self, offset: u64, len: u64) -> bool {
        offset % self.chunk_bytes + len <= self.chunk_bytes
    }

    /// The part of a range of the stripe that lies on a child: always a single range.
    fn extent(self, child: u64, offset: u64, len: u64) -> Option<Piece> {
        let end = offset + len;
        let start = self.boundary(child, offset);
        let len = self.boundary(child, end) - start;
        (len > 0).then_some(Piece { offset: start, len })
    }

    /// Number of bytes of the child before `offset` of the stripe.
    fn boundary(self, child: u64, offset: u64) -> u64 {
        let (chunk, within) = (offset / self.chunk_bytes, offset % self.chunk_bytes);
        let (row, current) = (chunk / self.children, chunk % self.children);
        let last = match child.cmp(&current) {
            std::cmp::Ordering::Less => self.chunk_bytes,
            std::cmp::Ordering::Equal => within,
            std::cmp::Ordering::Greater => 0,
        };
        row * self.chunk_bytes + last
    }
}

impl StripeDevice {
    /// Stripes over `children` in chunks of `chunk_bytes`. Each child contributes as many whole
    /// chunks as the smallest one has.
    ///
    /// # Errors
    /// [`LayerConfigError`] unless there are 1 to 256 children, the chunk is a multiple of the
    /// largest block size among them and at most 1 GiB, and each child has at least one chunk.
    pub fn new(
        children: Vec<SharedDevice>,
        chunk_bytes: u64,
    ) -> Result<StripeDevice, LayerConfigError> {
        if children.is_empty() || children.len() > STRIPE_MAX_CHILDREN {
            return Err(LayerConfigError::Children(children.len()));
        }
        let geometry = combine(&children, chunk_bytes)?;
        let map = Map { chunk_bytes, children: children.len() as u64 };
        Ok(StripeDevice { geometry, map, children: children.into() })
    }
}

fn combine(children: &[SharedDevice], chunk_bytes: u64) -> Result<Geometry, LayerConfigError> {
    let all = || children.iter().map(|child| child.geometry());
    let max = |of: fn(Geometry) -> u32| all().map(of).max().unwrap_or(0);
    let block = max(|child| child.block_bytes);
    let chunk_fits = chunk_bytes > 0 && chunk_bytes.is_multiple_of(u64::from(block));
    if !chunk_fits || chunk_bytes > STRIPE_MAX_CHUNK_BYTES {
        return Err(LayerConfigError::Chunk { chunk: chunk_bytes, block });
    }
    let count = children.len() as u64;
    let smallest = all().map(|child| child.size_bytes).min().unwrap_or(0);
    if smallest < chunk_bytes {
        return Err(LayerConfigError::ChildTooSmall { size: smallest, chunk: chunk_bytes });
    }
    let size = u128::from(smallest / chunk_bytes * chunk_bytes) * u128::from(count);
    let size_bytes = u64::try_from(size).unwrap_or(u64::MAX);
    if size_bytes > DEVICE_MAX_BYTES {
        return Err(LayerConfigError::DeviceSize(size_bytes));
    }
    let physical = max(|child| child.physical_block_bytes).max(block);
    Ok(Geometry {
        size_bytes,
        block_bytes: block,
        physical_block_bytes: if physical.is_multiple_of(block) { physical } else { block },
        optimal_io_bytes: u32::try_from(chunk_bytes * count).unwrap_or(0),
        memory_align_bytes: max(|child| child.memory_align_bytes),
        volatile_cache: all().any(|child| child.volatile_cache),
        read_only: all().any(|child| child.read_only),
        can_discard: all().any(|child| child.can_discard),
        discard_zeroes: all().all(|child| child.discard_zeroes),
        can_write_zeroes: all().all(|child| child.can_write_zeroes),
    })
}

/// Reads chunk by chunk and joins the parts.
async fn read_split(
    children: &[SharedDevice],
    map: Map,
    offset: u64,
    buf: BufMut,
) -> Result<BufMut, IoError> {
    let mut rest = Some(buf);
    let mut joined: Option<BufMut> = None;
    let len = rest.as_ref().map_or(0, |buf| buf.len()) as u64;
    let calls = pieces(offset, len, map.chunk_bytes).map(|piece| {
        let mut part = rest.take().expect("the pieces cover the buffer");
        if part.len() as u64 > piece.len {
            rest = Some(part.split_off(piece.len as usize));
        }
        let (child, at) = map.locate(piece.offset);
        children[child].read(at, part)
    });
    run_all(calls, |part| match &mut joined {
        Some(joined) => joined.unsplit(part).expect("a device gives the caller's buffer back"),
        first => *first = Some(part),
    })
    .await?;
    Ok(joined.expect("a range has one part at least"))
}

async fn write_split(
    children: &[SharedDevice],
    map: Map,
    offset: u64,
    data: Buf,
    fua: bool,
) -> Result<(), IoError> {
    let calls = pieces(offset, data.len() as u64, map.chunk_bytes).map(|piece| {
        let start = (piece.offset - offset) as usize;
        let (child, at) = map.locate(piece.offset);
        children[child].write(at, data.slice(start..start + piece.len as usize), fua)
    });
    run_all(calls, drop).await
}

impl StripeDevice {
    /// Calls each child with its part of the range.
    fn on_extents(
        &self,
        offset: u64,
        len: u64,
        call: impl Fn(&SharedDevice, Piece) -> IoFuture<()> + 'static,
    ) -> IoFuture<()> {
        IoFuture::checked(self.geometry.check_change(offset, len), || {
            if self.map.is_whole(offset, len) {
                let (child, offset) = self.map.locate(offset);
                return call(&self.children[child], Piece { offset, len });
            }
            let (children, map) = (self.children.clone(), self.map);
            IoFuture::later(async move {
                let calls = children.iter().zip(0..).filter_map(|(child, number)| {
                    map.extent(number, offset, len).map(|piece| call(child, piece))
                });
                run_all(calls, drop).await
            })
        })
    }
}

impl BlockDevice for StripeDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn must_reopen(&self) -> bool {
        self.children.iter().any(|child| child.must_reopen())
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        if let Err(error) = self.geometry.check_transfer(offset, buf.len()) {
            return IoFuture::ready(Err(error));
        }
        let map = self.map;
        if map.is_whole(offset, buf.len() as u64) {
            let (child, at) = map.locate(offset);
            return self.children[child].read(at, buf);
        }
        let children = self.children.clone();
        IoFuture::later(async move { read_split(&children, map, offset, buf).await })
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let bounded = self.geometry.check_transfer(offset, data.len());
        let allowed = self.geometry.check_change(offset, data.len() as u64);
        if let Err(error) = bounded.and(allowed) {
            return IoFuture::ready(Err(error));
        }
        let map = self.map;
        if map.is_whole(offset, data.len() as u64) {
            let (child, at) = map.locate(offset);
            return self.children[child].write(at, data, fua);
        }
        let children = self.children.clone();
        IoFuture::later(async move { write_split(&children, map, offset, data, fua).await })
    }

    fn flush(&self) -> IoFuture<()> {
        if let [only] = &*self.children {
            return only.flush();
        }
        let children = self.children.clone();
        IoFuture::later(
            async move { run_all(children.iter().map(|child| child.flush()), drop).await },
        )
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.on_extents(offset, len, |child, piece| child.discard(piece.offset, piece.len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.on_extents(offset, len, move |child, piece| {
            child.write_zeroes(piece.offset, piece.len, flags)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultConfig, FaultLayer, MemoryDevice, NullDevice};
    use flagstone_runtime::buf;

    #[test]
    fn stripe_extents_match_locate() {
        for (chunk_bytes, children) in [(1, 1), (3, 2), (4, 3), (5, 4)] {
            let map = Map { chunk_bytes, children };
            for offset in 0..50 {
                for len in 1..50 {
                    let mut on: Vec<Vec<u64>> = vec![Vec::new(); children as usize];
                    for byte in offset..offset + len {
                        let (child, at) = map.locate(byte);
                        on[child].push(at);
                    }
                    for (child, bytes) in on.iter().enumerate() {
                        let extent = map.extent(child as u64, offset, len);
                        let expected = bytes
                            .first()
                            .map(|first| Piece { offset: *first, len: bytes.len() as u64 });
                        assert_eq!(extent, expected);
                        assert!(bytes.windows(2).all(|pair| pair[0] + 1 == pair[1]));
                    }
                }
            }
        }
    }

    fn null(size_bytes: u64, block_bytes: u32) -> SharedDevice {
        Arc::new(NullDevice::new(size_bytes, block_bytes).unwrap())
    }

    #[test]
    fn geometry_follows_smallest_and_coarsest_child() {
        let memory = Arc::new(MemoryDevice::new(100 << 10, 512).unwrap());
        let stripe = StripeDevice::new(vec![memory, null(1 << 20, 4096)], 12 << 10).unwrap();
        let geometry = stripe.geometry();
        assert_eq!(geometry.size_bytes, 2 * (96 << 10));
        assert_eq!((geometry.block_bytes, geometry.optimal_io_bytes), (4096, 24 << 10));
        assert!(!geometry.read_only && geometry.can_discard && geometry.can_write_zeroes);
    }

    #[test]
    fn invalid_stripes_are_refused() {
        let refused =
            |children: Vec<SharedDevice>, chunk| StripeDevice::new(children, chunk).unwrap_err();
        assert_eq!(refused(Vec::new(), 4096), LayerConfigError::Children(0));
        let small = || null(8192, 4096);
        assert_eq!(refused(vec![small(); 257], 4096), LayerConfigError::Children(257));
        assert_eq!(refused(vec![small()], 0), LayerConfigError::Chunk { chunk: 0, block: 4096 });
        assert_eq!(
            refused(vec![small()], 512),
            LayerConfigError::Chunk { chunk: 512, block: 4096 }
        );
        let error = refused(vec![small()], 12288);
        assert_eq!(error, LayerConfigError::ChildTooSmall { size: 8192, chunk: 12288 });
        let huge = null(1 << 62, 4096);
        assert_eq!(refused(vec![huge; 4], 4096), LayerConfigError::DeviceSize(u64::MAX));
    }

    /// The parts around a failed one were joined, which ended the server.
    #[test]
    fn read_error_of_one_child_fails_the_read_only() {
        flagstone_runtime::block_on(async {
            let memory = || Arc::new(MemoryDevice::new(64 << 10, 512).unwrap()) as SharedDevice;
            let (faulty, control) = FaultLayer::new(memory(), FaultConfig::default()).unwrap();
            let children = vec![memory(), Arc::new(faulty), memory()];
            let stripe = StripeDevice::new(children, 4096).unwrap();
            control.fail_reads(0..4096);
            let read = async || stripe.read(0, buf::alloc(12 << 10).await).await.map(drop);
            assert_eq!(read().await, Err(IoError::ReadFault));
            control.heal();
            assert_eq!(read().await, Ok(()));
        })
        .unwrap();
    }
}
