//! How busy the machine's CPUs are, from `/proc/stat`.

use crate::Error;

/// CPU time of the whole machine since it started, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    busy: u64,
    all: u64,
}

impl CpuTime {
    /// Until now.
    ///
    /// # Errors
    /// That `/proc/stat` cannot be read.
    pub fn now() -> Result<CpuTime, Error> {
        let stat = std::fs::read_to_string("/proc/stat").map_err(Error::io("/proc/stat"))?;
        CpuTime::parse(&stat).ok_or_else(|| Error::unexpected("/proc/stat", "no line of all CPUs"))
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal, and guest times that
    /// are in user's already.
    fn parse(stat: &str) -> Option<CpuTime> {
        let mut words = stat.lines().next()?.split_ascii_whitespace();
        if words.next()? != "cpu" {
            return None;
        }
        let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
        let idle = ticks.get(3)? + ticks.get(4)?;
        let all = ticks.iter().sum();
        Some(CpuTime { busy: all - idle, all })
    }

    /// The part of the time since `earlier` that the CPUs were busy, 0 to 1.
    pub fn busy_since(self, earlier: CpuTime) -> f64 {
        let all = self.all.saturating_sub(earlier.all);
        if all == 0 { 0.0 } else { self.busy.saturating_sub(earlier.busy) as f64 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_idle_and_stolen_time_is_not() {
        let at = |line: &str| CpuTime::parse(line).unwrap();
        let start = at("cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 1 1 1 1\n");
        let later = at("cpu  20 0 20 140 20 0 5 15 0 0\n");
        assert!((later.busy_since(start) - 0.4).abs() < 1e-9);
        assert!(start.busy_since(start).abs() < 1e-9);
        assert_eq!(CpuTime::parse("intr 1 2 3"), None);
    }
}
