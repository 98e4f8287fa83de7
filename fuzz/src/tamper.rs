//! Tampering relay between a client and a real server, which changes the messages of one side.
//!
//! An input is small and still reaches deep states, because that side sends correct messages except
//! for the bytes in the input.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_runtime::net::{Address, Stream};
use flagstone_runtime::{Buf, BufMut, buf, spawn};

/// Bytes received at a time.
const RECEIVE_BYTES: usize = 16 << 10;

/// Change made after the bytes that pass unchanged.
#[derive(Clone, Copy, Debug)]
enum How {
    /// Replaces the same number of the side's bytes, then passes the rest.
    Overwrite,
    /// Inserts bytes.
    Insert,
    /// Replaces all further bytes of the side; the connection stays open.
    Replace,
    /// Replaces all further bytes of the side, and ends the connection.
    ReplaceAndEnd,
}

/// Side whose messages are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// Description of a change.
#[derive(Debug)]
pub(crate) struct Tampering {
    side: Side,
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
    pub(crate) fn parse(side: Side, input: &[u8]) -> Option<Tampering> {
        let [choice, low, high, bytes @ ..] = input else { return None };
        let how = match choice & 3 {
            0 => How::Overwrite,
            1 => How::Insert,
            2 => How::Replace,
            _ => How::ReplaceAndEnd,
        };
        Some(Tampering {
            side,
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
    let tampered_side = (number == tampering.connection).then_some(tampering.side);
    let (from, to, changes) = (client.clone(), server.clone(), tampering.clone());
    let requests = spawn(async move {
        pass(&from, &to, (tampered_side == Some(Side::Client)).then_some(&*changes)).await;
        // Ends the server's answers, and so this relay.
        to.shutdown();
    });
    pass(&server, &client, (tampered_side == Some(Side::Server)).then_some(&*tampering)).await;
    client.shutdown();
    let _ = requests.await;
}

async fn pass(from: &Stream, to: &Stream, tampering: Option<&Tampering>) {
    match tampering {
        Some(tampering) => tampered(from, to, tampering).await,
        None => drop(pump(from, to, usize::MAX).await),
    }
}

async fn tampered(from: &Stream, to: &Stream, tampering: &Tampering) {
    if !pump(from, to, tampering.pass_bytes).await {
        return;
    }
    if !send(to, &tampering.bytes).await {
        return;
    }
    match tampering.how {
        How::Overwrite => {
            if swallow(from, tampering.bytes.len()).await {
                pump(from, to, usize::MAX).await;
            }
        }
        How::Insert => drop(pump(from, to, usize::MAX).await),
        How::Replace => drop(swallow(from, usize::MAX).await),
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
