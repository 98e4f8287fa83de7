//! Where a peer is: at an address, or at the one that its name has at the moment.
//!
//! A name is looked up for each connection. One that nobody knows is a peer that cannot be reached, for
//! name servers come up no sooner than others; and one whose address has changed is found there.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flagstone_runtime::net::{self, Address};

/// Asks for the addresses of a name.
type Lookup = dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<Vec<Address>>>>> + Send + Sync;

/// See the module. Clones are the same place.
#[derive(Clone)]
pub struct Place(Which);

#[derive(Clone)]
enum Which {
    At(Address),
    Named(Arc<Named>),
}

struct Named {
    name: String,
    lookup: Box<Lookup>,
    is_unknown: AtomicBool,
}

impl From<Address> for Place {
    fn from(address: Address) -> Place {
        Place(Which::At(address))
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Which::At(address) => write!(f, "{address:?}"),
            Which::Named(named) => f.write_str(&named.name),
        }
    }
}

impl Place {
    /// At the first address of a host's name, and this port.
    pub fn named(name: &str, port: u16) -> Place {
        let host = name.to_owned();
        Place::found_by(name, move || {
            let host = host.clone();
            Box::pin(async move { net::lookup(&host, port).await })
        })
    }

    /// At the first address that `lookup` gives for a name.
    pub fn found_by(
        name: &str,
        lookup: impl Fn() -> Pin<Box<dyn Future<Output = io::Result<Vec<Address>>>>>
        + Send
        + Sync
        + 'static,
    ) -> Place {
        let (name, lookup) = (name.to_owned(), Box::new(lookup));
        Place(Which::Named(Arc::new(Named { name, lookup, is_unknown: AtomicBool::new(false) })))
    }

    /// The address now; none while the name has none. The log is told of each change of that.
    pub(crate) async fn find(&self) -> Option<Address> {
        let named = match &self.0 {
            Which::At(address) => return Some(address.clone()),
            Which::Named(named) => named,
        };
        let found = (named.lookup)().await;
        let why = match found {
            Ok(addresses) => match addresses.into_iter().next() {
                Some(address) => {
                    if named.is_unknown.swap(false, Ordering::Relaxed) {
                        tracing::info!("the address of `{}` is known now: {address}", named.name);
                    }
                    return Some(address);
                }
                None => "it has none".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        if !named.is_unknown.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the address of `{}` is not known ({why}): it is asked for again and again; is the \
                 name server up, and the name right?",
                named.name
            );
        }
        None
    }

    /// It was looked for last in vain.
    pub(crate) fn is_unknown(&self) -> bool {
        match &self.0 {
            Which::At(_) => false,
            Which::Named(named) => named.is_unknown.load(Ordering::Relaxed),
        }
    }
}
