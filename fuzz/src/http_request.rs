//! Requests of the control API, as they come off a socket.
//!
//! Input: the bytes of a connection. Whatever they are, each request in them is understood or
//! refused, what is understood keeps its bounds, and cutting the bytes short changes nothing but
//! that more is waited for.

use flagstone_api::head::{encode, parse};
use flagstone_api::limits::{MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_PARAMETERS, MAX_SEGMENTS};

/// Reads requests until the bytes end or are refused.
pub fn run(input: &[u8]) {
    let mut rest = input;
    loop {
        let head = match parse(rest) {
            Ok(Some(head)) => head,
            // More may always come, but not for ever.
            Ok(None) => return assert!(rest.len() < MAX_HEAD_BYTES),
            Err(problem) => {
                assert!((400..600).contains(&problem.status));
                let response = problem.response();
                return assert!(!response.body.is_empty());
            }
        };
        assert!(head.head_bytes > 0 && head.head_bytes <= rest.len().min(MAX_HEAD_BYTES));
        assert!(head.body_bytes <= MAX_BODY_BYTES);
        assert!(head.segments.len() <= MAX_SEGMENTS && head.query.len() <= MAX_PARAMETERS);
        assert_eq!(parse(&rest[..head.head_bytes]).as_ref(), Ok(&Some(head.clone())));
        assert_eq!(parse(&rest[..head.head_bytes - 1]), Ok(None));
        let path: String = head.segments.iter().map(|part| format!("/{}", encode(part))).collect();
        if !path.is_empty() && path.len() < MAX_HEAD_BYTES - 100 {
            let again = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            let again = parse(again.as_bytes()).expect("what was encoded is understood");
            assert_eq!(again.expect("it is whole").segments, head.segments);
        }
        match rest.get(head.head_bytes + head.body_bytes..) {
            Some(next) if !next.is_empty() => rest = next,
            _ => return,
        }
    }
}
