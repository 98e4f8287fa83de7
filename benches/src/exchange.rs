//! Closed-loop client over one connection that knows only message lengths.

use std::time::Duration;

use flagstone_runtime::net::Stream;
use flagstone_runtime::{Buf, SendList, buf, time};

/// Size of the receive buffer for responses, in bytes.
const STAGING_BYTES: usize = 1 << 20;

/// Parameters of an exchange.
pub struct Exchange {
    /// Requests, one per queue slot, sent in turn. A request is one or more buffers. Responses are
    /// assumed to come in the order of the requests.
    pub requests: Vec<Vec<Buf>>,
    /// Length of each response, in bytes.
    pub response_bytes: usize,
    /// Duration.
    pub span: Duration,
}

/// Result of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Exchanges per second.
    pub per_second: f64,
    /// Mean time of one exchange, in µs: depth over rate (Little's law).
    pub latency_us: f64,
}

/// Runs the exchange with all requests outstanding.
pub async fn drive(stream: &Stream, exchange: &Exchange) -> Outcome {
    let depth = exchange.requests.len();
    let mut list = SendList::new();
    let mut staging = buf::alloc(STAGING_BYTES).await;
    let (mut next, mut have, mut done) = (0, 0, 0_u64);
    let mut push = |list: &mut SendList, count: usize| {
        for _ in 0..count {
            exchange.requests[next].iter().for_each(|part| list.push(part.clone()));
            next = (next + 1) % depth;
        }
    };
    push(&mut list, depth);
    let begin = time::now();
    let end = begin + exchange.span;
    loop {
        if !list.is_empty() {
            let (result, back) = stream.send_all(list).await;
            result.expect("the server is there");
            list = back;
        }
        let (result, back) = stream.recv(staging).await;
        staging = back;
        let count = result.expect("the server is there");
        assert!(count > 0, "the server has closed the connection");
        have += count;
        let whole = have / exchange.response_bytes;
        have %= exchange.response_bytes;
        done += whole as u64;
        if time::now() >= end {
            let per_second = done as f64 / begin.elapsed().as_secs_f64();
            return Outcome { per_second, latency_us: depth as f64 / per_second * 1e6 };
        }
        push(&mut list, whole);
    }
}
