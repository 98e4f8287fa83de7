//! Data lines: the content that hosts of each node may read.
//!
//! Invariants:
//! - Both nodes share one line from the moment at which one of them has the other's data, even
//!   before the other learns of it. They have two lines from the moment at which one serves
//!   although the other may serve too.
//! - A run fails when a line is discarded whose hosts had acknowledged writes in it.

use std::rc::Rc;

use flagstone_mirror::Mode;
use flagstone_mirror::id::Generation;
use flagstone_mirror::ondisk::superblock::{ReplicaRole, Superblock};
use flagstone_mirror::state::status::MirrorState;

use super::super::link::Stage;
use super::{Cluster, World};
use crate::model::Shared;

/// Content that hosts of one node may read.
pub(crate) struct Line {
    pub(crate) model: Shared,
    /// Time, in the model's clock, at which the line separated from the other.
    base: u64,
    /// Generation on the node's disk at the separation.
    parted_at: Generation,
    /// The node has bumped its generation since the separation.
    bumped: bool,
}

impl Line {
    pub(super) fn new(model: Shared, base: u64) -> Line {
        Line { model, base, parted_at: Generation::NONE, bumped: false }
    }

    /// True when discarding the line silently would lose acknowledged writes. An asynchronous
    /// source that had not yet noticed the loss of its peer guarantees only its own disk.
    fn has_promised(&self, mode: Mode) -> bool {
        self.model.has_promised_since(self.base) && (mode == Mode::Sync || self.bumped)
    }
}

impl World {
    /// State of a serving node; `None` when it does not serve.
    pub(super) fn state(&self, index: usize) -> Option<MirrorState> {
        let mirror = self.mirrors.borrow()[index].clone()?;
        mirror.is_serving().then(|| mirror.state(0))
    }

    /// Merges the lines when this node reports a state in which the other has caught up.
    pub(super) fn reconcile(&self, index: usize) {
        let other = self.mirrors.borrow()[1 - index].clone();
        // A source may still report this because it has not yet learned of the change.
        let attached = other.is_some_and(|mirror| mirror.has_source());
        if !attached || self.state(index) != Some(MirrorState::Mirroring) {
            return;
        }
        self.take_over(1 - index);
    }

    /// Records the end of a resync of this node. It has the other's data from the moment at which
    /// that is on its disk, before the other learns of it. Both may separate again before the next
    /// observation. The generation does not show it later: without degraded writes, none was
    /// bumped.
    pub(super) fn ends_resync(&self, index: usize, generation: Generation, stage: Stage) {
        self.adopting[index].set((stage == Stage::Begins).then_some(generation));
        if stage == Stage::Done {
            self.take_over(index);
        }
    }

    /// Gives the node the other's line: hosts may read the same content there.
    fn take_over(&self, index: usize) {
        self.lost_power[index].set(false);
        let mut lines = self.lines.borrow_mut();
        if !lines[index].model.is(&lines[1 - index].model) {
            let lost = lines[index].has_promised(self.mode);
            assert!(!lost, "acknowledged writes of node {index} are discarded");
            let model = lines[1 - index].model.clone();
            let base = model.moment();
            lines[1 - index].base = base;
            lines[index] = Line::new(model, base);
        }
    }
}

impl Cluster {
    /// Merges lines whose nodes have the same data.
    pub(crate) fn reconcile(&self) {
        (0..2).for_each(|index| self.world.reconcile(index));
    }

    /// Checks that mirroring nodes use the same generation for their data.
    fn assert_one_name(&self) {
        for index in 0..2 {
            let attached = self.mirror(1 - index).is_some_and(|mirror| mirror.has_source());
            let fails = self.mirror(index).is_some_and(|mirror| mirror.has_failed());
            if !attached || fails || self.state(index) != Some(MirrorState::Mirroring) {
                continue;
            }
            let [source, target] = [index, 1 - index].map(|node| self.superblock(node));
            let (Some(source), Some(target)) = (source, target) else { continue };
            // A node that is asked to run degraded bumps its generation before its source learns of
            // it.
            let one = source.current == target.current || target.history.contains(source.current);
            assert!(one, "in sync with two generations\n{}", self.describe());
        }
    }

    /// Separates the lines: the node is about to serve although the other may serve too.
    pub(crate) fn part(&self, index: usize) {
        self.reconcile();
        // A target that takes over because the source's disk failed keeps no log. Its generation
        // history has the starting point.
        let before = self.superblock(index).map(|mine| mine.current);
        let outdated = self.superblock(1 - index).is_some_and(|other| {
            other.peers.iter().any(|peer| !peer.bases.is_empty())
                || before.is_some_and(|before| other.history.contains(before))
        });
        // A target that has adopted the source's generation has all of its data, even if the source
        // has not learned of it.
        let found = [index, 1 - index].map(|node| self.superblock(node));
        let adopted = matches!(&found, [Some(mine), Some(others)]
            if mine.current == others.current && !mine.flags.inconsistent);
        let mut lines = self.world.lines.borrow_mut();
        if !lines[index].model.is(&lines[1 - index].model) && !adopted {
            return;
        }
        let model = lines[1 - index].model.fork();
        if outdated || self.kind.mode == Mode::Async {
            model.forget();
        }
        lines[1 - index].base = lines[1 - index].model.moment();
        lines[index] = Line::new(model, 0);
        for (node, line) in lines.iter_mut().enumerate() {
            let found = self.superblock(node);
            line.parted_at = found.map_or(Generation::NONE, |found| found.current);
            // Earlier generations belong to the common line.
            line.bumped = false;
        }
    }

    /// Detects a target that recorded itself as in sync but has not answered yet.
    pub(super) fn notice_adoption(&self, index: usize) {
        let (asked, found) = (self.world.adopting[index].get(), self.superblock(index));
        let whole =
            |found: &Rc<Superblock>| Some(found.current) == asked && !found.flags.inconsistent;
        if asked.is_some() && found.as_ref().is_some_and(whole) {
            self.world.take_over(index);
        }
    }

    /// Detects targets that adopted the source's generation after the lines separated. They have
    /// the source's data, even if the source never learns of it.
    fn notice_targets(&self) {
        for index in 0..2 {
            let [mine, source] = [index, 1 - index].map(|node| self.superblock(node));
            let (Some(mine), Some(source)) = (mine, source) else { continue };
            let has = mine.current == source.current && !mine.flags.inconsistent;
            let roles = (mine.role, source.role) == (ReplicaRole::Target, ReplicaRole::Source);
            let active = self.state(index).is_some();
            let parted_at = {
                let lines = self.world.lines.borrow();
                let two = !lines[0].model.is(&lines[1].model);
                two.then_some(lines[index].parted_at)
            };
            if has && roles && !active && parted_at.is_some_and(|parted| parted != mine.current) {
                self.world.take_over(index);
            }
        }
    }

    /// Detects generations that nodes have bumped since the separation.
    pub(crate) fn watch(&self) {
        self.assert_one_name();
        self.copy_logs();
        (0..2).for_each(|index| self.notice_adoption(index));
        self.notice_targets();
        let found = [0, 1].map(|node| self.superblock(node));
        let names = found.each_ref().map(|found| found.as_ref().map(|found| found.current));
        let mut lines = self.world.lines.borrow_mut();
        for (node, line) in lines.iter_mut().enumerate() {
            // A full resync to the node gave it a temporary generation that identifies no data.
            let is_copied_to = found[node].as_ref().is_some_and(|found| found.flags.inconsistent);
            let (mine, others) = (names[node], names[1 - node]);
            line.bumped |= !is_copied_to && mine != Some(line.parted_at) && mine != others;
        }
    }

    /// Records that the operator discarded a node's data.
    pub(crate) fn discard_line(&self, index: usize) {
        let mut lines = self.world.lines.borrow_mut();
        let (model, base) = (lines[1 - index].model.clone(), lines[1 - index].base);
        lines[index] = Line::new(model, base);
    }
}
