//! Client of the local server's control API.

use std::io;
use std::path::PathBuf;

use flagstone_config::api_spec::default_sockets;
use flagstone_runtime::net::Address;
use flagstone_server::http::limits::STREAM_TYPE;
use flagstone_server::http::{Client, Method, Reply};
use serde::de::DeserializeOwned;

use crate::exit::Failure;

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

    /// Posts a part of a stream.
    pub(crate) fn post_bytes(&mut self, path: &str, body: &[u8]) -> Result<String, Failure> {
        let reply = self.client.send(Method::POST, path, Some((STREAM_TYPE, body)));
        text(reply.map_err(|error| format!("the server stopped answering: {error}")))
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
        io::ErrorKind::PermissionDenied => {
            "permission denied: run as its owner or as root".to_owned()
        }
        _ => error.to_string(),
    }
}
