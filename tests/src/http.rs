//! HTTP by hand, over a Unix socket or TCP: a request, and all that comes back until the end.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::wire;

/// Longest wait for an answer. A safety net: it comes at once.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its head, whole.
    pub head: String,
    /// Its body.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {head:?}"));
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }
}

/// Sends bytes and gives all that comes back, if the peer ends its side. The bytes may be refused
/// before all are taken.
///
/// # Panics
/// If the answer does not end.
pub fn exchange(mut stream: impl Read + Write, bytes: &[u8]) -> Vec<u8> {
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("after {} bytes: {error}", answer.len()),
    }
    answer
}

/// Connects to a Unix socket.
///
/// # Panics
/// If nobody serves it.
pub fn unix(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket);
    let stream = stream.unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
    stream.set_read_timeout(Some(ANSWER_WAIT)).expect("the wait is not zero");
    stream
}

fn request(method: &str, path: &str) -> String {
    let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
    format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{length}\r\n")
}

/// Asks over a Unix socket.
///
/// # Panics
/// If what comes back is no answer.
pub fn ask(socket: &Path, method: &str, path: &str) -> Answer {
    let answer = exchange(unix(socket), request(method, path).as_bytes());
    Answer::parse(&String::from_utf8_lossy(&answer))
}

/// Asks over TCP, on this machine.
///
/// # Panics
/// If what comes back is no answer.
pub fn ask_port(port: u16, method: &str, path: &str) -> Answer {
    let answer = exchange(wire::connect(port), request(method, path).as_bytes());
    Answer::parse(&String::from_utf8_lossy(&answer))
}

/// Asks for a document that is there.
///
/// # Panics
/// If it is not.
#[track_caller]
pub fn get(socket: &Path, path: &str) -> Value {
    let answer = ask(socket, "GET", path);
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.json()
}
