//! The other node, as a mirror sees it: a disk, and a few questions and orders of a replica.
//!
//! A [`Peer`] is a way to the other node; a [`Session`] one connection by it, which once lost stays
//! lost. What a session promises, whoever implements it (NVMe/TCP, or a simulated network):
//!
//! - a call that fails with [`IoError::Unreachable`] may have been carried out, or be carried out
//!   later: but never after an [`Request::Attach`] of a later session was answered with
//!   [`Reply::Done`]. That is the target's doing: it ends the earlier session's calls first;
//! - once [`Session::lost`] resolves every call in flight fails, and every later one at once;
//! - a peer that does not answer is given up after a time, so every call ends.
//!
//! Each request is safe to repeat.
//!
//! [`IoError::Unreachable`]: flagstone_blockdev::IoError::Unreachable

use std::sync::Arc;

use flagstone_blockdev::{IoError, IoFuture, ZeroFlags};
use flagstone_runtime::{Buf, BufMut};

use crate::decide::View;
use crate::format::bitmap_page::WORDS;
use crate::format::superblock::Role;
use crate::generation::List;
use crate::id::{Generation, Uuid};
use crate::limits::HISTORY_LEN;
use crate::order::Order;
use crate::versions::{NoCommonVersion, Version, Versions};

/// A way to the other node.
pub trait Peer: Send + Sync + 'static {
    /// Makes one attempt at a connection.
    fn connect(&self) -> IoFuture<Arc<dyn Session>>;

    /// What is to be shown of the way, and of what went by it.
    fn link(&self) -> LinkStatus {
        LinkStatus::default()
    }
}

/// A way to a peer, as status shows it. Counters count since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// How data is to be compressed: `none`, or the name of a codec.
    pub compression: &'static str,
    /// The peer was met and does not know that codec: data goes as it is.
    pub is_declined: bool,
    /// The cap on what is sent, in bytes a second; others may share it.
    pub max_bytes_per_s: Option<u64>,
    /// Data of writes, in bytes: zeroes that are written as such are none.
    pub data_bytes: u64,
    /// What was sent for it, in bytes: less when it is compressed.
    pub sent_bytes: u64,
    /// The peer has a name whose address was not found when it was looked for last.
    pub is_name_unknown: bool,
}

impl Default for LinkStatus {
    fn default() -> LinkStatus {
        LinkStatus {
            compression: "none",
            is_declined: false,
            max_bytes_per_s: None,
            data_bytes: 0,
            sent_bytes: 0,
            is_name_unknown: false,
        }
    }
}

/// A peer that may be shared by cores.
pub type SharedPeer = Arc<dyn Peer>;
/// A session that may be shared by cores.
pub type SharedSession = Arc<dyn Session>;

/// A connection. See the module for what it promises.
pub trait Session: Send + Sync + 'static {
    /// Asks the replica something, or has it do something.
    fn ask(&self, request: Request) -> IoFuture<Answer>;

    /// Reads from the peer's leg.
    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut>;

    /// Writes to the peer's leg; with an order, as it demands. An ordered write of more than
    /// [`Session::transfer_bytes`] goes in parts of so many bytes, the last of which may be shorter,
    /// each of which counts as one in its order.
    fn write(&self, offset: u64, data: Buf, fua: bool, order: Option<Order>) -> IoFuture<()>;

    /// Writes to the peer's leg what a resync copies: it may be late for the sake of hosts' writes.
    fn copy(&self, offset: u64, data: Buf) -> IoFuture<()> {
        self.write(offset, data, false, None)
    }

    /// Writes zeroes to the peer's leg.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        order: Option<Order>,
    ) -> IoFuture<()>;

    /// What an ordered write carries at most to count as one, in bytes: at least a block, and the
    /// same for as long as the session lasts.
    fn transfer_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Flushes the peer's leg.
    fn flush(&self) -> IoFuture<()>;

    /// Resolves when the session is lost; never with an error.
    fn lost(&self) -> IoFuture<()>;

    /// Ends the session: it is lost from now on.
    fn close(&self);
}

/// What a replica answers.
pub type Answer = Result<Reply, Refusal>;

/// What can be asked of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Who are you? Needs no attachment. Answered with [`Reply::About`].
    Identify {
        /// The replica that asks.
        asker: Uuid,
    },
    /// Let me write to you. Answered when no earlier session's call is in hand any more, and the
    /// epoch is durable.
    Attach(Attach),
    /// What my data comes from, and so yours as soon as you are in sync: remember it. A peer of both
    /// of us that was left behind with one of these is known by it, whoever is its source then.
    Ancestors {
        /// The newest first.
        generations: List<HISTORY_LEN>,
    },
    /// A page of your bitmap, by number: what your log names as possibly different. Answered with
    /// [`Reply::Bits`].
    Bits {
        /// From 0.
        page: u64,
    },
    /// A resync begins: you are of no moment in time from now on, durably.
    BeginResync {
        /// With a full one the target takes this name, which the source's log covers as a whole:
        /// if the resync is cut short, the next one goes on where it was.
        base: Generation,
    },
    /// The resync has ended: flush, and take this generation over, durably. Then forget your log.
    EndResync {
        /// The source's current one.
        generation: Generation,
    },
    /// You are in sync, and so is what I am: this is its new name. (Another peer was lost.)
    Rename {
        /// The source's current one.
        generation: Generation,
    },
    /// My own leg has failed. Go on without it: mint this generation and keep a log for me.
    GoAlone {
        /// A new one.
        generation: Generation,
        /// The replica that was lost: mine.
        lost: Uuid,
    },
    /// Become the source, of this epoch at least: I have stepped down and nothing is in flight.
    Promote {
        /// Higher than any that either has seen.
        epoch: u64,
    },
    /// You, who serve now: let me have it. Answered when the asker may promote itself.
    HandOver,
    /// The operator gives your data up for mine: be as you were at `base`, but inconsistent.
    /// With [`Generation::NONE`] be blank.
    Surrender {
        /// What both went on from, if that is known.
        base: Generation,
        /// Your generation as the operator saw it: if it is another now, refuse.
        expected: Generation,
    },
    /// The volume is about to grow: zero what it would have more with so many bytes. Needs no
    /// attachment. Answered with [`Refusal::NotNow`] until it is, durably. For peers of
    /// [`Version::CLEARS_ROOM`] on.
    ClearRoom {
        /// A multiple of 4,096.
        usable_bytes: u64,
    },
    /// Checksums of parts of your leg. Answered with [`Reply::Checksums`].
    Checksums {
        /// Beginning, in bytes.
        offset: u64,
        /// Length, in bytes; at most [`crate::limits::CHECK_BYTES`].
        len: u64,
        /// A checksum for each of so many bytes.
        unit_bytes: u32,
    },
}

/// A source asks to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The volume.
    pub volume: Uuid,
    /// The source's replica.
    pub source: Uuid,
    /// The source's epoch.
    pub epoch: u64,
    /// The target's generation, as it was when the source decided.
    pub expected: Generation,
    /// The decision was "in sync": forget old crashes, and what was left over of lineages.
    pub in_sync: bool,
    /// Size of the volume at the source, in bytes; 0 when it does not matter. A target of another takes it over first, and
    /// answers [`Refusal::NotNow`] until it has; [`Refusal::Range`] when it has no room for it.
    pub usable_bytes: u64,
    /// What this session uses from here on: the highest version that both speak. A target that does
    /// not speak it answers [`Refusal::Version`].
    pub version: Version,
}

/// A reply.
#[expect(clippy::large_enum_variant, reason = "one at a time, some a session")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done, durably.
    Done,
    /// To [`Request::Identify`].
    About(About),
    /// To the same, of a peer of versions that this program does not know: they are all that can be
    /// understood of it.
    Stranger(Versions),
    /// To [`Request::Bits`].
    Bits(Box<[u64; WORDS]>),
    /// To [`Request::Checksums`]: CRC-64/NVME of each part.
    Checksums(Vec<u64>),
}

/// What a replica says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// For the decision.
    pub view: View,
    /// Its role.
    pub role: Role,
    /// Hosts are served by it at this moment.
    pub active: bool,
    /// Its leg may lose completed writes with its power, until a flush.
    pub volatile_cache: bool,
    /// The versions of the link that it speaks.
    pub versions: Versions,
}

/// Why a replica refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another volume, or this very replica.
    #[error("the peer holds another volume")]
    Unrelated,
    /// It serves hosts itself.
    #[error("the peer serves hosts itself")]
    Active,
    /// It has seen a higher epoch: the asker is a source of the past.
    #[error("the peer has seen epoch {0}, which is later")]
    Fenced(u64),
    /// It is not as the asker thinks any more.
    #[error("the peer has changed since it was asked")]
    Changed,
    /// What was asked needs an attachment first, and this session has none, or none any more.
    #[error("the session is not attached")]
    NotAttached,
    /// Its data is of no moment in time.
    #[error("the peer's data is inconsistent: a resync to it has not ended")]
    Inconsistent,
    /// A range or length that makes no sense.
    #[error("the peer refuses the range")]
    Range,
    /// Its own leg or log fails.
    #[error("the peer's own device fails")]
    Failed,
    /// The peer's operator, or its configuration, does not want it.
    #[error("the peer is paused, or not in a state to do this")]
    NotNow,
    /// It does not speak the version of the link that was chosen, or that has this request: it was
    /// replaced by an older one.
    #[error("the peer does not speak the version of the link that this needs")]
    Version,
}

/// Why a request came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The way there.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The replica there.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A reply to another question.
    #[error("the peer's reply makes no sense")]
    Nonsense,
    /// Another release of this program.
    #[error(transparent)]
    NoCommonVersion(#[from] NoCommonVersion),
}

/// Has something done.
///
/// # Errors
/// See [`AskError`].
pub async fn order(session: &SharedSession, request: Request) -> Result<(), AskError> {
    match session.ask(request).await?? {
        Reply::Done => Ok(()),
        _ => Err(AskError::Nonsense),
    }
}

/// Asks who it is, for a node that speaks `versions`: what it says has one of them in common.
///
/// # Errors
/// See [`AskError`].
pub async fn identify(
    session: &SharedSession,
    asker: Uuid,
    versions: Versions,
) -> Result<About, AskError> {
    match session.ask(Request::Identify { asker }).await?? {
        Reply::About(about) => {
            versions.highest_common(about.versions)?;
            Ok(about)
        }
        Reply::Stranger(peers) => {
            // One that is known here by a version that is not spoken on this link is none to us.
            versions.highest_common(peers)?;
            Err(AskError::Nonsense)
        }
        _ => Err(AskError::Nonsense),
    }
}

/// Asks for a page of its bitmap.
///
/// # Errors
/// See [`AskError`].
pub async fn bits(session: &SharedSession, page: u64) -> Result<Box<[u64; WORDS]>, AskError> {
    match session.ask(Request::Bits { page }).await?? {
        Reply::Bits(words) => Ok(words),
        _ => Err(AskError::Nonsense),
    }
}

/// Asks for checksums.
///
/// # Errors
/// See [`AskError`]; also when there are more or fewer than asked for.
pub async fn checksums(
    session: &SharedSession,
    offset: u64,
    len: u64,
    unit_bytes: u32,
) -> Result<Vec<u64>, AskError> {
    let request = Request::Checksums { offset, len, unit_bytes };
    match session.ask(request).await?? {
        Reply::Checksums(sums) if sums.len() as u64 == len.div_ceil(u64::from(unit_bytes)) => {
            Ok(sums)
        }
        _ => Err(AskError::Nonsense),
    }
}
