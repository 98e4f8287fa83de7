//! Download of pieces: neighbors in a pack are read with one request. Each piece is checked.

use std::collections::BTreeMap;

use crate::error::BackupError;
use crate::index::PieceRef;
use crate::limits::GAP_BYTES_MAX;
use crate::piece::load;
use crate::repository::{Repository, pack_name};
use crate::seal::{Place, SEAL_BYTES};

/// Contents of pieces, or the reason why one has none.
pub(crate) type Pieces = BTreeMap<PieceRef, Result<Vec<u8>, BackupError>>;

/// End of a piece, of which `sealed` bytes are a seal.
fn end(piece: &PieceRef, sealed: u32) -> u32 {
    piece.offset.saturating_add(piece.stored).saturating_add(sealed)
}

/// Pieces that one request reads: sorted, in one pack.
fn spans(sorted: &[PieceRef]) -> impl Iterator<Item = &[PieceRef]> {
    sorted.chunk_by(|one, next| {
        let is_same_pack = (one.writer, one.pack) == (next.writer, next.pack);
        is_same_pack && next.offset <= end(one, SEAL_BYTES).saturating_add(GAP_BYTES_MAX)
    })
}

async fn read_span(
    repository: &Repository,
    span: &[PieceRef],
    found: &mut Pieces,
) -> Result<(), BackupError> {
    let name = pack_name(span[0].writer, span[0].pack);
    let from = span[0].offset;
    let key = repository.prefix_key().await?;
    let sealed = if key.is_some() { SEAL_BYTES } else { 0 };
    let to = span.iter().map(|piece| end(piece, sealed)).max().unwrap_or(from);
    let bytes = repository.get_part(&name, from, to - from).await?;
    for piece in span {
        let stored = &bytes[(piece.offset - from) as usize..(end(piece, sealed) - from) as usize];
        let place = Place::Piece(piece.pack, piece.offset);
        let content = match key {
            Some(key) => {
                key.open(piece.writer, place, stored).and_then(|stored| load(piece, &stored))
            }
            None => load(piece, stored),
        };
        let content = content.map_err(|problem| {
            let problem = format!("{problem} ({} bytes at {})", piece.stored, piece.offset);
            repository.damaged(&name, problem)
        });
        found.insert(*piece, content);
    }
    Ok(())
}

/// Downloads pieces, which have a bounded length in all.
///
/// # Errors
/// The store fails. Damage is reported for each piece.
pub(crate) async fn download(
    repository: &Repository,
    mut pieces: Vec<PieceRef>,
) -> Result<Pieces, BackupError> {
    pieces.sort();
    pieces.dedup();
    let mut found = Pieces::new();
    for span in spans(&pieces) {
        match read_span(repository, span, &mut found).await {
            Err(error) if error.is_damage() => {
                for piece in span {
                    let alone =
                        read_span(repository, std::slice::from_ref(piece), &mut found).await;
                    match alone {
                        Err(error) if error.is_damage() => drop(found.insert(*piece, Err(error))),
                        other => other?,
                    }
                }
            }
            other => other?,
        }
    }
    Ok(found)
}
