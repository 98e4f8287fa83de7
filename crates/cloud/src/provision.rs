//! Provisioned performance: the purchasable ranges of types whose performance is bought separately
//! from the size.

use crate::catalog::ProvisionedRule;
use crate::input::PlanError;

/// A purchasable range; an end is open without a source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Purchase {
    pub min: f64,
    pub max: f64,
}

impl Purchase {
    fn contains(&self, value: f64) -> bool {
        // A disk without IOPS does nothing; the smallest purchase is not always known.
        let some = value > 0.0 || self.max == 0.0;
        // A value computed from a ratio may miss its own bound in the last binary digit.
        some && value >= self.min * (1.0 - 1e-12) && value <= self.max * (1.0 + 1e-12)
    }

    fn text(&self, unit: &str) -> String {
        match self.max.is_finite() {
            true if self.min == 0.0 => format!("write more than 0, up to {} {unit}", self.max),
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

impl ProvisionedRule {
    /// Purchasable IOPS of a disk of `size`; `None` if IOPS follow the throughput.
    pub(crate) fn iops_range(&self, size: f64) -> Option<Purchase> {
        if self.iops_per_mb_per_s.is_some() {
            return None;
        }
        let by_size = self.iops_max_of_size(size);
        let max = least([self.iops_max, self.iops_per_gb_max.map(|rate| rate * size), by_size]);
        Some(Purchase { min: self.iops_min.unwrap_or(0.0), max })
    }

    /// IOPS that a disk of `size` is known to sell; `None` without rows by size.
    fn iops_max_of_size(&self, size: f64) -> Option<f64> {
        let rows = &self.iops_max_by_size;
        let row = rows.iter().rfind(|row| row.size_gb_min <= size * (1.0 + 1e-12));
        row.or(rows.first()).map(|row| row.iops)
    }

    /// Smallest size that is known to sell `iops`; `None` if no size is.
    pub(crate) fn size_for_iops(&self, iops: f64) -> Option<f64> {
        let rows = &self.iops_max_by_size;
        if rows.is_empty() {
            return Some(0.0);
        }
        rows.iter().find(|row| iops <= row.iops).map(|row| row.size_gb_min)
    }

    /// Purchasable throughput of a disk of `size` with `iops`; `None` if throughput follows the
    /// IOPS or is not sold.
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

    /// IOPS and throughput of a disk of `size`: the requested values, defaults, or derived values.
    ///
    /// # Errors
    /// A value that is not sold, with the range.
    pub fn resolve(
        &self,
        kind: &str,
        unit: &str,
        size: f64,
        iops: Option<f64>,
        throughput: Option<f64>,
    ) -> Result<(Option<f64>, Option<f64>), PlanError> {
        self.check_known(kind, size, iops)?;
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

impl ProvisionedRule {
    /// Refuses IOPS that larger disks sell, if no source says that this size does.
    fn check_known(&self, kind: &str, size: f64, iops: Option<f64>) -> Result<(), PlanError> {
        let (Some(iops), Some(known)) = (iops, self.iops_max_of_size(size)) else { return Ok(()) };
        match self.size_for_iops(iops) {
            Some(_) if iops > known && iops >= self.iops_min.unwrap_or(0.0) => {
                Err(PlanError::NotKnown(format!(
                    "whether {kind} of this size sells {iops} IOPS; {known} are known"
                )))
            }
            _ => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;

    fn part(kind: &str) -> &'static ProvisionedRule {
        let catalog = Catalog::builtin("gcp-current").expect("it is in the program");
        catalog.types[kind].provisioned.as_ref().expect("it is bought")
    }

    fn resolve(
        kind: &str,
        size: f64,
        iops: Option<f64>,
        rate: Option<f64>,
    ) -> Result<(f64, f64), String> {
        match part(kind).resolve(kind, "MiB/s", size, iops, rate) {
            Ok((iops, rate)) => Ok((iops.unwrap_or(0.0), rate.unwrap_or(0.0))),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn purchase_ranges_match_published() {
        // Balanced: throughput from max(140, IOPS/256) to min(2400, IOPS/4).
        assert_eq!(resolve("hyperdisk-balanced", 500.0, None, None), Ok((3000.0, 140.0)));
        assert_eq!(
            resolve("hyperdisk-balanced", 500.0, Some(160000.0), None),
            Ok((160000.0, 625.0))
        );
        assert_eq!(
            resolve("hyperdisk-balanced", 500.0, Some(9600.0), Some(2400.0)),
            Ok((9600.0, 2400.0))
        );
        // Extreme: 250 MiB/s per 1,000 IOPS up to 5,000, and 1,000 IOPS per GiB.
        assert_eq!(resolve("hyperdisk-extreme", 64.0, Some(8000.0), None), Ok((8000.0, 2000.0)));
        assert_eq!(
            resolve("hyperdisk-extreme", 500.0, Some(350000.0), None),
            Ok((350000.0, 5000.0))
        );
        // Throughput: max(20, 5 x TiB) to min(90 x TiB, 2400), and 4 IOPS per MiB/s.
        assert_eq!(resolve("hyperdisk-throughput", 2048.0, None, Some(180.0)), Ok((720.0, 180.0)));
        assert_eq!(
            resolve("hyperdisk-throughput", 32768.0, None, Some(2400.0)),
            Ok((9600.0, 2400.0))
        );
        // ML: a default of 24 per GiB, and at least 7,680 for 64,000 GiB.
        assert_eq!(resolve("hyperdisk-ml", 100.0, None, None), Ok((38400.0, 2400.0)));
        assert_eq!(resolve("hyperdisk-ml", 4.0, None, None), Ok((6400.0, 400.0)));
    }

    #[test]
    fn invalid_purchase_names_range() {
        for (kind, size, iops, rate, wanted) in [
            ("hyperdisk-balanced", 500.0, Some(160001.0), None, "write 3000 to 160000 IOPS"),
            ("hyperdisk-balanced", 500.0, None, Some(751.0), "write 140 to 750 MiB/s"),
            ("hyperdisk-extreme", 64.0, Some(64001.0), None, "write more than 0, up to 64000 IOPS"),
            ("hyperdisk-extreme", 64.0, Some(8000.0), Some(1.0), "it follows the IOPS"),
            ("hyperdisk-throughput", 2048.0, None, Some(181.0), "write 20 to 180 MiB/s"),
            ("hyperdisk-throughput", 32768.0, None, Some(159.0), "write 160 to 2400 MiB/s"),
            ("hyperdisk-throughput", 2048.0, Some(100.0), None, "it follows the throughput"),
            ("hyperdisk-ml", 64000.0, None, Some(7679.0), "write 7680 to 2097152 MiB/s"),
            ("pd-extreme", 500.0, None, None, "--iops is missing"),
        ] {
            let error = resolve(kind, size, iops, rate).expect_err(kind);
            assert!(error.contains(wanted), "{kind}: {error}");
        }
    }
}
