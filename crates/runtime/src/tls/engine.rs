//! Engine: a connection of the library, which reads records from a slice and writes records to one.
//!
//! The library calls back for each piece. The slices are set for the time of one call only.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::task::Poll;

use s2n_tls::connection::Connection;
use s2n_tls::error::Error;

use crate::limits::TLS_RECORD_BYTES;

/// Slices of one call, and how far the library has come in them.
struct Io {
    input: *const u8,
    input_left: usize,
    output: *mut u8,
    output_left: usize,
}

/// Bytes taken from the input, and written to the output, by one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) taken: usize,
    pub(super) written: usize,
}

/// One side of a TLS connection, apart from its socket.
pub(super) struct Engine(Connection);

impl Engine {
    pub(super) fn new(mut connection: Connection) -> Result<Engine, Error> {
        connection.set_receive_callback(Some(receive))?;
        connection.set_send_callback(Some(send))?;
        Ok(Engine(connection))
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.0
    }

    /// Sends a KeyUpdate before the next data.
    #[cfg(test)]
    pub(super) fn update_keys(&mut self) {
        let request = s2n_tls::enums::PeerKeyUpdate::KeyUpdateNotRequested;
        self.0.request_key_update(request).expect("TLS 1.3 has it");
    }

    /// Continues the handshake.
    pub(super) fn negotiate(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> (Poll<Result<(), Error>>, Moved) {
        self.call(input, output, |connection| connection.poll_negotiate().map_ok(drop))
    }

    /// Decrypts into `out`; 0 bytes at the peer's closure alert. `Pending` for lack of input.
    pub(super) fn decrypt(
        &mut self,
        input: &[u8],
        out: &mut [u8],
    ) -> (Poll<Result<usize, Error>>, Moved) {
        self.call(input, &mut [], |connection| connection.poll_recv(out))
    }

    /// Encrypts `data` into `output`, which must have room for all of it ([`record_bytes`]).
    pub(super) fn encrypt(
        &mut self,
        data: &[u8],
        output: &mut [u8],
    ) -> (Poll<Result<usize, Error>>, Moved) {
        self.call(&[], output, |connection| connection.poll_send(data))
    }

    /// Writes the closure alert, or the alert that belongs to the last error.
    pub(super) fn close(&mut self, output: &mut [u8]) -> usize {
        self.call(&[], output, |connection| connection.poll_shutdown_send().map_ok(drop)).1.written
    }

    fn call<T>(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        call: impl FnOnce(&mut Connection) -> Poll<Result<T, Error>>,
    ) -> (Poll<Result<T, Error>>, Moved) {
        let mut io = Io {
            input: input.as_ptr(),
            input_left: input.len(),
            output: output.as_mut_ptr(),
            output_left: output.len(),
        };
        let result = match self.set_io(&raw mut io) {
            Ok(()) => call(&mut self.0),
            Err(error) => Poll::Ready(Err(error)),
        };
        let moved =
            Moved { taken: input.len() - io.input_left, written: output.len() - io.output_left };
        match self.set_io(ptr::null_mut()) {
            Ok(()) => (result, moved),
            Err(error) => (Poll::Ready(Err(error)), moved),
        }
    }

    fn set_io(&mut self, io: *mut Io) -> Result<(), Error> {
        // SAFETY: only `receive` and `send` use the contexts, and only within a call that
        // this engine makes. `Engine::call` sets them to its own `Io`, which outlives its call, and
        // back to null before it returns; the callbacks do not follow null.
        unsafe {
            self.0.set_receive_context(io.cast())?;
            self.0.set_send_context(io.cast())?;
        }
        Ok(())
    }
}

/// Bytes of the records for `bytes` bytes of data: for each 16 KiB a header of 5 bytes, a type and
/// a tag of 16, and once a KeyUpdate message of 5 bytes in a record of its own.
pub(super) fn record_bytes(bytes: usize) -> usize {
    const OVERHEAD: usize = 5 + 1 + 16;
    bytes + bytes.div_ceil(TLS_RECORD_BYTES) * OVERHEAD + 5 + OVERHEAD
}

/// Answer to the library that nothing can be moved now.
fn blocked() -> c_int {
    // SAFETY: `__errno_location` returns the valid address of this thread's errno.
    unsafe { *libc::__errno_location() = libc::EWOULDBLOCK };
    -1
}

unsafe extern "C" fn receive(context: *mut c_void, place: *mut u8, length: u32) -> c_int {
    let io = context.cast::<Io>();
    if io.is_null() {
        return blocked();
    }
    // SAFETY: `Engine::set_io` gave the pointer, to an `Io` that nothing else uses during this
    // call.
    let io = unsafe { &mut *io };
    let count = io.input_left.min(length as usize).min(c_int::MAX as usize);
    if count == 0 {
        return blocked();
    }
    // SAFETY: `input` has `input_left` readable bytes, and the library's place has `length`
    // writable ones; the two are different memory.
    unsafe {
        ptr::copy_nonoverlapping(io.input, place, count);
        io.input = io.input.add(count);
    }
    io.input_left -= count;
    count as c_int
}

unsafe extern "C" fn send(context: *mut c_void, data: *const u8, length: u32) -> c_int {
    let io = context.cast::<Io>();
    if io.is_null() {
        return blocked();
    }
    // SAFETY: as in `receive`.
    let io = unsafe { &mut *io };
    let count = io.output_left.min(length as usize).min(c_int::MAX as usize);
    if count == 0 {
        return blocked();
    }
    // SAFETY: `output` has `output_left` writable bytes, and the library's data has `length`
    // readable ones; the two are different memory.
    unsafe {
        ptr::copy_nonoverlapping(data, io.output, count);
        io.output = io.output.add(count);
    }
    io.output_left -= count;
    count as c_int
}
