//! Provenance of results: sources, confidence and contradictions.

use crate::catalog::{
    Catalog, Confidence, CountRange, Inconsistency, IoDirection, LimitKind, NamePattern,
    SourceKeys, TableKind, Touches,
};
use crate::input::Workload;
use crate::placement::{Demand, Placement};
use crate::prediction::SourceUse;

impl Catalog {
    /// Confidence of a table: its own, or the best of its sources.
    pub fn confidence_of(&self, sources: &SourceKeys, own: Option<Confidence>) -> Confidence {
        let best = sources.iter().filter_map(|key| self.sources.get(key)).map(|s| s.confidence);
        own.or(best.min()).unwrap_or(Confidence::C)
    }

    pub(crate) fn source_uses<'k>(
        &self,
        uses: impl IntoIterator<Item = (&'k SourceKeys, Option<Confidence>)>,
    ) -> Vec<SourceUse> {
        let mut out: Vec<SourceUse> = Vec::new();
        for (keys, own) in uses {
            let found = keys.iter().filter_map(|key| Some((key, self.sources.get(key)?)));
            let sources = found.map(|(key, source)| SourceUse {
                key: key.clone(),
                address: source.address.clone(),
                date: source.date.clone(),
                confidence: own.unwrap_or(source.confidence),
            });
            merge_sources(&mut out, sources);
        }
        out
    }

    /// Contradictions that a table of `plan table` shows.
    pub(crate) fn inconsistencies_of_table(
        &self,
        table: TableKind,
        kind: Option<&str>,
        family: Option<&str>,
    ) -> Vec<Inconsistency> {
        self.touched(|touches| {
            touches.tables.contains(&table)
                && named(touches.types.as_ref(), kind)
                && named(touches.families.as_ref(), family)
        })
    }

    fn touched(&self, is_touched: impl Fn(&Touches) -> bool) -> Vec<Inconsistency> {
        let touched =
            self.inconsistencies.iter().filter(|one| one.touches.as_ref().is_some_and(&is_touched));
        touched.cloned().collect()
    }
}

/// Adds sources; a source that both have keeps the lower confidence.
pub(crate) fn merge_sources(into: &mut Vec<SourceUse>, more: impl IntoIterator<Item = SourceUse>) {
    for source in more {
        match into.iter_mut().find(|known| known.key == source.key) {
            Some(known) => known.confidence = known.confidence.max(source.confidence),
            None => into.push(source),
        }
    }
}

pub(crate) fn add_new<T: PartialEq>(into: &mut Vec<T>, more: Vec<T>) {
    for one in more {
        if !into.contains(&one) {
            into.push(one);
        }
    }
}

/// Whether a selector admits a name; a missing selector or name admits everything.
fn named(selector: Option<&Vec<String>>, name: Option<&str>) -> bool {
    match (selector, name) {
        (Some(names), Some(name)) => names.iter().any(|known| known == name),
        _ => true,
    }
}

impl Placement<'_> {
    /// Contradictions that affect a prediction in which `limits` bind or are next.
    pub(crate) fn inconsistencies(
        &self,
        demand: &Demand,
        workload: &Workload,
        limits: &[LimitKind],
    ) -> Vec<Inconsistency> {
        self.catalog.touched(|touches| self.touches(touches, demand, workload, limits))
    }

    fn touches(
        &self,
        touches: &Touches,
        demand: &Demand,
        workload: &Workload,
        limits: &[LimitKind],
    ) -> bool {
        let block = self.catalog.units.block_of(workload.block_bytes);
        let mixed = (1..100).contains(&workload.read_percent);
        let directions = match touches.direction {
            Some(IoDirection::Read) => workload.read_percent > 0,
            Some(IoDirection::Write) => workload.read_percent < 100,
            None => true,
        };
        let machine = |names: &Vec<NamePattern>| {
            names.iter().any(|pattern| pattern.matches(&self.machine.name))
        };
        let has_vcpus = |range: CountRange| self.machine.vcpus.is_some_and(|n| range.contains(n));
        let has_size = |sizes: &Vec<f64>| sizes.iter().any(|size| (size - demand.size).abs() < 0.5);
        !touches.tables_only
            && named(touches.types.as_ref(), Some(self.kind))
            && named(touches.families.as_ref(), Some(&self.machine.family))
            && touches.machines.as_ref().is_none_or(machine)
            && touches.vcpus.is_none_or(has_vcpus)
            && touches.disks.is_none_or(|range| range.contains(demand.disks))
            && touches.regional.is_none_or(|regional| regional == self.regional)
            && touches
                .size_gb_min
                .is_none_or(|least| demand.size * f64::from(demand.disks) >= least)
            && touches.sizes_gb.as_ref().is_none_or(has_size)
            && touches.block_kb_above.is_none_or(|least| block > least)
            && directions
            && touches.mixed.is_none_or(|wanted| wanted == mixed)
            && touches.limits.as_ref().is_none_or(|all| all.iter().any(|one| limits.contains(one)))
    }
}
