//! Online verify: both legs are compared by checksums, part by part, while hosts go on.
//!
//! A part is held against writes while it is compared. In asynchronous mode the peer lags behind
//! what is held: a difference counts when it is there still after the queue has run empty of what
//! was written before.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::time;

use crate::limits::CHECK_BYTES;
use crate::mirror::{Inner, Mirror};
use crate::options::Mode;
use crate::peer::{AskError, SharedSession, checksums};
use crate::state::Phase;

/// What a verify found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Bytes compared.
    pub compared_bytes: u64,
    /// Parts that differ, as offset and length in bytes; at most [`FINDINGS_MAX`], neighbours
    /// joined.
    pub differences: Vec<(u64, u64)>,
    /// How many parts differ that are not listed.
    pub unlisted: u64,
    /// From the first of those to the end of the last, as offset and length in bytes; `None`
    /// without any.
    pub beyond: Option<(u64, u64)>,
    /// Bytes of all parts that differ, those that are not listed included.
    pub differing_bytes: u64,
}

impl Findings {
    /// A part differs, behind all that are known.
    fn add(&mut self, at: u64, len: u64) {
        self.differing_bytes += len;
        let listed = self.differences.len();
        match (self.differences.last_mut(), &mut self.beyond) {
            (Some((from, known)), None) if *from + *known == at => *known += len,
            (_, None) if listed < FINDINGS_MAX => self.differences.push((at, len)),
            (_, Some((from, known))) => {
                // What lies between two of these is taken for different too.
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

/// Most differences that are listed.
pub const FINDINGS_MAX: usize = 10_000;

/// Why a verify ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// There is no such peer, or it is not in sync: there is nothing to compare.
    #[error("the peer is not in sync")]
    NotInSync,
    /// The local leg.
    #[error("the local leg: {0}")]
    Local(IoError),
    /// The peer.
    #[error("the peer: {0}")]
    Peer(AskError),
}

impl Mirror {
    /// Compares the local leg with that of a peer that is in sync, no faster than
    /// `bytes_per_second` if given; `progress` is told the bytes compared so far. With `mark`
    /// what differs is brought up to date from here, by a resync that begins at the end.
    ///
    /// # Errors
    /// See [`VerifyError`].
    pub async fn verify(
        &self,
        leg: usize,
        bytes_per_second: Option<u64>,
        mark: bool,
        mut progress: impl FnMut(u64),
    ) -> Result<Findings, VerifyError> {
        let inner = &self.0;
        let (session, serial) = in_sync(inner, leg)?;
        let size = inner.geometry.size_bytes;
        let mut findings = Findings::default();
        let mut at = 0;
        while at < size {
            let begins = time::now();
            let len = CHECK_BYTES.min(size - at);
            compare(inner, leg, &session, at, len, &mut findings).await?;
            at += len;
            findings.compared_bytes = at;
            progress(at);
            if let Some(rate) = bytes_per_second {
                let span = Duration::from_secs_f64(len as f64 / rate.max(1) as f64);
                time::sleep_until(begins + span).await;
            }
        }
        if mark && findings.differing_bytes > 0 {
            for (offset, len) in findings.differences.iter().chain(&findings.beyond) {
                inner.mark(leg, *offset, *len);
            }
            // The next meeting finds equal generations and marks: it copies these.
            inner.meet_anew(leg, serial);
        }
        Ok(findings)
    }
}

fn in_sync(inner: &Arc<Inner>, leg: usize) -> Result<(SharedSession, u64), VerifyError> {
    let state = inner.lock();
    let own = state.legs.get(leg).filter(|own| own.phase == Phase::InSync && state.active);
    let session = own.and_then(|own| own.session.clone().map(|session| (session, own.serial)));
    session.ok_or(VerifyError::NotInSync)
}

/// Compares one part, and notes what differs.
async fn compare(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    offset: u64,
    len: u64,
    findings: &mut Findings,
) -> Result<(), VerifyError> {
    let unit = inner.local.superblock().shape.bit_bytes.min(CHECK_BYTES as u32);
    let _held = inner.overlap.copy(offset, len).held().await;
    if inner.legs[leg].options().mode == Mode::Async {
        // What is queued of this part arrives first; nothing of it is added while it is held.
        inner.wait_for_queue(leg).await;
    }
    let mine = inner.sums(offset, len, unit).await.map_err(VerifyError::Local)?;
    let theirs = checksums(session, offset, len, unit).await.map_err(VerifyError::Peer)?;
    for (index, _) in mine.iter().zip(&theirs).enumerate().filter(|(_, (a, b))| a != b) {
        let at = offset + index as u64 * u64::from(unit);
        findings.add(at, u64::from(unit).min(offset + len - at));
    }
    Ok(())
}

impl Inner {
    /// Waits until all that is in a peer's queue now has been acknowledged or given up.
    pub(crate) async fn wait_for_queue(&self, leg: usize) {
        let place = self.legs[leg].queue().end();
        while !self.legs[leg].queue().is_past(place) {
            time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every second part of so many differs.
    fn every_second(parts: u64) -> Findings {
        let mut findings = Findings::default();
        (0..parts).step_by(2).for_each(|part| findings.add(part * 4096, 4096));
        findings
    }

    #[test]
    fn neighbours_are_one_difference() {
        let mut findings = every_second(3);
        findings.add(3 * 4096, 100);
        assert_eq!(findings.differences, [(0, 4096), (8192, 4196)]);
        assert_eq!((findings.differing_bytes, findings.beyond), (2 * 4096 + 100, None));
    }

    /// Whatever is not listed is counted, and copied with what lies between.
    #[test]
    fn more_differences_than_are_listed_are_all_covered() {
        let listed = 2 * FINDINGS_MAX as u64;
        let mut findings = every_second(listed + 6);
        assert_eq!(findings.differences.len(), FINDINGS_MAX);
        assert_eq!(findings.unlisted, 3);
        assert_eq!(findings.beyond, Some((listed * 4096, 5 * 4096)));
        // A neighbour of the last.
        findings.add((listed + 5) * 4096, 8);
        assert_eq!(findings.unlisted, 3);
        assert_eq!(findings.beyond, Some((listed * 4096, 5 * 4096 + 8)));
        assert_eq!(findings.differing_bytes, (FINDINGS_MAX as u64 + 3) * 4096 + 8);
    }

    #[test]
    fn a_neighbour_of_the_last_that_is_listed_is_one_with_it() {
        let mut findings = every_second(2 * FINDINGS_MAX as u64);
        findings.add((2 * FINDINGS_MAX as u64 - 1) * 4096, 4096);
        assert_eq!((findings.unlisted, findings.beyond), (0, None));
    }
}
