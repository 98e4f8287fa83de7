//! Provenance of results: sources, confidence and contradictions.

use crate::catalogue::{
    Catalogue, Confidence, Inconsistency, IoDirection, LimitKind, SourceKeys, TableKind, Touches,
};
use crate::input::Workload;
use crate::placement::{Demand, Placement};
use crate::prediction::{SourceUse, Touched};

impl Catalogue {
    /// Confidence of a table: its own, or the best of its sources.
    pub fn confidence_of(&self, sources: &SourceKeys, own: Option<Confidence>) -> Confidence {
        let best = sources.iter().filter_map(|key| self.sources.get(key)).map(|s| s.confidence);
        own.or(best.min()).unwrap_or(Confidence::C)
    }

    /// Descriptions of the sources with these keys.
    pub fn source_uses<'k>(
        &self,
        uses: impl IntoIterator<Item = (&'k SourceKeys, Option<Confidence>)>,
    ) -> Vec<SourceUse> {
        let mut out: Vec<SourceUse> = Vec::new();
        for (keys, own) in uses {
            for key in keys {
                let Some(source) = self.sources.get(key) else { continue };
                let confidence = own.unwrap_or(source.confidence);
                match out.iter_mut().find(|known| known.key == *key) {
                    Some(known) => known.confidence = known.confidence.max(confidence),
                    None => out.push(SourceUse {
                        key: key.clone(),
                        address: source.address.clone(),
                        date: source.date.clone(),
                        confidence,
                    }),
                }
            }
        }
        out
    }

    /// Contradictions that a table of `plan table` shows.
    pub fn inconsistencies_of_table(
        &self,
        table: TableKind,
        kind: Option<&str>,
        family: Option<&str>,
    ) -> Vec<Touched> {
        let touched = self.inconsistencies.iter().filter(|inconsistency| {
            inconsistency.touches.as_ref().is_some_and(|touches| {
                touches.tables.contains(&table)
                    && named(touches.types.as_ref(), kind)
                    && named(touches.families.as_ref(), family)
            })
        });
        touched.map(told).collect()
    }
}

/// Whether a selector admits a name; a missing selector or name admits everything.
fn named(selector: Option<&Vec<String>>, name: Option<&str>) -> bool {
    match (selector, name) {
        (Some(names), Some(name)) => names.iter().any(|known| known == name),
        _ => true,
    }
}

fn told(inconsistency: &Inconsistency) -> Touched {
    Touched {
        id: inconsistency.id.clone(),
        place: inconsistency.place.clone(),
        why: inconsistency.why.clone(),
        used: inconsistency.used.clone(),
    }
}

impl Placement<'_> {
    /// Contradictions that affect a prediction in which `limits` bind or are next.
    pub(crate) fn inconsistencies(
        &self,
        demand: &Demand,
        workload: &Workload,
        limits: &[LimitKind],
    ) -> Vec<Touched> {
        let touched = self.catalogue.inconsistencies.iter().filter(|inconsistency| {
            let touches = inconsistency.touches.as_ref();
            touches.is_some_and(|touches| self.touches(touches, demand, workload, limits))
        });
        touched.map(told).collect()
    }

    fn touches(
        &self,
        touches: &Touches,
        demand: &Demand,
        workload: &Workload,
        limits: &[LimitKind],
    ) -> bool {
        let block = self.catalogue.units.block_of(workload.block_bytes);
        let mixed = (1..100).contains(&workload.read_percent);
        let directions = match touches.direction {
            Some(IoDirection::Read) => workload.read_percent > 0,
            Some(IoDirection::Write) => workload.read_percent < 100,
            None => true,
        };
        let machine = |names: &Vec<crate::catalogue::NamePattern>| {
            names.iter().any(|pattern| pattern.matches(&self.machine.name))
        };
        !touches.tables_only
            && named(touches.types.as_ref(), Some(self.kind))
            && named(touches.families.as_ref(), Some(&self.machine.family))
            && touches.machines.as_ref().is_none_or(machine)
            && touches
                .vcpus
                .is_none_or(|range| self.machine.vcpus.is_some_and(|n| range.contains(n)))
            && touches.disks.is_none_or(|range| range.contains(demand.disks))
            && touches.regional.is_none_or(|regional| regional == self.regional)
            && touches
                .sizes_gb
                .as_ref()
                .is_none_or(|sizes| sizes.iter().any(|size| (size - demand.size).abs() < 0.5))
            && touches.block_kb_above.is_none_or(|least| block > least)
            && directions
            && touches.mixed.is_none_or(|wanted| wanted == mixed)
            && touches
                .limits
                .as_ref()
                .is_none_or(|kinds| kinds.iter().any(|kind| limits.contains(kind)))
    }
}
