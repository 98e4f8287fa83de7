//! Scales: range of an axis, its ticks, and positions of numbers.

use crate::figure::{Axis, Scale};

const TICKS: f64 = 6.0;
const TICKS_MAX: usize = 24;

#[derive(Clone, Debug)]
pub(crate) struct Placed {
    scale: Scale,
    low: f64,
    high: f64,
    most: f64,
    pub(crate) ticks: Vec<f64>,
}

impl Placed {
    /// An axis that shows all representable `values`; a linear one starts and ends at a tick.
    pub(crate) fn new(axis: &Axis, values: impl Iterator<Item = f64>) -> Placed {
        let fits = |value: &f64| match axis.scale {
            Scale::Linear => value.is_finite(),
            // Subnormal numbers are excluded, because their halves may be 0.
            Scale::Log | Scale::Log2 => value.is_normal() && *value > 0.0,
        };
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(fits) {
            low = low.min(value);
            high = high.max(value);
        }
        Placed::between(axis, low, high)
    }

    /// As [`Placed::new`], with a margin so that no line is on the frame.
    pub(crate) fn roomy(axis: &Axis, values: impl Iterator<Item = f64>) -> Placed {
        let tight = Placed::new(axis, values);
        let (low, high) = (tight.low, tight.high);
        if axis.scale == Scale::Linear {
            let room = if tight.most > high * 0.97 { high * 1.08 } else { high };
            return Placed::between(axis, low, room);
        }
        Placed::between(axis, nice_below(low / 1.1), nice_step(high * 1.15))
    }

    fn between(axis: &Axis, low: f64, high: f64) -> Placed {
        let mut placed = match axis.scale {
            Scale::Linear => Placed::linear(low.min(0.0), high.max(0.0)),
            Scale::Log => Placed::log(low, high),
            Scale::Log2 => Placed::log2(low, high),
        };
        placed.most = high;
        if !axis.ticks.is_empty() {
            placed.ticks = axis.ticks.iter().copied().take(TICKS_MAX).collect();
        }
        placed
    }

    fn linear(low: f64, high: f64) -> Placed {
        let span = high - low;
        // No values, or a range beyond the precision: an axis from 0 to 1.
        if !(span.is_finite() && span > f64::MIN_POSITIVE * 1e6) {
            return Placed::linear(0.0, 1.0);
        }
        let step = nice_step(span / TICKS);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let count = ((last - first) as usize).min(TICKS_MAX);
        let ticks = (0..=count).map(|at| (first + at as f64) * step).collect();
        let (low, high) = (first * step, last * step);
        Placed { scale: Scale::Linear, low, high, most: high, ticks }
    }

    fn log(low: f64, high: f64) -> Placed {
        if !(low.is_finite() && high.is_finite()) {
            return Placed::log(1.0, 10.0);
        }
        let (low, high) = apart(low, high);
        // Computed from the difference of logarithms, because the quotient may overflow.
        let decades = high.log10() - low.log10();
        let factors: &[f64] = if decades < 3.2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = (decades / 10.0).ceil().max(1.0) as i32;
        let mut ticks = Vec::new();
        let mut decade = low.log10().floor() as i32;
        while f64::from(decade) <= high.log10() && ticks.len() < TICKS_MAX {
            let at = factors.iter().map(|factor| factor * 10f64.powi(decade));
            ticks.extend(at.filter(|tick| (low * 0.999..=high * 1.001).contains(tick)));
            decade = decade.saturating_add(every);
        }
        Placed { scale: Scale::Log, low, high, most: high, ticks }
    }

    fn log2(low: f64, high: f64) -> Placed {
        if !(low.is_finite() && high.is_finite()) {
            return Placed::log2(1.0, 16.0);
        }
        let (low, high) = apart(low, high);
        let octaves = high.log2() - low.log2();
        // Ticks are thinned out so that their labels fit.
        let every = [1, 2, 4, 10].into_iter().find(|every| octaves / f64::from(*every) <= 11.0);
        let every = every.unwrap_or((octaves / 10.0).ceil() as i32);
        let (first, last) = (low.log2() - 1e-3, high.log2() + 1e-3);
        let from = (first / f64::from(every)).ceil() as i32 * every;
        let powers = (0..=TICKS_MAX as i32).map(|at| from.saturating_add(at * every));
        let ticks =
            powers.filter(|power| f64::from(*power) <= last).map(|p| 2f64.powi(p)).collect();
        Placed { scale: Scale::Log2, low, high, most: high, ticks }
    }

    /// Position of `value`, 0 at the start of the axis to 1 at its end; `None` outside of it.
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            _ if value > 0.0 => (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln()),
            _ => return None,
        };
        (-0.001..=1.001).contains(&place).then_some(place)
    }

    pub(crate) fn base(&self) -> f64 {
        self.place(0.0).unwrap_or(0.0)
    }
}

/// Largest of 1, 2, 5, 10, … that is at most `raw`; `raw` itself below the precision.
fn nice_below(raw: f64) -> f64 {
    let decade = 10f64.powf(raw.log10().floor());
    let nice = [5.0, 2.0, 1.0].into_iter().find(|factor| factor * decade <= raw * 1.001);
    let nice = nice.unwrap_or(1.0) * decade;
    if nice.is_normal() { nice } else { raw }
}

/// A single value is in the middle of a range of factor 4.
fn apart(low: f64, high: f64) -> (f64, f64) {
    if high / low < 1.01 { (low / 2.0, (high * 2.0).min(f64::MAX)) } else { (low, high) }
}

/// Smallest of 1, 2, 5, 10, … that is at least `raw`.
fn nice_step(raw: f64) -> f64 {
    let decade = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * decade >= raw * 0.999);
    factor.unwrap_or(10.0) * decade
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn linear_axis_from_zero_to_a_tick() {
        let axis = Placed::new(&Axis::linear("IOPS"), [3000.0, 14_000.0].into_iter());
        assert_eq!(axis.ticks, [0.0, 5000.0, 10_000.0, 15_000.0]);
        assert_eq!(axis.place(0.0), Some(0.0));
        assert_eq!(axis.place(7500.0), Some(0.5));
        assert_eq!(axis.place(20_000.0), None);
    }

    #[test]
    fn log_axis_ticks() {
        let axis = Placed::new(&Axis::log("GB"), [10.0, 1000.0].into_iter());
        assert_eq!(axis.ticks, [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert!((axis.place(100.0).unwrap() - 0.5).abs() < 1e-9);
        assert_eq!(axis.place(0.0), None);
        assert_eq!(axis.place(-5.0), None);
    }

    #[test]
    fn log2_axis_ticks_are_thinned() {
        let blocks = Placed::new(
            &Axis { scale: Scale::Log2, ..Axis::linear("") },
            [4096.0, 1048576.0].into_iter(),
        );
        assert_eq!(blocks.ticks.len(), 9);
        assert_eq!((blocks.ticks[0], blocks.ticks[8]), (4096.0, 1048576.0));
        let wide = Placed::new(
            &Axis { scale: Scale::Log2, ..Axis::linear("") },
            [10.0, 65536.0].into_iter(),
        );
        assert_eq!(wide.ticks, [16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0]);
        let own = Axis { scale: Scale::Log2, ticks: vec![2.0, 48.0], ..Axis::linear("") };
        assert_eq!(Placed::new(&own, [2.0, 48.0].into_iter()).ticks, [2.0, 48.0]);
    }

    #[test]
    fn log_axis_spans_full_float_range() {
        // The quotient is infinite; found by a random figure of `any_curve_is_well_formed`.
        for scale in [Scale::Log, Scale::Log2] {
            let axis = Axis { scale, ..Axis::linear("") };
            let placed = Placed::new(&axis, [1e-300, 1.0, 1e300].into_iter());
            assert!(placed.ticks.len() > 2);
            assert!((placed.place(1.0).unwrap() - 0.5).abs() < 1e-9);
            for alone in [5e-324, f64::MIN_POSITIVE, f64::MAX] {
                assert!(Placed::new(&axis, [alone].into_iter()).ticks.iter().all(|at| *at > 0.0));
            }
        }
    }

    #[test]
    fn axis_leaves_room_above_values() {
        let log = Placed::roomy(&Axis::log("IOPS"), [300.0, 15_000.0].into_iter());
        assert!(log.place(15_000.0).unwrap() < 0.99 && log.place(300.0).unwrap() > 0.01);
        let linear = Placed::roomy(&Axis::linear("IOPS"), [15_000.0].into_iter());
        assert_eq!(linear.ticks.last(), Some(&20_000.0));
        let enough = Placed::roomy(&Axis::linear("IOPS"), [14_000.0].into_iter());
        assert_eq!(enough.ticks.last(), Some(&15_000.0));
    }

    proptest! {
        #[test]
        fn any_numbers_have_finite_positions(
            values in proptest::collection::vec(any::<f64>(), 0..20),
            scale in prop_oneof![Just(Scale::Linear), Just(Scale::Log), Just(Scale::Log2)],
            roomy in any::<bool>(),
        ) {
            let axis = Axis { scale, ..Axis::linear("x") };
            let placed = match roomy {
                true => Placed::roomy(&axis, values.iter().copied()),
                false => Placed::new(&axis, values.iter().copied()),
            };
            prop_assert!(placed.ticks.len() <= TICKS_MAX + 3);
            prop_assert!(placed.ticks.is_sorted());
            for value in values.into_iter().chain(placed.ticks.clone()) {
                if let Some(place) = placed.place(value) {
                    prop_assert!(place.is_finite());
                }
            }
        }
    }
}
