//! Packing by content: gathers pieces with equal blocks into units of few contents and many copies,
//! where compression stores each content once. Pure.
//!
//! Copies of a content are adjacent in a unit. Blocks of the pieces that have no equal one are
//! packed as they were, each piece by itself. Pieces whose blocks are in the same units are a
//! cluster: it is copied as a whole, and only if that takes fewer blocks than it takes now.

use std::collections::{BTreeMap, BTreeSet};

use super::pack::Copied;
use super::piece::{LivePiece, Part, Size, live_parts, size};
use crate::compress::compressed_with;
use crate::dedup::Domain;
use crate::limits::{BLOCK_BYTES, DEDUP_COPIES_MAX, UNIT_BLOCKS};
use crate::ondisk::chunk::ChunkRecord;
use crate::ondisk::unit::Codec;

/// A piece with an equal block elsewhere. It is not encrypted.
pub(super) struct ContentPiece {
    pub(super) piece: LivePiece,
    pub(super) domain: Domain,
    /// Its live blocks, decompressed.
    pub(super) blocks: Vec<u8>,
}

/// A live block: the number of its piece, and of the block among the live ones of the piece.
type Member = (usize, usize);

/// Blocks that may become a unit.
pub(super) type Group = Vec<Member>;

/// Pieces that are copied together or not at all.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Cluster {
    pub(super) pieces: Vec<usize>,
    pub(super) groups: Vec<Group>,
}

impl ContentPiece {
    fn block(&self, index: usize) -> &[u8] {
        &self.blocks[index * BLOCK_BYTES..][..BLOCK_BYTES]
    }

    fn part(&self, index: usize) -> &Part {
        live_parts(&self.piece.parts).nth(index).expect("the block is live")
    }
}

/// Number of the set of a piece.
fn set_of(sets: &mut [usize], piece: usize) -> usize {
    let mut set = piece;
    while sets[set] != set {
        sets[set] = sets[sets[set]];
        set = sets[set];
    }
    set
}

/// The clusters among these pieces: groups of equal blocks first, then the rest of each piece.
pub(super) fn clusters(pieces: &[ContentPiece]) -> Vec<Cluster> {
    let mut contents: BTreeMap<(Domain, &[u8]), usize> = BTreeMap::new();
    let mut classes: Vec<Group> = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        for block in 0..piece.piece.live() {
            let class = *contents.entry((piece.domain, piece.block(block))).or_insert_with(|| {
                classes.push(Vec::new());
                classes.len() - 1
            });
            classes[class].push((index, block));
        }
    }
    let domain = |group: &[Member]| pieces[group[0].0].domain;
    let mut open: BTreeMap<Domain, Group> = BTreeMap::new();
    let mut groups: Vec<Group> = Vec::new();
    let mut rest: BTreeMap<usize, Group> = BTreeMap::new();
    for class in &classes {
        if let [(piece, block)] = class[..] {
            rest.entry(piece).or_default().push((piece, block));
            continue;
        }
        for copies in class.chunks(UNIT_BLOCKS) {
            let group = open.entry(domain(copies)).or_default();
            if group.len() + copies.len() > UNIT_BLOCKS {
                groups.push(std::mem::take(group));
            }
            group.extend(copies);
        }
    }
    groups.extend(open.into_values().filter(|group| !group.is_empty()));
    groups.extend(rest.into_values());
    let mut sets: Vec<usize> = (0..pieces.len()).collect();
    for group in &groups {
        for (piece, _) in group {
            let (one, other) = (set_of(&mut sets, group[0].0), set_of(&mut sets, *piece));
            sets[one.max(other)] = one.min(other);
        }
    }
    let mut clusters: BTreeMap<usize, Cluster> = BTreeMap::new();
    for group in groups {
        clusters.entry(set_of(&mut sets, group[0].0)).or_default().groups.push(group);
    }
    for piece in 0..pieces.len() {
        if let Some(cluster) = clusters.get_mut(&set_of(&mut sets, piece)) {
            cluster.pieces.push(piece);
        }
    }
    clusters.into_values().collect()
}

/// Space that pieces take now.
pub(super) fn present_size(pieces: &[ContentPiece], cluster: &Cluster) -> Size {
    let mut present = Size::default();
    for index in &cluster.pieces {
        let LivePiece { unit, parts, .. } = &pieces[*index].piece;
        present.add(size(*unit, parts));
    }
    present
}

/// The blocks of a group as a unit, or each alone if they do not shrink.
pub(super) fn packed(pieces: &[ContentPiece], group: &Group) -> Vec<Copied> {
    let of = |codec| {
        let has = |piece: &LivePiece| piece.codec == Some(codec) || piece.cold == Some(codec);
        group.iter().any(|(piece, _)| has(&pieces[*piece].piece))
    };
    let codec = if of(Codec::Zstd) { Codec::Zstd } else { Codec::Lz4 };
    let block = |(piece, block): &Member| pieces[*piece].block(*block);
    let parts: Vec<Part> =
        group.iter().map(|(piece, block)| pieces[*piece].part(*block).clone()).collect();
    let bytes: Vec<u8> = group.iter().flat_map(block).copied().collect();
    if let Some(stored) = compressed_with(codec, &bytes, None, <[u8]>::to_vec) {
        let records = parts.iter().map(|part| part.record.clone()).collect();
        let stored_blocks = (stored.len() / BLOCK_BYTES) as u8;
        let record = ChunkRecord::MovedUnit { stored: stored_blocks, parts: records };
        return vec![Copied { record, stored, parts }];
    }
    let alone = |(part, member): (Part, &Member)| Copied {
        record: part.record.clone(),
        stored: block(member).to_vec(),
        parts: vec![part],
    };
    parts.into_iter().zip(group).map(alone).collect()
}

/// Space that copies take.
pub(super) fn copied_size(copied: &[Copied]) -> Size {
    let mut size = Size::default();
    copied.iter().for_each(|copied| size.add(Size::of(&copied.record)));
    size
}

/// Blocks that copies of a cluster save because contents that were in several pieces are in one
/// group now. Dead blocks, and another codec, save more.
pub(super) fn shared_blocks(
    pieces: &[ContentPiece],
    cluster: &Cluster,
    present: Size,
    copied: Size,
) -> usize {
    let mut contents: BTreeMap<(Domain, &[u8]), [BTreeSet<usize>; 2]> = BTreeMap::new();
    for (number, group) in cluster.groups.iter().enumerate() {
        for (piece, block) in group {
            let content = (pieces[*piece].domain, pieces[*piece].block(*block));
            let [before, after] = contents.entry(content).or_default();
            before.insert(*piece);
            after.insert(number);
        }
    }
    let joined = contents.values().map(|[before, after]| before.len().saturating_sub(after.len()));
    joined.sum::<usize>().min(present.payload.saturating_sub(copied.payload))
}

/// True if copies save blocks, and not only at the cost of headers: at least one for
/// [`DEDUP_COPIES_MAX`] copied ones.
pub(super) fn is_gain(present: Size, copied: Size) -> bool {
    let saved = present.payload.saturating_sub(copied.payload);
    saved > 0 && copied.payload <= saved * DEDUP_COPIES_MAX && copied.bytes() < present.bytes()
}

#[cfg(test)]
#[path = "content_tests.rs"]
mod tests;
