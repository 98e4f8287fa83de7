//! The hot set against a model: a disk that keeps the latest record, and may keep one that failed.

use proptest::prelude::*;

use super::*;

const REGIONS: u32 = 40;
const BOUND: u32 = 10;

#[derive(Clone, Copy, Debug)]
enum Step {
    Enter(u32, u32),
    Leave(usize),
    Abandon(usize),
    /// The writer plans, and does all of it or fails there.
    Write(Option<Reached>),
    /// It plans, and is in the midst of it until the next step of its.
    Begin,
    Cool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fails = prop_oneof![
        6 => Just(None),
        1 => Just(Some(Reached::Before)),
        1 => Just(Some(Reached::Record)),
    ];
    let step = prop_oneof![
        6 => (0..REGIONS, 1..=PIECE_MAX_REGIONS).prop_map(|(from, many)| Step::Enter(from, many)),
        4 => any::<usize>().prop_map(Step::Leave),
        1 => any::<usize>().prop_map(Step::Abandon),
        4 => fails.prop_map(Step::Write),
        2 => Just(Step::Begin),
        1 => Just(Step::Cool),
    ];
    prop::collection::vec(step, 1..120)
}

struct World {
    cells: Cells,
    hot: HotSet,
    /// What a crash may find as the latest record.
    records: Vec<Vec<u32>>,
    inside: Vec<Range<u32>>,
    waiting: Vec<(u64, Range<u32>)>,
    /// What the writer is in the midst of.
    begun: Option<Plan>,
}

impl World {
    fn new() -> World {
        World {
            cells: Cells::new(u64::from(REGIONS)),
            hot: HotSet::new(BOUND),
            records: vec![Vec::new()],
            inside: Vec::new(),
            waiting: Vec::new(),
            begun: None,
        }
    }

    fn enter(&mut self, regions: Range<u32>) {
        if self.cells.try_enter(regions.clone()).is_ok() {
            self.inside.push(regions);
        } else {
            self.waiting.push((self.hot.ask(regions.clone()), regions));
        }
    }

    fn answers(&mut self) {
        for (id, regions) in std::mem::take(&mut self.waiting) {
            match self.hot.answer(id) {
                Some(Ok(())) => self.inside.push(regions),
                Some(Err(_)) => {}
                None => self.waiting.push((id, regions)),
            }
        }
    }

    fn write(&mut self, plan: &Plan, fails: Option<Reached>) {
        for region in &plan.leaving {
            assert!(!self.inside.iter().any(|call| call.contains(region)), "a call is in {region}");
        }
        match fails {
            None => {
                if !plan.needs_no_record() {
                    self.records = vec![self.hot.record()];
                }
                self.hot.landed(&self.cells, plan);
            }
            Some(reached) => {
                // Without a record nothing can fail after the record was tried.
                let reached = if plan.needs_no_record() { Reached::Before } else { reached };
                if reached == Reached::Record {
                    self.records.push(self.hot.record());
                }
                self.hot.failed(&self.cells, plan, reached, IoError::WriteFault);
            }
        }
        self.answers();
    }

    fn step(&mut self, step: Step) {
        let index = |index: usize, len: usize| (len > 0).then(|| index % len);
        match step {
            Step::Enter(from, many) => self.enter(from..(from + many).min(REGIONS)),
            Step::Leave(at) => {
                if let Some(at) = index(at, self.inside.len()) {
                    self.cells.leave(self.inside.swap_remove(at));
                }
            }
            Step::Abandon(at) => {
                if let Some(at) = index(at, self.waiting.len()) {
                    let (id, _) = self.waiting.swap_remove(at);
                    self.hot.abandon(&self.cells, id);
                }
            }
            Step::Write(fails) => {
                let begun = self.begun.take();
                let plan = begun.unwrap_or_else(|| self.hot.plan(&self.cells));
                self.write(&plan, fails);
            }
            Step::Begin => {
                if self.begun.is_none() {
                    self.begun = Some(self.hot.plan(&self.cells));
                }
            }
            Step::Cool => {
                if self.begun.is_none() {
                    let plan = self.hot.cool(&self.cells);
                    self.write(&plan, None);
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        for record in &self.records {
            assert!(record.len() <= BOUND as usize && record.is_sorted_by(|a, b| a < b));
            for region in self.inside.iter().flat_map(|call| call.clone()) {
                assert!(record.contains(&region), "a call is in {region}, {record:?} lacks it");
            }
        }
        assert!(self.hot.len() <= BOUND as usize);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Every record that a crash may find names all regions that calls are in; and when calls come
    /// to their end, all that wait are served, and everything cools down.
    #[test]
    fn records_cover_what_is_written(steps in steps()) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.step(step));
        for _ in 0..400 {
            if world.waiting.is_empty() && world.begun.is_none() {
                break;
            }
            world.step(Step::Write(None));
            world.step(Step::Leave(0));
        }
        prop_assert!(world.waiting.is_empty(), "a ticket was never served");
        while !world.inside.is_empty() {
            world.step(Step::Leave(0));
        }
        (0..=COOL_TICKS_MAX).for_each(|_| world.step(Step::Cool));
        // A record that failed may name more than is hot, until the next.
        prop_assert!(world.hot.len() == 0 && world.hot.record().is_empty());
        prop_assert!((0..REGIONS).all(|region| world.cells.cell(region).load(Ordering::Acquire) == 0));
    }
}

#[test]
fn calls_that_wait_share_a_record() {
    let mut world = World::new();
    (0..5).for_each(|region| world.enter(2 * region..2 * region + 2));
    let plan = world.hot.plan(&world.cells);
    assert_eq!(plan.coming, (0..10).collect::<Vec<u32>>());
    world.write(&plan, None);
    assert_eq!(world.inside.len(), 5);
    world.enter(3..5);
    assert_eq!(world.inside.len(), 6, "hot regions need no record");
}

#[test]
fn a_busy_set_is_closed_for_the_one_who_waits() {
    let mut world = World::new();
    world.enter(0..8);
    world.enter(8..10);
    world.step(Step::Write(None));
    world.enter(20..21);
    world.step(Step::Write(None));
    assert_eq!((world.inside.len(), world.waiting.len()), (2, 1));
    // A region was closed: a later call into it waits behind.
    world.enter(0..1);
    assert_eq!(world.waiting.len(), 2);
    assert!(world.cells.leave(0..8), "the writer is told");
    world.inside.remove(0);
    world.step(Step::Write(None));
    world.step(Step::Write(None));
    assert!(world.inside.contains(&(20..21)) && world.waiting.is_empty());
}

#[test]
fn the_longest_idle_leave_first() {
    let mut world = World::new();
    world.enter(0..5);
    world.step(Step::Write(None));
    world.step(Step::Leave(0));
    world.step(Step::Cool);
    world.enter(5..10);
    world.step(Step::Write(None));
    world.step(Step::Leave(0));
    world.step(Step::Cool);
    world.enter(20..23);
    world.step(Step::Write(None));
    let record = &world.records[0];
    assert!((5..10).all(|region| record.contains(&region)), "{record:?}");
}
