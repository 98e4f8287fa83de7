//! Redaction of a configuration for a bug report: keys and values without secrets and comments.
//!
//! The schema says which values may be repeated: the values of its keys, without the arguments of
//! commands and the users and unknown options of addresses. Only parsed values are repeated. Of a
//! text that is not TOML nothing is, because a secret in it cannot be told from the rest.

use std::fmt::Write as _;
use std::path::Path;

use toml_edit::{Item, Value};

use crate::schema::{Key, SECTIONS, Section, ValueKind};
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
    let mut read = files::read_texts(path, &path.display().to_string()).map_err(unreadable)?;
    if let Some(mistake) = read.mistakes.pop() {
        return Err(unreadable(mistake));
    }
    let text = read.text;
    // The parser's message could repeat the text.
    let document = toml_edit::Document::parse(text.as_str()).map_err(|_| "it is not TOML")?;
    let mut out = String::new();
    for (name, item) in document.as_table() {
        write_item(&mut out, &key(name), Place::Root.child(name), item);
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

/// A text with the secrets in their own formats that `arguments` have replaced by [`REDACTED`]. A
/// message may repeat an argument, such as a key that was given in place of its file.
pub fn arguments(text: &str, arguments: impl Iterator<Item = String>) -> String {
    arguments.fold(text.to_owned(), |mut text, argument| {
        let mut rest = &argument[..];
        while let Some((at, length)) = first_formatted(rest) {
            text = text.replace(&rest[at..at + length], REDACTED);
            rest = &rest[at + length..];
        }
        text
    })
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

/// Length of the part of a line from `from` to a space or one of `stops`.
fn part_length(line: &str, from: usize, stops: &[char]) -> usize {
    let is_end = |c: char| c.is_whitespace() || stops.contains(&c);
    line[from..].find(is_end).unwrap_or(line.len() - from)
}

/// Start and length of the first secret of a line in a format of its own.
fn first_formatted(line: &str) -> Option<(usize, usize)> {
    let starts = SECRET_PREFIXES.iter().filter_map(|prefix| line.find(prefix));
    let at = starts.min()?;
    Some((at, part_length(line, at, &['"', '\'', ',', ')', ']', '}'])))
}

/// Start and length of the first secret of a line.
fn first_secret(line: &str) -> Option<(usize, usize)> {
    let users = line.match_indices("://").find_map(|(at, _)| {
        let from = at + 3;
        // A password may have any of the characters that end an authority.
        let authority = &line[from..from + part_length(line, from, &['"', '\''])];
        authority
            .rfind('@')
            .filter(|length| *length > 0 && &authority[..*length] != REDACTED)
            .map(|length| (from, length))
    });
    first_formatted(line).into_iter().chain(users).min()
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_KEYS.iter().any(|part| name.contains(part))
}

/// Place in the schema.
#[derive(Clone, Copy)]
enum Place {
    Root,
    /// A table whose keys are names of such sections.
    Names(&'static Section),
    Section(&'static Section),
    Key(&'static Key),
    /// The schema does not have it: its values may be anything.
    Unknown,
}

impl Place {
    fn child(self, name: &str) -> Place {
        match self {
            Place::Root => {
                let of_names = |section: &&&Section| {
                    section.path.strip_suffix(".NAME").is_some_and(|path| path == name)
                };
                let one = SECTIONS.iter().find(|section| section.path == name);
                let one = one.map(|section| Place::Section(section));
                let named = SECTIONS.iter().find(of_names).map(|section| Place::Names(section));
                one.or(named).unwrap_or(Place::Unknown)
            }
            Place::Names(section) => Place::Section(section),
            Place::Section(section) => match section.key(name) {
                Some(Key { kind: ValueKind::Table(section), .. }) => Place::Section(section),
                Some(key) if !is_secret(name) => Place::Key(key),
                _ => Place::Unknown,
            },
            Place::Key(Key { kind: ValueKind::Entries(_, section), .. }) => {
                Place::Section(section).child(name)
            }
            Place::Key(_) | Place::Unknown => Place::Unknown,
        }
    }
}

fn write_item(out: &mut String, path: &str, place: Place, item: &Item) {
    match item.as_table_like() {
        Some(table) => {
            for (name, item) in table.iter() {
                write_item(out, &format!("{path}.{}", key(name)), place.child(name), item);
            }
        }
        None => {
            let value =
                item.as_value().map_or_else(|| quoted(REDACTED), |value| shown(place, value));
            let _ = writeln!(out, "{path} = {value}");
        }
    }
}

fn shown(place: Place, value: &Value) -> String {
    match (place, value) {
        (_, Value::Array(array)) => {
            let values: Vec<_> =
                array.iter().enumerate().map(|(at, value)| entry(place, at, value)).collect();
            format!("[{}]", values.join(", "))
        }
        (_, Value::InlineTable(table)) => {
            let entry = |(name, value): (&str, &Value)| {
                format!("{} = {}", key(name), shown(place.child(name), value))
            };
            let entries: Vec<_> = table.iter().map(entry).collect();
            format!("{{ {} }}", entries.join(", "))
        }
        (Place::Key(Key { kind: ValueKind::Command, .. }), _) => quoted(REDACTED),
        (Place::Key(key), Value::String(string)) => quoted(&address(key, string.value())),
        (Place::Key(_), Value::Integer(number)) => number.value().to_string(),
        (Place::Key(_), Value::Float(number)) => number.value().to_string(),
        (Place::Key(_), Value::Boolean(boolean)) => boolean.value().to_string(),
        (Place::Key(_), Value::Datetime(datetime)) => datetime.value().to_string(),
        _ => quoted(REDACTED),
    }
}

/// An entry of a list. Of a command only the program is shown.
fn entry(place: Place, at: usize, value: &Value) -> String {
    match (place, value) {
        (Place::Key(Key { kind: ValueKind::Command, .. }), Value::String(program))
            if at == 0
                && program.value().starts_with('/')
                && !program.value().contains(char::is_whitespace) =>
        {
            quoted(&text(program.value()))
        }
        _ => shown(place, value),
    }
}

/// Kinds of texts that name a host.
const ADDRESSES: [&str; 4] = ["address", "endpoint", "host and port", "listen address"];

/// Options of an address whose values are no secrets.
const OPEN_OPTIONS: [&str; 10] = [
    "queues",
    "header-digest",
    "data-digest",
    "hostnqn",
    "nsid",
    "concat",
    "socket",
    "tls",
    "tls-certificates",
    "tls-hostname",
];

/// A text of the configuration without the user and the secret options of an address.
fn address(key: &Key, value: &str) -> String {
    let value = text(value);
    let is_address = matches!(key.kind,
        ValueKind::Text(kind) | ValueKind::List(kind) | ValueKind::Entries(kind, _) if ADDRESSES.contains(&kind));
    // `text` has removed the user of an address with a scheme.
    let value = match value.rfind('@').filter(|_| is_address && !value.contains("://")) {
        Some(at) => format!("{REDACTED}{}", &value[at..]),
        None => value,
    };
    match value.split_once('?').filter(|_| is_address || value.contains(':')) {
        Some((base, query)) => format!("{base}?{}", options(query)),
        None => value,
    }
}

fn options(query: &str) -> String {
    let option = |part: &str| match part.split_once('=') {
        Some((name, value)) => {
            let is_path = name.ends_with("-file") && value.starts_with('/');
            let is_open = (OPEN_OPTIONS.contains(&name) || is_path) && !value.contains([';', '#']);
            if is_open { part.to_owned() } else { format!("{name}={REDACTED}") }
        }
        None if OPEN_OPTIONS.contains(&part) || part.is_empty() => part.to_owned(),
        None => REDACTED.to_owned(),
    };
    query.split('&').map(option).collect::<Vec<_>>().join("&")
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
            [volume.b]\nlayers = [{ token = \"hunter2\" }]\n\
            [peer.c]\naddress = \"u:a/hunter2@h:1\"\nfence_command = [\"/f -P hunter2\"]\n\
            [volume.c]\ndevice = \"nbd://u:a?hunter2@h/e\"\n\
            [volume.d]\ndevice = \"nvme-tcp://h/n?nsid=1;password=hunter2\"\n";
        let out = redacted(text).expect("it is TOML");
        assert!(!out.contains("hunter2"), "{out}");
        for line in [
            "server.listen = [\"nbd://(redacted)@h:1\"]",
            "peer.b.secret = \"(redacted)\"",
            "peer.b.auth.hash = \"(redacted)\"",
            "volume.\"ö\".device = \"nbd://h/e\"",
            "volume.\"ö\".limit.iops = 5",
            "volume.b.layers = [{ token = \"(redacted)\" }]",
        ] {
            assert!(out.lines().any(|found| found == line), "{line}:\n{out}");
        }
    }

    /// A canary in every key whose value can carry a secret: the user, the password and the options
    /// of an address, the words of a command, and whatever the schema does not know.
    #[test]
    fn no_key_of_the_reference_shows_a_secret() {
        const CANARY: &str = "hunter2";
        let mut places = 0;
        for section in SECTIONS {
            let path = section.path.replace("NAME", "x");
            for key in section.all_keys() {
                let texts = match key.kind {
                    ValueKind::Text(kind) | ValueKind::List(kind) | ValueKind::Entries(kind, _) => {
                        secrets_in(key.name, kind)
                    }
                    ValueKind::Command => vec!["-P", CANARY],
                    _ => Vec::new(),
                };
                let texts: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
                let values = match key.kind {
                    ValueKind::Text(_) => texts,
                    ValueKind::Command => vec![format!("[\"/sbin/fence\", {}]", texts.join(", "))],
                    _ => texts.iter().map(|text| format!("[{text}]")).collect(),
                };
                for value in values {
                    let text = format!("[{path}]\n{} = {value}\n", key.name);
                    let out = redacted(&text).expect("it is TOML");
                    assert!(!out.contains(CANARY) && out.contains(key.name), "{text}{out}");
                    places += 1;
                }
            }
            let text =
                format!("[{path}]\nunknown = [\"{CANARY}\"]\nother = {{ a = \"{CANARY}\" }}");
            let out = redacted(&text).expect("it is TOML");
            assert!(!out.contains(CANARY) && out.contains("unknown"), "{out}");
        }
        assert!(places > 30, "{places}");
    }

    /// Values of a text key that carry a secret.
    fn secrets_in(name: &str, kind: &str) -> Vec<&'static str> {
        let mut texts =
            vec!["DHHC-1:00:hunter2:", "nbd://u:hunter2@h/x", "nbd://h/x?nsid=1&token=hunter2"];
        if ADDRESSES.contains(&kind) {
            texts.extend(["u:hunter2@h:1", "h:1?password=hunter2", "h:1?hunter2"]);
        }
        if is_secret(name) {
            texts.push("hunter2");
        }
        texts
    }

    #[test]
    fn what_explains_an_error_stays() {
        let text = "[peer.b]\naddress = \"h:4420\"\nfence_command = [\"/sbin/fence\", \"a\", \"b\"]\n\
            [volume.a]\ndevice = \"nvme-tcp://h/n?queues=4&key-file=/etc/k&tokens=1\"\n\
            [server]\nlisten = [{ url = \"nbd://u@h\", insecure = true }]\n";
        let expected = "peer.b.address = \"h:4420\"\n\
            peer.b.fence_command = [\"/sbin/fence\", \"(redacted)\", \"(redacted)\"]\n\
            volume.a.device = \"nvme-tcp://h/n?queues=4&key-file=/etc/k&tokens=(redacted)\"\n\
            server.listen = [{ url = \"nbd://(redacted)@h\", insecure = true }]\n";
        assert_eq!(redacted(text).as_deref(), Ok(expected));
    }

    #[test]
    fn text_that_is_not_toml_is_not_repeated() {
        assert_eq!(redacted("secret = \"hunter2"), Err("it is not TOML".to_owned()));
    }

    #[test]
    fn messages_do_not_repeat_secrets_of_arguments() {
        let of =
            |text: &str, given: &[&str]| arguments(text, given.iter().map(|one| (*one).to_owned()));
        let key = "DHHC-1:00:ab+/c=:";
        let token = "--token-file=flagstone-token-ab12";
        assert_eq!(
            of(&format!("key file /{key}: no"), &["key", &format!("/{key}")]),
            "key file /(redacted): no"
        );
        assert_eq!(of("flagstone-token-ab12: no such file", &[token]), "(redacted): no such file");
        let device = format!("nvme-tcp://u@h/n?key-file={key}");
        assert_eq!(
            of(&format!("'{device}' is bad"), &[&device]),
            "'nvme-tcp://u@h/n?key-file=(redacted)' is bad"
        );
        // The message itself explains a format.
        let form = "a secret has the form DHHC-1:00:BASE64:";
        assert_eq!(of(form, &["key", "check", "a"]), form);
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
