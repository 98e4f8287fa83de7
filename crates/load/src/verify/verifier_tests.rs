//! Verifier against a model device: a correct device has no violations, and each faulty one has.

use proptest::prelude::*;

use super::*;

const BLOCKS: u64 = 3;
const BLOCK_BYTES: usize = 1024;
const OFFSET: u64 = 1 << 20;

fn config(volatile_cache: bool, initial: Initial) -> VerifierConfig {
    VerifierConfig {
        run_id: 0xfeed,
        writer: 4,
        offset_bytes: OFFSET,
        block_bytes: BLOCK_BYTES as u32,
        blocks: BLOCKS,
        volatile_cache,
        initial,
    }
}

struct Write {
    ticket: Option<WriteTicket>,
    block: usize,
    bytes: Vec<u8>,
    fua: bool,
    applied: bool,
}

struct Read {
    ticket: ReadTicket,
    block: usize,
    bytes: Option<Vec<u8>>,
}

struct Flush {
    ticket: FlushTicket,
    epoch: u64,
    done: bool,
}

/// A device with a volatile cache: each block has durable content, and later content that a power
/// loss may leave instead.
struct Model {
    verifier: Verifier,
    cached: Vec<Vec<Vec<u8>>>,
    writes: Vec<Write>,
    reads: Vec<Read>,
    flushes: Vec<Flush>,
    epoch: u64,
    /// All earlier contents of the blocks, oldest first.
    past: Vec<Vec<Vec<u8>>>,
}

impl Model {
    fn new(volatile_cache: bool, initial: Initial) -> Model {
        let start = match initial {
            Initial::Unknown => vec![0xa5; BLOCK_BYTES],
            Initial::Zeroes => vec![0; BLOCK_BYTES],
        };
        Model {
            verifier: Verifier::new(config(volatile_cache, initial)),
            cached: vec![vec![start]; BLOCKS as usize],
            writes: Vec::new(),
            reads: Vec::new(),
            flushes: Vec::new(),
            epoch: 0,
            past: vec![Vec::new(); BLOCKS as usize],
        }
    }

    fn content(&self, block: usize) -> Vec<u8> {
        self.cached[block].last().unwrap().clone()
    }

    fn start_write(&mut self, block: usize, fua: bool, content: Content) {
        let ticket = self.verifier.before_write(block as u64, content);
        let mut bytes = vec![0; BLOCK_BYTES];
        self.verifier.fill(&ticket, &mut bytes);
        self.writes.push(Write { ticket: Some(ticket), block, bytes, fua, applied: false });
    }

    fn apply(&mut self, pick: usize) {
        let write = &mut self.writes[pick];
        if write.applied {
            return;
        }
        write.applied = true;
        let durable = write.fua || !self.verifier.config().volatile_cache;
        let contents = &mut self.cached[write.block];
        if durable {
            contents.clear();
        }
        contents.push(write.bytes.clone());
        self.past[write.block].push(write.bytes.clone());
    }

    fn end_write(&mut self, pick: usize, ok: bool) {
        if ok {
            self.apply(pick);
        }
        let mut write = self.writes.swap_remove(pick);
        let outcome = match (ok, write.fua) {
            (false, _) => WriteOutcome::Unknown,
            (true, true) => WriteOutcome::Durable,
            (true, false) => WriteOutcome::Done,
        };
        self.verifier.after_write(write.ticket.take().unwrap(), outcome);
    }

    fn start_read(&mut self, block: usize) {
        let ticket = self.verifier.before_read(block as u64);
        self.reads.push(Read { ticket, block, bytes: None });
    }

    fn sample(&mut self, pick: usize) {
        let content = self.content(self.reads[pick].block);
        self.reads[pick].bytes = Some(content);
    }

    fn end_read(&mut self, pick: usize) -> Result<(), Violation> {
        if self.reads[pick].bytes.is_none() {
            self.sample(pick);
        }
        let read = self.reads.swap_remove(pick);
        self.verifier.check_read(read.ticket, &read.bytes.unwrap())
    }

    fn make_durable(&mut self) {
        for contents in &mut self.cached {
            contents.drain(..contents.len() - 1);
        }
    }

    fn start_flush(&mut self) {
        let ticket = self.verifier.before_flush();
        self.flushes.push(Flush { ticket, epoch: self.epoch, done: false });
    }

    fn end_flush(&mut self, pick: usize, ok: bool) {
        let epoch = self.epoch;
        if ok && !self.flushes[pick].done && self.flushes[pick].epoch == epoch {
            self.make_durable();
        }
        let flush = self.flushes.swap_remove(pick);
        self.verifier.after_flush(flush.ticket, ok && flush.epoch == epoch);
    }

    fn lose_power(&mut self, choice: usize) {
        for (block, contents) in self.cached.iter_mut().enumerate() {
            let kept = contents[(choice >> (3 * block)) % contents.len()].clone();
            *contents = vec![kept];
        }
        self.epoch += 1;
        self.verifier.after_power_loss();
    }

    fn step(&mut self, (action, pick): (u8, usize)) -> Result<(), Violation> {
        let block = pick % BLOCKS as usize;
        let flag = pick & 64 != 0;
        let writes = self.writes.len();
        let reads = self.reads.len();
        let flushes = self.flushes.len();
        match action {
            0..=3 if writes < 4 => {
                self.start_write(block, flag && pick & 128 != 0, Content::Stamps)
            }
            4 if writes < 4 => self.start_write(block, flag, Content::Zeroes),
            5..=6 if writes > 0 => self.apply(pick % writes),
            7..=10 if writes > 0 => self.end_write(pick % writes, pick & 192 != 192),
            11..=13 if reads < 3 => self.start_read(block),
            14 if reads > 0 => self.sample(pick % reads),
            15..=18 if reads > 0 => return self.end_read(pick % reads),
            19 => self.start_flush(),
            20..=21 if flushes > 0 => self.end_flush(pick % flushes, flag),
            22 => self.lose_power(pick),
            23 => self.make_durable(),
            _ => {}
        }
        Ok(())
    }

    /// Completes everything in flight successfully.
    fn complete_all(&mut self) -> Result<(), Violation> {
        while !self.reads.is_empty() {
            self.end_read(0)?;
        }
        while !self.writes.is_empty() {
            self.end_write(0, true);
        }
        while !self.flushes.is_empty() {
            self.end_flush(0, true);
        }
        Ok(())
    }

    fn look(&mut self, block: usize, bytes: &[u8]) -> Result<(), Violation> {
        let ticket = self.verifier.before_read(block as u64);
        self.verifier.check_read(ticket, bytes)
    }

    fn write_now(&mut self, block: usize, fua: bool) {
        self.start_write(block, fua, Content::Stamps);
        self.end_write(self.writes.len() - 1, true);
    }
}

fn steps() -> impl Strategy<Value = Vec<(u8, usize)>> {
    prop::collection::vec((0_u8..24, 0_usize..4096), 0..120)
}

fn run(steps: &[(u8, usize)], volatile: bool, zeroes: bool) -> Result<Model, Violation> {
    let initial = if zeroes { Initial::Zeroes } else { Initial::Unknown };
    let mut model = Model::new(volatile, initial);
    for step in steps {
        model.step(*step)?;
    }
    model.complete_all()?;
    Ok(model)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn correct_device_has_no_violations(steps in steps(), volatile: bool, zeroes: bool) {
        let model = run(&steps, volatile, zeroes);
        prop_assert!(model.is_ok(), "{}", model.err().unwrap());
        let mut model = model.unwrap();
        for block in 0..BLOCKS as usize {
            let content = model.content(block);
            prop_assert_eq!(model.look(block, &content), Ok(()));
        }
    }

    #[test]
    fn stale_block_is_found(steps in steps(), volatile: bool, pick: usize) {
        let mut model = run(&steps, volatile, false).unwrap();
        let block = pick % BLOCKS as usize;
        let past = model.past[block].clone();
        model.write_now(block, false);
        for content in past {
            prop_assert!(model.look(block, &content).is_err());
        }
        prop_assert!(model.look(block, &[0; BLOCK_BYTES]).is_err());
        prop_assert!(model.look(block, &[0xa5; BLOCK_BYTES]).is_err());
    }

    #[test]
    fn read_resolves_failed_write(steps in steps(), took_effect: bool) {
        let mut model = run(&steps, true, false).unwrap();
        model.write_now(0, false);
        let old = model.content(0);
        model.start_write(0, false, Content::Stamps);
        let new = model.writes[0].bytes.clone();
        model.end_write(0, false);
        let (kept, gone) = if took_effect { (&new, &old) } else { (&old, &new) };
        prop_assert_eq!(model.look(0, kept), Ok(()));
        prop_assert_eq!(model.look(0, gone).unwrap_err().kind, ViolationKind::Stale);
        prop_assert_eq!(model.look(0, kept), Ok(()));
    }

    #[test]
    fn lost_durable_write_is_found(steps in steps(), fua: bool, pick: usize) {
        let mut model = run(&steps, true, false).unwrap();
        let block = pick % BLOCKS as usize;
        let past = model.past[block].clone();
        model.write_now(block, fua);
        if !fua {
            model.start_flush();
            model.end_flush(0, true);
        }
        let durable = model.content(block);
        model.write_now(block, false);
        let cached = model.content(block);
        model.verifier.after_power_loss();
        for content in past {
            prop_assert_eq!(model.look(block, &content).unwrap_err().kind, ViolationKind::Lost);
        }
        let kept = if pick & 8 == 0 { durable } else { cached };
        prop_assert_eq!(model.look(block, &kept), Ok(()));
    }

    #[test]
    fn torn_misplaced_and_corrupt_blocks_are_found(
        steps in steps(), pick: usize, bit in 0..BLOCK_BYTES * 8,
    ) {
        let mut model = run(&steps, true, false).unwrap();
        let block = pick % BLOCKS as usize;
        let other = (block + 1) % BLOCKS as usize;
        model.write_now(block, false);
        let old = model.content(block);
        // A failed write that may have taken effect did so completely or not at all.
        model.start_write(block, false, Content::Stamps);
        let new = model.writes[0].bytes.clone();
        model.end_write(0, false);
        let torn = [&old[..512], &new[512..]].concat();
        prop_assert_eq!(model.look(block, &torn).unwrap_err().kind, ViolationKind::Torn);
        model.write_now(other, false);
        let displaced = model.content(other);
        prop_assert_eq!(model.look(block, &displaced).unwrap_err().kind, ViolationKind::Misplaced);
        let mut flipped = old;
        flipped[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(model.look(block, &flipped).is_err());
    }
}

#[test]
fn concurrent_writes_may_complete_in_either_order() {
    let mut model = Model::new(true, Initial::Zeroes);
    model.start_write(0, false, Content::Stamps);
    model.start_write(0, false, Content::Stamps);
    let (first, second) = (model.writes[0].bytes.clone(), model.writes[1].bytes.clone());
    model.end_write(1, true);
    model.end_write(0, true);
    assert_eq!(model.look(0, &first), Ok(()));
    let violation = model.look(0, &second).unwrap_err();
    assert_eq!(violation.kind, ViolationKind::Stale);
    assert_eq!(
        violation.to_string(),
        "stale: block 0 at offset 1048576 holds generation 2 of writer 4; expected generation 1 \
         (durable: 0)"
    );
}

#[test]
fn misplaced_block_is_found_in_unwritten_range() {
    let mut model = Model::new(true, Initial::Unknown);
    model.write_now(0, false);
    let content = model.content(0);
    assert_eq!(model.look(1, &[1; BLOCK_BYTES]), Ok(()));
    assert_eq!(model.look(1, &content).unwrap_err().kind, ViolationKind::Misplaced);
}

#[test]
fn observed_data_is_not_assumed_durable() {
    let mut model = Model::new(true, Initial::Zeroes);
    model.write_now(0, true);
    let durable = model.content(0);
    model.start_write(0, false, Content::Stamps);
    let failed = model.writes[0].bytes.clone();
    model.end_write(0, false);
    assert_eq!(model.look(0, &failed), Ok(()));
    model.start_flush();
    model.end_flush(0, true);
    model.verifier.after_power_loss();
    assert_eq!(model.look(0, &durable), Ok(()));
}
