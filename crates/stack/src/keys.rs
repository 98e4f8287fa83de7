//! Key files: one or two secrets or TLS keys, one on each line, read with the checks that OpenSSH
//! makes.
//!
//! Every user of a path has the same ring. [`ReadAgain`] reads all files again and replaces the
//! secrets of the rings, so that connections made later use them. An error never contains a secret.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use flagstone_auth::tls::{TlsKey, TlsKeyError};
use flagstone_auth::{
    KeyDemand, KeyPair, KeyRing, RING_SECRETS, Ring, Secret, SecretError, TlsRing,
};
use flagstone_config::device_spec::DeviceSpec;
use flagstone_config::{Config, HostAccess};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::private_file::{self, PrivateFileError};

/// Largest key file, in bytes: two secrets of 103 characters, and comments.
const FILE_BYTES: u64 = 4096;

/// Most bytes of a key in hexadecimal digits.
const HEX_BYTES_MAX: usize = 64;

/// A key file that cannot be used. The text names the file and the fix.
#[derive(Debug, thiserror::Error)]
#[error("key file {path}: {problem}", path = path.display())]
pub struct KeyError {
    path: PathBuf,
    problem: KeyProblem,
}

#[derive(Debug, thiserror::Error)]
enum KeyProblem {
    #[error(transparent)]
    File(#[from] PrivateFileError),
    #[error("it holds {0} secrets: write one, or two while one replaces the other")]
    Count(usize),
    #[error("line {line}: {error}")]
    Secret { line: usize, error: SecretError },
    #[error("line {line}: {error}")]
    TlsKey { line: usize, error: TlsKeyError },
}

/// Key of a line of a file.
trait FileKey: Clone + PartialEq + Sized {
    fn parse_line(line: usize, text: &str) -> Result<Self, KeyProblem>;
}

impl FileKey for Secret {
    fn parse_line(line: usize, text: &str) -> Result<Secret, KeyProblem> {
        Secret::parse(text).map_err(|error| KeyProblem::Secret { line, error })
    }
}

impl FileKey for TlsKey {
    fn parse_line(line: usize, text: &str) -> Result<TlsKey, KeyProblem> {
        TlsKey::parse(text).map_err(|error| KeyProblem::TlsKey { line, error })
    }
}

type Rings<K> = Mutex<BTreeMap<PathBuf, Ring<K>>>;

/// Rings by path.
static RINGS: Rings<Secret> = Mutex::new(BTreeMap::new());

/// Rings of TLS keys by path.
static TLS_RINGS: Rings<TlsKey> = Mutex::new(BTreeMap::new());

/// The ring of the file `path`.
///
/// # Errors
/// The file cannot be used.
pub fn ring(path: &Path) -> Result<KeyRing, KeyError> {
    ring_among(&RINGS, path)
}

/// The ring of the file `path` of TLS keys.
///
/// # Errors
/// The file cannot be used.
pub fn tls_ring(path: &Path) -> Result<TlsRing, KeyError> {
    ring_among(&TLS_RINGS, path)
}

fn ring_among<K: FileKey>(rings: &Rings<K>, path: &Path) -> Result<Ring<K>, KeyError> {
    let keys = read_keys(path)?;
    let mut rings = rings.lock();
    let ring = rings.entry(path.to_owned()).or_insert_with(|| Ring::new(Vec::new()));
    ring.replace(keys);
    Ok(ring.clone())
}

/// The rings of a host that connects and, if there is one, of the subsystem, as
/// [`host_tls_ring`].
///
/// # Errors
/// A file that is not in use yet cannot be used.
pub fn host_pair(host: &Path, controller: Option<&Path>) -> Result<KeyPair, KeyError> {
    let controller = controller.map(|path| ring_in_use(&RINGS, path)).transpose()?;
    Ok(KeyPair { host: ring_in_use(&RINGS, host)?, controller, demand: KeyDemand::Required })
}

/// The ring of the TLS keys of a host that connects. Only a reload changes a ring in use: it may
/// have withdrawn the host, whose file must not be read again then.
///
/// # Errors
/// A file that is not in use yet cannot be used.
pub fn host_tls_ring(path: &Path) -> Result<TlsRing, KeyError> {
    ring_in_use(&TLS_RINGS, path)
}

fn ring_in_use<K: FileKey>(rings: &Rings<K>, path: &Path) -> Result<Ring<K>, KeyError> {
    let used = rings.lock().get(path).cloned();
    used.map_or_else(|| ring_among(rings, path), Ok)
}

/// The rings of a device's host and, if there is one, of its subsystem.
///
/// # Errors
/// A file cannot be used.
pub fn pair(host: &Path, controller: Option<&Path>) -> Result<KeyPair, KeyError> {
    let controller = controller.map(ring).transpose()?;
    Ok(KeyPair { host: ring(host)?, controller, demand: KeyDemand::Required })
}

/// Reads a file of secrets or TLS keys again, for the ring of its path. If it cannot be used, the
/// keys stay.
pub(crate) fn read_ring_again<K>(path: &Path, ring: fn(&Path) -> Result<Ring<K>, KeyError>) {
    if let Err(error) = ring(path) {
        tracing::warn!("its keys stay in use: {error}");
    }
}

/// Secrets that were read again, for the rings in use.
#[derive(Debug)]
pub struct ReadAgain {
    secrets: KeysOfFiles<Secret>,
    tls: KeysOfFiles<TlsKey>,
}

impl ReadAgain {
    /// Reads every file in use. Nothing changes before [`ReadAgain::apply`]. A file that `next`,
    /// the configuration of the next start, does not name any more may be missing: its secrets
    /// stay, unless only hosts of the `running` configuration used it that `next` does not have.
    ///
    /// # Errors
    /// All other files that cannot be used.
    pub fn new(running: &Config, next: &Config) -> Result<ReadAgain, Vec<KeyError>> {
        let (secrets, tls) = paths(next);
        let removed = files_of_removed_hosts(running, next);
        let secrets = read_again(&RINGS, &secrets, &removed.secrets);
        match (secrets, read_again(&TLS_RINGS, &tls, &removed.tls)) {
            (Ok(secrets), Ok(tls)) => Ok(ReadAgain { secrets, tls }),
            (secrets, tls) => Err(secrets.err().into_iter().chain(tls.err()).flatten().collect()),
        }
    }

    /// Replaces the secrets of the rings, for connections made later. Returns the number of rings
    /// that changed.
    pub fn apply(self) -> usize {
        replace_all(&RINGS, self.secrets) + replace_all(&TLS_RINGS, self.tls)
    }
}

type KeysOfFiles<K> = BTreeMap<PathBuf, Vec<K>>;

/// Returns the number of rings that changed.
fn replace_all<K: FileKey>(rings: &Rings<K>, read: KeysOfFiles<K>) -> usize {
    let mut rings = rings.lock();
    let changed = read.into_iter().filter(|(path, keys)| {
        let ring = rings.entry(path.clone()).or_insert_with(|| Ring::new(Vec::new()));
        ring.replace(keys.clone())
    });
    changed.count()
}

fn read_again<K: FileKey>(
    rings: &Rings<K>,
    named: &BTreeSet<&PathBuf>,
    removed: &BTreeSet<PathBuf>,
) -> Result<KeysOfFiles<K>, Vec<KeyError>> {
    let used: Vec<PathBuf> = rings.lock().keys().cloned().collect();
    // Those of hosts that no volume has had yet, too: a later volume must not read them.
    let mut read: KeysOfFiles<K> = removed.iter().map(|path| (path.clone(), Vec::new())).collect();
    let mut errors = Vec::new();
    for path in used.into_iter().filter(|path| !removed.contains(path)) {
        match read_keys(&path) {
            Ok(keys) => drop(read.insert(path, keys)),
            Err(error) if named.contains(&path) => errors.push(error),
            Err(error) => tracing::warn!("its keys stay in use until the next start: {error}"),
        }
    }
    if errors.is_empty() { Ok(read) } else { Err(errors) }
}

/// Key files that a configuration names and that cannot be used.
pub fn check(config: &Config) -> Vec<KeyError> {
    let (secrets, tls) = paths(config);
    let secrets = secrets.into_iter().filter_map(|path| read(path).err());
    secrets.chain(tls.into_iter().filter_map(|path| read_tls(path).err())).collect()
}

/// Names of hosts that `next` does not have any more, and that [`ReadAgain`] leaves without the key
/// by which they are admitted.
pub fn withdrawn_hosts(running: &Config, next: &Config) -> Vec<String> {
    let removed = files_of_removed_hosts(running, next);
    let is_withdrawn = |host: &&HostAccess| match (&host.key_file, &host.tls_key_file) {
        (Some(file), _) => removed.secrets.contains(file),
        (None, Some(file)) => removed.tls.contains(file),
        (None, None) => false,
    };
    running.hosts.iter().filter(is_withdrawn).map(|host| host.name.clone()).collect()
}

struct RemovedFiles {
    secrets: BTreeSet<PathBuf>,
    tls: BTreeSet<PathBuf>,
}

/// Files of hosts that `next` does not have any more, and of nothing else.
fn files_of_removed_hosts(running: &Config, next: &Config) -> RemovedFiles {
    let stays = |host: &HostAccess| next.hosts.iter().any(|other| other.nqn == host.nqn);
    let (stay, gone) = running.hosts.iter().cloned().partition(stays);
    let rest = Config { hosts: stay, ..running.clone() };
    let used: Vec<_> = [&rest, next].into_iter().map(paths).collect();
    let is_used = |file: &PathBuf| {
        used.iter().any(|(secrets, tls)| secrets.contains(file) || tls.contains(file))
    };
    let mut removed = RemovedFiles { secrets: BTreeSet::new(), tls: BTreeSet::new() };
    for host in Vec::<HostAccess>::into_iter(gone) {
        removed.secrets.extend([host.key_file, host.controller_key_file].into_iter().flatten());
        removed.tls.extend(host.tls_key_file);
    }
    removed.secrets.retain(|file| !is_used(file));
    removed.tls.retain(|file| !is_used(file));
    removed
}

/// Files of secrets and of TLS keys that a configuration names.
fn paths(config: &Config) -> (BTreeSet<&PathBuf>, BTreeSet<&PathBuf>) {
    let specs = || {
        let devices = config.volumes.iter().flat_map(|volume| volume.backing.devices());
        devices.filter_map(|device| match device {
            DeviceSpec::NvmeTcp(spec) => Some(spec),
            _ => None,
        })
    };
    let hosts = config.hosts.iter();
    let hosts = hosts.flat_map(|host| [host.key_file.as_ref(), host.controller_key_file.as_ref()]);
    let peers = config.peers.iter().map(|peer| peer.key_file.as_ref());
    let devices =
        specs().flat_map(|spec| [spec.key_file.as_ref(), spec.controller_key_file.as_ref()]);
    let secrets = hosts.chain(peers).chain(devices).flatten();
    let hosts = config.hosts.iter().map(|host| host.tls_key_file.as_ref());
    let peers = config.peers.iter().map(|peer| peer.tls_key_file.as_ref());
    let tls = hosts.chain(peers).chain(specs().map(|spec| spec.tls_key_file.as_ref())).flatten();
    (secrets.collect(), tls.collect())
}

/// Reads a key file.
///
/// # Errors
/// The file cannot be used.
pub fn read(path: &Path) -> Result<Vec<Secret>, KeyError> {
    read_keys(path)
}

/// Reads a file of TLS keys.
///
/// # Errors
/// The file cannot be used.
pub fn read_tls(path: &Path) -> Result<Vec<TlsKey>, KeyError> {
    read_keys(path)
}

/// True if the file can be used and holds TLS keys.
///
/// # Errors
/// The file cannot be used.
pub fn is_tls(path: &Path) -> Result<bool, KeyError> {
    let text = read_private(path, FILE_BYTES)?;
    Ok(lines(&text).next().is_some_and(|(_, line)| TlsKey::is_meant(line)))
}

/// Bytes of a file that holds hexadecimal digits alone, at most 64 bytes; `None` if it holds
/// anything else.
///
/// # Errors
/// The file cannot be used.
pub fn read_hex(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, KeyError> {
    let text = read_private(path, FILE_BYTES)?;
    Ok(from_hex(text.trim()).filter(|bytes| (1..=HEX_BYTES_MAX).contains(&bytes.len())))
}

/// Bytes of hexadecimal digits; `None` if there are others, or an odd number.
pub fn from_hex(digits: &str) -> Option<Zeroizing<Vec<u8>>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    // Of its final size, because a vector that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(pairs.len()));
    for [high, low] in pairs {
        bytes.push(u8::try_from(digit(high)? << 4 | digit(low)?).ok()?);
    }
    rest.is_empty().then_some(bytes)
}

/// Hexadecimal digits of `bytes`.
pub fn hex(bytes: &[u8]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for nibble in bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
        text.extend(char::from_digit(u32::from(nibble), 16));
    }
    text
}

fn read_keys<K: FileKey>(path: &Path) -> Result<Vec<K>, KeyError> {
    let keys = private_file::read(path, FILE_BYTES).map_err(KeyProblem::from);
    let keys = keys.and_then(|text| parse(&text));
    keys.map_err(|problem| KeyError { path: path.to_owned(), problem })
}

/// Contents of a file of keys of at most `bytes_max` bytes that passes the checks.
pub(crate) fn read_private(path: &Path, bytes_max: u64) -> Result<Zeroizing<String>, KeyError> {
    private_file::read(path, bytes_max)
        .map_err(|error| KeyError { path: path.to_owned(), problem: error.into() })
}

/// Empty lines and lines that begin with `#` are ignored.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().map(str::trim).enumerate();
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn parse<K: FileKey>(text: &str) -> Result<Vec<K>, KeyProblem> {
    let keys = lines(text).map(|(index, line)| K::parse_line(index + 1, line));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    match keys.len() {
        1..=RING_SECRETS => Ok(keys),
        count => Err(KeyProblem::Count(count)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const CANARY: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

    fn file(folder: &tempfile::TempDir, text: &str, mode: u32) -> PathBuf {
        let path = folder.path().join("key");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn unusable_key_files_are_refused_without_their_contents() {
        let folder = tempfile::tempdir().unwrap();
        let broken = CANARY.replace("aQ2n", "aQ2m");
        for (text, mode, expected) in [
            (CANARY.to_owned(), 0o644, "(mode 0644): run chmod 600"),
            (CANARY.to_owned(), 0o640, "(mode 0640)"),
            (broken, 0o600, "line 1: the secret's CRC"),
            (format!("# new\n{CANARY}\n{CANARY}\n{CANARY}"), 0o600, "holds 3 secrets"),
            ("# none\n".to_owned(), 0o600, "holds 0 secrets"),
            ("x".repeat(5000), 0o600, "more than 4096 bytes"),
        ] {
            let error = read(&file(&folder, &text, mode)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("ia6z"), "{error}");
        }
        assert!(read(folder.path()).unwrap_err().to_string().contains("not a regular file"));
        assert!(read(&folder.path().join("none")).is_err());
    }

    const TLS: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    /// Reloads concern all rings of the process.
    static RELOADS: Mutex<()> = Mutex::new(());

    #[test]
    fn tls_key_files_are_read_and_reloaded() {
        let _alone = RELOADS.lock();
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder, TLS, 0o600);
        assert!(is_tls(&path).unwrap());
        assert!(read(&path).unwrap_err().to_string().contains("line 1"));
        let used = tls_ring(&path).unwrap();
        file(&folder, &format!("{TLS}\n# old\n{TLS}\n"), 0o600);
        assert!(ReadAgain::new(&naming(&[]), &naming(&[])).unwrap().apply() >= 1);
        assert_eq!(used.secrets().len(), 2);
        file(&folder, TLS, 0o644);
        assert!(read_tls(&path).unwrap_err().to_string().contains("chmod 600"));
        let broken = file(&folder, &TLS.replace("9LrZ", "9LrY"), 0o600);
        let error = read_tls(&broken).unwrap_err().to_string();
        assert!(error.contains("CRC") && !error.contains("VRLb"), "{error}");
    }

    #[test]
    fn reload_replaces_the_secrets_of_rings_in_use() {
        let _alone = RELOADS.lock();
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder, CANARY, 0o600);
        let used = ring(&path).unwrap();
        assert_eq!((used.secrets().len(), ring(&path).unwrap()), (1, used.clone()));
        file(&folder, &format!("{CANARY}\n{CANARY}\n"), 0o400);
        let other = folder.path().join("other");
        let both = naming(&[&path, &other]);
        assert_eq!(ReadAgain::new(&both, &both).unwrap().apply(), 1);
        assert_eq!(used.secrets().len(), 2);
        assert_eq!(ReadAgain::new(&both, &both).unwrap().apply(), 0);
        // Another ring has fewer secrets now, and does not change alone.
        std::fs::write(&other, format!("{CANARY}\n{CANARY}\n")).unwrap();
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).unwrap();
        let withdrawn = ring(&other).unwrap();
        std::fs::write(&other, CANARY).unwrap();
        file(&folder, "", 0o600);
        let errors = ReadAgain::new(&both, &both).unwrap_err();
        let said: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert!(said.len() == 1 && said[0].contains("/key: it holds 0"), "{said:?}");
        assert_eq!((used.secrets().len(), withdrawn.secrets().len()), (2, 2));
        // The first host gets another file at the next start.
        std::fs::remove_file(&path).unwrap();
        let moved = naming(&[&other]);
        assert_eq!(ReadAgain::new(&both, &moved).unwrap().apply(), 1);
        assert_eq!((used.secrets().len(), withdrawn.secrets().len()), (2, 1));
        // The second one is removed, and nothing else used its file.
        let one = naming(&[&path]);
        std::fs::write(&path, CANARY).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(ReadAgain::new(&both, &one).unwrap().apply(), 2);
        assert_eq!((used.secrets().len(), withdrawn.secrets().len()), (1, 0));
        // It comes back.
        assert_eq!(ReadAgain::new(&both, &both).unwrap().apply(), 1);
        assert_eq!(withdrawn.secrets().len(), 1);
    }

    /// Regression: the next volume of a pool read the file of the removed host again.
    #[test]
    fn removed_host_stays_withdrawn_from_later_volumes() {
        let _alone = RELOADS.lock();
        let (folder, unread) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (used, unread) = (file(&folder, CANARY, 0o600), file(&unread, CANARY, 0o600));
        let pair = host_pair(&used, None).unwrap();
        assert_eq!(pair.host.secrets().len(), 1);
        let running = naming(&[&used, &unread]);
        assert_eq!(ReadAgain::new(&running, &naming(&[])).unwrap().apply(), 1);
        for path in [&used, &unread] {
            assert!(host_pair(path, None).unwrap().host.secrets().is_empty());
        }
        std::fs::remove_file(&used).unwrap();
        assert!(host_pair(&used, None).unwrap().host.secrets().is_empty());
        // The hosts come back.
        file(&folder, CANARY, 0o600);
        assert_eq!(ReadAgain::new(&running, &running).unwrap().apply(), 2);
        assert_eq!(pair.host.secrets().len(), 1);
    }

    fn naming(files: &[&Path]) -> Config {
        let hosts = files.iter().enumerate().map(|(host, file)| {
            format!("[host.h{host}]\nnqn = \"nqn.2026-01.test:h{host}\"\nkey_file = {file:?}\n")
        });
        let text = hosts.collect::<String>() + "[volume.v]\ndevice = \"null:1GiB\"\n";
        Config::parse("f", &text).unwrap_or_else(|error| panic!("{error}"))
    }
}
