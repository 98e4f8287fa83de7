//! Request receiver: parses many requests per receive, and starts each as soon as it is complete.

use std::rc::Rc;

use flagstone_runtime::task::yield_now;
use flagstone_runtime::{Buf, buf};
use flagstone_transport::limits::DIRECT_BYTES;
use flagstone_transport::{MessageShape, Rx, RxError, ShapePredictor};

use crate::limits::PREDICTED_PAYLOAD_BYTES;
use crate::server::DisconnectReason;
use crate::server::connection::{NbdConnection, ReplyBody};
use crate::server::execute::{self, AdmittedRequest};
use crate::session::RequestAction;
use crate::wire::Errno;
use crate::wire::request::NbdRequest;

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

/// Receives once.
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

/// Starts or refuses one request; fails at the end of the connection.
async fn take(
    connection: &Rc<NbdConnection>,
    rx: &mut Rx,
    request: &NbdRequest,
    predictor: &mut ShapePredictor,
) -> Result<(), DisconnectReason> {
    let mut verdict = connection.session.admit(request);
    if connection.drain.has_begun() && verdict != Ok(RequestAction::Disconnect) {
        verdict = Err(Errno::SHUTDOWN);
    }
    let budget = match verdict {
        Ok(RequestAction::Disconnect) => return Err(DisconnectReason::Disconnected),
        Ok(RequestAction::Read { len, .. }) => len as usize,
        Ok(RequestAction::Write { .. }) => request.len as usize,
        _ => 0,
    };
    connection.admit(budget).await;
    let job = AdmittedRequest { cookie: request.cookie, budget };
    match verdict {
        Ok(RequestAction::Write { offset, fua }) => {
            let received = payload(connection, rx, budget).await;
            rx.expect(predictor.observe(shape(connection, budget)));
            if received.is_err() || connection.is_replaced() {
                connection.abandon(budget);
            }
            match received? {
                _ if connection.is_replaced() => return Err(DisconnectReason::Replaced),
                Some(data) => execute::write(connection, job, offset, fua, data),
                None => connection.reply(request.cookie, ReplyBody::Failed(Errno::NOMEM), budget),
            }
        }
        Ok(_) if connection.is_replaced() => {
            connection.abandon(budget);
            return Err(DisconnectReason::Replaced);
        }
        // The reply could not be sent, and the budget is no longer enforced.
        Ok(RequestAction::Read { .. }) if connection.tx.is_closed() => connection.abandon(budget),
        Ok(action) => {
            // The layout of the next messages is unknown.
            rx.expect(predictor.observe(None));
            execute::start(connection, job, action);
        }
        Err(error) => {
            let skipped = skip(connection, rx, request.payload_bytes() as usize).await;
            connection.reply(request.cookie, ReplyBody::Failed(error), budget);
            skipped?;
        }
    }
    Ok(())
}

/// Shape of a write of `len` bytes, if prediction helps the next ones: their data would have to be
/// copied for alignment, or is long enough for buffers of its own.
fn shape(connection: &NbdConnection, len: usize) -> Option<MessageShape> {
    let aligned = connection.session.geometry().memory_align_bytes > 8;
    let helps = (aligned || len >= DIRECT_BYTES) && len <= PREDICTED_PAYLOAD_BYTES;
    helps.then_some(MessageShape { header: NbdRequest::BYTES, payload: len })
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
