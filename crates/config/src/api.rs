//! The API over TCP in a configuration: its listener, its certificate and its users.

use std::net::SocketAddr;

use super::check::RawConfig;
use super::diagnostic::{Located, Report};
use super::model::{ApiRole, ApiTls, ApiUser};
use super::read::file_path;
use super::reader::Reader;
use crate::api_spec::parse_api_tls;
use crate::uri::{UriHost, parse_authority};

/// `[server.api_tls]`. One with a mistake has no value.
pub(crate) struct RawApiTls {
    pub(crate) listen: Option<Located<SocketAddr>>,
    value: Option<ApiTls>,
    table: Located<()>,
}

impl RawApiTls {
    pub(crate) fn finish(self) -> Option<ApiTls> {
        self.value
    }
}

pub(crate) fn read_api_tls(server: &Reader<'_>) -> Option<RawApiTls> {
    let reader = server.table("api_tls")?;
    for (key, help) in [
        ("listen", "listen = \"ADDRESS:PORT\""),
        ("certificate_file", "certificate_file = \"/PATH\""),
        ("key_file", "key_file = \"/PATH\""),
    ] {
        if !reader.has(key) {
            let message = reader.message(|title| format!("[{title}] has no {key}"));
            reader.report().error(reader.place(), message, format!("write {help}"));
        }
    }
    let file = |key| reader.parsed(key, file_path).map(|path| path.value);
    let listen = reader.parsed("listen", parse_api_tls);
    let files = file("certificate_file").zip(file("key_file"));
    let client_ca_file = file("client_ca_file");
    let value = listen.as_ref().zip(files).map(|(listen, (certificate_file, key_file))| ApiTls {
        listen: listen.value,
        certificate_file,
        key_file,
        client_ca_file,
    });
    let table = Located { value: (), place: reader.place().clone() };
    Some(RawApiTls { listen, value, table })
}

pub(crate) fn read_api_user(
    name: Located<String>,
    reader: &Reader<'_>,
) -> (Located<String>, Option<ApiUser>) {
    if !reader.has("token_file") && !reader.has("certificate_name") {
        let message =
            reader.message(|title| format!("[{title}] has no token_file and no certificate_name"));
        let help = "write token_file = \"/PATH\" (`flagstone key token` makes a token), or \
                    certificate_name = \"NAME\"";
        reader.report().error(reader.place(), message, help);
    }
    let word = reader.choice("role");
    let role = ApiRole::ALL.into_iter().find(|role| role.name() == word);
    let token_file = reader.parsed("token_file", file_path).map(|path| path.value);
    let certificate_name = reader.parsed("certificate_name", dns_name);
    let own_name = name.value.clone();
    let user = role.map(|role| ApiUser {
        name: own_name,
        role,
        token_file,
        certificate_name: certificate_name.map(|name| name.value),
    });
    (name, user)
}

fn dns_name(text: &str) -> Result<String, &'static str> {
    match parse_authority(text, 0) {
        Ok(address) if !text.contains(':') => match address.host {
            UriHost::Name(name) => Ok(name),
            UriHost::Ip(_) => Err("write a DNS name, such as alice.example.com"),
        },
        _ => Err("write a DNS name, such as alice.example.com"),
    }
}

/// Checks the users against the listener.
pub(crate) fn check(raw: &RawConfig, report: &Report) {
    let Some(tls) = &raw.server.api_tls else {
        for (name, _) in &raw.api_users {
            let message = "a user of the API, which is not served over TCP".to_owned();
            let help = "write [server.api_tls], or remove the user";
            report.warn(&name.place, message, help);
        }
        return;
    };
    if raw.api_users.is_empty() {
        let help = "write [api_user.NAME] with token_file or certificate_name";
        report.error(&tls.table.place, "the API over TCP has no users", help);
    }
    let accepts_certificates = tls.value.as_ref().is_none_or(|tls| tls.client_ca_file.is_some());
    let by_certificate = raw
        .api_users
        .iter()
        .filter(|(_, user)| user.as_ref().is_some_and(|user| user.certificate_name.is_some()));
    for (name, _) in by_certificate.filter(|_| !accepts_certificates) {
        let help = "write client_ca_file = \"/PATH\" in [server.api_tls]";
        let message = format!("no authority can vouch for the certificate of `{}`", name.value);
        report.error_with(&name.place, message, help, ("the listener is at", &tls.table.place));
    }
}
