//! Enumeration of all short histories of two replicas: writes, disconnects, crashes at each step of
//! a write and of a resync, power failures, promotions, handshakes. The model contains the rules of
//! [`crate::agree::generation`] and [`decide`], and tracks what hosts were promised.

#[expect(clippy::disallowed_types, reason = "order does not matter, and this is much faster")]
use std::collections::HashSet;

use super::*;
use crate::id::Generation;

const REGIONS: usize = 2;

/// A replica, its log on disk, and its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    generations: GenerationHistory,
    epoch: u64,
    serving: bool,
    crashed: bool,
    /// Has served by force since a crash.
    served_alone: bool,
    inconsistent: bool,
    /// A generation was started since the peer was lost.
    generation_bumped: bool,
    /// Regions named by the log: through bits, and as active regions.
    bits: [bool; REGIONS],
    active: [bool; REGIONS],
    /// Version of the local data, and the version that survives a power failure.
    data: [u8; REGIONS],
    durable: [u8; REGIONS],
    /// Has acknowledged a write that the other replica never had.
    alone: bool,
    /// At a source: regions written since the last flush of a target with a volatile cache.
    unflushed: [bool; REGIONS],
    /// The peer was lost with unflushed writes, and no generation was started since.
    has_unflushed: bool,
    /// Unflushed writes may be lost here: it lost its cache, or crashed as the source, since the
    /// replicas were last in sync or flushed.
    failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Link {
    source: usize,
    out_of_sync: [bool; REGIONS],
    /// The target has adopted the source's generation.
    adopted: bool,
    settled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    nodes: [Node; 2],
    link: Option<Link>,
    /// Writes are acknowledged from the target's volatile cache (`ack = "memory"`).
    volatile: bool,
    /// The last version acknowledged to a host. After failures of both nodes, only what was
    /// flushed.
    promised: [u8; REGIONS],
    /// The last version that a host has flushed.
    flushed: [u8; REGIONS],
    versions: u8,
    generations: u64,
}

/// Rules that the code around [`decide`] follows. Each is necessary: without it, some history
/// breaks a promise, as the last test shows.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// Start a generation after each disconnect, not only if the peer was in sync.
    bump_after_each_disconnect: bool,
    /// Flush the local leg before the peer is recorded as out of date.
    flush_before_bump: bool,
    /// The source flushes before its target is marked inconsistent.
    flush_before_resync: bool,
    /// Replicas that are in sync forget an earlier crash of the source.
    forget_old_crashes: bool,
    /// True if a target stores the epoch that it admits.
    store_epochs: bool,
    /// Blocks named by the target's log are copied as well.
    unite_logs: bool,
    /// Blocks written since the last flush of a lost target are out of sync.
    mark_unflushed: bool,
    /// A source that lost a target with unflushed writes starts a generation before it puts its
    /// role away.
    bump_before_demotion: bool,
    /// The same before a flush is acknowledged.
    bump_before_flush: bool,
    /// A source that serves by force after a crash may have lost unflushed writes of its target.
    doubt_after_crash: bool,
}

const ALL: Rules = Rules {
    bump_after_each_disconnect: true,
    flush_before_bump: true,
    flush_before_resync: true,
    forget_old_crashes: true,
    store_epochs: true,
    unite_logs: true,
    mark_unflushed: true,
    bump_before_demotion: true,
    bump_before_flush: true,
    doubt_after_crash: true,
};

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize),
    /// The source crashes when a write has reached one leg.
    HalfWrite {
        region: usize,
        leg: usize,
    },
    WriteAlone {
        node: usize,
        region: usize,
    },
    /// A host's flush, of both legs.
    Flush,
    FlushAlone(usize),
    Disconnect,
    Crash {
        node: usize,
        power: bool,
    },
    Promote(usize),
    Demote(usize),
    Handshake,
    Copy(usize),
    /// The target adopts the generation. A `Disconnect` before `Settle` models a lost answer.
    Adopt,
    Settle,
}

fn steps(volatile: bool) -> Vec<Step> {
    let mut steps = vec![Step::Disconnect, Step::Handshake, Step::Adopt, Step::Settle];
    if volatile {
        steps.extend([Step::Flush, Step::FlushAlone(0), Step::FlushAlone(1)]);
    }
    for region in 0..REGIONS {
        steps.extend([Step::Write(region), Step::Copy(region)]);
    }
    // One region is sufficient for what differs by leg.
    for node in 0..2 {
        steps.push(Step::HalfWrite { region: 0, leg: node });
        steps.push(Step::WriteAlone { node, region: node });
        steps.extend([false, true].map(|power| Step::Crash { node, power }));
        steps.extend([Step::Promote(node), Step::Demote(node)]);
    }
    steps
}

impl World {
    fn new(volatile: bool) -> World {
        let node = Node {
            generations: GenerationHistory {
                current: Generation(1),
                ..GenerationHistory::default()
            },
            epoch: 0,
            serving: false,
            crashed: false,
            served_alone: false,
            inconsistent: false,
            generation_bumped: false,
            bits: [false; REGIONS],
            active: [false; REGIONS],
            data: [0; REGIONS],
            durable: [0; REGIONS],
            alone: false,
            unflushed: [false; REGIONS],
            has_unflushed: false,
            failed: false,
        };
        let (nodes, none) = ([node; 2], [0; REGIONS]);
        let (promised, flushed) = (none, none);
        World { nodes, link: None, volatile, promised, flushed, versions: 0, generations: 1 }
    }

    fn view(&self, node: usize) -> ReplicaView {
        let name = node as u8 + 1;
        let node = &self.nodes[node];
        ReplicaView {
            volume: MirrorId([1; 16]),
            replica: MirrorId([name; 16]),
            usable_bytes: 1,
            room_bytes: 1,
            block_bytes: 0,
            bit_bytes: 1,
            generations: node.generations,
            epoch: node.epoch,
            serving: node.serving || node.served_alone,
            crashed: node.crashed,
            inconsistent: node.inconsistent,
            dirty: (0..REGIONS).any(|region| node.bits[region] || node.active[region]),
        }
    }

    fn version(&mut self) -> u8 {
        self.versions += 1;
        self.versions
    }

    fn disconnect(&mut self, rules: &Rules) {
        let Some(link) = self.link.take() else { return };
        let source = &mut self.nodes[link.source];
        source.generation_bumped = false;
        source.has_unflushed |= source.unflushed.contains(&true);
        let unflushed = std::mem::take(&mut source.unflushed);
        for (bit, unflushed) in source.bits.iter_mut().zip(unflushed) {
            *bit |= unflushed && rules.mark_unflushed;
        }
    }

    fn crash(&mut self, node: usize, power: bool, rules: &Rules) {
        self.disconnect(rules);
        let node = &mut self.nodes[node];
        node.failed |= node.serving || power && node.data != node.durable;
        if node.serving {
            (node.crashed, node.serving, node.has_unflushed) = (true, false, false);
            for region in 0..REGIONS {
                node.bits[region] |= node.active[region];
                node.active[region] = false;
            }
        }
        if power {
            node.data = node.durable;
        }
        node.durable = node.data;
        if self.volatile && self.nodes.iter().all(|node| node.failed) {
            for (promised, flushed) in self.promised.iter_mut().zip(self.flushed) {
                *promised = flushed.min(*promised);
            }
        }
    }

    /// Everything that was acknowledged is on both replicas.
    fn forget_failures(&mut self) {
        for node in &mut self.nodes {
            (node.failed, node.has_unflushed) = (false, false);
        }
    }

    /// Starts a generation, unless there was one since the peer was lost.
    fn bump(&mut self, node: usize, rules: &Rules) {
        let here = &mut self.nodes[node];
        let due = rules.bump_after_each_disconnect || here.generations.bases.is_empty();
        if !here.generation_bumped && due {
            self.generations += 1;
            here.generations.bump(Generation(self.generations));
            (here.generation_bumped, here.has_unflushed) = (true, false);
            // Starting a generation flushes: from now on, only this leg has everything that both
            // had.
            if rules.flush_before_bump {
                here.durable = here.data;
            }
        }
    }

    /// The world after a step; `None` when the step is not possible.
    fn after(mut self, step: Step, rules: &Rules) -> Option<World> {
        match step {
            Step::Write(region) => {
                let link = self.link?;
                let version = self.version();
                let source = &mut self.nodes[link.source];
                source.active[region] = true;
                // The source's leg has a volatile cache.
                source.data[region] = version;
                if !link.settled {
                    // Until the resync ends, only the source's leg keeps the promise, which flushes
                    // immediately here.
                    self.nodes[link.source].durable[region] = version;
                }
                let target = &mut self.nodes[1 - link.source];
                target.data[region] = version;
                if !self.volatile {
                    target.durable[region] = version;
                }
                self.nodes[link.source].unflushed[region] = self.volatile;
                self.promised[region] = version;
            }
            Step::HalfWrite { region, leg } => {
                let link = self.link?;
                let version = self.version();
                self.nodes[link.source].active[region] = true;
                self.nodes[leg].data[region] = version;
                self.nodes[leg].durable[region] = version;
                self.crash(link.source, false, rules);
            }
            Step::WriteAlone { node, region } => {
                if self.link.is_some() || !self.nodes[node].serving {
                    return None;
                }
                let version = self.version();
                self.bump(node, rules);
                let here = &mut self.nodes[node];
                here.bits[region] = true;
                (here.data[region], here.durable[region]) = (version, version);
                here.alone = true;
                (self.promised[region], self.flushed[region]) = (version, version);
            }
            Step::Flush => {
                let link = self.link.filter(|link| link.settled)?;
                for node in &mut self.nodes {
                    node.durable = node.data;
                }
                self.nodes[link.source].unflushed = [false; REGIONS];
                self.flushed = self.promised;
                self.forget_failures();
            }
            Step::FlushAlone(node) => {
                if self.link.is_some() || !self.nodes[node].serving {
                    return None;
                }
                if self.nodes[node].has_unflushed && rules.bump_before_flush {
                    self.bump(node, rules);
                    self.nodes[node].alone = true;
                }
                let here = &mut self.nodes[node];
                here.durable = here.data;
                for region in 0..REGIONS {
                    let kept = here.data[region].min(self.promised[region]);
                    self.flushed[region] = self.flushed[region].max(kept);
                }
            }
            Step::Disconnect => {
                self.link?;
                self.disconnect(rules);
            }
            Step::Crash { node, power } => self.crash(node, power, rules),
            Step::Promote(node) => {
                if self.link.is_some() || self.nodes[node].serving || self.nodes[node].inconsistent
                {
                    return None;
                }
                let here = &mut self.nodes[node];
                if here.crashed && here.generations.bases.is_empty() {
                    // Only by force: the peer may have data that this replica lost in a power
                    // failure.
                    here.served_alone = self.volatile;
                    here.has_unflushed |= self.volatile && rules.doubt_after_crash;
                    for region in 0..REGIONS {
                        self.promised[region] = self.promised[region].min(here.data[region]);
                    }
                }
                if self.volatile && here.failed {
                    // It lost its cache, and the operator did not wait for the source.
                    for region in 0..REGIONS {
                        let kept = here.data[region].max(self.flushed[region]);
                        self.promised[region] = self.promised[region].min(kept);
                    }
                }
                (here.serving, here.generation_bumped) = (true, false);
                here.epoch += 1;
            }
            Step::Demote(node) => {
                if self.link.is_some() || !self.nodes[node].serving {
                    return None;
                }
                if self.nodes[node].has_unflushed && rules.bump_before_demotion {
                    self.bump(node, rules);
                    self.nodes[node].alone = true;
                }
                let node = &mut self.nodes[node];
                (node.serving, node.has_unflushed) = (false, false);
                // Nothing is in flight and everything is flushed, so the log names only bits.
                node.active = [false; REGIONS];
                node.durable = node.data;
            }
            Step::Handshake => return self.handshake(rules),
            Step::Copy(region) => {
                let link = self.link.as_mut().filter(|link| link.out_of_sync[region])?;
                link.out_of_sync[region] = false;
                let (source, target) = (link.source, 1 - link.source);
                self.nodes[target].data[region] = self.nodes[source].data[region];
                self.nodes[target].durable = self.nodes[target].data;
                // Its page may be written to disk immediately.
                self.nodes[source].bits[region] = false;
            }
            Step::Adopt => {
                let done = |link: &&mut Link| link.out_of_sync == [false; REGIONS] && !link.adopted;
                let link = self.link.as_mut().filter(done)?;
                link.adopted = true;
                let source = link.source;
                let current = self.nodes[source].generations.current;
                let target = &mut self.nodes[1 - source];
                target.generations.adopt(current);
                // Both are flushed first.
                target.durable = target.data;
                (target.inconsistent, target.crashed) = (false, false);
                target.served_alone = false;
                target.bits = [false; REGIONS];
                self.nodes[source].alone = false;
            }
            Step::Settle => {
                let ready = |link: &&mut Link| link.adopted && !link.settled;
                let link = self.link.as_mut().filter(ready)?;
                link.settled = true;
                let source = &mut self.nodes[link.source];
                source.generations.settle();
                source.bits = [false; REGIONS];
                (source.crashed, source.served_alone) = (false, false);
                self.forget_failures();
            }
        }
        Some(self)
    }

    fn handshake(mut self, rules: &Rules) -> Option<World> {
        if self.link.is_some() {
            return None;
        }
        let decision = decide(&self.view(0), &self.view(1));
        let (source, amount) = match decision {
            HandshakeDecision::InSync => {
                (usize::from(self.nodes[1].serving), ResyncAmount::Partial)
            }
            HandshakeDecision::Resync { source, amount } => {
                (usize::from(source == ReplicaSide::Peer), amount)
            }
            _ => return None,
        };
        if self.nodes[1 - source].serving {
            // Refused until the operator has demoted it.
            return None;
        }
        let mut out_of_sync = [amount == ResyncAmount::Full; REGIONS];
        for (region, out_of_sync) in out_of_sync.iter_mut().enumerate() {
            let named = |node: &Node| node.bits[region] || node.active[region];
            *out_of_sync |= named(&self.nodes[source]);
            *out_of_sync |= rules.unite_logs && named(&self.nodes[1 - source]);
        }
        let in_sync = decision == HandshakeDecision::InSync;
        if in_sync {
            // Before a write is admitted: an old crash must not influence the next handshake.
            for node in &mut self.nodes {
                node.crashed &= !rules.forget_old_crashes;
                node.served_alone &= !rules.forget_old_crashes;
                node.generations.settle();
            }
            self.forget_failures();
        }
        if out_of_sync != [false; REGIONS] {
            // The source flushes first. Blocks that it loses in a power failure can be restored
            // from the target only while the target is consistent.
            if rules.flush_before_resync {
                self.nodes[source].durable = self.nodes[source].data;
            }
            self.nodes[1 - source].inconsistent = true;
        }
        let seen = self.nodes[1 - source].epoch;
        let here = &mut self.nodes[source];
        if !here.serving || here.epoch < seen {
            here.serving = true;
            here.epoch = here.epoch.max(seen) + 1;
        }
        if rules.store_epochs {
            self.nodes[1 - source].epoch = self.nodes[source].epoch;
        }
        self.link = Some(Link { source, out_of_sync, adopted: in_sync, settled: in_sync });
        Some(self)
    }

    /// Invariants of every handshake.
    fn check(&self) -> Result<(), &'static str> {
        let [a, b] = &self.nodes;
        let decision = decide(&self.view(0), &self.view(1));
        let require = |holds: bool, broken| if holds { Ok(()) } else { Err(broken) };
        let alike = decide(&self.view(1), &self.view(0)) == decision.mirrored();
        require(alike, "the two sides decide differently")?;
        match (decision == HandshakeDecision::SplitBrain, a.alone && b.alone) {
            (true, true) => return Ok(()),
            (true, false) => return Err("a false split brain"),
            (false, true) => return Err("an undetected split brain"),
            (false, false) => {}
        }
        let (source, full) = match decision {
            HandshakeDecision::InSync => {
                require(a.data == b.data, "they differ")?;
                (0, false)
            }
            HandshakeDecision::Resync { source, amount } => {
                (usize::from(source == ReplicaSide::Peer), amount == ResyncAmount::Full)
            }
            _ => return Err("related replicas count as unrelated"),
        };
        require(!self.nodes[1 - source].alone, "the target has written alone")?;
        for region in 0..REGIONS {
            let kept = self.nodes[source].data[region];
            require(kept >= self.promised[region], "a promise is broken")?;
            let named = self.nodes.iter().any(|node| node.bits[region] || node.active[region]);
            require(named || full || a.data[region] == b.data[region], "a difference is lost")?;
        }
        Ok(())
    }
}

impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for node in &self.nodes {
            let numbers = |list: &mut dyn Iterator<Item = Generation>| -> Vec<u64> {
                list.map(|generation| generation.0).collect()
            };
            let Node { generations, bits, active, data, durable, .. } = node;
            let bases = numbers(&mut generations.bases.iter());
            let history = numbers(&mut generations.history.iter());
            write!(f, "current {} bases {bases:?} ", generations.current.0)?;
            write!(
                f,
                "history {history:?} bits {bits:?} active {active:?} data {data:?}/{durable:?} "
            )?;
            let Node { epoch, serving, crashed, inconsistent, generation_bumped, alone, .. } = node;
            write!(f, "epoch {epoch} serving {serving} crashed {crashed} ")?;
            writeln!(f, "inconsistent {inconsistent} bumped {generation_bumped} alone {alone}")?;
        }
        write!(f, "promised {:?} flushed {:?} {:?}", self.promised, self.flushed, self.link)
    }
}

#[expect(clippy::disallowed_types, reason = "see its import")]
/// The number of distinct worlds reachable in `depth` steps, or the first broken promise.
fn explore(depth: usize, volatile: bool, rules: &Rules) -> Result<usize, String> {
    let steps = steps(volatile);
    let mut seen = HashSet::from([World::new(volatile)]);
    let mut edge = vec![(World::new(volatile), Vec::new())];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (world, path) in edge {
            if world.link.is_none() {
                world.check().map_err(|broken| format!("{broken}: {path:?}\n{world}"))?;
            }
            for step in &steps {
                if let Some(after) = world.after(*step, rules)
                    && seen.insert(after)
                {
                    let path: Vec<Step> = path.iter().copied().chain([*step]).collect();
                    next.push((after, path));
                }
            }
        }
        edge = next;
    }
    Ok(seen.len())
}

#[test]
fn histories_keep_guarantees_and_detect_split_brain() {
    let worlds = explore(12, false, &ALL).unwrap_or_else(|broken| panic!("{broken}"));
    assert!(worlds > 200_000, "only {worlds} worlds were seen");
}

#[test]
fn each_rule_is_necessary() {
    let without = [
        Rules { bump_after_each_disconnect: false, ..ALL },
        Rules { flush_before_bump: false, ..ALL },
        Rules { flush_before_resync: false, ..ALL },
        Rules { forget_old_crashes: false, ..ALL },
        Rules { store_epochs: false, ..ALL },
        Rules { unite_logs: false, ..ALL },
    ];
    for rules in without {
        let found = explore(12, false, &rules);
        assert!(found.is_err(), "nothing breaks with {rules:?}");
    }
}

/// Power loss of a target that has acknowledged writes from memory.
#[test]
fn histories_of_volatile_targets_keep_guarantees() {
    let worlds = explore(9, true, &ALL).unwrap_or_else(|broken| panic!("{broken}"));
    assert!(worlds > 100_000, "only {worlds} worlds were seen");
}

#[test]
fn each_rule_for_volatile_targets_is_necessary() {
    let without = [
        Rules { mark_unflushed: false, ..ALL },
        Rules { bump_before_demotion: false, ..ALL },
        Rules { bump_before_flush: false, ..ALL },
        Rules { doubt_after_crash: false, ..ALL },
    ];
    for rules in without {
        let found = explore(9, true, &rules);
        assert!(found.is_err(), "nothing breaks with {rules:?}");
    }
}
