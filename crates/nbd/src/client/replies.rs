//! Reply receiver: many replies per receive, with data placed in the buffer of its request.

use std::cell::RefCell;
use std::io;

use flagstone_transport::{Rx, RxError};

use crate::client::link::ServerLink;
use crate::client::slots::{RequestData, RequestSlots};
use crate::limits::MAX_ERROR_CHUNK_BYTES;
use crate::wire::reply::{
    BadReplyMagic, CHUNK_BYTES, FLAG_DONE, ONE_STATUS_BYTES, ReplyHeader, chunk, one_extent,
};
use crate::wire::request::{Cookie, command, command_flag};
use crate::wire::{Errno, u16_at, u32_at, u64_at};

/// Reason why a connection is unusable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplyError {
    #[error("{0}")]
    Failed(#[from] io::Error),
    #[error("{0}")]
    OutOfStep(#[from] BadReplyMagic),
    #[error("the server violated the protocol: {0}")]
    Broken(&'static str),
    #[error("the server is shutting down")]
    ShuttingDown,
}

use ReplyError::Broken;

/// Destination of reply data.
struct ReplyDestination {
    cookie: Cookie,
    /// Offset in the request's buffer, in bytes.
    at: u32,
    len: u32,
}

impl From<RxError> for ReplyError {
    fn from(error: RxError) -> ReplyError {
        ReplyError::Failed(error.into())
    }
}

/// Completes requests until the connection ends.
pub(crate) async fn receive(link: &ServerLink, rx: &mut Rx) -> ReplyError {
    loop {
        match next(link, rx).await {
            Ok(()) => {}
            Err(end) => return end,
        }
    }
}

/// Processes one reply or chunk.
async fn next(link: &ServerLink, rx: &mut Rx) -> Result<(), ReplyError> {
    let Some(header) = header(rx)? else {
        link.advanced();
        return Ok(rx.more_pooled().await?);
    };
    match header {
        ReplyHeader::Simple { cookie, error } => {
            rx.skip(header.bytes());
            simple(link, rx, cookie, error).await
        }
        ReplyHeader::Chunk { cookie, flags, kind, len } => {
            let bytes = CHUNK_BYTES + fixed_bytes(kind, len)?;
            while rx.available() < bytes {
                rx.more_pooled().await?;
            }
            let place = chunk_without_data(link, rx, cookie, kind, len, bytes)?;
            rx.skip(bytes);
            if let Some(place) = place {
                fill(&link.slots, rx, place).await?;
            }
            if flags & FLAG_DONE != 0 { finish(link, cookie) } else { Ok(()) }
        }
    }
}

/// Header of the next reply or chunk, once it has arrived.
fn header(rx: &Rx) -> Result<Option<ReplyHeader>, BadReplyMagic> {
    let mut scratch = [0; CHUNK_BYTES];
    let bytes = rx.peek(rx.available().min(CHUNK_BYTES), &mut scratch).unwrap_or_default();
    ReplyHeader::decode(bytes)
}

/// Processes the first `bytes` of a chunk, which have arrived.
fn chunk_without_data(
    link: &ServerLink,
    rx: &Rx,
    cookie: Cookie,
    kind: u16,
    len: u32,
    bytes: usize,
) -> Result<Option<ReplyDestination>, ReplyError> {
    // Only an error with a long message is longer.
    let mut short = [0; 64];
    let mut long = Vec::new();
    let scratch = if bytes <= short.len() {
        &mut short[..]
    } else {
        long.resize(bytes, 0);
        &mut long[..]
    };
    let body = &rx.peek(bytes, scratch).expect("the bytes have arrived")[CHUNK_BYTES..];
    one_chunk(&mut link.slots.borrow_mut(), cookie, kind, len, body)
}

/// Bytes of a chunk's payload that precede its data.
fn fixed_bytes(kind: u16, len: u32) -> Result<usize, ReplyError> {
    match kind {
        chunk::NONE if len == 0 => Ok(0),
        chunk::OFFSET_DATA if len > 8 => Ok(8),
        chunk::OFFSET_HOLE if len == 12 => Ok(12),
        // Every BLOCK_STATUS asks for one extent.
        chunk::BLOCK_STATUS if len == ONE_STATUS_BYTES => Ok(len as usize),
        error if error & chunk::ERROR_BIT != 0 && (6..=MAX_ERROR_CHUNK_BYTES).contains(&len) => {
            Ok(len as usize)
        }
        _ => Err(Broken("a chunk of an unknown kind or a wrong length")),
    }
}

async fn simple(
    link: &ServerLink,
    rx: &mut Rx,
    cookie: Cookie,
    error: u32,
) -> Result<(), ReplyError> {
    let data = {
        let mut slots = link.slots.borrow_mut();
        let slot = slots.find(cookie).ok_or(Broken("a reply to an unknown request"))?;
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
        fill(&link.slots, rx, ReplyDestination { cookie, at: 0, len }).await?;
    }
    finish(link, cookie)
}

/// Processes a chunk without its data, and returns the destination of the data.
fn one_chunk(
    slots: &mut RequestSlots,
    cookie: Cookie,
    kind: u16,
    len: u32,
    body: &[u8],
) -> Result<Option<ReplyDestination>, ReplyError> {
    let truncated = Broken("a truncated chunk");
    let slot = slots.find(cookie).ok_or(Broken("a chunk for an unknown request"))?;
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
    if kind == chunk::BLOCK_STATUS {
        let (len, is_hole) = one_extent(body).ok_or(truncated)?;
        let within = (1..=slot.request.len).contains(&len);
        return match &mut slot.data {
            RequestData::Extent(found @ None) if within => {
                *found = Some((len, is_hole));
                Ok(None)
            }
            _ => Err(Broken("an unrequested or wrong extent")),
        };
    }
    let offset = u64_at(body, 0).ok_or(truncated)?;
    let hole = u32_at(body, 8);
    let len = hole.unwrap_or(len - 8);
    let request = slot.request;
    let at = offset.checked_sub(request.offset).and_then(|at| u32::try_from(at).ok());
    let inside = |at: &u32| at.checked_add(len).is_some_and(|end| end <= request.len);
    let Some(at) = at.filter(inside).filter(|_| request.command == command::READ && len > 0) else {
        return Err(Broken("unrequested data"));
    };
    cover(slots, cookie, at, len)?;
    if hole.is_none() {
        return Ok(Some(ReplyDestination { cookie, at, len }));
    }
    if let Some(RequestData::Read(buf)) = slots.find(cookie).map(|slot| &mut slot.data) {
        buf[at as usize..(at + len) as usize].fill(0);
    }
    Ok(None)
}

fn cover(slots: &mut RequestSlots, cookie: Cookie, at: u32, len: u32) -> Result<(), ReplyError> {
    let slot = slots.find(cookie).ok_or(Broken("a chunk for an unknown request"))?;
    slot.coverage.add(at, len).map_err(|_| Broken("duplicate data"))
}

/// Moves data from the stream to its destination.
async fn fill(
    slots: &RefCell<RequestSlots>,
    rx: &mut Rx,
    place: ReplyDestination,
) -> Result<(), ReplyError> {
    let (from, len) = (place.at as usize, place.len as usize);
    let taken = {
        let mut slots = slots.borrow_mut();
        let slot = slots.find(place.cookie).ok_or(Broken("data for an unknown request"))?;
        let RequestData::Read(buf) = &mut slot.data else {
            return Err(Broken("data for a request other than a read"));
        };
        if rx.available() >= len {
            rx.copy_out(&mut buf[from..from + len]);
            return Ok(());
        }
        std::mem::replace(&mut slot.data, RequestData::Nothing)
    };
    let RequestData::Read(mut front) = taken else { unreachable!("matched above") };
    let mut part = front.split_off(from);
    let back = part.split_off(len);
    let (result, mut part) = rx.fill_ahead(part).await;
    // Rejoin the pieces even after an error: the resent request needs the whole buffer.
    if part.unsplit(back).is_err() || front.unsplit(part).is_err() {
        unreachable!("the parts were cut from one buffer");
    }
    if let Some(slot) = slots.borrow_mut().find(place.cookie) {
        slot.data = RequestData::Read(front);
    }
    Ok(result?)
}

/// Completes a request whose reply is whole.
fn finish(link: &ServerLink, cookie: Cookie) -> Result<(), ReplyError> {
    let mut slots = link.slots.borrow_mut();
    let slot = slots.find(cookie).ok_or(Broken("a reply to an unknown request"))?;
    let request = slot.request;
    let is_read = request.command == command::READ;
    let lacks_extent = matches!(slot.data, RequestData::Extent(None));
    let result = match slot.error {
        // Not executed: it is resent to the server's successor.
        Some(Errno::SHUTDOWN) => return Err(ReplyError::ShuttingDown),
        Some(error) => Err(error.to_io_error(!is_read)),
        None if is_read && !slot.coverage.is_whole(request.len) => {
            return Err(Broken("incomplete data of a read"));
        }
        None if lacks_extent => return Err(Broken("an answer without the extent")),
        None => Ok(()),
    };
    let writes = matches!(request.command, command::WRITE | command::WRITE_ZEROES);
    if writes && result.is_ok() && !request.has(command_flag::FUA) {
        // Counted here, because the connection may break before the caller learns the outcome.
        link.writes.answered();
    }
    slots.finish(cookie, result);
    link.answers.set(link.answers.get().wrapping_add(1));
    Ok(())
}
