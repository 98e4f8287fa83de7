//! A verify that runs beside everything else, and what it has found.

use std::cell::RefCell;
use std::rc::Rc;

use flagstone_blockdev::BlockDevice as _;
use flagstone_mirror::Mirror;
use flagstone_mirror::verify::{Findings, VerifyError};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{spawn, time};

use super::mirror_document::VerifyDocument;
use crate::limits::API_DIFFERENCES;

/// See the module. Ends when dropped.
pub(super) struct Verify {
    document: Rc<RefCell<VerifyDocument>>,
    task: Option<AbortOnDrop<()>>,
}

impl Verify {
    /// Begins one.
    pub(super) fn begin(
        mirror: Mirror,
        leg: usize,
        peer: String,
        repair: bool,
        bytes_per_second: Option<u64>,
    ) -> Verify {
        let document = Rc::new(RefCell::new(VerifyDocument {
            peer,
            running: true,
            total_bytes: mirror.geometry().size_bytes,
            repair,
            bytes_per_second,
            began_seconds: time::wall_clock().as_secs(),
            ..VerifyDocument::default()
        }));
        let told = document.clone();
        let work = async move {
            let progress = |bytes| told.borrow_mut().compared_bytes = bytes;
            let result = mirror.verify(leg, bytes_per_second, repair, progress).await;
            let mut document = told.borrow_mut();
            end(&mut document, result);
            let (found, error) = (document.differing_bytes, &document.error);
            tracing::info!(peer = document.peer, differing_bytes = found, ?error, "a verify ended");
        };
        Verify { document, task: Some(spawn(work).abort_on_drop()) }
    }

    pub(super) fn document(&self) -> VerifyDocument {
        self.document.borrow().clone()
    }

    /// Ends it where it is.
    pub(super) fn stop(&mut self) {
        self.task = None;
        let mut document = self.document.borrow_mut();
        if std::mem::take(&mut document.running) {
            document.error = Some("it was stopped".to_owned());
        }
    }
}

fn end(document: &mut VerifyDocument, result: Result<Findings, VerifyError>) {
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
    fn findings_are_listed_up_to_a_limit() {
        let differences: Vec<_> = (0..API_DIFFERENCES as u64 + 3).map(|at| (at * 8, 4)).collect();
        let findings = Findings {
            compared_bytes: 9,
            differing_bytes: 12,
            differences,
            unlisted: 2,
            ..Findings::default()
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
