//! Key files: one or two secrets, one on each line, read with the checks that OpenSSH makes.
//!
//! Every user of a path has the same ring. [`reload`] reads all files again and replaces the secrets
//! of the rings, so that connections made later use them. An error never contains a secret.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flagstone_auth::{KeyPair, KeyRing, RING_SECRETS, Secret, SecretError};
use flagstone_config::Config;
use flagstone_config::device_spec::DeviceSpec;
use parking_lot::Mutex;

use crate::private_file::{self, PrivateFileError};

/// Largest key file, in bytes: two secrets of 103 characters, and comments.
const FILE_BYTES: u64 = 4096;

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
}

/// Rings by path.
static RINGS: Mutex<BTreeMap<PathBuf, KeyRing>> = Mutex::new(BTreeMap::new());

/// The ring of the file `path`.
///
/// # Errors
/// The file cannot be used.
pub fn ring(path: &Path) -> Result<KeyRing, KeyError> {
    let secrets = read(path)?;
    let mut rings = RINGS.lock();
    let ring = rings.entry(path.to_owned()).or_insert_with(|| KeyRing::new(Vec::new()));
    ring.replace(secrets);
    Ok(ring.clone())
}

/// The rings of a host and, if there is one, of the subsystem.
///
/// # Errors
/// A file cannot be used.
pub fn pair(host: &Path, controller: Option<&Path>) -> Result<KeyPair, KeyError> {
    Ok(KeyPair { host: ring(host)?, controller: controller.map(ring).transpose()? })
}

/// Reads every file in use again. Returns the number of rings that changed, and what could not be
/// read, of which the known secrets stay.
pub fn reload() -> (usize, Vec<KeyError>) {
    let rings = RINGS.lock().clone();
    let (mut changed, mut errors) = (0, Vec::new());
    for (path, ring) in rings {
        match read(&path) {
            Ok(secrets) => changed += usize::from(ring.replace(secrets)),
            Err(error) => errors.push(error),
        }
    }
    (changed, errors)
}

/// Key files that a configuration names and that cannot be used.
pub fn check(config: &Config) -> Vec<KeyError> {
    let hosts = config.hosts.iter();
    let hosts = hosts.flat_map(|host| [Some(&host.key_file), host.controller_key_file.as_ref()]);
    let peers = config.peers.iter().map(|peer| peer.key_file.as_ref());
    let devices = config.volumes.iter().flat_map(|volume| volume.backing.devices());
    let devices = devices.flat_map(|device| match device {
        DeviceSpec::NvmeTcp(spec) => [spec.key_file.as_ref(), spec.controller_key_file.as_ref()],
        _ => [None, None],
    });
    let mut paths: Vec<_> = hosts.chain(peers).chain(devices).flatten().collect();
    paths.sort();
    paths.dedup();
    paths.into_iter().filter_map(|path| read(path).err()).collect()
}

/// Reads a key file.
///
/// # Errors
/// The file cannot be used.
pub fn read(path: &Path) -> Result<Vec<Secret>, KeyError> {
    read_file(path).map_err(|problem| KeyError { path: path.to_owned(), problem })
}

fn read_file(path: &Path) -> Result<Vec<Secret>, KeyProblem> {
    let text = private_file::read(path, FILE_BYTES)?;
    parse(&text)
}

/// Empty lines and lines that begin with `#` are ignored.
fn parse(text: &str) -> Result<Vec<Secret>, KeyProblem> {
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let secrets = lines.map(|(index, line)| {
        Secret::parse(line).map_err(|error| KeyProblem::Secret { line: index + 1, error })
    });
    let secrets = secrets.collect::<Result<Vec<_>, _>>()?;
    match secrets.len() {
        1..=RING_SECRETS => Ok(secrets),
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

    #[test]
    fn reload_replaces_the_secrets_of_rings_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder, CANARY, 0o600);
        let used = ring(&path).unwrap();
        assert_eq!((used.secrets().len(), ring(&path).unwrap()), (1, used.clone()));
        file(&folder, &format!("{CANARY}\n{CANARY}\n"), 0o400);
        assert_eq!(reload().0, 1);
        assert_eq!(used.secrets().len(), 2);
        file(&folder, "", 0o600);
        let (changed, errors) = reload();
        assert_eq!((changed, errors.len(), used.secrets().len()), (0, 1, 2));
    }
}
