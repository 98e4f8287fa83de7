//! Carries out admitted requests on the device.
//!
//! A call that the device answers at once is answered at once. Others go on in a task of their own,
//! whose memory is pooled, and are never cut short by the end of the connection.

use std::rc::Rc;

use flagstone_blockdev::{IoError, IoFuture, ZeroFlags};
use flagstone_runtime::buf::{self, TooLarge};
use flagstone_runtime::{Buf, BufMut, spawn_detached};

use crate::server::connection::{Answer, Connection};
use crate::server::partial;
use crate::session::Action;
use crate::wire::Errno;
use crate::wire::request::Cookie;

/// One admitted request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) cookie: Cookie,
    /// Payload bytes taken from the budget.
    pub(crate) budget: usize,
}

impl Job {
    fn changed(self, connection: &Connection, result: Result<(), IoError>) {
        let answer = match result {
            Ok(()) => Answer::Done,
            Err(error) => Answer::Failed(Errno::of_change(error)),
        };
        connection.reply(self.cookie, answer, self.budget);
    }

    fn read(self, connection: &Connection, offset: u64, result: Result<BufMut, IoError>) {
        let answer = match result {
            Ok(data) => Answer::Data { offset, data: data.freeze() },
            Err(error) => Answer::Failed(Errno::of_read(error)),
        };
        connection.reply(self.cookie, answer, self.budget);
    }
}

/// Starts what is no write; its answer is queued now or later.
pub(crate) fn start(connection: &Rc<Connection>, job: Job, action: Action) {
    match action {
        Action::Read { offset, len } => read(connection, job, offset, len as usize),
        Action::Flush => {
            let device = &connection.session.export.device;
            finish_change(connection, job, device.flush());
        }
        Action::Trim { offset, len, fua } => trim(connection, job, offset, len, fua),
        Action::Zeroes { offset, len, flags } => zeroes(connection, job, offset, len, flags),
        Action::Nothing => job.changed(connection, Ok(())),
        Action::Write { .. } | Action::Disconnect => {
            unreachable!("writes come with a payload, and the receiver ends at a disconnect")
        }
    }
}

fn read(connection: &Rc<Connection>, job: Job, offset: u64, len: usize) {
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
pub(crate) fn write(connection: &Rc<Connection>, job: Job, offset: u64, fua: bool, data: Buf) {
    let session = &connection.session;
    let aligned = session.is_aligned(offset, data.len() as u64);
    let gate = &session.export.gate;
    if aligned && gate.try_share() {
        match session.export.device.write(offset, data, fua).try_now() {
            Ok(result) => {
                gate.leave_shared();
                job.changed(connection, result);
            }
            Err(later) => {
                let inside = Inside(connection.clone());
                spawn_detached(async move { job.changed(&inside.0, later.await) });
            }
        }
        return;
    }
    let connection = connection.clone();
    spawn_detached(async move {
        let result = if aligned {
            let inside = Inside::enter(connection.clone()).await;
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
fn trim(connection: &Rc<Connection>, job: Job, offset: u64, len: u32, fua: bool) {
    let connection = connection.clone();
    spawn_detached(async move {
        let inside = Inside::enter(connection.clone()).await;
        let device = &connection.session.export.device;
        let block = u64::from(connection.session.geometry().block_bytes);
        let whole = partial::Split::of(offset, u64::from(len), block).middle;
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

fn zeroes(connection: &Rc<Connection>, job: Job, offset: u64, len: u32, flags: ZeroFlags) {
    let connection = connection.clone();
    spawn_detached(async move {
        let session = &connection.session;
        let len = u64::from(len);
        let result = if session.is_aligned(offset, len) {
            let inside = Inside::enter(connection.clone()).await;
            let result = session.export.device.write_zeroes(offset, len, flags).await;
            drop(inside);
            result
        } else {
            partial::write_zeroes(session, offset, len, flags).await
        };
        job.changed(&connection, result);
    });
}

fn finish_change(connection: &Rc<Connection>, job: Job, future: IoFuture<()>) {
    match future.try_now() {
        Ok(result) => job.changed(connection, result),
        Err(later) => {
            let connection = connection.clone();
            spawn_detached(async move { job.changed(&connection, later.await) });
        }
    }
}

/// Being inside the export's gate beside others, on behalf of a connection's request.
struct Inside(Rc<Connection>);

impl Inside {
    async fn enter(connection: Rc<Connection>) -> Inside {
        connection.session.export.gate.share().await;
        Inside(connection)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.session.export.gate.leave_shared();
    }
}
