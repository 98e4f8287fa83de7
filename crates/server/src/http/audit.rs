//! Audit lines: one line in the log for each order, when it has been answered, with who gave it,
//! from where, what it was and its result.
//!
//! The target is `audit`, so that `RUST_LOG` and a log collector can tell the lines from others.
//! Calls of unknown users are no orders: the refusal log has them, at a bounded rate.

use axum::http::Method;
use flagstone_config::redact;

use crate::http::problem::RefusalReason;
use crate::http::response::Response;
use crate::http::router::Call;

/// Most bytes of an order's body in its line. The longest usual order has 200.
const BODY_BYTES: usize = 512;

/// An order that is being carried out.
pub(crate) struct AuditedOrder {
    who: String,
    from: std::sync::Arc<str>,
    what: String,
    body: String,
}

impl AuditedOrder {
    /// `None` for a call that only reads.
    pub(crate) fn of(call: &Call) -> Option<AuditedOrder> {
        (call.method == Method::POST).then(|| AuditedOrder {
            who: call.caller.to_string(),
            from: call.peer.clone(),
            what: format!("{} {}", call.method, call.path),
            body: shown(&call.body),
        })
    }

    /// Writes the line.
    pub(crate) fn answered(self, response: &Response) {
        let AuditedOrder { who, from, what, body } = self;
        let status = response.status().as_u16();
        let reason = response.extensions().get().map_or("done", |RefusalReason(reason)| reason);
        tracing::info!(target: "audit", who, from = &*from, body, status, "{what}: {reason}");
    }
}

/// A body on one line, without secrets and control characters.
fn shown(body: &[u8]) -> String {
    let cut = &body[..body.len().min(BODY_BYTES)];
    let compact = serde_json::from_slice::<serde_json::Value>(body).map(|json| json.to_string());
    let text = compact.unwrap_or_else(|_| cut.escape_ascii().to_string());
    let text = redact::text(&text);
    match text.char_indices().nth(BODY_BYTES) {
        None => text,
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_is_one_bounded_line_without_secrets() {
        assert_eq!(shown(b"{\n \"a\": [1,\n 2]}"), "{\"a\":[1,2]}");
        assert_eq!(shown(b"\xff\nnot JSON"), "\\xff\\nnot JSON");
        assert_eq!(shown(b""), "");
        let long = format!("\"{}\"", "x".repeat(2000));
        assert_eq!(shown(long.as_bytes()).len(), BODY_BYTES + 3);
        let secret = shown(b"{\"device\": \"DHHC-1:00:canary:\"}");
        assert!(!secret.contains("canary"), "{secret}");
    }
}
