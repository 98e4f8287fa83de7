//! Durable form of the reservations of one namespace: 64 bytes of header, 248 for each registrant,
//! and a CRC32C of all of it.
//!
//! | at | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | `FSRESV2\n` |
//! | 8 | 4 | generation |
//! | 12 | 2 | registrants |
//! | 14 | 1 | type of the reservation, 0 without one |
//! | 15 | 1 | 1 if they end with a power loss (PTPL 0), in records of a mirror; else 0 |
//! | 16 | 16 | host identifier of the holder, unless every registrant is one |
//! | 64 | 248 each | registrants: host identifier (16), key (8), host NQN (224, zeros at the end) |
//!
//! Version 1, `FSRESV1\n`, has no NQNs. It is read, and replaced at the next change.
//!
//! A record that does not match its checksum, or breaks an invariant of [`Reservations`], is
//! refused: the namespace would otherwise admit hosts that were fenced.

use flagstone_nvme::Nqn;
use flagstone_nvme::command::reservation::{ReservationScope, ReservationType};
use flagstone_nvme::digest::crc32c;
use flagstone_nvme::wire::{U16, U32, U64, Wire};

use super::state::{HostId, Registration, Reservation, Reservations};
use crate::limits::RESERVATION_REGISTRANTS;

const MAGIC: &[u8; 8] = b"FSRESV2\n";
/// Without NQNs.
const MAGIC_1: &[u8; 8] = b"FSRESV1\n";
const HEADER_BYTES: usize = 64;
/// A registrant without NQN: the whole one in version 1.
const NAMELESS_BYTES: usize = 24;
const REGISTRANT_BYTES: usize = NAMELESS_BYTES + 224;
const CHECKSUM_BYTES: usize = 4;

/// Longest record, in bytes.
pub(crate) const RECORD_MAX_BYTES: usize =
    HEADER_BYTES + RESERVATION_REGISTRANTS * REGISTRANT_BYTES + CHECKSUM_BYTES;

/// The record of `state`; `None` if nothing of it survives a restart.
pub(crate) fn encode(state: &Reservations) -> Option<Vec<u8>> {
    state.persists.then(|| encode_all(state))
}

/// The record of a mirror, which has all of `state`; `None` if hosts have never used reservations.
pub(crate) fn encode_used(state: &Reservations) -> Option<Vec<u8>> {
    (*state != Reservations::default()).then(|| encode_all(state))
}

fn encode_all(state: &Reservations) -> Vec<u8> {
    let (kind, holder) = match state.reservation {
        None => (0, HostId::default()),
        Some(Reservation::Held { kind, by }) => (kind.code(), by),
        Some(Reservation::Shared { kind }) => (kind.code(), HostId::default()),
    };
    let mut record = Vec::with_capacity(RECORD_MAX_BYTES);
    record.extend(MAGIC);
    record.extend(state.generation.to_le_bytes());
    record.extend((state.registrants.len() as u16).to_le_bytes());
    record.extend([kind, u8::from(!state.persists)]);
    record.extend(holder);
    record.resize(HEADER_BYTES, 0);
    for (host, registration) in &state.registrants {
        let end = record.len() + REGISTRANT_BYTES;
        record.extend(host);
        record.extend(registration.key.to_le_bytes());
        record.extend(registration.nqn.iter().flat_map(|nqn| nqn.as_str().bytes()));
        record.resize(end, 0);
    }
    record.extend(crc32c(&record).to_le_bytes());
    record
}

/// The reservations in `record`.
///
/// # Errors
/// The mistake.
pub(crate) fn decode(record: &[u8]) -> Result<Reservations, &'static str> {
    let damaged = "the record is damaged";
    let (content, checksum) = record
        .split_last_chunk::<CHECKSUM_BYTES>()
        .filter(|_| record.len() <= RECORD_MAX_BYTES)
        .ok_or(damaged)?;
    if crc32c(content) != u32::from_le_bytes(*checksum) || content.len() < HEADER_BYTES {
        return Err(damaged);
    }
    let (header, registrants) = content.split_at(HEADER_BYTES);
    let registrant_bytes = match &header[..8] {
        magic if magic == MAGIC => REGISTRANT_BYTES,
        magic if magic == MAGIC_1 => NAMELESS_BYTES,
        _ => return Err("the record is of another version"),
    };
    let field = |at: usize| &header[at..];
    let generation = U32::view(field(8)).ok_or(damaged)?.get();
    let count = usize::from(U16::view(field(12)).ok_or(damaged)?.get());
    let holder = *HostId::view(field(16)).ok_or(damaged)?;
    let persists = match header[15] {
        0 => true,
        1 => false,
        _ => return Err(damaged),
    };
    let reservation = match (header[14], ReservationType::from_code(header[14])) {
        (0, _) => None,
        (_, None) => return Err("the record has an unknown type of reservation"),
        (_, Some(kind)) if kind.scope == ReservationScope::AllRegistrants => {
            Some(Reservation::Shared { kind })
        }
        (_, Some(kind)) => Some(Reservation::Held { kind, by: holder }),
    };
    if registrants.len() != count * registrant_bytes {
        return Err(damaged);
    }
    let registrants: Option<std::collections::BTreeMap<_, _>> =
        registrants.chunks_exact(registrant_bytes).map(registrant).collect();
    let registrants = registrants.filter(|all| all.len() == count).ok_or(damaged)?;
    let state = Reservations { registrants, reservation, persists, generation };
    if state.is_consistent() { Ok(state) } else { Err(damaged) }
}

/// A registrant; `None` if its NQN is none.
fn registrant(bytes: &[u8]) -> Option<(HostId, Registration)> {
    let (host, rest) = bytes.split_at(size_of::<HostId>());
    let (key, name) = rest.split_at(size_of::<u64>());
    let name = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
    let nqn = match name {
        "" => None,
        name => Some(Nqn::new(name).ok()?),
    };
    Some((*HostId::view(host)?, Registration { key: U64::view(key)?.get(), nqn }))
}
