//! Files of a simulated node: opening, and the effects of operations on their disks.

use std::io;
use std::path::Path;

use super::config::{DiskConfig, SimLatency, touches};
use super::disk::{Disk, WrittenData};
use super::state::{Entry, Power, SimEvent, SimWork, State, errno};
use super::store::BLOCK_BYTES;
use crate::fs::{FileInfo, OpenOptions};
use crate::op::{Op, OpId, Ops, PunchMode};

/// Probability that a write of at least two sectors reaches the disk in two steps, so that
/// concurrent reads can see it torn.
const TORN_LANDING: f64 = 0.1;

impl State {
    pub(crate) fn add_disk(&mut self, node: u32, path: &Path, config: DiskConfig) -> usize {
        self.disks.push(Disk::new(config));
        let disk = self.disks.len() - 1;
        self.paths.insert((node, path.to_owned()), disk);
        disk
    }

    pub(crate) fn disk_at(&self, node: u32, path: &Path) -> Option<usize> {
        self.paths.get(&(node, path.to_owned())).copied()
    }

    pub(crate) fn path_of(&self, disk: usize) -> String {
        let found = self.paths.iter().find(|(_, at)| **at == disk);
        found.map_or_else(String::new, |((_, path), _)| path.display().to_string())
    }

    pub(crate) fn open(
        &mut self,
        path: &Path,
        options: &OpenOptions,
        node: u32,
    ) -> io::Result<(i32, FileInfo)> {
        if self.nodes[node as usize].power != Power::Up {
            return Err(errno(libc::EIO));
        }
        self.release_dropped();
        let disk = match (self.disk_at(node, path), options.create_bytes) {
            (Some(disk), _) => disk,
            (None, Some(_)) if !options.read_only => {
                let config = DiskConfig { size_bytes: 0, block_device: false, ..self.config.disk };
                self.add_disk(node, path, config)
            }
            _ => return Err(errno(libc::ENOENT)),
        };
        if options.exclusive && self.disks[disk].locked_by.is_some() {
            let text = "another program has it locked; stop that program first";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
        }
        let (read_only, direct) = (options.read_only, options.direct);
        let raw = self.new_handle(node, Entry::File { disk, read_only, direct });
        let disk = &mut self.disks[disk];
        if options.exclusive {
            disk.locked_by = Some(raw);
        }
        if let (Some(bytes), 0) = (options.create_bytes, disk.size_bytes()) {
            disk.grow(bytes);
        }
        let info = file_info(disk, direct);
        self.note(node, "open", [raw as u64, info.size_bytes]);
        Ok((raw, info))
    }

    pub(crate) fn file_size(&self, raw: i32) -> io::Result<u64> {
        match self.handles.get(&raw).map(|owned| &owned.entry) {
            Some(Entry::File { disk, .. }) => Ok(self.disks[*disk].size_bytes()),
            _ => Err(errno(libc::EBADF)),
        }
    }

    /// Schedules a disk operation.
    pub(crate) fn begin_disk_op(&mut self, id: OpId) {
        let now = self.now;
        let Some(pending) = self.pending(id) else { return };
        let (serial, disk) = (pending.serial, disk_of(&pending.work));
        let (durable, bytes) = match &pending.work {
            SimWork::Write { data, durable, .. } => (*durable, data.len()),
            _ => (false, 0),
        };
        let is_flush = matches!(pending.work, SimWork::Sync { .. });
        let latency_of: fn(&DiskConfig) -> SimLatency = match &pending.work {
            SimWork::Read { .. } => |config| config.read_latency,
            SimWork::Sync { .. } => |config| config.flush_latency,
            _ => |config| config.write_latency,
        };
        let config = self.disks[disk].config;
        let mut latency = latency_of(&config).sample(&mut self.rng);
        if durable {
            latency += config.flush_latency.sample(&mut self.rng);
        }
        let done_at =
            if is_flush { now + latency } else { self.disks[disk].book(now, latency, bytes) };
        let mark = self.disks[disk].flush_mark();
        if let Some(pending) = self.pending(id)
            && let SimWork::Sync { mark: covered, .. } = &mut pending.work
        {
            *covered = mark;
        }
        if bytes >= 1024 && self.rng.chance(TORN_LANDING) {
            let at = self.rng.between(now, done_at);
            self.schedule(at, SimEvent::Land(id, serial));
        }
        self.schedule(done_at, SimEvent::DiskDone(id, serial));
    }

    /// The first part of a write reaches the disk before the rest.
    pub(crate) fn land_part(&mut self, id: OpId, serial: u64) {
        let Some(pending) = self.pending_as(id, serial) else { return };
        let SimWork::Write { disk, offset, data: WrittenData::Data(data), .. } = &pending.work
        else {
            return;
        };
        let (disk, offset, len) = (*disk, *offset, data.len() as u64);
        if !self.writable(disk, offset, len) {
            return;
        }
        let sectors = self.rng.between(1, len / 512 - 1);
        let Some(pending) = self.pending_as(id, serial) else { return };
        let SimWork::Write { data: WrittenData::Data(data), .. } = &pending.work else { return };
        let part = data[..(sectors * 512) as usize].to_vec();
        self.disks[disk].land(offset, WrittenData::Data(part), false);
    }

    /// True if a write of this range meets no fault of bounds, space or unwritable ranges.
    fn writable(&self, disk: usize, offset: u64, len: u64) -> bool {
        let disk = &self.disks[disk];
        let inside = !disk.config.block_device || offset.saturating_add(len) <= disk.size_bytes();
        inside
            && offset.saturating_add(len) <= i64::MAX as u64
            && !touches(&disk.faults.unwritable, offset, len)
            && disk.space_for(offset, len) == len
    }

    /// Completes a disk operation, unless the disk stalls.
    pub(crate) fn disk_done(&mut self, id: OpId, serial: u64, ops: &mut Ops) {
        let now = self.now;
        let Some(pending) = self.pending_as(id, serial) else { return };
        let disk = disk_of(&pending.work);
        if self.disks[disk].stalled_until > now {
            let at = self.disks[disk].stalled_until.saturating_add(self.rng.below(100_000));
            return self.schedule(at, SimEvent::DiskDone(id, serial));
        }
        let Some(pending) = self.take_pending(id) else { return };
        let interruptions = &mut self.disks[disk].faults.interruptions;
        if *interruptions > 0 {
            *interruptions -= 1;
            return self.finished(id, Err(errno(libc::EINTR)));
        }
        let result = match pending.work {
            SimWork::Read { disk, offset } => self.read_done(disk, offset, id, ops),
            SimWork::Write { disk, offset, data, durable } => {
                self.write_done(disk, offset, data, durable)
            }
            SimWork::Sync { disk, mark } => self.flush_done(disk, mark),
            SimWork::Punch { disk, offset, len, mode } => self.punch_done(disk, offset, len, mode),
            _ => unreachable!("only disk operations are booked"),
        };
        if result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EIO)) {
            self.disks[disk].stats.faults += 1;
        }
        self.finished(id, result);
    }

    fn read_done(&mut self, disk: usize, offset: u64, id: OpId, ops: &mut Ops) -> io::Result<u32> {
        let Some(Op::ReadAt { buf, .. }) = ops.op_mut(id) else {
            unreachable!("an operation in flight keeps its kind")
        };
        let disk = &mut self.disks[disk];
        disk.stats.reads += 1;
        let left = disk.size_bytes().saturating_sub(offset);
        let len = (buf.len() as u64).min(left);
        let bad = touches(&disk.faults.unreadable, offset, len)
            || touches(&disk.faults.latent, offset, len);
        if bad || self.rng.chance(disk.faults.read_errors) {
            return Err(errno(libc::EIO));
        }
        disk.read(offset, &mut buf[..len as usize]);
        self.trace.bytes(&buf[..len as usize]);
        Ok(len as u32)
    }

    fn write_done(
        &mut self,
        disk: usize,
        offset: u64,
        mut data: WrittenData,
        durable: bool,
    ) -> io::Result<u32> {
        let disk = &mut self.disks[disk];
        disk.stats.writes += 1;
        let end = if disk.config.block_device { disk.size_bytes() } else { i64::MAX as u64 };
        let len = data.len().min(end.saturating_sub(offset));
        if len == 0 && data.len() > 0 {
            let device = disk.config.block_device;
            return Err(errno(if device { libc::ENOSPC } else { libc::EFBIG }));
        }
        if touches(&disk.faults.unwritable, offset, len)
            || self.rng.chance(disk.faults.write_errors)
        {
            data.truncate(len);
            disk.land_some(offset, &data, &mut self.rng);
            return Err(errno(libc::EIO));
        }
        let fits = disk.space_for(offset, len);
        if fits == 0 && len > 0 {
            return Err(errno(libc::ENOSPC));
        }
        data.truncate(fits);
        disk.faults.remap(offset, fits);
        let unsafe_flush = durable && self.rng.chance(disk.faults.flush_errors);
        let durable = durable && !unsafe_flush && !disk.faults.lying_flushes;
        // No draw without the fault, so that recorded seeds keep their history.
        let misdirected = disk.faults.misdirected_writes;
        let offset = if misdirected > 0.0 && self.rng.chance(misdirected) {
            let units = end.saturating_sub(fits).min(disk.size_bytes()) / BLOCK_BYTES;
            self.rng.between(0, units) * BLOCK_BYTES
        } else {
            offset
        };
        disk.land(offset, data, durable);
        if unsafe_flush { Err(errno(libc::EIO)) } else { Ok(fits as u32) }
    }

    fn flush_done(&mut self, disk: usize, mark: u64) -> io::Result<u32> {
        let disk = &mut self.disks[disk];
        disk.stats.flushes += 1;
        if self.rng.chance(disk.faults.flush_errors) {
            disk.fail_flush(mark, &mut self.rng);
            return Err(errno(libc::EIO));
        }
        if !disk.faults.lying_flushes {
            disk.flush(mark);
        }
        Ok(0)
    }

    fn punch_done(
        &mut self,
        disk: usize,
        offset: u64,
        len: u64,
        mode: PunchMode,
    ) -> io::Result<u32> {
        let disk = &mut self.disks[disk];
        disk.stats.writes += 1;
        let able = match mode {
            PunchMode::Deallocate => disk.config.can_deallocate,
            PunchMode::Zero => disk.config.can_zero,
        };
        if !able {
            return Err(errno(libc::EOPNOTSUPP));
        }
        let outside = disk.config.block_device && offset >= disk.size_bytes();
        if len == 0 || outside {
            return Err(errno(libc::EINVAL));
        }
        let len = len.min(disk.size_bytes().saturating_sub(offset));
        let zeroes = WrittenData::Zero(len);
        if touches(&disk.faults.unwritable, offset, len)
            || self.rng.chance(disk.faults.write_errors)
        {
            disk.land_some(offset, &zeroes, &mut self.rng);
            return Err(errno(libc::EIO));
        }
        disk.faults.remap(offset, len);
        disk.land(offset, zeroes, false);
        Ok(0)
    }

    /// Decides the outcome of writes in flight after a power loss or kill, and the state of the
    /// disks of the node.
    pub(crate) fn settle_disks(
        &mut self,
        node: u32,
        in_flight: Vec<(usize, u64, WrittenData)>,
        power_lost: bool,
    ) {
        let mut by_disk: Vec<Vec<(u64, WrittenData)>> = Vec::new();
        by_disk.resize_with(self.disks.len(), Vec::new);
        for (disk, offset, mut extent) in in_flight {
            // A punch never extends a file, and a write never extends a device.
            let fixed =
                self.disks[disk].config.block_device || matches!(extent, WrittenData::Zero(_));
            let end = if fixed { self.disks[disk].size_bytes() } else { i64::MAX as u64 };
            extent.truncate(end.saturating_sub(offset));
            extent.truncate(self.disks[disk].space_for(offset, extent.len()));
            by_disk[disk].push((offset, extent));
        }
        for disk in
            self.paths.iter().filter(|((owner, _), _)| *owner == node).map(|(_, disk)| *disk)
        {
            let mut writes = std::mem::take(&mut by_disk[disk]);
            let disk = &mut self.disks[disk];
            disk.locked_by = None;
            if power_lost {
                disk.lose_power(writes, &mut self.rng);
                continue;
            }
            while !writes.is_empty() {
                let pick = self.rng.below(writes.len() as u64) as usize;
                let (offset, extent) = writes.swap_remove(pick);
                disk.land_some(offset, &extent, &mut self.rng);
            }
        }
    }
}

fn disk_of(work: &SimWork) -> usize {
    match work {
        SimWork::Read { disk, .. }
        | SimWork::Write { disk, .. }
        | SimWork::Sync { disk, .. }
        | SimWork::Punch { disk, .. } => *disk,
        _ => unreachable!("a disk operation"),
    }
}

fn file_info(disk: &Disk, direct: bool) -> FileInfo {
    let config = &disk.config;
    let logical = if direct || config.block_device { config.logical_block_bytes } else { 512 };
    FileInfo {
        size_bytes: disk.size_bytes(),
        block_device: config.block_device,
        direct,
        logical_block_bytes: logical.max(512),
        physical_block_bytes: config.physical_block_bytes,
        memory_align_bytes: if direct { config.logical_block_bytes } else { 1 },
        can_deallocate: config.can_deallocate,
        can_zero: config.can_zero,
    }
}
