//! Cells, and how pages print numbers in them.

use serde::Serialize;

use crate::caps::floor;
use crate::catalogue::PageTable;
use crate::remedy::grouped;

/// A cell of a table.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Cell {
    /// As printed.
    pub text: String,
    /// The number before it was rounded for printing; none where there is no one number.
    pub value: Option<f64>,
    /// Where the page prints something else than its rules give: what they give.
    pub computed: Option<String>,
    /// The inconsistency that tells of it.
    pub inconsistency: Option<String>,
}

impl Cell {
    /// Words.
    pub(crate) fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), ..Cell::default() }
    }

    /// A number as it is, with its decimals.
    pub(crate) fn number(value: f64) -> Cell {
        let text = if value >= 1000.0 { grouped(value) } else { value.to_string() };
        Cell { text, value: Some(value), ..Cell::default() }
    }

    /// A number, or that it is not known.
    pub(crate) fn known(value: Option<f64>) -> Cell {
        value.map_or_else(|| Cell::text("not known"), Cell::number)
    }

    /// IOPS, as the layout rounds them.
    pub(crate) fn iops(value: f64, spec: &PageTable) -> Cell {
        Cell { text: grouped(iops_printed(value, spec)), value: Some(value), ..Cell::default() }
    }

    /// Throughput, as the layout rounds it.
    pub(crate) fn throughput(value: f64, spec: &PageTable) -> Cell {
        let decimals = spec.decimals_below_mb_per_s.is_some_and(|below| value < below);
        let text = match decimals {
            true => ((value * 1000.0).round() / 1000.0).to_string(),
            false => grouped(floor(value)),
        };
        Cell { text, value: Some(value), ..Cell::default() }
    }

    /// From one number to another, or the number that both are.
    pub(crate) fn range(low: f64, high: f64) -> Cell {
        match low == high {
            true => Cell::number(high),
            false => {
                let text = format!("{}-{}", grouped(low), grouped(high));
                Cell { text, value: Some(high), ..Cell::default() }
            }
        }
    }

    /// A number that may grow with each vCPU of a range: `first` at `vcpus.0`, `last` at
    /// `vcpus.1`.
    pub(crate) fn by_vcpus(first: f64, last: f64, vcpus: (u32, u32)) -> Cell {
        let each = (first / f64::from(vcpus.0), last / f64::from(vcpus.1));
        if first == last {
            Cell::number(first)
        } else if (each.0 - each.1).abs() < 1e-9 * each.0 {
            let text = format!("{}/vCPU", grouped(each.0));
            Cell { text, value: Some(first), ..Cell::default() }
        } else {
            Cell::range(first, last)
        }
    }
}

fn iops_printed(value: f64, spec: &PageTable) -> f64 {
    match spec.iops_step_from_10000 {
        Some(step) if value >= 10_000.0 => floor(value / step) * step,
        _ => floor(value),
    }
}
