//! Arbiter of the daemon: the thread `flagstone-arbiter`, which asks the store of the
//! configuration.
//!
//! Mirrors run on the executors; the store's client runs on tokio, on one thread of its own. Calls
//! go through a bounded queue. A call that finds it full, or takes longer than [`CALL_MS`], has no
//! answer, and the mirror asks again.

mod bucket;
mod etcd;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_arbiter::limits::CALL_MS;
use flagstone_arbiter::{
    Arbiter, ArbiterFuture, NoAnswer, ReplicaId, SharedArbiter, StoreId, Stored, Written,
};
use flagstone_config::{ArbiterStore, BucketStore, EtcdStore};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use crate::arbiter::bucket::Bucket;
use crate::arbiter::etcd::Etcd;

/// Calls that wait for the thread. A mirror has one call in flight at a time.
const QUEUED_CALLS: usize = 256;

type StoreAnswer<T> = oneshot::Sender<Result<T, NoAnswer>>;

enum Call {
    Read(ReplicaId, StoreAnswer<Option<Stored>>),
    Write(ReplicaId, Option<Stored>, Vec<u8>, StoreAnswer<Written>),
    ProbeWrite(ReplicaId, Vec<u8>, StoreAnswer<()>),
}

/// Handle of the thread, which ends when the last one is dropped.
struct ArbiterThread {
    calls: mpsc::Sender<Call>,
    store: StoreId,
}

/// A client of the store.
enum Client {
    Etcd(Etcd),
    Bucket(Bucket),
}

/// Starts the thread.
///
/// # Errors
/// The system's, or why a file with credentials cannot be used.
pub(crate) fn start(store: &ArbiterStore) -> io::Result<SharedArbiter> {
    let client = match store {
        ArbiterStore::Etcd(store) => Client::Etcd(Etcd::new(store)?),
        ArbiterStore::Bucket(store) => Client::Bucket(Bucket::new(store)?),
    };
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let (calls, mut received) = mpsc::channel(QUEUED_CALLS);
    std::thread::Builder::new().name("flagstone-arbiter".to_owned()).spawn(move || {
        let (tasks, client) = (LocalSet::new(), Rc::new(client));
        tasks.block_on(&runtime, async {
            let prepared = client.clone();
            spawn_local(async move { prepared.prepare().await });
            while let Some(call) = received.recv().await {
                spawn_local(answer(client.clone(), call));
            }
        });
    })?;
    Ok(Arc::new(ArbiterThread { calls, store: store_id(store) }))
}

/// Neither credentials nor the order of an etcd's members name a store.
fn store_id(store: &ArbiterStore) -> StoreId {
    let name = match store {
        ArbiterStore::Etcd(EtcdStore { etcd, prefix, .. }) => {
            let mut members: Vec<String> = etcd.iter().map(ToString::to_string).collect();
            members.sort_unstable();
            format!("etcd {} {prefix}", members.join(","))
        }
        ArbiterStore::Bucket(BucketStore { object_store, region, account, endpoint, .. }) => {
            let endpoint = endpoint.as_deref().unwrap_or_default();
            format!("bucket {object_store} {region} {account} {endpoint}")
        }
    };
    StoreId::of(&name)
}

async fn answer(client: Rc<Client>, call: Call) {
    // The caller may have given up.
    match call {
        Call::Read(volume, answer) => drop(answer.send(bounded(client.read(volume)).await)),
        Call::Write(volume, expected, bytes, answer) => {
            let written = bounded(client.write(volume, expected, bytes)).await;
            drop(answer.send(written));
        }
        Call::ProbeWrite(volume, bytes, answer) => {
            drop(answer.send(bounded(client.probe_write(volume, bytes)).await));
        }
    }
}

impl Client {
    /// Finds out whether the store can be used, before it is needed.
    async fn prepare(&self) {
        match self {
            Client::Etcd(_) => {}
            Client::Bucket(bucket) => bucket.prove().await,
        }
    }

    async fn read(&self, volume: ReplicaId) -> Result<Option<Stored>, NoAnswer> {
        match self {
            Client::Etcd(etcd) => etcd.read(volume).await,
            Client::Bucket(bucket) => bucket.read(volume).await,
        }
    }

    async fn write(
        &self,
        volume: ReplicaId,
        expected: Option<Stored>,
        bytes: Vec<u8>,
    ) -> Result<Written, NoAnswer> {
        match self {
            Client::Etcd(etcd) => etcd.write(volume, expected, bytes).await,
            Client::Bucket(bucket) => bucket.write(volume, expected, bytes).await,
        }
    }

    async fn probe_write(&self, volume: ReplicaId, bytes: Vec<u8>) -> Result<(), NoAnswer> {
        match self {
            Client::Etcd(etcd) => etcd.probe_write(volume, &bytes).await,
            Client::Bucket(bucket) => bucket.probe_write(volume, bytes).await,
        }
    }
}

async fn bounded<T>(call: impl Future<Output = Result<T, NoAnswer>>) -> Result<T, NoAnswer> {
    let limit = Duration::from_millis(CALL_MS);
    let ended = timeout(limit, call).await;
    ended.unwrap_or_else(|_| Err(NoAnswer(format!("no answer within {CALL_MS} ms"))))
}

impl ArbiterThread {
    fn call<T: 'static>(&self, call: impl FnOnce(StoreAnswer<T>) -> Call) -> ArbiterFuture<T> {
        let (answer, answered) = oneshot::channel();
        let sent = self.calls.try_send(call(answer));
        Box::pin(async move {
            sent.map_err(|_| NoAnswer("too many calls wait for the arbiter".to_owned()))?;
            answered
                .await
                .unwrap_or_else(|_| Err(NoAnswer("the arbiter's thread ended".to_owned())))
        })
    }
}

impl Arbiter for ArbiterThread {
    fn store(&self) -> StoreId {
        self.store
    }

    fn read(&self, volume: ReplicaId) -> ArbiterFuture<Option<Stored>> {
        self.call(|answer| Call::Read(volume, answer))
    }

    fn write(
        &self,
        volume: ReplicaId,
        expected: Option<Stored>,
        bytes: Vec<u8>,
    ) -> ArbiterFuture<Written> {
        self.call(|answer| Call::Write(volume, expected, bytes, answer))
    }

    fn probe_write(&self, volume: ReplicaId, bytes: Vec<u8>) -> ArbiterFuture<()> {
        self.call(|answer| Call::ProbeWrite(volume, bytes, answer))
    }
}

#[cfg(test)]
mod tests {
    use flagstone_config::uri::{HostPort, UriHost};
    use flagstone_config::{BucketUrl, Cloud};

    use super::*;

    fn etcd(members: &[&str], prefix: &str, user: Option<&str>) -> StoreId {
        let member = |name: &&str| HostPort { host: UriHost::Name((*name).to_owned()), port: 2379 };
        store_id(&ArbiterStore::Etcd(EtcdStore {
            etcd: members.iter().map(member).collect(),
            tls: None,
            prefix: prefix.to_owned(),
            user: user.map(|name| (name.to_owned(), "/a/file".into())),
        }))
    }

    fn bucket(cloud: Cloud, endpoint: &str) -> StoreId {
        store_id(&ArbiterStore::Bucket(BucketStore {
            object_store: BucketUrl { cloud, bucket: "one".into(), prefix: "prefix".into() },
            region: "us-east-1".into(),
            account: String::new(),
            endpoint: Some(endpoint.to_owned()),
            ca_file: None,
            credentials_file: None,
        }))
    }

    #[test]
    fn store_is_named_by_its_place_alone() {
        let one = etcd(&["a", "b"], "prefix", None);
        assert_eq!(one, etcd(&["b", "a"], "prefix", Some("user")));
        assert_ne!(one, etcd(&["a", "c"], "prefix", None));
        assert_ne!(one, etcd(&["a", "b"], "other", None));
        assert_eq!(bucket(Cloud::S3, "http://a"), bucket(Cloud::S3, "http://a"));
        assert_ne!(bucket(Cloud::S3, "http://a"), bucket(Cloud::S3, "http://b"));
        assert_ne!(bucket(Cloud::S3, "http://a"), bucket(Cloud::Google, "http://a"));
    }
}
