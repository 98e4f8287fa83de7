//! What all cores know of the server: where it is, what it said, and what it may have lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::net::{Address, Stream, may_pass};
use flagstone_runtime::{Buf, time};

use crate::client::negotiate::{Negotiation, NegotiationError, Progress, ServerInfo};
use crate::limits::{CONNECT_TIMEOUT, REQUEST_TIMEOUT, STALL_TIMEOUT};
use crate::server::Drain;
use crate::staging::Staging;
use crate::wire::link::LinkId;
use crate::wire::option::reply_type;
use crate::wire::transmission_flag;

/// How patient a client is.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// An attempt to connect and negotiate may take this long.
    pub connect_timeout: Duration,
    /// A connection on which a request stays unanswered for this long is replaced; whole seconds.
    pub stall_timeout: Duration,
    /// A request that could not be answered on any connection for this long fails with
    /// [`IoError::Unreachable`]; whole seconds.
    pub request_timeout: Duration,
    /// The server never loses writes that it has answered, not even when it crashes, so a lost
    /// connection endangers nothing. See the client module.
    pub server_is_durable: bool,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            connect_timeout: CONNECT_TIMEOUT,
            stall_timeout: STALL_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
            server_is_durable: false,
        }
    }
}

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answers there.
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    /// The server does not lead us to the export.
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
    /// It takes too long.
    #[error("no answer in time")]
    TimedOut,
    /// The server that we found again has another export than before.
    #[error("the export has changed its size or its abilities")]
    Changed,
}

impl ConnectError {
    /// Whether the same attempt may succeed later without any change here: the server cannot be
    /// reached, is about to end, or waits itself for what the export is stored on. All else wants an
    /// operator.
    pub fn may_pass(&self) -> bool {
        match self {
            ConnectError::Connect(error) => may_pass(error),
            ConnectError::TimedOut => true,
            ConnectError::Negotiation(NegotiationError::Refused { code, .. }) => {
                *code == reply_type::ERR_SHUTDOWN & !reply_type::ERROR_BIT
            }
            ConnectError::Negotiation(NegotiationError::NotYet(_)) => true,
            ConnectError::Negotiation(_) | ConnectError::Changed => false,
        }
    }
}

/// A connection in its transmission phase.
pub(crate) struct Established {
    pub(crate) stream: Stream,
    pub(crate) staging: Staging,
    pub(crate) info: ServerInfo,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) address: Address,
    pub(crate) export: String,
    pub(crate) options: ClientOptions,
    pub(crate) info: ServerInfo,
    /// The device was dropped.
    pub(crate) closing: Drain,
    /// Writes that the server has answered without making them durable, as a count.
    answered: AtomicU64,
    /// As many of them are durable: a flush that began after their answers has succeeded.
    durable: AtomicU64,
    /// A connection was lost while some were not durable.
    lost: AtomicBool,
    /// A flush has failed.
    poisoned: AtomicBool,
}

impl Target {
    /// Connects for the first time.
    pub(crate) async fn open(
        address: Address,
        export: &str,
        options: ClientOptions,
        link: LinkId,
    ) -> Result<(Target, Established), ConnectError> {
        let established = establish(&address, export, link, options.connect_timeout).await?;
        let target = Target {
            address,
            export: export.to_owned(),
            options,
            info: established.info,
            closing: Drain::new(),
            answered: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
        };
        Ok((target, established))
    }

    /// Connects once more, to the same export.
    pub(crate) async fn connect(&self, link: LinkId) -> Result<Established, ConnectError> {
        let timeout = self.options.connect_timeout;
        let established = establish(&self.address, &self.export, link, timeout).await?;
        if established.info != self.info {
            return Err(ConnectError::Changed);
        }
        Ok(established)
    }

    /// Fails once a flush has failed.
    pub(crate) fn check(&self) -> Result<(), IoError> {
        if self.poisoned.load(Ordering::Acquire) { Err(IoError::Poisoned) } else { Ok(()) }
    }

    /// A write was answered that is not durable yet.
    pub(crate) fn write_answered(&self) {
        self.answered.fetch_add(1, Ordering::AcqRel);
    }

    /// A connection ended that we did not end. If the server crashed, answered writes may be gone.
    pub(crate) fn connection_lost(&self) {
        let volatile = self.info.has(transmission_flag::SEND_FLUSH);
        let unsafe_writes =
            self.durable.load(Ordering::Acquire) < self.answered.load(Ordering::Acquire);
        if volatile && unsafe_writes && !self.options.server_is_durable {
            self.lost.store(true, Ordering::Release);
        }
    }

    /// Before a flush: the writes that it will make durable.
    pub(crate) fn begin_flush(&self) -> Result<u64, IoError> {
        self.check()?;
        if self.lost.load(Ordering::Acquire) {
            return Err(self.poison(IoError::Poisoned));
        }
        Ok(self.answered.load(Ordering::Acquire))
    }

    /// After a flush of what [`Target::begin_flush`] counted.
    pub(crate) fn end_flush(
        &self,
        covers: u64,
        result: Result<(), IoError>,
    ) -> Result<(), IoError> {
        match result {
            Ok(()) => {}
            // Not carried out: if that endangers anything, a connection was lost and `lost` is set.
            Err(error @ (IoError::Unreachable | IoError::NoMemory)) => return Err(error),
            Err(error) => return Err(self.poison(error)),
        }
        if self.lost.load(Ordering::Acquire) {
            return Err(self.poison(IoError::Poisoned));
        }
        self.durable.fetch_max(covers, Ordering::AcqRel);
        Ok(())
    }

    fn poison(&self, error: IoError) -> IoError {
        self.poisoned.store(true, Ordering::Release);
        error
    }
}

async fn establish(
    address: &Address,
    export: &str,
    link: LinkId,
    timeout: Duration,
) -> Result<Established, ConnectError> {
    match time::timeout(timeout, negotiate(address, export, link)).await {
        Ok(result) => result,
        Err(_) => Err(ConnectError::TimedOut),
    }
}

async fn negotiate(
    address: &Address,
    export: &str,
    link: LinkId,
) -> Result<Established, ConnectError> {
    let stream = Stream::connect(address).await?;
    let mut staging = Staging::new();
    let mut negotiation = Negotiation::new(export, link);
    let mut out = Vec::new();
    loop {
        let (taken, progress) = negotiation.step(staging.unread(), &mut out)?;
        staging.consume(taken);
        if !out.is_empty() {
            // At most an option with a name: far below the smallest memory ceiling.
            let sent = Buf::copy_of(&out).ok_or(std::io::ErrorKind::OutOfMemory);
            stream.send_buf(sent.map_err(std::io::Error::from)?).await?;
            out.clear();
        }
        match progress {
            Progress::Begin(info) => return Ok(Established { stream, staging, info }),
            Progress::Again => {}
            Progress::More => {
                if staging.receive(&stream).await? == 0 {
                    let end = std::io::ErrorKind::UnexpectedEof;
                    return Err(std::io::Error::from(end).into());
                }
            }
        }
    }
}
