//! Interval logs of fio: IOPS over time.

use std::path::Path;

use crate::limits::{FIO_LOG_BYTES, SERIES_POINTS};

/// IOPS of reads and writes over time, in intervals of equal length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    pub interval_ms: u64,
    pub read_iops: Vec<f64>,
    pub write_iops: Vec<f64>,
}

impl Series {
    pub fn total_iops(&self) -> Vec<f64> {
        self.read_iops.iter().zip(&self.write_iops).map(|(read, write)| read + write).collect()
    }

    pub fn add(&mut self, other: &Series) {
        for (mine, theirs) in
            [(&mut self.read_iops, &other.read_iops), (&mut self.write_iops, &other.write_iops)]
        {
            mine.resize(mine.len().max(theirs.len()), 0.0);
            mine.iter_mut().zip(theirs).for_each(|(sum, part)| *sum += part);
        }
        self.interval_ms = self.interval_ms.max(other.interval_ms);
    }

    /// Averages neighbors so that at most [`SERIES_POINTS`] points remain.
    pub fn bounded(mut self) -> Series {
        let points = self.read_iops.len().max(self.write_iops.len());
        let together = points.div_ceil(SERIES_POINTS).max(1);
        let mean = |chunk: &[f64]| chunk.iter().sum::<f64>() / chunk.len() as f64;
        for list in [&mut self.read_iops, &mut self.write_iops] {
            *list = list.chunks(together).map(mean).collect();
        }
        self.interval_ms *= together as u64;
        self
    }
}

/// Reads a log. A missing or broken log gives an empty or shorter series: results do not depend on
/// it.
pub fn read(path: &Path, interval_ms: u64, runtime_ms: u64) -> Series {
    let text = crate::os::read_text(path, FIO_LOG_BYTES).unwrap_or_default();
    parse(&text, interval_ms, runtime_ms)
}

/// Parses a log, in which several threads' lines may follow each other.
pub fn parse(text: &str, interval_ms: u64, runtime_ms: u64) -> Series {
    let interval_ms = interval_ms.max(1);
    // The rest after the last full interval is dropped.
    let points = (runtime_ms / interval_ms).min(1 << 20) as usize;
    let mut series =
        Series { interval_ms, read_iops: vec![0.0; points], write_iops: vec![0.0; points] };
    let mut lines = vec![0usize; points];
    for line in text.lines() {
        let mut fields = line.split(',').map(|field| field.trim().parse::<u64>());
        let (Some(Ok(at_ms)), Some(Ok(iops)), Some(Ok(direction))) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let at = at_ms.saturating_add(interval_ms / 2) / interval_ms;
        let Some(at) = at.checked_sub(1).and_then(|at| usize::try_from(at).ok()) else { continue };
        let list = match direction {
            0 => &mut series.read_iops,
            1 => &mut series.write_iops,
            _ => continue,
        };
        if let Some(point) = list.get_mut(at) {
            *point += iops as f64;
            lines[at] += 1;
        }
    }
    // fio does not log the last interval of threads that end within it.
    let most = lines.iter().max().copied().unwrap_or(0);
    let whole = lines.iter().rposition(|count| *count == most && most > 0).map_or(0, |at| at + 1);
    series.read_iops.truncate(whole);
    series.write_iops.truncate(whole);
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_logs_are_summed_by_interval() {
        let text = "500, 100, 0, 0, 0\n500, 7, 1, 0, 0\n1001, 200, 0, 0\n1001, 1, 1, 0\n499, 10, 0, 0\n\
                    499, 0, 1, 0\n1000, 20, 0, 0\n1000, 0, 1, 0\nrubbish\n9999, 1, 0, 0\n0, 5, 0, 0\n\
                    1500, 3, 2, 0\n1500, 99, 0, 0";
        let series = parse(text, 500, 2400);
        assert_eq!(series.read_iops, [110.0, 220.0]);
        assert_eq!(series.write_iops, [7.0, 1.0]);
        assert_eq!(series.total_iops(), [117.0, 221.0]);
    }

    #[test]
    fn long_fio_series_are_averaged() {
        let long = Series {
            interval_ms: 10,
            read_iops: (0..1200).map(f64::from).collect(),
            write_iops: vec![1.0; 1200],
        };
        let short = long.bounded();
        assert_eq!((short.read_iops.len(), short.interval_ms), (600, 20));
        assert_eq!(short.read_iops[..2], [0.5, 2.5]);
    }
}
