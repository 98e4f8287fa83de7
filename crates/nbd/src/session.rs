//! What was negotiated, and which requests it admits. Pure: no I/O.

use std::sync::Arc;

use flagstone_blockdev::{Geometry, IoError, ZeroFlags};

use crate::export::Export;
use crate::limits::MAX_REQUEST_BYTES;
use crate::wire::Errno;
use crate::wire::request::{Request, command, command_flag};

/// A connection in its transmission phase.
#[derive(Clone, Debug)]
pub struct Session {
    /// What is served.
    pub export: Arc<Export>,
    /// Reads are answered in chunks, and errors with a message.
    pub structured: bool,
    /// The client has promised to honour the size constraints (it asked for BLOCK_SIZE in GO).
    /// Other clients may send any range: what is not whole blocks is read, modified and written.
    pub sized: bool,
    geometry: Geometry,
    read_only: bool,
}

/// A request that may be carried out: its range lies in the export and its flags are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read `len` bytes, 1 to 32 MiB.
    Read {
        /// In bytes.
        offset: u64,
        /// In bytes.
        len: u32,
    },
    /// Write the payload.
    Write {
        /// In bytes.
        offset: u64,
        /// Durable before the reply.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// Give space back.
    Trim {
        /// In bytes.
        offset: u64,
        /// In bytes.
        len: u32,
        /// Durable before the reply.
        fua: bool,
    },
    /// Write zeroes.
    Zeroes {
        /// In bytes.
        offset: u64,
        /// In bytes.
        len: u32,
        /// How.
        flags: ZeroFlags,
    },
    /// Nothing to do but to say so.
    Nothing,
    /// Finish and close.
    Disconnect,
}

impl Session {
    /// A session on `export`.
    pub fn new(export: Arc<Export>, structured: bool, sized: bool) -> Session {
        let geometry = export.device.geometry();
        let read_only = export.read_only || geometry.read_only;
        Session { export, structured, sized, geometry, read_only }
    }

    /// The device's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// True when the range is whole blocks of the device.
    pub fn is_aligned(&self, offset: u64, len: u64) -> bool {
        (offset | len) & (u64::from(self.geometry.block_bytes) - 1) == 0
    }

    /// Checks a request against what was negotiated and what the export is.
    ///
    /// # Errors
    /// The error value that answers it ("Error values").
    pub fn admit(&self, request: &Request) -> Result<Action, Errno> {
        if request.flags & !allowed_flags(request.command, self.structured) != 0 {
            return Err(Errno::INVAL);
        }
        let Request { offset, len, .. } = *request;
        let fua = request.has(command_flag::FUA);
        match request.command {
            command::READ => {
                if len > MAX_REQUEST_BYTES {
                    return Err(if self.structured { Errno::OVERFLOW } else { Errno::INVAL });
                }
                self.range(request).map_err(Errno::of_read)?;
                Ok(Action::Read { offset, len })
            }
            command::WRITE => {
                self.changes()?;
                if len > MAX_REQUEST_BYTES {
                    return Err(Errno::INVAL);
                }
                self.range(request).map_err(Errno::of_change)?;
                Ok(Action::Write { offset, fua })
            }
            command::WRITE_ZEROES => self.zeroes(request, fua),
            command::TRIM => {
                self.changes()?;
                self.range(request).map_err(Errno::of_read)?;
                if !self.geometry.can_discard {
                    return Err(Errno::INVAL);
                }
                Ok(Action::Trim { offset, len, fua })
            }
            command::CACHE => {
                self.range(request).map_err(Errno::of_read)?;
                Ok(Action::Nothing)
            }
            command::FLUSH if offset == 0 && len == 0 => Ok(Action::Flush),
            command::DISC => Ok(Action::Disconnect),
            // BLOCK_STATUS too: no metadata context can be negotiated.
            _ => Err(Errno::INVAL),
        }
    }

    fn zeroes(&self, request: &Request, fua: bool) -> Result<Action, Errno> {
        self.changes()?;
        self.range(request).map_err(Errno::of_change)?;
        let Request { offset, len, .. } = *request;
        let fast_only = request.has(command_flag::FAST_ZERO);
        let may_deallocate = !request.has(command_flag::NO_HOLE);
        let aligned = self.is_aligned(offset, u64::from(len));
        if fast_only && !(self.geometry.can_write_zeroes && aligned) {
            return Err(Errno::NOTSUP);
        }
        Ok(Action::Zeroes { offset, len, flags: ZeroFlags { fua, may_deallocate, fast_only } })
    }

    fn changes(&self) -> Result<(), Errno> {
        if self.read_only { Err(Errno::PERM) } else { Ok(()) }
    }

    /// The range is not empty and lies in the export, in whole blocks if that was promised.
    fn range(&self, request: &Request) -> Result<(), IoError> {
        let (offset, len) = (request.offset, u64::from(request.len));
        if self.sized {
            return self.geometry.check(offset, len);
        }
        match offset.checked_add(len) {
            _ if len == 0 => Err(IoError::Misaligned),
            Some(end) if end <= self.geometry.size_bytes => Ok(()),
            _ => Err(IoError::OutOfRange),
        }
    }
}

/// The flags that go with a command. FUA goes with all ("Command flags"); none are looked at where
/// no answer is given (DISC) or the command itself is unknown.
fn allowed_flags(kind: u16, structured: bool) -> u16 {
    let extra = match kind {
        command::READ if structured => command_flag::DF,
        command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
        command::BLOCK_STATUS => command_flag::REQ_ONE,
        command::DISC => u16::MAX,
        _ => 0,
    };
    extra | command_flag::FUA
}
