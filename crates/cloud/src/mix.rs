//! Reads and writes at the same time: how many I/Os of a mix fit under limits.
//!
//! All functions here give IOPS of the mix, reads and writes together; `f64::INFINITY` where
//! nothing limits it.

use crate::caps::Cap;
use crate::catalogue::{Sharing, Units};
use crate::input::Workload;
use crate::prediction::Dimension;

/// A workload in a catalogue's units, as far as limits are concerned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mix {
    /// The part that is reads, 0 to 1.
    pub read: f64,
    /// The part that is writes, 0 to 1.
    pub write: f64,
    /// Throughput of one I/O a second, in the catalogue's unit.
    pub throughput_per_io: f64,
    /// How reads and writes share IOPS.
    pub iops: Sharing,
    /// How reads and writes share throughput.
    pub throughput: Sharing,
}

impl Mix {
    /// The mix of a workload under a type's rules.
    pub fn new(workload: &Workload, units: &Units, rules: (Sharing, Sharing)) -> Mix {
        let read = workload.read_part();
        Mix {
            read,
            write: 1.0 - read,
            throughput_per_io: units.block_of(workload.block_bytes)
                / units.blocks_per_throughput as f64,
            iops: rules.0,
            throughput: rules.1,
        }
    }

    /// Whether it has both reads and writes.
    pub fn is_mixed(&self) -> bool {
        self.read > 0.0 && self.write > 0.0
    }

    /// IOPS of the mix under all these limits together.
    ///
    /// The maxima that the rules of sharing speak of are the least of all limits of a kind: a
    /// budget is spent in parts of what reads alone, and writes alone, could have.
    pub fn iops_under<'c, 'a: 'c>(&self, caps: impl Iterator<Item = &'c Cap<'a>>) -> f64 {
        let mut most = [(f64::INFINITY, f64::INFINITY); 2];
        let mut apart = f64::INFINITY;
        for cap in caps {
            let (read, write) = self.as_iops(cap);
            if cap.together {
                apart = apart.min(self.shared(read, write));
            }
            if !cap.soft {
                let of = &mut most[usize::from(cap.dimension == Dimension::Throughput)];
                *of = (of.0.min(read), of.1.min(write));
            }
        }
        let [iops, throughput] = most;
        self.under(iops, self.iops).min(self.under(throughput, self.throughput)).min(apart)
    }

    /// IOPS of the mix if this were the only limit.
    pub fn iops_under_one(&self, cap: &Cap<'_>) -> f64 {
        self.iops_under(std::iter::once(cap))
    }

    fn as_iops(&self, cap: &Cap<'_>) -> (f64, f64) {
        let scale = match cap.dimension {
            Dimension::Iops => 1.0,
            Dimension::Throughput => 1.0 / self.throughput_per_io,
        };
        let iops = |limit: Option<f64>| limit.map_or(f64::INFINITY, |limit| limit * scale);
        (iops(cap.read), iops(cap.write))
    }

    fn under(&self, (read, write): (f64, f64), sharing: Sharing) -> f64 {
        match sharing {
            Sharing::Shared => self.shared(read, write),
            Sharing::HalfDuplex => {
                // One number for both. Where the two differ, the line between them is what keeps
                // each below its own.
                self.shared(read, write)
            }
            Sharing::Independent => {
                let of =
                    |part: f64, most: f64| if part > 0.0 { most / part } else { f64::INFINITY };
                of(self.read, read).min(of(self.write, write))
            }
        }
    }

    /// On the line `read / read_max + write / write_max = 1`.
    fn shared(&self, read: f64, write: f64) -> f64 {
        let of = |part: f64, most: f64| if part > 0.0 { part / most } else { 0.0 };
        let spent = of(self.read, read) + of(self.write, write);
        if spent > 0.0 { 1.0 / spent } else { f64::INFINITY }
    }
}
