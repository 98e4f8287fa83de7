//! Range table: decides which calls may access their bytes now. No locks, tasks or clocks.
//!
//! Guarantees:
//! - two overlapping writes never run at the same time and run in order of arrival. Writes that do
//!   not overlap never wait for each other: bytes are compared, not chunks;
//! - a read waits for earlier overlapping writes, and no call waits for a read;
//! - every call waits only for earlier calls, so the oldest always runs. There is no deadlock and
//!   no starvation;
//! - the time to enter and to leave grows with the logarithm of the number of calls, and with the
//!   number of overlapping ones.
//!
//! Each call counts the earlier calls that block it, and a call that ends decrements those counts.
//! The calls are an interval tree: an AVL tree ordered by start, in which each node knows the
//! largest end below it. Nodes are reused, so the steady state allocates nothing.

use std::task::Waker;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeAccess {
    Read,
    Write,
    /// Copies or compares it for the mirror itself. Blocks like a write.
    Copy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallNumber {
    /// Order of arrival. Never reused.
    number: u64,
    /// Index of its node.
    node: u32,
}

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node {
    number: u64,
    start: u64,
    end: u64,
    access: RangeAccess,
    /// Earlier overlapping calls that have not ended.
    blockers: u32,
    waker: Option<Waker>,
    /// Children, or the next free node in `left`.
    left: u32,
    right: u32,
    /// Of the subtree.
    height: u8,
    /// Largest end in the subtree.
    end_max: u64,
}

/// Calls with the ranges that they use.
#[derive(Debug)]
pub(crate) struct RangeTable {
    nodes: Vec<Node>,
    root: u32,
    free: u32,
    next: u64,
    /// Host calls: all except copies, and except reads that were granted at once.
    host_calls: usize,
    /// Host calls that wait.
    host_calls_waiting: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeDecision {
    /// It may run. A write has to [`RangeTable::leave`] at its end; a read need not.
    Granted(CallNumber),
    /// It waits until [`RangeTable::is_granted`].
    Blocked(CallNumber),
}

impl Default for RangeTable {
    fn default() -> RangeTable {
        let nodes = Vec::new();
        RangeTable { nodes, root: NONE, free: NONE, next: 0, host_calls: 0, host_calls_waiting: 0 }
    }
}

impl RangeTable {
    /// Enters a call for `start..end`, which is not empty.
    pub(crate) fn enter(&mut self, start: u64, end: u64, access: RangeAccess) -> RangeDecision {
        assert!(start < end, "the range is not empty");
        let mut blockers = 0;
        each_overlap(&mut self.nodes, self.root, (start, end), &mut |node| {
            blockers += u32::from(node.access != RangeAccess::Read);
        });
        let number = self.next;
        if blockers == 0 && access == RangeAccess::Read {
            return RangeDecision::Granted(CallNumber { number, node: NONE });
        }
        self.next += 1;
        let node = self.place(Node {
            number,
            start,
            end,
            access,
            blockers,
            waker: None,
            left: NONE,
            right: NONE,
            height: 1,
            end_max: end,
        });
        self.root = self.insert(self.root, node);
        if access != RangeAccess::Copy {
            self.host_calls += 1;
            self.host_calls_waiting += usize::from(blockers > 0);
        }
        let number = CallNumber { number, node };
        match blockers {
            0 => RangeDecision::Granted(number),
            _ => RangeDecision::Blocked(number),
        }
    }

    fn find(&mut self, call: CallNumber) -> Option<&mut Node> {
        let found = |node: &&mut Node| node.number == call.number && node.height > 0;
        self.nodes.get_mut(call.node as usize).filter(found)
    }

    /// True once the call may run. Otherwise `waker` is woken when it may.
    pub(crate) fn is_granted(&mut self, call: CallNumber, waker: &Waker) -> bool {
        let Some(node) = self.find(call) else { return true };
        if node.blockers == 0 {
            return true;
        }
        match &mut node.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        false
    }

    /// Removes a call. The wakers of calls that may run now are passed to `wake`.
    pub(crate) fn leave(&mut self, call: CallNumber, mut wake: impl FnMut(Waker)) {
        let Some(left) = self.find(call) else { return };
        let (range, access, waits) = ((left.start, left.end), left.access, left.blockers > 0);
        self.root = self.remove(self.root, call.node);
        self.release(call.node);
        if access != RangeAccess::Copy {
            self.host_calls -= 1;
            self.host_calls_waiting -= usize::from(waits);
        }
        if access == RangeAccess::Read {
            return;
        }
        let mut granted = 0;
        each_overlap(&mut self.nodes, self.root, range, &mut |node| {
            if node.number < call.number {
                return;
            }
            node.blockers -= 1;
            if node.blockers == 0 {
                granted += usize::from(node.access != RangeAccess::Copy);
                node.waker.take().into_iter().for_each(&mut wake);
            }
        });
        self.host_calls_waiting -= granted;
    }

    /// Host calls in the table: all except reads that were granted at once.
    pub(crate) fn len(&self) -> usize {
        self.host_calls
    }

    pub(crate) fn waiting(&self) -> usize {
        self.host_calls_waiting
    }
}

/// Calls `visit` for each node of a subtree that overlaps a range, by increasing start.
fn each_overlap(
    nodes: &mut [Node],
    at: u32,
    (start, end): (u64, u64),
    visit: &mut impl FnMut(&mut Node),
) {
    let Some(Node { left, right, end_max, .. }) = nodes.get(at as usize) else { return };
    let (left, right) = (*left, *right);
    if *end_max <= start {
        return;
    }
    each_overlap(nodes, left, (start, end), visit);
    let node = &mut nodes[at as usize];
    if node.start >= end {
        return;
    }
    if node.end > start {
        visit(node);
    }
    each_overlap(nodes, right, (start, end), visit);
}

/// The tree. Its depth is at most 1.44 times the logarithm of the number of calls.
impl RangeTable {
    fn place(&mut self, node: Node) -> u32 {
        let Some(place) = self.nodes.get_mut(self.free as usize) else {
            self.nodes.push(node);
            return self.nodes.len() as u32 - 1;
        };
        let at = std::mem::replace(&mut self.free, place.left);
        *place = node;
        at
    }

    fn release(&mut self, at: u32) {
        let free = self.free;
        let node = self.node(at);
        (node.left, node.height, node.waker) = (free, 0, None);
        self.free = at;
    }

    fn node(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    fn key(&self, at: u32) -> (u64, u64) {
        let node = &self.nodes[at as usize];
        (node.start, node.number)
    }

    fn height(&self, at: u32) -> u8 {
        self.nodes.get(at as usize).map_or(0, |node| node.height)
    }

    fn end_max(&self, at: u32) -> u64 {
        self.nodes.get(at as usize).map_or(0, |node| node.end_max)
    }

    /// Recomputes what a node knows of its subtree.
    fn update(&mut self, at: u32) {
        let Node { left, right, end, .. } = *self.node(at);
        let height = 1 + self.height(left).max(self.height(right));
        let end_max = end.max(self.end_max(left)).max(self.end_max(right));
        let node = self.node(at);
        (node.height, node.end_max) = (height, end_max);
    }

    /// Moves the right child of `at` above it; returns that child.
    fn rotate_left(&mut self, at: u32) -> u32 {
        let above = self.node(at).right;
        self.node(at).right = self.node(above).left;
        self.node(above).left = at;
        self.update(at);
        self.update(above);
        above
    }

    /// Moves the left child of `at` above it; returns that child.
    fn rotate_right(&mut self, at: u32) -> u32 {
        let above = self.node(at).left;
        self.node(at).left = self.node(above).right;
        self.node(above).right = at;
        self.update(at);
        self.update(above);
        above
    }

    /// Restores the balance of a node whose children are balanced; returns the new top.
    fn balance(&mut self, at: u32) -> u32 {
        let Node { left, right, .. } = *self.node(at);
        if self.height(left) > self.height(right) + 1 {
            let Node { left: outer, right: inner, .. } = *self.node(left);
            if self.height(inner) > self.height(outer) {
                self.node(at).left = self.rotate_left(left);
            }
            return self.rotate_right(at);
        }
        if self.height(right) > self.height(left) + 1 {
            let Node { left: inner, right: outer, .. } = *self.node(right);
            if self.height(inner) > self.height(outer) {
                self.node(at).right = self.rotate_right(right);
            }
            return self.rotate_left(at);
        }
        self.update(at);
        at
    }

    /// Inserts a node into the subtree `at`; returns its new top.
    fn insert(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            return new;
        }
        let Node { left, right, .. } = *self.node(at);
        if self.key(new) < self.key(at) {
            self.node(at).left = self.insert(left, new);
        } else {
            self.node(at).right = self.insert(right, new);
        }
        self.balance(at)
    }

    /// Removes a node from the subtree `at`, which contains it; returns its new top.
    fn remove(&mut self, at: u32, old: u32) -> u32 {
        let Node { left, right, .. } = *self.node(at);
        if at == old {
            if left == NONE || right == NONE {
                return if left == NONE { right } else { left };
            }
            let (rest, first) = self.remove_first(right);
            let node = self.node(first);
            (node.left, node.right) = (left, rest);
            return self.balance(first);
        }
        if self.key(old) < self.key(at) {
            self.node(at).left = self.remove(left, old);
        } else {
            self.node(at).right = self.remove(right, old);
        }
        self.balance(at)
    }

    /// Removes the first node of the subtree `at`; returns the new top, and that node.
    fn remove_first(&mut self, at: u32) -> (u32, u32) {
        let Node { left, right, .. } = *self.node(at);
        if left == NONE {
            return (right, at);
        }
        let (rest, first) = self.remove_first(left);
        self.node(at).left = rest;
        (self.balance(at), first)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_granted_now(ranges: &mut RangeTable, number: CallNumber) -> bool {
        ranges.is_granted(number, Waker::noop())
    }

    fn change(ranges: &mut RangeTable, start: u64, end: u64) -> (CallNumber, bool) {
        match ranges.enter(start, end, RangeAccess::Write) {
            RangeDecision::Granted(number) => (number, true),
            RangeDecision::Blocked(number) => (number, false),
        }
    }

    #[test]
    fn overlapping_writes_are_granted_in_order() {
        let mut ranges = RangeTable::default();
        let (first, _) = change(&mut ranges, 0, 8);
        let (adjacent, goes_now) = change(&mut ranges, 8, 16);
        assert!(goes_now, "adjacent to the first, not overlapping");
        let (second, goes_now) = change(&mut ranges, 4, 12);
        assert!(!goes_now);
        // It overlaps the second call, which came earlier, but not the first.
        let (third, goes_now) = change(&mut ranges, 10, 11);
        assert!(!goes_now && ranges.waiting() == 2);
        ranges.leave(first, |_| {});
        assert!(!is_granted_now(&mut ranges, second), "it waits for 8..16 too");
        ranges.leave(adjacent, |_| {});
        assert!(is_granted_now(&mut ranges, second) && !is_granted_now(&mut ranges, third));
        ranges.leave(second, |_| {});
        assert!(is_granted_now(&mut ranges, third));
        ranges.leave(third, |_| {});
        assert_eq!((ranges.len(), ranges.waiting()), (0, 0));
    }

    #[test]
    fn abandoned_call_unblocks_later_calls() {
        let mut ranges = RangeTable::default();
        let (first, _) = change(&mut ranges, 0, 8);
        let (second, _) = change(&mut ranges, 0, 16);
        let (third, _) = change(&mut ranges, 12, 16);
        ranges.leave(second, |_| {});
        assert!(is_granted_now(&mut ranges, third), "no earlier call overlaps any more");
        ranges.leave(first, |_| {});
        assert_eq!(ranges.len(), 1, "the third");
    }

    #[test]
    fn reads_wait_for_writes_but_block_nothing() {
        let mut ranges = RangeTable::default();
        assert!(matches!(ranges.enter(0, 4, RangeAccess::Read), RangeDecision::Granted(_)));
        let (first, goes_now) = change(&mut ranges, 0, 4);
        assert!(goes_now);
        let RangeDecision::Blocked(read) = ranges.enter(2, 3, RangeAccess::Read) else {
            panic!("the ranges overlap")
        };
        let (second, _) = change(&mut ranges, 2, 3);
        ranges.leave(first, |_| {});
        assert!(is_granted_now(&mut ranges, read) && is_granted_now(&mut ranges, second));
        ranges.leave(read, |_| {});
        assert!(is_granted_now(&mut ranges, second));
    }

    #[test]
    fn copies_block_calls_but_are_not_counted() {
        let mut ranges = RangeTable::default();
        let RangeDecision::Granted(copy) = ranges.enter(0, 8, RangeAccess::Copy) else {
            panic!("no other call is there")
        };
        assert_eq!((ranges.len(), ranges.waiting()), (0, 0));
        let (write, goes_now) = change(&mut ranges, 4, 12);
        assert!(!goes_now);
        let RangeDecision::Blocked(read) = ranges.enter(0, 4, RangeAccess::Read) else {
            panic!("the ranges overlap")
        };
        assert!(matches!(ranges.enter(8, 9, RangeAccess::Copy), RangeDecision::Blocked(_)));
        assert_eq!((ranges.len(), ranges.waiting()), (2, 2));
        ranges.leave(copy, |_| {});
        assert!(is_granted_now(&mut ranges, write) && is_granted_now(&mut ranges, read));
        assert_eq!((ranges.len(), ranges.waiting()), (2, 0));
    }

    /// Checks order, balance and what each node knows of its subtree. Returns the number of nodes.
    fn check_tree(ranges: &RangeTable, at: u32) -> usize {
        let Some(node) = ranges.nodes.get(at as usize) else { return 0 };
        let (left, right) = (node.left, node.right);
        assert!(left == NONE || ranges.key(left) < ranges.key(at));
        assert!(right == NONE || ranges.key(right) > ranges.key(at));
        let heights = [left, right].map(|child| ranges.height(child));
        assert!(heights[0].abs_diff(heights[1]) <= 1, "the tree is balanced");
        assert_eq!(node.height, 1 + heights[0].max(heights[1]));
        let ends = [left, right].map(|child| ranges.end_max(child));
        assert_eq!(node.end_max, node.end.max(ends[0]).max(ends[1]));
        1 + check_tree(ranges, left) + check_tree(ranges, right)
    }

    /// Thousands of calls in any order stay a shallow tree, whose nodes are reused.
    #[test]
    fn many_calls_form_a_shallow_tree() {
        let mut ranges = RangeTable::default();
        for offset in [0, 1, 5] {
            let calls: Vec<CallNumber> = (0..4096u64)
                .map(|index| change(&mut ranges, index * 8 + offset, index * 8 + offset + 2).0)
                .collect();
            assert_eq!((check_tree(&ranges, ranges.root), ranges.len()), (4096, 4096));
            assert!(ranges.height(ranges.root) <= 17, "1.44 times the logarithm");
            for index in 0..4096 {
                ranges.leave(calls[index * 1789 % 4096], |_| {});
            }
            assert_eq!((ranges.root, ranges.len(), ranges.nodes.len()), (NONE, 0, 4096));
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter(u64, u64, bool),
        /// A running call ends, or a waiting call is abandoned.
        Leave(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..40, 1u64..12, any::<bool>()).prop_map(|(start, len, read)| Step::Enter(
                start,
                start + len,
                read
            )),
            any::<usize>().prop_map(Step::Leave),
        ]
    }

    proptest! {
        /// At every moment, a call may run exactly when no earlier write in the table overlaps it.
        #[test]
        fn grants_match_model(steps in prop::collection::vec(any_step(), 0..80)) {
            let mut ranges = RangeTable::default();
            let mut model: Vec<(CallNumber, u64, u64, RangeAccess)> = Vec::new();
            for step in steps {
                match step {
                    Step::Enter(start, end, read) => {
                        let access = if read { RangeAccess::Read } else { RangeAccess::Write };
                        match ranges.enter(start, end, access) {
                            RangeDecision::Granted(_) if read => {}
                            RangeDecision::Granted(number) | RangeDecision::Blocked(number) => {
                                model.push((number, start, end, access));
                            }
                        }
                    }
                    Step::Leave(which) if !model.is_empty() => {
                        let (number, ..) = model.remove(which % model.len());
                        ranges.leave(number, |_| {});
                    }
                    Step::Leave(_) => {}
                }
                prop_assert_eq!(check_tree(&ranges, ranges.root), model.len());
                let mut waiting = 0;
                for (index, (number, start, end, _)) in model.iter().enumerate() {
                    let blocked = model[..index].iter().any(|(_, from, to, access)| {
                        *access == RangeAccess::Write && from < end && start < to
                    });
                    waiting += usize::from(blocked);
                    prop_assert_eq!(is_granted_now(&mut ranges, *number), !blocked);
                }
                prop_assert_eq!((ranges.len(), ranges.waiting()), (model.len(), waiting));
                let oldest = model.first().map(|call| call.0);
                prop_assert!(oldest.is_none_or(|oldest| is_granted_now(&mut ranges, oldest)));
            }
        }
    }
}
