//! Execution of admitted requests on the device.
//!
//! A call that the device answers immediately is replied to immediately. Others continue in pooled
//! tasks, which run to completion even if the connection ends.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_blockdev::limits::EXTENTS_MAX;
use flagstone_blockdev::{Extent, IoError};
use flagstone_runtime::buf::{self, TooLarge};
use flagstone_runtime::{Buf, BufMut, spawn_detached};

use crate::handshake::ALLOCATION_CONTEXT_ID;
use crate::server::connection::{NbdConnection, ReplyBody};
use crate::server::partial;
use crate::session::{NbdSession, RequestAction};
use crate::wire::Errno;
use crate::wire::reply::{STATUS_BYTES, put_extents};
use crate::wire::request::Cookie;

/// Admitted request, or an admitted part of one.
#[derive(Debug)]
pub(crate) struct AdmittedRequest {
    pub(crate) cookie: Cookie,
    /// Payload bytes held of the budget.
    pub(crate) budget: usize,
    pub(crate) whole: Option<Rc<RequestParts>>,
}

#[derive(Debug)]
pub(crate) struct RequestParts {
    bytes_left: Cell<usize>,
    error: Cell<Option<Errno>>,
    is_unreachable: Cell<bool>,
}

/// The device could not be reached: there is no reply, and the connection ends.
///
/// Clients that reconnect then send the request again, and wait for as long as they are told to,
/// here or at another server; an error reply would be final for them. Other clients report the end
/// of the connection as an I/O error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unreachable;

/// Outcome of a device call, for the client.
type Answer = Result<ReplyBody, Unreachable>;

/// Answer of a failed call; `errno` is its error value.
fn failed(
    connection: &NbdConnection,
    error: IoError,
    errno: impl FnOnce(IoError) -> Errno,
) -> Answer {
    match error {
        IoError::Unreachable if connection.session.export.reach.ends_connections() => {
            Err(Unreachable)
        }
        error => Ok(ReplyBody::Failed(errno(error))),
    }
}

impl RequestParts {
    /// Request of `bytes`, none of which has been executed.
    pub(crate) fn new(bytes: usize) -> Rc<RequestParts> {
        Rc::new(RequestParts {
            bytes_left: Cell::new(bytes),
            error: Cell::new(None),
            is_unreachable: Cell::new(false),
        })
    }

    /// A part of `bytes` has ended. Returns the answer of the part, or of the request with the last
    /// part; `None` if it has none.
    fn ended(&self, bytes: usize, answer: Answer) -> Option<Answer> {
        self.bytes_left.set(self.bytes_left.get() - bytes);
        self.is_unreachable.set(self.is_unreachable.get() || answer.is_err());
        match answer {
            Ok(reply) if !self.is_unreachable.get() => self.reply_after(reply).map(Ok),
            _ => Some(Err(Unreachable)),
        }
    }

    /// Reply after a part has ended with `answer`.
    fn reply_after(&self, answer: ReplyBody) -> Option<ReplyBody> {
        if let ReplyBody::Failed(error) = answer {
            self.error.set(Some(self.error.get().unwrap_or(error)));
        }
        match (self.bytes_left.get(), self.error.get(), answer) {
            (0, Some(error), _) => Some(ReplyBody::Failed(error)),
            (0, None, answer) => Some(answer),
            (_, None, ReplyBody::Data { offset, data, .. }) => {
                Some(ReplyBody::Data { offset, data, last: false })
            }
            _ => None,
        }
    }
}

impl AdmittedRequest {
    /// Answers the request, or its part.
    pub(crate) fn answer(self, connection: &NbdConnection, answer: Answer) {
        let answer = match &self.whole {
            None => Some(answer),
            Some(whole) => whole.ended(self.budget, answer),
        };
        match answer {
            Some(Ok(reply)) => connection.reply(self.cookie, reply, self.budget),
            Some(Err(Unreachable)) => connection.lose_request(self.budget),
            None => connection.abandon(self.budget),
        }
    }

    fn changed(self, connection: &NbdConnection, result: Result<(), IoError>) {
        let answer = match result {
            Ok(()) => Ok(ReplyBody::Done),
            Err(error) => failed(connection, error, Errno::of_change),
        };
        self.answer(connection, answer);
    }

    fn read(self, connection: &NbdConnection, offset: u64, result: Result<BufMut, IoError>) {
        let answer = match result {
            Ok(data) => Ok(ReplyBody::Data { offset, data: data.freeze(), last: true }),
            Err(error) => failed(connection, error, Errno::of_read),
        };
        self.answer(connection, answer);
    }
}

/// Starts a request other than a read or write. Its reply is queued now or later.
pub(crate) fn start(connection: &Rc<NbdConnection>, job: AdmittedRequest, action: RequestAction) {
    match action {
        RequestAction::Flush => match connection.session.export.device.flush().try_now() {
            Ok(result) => job.changed(connection, result),
            Err(later) => change(connection, job, async |_| later.await),
        },
        // Trims the whole blocks of the range.
        RequestAction::Trim { offset, len, fua } => change(connection, job, async move |access| {
            let session = access.shared().await;
            let block = u64::from(session.geometry().block_bytes);
            let whole = partial::RangeSplit::of(offset, u64::from(len), block).middle;
            if let Some((offset, len)) = whole {
                session.export.device.discard(offset, len).await?;
            }
            if fua { session.export.device.flush().await } else { Ok(()) }
        }),
        RequestAction::Zeroes { offset, len, flags } => {
            let len = u64::from(len);
            change(connection, job, async move |access| {
                let session = &access.connection.session;
                if !session.is_aligned(offset, len) {
                    return partial::write_zeroes(session, offset, len, flags).await;
                }
                access.shared().await.export.device.write_zeroes(offset, len, flags).await
            });
        }
        RequestAction::Status { offset, len, one } => status(connection, job, offset, len, one),
        RequestAction::Nothing => job.changed(connection, Ok(())),
        RequestAction::Read { .. } | RequestAction::Write { .. } | RequestAction::Disconnect => {
            unreachable!("the receiver starts transfers, and ends at a disconnect")
        }
    }
}

/// Starts a read, or a part of one.
pub(crate) fn read(connection: &Rc<NbdConnection>, job: AdmittedRequest, offset: u64, len: usize) {
    let session = &connection.session;
    let aligned = session.is_aligned(offset, len as u64);
    if aligned && let Some(buf) = buf::try_alloc(len) {
        return match session.export.device.read(offset, buf).try_now() {
            Ok(result) => job.read(connection, offset, result),
            Err(later) => {
                let connection = connection.clone();
                spawn_detached(async move { job.read(&connection, offset, later.await) });
            }
        };
    }
    let connection = connection.clone();
    spawn_detached(async move {
        let result = read_range(&connection.session, offset, len).await;
        job.read(&connection, offset, result);
    });
}

/// Reads any range into a buffer, waiting for memory.
async fn read_range(session: &NbdSession, offset: u64, len: usize) -> Result<BufMut, IoError> {
    match buf::acquire(len).await {
        Ok(buf) if session.is_aligned(offset, len as u64) => {
            session.export.device.read(offset, buf).await
        }
        Ok(buf) => partial::read(session, offset, buf).await,
        Err(TooLarge) => Err(IoError::NoMemory),
    }
}

/// Reads a range part by part for a client without structured replies, whose reply must be in one
/// piece and in order. `part` bytes are admitted. Other requests are received again afterwards.
///
/// # Errors
/// The device's error after the reply has begun, which such a client can only learn from the end of
/// the connection.
pub(crate) async fn read_in_order(
    connection: &Rc<NbdConnection>,
    cookie: Cookie,
    (mut offset, len): (u64, usize),
    mut part: usize,
) -> Result<(), IoError> {
    connection.answered_except(1).await;
    let end = offset + len as u64;
    let mut is_first = true;
    loop {
        let result = read_range(&connection.session, offset, part).await;
        match result {
            Ok(data) => connection.simple_part(cookie, is_first, data.freeze()),
            Err(error) if is_first => {
                let job = AdmittedRequest { cookie, budget: part, whole: None };
                job.answer(connection, failed(connection, error, Errno::of_read));
                return Ok(());
            }
            Err(error @ IoError::Unreachable) => {
                connection.lose_request(part);
                return Err(error);
            }
            Err(error) => {
                connection.abandon(part);
                return Err(error);
            }
        }
        is_first = false;
        offset += part as u64;
        if offset == end {
            return Ok(());
        }
        part = connection.admit_part((end - offset) as usize).await;
        if connection.must_stop().is_some() {
            connection.abandon(part);
            return Ok(());
        }
    }
}

/// Reports extents. The small answer is outside the memory limit; the number of requests bounds it.
fn status(connection: &Rc<NbdConnection>, job: AdmittedRequest, offset: u64, len: u32, one: bool) {
    let connection = connection.clone();
    spawn_detached(async move {
        let session = &connection.session;
        let block = u64::from(session.geometry().block_bytes);
        // The device knows whole blocks.
        let first = offset - offset % block;
        let end = (offset + u64::from(len)).next_multiple_of(block);
        let known = session.export.device.allocated(first, end - first).await;
        let answer = match known {
            Ok(extents) => {
                let mut payload = buf::alloc_small(STATUS_BYTES);
                let bytes = put_extents(
                    &mut payload,
                    ALLOCATION_CONTEXT_ID,
                    described(&extents, (offset - first, u64::from(len)), one),
                );
                payload.truncate(bytes);
                Ok(ReplyBody::Status(payload.freeze()))
            }
            Err(error) => failed(&connection, error, Errno::of_read),
        };
        job.answer(&connection, answer);
    });
}

/// Extents as the client asked for them: without the first `skip` bytes, and at most `len` bytes.
fn described(
    extents: &[Extent],
    (skip, len): (u64, u64),
    one: bool,
) -> impl Iterator<Item = (u32, bool)> {
    let (mut skip, mut left) = (skip, len);
    let parts = extents.iter().take(EXTENTS_MAX).filter_map(move |extent| {
        let skipped = skip.min(extent.len);
        skip -= skipped;
        let part = (extent.len - skipped).min(left);
        left -= part;
        (part > 0).then_some((part as u32, extent.is_hole))
    });
    parts.take(if one { 1 } else { usize::MAX })
}

pub(crate) fn write(
    connection: &Rc<NbdConnection>,
    job: AdmittedRequest,
    offset: u64,
    fua: bool,
    data: Buf,
) {
    let session = &connection.session;
    let aligned = session.is_aligned(offset, data.len() as u64);
    let block_lock = &session.export.block_lock;
    if !aligned || !block_lock.try_lock_shared() {
        return change(connection, job, async move |access| {
            if !aligned {
                return partial::write(&access.connection.session, offset, data, fua).await;
            }
            access.shared().await.export.device.write(offset, data, fua).await
        });
    }
    match session.export.device.write(offset, data, fua).try_now() {
        Ok(result) => {
            block_lock.unlock_shared();
            job.changed(connection, result);
        }
        Err(later) => {
            let access = BlockAccess { connection: connection.clone(), shared: true };
            spawn_detached(async move { job.changed(&access.connection, later.await) });
        }
    }
}

/// Runs a change in a task of its own.
fn change(
    connection: &Rc<NbdConnection>,
    job: AdmittedRequest,
    call: impl AsyncFnOnce(&mut BlockAccess) -> Result<(), IoError> + 'static,
) {
    let mut access = BlockAccess { connection: connection.clone(), shared: false };
    spawn_detached(async move {
        let result = call(&mut access).await;
        access.release();
        job.changed(&access.connection, result);
    });
}

/// Access of one request to the export, with shared access to its block lock once requested.
struct BlockAccess {
    connection: Rc<NbdConnection>,
    shared: bool,
}

impl BlockAccess {
    async fn shared(&mut self) -> &NbdSession {
        self.connection.session.export.block_lock.lock_shared().await;
        self.shared = true;
        &self.connection.session
    }

    fn release(&mut self) {
        if std::mem::take(&mut self.shared) {
            self.connection.session.export.block_lock.unlock_shared();
        }
    }
}

impl Drop for BlockAccess {
    fn drop(&mut self) {
        self.release();
    }
}
