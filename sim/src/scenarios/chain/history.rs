//! History of a volume: every host's reads and writes, checked for linearizability block by block.
//!
//! Each 512-byte block is a register. Each write stores its own value, so a read names the write
//! that it observed. The calls on one value form a *zone*, from the earliest completion to the
//! latest start among them (Gibbons and Korach). A block's history is linearizable if and only if
//! no two of its zones conflict; see [`Zone::conflicts`]. Zeroes are not unique: a read of zeroes
//! counts only if one write can explain it.
//!
//! An *era* begins when data was given up: unflushed writes after a power loss, or the writes that
//! an asynchronous target lacks at a failover. Its first content is one of several candidates per
//! block. Calls in flight at that moment belong to both eras: their writes may take effect at any
//! time, and their reads are not checked.

use std::cell::{Ref, RefCell};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::ops::Range;

use std::time::Duration;

use flagstone_runtime::sim::World;
use flagstone_runtime::time::Instant;

/// Bytes per block of the history.
pub(super) const BLOCK: usize = 512;
/// Latest events that a failure prints.
const EVENTS_SHOWN: usize = 120;
/// Least time after which a host may have sent a write again.
const RESENT_AFTER: Duration = Duration::from_millis(2);
/// Host number of the simulator's own reads.
pub(super) const SIMULATOR: usize = usize::MAX;
/// Later than any event.
const NEVER: u64 = u64::MAX;

/// Value of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Zeroes,
    /// Index of the write in [`Inner::writes`].
    Of(usize),
}

/// A write, or a write of zeroes.
struct WriteCall {
    host: usize,
    zeroes: bool,
    fua: bool,
    blocks: Range<usize>,
    began_at: Instant,
    began: u64,
    /// [`NEVER`] until the write completes. A write in flight at the start of an era keeps
    /// [`NEVER`].
    ended: u64,
    /// Time of the host's answer, in any era.
    answered_at: Option<Instant>,
    /// True if the write was in flight at the start of an era.
    carried: bool,
}

impl WriteCall {
    /// True if the host waited so long that it may have sent the write again.
    fn may_have_been_resent(&self, now: Instant) -> bool {
        self.answered_at.unwrap_or(now).since(self.began_at) >= RESENT_AFTER
    }
}

/// Calls on one value of one block.
#[derive(Clone, Copy, Debug)]
struct Zone {
    earliest_end: u64,
    latest_begin: u64,
}

impl Zone {
    /// True if both values would have to be current at the same time, or one of them between two
    /// calls on the other.
    fn conflicts(&self, other: &Zone) -> bool {
        self.earliest_end < other.latest_begin && other.earliest_end < self.latest_begin
    }
}

/// Content of a block at the start of an era.
struct Base {
    candidates: Vec<Value>,
    /// True if any earlier value is possible, too.
    any: bool,
    /// True if a power loss does not change it, even without a flush.
    durable: bool,
    zone: Zone,
}

struct Block {
    base: Base,
    /// Writes of this era, and those in flight at its start, with their zones: one for each time
    /// that a write took effect. Ordered by number, which is the order of their starts.
    writes: Vec<(usize, Zone)>,
}

struct Inner {
    seed: u64,
    /// Counter of events.
    now: u64,
    era: u64,
    blocks: Vec<Block>,
    writes: Vec<WriteCall>,
    /// Start of the latest flush that succeeded in this era.
    flushed: u64,
    /// A flush failed at this moment: later flushes do not cover earlier writes.
    flush_failed: u64,
    calls_open: u64,
    checks: u64,
    events: VecDeque<String>,
}

/// Shared history of a volume.
pub(super) struct History {
    world: World,
    inner: RefCell<Inner>,
}

/// A write in flight.
#[derive(Clone, Copy)]
pub(super) struct WriteId(usize);

/// A read or flush in flight.
#[derive(Clone, Copy)]
pub(super) struct Began(u64);

impl History {
    /// Volume of `bytes` zeroes.
    pub(super) fn new(world: World, seed: u64, bytes: u64) -> History {
        let block = |_| Block {
            base: Base {
                candidates: vec![Value::Zeroes],
                any: false,
                durable: true,
                zone: Zone { earliest_end: 0, latest_begin: 0 },
            },
            writes: Vec::new(),
        };
        let inner = Inner {
            seed: seed & 0xFFFF,
            now: 0,
            era: 0,
            blocks: (0..bytes as usize / BLOCK).map(block).collect(),
            writes: Vec::new(),
            flushed: 0,
            flush_failed: 0,
            calls_open: 0,
            checks: 0,
            events: VecDeque::new(),
        };
        History { world, inner: RefCell::new(inner) }
    }

    /// Number of blocks checked so far.
    pub(super) fn checks(&self) -> u64 {
        self.inner.borrow().checks
    }

    /// Host calls without an answer.
    pub(super) fn open_calls(&self) -> u64 {
        self.inner.borrow().calls_open
    }

    /// Adds a line to the latest events.
    pub(super) fn note(&self, text: impl Into<String>) {
        let text = text.into();
        tracing::info!(at_us = self.world.now().as_nanos() / 1000, "{text}");
        let line = format!("  {:>12.6} s  {text}", self.world.now().as_nanos() as f64 / 1e9);
        let mut inner = self.inner.borrow_mut();
        if inner.events.len() == EVENTS_SHOWN {
            inner.events.pop_front();
        }
        inner.events.push_back(line);
    }

    /// The latest events.
    pub(super) fn events(&self) -> String {
        let inner = self.inner.borrow();
        inner.events.iter().fold("latest events:\n".to_owned(), |text, line| text + line + "\n")
    }

    fn fail(&self, what: &str) -> ! {
        panic!("{what}\n{}", self.events());
    }
}

/// Calls of hosts.
impl History {
    /// Records the start of a write.
    pub(super) fn begin_write(
        &self,
        host: usize,
        offset: u64,
        len: usize,
        zeroes: bool,
        fua: bool,
    ) -> WriteId {
        let blocks = range_of(offset, len);
        let mut inner = self.inner.borrow_mut();
        let (began, began_at) = (inner.tick(), self.world.now());
        let id = inner.writes.len();
        for block in &mut inner.blocks[blocks.clone()] {
            block.writes.push((id, Zone { earliest_end: NEVER, latest_begin: began }));
        }
        inner.writes.push(WriteCall {
            host,
            zeroes,
            fua,
            blocks: blocks.clone(),
            began_at,
            began,
            ended: NEVER,
            answered_at: None,
            carried: false,
        });
        inner.calls_open += 1;
        drop(inner);
        let what = if zeroes { "zeroes" } else { "writes" };
        let fua = if fua { " FUA" } else { "" };
        self.note(format!("host {host} {what} #{id} to blocks {blocks:?}{fua}"));
        WriteId(id)
    }

    /// Fills the payload of a write.
    pub(super) fn fill(&self, id: WriteId, payload: &mut [u8]) {
        let inner = self.inner.borrow();
        let first = inner.writes[id.0].blocks.start;
        for (index, bytes) in payload.chunks_mut(BLOCK).enumerate() {
            let word = word_of(inner.seed, first + index, id.0).to_le_bytes();
            bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&word));
        }
    }

    /// Records the completion of a write.
    pub(super) fn end_write(&self, id: WriteId) {
        let mut guard = self.inner.borrow_mut();
        let inner = &mut *guard;
        let now = inner.tick();
        inner.calls_open -= 1;
        let write = &mut inner.writes[id.0];
        write.answered_at = Some(self.world.now());
        let host = write.host;
        // The write began before the failover: its answer may refer to discarded data.
        if !write.carried {
            write.ended = now;
            for block in &mut inner.blocks[write.blocks.clone()] {
                let places = block.places_of(id.0);
                for (_, zone) in &mut block.writes[places] {
                    zone.earliest_end = zone.earliest_end.min(now);
                }
            }
        }
        drop(guard);
        self.note(format!("host {host} completes #{}", id.0));
    }

    /// Records the start of a read or flush.
    pub(super) fn begin(&self) -> Began {
        let mut inner = self.inner.borrow_mut();
        inner.calls_open += 1;
        Began(inner.tick())
    }

    /// Records an abandoned read or flush.
    pub(super) fn give_up(&self, _: Began) {
        self.inner.borrow_mut().calls_open -= 1;
    }

    /// Records a completed flush.
    pub(super) fn end_flush(&self, began: Began) {
        let mut inner = self.inner.borrow_mut();
        inner.tick();
        inner.calls_open -= 1;
        if began.0 > inner.era {
            inner.flushed = inner.flushed.max(began.0);
        }
    }

    /// Records a failed flush: data that it covered may never become durable.
    pub(super) fn flush_failed(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.flush_failed = inner.tick();
    }

    /// Checks the result of a read.
    ///
    /// # Panics
    /// If no linearization of the calls so far allows it.
    pub(super) fn end_read(&self, host: usize, began: Began, offset: u64, bytes: &[u8]) {
        let mut inner = self.inner.borrow_mut();
        let now = inner.tick();
        inner.calls_open -= 1;
        let blocks = range_of(offset, bytes.len());
        for (number, bytes) in blocks.clone().zip(bytes.chunks(BLOCK)) {
            let found = inner.value_of(number, bytes).and_then(|value| {
                if began.0 < inner.era {
                    return inner.check_known(number, value, now);
                }
                inner.observe(number, value, began.0, (now, self.world.now()))
            });
            if let Err(what) = found {
                let story = inner.story_of(number);
                drop(inner);
                let who = match host {
                    SIMULATOR => "the simulator".to_owned(),
                    host => format!("host {host}"),
                };
                self.note(format!("{who} reads blocks {blocks:?}: {what}"));
                self.fail(&format!(
                    "{who} read block {number} (started at moment {}): {what}\n{story}",
                    began.0
                ));
            }
        }
        inner.checks += blocks.len() as u64;
    }
}

/// Checks of content, seen from outside.
impl History {
    /// Begins an era in which only `content` is left, plus any write in flight.
    pub(super) fn rebase(&self, why: &'static str, content: &[u8]) {
        let mut guard = self.inner.borrow_mut();
        let inner = &mut *guard;
        let values: Result<Vec<Value>, String> = content
            .chunks(BLOCK)
            .enumerate()
            .map(|(number, bytes)| {
                inner.value_of(number, bytes).map_err(|what| format!("block {number}: {what}"))
            })
            .collect();
        let values = match values {
            Ok(values) => values,
            Err(what) => {
                drop(guard);
                self.fail(&what);
            }
        };
        let era = inner.begin_era();
        for (block, value) in inner.blocks.iter_mut().zip(values) {
            let zone = Zone { earliest_end: era, latest_begin: era };
            block.base = Base { candidates: vec![value], any: false, durable: false, zone };
            let writes = &inner.writes;
            block.writes.retain(|(id, _)| writes[*id].answered_at.is_none());
        }
        drop(guard);
        self.note(format!("a new era: {why}"));
    }

    /// Begins an era after a power loss: each block may have any of its unflushed writes.
    pub(super) fn lose_unflushed(&self) {
        let mut guard = self.inner.borrow_mut();
        let inner = &mut *guard;
        let lost: Vec<(Vec<Value>, bool)> =
            (0..inner.blocks.len()).map(|number| inner.left_after_power_loss(number)).collect();
        let era = inner.begin_era();
        for (block, (candidates, any)) in inner.blocks.iter_mut().zip(lost) {
            let zone = Zone { earliest_end: era, latest_begin: era };
            block.base = Base { candidates, any, durable: true, zone };
            let writes = &inner.writes;
            block.writes.retain(|(id, _)| writes[*id].answered_at.is_none());
        }
        drop(guard);
        self.note("a new era: writes that no flush covers may be lost");
    }

    /// Checks that a content is the volume at one moment of this era: it lacks no write that ended
    /// before another write in it began.
    ///
    /// # Errors
    /// Two blocks that contradict each other.
    pub(super) fn check_cut(&self, content: &[u8]) -> Result<(), String> {
        self.latest_cut(content).map(drop)
    }

    /// Checks as [`History::check_cut`], and returns how far this content is behind: the time from
    /// the answer to the oldest write that it may lack to the start of the latest write that was
    /// answered.
    ///
    /// # Errors
    /// As [`History::check_cut`].
    pub(super) fn lost_span(&self, content: &[u8]) -> Result<Duration, String> {
        let latest = self.latest_cut(content)?;
        let inner = self.inner.borrow();
        let is_answered = |write: &&WriteCall| !write.carried && write.began > inner.era;
        let answered = || {
            let writes = inner.writes.iter().filter(is_answered);
            writes.filter_map(|write| Some((write, write.answered_at?)))
        };
        let lost = answered().filter(|(write, _)| write.ended >= latest);
        let oldest = lost.map(|(_, answered_at)| answered_at).min();
        let last = answered().map(|(write, _)| write.began_at).max();
        Ok(oldest.zip(last).map_or(Duration::ZERO, |(oldest, last)| last.since(oldest)))
    }

    /// The latest moment at which the volume may have had this content.
    fn latest_cut(&self, content: &[u8]) -> Result<u64, String> {
        let inner = self.inner.borrow();
        let mut cuts = vec![(0, NEVER)];
        let (mut latest, mut earliest) = ((0, usize::MAX), (NEVER, usize::MAX));
        for (number, bytes) in content.chunks(BLOCK).enumerate() {
            let value =
                inner.value_of(number, bytes).map_err(|what| format!("block {number}: {what}"))?;
            let windows = inner.windows_of(number, value);
            let from = windows.iter().map(|window| window.0).min().unwrap_or(NEVER);
            let to = windows.iter().map(|window| window.1).max().unwrap_or(0);
            latest = latest.max((from, number));
            earliest = earliest.min((to, number));
            cuts = intersect(&cuts, &windows);
            if cuts.is_empty() {
                let stories: Vec<String> = [latest.1, earliest.1]
                    .iter()
                    .filter(|number| **number != usize::MAX)
                    .map(|number| inner.story_of(*number))
                    .collect();
                return Err(format!(
                    "the content is no moment of the past: block {} has a write from moment {} on, \
                     block {} lacks one that ended at moment {}\n{}",
                    latest.1,
                    latest.0,
                    earliest.1,
                    earliest.0,
                    stories.join("\n")
                ));
            }
        }
        Ok(cuts.iter().map(|(_, until)| *until).max().unwrap_or(NEVER))
    }

    /// Name of a block's content, for messages.
    pub(super) fn describe(&self, number: usize, bytes: &[u8]) -> String {
        let inner = self.inner.borrow();
        match inner.value_of(number, bytes) {
            Ok(Value::Zeroes) => "zeroes".to_owned(),
            Ok(Value::Of(id)) => format!("#{id}"),
            Err(what) => what,
        }
    }

    /// Calls on a block, for messages.
    pub(super) fn story_of(&self, number: usize) -> String {
        Ref::map(self.inner.borrow(), |inner| inner).story_of(number)
    }
}

impl Inner {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn begin_era(&mut self) -> u64 {
        self.era = self.tick();
        (self.flushed, self.flush_failed) = (0, 0);
        for write in &mut self.writes {
            write.carried |= write.answered_at.is_none();
        }
        self.era
    }

    fn value_of(&self, number: usize, bytes: &[u8]) -> Result<Value, String> {
        let (words, _) = bytes.as_chunks::<8>();
        let first = u64::from_le_bytes(words[0]);
        if let Some(at) = words.iter().position(|word| u64::from_le_bytes(*word) != first) {
            return Err(format!("a torn block: another write from byte {} on", at * 8));
        }
        if first == 0 {
            return Ok(Value::Zeroes);
        }
        let id = (first & 0xFFFF_FFFF) as usize - 1;
        if id >= self.writes.len() || first != word_of(self.seed, number, id) {
            return Err(format!("foreign data {first:016x}"));
        }
        if !self.writes[id].blocks.contains(&number) {
            return Err(format!("#{id}, which was not written here"));
        }
        Ok(Value::Of(id))
    }

    fn check_known(&self, number: usize, value: Value, now: u64) -> Result<(), String> {
        match value {
            Value::Of(id) if self.writes[id].began > now => {
                Err(format!("block {number}: from the future"))
            }
            _ => Ok(()),
        }
    }

    /// Records a read of this era.
    fn observe(
        &mut self,
        number: usize,
        value: Value,
        began: u64,
        (now, now_at): (u64, Instant),
    ) -> Result<(), String> {
        let block = &self.blocks[number];
        let writes = &self.writes;
        let matches = |id: usize| match value {
            Value::Zeroes => writes[id].zeroes,
            Value::Of(found) => id == found,
        };
        let read = |zone: &Zone| Zone {
            earliest_end: zone.earliest_end.min(now),
            latest_begin: zone.latest_begin.max(began),
        };
        // Place of each explanation: `None` is the base.
        let mut places: Vec<Option<usize>> = Vec::new();
        if block.base.candidates.contains(&value) {
            places.push(None);
        }
        let of_era = block.writes.iter().enumerate().filter(|(_, (id, _))| matches(*id));
        places.extend(of_era.map(|(place, _)| Some(place)));
        if places.is_empty() && block.base.any {
            places.push(None);
        }
        let named = places.len();
        if named == 0 {
            return Err(match value {
                Value::Zeroes => "zeroes, which no call of this era explains".to_owned(),
                Value::Of(id) => format!("#{id}, which was overwritten or given up"),
            });
        }
        let mut conflict = None;
        places.retain(|place| {
            let zone = read(block.zone(*place));
            let other = block.conflict_with(*place, &zone);
            conflict = conflict.or(other);
            other.is_none()
        });
        let name = |place: Option<usize>| match place {
            None => "the first content of the era".to_owned(),
            Some(place) => format!("#{}", block.writes[place].0),
        };
        if places.is_empty()
            && let Value::Of(id) = value
            && writes[id].may_have_been_resent(now_at)
        {
            let write = &writes[id];
            let first = Zone { earliest_end: write.ended, latest_begin: write.began };
            let zone = read(&first);
            conflict = block.conflict_with(Some(usize::MAX), &zone);
            if conflict.is_none() {
                let block = &mut self.blocks[number];
                block.writes.insert(block.places_of(id).end, (id, zone));
                return Ok(());
            }
        }
        match *places {
            [] => {
                let what = match value {
                    Value::Zeroes => "zeroes".to_owned(),
                    Value::Of(id) => format!("#{id}"),
                };
                let other = conflict.map_or_else(String::new, name);
                return Err(format!("{what}, a stale read: {other} is newer"));
            }
            [None] => {
                let base = &mut self.blocks[number].base;
                base.zone = read(&base.zone);
                (base.candidates, base.any) = (vec![value], false);
            }
            [.., Some(place)] if named == 1 || value != Value::Zeroes => {
                let zone = &mut self.blocks[number].writes[place].1;
                *zone = read(zone);
            }
            _ => {}
        }
        Ok(())
    }

    /// Values that a block may hold after a power loss, and whether it may hold any earlier one.
    fn left_after_power_loss(&self, number: usize) -> (Vec<Value>, bool) {
        let block = &self.blocks[number];
        let is_durable = |write: &WriteCall| {
            let flushed = write.ended < self.flushed && write.ended > self.flush_failed;
            write.ended != NEVER && !write.carried && (write.fua || flushed)
        };
        let durable: Vec<&WriteCall> = block
            .writes
            .iter()
            .map(|(id, _)| &self.writes[*id])
            .filter(|write| is_durable(write))
            .collect();
        let mut left: Vec<Value> = Vec::new();
        let mut any = false;
        if durable.is_empty() {
            left.extend(&block.base.candidates);
            any = block.base.any || !(block.base.durable || self.flushed > self.era);
        }
        for (id, _) in &block.writes {
            let write = &self.writes[*id];
            let ended = if write.carried { NEVER } else { write.ended };
            if durable.iter().all(|newer| newer.began < ended) {
                left.push(if write.zeroes { Value::Zeroes } else { Value::Of(*id) });
            }
        }
        left.dedup();
        (left, any)
    }

    /// Moments at which a block may have had this value in the current era.
    fn windows_of(&self, number: usize, value: Value) -> Vec<(u64, u64)> {
        let block = &self.blocks[number];
        // The writes are in the order of their starts.
        let until = |ended: u64| {
            let later = block.writes.partition_point(|(id, _)| self.writes[*id].began <= ended);
            let later = block.writes[later..].iter().map(|(id, _)| self.writes[*id].ended);
            later.min().unwrap_or(NEVER)
        };
        let mut windows = Vec::new();
        if block.base.candidates.contains(&value) || block.base.any {
            windows.push((self.era, until(self.era)));
        }
        let same = match value {
            Value::Zeroes => &block.writes[..],
            Value::Of(id) => &block.writes[block.places_of(id)],
        };
        for (id, _) in same {
            let write = &self.writes[*id];
            if value != Value::Zeroes || write.zeroes {
                windows.push((write.began, until(write.ended)));
            }
        }
        windows.sort_unstable();
        windows
    }

    fn story_of(&self, number: usize) -> String {
        let mut text = format!("block {number}: era since moment {}, now {}", self.era, self.now);
        let block = &self.blocks[number];
        let _ = write!(text, "; first {:?}, any {}", block.base.candidates, block.base.any);
        let moment = |at: u64| if at == NEVER { "-".to_owned() } else { at.to_string() };
        for (id, zone) in block.writes.iter().rev().take(12).rev() {
            let write = &self.writes[*id];
            let _ = write!(
                text,
                "\n    #{id} by host {}{}{}: began {}, ended {}, seen until {}",
                write.host,
                if write.zeroes { ", zeroes" } else { "" },
                if write.carried { ", carried" } else { "" },
                write.began,
                moment(write.ended),
                zone.latest_begin,
            );
        }
        text
    }
}

impl Block {
    /// Places of a write in `writes`.
    fn places_of(&self, id: usize) -> Range<usize> {
        let first = self.writes.partition_point(|(other, _)| *other < id);
        first..first + self.writes[first..].partition_point(|(other, _)| *other == id)
    }

    fn zone(&self, place: Option<usize>) -> &Zone {
        place.map_or(&self.base.zone, |place| &self.writes[place].1)
    }

    /// Another value whose zone conflicts with `zone`, which belongs to `place`.
    fn conflict_with(&self, place: Option<usize>, zone: &Zone) -> Option<Option<usize>> {
        let others = std::iter::once(None).chain((0..self.writes.len()).map(Some));
        let mut others = others.filter(|other| *other != place);
        others.find(|other| self.zone(*other).conflicts(zone))
    }
}

/// Content of each 8 bytes of a block: never zero.
fn word_of(seed: u64, block: usize, id: usize) -> u64 {
    seed << 48 | (block as u64 & 0xFFFF) << 32 | (id as u64 + 1)
}

fn range_of(offset: u64, len: usize) -> Range<usize> {
    let first = offset as usize / BLOCK;
    first..first + len / BLOCK
}

/// Common parts of two sorted lists of open intervals.
fn intersect(some: &[(u64, u64)], others: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut common = Vec::new();
    for a in some {
        for b in others {
            let both = (a.0.max(b.0), a.1.min(b.1));
            if both.0 < both.1 && !common.contains(&both) {
                common.push(both);
            }
        }
    }
    common
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
