//! Remote export shared by all cores: address, properties, and durability of its writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::net::{Address, Socket, Stream, may_pass};
use flagstone_runtime::tls::TlsFailure;
use flagstone_runtime::{Buf, time};
use flagstone_transport::Rx;
use parking_lot::Mutex;

use crate::client::negotiate::{Negotiation, NegotiationError, NegotiationStep, ServerInfo};
use crate::client::tls::NbdTlsClient;
use crate::limits::{CONNECT_TIMEOUT, REQUEST_TIMEOUT, STALL_TIMEOUT};
use crate::server::Drain;
use crate::wire::link::LinkId;
use crate::wire::option::reply_type;
use crate::wire::transmission_flag;

#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Time limit for connecting and negotiating.
    pub connect_timeout: Duration,
    /// A connection with a request unanswered for this long is replaced; whole seconds.
    pub stall_timeout: Duration,
    /// A request unanswered on every connection for this long fails with [`IoError::Unreachable`];
    /// whole seconds.
    pub request_timeout: Duration,
    /// The server never loses answered writes, not even in a crash, so a lost connection endangers
    /// nothing. See the client module.
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

/// Reason why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The connection failed.
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
    /// The TLS handshake failed.
    #[error("TLS failed: {0}")]
    Tls(#[from] TlsFailure),
    /// The timeout expired.
    #[error("no answer in time")]
    TimedOut,
    /// The export differs after a reconnect.
    #[error("the size or the capabilities of the export have changed")]
    Changed,
}

impl ConnectError {
    /// True if the same attempt may succeed later without any change on this host: the server is
    /// unreachable, shutting down, or waiting for its own device. All other errors need an
    /// operator.
    pub fn may_pass(&self) -> bool {
        match self {
            ConnectError::Connect(error) => may_pass(error),
            ConnectError::TimedOut | ConnectError::Tls(TlsFailure::Closed) => true,
            ConnectError::Tls(_) => false,
            ConnectError::Negotiation(NegotiationError::Refused { code, .. }) => {
                *code == reply_type::ERR_SHUTDOWN & !reply_type::ERROR_BIT
            }
            ConnectError::Negotiation(NegotiationError::NotYet(_)) => true,
            ConnectError::Negotiation(_) | ConnectError::Changed => false,
        }
    }
}

/// Connection in its transmission phase.
pub(crate) struct EstablishedConnection {
    pub(crate) socket: Socket,
    pub(crate) rx: Rx,
    pub(crate) info: ServerInfo,
}

/// Writes of a core's link that were answered without being durable.
#[derive(Debug)]
pub(crate) struct LinkWrites {
    pub(crate) core: usize,
    answered: AtomicU64,
    /// How many of them are durable: a flush that began after their replies has succeeded.
    durable: AtomicU64,
}

impl LinkWrites {
    /// Counts an answered write that is not durable yet.
    pub(crate) fn answered(&self) {
        self.answered.fetch_add(1, Ordering::AcqRel);
    }

    fn are_durable(&self) -> bool {
        self.durable.load(Ordering::Acquire) >= self.answered.load(Ordering::Acquire)
    }
}

/// Answered writes that a flush makes durable: links, and the number of their answers.
#[derive(Debug)]
pub(crate) struct FlushedWrites(Vec<(Arc<LinkWrites>, u64)>);

impl FlushedWrites {
    /// Cores whose links have such writes.
    pub(crate) fn cores(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|(writes, _)| writes.core)
    }
}

/// Remote export, shared by all cores.
#[derive(Debug)]
pub(crate) struct RemoteExport {
    pub(crate) address: Address,
    pub(crate) export: String,
    pub(crate) options: ClientOptions,
    tls: Option<NbdTlsClient>,
    pub(crate) info: ServerInfo,
    /// The device was dropped.
    pub(crate) closing: Drain,
    /// Of every link: at most one of each core.
    writes: Mutex<Vec<Arc<LinkWrites>>>,
    /// A connection was lost while some writes were not durable.
    lost: AtomicBool,
    /// A flush has failed.
    poisoned: AtomicBool,
}

impl RemoteExport {
    /// Connects for the first time.
    pub(crate) async fn open(
        address: Address,
        export: &str,
        options: ClientOptions,
        tls: Option<NbdTlsClient>,
        link: LinkId,
    ) -> Result<(RemoteExport, EstablishedConnection), ConnectError> {
        let established =
            establish(&address, export, link, tls.as_ref(), options.connect_timeout).await?;
        let target = RemoteExport {
            address,
            export: export.to_owned(),
            options,
            tls,
            info: established.info,
            closing: Drain::new(),
            writes: Mutex::default(),
            lost: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
        };
        Ok((target, established))
    }

    /// Reconnects to the same export.
    pub(crate) async fn connect(
        &self,
        link: LinkId,
    ) -> Result<EstablishedConnection, ConnectError> {
        let timeout = self.options.connect_timeout;
        let tls = self.tls.as_ref();
        let established = establish(&self.address, &self.export, link, tls, timeout).await?;
        if established.info != self.info {
            return Err(ConnectError::Changed);
        }
        Ok(established)
    }

    /// Fails once a flush has failed.
    pub(crate) fn check(&self) -> Result<(), IoError> {
        if self.poisoned.load(Ordering::Acquire) { Err(IoError::Poisoned) } else { Ok(()) }
    }

    /// The writes of this core's link.
    pub(crate) fn link_writes(&self) -> Arc<LinkWrites> {
        let core = flagstone_runtime::core_index();
        let mut writes = self.writes.lock();
        if let Some(known) = writes.iter().find(|known| known.core == core) {
            return known.clone();
        }
        let (answered, durable) = (AtomicU64::new(0), AtomicU64::new(0));
        let new = Arc::new(LinkWrites { core, answered, durable });
        writes.push(new.clone());
        new
    }

    /// Records an unexpected disconnect. If the server crashed, answered writes may be lost.
    pub(crate) fn connection_lost(&self) {
        let volatile = self.info.has(transmission_flag::SEND_FLUSH);
        let unsafe_writes = self.writes.lock().iter().any(|writes| !writes.are_durable());
        if volatile && unsafe_writes && !self.options.server_is_durable {
            self.lost.store(true, Ordering::Release);
        }
    }

    /// Called before a flush: the writes that it makes durable. Each of their links has to flush:
    /// an answer on its connection proves that the server still has its writes. A server that lost
    /// them in a crash may answer on another connection, made since.
    pub(crate) fn begin_flush(&self) -> Result<FlushedWrites, IoError> {
        self.check()?;
        if self.lost.load(Ordering::Acquire) {
            return Err(self.poison(IoError::Poisoned));
        }
        let writes = self.writes.lock();
        let open = writes.iter().filter(|writes| !writes.are_durable());
        let counted = open.map(|one| (one.clone(), one.answered.load(Ordering::Acquire)));
        Ok(FlushedWrites(counted.collect()))
    }

    /// Called after a flush with the writes of [`RemoteExport::begin_flush`].
    pub(crate) fn end_flush(
        &self,
        flushed: FlushedWrites,
        result: Result<(), IoError>,
    ) -> Result<(), IoError> {
        match result {
            Ok(()) => {}
            // Not executed. If that endangers data, a connection was lost and `lost` is set.
            Err(error @ (IoError::Unreachable | IoError::NoMemory)) => return Err(error),
            Err(error) => return Err(self.poison(error)),
        }
        if self.lost.load(Ordering::Acquire) {
            return Err(self.poison(IoError::Poisoned));
        }
        for (writes, covers) in flushed.0 {
            writes.durable.fetch_max(covers, Ordering::AcqRel);
        }
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
    tls: Option<&NbdTlsClient>,
    timeout: Duration,
) -> Result<EstablishedConnection, ConnectError> {
    let negotiated = time::timeout(timeout, negotiate(address, export, link, tls)).await;
    negotiated.unwrap_or(Err(ConnectError::TimedOut))
}

async fn negotiate(
    address: &Address,
    export: &str,
    link: LinkId,
    tls: Option<&NbdTlsClient>,
) -> Result<EstablishedConnection, ConnectError> {
    let mut socket = Socket::from(Stream::connect(address).await?);
    let mut rx = Rx::new(socket.clone());
    let mut scratch = Vec::new();
    let negotiation = Negotiation::new(export, link);
    let mut negotiation = if tls.is_some() { negotiation.with_tls() } else { negotiation };
    let mut out = Vec::new();
    loop {
        let (taken, progress) = negotiation.step(rx.unread(&mut scratch), &mut out)?;
        rx.skip(taken);
        send(&socket, &mut out).await?;
        match progress {
            NegotiationStep::Begin(info) => {
                return Ok(EstablishedConnection { socket, rx, info });
            }
            NegotiationStep::StartTls => {
                // Whatever arrived with the answer is not protected.
                if let (Some(tls), 0) = (tls, rx.available()) {
                    socket = tls.current().connect(socket.stream().clone(), &[]).await?.into();
                    rx = Rx::new(socket.clone());
                    negotiation.secured(&mut out);
                    send(&socket, &mut out).await?;
                } else {
                    return Err(NegotiationError::Broken("data before the TLS handshake").into());
                }
            }
            NegotiationStep::Again => {}
            NegotiationStep::More => rx.more_pooled().await.map_err(std::io::Error::from)?,
        }
    }
}

/// Sends what a step of the negotiation wrote, if anything.
async fn send(socket: &Socket, out: &mut Vec<u8>) -> std::io::Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    // At most one option with a name: far below the smallest memory ceiling.
    let sent = Buf::copy_of(out).ok_or(std::io::ErrorKind::OutOfMemory);
    out.clear();
    socket.send_buf(sent.map_err(std::io::Error::from)?).await
}
