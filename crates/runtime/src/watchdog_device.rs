//! Watchdog device: `/dev/watchdog` of Linux, which resets the machine unless it is fed.
//!
//! Invariant: only [`WatchdogDevice::disarm`] keeps a closed device from resetting the machine. So
//! a process that dies leaves it armed, and its successor has the rest of the time-out to open it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::ioctl::{self, Opcode, Updater, opcode};

/// `WDIOC_SETTIMEOUT` of `linux/watchdog.h`: takes the time-out in seconds, and returns the one
/// that the device has chosen.
const SET_TIMEOUT: Opcode = opcode::read_write::<libc::c_int>(b'W', 6);

/// What a write before the close says: the close is intended.
const MAGIC_CLOSE: &[u8] = b"V";

/// An armed watchdog.
#[derive(Debug)]
pub struct WatchdogDevice(File);

impl WatchdogDevice {
    /// Opens and so arms the device, with the time-out that it has.
    ///
    /// # Errors
    /// It cannot be opened, or another process has it open.
    pub fn open(path: &Path) -> io::Result<WatchdogDevice> {
        let mut options = OpenOptions::new();
        // What is no watchdog must not block.
        options.write(true).custom_flags(libc::O_NONBLOCK);
        options.open(path).map(WatchdogDevice)
    }

    /// Sets the time-out. Returns the time-out chosen by the device, in seconds.
    ///
    /// # Errors
    /// It has a fixed time-out, allows no such short one, or is no watchdog (`ENOTTY`).
    pub fn set_timeout(&self, seconds: u32) -> io::Result<u32> {
        let mut value = libc::c_int::try_from(seconds).map_err(io::Error::other)?;
        // SAFETY: the request reads and writes one `int`, which `value` is, and keeps no pointer.
        // Devices of other kinds do not know its number, and refuse it.
        unsafe { ioctl::ioctl(&self.0, Updater::<SET_TIMEOUT, libc::c_int>::new(&mut value)) }?;
        u32::try_from(value).map_err(io::Error::other)
    }

    /// Starts the time-out anew.
    ///
    /// # Errors
    /// The device takes no write.
    pub fn feed(&mut self) -> io::Result<()> {
        self.0.write_all(&[0])
    }

    /// Closes the device, which then does not reset the machine, unless its driver was loaded with
    /// `nowayout`.
    ///
    /// # Errors
    /// The device takes no write: it stays armed.
    pub fn disarm(mut self) -> io::Result<()> {
        self.0.write_all(MAGIC_CLOSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_fed_and_disarmed_but_has_no_timeout() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut device = WatchdogDevice::open(file.path()).expect("it may be written");
        let refused = device.set_timeout(4).expect_err("it is no watchdog");
        assert_eq!(refused.raw_os_error(), Some(libc::ENOTTY));
        device.feed().expect("room");
        device.disarm().expect("room");
        assert_eq!(std::fs::read(file.path()).expect("a file"), b"\0V");
        assert!(WatchdogDevice::open(Path::new("/nowhere/watchdog")).is_err());
    }
}
