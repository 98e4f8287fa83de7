//! Receives replies: one receive brings many; data goes to the buffer of the request that asked.

use std::cell::RefCell;
use std::io;

use flagstone_runtime::net::Stream;

use crate::client::link::Link;
use crate::client::slots::{Data, Slots};
use crate::limits::MAX_ERROR_CHUNK_BYTES;
use crate::staging::Staging;
use crate::wire::reply::{BadReplyMagic, CHUNK_BYTES, FLAG_DONE, Header, chunk};
use crate::wire::request::{Cookie, command, command_flag};
use crate::wire::{Errno, u16_at, u32_at, u64_at};

/// Why a connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("{0}")]
    Failed(#[from] io::Error),
    #[error("{0}")]
    OutOfStep(#[from] BadReplyMagic),
    #[error("the server broke the protocol: {0}")]
    Broken(&'static str),
    #[error("the server is shutting down")]
    ShuttingDown,
}

use End::Broken;

/// Where data of a reply belongs.
struct Place {
    cookie: Cookie,
    /// In the request's buffer, in bytes.
    at: u32,
    len: u32,
}

/// Completes requests until the connection ends.
pub(crate) async fn receive(link: &Link, stream: &Stream, staging: &mut Staging) -> End {
    loop {
        match next(link, stream, staging).await {
            Ok(()) => {}
            Err(end) => return end,
        }
    }
}

/// Takes one reply or chunk.
async fn next(link: &Link, stream: &Stream, staging: &mut Staging) -> Result<(), End> {
    let Some(header) = Header::decode(staging.unread())? else {
        link.advanced();
        return want(stream, staging, staging.unread().len() + 1).await;
    };
    match header {
        Header::Simple { cookie, error } => {
            staging.consume(header.bytes());
            simple(link, stream, staging, cookie, error).await
        }
        Header::Chunk { cookie, flags, kind, len } => {
            let fixed = fixed_bytes(kind, len)?;
            want(stream, staging, CHUNK_BYTES + fixed).await?;
            let place = {
                let body = &staging.unread()[CHUNK_BYTES..CHUNK_BYTES + fixed];
                one_chunk(&mut link.slots.borrow_mut(), cookie, kind, len, body)?
            };
            staging.consume(CHUNK_BYTES + fixed);
            if let Some(place) = place {
                fill(&link.slots, stream, staging, place).await?;
            }
            if flags & FLAG_DONE != 0 { finish(link, cookie) } else { Ok(()) }
        }
    }
}

/// Receives until `count` bytes are unread.
async fn want(stream: &Stream, staging: &mut Staging, count: usize) -> Result<(), End> {
    while staging.unread().len() < count {
        if staging.receive(stream).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
    Ok(())
}

/// Bytes of a chunk's payload that come before any data.
fn fixed_bytes(kind: u16, len: u32) -> Result<usize, End> {
    match kind {
        chunk::NONE if len == 0 => Ok(0),
        chunk::OFFSET_DATA if len > 8 => Ok(8),
        chunk::OFFSET_HOLE if len == 12 => Ok(12),
        error if error & chunk::ERROR_BIT != 0 && (6..=MAX_ERROR_CHUNK_BYTES).contains(&len) => {
            Ok(len as usize)
        }
        _ => Err(Broken("a chunk of an unknown kind or a wrong length")),
    }
}

async fn simple(
    link: &Link,
    stream: &Stream,
    staging: &mut Staging,
    cookie: Cookie,
    error: u32,
) -> Result<(), End> {
    let data = {
        let mut slots = link.slots.borrow_mut();
        let slot = slots.find(cookie).ok_or(Broken("a reply to no request"))?;
        let is_read = slot.request.command == command::READ;
        if is_read && link.target.info.structured {
            return Err(Broken("a simple reply to a read"));
        }
        if error != 0 {
            slot.error = Some(Errno(error));
        }
        (is_read && error == 0).then_some(slot.request.len)
    };
    if let Some(len) = data {
        cover(&mut link.slots.borrow_mut(), cookie, 0, len)?;
        fill(&link.slots, stream, staging, Place { cookie, at: 0, len }).await?;
    }
    finish(link, cookie)
}

/// Takes in a chunk without its data, and says where data that follows belongs.
fn one_chunk(
    slots: &mut Slots,
    cookie: Cookie,
    kind: u16,
    len: u32,
    body: &[u8],
) -> Result<Option<Place>, End> {
    let truncated = Broken("a chunk that ends too soon");
    let slot = slots.find(cookie).ok_or(Broken("a chunk of no request"))?;
    if kind & chunk::ERROR_BIT != 0 {
        let (Some(error), Some(message)) = (u32_at(body, 0), u16_at(body, 4)) else {
            return Err(truncated);
        };
        if usize::from(message) + 6 > body.len() || error == 0 {
            return Err(truncated);
        }
        slot.error.get_or_insert(Errno(error));
        return Ok(None);
    }
    if kind == chunk::NONE {
        return Ok(None);
    }
    let offset = u64_at(body, 0).ok_or(truncated)?;
    let hole = u32_at(body, 8);
    let len = hole.unwrap_or(len - 8);
    let request = slot.request;
    let at = offset.checked_sub(request.offset).and_then(|at| u32::try_from(at).ok());
    let inside = |at: &u32| at.checked_add(len).is_some_and(|end| end <= request.len);
    let Some(at) = at.filter(inside).filter(|_| request.command == command::READ && len > 0) else {
        return Err(Broken("data that was not asked for"));
    };
    cover(slots, cookie, at, len)?;
    if hole.is_none() {
        return Ok(Some(Place { cookie, at, len }));
    }
    if let Some(Data::Read(buf)) = slots.find(cookie).map(|slot| &mut slot.data) {
        buf[at as usize..(at + len) as usize].fill(0);
    }
    Ok(None)
}

fn cover(slots: &mut Slots, cookie: Cookie, at: u32, len: u32) -> Result<(), End> {
    let slot = slots.find(cookie).ok_or(Broken("a chunk of no request"))?;
    slot.coverage.add(at, len).map_err(|_| Broken("data that came before"))
}

/// Moves data of the stream to its place.
async fn fill(
    slots: &RefCell<Slots>,
    stream: &Stream,
    staging: &mut Staging,
    place: Place,
) -> Result<(), End> {
    let (from, len) = (place.at as usize, place.len as usize);
    let taken = {
        let mut slots = slots.borrow_mut();
        let slot = slots.find(place.cookie).ok_or(Broken("data of no request"))?;
        let Data::Read(buf) = &mut slot.data else { return Err(Broken("data of no read")) };
        if staging.unread().len() >= len {
            buf[from..from + len].copy_from_slice(&staging.unread()[..len]);
            staging.consume(len);
            return Ok(());
        }
        std::mem::replace(&mut slot.data, Data::Nothing)
    };
    let Data::Read(mut front) = taken else { unreachable!("matched above") };
    let mut part = front.split_off(from);
    let back = part.split_off(len);
    let (result, mut part) = staging.receive_into(stream, part).await;
    // Back into one piece, also after an error: the request will be sent again with this buffer.
    if part.unsplit(back).is_err() || front.unsplit(part).is_err() {
        unreachable!("the parts were cut from one buffer");
    }
    if let Some(slot) = slots.borrow_mut().find(place.cookie) {
        slot.data = Data::Read(front);
    }
    Ok(result?)
}

/// The reply is whole.
fn finish(link: &Link, cookie: Cookie) -> Result<(), End> {
    let mut slots = link.slots.borrow_mut();
    let slot = slots.find(cookie).ok_or(Broken("a reply to no request"))?;
    let request = slot.request;
    let is_read = request.command == command::READ;
    let result = match slot.error {
        // Not carried out: it is sent again to the server that comes after.
        Some(Errno::SHUTDOWN) => return Err(End::ShuttingDown),
        Some(error) => Err(error.to_io_error(!is_read)),
        None if is_read && !slot.coverage.is_whole(request.len) => {
            return Err(Broken("a read without all of its data"));
        }
        None => Ok(()),
    };
    let writes = matches!(request.command, command::WRITE | command::WRITE_ZEROES);
    if writes && result.is_ok() && !request.has(command_flag::FUA) {
        // Counted here and now: the connection may break before the caller is told.
        link.target.write_answered();
    }
    slots.finish(cookie, result);
    link.answers.set(link.answers.get().wrapping_add(1));
    Ok(())
}
