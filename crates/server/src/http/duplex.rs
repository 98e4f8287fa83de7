//! Conversation in memory: the real service over a pair of pipes, for tests and fuzzing.

use std::rc::Rc;

use flagstone_runtime::net::PeerUser;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use crate::http::access::AccessClaim;
use crate::http::connection::{Clock, serve_connection};
use crate::http::router::Router;
use crate::http::server::HttpOptions;
use crate::http::service::{RoutedCall, service};

const PIPE_BYTES: usize = 64 << 10;

/// Sends `input` over one connection, then ends its sending side, and returns all that comes back.
/// Handlers must not use the data path's runtime.
///
/// # Panics
/// If there cannot be a tokio runtime.
pub fn converse(router: &Rc<Router>, input: &[u8]) -> Vec<u8> {
    let (near, far) = duplex(PIPE_BYTES);
    let (calls, mut received) = mpsc::channel(1);
    let service = service(&router.routes(), &calls);
    let tasks = LocalSet::new();
    let user = PeerUser { user_id: 0, group_id: 0, process_id: Some(1) };
    let claim = AccessClaim::Local(Some(user));
    let clock = Rc::new(Clock::new(HttpOptions::default()));
    let (peer, orders) = (("test".into(), claim), Rc::default());
    tasks.spawn_local(serve_connection(far, peer, service, clock, |_| {}, orders));
    let router = router.clone();
    tasks.spawn_local(async move {
        while let Some(RoutedCall { route, call, response }) = received.recv().await {
            let _ = response.send(router.answer(route, call).await);
        }
    });
    let input = input.to_vec();
    let (mut receiving, mut sending) = tokio::io::split(near);
    tasks.spawn_local(async move {
        // The server may stop receiving before the end.
        let _ = sending.write_all(&input).await;
        let _ = sending.shutdown().await;
    });
    let runtime = Builder::new_current_thread().enable_time().build();
    let mut output = Vec::new();
    tasks.block_on(&runtime.expect("a runtime without I/O"), async {
        let _ = receiving.read_to_end(&mut output).await;
    });
    output
}
