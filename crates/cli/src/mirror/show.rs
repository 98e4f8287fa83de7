//! Text of one mirror's status.

use std::fmt::Write as _;

use flagstone_runtime::time::Instant;
use flagstone_server::api::mirror_document::{
    ActionDocument, BadRangeCause, FencingState, GroupDocument, LinkCompression, LinkDocument,
    MirrorDocument, Mode, PeerDocument, ReplicaDocument, ReplicaRole, ReportedState,
    ResyncDocument, VerifyDocument,
};
use flagstone_units::display::{count, duration, latency, size, three_digits};

use crate::status::table::rate;
use flagstone_units::columns::wrapped_rows;

/// Widths of progress bars and of text, in characters.
const BAR: u64 = 32;
const WIDTH: u16 = 96;

pub(super) struct MirrorSample {
    pub(super) at: Instant,
    /// Time since the Unix epoch, in seconds.
    pub(super) wall: u64,
    pub(super) document: MirrorDocument,
}

/// Completed percentage, rounded down: 100 only when complete.
pub(super) fn percent(done: u64, total: u64) -> u64 {
    match total {
        0 => 0,
        total if done >= total => 100,
        total => (u128::from(done) * 100 / u128::from(total)) as u64,
    }
}

/// `[#####.....] 50 %`
fn bar(done: u64, total: u64) -> String {
    let percent = percent(done, total);
    let full = (percent * BAR / 100) as usize;
    format!("[{}{}] {percent} %", "#".repeat(full), ".".repeat(BAR as usize - full))
}

/// Status of one mirror. Counters show their change since the last sample.
pub(super) fn mirror(look: &MirrorSample, last: Option<&MirrorSample>) -> String {
    let now = &look.document;
    let mut text = format!("{}: {}", now.volume, now.state);
    let Some(replica) = &now.replica else {
        let _ = writeln!(text, " on {}, does not serve", now.node);
        return text + &next(now);
    };
    let serves = match (replica.serving, replica.local_device_failed) {
        (true, true) => ", serves hosts from a peer: the local device has failed",
        (true, false) => ", serves hosts",
        (false, _) if replica.removed => ", does not serve: it was removed from the mirror",
        (false, _) if replica.inconsistent => ", does not serve: its data is incomplete",
        (false, _) if replica.unverified => {
            ", does not serve: its data is unverified after a failed flush"
        }
        (false, _) => ", does not serve",
    };
    let of = match &replica.source {
        Some(source) => format!(" of {source}"),
        None => String::new(),
    };
    let role = match replica.role {
        ReplicaRole::Deposed => "a deposed source",
        ReplicaRole::Source => "the source",
        ReplicaRole::Target => "the target",
    };
    let _ = writeln!(text, "; {} is {role}{of}{serves}", now.node);
    let _ = writeln!(text, "  {}", size(replica.size_bytes));
    now.group.iter().for_each(|found| text.push_str(&group(found)));
    if let Some(bytes) = replica.growing_to_bytes {
        let _ = writeln!(text, "  growing to {}: zeroing the new space on all nodes", size(bytes));
    }
    text.push_str(&failover(now));
    text.push_str(&bad_ranges(replica));
    let before = last.and_then(|last| Some((last, last.document.replica.as_ref()?)));
    for peer in &now.peers {
        let was = last.and_then(|last| last.document.peer(&peer.name));
        text.push_str(&peer_text(replica, peer, was, look.wall));
    }
    text.push_str(&work(
        replica,
        before.map(|(was, replica)| (look.at.since(was.at).as_secs_f64(), replica)),
    ));
    if let Some(verify) = &now.verify {
        text.push_str(&verify_text(verify));
    }
    text + &next(now)
}

/// The consistency group, and what it lacks.
pub(super) fn group(group: &GroupDocument) -> String {
    let state = match (group.missing.as_slice(), group.consistent) {
        _ if !group.refused.is_empty() => {
            "the peer has other volumes in it: none is mirrored".to_owned()
        }
        ([], true) => "all volumes here are at one moment".to_owned(),
        ([], false) => "a resync here has not completed: no volume can take over".to_owned(),
        (missing, _) => format!("no replica here of {}: none is mirrored", missing.join(", ")),
    };
    format!("  group {}: {}; {state}\n", group.name, group.volumes.join(", "))
}

/// Who would win at the arbiter now.
fn failover(now: &MirrorDocument) -> String {
    let Some(failover) = &now.failover else { return String::new() };
    let node = &now.node;
    let serving = now.replica.as_ref().is_some_and(|replica| replica.serving);
    let group = now.group.as_ref().map(|group| group.name.as_str());
    let of =
        |volume: &Option<String>| volume.as_ref().map_or(String::new(), |of| format!("{of}: "));
    let own = match (failover.obstacle, serving) {
        (None, true) => format!("{node} runs degraded without its peer"),
        (_, false) if failover.fencing == Some(FencingState::Running) => {
            format!("{node} has won, and is fencing the other node")
        }
        (None, false) if now.replica.as_ref().is_some_and(|replica| !replica.has_source) => {
            format!("{node} asks the arbiter, and serves if it agrees")
        }
        (None, false) => format!("{node} takes over if its source fails"),
        (Some(obstacle), _) => {
            let of = of(&failover.obstacle_volume);
            format!("{node} does not serve by itself: {of}{}", obstacle.explanation())
        }
    };
    let peer = match failover.peer_obstacle {
        _ if !serving => String::new(),
        None => "; the peer takes over if this node fails".to_owned(),
        Some(obstacle) => {
            let of = of(&failover.peer_obstacle_volume);
            format!("; the peer does not take over: {of}{}", obstacle.explanation())
        }
    };
    let what = group.map_or(String::new(), |group| format!(" of group {group}"));
    let lost = match failover.lag_at_takeover_ms {
        Some(ms) => format!(
            "  {node} has taken over: the last writes of its former source, of up to {}, may be lost\n",
            duration(ms.div_ceil(1000) as f64)
        ),
        None => String::new(),
    };
    format!("  automatic failover{what}: {own}{peer}\n{lost}")
}

fn next(now: &MirrorDocument) -> String {
    let mut text = String::new();
    for advice in &now.next {
        text.push('\n');
        for line in wrapped_rows(&[vec!["next".to_owned(), advice.clone()]], WIDTH - 6) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// Ranges that could not be copied, and repairs of unreadable blocks.
fn bad_ranges(replica: &ReplicaDocument) -> String {
    let mut text = String::new();
    for bad in &replica.bad_ranges {
        let cause = match bad.cause {
            BadRangeCause::SourceUnreadable => "the source cannot read it",
            BadRangeCause::SourceUnwritable => "the source cannot rewrite it",
            BadRangeCause::TargetUnwritable => "the target cannot write it",
            BadRangeCause::NotReceived => "the source could not copy it to this node",
        };
        let _ = writeln!(text, "  bad range at byte {}, {}: {cause}", bad.offset, size(bad.bytes));
    }
    if replica.repairs > 0 {
        let _ = writeln!(
            text,
            "  repaired {} unreadable blocks, {}",
            count(replica.repairs),
            size(replica.repaired_bytes)
        );
    }
    text
}

fn peer_text(
    replica: &ReplicaDocument,
    peer: &PeerDocument,
    was: Option<&PeerDocument>,
    wall: u64,
) -> String {
    // On a target, the state belongs to this side.
    let state = match peer.state {
        ReportedState::Target if replica.source.as_ref() == Some(&peer.name) => {
            "the source".to_owned()
        }
        ReportedState::Target if replica.source.is_some() => "another target".to_owned(),
        ReportedState::Target => "not attached".to_owned(),
        state => state.to_string(),
    };
    let when = match peer.last_in_sync_seconds {
        _ if peer.state == ReportedState::Mirroring => "in sync".to_owned(),
        _ if peer.state == ReportedState::Target && replica.has_source => {
            "the source reports the sync state".to_owned()
        }
        Some(then) => format!("last in sync {} ago", duration(wall.saturating_sub(then) as f64)),
        None => "not in sync since the server started".to_owned(),
    };
    let mode = match (peer.mode, peer.ack) {
        (Some(Mode::Sync), Some(ack)) => format!("; sync, acknowledges from {}", ack.name()),
        (Some(mode), _) => format!("; {}", mode.name()),
        (None, _) => String::new(),
    };
    let mut text = format!("\npeer {}: {state}; {when}{mode}\n", peer.name);
    // The state of a connected peer supersedes the last handshake.
    let connected = matches!(
        peer.state,
        ReportedState::Mirroring | ReportedState::Resynchronizing | ReportedState::Target
    );
    if let Some(handshake) = peer.last_handshake.as_ref().filter(|_| !connected) {
        let serves = if handshake.serving { ", served hosts" } else { "" };
        let whole = if handshake.inconsistent { ", incomplete" } else { "" };
        let _ = writeln!(text, "  last handshake: {}{serves}{whole}", handshake.role.name());
    }
    let disconnects = match peer.disconnects {
        0 => String::new(),
        1 => ", disconnected once".to_owned(),
        times => format!(", disconnected {} times", count(times)),
    };
    let _ = writeln!(text, "  out of sync {}{disconnects}", size(peer.out_of_sync_bytes));
    if peer.discards > 0 {
        let _ = writeln!(
            text,
            "  discarded {} of this node's data after a split brain (after_split_brain)",
            size(peer.discarded_bytes)
        );
    }
    if peer.lag_writes > 0 || peer.mode == Some(Mode::Async) {
        let _ = writeln!(
            text,
            "  lags by {} in {} writes, the oldest {:.1} s ago",
            size(peer.lag_bytes),
            count(peer.lag_writes),
            peer.lag_us as f64 / 1e6
        );
    }
    let (us, writes) = match was {
        Some(was) => {
            (since(was.added_us, peer.added_us), since(was.added_writes, peer.added_writes))
        }
        None => (peer.added_us, peer.added_writes),
    };
    let _ = writeln!(text, "  adds {} to a write", mean(us, writes));
    text.push_str(&link_text(&peer.link));
    if let Some(resync) = &peer.resync {
        text.push_str(&resync_text(resync));
    } else if peer.full_resync {
        text.push_str("  a full resync is pending\n");
    }
    if let Some(lost) = &replica.intent_log_lost
        && peer.last_in_sync_seconds.is_none()
        && peer.out_of_sync_bytes > 0
    {
        let _ = writeln!(text, "  everything counts as out of sync: {lost}");
    }
    text
}

/// Unusual properties of the link to the peer; empty for uncompressed links without a rate cap
/// between nodes of one release.
fn link_text(link: &LinkDocument) -> String {
    let mut parts = Vec::new();
    if let (Some(version), Some((_, peers))) = (link.version, link.peer_versions) {
        let (_, ours) = link.node_versions;
        if ours > version {
            parts.push(format!("version {version}: the peer supports no later one"));
        } else if peers > version {
            parts.push(format!("version {version}: this node supports no later one"));
        }
    }
    match link.compression {
        LinkCompression::None => {}
        codec if link.compression_declined => {
            parts.push(format!("{} is not supported by the peer: not compressed", codec.name()));
        }
        codec => parts.push(format!(
            "{} compressed {} to {}",
            codec.name(),
            size(link.data_bytes),
            size(link.sent_bytes)
        )),
    }
    if let Some(cap) = link.max_bytes_per_second {
        parts.push(format!("at most {} MB/s to the peer", three_digits(cap as f64 / 1e6)));
    }
    if parts.is_empty() { String::new() } else { format!("  link: {}\n", parts.join("; ")) }
}

fn resync_text(resync: &ResyncDocument) -> String {
    let kind = if resync.full { "full resync" } else { "resync" };
    let left = match resync.remaining_seconds {
        Some(seconds) => format!("{} left", duration(seconds as f64)),
        None => "stalled".to_owned(),
    };
    let skipped = match resync.skipped_bytes {
        0 => String::new(),
        bytes => format!(", {} already equal", size(bytes)),
    };
    format!(
        "  {kind} {}  {} of {}, {} MB/s, {left}{skipped}\n",
        bar(resync.done_bytes, resync.total_bytes),
        size(resync.done_bytes),
        size(resync.total_bytes),
        three_digits(resync.bytes_per_second as f64 / 1e6),
    )
}

/// Writes since the last sample, if there is one. `--json` and the metrics have all counters.
fn work(replica: &ReplicaDocument, before: Option<(f64, &ReplicaDocument)>) -> String {
    let zero = ReplicaDocument::default();
    // A restarted server counts from zero.
    let was = match before {
        Some((_, was)) if was.writes <= replica.writes => was,
        _ => &zero,
    };
    let writes = since(was.writes, replica.writes);
    let many = match before {
        Some((seconds, _)) if seconds > 0.0 => {
            format!("{} writes a second", rate(writes as f64 / seconds))
        }
        _ => format!("{} writes", count(writes)),
    };
    let local = mean(since(was.local_us, replica.local_us), writes);
    let blocked = match replica.blocked {
        0 => String::new(),
        writes => format!(", {} blocked", count(writes)),
    };
    let failures = match replica.intent_log.failures {
        0 => String::new(),
        writes => format!("; {} writes to the intent log FAILED", count(writes)),
    };
    format!("\n{many}, {local} on the local device{blocked}{failures}\n")
}

fn since(was: u64, now: u64) -> u64 {
    now.checked_sub(was).unwrap_or(now)
}

fn mean(us: u64, writes: u64) -> String {
    match writes {
        0 => "- µs".to_owned(),
        writes => latency(us as f64 / writes as f64),
    }
}

fn verify_text(verify: &VerifyDocument) -> String {
    let mut text = format!(
        "\nverify with {}: {}  {} of {}",
        verify.peer,
        bar(verify.compared_bytes, verify.total_bytes),
        size(verify.compared_bytes),
        size(verify.total_bytes),
    );
    let then = match (verify.running, &verify.error) {
        (true, _) => "\n".to_owned(),
        (false, Some(error)) => format!("; stopped early: {error}\n"),
        (false, None) if verify.differing_bytes == 0 => "; no difference\n".to_owned(),
        (false, None) => {
            let then = if verify.repair { ", being copied to the peer" } else { "" };
            format!("; {} DIFFER{then}\n", size(verify.differing_bytes))
        }
    };
    text.push_str(&then);
    for (offset, len) in &verify.differences {
        let _ = writeln!(text, "  {} bytes at {}", count(*len), count(*offset));
    }
    if verify.unlisted > 0 {
        let _ = writeln!(text, "  and {} more ranges", count(verify.unlisted));
    }
    text
}

pub(super) fn action(answer: &ActionDocument) -> String {
    let head = match (answer.dry_run, answer.changed) {
        (true, _) => "dry run: ",
        (false, true) => "",
        (false, false) => "no change: ",
    };
    let mut text = format!("{}: {head}{}\n", answer.volume, answer.outcome);
    if let Some(data_loss) = answer.data_loss.as_ref().filter(|_| answer.dry_run) {
        let _ = writeln!(text, "data loss: {data_loss}");
    }
    text
}

#[cfg(test)]
#[path = "show_tests.rs"]
mod tests;
