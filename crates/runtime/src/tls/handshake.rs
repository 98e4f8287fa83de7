//! Handshake: computes off the cores, moves its messages with the stream's own operations.

use std::io;
use std::task::Poll;

use s2n_tls::connection::Connection;
use s2n_tls::enums::Version;
use s2n_tls::error::{Error, ErrorType};

use super::certificate::leaf_names;
use super::config::{HelloOutcome, TlsClient, TlsServer, client_connection, server_connection};
use super::engine::Engine;
use super::error::TlsFailure;
use super::kernel::{KernelRecords, take_records};
use super::library::LibraryRecords;
use super::record_boundary::RecordBoundary;
use super::stream::{Records, TlsStream};
use super::traffic::{self, Side, Suite, TrafficSecrets};
use crate::blocking::compute;
use crate::buf::{self, Buf};
use crate::driver::kernel_tls;
use crate::limits::{BUF_MIN_BYTES, TLS_EXACT_RECEIVES, TLS_HANDSHAKE_BYTES};
use crate::net::Stream;

/// First byte of every TLS connection: the type of a record with a handshake message. Neither a PDU
/// of NVMe/TCP nor an option of NBD begins with it.
pub const CLIENT_HELLO_FIRST_BYTE: u8 = 0x16;

/// Fatal alert "handshake failure" without encryption (RFC 8446, section 6).
const REFUSAL: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 40];

/// Where an alert without encryption has its level.
const REFUSAL_LEVEL_AT: usize = 5;

/// Identity that the peer has proven in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIdentity {
    /// That it knows the pre-shared key with this identity.
    Psk(Vec<u8>),
    /// That it has the key of a trusted certificate with these names: the common name of its
    /// subject, then its alternative names.
    Certificate(Vec<String>),
    /// Nothing: a client without a certificate.
    Anonymous,
}

impl TlsServer {
    /// Handshake with a client. `received` are the bytes that were received from it already.
    ///
    /// # Errors
    /// The stream is of no more use; the alert has been sent, if one is due.
    pub async fn accept(&self, stream: Stream, received: &[u8]) -> Result<TlsStream, TlsFailure> {
        let (connection, outcome) = server_connection(self).map_err(|error| failure(&error))?;
        let negotiated = negotiate(stream, connection, received.to_vec()).await;
        let negotiated = negotiated.map_err(|failed| match outcome.refusal.lock().take() {
            Some(refusal) => TlsFailure::Psk(refusal),
            None => failed,
        })?;
        let peer = self.peer(negotiated.engine.connection(), &outcome)?;
        negotiated.establish(Side::Server, peer).await
    }

    fn peer(
        &self,
        connection: &Connection,
        outcome: &HelloOutcome,
    ) -> Result<PeerIdentity, TlsFailure> {
        if let Some(chosen) = outcome.chosen.lock().take() {
            // A server falls back to its certificate if the key does not fit the suite.
            let negotiated = negotiated_psk(connection);
            let chosen = (negotiated.as_ref() == Some(&chosen)).then_some(chosen);
            let chosen = chosen.ok_or_else(|| {
                TlsFailure::Protocol("the pre-shared key fits no common suite".to_owned())
            })?;
            return Ok(PeerIdentity::Psk(chosen));
        }
        if !self.asks_certificate {
            return match self.has_certificate {
                true => Ok(PeerIdentity::Anonymous),
                false => Err(TlsFailure::Protocol("no pre-shared key was used".to_owned())),
            };
        }
        let chain = connection.peer_cert_chain().map_err(|error| failure(&error))?;
        let names = chain
            .iter()
            .next()
            .and_then(Result::ok)
            .and_then(|leaf| leaf.der().ok().and_then(leaf_names));
        let unreadable = || TlsFailure::Certificate("its names cannot be read".to_owned());
        names.map(PeerIdentity::Certificate).ok_or_else(unreadable)
    }
}

impl TlsClient {
    /// Handshake with a server. `received` are the bytes that were received from it already.
    ///
    /// # Errors
    /// The stream is of no more use; the alert has been sent, if one is due.
    pub async fn connect(&self, stream: Stream, received: &[u8]) -> Result<TlsStream, TlsFailure> {
        let connection = client_connection(self).map_err(|error| failure(&error))?;
        let negotiated = negotiate(stream, connection, received.to_vec()).await?;
        let peer = match &self.server_name {
            Some(name) => PeerIdentity::Certificate(vec![name.clone()]),
            None => {
                let psk = negotiated_psk(negotiated.engine.connection());
                let none = || TlsFailure::Protocol("the server used no pre-shared key".to_owned());
                PeerIdentity::Psk(psk.ok_or_else(none)?)
            }
        };
        negotiated.establish(Side::Client, peer).await
    }
}

fn negotiated_psk(connection: &Connection) -> Option<Vec<u8>> {
    let mut identity = vec![0; connection.negotiated_psk_identity_length().ok()?];
    connection.negotiated_psk_identity(&mut identity).ok()?;
    (!identity.is_empty()).then_some(identity)
}

/// State of a handshake that moves to a computing thread and back.
struct Step {
    engine: Engine,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Present if the kernel may take the records.
    secrets: Option<TrafficSecrets>,
}

impl Step {
    /// Continues as far as the input goes; `Pending` for lack of it.
    fn run(&mut self) -> Poll<Result<Suite, TlsFailure>> {
        loop {
            let mut out = [0; BUF_MIN_BYTES];
            let (engine, input) = (&mut self.engine, &self.input);
            let (result, moved) =
                traffic::collecting(&mut self.secrets, || engine.negotiate(input, &mut out));
            self.input.drain(..moved.taken);
            self.output.extend_from_slice(&out[..moved.written]);
            match result {
                // Not for lack of input, but of room.
                Poll::Pending if moved.written == out.len() => {}
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => return Poll::Ready(self.check()),
                Poll::Ready(Err(error)) => {
                    let failed = self.failure(&error);
                    let written = self.engine.close(&mut out);
                    self.output.extend_from_slice(&out[..written]);
                    return Poll::Ready(Err(failed));
                }
            }
        }
    }

    fn failure(&self, error: &Error) -> TlsFailure {
        match self.engine.connection().alert() {
            Some(alert) if error.kind() == ErrorType::Alert => TlsFailure::Alert(alert),
            _ => failure(error),
        }
    }

    fn check(&self) -> Result<Suite, TlsFailure> {
        let connection = self.engine.connection();
        let version = connection.actual_protocol_version().map_err(|error| failure(&error))?;
        let suite = connection.cipher_suite().map_err(|error| failure(&error))?;
        let accepted = Suite::named(suite).filter(|_| version == Version::TLS13);
        let refused = || TlsFailure::Protocol(format!("{version:?} with {suite} is not accepted"));
        accepted.ok_or_else(refused)
    }
}

/// The library's reason, for logs.
fn failure(error: &Error) -> TlsFailure {
    let text = error.message().to_owned();
    match error.kind() {
        ErrorType::ConnectionClosed => TlsFailure::Closed,
        _ if error.name().contains("CERT") => TlsFailure::Certificate(text),
        _ => TlsFailure::Protocol(text),
    }
}

/// Finished handshake.
struct Negotiated {
    stream: Stream,
    engine: Engine,
    suite: Suite,
    /// Bytes after the handshake that have been received.
    early: Vec<u8>,
    /// Present if the kernel may take the records.
    secrets: Option<TrafficSecrets>,
}

impl Negotiated {
    /// The stream, with its records in the kernel if that takes them.
    async fn establish(self, side: Side, peer: PeerIdentity) -> Result<TlsStream, TlsFailure> {
        let Negotiated { stream, engine, suite, early, secrets } = self;
        if let Some(secrets) = secrets {
            // It may load modules with ciphers.
            let socket = stream.clone();
            let taken = compute(move || take_records(&socket, secrets, suite, side)).await??;
            if let Some(secrets) = taken {
                let records = Records::Kernel(KernelRecords::new(side, secrets));
                return Ok(TlsStream::new(stream, records, suite, peer));
            }
        }
        let records = Records::Library(Box::new(LibraryRecords::new(engine, &early)?));
        Ok(TlsStream::new(stream, records, suite, peer))
    }
}

async fn negotiate(
    stream: Stream,
    connection: Connection,
    input: Vec<u8>,
) -> Result<Negotiated, TlsFailure> {
    let engine = Engine::new(connection).map_err(|error| failure(&error))?;
    let mut incoming = Incoming { bytes: input.len(), ..Incoming::default() };
    incoming.boundary.advance(&input);
    let mut has_sent = false;
    let mut has_started = false;
    let may_use_kernel = stream.may_use_kernel_tls();
    let mut step = Step { engine, input, output: Vec::new(), secrets: None };
    loop {
        let (back, result) = compute(move || {
            if !has_started && may_use_kernel && kernel_tls::is_available() {
                step.secrets = Some(TrafficSecrets::default());
            }
            let result = step.run();
            (step, result)
        })
        .await?;
        step = back;
        has_started = true;
        let is_fatal = step.output.get(REFUSAL_LEVEL_AT) == Some(&REFUSAL[REFUSAL_LEVEL_AT]);
        if matches!(result, Poll::Ready(Err(_))) && !is_fatal && !has_sent {
            // The library only closes after a refused key. A peer that sees no more would retry.
            step.output = REFUSAL.to_vec();
        }
        has_sent |= !step.output.is_empty();
        send(&stream, std::mem::take(&mut step.output)).await?;
        match result {
            Poll::Ready(Ok(suite)) => {
                let Step { engine, input: early, secrets, .. } = step;
                // The kernel begins with the first record after the handshake.
                let is_whole = early.is_empty() && incoming.boundary.is_between_records();
                let secrets = secrets.filter(|_| is_whole);
                return Ok(Negotiated { stream, engine, suite, early, secrets });
            }
            Poll::Ready(Err(failed)) => return Err(failed),
            Poll::Pending => {}
        }
        receive(&stream, &mut step, &mut incoming).await?;
    }
}

/// Progress of receiving the messages of a handshake.
#[derive(Default)]
struct Incoming {
    boundary: RecordBoundary,
    bytes: usize,
    receives: u32,
}

/// Receives more of the handshake. For the kernel, which needs every byte after the last record of
/// the handshake: exactly one record.
async fn receive(
    stream: &Stream,
    step: &mut Step,
    incoming: &mut Incoming,
) -> Result<(), TlsFailure> {
    loop {
        incoming.receives += 1;
        if incoming.receives > TLS_EXACT_RECEIVES {
            step.secrets = None;
        }
        let room = match &step.secrets {
            Some(_) => incoming.boundary.missing().min(BUF_MIN_BYTES),
            None => BUF_MIN_BYTES,
        };
        let (result, place) = stream.recv(buf::alloc_small(room)).await;
        let count = result?;
        incoming.bytes += count;
        if count == 0 {
            return Err(TlsFailure::Closed);
        }
        if incoming.bytes > TLS_HANDSHAKE_BYTES {
            return Err(TlsFailure::Protocol("its messages are too long".to_owned()));
        }
        incoming.boundary.advance(&place[..count]);
        step.input.extend_from_slice(&place[..count]);
        if step.secrets.is_none() || incoming.boundary.is_between_records() {
            return Ok(());
        }
    }
}

/// Sends in small buffers, which need no pooled memory.
async fn send(stream: &Stream, bytes: Vec<u8>) -> io::Result<()> {
    for part in bytes.chunks(BUF_MIN_BYTES) {
        let mut out = buf::alloc_small(part.len());
        out.copy_from_slice(part);
        let sent: Buf = out.freeze();
        stream.send_buf(sent).await?;
    }
    Ok(())
}
