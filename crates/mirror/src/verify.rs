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
    /// Bytes of all parts that differ, those that are not listed included.
    pub differing_bytes: u64,
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
            for (offset, len) in &findings.differences {
                inner.mark(leg, *offset, *len);
            }
            // The next meeting finds equal generations and marks: it copies these.
            inner.lose(leg, serial);
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
    let _held = inner.overlap.change(offset, len).held().await;
    if inner.legs[leg].options().mode == Mode::Async {
        // What is queued of this part arrives first; nothing of it is added while it is held.
        inner.wait_for_queue(leg).await;
    }
    let mine = inner.sums(offset, len, unit).await.map_err(VerifyError::Local)?;
    let theirs = checksums(session, offset, len, unit).await.map_err(VerifyError::Peer)?;
    for (index, _) in mine.iter().zip(&theirs).enumerate().filter(|(_, (a, b))| a != b) {
        let at = offset + index as u64 * u64::from(unit);
        let len = u64::from(unit).min(offset + len - at);
        findings.differing_bytes += len;
        let listed = findings.differences.len();
        match findings.differences.last_mut() {
            Some((from, known)) if *from + *known == at => *known += len,
            _ if listed < FINDINGS_MAX => findings.differences.push((at, len)),
            _ => {}
        }
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
