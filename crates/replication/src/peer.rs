//! The way to the peer: [`Peer`] and [`Session`] over an NVMe/TCP host.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{IoError, IoFuture, ZeroFlags};
use flagstone_mirror::order::Order;
use flagstone_mirror::peer::{Answer, LinkStatus, Peer, Refusal, Request, Session};
use flagstone_nvme::Nqn;
use flagstone_nvmf::host::{AdminData, HostOptions, RemoteSession};
use flagstone_runtime::{Buf, BufMut, buf};

use crate::bandwidth::Class;
use crate::link::{self, How, Link, LinkOptions};
use crate::place::Place;
use crate::words;

/// How long a command is sent again that the peer turns away for now: the mirror itself tries again
/// what fails.
const RETRY_FOR: Duration = Duration::from_secs(1);

/// The way to the replica in one subsystem.
#[derive(Clone, Debug)]
pub struct NvmePeer {
    place: Place,
    subnqn: Nqn,
    options: HostOptions,
    link: Arc<Link>,
}

impl NvmePeer {
    /// To the replication subsystem `subnqn` at an address, or where a name leads. Of `options` data digests, the host
    /// identifier and the loss time-out are the link's own.
    pub fn new(place: impl Into<Place>, subnqn: Nqn, options: HostOptions) -> NvmePeer {
        let place = place.into();
        let loss_timeout = options.loss_timeout.min(RETRY_FOR);
        let options = HostOptions { loss_timeout, ..options };
        NvmePeer { place, subnqn, options, link: Arc::new(Link::new(LinkOptions::default())) }
    }

    /// The same with a link that does more than send what is written as it is.
    pub fn with_link(self, options: LinkOptions) -> NvmePeer {
        NvmePeer { link: Arc::new(Link::new(options)), ..self }
    }
}

impl Peer for NvmePeer {
    fn connect(&self) -> IoFuture<Arc<dyn Session>> {
        let NvmePeer { place, subnqn, options, link } = self.clone();
        IoFuture::later(async move {
            let address = place.find().await.ok_or(IoError::Unreachable)?;
            match RemoteSession::connect(address, &subnqn, options).await {
                Ok(session) => Ok(Arc::new(NvmeSession { session, link }) as Arc<dyn Session>),
                Err(error) => {
                    tracing::debug!(%subnqn, "the peer cannot be reached: {error}");
                    Err(IoError::Unreachable)
                }
            }
        })
    }

    fn link(&self) -> LinkStatus {
        LinkStatus { is_name_unknown: self.place.is_unknown(), ..self.link.status() }
    }
}

/// One connection.
struct NvmeSession {
    session: Arc<RemoteSession>,
    link: Arc<Link>,
}

impl NvmeSession {
    fn send(
        &self,
        class: Class,
        offset: u64,
        data: Buf,
        fua: bool,
        order: Option<Order>,
    ) -> IoFuture<()> {
        let how = How { fua, order: order.map(words::order_to_wire), class };
        self.link.late(link::send(&self.link, &self.session, offset, data, how))
    }
}

impl Session for NvmeSession {
    fn ask(&self, request: Request) -> IoFuture<Answer> {
        let Some(request) = words::to_wire(&request) else {
            return IoFuture::ready(Ok(Err(Refusal::Range)));
        };
        let (command, sent) = request.command(0, self.session.nsid());
        let data = match (sent, request.reply_bytes()) {
            (Some(sent), _) => {
                let mut data = buf::alloc_small(sent.bytes().len());
                data.copy_from_slice(sent.bytes());
                AdminData::Out(data.freeze())
            }
            (None, 0) => AdminData::None,
            (None, bytes) => AdminData::In(buf::alloc_small(bytes)),
        };
        let (answer, session) = (self.session.admin(command, data), self.session.clone());
        let (link, block_bytes) = (self.link.clone(), self.session.geometry().block_bytes);
        self.link.late(IoFuture::later(async move {
            let answer = answer.await?;
            if answer.status.is_success() {
                let data = answer.data.as_deref().unwrap_or_default();
                if let Some(reply) = words::reply(&request, data) {
                    if let Some(codecs) = words::codecs(&reply, data) {
                        link.learn(codecs);
                    }
                    return Ok(Ok(words::with_blocks(reply, block_bytes)));
                }
            } else if let Some(refusal) = words::refusal(answer.status, answer.result) {
                return Ok(Err(refusal));
            }
            // Whoever this is, it is no replica that we understand.
            tracing::warn!("the peer answers {request:?} with {}", answer.status);
            session.close();
            Err(IoError::Unreachable)
        }))
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.link.late(self.session.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool, order: Option<Order>) -> IoFuture<()> {
        self.send(Class::Hosts, offset, data, fua, order)
    }

    fn copy(&self, offset: u64, data: Buf) -> IoFuture<()> {
        self.send(Class::Resync, offset, data, false, None)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        order: Option<Order>,
    ) -> IoFuture<()> {
        self.link.late(match order {
            None => self.session.write_zeroes(offset, len, flags),
            Some(order) => {
                self.session.write_zeroes_ordered(offset, len, flags, words::order_to_wire(order))
            }
        })
    }

    fn transfer_bytes(&self) -> u64 {
        self.link.part_bytes(self.session.transfer_bytes().into())
    }

    fn flush(&self) -> IoFuture<()> {
        self.link.late(self.session.flush())
    }

    fn lost(&self) -> IoFuture<()> {
        self.session.lost()
    }

    fn close(&self) {
        self.session.close();
    }
}
