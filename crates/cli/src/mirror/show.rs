//! What is shown of a mirror.

use std::fmt::Write as _;

use flagstone_control::api::mirror_document::{
    ActionDocument, LinkDocument, MirrorDocument, PeerDocument, ReplicaDocument, ResyncDocument,
    VerifyDocument,
};
use flagstone_runtime::time::Instant;

use crate::columns::wrapped;
use crate::status::numbers::{grouped, megabytes, rate, size, span};

/// Width of a bar of progress, and of texts.
const BAR: u64 = 32;
const WIDTH: usize = 96;

/// A mirror at a moment.
pub(super) struct Look {
    pub(super) at: Instant,
    /// Time since the Unix epoch, in seconds.
    pub(super) wall: u64,
    pub(super) document: MirrorDocument,
}

/// How much of `total` is done, in whole hundredths; never 100 before it is.
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

/// All about one mirror; of numbers that grow, what they did since the last look.
pub(super) fn mirror(look: &Look, last: Option<&Look>) -> String {
    let now = &look.document;
    let mut text = format!("{}: {}", now.volume, now.state);
    let Some(replica) = &now.replica else {
        let _ = writeln!(text, " on {}", now.node);
        return text + &next(now);
    };
    let serves = match (replica.active, replica.local_failed) {
        (true, true) => ", serves hosts from a peer: its own device has failed",
        (true, false) => ", serves hosts",
        (false, _) if replica.inconsistent => ", serves nobody, its data is not whole yet",
        (false, _) if replica.doubtful => {
            ", serves nobody, its data is in doubt since a flush of its disk failed"
        }
        (false, _) => ", serves nobody",
    };
    let of = match &replica.source {
        Some(source) => format!(" of {source}"),
        None => String::new(),
    };
    let _ = writeln!(text, "; {} is the {}{of}{serves}", now.node, replica.role);
    let _ = writeln!(
        text,
        "  {}, epoch {}, generation {}\n  volume {}, replica {}",
        size(replica.size_bytes),
        replica.epoch,
        replica.generation,
        replica.volume_uuid,
        replica.replica_uuid,
    );
    if let Some(bytes) = replica.growing_to_bytes {
        let _ =
            writeln!(text, "  grows to {}: what is new is being zeroed on all nodes", size(bytes));
    }
    let before = last.and_then(|last| Some((last, last.document.replica.as_ref()?)));
    for peer in &now.peers {
        let was = last.and_then(|last| last.document.peer(&peer.name));
        text.push_str(&peer_text(peer, was, look.wall));
    }
    text.push_str(&work(replica, before.map(|(was, replica)| (seconds(was, look), replica))));
    if let Some(verify) = &now.verify {
        text.push_str(&verify_text(verify));
    }
    text + &next(now)
}

fn seconds(was: &Look, now: &Look) -> f64 {
    now.at.since(was.at).as_secs_f64()
}

fn next(now: &MirrorDocument) -> String {
    let mut text = String::new();
    for advice in &now.next {
        for (index, line) in wrapped(advice, WIDTH - 6).into_iter().enumerate() {
            let head = if index == 0 { "\nnext  " } else { "      " };
            let _ = writeln!(text, "{head}{line}");
        }
    }
    text
}

fn peer_text(peer: &PeerDocument, was: Option<&PeerDocument>, wall: u64) -> String {
    let when = match peer.last_in_sync_seconds {
        _ if peer.state == "mirroring" => "in sync".to_owned(),
        _ if peer.state == "target" => "it tells what is in sync".to_owned(),
        Some(then) => format!("last in sync {} ago", span(wall.saturating_sub(then) as f64)),
        None => "never in sync while this server ran".to_owned(),
    };
    let mode = match (peer.mode.as_str(), peer.ack.as_str()) {
        ("sync", ack) => format!("sync, acknowledges from {ack}"),
        (mode, _) => mode.to_owned(),
    };
    let mut text = format!("\npeer {}: {}; {when}; {mode}\n", peer.name, peer.state);
    // What is connected tells by its state how it is: that is later.
    let tells = ["mirroring", "resynchronizing", "target"].contains(&peer.state.as_str());
    if let Some(met) = peer.met.as_ref().filter(|_| !tells) {
        let serves = if met.active { ", served hosts" } else { "" };
        let whole = if met.inconsistent { ", not whole" } else { "" };
        let _ = writeln!(
            text,
            "  as it was met last: {}{serves}{whole}, epoch {}, generation {}",
            met.role, met.epoch, met.generation
        );
    }
    let lost = match peer.losses {
        0 => String::new(),
        1 => ", lost once".to_owned(),
        times => format!(", lost {} times", grouped(times)),
    };
    let _ = writeln!(text, "  out of date {}{lost}", size(peer.out_of_date_bytes));
    if peer.given_up > 0 {
        let _ = writeln!(
            text,
            "  gave up {} of this side's in a split brain, as split_brain says",
            size(peer.given_up_bytes)
        );
    }
    if peer.lag_writes > 0 || peer.mode == "async" {
        let _ = writeln!(
            text,
            "  behind by {} in {} writes, the oldest of {:.1} s",
            size(peer.lag_bytes),
            grouped(peer.lag_writes),
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
        text.push_str("  everything is going to be copied\n");
    }
    text
}

/// What is not usual of the way to the peer; nothing of one that sends all as it is, between nodes of
/// one release.
fn link_text(link: &LinkDocument) -> String {
    let mut parts = Vec::new();
    if let (Some(version), Some((_, peers))) = (link.version, link.peer_versions) {
        let (_, ours) = link.node_versions;
        if ours > version {
            parts.push(format!("version {version}, as the peer speaks no later one"));
        } else if peers > version {
            parts.push(format!("version {version}, as this node speaks no later one"));
        }
    }
    match link.compression.as_str() {
        "" | "none" => {}
        codec if link.compression_declined => {
            parts.push(format!("{codec} is wanted, which the peer does not know: not compressed"));
        }
        codec => parts.push(format!(
            "{codec} made {} of {}",
            size(link.sent_bytes),
            size(link.data_bytes)
        )),
    }
    if let Some(cap) = link.max_bytes_per_second {
        parts.push(format!("at most {} MB/s to the peer", megabytes(cap as f64)));
    }
    if parts.is_empty() { String::new() } else { format!("  link: {}\n", parts.join("; ")) }
}

fn resync_text(resync: &ResyncDocument) -> String {
    let kind = if resync.full { "full resync" } else { "resync" };
    let left = match resync.remaining_seconds {
        Some(seconds) => format!("{} left", span(seconds as f64)),
        None => "it stands still".to_owned(),
    };
    let skipped = match resync.skipped_bytes {
        0 => String::new(),
        bytes => format!(", {} were equal", size(bytes)),
    };
    format!(
        "  {kind} {}  {} of {}, {} MB/s, {left}{skipped}\n",
        bar(resync.done_bytes, resync.total_bytes),
        size(resync.done_bytes),
        size(resync.total_bytes),
        megabytes(resync.bytes_per_second as f64),
    )
}

/// What went through, and what the log made of it; since the last look when there was one.
fn work(replica: &ReplicaDocument, before: Option<(f64, &ReplicaDocument)>) -> String {
    let (log, zero) = (&replica.log, ReplicaDocument::default());
    // A server that began anew counts from zero.
    let was = match before {
        Some((_, was)) if was.writes <= replica.writes => was,
        _ => &zero,
    };
    let writes = since(was.writes, replica.writes);
    let many = match before {
        Some((seconds, _)) if seconds > 0.0 => {
            format!("{} writes a second", rate(writes as f64 / seconds))
        }
        _ => format!("{} writes", grouped(writes)),
    };
    let made = |of: fn(&ReplicaDocument) -> u64| grouped(since(of(was), of(replica)));
    format!(
        "\nqueue depth {}, of which {} wait for one that overlaps; {} held\n\
         {many}, {} on the local leg\n\
         log: {} metadata writes saved, {} records and {} bitmap pages written, {} flushes, {} \
         writes waited; {} regions hot{}\n",
        grouped(replica.in_flight),
        grouped(replica.waiting_for_overlap),
        grouped(replica.held),
        mean(since(was.local_us, replica.local_us), writes),
        made(|replica| replica.log.saved_writes),
        made(|replica| replica.log.record_writes),
        made(|replica| replica.log.page_writes),
        made(|replica| replica.log.data_flushes),
        made(|replica| replica.log.waited_writes),
        grouped(log.hot_regions),
        match log.failures {
            0 => String::new(),
            count => format!("; {} of its writes FAILED", grouped(count)),
        },
    )
}

fn since(was: u64, now: u64) -> u64 {
    now.checked_sub(was).unwrap_or(now)
}

fn mean(us: u64, writes: u64) -> String {
    match writes {
        0 => "- µs".to_owned(),
        writes => format!("{:.1} µs", us as f64 / writes as f64),
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
        (false, Some(error)) => format!("; it ended early: {error}\n"),
        (false, None) if verify.differing_bytes == 0 => "; no difference\n".to_owned(),
        (false, None) => {
            let then = if verify.repair { ", and are copied to the peer" } else { "" };
            format!("; {} DIFFER{then}\n", size(verify.differing_bytes))
        }
    };
    text.push_str(&then);
    for (offset, len) in &verify.differences {
        let _ = writeln!(text, "  {} bytes at {}", grouped(*len), grouped(*offset));
    }
    if verify.unlisted > 0 {
        let _ = writeln!(text, "  and {} ranges more", grouped(verify.unlisted));
    }
    text
}

/// What came of an action.
pub(super) fn action(answer: &ActionDocument) -> String {
    let head = match (answer.dry_run, answer.changed) {
        (true, _) => "nothing was done; it would be so: ",
        (false, true) => "",
        (false, false) => "nothing to change: ",
    };
    let mut text = format!("{}: {head}{}\n", answer.volume, answer.said);
    if let Some(loses) = answer.loses.as_ref().filter(|_| answer.dry_run) {
        let _ = writeln!(text, "this loses: {loses}");
    }
    text
}

#[cfg(test)]
#[path = "show_tests.rs"]
mod tests;
