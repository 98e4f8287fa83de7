//! Check: recovered content must be a prefix of the history, and include every durable step.

use super::*;

/// Content of a writer's region, or names and sizes of the volumes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    Blocks(Vec<u64>),
    Volumes(BTreeMap<String, u64>),
}

/// Prefix of an actor's steps that gives the recovered content.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    whole: usize,
    /// Steps of the prefix, plus one if part of a further step took effect: only single blocks are
    /// atomic.
    started: usize,
}

impl Content {
    /// True if `found` is this content with a part of `change` applied.
    fn is_partly(&self, change: &Change, found: &Content) -> bool {
        let (Content::Blocks(old), Content::Blocks(found)) = (self, found) else { return false };
        let mut new = self.clone();
        new.apply(change);
        let Content::Blocks(new) = new else { return false };
        let mut blocks = found.iter().zip(old.iter().zip(&new));
        blocks.all(|(found, (old, new))| found == old || found == new)
    }

    fn apply(&mut self, change: &Change) {
        match (self, change.clone()) {
            (Content::Blocks(blocks), Change::Blocks { first, count, stamp }) => {
                blocks[first as usize..(first + count) as usize].fill(stamp);
            }
            (
                Content::Volumes(volumes),
                Change::Create { name, blocks } | Change::Resize { name, blocks },
            ) => {
                volumes.insert(name, blocks);
            }
            (Content::Volumes(volumes), Change::Rename { name, new }) => {
                let renamed = |full: String| match full.split_once('@') {
                    Some((volume, own)) if volume == name => format!("{new}@{own}"),
                    None if full == name => new.clone(),
                    _ => full,
                };
                let old = std::mem::take(volumes).into_iter();
                volumes.extend(old.map(|(full, blocks)| (renamed(full), blocks)));
            }
            (Content::Volumes(volumes), Change::Snapshot { names }) => volumes.extend(names),
            (Content::Volumes(volumes), Change::Delete { name }) => {
                volumes.remove(&name);
            }
            _ => unreachable!("writers change blocks, the operator volumes"),
        }
    }
}

impl History {
    /// Recorded disks at a power loss. At the moment of a change, either set may be recorded.
    pub(super) fn set_at(&self, time: usize, rng: &mut Rng) -> &DeviceSet<usize> {
        let last = self.sets.iter().rposition(|recorded| recorded.from < time).unwrap_or(0);
        let possible: Vec<_> =
            self.sets[last..].iter().take_while(|recorded| recorded.from <= time).collect();
        &possible[rng.below(possible.len() as u64) as usize].set
    }

    /// Checks that `found` is a prefix of the steps begun by `time`, and includes the durable ones.
    pub(super) fn check(&self, found: &[Content], time: usize, context: &str) {
        self.check_of(found, time, self.actors.len(), context);
    }

    /// As [`History::check`], but only the first `required` actors must have their durable steps.
    pub(super) fn check_of(&self, found: &[Content], time: usize, required: usize, context: &str) {
        let flushed = self.flushes.iter().filter(|(_, ended)| ended.events <= time);
        let flushed = flushed.map(|(begun, _)| *begun).max();
        // Prefixes of each actor's steps that give the recovered content.
        let mut candidates = Vec::new();
        let mut prefix = Vec::new();
        for (number, (actor, found)) in self.actors.iter().zip(found).enumerate() {
            let begun = actor.steps.iter().filter(|step| step.begun.events <= time).count();
            let durable = |step: &Step| match step.ended {
                _ if number >= required => false,
                Some(ended) if ended.events > time => false,
                Some(ended) => step.durable || flushed.is_some_and(|flushed| ended <= flushed),
                None => false,
            };
            let least = actor.steps.iter().rposition(durable).map_or(0, |last| last + 1);
            let mut content = match found {
                Content::Blocks(blocks) => Content::Blocks(vec![0; blocks.len()]),
                Content::Volumes(_) => {
                    Content::Volumes(BTreeMap::from([("db".to_owned(), 1 << 20)]))
                }
            };
            let mut matching = Vec::new();
            for whole in 0..=begun {
                let next = actor.steps.get(whole).filter(|_| whole < begun);
                if content == *found {
                    matching.push(Candidate { whole, started: whole });
                } else if next.is_some_and(|next| content.is_partly(&next.change, found)) {
                    matching.push(Candidate { whole, started: whole + 1 });
                }
                if let Some(next) = next {
                    content.apply(&next.change);
                }
            }
            candidates.push(matching);
            prefix.push(least);
        }
        // Find the smallest prefixes that agree: a step includes all steps that ended before it
        // began.
        loop {
            let before = prefix.clone();
            for (actor, matching) in candidates.iter().enumerate() {
                let least = matching.iter().find(|found| found.whole >= prefix[actor]);
                let Some(least) = least else {
                    panic!(
                        "{context}: actor {actor} needs at least {} steps, what was found is the \
                         state after {matching:?} of {}",
                        prefix[actor],
                        self.actors[actor].steps.len()
                    );
                };
                prefix[actor] = least.whole;
                if least.started == 0 {
                    continue;
                }
                let begun = self.actors[actor].steps[least.started - 1].begun;
                for (other, least) in self.actors.iter().zip(&mut prefix) {
                    let ended = |step: &Step| step.ended.is_some_and(|ended| ended < begun);
                    let needed = other.steps.iter().rposition(ended).map_or(0, |last| last + 1);
                    *least = (*least).max(needed);
                }
            }
            if prefix == before {
                return;
            }
        }
    }
}
