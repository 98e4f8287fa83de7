//! Finding the server that runs on this machine, and asking it.

use std::io;
use std::path::PathBuf;

use flagstone_api::{Client, Method};
use flagstone_control::api_spec::default_sockets;
use flagstone_runtime::net::Address;
use serde::de::DeserializeOwned;

/// What went wrong, for the user.
#[derive(Debug)]
pub(crate) struct Problem(pub(crate) String);

/// A server that answers.
pub(crate) struct Server {
    client: Client,
}

/// A problem document, as far as people are told of it.
#[derive(serde::Deserialize)]
struct ProblemDocument {
    detail: String,
    #[serde(default)]
    accepted: Vec<String>,
}

impl Server {
    /// The server at `socket`, or at the first default place where one answers.
    pub(crate) async fn find(socket: Option<&PathBuf>) -> Result<Server, Problem> {
        let sockets = socket.map_or_else(default_sockets, |socket| vec![socket.clone()]);
        let mut tried = String::new();
        for socket in &sockets {
            match Client::connect(&Address::Unix(socket.clone())).await {
                Ok(client) => return Ok(Server { client }),
                Err(error) => {
                    tried += &format!("\n  tried {}: {}", socket.display(), explained(&error));
                }
            }
        }
        Err(Problem(format!(
            "no server answers{tried}\n  start one: flagstone serve --volume db=disk.img\n  or name \
             the socket that it printed as `API on PATH`: flagstone status --api PATH"
        )))
    }

    /// Asks for a document, and gives it as it came.
    pub(crate) async fn get_text(&mut self, path: &str) -> Result<String, Problem> {
        let reply = self.client.ask(Method::Get, path, None).await;
        let reply = reply
            .map_err(|error| Problem(format!("the server does not answer any more: {error}")))?;
        if reply.status != 200 {
            return Err(refused(reply.status, &reply.body));
        }
        String::from_utf8(reply.body).map_err(|_| Problem("the server's answer is no text".into()))
    }

    /// Has it do something, and gives the answer's document as it came.
    pub(crate) async fn post_text(&mut self, path: &str, body: &str) -> Result<String, Problem> {
        let reply = self.client.ask(Method::Post, path, Some(body.as_bytes())).await;
        let reply = reply.map_err(|error| {
            Problem(format!(
                "the server does not answer ({error}); what it began goes on: ask again what it \
                 came to"
            ))
        })?;
        if reply.status != 200 {
            return Err(refused(reply.status, &reply.body));
        }
        String::from_utf8(reply.body).map_err(|_| Problem("the server's answer is no text".into()))
    }

    /// Asks for a document.
    pub(crate) async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Problem> {
        read(self.get_text(path).await?.as_bytes())
    }
}

/// Reads a document.
pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let read = serde_json::from_slice(body);
    read.map_err(|error| Problem(format!("the server's answer is not understood: {error}")))
}

fn refused(status: u16, body: &[u8]) -> Problem {
    let Ok(problem) = serde_json::from_slice::<ProblemDocument>(body) else {
        return Problem(format!("the server refuses: status {status}"));
    };
    let there_is = match problem.accepted.len() {
        0 => String::new(),
        _ => format!("\n  there is: {}", problem.accepted.join(", ")),
    };
    Problem(format!("{}{there_is}", problem.detail))
}

fn explained(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such socket".to_owned(),
        io::ErrorKind::ConnectionRefused => "nobody serves it any more".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "it is another user's: ask as that user, or as root".to_owned()
        }
        _ => error.to_string(),
    }
}
