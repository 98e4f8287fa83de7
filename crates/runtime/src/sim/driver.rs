//! Simulation driver: hands operations to the world and advances its time.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::config::nanos;
use super::disk::WrittenData;
use super::state::{Entry, SimWork, State, errno};
use crate::driver::{Driver, Wait};
use crate::executor::Shared;
use crate::fs::{FileInfo, OpenOptions};
use crate::handle::HandleKind;
use crate::net::{Address, Direction, KeepAlive, PeerUser};
use crate::op::{Op, OpId, Ops};

/// Driver of a simulated executor.
pub(crate) struct SimDriver {
    pub(crate) state: Rc<RefCell<State>>,
    pub(crate) shared: Arc<Shared>,
}

impl Driver for SimDriver {
    fn now(&self) -> u64 {
        self.state.borrow().now
    }

    fn boot_time(&self) -> u64 {
        self.now()
    }

    fn wall_clock(&self) -> u64 {
        let state = self.state.borrow();
        state.wall_clock_start.saturating_add(state.now)
    }

    fn random(&mut self) -> u64 {
        self.state.borrow_mut().rng.next_u64()
    }

    fn shuffles(&self) -> bool {
        true
    }

    fn submit(&mut self, id: OpId, op: &mut Op, node: u32) {
        let mut state = self.state.borrow_mut();
        let raw = raw_of(op);
        match work_of(&mut state, op) {
            Ok(work) => state.submit(id, node, raw, work),
            Err(number) => state.finished(id, Err(errno(number))),
        }
    }

    fn cancel(&mut self, id: OpId) {
        self.state.borrow_mut().cancelled.push(id);
    }

    fn turn(&mut self, wait: Wait, ops: &mut Ops, garbage: &mut Vec<Op>) {
        let mut state = self.state.borrow_mut();
        state.spend();
        state.absorb(ops);
        state.fire_due(ops);
        if let Wait::Until(deadline) = wait {
            let limit = nanos(state.config.time_limit);
            while state.done.is_empty() && !self.shared.has_remote_work() && state.now <= limit {
                let next = match (state.next_event(), deadline) {
                    (Some(event), Some(deadline)) => event.min(deadline),
                    (Some(at), None) | (None, Some(at)) => at,
                    (None, None) => break,
                };
                state.now = state.now.max(next);
                state.fire_due(ops);
                if deadline.is_some_and(|deadline| state.now >= deadline) {
                    break;
                }
            }
        }
        for (id, result) in std::mem::take(&mut state.done) {
            garbage.extend(ops.complete(id, result));
        }
    }

    fn open(
        &mut self,
        path: &Path,
        options: &OpenOptions,
        node: u32,
    ) -> io::Result<(i32, FileInfo)> {
        self.state.borrow_mut().open(path, options, node)
    }

    fn size(&mut self, raw: i32) -> io::Result<u64> {
        self.state.borrow().file_size(raw)
    }

    fn listen(&mut self, address: &Address, _: bool, node: u32) -> io::Result<(i32, Address)> {
        self.state.borrow_mut().listen(address, node)
    }

    fn socket(&mut self, _address: &Address, node: u32) -> io::Result<i32> {
        Ok(self.state.borrow_mut().new_handle(node, Entry::Socket(None)))
    }

    fn peer(&mut self, raw: i32) -> String {
        self.state.borrow().peer_of(raw)
    }

    fn local(&mut self, _raw: i32) -> Option<std::net::SocketAddr> {
        None
    }

    fn peer_user(&mut self, _raw: i32) -> Option<PeerUser> {
        None
    }

    fn peer_has_ended(&mut self, raw: i32) -> bool {
        self.state.borrow().peer_has_ended(raw)
    }

    fn shutdown(&mut self, raw: i32, direction: Direction) {
        self.state.borrow_mut().shutdown(raw, direction);
    }

    fn abort(&mut self, raw: i32) {
        self.state.borrow_mut().abort(raw);
    }

    fn set_keep_alive(&mut self, raw: i32, keep_alive: KeepAlive) -> io::Result<()> {
        self.state.borrow_mut().set_keep_alive(raw, keep_alive)
    }

    fn name(&self) -> &'static str {
        "simulation"
    }

    fn kind(&self) -> HandleKind {
        HandleKind::Sim
    }
}

fn raw_of(op: &Op) -> i32 {
    match op {
        Op::ReadAt { file: handle, .. }
        | Op::WriteAt { file: handle, .. }
        | Op::Sync { file: handle }
        | Op::Punch { file: handle, .. }
        | Op::Recv { socket: handle, .. }
        | Op::RecvVectored { socket: handle, .. }
        | Op::Send { socket: handle, .. }
        | Op::Accept { socket: handle }
        | Op::Connect { socket: handle, .. } => handle.raw(),
    }
}

/// Converts an operation into work for the world, or into the error with which it fails at once.
fn work_of(state: &mut State, op: &mut Op) -> Result<SimWork, i32> {
    let Some(owned) = state.handles.get(&raw_of(op)) else { return Err(libc::EBADF) };
    let (disk, read_only, direct) = match owned.entry {
        Entry::File { disk, read_only, direct } => (disk, read_only, direct),
        Entry::Listener(_) | Entry::Socket(_) => return socket_work_of(op),
    };
    let unit = if direct { u64::from(state.disks[disk].config.logical_block_bytes) } else { 1 };
    let aligned = |address: *const u8, offset: u64, len: usize| {
        [address.addr() as u64, offset, len as u64].iter().all(|x| x.is_multiple_of(unit))
    };
    match op {
        Op::ReadAt { buf, offset, .. } if aligned(buf.as_ptr(), *offset, buf.len()) => {
            Ok(SimWork::Read { disk, offset: *offset })
        }
        Op::WriteAt { .. } | Op::Punch { .. } if read_only => Err(libc::EBADF),
        Op::WriteAt { buf, offset, durable, .. } if aligned(buf.as_ptr(), *offset, buf.len()) => {
            state.trace.bytes(buf);
            let data = WrittenData::Data(buf.to_vec());
            Ok(SimWork::Write { disk, offset: *offset, data, durable: *durable })
        }
        Op::Sync { .. } => Ok(SimWork::Sync { disk, mark: 0 }),
        Op::Punch { offset, len, mode, .. } => {
            Ok(SimWork::Punch { disk, offset: *offset, len: *len, mode: *mode })
        }
        _ => Err(libc::EINVAL),
    }
}

fn socket_work_of(op: &Op) -> Result<SimWork, i32> {
    match op {
        Op::Recv { .. } | Op::RecvVectored { .. } => Ok(SimWork::Recv),
        Op::Send { .. } => Ok(SimWork::Send { sent: 0 }),
        Op::Accept { .. } => Ok(SimWork::Accept),
        Op::Connect { address, .. } => Ok(SimWork::Connect { address: address.address.clone() }),
        _ => Err(libc::EINVAL),
    }
}
