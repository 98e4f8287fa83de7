//! Survey: what it costs to clean segments, found in their chunk headers and in the maps.
//!
//! The counts of live blocks suffice for segments without units. A unit of which parts are dead counts
//! less than its copies take.

use flagstone_blockdev::IoError;

use super::gather::{Contents, Named, parts};
use super::owners::Owners;
use super::pack::{Size, size};
use super::victims::{Budget, Choice, Cost, cost_of_blocks, cost_of_units};
use crate::limits::SURVEYS_MAX;
use crate::manage::shared::{Shared, State};
use crate::ondisk::chunk::{ChunkHeader, Record};
use crate::ondisk::unit::BLOCK_WEIGHT;

/// Segments to clean.
pub(super) enum Victims {
    /// Also the blocks that their copies take at most.
    Chosen(Vec<u32>, u64),
    /// Cleaning gains nothing.
    None,
    /// More segments have to be looked at.
    Unknown,
}

/// Most that a segment may cost to be cleaned: the checkpoint after it takes space, too.
fn cost_max(segment_blocks: u32) -> u32 {
    segment_blocks - (segment_blocks / 64).max(2)
}

impl Shared {
    /// Chooses the segments to clean.
    ///
    /// # Errors
    /// Of the devices.
    pub(super) async fn victims(&self, owners: &Owners) -> Result<Victims, IoError> {
        for mut choice in [self.evacuation(), Some(self.choice())].into_iter().flatten() {
            let mut surveys = 0;
            while let Some(segment) = choice.unknown() {
                surveys += 1;
                // Checkpoints do not wait for the looks at all segments of a large pool.
                if surveys > SURVEYS_MAX || surveys > 1 && self.state.lock().wanted.checkpoint {
                    let (chosen, cost) = choice.chosen_so_far();
                    return Ok(match chosen.is_empty() {
                        true => Victims::Unknown,
                        false => Victims::Chosen(chosen, cost),
                    });
                }
                let weight = self.state.lock().weight_of(segment);
                match self.survey(segment, weight, owners).await {
                    Ok(cost) => {
                        self.state.lock().costs.insert(segment, weight, cost);
                        choice.found(segment, cost);
                    }
                    Err(IoError::ReadFault) => {
                        tracing::error!(
                            pool = self.name,
                            segment,
                            "segment cannot be read: it stays"
                        );
                        self.state.lock().leave_alone(segment);
                    }
                    Err(error) => return Err(error),
                }
            }
            let (chosen, cost) = choice.chosen();
            if !chosen.is_empty() {
                return Ok(Victims::Chosen(chosen, cost));
            }
        }
        Ok(Victims::None)
    }

    /// The choice among the segments of a device that is evacuated, if there is one.
    fn evacuation(&self) -> Option<Choice> {
        let mut state = self.state.lock();
        let range = state.evacuated.clone()?;
        // The device is emptied whatever that gains, as long as a checkpoint has room on the others,
        // which takes half of the reserve. Hosts stop at the whole reserve, so they cannot take that
        // room for good.
        let (free, reserve) = (state.segments.free(), state.sizes.reserve);
        if free <= reserve / 2 {
            return None;
        }
        let budget = self.budget(&mut state);
        let segment = u64::from(self.storage.layout.segment_blocks());
        let copies = budget.copies.min((free - reserve / 2) as u64 * segment / 2);
        let budget = Budget { cost_max: u32::MAX, copies, ..budget };
        let closed: Vec<u32> = range.filter(|segment| state.can_clean(*segment)).collect();
        Some(Choice::new(self.costs(&state, closed), budget))
    }

    /// The choice among all other segments.
    fn choice(&self) -> Choice {
        let mut state = self.state.lock();
        let budget = self.budget(&mut state);
        let evacuated = state.evacuated.clone().unwrap_or_default();
        let closed: Vec<u32> = (0..state.segments.count() as u32)
            .filter(|segment| state.can_clean(*segment) && !evacuated.contains(segment))
            .collect();
        Choice::new(self.costs(&state, closed), budget)
    }

    fn budget(&self, state: &mut State) -> Budget {
        let segment = self.storage.layout.segment_blocks();
        let free = state.segments.free();
        let blocks = |segments: usize| segments as u64 * u64::from(segment);
        // During an evacuation, the device has segments for what the others have no room for. Larger
        // passes then spread the checkpoint after each over more of them.
        let share = if state.evacuated.is_some() { 2 } else { 4 };
        let copies = (state.sizes.recent as u64 / 2).min(blocks(free) / share);
        // Headers, and the parts of chunks by which each cost is rounded up.
        let copies = copies + copies / self.chunk_blocks() as u64 + u64::from(segment / 4);
        // One segment is cleaned below the floor, because the checkpoint after it gives more. Below its
        // half, only what leaves the checkpoint most of the rest.
        let floor = state.sizes.floor;
        let free = free + state.segments.last_resort();
        let one = if free > floor / 2 { u64::from(segment) } else { blocks(free) / 8 };
        let room = blocks(free.saturating_sub(floor)).max(one);
        Budget { cost_max: cost_max(segment), copies, room }
    }

    /// What is known of the costs of segments.
    fn costs(&self, state: &State, segments: Vec<u32>) -> Vec<(u32, Cost)> {
        let chunk_blocks = self.chunk_blocks();
        let has_units = state.has_units();
        let cost_max = cost_max(self.storage.layout.segment_blocks());
        let cost = |segment: u32| {
            let weight = state.weight_of(segment);
            let blocks = cost_of_blocks(weight, chunk_blocks);
            if !has_units {
                return Cost::Exactly(blocks);
            }
            // Units without dead parts take what they count, and longer records at most.
            let units = cost_of_units(weight, chunk_blocks);
            match state.usage.held[segment as usize] == 0 && units <= cost_max {
                true => Cost::Exactly(units),
                false => state.costs.of(segment, weight, blocks),
            }
        };
        segments.into_iter().map(|segment| (segment, cost(segment))).collect()
    }

    /// Blocks that the copies of a segment of this weight take at most.
    async fn survey(&self, segment: u32, weight: u32, owners: &Owners) -> Result<u32, IoError> {
        let layout = &self.storage.layout;
        let blocks = layout.first_block(segment)..layout.first_block(segment + 1);
        let (mut at, mut units, mut counted) = (blocks.start, Size::default(), 0);
        while at < blocks.end {
            let header = self.storage.read_one(at).await?;
            let Ok(header) = ChunkHeader::decode(&header, at, layout) else { break };
            at += header.blocks();
            let is_unit =
                |record: &Record| matches!(record, Record::Unit { .. } | Record::MovedUnit { .. });
            if !header.records.iter().any(is_unit) {
                continue;
            }
            let contents = Contents::of(&header);
            for named in &contents.named {
                let Named::Unit(first) = *named else { continue };
                let found = contents.blocks_of(first);
                let live = self.live(found, owners).await?;
                counted += live.iter().flatten().map(|live| live.entry.weight()).sum::<u32>();
                let live = live.map(|live| live.filter(|live| !live.is_changed));
                if live.iter().any(Option::is_some) {
                    let unit = found[0].unit();
                    units.add(size(unit, &parts(found, &live)));
                }
            }
        }
        let alone = weight.saturating_sub(counted).div_ceil(BLOCK_WEIGHT);
        units.add(Size::of_blocks(alone as usize));
        Ok(units.blocks(self.chunk_blocks()))
    }
}
