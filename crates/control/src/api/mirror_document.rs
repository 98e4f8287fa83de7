//! The documents of mirrors, as they are written and as our own client reads them.
//!
//! Members may be added within a version, so readers ignore what they do not know; words of
//! `state` too.

use serde::{Deserialize, Serialize};

/// The state of a mirror whose replica was not made yet, or cannot be opened.
pub const NOT_CREATED: &str = "not-created";

/// The state of a mirror whose replica is missing: something tells that there was one.
pub const NOT_FOUND: &str = "not-found";

/// `GET /v1/volumes/{name}/mirror`, and the member `mirror` of a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MirrorDocument {
    /// The volume's name.
    pub volume: String,
    /// This node's name.
    pub node: String,
    /// The state of the peer that is worst off, or `not-created`, or `not-found`.
    pub state: String,
    /// What to do next, for people; empty when there is nothing to do.
    pub next: Vec<String>,
    /// Peers, in the order of the configuration.
    pub peers: Vec<PeerDocument>,
    /// This node's replica; `null` before it was made.
    pub replica: Option<ReplicaDocument>,
    /// The verify that runs, or the last one since the server began.
    pub verify: Option<VerifyDocument>,
    /// The replica is being opened again, as its device failed; else `null`.
    #[serde(default)]
    pub reopening: Option<ReopeningDocument>,
    /// Times that its devices were opened again since the server began.
    #[serde(default)]
    pub reopens: u64,
}

/// How a replica is opened again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReopeningDocument {
    /// Why, or why the last attempt failed.
    pub reason: String,
    /// How often it was opened again since its devices were last sound for ten minutes.
    pub attempts: u32,
    /// Until the next attempt; `null` while one goes on, and when there is none.
    pub next_seconds: Option<f64>,
    /// It failed too often, and is left alone until the server is started again.
    pub given_up: bool,
}

/// This node's replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplicaDocument {
    /// `source` or `target`.
    pub role: String,
    /// Hosts are served from here.
    pub active: bool,
    /// A source is attached to it.
    pub has_source: bool,
    /// The peer that it is; `null` without one, and while its link here has not met it.
    #[serde(default)]
    pub source: Option<String>,
    /// A resync to it has not ended: its data is of no moment in time.
    pub inconsistent: bool,
    /// A flush of its device failed before that was opened again, and no resync has ended since: what
    /// it shows may not be there durably.
    #[serde(default)]
    pub doubtful: bool,
    /// The local leg has failed: a peer carries the volume.
    pub local_failed: bool,
    /// A flush of its device, or of its log's, has failed, and it was not opened again since.
    #[serde(default)]
    pub flush_failed: bool,
    /// Highest epoch seen.
    pub epoch: u64,
    /// Generation of the data here.
    pub generation: String,
    /// The volume, as all replicas name it.
    pub volume_uuid: String,
    /// This replica.
    pub replica_uuid: String,
    /// What hosts may use.
    pub size_bytes: u64,
    /// A logical block, as hosts see it here, in bytes.
    #[serde(default)]
    pub block_bytes: u32,
    /// The size to which it grows when what is new has been zeroed; `null` when it does not grow.
    #[serde(default)]
    pub growing_to_bytes: Option<u64>,
    /// Writes of hosts in progress, and reads that wait for one: the queue depth.
    pub in_flight: u64,
    /// Those of them that wait for one that overlaps.
    pub waiting_for_overlap: u64,
    /// Writes that are held: for the peer, or for a change of role.
    pub held: u64,
    /// Writes of hosts, since the replica was opened as are all counters here.
    pub writes: u64,
    /// What the local leg took for them, together.
    pub local_us: u64,
    /// The write-intent log.
    pub log: LogDocument,
}

/// What the write-intent log has cost and saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogDocument {
    /// Regions that may be written without a word to the log.
    pub hot_regions: u64,
    /// Writes that needed no write of metadata, as their regions were hot.
    pub saved_writes: u64,
    /// Writes that waited for the log.
    pub waited_writes: u64,
    /// Writes of metadata that were made: records of hot regions.
    pub record_writes: u64,
    /// The same: bitmap pages.
    pub page_writes: u64,
    /// Flushes of the data device for the log's sake.
    pub data_flushes: u64,
    /// Writes or flushes of the log that failed.
    pub failures: u64,
}

/// A peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerDocument {
    /// Its name.
    pub name: String,
    /// The state of the mirror towards it.
    pub state: String,
    /// What the operator wants: `mirror`, `pause` or `break`.
    pub wish: String,
    /// `sync` or `async`.
    pub mode: String,
    /// `disk` or `memory`.
    pub ack: String,
    /// `continue` or `strict`.
    pub when_peer_lost: String,
    /// `ask` or `keep-serving`.
    #[serde(default)]
    pub split_brain: String,
    /// A resync compares checksums first, and copies what differs.
    pub compare: bool,
    /// Everything is copied, or is going to be.
    pub full_resync: bool,
    /// What it said when it was met last; `null` before.
    pub met: Option<MetDocument>,
    /// What it lacks, at the bitmap's granularity.
    pub out_of_date_bytes: u64,
    /// When it was last known to be in sync, since the Unix epoch; `null` for never since the
    /// replica was opened.
    pub last_in_sync_seconds: Option<u64>,
    /// Asynchronous mode: what it has not acknowledged.
    pub lag_bytes: u64,
    /// The same in writes.
    pub lag_writes: u64,
    /// The age of the oldest of them.
    pub lag_us: u64,
    /// What the resync that goes on, or the last one, has sent.
    pub copied_bytes: u64,
    /// The resync that goes on; `null` without one.
    pub resync: Option<ResyncDocument>,
    /// What writes waited for it beyond the local leg, together.
    pub added_us: u64,
    /// How many writes that were.
    pub added_writes: u64,
    /// Times that it was lost after it had been attached.
    pub losses: u64,
    /// Times that this side gave its data up for the peer's in a split brain, as `split_brain` says.
    #[serde(default)]
    pub given_up: u64,
    /// What it had written without the peer then, at most, at the bitmap's granularity.
    #[serde(default)]
    pub given_up_bytes: u64,
    /// The way to it.
    #[serde(default)]
    pub link: LinkDocument,
}

/// The way to a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkDocument {
    /// `none`, `lz4` or `zstd`, as configured.
    pub compression: String,
    /// The peer's version cannot inflate that: data goes as it is.
    pub compression_declined: bool,
    /// Most that is sent to the peer, of all volumes together; `null` without a cap.
    pub max_bytes_per_second: Option<u64>,
    /// Data that was written to the peer since the replica was opened.
    pub data_bytes: u64,
    /// What was sent for it: less when it is compressed.
    pub sent_bytes: u64,
    /// The version of the link that both nodes use: the highest that both speak. `null` before they
    /// have met, and when there is none.
    #[serde(default)]
    pub version: Option<u16>,
    /// The lowest and the highest that this node speaks.
    #[serde(default)]
    pub node_versions: (u16, u16),
    /// The same of the peer, as it said when it was met last; `null` before.
    #[serde(default)]
    pub peer_versions: Option<(u16, u16)>,
    /// The peer's name has no address that is known, so it cannot be reached.
    #[serde(default)]
    pub name_unknown: bool,
}

/// What a peer said of itself when it was met last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetDocument {
    /// Its replica.
    pub replica_uuid: String,
    /// `source` or `target`.
    pub role: String,
    /// It served hosts.
    pub active: bool,
    /// Highest epoch that it had seen.
    pub epoch: u64,
    /// Generation of its data.
    pub generation: String,
    /// Its data was of no moment in time.
    pub inconsistent: bool,
    /// A logical block of the volume there, in bytes; 0 where that is not known.
    #[serde(default)]
    pub block_bytes: u32,
}

/// A resync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResyncDocument {
    /// Everything is copied, rather than what is marked.
    pub full: bool,
    /// Copied, or found to be equal.
    pub done_bytes: u64,
    /// Of so many.
    pub total_bytes: u64,
    /// Of those done: found to be equal by their checksums, and not sent.
    pub skipped_bytes: u64,
    /// How fast it goes.
    pub bytes_per_second: u64,
    /// Until it ends at this rate; `null` when it stands still.
    pub remaining_seconds: Option<u64>,
}

/// A verify.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyDocument {
    /// The peer that is compared with.
    pub peer: String,
    /// It has not ended.
    pub running: bool,
    /// Compared so far.
    pub compared_bytes: u64,
    /// Of so many.
    pub total_bytes: u64,
    /// What differs is brought up to date from the source when it ends.
    pub repair: bool,
    /// As it was asked; `null` for as fast as it goes.
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
    /// Bytes that differ, once it has ended.
    pub differing_bytes: u64,
    /// Where, as offset and length in bytes; the first of them.
    pub differences: Vec<(u64, u64)>,
    /// Ranges that differ and are not listed.
    pub unlisted: u64,
    /// Why it ended early.
    pub error: Option<String>,
    /// When it began, since the Unix epoch.
    pub began_seconds: u64,
}

/// What an action answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ActionDocument {
    /// The volume.
    pub volume: String,
    /// The action.
    pub action: String,
    /// Something is other than it was, or would be.
    pub changed: bool,
    /// Nothing was done: this is what would be.
    pub dry_run: bool,
    /// What was done, or would be, for people.
    pub said: String,
    /// What is lost by it; `null` for nothing.
    pub loses: Option<String>,
    /// The mirror after it, or now.
    pub mirror: MirrorDocument,
}

impl ReplicaDocument {
    /// True of one that was made and never brought up to date: its generation is none.
    pub fn holds_nothing(&self) -> bool {
        !self.generation.is_empty() && self.generation.bytes().all(|digit| digit == b'0')
    }
}

impl MirrorDocument {
    /// The peer of this name.
    pub fn peer(&self, name: &str) -> Option<&PeerDocument> {
        self.peers.iter().find(|peer| peer.name == name)
    }
}
