//! Shortfall: why no configuration meets a need, and the nearest configuration.

use serde::Serialize;

use crate::cheapest::need::{Need, Requirement, Scope};
use crate::cheapest::{CheapestPlan, Search, found};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shortfall {
    /// Parts of the need that no configuration meets, even alone. Empty if each can be met alone,
    /// but not all together.
    pub unmet: Vec<Requirement>,
    /// Percentage of the needed IOPS and throughput that `nearest` carries with the whole capacity,
    /// 1 to 99; 0 without `nearest`.
    pub percent: u32,
    /// The cheapest configuration that carries the highest percentage; `None` if none has the
    /// capacity or 1 %.
    pub nearest: Option<CheapestPlan>,
}

/// Explains why `search` finds nothing for `need`.
pub(super) fn of<'s, 'a>(
    need: &Need,
    scope: &Scope,
    search: impl Fn(&Need) -> Search<'s, 'a>,
) -> Shortfall {
    let is_unmet = |part: &Requirement| search(&need.only(*part)).all.is_empty();
    let unmet = need.parts().into_iter().filter(is_unmet).collect();
    // A configuration that carries a load carries less too, so the highest percentage can be
    // bisected.
    let (mut enough, mut short) = (0, 100);
    let mut nearest = None;
    while short - enough > 1 {
        let percent = enough + (short - enough) / 2;
        let scaled = need.scaled(f64::from(percent) / 100.0);
        match search(&scaled).all.first() {
            Some(best) => {
                nearest = Some(found(&[best], &scaled, scope));
                enough = percent;
            }
            None => short = percent,
        }
    }
    Shortfall { unmet, percent: enough, nearest }
}
