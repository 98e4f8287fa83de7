//! Setup of a node: its configuration and the keys that it shares with the host and its peer, as
//! one JSON document, which one node writes and the other installs.
//!
//! The document holds secrets: its file has mode 0600.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flagstone_auth::Secret;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::exit::Failure;
use crate::key;
use crate::output::json;

/// Version of the document.
const VERSION: u32 = 1;

/// Largest document, in bytes.
const BYTES_MAX: u64 = 256 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setup {
    version: u32,
    /// Text of the configuration file.
    pub(crate) configuration: String,
    /// None if the configuration names none.
    pub(crate) keys: Option<SetupKeys>,
}

/// Texts of keys of DH-HMAC-CHAP.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetupKeys {
    pub(crate) host: String,
    pub(crate) pair: Option<String>,
}

impl std::fmt::Debug for SetupKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SetupKeys")
    }
}

impl SetupKeys {
    /// New random keys.
    pub(crate) fn generate(is_pair: bool) -> Result<SetupKeys, Failure> {
        let new = || key::new_secret().map(|text| text.trim_end().to_owned());
        Ok(SetupKeys { host: new()?, pair: is_pair.then(new).transpose()? })
    }

    fn check(&self) -> Result<(), Failure> {
        for key in std::iter::once(&self.host).chain(&self.pair) {
            Secret::parse(key).map_err(|error| Failure::usage(format!("a key: {error}")))?;
        }
        Ok(())
    }
}

impl Setup {
    pub(crate) fn new(configuration: String, keys: Option<SetupKeys>) -> Setup {
        Setup { version: VERSION, configuration, keys }
    }

    pub(crate) fn text(&self) -> Zeroizing<String> {
        Zeroizing::new(json(self))
    }

    /// Reads a setup; `-` is standard input. Its configuration is not checked.
    pub(crate) fn read(path: &Path) -> Result<Setup, Failure> {
        let name = path.display();
        let text = match path.as_os_str() == "-" {
            true => read_bounded(io::stdin().lock()),
            // No executor runs here.
            false => File::options().read(true).open(path).and_then(read_bounded),
        };
        let text = text.map_err(|error| Failure::failed(format!("{name}: {error}")))?;
        Setup::parse(&text).map_err(|Failure(exit, why)| Failure(exit, format!("{name}: {why}")))
    }

    fn parse(text: &str) -> Result<Setup, Failure> {
        let setup: Setup = serde_json::from_str(text).map_err(|error| {
            Failure::usage(format!("not a setup that `flagstone init --install` wrote: {error}"))
        })?;
        if setup.version != VERSION {
            let version = setup.version;
            let why = format!("version {version} of the setup is not known: update flagstone here");
            return Err(Failure::usage(why));
        }
        setup.keys.as_ref().map_or(Ok(()), SetupKeys::check)?;
        Ok(setup)
    }
}

fn read_bounded(from: impl Read) -> io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    from.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    match text.len() as u64 > BYTES_MAX {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setup_is_read_as_written() {
        let setup = Setup::new("[server]\n".into(), Some(SetupKeys::generate(true).unwrap()));
        assert_eq!(Setup::parse(&setup.text()).unwrap(), setup);
        assert!(!format!("{setup:?}").contains("DHHC"), "no key in messages");
    }

    #[test]
    fn broken_setups_are_refused_without_their_keys() {
        let whole = Setup::new(String::new(), Some(SetupKeys::generate(false).unwrap())).text();
        for (from, to, why) in [
            ("\"version\": 1", "\"version\": 2", "version 2"),
            ("DHHC-1:01:", "DHHC-1:09:", "a key"),
            ("\"pair\"", "\"peer\"", "unknown field"),
            ("{", "", "not a setup"),
        ] {
            let broken = whole.replacen(from, to, 1);
            let Failure(_, said) = Setup::parse(&broken).unwrap_err();
            assert!(said.contains(why) && !said.contains("DHHC-1"), "{why}: {said}");
        }
        let endless = read_bounded(io::repeat(b' '));
        assert_eq!(endless.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
