//! The server with peers of all kinds, over both kinds of socket.
#![allow(missing_docs)]

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use flagstone_api::limits::MAX_BODY_BYTES;
use flagstone_api::{Client, ClientError, Method, Response, Router, ServerOptions, serve};
use flagstone_runtime::net::{Address, Listener, Stream};
use flagstone_runtime::{alive, block_on, buf, spawn, task, time};
use proptest::prelude::*;
use serde_json::{Value, json};

fn router() -> Rc<Router> {
    let mut router = Router::new();
    router.get("/v1/hello", "Says hello.", |call| async move {
        Ok(Response::ok(&json!({ "hello": call.request.user.map(|user| user.process_id) })))
    });
    router.get("/v1/large", "Says much.", |_| async {
        Ok(Response::text("text/plain", "x".repeat(1 << 20)))
    });
    router.post("/v1/echo", "Says it again.", |call| async move {
        Ok(Response::ok(&call.json::<Value>()?))
    });
    Rc::new(router)
}

fn any_port() -> Address {
    Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// Runs `test` with the address of a server.
fn with_server(options: ServerOptions, test: impl AsyncFnOnce(&Address)) {
    block_on(async {
        let before = alive();
        let listener = Listener::bind(&any_port()).unwrap();
        let address = listener.address().clone();
        let server = spawn(serve(listener, router(), options)).abort_on_drop();
        test(&address).await;
        drop(server);
        // Connections end with their server, and leave nothing behind.
        time::timeout(Duration::from_secs(30), async {
            while alive().0 > before.0 {
                task::yield_now().await;
                time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{:?} is left of {before:?}", alive()));
    })
    .unwrap();
}

/// Sends bytes, closes the sending side if asked to, and reads to the end.
async fn exchange(address: &Address, bytes: &[u8], close: bool) -> String {
    let stream = Stream::connect(address).await.unwrap();
    for part in bytes.chunks(4096) {
        let mut block = buf::alloc_small(part.len());
        block.copy_from_slice(part);
        if stream.send_buf(block.freeze()).await.is_err() {
            break;
        }
    }
    if close {
        stream.shutdown_sending();
    }
    let mut all = Vec::new();
    loop {
        let (result, block) = stream.recv(buf::alloc_small(4096)).await;
        match result {
            Ok(count @ 1..) => all.extend_from_slice(&block[..count]),
            _ => return String::from_utf8_lossy(&all).into_owned(),
        }
    }
}

#[test]
fn one_connection_serves_many_requests() {
    with_server(ServerOptions::default(), async |address| {
        let mut client = Client::connect(address).await.unwrap();
        for round in 0..50 {
            let text = json!({ "round": round, "text": "y".repeat(round * 1000) }).to_string();
            let reply = client.ask(Method::Post, "/v1/echo", Some(text.as_bytes())).await.unwrap();
            assert_eq!(reply.status, 200);
            assert_eq!(serde_json::from_slice::<Value>(&reply.body).unwrap()["round"], round);
            let reply = client.ask(Method::Head, "/v1/large", None).await.unwrap();
            assert_eq!((reply.status, reply.body.len()), (200, 0));
        }
        let reply = client.ask(Method::Get, "/v1/large", None).await.unwrap();
        assert_eq!((reply.body.len(), reply.content_type.as_str()), (1 << 20, "text/plain"));
        let reply = client.ask(Method::Get, "/v1/nothing", None).await.unwrap();
        assert_eq!((reply.status, reply.content_type.as_str()), (404, "application/problem+json"));
        // What one byte too many does, and that the answer arrives though nobody read the body.
        let large = vec![b' '; MAX_BODY_BYTES + 1];
        let reply = client.ask(Method::Post, "/v1/echo", Some(&large)).await.unwrap();
        assert_eq!(reply.status, 413);
        client.ask(Method::Get, "/v1/hello", None).await.unwrap_err();
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    with_server(ServerOptions::default(), async |address| {
        let body = "POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n123";
        let end = "GET /v1/hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET /v1/large";
        let text = exchange(address, format!("{body}{body}{end}").as_bytes(), false).await;
        assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 3, "{text}");
        assert_eq!(text.matches("123").count(), 2, "{text}");
        assert_eq!(text.matches("Connection: close").count(), 1, "{text}");
        let expects = "POST /v1/echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\
                       Connection: close\r\nContent-Length: 1\r\n\r\n";
        let stream = Stream::connect(address).await.unwrap();
        stream
            .send_buf(flagstone_runtime::Buf::copy_of(expects.as_bytes()).unwrap())
            .await
            .unwrap();
        let (result, got) = stream.recv_exact(buf::alloc_small(25)).await;
        result.unwrap();
        assert_eq!(&got[..], b"HTTP/1.1 100 Continue\r\n\r\n");
    });
}

#[test]
fn a_peer_that_dawdles_is_told_and_closed() {
    let patience = Duration::from_millis(50);
    let options = ServerOptions { request_patience: patience, ..ServerOptions::default() };
    with_server(options, async |address| {
        let text = exchange(address, b"GET /v1/hello HT", false).await;
        assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
        let text = exchange(address, b"GET /v1/hello HT", true).await;
        assert_eq!(text, "");
    });
    let options = ServerOptions { idle_patience: patience, ..ServerOptions::default() };
    with_server(options, async |address| {
        assert_eq!(exchange(address, b"", false).await, "");
    });
}

#[test]
fn one_connection_too_many_is_told_so() {
    let options = ServerOptions { max_connections: 2, ..ServerOptions::default() };
    with_server(options, async |address| {
        let mut first = Client::connect(address).await.unwrap();
        let mut second = Client::connect(address).await.unwrap();
        for client in [&mut first, &mut second] {
            assert_eq!(client.ask(Method::Get, "/v1/hello", None).await.unwrap().status, 200);
        }
        let text = exchange(address, b"", false).await;
        assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
        drop(first);
        // Its place is free once the server has seen its end.
        loop {
            let mut third = Client::connect(address).await.unwrap();
            match third.ask(Method::Get, "/v1/hello", None).await {
                Ok(reply) if reply.status == 200 => break,
                Ok(reply) => assert_eq!(reply.status, 503),
                Err(ClientError::System(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
}

#[test]
fn a_unix_socket_tells_who_asks() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let address = Address::Unix(folder.path().join("api.sock"));
        let listener = Listener::bind_private(&address).unwrap();
        let server = spawn(serve(listener, router(), ServerOptions::default())).abort_on_drop();
        let mut client = Client::connect(&address).await.unwrap();
        let reply = client.ask(Method::Get, "/v1/hello", None).await.unwrap();
        let hello: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(hello["hello"], std::process::id());
        drop(server);
        client.ask(Method::Get, "/v1/hello", None).await.unwrap_err();
    })
    .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_are_answered_or_ended(begin in 0..4_usize, bytes: Vec<u8>, close: bool) {
        let begins: [&[u8]; 4] = [
            b"",
            b"GET /v1/hello HTTP/1.1\r\nHost: x\r\n",
            b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
            b"GET /v1/hello HTTP/1.1\r\nHost: x\r\n\r\n",
        ];
        let patience = Duration::from_millis(20);
        let options = ServerOptions {
            request_patience: patience,
            idle_patience: patience,
            ..ServerOptions::default()
        };
        with_server(options, async |address| {
            let text = exchange(address, &[begins[begin], &bytes].concat(), close).await;
            assert!(text.is_empty() || text.starts_with("HTTP/1.1 "), "{text}");
            // And the server serves on.
            let mut client = Client::connect(address).await.unwrap();
            assert_eq!(client.ask(Method::Get, "/v1/hello", None).await.unwrap().status, 200);
        });
    }
}
