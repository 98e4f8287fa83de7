//! Backup of a snapshot: from its stream to packs, indexes, a manifest, and the head.
//!
//! Steps, each durable before the next: the head lists the unfinished backup; packs of a range; the
//! index of the range; the manifest; a copy of the entry; the head lists the backup. A crash
//! between two steps leaves an unfinished backup. The same command then continues it as another
//! writer: it uses the ranges whose indexes are stored, and only the last writer of the list may
//! commit.

use std::collections::BTreeMap;
use std::future::Future;

use flagstone_pool::stream::frame::{FrameBody, StreamFrame};
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{self, FuturesUnordered, StreamExt as _};
use tokio::time::{Duration, Instant};

use crate::assemble::{RangeResult, Writers};
use crate::document::{BackupEntry, BackupSpace, FORMAT, Manifest, SnapshotIdentity};
use crate::error::BackupError;
use crate::head::HeadChange;
use crate::id::{Checksum, WriterId};
use crate::index::{Change, PieceRef, encode, merge};
use crate::limits::{
    BLOCK_BYTES, DOWNLOADS_MAX, INDEX_OBJECT_BYTES_MAX, MANIFEST_BYTES_MAX, PACK_BYTES_MAX,
    PIECE_BYTES_MAX, RANGE_BYTES, RANGE_PACKS, RENEWAL_S, UPLOADS_MAX,
};
use crate::piece::store;
use crate::plan::{Registered, SameName, forget, record_of, register};
use crate::repository::{DATA, Repository, index_name, manifest_name, pack_name};
use crate::seal::{Place, SEAL_BYTES};

/// Source of the stream of a snapshot.
pub trait SnapshotSource {
    /// Whole frames from `offset` on. From 0 on, the first is the beginning of the stream.
    fn part(&mut self, offset: u64) -> impl Future<Output = Result<Vec<u8>, String>>;
}

/// Range that is being read.
#[derive(Default)]
struct OpenRange {
    range: u32,
    changes: Vec<Change>,
    piece: Vec<u8>,
    /// First block of the piece.
    first: u32,
    pack: Vec<u8>,
    packs: u32,
}

/// Running backup.
struct Writer<'a> {
    repository: &'a Repository,
    snapshot: &'a SnapshotIdentity,
    id: WriterId,
    /// The writers of this backup, earlier ones first.
    own: Vec<WriterId>,
    base: Option<(BackupEntry, Manifest)>,
    /// Finished ranges that differ from the base; `None` for one without data.
    ranges: BTreeMap<u32, Option<RangeResult>>,
    /// End of what was read, in bytes.
    at: u64,
    open: OpenRange,
    uploads: FuturesUnordered<BoxFuture<'a, Result<(), BackupError>>>,
    /// Not of the clock, which may be set back while a backup runs.
    renewed: Instant,
}

/// Makes a backup; `progress` receives the end of what was read, in bytes. Returns its entry, which
/// is another one if there is a backup of the snapshot and `base` is given.
///
/// # Errors
/// The prefix has backups of another volume of this name, which `same_name` refuses; the store or
/// the source fails, or another writer continues the backup.
pub async fn back_up(
    repository: &Repository,
    snapshot: &SnapshotIdentity,
    base: Option<&BackupEntry>,
    same_name: SameName,
    source: &mut impl SnapshotSource,
    mut progress: impl FnMut(u64),
) -> Result<BackupEntry, BackupError> {
    snapshot.check().map_err(|problem| BackupError::Limit(problem.to_owned()))?;
    if base.is_some_and(|base| !snapshot.can_have_base(&base.snapshot)) {
        let text = "the base of this backup is of another volume, or larger than the snapshot";
        return Err(BackupError::Limit(text.to_owned()));
    }
    repository.probe().await?;
    let id = WriterId::random();
    let (own, base) = match register(repository, snapshot, base, id, same_name).await? {
        Registered::Exists(entry) => return Ok(entry),
        Registered::Running { own, base } => (own, base),
    };
    repository.keep_key_record().await?;
    let base = match base {
        None => None,
        Some(entry) => match repository.manifest(&entry).await {
            Err(error) if error.is_damage() => {
                // It can never continue, and its base would keep prunes from deleting.
                forget(repository, id).await?;
                return Err(error);
            }
            manifest => Some((entry, manifest?)),
        },
    };
    let mut writer = Writer {
        repository,
        snapshot,
        id,
        own,
        base,
        ranges: BTreeMap::new(),
        at: 0,
        open: OpenRange::default(),
        uploads: FuturesUnordered::new(),
        renewed: Instant::now(),
    };
    writer.find_finished().await?;
    let made = match writer.read(source, &mut progress).await {
        Ok(()) => writer.commit().await,
        Err(error) => Err(error),
    };
    if made.as_ref().is_err_and(BackupError::is_damage) {
        // A prune that abandoned this backup may have deleted the base's objects, or its entry.
        repository.change_head(|head| record_of(head, id).map(HeadChange::Keep)).await?;
    }
    made
}

impl<'a> Writer<'a> {
    /// Finds ranges that earlier writers finished.
    async fn find_finished(&mut self) -> Result<(), BackupError> {
        let mut finished = BTreeMap::new();
        for writer in &self.own[..self.own.len() - 1] {
            for (name, _) in self.repository.list(&format!("{DATA}/{writer}")).await? {
                let range = name.strip_prefix("index-").and_then(|text| text.parse().ok());
                finished.extend(range.map(|range: u32| (range, *writer)));
            }
        }
        let (repository, snapshot, own) = (self.repository, self.snapshot, &self.own);
        let read = finished.into_iter().map(async |(range, writer)| {
            let name = index_name(writer, range);
            // A missing or damaged one is made again, by this writer.
            let bytes = match repository.get(&name, INDEX_OBJECT_BYTES_MAX).await {
                Err(error) if error.is_damage() => return Ok((range, None)),
                read => read?,
            };
            let decoded = repository.decode_index(writer, range, &bytes).await;
            let checked = decoded.and_then(|extents| {
                repository.check_end(snapshot, (writer, range), &extents)?;
                Ok(extents)
            });
            let extents = match checked {
                Err(error) if !error.is_damage() => return Err(error),
                checked => checked.ok(),
            };
            let result = extents.map(|extents| RangeResult::new(writer, &bytes, &extents, own));
            Ok::<_, BackupError>((range, result))
        });
        let mut read = stream::iter(read).buffered(DOWNLOADS_MAX);
        let mut found = BTreeMap::new();
        while let Some(answer) = read.next().await {
            let (range, result) = answer?;
            if let Some(result) = result {
                found.insert(range, Some(result));
            }
        }
        drop(read);
        self.ranges = found;
        Ok(())
    }

    /// Waits for `other`, while uploads go on.
    async fn while_uploading<T>(
        &mut self,
        other: impl Future<Output = T>,
    ) -> Result<T, BackupError> {
        let mut other = std::pin::pin!(other);
        loop {
            tokio::select! {
                biased;
                Some(uploaded) = self.uploads.next() => uploaded?,
                done = &mut other => return Ok(done),
            }
        }
    }

    async fn read(
        &mut self,
        source: &mut impl SnapshotSource,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), BackupError> {
        let size = self.snapshot.size_bytes;
        // The first part names the snapshot and its base.
        let mut part = source.part(0).await.map_err(BackupError::Snapshot)?;
        self.check_beginning(&part)?;
        self.pass_finished();
        let mut is_first = true;
        loop {
            let before = self.at;
            self.take(&part).await?;
            progress(self.at);
            if self.at == size {
                break;
            }
            if self.at == before && !is_first {
                return Err(broken("it does not continue"));
            }
            is_first = false;
            let next = source.part(self.at);
            part = self.while_uploading(next).await?.map_err(BackupError::Snapshot)?;
        }
        // A snapshot that was deleted meanwhile may have given its name to another one.
        let part = source.part(0).await.map_err(BackupError::Snapshot)?;
        self.check_beginning(&part)
    }

    /// Source of the frames of the stream.
    fn stream_source(&self) -> u64 {
        self.snapshot.stream_source(self.base.as_ref().map(|(entry, _)| &entry.snapshot))
    }

    fn check_beginning(&self, part: &[u8]) -> Result<(), BackupError> {
        let frame = StreamFrame::decode(part).map_err(broken)?;
        let Some((StreamFrame { snapshot, source, body: FrameBody::Begin(start), .. }, _)) = frame
        else {
            return Err(broken("it has no beginning"));
        };
        let base = self.base.as_ref().map(|(entry, _)| entry.snapshot.uuid());
        let is_same = snapshot == self.snapshot.uuid()
            && source == self.stream_source()
            && start.size_bytes == self.snapshot.size_bytes
            && start.base == base;
        match is_same {
            true => Ok(()),
            false => Err(broken("a snapshot was replaced by another one of the same name")),
        }
    }

    /// Takes the frames of a part, without those before the position.
    async fn take(&mut self, part: &[u8]) -> Result<(), BackupError> {
        let mut rest = part;
        let mut next = None;
        while let Some((frame, len)) = StreamFrame::decode(rest).map_err(broken)? {
            rest = &rest[len..];
            if frame.snapshot != self.snapshot.uuid() || frame.source != self.stream_source() {
                return Err(broken("a snapshot was replaced by another one of the same name"));
            }
            if next.is_some_and(|next| next != frame.offset)
                || frame.offset > self.at.max(next.unwrap_or(0))
            {
                return Err(broken("it has a gap"));
            }
            let end = frame.offset + frame.covered_bytes();
            if end > self.snapshot.size_bytes {
                return Err(broken("it is longer than the volume"));
            }
            next = Some(end);
            while self.at < end && self.at >= frame.offset {
                let until = end.min((self.at / RANGE_BYTES + 1) * RANGE_BYTES);
                self.segment(&frame, until).await?;
                self.at = until;
                if until.is_multiple_of(RANGE_BYTES) || until == self.snapshot.size_bytes {
                    self.finish_range(((until - 1) / RANGE_BYTES) as u32).await?;
                }
            }
        }
        match rest.is_empty() {
            true => Ok(()),
            false => Err(broken("it ends within a frame")),
        }
    }

    /// Takes a part of a frame that is within one range.
    async fn segment(&mut self, frame: &StreamFrame<'_>, until: u64) -> Result<(), BackupError> {
        self.open.range = (self.at / RANGE_BYTES) as u32;
        let first = (self.at % RANGE_BYTES / BLOCK_BYTES) as u32;
        let blocks = ((until - self.at) / BLOCK_BYTES) as u32;
        match &frame.body {
            FrameBody::Data(data) => {
                let from = (self.at - frame.offset) as usize;
                self.data(first, &data[from..(until - frame.offset) as usize]).await
            }
            FrameBody::Zero(_) => {
                self.end_piece().await?;
                self.zero(first, blocks);
                Ok(())
            }
            FrameBody::Same(_) if self.base.is_some() => self.end_piece().await,
            _ => Err(broken("it refers to a base, which it does not have")),
        }
    }

    fn zero(&mut self, first: u32, blocks: u32) {
        // Without a base, blocks are zeroes anyway.
        if self.base.is_some() {
            self.open.changes.push(Change { first, blocks, piece: None });
        }
    }

    async fn data(&mut self, mut first: u32, mut data: &[u8]) -> Result<(), BackupError> {
        while !data.is_empty() {
            let passed = (self.open.piece.len() as u64 / BLOCK_BYTES) as u32;
            if passed > 0 && self.open.first + passed != first {
                self.end_piece().await?;
            }
            if self.open.piece.is_empty() {
                self.open.first = first;
            }
            let cell = PIECE_BYTES_MAX as u64;
            let room = cell - u64::from(first) * BLOCK_BYTES % cell;
            let (now, later) = data.split_at(data.len().min(room as usize));
            self.open.piece.extend_from_slice(now);
            first += (now.len() as u64 / BLOCK_BYTES) as u32;
            data = later;
            if now.len() as u64 == room {
                self.end_piece().await?;
            }
        }
        Ok(())
    }

    async fn end_piece(&mut self) -> Result<(), BackupError> {
        let content = std::mem::take(&mut self.open.piece);
        if content.is_empty() {
            return Ok(());
        }
        let (first, blocks) = (self.open.first, (content.len() as u64 / BLOCK_BYTES) as u32);
        if content.iter().all(|byte| *byte == 0) {
            self.zero(first, blocks);
            return Ok(());
        }
        let (mut stored, is_zstd) = store(&content);
        let key = self.repository.prefix_key().await?;
        if self.open.pack.len() + stored.len() + SEAL_BYTES as usize > PACK_BYTES_MAX {
            self.end_pack().await?;
        }
        let piece = PieceRef {
            writer: self.id,
            pack: self.open.range * RANGE_PACKS + self.open.packs,
            offset: self.open.pack.len() as u32,
            stored: stored.len() as u32,
            blocks: blocks as u16,
            is_zstd,
            checksum: Checksum::of(&content),
        };
        if let Some(key) = key {
            key.seal(self.id, Place::Piece(piece.pack, piece.offset), &mut stored);
        }
        self.open.pack.extend_from_slice(&stored);
        self.open.changes.push(Change { first, blocks, piece: Some(piece) });
        Ok(())
    }

    async fn end_pack(&mut self) -> Result<(), BackupError> {
        let bytes = std::mem::take(&mut self.open.pack);
        let Some(piece) = self.open.changes.iter().rev().find_map(|change| change.piece) else {
            return Ok(());
        };
        if bytes.is_empty() {
            return Ok(());
        }
        while self.uploads.len() >= UPLOADS_MAX {
            self.uploads.next().await.unwrap_or(Ok(()))?;
        }
        let (repository, name) = (self.repository, pack_name(self.id, piece.pack));
        self.uploads.push(async move { repository.put(&name, bytes).await }.boxed());
        self.open.packs += 1;
        Ok(())
    }

    async fn finish_range(&mut self, range: u32) -> Result<(), BackupError> {
        self.end_piece().await?;
        self.end_pack().await?;
        let open = std::mem::take(&mut self.open);
        if !open.changes.is_empty() {
            let old = match &self.base {
                Some((_, manifest)) => self.repository.index(manifest, range).await?,
                None => Vec::new(),
            };
            let extents = merge(&old, &open.changes);
            // The index is stored after its packs.
            while let Some(uploaded) = self.uploads.next().await {
                uploaded?;
            }
            let result = match extents.is_empty() {
                true => None,
                false => {
                    let mut index = encode(range, self.id, &extents).ok_or_else(fragmented)?;
                    if let Some(key) = self.repository.prefix_key().await? {
                        key.seal(self.id, Place::Index(range), &mut index);
                    }
                    let result = RangeResult::new(self.id, &index, &extents, &self.own);
                    self.repository.put(&index_name(self.id, range), index).await?;
                    Some(result)
                }
            };
            self.ranges.insert(range, result);
        }
        self.pass_finished();
        self.renew().await
    }

    /// Leaves out ranges that are finished.
    fn pass_finished(&mut self) {
        while self.at.is_multiple_of(RANGE_BYTES)
            && self.ranges.contains_key(&((self.at / RANGE_BYTES) as u32))
        {
            self.at = (self.at + RANGE_BYTES).min(self.snapshot.size_bytes);
        }
    }

    /// Records that this writer works, so that no prune abandons the backup.
    async fn renew(&mut self) -> Result<(), BackupError> {
        if self.renewed.elapsed() < Duration::from_secs(RENEWAL_S) {
            return Ok(());
        }
        let (id, now) = (self.id, self.repository.now());
        self.repository
            .change_head(|head| {
                let place = record_of(head, id)?;
                head.unfinished[place].renewed_seconds = now;
                Ok(HeadChange::Store(()))
            })
            .await?;
        self.renewed = Instant::now();
        Ok(())
    }

    /// Manifest of the backup, and its space.
    fn manifest(&self) -> (Manifest, BackupSpace) {
        let mut writers = Writers::default();
        let mut ranges = Vec::new();
        let mut space = BackupSpace::default();
        for range in 0..self.snapshot.ranges() {
            let base = self.base.as_ref().map(|(_, manifest)| manifest);
            let entry = match self.ranges.get(&range) {
                Some(None) => continue,
                Some(Some(result)) => {
                    space.new_bytes += result.new_bytes;
                    writers.new_entry(range, result)
                }
                None => match base.and_then(|base| Some((base, base.range(range)?))) {
                    None => continue,
                    Some((base, entry)) => writers.old_entry(base, entry),
                },
            };
            space.data_bytes += entry.data_bytes;
            space.stored_bytes += entry.stored_bytes + entry.index_bytes;
            ranges.push(entry);
        }
        let (id, snapshot, writers) = (self.id, self.snapshot.clone(), writers.list);
        (Manifest { format: FORMAT, id, snapshot, writers, ranges }, space)
    }

    async fn commit(self) -> Result<BackupEntry, BackupError> {
        let (manifest, space) = self.manifest();
        let bytes = serde_json::to_vec(&manifest).expect("documents are JSON");
        if bytes.len() > MANIFEST_BYTES_MAX || manifest.check().is_err() {
            return Err(fragmented());
        }
        let mut entry = BackupEntry {
            id: self.id,
            snapshot: self.snapshot.clone(),
            completed_seconds: self.repository.now(),
            space,
            manifest_bytes: bytes.len() as u64,
            manifest_sha256: Checksum::of(&bytes),
            mac: None,
        };
        if let Some(key) = self.repository.prefix_key().await? {
            entry.mac = Some(key.mac_of(&entry));
        }
        self.repository.put(&manifest_name(self.id), bytes).await?;
        self.repository.store_entry(&entry).await?;
        self.repository
            .change_head(|head| {
                if head.backups.iter().any(|other| other.id == entry.id) {
                    return Ok(HeadChange::Keep(()));
                }
                let place = record_of(head, entry.id)?;
                head.unfinished.remove(place);
                head.backups.push(entry.clone());
                Ok(HeadChange::Store(()))
            })
            .await?;
        Ok(entry)
    }
}

fn broken(problem: impl std::fmt::Display) -> BackupError {
    BackupError::Snapshot(format!("the stream of the snapshot cannot be used: {problem}"))
}

fn fragmented() -> BackupError {
    let text = "the volume is in too many pieces of earlier backups: make one with --full";
    BackupError::Limit(text.to_owned())
}
