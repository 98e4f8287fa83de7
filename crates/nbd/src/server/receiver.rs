//! Request receiver: parses many requests per receive, and starts each as soon as it is complete.

use std::rc::Rc;

use flagstone_runtime::task::yield_now;
use flagstone_runtime::{Buf, buf};
use flagstone_transport::limits::DIRECT_BYTES;
use flagstone_transport::{MessageShape, Rx, RxError, ShapePredictor};

use crate::limits::PREDICTED_PAYLOAD_BYTES;
use crate::server::DisconnectReason;
use crate::server::connection::{NbdConnection, ReplyBody};
use crate::server::execute::{self, AdmittedRequest, RequestParts};
use crate::session::RequestAction;
use crate::wire::Errno;
use crate::wire::request::{NbdRequest, command_flag};

impl From<RxError> for DisconnectReason {
    fn from(error: RxError) -> DisconnectReason {
        match error {
            RxError::Closed => DisconnectReason::CutShort,
            RxError::Io(error) => DisconnectReason::Failed(error),
        }
    }
}

/// Receives and starts requests until the end.
pub(crate) async fn receive(connection: &Rc<NbdConnection>, rx: &mut Rx) -> DisconnectReason {
    let mut predictor = ShapePredictor::default();
    loop {
        let mut scratch = [0; NbdRequest::BYTES];
        let bytes = rx.peek(NbdRequest::BYTES, &mut scratch).unwrap_or_default();
        let received = match NbdRequest::decode(bytes) {
            Ok(Some(request)) => {
                rx.skip(NbdRequest::BYTES);
                take(connection, rx, &request, &mut predictor).await
            }
            Ok(None) => more(connection, rx).await,
            Err(bad) => Err(bad.into()),
        };
        if let Err(end) = received {
            return end;
        }
    }
}

async fn more(connection: &NbdConnection, rx: &mut Rx) -> Result<(), DisconnectReason> {
    if connection.tx.has_waiting() {
        // Send replies first, because the peer may be waiting for them.
        yield_now().await;
    }
    let part = rx.available() > 0;
    if part {
        connection.receiving_part.set(true);
        connection.watch();
    }
    let received = rx.more().await;
    connection.receiving_part.set(false);
    match received {
        Err(RxError::Closed) if !part => Err(DisconnectReason::Disconnected),
        received => Ok(received?),
    }
}

async fn take(
    connection: &Rc<NbdConnection>,
    rx: &mut Rx,
    request: &NbdRequest,
    predictor: &mut ShapePredictor,
) -> Result<(), DisconnectReason> {
    let verdict = connection.session.admit(request);
    if verdict != Ok(RequestAction::Disconnect)
        && let Some(end) = connection.is_ending()
    {
        return Err(end);
    }
    match verdict {
        Ok(RequestAction::Disconnect) => return Err(DisconnectReason::Disconnected),
        Ok(RequestAction::Write { offset, fua }) => {
            let written = write(connection, rx, request, (offset, fua), predictor).await;
            connection.settled();
            return written;
        }
        // The layout of the next messages is unknown.
        Ok(_) => rx.expect(predictor.observe(None)),
        Err(_) => {}
    }
    let result = match verdict {
        Ok(RequestAction::Read { offset, len }) => {
            read(connection, request, offset, len as usize).await
        }
        Ok(action) => {
            connection.admit().await;
            let job = AdmittedRequest { cookie: request.cookie, budget: 0, whole: None };
            if let Some(end) = connection.must_stop() {
                connection.abandon(0);
                return Err(end);
            }
            execute::start(connection, job, action);
            Ok(())
        }
        Err(error) => {
            connection.admit().await;
            if let Some(end) = connection.must_stop() {
                connection.abandon(0);
                return Err(end);
            }
            let skipped = skip(connection, rx, request.payload_bytes() as usize).await;
            connection.reply(request.cookie, ReplyBody::Failed(error), 0);
            Ok(skipped?)
        }
    };
    connection.settled();
    result
}

/// Length of the next part of a transfer at `offset`, of which `part` bytes are admitted: it ends
/// at a block, so that only the ends of the transfer are partial blocks.
fn admitted_part(connection: &NbdConnection, offset: u64, part: usize, left: usize) -> usize {
    let over = (offset + part as u64) % u64::from(connection.session.geometry().block_bytes);
    if part < left && part as u64 > over { part - over as usize } else { part }
}

/// Starts a read: all of it, or part by part as the client reads.
async fn read(
    connection: &Rc<NbdConnection>,
    request: &NbdRequest,
    mut offset: u64,
    len: usize,
) -> Result<(), DisconnectReason> {
    let (cookie, end) = (request.cookie, offset + len as u64);
    let in_one = request.has(command_flag::DF);
    let mut whole = None;
    while offset < end {
        let left = (end - offset) as usize;
        let admitted = match in_one {
            true => connection.admit_whole(left).await,
            false => connection.admit_part(left).await,
        };
        if let Some(end) = connection.must_stop() {
            connection.abandon(admitted);
            return Err(end);
        }
        let part = admitted_part(connection, offset, admitted, left);
        connection.abandon_bytes(admitted - part);
        if part < len && !connection.session.structured {
            let range = (offset, len);
            let ended = execute::read_in_order(connection, cookie, range, part).await;
            return ended.map_err(DisconnectReason::ReadFailed);
        }
        if part < len && whole.is_none() {
            whole = Some(RequestParts::new(len));
        }
        let job = AdmittedRequest { cookie, budget: part, whole: whole.clone() };
        execute::read(connection, job, offset, part);
        offset += part as u64;
    }
    Ok(())
}

/// Receives and starts a write: all of it, or part by part.
async fn write(
    connection: &Rc<NbdConnection>,
    rx: &mut Rx,
    request: &NbdRequest,
    (mut offset, fua): (u64, bool),
    predictor: &mut ShapePredictor,
) -> Result<(), DisconnectReason> {
    let (cookie, len) = (request.cookie, request.len as usize);
    let end = offset + len as u64;
    let mut whole = None;
    while offset < end {
        let left = (end - offset) as usize;
        let admitted = connection.admit_part(left).await;
        if let Some(end) = connection.must_stop() {
            connection.abandon(admitted);
            return Err(end);
        }
        let part = admitted_part(connection, offset, admitted, left);
        connection.abandon_bytes(admitted - part);
        if part < len && whole.is_none() {
            whole = Some(RequestParts::new(len));
        }
        let received = payload(connection, rx, part).await;
        rx.expect(predictor.observe(shape(connection, part)));
        let stopped = connection.must_stop();
        if received.is_err() || stopped.is_some() {
            connection.abandon(part);
        }
        let job = AdmittedRequest { cookie, budget: part, whole: whole.clone() };
        if let Some(end) = stopped {
            return Err(end);
        }
        match received? {
            Some(data) => execute::write(connection, job, offset, fua, data),
            None => job.answer(connection, Ok(ReplyBody::Failed(Errno::NOMEM))),
        }
        offset += part as u64;
    }
    Ok(())
}

/// Shape of a write of `len` bytes, if prediction helps the next ones: their data would have to be
/// copied for alignment, or is long enough for buffers of its own.
fn shape(connection: &NbdConnection, len: usize) -> Option<MessageShape> {
    let aligned = connection.session.geometry().memory_align_bytes > 8;
    let helps = (aligned || len >= DIRECT_BYTES) && len <= PREDICTED_PAYLOAD_BYTES;
    helps.then_some(MessageShape { header: NbdRequest::BYTES, payload: len, digest: 0 })
}

/// Receives a write's data; `None` if it was discarded because it exceeds every buffer size.
async fn payload(
    connection: &NbdConnection,
    rx: &mut Rx,
    len: usize,
) -> Result<Option<Buf>, RxError> {
    let align = connection.session.geometry().memory_align_bytes as usize;
    expect(connection, rx, len, async |rx| {
        while rx.available() < len && (len < DIRECT_BYTES || rx.will_take(len, align)) {
            rx.more().await?;
        }
        if let Some(data) = rx.take(len, align) {
            return Ok(Some(data));
        }
        let Ok(place) = buf::acquire(len).await else {
            return rx.discard(len).await.map(|()| None);
        };
        let (result, place) = rx.fill_ahead(place).await;
        result.map(|()| Some(place.freeze()))
    })
    .await
}

/// Discards a refused write's data.
async fn skip(connection: &NbdConnection, rx: &mut Rx, len: usize) -> Result<(), RxError> {
    expect(connection, rx, len, async |rx| rx.discard(len).await).await
}

/// Runs a receive of `len` bytes that the peer owes, monitored by the watchdog if it must wait.
async fn expect<T>(
    connection: &NbdConnection,
    rx: &mut Rx,
    len: usize,
    receive: impl AsyncFnOnce(&mut Rx) -> Result<T, RxError>,
) -> Result<T, RxError> {
    if rx.available() < len {
        connection.receiving_part.set(true);
        connection.watch();
    }
    let result = receive(rx).await;
    connection.receiving_part.set(false);
    result
}
