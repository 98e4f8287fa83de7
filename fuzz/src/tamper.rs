//! Tampering relay between a client and a real server, which changes the server's messages.
//!
//! An input is small and still reaches deep states, because the server sends correct messages
//! except for the bytes in the input.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_runtime::net::{Address, Stream};
use flagstone_runtime::{Buf, BufMut, buf, spawn};

/// Bytes received at a time.
const RECEIVE_BYTES: usize = 16 << 10;

/// Change made after the bytes that pass unchanged.
#[derive(Clone, Copy, Debug)]
enum How {
    /// Replaces the same number of the server's bytes, then passes the rest.
    Overwrite,
    /// Inserts bytes.
    Insert,
    /// Replaces all further bytes of the server; the connection stays open.
    Replace,
    /// Replaces all further bytes of the server, and ends the connection.
    ReplaceAndEnd,
}

/// Description of a change.
#[derive(Debug)]
pub(crate) struct Tampering {
    how: How,
    /// Connection to change, counted from 0. Others pass unchanged.
    connection: u8,
    /// Number of its bytes that pass unchanged.
    pass_bytes: usize,
    bytes: Vec<u8>,
    connections: Cell<u8>,
}

impl Tampering {
    /// Parses an input: a byte (bits 1:0 the change, bits 3:2 the connection), the number of bytes
    /// that pass (two bytes, little-endian), and the bytes.
    pub(crate) fn parse(input: &[u8]) -> Option<Tampering> {
        let [choice, low, high, bytes @ ..] = input else { return None };
        let how = match choice & 3 {
            0 => How::Overwrite,
            1 => How::Insert,
            2 => How::Replace,
            _ => How::ReplaceAndEnd,
        };
        Some(Tampering {
            how,
            connection: choice >> 2 & 3,
            pass_bytes: usize::from(u16::from_le_bytes([*low, *high])),
            bytes: bytes.to_vec(),
            connections: Cell::new(0),
        })
    }
}

/// Connects a client to the server, and tampers with the selected connection.
pub(crate) async fn relay(client: Stream, server: Address, tampering: Rc<Tampering>) {
    let number = tampering.connections.get();
    tampering.connections.set(number.saturating_add(1));
    let Ok(server) = Stream::connect(&server).await else { return };
    let (from, to) = (client.clone(), server.clone());
    let requests = spawn(async move {
        pump(&from, &to, usize::MAX).await;
        // Ends the server's answers, and so this relay.
        to.shutdown();
    });
    if number == tampering.connection {
        tampered(&server, &client, &tampering).await;
    } else {
        pump(&server, &client, usize::MAX).await;
    }
    client.shutdown();
    let _ = requests.await;
}

async fn tampered(server: &Stream, client: &Stream, tampering: &Tampering) {
    if !pump(server, client, tampering.pass_bytes).await {
        return;
    }
    if !send(client, &tampering.bytes).await {
        return;
    }
    match tampering.how {
        How::Overwrite => {
            if swallow(server, tampering.bytes.len()).await {
                pump(server, client, usize::MAX).await;
            }
        }
        How::Insert => drop(pump(server, client, usize::MAX).await),
        How::Replace => drop(swallow(server, usize::MAX).await),
        How::ReplaceAndEnd => {}
    }
}

async fn receive(from: &Stream, most: usize) -> Option<BufMut> {
    let place = buf::alloc(RECEIVE_BYTES.min(most)).await;
    match from.recv(place).await {
        (Ok(count), mut place) if count > 0 => {
            place.truncate(count);
            Some(place)
        }
        _ => None,
    }
}

async fn send(to: &Stream, bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return true;
    }
    let Some(copy) = Buf::copy_of(bytes) else { return false };
    to.send_buf(copy).await.is_ok()
}

/// Passes at most `left` bytes on. Returns false if either side ended earlier.
async fn pump(from: &Stream, to: &Stream, mut left: usize) -> bool {
    while left > 0 {
        let Some(bytes) = receive(from, left).await else { return false };
        left -= bytes.len();
        if to.send_buf(bytes.freeze()).await.is_err() {
            return false;
        }
    }
    true
}

/// Receives and drops at most `left` bytes. Returns false if the sender ended earlier.
async fn swallow(from: &Stream, mut left: usize) -> bool {
    while left > 0 {
        let Some(bytes) = receive(from, left).await else { return false };
        left -= bytes.len();
    }
    true
}
