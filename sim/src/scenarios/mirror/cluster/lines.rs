//! What the hosts of each node may read.
//!
//! Promises:
//! - both nodes have one line from the moment on at which one of them has the other's data, whether
//!   or not anybody has heard of it, and two from the moment on at which one serves though the other
//!   may;
//! - a run in which a line is given up fails, if its hosts were promised what was in it.

use flagstone_mirror::Mode;
use flagstone_mirror::format::superblock::{Role, Superblock};
use flagstone_mirror::id::Generation;
use flagstone_mirror::state::MirrorState;

use super::super::link::Stage;
use super::{Cluster, World};
use crate::model::Shared;

/// What hosts of one node may read.
pub(crate) struct Line {
    pub(crate) model: Shared,
    /// The moment, in the model's time, at which it parted from the other's.
    base: u64,
    /// Generation on the node's disk when it parted.
    parted_at: Generation,
    /// The node was seen with a generation of its own since.
    minted: bool,
}

impl Line {
    pub(super) fn new(model: Shared, base: u64) -> Line {
        Line { model, base, parted_at: Generation::NONE, minted: false }
    }

    /// Something that must not be given up silently. An asynchronous source that had not noticed
    /// yet that it was alone had promised no more than its own disk.
    fn has_promised(&self, mode: Mode) -> bool {
        self.model.has_promised_since(self.base) && (mode == Mode::Sync || self.minted)
    }
}

impl World {
    /// The state that an active node shows; none when it serves nobody.
    pub(super) fn state(&self, index: usize) -> Option<MirrorState> {
        let mirror = self.mirrors.borrow()[index].clone()?;
        mirror.is_active().then(|| mirror.state(0))
    }

    /// Both lines are one when this node says so, with which the other has caught up.
    pub(super) fn reconcile(&self, index: usize) {
        let other = self.mirrors.borrow()[1 - index].clone();
        // A source that has not heard of it yet may think so still.
        let attached = other.is_some_and(|mirror| mirror.has_source());
        if !attached || self.state(index) != Some(MirrorState::Mirroring) {
            return;
        }
        self.take_over(1 - index);
    }

    /// The other node ends a resync of this one, which has its data from the moment on at which that
    /// is on its disk: before the other has heard of it, and though both may be apart again before
    /// anybody looks. The generation does not tell it later: where nothing was written without the
    /// other none was minted.
    pub(super) fn ends_resync(&self, index: usize, generation: Generation, stage: Stage) {
        self.adopting[index].set((stage == Stage::Begins).then_some(generation));
        if stage == Stage::Done {
            self.take_over(index);
        }
    }

    /// The node has the other's data: hosts may read there what they may read here.
    fn take_over(&self, index: usize) {
        self.lossy[index].set(false);
        let mut lines = self.lines.borrow_mut();
        if !lines[index].model.is(&lines[1 - index].model) {
            let lost = lines[index].has_promised(self.mode);
            assert!(!lost, "what the hosts of node {index} were promised is given up");
            let model = lines[1 - index].model.clone();
            let base = model.moment();
            lines[1 - index].base = base;
            lines[index] = Line::new(model, base);
        }
    }
}

impl Cluster {
    /// Lines that have become one are one.
    pub(crate) fn reconcile(&self) {
        (0..2).for_each(|index| self.world.reconcile(index));
    }

    /// Who mirrors calls the data of both by one name.
    fn assert_one_name(&self) {
        for index in 0..2 {
            let attached = self.mirror(1 - index).is_some_and(|mirror| mirror.has_source());
            let fails = self.mirror(index).is_some_and(|mirror| mirror.has_failed());
            if !attached || fails || self.state(index) != Some(MirrorState::Mirroring) {
                continue;
            }
            let [source, target] = [index, 1 - index].map(|node| self.superblock(node));
            let (Some(source), Some(target)) = (source, target) else { continue };
            // One that is asked to go on alone has a name of its own before its source hears of it.
            let one = source.current == target.current || target.history.contains(source.current);
            assert!(one, "in sync under two names\n{}", self.describe());
        }
    }

    /// The node is about to serve though the other may: from now on their data may differ.
    pub(crate) fn part(&self, index: usize) {
        self.reconcile();
        // A target that its source had to go on alone, when the source's disk failed, keeps no log:
        // what it went on from is in its history.
        let before = self.superblock(index).map(|mine| mine.current);
        let outdated = self.superblock(1 - index).is_some_and(|other| {
            other.peers.iter().any(|peer| !peer.bases.is_empty())
                || before.is_some_and(|before| other.history.contains(before))
        });
        // A target that has taken over the source's generation has all of it, though the source
        // may not have heard of that.
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
            // What was minted before is of the one line that there was.
            line.minted = false;
        }
    }

    /// Notices a target that has noted that it is whole, and has not answered.
    pub(super) fn notice_adoption(&self, index: usize) {
        let (asked, found) = (self.world.adopting[index].get(), self.superblock(index));
        let whole = |found: &Superblock| Some(found.current) == asked && !found.flags.inconsistent;
        if asked.is_some() && found.as_ref().is_some_and(whole) {
            self.world.take_over(index);
        }
    }

    /// Notices targets that have taken over the source's generation since the lines parted: with it
    /// they have its data, though the source may never hear of it.
    fn notice_targets(&self) {
        for index in 0..2 {
            let [mine, source] = [index, 1 - index].map(|node| self.superblock(node));
            let (Some(mine), Some(source)) = (mine, source) else { continue };
            let has = mine.current == source.current && !mine.flags.inconsistent;
            let roles = (mine.role, source.role) == (Role::Target, Role::Source);
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

    /// Notices generations that nodes have minted since they parted.
    pub(crate) fn watch(&self) {
        self.assert_one_name();
        self.copy_logs();
        (0..2).for_each(|index| self.notice_adoption(index));
        self.notice_targets();
        let found = [0, 1].map(|node| self.superblock(node));
        let names = found.each_ref().map(|found| found.as_ref().map(|found| found.current));
        let mut lines = self.world.lines.borrow_mut();
        for (node, line) in lines.iter_mut().enumerate() {
            // A full resync to it has given it a name that is nobody's data.
            let is_copied_to = found[node].as_ref().is_some_and(|found| found.flags.inconsistent);
            let (mine, others) = (names[node], names[1 - node]);
            line.minted |= !is_copied_to && mine != Some(line.parted_at) && mine != others;
        }
    }

    /// The operator has given up what is on a node.
    pub(crate) fn give_up(&self, index: usize) {
        let mut lines = self.world.lines.borrow_mut();
        let (model, base) = (lines[1 - index].model.clone(), lines[1 - index].base);
        lines[index] = Line::new(model, base);
    }
}
