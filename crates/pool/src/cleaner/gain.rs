//! Gain: whether cleaning still frees segments. Pure.
//!
//! Near the limit of its density a pool gains nothing from one pass: copies, their headers and the
//! checkpoint take what the victims give. The number of free segments may go up and down for ever
//! then, so only more of them than at any time in a row of passes counts.

use crate::limits::FRUITLESS_PASSES;

/// Passes in a row that gained nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gain {
    fruitless: u32,
    /// Most free segments during these passes.
    most_free: usize,
}

impl Gain {
    /// Counts a pass, with the free segments before and after it.
    pub(super) fn count(&mut self, before: usize, after: usize) {
        let most_free = self.most_free.max(before);
        *self = match after > most_free {
            true => Gain::default(),
            false => Gain { fruitless: self.fruitless + 1, most_free },
        };
    }

    /// True when more passes would gain nothing.
    pub(super) fn is_over(&self) -> bool {
        self.fruitless >= FRUITLESS_PASSES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_over(free: &[usize]) -> bool {
        let mut gain = Gain::default();
        free.windows(2).for_each(|pass| gain.count(pass[0], pass[1]));
        gain.is_over()
    }

    #[test]
    fn cleaning_ends_when_free_segments_only_oscillate() {
        assert!(is_over(&[15, 14, 15, 14, 15]));
        assert!(!is_over(&[15, 14, 15, 16, 15]));
        assert!(!is_over(&[15, 15, 15, 15, 16]), "the last pass gained");
    }
}
