//! Users of the API over TCP: their token files, and the server's certificate, read at the start
//! and with every reload.

use std::path::PathBuf;
use std::sync::Arc;

use flagstone_config::{ApiTls, ApiUser, Config};
use flagstone_stack::keys;
use flagstone_stack::private_file::{self, PrivateFileError};
use rustls::pki_types::ServerName;

use crate::http::Exposition;
use crate::http::access::{AccessRefusal, Credentials, TokenHash, User, Users};
use crate::http::tls::{OwnCertificate, TlsError, client_verifier, server_config};
use crate::serve::Server;

/// Beginning of a line in a token file.
const HASH: &str = "sha256:";

/// Largest token file, in bytes: two hashes, and comments.
const FILE_BYTES: u64 = 4096;

/// Hashes of a user: one token, and another while it is replaced.
const TOKENS_MAX: usize = 2;

/// Credentials that cannot be used. The text has no part of a file's contents.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsersError {
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("token file {}: {problem}", path.display())]
    Token { path: PathBuf, problem: TokenProblem },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenProblem {
    #[error(transparent)]
    File(#[from] PrivateFileError),
    #[error("line {0} is no hash of a token: write the line that `flagstone key token` prints")]
    Line(usize),
    #[error("it has {0} hashes: write one, or two while one token replaces the other")]
    Count(usize),
}

/// Reads all credentials of the API.
///
/// # Errors
/// A file cannot be used.
pub(crate) fn read(tls: &ApiTls, users: &[ApiUser]) -> Result<Credentials, UsersError> {
    let own = OwnCertificate { certificate: &tls.certificate_file, key: &tls.key_file };
    let verifier = tls.client_ca_file.as_deref().map(client_verifier).transpose()?;
    let config = server_config(own, verifier.clone())?;
    let users = users.iter().map(|user| {
        let tokens = user.token_file.as_ref().map(|path| {
            let problem = |problem| UsersError::Token { path: path.clone(), problem };
            read_tokens(path).map_err(problem)
        });
        let certificate = user.certificate_name.clone();
        Ok(User {
            name: user.name.as_str().into(),
            role: user.role,
            tokens: tokens.transpose()?.unwrap_or_default(),
            // The configuration has checked that it is a DNS name.
            certificate: certificate.and_then(|name| ServerName::try_from(name).ok()),
        })
    });
    let users = users.collect::<Result<_, UsersError>>()?;
    Ok(Credentials { tls: Arc::new(config), verifier, users })
}

fn read_tokens(path: &std::path::Path) -> Result<Vec<TokenHash>, TokenProblem> {
    parse(&private_file::read(path, FILE_BYTES)?)
}

/// Empty lines and lines that begin with `#` are ignored.
fn parse(text: &str) -> Result<Vec<TokenHash>, TokenProblem> {
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let hashes = lines.map(|(index, line)| hash(line).ok_or(TokenProblem::Line(index + 1)));
    let hashes = hashes.collect::<Result<Vec<_>, _>>()?;
    match hashes.len() {
        1..=TOKENS_MAX => Ok(hashes),
        count => Err(TokenProblem::Count(count)),
    }
}

fn hash(line: &str) -> Option<TokenHash> {
    let bytes = keys::from_hex(line.strip_prefix(HASH)?)?;
    bytes.as_slice().try_into().ok().map(TokenHash)
}

/// A token's hash as a line of a token file.
pub fn hash_line(token: &str) -> String {
    let TokenHash(bytes) = TokenHash::of(token.as_bytes());
    HASH.to_owned() + &keys::hex(&bytes)
}

/// Why the users and the certificate of a configuration cannot be used; `None` if they can.
pub fn check_users(config: &Config) -> Option<String> {
    let tls = config.server.api_tls.as_ref()?;
    read(tls, &config.api_users).err().map(|error| error.to_string())
}

impl Server {
    /// The users and certificates of `read_config`; `None` without an API over TCP.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn read_users(
        &self,
        read_config: &Config,
    ) -> Result<Option<Credentials>, UsersError> {
        match (self.api_users.get(), &read_config.server.api_tls) {
            (Some(_), Some(tls)) => read(tls, &read_config.api_users).map(Some),
            _ => Ok(None),
        }
    }
}

pub(super) fn metrics(server: &Server, out: &mut Exposition) {
    let help = "Refused calls of the API over TCP, by reason.";
    let mut family = out.family("flagstone_api_refusals_total", help);
    let refused = server.api_users.get().map(|users: &Arc<Users>| users.refused());
    for (reason, count) in AccessRefusal::ALL.iter().zip(refused.unwrap_or_default()) {
        family.count(&[("reason", reason.name())], count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_files_have_hashes_only() {
        let line = hash_line("canary");
        assert_eq!(parse(&format!("# old\n\n{line}\n")).unwrap(), [TokenHash::of(b"canary")]);
        assert_eq!(parse(&format!("{line}\n{line}\n")).unwrap().len(), 2);
        for (text, part) in [
            ("canary".to_owned(), "line 1 is no hash"),
            (format!("{line}0"), "line 1"),
            (format!("\n{}", line.replace("sha256", "sha512")), "line 2"),
            (String::new(), "0 hashes"),
            (format!("{line}\n{line}\n{line}"), "3 hashes"),
            (format!("sha256:{}", "é".repeat(32)), "line 1"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("canary"), "{error}");
        }
    }
}
