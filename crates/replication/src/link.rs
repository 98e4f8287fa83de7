//! Transmission of writes to the peer: plain or compressed, and within the bandwidth limit.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_mirror::wire::peer::{LinkCompression, LinkStatus};
use flagstone_nvme::Nqn;
use flagstone_nvme::replica::{Codec, WritePosition};
use flagstone_nvmf_host::{Compressed, RemoteSession};
use flagstone_runtime::{Buf, task, time};

use crate::bandwidth::{Bandwidth, TrafficClass};
use crate::codec::compress;
use crate::limits::{ORDERED_COMPRESSED_MAX_BYTES, PART_BYTES};

/// Options of a link besides the connection.
#[derive(Clone, Debug, Default)]
pub struct LinkOptions {
    /// Compress writes, where that saves something and the peer can inflate them.
    pub compression: Option<Codec>,
    /// Bandwidth limit, which several links may share.
    pub bandwidth: Option<Arc<Bandwidth>>,
    /// Delay added to each answer, to emulate a longer link.
    pub added_rtt: Duration,
}

/// The peer's codecs are unknown so far. Not the bit of any codec.
const UNKNOWN: u8 = 1 << 7;

/// State shared by all sessions of a link.
#[derive(Debug)]
pub(crate) struct PeerLink {
    options: LinkOptions,
    /// Bits of the codecs that the peer supports, as it reported last.
    codecs: AtomicU8,
    data_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    node_refused: AtomicBool,
}

impl PeerLink {
    pub(crate) fn new(options: LinkOptions) -> PeerLink {
        PeerLink {
            options,
            codecs: AtomicU8::new(UNKNOWN),
            data_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            node_refused: AtomicBool::new(false),
        }
    }

    /// The peer refused the host that this node connects as. Logged once, not at each attempt.
    pub(crate) fn node_refused(&self, host: Option<&Nqn>) {
        if !self.node_refused.swap(true, Ordering::Relaxed) {
            let host = host.map_or("without a name", Nqn::as_str);
            tracing::warn!(
                "the peer refuses this node, which calls itself {host}: the configuration there expects \
                 another name"
            );
        }
    }

    pub(crate) fn node_admitted(&self) {
        self.node_refused.store(false, Ordering::Relaxed);
    }

    /// Records the codecs that the peer supports.
    pub(crate) fn learn(&self, codecs: u8) {
        let codecs = codecs & !UNKNOWN;
        let before = self.codecs.swap(codecs, Ordering::Relaxed);
        if let Some(codec) = self.options.compression
            && codecs & codec.bit() == 0
            && before != codecs
        {
            let codec = codec.name();
            tracing::warn!("the peer does not support {codec}: sending data uncompressed");
        }
    }

    fn codec(&self) -> Option<Codec> {
        let known = self.codecs.load(Ordering::Relaxed);
        self.options.compression.filter(|codec| known & codec.bit() != 0)
    }

    /// The maximum payload of one command, given the maximum of the transport.
    pub(crate) fn part_bytes(&self, transfer_bytes: u64) -> u64 {
        match self.options.compression {
            Some(_) => transfer_bytes.min(PART_BYTES),
            None => transfer_bytes,
        }
    }

    pub(crate) fn status(&self) -> LinkStatus {
        let known = self.codecs.load(Ordering::Relaxed);
        let wanted = self.options.compression;
        LinkStatus {
            compression: match wanted {
                None => LinkCompression::None,
                Some(Codec::Lz4) => LinkCompression::Lz4,
                Some(Codec::Zstd) => LinkCompression::Zstd,
            },
            is_declined: wanted.is_some_and(|codec| known & (codec.bit() | UNKNOWN) == 0),
            max_bytes_per_s: self.options.bandwidth.as_ref().map(|cap| cap.bytes_per_s()),
            data_bytes: self.data_bytes.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            is_name_unknown: false,
            is_node_refused: self.node_refused.load(Ordering::Relaxed),
        }
    }

    /// The same call with the configured delay added to its answer.
    pub(crate) fn delayed<T: 'static>(&self, call: IoFuture<T>) -> IoFuture<T> {
        let rtt = self.options.added_rtt;
        if rtt.is_zero() {
            return call;
        }
        IoFuture::later(async move {
            let answer = call.await;
            time::sleep(rtt).await;
            answer
        })
    }

    /// Fails writes of an ended session that wait for bandwidth.
    pub(crate) fn session_ended(&self) {
        if let Some(bandwidth) = &self.options.bandwidth {
            bandwidth.recheck();
        }
    }

    fn count(&self, data_bytes: u64, sent_bytes: u64) {
        self.data_bytes.fetch_add(data_bytes, Ordering::Relaxed);
        self.sent_bytes.fetch_add(sent_bytes, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy)]
pub(crate) struct WriteParameters {
    pub(crate) fua: bool,
    pub(crate) order: Option<WritePosition>,
    pub(crate) class: TrafficClass,
}

enum Payload {
    Plain(Buf),
    Compressed(Compressed),
}

impl Payload {
    fn new(codec: Option<Codec>, data: Buf) -> Payload {
        match codec.and_then(|codec| compress(codec, &data)) {
            Some(compressed) => Payload::Compressed(compressed),
            None => Payload::Plain(data),
        }
    }

    fn sent_bytes(&self) -> u64 {
        match self {
            Payload::Plain(data) => data.len() as u64,
            Payload::Compressed(compressed) => compressed.data.len() as u64,
        }
    }
}

/// Sends a write according to the link's options.
pub(crate) fn send(
    link: &Arc<PeerLink>,
    session: &Arc<RemoteSession>,
    offset: u64,
    data: Buf,
    parameters: WriteParameters,
) -> IoFuture<()> {
    if link.options.compression.is_none() && link.options.bandwidth.is_none() {
        let len = data.len() as u64;
        link.count(len, len);
        return plain(session, offset, data, parameters);
    }
    let write =
        LinkWrite { link: link.clone(), session: session.clone(), codec: link.codec(), parameters };
    IoFuture::later(async move {
        let part = write.link.part_bytes(write.session.transfer_bytes().into()) as usize;
        if data.len() <= part {
            return write.whole(offset, data).await;
        }
        match parameters.order {
            Some(_) => write.ordered_parts(offset, data, part).await,
            None => write.parts(offset, data, part).await,
        }
    })
}

fn plain(
    session: &RemoteSession,
    offset: u64,
    data: Buf,
    parameters: WriteParameters,
) -> IoFuture<()> {
    match parameters.order {
        None => session.write(offset, data, parameters.fua),
        Some(order) => session.write_ordered(offset, data, parameters.fua, order),
    }
}

/// Splits data into parts, with their offsets.
fn split(data: &Buf, part: usize) -> impl Iterator<Item = (u64, Buf)> {
    let offsets = (0..data.len()).step_by(part);
    offsets.map(move |at| (at as u64, data.slice(at..data.len().min(at + part))))
}

/// Context of a write in progress.
struct LinkWrite {
    link: Arc<PeerLink>,
    session: Arc<RemoteSession>,
    codec: Option<Codec>,
    parameters: WriteParameters,
}

impl LinkWrite {
    /// Waits until `bytes` may be sent.
    async fn wait_for_bandwidth(&self, bytes: u64) -> Result<(), IoError> {
        let Some(bandwidth) = &self.link.options.bandwidth else { return Ok(()) };
        match bandwidth.acquire(self.parameters.class, bytes, || self.session.is_lost()).await {
            true => Ok(()),
            false => Err(IoError::Unreachable),
        }
    }

    /// Submits one command: part `part` of its write, for `len` bytes of uncompressed data.
    fn submit(&self, part: u32, (offset, len): (u64, u64), payload: Payload) -> IoFuture<()> {
        self.link.count(len, payload.sent_bytes());
        let order = self.parameters.order.map(|order| order.part(part));
        let fua = self.parameters.fua;
        match payload {
            Payload::Plain(data) => {
                plain(&self.session, offset, data, WriteParameters { order, ..self.parameters })
            }
            Payload::Compressed(compressed) => {
                self.session.write_compressed(offset, len, compressed, fua, order)
            }
        }
    }

    /// A write that fits one command.
    async fn whole(self, offset: u64, data: Buf) -> Result<(), IoError> {
        let len = data.len() as u64;
        let payload = Payload::new(self.codec, data);
        self.wait_for_bandwidth(payload.sent_bytes()).await?;
        self.submit(0, (offset, len), payload).await
    }

    /// A write without an order, part by part: other writes may go in between.
    async fn parts(self, offset: u64, data: Buf, part: usize) -> Result<(), IoError> {
        let mut commands_in_flight = CommandSet::default();
        for (at, data) in split(&data, part) {
            if at > 0 && self.codec.is_some() {
                task::yield_now().await;
            }
            let len = data.len() as u64;
            let payload = Payload::new(self.codec, data);
            if let Err(error) = self.wait_for_bandwidth(payload.sent_bytes()).await {
                commands_in_flight.fail(error);
                break;
            }
            commands_in_flight.begin(self.submit(0, (offset + at, len), payload)).await;
        }
        commands_in_flight.all().await
    }

    /// An ordered write. Later writes wait at the target for all of its parts, so all parts get
    /// their bandwidth together and are submitted before any other write.
    async fn ordered_parts(self, offset: u64, data: Buf, part: usize) -> Result<(), IoError> {
        let short = data.len() as u64 <= ORDERED_COMPRESSED_MAX_BYTES;
        let codec = self.codec.filter(|_| short);
        let payload = |(at, data): (u64, Buf)| (at, data.len() as u64, Payload::new(codec, data));
        let payloads: Vec<(u64, u64, Payload)> = split(&data, part).map(payload).collect();
        drop(data);
        self.wait_for_bandwidth(payloads.iter().map(|(.., payload)| payload.sent_bytes()).sum())
            .await?;
        let mut commands_in_flight = CommandSet::default();
        for (part, (at, len, payload)) in (0..).zip(payloads) {
            commands_in_flight.begin(self.submit(part, (offset + at, len), payload)).await;
        }
        commands_in_flight.all().await
    }
}

#[derive(Default)]
struct CommandSet {
    commands: Vec<IoFuture<()>>,
    failed: Option<IoError>,
}

impl CommandSet {
    fn fail(&mut self, error: IoError) {
        self.failed.get_or_insert(error);
    }

    /// Submits a command without waiting for it.
    async fn begin(&mut self, mut command: IoFuture<()>) {
        poll_fn(|cx| {
            match Pin::new(&mut command).poll(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => self.fail(error),
                Poll::Pending => {
                    self.commands.push(std::mem::replace(&mut command, IoFuture::ready(Ok(()))))
                }
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Waits for all commands; returns the first error.
    async fn all(mut self) -> Result<(), IoError> {
        poll_fn(|cx| {
            let mut at = 0;
            while at < self.commands.len() {
                match Pin::new(&mut self.commands[at]).poll(cx) {
                    Poll::Pending => at += 1,
                    Poll::Ready(result) => {
                        drop(self.commands.swap_remove(at));
                        if let Err(error) = result {
                            self.fail(error);
                        }
                    }
                }
            }
            if self.commands.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_without_codec_gets_plain_data() {
        let compression = Some(Codec::Zstd);
        let link = PeerLink::new(LinkOptions { compression, ..LinkOptions::default() });
        let found = |link: &PeerLink| (link.codec(), link.status().is_declined);
        assert_eq!(found(&link), (None, false), "the codecs are unknown so far");
        // A peer of an earlier version reports no codecs.
        link.learn(0);
        assert_eq!(found(&link), (None, true));
        link.learn(Codec::Lz4.bit());
        assert_eq!(found(&link), (None, true));
        // Unknown bits are ignored.
        link.learn(!Codec::Lz4.bit());
        assert_eq!(found(&link), (compression, false));
        assert_eq!(link.part_bytes(1 << 20), PART_BYTES);
        assert_eq!(PeerLink::new(LinkOptions::default()).part_bytes(1 << 20), 1 << 20);
    }
}
