//! TLS of the client, with keys that may be replaced.

use std::sync::Arc;

use flagstone_runtime::tls::TlsClient;
use parking_lot::RwLock;

/// TLS of remote exports. Clones share the keys, which may be replaced for later connections.
#[derive(Clone, Debug)]
pub struct NbdTlsClient(Arc<RwLock<TlsClient>>);

impl NbdTlsClient {
    /// TLS with the keys of `client`.
    pub fn new(client: TlsClient) -> NbdTlsClient {
        NbdTlsClient(Arc::new(RwLock::new(client)))
    }

    /// Replaces the keys for connections that are made later.
    pub fn replace(&self, client: TlsClient) {
        *self.0.write() = client;
    }

    /// The keys of a connection that is made now.
    pub(crate) fn current(&self) -> TlsClient {
        self.0.read().clone()
    }
}
