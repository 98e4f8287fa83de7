//! Tables of egress, of sizes that match a hard disk, of prices, and of local SSDs by number.

use super::cells::PlanCell;
use super::{PlanTable, TableBuilder, heads};
use crate::catalog::{PageTable, VolumeLimits};
use crate::input::PlanError;
use crate::placement::{Demand, Placement};
use crate::prediction::Dimension;

impl TableBuilder<'_> {
    fn egress_types(&self, spec: &PageTable) -> Vec<(&str, &VolumeLimits)> {
        self.types_of(spec)
            .into_iter()
            .filter(|(_, disk)| disk.uses_egress)
            .filter_map(|(name, disk)| disk.volume.as_ref().map(|part| (name, part)))
            .collect()
    }

    /// For each type: maximum writes, writes under full network use, and the size that reaches the
    /// maximum.
    pub(super) fn egress_by_type(&self, spec: &PageTable) -> Result<PlanTable, PlanError> {
        let family = spec.family.as_deref().unwrap_or("");
        let units = &self.catalog.units;
        let mut heads = vec!["vCPUs".to_owned()];
        for (name, _) in self.egress_types(spec) {
            heads.push(format!("{name}: limit {}", units.throughput.name()));
            heads.push(format!("{name}: allocation {}", units.throughput.name()));
            heads.push(format!("{name}: size {}", units.size.name()));
        }
        let mut rows = Vec::new();
        for range in &spec.vcpus {
            let mut row = vec![PlanCell::text(range.to_string())];
            for (name, part) in self.egress_types(spec) {
                let machine = self.machine_of(family, range.min);
                let placement = Placement::new(self.catalog, name, &machine, false, 0.0, false)?;
                let gbit = placement.egress_gbit_per_s.unwrap_or(0.0);
                let most = machine_write(&placement);
                let limit = most.min(placement.egress_throughput(gbit, 0.0));
                let allocation = most.min(placement.egress_throughput(gbit, gbit));
                let size = part.write_mb_per_s_per_gb.map(|rate| whole_up(limit / rate));
                row.extend([
                    PlanCell::number(limit),
                    PlanCell::number(allocation),
                    PlanCell::known(size),
                ]);
            }
            rows.push(row);
        }
        Ok(self.table(spec, heads, rows, self.egress_sources()))
    }

    /// Egress in its own unit: the cap, the disks' share, and the resulting writes.
    pub(super) fn egress(&self, spec: &PageTable) -> Result<PlanTable, PlanError> {
        let family = spec.family.as_deref().unwrap_or("");
        let types = self.egress_types(spec);
        let mut rows = Vec::new();
        for range in &spec.vcpus {
            let (Some((kind, _)), Some(rule)) = (types.first(), &self.catalog.egress) else {
                continue;
            };
            let machine = self.machine_of(family, range.min);
            let placement = Placement::new(self.catalog, kind, &machine, false, 0.0, false)?;
            let Some(gbit) = placement.egress_gbit_per_s else { continue };
            let cap = gbit * rule.throughput_per_gbit;
            let written = |other| {
                (placement.egress_throughput(gbit, other) / placement.egress_unit()).round()
            };
            let mut row = vec![PlanCell::text(range.to_string())];
            row.extend(
                [cap, cap * rule.disk_share, written(0.0), written(gbit)].map(PlanCell::number),
            );
            rows.push(row);
        }
        let heads = heads(
            "vCPUs|Egress cap MB/s|Allocated to disks MB/s|Most written MB/s|Most written at full \
             network use MB/s",
        );
        Ok(self.table(spec, heads, rows, self.egress_sources()))
    }

    fn egress_sources(&self) -> Vec<crate::prediction::SourceUse> {
        let rule = self.catalog.egress.as_ref();
        self.catalog.source_uses(rule.map(|rule| (&rule.source, rule.confidence)))
    }

    pub(super) fn hdd(&self, spec: &PageTable) -> PlanTable {
        let (iops, throughput) = (spec.hdd_iops.unwrap_or(0.0), spec.hdd_mb_per_s.unwrap_or(0.0));
        let unit = self.catalog.units.throughput.name();
        let types = self.egress_types(spec);
        let mut rows = Vec::new();
        for (what, target, dimension) in [
            (format!("{iops} small random"), iops, Dimension::Iops),
            (format!("{throughput} {unit} of streaming"), throughput, Dimension::Throughput),
        ] {
            for (at, word) in ["reads", "writes"].into_iter().enumerate() {
                let mut row = vec![PlanCell::text(format!("{what} {word}"))];
                row.extend(types.iter().map(|(_, part)| {
                    let rate = part.rule(dimension).rates[at];
                    PlanCell::known(rate.map(|rate| whole_up(target / rate)))
                }));
                rows.push(row);
            }
        }
        let mut heads = vec!["I/O".to_owned()];
        let size = self.catalog.units.size.name();
        heads.extend(types.iter().map(|(name, _)| format!("{name} ({size})")));
        let uses = types.iter().map(|(_, part)| (&part.source, part.confidence));
        self.table(spec, heads, rows, self.catalog.source_uses(uses))
    }

    /// Prices as on the 2019 page, with the price of a read IOPS.
    pub(super) fn price(&self, spec: &PageTable) -> PlanTable {
        let size = self.catalog.units.size.name();
        let heads = heads(&format!("Type|USD per {size} and month|USD per read IOPS"));
        let prices = || self.catalog.prices.iter().filter(|price| self.shows(&price.kind));
        let rows = prices()
            .map(|price| {
                let rate =
                    self.catalog.types.get(&price.kind).and_then(|disk| disk.volume.as_ref());
                let rate = rate.and_then(|part| part.read_iops_per_gb);
                vec![
                    PlanCell::text(price.kind.clone()),
                    usd(Some(price.usd_per_gb), 3),
                    usd(rate.map(|rate| price.usd_per_gb / rate), 4),
                ]
            })
            .collect();
        let sources = self.catalog.source_uses(prices().map(|p| (&p.source, p.confidence)));
        self.table(spec, heads, rows, sources)
    }

    pub(super) fn prices(&self, spec: &PageTable) -> PlanTable {
        let units = &self.catalog.units;
        let size = units.size.name();
        let heads = heads(&format!(
            "Type|USD per {size} and month|regional, per {size}|per IOPS bought|per {} bought|Region|\
             Confidence",
            units.throughput.name()
        ));
        let prices = || self.catalog.prices.iter().filter(|price| self.shows(&price.kind));
        let mut footnotes = Vec::new();
        let rows = prices()
            .map(|price| {
                let confidence = self.catalog.confidence_of(&price.source, price.confidence);
                if let Some(note) = &price.note {
                    footnotes.push(format!("{}: {note}", price.kind));
                }
                let trusted = if price.disputed { " (disputed)" } else { "" };
                vec![
                    PlanCell::text(price.kind.clone()),
                    usd(Some(price.usd_per_gb), 3),
                    usd(price.usd_per_gb_regional, 3),
                    usd(price.usd_per_iops, 3),
                    usd(price.usd_per_mb_per_s, 3),
                    PlanCell::text(price.region.clone()),
                    PlanCell::text(format!("{confidence}{trusted}")),
                ]
            })
            .collect();
        let sources = self.catalog.source_uses(prices().map(|p| (&p.source, p.confidence)));
        let mut table = self.table(spec, heads, rows, sources);
        table.footnotes.extend(footnotes);
        table
    }

    pub(super) fn count(&self, spec: &PageTable) -> PlanTable {
        let kind = spec.kind.as_deref().unwrap_or("");
        let unit = self.catalog.units.throughput.name();
        let heads = heads(&format!("Disks|Machine|Read IOPS|Write IOPS|Read {unit}|Write {unit}"));
        let tables = || self.catalog.per_count.iter().filter(|table| table.kind == kind);
        let rows = tables()
            .flat_map(|table| &table.rows)
            .map(|row| {
                let machine = row.machine.as_ref().map_or("any", |pattern| pattern.0.as_str());
                let mut cells =
                    vec![PlanCell::text(row.disks.to_string()), PlanCell::text(machine)];
                let numbers =
                    [row.read_iops, row.write_iops, row.read_mb_per_s, row.write_mb_per_s];
                cells.extend(numbers.map(PlanCell::known));
                cells
            })
            .collect();
        let sources = self.catalog.source_uses(tables().map(|t| (&t.source, t.confidence)));
        let mut table = self.table(spec, heads, rows, sources);
        table.footnotes.extend(tables().filter_map(|table| table.note.clone()));
        table
    }
}

/// Maximum writes of machine and type, without egress.
fn machine_write(placement: &Placement<'_>) -> f64 {
    let demand = Demand { size: f64::INFINITY, disks: 1, iops: None, throughput: None };
    placement
        .hard_caps(&demand, crate::limits::MIN_BLOCK_BYTES)
        .iter()
        .filter(|cap| cap.dimension == Dimension::Throughput)
        .filter(|cap| cap.kind != crate::catalog::LimitKind::Egress)
        .filter_map(|cap| cap.write)
        .fold(f64::INFINITY, f64::min)
}

/// Rounds up, with a tolerance for binary fractions.
fn whole_up(number: f64) -> f64 {
    (number * (1.0 - 4.0 * f64::EPSILON)).ceil()
}

fn usd(price: Option<f64>, decimals: usize) -> PlanCell {
    match price {
        Some(price) => PlanCell::printed(format!("{price:.decimals$}"), price),
        None => PlanCell::text("not known"),
    }
}
