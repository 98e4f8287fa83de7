//! Sending end of the link: [`PeerConnector`] and [`PeerSession`] over an NVMe/TCP host.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{IoError, IoFuture, ZeroFlags};
use flagstone_mirror::io::reorder::WriteOrder;
use flagstone_mirror::wire::peer::{
    LinkStatus, PeerAnswer, PeerConnector, PeerRefusal, PeerRequest, PeerSession,
};
use flagstone_nvme::{FabricsType, Nqn, Status};
use flagstone_nvmf_host::{CommandData, HostError, HostOptions, RemoteSession};
use flagstone_runtime::{Buf, BufMut, buf};

use crate::address::PeerAddress;
use crate::bandwidth::TrafficClass;
use crate::convert;
use crate::link::{self, LinkOptions, PeerLink, WriteParameters};

/// How long a command that the peer rejects temporarily is resent. The mirror itself retries what
/// fails.
const RETRY_FOR: Duration = Duration::from_secs(1);

/// Connects to the replica in one subsystem.
#[derive(Clone, Debug)]
pub struct NvmePeer {
    address: PeerAddress,
    subnqn: Nqn,
    options: HostOptions,
    link: Arc<PeerLink>,
}

impl NvmePeer {
    /// Connects to the replication subsystem `subnqn` at an address or name. The link sets the loss
    /// timeout of `options` to at most one second.
    pub fn new(address: impl Into<PeerAddress>, subnqn: Nqn, options: HostOptions) -> NvmePeer {
        let address = address.into();
        let loss_timeout = options.loss_timeout.min(RETRY_FOR);
        let options = HostOptions { loss_timeout, ..options };
        NvmePeer { address, subnqn, options, link: Arc::new(PeerLink::new(LinkOptions::default())) }
    }

    /// Adds compression, a bandwidth limit or a delay.
    pub fn with_link(self, options: LinkOptions) -> NvmePeer {
        NvmePeer { link: Arc::new(PeerLink::new(options)), ..self }
    }
}

fn is_name_refused(error: &HostError) -> bool {
    let HostError::FabricsRefused { command: FabricsType::CONNECT, status } = error else {
        return false;
    };
    status.code() == Status::CONNECT_INVALID_HOST
}

impl PeerConnector for NvmePeer {
    fn connect(&self) -> IoFuture<Arc<dyn PeerSession>> {
        let NvmePeer { address, subnqn, options, link } = self.clone();
        IoFuture::later(async move {
            let address = address.find().await.ok_or(IoError::Unreachable)?;
            let host_nqn = options.host_nqn;
            match RemoteSession::connect(address, &subnqn, options).await {
                Ok(session) => {
                    link.node_admitted();
                    Ok(Arc::new(NvmeSession { session, link }) as Arc<dyn PeerSession>)
                }
                Err(error) => {
                    if is_name_refused(&error) {
                        link.node_refused(host_nqn.as_ref());
                    }
                    tracing::debug!(%subnqn, "the peer cannot be reached: {error}");
                    Err(IoError::Unreachable)
                }
            }
        })
    }

    fn link(&self) -> LinkStatus {
        LinkStatus { is_name_unknown: self.address.is_unknown(), ..self.link.status() }
    }
}

struct NvmeSession {
    session: Arc<RemoteSession>,
    link: Arc<PeerLink>,
}

impl NvmeSession {
    fn send(
        &self,
        class: TrafficClass,
        offset: u64,
        data: Buf,
        fua: bool,
        order: Option<WriteOrder>,
    ) -> IoFuture<()> {
        let parameters = WriteParameters { fua, order: order.map(convert::order_to_wire), class };
        self.link.delayed(link::send(&self.link, &self.session, offset, data, parameters))
    }
}

impl PeerSession for NvmeSession {
    fn ask(&self, request: PeerRequest) -> IoFuture<PeerAnswer> {
        let Some(request) = convert::to_wire(&request) else {
            return IoFuture::ready(Ok(Err(PeerRefusal::Range)));
        };
        let command = request.command(0, self.session.nsid());
        let data = match (request.data(), request.reply_bytes()) {
            ([], 0) => CommandData::None,
            ([], bytes) => CommandData::In(buf::alloc_small(bytes)),
            (sent, _) => {
                let mut data = buf::alloc_small(sent.len());
                data.copy_from_slice(sent);
                CommandData::Out(data.freeze())
            }
        };
        let (answer, session) = (self.session.admin(command, data), self.session.clone());
        let (link, block_bytes) = (self.link.clone(), self.session.geometry().block_bytes);
        self.link.delayed(IoFuture::later(async move {
            let answer = answer.await?;
            if answer.status.is_success() {
                let data = answer.data.as_deref().unwrap_or_default();
                if let Some(reply) = convert::reply(&request, data) {
                    if let Some(codecs) = convert::codecs(&reply, data) {
                        link.learn(codecs);
                    }
                    return Ok(Ok(convert::with_blocks(reply, block_bytes)));
                }
            } else if let Some(refusal) = convert::refusal(answer.status, answer.result) {
                return Ok(Err(refusal));
            }
            // The other side is not a replica that this release understands.
            tracing::warn!("unexpected answer from the peer to {request:?}: {}", answer.status);
            session.close();
            Err(IoError::Unreachable)
        }))
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.link.delayed(self.session.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool, order: Option<WriteOrder>) -> IoFuture<()> {
        self.send(TrafficClass::Hosts, offset, data, fua, order)
    }

    fn copy(&self, offset: u64, data: Buf) -> IoFuture<()> {
        self.send(TrafficClass::Resync, offset, data, false, None)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        order: Option<WriteOrder>,
    ) -> IoFuture<()> {
        self.link.delayed(match order {
            None => self.session.write_zeroes(offset, len, flags),
            Some(order) => {
                self.session.write_zeroes_ordered(offset, len, flags, convert::order_to_wire(order))
            }
        })
    }

    fn transfer_bytes(&self) -> u64 {
        self.link.part_bytes(self.session.transfer_bytes().into())
    }

    fn flush(&self) -> IoFuture<()> {
        self.link.delayed(self.session.flush())
    }

    fn lost(&self) -> IoFuture<()> {
        self.session.lost()
    }

    fn close(&self) {
        self.session.close();
        self.link.session_ended();
    }
}
