//! Execution of admitted requests on the device.
//!
//! A call that the device answers immediately is replied to immediately. Others continue in pooled
//! tasks, which run to completion even if the connection ends.

use std::rc::Rc;

use flagstone_blockdev::{IoError, IoFuture, ZeroFlags};
use flagstone_runtime::buf::{self, TooLarge};
use flagstone_runtime::{Buf, BufMut, spawn_detached};

use crate::server::connection::{NbdConnection, ReplyBody};
use crate::server::partial;
use crate::session::RequestAction;
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
        RequestAction::Flush => {
            let device = &connection.session.export.device;
            finish_change(connection, job, device.flush());
        }
        RequestAction::Trim { offset, len, fua } => trim(connection, job, offset, len, fua),
        RequestAction::Zeroes { offset, len, flags } => zeroes(connection, job, offset, len, flags),
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
    if aligned && block_lock.try_lock_shared() {
        match session.export.device.write(offset, data, fua).try_now() {
            Ok(result) => {
                block_lock.unlock_shared();
                job.changed(connection, result);
            }
            Err(later) => {
                let inside = SharedAccess(connection.clone());
                spawn_detached(async move { job.changed(&inside.0, later.await) });
            }
        }
        return;
    }
    let connection = connection.clone();
    spawn_detached(async move {
        let result = if aligned {
            let inside = SharedAccess::enter(connection.clone()).await;
            let result = connection.session.export.device.write(offset, data, fua).await;
            drop(inside);
            result
        } else {
            partial::write(&connection.session, offset, data, fua).await
        };
        job.changed(&connection, result);
    });
}

/// Trims the whole blocks of the range; durable with `fua`.
fn trim(connection: &Rc<NbdConnection>, job: AdmittedRequest, offset: u64, len: u32, fua: bool) {
    let connection = connection.clone();
    spawn_detached(async move {
        let inside = SharedAccess::enter(connection.clone()).await;
        let device = &connection.session.export.device;
        let block = u64::from(connection.session.geometry().block_bytes);
        let whole = partial::RangeSplit::of(offset, u64::from(len), block).middle;
        let mut result = match whole {
            Some((offset, len)) => device.discard(offset, len).await,
            None => Ok(()),
        };
        if fua && result.is_ok() {
            result = device.flush().await;
        }
        drop(inside);
        job.changed(&connection, result);
    });
}

fn zeroes(
    connection: &Rc<NbdConnection>,
    job: AdmittedRequest,
    offset: u64,
    len: u32,
    flags: ZeroFlags,
) {
    let connection = connection.clone();
    spawn_detached(async move {
        let session = &connection.session;
        let len = u64::from(len);
        let result = if session.is_aligned(offset, len) {
            let inside = SharedAccess::enter(connection.clone()).await;
            let result = session.export.device.write_zeroes(offset, len, flags).await;
            drop(inside);
            result
        } else {
            partial::write_zeroes(session, offset, len, flags).await
        };
        job.changed(&connection, result);
    });
}

fn finish_change(connection: &Rc<NbdConnection>, job: AdmittedRequest, future: IoFuture<()>) {
    match future.try_now() {
        Ok(result) => job.changed(connection, result),
        Err(later) => {
            let connection = connection.clone();
            spawn_detached(async move { job.changed(&connection, later.await) });
        }
    }
}

/// Shared access to the export's block lock for one request.
struct SharedAccess(Rc<NbdConnection>);

impl SharedAccess {
    async fn enter(connection: Rc<NbdConnection>) -> SharedAccess {
        connection.session.export.block_lock.lock_shared().await;
        SharedAccess(connection)
    }
}

impl Drop for SharedAccess {
    fn drop(&mut self) {
        self.0.session.export.block_lock.unlock_shared();
    }
}
