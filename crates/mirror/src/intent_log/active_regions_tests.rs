//! Tests of the active set against a model of a disk that keeps the latest record, and possibly one
//! whose write failed.

use proptest::prelude::*;

use super::*;

const REGIONS: u32 = 40;
const BOUND: u32 = 10;

#[derive(Clone, Copy, Debug)]
enum Step {
    Enter(u32, u32),
    Leave(usize),
    Abandon(usize),
    /// The writer plans and executes the plan, or fails at this stage.
    Write(Option<FailureStage>),
    /// The writer plans, and executes the plan in its next step.
    Begin,
    Cool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fails = prop_oneof![
        6 => Just(None),
        1 => Just(Some(FailureStage::BeforeRecord)),
        1 => Just(Some(FailureStage::Record)),
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
    table: RegionTable,
    active: ActiveSet,
    /// Records that a crash may find as the latest.
    records: Vec<Vec<u32>>,
    inside: Vec<Range<u32>>,
    waiting: Vec<(u64, Range<u32>)>,
    /// The plan that the writer is executing.
    begun: Option<WriterWork>,
}

impl World {
    fn new() -> World {
        World {
            table: RegionTable::new(u64::from(REGIONS)),
            active: ActiveSet::new(BOUND),
            records: vec![Vec::new()],
            inside: Vec::new(),
            waiting: Vec::new(),
            begun: None,
        }
    }

    fn enter(&mut self, regions: Range<u32>) {
        if self.table.try_enter(regions.clone()).is_ok() {
            self.inside.push(regions);
        } else {
            self.waiting.push((self.active.ask(regions.clone()), regions));
        }
    }

    fn answers(&mut self) {
        for (id, regions) in std::mem::take(&mut self.waiting) {
            match self.active.answer(id) {
                Some(Ok(())) => self.inside.push(regions),
                Some(Err(_)) => {}
                None => self.waiting.push((id, regions)),
            }
        }
    }

    fn write(&mut self, plan: &WriterWork, fails: Option<FailureStage>) {
        for region in &plan.evicted {
            assert!(!self.inside.iter().any(|call| call.contains(region)), "a call is in {region}");
        }
        match fails {
            None => {
                if !plan.needs_no_record() {
                    self.records = vec![self.active.record()];
                }
                self.active.succeeded(&self.table, plan);
            }
            Some(reached) => {
                // Without a record there is no failure after its submission.
                let reached =
                    if plan.needs_no_record() { FailureStage::BeforeRecord } else { reached };
                if reached == FailureStage::Record {
                    self.records.push(self.active.record());
                }
                self.active.failed(&self.table, plan, reached, IoError::WriteFault);
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
                    self.table.leave(self.inside.swap_remove(at));
                }
            }
            Step::Abandon(at) => {
                if let Some(at) = index(at, self.waiting.len()) {
                    let (id, _) = self.waiting.swap_remove(at);
                    self.active.abandon(&self.table, id);
                }
            }
            Step::Write(fails) => {
                let begun = self.begun.take();
                let plan = begun.unwrap_or_else(|| self.active.plan(&self.table));
                self.write(&plan, fails);
            }
            Step::Begin => {
                if self.begun.is_none() {
                    self.begun = Some(self.active.plan(&self.table));
                }
            }
            Step::Cool => {
                if self.begun.is_none() {
                    let plan = self.active.evict_idle(&self.table);
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
        assert!(self.active.len() <= BOUND as usize);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Every record that a crash may find names all regions with calls inside. When the calls end,
    /// all waiting calls are served, and all regions become inactive.
    #[test]
    fn records_name_all_regions_in_use(steps in steps()) {
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
        (0..=EVICT_TICKS_MAX).for_each(|_| world.step(Step::Cool));
        // A failed record may name more regions than are active, until the next one.
        prop_assert!(world.active.len() == 0 && world.active.record().is_empty());
        prop_assert!((0..REGIONS).all(|region| world.table.word(region).load(Ordering::Acquire) == 0));
    }
}

#[test]
fn waiting_calls_share_a_record() {
    let mut world = World::new();
    (0..5).for_each(|region| world.enter(2 * region..2 * region + 2));
    let plan = world.active.plan(&world.table);
    assert_eq!(plan.activated, (0..10).collect::<Vec<u32>>());
    world.write(&plan, None);
    assert_eq!(world.inside.len(), 5);
    world.enter(3..5);
    assert_eq!(world.inside.len(), 6, "active regions need no record");
}

#[test]
fn busy_regions_close_for_a_waiting_ticket() {
    let mut world = World::new();
    world.enter(0..8);
    world.enter(8..10);
    world.step(Step::Write(None));
    world.enter(20..21);
    world.step(Step::Write(None));
    assert_eq!((world.inside.len(), world.waiting.len()), (2, 1));
    // A region was closed, so a later call into it has to wait.
    world.enter(0..1);
    assert_eq!(world.waiting.len(), 2);
    assert!(world.table.leave(0..8), "the writer is notified");
    world.inside.remove(0);
    world.step(Step::Write(None));
    world.step(Step::Write(None));
    assert!(world.inside.contains(&(20..21)) && world.waiting.is_empty());
}

#[test]
fn longest_idle_regions_are_evicted_first() {
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
