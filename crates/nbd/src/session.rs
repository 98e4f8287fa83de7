//! Session: negotiated properties, and admission of requests. No I/O.

use std::sync::Arc;

use flagstone_blockdev::{Geometry, IoError, ZeroFlags};

use crate::export::Export;
use crate::limits::{MAX_REQUEST_BYTES, PART_BYTES};
use crate::wire::Errno;
use crate::wire::link::LinkId;
use crate::wire::request::{NbdRequest, command, command_flag};

#[derive(Clone, Debug)]
pub struct NbdSession {
    pub export: Arc<Export>,
    /// Structured replies: reads are answered in chunks, and errors with a message.
    pub structured: bool,
    /// The client must honor the size constraints (it requested BLOCK_SIZE in GO). Other clients
    /// may send any range; partial blocks are read, modified and written.
    pub sized: bool,
    /// The client selected `base:allocation`.
    pub reports_allocation: bool,
    /// Link shared with the client's earlier connections, which this one replaces.
    pub link: Option<LinkId>,
    geometry: Geometry,
    read_only: bool,
}

/// Valid request: its range lies in the export and its flags are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestAction {
    /// Read `len` bytes, 1 to 32 MiB.
    Read {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        fua: bool,
    },
    Flush,
    Trim {
        offset: u64,
        len: u32,
        fua: bool,
    },
    Zeroes {
        offset: u64,
        len: u32,
        flags: ZeroFlags,
    },
    /// Report extents from the start of the range.
    Status {
        offset: u64,
        len: u32,
        /// Report only the first extent.
        one: bool,
    },
    /// Succeed without doing anything.
    Nothing,
    Disconnect,
}

impl NbdSession {
    pub fn new(export: Arc<Export>, structured: bool, sized: bool) -> NbdSession {
        let geometry = export.device.geometry();
        let read_only = export.read_only || geometry.read_only;
        let reports_allocation = false;
        NbdSession {
            export,
            structured,
            sized,
            reports_allocation,
            link: None,
            geometry,
            read_only,
        }
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// True when the range consists of whole device blocks.
    pub fn is_aligned(&self, offset: u64, len: u64) -> bool {
        (offset | len) & (u64::from(self.geometry.block_bytes) - 1) == 0
    }

    /// Validates a request against the session and the export.
    pub fn admit(&self, request: &NbdRequest) -> Result<RequestAction, Errno> {
        if request.flags & !allowed_flags(request.command, self.structured) != 0 {
            return Err(Errno::INVAL);
        }
        let NbdRequest { offset, len, .. } = *request;
        let fua = request.has(command_flag::FUA);
        match request.command {
            command::READ => {
                if len > MAX_REQUEST_BYTES {
                    return Err(if self.structured { Errno::OVERFLOW } else { Errno::INVAL });
                }
                // A reply in one chunk needs all of its memory at once ("NBD_CMD_FLAG_DF").
                if request.has(command_flag::DF) && len as usize > PART_BYTES {
                    return Err(Errno::OVERFLOW);
                }
                self.range(request).map_err(Errno::of_read)?;
                Ok(RequestAction::Read { offset, len })
            }
            command::WRITE => {
                self.changes()?;
                if len > MAX_REQUEST_BYTES {
                    return Err(Errno::INVAL);
                }
                self.range(request).map_err(Errno::of_change)?;
                Ok(RequestAction::Write { offset, fua })
            }
            command::WRITE_ZEROES => self.zeroes(request, fua),
            command::TRIM => {
                self.changes()?;
                self.range(request).map_err(Errno::of_read)?;
                if !self.geometry.can_discard {
                    return Err(Errno::INVAL);
                }
                Ok(RequestAction::Trim { offset, len, fua })
            }
            command::CACHE => {
                self.range(request).map_err(Errno::of_read)?;
                Ok(RequestAction::Nothing)
            }
            command::FLUSH if offset == 0 && len == 0 => Ok(RequestAction::Flush),
            command::DISC => Ok(RequestAction::Disconnect),
            command::BLOCK_STATUS if self.reports_allocation => {
                self.range(request).map_err(Errno::of_read)?;
                Ok(RequestAction::Status { offset, len, one: request.has(command_flag::REQ_ONE) })
            }
            // BLOCK_STATUS requires a metadata context.
            _ => Err(Errno::INVAL),
        }
    }

    fn zeroes(&self, request: &NbdRequest, fua: bool) -> Result<RequestAction, Errno> {
        self.changes()?;
        self.range(request).map_err(Errno::of_change)?;
        let NbdRequest { offset, len, .. } = *request;
        let fast_only = request.has(command_flag::FAST_ZERO);
        let may_deallocate = !request.has(command_flag::NO_HOLE);
        let aligned = self.is_aligned(offset, u64::from(len));
        if fast_only && !(self.geometry.can_write_zeroes && aligned) {
            return Err(Errno::NOTSUP);
        }
        Ok(RequestAction::Zeroes {
            offset,
            len,
            flags: ZeroFlags { fua, may_deallocate, fast_only },
        })
    }

    fn changes(&self) -> Result<(), Errno> {
        if self.read_only { Err(Errno::PERM) } else { Ok(()) }
    }

    /// Validates that the range is not empty and lies in the export, in whole blocks if negotiated.
    fn range(&self, request: &NbdRequest) -> Result<(), IoError> {
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

/// Valid flags of a command. FUA is valid for all ("Command flags"). Any flag is accepted where no
/// reply is sent (DISC).
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::device::NoData;
    use crate::wire::request::Cookie;

    fn session(structured: bool, sized: bool) -> NbdSession {
        let device = NoData::shared(Geometry::new(1 << 20, 4096));
        NbdSession::new(Arc::new(Export::new("x", device)), structured, sized)
    }

    fn ask(
        session: &NbdSession,
        kind: u16,
        flags: u16,
        offset: u64,
        len: u32,
    ) -> Result<RequestAction, Errno> {
        session.admit(&NbdRequest { flags, command: kind, cookie: Cookie(1), offset, len })
    }

    #[test]
    fn out_of_range_requests_are_refused() {
        let session = session(true, true);
        for (kind, error) in [
            (command::READ, Errno::INVAL),
            (command::TRIM, Errno::INVAL),
            (command::CACHE, Errno::INVAL),
            (command::WRITE, Errno::NOSPC),
            (command::WRITE_ZEROES, Errno::NOSPC),
        ] {
            for offset in [1 << 20, (1 << 20) - 4096, u64::MAX - 4095, u64::MAX - 8191] {
                assert_eq!(ask(&session, kind, 0, offset, 8192), Err(error), "{kind} {offset}");
            }
            assert!(ask(&session, kind, 0, (1 << 20) - 8192, 8192).is_ok());
        }
    }

    #[test]
    fn empty_range_is_invalid() {
        for sized in [false, true] {
            for kind in [0, 1, 4, 5, 6, 7] {
                assert_eq!(ask(&session(true, sized), kind, 0, 0, 0), Err(Errno::INVAL));
            }
        }
    }

    #[test]
    fn partial_blocks_need_unsized_client() {
        assert_eq!(ask(&session(true, true), command::READ, 0, 512, 512), Err(Errno::INVAL));
        assert!(ask(&session(true, false), command::READ, 0, 513, 1).is_ok());
        assert!(ask(&session(true, false), command::WRITE, 0, 513, 1).is_ok());
    }

    #[test]
    fn too_long_request_errors() {
        let device = NoData::shared(Geometry::new(1 << 40, 512));
        let export = Arc::new(Export::new("x", device));
        let long = MAX_REQUEST_BYTES + 512;
        for (structured, error) in [(true, Errno::OVERFLOW), (false, Errno::INVAL)] {
            let session = NbdSession::new(export.clone(), structured, true);
            assert_eq!(ask(&session, command::READ, 0, 0, long), Err(error));
            assert_eq!(ask(&session, command::WRITE, 0, 0, long), Err(Errno::INVAL));
            assert!(ask(&session, command::READ, 0, 0, MAX_REQUEST_BYTES).is_ok());
            // Commands without payload have no such limit.
            assert!(ask(&session, command::TRIM, 0, 0, u32::MAX - 511).is_ok());
        }
    }

    #[test]
    fn unknown_commands_and_flags_are_invalid() {
        let session = session(false, true);
        for kind in [7, 8, 9, 100, u16::MAX] {
            assert_eq!(ask(&session, kind, 0, 0, 4096), Err(Errno::INVAL));
        }
        for kind in [command::READ, command::WRITE, command::TRIM, command::CACHE] {
            assert_eq!(ask(&session, kind, 0x100, 0, 4096), Err(Errno::INVAL));
            assert_eq!(ask(&session, kind, command_flag::NO_HOLE, 0, 4096), Err(Errno::INVAL));
            assert!(ask(&session, kind, command_flag::FUA, 0, 4096).is_ok());
        }
        // DF requires structured replies.
        assert_eq!(ask(&session, command::READ, command_flag::DF, 0, 4096), Err(Errno::INVAL));
    }

    #[test]
    fn flush_range_and_disconnect_flags() {
        let session = session(true, true);
        assert_eq!(
            ask(&session, command::FLUSH, command_flag::FUA, 0, 0),
            Ok(RequestAction::Flush)
        );
        assert_eq!(ask(&session, command::FLUSH, 0, 0, 4096), Err(Errno::INVAL));
        assert_eq!(ask(&session, command::DISC, u16::MAX, 7, 7), Ok(RequestAction::Disconnect));
    }

    #[test]
    fn block_status_needs_selected_context() {
        let mut session = session(true, true);
        assert_eq!(ask(&session, command::BLOCK_STATUS, 0, 0, 4096), Err(Errno::INVAL));
        session.reports_allocation = true;
        let status = |one| Ok(RequestAction::Status { offset: 4096, len: 8192, one });
        assert_eq!(ask(&session, command::BLOCK_STATUS, 0, 4096, 8192), status(false));
        let one = command_flag::REQ_ONE;
        assert_eq!(ask(&session, command::BLOCK_STATUS, one, 4096, 8192), status(true));
        for (offset, len) in [(0, 0), (1 << 20, 4096), (u64::MAX - 4095, 4096), (0, u32::MAX)] {
            assert!(ask(&session, command::BLOCK_STATUS, 0, offset, len).is_err());
        }
    }

    #[test]
    fn read_only_export_refuses_changes() {
        let device = NoData::shared(Geometry::new(1 << 20, 512));
        let export = Arc::new(Export::new("x", device).read_only(true));
        let session = NbdSession::new(export, true, true);
        for kind in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(ask(&session, kind, 0, 0, 512), Err(Errno::PERM));
        }
        assert!(ask(&session, command::READ, 0, 0, 512).is_ok());
    }

    #[test]
    fn slow_fast_zeroes_are_refused() {
        let fast = command_flag::FAST_ZERO;
        let slow = Geometry { can_write_zeroes: false, ..Geometry::new(1 << 20, 512) };
        let slow = NbdSession::new(Arc::new(Export::new("x", NoData::shared(slow))), true, true);
        assert_eq!(ask(&slow, command::WRITE_ZEROES, fast, 0, 512), Err(Errno::NOTSUP));
        assert!(ask(&slow, command::WRITE_ZEROES, 0, 0, 512).is_ok());
        let plain = session(true, false);
        assert_eq!(ask(&plain, command::WRITE_ZEROES, fast, 1, 4096), Err(Errno::NOTSUP));
        let flags = ZeroFlags { fua: true, may_deallocate: false, fast_only: true };
        let all = fast | command_flag::FUA | command_flag::NO_HOLE;
        let zeroes = RequestAction::Zeroes { offset: 0, len: 4096, flags };
        assert_eq!(ask(&plain, command::WRITE_ZEROES, all, 0, 4096), Ok(zeroes));
    }
}
