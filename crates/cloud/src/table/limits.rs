//! Limit tables: by type, by size, by machine, and for simultaneous reads and writes.

use flagstone_units::grouped;

use super::cells::PlanCell;
use super::{PlanTable, TableBuilder, heads};
use crate::caps::Cap;
use crate::catalog::{
    CountRange, LimitKind, MachineFamily, PageTable, Sharing, SourceKeys, VmTable,
};
use crate::input::{Machine, PlanError, Workload};
use crate::limits::MIN_BLOCK_BYTES;
use crate::mix::WorkloadMix;
use crate::placement::{Demand, Placement};
use crate::prediction::Dimension;

/// Block size at which only throughput limits.
const LARGE_BLOCK_BYTES: u64 = 1 << 20;

/// A column: reads or writes with a block size, as IOPS or as throughput.
struct Column {
    head: String,
    reads: bool,
    block_bytes: u64,
    dimension: Dimension,
}

impl TableBuilder<'_> {
    /// IOPS and throughput columns of a layout.
    fn columns(&self, spec: &PageTable) -> Vec<Column> {
        let units = &self.catalog.units;
        let iops = |reads: bool, block: Option<f64>| {
            let word = if reads { "Read IOPS" } else { "Write IOPS" };
            let smallest = match reads {
                true => spec.read_blocks_kb.first(),
                false => spec.write_blocks_kb.first(),
            };
            let head = match block {
                None => word.to_owned(),
                Some(kb) if Some(&kb) == smallest => {
                    format!("{word} (<= {kb} {})", units.block.name())
                }
                Some(kb) => format!("{word} ({kb} {})", units.block.name()),
            };
            let block_bytes =
                block.map_or(MIN_BLOCK_BYTES, |kb| (kb * units.block_bytes as f64) as u64);
            Column { head, reads, block_bytes, dimension: Dimension::Iops }
        };
        let list = |reads: bool, blocks: &[f64]| match blocks {
            [] => vec![iops(reads, None)],
            blocks => blocks.iter().map(|kb| iops(reads, Some(*kb))).collect(),
        };
        let mut columns = list(true, &spec.read_blocks_kb);
        columns.extend(list(false, &spec.write_blocks_kb));
        for (word, reads) in [("Read", true), ("Write", false)] {
            columns.push(Column {
                head: format!("{word} {}", units.throughput.name()),
                reads,
                block_bytes: LARGE_BLOCK_BYTES,
                dimension: Dimension::Throughput,
            });
        }
        columns
    }

    /// Allowed rate of a column under the limits that `keep` selects; infinite without any.
    fn allowed(
        &self,
        placement: &Placement<'_>,
        demand: &Demand,
        column: &Column,
        keep: impl Fn(&Cap<'_>) -> bool,
    ) -> f64 {
        let workload = Workload::random(column.block_bytes, if column.reads { 100 } else { 0 });
        let mix = WorkloadMix::new(&workload, &self.catalog.units, placement.sharing());
        let caps = placement.hard_caps(demand, column.block_bytes);
        // A throughput column shows the throughput limit, not the effect of IOPS limits.
        let iops = mix.iops_under(caps.iter().filter(|cap| {
            keep(cap) && (column.dimension == Dimension::Iops || cap.dimension == column.dimension)
        }));
        match column.dimension {
            Dimension::Iops => iops,
            Dimension::Throughput => iops * mix.throughput_per_io,
        }
    }

    fn placement(&self, kind: &str, machine: &Machine) -> Result<Placement<'_>, PlanError> {
        Placement::new(self.catalog, kind, machine, false, 0.0, false)
    }

    /// A machine of a family with this vCPU count and a made-up name.
    pub(super) fn machine_of(&self, family: &str, vcpus: u32) -> Machine {
        Machine { name: format!("{family}-{vcpus}"), family: family.to_owned(), vcpus: Some(vcpus) }
    }

    /// First and last vCPU count of a row.
    pub(super) fn ends(&self, family: &str, range: CountRange) -> (u32, u32) {
        let most = self.catalog.families.get(family).and_then(MachineFamily::vcpus_most);
        let last = range.max.or(most).unwrap_or(range.min * 2).max(range.min);
        (range.min, last)
    }

    pub(super) fn volume(&self, spec: &PageTable) -> Result<PlanTable, PlanError> {
        let kind = spec.kind.as_deref().unwrap_or("");
        let disk = self.catalog.disk_type(kind)?;
        let columns = self.columns(spec);
        let machine = Machine { name: String::new(), family: String::new(), vcpus: None };
        let placement = self.placement(kind, &machine)?;
        let mut rows = Vec::new();
        for size in &spec.sizes_gb {
            let mut row = vec![PlanCell::number(*size)];
            let demand = Demand { size: *size, disks: 1, iops: None, throughput: None };
            for column in &columns {
                if spec.sizes_gb_marked.contains(size) {
                    row.push(PlanCell::text("*"));
                    continue;
                }
                let value = self.allowed(&placement, &demand, column, |cap| {
                    matches!(cap.kind, LimitKind::Volume | LimitKind::BlockSize)
                });
                row.push(match column.dimension {
                    Dimension::Iops => PlanCell::iops(value, spec),
                    Dimension::Throughput => PlanCell::throughput(value, spec),
                });
            }
            rows.push(row);
        }
        let mut heads = vec![format!("Size ({})", self.catalog.units.size.name())];
        heads.extend(columns.into_iter().map(|column| column.head));
        let part = disk.volume.as_ref();
        let sources = self.catalog.source_uses(part.map(|part| (&part.source, part.confidence)));
        Ok(self.table(spec, heads, rows, sources))
    }

    /// A page's table by vCPUs: machine limits, reduced by egress.
    pub(super) fn machines(&self, spec: &PageTable) -> Result<PlanTable, PlanError> {
        let (kind, family) =
            (spec.kind.as_deref().unwrap_or(""), spec.family.as_deref().unwrap_or(""));
        let columns = self.columns(spec);
        let demand = Demand { size: f64::INFINITY, disks: 1, iops: None, throughput: None };
        let mut rows = Vec::new();
        for range in &spec.vcpus {
            let ends = self.ends(family, *range);
            let first = self.placement(kind, &self.machine_of(family, ends.0))?;
            let last = self.placement(kind, &self.machine_of(family, ends.1))?;
            let mut row = vec![PlanCell::text(vcpus_text(*range))];
            for column in &columns {
                let of = |placement: &Placement<'_>| {
                    self.allowed(placement, &demand, column, |cap| {
                        matches!(cap.kind, LimitKind::Vm | LimitKind::Egress)
                    })
                };
                row.push(PlanCell::by_vcpus(of(&first), of(&last), ends));
            }
            rows.push(row);
        }
        let mut heads = vec!["vCPUs".to_owned()];
        heads.extend(columns.into_iter().map(|column| column.head));
        let sources = self.vm_sources(kind, family);
        Ok(self.table(spec, heads, rows, sources))
    }

    fn vm_sources(&self, kind: &str, family: &str) -> Vec<crate::prediction::SourceUse> {
        let table = self.catalog.vm_table(kind, family);
        self.catalog.source_uses(table.map(|table| (&table.source, table.confidence)))
    }

    /// The catalog's rows without computation.
    pub(super) fn machine_rows(&self, spec: &PageTable) -> PlanTable {
        let (kind, family) =
            (spec.kind.as_deref().unwrap_or(""), spec.family.as_deref().unwrap_or(""));
        let unit = self.catalog.units.throughput.name();
        let of = |table: &&VmTable| {
            table.types.iter().any(|known| known == kind)
                && table.families.iter().any(|known| known == family)
        };
        let table = self.catalog.per_vm.iter().find(of);
        let together = table.is_some_and(|table| {
            table.rows.iter().all(|row| row.iops.is_some() || row.mb_per_s.is_some())
        });
        let mut rows = Vec::new();
        for row in table.iter().flat_map(|table| &table.rows) {
            let label = match (&row.vcpus, &row.machine) {
                (Some(range), _) => vcpus_text(*range),
                (None, Some(pattern)) => pattern.0.clone(),
                (None, None) => String::new(),
            };
            let mut cells = vec![PlanCell::text(label)];
            let numbers = match together {
                true => vec![row.iops, row.mb_per_s],
                false => vec![
                    row.iops.or(row.read_iops),
                    row.iops.or(row.write_iops),
                    row.mb_per_s.or(row.read_mb_per_s),
                    row.mb_per_s.or(row.write_mb_per_s),
                ],
            };
            cells.extend(numbers.into_iter().map(PlanCell::known));
            rows.push(cells);
        }
        let heads = heads(&match together {
            true => format!("Machine|IOPS|{unit}"),
            false => format!("Machine|Read IOPS|Write IOPS|Read {unit}|Write {unit}"),
        });
        let sources = self.catalog.source_uses(table.map(|t| (&t.source, t.confidence)));
        let mut made = self.table(spec, heads, rows, sources);
        made.footnotes.extend(table.and_then(|table| table.note.clone()));
        made
    }

    pub(super) fn simultaneous(&self, spec: &PageTable) -> Result<PlanTable, PlanError> {
        let kind = spec.kind.as_deref().unwrap_or("");
        let machine = self.catalog.machine(spec.machine.as_deref().unwrap_or(""))?;
        let placement = self.placement(kind, &machine)?;
        let demand = Demand { size: f64::INFINITY, disks: 1, iops: None, throughput: None };
        let units = &self.catalog.units;
        let block = spec.read_blocks_kb.first().map_or(8.0, |kb| *kb);
        let block_bytes = (block * units.block_bytes as f64) as u64;
        let rules = placement.sharing();
        let points = |block_bytes, dimension, sharing| {
            let of = |reads| {
                let column = Column { head: String::new(), reads, block_bytes, dimension };
                self.allowed(&placement, &demand, &column, |_| true)
            };
            (0..=4).map(|step| along((of(true), of(false)), sharing, step)).collect::<Vec<_>>()
        };
        let iops = points(block_bytes, Dimension::Iops, rules.0);
        let throughput = points(LARGE_BLOCK_BYTES, Dimension::Throughput, rules.1);
        let rows = iops
            .into_iter()
            .zip(throughput)
            .map(|(iops, throughput)| {
                [iops.0, iops.1, throughput.0, throughput.1].map(PlanCell::number).to_vec()
            })
            .collect();
        let unit = units.throughput.name();
        let size = format!("{block} {}", units.block.name());
        let heads =
            heads(&format!("Read IOPS ({size})|Write IOPS ({size})|Read {unit}|Write {unit}"));
        let part = placement.disk.mixing.as_ref();
        let sources = self.catalog.source_uses(part.map(|part| (&part.source, part.confidence)));
        Ok(self.table(spec, heads, rows, sources))
    }

    pub(super) fn overview(&self, spec: &PageTable) -> Result<PlanTable, PlanError> {
        let units = &self.catalog.units;
        let (size, unit) = (units.size.name(), units.throughput.name());
        let four =
            |of: &str| format!("Read IOPS {of}|Write IOPS {of}|Read {unit} {of}|Write {unit} {of}");
        let heads =
            heads(&format!("Type|{}|{}", four(&format!("per {size}")), four("per instance")));
        let mut rows = Vec::new();
        let mut uses: Vec<(&SourceKeys, Option<_>)> = Vec::new();
        for (name, disk) in self.types_of(spec) {
            uses.push((&disk.source, disk.confidence));
            if let Some(part) = &disk.provisioned {
                rows.push(self.bought_row(name, part));
                continue;
            }
            for regional in [false, true] {
                let limits = if regional { &disk.regional } else { &disk.volume };
                let Some(limits) = limits else { continue };
                let label = match (regional, &disk.regional) {
                    (true, _) => format!("{name} regional"),
                    (false, Some(_)) => format!("{name} zonal"),
                    (false, None) => name.to_owned(),
                };
                let mut row = vec![PlanCell::text(label)];
                let dimensions = [Dimension::Iops, Dimension::Throughput];
                let rates = dimensions.into_iter().flat_map(|each| limits.rule(each).rates);
                row.extend(rates.map(PlanCell::known));
                row.extend(self.instance_cells(name, regional, spec)?);
                rows.push(row);
            }
        }
        let sources = self.catalog.source_uses(uses);
        Ok(self.table(spec, heads, rows, sources))
    }

    fn bought_row(&self, name: &str, part: &crate::catalog::ProvisionedRule) -> Vec<PlanCell> {
        let text = |min: Option<f64>, max: Option<f64>| match (min, max) {
            (Some(min), Some(max)) => PlanCell::range(min, max),
            (None, Some(max)) => PlanCell::text(format!("up to {}", grouped(max, 0))),
            (Some(min), None) => PlanCell::text(format!("from {}", grouped(min, 0))),
            (None, None) => PlanCell::text("not known"),
        };
        let iops = text(part.iops_min, part.iops_max);
        let throughput = text(part.mb_per_s_min, part.mb_per_s_max);
        let mut row = vec![PlanCell::text(format!("{name} (bought, a disk)"))];
        row.extend((0..4).map(|_| PlanCell::text("bought")));
        row.extend([iops.clone(), iops, throughput.clone(), throughput]);
        row
    }

    /// Limits of an instance: from the smallest machine's to the largest's.
    fn instance_cells(
        &self,
        kind: &str,
        regional: bool,
        spec: &PageTable,
    ) -> Result<Vec<PlanCell>, PlanError> {
        let default =
            self.catalog.machine_default.as_deref().map(|name| self.catalog.machine(name));
        let family = match (&spec.family, default) {
            (Some(family), _) => family.clone(),
            (None, Some(machine)) => machine?.family,
            (None, None) => return Ok((0..4).map(|_| PlanCell::text("not known")).collect()),
        };
        let vcpus = |range: CountRange| [range.min, self.ends(&family, range).1];
        let table = self.catalog.vm_table(kind, &family);
        let mut machines: Vec<u32> = table
            .iter()
            .flat_map(|table| &table.rows)
            .filter_map(|row| row.vcpus)
            .flat_map(vcpus)
            .collect();
        if machines.is_empty() {
            machines.push(1);
        }
        let demand = Demand { size: f64::INFINITY, disks: 1, iops: None, throughput: None };
        let columns = self.columns(spec);
        let mut cells = Vec::new();
        for column in &columns {
            let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
            for vcpus in &machines {
                let machine = self.machine_of(&family, *vcpus);
                let placement = Placement::new(self.catalog, kind, &machine, regional, 0.0, false)?;
                // The pages' IOPS ignore egress; their throughput does not.
                let value = self.allowed(&placement, &demand, column, |cap| {
                    column.dimension == Dimension::Throughput || cap.dimension == Dimension::Iops
                });
                (low, high) = (low.min(value), high.max(value));
            }
            cells.push(match low.is_finite() {
                true => PlanCell::range(low, high),
                false => PlanCell::text("not known"),
            });
        }
        Ok(cells)
    }
}

/// Point `step` of four on the way from reads only to writes only.
fn along((read, write): (f64, f64), sharing: Sharing, step: u32) -> (f64, f64) {
    let part = f64::from(step) / 4.0;
    match sharing {
        Sharing::Independent => (read, write),
        Sharing::Shared | Sharing::HalfDuplex => (read * (1.0 - part), write * part),
    }
}

fn vcpus_text(range: CountRange) -> String {
    match range.max {
        None => format!("{}+ vCPUs", range.min),
        Some(1) => "1 vCPU".to_owned(),
        Some(max) if max == range.min => format!("{max} vCPUs"),
        Some(max) => format!("{} to {max} vCPUs", range.min),
    }
}
