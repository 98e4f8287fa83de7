//! Fused Compare and Write (NVM Command Set, "Fused Operations"): pairs two adjacent commands of an
//! I/O queue and executes them as one.
//!
//! Invariants:
//! - a first half is waiting as state of the queue. It is no command in flight: it holds no pooled
//!   buffer and no task, so the payload budget, the receiver and the connection's end never wait
//!   for its partner. At most one is waiting, with at most [`FUSED_BYTES`] of data outside the
//!   pool;
//! - the next command in order decides. A second half makes the pair one command in flight.
//!   Anything else aborts the waiting half, and so does a second half that fails by itself;
//! - both halves have their data in the capsule, or both have it requested with R2Ts: first the
//!   Compare's, then the Write's, into one buffer that was granted for both;
//! - each half is answered once: with its own error, Failed Fused Command if the other half failed,
//!   or Missing Fused Command if there is none.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::IoError;
use flagstone_nvme::command::Fuse;
use flagstone_nvme::command::io::BlockCommand;
use flagstone_nvme::{Cqe, IoOpcode, Sqe, Status};
use flagstone_runtime::{Buf, BufMut, buf, spawn_detached};

use super::Connection;
use super::transfer::{PendingTransfer, TransferHalf};
use super::waiting::TransferOf;
use crate::Namespace;
use crate::io::{Span, check_length, check_writable, status_of};
use crate::limits::FUSED_BYTES;

/// State that a command of a queue leaves to its successor.
#[derive(Default)]
pub(super) enum FusedFirst {
    /// It was no first half.
    #[default]
    Nothing,
    /// A first half, with its data if that was in the capsule.
    First { command: Sqe, data: Option<Buf> },
    /// A first half that was answered with an error.
    Failed,
}

impl FusedFirst {
    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, FusedFirst::Nothing)
    }
}

/// Commands of a fused operation.
#[derive(Clone, Copy)]
pub(super) struct FusedPair {
    pub(super) first: Sqe,
    pub(super) second: Sqe,
}

impl Connection {
    /// Place of a command in a fused operation. Only commands of I/O queues have one.
    pub(super) fn fuse(&self, command: &Sqe) -> Fuse {
        match self.with_controller(|_, queue| queue.qid) {
            Some(qid) if qid != 0 && command.fabrics_type().is_none() => command.fuse(),
            _ => Fuse::None,
        }
    }

    /// Before a command is handled: aborts a waiting half whose partner it is not.
    pub(super) fn before_fused(&self, fuse: Fuse) {
        if fuse != Fuse::Second {
            self.abort_first(Status::MISSING_FUSED_COMMAND);
        }
    }

    /// After a command was waiting, begun or refused.
    pub(super) fn after_fused(&self, fuse: Fuse) {
        if fuse == Fuse::First && self.fused_first.borrow().is_nothing() {
            self.fused_first.replace(FusedFirst::Failed);
        }
        if fuse == Fuse::Second {
            self.abort_first(Status::FAILED_FUSED_COMMAND);
        }
    }

    fn abort_first(&self, status: Status) {
        if let FusedFirst::First { command, .. } = self.fused_first.take() {
            self.answer_uncounted(&command, status);
        }
    }

    /// Runs a half in flight: `data` came in its capsule.
    #[cold]
    pub(crate) fn run_fused(self: &Rc<Self>, command: Sqe, data: Option<Buf>, payload: usize) {
        let bytes = command.data.data_bytes.get() as usize;
        if bytes.max(data.as_ref().map_or(0, |data| data.len())) > FUSED_BYTES {
            return self.fail(&command, Status::ATOMIC_WRITE_UNIT_EXCEEDED.dnr(), payload);
        }
        match command.fuse() {
            Fuse::First => {
                let data = data.map(|data| {
                    let mut copy = buf::alloc_small(data.len());
                    copy.copy_from_slice(&data);
                    copy.freeze()
                });
                self.fused_first.replace(FusedFirst::First { command, data });
                self.release(payload);
            }
            Fuse::Second => match self.fused_first.take() {
                FusedFirst::Nothing => self.fail(&command, Status::MISSING_FUSED_COMMAND, payload),
                FusedFirst::Failed => self.fail(&command, Status::FAILED_FUSED_COMMAND, payload),
                FusedFirst::First { command: first, data: expected } => {
                    let pair = FusedPair { first, second: command };
                    self.run_pair(pair, expected, data, payload);
                }
            },
            _ => self.fail(&command, Status::INVALID_FIELD.dnr(), payload),
        }
    }

    /// Runs a pair, which counts as one command. If no capsule had data, it is requested.
    fn run_pair(
        self: &Rc<Self>,
        pair: FusedPair,
        expected: Option<Buf>,
        data: Option<Buf>,
        payload: usize,
    ) {
        match (expected, data, self.check_fused(&pair)) {
            (_, _, Err(statuses)) => self.answer_fused(&pair, statuses, payload),
            (Some(expected), Some(data), Ok(_)) => {
                self.execute_fused(pair, expected, data, payload)
            }
            (None, None, Ok((_, span))) => {
                self.release(payload);
                self.take_transfer(TransferOf::Pair(Box::new(pair)), 2 * span.len);
            }
            _ => self.answer_fused(&pair, [Status::INVALID_FIELD.dnr(); 2], payload),
        }
    }

    /// A transfer of one half is complete.
    #[cold]
    pub(super) fn fused_transferred(
        self: &Rc<Self>,
        done: PendingTransfer,
        data: BufMut,
        half: TransferHalf,
    ) {
        let (bytes, command) = (done.bytes, done.command);
        let [damaged, failed] = [Status::TRANSIENT_TRANSPORT_ERROR, Status::FAILED_FUSED_COMMAND];
        if !done.digest_error
            && let TransferHalf::First { second, place } = half
        {
            let half = TransferHalf::Second { first: command, expected: data.freeze() };
            return self.begin_transfer(second, place, Some(Box::new(half)));
        }
        self.transferred(bytes);
        self.share.moved(bytes as u64);
        match half {
            TransferHalf::First { second, .. } => {
                self.answer_fused(&FusedPair { first: command, second }, [damaged, failed], bytes);
            }
            TransferHalf::Second { first, .. } if done.digest_error => {
                self.answer_fused(&FusedPair { first, second: command }, [failed, damaged], bytes);
            }
            TransferHalf::Second { first, expected } => {
                let pair = FusedPair { first, second: command };
                self.execute_fused(pair, expected, data.freeze(), bytes);
            }
        }
    }

    fn execute_fused(self: &Rc<Self>, pair: FusedPair, expected: Buf, data: Buf, payload: usize) {
        let (namespace, span) = match self.check_fused(&pair) {
            Ok(checked) => checked,
            Err(statuses) => return self.answer_fused(&pair, statuses, payload),
        };
        let fua = BlockCommand::parse(&pair.second).fua() || self.is_write_through();
        self.with_controller(|_, queue| {
            queue.counters.read(span.len as u64);
            queue.counters.write(span.len as u64);
        });
        let connection = self.admit();
        spawn_detached(async move {
            let device = &namespace.device;
            let statuses = match device.compare_and_write(span.offset, expected, data, fua).await {
                Ok(true) => [Status::SUCCESS; 2],
                Ok(false) => [Status::COMPARE_FAILURE.dnr(), Status::FAILED_FUSED_COMMAND],
                Err(IoError::WriteFault) => {
                    [Status::FAILED_FUSED_COMMAND, status_of(IoError::WriteFault)]
                }
                Err(error) => [status_of(error), Status::FAILED_FUSED_COMMAND],
            };
            connection.answer_fused(&pair, statuses, payload);
        });
    }

    /// The namespace and range of a supported operation, or the status of each half.
    fn check_fused(&self, pair: &FusedPair) -> Result<(Arc<Namespace>, Span), [Status; 2]> {
        let both = |status: Status| [status, status];
        let of_first = |status: Status| [status, Status::FAILED_FUSED_COMMAND];
        let of_second = |status: Status| [Status::FAILED_FUSED_COMMAND, status];
        // It may have ended while data was transferred.
        self.check_authenticated(&pair.first).map_err(both)?;
        let halves = [&pair.first, &pair.second];
        if halves.map(|half| IoOpcode(half.opcode)) != [IoOpcode::COMPARE, IoOpcode::WRITE]
            || pair.first.nsid.get() != pair.second.nsid.get()
        {
            return Err(both(Status::INVALID_FIELD.dnr()));
        }
        let namespace = self.checked(&pair.first).map_err(of_first)?;
        let namespace = namespace.ok_or(of_first(Status::INVALID_NAMESPACE.dnr()))?;
        self.checked(&pair.second).map_err(of_second)?;
        check_writable(&namespace).map_err(of_second)?;
        let fields = halves.map(BlockCommand::parse);
        let span = self.span(&namespace, &fields[0]).map_err(of_first)?;
        if self.span(&namespace, &fields[1]).map_err(of_second)? != span {
            return Err(both(Status::INVALID_FIELD.dnr()));
        }
        check_length(&pair.first, span).map_err(of_first)?;
        check_length(&pair.second, span).map_err(of_second)?;
        Ok((namespace, span))
    }

    /// Ends a pair in flight with `payload` bytes.
    pub(super) fn answer_fused(&self, pair: &FusedPair, statuses: [Status; 2], payload: usize) {
        self.answer_uncounted(&pair.first, statuses[0]);
        self.answer_uncounted(&pair.second, statuses[1]);
        self.release(payload);
    }

    /// Answers a half that is not counted as in flight by itself.
    fn answer_uncounted(&self, half: &Sqe, status: Status) {
        if status.is_success() {
            return self.respond(Cqe::new(half.cid.get(), status));
        }
        self.begin(0);
        self.fail(half, status, 0);
    }
}
