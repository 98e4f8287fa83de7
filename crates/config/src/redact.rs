//! Redaction of a configuration for a bug report: keys and values without secrets and comments.
//!
//! Only parsed values are repeated. Of a text that is not TOML nothing is, because a secret in it
//! cannot be told from the rest.

use std::fmt::Write as _;
use std::path::Path;

use toml_edit::{Item, Value};

use crate::starter::{key, quoted};
use crate::{Diagnostics, files};

/// Stands in place of a secret.
pub const REDACTED: &str = "(redacted)";

/// Parts of the names of keys whose values are secret.
const SECRET_KEYS: [&str; 7] =
    ["secret", "password", "passphrase", "psk", "token", "credential", "key"];

/// Beginnings of secrets in their own formats: DH-HMAC-CHAP (NVMe Base 2.1, section 8.3.5.5.7) TLS
/// (NVMe/TCP Transport 1.1, section 3.6.1.5), and tokens of the API.
const SECRET_PREFIXES: [&str; 3] = ["DHHC-1:", "NVMeTLSkey-1:", TOKEN_PREFIX];

/// Beginning of a token of the API.
pub const TOKEN_PREFIX: &str = "flagstone-token-";

/// The keys of the file or directory `path`, one on each line as TOML, with secrets replaced by
/// [`REDACTED`].
pub fn configuration(path: &Path) -> Result<String, String> {
    let unreadable = |error: Diagnostics| {
        error.items().first().map_or(String::new(), |item| item.message.clone())
    };
    let (text, _) = files::read_texts(path, &path.display().to_string()).map_err(unreadable)?;
    // The parser's message could repeat the text.
    let document = toml_edit::Document::parse(text.as_str()).map_err(|_| "it is not TOML")?;
    let mut out = String::new();
    for (name, item) in document.as_table() {
        write_item(&mut out, &key(name), name, item);
    }
    Ok(out)
}

/// A text, such as a log, with what looks like a secret replaced by [`REDACTED`]: secrets in their
/// own formats, and the user part of a URL.
pub fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut rest = line;
        while let Some((at, length)) = first_secret(rest) {
            out += &rest[..at];
            out += REDACTED;
            rest = &rest[at + length..];
        }
        out += rest;
    }
    out
}

/// A line with each byte of its secrets replaced by `*`, so that places in it stay.
pub(crate) fn mask(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    while let Some((at, length)) = first_secret(&line[out.len()..]) {
        let start = out.len();
        out += &line[start..start + at];
        out += &"*".repeat(length);
    }
    let rest = out.len();
    out + &line[rest..]
}

/// Start and length of the first secret of a line.
fn first_secret(line: &str) -> Option<(usize, usize)> {
    let end = |from: usize, stops: &[char]| {
        let is_end = |c: char| c.is_whitespace() || stops.contains(&c);
        line[from..].find(is_end).unwrap_or(line.len() - from)
    };
    let formats = SECRET_PREFIXES.iter().filter_map(|prefix| {
        let at = line.find(prefix)?;
        Some((at, end(at, &['"', '\'', ',', ')', ']', '}'])))
    });
    let users = line.match_indices("://").find_map(|(at, _)| {
        let from = at + 3;
        let authority = &line[from..from + end(from, &['/', '?', '#', '"', '\'', ','])];
        authority
            .rfind('@')
            .filter(|length| *length > 0 && &authority[..*length] != REDACTED)
            .map(|length| (from, length))
    });
    formats.chain(users).min()
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_KEYS.iter().any(|part| name.contains(part))
}

fn write_item(out: &mut String, path: &str, name: &str, item: &Item) {
    match item.as_table_like() {
        Some(table) if !is_secret(name) => {
            for (name, item) in table.iter() {
                write_item(out, &format!("{path}.{}", key(name)), name, item);
            }
        }
        _ => {
            let secret = is_secret(name);
            let value = item.as_value().filter(|_| !secret);
            let value = value.map_or_else(|| quoted(REDACTED), shown);
            let _ = writeln!(out, "{path} = {value}");
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(string) => quoted(&text(string.value())),
        Value::Integer(number) => number.value().to_string(),
        Value::Float(number) => number.value().to_string(),
        Value::Boolean(boolean) => boolean.value().to_string(),
        Value::Datetime(datetime) => datetime.value().to_string(),
        Value::Array(array) => {
            let values: Vec<_> = array.iter().map(shown).collect();
            format!("[{}]", values.join(", "))
        }
        Value::InlineTable(table) => {
            let entry = |(name, value): (&str, &Value)| match is_secret(name) {
                true => format!("{} = {}", key(name), quoted(REDACTED)),
                false => format!("{} = {}", key(name), shown(value)),
            };
            let entries: Vec<_> = table.iter().map(entry).collect();
            format!("{{ {} }}", entries.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(text: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("f.toml");
        std::fs::write(&file, text).expect("it can be written");
        configuration(&file)
    }

    #[test]
    fn secrets_and_comments_are_left_out() {
        let text = "# the password is hunter2\n[server]\nlisten = [\"nbd://u:hunter2@h:1\"]\n\
            [peer.b]\nsecret = \"hunter2\"\nauth = { psk = \"hunter2\", hash = \"sha256\" }\n\
            [volume.\"ö\"]\ndevice = \"nbd://h/e\" # hunter2\nx = \"DHHC-1:00:hunter2:\"\n\
            limit.iops = 5\n[[volume.a.keys]]\nvalue = \"hunter2\"\n\
            [volume.b]\nlayers = [{ token = \"hunter2\" }]\n";
        let out = redacted(text).expect("it is TOML");
        assert!(!out.contains("hunter2"), "{out}");
        for line in [
            "server.listen = [\"nbd://(redacted)@h:1\"]",
            "peer.b.secret = \"(redacted)\"",
            "peer.b.auth.hash = \"sha256\"",
            "volume.\"ö\".device = \"nbd://h/e\"",
            "volume.\"ö\".limit.iops = 5",
            "volume.b.layers = [{ token = \"(redacted)\" }]",
        ] {
            assert!(out.lines().any(|found| found == line), "{line}:\n{out}");
        }
    }

    #[test]
    fn text_that_is_not_toml_is_not_repeated() {
        assert_eq!(redacted("secret = \"hunter2"), Err("it is not TOML".to_owned()));
    }

    #[test]
    fn log_lines_keep_everything_but_secrets() {
        let line = "at nvme-tcp://u:p@h:1/n, \"NVMeTLSkey-1:01:abc=:\" and a@b (DHHC-1:00:x:)\nend";
        assert_eq!(
            text(line),
            "at nvme-tcp://(redacted)@h:1/n, \"(redacted)\" and a@b ((redacted))\nend"
        );
    }
}
