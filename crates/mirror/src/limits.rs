//! Limits on this crate's memory and work, with the arithmetic behind them.

/// Size of the structures on disk, in bytes. Superblocks, log headers and bitmap pages are one page
/// each, so a disk with 4 KiB blocks writes them without read-modify-write.
pub const PAGE_BYTES: usize = 4096;

/// Bits per bitmap page: 504 words of 64 bits, which is 4,096 bytes less 64 bytes of header.
pub const BITS_PER_PAGE: u64 = 504 * 64;

/// Minimum and maximum number of bytes covered by one bit.
pub const BIT_MIN_BYTES: u32 = 4 << 10;
/// See [`BIT_MIN_BYTES`].
pub const BIT_MAX_BYTES: u32 = 16 << 20;
/// Default number of bytes per bit: 16 Mi bits per TiB, 2 MiB in memory and on the log device.
pub const BIT_DEFAULT_BYTES: u32 = 64 << 10;

/// Maximum bits per region. 512 divides [`BITS_PER_PAGE`], so no region spans two pages.
pub const REGION_MAX_BITS: u32 = 512;
/// Default region size, in bytes.
pub const REGION_DEFAULT_BYTES: u32 = 4 << 20;

/// Maximum regions of a volume. The active set keeps 4 B each: 64 MiB for 64 TiB in 4 MiB regions.
pub const REGIONS_MAX: u64 = 1 << 24;

/// Minimum of the active-regions bound. A write of 32 MiB touches up to 513 regions of 64 KiB, in
/// pieces of at most [`PIECE_MAX_REGIONS`]; four such pieces must fit.
pub const ACTIVE_REGIONS_MIN: u32 = 32;
/// Maximum of the active-regions bound. Its record takes 4 B per region, 256 KiB.
pub const ACTIVE_REGIONS_MAX: u32 = 65_536;
/// Default of the active-regions bound: 4 GiB in regions of 4 MiB, 20 s of resync at 200 MiB/s.
pub const ACTIVE_REGIONS_DEFAULT: u32 = 1024;

/// Maximum regions per piece of a call. Longer calls are split.
pub const PIECE_MAX_REGIONS: u32 = 8;

/// Interval between checks for idle active regions, in milliseconds.
pub const EVICT_TICK_MS: u64 = 500;
/// Ticks without a write after which a region is idle. It is evicted together with others.
pub const EVICT_TICKS: u32 = 2;
/// Ticks without a write after which even a single region is evicted: idle volumes have none
/// active.
pub const EVICT_TICKS_MAX: u32 = 8;
/// Fraction of the active set that is evicted at a time, if as many are idle. Each eviction costs a
/// flush of the data, so by default there is one flush per 128 new regions.
pub const EVICT_SHARE: usize = 8;
/// Maximum number of adjacent bitmap pages per write: 256 KiB of memory.
pub const PAGES_PER_WRITE: u64 = 64;

/// Where to look for the old end of a grown device. Each entry: a step in bytes, and the number of
/// its multiples to try, from the new end downwards; `None` tries all. About 4,400 reads plus two
/// per GiB: one second on an SSD of 1 TiB, half a minute on a hard disk.
pub const SEARCH_STEPS: [(u64, Option<u64>); 7] = [
    (4096, Some(SEARCH_PER_STEP)),
    (1 << 20, Some(SEARCH_PER_STEP)),
    (4 << 20, Some(SEARCH_PER_STEP)),
    (64 << 20, Some(SEARCH_PER_STEP)),
    (1_000_000, Some(SEARCH_PER_STEP / 4)),
    (1 << 30, None),
    (1_000_000_000, None),
];
/// See [`SEARCH_STEPS`].
pub const SEARCH_PER_STEP: u64 = 1024;

/// Size of the area before the end of a data device that is searched for an earlier replica's log,
/// in bytes: enough for the log of a 7 TiB volume. Takes a tenth of a second on an SSD.
pub const REMNANT_SEARCH_BYTES: u64 = 16 << 20;

/// Size of the area at the beginning of a device that is checked before a log is created there, in
/// bytes. Signatures of file systems and volume managers are in the first 256 KiB.
pub const LOG_PROBE_BYTES: u64 = 1 << 20;

/// Maximum write count of one bitmap page: 100 years at 10,000 per second. The sum over all pages
/// of the largest volume fits into 64 bits.
pub const PAGE_WRITES_MAX: u64 = 1 << 45;
/// Interval at which a superblock records the progress of a log on its own device, in milliseconds:
/// it detects a log restored from an older copy. One write per minute, not on the path of any call.
pub const LOG_PROGRESS_MS: u64 = 60_000;

/// Maximum number of peers in a superblock.
pub const PEERS_MAX: usize = 2;
/// Earlier generations that a superblock stores. Replicas that diverged before count as unrelated.
pub const HISTORY_LEN: usize = 16;
/// Most generations per peer from which the bitmap can bring it up to date: the one that it had
/// when it was lost, and those announced to it at the end of a resync without an answer.
pub const BASES_LEN: usize = 4;

/// Maximum bytes per copy of a resync. The range is locked against writes meanwhile.
pub const COPY_BYTES: u64 = 256 << 10;
/// Copies of a resync per flush of the target. Bits are cleared after the flush.
pub const COPIES_PER_FLUSH: usize = 32;
/// Copies in flight: 16 × 256 KiB keep a link of 1 GB/s and 4 ms busy, with 4 MiB of memory.
pub const COPIES: usize = 16;
/// Maximum number of bad ranges listed per peer. With more, the device has failed: the resync ends
/// with an error. A superblock stores them in 16 B each, 1 KiB.
pub const BAD_RANGES_MAX: usize = 64;
/// Failed attempts after which the rest of one copy is not split further to find its bad sectors: a
/// failing disk may take seconds for each. A single bad sector of a copy takes at most 6.
pub const BAD_SPLITS_MAX: usize = 16;
/// Repairs of unreadable blocks after host reads at a time. Further ones are left to later reads.
pub const REPAIRS_MAX: u64 = 4;
/// Longest name of the device that a log was moved to, in bytes, in the superblock.
pub const LOG_PLACE_MAX: usize = 1024;
/// Changes of the peers in a superblock: as many additions and removals as there can be peers.
pub const MEMBERS_MAX: usize = 2 * PEERS_MAX;
/// Longest name and address of a member together, in bytes.
pub const MEMBER_TEXT_MAX: usize = 250;
/// Time limit for the last step of moving a log, in milliseconds: writes to inactive regions wait
/// for it. It writes the changes since the previous pass, within milliseconds on a sound device.
pub(crate) const MOVE_LOG_MS: u64 = 2000;
/// Passes over the pages before that step. Each copies the changes made during the previous one.
pub(crate) const MOVE_LOG_PASSES: u32 = 8;
/// Interval at which a resync retries one bad range, in milliseconds.
pub const BAD_RANGE_RETRY_MS: u64 = 1000;
/// Pause after a call failed for lack of memory, in milliseconds.
pub const NO_MEMORY_RETRY_MS: u64 = 20;
/// Attempts of a local call that fails for lack of memory: two seconds, after which the leg counts
/// as failed.
pub const NO_MEMORY_ATTEMPTS: u32 = 100;
/// Bytes zeroed per call before the volume grows into them, one call at a time to spare hosts.
pub const ZERO_CHUNK_BYTES: u64 = 1 << 20;
/// Interval at which a source asks its peers whether they have finished zeroing, in milliseconds.
pub const ZERO_POLL_MS: u64 = 200;

/// Default age at which a request to a peer without an answer ends the connection, in milliseconds.
pub const PEER_TIMEOUT_MS: u64 = 5000;

/// Longest name of a snapshot, in bytes: that of a pool.
pub const SNAPSHOT_NAME_BYTES: usize = 128;
/// Snapshots in one page of a peer's list.
pub const SNAPSHOTS_PER_PAGE: usize = 256;
/// Most pages of a peer's list that are read: more snapshots than a pool has.
pub const SNAPSHOT_PAGES_MAX: usize = 256;
/// Longest wait for one page of a peer's list, in milliseconds.
pub const SNAPSHOT_PAGE_MS: u64 = 2000;
/// Longest time for which the request of a source waits for the pool of its peer, in milliseconds.
pub const SNAPSHOT_WAIT_MS: u32 = 1000;
/// Part of the peer's timeout for which such a request waits at most: with the time on the link, it
/// is answered before that timeout ends the connection.
pub const SNAPSHOT_WAIT_PART: u32 = 4;
/// Longest time for which a snapshot holds host writes, in milliseconds. They take some
/// milliseconds if the disks and the link are sound.
pub const SNAPSHOT_HOLD_MS: u64 = 5000;
/// Part of it that is left for the peers, or they are not asked. Longer than [`SNAPSHOT_WAIT_MS`]:
/// a peer that does not answer is disconnected.
pub const SNAPSHOT_PEER_MS: u64 = 3000;
/// How long an order waits for peers whose pools are busy, in milliseconds. Hosts write meanwhile.
pub const SNAPSHOT_CHECK_MS: u64 = 5000;
/// How long a snapshot stops the queue of an asynchronous peer whose pool is busy, in milliseconds.
pub const SNAPSHOT_BUSY_MS: u64 = 10_000;
/// Interval at which a busy peer is asked again, in milliseconds.
pub const SNAPSHOT_POLL_MS: u64 = 50;
/// Longest time for which a snapshot waits for writes in flight, in milliseconds: they may wait
/// for a checkpoint that the prepared snapshot keeps from starting.
pub const SNAPSHOT_DRAIN_MS: u64 = 1000;
/// How long the order of a snapshot waits for asynchronous peers after host writes continue, in
/// milliseconds. They may take it later.
pub const SNAPSHOT_MARKER_MS: u64 = 2000;
/// Snapshots of asynchronous peers whose results are remembered, and the most that wait at a time.
pub const SNAPSHOT_MARKERS_MAX: usize = 64;

/// Maximum range of one checksum request, in bytes.
pub const CHECK_BYTES: u64 = 1 << 20;

/// Maximum volumes of a consistency group. Each has a session, a queue and a set of buffers.
pub const GROUP_MEMBERS_MAX: usize = 16;
/// Longest time for which a member of a group waits until the others have attached to the peer, in
/// milliseconds. Longer than the pause between two connection attempts. After that, the member's
/// own session ends, and it tries again.
pub const GATHER_MS: u64 = 10_000;
/// Interval at which a member checks the role of its group's leader, in milliseconds. After a
/// failed attempt to follow, the interval grows to ten times this.
pub const FOLLOW_LEADER_MS: u64 = 500;

/// Window of sequence numbers at the target, from the oldest incomplete one. Each member of a group
/// sends at most [`QUEUE_WRITES`] before the oldest is acknowledged, and a write longer than a
/// transfer has several numbers. A waiting write takes about 60 B, and has arrived within the
/// bounds of its connection.
pub const ORDER_WINDOW: u32 = 4 * QUEUE_WRITES as u32 * GROUP_MEMBERS_MAX as u32;
/// Maximum writes in an asynchronous queue: 8 MiB, with about 500 B for the task of each.
pub const QUEUE_WRITES: usize = 16_384;
/// Default size of an asynchronous queue, in bytes: half a second at 128 MB/s. Payloads are pooled
/// memory, so it has to be well below the pool's limit.
pub const QUEUE_BYTES: u64 = 64 << 20;
/// Bytes of the queue that may be sent and not acknowledged: a link of 1 GB/s and 16 ms.
pub const QUEUE_WINDOW_BYTES: u64 = 16 << 20;

/// Longest delay of an orderly stop for queued writes to reach their peers, in milliseconds: a full
/// queue of the default size at 3 MB/s. Service managers wait for 90 s by default.
pub const QUEUE_DELIVERY_MS: u64 = 20_000;

/// Interval at which a peer that acknowledges from memory is flushed, in milliseconds. Writes since
/// the last flush are copied again after a disconnect.
pub const PEER_FLUSH_MS: u64 = 1000;
/// Delay before failing a write that would be blocked and has no memory to wait in, in
/// milliseconds: limits how often hosts resend it, and is well below Linux's command timeout of 30
/// s.
pub const REJECT_DELAY_MS: u64 = 10_000;
/// Pause between attempts to reach a peer, in milliseconds: doubles from minimum to maximum.
pub const RETRY_MIN_MS: u64 = 100;
/// See [`RETRY_MIN_MS`].
pub const RETRY_MAX_MS: u64 = 5000;
/// Time limit of a call to a device of the replica, in milliseconds, after which the local leg
/// counts as failed. Applies while a peer is in sync, or an order to change the role waits for the
/// call. Above the pauses of a live migration, and below the 30 s after which Linux gives up a
/// command.
pub const LOCAL_IO_MS: u64 = 20_000;
/// Longest time for which a transfer to another mirror waits for calls in flight and for an answer
/// of the devices, in milliseconds. Nothing has changed until then. Host calls wait meanwhile.
pub const TRANSFER_CHECK_MS: u64 = 5000;
/// How long host calls wait for the rest of a transfer, in milliseconds. Together with
/// [`TRANSFER_CHECK_MS`] below the 30 s after which Linux gives up a command.
pub const TRANSFER_MS: u64 = 20_000;
/// Longest time for which peers are asked which node serves before this node begins to serve, in
/// milliseconds: at a start from old records, and before a failover. Equal to the default timeout
/// of a link.
pub const ASK_MS: u64 = 5000;
/// How long a failover tries to reach a peer, and then waits for its answer, in milliseconds.
pub const DEPOSE_MS: u64 = 2000;
/// Longest time for which a node that refuses hosts tries to record this before it answers, in
/// milliseconds: its disk may hang.
pub const REFUSAL_MS: u64 = 500;

/// Pause before a peer is fenced again after the command failed, in milliseconds.
pub const FENCE_RETRY_MS: u64 = 5000;

/// How long a grant that waits for the command which fences the peer is used without an answer of
/// the arbiter, in milliseconds. In the meantime, the operator may have ordered the peer to serve.
pub const GRANT_MS: u64 = 60_000;

/// How long a planned stop waits for the hand-over to the peer, in milliseconds: longer than the
/// default timeout of a link, and well below the 90 s of service managers.
pub const LEAVE_MS: u64 = 10_000;

/// How long a repair, a full resync, a pause or a break waits for the arbiter to record that the
/// peer is out of date, in milliseconds. The order fails then. At the start of a full resync, host
/// writes wait meanwhile.
pub const EXCLUDE_MS: u64 = 5000;

/// Interval at which a source compares the arbiter's record while its peer is in sync, in
/// milliseconds.
pub const ARBITER_CHECK_MS: u64 = 10_000;

/// Revisions never reached by an arbiter store: one a second for 136 years.
pub const STORE_REVISIONS: u64 = 1 << 32;
/// Longest time from the write of the source's record to the target's read of it for a
/// [`StoreProof`](crate::failover::StoreProof) of one store, in milliseconds: one call, and the
/// durable note of the source's announcement.
pub const PROOF_MS: u64 = 2 * flagstone_arbiter::limits::CALL_MS;
/// Pause before the arbiter is asked again after a denial, in milliseconds. Below the shortest
/// lease.
pub const ARBITER_RETRY_MS: u64 = 250;

/// Minimum time before a peer that was detached because of a full queue is brought up to date, in
/// milliseconds. It keeps the peer from alternating between falling behind and catching up.
pub const DETACH_PAUSE_MS: u64 = 10_000;

/// Bytes of a record of reservations in one request.
pub const RESERVATION_PAGE_BYTES: usize = 4096;

/// Longest record of reservations, in bytes: eight pages.
pub const RESERVATION_RECORD_MAX_BYTES: usize = 8 * RESERVATION_PAGE_BYTES;
