//! The client of our own server: one request after the other on one connection.
//!
//! Promises: an answer is whole, or an error; its size and the patience with it are bounded.

use std::io;
use std::time::Duration;

use flagstone_runtime::net::{Address, Stream};
use flagstone_runtime::time;

use crate::limits::{MAX_HEAD_BYTES, MAX_HEADERS, MAX_REPLY_BYTES, REPLY_PATIENCE};
use crate::request::Method;
use crate::wire;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The system, or an end in the midst of an answer.
    #[error("{0}")]
    System(#[from] io::Error),
    /// What came is no answer of HTTP/1.1, or none that is taken.
    #[error("this is no answer of HTTP/1.1: {0}")]
    Answer(String),
    /// Nothing came in time.
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Type of the body; empty when it was not told.
    pub content_type: String,
    /// The body.
    pub body: Vec<u8>,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
}

struct Head {
    bytes: usize,
    body_bytes: usize,
    status: u16,
    content_type: String,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// The system's: `NotFound` for a socket that is not there, `ConnectionRefused` for one that
    /// nobody serves any more.
    pub async fn connect(address: &Address) -> io::Result<Client> {
        Ok(Client { stream: Stream::connect(address).await? })
    }

    /// Asks, and waits for the answer. After an error the connection is of no more use.
    ///
    /// # Errors
    /// See [`ClientError`]. A status of any kind is none.
    pub async fn ask(
        &mut self,
        method: Method,
        path: &str,
        json: Option<&[u8]>,
    ) -> Result<Reply, ClientError> {
        let mut request = format!("{} {path} HTTP/1.1\r\nHost: localhost\r\n", method.name());
        if let Some(json) = json {
            request += "Content-Type: application/json\r\n";
            request += &format!("Content-Length: {}\r\n", json.len());
        }
        request += "\r\n";
        let mut bytes = request.into_bytes();
        bytes.extend_from_slice(json.unwrap_or_default());
        let exchange = async {
            wire::send(&self.stream, &bytes).await?;
            self.reply(method).await
        };
        let answer = time::timeout(REPLY_PATIENCE, exchange).await;
        answer.unwrap_or(Err(ClientError::TimedOut(REPLY_PATIENCE)))
    }

    async fn reply(&self, method: Method) -> Result<Reply, ClientError> {
        let mut bytes = Vec::new();
        let head = loop {
            match parse(&bytes)? {
                Some(head) if head.status == 100 => drop(bytes.drain(..head.bytes)),
                Some(head) => break head,
                None => self.more(&mut bytes).await?,
            }
        };
        let body_bytes = if method == Method::Head { 0 } else { head.body_bytes };
        let mut body = bytes.split_off(head.bytes);
        while body.len() < body_bytes {
            self.more(&mut body).await?;
        }
        if body.len() > body_bytes {
            return Err(ClientError::Answer("it is longer than it says".to_owned()));
        }
        Ok(Reply { status: head.status, content_type: head.content_type, body })
    }

    async fn more(&self, into: &mut Vec<u8>) -> Result<(), ClientError> {
        match wire::receive(&self.stream, into).await? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            _ => Ok(()),
        }
    }
}

/// The head that `bytes` begins with; `None` when it is not whole.
fn parse(bytes: &[u8]) -> Result<Option<Head>, ClientError> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut fields);
    let wrong = |why: &str| ClientError::Answer(why.to_owned());
    let length = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
        Ok(httparse::Status::Partial) => return Err(wrong("its head is too large")),
        Err(error) => return Err(ClientError::Answer(error.to_string())),
    };
    let field = |name: &str| {
        let found = parsed.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        found.and_then(|field| std::str::from_utf8(field.value).ok())
    };
    let status = parsed.code.unwrap_or_default();
    let body_bytes = match field("content-length").map(str::parse) {
        Some(Ok(bytes)) if bytes <= MAX_REPLY_BYTES => bytes,
        None if matches!(status, 100 | 204) => 0,
        _ => return Err(wrong("it has no Content-Length that is taken")),
    };
    let content_type = field("content-type").unwrap_or_default().to_owned();
    Ok(Some(Head { bytes: length, body_bytes, status, content_type }))
}
