//! Table cells, and the number formats of pages.

use flagstone_units::grouped;
use serde::Serialize;

use crate::caps::floor;
use crate::catalog::PageTable;

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct PlanCell {
    pub text: String,
    /// The number before rounding; `None` if the cell is not a single number.
    pub value: Option<f64>,
    /// The text by the page's own rules, if the page prints something else.
    pub computed: Option<String>,
    pub inconsistency: Option<String>,
}

impl PlanCell {
    pub(crate) fn text(text: impl Into<String>) -> PlanCell {
        PlanCell { text: text.into(), ..PlanCell::default() }
    }

    pub(crate) fn number(value: f64) -> PlanCell {
        let text = if value >= 1000.0 { grouped(value, 0) } else { value.to_string() };
        PlanCell::printed(text, value)
    }

    pub(crate) fn printed(text: String, value: f64) -> PlanCell {
        PlanCell { text, value: Some(value), ..PlanCell::default() }
    }

    /// A number, or `not known`.
    pub(crate) fn known(value: Option<f64>) -> PlanCell {
        value.map_or_else(|| PlanCell::text("not known"), PlanCell::number)
    }

    pub(crate) fn iops(value: f64, spec: &PageTable) -> PlanCell {
        let printed = match spec.iops_step_from_10000 {
            Some(step) if value >= 10_000.0 => floor(value / step) * step,
            _ => floor(value),
        };
        PlanCell::printed(grouped(printed, 0), value)
    }

    pub(crate) fn throughput(value: f64, spec: &PageTable) -> PlanCell {
        let decimals = spec.decimals_below_mb_per_s.is_some_and(|below| value < below);
        let text = match decimals {
            true => ((value * 1000.0).round() / 1000.0).to_string(),
            false => grouped(floor(value), 0),
        };
        PlanCell::printed(text, value)
    }

    pub(crate) fn range(low: f64, high: f64) -> PlanCell {
        match low == high {
            true => PlanCell::number(high),
            false => PlanCell::printed(format!("{}-{}", grouped(low, 0), grouped(high, 0)), high),
        }
    }

    /// A number that may grow with each vCPU of a range: `first` at `vcpus.0`, `last` at `vcpus.1`.
    pub(crate) fn by_vcpus(first: f64, last: f64, vcpus: (u32, u32)) -> PlanCell {
        let each = (first / f64::from(vcpus.0), last / f64::from(vcpus.1));
        if first == last {
            PlanCell::number(first)
        } else if (each.0 - each.1).abs() < 1e-9 * each.0 {
            PlanCell::printed(format!("{}/vCPU", grouped(each.0, 0)), first)
        } else {
            PlanCell::range(first, last)
        }
    }
}
