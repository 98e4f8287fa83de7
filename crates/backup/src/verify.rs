//! Verification of backups: all damage, and the backups that it affects.
//!
//! Ranges are verified one after the other, for all backups together: a piece that several backups
//! need is read once, because a pack belongs to one range.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::stream::{self, StreamExt as _};
use serde::Serialize;

use crate::document::{BackupEntry, DataObject, Manifest};
use crate::error::BackupError;
use crate::id::{Checksum, WriterId};
use crate::index::PieceRef;
use crate::limits::{BLOCK_BYTES, DAMAGE_MAX, DOWNLOADS_MAX, WINDOW_BYTES_MAX};
use crate::pieces::download;
use crate::repository::{DATA, Repository, index_name, pack_name};

/// Next step after damage of a copy.
const MENDED: &str = "a copy, which flagstone backup recover stores again";

/// A missing or damaged object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// What is wrong, with the name of the object.
    pub problem: String,
    /// Names of backups that cannot be restored in full, with their IDs if there are several of one
    /// name.
    pub backups: Vec<String>,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Backups that were verified.
    pub backups: u64,
    /// Bytes of pieces that were read and compared with their checksums, in stored form.
    pub read_bytes: u64,
    /// All damage, at most [`DAMAGE_MAX`] entries.
    pub damage: Vec<Damage>,
    /// Number of further entries.
    pub more_damage: u64,
}

impl VerifyReport {
    /// True without damage.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty() && self.more_damage == 0
    }
}

/// A backup that damage affects, and its name.
type Affected = (WriterId, String);

struct Verification<'a> {
    repository: &'a Repository,
    manifests: Vec<Manifest>,
    read_bytes: u64,
    /// Problems, at most [`DAMAGE_MAX`].
    found: Vec<(String, Vec<Affected>)>,
    more: u64,
}

/// Verifies backups. `quick` only lists objects and compares lengths of indexes; `progress`
/// receives the finished ranges and the number of all.
///
/// # Errors
/// The store fails. Damage is in the report.
pub async fn verify(
    repository: &Repository,
    selected: &[BackupEntry],
    quick: bool,
    mut progress: impl FnMut(u64, u64),
) -> Result<VerifyReport, BackupError> {
    let mut verification = Verification {
        repository,
        manifests: Vec::new(),
        read_bytes: 0,
        found: Vec::new(),
        more: 0,
    };
    for entry in selected {
        match repository.manifest(entry).await {
            Ok(manifest) => verification.manifests.push(manifest),
            Err(error) if error.is_damage() => {
                let affected = vec![(entry.id, entry.snapshot.full_name())];
                verification.add(error.to_string(), affected);
            }
            Err(error) => return Err(error),
        }
    }
    verification.copies(selected).await?;
    if quick {
        verification.list().await?;
        return verification.report(selected).await;
    }
    let ranges = verification.manifests.iter().map(|manifest| manifest.snapshot.ranges());
    let ranges = ranges.max().unwrap_or(0);
    for range in 0..ranges {
        verification.range(range).await?;
        progress(range.into(), ranges.into());
    }
    verification.report(selected).await
}

impl Verification<'_> {
    fn names(&self, places: impl IntoIterator<Item = u32>) -> Vec<Affected> {
        let affected = |place: u32| {
            let manifest = &self.manifests[place as usize];
            (manifest.id, manifest.snapshot.full_name())
        };
        places.into_iter().map(affected).collect()
    }

    fn add(&mut self, problem: String, affected: Vec<Affected>) {
        match self.found.last() {
            // Neighbors in one pack are missing together.
            Some(last) if last.0 == problem && last.1 == affected => {}
            _ if self.found.len() == DAMAGE_MAX => self.more += 1,
            _ => self.found.push((problem, affected)),
        }
    }

    /// The report, without damage of backups that a prune removed meanwhile.
    async fn report(mut self, selected: &[BackupEntry]) -> Result<VerifyReport, BackupError> {
        let mut backups = selected.len() as u64;
        // With a damaged head, all damage is reported.
        if !self.found.is_empty()
            && let Ok(Some(head)) = self.repository.head().await
        {
            let listed: BTreeSet<WriterId> = head.backups.iter().map(|entry| entry.id).collect();
            backups = selected.iter().filter(|entry| listed.contains(&entry.id)).count() as u64;
            for (_, affected) in &mut self.found {
                affected.retain(|(id, _)| listed.contains(id));
            }
            self.found.retain(|(_, affected)| !affected.is_empty());
        }
        // Several backups of a snapshot have one name.
        let named = |id: WriterId, name: String| {
            let same = selected.iter().filter(|entry| entry.snapshot.full_name() == name);
            if same.count() > 1 { format!("{name}, ID {id}") } else { name }
        };
        let damage = |(problem, affected): (String, Vec<Affected>)| {
            let backups = affected.into_iter().map(|(id, name)| named(id, name)).collect();
            Damage { problem, backups }
        };
        Ok(VerifyReport {
            backups,
            read_bytes: self.read_bytes,
            damage: self.found.into_iter().map(damage).collect(),
            more_damage: self.more,
        })
    }

    /// Compares the copies of the head's content with it.
    async fn copies(&mut self, selected: &[BackupEntry]) -> Result<(), BackupError> {
        let named = |entry: &BackupEntry| (entry.id, entry.snapshot.full_name());
        for (entry, error) in self.repository.wrong_entries(selected).await? {
            self.add(format!("{error} ({MENDED})"), vec![named(entry)]);
        }
        let head = match self.repository.head().await {
            // All damage is reported with a damaged head, too.
            Err(error) if error.is_damage() => return Ok(()),
            head => head?.unwrap_or_default(),
        };
        if !self.repository.has_key_record(&head).await? {
            let affected = selected.iter().map(named).collect();
            self.add(format!("the record of the prefix's key is missing ({MENDED})"), affected);
        }
        Ok(())
    }

    async fn range(&mut self, range: u32) -> Result<(), BackupError> {
        let pieces = self.pieces(range).await?;
        let mut windows: Vec<Vec<PieceRef>> = Vec::new();
        let mut bytes = 0;
        for piece in pieces.keys() {
            let len = usize::from(piece.blocks) * BLOCK_BYTES as usize;
            match windows.last_mut() {
                Some(window) if bytes + len <= WINDOW_BYTES_MAX => window.push(*piece),
                _ => {
                    windows.push(vec![*piece]);
                    bytes = 0;
                }
            }
            bytes += len;
        }
        let repository = self.repository;
        let downloads = windows.into_iter().map(async |window| {
            let found = download(repository, window).await?;
            let results = found.into_iter().map(|(piece, content)| (piece, content.err()));
            Ok::<_, BackupError>(results.collect::<Vec<_>>())
        });
        let mut downloads = stream::iter(downloads).buffered(DOWNLOADS_MAX);
        while let Some(results) = downloads.next().await {
            for (piece, damage) in results? {
                match damage {
                    None => self.read_bytes += u64::from(piece.stored),
                    Some(error) => {
                        let affected = self.names(pieces[&piece].iter().copied());
                        self.add(error.to_string(), affected);
                    }
                }
            }
        }
        Ok(())
    }

    /// Pieces of a range, and the backups that need them, from sound indexes.
    async fn pieces(&mut self, range: u32) -> Result<BTreeMap<PieceRef, Vec<u32>>, BackupError> {
        // Backups with the same index of the range.
        let mut indexes: BTreeMap<(WriterId, Checksum), Vec<u32>> = BTreeMap::new();
        for (place, manifest) in self.manifests.iter().enumerate() {
            if let Some(entry) = manifest.range(range) {
                let writer = manifest.writer(entry.writer).expect("a manifest is checked");
                indexes.entry((writer, entry.index_sha256)).or_default().push(place as u32);
            }
        }
        let mut pieces: BTreeMap<PieceRef, Vec<u32>> = BTreeMap::new();
        for mut places in indexes.into_values() {
            let size = |place: &u32| self.manifests[*place as usize].snapshot.size_bytes;
            let largest = places.iter().copied().max_by_key(size).expect("it has a place");
            let manifest = &self.manifests[largest as usize];
            let extents = match self.repository.index(manifest, range).await {
                Ok(extents) => extents,
                Err(error) if error.is_damage() => {
                    let affected = self.names(places);
                    self.add(error.to_string(), affected);
                    continue;
                }
                Err(error) => return Err(error),
            };
            // Backups of smaller volumes have the same index.
            let mut beyond = Vec::new();
            places.retain(|place| {
                let manifest = &self.manifests[*place as usize];
                let author = manifest.range(range).and_then(|entry| manifest.writer(entry.writer));
                let index = (author.unwrap_or_default(), range);
                let checked = self.repository.check_end(&manifest.snapshot, index, &extents);
                let is_within = checked.is_ok();
                beyond.extend(checked.err().map(|error| (*place, error.to_string())));
                is_within
            });
            for (place, problem) in beyond {
                let affected = self.names([place]);
                self.add(problem, affected);
            }
            let distinct: BTreeSet<PieceRef> = extents.iter().map(|extent| extent.piece).collect();
            let of_index: BTreeSet<_> =
                distinct.iter().map(|piece| (piece.writer, DataObject::Pack(piece.pack))).collect();
            for place in &places {
                let listed: BTreeSet<_> = packs_of(&self.manifests[*place as usize], range);
                if !of_index.is_subset(&listed) {
                    let affected = self.names([*place]);
                    let problem = format!("the manifest lacks packs of range {range}");
                    self.add(problem, affected);
                }
            }
            for piece in distinct {
                pieces.entry(piece).or_default().extend(&places);
            }
        }
        Ok(pieces)
    }

    /// Compares the objects of the store with those of the backups.
    async fn list(&mut self) -> Result<(), BackupError> {
        let mut needed: BTreeMap<(WriterId, DataObject), (Option<u64>, Vec<u32>)> = BTreeMap::new();
        for (place, manifest) in self.manifests.iter().enumerate() {
            for (writer, object, len) in manifest.objects() {
                let entry = needed.entry((writer, object)).or_default();
                entry.0 = len;
                entry.1.push(place as u32);
            }
        }
        let writers: BTreeSet<WriterId> = needed.keys().map(|(writer, _)| *writer).collect();
        for writer in writers {
            let listed = self.repository.list(&format!("{DATA}/{writer}")).await?;
            let listed: BTreeMap<String, u64> = listed.into_iter().collect();
            let own = (writer, DataObject::Index(0))..=(writer, DataObject::Pack(u32::MAX));
            for ((_, object), (len, places)) in needed.range(own) {
                let name = match object {
                    DataObject::Index(range) => index_name(writer, *range),
                    DataObject::Pack(number) => pack_name(writer, *number),
                };
                let found = name.rsplit('/').next().and_then(|last| listed.get(last));
                let problem = match (found, len) {
                    (None, _) => "it is missing",
                    (Some(found), Some(len)) if found != len => "its length is wrong",
                    _ => continue,
                };
                let problem = self.repository.damaged(&name, problem).to_string();
                let affected = self.names(places.iter().copied());
                self.add(problem, affected);
            }
        }
        Ok(())
    }
}

fn packs_of(manifest: &Manifest, range: u32) -> BTreeSet<(WriterId, DataObject)> {
    let runs = manifest.range(range).into_iter().flat_map(|entry| &entry.packs);
    let packs = runs.flat_map(|run| {
        let writer = manifest.writer(run.0).expect("a manifest is checked");
        (run.1..run.1 + run.2).map(move |number| (writer, DataObject::Pack(number)))
    });
    packs.collect()
}
