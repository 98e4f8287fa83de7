//! Address of a peer: fixed, or the current address of a name.
//!
//! A name is resolved for each connection. A peer whose name cannot be resolved counts as
//! unreachable, because name servers may start later than this node. A changed address takes effect
//! at the next connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flagstone_runtime::net::{self, Address};

type Lookup = dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<Vec<Address>>>>> + Send + Sync;

/// Address of a peer. Clones share the state of the lookup.
#[derive(Clone)]
pub struct PeerAddress(AddressKind);

#[derive(Clone)]
enum AddressKind {
    Fixed(Address),
    Named(Arc<Named>),
}

struct Named {
    name: String,
    lookup: Box<Lookup>,
    is_unknown: AtomicBool,
}

impl From<Address> for PeerAddress {
    fn from(address: Address) -> PeerAddress {
        PeerAddress(AddressKind::Fixed(address))
    }
}

impl std::fmt::Debug for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            AddressKind::Fixed(address) => write!(f, "{address:?}"),
            AddressKind::Named(named) => f.write_str(&named.name),
        }
    }
}

impl PeerAddress {
    /// The first address of a host name, with this port.
    pub fn named(name: &str, port: u16) -> PeerAddress {
        let host = name.to_owned();
        PeerAddress::resolved_by(name, move || {
            let host = host.clone();
            Box::pin(async move { net::lookup(&host, port).await })
        })
    }

    /// The first address that `lookup` returns for a name.
    pub fn resolved_by(
        name: &str,
        lookup: impl Fn() -> Pin<Box<dyn Future<Output = io::Result<Vec<Address>>>>>
        + Send
        + Sync
        + 'static,
    ) -> PeerAddress {
        let (name, lookup) = (name.to_owned(), Box::new(lookup));
        PeerAddress(AddressKind::Named(Arc::new(Named {
            name,
            lookup,
            is_unknown: AtomicBool::new(false),
        })))
    }

    /// The current address; `None` if the name has none. Logs each change between the two.
    pub(crate) async fn find(&self) -> Option<Address> {
        let named = match &self.0 {
            AddressKind::Fixed(address) => return Some(address.clone()),
            AddressKind::Named(named) => named,
        };
        let found = (named.lookup)().await;
        let why = match found {
            Ok(addresses) => match addresses.into_iter().next() {
                Some(address) => {
                    if named.is_unknown.swap(false, Ordering::Relaxed) {
                        tracing::info!("resolved `{}`: {address}", named.name);
                    }
                    return Some(address);
                }
                None => "the name has no address".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        if !named.is_unknown.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "cannot resolve `{}` ({why}), will keep trying: check the name and the name server",
                named.name
            );
        }
        None
    }

    /// The last lookup found no address.
    pub(crate) fn is_unknown(&self) -> bool {
        match &self.0 {
            AddressKind::Fixed(_) => false,
            AddressKind::Named(named) => named.is_unknown.load(Ordering::Relaxed),
        }
    }
}
