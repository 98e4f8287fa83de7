//! Sweeps: a dimension and the positions on it.

use serde::Serialize;

use crate::catalog::Catalog;
use crate::input::{DiskConfiguration, PlanError, shown};
use crate::limits::{MAX_BLOCK_BYTES, MAX_DEPTH, MIN_BLOCK_BYTES};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    Size,
    Vcpus,
    Block,
    Depth,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sweep {
    pub over: Over,
    /// Positions in order, in the unit of [`super::CurvePoint::at`].
    pub places: Vec<u64>,
    /// Smallest difference between two positions; 0 if only `places` exist.
    pub step: u64,
}

/// Positions of a continuous dimension before the search for changes.
const PLACES: u32 = 48;

/// Largest size of a type without a maximum, in the catalog's unit.
const SIZE_MAX: u64 = 65_536;

/// Smallest size of a type without a minimum, in the catalog's unit.
const SIZE_MIN: u64 = 10;

/// Default block range: the sizes of databases and copies.
const BLOCKS: (u64, u64) = (4 << 10, 1 << 20);

impl Sweep {
    /// A sweep of a range, or of the range that the types allow.
    ///
    /// # Errors
    /// An empty range, or a machine whose family has no other vCPU counts.
    pub fn new(
        catalog: &Catalog,
        over: Over,
        configurations: &[DiskConfiguration],
        (from, to): (Option<u64>, Option<u64>),
    ) -> Result<Sweep, PlanError> {
        if over == Over::Vcpus {
            return Sweep::of_vcpus(catalog, configurations, (from, to));
        }
        let (least, most, step) = match over {
            Over::Size | Over::Vcpus => (1, u64::MAX / catalog.units.size_bytes, 1),
            Over::Block => (MIN_BLOCK_BYTES, MAX_BLOCK_BYTES, MIN_BLOCK_BYTES),
            Over::Depth => (1, u64::from(MAX_DEPTH), 1),
        };
        let (first, last) = match over {
            Over::Size | Over::Vcpus => sizes(catalog, configurations),
            Over::Block => BLOCKS,
            Over::Depth => (1, 1 << 16),
        };
        let from = from.unwrap_or(first.min(to.unwrap_or(first))) / step * step;
        let to = to.unwrap_or(last.max(from)) / step * step;
        if from < least || to > most || from >= to {
            let found = format!("from {from} to {to}");
            let accepted = format!("write a range within {least} to {most}, the smaller end first");
            return Err(PlanError::input(found, accepted));
        }
        Ok(Sweep { over, places: places(from, to, step), step })
    }

    fn of_vcpus(
        catalog: &Catalog,
        configurations: &[DiskConfiguration],
        (from, to): (Option<u64>, Option<u64>),
    ) -> Result<Sweep, PlanError> {
        let machine = configurations.first().map(|first| &first.machine);
        let (from, to) = (from.unwrap_or(1), to.unwrap_or(u64::MAX));
        let counts = machine.and_then(|machine| {
            let family = catalog.families.get(&machine.family)?;
            with_vcpus(&machine.name, 1)?;
            Some(match (&family.vcpus, family.vcpus_max) {
                (Some(all), _) => all.clone(),
                // Powers of two for a family that lists only its maximum.
                (None, Some(most)) => {
                    let doubled = (0..32).map(|power| 1u32 << power);
                    doubled.take_while(|n| *n < most).chain([most]).collect()
                }
                (None, None) => return None,
            })
        });
        let mut places: Vec<u64> = counts.unwrap_or_default().into_iter().map(u64::from).collect();
        places.sort_unstable();
        places.dedup();
        places.retain(|n| (from..=to).contains(n));
        if places.is_empty() {
            let name = machine.map_or("", |machine| machine.name.as_str());
            let found = format!("no numbers of vCPUs beside {} are known", shown(name));
            let accepted = "write a machine whose name states its vCPUs, such as n2-standard-8";
            return Err(PlanError::input(found, accepted));
        }
        Ok(Sweep { over: Over::Vcpus, places, step: 0 })
    }

    pub fn up_to(&self, to: u64) -> Sweep {
        let from = self.places.first().copied().unwrap_or(0);
        let places = match self.step {
            0 => self.places.iter().copied().filter(|place| *place <= to).collect(),
            step => places(from, to / step * step, step),
        };
        Sweep { places, ..self.clone() }
    }
}

/// Positions at equal factors, rounded to `step`.
fn places(from: u64, to: u64, step: u64) -> Vec<u64> {
    let factor = (to as f64 / from as f64).powf(1.0 / f64::from(PLACES));
    let between = (1..PLACES).map(|n| {
        let place = from as f64 * factor.powi(n as i32);
        (place / step as f64).round() as u64 * step
    });
    let mut all: Vec<u64> =
        [from].into_iter().chain(between).chain([to]).filter(|p| (from..=to).contains(p)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Smallest and largest size over all types.
fn sizes(catalog: &Catalog, configurations: &[DiskConfiguration]) -> (u64, u64) {
    let types = || configurations.iter().filter_map(|asked| catalog.types.get(&asked.kind));
    let whole = |size: Option<f64>, other: u64| size.map_or(other, |size| size.ceil() as u64);
    let least = types().map(|disk| whole(disk.size_gb_min, SIZE_MIN)).min();
    let most = types().map(|disk| whole(disk.size_gb_max, SIZE_MAX)).max();
    (least.unwrap_or(SIZE_MIN).max(1), most.unwrap_or(SIZE_MAX))
}

/// The machine's name with another vCPU count; `None` if the name does not contain one.
pub(super) fn with_vcpus(name: &str, vcpus: u64) -> Option<String> {
    let mut words: Vec<String> = name.split('-').map(str::to_owned).collect();
    let number = |word: &String| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    let custom = words.get(1).is_some_and(|word| word == "custom");
    let at = if custom {
        Some(2).filter(|at| words.len() > *at)
    } else {
        words.iter().rposition(number)
    };
    let at = at.filter(|at| number(&words[*at]))?;
    words[at] = vcpus.to_string();
    Some(words.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_name_with_other_vcpus() {
        for (name, wanted) in [
            ("n2-standard-8", Some("n2-standard-32")),
            ("c3-standard-88-lssd", Some("c3-standard-32-lssd")),
            ("n1-custom-6-12288", Some("n1-custom-32-12288")),
            ("a2-highgpu-1g", None),
            ("n1-custom", None),
            ("", None),
        ] {
            assert_eq!(with_vcpus(name, 32).as_deref(), wanted, "{name}");
        }
    }

    #[test]
    fn sweep_positions_are_ordered_and_bounded() {
        for (from, to, step) in [(10, 65_536, 1), (1, 2, 1), (4096, 1 << 20, 512), (1, 64, 1)] {
            let all = places(from, to, step);
            assert_eq!((all.first(), all.last()), (Some(&from), Some(&to)));
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(all.iter().all(|place| (place - from).is_multiple_of(step)), "{all:?}");
        }
    }
}
