//! Online verify: compares the checksums of both legs, chunk by chunk, while hosts keep running.
//!
//! Blocks unreadable on one leg are rewritten with the other leg's data ([`crate::io::repair`]).
//! Each chunk is locked against writes while it is compared. An asynchronous peer may lag behind:
//! the comparison waits until the queue has sent everything written to the chunk before.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::time;

use crate::io::repair::RepairPeer;
use crate::limits::{CHECK_BYTES, EXCLUDE_MS};
use crate::mirror::{Inner, Mirror};
use crate::options::Mode;
use crate::session::outdated::NotOutdated;
use crate::session::resync::is_outage;
use crate::state::status::LegPhase;
use crate::wire::peer::{PeerRefusal, RequestError, SharedSession, checksums};

/// Result of a verify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Bytes compared.
    pub compared_bytes: u64,
    /// Differing parts, joined, as offset and length in bytes; at most [`DIFFERENCES_MAX`].
    pub differences: Vec<(u64, u64)>,
    /// Number of differing parts that are not listed.
    pub unlisted: u64,
    /// Range of the unlisted parts, as offset and length in bytes; `None` without any.
    pub beyond: Option<(u64, u64)>,
    /// Bytes of all differing parts, including unlisted ones.
    pub differing_bytes: u64,
}

impl VerifyReport {
    /// Adds a differing part behind all parts added so far.
    fn add(&mut self, at: u64, len: u64) {
        self.differing_bytes += len;
        let listed = self.differences.len();
        match (self.differences.last_mut(), &mut self.beyond) {
            (Some((from, known)), None) if *from + *known == at => *known += len,
            (_, None) if listed < DIFFERENCES_MAX => self.differences.push((at, len)),
            (_, Some((from, known))) => {
                // The space between two unlisted parts is included as well.
                self.unlisted += u64::from(*from + *known != at);
                *known = at + len - *from;
            }
            (_, beyond) => {
                *beyond = Some((at, len));
                self.unlisted = 1;
            }
        }
    }
}

/// Maximum number of listed differences.
pub const DIFFERENCES_MAX: usize = 10_000;

/// Why a verify ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// No such peer, or the peer is not in sync: there is nothing to compare.
    #[error("the peer is not in sync")]
    NotInSync,
    /// The local leg failed.
    #[error("the local leg: {0}")]
    Local(IoError),
    /// The peer failed.
    #[error("the peer: {0}")]
    Peer(RequestError),
    /// The arbiter did not record the peer as out of date: the differences were not copied.
    #[error(
        "differences were found and not copied: the arbiter has not recorded within {EXCLUDE_MS} ms that \
         the peer is out of date"
    )]
    Arbiter,
}

impl From<NotOutdated> for VerifyError {
    fn from(error: NotOutdated) -> VerifyError {
        match error {
            NotOutdated::Changed => VerifyError::NotInSync,
            NotOutdated::Arbiter => VerifyError::Arbiter,
            NotOutdated::Local(error) => VerifyError::Local(error),
        }
    }
}

impl Mirror {
    /// Compares with a peer in sync, limited to `bytes_per_second` if given; `progress` gets the
    /// bytes compared so far. With `mark`, a resync copies the differing parts to the peer at the
    /// end.
    ///
    /// # Errors
    /// See [`VerifyError`].
    pub async fn verify(
        &self,
        leg: usize,
        bytes_per_second: Option<u64>,
        mark: bool,
        mut progress: impl FnMut(u64),
    ) -> Result<VerifyReport, VerifyError> {
        let inner = &self.0;
        let (session, session_id) = in_sync(inner, leg)?;
        let size = inner.geometry.size_bytes;
        let mut report = VerifyReport::default();
        let mut at = 0;
        while at < size {
            let begins = time::now();
            let len = CHECK_BYTES.min(size - at);
            compare(inner, leg, (&session, session_id), (at, len), &mut report).await?;
            at += len;
            report.compared_bytes = at;
            progress(at);
            if let Some(rate) = bytes_per_second {
                let span = Duration::from_secs_f64(len as f64 / rate.max(1) as f64);
                time::sleep_until(begins + span).await;
            }
        }
        if mark && report.differing_bytes > 0 {
            let parts = report.differences.iter().chain(&report.beyond).copied();
            inner.outdate(leg, session_id, parts).await?;
        }
        Ok(report)
    }
}

fn in_sync(inner: &Arc<Inner>, leg: usize) -> Result<(SharedSession, u64), VerifyError> {
    let state = inner.lock();
    let own = state.legs.get(leg).filter(|own| own.phase == LegPhase::InSync && state.serving);
    let session = own.and_then(|own| own.session.clone().map(|session| (session, own.session_id)));
    session.ok_or(VerifyError::NotInSync)
}

async fn compare(
    inner: &Arc<Inner>,
    leg: usize,
    (session, session_id): (&SharedSession, u64),
    (offset, len): (u64, u64),
    report: &mut VerifyReport,
) -> Result<(), VerifyError> {
    let unit = inner.local.superblock().geometry.bit_bytes.min(CHECK_BYTES as u32);
    let guard = inner.range_lock.copy(offset, len).acquired().await;
    if inner.legs[leg].options().mode == Mode::Async {
        // Queued writes to this chunk arrive first. The lock keeps new ones out.
        inner.wait_for_queue(leg).await;
    }
    let peer = RepairPeer { leg, session_id, session: session.clone() };
    let (mut _guard, mut mine) = (guard, inner.leg_checksums(offset, len, unit).await);
    if mine.as_ref().is_err_and(|error| !is_outage(*error)) {
        _guard = inner.repair_local(_guard, &peer, (offset, len)).await;
        mine = inner.leg_checksums(offset, len, unit).await;
    }
    let mine = mine.map_err(VerifyError::Local)?;
    let mut theirs = checksums(session, offset, len, unit).await;
    let cannot_read = RequestError::Refused(PeerRefusal::Failed);
    if theirs == Err(cannot_read) {
        let is_bad = async |at: u64, unit: u64| {
            checksums(session, at, unit, unit as u32).await == Err(cannot_read)
        };
        _guard = inner.repair_peer(_guard, &peer, (offset, len), is_bad).await;
        theirs = checksums(session, offset, len, unit).await;
    }
    let theirs = theirs.map_err(VerifyError::Peer)?;
    for (index, _) in mine.iter().zip(&theirs).enumerate().filter(|(_, (a, b))| a != b) {
        let at = offset + index as u64 * u64::from(unit);
        report.add(at, u64::from(unit).min(offset + len - at));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of `parts` parts in which every second one differs.
    fn every_second(parts: u64) -> VerifyReport {
        let mut report = VerifyReport::default();
        (0..parts).step_by(2).for_each(|part| report.add(part * 4096, 4096));
        report
    }

    #[test]
    fn adjacent_differences_are_joined() {
        let mut report = every_second(3);
        report.add(3 * 4096, 100);
        assert_eq!(report.differences, [(0, 4096), (8192, 4196)]);
        assert_eq!((report.differing_bytes, report.beyond), (2 * 4096 + 100, None));
    }

    /// Unlisted parts are counted, and covered together with the space between them.
    #[test]
    fn unlisted_differences_are_covered() {
        let listed = 2 * DIFFERENCES_MAX as u64;
        let mut report = every_second(listed + 6);
        assert_eq!(report.differences.len(), DIFFERENCES_MAX);
        assert_eq!(report.unlisted, 3);
        assert_eq!(report.beyond, Some((listed * 4096, 5 * 4096)));
        // Adjacent to the last part.
        report.add((listed + 5) * 4096, 8);
        assert_eq!(report.unlisted, 3);
        assert_eq!(report.beyond, Some((listed * 4096, 5 * 4096 + 8)));
        assert_eq!(report.differing_bytes, (DIFFERENCES_MAX as u64 + 3) * 4096 + 8);
    }

    #[test]
    fn difference_adjacent_to_last_listed_is_joined() {
        let mut report = every_second(2 * DIFFERENCES_MAX as u64);
        report.add((2 * DIFFERENCES_MAX as u64 - 1) * 4096, 4096);
        assert_eq!((report.unlisted, report.beyond), (0, None));
    }
}
