//! Targets before they are measured: reads of what was never written do not reach a disk, and
//! writes to it cost what later ones do not.

use std::path::Path;

use flagstone_blockdev::SharedDevice;
use flagstone_control::device_spec::DeviceSpec;
use flagstone_control::stack::{OpenOptions, open_device};
use flagstone_runtime::buf;
use flagstone_runtime::{Config as RuntimeConfig, run as run_cores};

use crate::error::Error;
use crate::guard;
use crate::os::{self, Interrupt};

/// Places that are looked at to see whether a disk has been filled.
const SAMPLES: u64 = 64;
/// Bytes of each.
const SAMPLE_BYTES: usize = 4096;

/// Makes a file that holds nothing yet, of its whole size and with its note, so that a fill that is
/// interrupted is known as unfinished, and the file as ours.
///
/// # Errors
/// The system's.
pub fn make(path: &Path, size_bytes: u64) -> Result<(), Error> {
    let make = || std::fs::File::create(path).and_then(|file| file.set_len(size_bytes));
    make().map_err(Error::file("cannot make", path))?;
    guard::mark(path)
}

/// Whether data is everywhere that is looked: at places spread over the whole, and its end.
pub fn is_filled(path: &Path, size_bytes: u64) -> bool {
    places(size_bytes, SAMPLE_BYTES as u64).all(|offset| {
        os::read_at(path, offset, SAMPLE_BYTES)
            .is_ok_and(|bytes| bytes.iter().any(|byte| *byte != 0))
    })
}

/// Where is looked, in bytes from the beginning: at samples of so many, as devices read whole
/// blocks.
fn places(size_bytes: u64, sample: u64) -> impl Iterator<Item = u64> {
    let last = size_bytes.saturating_sub(sample);
    (0..=SAMPLES).map(move |at| {
        let offset = (u128::from(last) * u128::from(at) / u128::from(SAMPLES)) as u64;
        offset / sample * sample
    })
}

/// Memory for the few blocks that are in flight, in bytes.
const MEMORY_BYTES: usize = 64 << 20;

/// The same of a served volume, which is read through its server.
///
/// # Errors
/// [`Error::Served`] where it cannot be read, and the user's interruption.
pub fn is_served_filled(name: &str, interrupt: &Interrupt) -> Result<bool, Error> {
    let failed = |problem: String| Error::Served { problem };
    let spec: DeviceSpec = name.parse().map_err(|error| failed(format!("{name}: {error}")))?;
    let runtime =
        RuntimeConfig { cores: 1, memory_bytes: MEMORY_BYTES, ..RuntimeConfig::default() };
    let looked = run_cores(&runtime, || async {
        let options =
            OpenOptions { read_only: true, block_bytes: None, queues: None, queue_depth: None };
        let device = open_device(&spec, &options).await.map_err(|error| error.to_string())?;
        has_data(&device, interrupt).await.map_err(|error| format!("{name}: {error}"))
    });
    let found = looked.map_err(|error| failed(error.to_string()))?.map_err(failed)?;
    interrupt.check()?;
    Ok(found)
}

async fn has_data(
    device: &SharedDevice,
    interrupt: &Interrupt,
) -> Result<bool, flagstone_blockdev::IoError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        make(&path, 1 << 20).unwrap();
        assert!(guard::is_ours(&path) && !is_filled(&path, 1 << 20));
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        assert!(is_filled(&path, 1 << 20));
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
        assert!(!is_filled(&path, 2 << 20));
    }
}
