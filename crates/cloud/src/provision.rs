//! What can be bought of a type whose performance is bought apart from its size.

use crate::catalogue::Provisioned;
use crate::input::PlanError;

/// A range of what can be bought; either end is open where no source gives it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Purchase {
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Purchase {
    fn contains(&self, value: f64) -> bool {
        // What is computed from a ratio may miss its own bound in the last binary digit.
        value >= self.min * (1.0 - 1e-12) && value <= self.max * (1.0 + 1e-12)
    }

    fn text(&self, unit: &str) -> String {
        match self.max.is_finite() {
            true => format!("write {} to {} {unit}", self.min, self.max),
            false => format!("write {} {unit} or more", self.min),
        }
    }
}

fn most(values: impl IntoIterator<Item = Option<f64>>) -> f64 {
    values.into_iter().flatten().fold(0.0, f64::max)
}

fn least(values: impl IntoIterator<Item = Option<f64>>) -> f64 {
    values.into_iter().flatten().fold(f64::INFINITY, f64::min)
}

impl Provisioned {
    /// The IOPS that can be bought for a disk of `size`; `None` if they follow the throughput.
    pub fn iops_range(&self, size: f64) -> Option<Purchase> {
        if self.iops_per_mb_per_s.is_some() {
            return None;
        }
        let max = least([self.iops_max, self.iops_per_gb_max.map(|rate| rate * size)]);
        Some(Purchase { min: self.iops_min.unwrap_or(0.0), max })
    }

    /// The throughput that can be bought for a disk of `size` with `iops`; `None` if it follows
    /// the IOPS, or is not sold.
    pub fn throughput_range(&self, size: f64, iops: Option<f64>) -> Option<Purchase> {
        let sold = self.mb_per_s_min.is_some() || self.mb_per_s_default.is_some();
        if self.mb_per_s_per_iops.is_some() || !sold {
            return None;
        }
        let of = |rate: Option<f64>, what: Option<f64>| rate.zip(what).map(|(rate, n)| rate * n);
        let min = most([
            self.mb_per_s_min,
            of(self.mb_per_s_per_gb_min, Some(size)),
            of(self.mb_per_s_per_iops_min, iops),
        ]);
        let max = least([
            self.mb_per_s_max,
            of(self.mb_per_s_per_gb_max, Some(size)),
            of(self.mb_per_s_per_iops_max, iops),
        ]);
        Some(Purchase { min, max })
    }

    /// The IOPS and the throughput of a disk of `size` when these are asked for, with defaults in
    /// place of what is not, and what is derived.
    ///
    /// # Errors
    /// What cannot be bought, and what can.
    pub fn resolve(
        &self,
        kind: &str,
        unit: &str,
        size: f64,
        iops: Option<f64>,
        throughput: Option<f64>,
    ) -> Result<(Option<f64>, Option<f64>), PlanError> {
        let iops = match self.iops_range(size) {
            Some(range) => Some(bought(kind, "IOPS", "--iops", range, iops, self.iops_default)?),
            None if iops.is_some() => return Err(derived(kind, "IOPS", "throughput")),
            None => None,
        };
        let throughput = match self.throughput_range(size, iops) {
            Some(range) => {
                let per_size = self.mb_per_s_per_gb_default.map(|rate| rate * size);
                let default = self.mb_per_s_default.map(|fixed| {
                    fixed.max(per_size.unwrap_or(0.0)).clamp(range.min, range.max.max(range.min))
                });
                Some(bought(kind, unit, "--throughput", range, throughput, default)?)
            }
            None if throughput.is_some() => return Err(derived(kind, "throughput", "IOPS")),
            None => self.mb_per_s_per_iops.zip(iops).map(|(rate, iops)| {
                self.mb_per_s_max.map_or(rate * iops, |most| (rate * iops).min(most))
            }),
        };
        let iops = iops.or_else(|| {
            let (rate, throughput) = (self.iops_per_mb_per_s?, throughput?);
            Some(self.iops_max.map_or(rate * throughput, |most| (rate * throughput).min(most)))
        });
        Ok((iops, throughput))
    }
}

fn bought(
    kind: &str,
    unit: &str,
    option: &str,
    range: Purchase,
    asked: Option<f64>,
    default: Option<f64>,
) -> Result<f64, PlanError> {
    let Some(value) = asked.or(default) else {
        let found = format!("{kind} is bought with {unit}, and {option} is missing");
        return Err(PlanError::input(found, range.text(unit)));
    };
    if range.max < range.min {
        let found = format!("a disk of {kind} of this size");
        return Err(PlanError::input(found, "write a larger size".to_owned()));
    }
    if range.contains(value) {
        return Ok(value);
    }
    Err(PlanError::input(format!("{value} {unit} of {kind}"), range.text(unit)))
}

fn derived(kind: &str, what: &str, other: &str) -> PlanError {
    let found = format!("the {what} of {kind} cannot be bought");
    PlanError::input(found, format!("it follows the {other}, or the machine"))
}
