//! Survey: finds what dead blocks hold in units whose key is missing, which a copy cannot free.
//!
//! A locked unit is copied as it is stored, with its dead blocks. So a pass surveys the segments
//! that it may choose, and counts this weight as live. A survey reads chunk headers and map pages.
//!
//! Invariant: found weights are forgotten when blocks of a locked volume may die, or a volume may
//! have got its key.

use std::collections::BTreeMap;

use flagstone_blockdev::IoError;

use super::contents::{Contents, Named};
use super::owners::Owners;
use super::piece::PieceKey;
use crate::limits::SURVEYS_MAX;
use crate::manage::shared::{Shared, State};
use crate::ondisk::chunk::ChunkHeader;
use crate::work_slices::WorkSlices;

/// Weight that dead blocks of locked units hold, by surveyed segment.
#[derive(Debug, Default)]
pub(crate) struct LockedWeights(BTreeMap<u32, u32>);

impl LockedWeights {
    /// Weight found in a segment.
    pub(crate) fn of(&self, segment: u32) -> u32 {
        self.0.get(&segment).copied().unwrap_or(0)
    }

    /// Forgets segments that are free now.
    pub(crate) fn retain(&mut self, is_live: impl Fn(u32) -> bool) {
        self.0.retain(|segment, _| is_live(*segment));
    }

    /// The surveyed segments.
    pub(crate) fn segments(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }
}

impl State {
    /// True if a volume is encrypted, and its key is not here.
    pub(crate) fn has_locked(&self) -> bool {
        let volumes = self.volume_table.volumes.iter();
        let mut encrypted = volumes.filter(|(_, volume)| volume.encryption.is_some());
        encrypted.any(|(id, _)| !self.ciphers.contains_key(id))
    }

    /// Forgets the surveys, because locked units may hold less now, or are locked no more.
    pub(crate) fn forget_surveys(&mut self) {
        self.locked.0.clear();
        self.count_space();
        self.expect_gain();
    }

    /// Takes into account that blocks of a volume or snapshot may have died by an order.
    pub(crate) fn blocks_died(&mut self, id: u32) {
        if let Some(volume) = self.volume_table.key_volume(id)
            && volume.encryption.is_some()
            && !self.ciphers.contains_key(&volume.id)
        {
            self.forget_surveys();
        }
    }

    fn lacks_survey(&self, segment: u32) -> bool {
        !self.locked.0.contains_key(&segment)
            && self.usage.held_in(segment as usize, self.superblock.segment_blocks) > 0
    }
}

impl Shared {
    /// Chooses the segments to clean, as [`Shared::victims`], and surveys those that may have
    /// locked units until the choice does not change.
    ///
    /// # Errors
    /// Errors of the devices.
    pub(super) async fn surveyed_victims(
        &self,
        packing: bool,
        owners: &Owners,
    ) -> Result<Vec<u32>, IoError> {
        let mut surveys = 0;
        loop {
            let victims = self.victims(packing);
            let new: Vec<u32> = {
                let state = self.state.lock();
                let new = victims.iter().copied().filter(|victim| state.lacks_survey(*victim));
                match state.has_locked() {
                    true => new.collect(),
                    false => Vec::new(),
                }
            };
            // Beyond the limit, locked units are copied once, and surveyed at their new place.
            if new.is_empty() || surveys >= SURVEYS_MAX {
                return Ok(victims);
            }
            surveys += new.len();
            for segment in new {
                let weight = match self.survey(segment, owners).await {
                    // The pass reports it, and leaves the segment alone.
                    Err(IoError::ReadFault) => 0,
                    weight => weight?,
                };
                self.state.lock().locked.0.insert(segment, weight);
            }
        }
    }

    async fn survey(&self, segment: u32, owners: &Owners) -> Result<u32, IoError> {
        let layout = &self.storage.layout;
        let blocks = layout.first_block(segment)..layout.first_block(segment + 1);
        let (mut at, mut weight) = (blocks.start, 0_u32);
        let mut slices = WorkSlices::default();
        while at < blocks.end {
            let header = self.storage.read_one(at).await?;
            let Ok(header) = ChunkHeader::decode(&header, at, layout) else { break };
            let contents = Contents::of(&header);
            for named in &contents.named {
                let Named::Unit(first) = *named else { continue };
                let blocks = contents.blocks_of(first);
                slices.spend(1).await;
                let live = self.live(blocks, owners).await?;
                let dead = blocks.len() - live.iter().flatten().count();
                let Some(first) = live.iter().flatten().next().filter(|_| dead > 0) else {
                    continue;
                };
                if matches!(self.piece_key(first.top.id), PieceKey::Locked) {
                    weight = weight.saturating_add(dead as u32 * first.entry.weight());
                }
            }
            at += header.blocks();
        }
        Ok(weight)
    }
}
