//! Receives requests: one receive brings many, and each is started as soon as it is whole.

use std::io;
use std::rc::Rc;

use flagstone_runtime::Buf;
use flagstone_runtime::task::yield_now;

use crate::server::connection::{Answer, Connection};
use crate::server::execute::{self, Job};
use crate::session::Action;
use crate::staging::Staging;
use crate::wire::Errno;
use crate::wire::request::{BadRequestMagic, Request};

/// Why receiving ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The client sent DISC.
    Disconnect,
    /// The client closed; `whole` unless it did so within a request.
    Closed { whole: bool },
    /// Another connection of the client is in charge.
    Replaced,
    /// The stream is out of step.
    BadMagic(BadRequestMagic),
    /// The system failed the receive.
    Failed(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => End::Closed { whole: false },
            _ => End::Failed(error),
        }
    }
}

/// Receives and starts requests until the end.
pub(crate) async fn receive(connection: &Rc<Connection>, staging: &mut Staging) -> End {
    loop {
        let request = match Request::decode(staging.unread()) {
            Ok(Some(request)) => request,
            Ok(None) => match more(connection, staging).await {
                Ok(()) => continue,
                Err(end) => return end,
            },
            Err(bad) => return End::BadMagic(bad),
        };
        staging.consume(Request::BYTES);
        match take(connection, staging, &request).await {
            Ok(None) => {}
            Ok(Some(end)) => return end,
            Err(error) => return error.into(),
        }
    }
}

/// Receives once.
async fn more(connection: &Connection, staging: &mut Staging) -> Result<(), End> {
    if connection.has_replies() {
        // Answers first: the peer may already wait for them.
        yield_now().await;
    }
    let part = !staging.unread().is_empty();
    if part {
        connection.receiving_part.set(true);
        connection.watch();
    }
    let received = staging.receive(&connection.stream).await;
    connection.receiving_part.set(false);
    match received {
        Ok(0) => Err(End::Closed { whole: !part }),
        Ok(_) => Ok(()),
        Err(error) => Err(End::Failed(error)),
    }
}

/// Starts one request, or answers why not, or ends.
async fn take(
    connection: &Rc<Connection>,
    staging: &mut Staging,
    request: &Request,
) -> io::Result<Option<End>> {
    let mut verdict = connection.session.admit(request);
    if connection.drain.has_begun() && verdict != Ok(Action::Disconnect) {
        verdict = Err(Errno::SHUTDOWN);
    }
    let budget = match verdict {
        Ok(Action::Disconnect) => return Ok(Some(End::Disconnect)),
        Ok(Action::Read { len, .. }) => len as usize,
        Ok(Action::Write { .. }) => request.len as usize,
        _ => 0,
    };
    connection.admit(budget).await;
    let job = Job { cookie: request.cookie, budget };
    match verdict {
        Ok(Action::Write { offset, fua }) => {
            let received = payload(connection, staging, budget).await;
            match received {
                Ok(data) if !connection.is_replaced() => match data {
                    Some(data) => execute::write(connection, job, offset, fua, data),
                    None => {
                        connection.reply(request.cookie, Answer::Failed(Errno::NOMEM), budget);
                    }
                },
                other => {
                    connection.answered(1, budget);
                    return other.map(|_| Some(End::Replaced));
                }
            }
        }
        Ok(_) if connection.is_replaced() => {
            connection.answered(1, budget);
            return Ok(Some(End::Replaced));
        }
        // Nobody will take what is read, and the budget does not hold any more.
        Ok(Action::Read { .. }) if connection.broken.get() => connection.answered(1, budget),
        Ok(action) => execute::start(connection, job, action),
        Err(error) => {
            let skipped = skip(connection, staging, request.payload_bytes() as usize).await;
            connection.reply(request.cookie, Answer::Failed(error), budget);
            skipped?;
        }
    }
    Ok(None)
}

/// A write's data; `None` when it was thrown away, because there can never be memory for it.
async fn payload(
    connection: &Connection,
    staging: &mut Staging,
    len: usize,
) -> io::Result<Option<Buf>> {
    let align = connection.session.geometry().memory_align_bytes as usize;
    expect(connection, staging, len, async |staging| {
        staging.payload(&connection.stream, len, align).await
    })
    .await
}

/// Throws a refused write's data away, a receive block at a time.
async fn skip(connection: &Connection, staging: &mut Staging, len: usize) -> io::Result<()> {
    expect(connection, staging, len, async |staging| staging.skip(&connection.stream, len).await)
        .await
}

/// Runs a receive of `len` bytes that the peer owes us, under the warden's eyes if it must wait.
async fn expect<T>(
    connection: &Connection,
    staging: &mut Staging,
    len: usize,
    receive: impl AsyncFnOnce(&mut Staging) -> io::Result<T>,
) -> io::Result<T> {
    if staging.unread().len() < len {
        connection.receiving_part.set(true);
        connection.watch();
    }
    let result = receive(staging).await;
    connection.receiving_part.set(false);
    result
}
