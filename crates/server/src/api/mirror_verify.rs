//! Background verify of a mirror, with its document.

use std::cell::RefCell;
use std::rc::Rc;

use flagstone_blockdev::BlockDevice as _;
use flagstone_mirror::Mirror;
use flagstone_mirror::session::verify::{VerifyError, VerifyReport};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{spawn, time};

use super::mirror_document::VerifyDocument;
use crate::limits::API_DIFFERENCES;

/// A running or completed verify. Dropping it stops the task.
pub(super) struct VerifyTask {
    document: Rc<RefCell<VerifyDocument>>,
    task: Option<AbortOnDrop<()>>,
}

impl VerifyTask {
    pub(super) fn begin(
        mirror: Mirror,
        leg: usize,
        peer: String,
        repair: bool,
        bytes_per_second: Option<u64>,
    ) -> VerifyTask {
        let document = Rc::new(RefCell::new(VerifyDocument {
            peer,
            running: true,
            total_bytes: mirror.geometry().size_bytes,
            repair,
            bytes_per_second,
            started_seconds: time::wall_clock().as_secs(),
            ..VerifyDocument::default()
        }));
        let shared = document.clone();
        let work = async move {
            let progress = |bytes| shared.borrow_mut().compared_bytes = bytes;
            let result = mirror.verify(leg, bytes_per_second, repair, progress).await;
            let mut document = shared.borrow_mut();
            end(&mut document, result);
            let (found, error) = (document.differing_bytes, &document.error);
            tracing::info!(peer = document.peer, differing_bytes = found, ?error, "verify ended");
        };
        VerifyTask { document, task: Some(spawn(work).abort_on_drop()) }
    }

    pub(super) fn document(&self) -> VerifyDocument {
        self.document.borrow().clone()
    }

    /// Stops it. The findings so far are dropped.
    pub(super) fn stop(&mut self) {
        self.task = None;
        let mut document = self.document.borrow_mut();
        if std::mem::take(&mut document.running) {
            document.error = Some("it was stopped".to_owned());
        }
    }
}

fn end(document: &mut VerifyDocument, result: Result<VerifyReport, VerifyError>) {
    document.running = false;
    match result {
        Ok(findings) => {
            document.compared_bytes = findings.compared_bytes;
            document.differing_bytes = findings.differing_bytes;
            let listed = findings.differences.len().min(API_DIFFERENCES);
            document.unlisted = (findings.differences.len() - listed) as u64 + findings.unlisted;
            document.differences = findings.differences[..listed].to_vec();
        }
        Err(error) => document.error = Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verify_lists_limited_differences() {
        let differences: Vec<_> = (0..API_DIFFERENCES as u64 + 3).map(|at| (at * 8, 4)).collect();
        let findings = VerifyReport {
            compared_bytes: 9,
            differing_bytes: 12,
            differences,
            unlisted: 2,
            ..VerifyReport::default()
        };
        let mut document = VerifyDocument { running: true, ..VerifyDocument::default() };
        end(&mut document, Ok(findings));
        assert!(!document.running && document.error.is_none());
        assert_eq!((document.differences.len(), document.unlisted), (API_DIFFERENCES, 3 + 2));
        let mut document = VerifyDocument { running: true, ..VerifyDocument::default() };
        end(&mut document, Err(VerifyError::NotInSync));
        assert_eq!(document.error.as_deref(), Some("the peer is not in sync"));
    }
}
