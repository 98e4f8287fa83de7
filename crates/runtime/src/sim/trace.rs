//! History of a run: a hash over all events, and a description of the latest ones.

use std::collections::VecDeque;
use std::fmt;

use crate::limits::SIM_EVENTS_REMEMBERED;

#[derive(Clone, Copy, Debug)]
struct Happening {
    at_ns: u64,
    node: u32,
    what: &'static str,
    details: [u64; 2],
}

/// History of a run.
#[derive(Debug)]
pub(crate) struct Trace {
    /// Equal for equal histories.
    pub(crate) hash: u64,
    pub(crate) count: u64,
    latest: VecDeque<Happening>,
}

impl Trace {
    pub(crate) fn new() -> Trace {
        Trace { hash: 0xCBF2_9CE4_8422_2325, count: 0, latest: VecDeque::new() }
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95);
    }

    /// Records an event.
    pub(crate) fn note(&mut self, at_ns: u64, node: u32, what: &'static str, details: [u64; 2]) {
        self.count += 1;
        for word in [at_ns, u64::from(node), details[0], details[1]] {
            self.mix(word);
        }
        self.bytes(what.as_bytes());
        tracing::trace!(target: "flagstone_runtime::sim", at_ns, node, what, ?details);
        if self.latest.len() == SIM_EVENTS_REMEMBERED {
            self.latest.pop_front();
        }
        self.latest.push_back(Happening { at_ns, node, what, details });
    }

    /// Adds content to the history: its first 256 bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes[..bytes.len().min(256)].as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.mix(u64::from(*byte));
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Happening { at_ns, node, what, details: [a, b] } in &self.latest {
            let (s, us) = (at_ns / 1_000_000_000, at_ns / 1000 % 1_000_000);
            writeln!(f, "  {s}.{us:06} s  node {node}  {what} {a} {b}")?;
        }
        Ok(())
    }
}
