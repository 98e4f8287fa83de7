//! Encrypted stream: the operations of a [`Stream`], with records in between.

use std::io;
use std::rc::Rc;

use super::handshake::PeerIdentity;
use super::kernel::KernelRecords;
use super::library::LibraryRecords;
use super::traffic::Suite;
use crate::buf::BufMut;
use crate::net::Stream;
use crate::vectored::{RecvList, SendList};

/// Encrypted connection. As a [`Stream`], it has one receiver and one sender at a time; it stays on
/// its core.
#[derive(Clone)]
pub struct TlsStream {
    stream: Stream,
    session: Rc<Session>,
}

struct Session {
    records: Records,
    suite: Suite,
    peer: PeerIdentity,
}

/// Records of an established connection.
pub(super) enum Records {
    Library(Box<LibraryRecords>),
    Kernel(KernelRecords),
}

/// Who encrypts and decrypts the records of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsRecordLayer {
    /// The TLS library, in user space.
    Library,
    /// The kernel: sends and receives are as on a plain socket.
    Kernel,
}

impl TlsStream {
    pub(super) fn new(
        stream: Stream,
        records: Records,
        suite: Suite,
        peer: PeerIdentity,
    ) -> TlsStream {
        TlsStream { stream, session: Rc::new(Session { records, suite, peer }) }
    }

    /// Sends a KeyUpdate before the next data.
    #[cfg(test)]
    pub(super) fn update_keys(&self) {
        match &self.session.records {
            Records::Library(library) => library.update_keys(),
            Records::Kernel(_) => panic!("the kernel's keys stay"),
        }
    }

    /// Identity that the peer has proven.
    pub fn peer_identity(&self) -> &PeerIdentity {
        &self.session.peer
    }

    /// The cipher suite, as RFC 8446 names it.
    pub fn suite(&self) -> &'static str {
        self.session.suite.name()
    }

    /// Who has the records.
    pub fn record_layer(&self) -> TlsRecordLayer {
        match &self.session.records {
            Records::Library(_) => TlsRecordLayer::Library,
            Records::Kernel(_) => TlsRecordLayer::Kernel,
        }
    }

    /// Socket below. Only its ends and its addresses are of use.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// As [`Stream::recv`].
    pub async fn recv(&self, place: BufMut) -> (io::Result<usize>, BufMut) {
        match &self.session.records {
            Records::Library(library) => library.recv(&self.stream, place).await,
            Records::Kernel(kernel) => kernel.recv(&self.stream, place).await,
        }
    }

    /// As [`Stream::recv_vectored`].
    pub async fn recv_vectored(&self, list: RecvList) -> (io::Result<usize>, RecvList) {
        match &self.session.records {
            Records::Library(library) => library.recv_vectored(&self.stream, list).await,
            Records::Kernel(kernel) => kernel.recv_vectored(&self.stream, list).await,
        }
    }

    /// As [`Stream::send`]: sends a part of the list, and removes it from the list.
    pub async fn send(&self, list: SendList) -> (io::Result<usize>, SendList) {
        match &self.session.records {
            Records::Library(library) => library.send(&self.stream, list).await,
            Records::Kernel(kernel) => kernel.send(&self.stream, list).await,
        }
    }

    /// Sends the closure alert, after which nothing is sent. A peer that gets it has received
    /// everything. Does nothing while a send is in flight, or after a failure. A peer that
    /// does not read for [`TLS_CLOSE_TIMEOUT`] gets no alert.
    ///
    /// # Errors
    /// Errors of the system.
    ///
    /// [`TLS_CLOSE_TIMEOUT`]: crate::limits::TLS_CLOSE_TIMEOUT
    pub async fn close(&self) -> io::Result<()> {
        match &self.session.records {
            Records::Library(library) => library.close(&self.stream).await,
            Records::Kernel(kernel) => kernel.close(&self.stream).await,
        }
    }
}
