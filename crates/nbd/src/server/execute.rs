//! Execution of admitted requests on the device.
//!
//! A call that the device answers immediately is replied to immediately. Others continue in pooled
//! tasks, which run to completion even if the connection ends.

use std::rc::Rc;

use flagstone_blockdev::IoError;
use flagstone_runtime::buf::{self, TooLarge};
use flagstone_runtime::{Buf, BufMut, spawn_detached};

use crate::server::connection::{NbdConnection, ReplyBody};
use crate::server::partial;
use crate::session::{NbdSession, RequestAction};
use crate::wire::Errno;
use crate::wire::request::Cookie;

/// Admitted request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmittedRequest {
    pub(crate) cookie: Cookie,
    /// Payload bytes held of the budget.
    pub(crate) budget: usize,
}

impl AdmittedRequest {
    fn changed(self, connection: &NbdConnection, result: Result<(), IoError>) {
        let answer = match result {
            Ok(()) => ReplyBody::Done,
            Err(error) => ReplyBody::Failed(Errno::of_change(error)),
        };
        connection.reply(self.cookie, answer, self.budget);
    }

    fn read(self, connection: &NbdConnection, offset: u64, result: Result<BufMut, IoError>) {
        let answer = match result {
            Ok(data) => ReplyBody::Data { offset, data: data.freeze() },
            Err(error) => ReplyBody::Failed(Errno::of_read(error)),
        };
        connection.reply(self.cookie, answer, self.budget);
    }
}

/// Starts a request other than a write. Its reply is queued now or later.
pub(crate) fn start(connection: &Rc<NbdConnection>, job: AdmittedRequest, action: RequestAction) {
    match action {
        RequestAction::Read { offset, len } => read(connection, job, offset, len as usize),
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
        RequestAction::Nothing => job.changed(connection, Ok(())),
        RequestAction::Write { .. } | RequestAction::Disconnect => {
            unreachable!("writes come with a payload, and the receiver ends at a disconnect")
        }
    }
}

fn read(connection: &Rc<NbdConnection>, job: AdmittedRequest, offset: u64, len: usize) {
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
        let result = match buf::acquire(len).await {
            Ok(buf) if aligned => connection.session.export.device.read(offset, buf).await,
            Ok(buf) => partial::read(&connection.session, offset, buf).await,
            Err(TooLarge) => Err(IoError::NoMemory),
        };
        job.read(&connection, offset, result);
    });
}

/// Starts a write.
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
            let access = Access { connection: connection.clone(), shared: true };
            spawn_detached(async move { job.changed(&access.connection, later.await) });
        }
    }
}

/// Runs a change in a task of its own.
fn change(
    connection: &Rc<NbdConnection>,
    job: AdmittedRequest,
    call: impl AsyncFnOnce(&mut Access) -> Result<(), IoError> + 'static,
) {
    let mut access = Access { connection: connection.clone(), shared: false };
    spawn_detached(async move {
        let result = call(&mut access).await;
        access.release();
        job.changed(&access.connection, result);
    });
}

/// Access of one request to the export, with shared access to its block lock once requested.
struct Access {
    connection: Rc<NbdConnection>,
    shared: bool,
}

impl Access {
    /// Waits for shared access.
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

impl Drop for Access {
    fn drop(&mut self) {
        self.release();
    }
}
