//! Client of the control API: of a server on this machine, or of one on another machine over TLS.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use flagstone_config::api_spec::{API_TLS_PORT, default_sockets};
use flagstone_config::uri::parse_authority;
use flagstone_runtime::net::Address;
use flagstone_server::http::limits::STREAM_TYPE;
use flagstone_server::http::tls::{OwnCertificate, client_config};
use flagstone_server::http::{Client, Method, RemoteServer, Reply};
use flagstone_stack::private_file;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use crate::exit::Failure;

/// Beginning of the address of an API on another machine.
const HTTPS: &str = "https://";

/// Largest file of a token, in bytes.
const TOKEN_BYTES: u64 = 4096;

/// The server that a command asks.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ApiArgs {
    /// The server's API: its Unix socket, which it prints at startup, or https://HOST or
    /// https://HOST:PORT on another machine; the default sockets if not given
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) api: Option<String>,
    /// For https: file with the user's token, mode 0600
    #[arg(long, value_name = "FILE", requires = "api")]
    pub(crate) token_file: Option<PathBuf>,
    /// For https: authorities that issued the server's certificate, as PEM; this machine's
    /// authorities if not given
    #[arg(long, value_name = "FILE", requires = "api")]
    pub(crate) ca_file: Option<PathBuf>,
    /// For https: the user's certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "certificate_key_file")]
    pub(crate) certificate_file: Option<PathBuf>,
    /// For https: its private key, mode 0600
    #[arg(long, value_name = "FILE", requires = "certificate_file")]
    pub(crate) certificate_key_file: Option<PathBuf>,
}

impl ApiArgs {
    /// Connects to the server.
    pub(crate) fn connect(&self) -> Result<ApiClient, Failure> {
        let Some(address) = self.api.as_deref().and_then(|api| api.strip_prefix(HTTPS)) else {
            if self.token_file.is_some()
                || self.ca_file.is_some()
                || self.certificate_file.is_some()
            {
                let text = "a socket needs no token and no certificate: write --api https://HOST";
                return Err(Failure::usage(text));
            }
            return ApiClient::find(self.api.as_ref().map(PathBuf::from).as_ref());
        };
        let address = address.strip_suffix('/').unwrap_or(address);
        let place = parse_authority(address, API_TLS_PORT)
            .map_err(|error| Failure::usage(format!("--api: {error}")))?;
        let own = self.certificate_file.as_deref().zip(self.certificate_key_file.as_deref());
        let own = own.map(|(certificate, key)| OwnCertificate { certificate, key });
        let tls = client_config(self.ca_file.as_deref(), own).map_err(Failure::failed)?;
        let token = self.token_file.as_ref().map(|file| {
            let text = private_file::read(file, TOKEN_BYTES)
                .map_err(|error| Failure::failed(format!("{}: {error}", file.display())))?;
            Ok::<_, Failure>(Zeroizing::new(text.trim().to_owned()))
        });
        let (host, port) = (place.host.to_string(), place.port);
        let server = RemoteServer { host, port, tls, token: token.transpose()? };
        let client = Client::connect_tls(server).map_err(|error| {
            Failure::failed(format!("cannot connect to https://{place}: {}", explained(&error)))
        })?;
        Ok(ApiClient { client })
    }
}

pub(crate) struct ApiClient {
    client: Client,
}

#[derive(serde::Deserialize)]
struct ProblemDocument {
    detail: String,
    #[serde(default)]
    accepted: Vec<String>,
}

impl ApiClient {
    /// Connects to the server at `socket`, or at the first default socket that accepts.
    pub(crate) fn find(socket: Option<&PathBuf>) -> Result<ApiClient, Failure> {
        let sockets = socket.map_or_else(default_sockets, |socket| vec![socket.clone()]);
        let mut tried = String::new();
        for socket in &sockets {
            match Client::connect(&Address::Unix(socket.clone())) {
                Ok(client) => return Ok(ApiClient { client }),
                Err(error) => {
                    tried += &format!("\n  tried {}: {}", socket.display(), explained(&error));
                }
            }
        }
        Err(Failure::failed(format!(
            "no server answers{tried}\n  start one: flagstone serve --volume db=disk.img\n  or give the socket of its line `API on PATH`: flagstone status --api PATH"
        )))
    }

    /// Waits for an answer that takes as long as reading a large device.
    pub(crate) fn wait_longer(&mut self) {
        self.client.set_timeout(Duration::from_secs(24 * 3600));
    }

    pub(crate) fn get_text(&mut self, path: &str) -> Result<String, Failure> {
        let reply = self.client.ask(Method::GET, path, None);
        text(reply.map_err(|error| format!("the server stopped answering: {error}")))
    }

    pub(crate) fn post_text(&mut self, path: &str, body: &str) -> Result<String, Failure> {
        let reply = self.client.ask(Method::POST, path, Some(body.as_bytes()));
        text(reply.map_err(|error| {
            format!("the server does not answer ({error}); the action continues: check its state")
        }))
    }

    /// Gets a part of a stream.
    pub(crate) fn get_bytes(&mut self, path: &str) -> Result<Vec<u8>, Failure> {
        let reply = self.client.ask(Method::GET, path, None);
        let reply = reply
            .map_err(|error| Failure::failed(format!("the server stopped answering: {error}")))?;
        match reply.status {
            200 => Ok(reply.body),
            status => Err(refused(status, &reply.body)),
        }
    }

    /// Posts a part of a stream. `lost` explains a server that stopped answering.
    pub(crate) fn post_bytes(
        &mut self,
        path: &str,
        body: &[u8],
        lost: impl FnOnce(&dyn Display) -> String,
    ) -> Result<String, Failure> {
        let reply = self.client.send(Method::POST, path, Some((STREAM_TYPE, body)));
        text(reply.map_err(|error| lost(&error)))
    }

    /// Gets a document.
    pub(crate) fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Failure> {
        read(self.get_text(path)?.as_bytes())
    }
}

fn text(reply: Result<Reply, String>) -> Result<String, Failure> {
    let reply = reply.map_err(Failure::failed)?;
    if reply.status != 200 {
        return Err(refused(reply.status, &reply.body));
    }
    String::from_utf8(reply.body).map_err(|_| Failure::failed("the server's answer is not UTF-8"))
}

pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    let read = serde_json::from_slice(body);
    read.map_err(|error| Failure::failed(format!("cannot parse the server's answer: {error}")))
}

fn refused(status: u16, body: &[u8]) -> Failure {
    let Ok(problem) = serde_json::from_slice::<ProblemDocument>(body) else {
        return Failure::failed(format!("the server refused the request: status {status}"));
    };
    let there_is = match problem.accepted.len() {
        0 => String::new(),
        _ => format!("\n  available: {}", problem.accepted.join(", ")),
    };
    Failure::failed(format!("{}{there_is}", problem.detail))
}

fn explained(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such socket".to_owned(),
        io::ErrorKind::ConnectionRefused => "no server listens on it".to_owned(),
        io::ErrorKind::TimedOut => "it does not answer".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "permission denied: run as its owner or as root".to_owned()
        }
        _ => error.to_string(),
    }
}
