//! Work slices: other tasks of the core run between the units that a task compresses.

use flagstone_runtime::task::yield_now;

use crate::limits::UNITS_PER_SLICE;

/// Units that a task has compressed or decompressed since it last yielded.
#[derive(Debug, Default)]
pub(crate) struct WorkSlices {
    units: usize,
}

impl WorkSlices {
    /// Counts units. Yields at the end of a slice.
    pub(crate) async fn spend(&mut self, units: usize) {
        self.units += units;
        if self.units >= UNITS_PER_SLICE {
            self.units = 0;
            yield_now().await;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use flagstone_runtime::spawn;

    use super::*;
    use crate::compress::units_compressed;

    /// Most units that were compressed on this core between two turns of another task, while
    /// `work` ran; and their number.
    pub(crate) async fn most_in_a_turn(work: impl Future<Output = ()>) -> (usize, usize) {
        let most = Rc::new(Cell::new(0));
        let (watched, begun) = (most.clone(), units_compressed());
        let watch = spawn(async move {
            let mut last = begun;
            loop {
                let now = units_compressed();
                watched.set(watched.get().max(now - last));
                last = now;
                yield_now().await;
            }
        });
        let watch = watch.abort_on_drop();
        work.await;
        yield_now().await;
        drop(watch);
        (most.get(), units_compressed() - begun)
    }
}
