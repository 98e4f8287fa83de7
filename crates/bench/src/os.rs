//! Operating system: clock, files and addresses, as the standard library has them.
//!
//! A benchmark works outside of any executor and never in a simulation. So the workspace's bans of
//! the standard library's clock and files do not apply in this module.
#![allow(clippy::disallowed_methods)]

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::net::{IpAddr, ToSocketAddrs as _, UdpSocket};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use flagstone_config::device_spec::{HostPort, UriHost};

/// Reads a text file of at most `most_bytes`.
///
/// # Errors
/// A system error; the file is larger, or is not UTF-8.
pub fn read_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(most_bytes + 1).read_to_string(&mut text)?;
    if read as u64 > most_bytes {
        let text = format!("it is larger than {most_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(text)
}

/// Reads up to `length` bytes at an offset, fewer at the end of the file.
pub fn read_at(path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(length as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The size of a file or block device, in bytes.
pub fn size_of(path: &Path) -> io::Result<u64> {
    File::open(path)?.seek(SeekFrom::End(0))
}

/// Bytes written to a file or block device, as the kernel counts them: the allocated space of a
/// file, the total of a device since boot. `None` if unknown.
pub fn written_bytes(path: &Path) -> Option<u64> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.file_type().is_block_device() {
        return Some(metadata.blocks() * STAT_SECTOR_BYTES);
    }
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let stat = read_text(Path::new(&format!("/sys/dev/block/{major}:{minor}/stat")), 4096).ok()?;
    let sectors: u64 = stat.split_whitespace().nth(STAT_SECTORS_WRITTEN)?.parse().ok()?;
    Some(sectors.saturating_mul(STAT_SECTOR_BYTES))
}

/// Unit of `st_blocks` and of sectors in sysfs, on every device.
const STAT_SECTOR_BYTES: u64 = 512;
/// Index of the sectors written in a device's `stat` (Documentation/block/stat.rst of the kernel).
const STAT_SECTORS_WRITTEN: usize = 6;

/// IP addresses of a host; none if its name cannot be resolved.
pub(crate) fn addresses(address: &HostPort) -> Vec<IpAddr> {
    match &address.host {
        UriHost::Ip(ip) => vec![*ip],
        UriHost::Name(name) => {
            let found = (name.as_str(), address.port).to_socket_addrs();
            found.into_iter().flatten().map(|address| address.ip()).collect()
        }
    }
}

/// Whether an address belongs to this machine: the kernel binds only to own addresses.
pub fn is_own_address(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// 128 random bits.
pub(crate) fn random_bits() -> u128 {
    let mut bytes = [0; 16];
    // A kernel answers up to 256 bytes whole; a signal may interrupt only its start.
    while rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(16) {}
    u128::from_ne_bytes(bytes)
}

/// Wall-clock time, in seconds since 1970.
pub fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
