//! HTTP for the object store's library: one request on one connection, with bounded answers.
//!
//! A connection is not kept: calls are rare, and a kept one could be dead. An answer that is no
//! success is shortened to its error code and message, because the rest may name keys, and because
//! a missing bucket must not look like a missing object.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use flagstone_config::BucketStore;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::http::uri::PathAndQuery;
use hyper::{StatusCode, Uri};
use hyper_util::rt::TokioIo;
use object_store::ClientConfigKey::AllowHttp;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::TlsSource;

/// Longest text of an error that is shown, in characters.
const SHOWN_MAX: usize = 200;
/// Latest end of credentials, in seconds from now or since 1970.
const CREDENTIAL_END_MAX: f64 = 1e11;
/// Codes of an object that does not exist.
const NO_OBJECT: [&str; 2] = ["NoSuchKey", "BlobNotFound"];

/// Codes of status 409 for a request that came together with another one. Nothing is decided: the
/// other one may fail.
const UNDECIDED: [&str; 2] = ["ConditionalRequestConflict", "OperationAborted"];

/// HTTP transport of the store's client.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    /// Authorities that are trusted; the machine's if `None`.
    pub(super) ca_file: Option<PathBuf>,
    /// Longest answer, in bytes.
    pub(super) answer_bytes_max: usize,
    pub(super) tls: TlsSource,
}

/// A client that may use plain HTTP, or not.
#[derive(Debug)]
struct Service {
    connector: Connector,
    is_plain_allowed: bool,
}

/// Checks that the authorities can be read, unless the connections are not encrypted.
///
/// # Errors
/// They cannot.
pub fn check(settings: &BucketStore, tls: TlsSource) -> io::Result<()> {
    if settings.endpoint.as_ref().is_none_or(|url| url.starts_with("https:")) {
        tls(settings.ca_file.as_deref())?;
    }
    Ok(())
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allowed = options.get_config_value(&AllowHttp).is_some_and(|value| value == "true");
        Ok(HttpClient::new(Service { connector: self.clone(), is_plain_allowed: allowed }))
    }
}

type Answered<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Service {
    fn call<'service, 'future>(&'service self, request: HttpRequest) -> Answered<'future>
    where
        'service: 'future,
        Self: 'future,
    {
        Box::pin(self.send(request))
    }
}

impl Service {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let uri = request.uri().clone();
        let limit = self.connector.answer_bytes_max;
        let host = uri.host().unwrap_or_default();
        // An IPv6 address is in brackets there.
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_encrypted = uri.scheme_str() == Some("https");
        if !is_encrypted && !self.is_plain_allowed {
            return Err(failure(HttpErrorKind::Unknown, "plain HTTP is not allowed here"));
        }
        let port = uri.port_u16().unwrap_or(default_port(&uri));
        let stream = TcpStream::connect((bare.as_str(), port)).await.map_err(|error| {
            failure(HttpErrorKind::Connect, format!("{host} cannot be reached: {error}"))
        })?;
        let _ = stream.set_nodelay(true);
        if !is_encrypted {
            return exchange(stream, request, &uri, limit).await;
        }
        let unencrypted = |error: &dyn std::fmt::Display| {
            failure(HttpErrorKind::Connect, format!("TLS with {host}: {error}"))
        };
        let config = (self.connector.tls)(self.connector.ca_file.as_deref())
            .map_err(|error| unencrypted(&error))?;
        let name = ServerName::try_from(bare).map_err(|error| unencrypted(&error))?;
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name, stream).await.map_err(|e| unencrypted(&e))?;
        exchange(stream, request, &uri, limit).await
    }
}

async fn exchange<S>(
    stream: S,
    request: HttpRequest,
    uri: &Uri,
    answer_bytes_max: usize,
) -> Result<HttpResponse, HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let interrupted = |error: &dyn std::fmt::Display| {
        failure(HttpErrorKind::Interrupted, format!("the connection failed: {error}"))
    };
    let (mut requests, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| interrupted(&error))?;
    let (mut parts, body) = request.into_parts();
    let host = host_header(uri);
    parts.headers.insert(
        HOST,
        host.parse().map_err(|_| failure(HttpErrorKind::Unknown, "the host is invalid"))?,
    );
    parts.uri = Uri::from(uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")));
    let answer = async {
        let body = body.collect().await.map_err(|error| interrupted(&error))?.to_bytes();
        let request = hyper::Request::from_parts(parts, Full::new(body));
        let response = requests.send_request(request).await.map_err(|e| interrupted(&e))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, answer_bytes_max).collect().await;
        let body = body.map_err(|error| interrupted(&error))?.to_bytes();
        Ok::<_, HttpError>((parts, body))
    };
    // The connection ends with the answer: it is polled meanwhile, and may fail only with the
    // answer.
    let mut connection = std::pin::pin!(connection);
    let mut answer = std::pin::pin!(answer);
    let (parts, body) = tokio::select! {
        answered = &mut answer => answered,
        _ = &mut connection => answer.await,
    }?;
    let body = match parts.status {
        // The library panics on such bytes, which it puts into the next request as they are.
        status if status.is_success() && !fits_metadata(uri, &body) => {
            let what = "the machine's metadata service answers with an invalid token, role or JSON";
            return Err(failure(HttpErrorKind::Decode, what));
        }
        // The library panics on such a time, which it adds to the clock.
        status if status.is_success() && ends_too_late(&body) => {
            let what = "the credentials that were answered end in more than a thousand years";
            return Err(failure(HttpErrorKind::Decode, what));
        }
        status if status.is_success() || status == StatusCode::NOT_MODIFIED => body,
        status if status.is_redirection() => {
            let what = format!("status {status}: another `region` or `endpoint` has this bucket");
            return Err(failure(HttpErrorKind::Unknown, what));
        }
        status => {
            let (code, shown) = described(&body);
            let misleads = match status {
                StatusCode::NOT_FOUND => !NO_OBJECT.contains(&code.as_str()),
                StatusCode::CONFLICT => UNDECIDED.contains(&code.as_str()),
                _ => false,
            };
            if misleads {
                return Err(failure(HttpErrorKind::Unknown, format!("status {status}: {shown}")));
            }
            Bytes::from(shown)
        }
    };
    Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)))
}

/// The host and the port as the library signs them: without the scheme's default port.
fn host_header(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    let default = default_port(uri);
    match uri.port_u16() {
        Some(port) if port != default => format!("{host}:{port}"),
        _ => host.to_owned(),
    }
}

fn default_port(uri: &Uri) -> u16 {
    if uri.scheme_str() == Some("https") { 443 } else { 80 }
}

/// Whether the library can use this answer, if the metadata service of an EC2 machine gave it: a
/// token becomes a header, a role a part of a path.
fn fits_metadata(uri: &Uri, body: &[u8]) -> bool {
    if uri.path() == "/latest/api/token" {
        return is_word(body);
    }
    match uri.path().strip_prefix("/latest/meta-data/iam/security-credentials/") {
        // Names of roles have these characters (IAM, CreateRole).
        Some("") => {
            let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"+=,.@_-".contains(byte);
            !body.is_empty() && body.iter().all(is_allowed)
        }
        Some(_role) => body.first() == Some(&b'{'),
        None => true,
    }
}

/// Whether credentials end later than a clock can say. OAuth has seconds, some services as text.
fn ends_too_late(body: &[u8]) -> bool {
    let Ok(serde_json::Value::Object(answer)) = serde_json::from_slice(body) else { return false };
    let seconds = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.parse().ok(),
        value => value.as_f64(),
    };
    let ends = ["expires_in", "expires_on"].map(|key| answer.get(key).and_then(seconds));
    ends.into_iter().flatten().any(|seconds: f64| !(0.0..=CREDENTIAL_END_MAX).contains(&seconds))
}

/// Whether these bytes can be a token in a header, and a part of a path.
pub(super) fn is_word(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_graphic)
}

/// Code of an error in XML, or nothing, and the text to show.
fn described(body: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(body);
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(printable(rest.split_once(&format!("</{name}>"))?.0))
    };
    match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => (code.clone(), format!("{code}: {message}")),
        (Some(code), None) => (code.clone(), code),
        // It may quote the request, whose query may be a secret.
        (None, _) => (String::new(), "an answer without an error code".to_owned()),
    }
}

fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SHOWN_MAX).collect()
}

fn failure(kind: HttpErrorKind, what: impl Into<String>) -> HttpError {
    HttpError::new(kind, io::Error::other(what.into()))
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpRequestBody;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// The request as a server received it, and what became of this answer.
    fn exchanged(uri: &str, body: &str) -> (String, Result<HttpResponse, HttpError>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let (client, mut server) = tokio::io::duplex(4096);
            let uri: Uri = uri.parse().expect("a URI");
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = uri.clone();
            let serve = async {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    server.read_buf(&mut head).await.expect("a request");
                }
                let answer = format!("HTTP/1.1 200 x\r\ncontent-length: {}\r\n\r\n", body.len());
                server.write_all((answer + body).as_bytes()).await.expect("it is read");
                String::from_utf8(head).expect("ASCII")
            };
            tokio::join!(serve, exchange(client, request, &uri, 64 << 10))
        })
    }

    /// The library signs the host without it: a server that received it would refuse the signature.
    #[test]
    fn default_port_is_not_in_host_header() {
        for (uri, host) in [
            ("https://h:443/x", "h"),
            ("https://h/x", "h"),
            ("http://h:80/x", "h"),
            ("http://h:443/x", "h:443"),
            ("https://[::1]:443/x", "[::1]"),
            ("https://[::1]:9000/x", "[::1]:9000"),
        ] {
            let (head, answer) = exchanged(uri, "x");
            answer.expect("it answers");
            let line = format!("\r\nhost: {host}\r\n");
            assert!(head.to_lowercase().contains(&line), "{uri}: {head}");
        }
    }

    /// The library puts them into the next request, and panics if that is impossible.
    #[test]
    fn unusable_answers_of_metadata_are_errors() {
        let role = "http://169.254.169.254/latest/meta-data/iam/security-credentials/";
        let token = "http://169.254.169.254/latest/api/token";
        for uri in [role, token] {
            for body in ["", "a\nb", "a b", "a\u{7f}", "\u{201c}a"] {
                exchanged(uri, body).1.expect_err(body);
            }
            exchanged(uri, "AQAE=a-b").1.expect("a token");
        }
        let (list, role) = (role, format!("{role}admin"));
        exchanged(&role, "{\n \"Code\": 1}").1.expect("JSON");
        exchanged(&role, "[1]").1.expect_err("no object");
        for body in ["{\n}", "{}", "a<b", "a>b", "a`b", "a/b"] {
            exchanged(list, body).1.expect_err(body);
        }
        exchanged(token, "{\n}").1.expect_err("no token");
        exchanged("http://h/object", "a\nb").1.expect("an object");
    }

    #[test]
    fn credentials_without_a_usable_end_are_errors() {
        for end in ["18446744073709551615", "\"18446744073709551615\"", "1e300", "-1"] {
            for key in ["expires_in", "expires_on"] {
                let body = format!("{{\"access_token\":\"a\",\"{key}\":{end}}}");
                exchanged("http://h/token", &body).1.expect_err(&body);
            }
        }
        let usual = "{\"expires_in\":3599,\"expires_on\":\"1806484173\",\"access_token\":\"a\"}";
        exchanged("http://h/token", usual).1.expect("a token");
    }

    #[test]
    fn errors_do_not_quote_the_request() {
        let (code, shown) = described(b"denied: /bucket/record?sv=1&sig=SECRET");
        assert!(code.is_empty() && !shown.contains("SECRET"), "{shown}");
        let (code, shown) =
            described(b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>");
        assert_eq!((code.as_str(), shown.as_str()), ("AccessDenied", "AccessDenied: no"));
    }
}
