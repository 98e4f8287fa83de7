//! Watchdog device: `/dev/watchdog` of Linux, which resets the machine unless it is fed.
//!
//! Invariant: only [`WatchdogDevice::disarm`] keeps a closed device from resetting the machine. So
//! a process that dies leaves it armed, and its successor has the rest of the time-out to open it.
//!
//! Invariant: only a character device that has identified itself as a watchdog is written to. A
//! wrong path may name a disk, on which a byte that feeds is damage.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::ioctl::{self, Getter, Opcode, Updater, opcode};

/// `struct watchdog_info` of `linux/watchdog.h`: options, version of the firmware, and name.
#[repr(C)]
struct WatchdogInfo {
    options: u32,
    firmware_version: u32,
    identity: [u8; 32],
}

/// `WDIOC_GETSUPPORT`: returns the [`WatchdogInfo`], which every driver has.
const GET_SUPPORT: Opcode = opcode::read::<WatchdogInfo>(b'W', 0);

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
    /// It cannot be opened, another process has it open, or it is no watchdog: then nothing was
    /// written to it.
    pub fn open(path: &Path) -> io::Result<WatchdogDevice> {
        // Opening a disk for writing has effects of its own, such as events of udev.
        if !std::fs::metadata(path)?.file_type().is_char_device() {
            return Err(no_watchdog());
        }
        let mut options = OpenOptions::new();
        // Other devices must not block, or become the terminal of this process.
        options.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(path)?;
        // The path may have been replaced since.
        if !file.metadata()?.file_type().is_char_device() {
            return Err(no_watchdog());
        }
        // SAFETY: the request writes one `WatchdogInfo`, of which every bit pattern is valid, and
        // keeps no pointer. Devices of other kinds do not know its number, and refuse it.
        let info = unsafe { ioctl::ioctl(&file, Getter::<GET_SUPPORT, WatchdogInfo>::new()) };
        info.map_err(|_| no_watchdog())?;
        Ok(WatchdogDevice(file))
    }

    /// A device whose writes go to a file, for tests.
    #[doc(hidden)]
    pub fn recording(file: File) -> WatchdogDevice {
        WatchdogDevice(file)
    }

    /// Sets the time-out. Returns the time-out chosen by the device, in seconds.
    ///
    /// # Errors
    /// It has a fixed time-out, or allows no such short one.
    pub fn set_timeout(&self, seconds: u32) -> io::Result<u32> {
        let mut value = libc::c_int::try_from(seconds).map_err(io::Error::other)?;
        // SAFETY: the request reads and writes one `int`, which `value` is, and keeps no pointer.
        // Devices of other kinds do not know its number, and refuse it.
        unsafe { ioctl::ioctl(&self.0, Updater::<SET_TIMEOUT, libc::c_int>::new(&mut value)) }?;
        u32::try_from(value).map_err(io::Error::other)
    }

    /// Restarts the time-out.
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

fn no_watchdog() -> io::Error {
    let problem = "it is no watchdog: write the path of one, such as /dev/watchdog";
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path that names a disk instead had its first byte overwritten.
    #[test]
    fn only_watchdogs_are_opened_and_written() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "data").expect("room");
        for path in [file.path(), Path::new("/dev/null"), Path::new("/dev/zero")] {
            let refused = WatchdogDevice::open(path).expect_err("it is no watchdog");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
        }
        assert_eq!(std::fs::read(file.path()).expect("a file"), b"data");
        let missing = WatchdogDevice::open(Path::new("/nowhere/watchdog"));
        assert_eq!(missing.expect_err("no file").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn device_is_fed_and_disarmed() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut device = WatchdogDevice::recording(file.reopen().expect("a file"));
        device.feed().expect("room");
        device.disarm().expect("room");
        assert_eq!(std::fs::read(file.path()).expect("a file"), b"\0V");
    }
}
