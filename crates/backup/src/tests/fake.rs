//! Volumes with snapshots, and a store in memory with faults.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use flagstone_pool::PoolId;
use flagstone_pool::stream::frame::{FrameBody, StreamFrame, StreamStart};
use flagstone_runtime::rng::Rng;
use futures_util::FutureExt as _;
use futures_util::stream::{BoxStream, StreamExt as _, TryStreamExt as _};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

use crate::Repository;
use crate::SnapshotSource;
use crate::document::{DataObject, Head, SnapshotIdentity};
use crate::limits::BLOCK_BYTES;
use crate::repository::{entry_name, index_name, manifest_name, pack_name};

const BLOCK: usize = BLOCK_BYTES as usize;

/// Runs a test's tasks.
pub(super) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(test)
}

type Blocks = BTreeMap<u64, Vec<u8>>;

/// Source of a stream, as a pool forms it.
fn source(number: usize, base: Option<usize>) -> u64 {
    let id = |number: usize| number as u64 + 1;
    (0x5eed ^ base.map_or(0, id)) | id(number) << 32
}

/// A volume and its snapshots. Blocks are in few places, some before and after the border of a
/// range.
pub(super) struct History {
    rng: Rng,
    border: u64,
    blocks: Blocks,
    snapshots: Vec<(SnapshotIdentity, Blocks)>,
    forgotten: Vec<usize>,
}

impl History {
    /// A volume that ends soon after `border` bytes.
    pub(super) fn new(seed: u64, border: u64) -> History {
        let (blocks, snapshots, forgotten) = (Blocks::new(), Vec::new(), Vec::new());
        History { rng: Rng::new(seed), border, blocks, snapshots, forgotten }
    }

    fn noise(&mut self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK);
        while block.len() < BLOCK {
            block.extend_from_slice(&self.rng.next_u64().to_le_bytes());
        }
        block
    }

    /// Changes runs of blocks, then takes a snapshot.
    pub(super) fn snapshot(&mut self, changes: usize) -> usize {
        let around = self.border / BLOCK_BYTES;
        for _ in 0..changes {
            let base = if self.rng.below(2) == 0 { 0 } else { around.saturating_sub(150) };
            let first = base + self.rng.below(270);
            let kind = self.rng.below(4);
            for block in first..first + 1 + self.rng.below(30) {
                let fill = self.rng.next_u64() as u8;
                let content = match kind {
                    0 => vec![0; BLOCK],
                    1 => vec![fill; BLOCK],
                    _ => self.noise(),
                };
                match kind == 0 && fill.is_multiple_of(2) {
                    true => drop(self.blocks.remove(&block)),
                    false => drop(self.blocks.insert(block, content)),
                }
            }
        }
        let number = self.snapshots.len();
        // The volume grows.
        let size_bytes = self.border + (320 + number as u64) * BLOCK_BYTES;
        let identity = SnapshotIdentity {
            volume: "db".to_owned(),
            volume_id: PoolId([0xdb; 16]).to_string(),
            pool_id: PoolId([0x9d; 16]).to_string(),
            encrypted: false,
            snapshot: format!("s{number}"),
            snapshot_id: PoolId([number as u8 + 1; 16]).to_string(),
            source: source(number, None),
            size_bytes,
            created_seconds: 100 + number as u64,
        };
        self.snapshots.push((identity, self.blocks.clone()));
        number
    }

    /// Fills the last block of the next snapshot: earlier ones end before it.
    pub(super) fn fill_last_block(&mut self) {
        let last = self.border / BLOCK_BYTES + 320 + self.snapshots.len() as u64 - 1;
        let content = self.noise();
        self.blocks.insert(last, content);
    }

    /// Deletes a snapshot from the pool.
    pub(super) fn forget(&mut self, number: usize) {
        self.forgotten.push(number);
    }

    pub(super) fn identity(&self, number: usize) -> SnapshotIdentity {
        self.snapshots[number].0.clone()
    }

    pub(super) fn number_of(&self, snapshot: &SnapshotIdentity) -> usize {
        let found = self.snapshots.iter().position(|(own, _)| own.is_same(snapshot));
        found.expect("a snapshot of this history")
    }

    pub(super) fn has(&self, snapshot: &SnapshotIdentity) -> bool {
        !self.forgotten.contains(&self.number_of(snapshot))
    }

    pub(super) fn content(&self, snapshot: &SnapshotIdentity) -> Vec<u8> {
        let mut volume = vec![0; snapshot.size_bytes as usize];
        for (block, content) in &self.snapshots[self.number_of(snapshot)].1 {
            let at = *block as usize * BLOCK;
            volume[at..at + BLOCK].copy_from_slice(content);
        }
        volume
    }
}

/// Stream of a snapshot, in short parts.
pub(super) struct Stream<'a> {
    pub(super) history: &'a History,
    pub(super) number: usize,
    pub(super) since: Option<usize>,
}

impl Stream<'_> {
    /// Kind of a block: 2 data, 3 zero, 4 the same.
    fn kind(&self, block: u64) -> u8 {
        let content = self.history.snapshots[self.number].1.get(&block);
        match self.since.map(|since| self.history.snapshots[since].1.get(&block)) {
            Some(before) if before == content => 4,
            _ => {
                if content.is_some() {
                    2
                } else {
                    3
                }
            }
        }
    }
}

impl SnapshotSource for Stream<'_> {
    async fn part(&mut self, offset: u64) -> std::result::Result<Vec<u8>, String> {
        let (identity, blocks) = &self.history.snapshots[self.number];
        let (snapshot, source) = (identity.uuid(), source(self.number, self.since));
        let mut out = Vec::new();
        let mut frame = |offset, body: FrameBody<'_>| {
            StreamFrame { snapshot, source, offset, body }.encode(&mut out);
        };
        if offset == 0 {
            frame(
                0,
                FrameBody::Begin(StreamStart {
                    name: identity.snapshot.clone(),
                    base: self.since.map(|since| self.history.snapshots[since].0.uuid()),
                    size_bytes: identity.size_bytes,
                    created_s: identity.created_seconds,
                }),
            );
        }
        // Long runs without blocks are one frame.
        let end = identity.size_bytes / BLOCK_BYTES;
        let mut at = offset / BLOCK_BYTES;
        for _ in 0..40 {
            if at == end {
                frame(identity.size_bytes, FrameBody::End);
                break;
            }
            let kind = self.kind(at);
            let mut until = at + 1;
            let all = [Some(blocks), self.since.map(|since| &self.history.snapshots[since].1)];
            while until < end && until - at < 90 && self.kind(until) == kind {
                until += 1;
            }
            if kind != 2 && until - at == 90 {
                let next = all
                    .into_iter()
                    .flatten()
                    .filter_map(|blocks| blocks.range(until..).next().map(|(block, _)| *block));
                let is_nowhere =
                    |block| all.iter().flatten().all(|blocks| !blocks.contains_key(&block));
                if (at..until).all(is_nowhere) && is_nowhere(until) {
                    until = next.min().unwrap_or(end).min(end);
                }
            }
            let offset = at * BLOCK_BYTES;
            match kind {
                2 => {
                    let data: Vec<u8> =
                        (at..until).flat_map(|block| blocks[&block].clone()).collect();
                    frame(offset, FrameBody::Data(&data));
                }
                3 => frame(offset, FrameBody::Zero((until - at) * BLOCK_BYTES)),
                _ => frame(offset, FrameBody::Same((until - at) * BLOCK_BYTES)),
            }
            at = until;
        }
        Ok(out)
    }
}

/// Fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Not carried out, and neither are later ones: the connection is gone.
    Before,
    /// Carried out, and not answered.
    After,
    /// Refused, which ends the command.
    Denied,
    /// Not carried out once, as with status 429 or 503.
    Once,
    /// Carried out, with half of the content that was read.
    Torn,
    /// Carried out, with another byte in the content that was read.
    Wrong,
}

/// Store in memory with faults. Clones share it.
#[derive(Debug)]
pub(super) struct FaultyStore {
    inner: InMemory,
    /// Requests before the fault.
    left: AtomicI64,
    fault: Mutex<Option<Fault>>,
    hit: AtomicBool,
    /// Requests before the pause.
    until_pause: AtomicI64,
    is_paused: AtomicBool,
    resumed: tokio::sync::Notify,
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store with faults")
    }
}

fn gone() -> Error {
    Error::Generic { store: "test", source: "connection reset".into() }
}

impl FaultyStore {
    pub(super) fn new() -> FaultyStore {
        FaultyStore {
            inner: InMemory::new(),
            left: AtomicI64::new(0),
            fault: Mutex::new(None),
            hit: AtomicBool::new(false),
            until_pause: AtomicI64::new(i64::MAX),
            is_paused: AtomicBool::new(false),
            resumed: tokio::sync::Notify::new(),
        }
    }

    /// A store with the same content, without faults.
    pub(super) fn fork(&self) -> FaultyStore {
        FaultyStore { inner: self.inner.fork(), ..FaultyStore::new() }
    }

    /// Lets the request after `requests` others fail.
    pub(super) fn fail(&self, requests: i64, fault: Fault) {
        self.left.store(requests, Relaxed);
        *self.fault.lock().unwrap() = Some(fault);
    }

    /// Ends all faults. True if one occurred.
    pub(super) fn heal(&self) -> bool {
        *self.fault.lock().unwrap() = None;
        self.hit.swap(false, Relaxed)
    }

    /// Requests that were left before the fault: negative if it was reached.
    pub(super) fn remaining(&self) -> i64 {
        self.left.load(Relaxed)
    }

    pub(super) fn pause(&self, requests: i64) {
        self.until_pause.store(requests, Relaxed);
    }

    pub(super) fn resume(&self) {
        self.is_paused.store(false, Relaxed);
        self.resumed.notify_waiters();
    }

    /// Polls `command` until the store pauses. True if it ended before.
    pub(super) async fn until_paused<T>(
        &self,
        command: &mut (impl Future<Output = T> + Unpin),
    ) -> bool {
        let result = std::future::poll_fn(|context| {
            let poll = std::pin::Pin::new(&mut *command).poll(context).is_ready();
            match poll || self.is_paused.load(Relaxed) {
                true => std::task::Poll::Ready(poll),
                false => std::task::Poll::Pending,
            }
        });
        let finished = result.await;
        self.until_pause.store(i64::MAX, Relaxed);
        finished
    }

    async fn request<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        if self.until_pause.fetch_sub(1, Relaxed) == 0 {
            let resumed = self.resumed.notified();
            self.is_paused.store(true, Relaxed);
            resumed.await;
        }
        let fault = *self.fault.lock().unwrap();
        let Some(fault) = fault else { return request.await };
        let left = self.left.fetch_sub(1, Relaxed);
        match fault {
            Fault::Before if left <= 0 => {
                self.hit.store(true, Relaxed);
                Err(gone())
            }
            Fault::Denied if left <= 0 => {
                self.hit.store(true, Relaxed);
                let source = "no permission".into();
                Err(Error::PermissionDenied { path: String::new(), source })
            }
            Fault::After if left == 0 => {
                self.hit.store(true, Relaxed);
                request.await.and(Err(gone()))
            }
            Fault::Once if left == 0 => {
                self.hit.store(true, Relaxed);
                Err(gone())
            }
            _ => request.await,
        }
    }

    /// Content that was read, as a fault leaves it. The request was counted.
    async fn content_read(&self, found: GetResult) -> Result<GetResult> {
        let fault = *self.fault.lock().unwrap();
        let is_now = self.left.load(Relaxed) == -1;
        let Some(fault) = fault.filter(|_| is_now) else { return Ok(found) };
        if !matches!(fault, Fault::Torn | Fault::Wrong) {
            return Ok(found);
        }
        self.hit.store(true, Relaxed);
        let (meta, range) = (found.meta.clone(), found.range.clone());
        let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
        let mut bytes = found.bytes().await?.to_vec();
        match fault {
            Fault::Torn => bytes.truncate(bytes.len() / 2),
            _ => {
                let at = bytes.len() / 3;
                bytes[at..].iter_mut().take(1).for_each(|byte| *byte ^= 1);
            }
        }
        let content = futures_util::stream::iter([Ok(bytes.into())]).boxed();
        let payload = GetResultPayload::Stream(content);
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    pub(super) async fn names(&self) -> Vec<String> {
        let listed = self.inner.list(None).map_ok(|meta| meta.location.to_string());
        listed.try_collect().await.expect("it is listed")
    }

    pub(super) async fn content(&self, name: &str) -> Vec<u8> {
        let found = self.inner.get(&Path::from(name)).await.expect("it exists");
        found.bytes().await.expect("it is read").to_vec()
    }

    pub(super) async fn replace(&self, name: &str, content: Option<Vec<u8>>) {
        match content {
            None => self.inner.delete(&Path::from(name)).await.expect("it exists"),
            Some(content) => {
                drop(
                    self.inner.put(&Path::from(name), content.into()).await.expect("it is stored"),
                );
            }
        }
    }

    /// Checks that the backups of the head need all objects.
    pub(super) async fn assert_no_orphans(&self, repository: &Repository, head: &Head) {
        let mut needed = vec!["head.json".to_owned(), "probe".to_owned()];
        needed.extend(head.backups.iter().map(|entry| entry_name(entry.id)));
        let records = repository.key_records().await.expect("they are listed");
        assert_eq!(records.len(), usize::from(head.encryption.is_some()), "records of keys");
        needed.extend(records.into_iter().map(|(name, _)| name));
        for entry in head.needed() {
            needed.push(manifest_name(entry.id));
            for (writer, object, _) in repository.manifest(entry).await.unwrap().objects() {
                needed.push(match object {
                    DataObject::Index(range) => index_name(writer, range),
                    DataObject::Pack(number) => pack_name(writer, number),
                });
            }
        }
        for name in self.names().await {
            let name = name.strip_prefix("zone/db/").expect("below the prefix").to_owned();
            assert!(needed.contains(&name), "{name} is an orphan");
        }
    }
}

mod object_store_impl {
    use super::*;
    use std::pin::Pin;

    type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

    impl ObjectStore for FaultyStore {
        fn put_opts<'life0, 'life1, 'future>(
            &'life0 self,
            location: &'life1 Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Answer<'future, PutResult>
        where
            'life0: 'future,
            'life1: 'future,
            Self: 'future,
        {
            Box::pin(self.request(self.inner.put_opts(location, payload, options)))
        }

        fn put_multipart_opts<'life0, 'life1, 'future>(
            &'life0 self,
            location: &'life1 Path,
            options: PutMultipartOptions,
        ) -> Answer<'future, Box<dyn MultipartUpload>>
        where
            'life0: 'future,
            'life1: 'future,
            Self: 'future,
        {
            Box::pin(self.request(self.inner.put_multipart_opts(location, options)))
        }

        fn get_opts<'life0, 'life1, 'future>(
            &'life0 self,
            location: &'life1 Path,
            options: GetOptions,
        ) -> Answer<'future, GetResult>
        where
            'life0: 'future,
            'life1: 'future,
            Self: 'future,
        {
            Box::pin(async move {
                let found = self.request(self.inner.get_opts(location, options)).await?;
                self.content_read(found).await
            })
        }

        fn delete_stream(
            &self,
            locations: BoxStream<'static, Result<Path>>,
        ) -> BoxStream<'static, Result<Path>> {
            let (hit, refused) = match self.request_sync() {
                Ok(after) => (after, None),
                Err(error) => (false, Some(error)),
            };
            match refused {
                Some(error) => {
                    let mut error = Some(error);
                    futures_util::stream::poll_fn(move |_| {
                        std::task::Poll::Ready(error.take().map(Err))
                    })
                    .boxed()
                }
                None => {
                    let deleted = self.inner.delete_stream(locations);
                    deleted.map(move |done| if hit { Err(gone()) } else { done }).boxed()
                }
            }
        }

        fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
            match self.request_sync() {
                Ok(false) => {
                    // In the reverse order.
                    let listing = self.inner.list(prefix).collect::<Vec<_>>();
                    let listing =
                        listing.map(|all| futures_util::stream::iter(all.into_iter().rev()));
                    futures_util::stream::once(listing).flatten().boxed()
                }
                Ok(true) => futures_util::stream::iter([Err(gone())]).boxed(),
                Err(error) => futures_util::stream::iter([Err(error)]).boxed(),
            }
        }

        fn list_with_delimiter<'life0, 'life1, 'future>(
            &'life0 self,
            prefix: Option<&'life1 Path>,
        ) -> Answer<'future, ListResult>
        where
            'life0: 'future,
            'life1: 'future,
            Self: 'future,
        {
            Box::pin(self.request(self.inner.list_with_delimiter(prefix)))
        }

        fn copy_opts<'life0, 'life1, 'life2, 'future>(
            &'life0 self,
            from: &'life1 Path,
            to: &'life2 Path,
            options: CopyOptions,
        ) -> Answer<'future, ()>
        where
            'life0: 'future,
            'life1: 'future,
            'life2: 'future,
            Self: 'future,
        {
            Box::pin(self.request(self.inner.copy_opts(from, to, options)))
        }
    }
}

impl FaultyStore {
    /// As `request`, for streams. True if the answer is lost.
    fn request_sync(&self) -> Result<bool> {
        let fault = *self.fault.lock().unwrap();
        let Some(fault) = fault else { return Ok(false) };
        let left = self.left.fetch_sub(1, Relaxed);
        match fault {
            Fault::Before if left <= 0 => {
                self.hit.store(true, Relaxed);
                Err(gone())
            }
            Fault::Denied if left <= 0 => {
                self.hit.store(true, Relaxed);
                let source = "no permission".into();
                Err(Error::PermissionDenied { path: String::new(), source })
            }
            Fault::After if left == 0 => {
                self.hit.store(true, Relaxed);
                Ok(true)
            }
            Fault::Once if left == 0 => {
                self.hit.store(true, Relaxed);
                Err(gone())
            }
            _ => Ok(false),
        }
    }
}
