//! Preparation of served volumes: inspects and fills them through their server, in this process, so
//! that the progress of a fill is known.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_config::device_spec::DeviceSpec;
use flagstone_runtime::rng::Rng;
use flagstone_runtime::time::timeout;
use flagstone_runtime::{RuntimeConfig, buf, random_u64, run as run_cores, spawn};
use flagstone_stack::{DataSearch, OpenOptions, find_data, open_device};

use crate::error::Error;
use crate::precondition::{SAMPLE_BYTES, places};
use crate::process::Interrupt;

const MEMORY_BYTES: usize = 64 << 20;
const FILL_BLOCK_BYTES: u64 = 1 << 20;
const FILL_DEPTH: u16 = 8;
const LOOK: Duration = Duration::from_millis(20);

/// How a volume is opened whose data is only looked at.
const TO_LOOK: OpenOptions = OpenOptions {
    read_only: true,
    block_bytes: None,
    queues: None,
    queue_depth: None,
    rereads_keys: true,
};

/// Whether all samples have data.
///
/// # Errors
/// [`Error::Served`] if it cannot be read, and the user's interruption.
pub fn is_filled(name: &str, interrupt: &Interrupt) -> Result<bool, Error> {
    let found = on("cannot look at what a served volume holds", name, &TO_LOOK, async |device| {
        has_data(&device, interrupt).await
    })?;
    interrupt.check()?;
    Ok(found)
}

/// Description of the data that a served volume has, or of the reason why that is not known; `None`
/// if it has none.
pub fn data_of(name: &str) -> Option<String> {
    let found = on("it cannot be looked into", name, &TO_LOOK, async |device| {
        find_data(&device).await.map(DataSearch::found)
    });
    found.unwrap_or_else(|error| Some(error.to_string()))
}

/// Writes the first `size_bytes` once, sequentially, with incompressible data, and flushes. `tick`
/// is called repeatedly with the bytes written.
///
/// # Errors
/// [`Error::Served`] if it cannot be written, and the user's interruption.
pub fn fill(
    name: &str,
    size_bytes: u64,
    interrupt: &Interrupt,
    tick: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    // Blocks of 512 bytes only where the size requires them.
    let block_bytes = (!size_bytes.is_multiple_of(4096)).then_some(512);
    let queue_depth = Some(FILL_DEPTH);
    let options = OpenOptions {
        read_only: false,
        block_bytes,
        queues: None,
        queue_depth,
        rereads_keys: true,
    };
    on("cannot fill a served volume", name, &options, async |device| {
        let fill = Rc::new(Fill::new(device.clone(), size_bytes));
        let writers: Vec<_> = (0..FILL_DEPTH)
            .map(|_| {
                let fill = fill.clone();
                spawn(async move { fill.write_rest().await }).abort_on_drop()
            })
            .collect();
        for mut writer in writers {
            while timeout(LOOK, writer.handle()).await.is_err() {
                tick(fill.written_bytes.get());
                if interrupt.is_raised() {
                    return Ok(());
                }
            }
        }
        tick(fill.written_bytes.get());
        match fill.failed.take() {
            Some(error) => Err(error),
            None => device.flush().await,
        }
    })?;
    interrupt.check()
}

/// Opens a volume and works on it, on a runtime with one core.
fn on<T>(
    what: &'static str,
    name: &str,
    options: &OpenOptions,
    work: impl AsyncFnOnce(SharedDevice) -> Result<T, IoError>,
) -> Result<T, Error> {
    let failed = |problem: String| Error::Served { what, problem };
    let spec: DeviceSpec = name.parse().map_err(|error| failed(format!("{name}: {error}")))?;
    let runtime =
        RuntimeConfig { cores: 1, buffer_memory_bytes: MEMORY_BYTES, ..RuntimeConfig::default() };
    let done = run_cores(&runtime, || async {
        let device = open_device(&spec, options).await.map_err(|error| error.to_string())?;
        work(device).await.map_err(|error| format!("{name}: {error}"))
    });
    done.map_err(|error| failed(error.to_string()))?.map_err(failed)
}

async fn has_data(device: &SharedDevice, interrupt: &Interrupt) -> Result<bool, IoError> {
    let geometry = device.geometry();
    let sample = SAMPLE_BYTES.max(geometry.block_bytes as usize);
    for offset in places(geometry.size_bytes, sample as u64) {
        let len = sample.min((geometry.size_bytes - offset) as usize);
        let Some(place) = buf::try_alloc(len).filter(|_| !interrupt.is_raised()) else {
            return Ok(false);
        };
        if device.read(offset, place).await?.iter().all(|byte| *byte == 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

struct Fill {
    device: SharedDevice,
    size_bytes: u64,
    /// Offset of the next request, in bytes.
    next: Cell<u64>,
    written_bytes: Cell<u64>,
    random: RefCell<Rng>,
    failed: RefCell<Option<IoError>>,
}

impl Fill {
    fn new(device: SharedDevice, size_bytes: u64) -> Fill {
        let (next, written_bytes) = (Cell::new(0), Cell::new(0));
        let (random, failed) = (RefCell::new(Rng::new(random_u64())), RefCell::new(None));
        Fill { device, size_bytes, next, written_bytes, random, failed }
    }

    async fn write_rest(&self) {
        while self.failed.borrow().is_none() {
            let offset = self.next.get();
            let len = FILL_BLOCK_BYTES.min(self.size_bytes.saturating_sub(offset));
            if len == 0 {
                return;
            }
            self.next.set(offset + len);
            let mut data = buf::alloc(len as usize).await;
            self.random.borrow_mut().fill(&mut data);
            match self.device.write(offset, data.freeze(), false).await {
                Ok(()) => self.written_bytes.set(self.written_bytes.get() + len),
                Err(error) => {
                    self.failed.borrow_mut().get_or_insert(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in place of a served volume: both are opened as devices.
    #[test]
    fn fill_writes_each_block_once_with_progress() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let size_bytes = (20 << 20) + 512;
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(size_bytes).unwrap();
        let name = path.display().to_string();
        let never = Interrupt::never();
        let mut reported = Vec::new();
        fill(&name, size_bytes, &never, &mut |written| reported.push(written)).unwrap();
        assert_eq!(reported.last(), Some(&size_bytes));
        assert!(reported.is_sorted(), "{reported:?}");
        let data = std::fs::read(&path).unwrap();
        assert_eq!(data.len() as u64, size_bytes);
        let mut blocks: Vec<&[u8]> = data.chunks(512).collect();
        blocks.sort_unstable();
        assert!(blocks.windows(2).all(|two| two[0] != two[1]), "no block is like another");
        assert!(is_filled(&name, &never).unwrap());
    }

    #[test]
    fn fill_stops_on_interrupt_and_on_error() {
        let interrupt = Interrupt::never();
        let raised = interrupt.clone();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let name = path.display().to_string();
        let ended = fill(&name, 1 << 40, &interrupt, &mut |_| raised.raise());
        assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
        let error = fill("memory:1MiB", 2 << 20, &Interrupt::never(), &mut |_| {}).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot fill a served volume: memory:1MiB: "),
            "{error}"
        );
    }
}
