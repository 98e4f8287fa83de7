//! CPU time of this process.

use std::time::Duration;

/// CPU time used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    pub user: Duration,
    /// In the kernel, for this process.
    pub system: Duration,
}

impl CpuUsage {
    pub fn since(self, earlier: CpuUsage) -> CpuUsage {
        CpuUsage {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }
}

/// CPU time of this process, over all threads: the sum to the nanosecond, its division by the
/// kernel's tick accounting. `None` if /proc is not available.
pub fn usage() -> Option<CpuUsage> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (user_ticks, system_ticks) = ticks(&stat)?;
    let sum = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let sum_ns =
        u64::try_from(sum.tv_sec).ok()? * 1_000_000_000 + u64::try_from(sum.tv_nsec).ok()?;
    Some(divide(sum_ns, user_ticks, system_ticks))
}

/// Fields 14 and 15 of proc_pid_stat(5). The second field, the name of the program, may contain
/// spaces and parentheses, so fields are counted from the last parenthesis.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn divide(sum_ns: u64, user_ticks: u64, system_ticks: u64) -> CpuUsage {
    let ticks = u128::from(user_ticks) + u128::from(system_ticks);
    let user_ns = match ticks {
        0 => sum_ns,
        _ => (u128::from(sum_ns) * u128::from(user_ticks) / ticks) as u64,
    };
    CpuUsage { user: Duration::from_nanos(user_ns), system: Duration::from_nanos(sum_ns - user_ns) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_does_not_confuse_stat_fields() {
        let stat = "7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 55 44 0 0 20";
        assert_eq!(ticks(stat), Some((55, 44)));
        assert_eq!(ticks("7 (x) S 1"), None);
    }

    #[test]
    fn cpu_shares_add_up() {
        let usage = divide(1_000, 1, 3);
        assert_eq!((usage.user.as_nanos(), usage.system.as_nanos()), (250, 750));
        assert_eq!(divide(10, 0, 0).user.as_nanos(), 10);
    }

    #[test]
    fn cpu_work_is_measured() {
        let before = usage().unwrap();
        let mut sum = 0_u64;
        while usage().unwrap().since(before).user.is_zero() {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let after = usage().unwrap().since(before);
        assert!(after.user + after.system > Duration::ZERO);
    }
}
