//! Installation of a [`Setup`] as the service of the package: configuration, keys, access to the
//! disk, and the start of the unit.
//!
//! Nothing that exists is overwritten without consent. All files are written, or none.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_config::Config;
use flagstone_config::device_spec::DeviceSpec;
use flagstone_config::starter::{HOST_KEY, PAIR_KEY};
use flagstone_host::root::Root;
use zeroize::Zeroizing;

use super::files::{NewFile, Owner, exists, make_directory, write_all};
use super::setup::Setup;
use super::{missing_device, refuse_repeated};
use crate::exit::{Exit, Failure};
use crate::output::complain;

/// Directory of the package's unit, whose files are served by the service.
const CONFIGURATIONS: &str = "/etc/flagstone/conf.d";

/// Directory of the operator's additions to the unit.
const DROP_INS: &str = "/etc/systemd/system/flagstone.service.d";

/// User and group of the service.
const SERVICE: &str = "flagstone";

/// How a setup is installed.
#[derive(Debug)]
pub(crate) struct Installation<'a> {
    pub(crate) root: &'a Path,
    /// Replace existing files.
    pub(crate) force: bool,
    /// Only say what would be done.
    pub(crate) dry_run: bool,
    /// The peer's setup, and where it is written.
    pub(crate) peer: Option<(&'a Path, &'a Setup)>,
}

/// Installs `setup`, whose configuration passed the check, and returns what was done, as lines.
pub(crate) fn install(
    setup: &Setup,
    config: &Config,
    installation: &Installation<'_>,
) -> Result<String, Failure> {
    let Some(volume) = config.volumes.first() else {
        return Err(Failure::usage("the setup has no volume"));
    };
    let Installation { dry_run, .. } = *installation;
    let root = Root::new(installation.root);
    let own = format!("{CONFIGURATIONS}/{}.toml", volume.name);
    refuse_others(&root, &own)?;
    let service = service_owner(&root)?;
    let files = plan(setup, config, installation, &own, service)?;
    refuse_missing(&root, installation.root, config)?;
    refuse_repeated(&files)?;
    if !installation.force {
        refuse_existing(&files)?;
    }
    if !dry_run {
        make_directories(&root, &files, service)?;
        write_all(&files).map_err(|(path, error)| {
            Failure::failed(format!("cannot write {}: {error}", path.display()))
        })?;
    }
    let mut done = String::new();
    for NewFile { path, mode, owner, what, .. } in &files {
        let verb = if dry_run { "would write" } else { "wrote" };
        let owned = if owner.is_some() { " of the user flagstone" } else { "" };
        let _ = writeln!(done, "{verb} {} ({what}), mode {mode:04o}{owned}", path.display());
    }
    done += &foreign_files(&root, config, service);
    done += &start(&root, dry_run).map_err(|Failure(exit, why)| {
        Failure(exit, format!("{}: the files are written: {why}", SERVICE))
    })?;
    Ok(done)
}

/// Files in the order in which they are placed: the unit needs the last.
fn plan(
    setup: &Setup,
    config: &Config,
    installation: &Installation<'_>,
    own: &str,
    service: Owner,
) -> Result<Vec<NewFile>, Failure> {
    let root = Root::new(installation.root);
    let mut files = Vec::new();
    let mut add = |path: PathBuf, text: &str, mode, owner, what| {
        let text = Zeroizing::new(text.to_owned());
        files.push(NewFile { path, text, mode, owner, what });
    };
    if let Some(keys) = &setup.keys {
        let host = [(HOST_KEY, &keys.host, "the host's key")];
        let pair = keys.pair.iter().map(|key| (PAIR_KEY, key, "the key of the nodes"));
        for (path, key, what) in host.into_iter().chain(pair) {
            let text = Zeroizing::new(format!("{key}\n"));
            add(root.locate(path), &text, 0o600, Some(service), what);
        }
    }
    let drop_in = drop_in(config)?;
    if let Some(text) = &drop_in {
        let name = Path::new(own).file_stem().unwrap_or_default().to_string_lossy();
        let path = root.locate(&format!("{DROP_INS}/{name}.conf"));
        add(path, text, 0o644, None, "the service's access to the disk");
    }
    if let Some((path, peer)) = installation.peer {
        let what = match peer.keys {
            Some(_) => "the peer's setup, with the keys",
            None => "the peer's setup, without keys",
        };
        add(path.to_owned(), &peer.text(), 0o600, None, what);
    }
    add(root.locate(own), &setup.configuration, 0o644, None, "the configuration");
    Ok(files)
}

/// Lines that give the service the disks of the volume; none if it has only files.
fn drop_in(config: &Config) -> Result<Option<String>, Failure> {
    let devices = config.volumes.iter().flat_map(|volume| volume.backing.devices());
    let mut lines = String::new();
    for device in devices {
        let DeviceSpec::Path(path) = device else { continue };
        let text = path.to_string_lossy();
        if !text.starts_with("/dev/") {
            continue;
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._:+-@,=".contains(&byte);
        if !text.bytes().all(is_plain) {
            let why = "a unit cannot name it: give another name of the disk, such as one in \
                       /dev/disk/by-id";
            return Err(Failure::usage(format!("{}: {why}", text.escape_default())));
        }
        let _ = writeln!(lines, "DeviceAllow={text} rw");
    }
    Ok((!lines.is_empty()).then(|| format!("[Service]\n{lines}")))
}

/// The service serves all files of its directory as one, and each would have a `[server]`.
fn refuse_others(root: &Root, own: &str) -> Result<(), Failure> {
    let names = root.list(CONFIGURATIONS).unwrap_or_default();
    let paths = names.iter().map(|name| format!("{CONFIGURATIONS}/{name}"));
    match paths.into_iter().find(|path| path.ends_with(".toml") && path != own) {
        None => Ok(()),
        Some(other) => Err(Failure::usage(format!(
            "{other} configures the service already: add the volume there, with its disk as \
             docs/guides/first-steps.md says, or use `flagstone volume create`"
        ))),
    }
}

/// A line for each volume on a file that the service cannot open.
fn foreign_files(root: &Root, config: &Config, service: Owner) -> String {
    let mut lines = String::new();
    for device in config.volumes.iter().flat_map(|volume| volume.backing.devices()) {
        let DeviceSpec::Path(path) = device else { continue };
        let found = std::fs::metadata(root.locate(&path.to_string_lossy()));
        if found.is_ok_and(|file| file.is_file() && file.uid() != service.user) {
            let path = path.display();
            let _ = writeln!(lines, "{path} is not the service's: chown {SERVICE}: {path}");
        }
    }
    lines
}

/// The unit could not start without a device. A system that is prepared elsewhere may get it later.
fn refuse_missing(root: &Root, base: &Path, config: &Config) -> Result<(), Failure> {
    for device in config.volumes.iter().flat_map(|volume| volume.backing.devices()) {
        match missing_device(base, &device.to_string()) {
            Some(missing) if root.is_this_host() => {
                return Err(Failure::usage(missing + " (nothing was written)"));
            }
            Some(missing) => complain(&format!("warning: {missing}\n")),
            None => {}
        }
    }
    Ok(())
}

fn refuse_existing(files: &[NewFile]) -> Result<(), Failure> {
    let paths = files.iter().map(|file| &file.path);
    let existing: Vec<_> =
        paths.filter(|path| exists(path)).map(|path| path.display().to_string()).collect();
    match existing.is_empty() {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "{}: there already; --force replaces it (nothing was written)",
            existing.join(", ")
        ))),
    }
}

fn make_directories(root: &Root, files: &[NewFile], service: Owner) -> Result<(), Failure> {
    for file in files {
        let parent = file.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let Some(parent) = parent else { continue };
        let is_keys = root.locate(HOST_KEY).parent() == Some(parent);
        let (mode, owner) = if is_keys { (0o700, Some(service)) } else { (0o755, None) };
        make_directory(parent, mode, owner)
            .map_err(|error| Failure::failed(format!("{}: {error}", parent.display())))?;
    }
    Ok(())
}

/// The user of the service, which the package makes.
fn service_owner(root: &Root) -> Result<Owner, Failure> {
    let users = root.read("/etc/passwd").unwrap_or_default();
    let owner = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(SERVICE)).then_some(())?;
        let user = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        Some(Owner { user, group })
    });
    let missing = "no user flagstone in /etc/passwd: install the package first";
    owner.ok_or_else(|| Failure(Exit::Failed, missing.to_owned()))
}

/// Starts the unit, where systemd runs.
fn start(root: &Root, dry_run: bool) -> Result<String, Failure> {
    let by_hand = format!("start it with: flagstone serve {CONFIGURATIONS}\n");
    if !root.is_this_host() || !root.exists("/run/systemd/system") {
        return Ok(format!("no systemd runs here: {by_hand}"));
    }
    if systemctl(&["--quiet", "is-active", SERVICE]).is_ok() {
        return Ok("the running service keeps its configuration and devices until: systemctl \
                   daemon-reload && systemctl restart flagstone\n"
            .to_owned());
    }
    let steps = [&["daemon-reload"][..], &["enable", "--now", SERVICE]];
    let mut done = String::new();
    for step in steps {
        if !dry_run {
            systemctl(step)?;
        }
        let _ = writeln!(
            done,
            "{} systemctl {}",
            if dry_run { "would run" } else { "ran" },
            step.join(" ")
        );
    }
    Ok(done)
}

fn systemctl(arguments: &[&str]) -> Result<(), Failure> {
    let line = format!("systemctl {}", arguments.join(" "));
    let output = Command::new("systemctl").args(arguments).output();
    let output = output.map_err(|error| Failure::failed(format!("{line}: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Failure::failed(format!(
                "{line} failed: {}; journalctl -u flagstone says why",
                said.trim()
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::init::setup::SetupKeys;

    const TEXT: &str = "[server]\nlisten = [\"nvme-tcp://127.0.0.1:0\"]\n[volume.db]\ndevice = ";

    /// A system in which the service's user is the one who runs the test.
    fn system() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc/flagstone/conf.d")).unwrap();
        let own = fs::metadata(root.path()).unwrap();
        let line = format!("root:x:0:0::/:\nflagstone:x:{}:{}::/:\n", own.uid(), own.gid());
        fs::write(root.path().join("etc/passwd"), line).unwrap();
        root
    }

    fn setup(device: &str) -> Setup {
        let text = format!("{TEXT}{device:?}\n");
        Setup::new(text, Some(SetupKeys::generate(true).unwrap()))
    }

    fn run(root: &Path, setup: &Setup, force: bool, dry_run: bool) -> Result<String, Failure> {
        let config = Config::parse("setup", &setup.configuration).unwrap();
        install(setup, &config, &Installation { root, force, dry_run, peer: None })
    }

    fn tree(root: &Path) -> Vec<(String, u32)> {
        let mut found = Vec::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let (path, mode) = {
                    let entry = entry.unwrap();
                    (entry.path(), entry.metadata().unwrap().mode() & 0o7777)
                };
                let name = path.strip_prefix(root).unwrap().display().to_string();
                match path.is_dir() {
                    true => folders.push(path),
                    false => found.push((name, mode)),
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn installation_writes_all_and_refuses_existing_files() {
        let system = system();
        let (root, setup) = (system.path(), setup("/dev/disk/by-id/x-1"));
        let before = tree(root);
        let shown = run(root, &setup, false, true).unwrap();
        assert!(shown.contains("would write") && !shown.contains("wrote"), "{shown}");
        assert_eq!(tree(root), before, "a dry run writes nothing");

        let shown = run(root, &setup, false, false).unwrap();
        assert!(shown.contains("flagstone serve /etc/flagstone/conf.d"), "{shown}");
        let expected = [
            ("etc/flagstone/conf.d/db.toml", 0o644),
            ("etc/flagstone/keys/host", 0o600),
            ("etc/flagstone/keys/pair", 0o600),
            ("etc/passwd", 0o644),
            ("etc/systemd/system/flagstone.service.d/db.conf", 0o644),
        ];
        let found = tree(root);
        let found: Vec<_> = found.iter().map(|(name, mode)| (name.as_str(), *mode)).collect();
        assert_eq!(found[..3], expected[..3]);
        assert_eq!(found[4], expected[4]);
        assert_eq!(fs::metadata(root.join("etc/flagstone/keys")).unwrap().mode() & 0o777, 0o700);
        let drop_in = fs::read_to_string(root.join(expected[4].0)).unwrap();
        assert_eq!(drop_in, "[Service]\nDeviceAllow=/dev/disk/by-id/x-1 rw\n");

        let key = || fs::read_to_string(root.join("etc/flagstone/keys/host")).unwrap();
        let first = key();
        let other = self::setup("/dev/disk/by-id/x-1");
        let Failure(exit, said) = run(root, &other, false, false).unwrap_err();
        assert_eq!((exit, key()), (Exit::Usage, first.clone()));
        assert!(said.contains("keys/host") && said.contains("--force"), "{said}");
        run(root, &other, true, false).unwrap();
        assert_ne!(key(), first);
    }

    /// With `--insecure`, the line promised keys that do not exist.
    #[test]
    fn setup_of_the_peer_names_its_keys_if_it_has_any() {
        let system = system();
        let with_keys = setup("/dev/sdb");
        let without = Setup::new(with_keys.configuration.clone(), None);
        for (setup, said) in [(with_keys, ", with the keys)"), (without, ", without keys)")] {
            let config = Config::parse("setup", &setup.configuration).unwrap();
            let peer = Some((Path::new("/tmp/peer.json"), &setup));
            let (root, force) = (system.path(), false);
            let dry = Installation { root, force, dry_run: true, peer };
            let shown = install(&setup, &config, &dry).unwrap();
            assert!(shown.contains(said), "{shown}");
        }
    }

    /// The unit failed to start, after the files were written.
    #[test]
    fn missing_disk_is_refused_on_this_host() {
        let system = system();
        let missing = system.path().join("sdx");
        let config = Config::parse("setup", &setup(missing.to_str().unwrap()).configuration);
        let config = config.unwrap();
        let check = |base: &Path| refuse_missing(&Root::new(base), base, &config);
        let Failure(exit, said) = check(Path::new("/")).unwrap_err();
        assert!(exit == Exit::Usage && said.contains("sdx does not exist"), "{said}");
        check(system.path()).unwrap();
        fs::write(&missing, "").unwrap();
        check(Path::new("/")).unwrap();
    }

    #[test]
    fn installation_is_refused_before_it_writes() {
        let system = system();
        let root = system.path();
        let before = tree(root);
        // Neither more lines of the unit nor other keys of it.
        for device in ["/dev/sdb rw\nUser=root", "/dev/a b", "/dev/%n"] {
            let Failure(exit, said) = run(root, &setup(device), false, false).unwrap_err();
            assert_eq!((exit, tree(root)), (Exit::Usage, before.clone()), "{said}");
            assert!(said.contains("/dev/disk/by-id"), "{said}");
        }
        fs::write(root.join("etc/flagstone/conf.d/other.toml"), "").unwrap();
        let Failure(_, said) = run(root, &setup("/dev/sdb"), true, false).unwrap_err();
        assert!(said.contains("other.toml"), "{said}");
        fs::remove_file(root.join("etc/flagstone/conf.d/other.toml")).unwrap();
        fs::write(root.join("etc/passwd"), "root:x:0:0::/:\n").unwrap();
        let Failure(_, said) = run(root, &setup("/dev/sdb"), false, false).unwrap_err();
        assert!(said.contains("install the package"), "{said}");
    }
}
