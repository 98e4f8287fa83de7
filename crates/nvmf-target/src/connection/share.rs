//! Share of the buffer memory: what this connection's data in flight may take.
//!
//! Counted are the payload of commands in flight and everything that is not sent. A connection asks
//! for more than it has only while its host reads and sends: while at most half of what it holds
//! waits for the host, or while some of that has just been sent. So what a stalled host can take is
//! bounded, and [`flagstone_runtime::buf::Share::attend`] takes it back when others wait.
//!
//! A read that does not fit is executed in parts, each with a C2HData PDU of its own, so that a
//! large read needs only a small share. Connections of mirror links are exempt, because other nodes
//! wait for them: they have reserved memory.

use std::rc::Rc;

use flagstone_runtime::BufMut;
use flagstone_runtime::buf::{self, PeerProgress, ShareReport};
use flagstone_runtime::limits::BUF_MIN_BYTES;

use super::Connection;

impl Connection {
    /// Bytes that count against the share.
    #[inline]
    pub(super) fn held(&self) -> usize {
        self.payload_bytes.get() + self.tx.queued_bytes()
    }

    /// True if `bytes` more are within the share. If false, `room` is notified when they may be.
    #[inline]
    pub(super) fn fits(&self, bytes: usize) -> bool {
        self.held() + bytes <= self.share.granted() || self.grow(bytes)
    }

    /// True if the data of a reply, `bytes`, is within the share, or is refused for its length.
    /// Otherwise the command fails with a status that lets the host repeat it: many hosts that ask
    /// and do not read would take the memory of others.
    pub(crate) fn admits_reply(&self, bytes: u64) -> bool {
        let is_large = bytes > BUF_MIN_BYTES as u64;
        if !is_large || bytes > u64::from(self.target.config().mdts_bytes) {
            return true;
        }
        let admitted = self.fits(bytes as usize);
        if !admitted {
            self.settled();
        }
        admitted
    }

    /// A buffer for an in-flight read that is counted already, if it is within the share.
    #[inline]
    pub(crate) fn try_place(&self, len: usize) -> Option<BufMut> {
        if self.fits(0) { buf::try_alloc(len) } else { None }
    }

    #[cold]
    fn grow(&self, bytes: usize) -> bool {
        // A connection that ends needs no memory of others for long.
        if self.is_link() || self.tx.is_closed() {
            return true;
        }
        let sent = self.tx.sent_bytes();
        let progress = sent - self.drained.replace(sent);
        self.share.moved(progress);
        let held = self.held();
        let owed = self.tx.queued_bytes() + self.transfer_bytes.get();
        if progress == 0 && 2 * owed > held {
            self.share.withdraw();
            return false;
        }
        self.share.admits(held + bytes)
    }

    /// Length of the next part of a read of which `left` bytes are missing, in whole blocks of
    /// `block` bytes; `None` if no part is within the share.
    pub(super) fn readable_part(&self, left: usize, block: usize) -> Option<usize> {
        if self.fits(left) {
            return Some(left);
        }
        let room = self.share.granted().saturating_sub(self.held());
        let room = room - room % block;
        let least = left.min(block.max(self.share.guaranteed() / 2));
        // Any part fits an idle connection.
        (room >= least || self.held() == 0).then(|| room.max(block).min(left))
    }

    /// Nothing waits for memory any more.
    pub(super) fn settled(&self) {
        if self.waiting.borrow().is_empty() {
            self.share.withdraw();
        } else {
            self.room.notify();
        }
    }

    /// Serves the share until the connection ends, and ends it if its host stalls while others
    /// wait.
    pub(super) async fn attend_share(self: Rc<Self>) {
        let report = || {
            let mark = self.tx.sent_bytes().wrapping_add(self.receives.get());
            let peer = PeerProgress { mark, is_awaited: self.peer_owes() };
            ShareReport { held: self.held(), peer }
        };
        self.share.attend(report, || self.room.notify()).await;
        let peer = self.stream.peer();
        tracing::warn!(%peer, "closing: the host makes no progress while others wait for memory");
        self.tx.close();
        // Discard the kernel's unsent data too.
        self.stream.abort();
    }
}
