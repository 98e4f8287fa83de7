//! Error log of one controller: recently failed commands, newest first (Base 5.1.12.1.2).

use std::collections::VecDeque;

use flagstone_nvme::command::Sqe;
use flagstone_nvme::log::ErrorEntry;
use flagstone_nvme::log::discovery::Transport;
use flagstone_nvme::status::Status;
use flagstone_nvme::wire::{U16, U32, U64};

use crate::limits::ERROR_LOG_ENTRIES;

/// Ring of the most recent errors.
#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    entries: VecDeque<ErrorEntry>,
    count: u64,
}

impl ErrorLog {
    /// Records that `command` of queue `qid` failed with `status`. `block` is the first
    /// failed block, or 0; `result` the command specific information, or 0. The invalid byte of the
    /// command is never reported.
    pub(super) fn add(&mut self, qid: u16, command: &Sqe, status: Status, block: u64, result: u64) {
        self.count = self.count.saturating_add(1);
        self.entries.truncate(ERROR_LOG_ENTRIES - 1);
        self.entries.push_front(ErrorEntry {
            error_count: U64::new(self.count),
            sqid: U16::new(qid),
            cid: command.cid,
            status_phase: U16::new(status.to_cqe()),
            parameter_location: U16::new(ErrorEntry::NONE),
            block: U64::new(block),
            nsid: U32::new(if command.fabrics_type().is_some() { 0 } else { command.nsid.get() }),
            transport: Transport::TCP.0,
            opcode: command.opcode,
            command_specific: U64::new(result),
            version: 1,
            ..ErrorEntry::default()
        });
    }

    /// The entries, newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ErrorEntry> {
        self.entries.iter()
    }

    /// Errors recorded so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_entries_are_kept() {
        let mut log = ErrorLog::default();
        let command = Sqe::keep_alive(7);
        for _ in 0..ERROR_LOG_ENTRIES + 3 {
            log.add(0, &command, Status::INVALID_FIELD.dnr(), 0, 9);
        }
        let counts: Vec<u64> = log.iter().map(|entry| entry.error_count.get()).collect();
        assert_eq!(counts.len(), ERROR_LOG_ENTRIES);
        assert_eq!((counts[0], counts[1]), (67, 66));
        let newest = log.iter().next().unwrap();
        assert_eq!(newest.status(), Status::INVALID_FIELD.dnr());
        assert_eq!(newest.command_specific.get(), 9);
        assert_eq!(log.count(), 67);
    }
}
