//! History of the blocks of several volumes: which write a read may return.
//!
//! Each write of a block has a number, greater than all before, and no two writes of a block are
//! in flight at the same time. A write that failed, or whose node died, may have taken effect or
//! not, until a later write of the block completes.

use std::cell::{Cell, RefCell};

#[derive(Clone, Debug, Default)]
struct Block {
    /// Writes of which the block may show one: the last completed one, and writes of unknown
    /// outcome since. Empty for the initial content, 0.
    may_show: Vec<u64>,
    /// Write in flight, and the node that it goes through.
    writing: Option<(u64, usize)>,
}

impl Block {
    fn allows(&self, number: u64) -> bool {
        self.may_show.contains(&number)
            || self.writing.is_some_and(|(writing, _)| writing == number)
    }
}

/// What a read that begins now may return.
pub(super) struct ReadBegun {
    block: usize,
    may_show: Vec<u64>,
    writing: Option<u64>,
    last: u64,
}

pub(super) struct History {
    blocks: RefCell<Vec<Block>>,
    last: Cell<u64>,
    pub(super) checks: Cell<u64>,
    pub(super) completed: Cell<u64>,
}

impl History {
    pub(super) fn new(blocks: usize) -> History {
        let block = Block { may_show: vec![0], writing: None };
        History {
            blocks: RefCell::new(vec![block; blocks]),
            last: Cell::new(0),
            checks: Cell::new(0),
            completed: Cell::new(0),
        }
    }

    /// Number of a new write of this block through a node; `None` while another one is in flight.
    pub(super) fn begin_write(&self, block: usize, node: usize) -> Option<u64> {
        let number = self.last.get() + 1;
        let own = &mut self.blocks.borrow_mut()[block];
        if own.writing.is_some() {
            return None;
        }
        own.writing = Some((number, node));
        self.last.set(number);
        Some(number)
    }

    /// Ends a write. `done`: it completed; otherwise its outcome is unknown.
    pub(super) fn end_write(&self, block: usize, number: u64, done: bool) {
        let own = &mut self.blocks.borrow_mut()[block];
        if own.writing.take_if(|(writing, _)| *writing == number).is_none() {
            return;
        }
        if done {
            own.may_show.clear();
            self.completed.set(self.completed.get() + 1);
        }
        own.may_show.push(number);
    }

    /// The process of a node has ended: the outcome of its writes is unknown.
    pub(super) fn abandon(&self, node: usize) {
        for own in self.blocks.borrow_mut().iter_mut() {
            if let Some((number, _)) = own.writing.take_if(|(_, through)| *through == node) {
                own.may_show.push(number);
            }
        }
    }

    pub(super) fn begin_read(&self, block: usize) -> ReadBegun {
        let own = self.blocks.borrow()[block].clone();
        let writing = own.writing.map(|(number, _)| number);
        ReadBegun { block, may_show: own.may_show, writing, last: self.last.get() }
    }

    /// Checks the number that a read returned.
    pub(super) fn end_read(&self, read: &ReadBegun, number: u64) -> Result<(), String> {
        self.checks.set(self.checks.get() + 1);
        let own = &mut self.blocks.borrow_mut()[read.block];
        let is_later = number > read.last && number <= self.last.get();
        let overlaps = is_later || read.writing == Some(number);
        if !read.may_show.contains(&number) && !overlaps {
            return Err(format!(
                "block {} shows write {number}, and may show {:?}",
                read.block, read.may_show
            ));
        }
        // What has been read does not change any more, unless it is written.
        if own.writing.is_none() && read.may_show == own.may_show {
            own.may_show = vec![number];
        }
        Ok(())
    }

    /// Checks the numbers that all blocks show when no write is in flight.
    pub(super) fn check(&self, found: &[u64]) -> Result<(), String> {
        for (block, (own, number)) in self.blocks.borrow().iter().zip(found).enumerate() {
            if !own.allows(*number) {
                return Err(format!("block {block} shows write {number}, and may show {own:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_read_and_lost_write_are_found() {
        let history = History::new(2);
        let first = history.begin_write(0, 0).expect("free");
        assert_eq!(history.begin_write(0, 1), None);
        let early = history.begin_read(0);
        history.end_write(0, first, true);
        assert_eq!(history.end_read(&early, 0), Ok(()), "it overlaps the write");
        assert_eq!(history.end_read(&early, first), Ok(()), "it overlaps the write");
        let late = history.begin_read(0);
        assert!(history.end_read(&late, 0).is_err(), "stale");
        assert!(history.check(&[0, 0]).is_err(), "lost");
        let unknown = history.begin_write(0, 1).expect("free");
        history.abandon(1);
        assert_eq!(history.check(&[unknown, 0]), Ok(()));
        assert_eq!(history.end_read(&history.begin_read(0), unknown), Ok(()));
        assert!(history.end_read(&history.begin_read(0), first).is_err(), "it has been read");
    }
}
