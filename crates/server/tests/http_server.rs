//! HTTP server and client over both kinds of socket, with slow, silent and excessive peers.
#![allow(clippy::disallowed_methods, reason = "clients on plain threads, outside of the runtime")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::{alive, block_on, task, time};
use flagstone_server::http::limits::{MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADERS};
use flagstone_server::http::{
    Caller, Client, ClientError, HttpOptions, HttpServer, ListenerAccess, Method, Router, Site,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Longest wait of a test for bytes. A safety net.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Handlers of `/v1/wait` that have begun, and whether they may end.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static MAY_END: AtomicBool = AtomicBool::new(false);

fn router() -> Rc<Router> {
    let mut router = Router::new();
    router.get("/v1/hello", "Says hello.", |call| async move {
        let process = match call.caller {
            Caller::Local(user) => user.and_then(|user| user.process_id),
            _ => None,
        };
        Ok(json!({ "hello": process }))
    });
    router.get("/v1/large", "Says much.", |_| async { Ok("x".repeat(1 << 20)) });
    router.get("/v1/slow", "Takes its time.", |_| async {
        time::sleep(Duration::from_secs(2)).await;
        Ok("done")
    });
    router.get("/v1/wait", "Waits for a test.", |_| async {
        WAITING.fetch_add(1, Ordering::SeqCst);
        while !MAY_END.load(Ordering::SeqCst) {
            time::sleep(Duration::from_millis(1)).await;
        }
        Ok("done")
    });
    router.post("/v1/echo", "Says it again.", |call| async move { call.json::<Value>() });
    Rc::new(router)
}

fn any_port() -> Address {
    Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// Runs `test` with a server of each address, whose handlers run on a thread of their own.
fn with_servers(addresses: &[Address], options: HttpOptions, test: impl FnOnce(&[Address])) {
    let (tell, reported) = mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let addresses = addresses.to_vec();
    let core = std::thread::Builder::new().name("core 0".to_owned()).spawn(move || {
        block_on(async {
            let before = alive();
            let bind = |address| Listener::bind_private(address).unwrap();
            let listeners: Vec<_> = addresses.iter().map(bind).collect();
            let bound = listeners.iter().map(|listener| listener.address().clone()).collect();
            let site =
                |listener| Site { listener, router: router(), access: ListenerAccess::Local };
            let sites = listeners.into_iter().map(site).collect();
            let server = HttpServer::start(sites, options).unwrap();
            tell.send(bound).unwrap();
            let _ = stopped.await;
            drop(server);
            // Handlers end, and leave nothing behind.
            time::timeout(TIMEOUT, async {
                while alive().0 > before.0 {
                    task::yield_now().await;
                    time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await
            .unwrap_or_else(|_| panic!("{:?} is left of {before:?}", alive()));
        })
        .unwrap();
    });
    let bound: Vec<Address> = reported.recv().unwrap();
    test(&bound);
    drop(stop);
    core.unwrap().join().unwrap();
}

fn with_server(options: HttpOptions, test: impl FnOnce(&Address)) {
    with_servers(&[any_port()], options, |addresses| test(&addresses[0]));
}

fn connect(address: &Address) -> TcpStream {
    let Address::Tcp(address) = address else { panic!("{address} is not TCP") };
    let stream = TcpStream::connect_timeout(address, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Reads to the end of the connection.
fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error} after {} bytes", bytes.len()),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends bytes, closes the sending side if `close`, and reads to the end.
fn exchange(address: &Address, bytes: &[u8], close: bool) -> String {
    let mut stream = connect(address);
    let _ = stream.write_all(bytes);
    if close {
        let _ = stream.shutdown(Shutdown::Write);
    }
    rest(stream)
}

fn try_hello(address: &Address) -> Result<u16, ClientError> {
    let mut client = Client::connect(address).unwrap();
    Ok(client.ask(Method::GET, "/v1/hello", None)?.status)
}

fn hello(address: &Address) -> u16 {
    try_hello(address).unwrap()
}

#[test]
fn one_connection_serves_many_requests() {
    with_server(HttpOptions::default(), |address| {
        let mut client = Client::connect(address).unwrap();
        for round in 0..50 {
            let text = json!({ "round": round, "text": "y".repeat(round * 1000) }).to_string();
            let reply = client.ask(Method::POST, "/v1/echo", Some(text.as_bytes())).unwrap();
            assert_eq!(reply.status, 200);
            assert_eq!(serde_json::from_slice::<Value>(&reply.body).unwrap()["round"], round);
            let reply = client.ask(Method::HEAD, "/v1/large", None).unwrap();
            assert_eq!((reply.status, reply.body.len()), (200, 0));
        }
        let reply = client.ask(Method::GET, "/v1/large", None).unwrap();
        assert_eq!(
            (reply.body.len(), reply.content_type.as_str()),
            ((1 << 20) + 3, "application/json")
        );
        let reply = client.ask(Method::GET, "/v1/nothing", None).unwrap();
        assert_eq!((reply.status, reply.content_type.as_str()), (404, "application/problem+json"));
        // The answer to a body that is too large arrives, though the server has not read the body.
        let large = vec![b' '; MAX_BODY_BYTES + 1];
        let reply = client.ask(Method::POST, "/v1/echo", Some(&large)).unwrap();
        assert_eq!(reply.status, 413);
        client.ask(Method::GET, "/v1/hello", None).unwrap_err();
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    with_server(HttpOptions::default(), |address| {
        let body = "POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n123";
        let end = "GET /v1/hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET /v1/large";
        let text = exchange(address, format!("{body}{body}{end}").as_bytes(), false);
        assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 3, "{text}");
        assert_eq!(text.matches("123").count(), 2, "{text}");
        assert_eq!(text.to_ascii_lowercase().matches("connection: close").count(), 1, "{text}");
        let expects = "POST /v1/echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\
                       Connection: close\r\nContent-Length: 1\r\n\r\n";
        let mut stream = connect(address);
        stream.write_all(expects.as_bytes()).unwrap();
        let mut got = [0; 25];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got[..], b"HTTP/1.1 100 Continue\r\n\r\n");
        // A client that has closed its sending side still gets its answer.
        let slow = "GET /v1/slow HTTP/1.1\r\nHost: x\r\n\r\n";
        assert!(exchange(address, slow.as_bytes(), true).contains("done"));
    });
}

#[test]
fn slow_requests_get_408_and_idle_peers_are_closed() {
    let timeout = Duration::from_millis(100);
    let options = HttpOptions { request_timeout: timeout, ..HttpOptions::default() };
    with_server(options, |address| {
        for begin in [
            "GET /v1/hello HT",
            "POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1",
            "POST /v1/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1",
        ] {
            let text = exchange(address, begin.as_bytes(), false);
            assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
            assert!(text.contains("urn:flagstone:problem:timeout"), "{text}");
        }
        assert_eq!(exchange(address, b"GET /v1/hello HT", true), "");
        // A byte now and then does not extend the limit.
        let mut stream = connect(address);
        for _ in 0..300 {
            std::thread::sleep(Duration::from_millis(10));
            if stream.write_all(b"G").is_err() {
                break;
            }
        }
        assert!(stream.write_all(b"G").is_err());
        // A handler may take longer.
        let slow = "GET /v1/slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        assert!(exchange(address, slow.as_bytes(), false).contains("done"));
    });
    let options = HttpOptions { idle_timeout: timeout, ..HttpOptions::default() };
    with_server(options, |address| {
        assert_eq!(exchange(address, b"", false), "");
        let text = exchange(address, b"GET /v1/hello HTTP/1.1\r\nHost: x\r\n\r\n", false);
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    });
}

#[test]
fn oversized_heads_get_431() {
    with_server(HttpOptions::default(), |address| {
        let long =
            format!("GET /v1/hello HTTP/1.1\r\nHost: x\r\nX: {}", "y".repeat(MAX_HEAD_BYTES));
        let many = "a: b\r\n".repeat(MAX_HEADERS);
        let many = format!("GET /v1/hello HTTP/1.1\r\nHost: x\r\n{many}\r\n");
        for head in [long, many] {
            let text = exchange(address, head.as_bytes(), false);
            assert!(text.starts_with("HTTP/1.1 431 "), "{text}");
        }
        let many = "a: b\r\n".repeat(MAX_HEADERS - 2);
        let fits = format!("GET /v1/hello HTTP/1.1\r\nHost: x\r\n{many}Connection: close\r\n\r\n");
        assert!(exchange(address, fits.as_bytes(), false).starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn excess_connections_get_503() {
    let options = HttpOptions { max_connections: 2, ..HttpOptions::default() };
    with_server(options, |address| {
        let waits = b"GET /v1/wait HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let busy = [connect(address), connect(address)].map(|mut stream| {
            stream.write_all(waits).unwrap();
            stream
        });
        while WAITING.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        let text = exchange(address, b"", false);
        assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
        assert!(text.contains("urn:flagstone:problem:busy"), "{text}");
        MAY_END.store(true, Ordering::SeqCst);
        for stream in busy {
            assert!(rest(stream).starts_with("HTTP/1.1 200 "));
        }
        assert_eq!(hello(address), 200);
    });
}

/// Silent clients, clients in the middle of a request, and clients that do not read their answers
/// do not keep others out, at the limit of all connections and at that of one address.
#[test]
fn quiet_connections_make_room_for_active_ones() {
    for (max_connections, max_peer_connections) in [(4, 100), (100, 4)] {
        let options =
            HttpOptions { max_connections, max_peer_connections, ..HttpOptions::default() };
        with_server(options, |address| {
            let large = "GET /v1/large HTTP/1.1\r\nHost: x\r\n\r\n".repeat(64);
            let mut slow = Vec::new();
            for begin in ["", "GET /v1/he", "GET /v1/hello HTTP/1.1\r\nHost: x\r\n\r\n", &large] {
                for _ in 0..8 {
                    let mut stream = connect(address);
                    let _ = stream.write_all(begin.as_bytes());
                    slow.push(stream);
                    // Clients that do not read are active until their sockets are full.
                    let mut served = try_hello(address);
                    while begin == large && !matches!(served, Ok(200)) {
                        served = try_hello(address);
                    }
                    assert!(matches!(served, Ok(200)), "{begin}: {served:?}");
                }
            }
        });
    }
}

#[test]
fn stuck_peers_of_one_listener_do_not_block_another() {
    let options = HttpOptions { max_connections: 4, ..HttpOptions::default() };
    with_servers(&[any_port(), any_port()], options, |addresses| {
        let request = "GET /v1/large HTTP/1.1\r\nHost: x\r\n\r\n".repeat(64);
        let mut stuck = Vec::new();
        for _ in 0..8 {
            let mut stream = connect(&addresses[0]);
            // It never reads the answers.
            let _ = stream.write_all(request.as_bytes());
            stuck.push(stream);
        }
        for _ in 0..20 {
            assert_eq!(hello(&addresses[1]), 200);
        }
        drop(stuck);
    });
}

#[test]
fn server_stops_promptly_with_open_connections() {
    let mut left = Vec::new();
    let mut bound = None;
    with_server(HttpOptions::default(), |address| {
        for begin in ["", "GET /v1/he", "GET /v1/slow HTTP/1.1\r\nHost: x\r\n\r\n"] {
            let mut stream = connect(address);
            stream.write_all(begin.as_bytes()).unwrap();
            left.push(stream);
        }
        assert_eq!(hello(address), 200);
        bound = Some(address.clone());
    });
    for stream in left {
        assert_eq!(rest(stream), "");
    }
    let Some(Address::Tcp(address)) = bound else { panic!("it was bound") };
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn unix_socket_identifies_the_peer() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("api.sock"));
    let mut left = None;
    with_servers(std::slice::from_ref(&address), HttpOptions::default(), |addresses| {
        let mut client = Client::connect(&addresses[0]).unwrap();
        let reply = client.ask(Method::GET, "/v1/hello", None).unwrap();
        let hello: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(hello["hello"], std::process::id());
        left = Some(client);
    });
    left.unwrap().ask(Method::GET, "/v1/hello", None).unwrap_err();
    assert_eq!(Client::connect(&address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn client_refuses_unbounded_answers() {
    let listener = std::os::unix::net::UnixListener::bind;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fake.sock");
    let listener = listener(&path).unwrap();
    let heads = [
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
        format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(2 * MAX_HEAD_BYTES)),
        "SSH-2.0-OpenSSH\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1".to_owned(),
    ];
    let answers = heads.clone();
    let server = std::thread::Builder::new().spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    for head in heads {
        let mut client = Client::connect(&Address::Unix(path.clone())).unwrap();
        client.ask(Method::GET, "/", None).expect_err(&head);
    }
    server.unwrap().join().unwrap();
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
        let timeout = Duration::from_millis(20);
        let options = HttpOptions {
            request_timeout: timeout,
            idle_timeout: timeout,
            ..HttpOptions::default()
        };
        with_server(options, |address| {
            let text = exchange(address, &[begins[begin], &bytes].concat(), close);
            assert!(text.is_empty() || text.starts_with("HTTP/1.1 "), "{text}");
            // The server continues to serve. Its timeouts may be too short for a busy machine.
            let served = |_| Client::connect(address).unwrap().ask(Method::GET, "/v1/hello", None);
            assert!((0..100).map(served).any(|reply| reply.is_ok_and(|reply| reply.status == 200)));
        });
    }
}
