//! CPU usage of this machine, from `/proc/stat`.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    user: u64,
    kernel: u64,
    idle: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot(Vec<Ticks>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    pub user_percent: f64,
    /// In the kernel, including interrupts and steal time.
    pub kernel_percent: f64,
    /// Idle, including waits for I/O.
    pub idle_percent: f64,
}

impl CpuUse {
    pub fn busy_percent(&self) -> f64 {
        self.user_percent + self.kernel_percent
    }

    pub fn mean(cpus: &[CpuUse]) -> CpuUse {
        let of = |pick: fn(&CpuUse) -> f64| {
            cpus.iter().map(pick).sum::<f64>() / cpus.len().max(1) as f64
        };
        CpuUse {
            user_percent: of(|cpu| cpu.user_percent),
            kernel_percent: of(|cpu| cpu.kernel_percent),
            idle_percent: of(|cpu| cpu.idle_percent),
        }
    }
}

impl Snapshot {
    /// Current counters; empty if `/proc/stat` cannot be read.
    pub fn take() -> Snapshot {
        let path = std::path::Path::new("/proc/stat");
        crate::os::read_text(path, 16 << 20)
            .map_or_else(|_| Snapshot::default(), |text| parse(&text))
    }

    /// Usage of each CPU since `earlier`; empty if the number of CPUs differs.
    pub fn since(&self, earlier: &Snapshot) -> Vec<CpuUse> {
        if self.0.len() != earlier.0.len() {
            return Vec::new();
        }
        let used = |(now, then): (&Ticks, &Ticks)| {
            let user = now.user.saturating_sub(then.user) as f64;
            let kernel = now.kernel.saturating_sub(then.kernel) as f64;
            let idle = now.idle.saturating_sub(then.idle) as f64;
            let percent = |part: f64| 100.0 * part / (user + kernel + idle).max(1.0);
            CpuUse {
                user_percent: percent(user),
                kernel_percent: percent(kernel),
                idle_percent: percent(idle),
            }
        };
        self.0.iter().zip(&earlier.0).map(used).collect()
    }
}

fn parse(text: &str) -> Snapshot {
    let of_line = |line: &str| {
        let rest = line.strip_prefix("cpu")?;
        if !rest.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let mut numbers = rest.split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0u64));
        // user nice system idle iowait irq softirq steal; guest time is included in user and nice.
        let [user, nice, system, idle, wait, irq, softirq, steal] =
            std::array::from_fn(|_| numbers.next().unwrap_or(0));
        let sum = |parts: &[u64]| parts.iter().fold(0u64, |sum, part| sum.saturating_add(*part));
        Some(Ticks {
            user: sum(&[user, nice]),
            kernel: sum(&[system, irq, softirq, steal]),
            idle: sum(&[idle, wait]),
        })
    };
    Snapshot(text.lines().filter_map(of_line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_use_between_snapshots() {
        let before = parse("cpu  9 9 9 9\ncpu0 10 0 10 100 0 0 0 0 0 0\ncpu1 0 0 0 0\nintr 5\n");
        let after = parse("cpu0 30 5 20 150 10 3 2 0 0 0\ncpu1 0 0 0 100\n");
        let used = after.since(&before);
        assert_eq!(used.len(), 2);
        assert_eq!((used[0].user_percent, used[0].kernel_percent), (25.0, 15.0));
        assert_eq!(used[1].idle_percent, 100.0);
        assert_eq!(CpuUse::mean(&used).busy_percent(), 20.0);
        assert!(after.since(&Snapshot::default()).is_empty());
    }
}
