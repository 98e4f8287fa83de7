//! Every short history of two replicas: writes, losses of the link, crashes at each step of a
//! write and of a resync, power losses, promotions, meetings. The model has the rules of
//! [`crate::generation`] and [`decide`] in it, and knows what hosts were promised.

use std::collections::BTreeSet;

use super::*;
use crate::id::Generation;

const REGIONS: usize = 2;

/// A replica and its log, as they would be found on disk, and its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    lineage: Lineage,
    epoch: u64,
    serving: bool,
    crashed: bool,
    inconsistent: bool,
    /// Minted since the peer was last lost.
    minted: bool,
    /// Regions that the log names: bits, and hot ones.
    bits: [bool; REGIONS],
    hot: [bool; REGIONS],
    /// Version of the data here, and what of it a power loss leaves.
    data: [u8; REGIONS],
    durable: [u8; REGIONS],
    /// Wrote what the other has never had, and promised it.
    alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Link {
    source: usize,
    todo: [bool; REGIONS],
    /// The target has taken the source's generation over.
    adopted: bool,
    settled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    nodes: [Node; 2],
    link: Option<Link>,
    /// The last version that a host was promised.
    promised: [u8; REGIONS],
    versions: u8,
    generations: u64,
}

/// The rules that the code around [`decide`] keeps. Each is there because without it a history
/// breaks a promise: the last test leaves out one after the other.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// Mint after each loss of the peer, not only when it was in sync.
    mint_after_each_loss: bool,
    /// Flush the own leg before the peer is recorded as out of date.
    flush_when_minting: bool,
    /// The source flushes before its target is marked inconsistent.
    flush_before_resync: bool,
    /// Two that are in sync forget that one was a source that crashed.
    forget_old_crashes: bool,
    /// A target stores the epoch that it admits.
    store_epochs: bool,
    /// What the log of the target names is copied too.
    unite_logs: bool,
}

const ALL: Rules = Rules {
    mint_after_each_loss: true,
    flush_when_minting: true,
    flush_before_resync: true,
    forget_old_crashes: true,
    store_epochs: true,
    unite_logs: true,
};

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize),
    /// The source crashes while a write has reached one leg.
    HalfWrite {
        region: usize,
        leg: usize,
    },
    WriteAlone {
        node: usize,
        region: usize,
    },
    Lose,
    Crash {
        node: usize,
        power: bool,
    },
    Promote(usize),
    Demote(usize),
    Meet,
    Copy(usize),
    /// The target takes the generation over; `lost` when the answer never comes.
    Adopt,
    Settle,
}

fn steps() -> Vec<Step> {
    let mut steps = vec![Step::Lose, Step::Meet, Step::Adopt, Step::Settle];
    for region in 0..REGIONS {
        steps.extend([Step::Write(region), Step::Copy(region)]);
    }
    // One region is enough for what differs by legs.
    for node in 0..2 {
        steps.push(Step::HalfWrite { region: 0, leg: node });
        steps.push(Step::WriteAlone { node, region: node });
        steps.extend([false, true].map(|power| Step::Crash { node, power }));
        steps.extend([Step::Promote(node), Step::Demote(node)]);
    }
    steps
}

impl World {
    fn new() -> World {
        let node = Node {
            lineage: Lineage { current: Generation(1), ..Lineage::default() },
            epoch: 0,
            serving: false,
            crashed: false,
            inconsistent: false,
            minted: false,
            bits: [false; REGIONS],
            hot: [false; REGIONS],
            data: [0; REGIONS],
            durable: [0; REGIONS],
            alone: false,
        };
        let nodes = [node; 2];
        World { nodes, link: None, promised: [0; REGIONS], versions: 0, generations: 1 }
    }

    fn view(&self, node: usize) -> View {
        let name = node as u8 + 1;
        let node = &self.nodes[node];
        View {
            volume: Uuid([1; 16]),
            replica: Uuid([name; 16]),
            usable_bytes: 1,
            room_bytes: 1,
            block_bytes: 0,
            bit_bytes: 1,
            lineage: node.lineage,
            epoch: node.epoch,
            serving: node.serving,
            crashed: node.crashed,
            inconsistent: node.inconsistent,
            dirty: (0..REGIONS).any(|region| node.bits[region] || node.hot[region]),
        }
    }

    fn version(&mut self) -> u8 {
        self.versions += 1;
        self.versions
    }

    fn lose(&mut self) {
        if let Some(link) = self.link.take() {
            self.nodes[link.source].minted = false;
        }
    }

    fn crash(&mut self, node: usize, power: bool) {
        self.lose();
        let node = &mut self.nodes[node];
        if node.serving {
            (node.crashed, node.serving) = (true, false);
            for region in 0..REGIONS {
                node.bits[region] |= node.hot[region];
                node.hot[region] = false;
            }
        }
        if power {
            node.data = node.durable;
        }
        node.durable = node.data;
    }

    /// What the world is after a step; `None` when it cannot be taken.
    fn after(mut self, step: Step, rules: &Rules) -> Option<World> {
        match step {
            Step::Write(region) => {
                let link = self.link?;
                let version = self.version();
                let source = &mut self.nodes[link.source];
                source.hot[region] = true;
                // The source's leg has a volatile cache, the target's writes are durable.
                source.data[region] = version;
                if !link.settled {
                    // Until the resync has ended the promise is that of the source's leg alone,
                    // which flushes at once here.
                    self.nodes[link.source].durable[region] = version;
                }
                let target = &mut self.nodes[1 - link.source];
                (target.data[region], target.durable[region]) = (version, version);
                self.promised[region] = version;
            }
            Step::HalfWrite { region, leg } => {
                let link = self.link?;
                let version = self.version();
                self.nodes[link.source].hot[region] = true;
                self.nodes[leg].data[region] = version;
                self.nodes[leg].durable[region] = version;
                self.crash(link.source, false);
            }
            Step::WriteAlone { node, region } => {
                if self.link.is_some() || !self.nodes[node].serving {
                    return None;
                }
                let version = self.version();
                let here = &mut self.nodes[node];
                let due = rules.mint_after_each_loss || here.lineage.bases.is_empty();
                if !here.minted && due {
                    self.generations += 1;
                    here.lineage.mint(Generation(self.generations));
                    here.minted = true;
                    // Minting flushes: from now on this leg alone has what both had.
                    if rules.flush_when_minting {
                        here.durable = here.data;
                    }
                }
                here.bits[region] = true;
                (here.data[region], here.durable[region]) = (version, version);
                here.alone = true;
                self.promised[region] = version;
            }
            Step::Lose => {
                self.link?;
                self.lose();
            }
            Step::Crash { node, power } => self.crash(node, power),
            Step::Promote(node) => {
                if self.link.is_some() || self.nodes[node].serving || self.nodes[node].inconsistent
                {
                    return None;
                }
                let here = &mut self.nodes[node];
                if here.crashed && here.lineage.bases.is_empty() {
                    // By force alone: what it lost with its power the peer may have.
                    for region in 0..REGIONS {
                        self.promised[region] = self.promised[region].min(here.data[region]);
                    }
                }
                (here.serving, here.minted) = (true, false);
                here.epoch += 1;
            }
            Step::Demote(node) => {
                if self.link.is_some() || !self.nodes[node].serving {
                    return None;
                }
                let node = &mut self.nodes[node];
                node.serving = false;
                // Nothing is in flight and all is flushed: what the log names are bits alone.
                node.hot = [false; REGIONS];
                node.durable = node.data;
            }
            Step::Meet => return self.meet(rules),
            Step::Copy(region) => {
                let link = self.link.as_mut().filter(|link| link.todo[region])?;
                link.todo[region] = false;
                let (source, target) = (link.source, 1 - link.source);
                self.nodes[target].data[region] = self.nodes[source].data[region];
                self.nodes[target].durable = self.nodes[target].data;
                // Its page may go to disk at once.
                self.nodes[source].bits[region] = false;
            }
            Step::Adopt => {
                let done = |link: &&mut Link| link.todo == [false; REGIONS] && !link.adopted;
                let link = self.link.as_mut().filter(done)?;
                link.adopted = true;
                let source = link.source;
                let current = self.nodes[source].lineage.current;
                let target = &mut self.nodes[1 - source];
                target.lineage.adopt(current);
                (target.inconsistent, target.crashed) = (false, false);
                target.bits = [false; REGIONS];
                self.nodes[source].alone = false;
            }
            Step::Settle => {
                let ready = |link: &&mut Link| link.adopted && !link.settled;
                let link = self.link.as_mut().filter(ready)?;
                link.settled = true;
                let source = &mut self.nodes[link.source];
                source.lineage.settle();
                source.bits = [false; REGIONS];
                source.crashed = false;
            }
        }
        Some(self)
    }

    fn meet(mut self, rules: &Rules) -> Option<World> {
        if self.link.is_some() {
            return None;
        }
        let decision = decide(&self.view(0), &self.view(1));
        let (source, amount) = match decision {
            Decision::InSync => (usize::from(self.nodes[1].serving), Amount::Partial),
            Decision::Resync { source, amount } => (usize::from(source == Side::Peers), amount),
            _ => return None,
        };
        if self.nodes[1 - source].serving {
            // It is refused until the operator has demoted it.
            return None;
        }
        let mut todo = [amount == Amount::Full; REGIONS];
        for (region, todo) in todo.iter_mut().enumerate() {
            let named = |node: &Node| node.bits[region] || node.hot[region];
            *todo |= named(&self.nodes[source]);
            *todo |= rules.unite_logs && named(&self.nodes[1 - source]);
        }
        let in_sync = decision == Decision::InSync;
        if in_sync {
            // Before a write is admitted: an old crash must not speak at the next meeting.
            for node in &mut self.nodes {
                node.crashed &= !rules.forget_old_crashes;
                node.lineage.settle();
            }
        }
        if todo != [false; REGIONS] {
            // First the source flushes: what its power loss would take the target can give back
            // only while it is whole.
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
        self.link = Some(Link { source, todo, adopted: in_sync, settled: in_sync });
        Some(self)
    }

    /// What must hold whenever two meet.
    fn check(&self) -> Result<(), &'static str> {
        let [a, b] = &self.nodes;
        let decision = decide(&self.view(0), &self.view(1));
        let require = |holds: bool, broken| if holds { Ok(()) } else { Err(broken) };
        let alike = decide(&self.view(1), &self.view(0)) == decision.mirrored();
        require(alike, "they decide differently")?;
        match (decision == Decision::SplitBrain, a.alone && b.alone) {
            (true, true) => return Ok(()),
            (true, false) => return Err("a split brain that is none"),
            (false, true) => return Err("a split brain is not seen"),
            (false, false) => {}
        }
        let (source, full) = match decision {
            Decision::InSync => {
                require(a.data == b.data, "they differ")?;
                (0, false)
            }
            Decision::Resync { source, amount } => {
                (usize::from(source == Side::Peers), amount == Amount::Full)
            }
            _ => return Err("two that began as one do not know each other"),
        };
        require(!self.nodes[1 - source].alone, "the target has written alone")?;
        for region in 0..REGIONS {
            let kept = self.nodes[source].data[region];
            require(kept >= self.promised[region], "a promise is broken")?;
            let named = self.nodes.iter().any(|node| node.bits[region] || node.hot[region]);
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
            let Node { lineage, bits, hot, data, durable, .. } = node;
            let bases = numbers(&mut lineage.bases.iter());
            let history = numbers(&mut lineage.history.iter());
            write!(f, "current {} bases {bases:?} ", lineage.current.0)?;
            write!(f, "history {history:?} bits {bits:?} hot {hot:?} data {data:?}/{durable:?} ")?;
            let Node { epoch, serving, crashed, inconsistent, minted, alone, .. } = node;
            write!(f, "epoch {epoch} serving {serving} crashed {crashed} ")?;
            writeln!(f, "inconsistent {inconsistent} minted {minted} alone {alone}")?;
        }
        write!(f, "promised {:?} {:?}", self.promised, self.link)
    }
}

/// Worlds within so many steps, each once; or the first broken promise.
fn explore(depth: usize, rules: &Rules) -> Result<usize, String> {
    let steps = steps();
    let mut seen = BTreeSet::from([World::new()]);
    let mut edge = vec![(World::new(), Vec::new())];
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
fn no_short_history_loses_a_promise_or_hides_a_split_brain() {
    let worlds = explore(12, &ALL).unwrap_or_else(|broken| panic!("{broken}"));
    assert!(worlds > 200_000, "only {worlds} worlds were seen");
}

#[test]
fn each_rule_is_needed() {
    let without = [
        Rules { mint_after_each_loss: false, ..ALL },
        Rules { flush_when_minting: false, ..ALL },
        Rules { flush_before_resync: false, ..ALL },
        Rules { forget_old_crashes: false, ..ALL },
        Rules { store_epochs: false, ..ALL },
        Rules { unite_logs: false, ..ALL },
    ];
    for rules in without {
        let found = explore(12, &rules);
        assert!(found.is_err(), "nothing breaks with {rules:?}");
    }
}
