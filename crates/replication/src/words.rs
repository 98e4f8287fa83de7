//! The mirror's words in those of NVMe, and back. What comes off the wire is checked.

use flagstone_mirror::decide::View;
use flagstone_mirror::format::bitmap_page::WORDS;
use flagstone_mirror::format::superblock::Role;
use flagstone_mirror::generation::{Lineage, List};
use flagstone_mirror::id::{Generation, Uuid};
use flagstone_mirror::limits::{BASES_LEN, HISTORY_LEN};
use flagstone_mirror::order::Order;
use flagstone_mirror::peer::{About, Attach, Refusal, Reply, Request};
use flagstone_mirror::{Version, Versions};
use flagstone_nvme::replica as wire;
use flagstone_nvme::replica::State;
use flagstone_nvme::wire::{U32, U64};
use flagstone_nvme::{Status, Wire};

// The structures of the wire have the mirror's sizes.
const _: () = assert!(WORDS == wire::BITMAP_WORDS);
const _: () = assert!(BASES_LEN == wire::reply::BASES && HISTORY_LEN == wire::reply::HISTORY);
const _: () = assert!(flagstone_mirror::limits::CHECK_BYTES == wire::CHECK_BYTES);

/// A request as a command; `None` of a range that no command can name.
pub(crate) fn to_wire(request: &Request) -> Option<wire::Request> {
    Some(match *request {
        Request::Identify { asker } => wire::Request::Identify { asker: asker.0 },
        Request::Attach(attach) => {
            let who = (attach.volume.0, attach.source.0);
            let said =
                wire::Attach::new(who.0, who.1, attach.epoch, attach.expected.0, attach.in_sync);
            let said = said.of_size(attach.usable_bytes).of_version(attach.version.0);
            wire::Request::Attach(said)
        }
        Request::Ancestors { generations } => {
            let said = generations.0.map(|generation| generation.0);
            wire::Request::Ancestors(wire::Ancestors::new(said))
        }
        Request::Bits { page } => wire::Request::Bitmap { page },
        Request::BeginResync { base } => state(State::BeginResync, base),
        Request::EndResync { generation } => state(State::EndResync, generation),
        Request::Rename { generation } => state(State::Rename, generation),
        Request::GoAlone { generation, lost } => {
            wire::Request::GoAlone { lost: lost.0, generation: generation.0 }
        }
        Request::Promote { epoch } => wire::Request::Promote { epoch },
        Request::HandOver => wire::Request::HandOver,
        Request::ClearRoom { usable_bytes } => wire::Request::ClearRoom { usable_bytes },
        Request::Surrender { base, expected } => {
            wire::Request::Surrender { base: base.0, expected: expected.0 }
        }
        Request::Checksums { offset, len, unit_bytes } => {
            let len = u32::try_from(len).ok().filter(|len| u64::from(*len) <= wire::CHECK_BYTES)?;
            if unit_bytes < wire::CHECK_UNIT_MIN_BYTES {
                return None;
            }
            wire::Request::Checksum { offset, len, unit_bytes }
        }
    })
}

fn state(state: State, generation: Generation) -> wire::Request {
    wire::Request::SetState { state, generation: generation.0 }
}

/// A command as the request that it is.
pub(crate) fn from_wire(request: wire::Request) -> Request {
    match request {
        wire::Request::Identify { asker } => Request::Identify { asker: Uuid(asker) },
        wire::Request::Attach(attach) => Request::Attach(Attach {
            volume: Uuid(attach.volume),
            source: Uuid(attach.source),
            epoch: attach.epoch.get(),
            expected: Generation(attach.expected.get()),
            in_sync: attach.in_sync(),
            usable_bytes: attach.usable_bytes.get(),
            version: Version(attach.version()),
        }),
        wire::Request::Ancestors(said) => Request::Ancestors {
            generations: List(said.generations.map(|generation| Generation(generation.get()))),
        },
        wire::Request::Bitmap { page } => Request::Bits { page },
        wire::Request::SetState { state, generation } => {
            let generation = Generation(generation);
            match state {
                State::BeginResync => Request::BeginResync { base: generation },
                State::EndResync => Request::EndResync { generation },
                State::Rename => Request::Rename { generation },
            }
        }
        wire::Request::GoAlone { lost, generation } => {
            Request::GoAlone { generation: Generation(generation), lost: Uuid(lost) }
        }
        wire::Request::Promote { epoch } => Request::Promote { epoch },
        wire::Request::HandOver => Request::HandOver,
        wire::Request::ClearRoom { usable_bytes } => Request::ClearRoom { usable_bytes },
        wire::Request::Surrender { base, expected } => {
            Request::Surrender { base: Generation(base), expected: Generation(expected) }
        }
        wire::Request::Checksum { offset, len, unit_bytes } => {
            Request::Checksums { offset, len: len.into(), unit_bytes }
        }
    }
}

pub(crate) fn order_to_wire(order: Order) -> wire::Order {
    wire::Order { number: order.number, beside: order.beside }
}

pub(crate) fn order_from_wire(order: wire::Order) -> Order {
    Order { number: order.number, beside: order.beside }
}

/// Writes a reply into `place`, as long as the request's; false when it does not fit.
pub(crate) fn put_reply(reply: &Reply, place: &mut [u8]) -> bool {
    match reply {
        Reply::Done => place.is_empty(),
        Reply::About(about) => about_to_wire(about).encode(place) == Some(place.len()),
        // No replica says that of itself.
        Reply::Stranger(_) => false,
        Reply::Bits(words) => put_words(&words[..], place),
        Reply::Checksums(sums) => put_words(sums, place),
    }
}

fn put_words(words: &[u64], place: &mut [u8]) -> bool {
    for (place, word) in place.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    place.len() == words.len() * 8
}

/// Reads the reply to `request`; `None` when it makes no sense.
pub(crate) fn reply(request: &wire::Request, data: &[u8]) -> Option<Reply> {
    let words = || data.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    Some(match request {
        wire::Request::Identify { .. } => identity(wire::About::view(data)?)?,
        wire::Request::Bitmap { .. } => {
            let mut page = Box::new([0; WORDS]);
            if words().len() != WORDS {
                return None;
            }
            page.iter_mut().zip(words()).for_each(|(place, word)| *place = word);
            Reply::Bits(page)
        }
        wire::Request::Checksum { .. } => Reply::Checksums(words().collect()),
        _ => Reply::Done,
    })
}

/// The codecs that the replica knows, of the data of a reply that tells who it is.
pub(crate) fn codecs(reply: &Reply, data: &[u8]) -> Option<u8> {
    let known = matches!(reply, Reply::About(_));
    wire::About::view(data).filter(|_| known).map(|said| said.codecs)
}

fn about_to_wire(about: &About) -> wire::About {
    let View { volume, replica, usable_bytes, room_bytes, bit_bytes, lineage, epoch, .. } =
        about.view;
    let role = match about.role {
        Role::Target => wire::Role::Target,
        Role::Source => wire::Role::Source,
    };
    let flags = [
        (about.view.serving, wire::About::SERVING),
        (about.view.crashed, wire::About::CRASHED),
        (about.view.inconsistent, wire::About::INCONSISTENT),
        (about.view.dirty, wire::About::DIRTY),
        (about.active, wire::About::ACTIVE),
        (about.volatile_cache, wire::About::VOLATILE_CACHE),
    ];
    let versions = about.versions.lowest().0..=about.versions.highest().0;
    let mut said = wire::About::new(role, versions);
    said.flags = flags.iter().filter(|(is, _)| *is).fold(0, |all, (_, flag)| all | flag);
    said.bit_bytes = U32::new(bit_bytes);
    said.usable_bytes = U64::new(usable_bytes);
    said.room_bytes = U64::new(room_bytes);
    (said.volume, said.replica) = (volume.0, replica.0);
    said.epoch = U64::new(epoch);
    said.codecs = wire::Codec::ALL.iter().fold(0, |all, codec| all | codec.bit());
    said.current = U64::new(lineage.current.0);
    said.bases = lineage.bases.0.map(|generation| U64::new(generation.0));
    said.history = lineage.history.0.map(|generation| U64::new(generation.0));
    said
}

/// The same of a replica whose namespace has logical blocks of so many bytes: they are those of the
/// volume there, so the reply says nothing of them.
pub(crate) fn with_blocks(reply: Reply, block_bytes: u32) -> Reply {
    match reply {
        Reply::About(about) => {
            Reply::About(About { view: View { block_bytes, ..about.view }, ..about })
        }
        other => other,
    }
}

/// Who a replica says that it is; `None` when that makes no sense.
fn identity(said: &wire::About) -> Option<Reply> {
    let told = |error: wire::AboutError| tracing::warn!("{error}");
    let range = said.versions().map_err(told).ok()?;
    let versions = Versions::new(*range.start(), *range.end())?;
    if Versions::SPOKEN.highest_common(versions).is_err() {
        return Some(Reply::Stranger(versions));
    }
    let role = match said.check().map_err(told).ok()? {
        wire::Role::Target => Role::Target,
        wire::Role::Source => Role::Source,
    };
    Some(Reply::About(about_from_wire(said, role, versions)))
}

fn about_from_wire(said: &wire::About, role: Role, versions: Versions) -> About {
    let generation = |number: U64| Generation(number.get());
    let view = View {
        volume: Uuid(said.volume),
        replica: Uuid(said.replica),
        usable_bytes: said.usable_bytes.get(),
        room_bytes: said.room_bytes.get().max(said.usable_bytes.get()),
        bit_bytes: said.bit_bytes.get(),
        // See [`with_blocks`].
        block_bytes: 0,
        lineage: Lineage {
            current: generation(said.current),
            bases: List(said.bases.map(generation)),
            history: List(said.history.map(generation)),
        },
        epoch: said.epoch.get(),
        serving: said.has(wire::About::SERVING),
        crashed: said.has(wire::About::CRASHED),
        inconsistent: said.has(wire::About::INCONSISTENT),
        dirty: said.has(wire::About::DIRTY),
    };
    let active = said.has(wire::About::ACTIVE);
    About { view, role, active, volatile_cache: said.has(wire::About::VOLATILE_CACHE), versions }
}

/// A refusal as a completion.
pub(crate) fn refusal_to_wire(refusal: Refusal) -> (Status, u64) {
    let refusal = match refusal {
        Refusal::Unrelated => wire::Refusal::Unrelated,
        Refusal::Active => wire::Refusal::Active,
        Refusal::Fenced(epoch) => wire::Refusal::Fenced(epoch),
        Refusal::Changed => wire::Refusal::Changed,
        Refusal::NotAttached => wire::Refusal::NotAttached,
        Refusal::Inconsistent => wire::Refusal::Inconsistent,
        Refusal::Range => wire::Refusal::Range,
        Refusal::Failed => wire::Refusal::Failed,
        Refusal::NotNow => wire::Refusal::NotNow,
        Refusal::Version => wire::Refusal::Version,
    };
    refusal.completion()
}

/// The refusal that a completion tells, if it does.
pub(crate) fn refusal(status: Status, result: u64) -> Option<Refusal> {
    Some(match wire::Refusal::of(status, result)? {
        wire::Refusal::Unrelated => Refusal::Unrelated,
        wire::Refusal::Active => Refusal::Active,
        wire::Refusal::Fenced(epoch) => Refusal::Fenced(epoch),
        wire::Refusal::Changed => Refusal::Changed,
        wire::Refusal::NotAttached => Refusal::NotAttached,
        wire::Refusal::Inconsistent => Refusal::Inconsistent,
        wire::Refusal::Range => Refusal::Range,
        wire::Refusal::Failed => Refusal::Failed,
        wire::Refusal::NotNow => Refusal::NotNow,
        wire::Refusal::Version => Refusal::Version,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made of an answer to Replica Identify that names these versions, and of which the rest
    /// makes no sense here.
    fn answered(lowest: u16, highest: u16) -> Option<Reply> {
        let mut data = [0xff; wire::IDENTIFY_BYTES];
        data[..2].copy_from_slice(&lowest.to_le_bytes());
        data[226..228].copy_from_slice(&highest.to_le_bytes());
        reply(&wire::Request::Identify { asker: [1; 16] }, &data)
    }

    #[test]
    fn of_a_release_that_is_not_known_its_versions_alone_are_understood() {
        for (lowest, highest) in [(1, 1), (4, 4), (4, u16::MAX), (u16::MAX, u16::MAX)] {
            let said = Versions::new(lowest, highest).map(Reply::Stranger);
            assert!(said.is_some() && answered(lowest, highest) == said, "{lowest} to {highest}");
        }
        assert_eq!(answered(7, 0), Versions::new(7, 7).map(Reply::Stranger));
        // Of a known one all of it has to make sense; and a range has to be one.
        for (lowest, highest) in [(2, 3), (2, 0), (3, 9), (0, 0), (0, 3), (3, 2), (u16::MAX, 1)] {
            assert_eq!(answered(lowest, highest), None, "{lowest} to {highest}");
        }
    }
}
