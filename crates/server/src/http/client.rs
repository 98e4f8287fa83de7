//! HTTP client for the API of a server: one request after the other on one connection, blocking.
//!
//! An answer is complete, or an error. Its size and the wait for it are bounded.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use flagstone_runtime::net::Address;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use crate::http::limits::{MAX_HEAD_BYTES, MAX_HEADERS, MAX_REPLY_BYTES, REPLY_TIMEOUT};

/// The unreserved characters of RFC 3986, section 2.3, stay as they are.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes a segment of a path or a value of a query.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection failed or ended early.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The bytes are not an HTTP/1.1 response, or exceed a bound.
    #[error("the response is not valid HTTP/1.1: {0}")]
    Answer(String),
    /// No complete answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Value of `Content-Type`; empty when there is none.
    pub content_type: String,
    /// The body.
    pub body: Vec<u8>,
}

/// A server on another machine.
#[derive(Debug)]
pub struct TlsServer {
    /// Host name or IP address, which its certificate names.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The authorities, and the own certificate.
    pub tls: ClientConfig,
    /// The own token.
    pub token: Option<Zeroizing<String>>,
}

/// A connection to a server. Must not be used on a thread of a tokio runtime.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    requests: SendRequest<Full<Bytes>>,
    /// Value of `Host`.
    host: String,
    authorization: Option<HeaderValue>,
    timeout: Duration,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// The system's: `NotFound` for a socket that does not exist, `ConnectionRefused` for a socket
    /// that no process serves.
    pub fn connect(address: &Address) -> io::Result<Client> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let requests = runtime.block_on(async {
            match address {
                Address::Unix(path) => open(UnixStream::connect(path).await?).await,
                Address::Tcp(address) => open(TcpStream::connect(address).await?).await,
            }
        })?;
        let timeout = REPLY_TIMEOUT;
        let host = "localhost".to_owned();
        Ok(Client { runtime, requests, host, authorization: None, timeout })
    }

    /// Connects to a server on another machine.
    ///
    /// # Errors
    /// The system's; `InvalidData` if the certificate of either side is refused; `InvalidInput` for
    /// a host or a token that cannot be sent; `TimedOut`.
    pub fn connect_tls(server: TlsServer) -> io::Result<Client> {
        let invalid = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
        let TlsServer { host, port, tls, token } = server;
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name =
            ServerName::try_from(bare.clone()).map_err(|_| invalid("this is no host name"))?;
        let authorization = token.map(|token| {
            let bearer = Zeroizing::new(format!("Bearer {}", token.as_str()));
            HeaderValue::from_str(&bearer).map(|mut value| {
                value.set_sensitive(true);
                value
            })
        });
        let authorization = authorization.transpose();
        let authorization =
            authorization.map_err(|_| invalid("the token is not printable ASCII"))?;
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let connecting = async {
            let stream = TcpStream::connect((bare.as_str(), port)).await?;
            let tls = TlsConnector::from(Arc::new(tls)).connect(name, stream).await?;
            open(tls).await
        };
        let connected = runtime.block_on(async { timeout(REPLY_TIMEOUT, connecting).await });
        let requests = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let (host, timeout) = (format!("{host}:{port}"), REPLY_TIMEOUT);
        Ok(Client { runtime, requests, host, authorization, timeout })
    }

    /// Sets how long each answer is waited for; 30 s by default.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Sends a request and waits for the answer. After an error the connection is unusable.
    ///
    /// # Errors
    /// See [`ClientError`]. A status of any kind is an answer.
    pub fn ask(
        &mut self,
        method: Method,
        path: &str,
        json: Option<&[u8]>,
    ) -> Result<Reply, ClientError> {
        self.send(method, path, json.map(|json| ("application/json", json)))
    }

    /// Same as [`Client::ask`] with a body of any type.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<(&str, &[u8])>,
    ) -> Result<Reply, ClientError> {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(header::HOST, &self.host);
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        if let Some((media_type, _)) = body {
            request = request.header(header::CONTENT_TYPE, media_type);
        }
        let body = Full::new(Bytes::copy_from_slice(body.map_or(&[], |(_, bytes)| bytes)));
        let request = request.body(body);
        let request = request.map_err(|error| {
            ClientError::System(io::Error::new(io::ErrorKind::InvalidInput, error))
        })?;
        let requests = &mut self.requests;
        let exchange = async {
            requests.ready().await.map_err(failed)?;
            complete(requests.send_request(request).await.map_err(failed)?).await
        };
        let answer = self.runtime.block_on(async { timeout(self.timeout, exchange).await });
        answer.unwrap_or(Err(ClientError::TimedOut(self.timeout)))
    }
}

/// Starts the connection's task, which runs while an answer is awaited.
async fn open<S>(stream: S) -> io::Result<SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD_BYTES);
    let opened = builder.handshake(TokioIo::new(stream)).await;
    let (requests, connection) = opened.map_err(io::Error::other)?;
    // An error reaches the request that it affects.
    drop(tokio::spawn(connection));
    Ok(requests)
}

async fn complete(response: Response<Incoming>) -> Result<Reply, ClientError> {
    let (head, body) = response.into_parts();
    // Without a length, an early end would look like the end of the body.
    match body.size_hint().exact() {
        Some(bytes) if bytes > MAX_REPLY_BYTES as u64 => return Err(too_large()),
        None if head.status != StatusCode::NO_CONTENT => {
            return Err(ClientError::Answer("it has no Content-Length".to_owned()));
        }
        _ => {}
    }
    let content_type = head.headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body =
        Limited::new(body, MAX_REPLY_BYTES).collect().await.map_err(|error| match error
            .downcast::<hyper::Error>()
        {
            Ok(error) => failed(*error),
            Err(error) if error.is::<LengthLimitError>() => too_large(),
            Err(error) => ClientError::Answer(error.to_string()),
        })?;
    Ok(Reply {
        status: head.status.as_u16(),
        content_type: content_type.to_owned(),
        body: body.to_bytes().into(),
    })
}

fn too_large() -> ClientError {
    ClientError::Answer(format!("its body is more than {MAX_REPLY_BYTES} bytes"))
}

fn failed(error: hyper::Error) -> ClientError {
    if let Some(system) = error.source().and_then(|source| source.downcast_ref::<io::Error>()) {
        return ClientError::System(io::Error::new(system.kind(), system.to_string()));
    }
    if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        return ClientError::System(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    ClientError::Answer(error.to_string())
}
