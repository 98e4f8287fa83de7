//! `flagstone key`: makes and checks keys of NVMe/TCP hosts and peers, for authentication and TLS.
//!
//! A key is printed only if `generate` is asked for no file; `check` shows a fingerprint.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use flagstone_auth::tls::{PskHash, TlsKey, identities};
use flagstone_auth::{Hash, Secret};
use flagstone_config::names::{NameError, check_nqn};
use flagstone_config::redact::TOKEN_PREFIX;
use flagstone_runtime::{block_on, random_u64};
use flagstone_server::api::hash_line;
use flagstone_stack::keys;
use serde::Serialize;
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure};
use crate::output::{json, print};

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    action: KeyAction,
}

#[derive(Debug, Subcommand)]
enum KeyAction {
    /// Make a random key, as `nvme gen-dhchap-key` and `nvme gen-tls-key` do
    Generate(GenerateArgs),
    /// Make a random token for a user of the API over TCP, and print its hash for the server
    Token(TokenArgs),
    /// Check key files, and show fingerprints to compare with other machines
    Check(CheckArgs),
    /// Write a key in another form: for authentication, for TLS, or as hexadecimal digits
    Convert(ConvertArgs),
    /// Show the PSK identities of a TLS key: version 1, 0, and 1 of libnvme before 1.14
    Identity(IdentityArgs),
}

#[derive(Debug, Args)]
struct GenerateArgs {
    /// File to write, with mode 0600; it must not exist. The key is printed if there is none
    file: Option<PathBuf>,
    /// Make a key for TLS instead of one for authentication
    #[arg(long)]
    tls: bool,
    /// Make a key for encrypted volumes: 64 hexadecimal digits
    #[arg(long, conflicts_with_all = ["tls", "length", "hmac"])]
    volume: bool,
    /// Bytes of the key: 32, 48 or (without --tls) 64; by default the length of --hmac
    #[arg(long, value_name = "N")]
    length: Option<usize>,
    /// Hash function that binds the key to its owner's NQN
    #[arg(long, value_enum, value_name = "HASH", default_value = "sha256")]
    hmac: Transformation,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct TokenArgs {
    /// File to write for the user, with mode 0600; it must not exist
    file: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// The files: one key on a line, or two while one replaces the other
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ConvertArgs {
    /// File of one key: `DHHC-1:…`, `NVMeTLSkey-1:…`, or hexadecimal digits
    from: PathBuf,
    /// File to write, with mode 0600; it must not exist. The key is printed if there is none
    file: Option<PathBuf>,
    /// Form to write
    #[arg(long, value_enum, value_name = "FORM")]
    to: KeyForm,
    /// Hash function that binds the key to its owner's NQN; that of FROM if not given
    #[arg(long, value_enum, value_name = "HASH")]
    hmac: Option<Transformation>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct IdentityArgs {
    /// The file of the TLS key
    file: PathBuf,
    /// NQN of the host
    #[arg(long, value_name = "NQN", value_parser = nqn)]
    host: String,
    /// NQN of the subsystem
    #[arg(long, value_name = "NQN", value_parser = nqn)]
    subsystem: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KeyForm {
    /// `DHHC-1:HH:BASE64:`, for authentication
    Auth,
    /// `NVMeTLSkey-1:HH:BASE64:`, for TLS
    Tls,
    /// Hexadecimal digits, as `--secret` of nvme-cli and files of psktool have them
    Hex,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transformation {
    None,
    Sha256,
    Sha384,
    Sha512,
}

impl Transformation {
    fn hash(self) -> Option<Hash> {
        match self {
            Self::None => None,
            Self::Sha256 => Some(Hash::Sha256),
            Self::Sha384 => Some(Hash::Sha384),
            Self::Sha512 => Some(Hash::Sha512),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &KeyArgs) -> Result<Exit, Failure> {
    match &args.action {
        KeyAction::Generate(args) => generate(args),
        KeyAction::Token(args) => token(args),
        KeyAction::Check(args) => check(args),
        KeyAction::Convert(args) => convert(args),
        KeyAction::Identity(args) => identity(args),
    }
}

/// Bytes of a key for volumes.
const VOLUME_KEY_BYTES: usize = 32;

fn generate_for_volumes(file: Option<&Path>) -> Result<Exit, Failure> {
    let text = Zeroizing::new(format!("{}\n", keys::hex(&random(VOLUME_KEY_BYTES)?).as_str()));
    let Some(file) = file else { return Ok(print(&text, Exit::Success)) };
    write_private(file, &text)?;
    let line = format!("{}: keep copies; data is lost without the key\n", file.display());
    Ok(print(&line, Exit::Success))
}

fn generate(args: &GenerateArgs) -> Result<Exit, Failure> {
    if args.volume {
        return generate_for_volumes(args.file.as_deref());
    }
    let hash = args.hmac.hash();
    let length = args.length.unwrap_or(hash.map_or(32, Hash::digest_bytes));
    let (lengths, accepted): (&[usize], _) = match args.tls {
        true => (&[32, 48], "a key for TLS has 32 or 48 bytes"),
        false => (&[32, 48, 64], "a key for authentication has 32, 48 or 64 bytes"),
    };
    if !lengths.contains(&length) {
        return Err(Failure::usage(format!("{accepted}, not {length}")));
    }
    let bytes = random(length)?;
    let (text, fingerprint) = if args.tls {
        let hash = psk_hash(hash)?;
        if length == 48 && matches!(hash, Some(PskHash::Sha256)) {
            return Err(Failure::usage("a TLS key of 48 bytes has no SHA-256: add --hmac sha384"));
        }
        let key = TlsKey::new(&bytes, hash).map_err(Failure::usage)?;
        (key.text(), key.fingerprint())
    } else {
        let secret = Secret::new(&bytes, hash).map_err(Failure::usage)?;
        (secret.text(), secret.fingerprint())
    };
    let text = Zeroizing::new(format!("{}\n", text.as_str()));
    let Some(file) = &args.file else { return Ok(print_key(&text, args.json)) };
    write_private(file, &text)?;
    let file = file.display().to_string();
    let line = match args.json {
        true => json(&BTreeMap::from([("file", file), ("fingerprint", fingerprint)])),
        false => format!("{file}: fingerprint {fingerprint}\n"),
    };
    Ok(print(&line, Exit::Success))
}

/// Prints a key that goes to no file.
fn print_key(text: &str, as_json: bool) -> Exit {
    match as_json {
        true => {
            let text = Zeroizing::new(json(&BTreeMap::from([("key", text.trim_end())])));
            print(&text, Exit::Success)
        }
        false => print(text, Exit::Success),
    }
}

/// Text of a new key for authentication, with its end of line, as `generate` makes it by default.
pub(crate) fn new_secret() -> Result<Zeroizing<String>, Failure> {
    let hash = Some(Hash::Sha256);
    let secret = Secret::new(&random(32)?, hash).map_err(Failure::failed)?;
    Ok(Zeroizing::new(format!("{}\n", secret.text().as_str())))
}

/// Bytes of a key in any form, and the hash that binds it to its owner.
struct RawKey {
    bytes: Zeroizing<Vec<u8>>,
    hash: Option<Hash>,
}

/// Reads a file of exactly one key.
fn read_any(path: &Path) -> Result<RawKey, Failure> {
    let one = |count: usize| match count {
        1 => Ok(()),
        _ => Err(Failure::failed(format!("{}: it holds {count} keys, not one", path.display()))),
    };
    if keys::is_tls(path).map_err(Failure::failed)? {
        let found = keys::read_tls(path).map_err(Failure::failed)?;
        one(found.len())?;
        let bytes = Zeroizing::new(found[0].bytes().to_vec());
        let hash = found[0].transformation().map(|hash| match hash {
            PskHash::Sha256 => Hash::Sha256,
            PskHash::Sha384 => Hash::Sha384,
        });
        return Ok(RawKey { bytes, hash });
    }
    if let Some(bytes) = keys::read_hex(path).map_err(Failure::failed)? {
        return Ok(RawKey { bytes, hash: None });
    }
    let found = keys::read(path).map_err(Failure::failed)?;
    one(found.len())?;
    let bytes = Zeroizing::new(found[0].bytes().to_vec());
    Ok(RawKey { bytes, hash: found[0].transformation() })
}

fn convert(args: &ConvertArgs) -> Result<Exit, Failure> {
    let RawKey { bytes, hash } = read_any(&args.from)?;
    let hash = args.hmac.map_or(hash, Transformation::hash);
    let text = match args.to {
        KeyForm::Auth => Secret::new(&bytes, hash).map_err(Failure::failed)?.text(),
        KeyForm::Tls => TlsKey::new(&bytes, psk_hash(hash)?).map_err(Failure::failed)?.text(),
        KeyForm::Hex => keys::hex(&bytes),
    };
    let text = Zeroizing::new(format!("{}\n", text.as_str()));
    match &args.file {
        None => Ok(print_key(&text, args.json)),
        Some(file) => {
            write_private(file, &text)?;
            let file = file.display().to_string();
            let said =
                if args.json { json(&BTreeMap::from([("file", file)])) } else { String::new() };
            Ok(print(&said, Exit::Success))
        }
    }
}

fn psk_hash(hash: Option<Hash>) -> Result<Option<PskHash>, Failure> {
    match hash {
        None => Ok(None),
        Some(Hash::Sha256) => Ok(Some(PskHash::Sha256)),
        Some(Hash::Sha384) => Ok(Some(PskHash::Sha384)),
        Some(Hash::Sha512) => Err(Failure::usage("a TLS key has --hmac none, sha256 or sha384")),
    }
}

fn random(length: usize) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let mut bytes = Zeroizing::new(vec![0; length]);
    let drawn = block_on(async {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&random_u64().to_le_bytes()[..part.len()]);
        }
    });
    drawn.map_err(Failure::failed)?;
    Ok(bytes)
}

/// Writes a new file that only its owner may read.
fn write_private(path: &Path, text: &str) -> Result<(), Failure> {
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = written.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))
}

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

fn token(args: &TokenArgs) -> Result<Exit, Failure> {
    let bytes = random(TOKEN_BYTES)?;
    let mut token = Zeroizing::new(String::with_capacity(TOKEN_PREFIX.len() + 2 * TOKEN_BYTES + 1));
    token.push_str(TOKEN_PREFIX);
    token.push_str(&keys::hex(&bytes));
    let hash = hash_line(&token);
    token.push('\n');
    write_private(&args.file, &token)?;
    let file = args.file.display().to_string();
    let said = match args.json {
        true => json(&BTreeMap::from([("file", file), ("hash", hash)])),
        false => format!("{hash}\n"),
    };
    Ok(print(&said, Exit::Success))
}

/// A key of a file.
#[derive(Debug, Serialize)]
struct CheckedKey {
    file: String,
    bits: usize,
    /// For TLS, not for authentication.
    tls: bool,
    /// Proven to others, not only accepted from them.
    proven: bool,
    fingerprint: String,
}

impl CheckedKey {
    fn line(&self) -> String {
        let CheckedKey { file, bits, tls, proven, fingerprint } = self;
        let use_of = if *proven { "proven and accepted" } else { "accepted" };
        let kind = if *tls { ", for TLS" } else { "" };
        format!("{file}: {bits} bits{kind}, {use_of}, fingerprint {fingerprint}\n")
    }
}

/// Checks all files; an unusable one does not hide the others.
fn check(args: &CheckArgs) -> Result<Exit, Failure> {
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for file in &args.files {
        match checked(file) {
            Ok(keys) => found.extend(keys),
            Err(Failure(_, why)) => wrong.push(why),
        }
    }
    let said = match args.json {
        true => json(&serde_json::json!({ "keys": found, "mistakes": wrong })),
        false => found.iter().map(CheckedKey::line).collect(),
    };
    let printed = print(&said, Exit::Success);
    match wrong.is_empty() {
        true => Ok(printed),
        false => Err(Failure::failed(wrong.join("\n"))),
    }
}

/// The keys of a file.
fn checked(file: &Path) -> Result<Vec<CheckedKey>, Failure> {
    let tls = keys::is_tls(file).map_err(Failure::failed)?;
    let found: Vec<(usize, String)> = if tls {
        let keys = keys::read_tls(file).map_err(Failure::failed)?;
        keys.iter().map(|key| (key.length(), key.fingerprint())).collect()
    } else {
        let secrets = keys::read(file).map_err(Failure::failed)?;
        secrets.iter().map(|secret| (secret.length(), secret.fingerprint())).collect()
    };
    let key = |(index, (bytes, fingerprint))| {
        let file = file.display().to_string();
        CheckedKey { file, bits: bytes * 8, tls, proven: index == 0, fingerprint }
    };
    Ok(found.into_iter().enumerate().map(key).collect())
}

fn nqn(text: &str) -> Result<String, NameError> {
    check_nqn(text).map(|()| text.to_owned())
}

fn identity(args: &IdentityArgs) -> Result<Exit, Failure> {
    let mut found = Vec::new();
    for key in keys::read_tls(&args.file).map_err(Failure::failed)? {
        found.extend(identities(&key, &args.host, &args.subsystem));
    }
    let said = match args.json {
        true => json(&BTreeMap::from([("identities", found)])),
        false => found.iter().fold(String::new(), |text, one| text + one + "\n"),
    };
    Ok(print(&said, Exit::Success))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generate_to(
        file: &Path,
        length: Option<usize>,
        hmac: Transformation,
    ) -> Result<Exit, Failure> {
        generate(&GenerateArgs {
            volume: false,
            file: Some(file.to_owned()),
            tls: true,
            length,
            hmac,
            json: false,
        })
    }

    #[test]
    fn tls_key_of_48_bytes_needs_its_hash() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        let Failure(exit, said) = generate_to(&file, Some(48), Transformation::Sha256).unwrap_err();
        assert!(exit == Exit::Usage && said.contains("--hmac sha384"), "{said}");
        generate_to(&file, Some(48), Transformation::Sha384).unwrap();
    }

    #[test]
    fn check_reports_every_bad_file() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        generate_to(&at("good"), None, Transformation::Sha256).unwrap();
        let keys = checked(&at("good")).unwrap();
        assert!(keys[0].tls && keys[0].proven && keys[0].line().contains("256 bits, for TLS"));
        let files = vec![at("first"), at("good"), at("second")];
        let Failure(exit, said) = check(&CheckArgs { files, json: true }).unwrap_err();
        assert!(
            exit == Exit::Failed && said.contains("first") && said.contains("second"),
            "{said}"
        );
    }
}
