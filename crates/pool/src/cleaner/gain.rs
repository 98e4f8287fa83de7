//! Gain: whether cleaning still frees space. Pure.
//!
//! Near its limit of density, a pool gains nothing from a pass: copies, headers and the checkpoint
//! take all space that the victims give. Free space may then rise and fall for ever. So a pass
//! gains only if it leaves more free space than all passes since the last gain. Blocks written for
//! hosts meanwhile count as free.

use crate::limits::FRUITLESS_PASSES;

/// Passes in a row that gained nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gain {
    fruitless: u32,
    /// Most free blocks during these passes.
    most_free: u64,
}

impl Gain {
    /// Counts a pass, with the free blocks before and after it.
    pub(super) fn count(&mut self, before: u64, after: u64) {
        let most_free = self.most_free.max(before);
        *self = match after > most_free {
            true => Gain::default(),
            false => Gain { fruitless: self.fruitless + 1, most_free },
        };
    }

    /// True when more passes would gain nothing.
    pub(crate) fn is_over(&self) -> bool {
        self.fruitless >= FRUITLESS_PASSES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_over(free: &[u64]) -> bool {
        let mut gain = Gain::default();
        free.windows(2).for_each(|pass| gain.count(pass[0], pass[1]));
        gain.is_over()
    }

    #[test]
    fn cleaning_ends_when_free_space_only_oscillates() {
        assert!(is_over(&[15, 14, 15, 14, 15, 14, 15, 14, 15]));
        assert!(!is_over(&[15, 14, 15, 14, 16, 14, 15, 14, 15]));
        assert!(!is_over(&[15, 15, 15, 15, 15, 15, 15, 15, 16]), "the last pass gained");
    }
}
