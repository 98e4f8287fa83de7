//! Fused Compare and Write (NVM Command Set, "Fused Operations"): pairs the two commands and executes
//! them as one.
//!
//! Invariants: the halves are adjacent entries of one submission queue, so a first half waits only
//! for the next command. Each half is answered once:
//! - without its partner: Command Aborted due to Missing Fused Command;
//! - if the other half fails: Command Aborted due to Failed Fused Command;
//! - if the two are no Compare and Write of one range: Invalid Field.
//!
//! The data of a half may arrive after the next commands. A half whose data has arrived waits here
//! for the other one, and counts as outstanding meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flagstone_nvme::command::io::BlockCommand;
use flagstone_nvme::command::{Fuse, Sqe};
use flagstone_nvme::{Cqe, IoOpcode, Status};
use flagstone_runtime::{Buf, spawn_detached};

use super::Connection;
use crate::Namespace;
use crate::io::{Span, check_length, check_writable, status_of};
use crate::limits::FUSED_BYTES;
use flagstone_blockdev::IoError;

/// Fused operations of a queue that have not been executed. Its entries bound their number.
#[derive(Default)]
pub(super) struct FusedPairs {
    pairs: RefCell<Vec<Pair>>,
    /// The last command was a first half.
    is_open: Cell<bool>,
}

/// The two halves.
struct Pair {
    halves: [Half; 2],
    /// Why the halves that are not answered yet have to fail.
    failure: Option<Status>,
}

enum Half {
    /// No command has it yet.
    Absent,
    /// Its data has not arrived.
    Awaited {
        cid: u16,
    },
    Ready(FusedHalf),
    Answered,
}

/// A half whose data has arrived, if it has any.
struct FusedHalf {
    command: Sqe,
    data: Option<Buf>,
    payload: usize,
}

impl Half {
    fn is_awaited(&self, cid: u16) -> bool {
        matches!(self, Half::Awaited { cid: own } if *own == cid)
    }
}

impl FusedPairs {
    /// True if the next command has to be the second half of the last one.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Pairs a command of the submission queue, in its order. Returns a first half that has no
    /// second one and was ready.
    fn observe(&self, fuse: Fuse, cid: u16) -> Option<FusedHalf> {
        let mut pairs = self.pairs.borrow_mut();
        let mut orphan = None;
        if self.is_open.take() {
            // Absent if the first half has failed and was answered already.
            match pairs.last_mut().filter(|pair| matches!(pair.halves[1], Half::Absent)) {
                Some(pair) if fuse == Fuse::Second => {
                    pair.halves[1] = Half::Awaited { cid };
                    return None;
                }
                Some(pair) => {
                    pair.failure.get_or_insert(Status::MISSING_FUSED_COMMAND);
                    pair.halves[1] = Half::Answered;
                    if let Half::Ready(_) = pair.halves[0]
                        && let Half::Ready(half) =
                            std::mem::replace(&mut pair.halves[0], Half::Answered)
                    {
                        orphan = Some(half);
                    }
                }
                None => {}
            }
            pairs.retain(|pair| !pair.is_over());
        }
        let (halves, failure) = match fuse {
            Fuse::None => return orphan,
            Fuse::First => ([Half::Awaited { cid }, Half::Absent], None),
            Fuse::Second => {
                let missing = Some(Status::MISSING_FUSED_COMMAND);
                ([Half::Answered, Half::Awaited { cid }], missing)
            }
            Fuse::Reserved => {
                ([Half::Answered, Half::Awaited { cid }], Some(Status::INVALID_FIELD))
            }
        };
        self.is_open.set(fuse == Fuse::First);
        pairs.push(Pair { halves, failure });
        orphan
    }

    /// The data of a half has arrived.
    fn ready(&self, half: FusedHalf) -> FusedStep {
        let mut pairs = self.pairs.borrow_mut();
        let cid = half.command.cid.get();
        let found = pairs.iter_mut().enumerate().find_map(|(index, pair)| {
            let place = pair.halves.iter_mut().position(|half| half.is_awaited(cid))?;
            Some((index, place))
        });
        let Some((index, place)) = found else {
            return FusedStep::Fail(half, Status::MISSING_FUSED_COMMAND);
        };
        let pair = &mut pairs[index];
        if let Some(failure) = pair.failure {
            pair.halves[place] = Half::Answered;
            pairs.retain(|pair| !pair.is_over());
            return FusedStep::Fail(half, failure);
        }
        pair.halves[place] = Half::Ready(half);
        if !pair.halves.iter().all(|half| matches!(half, Half::Ready(_))) {
            return FusedStep::Wait;
        }
        let [Half::Ready(first), Half::Ready(second)] = pairs.remove(index).halves else {
            unreachable!("both are ready")
        };
        FusedStep::Execute(first, second)
    }

    /// A half was answered with an error before its data had arrived. Returns the other half, if it
    /// was ready.
    fn failed(&self, cid: u16) -> Option<FusedHalf> {
        let mut pairs = self.pairs.borrow_mut();
        let mut other = None;
        for pair in pairs.iter_mut() {
            let Some(place) = pair.halves.iter().position(|half| half.is_awaited(cid)) else {
                continue;
            };
            pair.failure.get_or_insert(Status::FAILED_FUSED_COMMAND);
            pair.halves[place] = Half::Answered;
            let partner = &mut pair.halves[1 - place];
            if let Half::Ready(_) = partner
                && let Half::Ready(half) = std::mem::replace(partner, Half::Answered)
            {
                other = Some(half);
            }
            break;
        }
        pairs.retain(|pair| !pair.is_over());
        other
    }

    /// Forgets all. Returns the payload bytes of each half that was ready.
    pub(super) fn clear(&self) -> Vec<usize> {
        self.is_open.set(false);
        let halves = self.pairs.take().into_iter().flat_map(|pair| pair.halves);
        let ready = halves.filter_map(|half| match half {
            Half::Ready(half) => Some(half.payload),
            _ => None,
        });
        ready.collect()
    }
}

impl Pair {
    fn is_over(&self) -> bool {
        self.halves.iter().all(|half| matches!(half, Half::Answered))
    }
}

enum FusedStep {
    /// The other half is missing yet.
    Wait,
    Fail(FusedHalf, Status),
    Execute(FusedHalf, FusedHalf),
}

impl Connection {
    /// Pairs the command at the front of an I/O queue.
    pub(super) fn observe_fuse(&self, command: &Sqe) {
        let orphan = self.fused.observe(command.fuse(), command.cid.get());
        if let Some(half) = orphan {
            self.fail(&half.command, Status::MISSING_FUSED_COMMAND, half.payload);
        }
    }

    /// A command was answered with an error before its data had arrived: its other half fails too.
    #[cold]
    pub(super) fn fused_half_failed(&self, command: &Sqe) {
        if let Some(half) = self.fused.failed(command.cid.get()) {
            self.fail(&half.command, Status::FAILED_FUSED_COMMAND, half.payload);
        }
    }

    /// Runs a half of a fused operation whose data has arrived.
    pub(crate) fn run_fused(self: &Rc<Self>, command: Sqe, data: Option<Buf>, payload: usize) {
        match self.fused.ready(FusedHalf { command, data, payload }) {
            FusedStep::Wait => {}
            FusedStep::Fail(half, status) => self.fail(&half.command, status, half.payload),
            FusedStep::Execute(first, second) => self.execute_fused(first, second),
        }
    }

    fn execute_fused(self: &Rc<Self>, first: FusedHalf, second: FusedHalf) {
        let (namespace, span) = match self.check_fused(&first, &second) {
            Ok(checked) => checked,
            Err(statuses) => return self.answer_fused(&first, &second, statuses),
        };
        let (Some(expected), Some(data)) = (first.data.clone(), second.data.clone()) else {
            unreachable!("its length was checked")
        };
        let fua = BlockCommand::parse(&second.command).fua() || self.is_write_through();
        self.with_controller(|_, queue| {
            queue.counters.read(span.len as u64);
            queue.counters.write(span.len as u64);
        });
        let connection = self.admit();
        spawn_detached(async move {
            let device = &namespace.device;
            let outcome = device.compare_and_write(span.offset, expected, data, fua).await;
            let statuses = match outcome {
                Ok(true) => [Status::SUCCESS; 2],
                Ok(false) => [Status::COMPARE_FAILURE.dnr(), Status::FAILED_FUSED_COMMAND],
                Err(IoError::WriteFault) => {
                    [Status::FAILED_FUSED_COMMAND, status_of(IoError::WriteFault)]
                }
                Err(error) => [status_of(error), Status::FAILED_FUSED_COMMAND],
            };
            connection.answer_fused(&first, &second, statuses);
        });
    }

    /// The namespace and range of a supported operation, or the status of each half.
    fn check_fused(
        &self,
        first: &FusedHalf,
        second: &FusedHalf,
    ) -> Result<(std::sync::Arc<Namespace>, Span), [Status; 2]> {
        let both = |status: Status| [status, status];
        let of_first = |status: Status| [status, Status::FAILED_FUSED_COMMAND];
        let of_second = |status: Status| [Status::FAILED_FUSED_COMMAND, status];
        let opcodes = [first, second].map(|half| IoOpcode(half.command.opcode));
        if opcodes != [IoOpcode::COMPARE, IoOpcode::WRITE]
            || first.command.nsid.get() != second.command.nsid.get()
        {
            return Err(both(Status::INVALID_FIELD.dnr()));
        }
        let namespace = self.checked(&first.command).map_err(of_first)?;
        let namespace = namespace.ok_or(of_first(Status::INVALID_NAMESPACE.dnr()))?;
        self.checked(&second.command).map_err(of_second)?;
        check_writable(&namespace).map_err(of_second)?;
        let fields = [first, second].map(|half| BlockCommand::parse(&half.command));
        let span = self.span(&namespace, &fields[0]).map_err(of_first)?;
        if self.span(&namespace, &fields[1]).map_err(of_second)? != span {
            return Err(both(Status::INVALID_FIELD.dnr()));
        }
        if span.len > FUSED_BYTES {
            return Err(both(Status::ATOMIC_WRITE_UNIT_EXCEEDED.dnr()));
        }
        for (half, of) in [(first, of_first as fn(Status) -> [Status; 2]), (second, of_second)] {
            check_length(&half.command, span).map_err(of)?;
            if half.data.as_ref().is_none_or(|data| data.len() != span.len) {
                return Err(of(Status::DATA_SGL_LENGTH_INVALID.dnr()));
            }
        }
        Ok((namespace, span))
    }

    fn answer_fused(&self, first: &FusedHalf, second: &FusedHalf, statuses: [Status; 2]) {
        for (half, status) in [first, second].into_iter().zip(statuses) {
            if status.is_success() {
                self.respond(Cqe::new(half.command.cid.get(), status));
                self.release(half.payload);
            } else {
                self.fail(&half.command, status, half.payload);
            }
        }
    }
}
