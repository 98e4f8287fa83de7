//! Bytes in and out of a stream, in blocks of 4 KiB that are had beyond the memory ceiling: what is
//! asked of a server at its ceiling is just what the ceiling is about.

use std::io;

use flagstone_runtime::buf;
use flagstone_runtime::limits::BUF_MIN_BYTES;
use flagstone_runtime::net::Stream;
use flagstone_runtime::time;

use crate::limits::SEND_PATIENCE;

/// Receives some bytes to the end of `into`; gives how many, 0 at the end of the stream.
pub(crate) async fn receive(stream: &Stream, into: &mut Vec<u8>) -> io::Result<usize> {
    let (result, block) = stream.recv(buf::alloc_small(BUF_MIN_BYTES)).await;
    let count = result?;
    into.extend_from_slice(&block[..count]);
    Ok(count)
}

/// Sends all of `bytes` to a peer that takes each 4 KiB of them in time.
pub(crate) async fn send(stream: &Stream, bytes: &[u8]) -> io::Result<()> {
    for part in bytes.chunks(BUF_MIN_BYTES) {
        let mut block = buf::alloc_small(part.len());
        block.copy_from_slice(part);
        match time::timeout(SEND_PATIENCE, stream.send_buf(block.freeze())).await {
            Ok(sent) => sent?,
            Err(elapsed) => return Err(io::Error::new(io::ErrorKind::TimedOut, elapsed)),
        }
    }
    Ok(())
}
