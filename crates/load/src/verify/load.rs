//! Verified workload: the I/Os of a job with stamped data, and the check of its reads.

use std::task::{Context, Poll};

use flagstone_runtime::{Buf, buf};

use super::journal::{JournalRecord, JournalWriter};
use super::verifier::{FlushTicket, ReadTicket, Verifier, WriteOutcome, WriteTicket};
use super::version::Content;
use super::violation::Violation;
use crate::lane::{IoOutcome, LaneWorkload, Next};
use crate::limits::VIOLATIONS_KEPT;
use crate::plan::{OpKind, Plan, PlannedIo};

/// Announcements of the I/O in flight in a slot.
#[derive(Default)]
struct Announced {
    writes: Vec<WriteTicket>,
    reads: Vec<ReadTicket>,
    flush: Option<FlushTicket>,
    /// Stamped data, kept for reuse.
    data: Option<Buf>,
}

/// Verified workload of one core, over its own blocks.
pub(crate) struct Verified {
    pub(crate) plan: Plan,
    pub(crate) verifier: Verifier,
    pub(crate) journal: Option<JournalWriter>,
    fua: bool,
    slots: Vec<Announced>,
    pub(crate) checked_blocks: u64,
    pub(crate) written_blocks: u64,
    pub(crate) violations: u64,
    pub(crate) first: Vec<Violation>,
}

impl Verified {
    pub(crate) fn new(
        plan: Plan,
        verifier: Verifier,
        journal: Option<JournalWriter>,
        fua: bool,
        depth: usize,
    ) -> Verified {
        Verified {
            plan,
            verifier,
            journal,
            fua,
            slots: (0..depth).map(|_| Announced::default()).collect(),
            checked_blocks: 0,
            written_blocks: 0,
            violations: 0,
            first: Vec::new(),
        }
    }

    /// Continues with another plan. Announcements left from the last one belong to abandoned I/Os.
    pub(crate) fn turn_to(&mut self, plan: Plan) {
        self.plan = plan;
        for announced in &mut self.slots {
            announced.reads.clear();
            for ticket in announced.writes.drain(..) {
                self.verifier.after_write(ticket, WriteOutcome::Unknown);
            }
            if let Some(ticket) = announced.flush.take() {
                self.verifier.after_flush(ticket, false);
            }
        }
    }

    /// A flush is about to be issued.
    pub(crate) fn flush_begins(&mut self) -> FlushTicket {
        let ticket = self.verifier.before_flush();
        self.record(JournalRecord::FlushBegan(ticket.id()));
        ticket
    }

    pub(crate) fn flush_ended(&mut self, ticket: FlushTicket, completed: bool) {
        if completed {
            self.record(JournalRecord::FlushDone(ticket.id()));
        }
        self.verifier.after_flush(ticket, completed);
    }

    fn record(&mut self, record: JournalRecord) {
        if let Some(journal) = &mut self.journal {
            journal.append(record);
        }
    }

    /// Block numbers of `op` in the verifier.
    fn blocks(&self, op: &PlannedIo) -> std::ops::Range<u64> {
        let config = self.verifier.config();
        let block_bytes = u64::from(config.block_bytes);
        let first = (op.offset - config.offset_bytes) / block_bytes;
        first..first + op.len as u64 / block_bytes
    }

    /// Announces `op` to the verifier. False if a block has no generations left.
    fn announce(&mut self, slot: usize, op: &PlannedIo) -> bool {
        if op.kind == OpKind::Flush {
            self.slots[slot].flush = Some(self.flush_begins());
            return true;
        }
        let blocks = self.blocks(op);
        match op.kind {
            OpKind::Write => {
                if blocks.clone().any(|block| self.verifier.is_exhausted(block)) {
                    return false;
                }
                let tickets =
                    blocks.map(|block| self.verifier.before_write(block, Content::Stamps));
                self.slots[slot].writes.extend(tickets);
            }
            OpKind::Read => {
                let tickets = blocks.map(|block| self.verifier.before_read(block));
                self.slots[slot].reads.extend(tickets);
            }
            OpKind::Flush | OpKind::Trim => unreachable!("a verified job reads and writes"),
        }
        true
    }

    fn check(&mut self, slot: usize, bytes: &[u8]) {
        let block_bytes = self.verifier.config().block_bytes as usize;
        let tickets = self.slots[slot].reads.drain(..);
        for (ticket, block) in tickets.zip(bytes.chunks_exact(block_bytes)) {
            self.checked_blocks += 1;
            if let Err(violation) = self.verifier.check_read(ticket, block) {
                self.violations += 1;
                if self.first.len() < VIOLATIONS_KEPT {
                    self.first.push(violation);
                }
            }
        }
    }

    fn write_ended(&mut self, slot: usize, op: &PlannedIo, completed: bool) {
        let outcome = match (completed, self.fua) {
            (false, _) => WriteOutcome::Unknown,
            (true, false) => WriteOutcome::Done,
            (true, true) => WriteOutcome::Durable,
        };
        for ticket in self.slots[slot].writes.drain(..) {
            self.verifier.after_write(ticket, outcome);
        }
        if !completed {
            return;
        }
        let blocks = self.blocks(op);
        self.written_blocks += blocks.end - blocks.start;
        if let Some(journal) = &mut self.journal {
            let durable = self.fua || !self.verifier.config().volatile_cache;
            for block in blocks {
                let oldest = self.verifier.oldest_generation(block);
                journal.append(JournalRecord::Completed { block: block as u32, oldest });
                if durable {
                    let oldest = self.verifier.durable_generation(block);
                    journal.append(JournalRecord::Durable { block: block as u32, oldest });
                }
            }
        }
    }
}

impl LaneWorkload for Verified {
    fn next(&mut self, slot: usize) -> Next {
        if let Some(journal) = &self.journal {
            if journal.has_failed() {
                return Next::End;
            }
            if journal.is_full() {
                return Next::Wait;
            }
        }
        match self.plan.next() {
            Some(op) if self.announce(slot, &op) => Next::Io(op),
            _ => Next::End,
        }
    }

    fn payload(&mut self, slot: usize, op: &PlannedIo) -> Option<Buf> {
        let kept = self.slots[slot].data.take().and_then(|data| data.try_into_mut().ok());
        let mut data = match kept.filter(|data| data.len() == op.len) {
            Some(data) => data,
            None => buf::try_alloc(op.len)?,
        };
        let block_bytes = self.verifier.config().block_bytes as usize;
        let blocks = data.chunks_exact_mut(block_bytes);
        for (ticket, block) in self.slots[slot].writes.iter().zip(blocks) {
            self.verifier.fill(ticket, block);
        }
        let data = data.freeze();
        self.slots[slot].data = Some(data.clone());
        Some(data)
    }

    fn ended(&mut self, slot: usize, op: &PlannedIo, outcome: IoOutcome<'_>) {
        match (op.kind, outcome) {
            (OpKind::Read, IoOutcome::Read(bytes)) => self.check(slot, bytes),
            (OpKind::Read, _) => self.slots[slot].reads.clear(),
            (OpKind::Write, outcome) => {
                self.write_ended(slot, op, matches!(outcome, IoOutcome::Done));
            }
            (_, outcome) => {
                if let Some(ticket) = self.slots[slot].flush.take() {
                    self.flush_ended(ticket, matches!(outcome, IoOutcome::Done));
                }
            }
        }
    }

    fn violations(&self) -> u64 {
        self.violations
    }

    fn poll_side(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.journal.as_mut().map_or(Poll::Ready(()), |journal| journal.poll(cx))
    }
}
