//! How writes go to the peer: as they are or compressed, and when the link's cap lets them.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_mirror::peer::LinkStatus;
use flagstone_nvme::replica::{Codec, Order};
use flagstone_nvmf::host::{Compressed, RemoteSession};
use flagstone_runtime::{Buf, task, time};

use crate::bandwidth::{Bandwidth, Class};
use crate::codec::compress;
use crate::limits::{ORDERED_COMPRESSED_MAX_BYTES, PART_BYTES};

/// What is wanted of a link beside the connection.
#[derive(Clone, Debug, Default)]
pub struct LinkOptions {
    /// Writes travel compressed, where that saves something and the peer can inflate it.
    pub compression: Option<Codec>,
    /// A cap, which others may share.
    pub bandwidth: Option<Arc<Bandwidth>>,
    /// Each answer comes so much later, as over a longer link.
    pub emulate_rtt: Duration,
}

/// Nothing was heard of the peer's codecs yet. No bit of a codec.
const UNKNOWN: u8 = 1 << 7;

/// What all sessions of a link have in common.
#[derive(Debug)]
pub(crate) struct Link {
    options: LinkOptions,
    /// The bits of the codecs that the peer knows, as it said last.
    codecs: AtomicU8,
    data_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

impl Link {
    pub(crate) fn new(options: LinkOptions) -> Link {
        Link {
            options,
            codecs: AtomicU8::new(UNKNOWN),
            data_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
        }
    }

    /// The peer has said which codecs it knows.
    pub(crate) fn learn(&self, codecs: u8) {
        let codecs = codecs & !UNKNOWN;
        let before = self.codecs.swap(codecs, Ordering::Relaxed);
        if let Some(codec) = self.options.compression
            && codecs & codec.bit() == 0
            && before != codecs
        {
            let codec = codec.name();
            tracing::warn!("the peer cannot inflate {codec}: data goes to it as it is");
        }
    }

    /// How data is compressed now.
    fn codec(&self) -> Option<Codec> {
        let known = self.codecs.load(Ordering::Relaxed);
        self.options.compression.filter(|codec| known & codec.bit() != 0)
    }

    /// The most that one command carries, of what the way there allows.
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
            compression: wanted.map_or("none", Codec::name),
            is_declined: wanted.is_some_and(|codec| known & (codec.bit() | UNKNOWN) == 0),
            max_bytes_per_s: self.options.bandwidth.as_ref().map(|cap| cap.bytes_per_s()),
            data_bytes: self.data_bytes.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            is_name_unknown: false,
        }
    }

    /// The same call, answered as late as over the link that is emulated.
    pub(crate) fn late<T: 'static>(&self, call: IoFuture<T>) -> IoFuture<T> {
        let rtt = self.options.emulate_rtt;
        if rtt.is_zero() {
            return call;
        }
        IoFuture::later(async move {
            let answer = call.await;
            time::sleep(rtt).await;
            answer
        })
    }

    fn count(&self, data_bytes: u64, sent_bytes: u64) {
        self.data_bytes.fetch_add(data_bytes, Ordering::Relaxed);
        self.sent_bytes.fetch_add(sent_bytes, Ordering::Relaxed);
    }
}

/// How something is written to the peer.
#[derive(Clone, Copy)]
pub(crate) struct How {
    pub(crate) fua: bool,
    pub(crate) order: Option<Order>,
    pub(crate) class: Class,
}

/// What one command carries.
enum Load {
    Plain(Buf),
    Compressed(Compressed),
}

impl Load {
    fn new(codec: Option<Codec>, data: Buf) -> Load {
        match codec.and_then(|codec| compress(codec, &data)) {
            Some(compressed) => Load::Compressed(compressed),
            None => Load::Plain(data),
        }
    }

    fn sent_bytes(&self) -> u64 {
        match self {
            Load::Plain(data) => data.len() as u64,
            Load::Compressed(compressed) => compressed.data.len() as u64,
        }
    }
}

/// Writes, as the link's options say.
pub(crate) fn send(
    link: &Arc<Link>,
    session: &Arc<RemoteSession>,
    offset: u64,
    data: Buf,
    how: How,
) -> IoFuture<()> {
    if link.options.compression.is_none() && link.options.bandwidth.is_none() {
        let len = data.len() as u64;
        link.count(len, len);
        return plain(session, offset, data, how);
    }
    let way = Way { link: link.clone(), session: session.clone(), codec: link.codec(), how };
    IoFuture::later(async move {
        let part = way.link.part_bytes(way.session.transfer_bytes().into()) as usize;
        if data.len() <= part {
            return way.whole(offset, data).await;
        }
        match how.order {
            Some(_) => way.ordered_parts(offset, data, part).await,
            None => way.parts(offset, data, part).await,
        }
    })
}

fn plain(session: &RemoteSession, offset: u64, data: Buf, how: How) -> IoFuture<()> {
    match how.order {
        None => session.write(offset, data, how.fua),
        Some(order) => session.write_ordered(offset, data, how.fua, order),
    }
}

/// Data in parts, and where each begins.
fn cut(data: &Buf, part: usize) -> impl Iterator<Item = (u64, Buf)> {
    let places = (0..data.len()).step_by(part);
    places.map(move |at| (at as u64, data.slice(at..data.len().min(at + part))))
}

/// What a write in hand needs.
struct Way {
    link: Arc<Link>,
    session: Arc<RemoteSession>,
    codec: Option<Codec>,
    how: How,
}

impl Way {
    /// Waits until so many bytes may be sent.
    async fn turn(&self, bytes: u64) -> Result<(), IoError> {
        let Some(bandwidth) = &self.link.options.bandwidth else { return Ok(()) };
        match bandwidth.turn(self.how.class, bytes, || self.session.is_lost()).await {
            true => Ok(()),
            false => Err(IoError::Unreachable),
        }
    }

    /// One command, the `part`-th of its write, of `len` bytes as they are written.
    fn submit(&self, part: u32, (offset, len): (u64, u64), load: Load) -> IoFuture<()> {
        self.link.count(len, load.sent_bytes());
        let order = self.how.order.map(|order| order.part(part));
        let fua = self.how.fua;
        match load {
            Load::Plain(data) => plain(&self.session, offset, data, How { order, ..self.how }),
            Load::Compressed(compressed) => {
                self.session.write_compressed(offset, len, compressed, fua, order)
            }
        }
    }

    /// A write of one command.
    async fn whole(self, offset: u64, data: Buf) -> Result<(), IoError> {
        let len = data.len() as u64;
        let load = Load::new(self.codec, data);
        self.turn(load.sent_bytes()).await?;
        self.submit(0, (offset, len), load).await
    }

    /// A write that keeps no order, part by part: others may go between.
    async fn parts(self, offset: u64, data: Buf, part: usize) -> Result<(), IoError> {
        let mut flying = Flying::default();
        for (at, data) in cut(&data, part) {
            if at > 0 && self.codec.is_some() {
                task::yield_now().await;
            }
            let len = data.len() as u64;
            let load = Load::new(self.codec, data);
            if let Err(error) = self.turn(load.sent_bytes()).await {
                flying.fail(error);
                break;
            }
            flying.begin(self.submit(0, (offset + at, len), load)).await;
        }
        flying.all().await
    }

    /// A write that keeps an order: what comes later waits at the target for all of its parts, so
    /// they have one turn together, and are all under way before anything else is.
    async fn ordered_parts(self, offset: u64, data: Buf, part: usize) -> Result<(), IoError> {
        let short = data.len() as u64 <= ORDERED_COMPRESSED_MAX_BYTES;
        let codec = self.codec.filter(|_| short);
        let load = |(at, data): (u64, Buf)| (at, data.len() as u64, Load::new(codec, data));
        let loads: Vec<(u64, u64, Load)> = cut(&data, part).map(load).collect();
        drop(data);
        self.turn(loads.iter().map(|(.., load)| load.sent_bytes()).sum()).await?;
        let mut flying = Flying::default();
        for (part, (at, len, load)) in (0..).zip(loads) {
            flying.begin(self.submit(part, (offset + at, len), load)).await;
        }
        flying.all().await
    }
}

/// Commands under way.
#[derive(Default)]
struct Flying {
    commands: Vec<IoFuture<()>>,
    failed: Option<IoError>,
}

impl Flying {
    fn fail(&mut self, error: IoError) {
        self.failed.get_or_insert(error);
    }

    /// Has a command under way; waits for nothing.
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

    /// Waits for all; gives the first error.
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
    fn a_peer_that_cannot_inflate_is_sent_data_as_it_is() {
        let compression = Some(Codec::Zstd);
        let link = Link::new(LinkOptions { compression, ..LinkOptions::default() });
        let found = |link: &Link| (link.codec(), link.status().is_declined);
        assert_eq!(found(&link), (None, false), "nothing is known of it yet");
        // A peer of an earlier version says nothing of codecs.
        link.learn(0);
        assert_eq!(found(&link), (None, true));
        link.learn(Codec::Lz4.bit());
        assert_eq!(found(&link), (None, true));
        // Bits that mean nothing here are ignored.
        link.learn(!Codec::Lz4.bit());
        assert_eq!(found(&link), (compression, false));
        assert_eq!(link.part_bytes(1 << 20), PART_BYTES);
        assert_eq!(Link::new(LinkOptions::default()).part_bytes(1 << 20), 1 << 20);
    }
}
