//! The local leg: its data device, and what of its replica the path needs.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::{Buf, BufMut, buf};

use crate::decide::View;
use crate::format::bitmap_page::{self, WORDS};
use crate::format::hot_record::{self, HotRecord};
use crate::format::log_header::{LogHeader, Trust};
use crate::format::superblock::{Flags, PeerRecord, Role, Superblock};
use crate::format::{Page, newest};
use crate::generation::{Lineage, List};
use crate::id::{Generation, Uuid};
use crate::limits::{PAGE_BYTES, PEERS_MAX, PIECE_MAX_REGIONS};
use crate::shape::{Layout, LogLayout, Shape, layout, log_layout};
use crate::todo::Todo;

/// See the module.
#[derive(Clone)]
pub struct Local {
    pub(crate) data: SharedDevice,
    store: Arc<Store>,
}

struct Store {
    device: SharedDevice,
    log_device: SharedDevice,
    log_at: u64,
    layout: Layout,
    log: LogLayout,
    shape: Shape,
    bits: Todo,
    state: Mutex<State>,
}

struct State {
    superblock: Superblock,
    header_sequence: u64,
    record_sequence: u64,
    /// Writes of metadata go one after the other.
    busy: bool,
    wakers: Vec<Waker>,
    /// Hot by the record on disk, and calls in each.
    durable: Vec<bool>,
    pins: Vec<u32>,
}

/// Keeps regions hot.
pub(crate) struct Pin {
    store: Arc<Store>,
    regions: Range<u64>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        for region in self.regions.clone() {
            state.pins[region as usize] -= 1;
        }
    }
}

struct Busy<'a>(&'a Store);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy = false;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

fn page_buf(bytes: &[u8]) -> Buf {
    Buf::copy_of(bytes).expect("memory")
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn busy(&self) -> Busy<'_> {
        poll_fn(|cx| {
            let mut state = self.lock();
            if !std::mem::replace(&mut state.busy, true) {
                return Poll::Ready(());
            }
            state.wakers.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        Busy(self)
    }

    async fn write_log(&self, at: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.log_device.write(self.log_at + at, page_buf(bytes), true).await
    }

    /// Writes a superblock that `change` makes of the present one; it counts when it is durable.
    async fn write_superblock<T>(
        &self,
        change: impl FnOnce(&mut Superblock) -> T,
    ) -> Result<T, IoError> {
        let mut next = self.lock().superblock.clone();
        let value = change(&mut next);
        next.sequence += 1;
        let at = self.layout.superblocks[(next.sequence & 1) as usize];
        self.device.write(at, page_buf(&next.encode()), true).await?;
        self.lock().superblock = next;
        Ok(value)
    }

    async fn write_pages(&self) -> Result<(), IoError> {
        let log = self.lock().superblock.log;
        for page in 0..self.shape.pages() {
            let first = page * WORDS as u64;
            let words = std::array::from_fn(|index| self.bits.word(first + index as u64));
            let bytes = bitmap_page::encode(log, page, &words);
            self.write_log(self.log.pages + page * PAGE_BYTES as u64, &bytes).await?;
        }
        Ok(())
    }

    async fn write_record(&self, regions: &[u32]) -> Result<(), IoError> {
        let (sequence, log) = {
            let state = self.lock();
            (state.record_sequence + 1, state.superblock.log)
        };
        let mut bytes = vec![0; hot_record::record_bytes(regions.len())];
        hot_record::encode_into(sequence, log, regions, &mut bytes);
        let at = self.log.records[(sequence & 1) as usize];
        self.write_log(at, &bytes).await?;
        self.lock().record_sequence = sequence;
        Ok(())
    }

    /// Makes regions hot that are pinned.
    async fn heat(&self, regions: &Range<u64>) -> Result<(), IoError> {
        let _busy = self.busy().await;
        let (hot, dropped) = {
            let mut state = self.lock();
            let all = |state: &State| regions.clone().all(|region| state.durable[region as usize]);
            if all(&state) {
                return Ok(());
            }
            let pinned = |region: &usize| state.pins[*region] > 0;
            let hot = |region: &usize| pinned(region) || state.durable[*region];
            let whole: Vec<u32> =
                (0..state.pins.len()).filter(hot).map(|region| region as u32).collect();
            if whole.len() <= self.shape.hot_regions as usize {
                (whole, false)
            } else {
                let few = (0..state.pins.len()).filter(pinned).map(|region| region as u32);
                let few: Vec<u32> = few.collect();
                for region in 0..state.pins.len() {
                    // From now on a write to one that leaves waits for the next record.
                    state.durable[region] &= state.pins[region] > 0;
                }
                (few, true)
            }
        };
        if dropped {
            // What is not hot any more must not be lost with the power: no log would name it.
            self.device.flush().await?;
            self.write_pages().await?;
        }
        self.write_record(&hot).await?;
        let mut state = self.lock();
        state.durable.fill(false);
        for region in hot {
            state.durable[region as usize] = true;
        }
        Ok(())
    }
}

/// What a replica is made of.
pub struct Create {
    /// The volume.
    pub volume: Uuid,
    /// It has the data: it is of a new generation. Else it is blank.
    pub with_data: bool,
    /// Granularities.
    pub shape: Shape,
}

async fn read_page(device: &SharedDevice, at: u64) -> Result<Page, IoError> {
    let data = device.read(at, buf::alloc(PAGE_BYTES).await).await?;
    let mut page = [0; PAGE_BYTES];
    page.copy_from_slice(&data);
    Ok(page)
}

impl Local {
    /// Makes a replica.
    pub async fn create(
        device: SharedDevice,
        log: Option<SharedDevice>,
        create: Create,
    ) -> Result<(), IoError> {
        let size = device.geometry().size_bytes;
        let layout = layout(size, &create.shape).ok_or(IoError::NoSpace)?;
        let shape = Shape { usable_bytes: layout.usable_bytes, ..create.shape };
        let log_at = if log.is_some() { 0 } else { layout.log };
        let log_device = log.unwrap_or_else(|| device.clone());
        let superblock = Superblock {
            sequence: 0,
            volume: create.volume,
            replica: Uuid::random(),
            shape,
            role: if create.with_data { Role::Source } else { Role::Target },
            flags: Flags::default(),
            epoch: 0,
            current: if create.with_data { Generation::random() } else { Generation::NONE },
            history: List::default(),
            log: Uuid::random(),
            incarnation: 1,
            peers: [PeerRecord::default(); PEERS_MAX],
        };
        let header = LogHeader {
            sequence: 0,
            log: superblock.log,
            replica: superblock.replica,
            incarnation: 1,
            shape,
        };
        let places = log_layout(&shape);
        for page in 0..shape.pages() {
            let bytes = bitmap_page::encode(superblock.log, page, &[0; WORDS]);
            let at = log_at + places.pages + page * PAGE_BYTES as u64;
            log_device.write(at, page_buf(&bytes), true).await?;
        }
        let mut record = vec![0; hot_record::record_bytes(0)];
        hot_record::encode_into(0, superblock.log, &[], &mut record);
        log_device.write(log_at + places.records[0], page_buf(&record), true).await?;
        log_device.write(log_at + places.headers[0], page_buf(&header.encode()), true).await?;
        device.write(layout.superblocks[0], page_buf(&superblock.encode()), true).await
    }

    /// Opens a replica.
    pub async fn open(device: SharedDevice, log: Option<SharedDevice>) -> Result<Local, IoError> {
        let size = device.geometry().size_bytes;
        let end = size / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let places = [end - 2 * PAGE_BYTES as u64, end - PAGE_BYTES as u64];
        let mut slots = Vec::new();
        for at in places {
            slots.push(Superblock::decode(&read_page(&device, at).await?));
        }
        let slots: [_; 2] = slots.try_into().expect("two");
        let (_, mut superblock) =
            newest(slots, |slot| slot.sequence).map_err(|_| IoError::ReadFault)?;
        let shape = superblock.shape;
        let layout = layout(size, &shape).ok_or(IoError::NoSpace)?;
        let log_at = if log.is_some() { 0 } else { layout.log };
        let log_device = log.unwrap_or_else(|| device.clone());
        let places = log_layout(&shape);
        let bits = Todo::new(shape.bits(), shape.bit_bytes);
        let (mut header_sequence, mut record_sequence) = (0, 0);
        if !load(
            &log_device,
            log_at,
            &superblock,
            &bits,
            &mut header_sequence,
            &mut record_sequence,
        )
        .await?
        {
            bits.set(bits.all());
        }
        if superblock.flags.in_use {
            superblock.flags.crashed = true;
        }
        let regions = shape.regions() as usize;
        let data: SharedDevice =
            Arc::new(Part { device: device.clone(), size: shape.usable_bytes });
        let state = State {
            superblock,
            header_sequence,
            record_sequence,
            busy: false,
            wakers: Vec::new(),
            durable: vec![false; regions],
            pins: vec![0; regions],
        };
        let state = Mutex::new(state);
        let store = Store { device, log_device, log_at, layout, log: places, shape, bits, state };
        Ok(Local { data, store: Arc::new(store) })
    }

    /// Geometry of the volume.
    pub(crate) fn geometry(&self) -> Geometry {
        self.data.geometry()
    }

    /// The superblock as it is on disk.
    pub fn superblock(&self) -> Superblock {
        self.store.lock().superblock.clone()
    }

    /// Changes the superblock, durably.
    pub(crate) async fn update<T>(
        &self,
        change: impl FnOnce(&mut Superblock) -> T,
    ) -> Result<T, IoError> {
        let _busy = self.store.busy().await;
        self.store.write_superblock(change).await
    }

    /// Opens the log for a source.
    pub(crate) async fn begin_use(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), IoError> {
        let store = &self.store;
        let _busy = store.busy().await;
        store.write_pages().await?;
        store.write_record(&[]).await?;
        store.lock().durable.fill(false);
        let header = {
            let mut state = store.lock();
            state.header_sequence += 1;
            LogHeader {
                sequence: state.header_sequence,
                log: state.superblock.log,
                replica: state.superblock.replica,
                incarnation: state.superblock.incarnation + 1,
                shape: store.shape,
            }
        };
        let at = store.log.headers[(header.sequence & 1) as usize];
        store.write_log(at, &header.encode()).await?;
        store
            .write_superblock(|superblock| {
                change(superblock);
                superblock.flags.in_use = true;
                superblock.incarnation += 1;
            })
            .await
    }

    /// Closes the log: nothing is in flight.
    pub(crate) async fn end_use(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), IoError> {
        let store = &self.store;
        let _busy = store.busy().await;
        store.write_pages().await?;
        store.write_record(&[]).await?;
        store.lock().durable.fill(false);
        store
            .write_superblock(|superblock| {
                change(superblock);
                superblock.flags.in_use = false;
            })
            .await
    }

    /// Makes the regions of a range hot, durably, and keeps them so.
    pub(crate) async fn pin(&self, offset: u64, len: u64) -> Result<Pin, IoError> {
        let region = u64::from(self.store.shape.region_bytes);
        let regions = offset / region..(offset + len).div_ceil(region);
        let hot = {
            let mut state = self.store.lock();
            let mut hot = true;
            for region in regions.clone() {
                state.pins[region as usize] += 1;
                hot &= state.durable[region as usize];
            }
            hot
        };
        let pin = Pin { store: self.store.clone(), regions };
        if !hot {
            self.store.heat(&pin.regions).await?;
        }
        Ok(pin)
    }

    /// Longest range of one call to [`Local::pin`].
    pub(crate) fn longest_piece(&self) -> u64 {
        u64::from(PIECE_MAX_REGIONS) * u64::from(self.store.shape.region_bytes)
    }

    /// Sets bits of the log, whose regions are hot.
    pub(crate) fn mark(&self, bits: Range<u64>) {
        self.store.bits.set(bits);
    }

    /// Clears bits of the log.
    pub(crate) fn clear(&self, bits: Range<u64>) {
        self.store.bits.clear(bits);
    }

    /// A word of the log's bits.
    pub(crate) fn word(&self, index: u64) -> u64 {
        self.store.bits.word(index)
    }

    /// Makes all bits durable.
    pub(crate) async fn persist_marks(&self) -> Result<(), IoError> {
        let _busy = self.store.busy().await;
        self.store.write_pages().await
    }

    /// What a peer in this place of the superblock has to know of us.
    pub(crate) fn view(&self, slot: usize) -> View {
        let superblock = self.superblock();
        let lineage: Lineage = superblock.lineage(slot);
        View {
            volume: superblock.volume,
            replica: superblock.replica,
            usable_bytes: superblock.shape.usable_bytes,
            bit_bytes: superblock.shape.bit_bytes,
            lineage,
            epoch: superblock.epoch,
            serving: superblock.flags.served_alone,
            crashed: superblock.flags.crashed,
            inconsistent: superblock.flags.inconsistent,
            dirty: self.store.bits.count() > 0,
        }
    }
}

/// Reads a log; false when it is not to be trusted.
async fn load(
    device: &SharedDevice,
    at: u64,
    superblock: &Superblock,
    bits: &Todo,
    header_sequence: &mut u64,
    record_sequence: &mut u64,
) -> Result<bool, IoError> {
    let shape = superblock.shape;
    let places = log_layout(&shape);
    let mut slots = Vec::new();
    for header in places.headers {
        slots.push(LogHeader::decode(&read_page(device, at + header).await?));
    }
    let slots: [_; 2] = slots.try_into().expect("two");
    let Ok((_, header)) = newest(slots, |slot| slot.sequence) else { return Ok(false) };
    *header_sequence = header.sequence;
    let trust = header.trust(superblock.log, superblock.replica, superblock.incarnation, &shape);
    if trust != Trust::Own {
        return Ok(false);
    }
    for page in 0..shape.pages() {
        let bytes = read_page(device, at + places.pages + page * PAGE_BYTES as u64).await?;
        let words = bitmap_page::decode(&bytes, superblock.log, page).unwrap_or([u64::MAX; WORDS]);
        for (word, index) in words.iter().zip(page * WORDS as u64..) {
            bits.merge(index, *word);
        }
    }
    let mut slots = Vec::new();
    for record in places.records {
        let len = places.record_bytes as usize;
        let bytes = device.read(at + record, buf::alloc(len).await).await?;
        slots.push(HotRecord::decode(&bytes, superblock.log, shape.regions()));
    }
    let slots: [_; 2] = slots.try_into().expect("two");
    let Ok((_, record)) = newest(slots, |slot| slot.sequence) else { return Ok(false) };
    *record_sequence = record.sequence;
    let per_region = u64::from(shape.region_bits());
    for region in record.regions {
        let first = u64::from(region) * per_region;
        bits.set(first..(first + per_region).min(shape.bits()));
    }
    Ok(true)
}

/// The part of a device that hosts see.
struct Part {
    device: SharedDevice,
    size: u64,
}

impl BlockDevice for Part {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size, ..self.device.geometry() }
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        match self.geometry().check_transfer(offset, buf.len()) {
            Ok(()) => self.device.read(offset, buf),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        match self.geometry().check_change(offset, data.len() as u64) {
            Ok(()) => self.device.write(offset, data, fua),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn flush(&self) -> IoFuture<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        match self.geometry().check_change(offset, len) {
            Ok(()) => self.device.discard(offset, len),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        match self.geometry().check_change(offset, len) {
            Ok(()) => self.device.write_zeroes(offset, len, flags),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }
}
