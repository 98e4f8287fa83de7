//! `flagstone init`: writes a commented configuration for a common case, or sets up the service
//! with one.
//!
//! On a terminal it asks for missing values. The result is checked before anything is written, and
//! an existing file is replaced only with consent.

mod files;
mod install;
mod setup;

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use flagstone_config::device_spec::DeviceSpec;
use flagstone_config::listen_spec::ListenSpec;
use flagstone_config::starter::{
    HOST_KEY, PAIR_KEY, Starter, StarterAccess, StarterLimit, StarterNode, StarterPair,
};
use flagstone_config::{Arguments, Config};
use flagstone_host::root::Root;
use zeroize::Zeroizing;

use self::files::{NewFile, repeated, write_all};
use self::install::{Installation, install};
use self::setup::{Setup, SetupKeys};
use crate::args::InitArgs;
use crate::exit::{Exit, Failure};
use crate::output::{complain, print, wants_color};

/// Longest answer to a question, in bytes.
const ANSWER_BYTES_MAX: u64 = 4096;

pub(crate) fn run(args: &InitArgs) -> Result<Exit, Failure> {
    if let Some(from) = &args.from {
        let setup = Setup::read(from)?;
        let Some(config) = accepted(&from.display().to_string(), &setup.configuration) else {
            return Ok(Exit::Usage);
        };
        let InitArgs { root, force, dry_run, .. } = args;
        let (force, dry_run) = (*force, *dry_run);
        let done = install(&setup, &config, &Installation { root, force, dry_run, peer: None })?;
        return Ok(print(&done, Exit::Success));
    }
    let starter = starter(args)?;
    let name = args.file.as_ref().map_or("init".to_owned(), |file| file.display().to_string());
    let (text, peer) = (starter.text(), starter.peer_text());
    let Some(config) = accepted(&name, &text) else { return Ok(Exit::Usage) };
    if let Some(peer) = &peer
        && accepted("the peer's file", peer).is_none()
    {
        return Ok(Exit::Usage);
    }
    if args.install {
        return install_pair(args, &starter, &config, (text, peer));
    }
    let files = [(&args.file, Some(&text)), (&args.peer_file, peer.as_ref())];
    let files = files.into_iter().filter_map(|(file, text)| Some((file.as_ref()?, text?)));
    let mut out = write(files.map(|(file, text)| configuration(file, text)).collect(), args.force)?;
    if args.file.is_none() {
        out += &text;
    }
    if let (Some(peer), Some(pair), None) = (&peer, &starter.pair, &args.peer_file) {
        let name = &pair.peer.name;
        match args.file {
            Some(_) => out += &format!("# ---- the file of {name} ----\n{peer}"),
            // Commented out: a configuration of both nodes would be none of either.
            None => {
                out += &format!("# ---- the file of {name}; --peer-file FILE writes it ----\n");
                out.extend(
                    peer.lines().map(|line| format!("#| {line}").trim_end().to_owned() + "\n"),
                );
            }
        }
    }
    if let Some(missing) = missing_device(Path::new("/"), &starter.device) {
        complain(&format!("warning: {missing}\n"));
    }
    let next = next_commands(&starter, args);
    match args.file {
        Some(_) if args.peer_file.is_some() || peer.is_none() => out += &next,
        // Standard output may be redirected to a file.
        _ => complain(&next),
    }
    Ok(print(&out, Exit::Success))
}

/// The parsed configuration, or None after its mistakes were printed.
fn accepted(name: &str, text: &str) -> Option<Config> {
    match Config::check_text(name, text, &Arguments::default()) {
        Ok(checked) => Some(checked.config),
        Err(mistakes) => {
            complain(&mistakes.render(wants_color(&io::stderr())));
            None
        }
    }
}

/// Installs this node, and writes the setup of its peer.
fn install_pair(
    args: &InitArgs,
    starter: &Starter,
    config: &Config,
    (text, peer): (String, Option<String>),
) -> Result<Exit, Failure> {
    let keys = match starter.access {
        StarterAccess::Keys { .. } => Some(SetupKeys::generate(peer.is_some())?),
        StarterAccess::Local | StarterAccess::Insecure => None,
    };
    let peer = peer.map(|text| Setup::new(text, keys.clone()));
    let peer_file = match (&args.peer_file, &starter.pair) {
        (Some(file), _) => file.clone(),
        (None, Some(pair)) => PathBuf::from(format!("{}.setup", pair.peer.name)),
        (None, None) => PathBuf::new(),
    };
    let (root, force, dry_run) = (&args.root, args.force, args.dry_run);
    let peer = peer.as_ref().map(|peer| (peer_file.as_path(), peer));
    let setup = Setup::new(text, keys);
    let mut out = install(&setup, config, &Installation { root, force, dry_run, peer })?;
    if let Some(pair) = &starter.pair {
        out += &pair_commands(starter, pair, &peer_file);
    }
    Ok(print(&out, Exit::Success))
}

/// The commands that make the mirror, and attach the host to it.
fn pair_commands(starter: &Starter, pair: &StarterPair, peer_file: &Path) -> String {
    let (volume, node, peer) = (&starter.volume, &pair.node, &pair.peer);
    let peer_file = peer_file.display();
    let mut lines = vec![
        format!(
            "{}# ssh root@{} flagstone init --from - <{peer_file}",
            node.name,
            peer.bare_host()
        ),
        format!("{}# flagstone mirror create {volume} --source", node.name),
        format!("{}# flagstone mirror create {volume} --target --watch", peer.name),
        "host# modprobe nvme-tcp".to_owned(),
    ];
    let attach =
        format!("host# nvme connect-all -t tcp -a {} -s {}", node.bare_host(), node.port());
    let secret = match starter.access {
        StarterAccess::Keys { .. } => {
            format!(" --dhchap-secret \"$(ssh root@{} cat {HOST_KEY})\"", node.bare_host())
        }
        StarterAccess::Local | StarterAccess::Insecure => String::new(),
    };
    lines.push(format!("{attach} --ctrl-loss-tmo=300{secret}"));
    format!("next ({}'s device is overwritten):\n  {}\n", peer.name, lines.join("\n  "))
}

/// A message if the device is a path that is not in the system at `root`. A configuration may be
/// for another machine.
fn missing_device(root: &Path, device: &str) -> Option<String> {
    let Ok(DeviceSpec::Path(path)) = device.parse() else { return None };
    let is_missing = !Root::new(root).locate(&path.to_string_lossy()).exists();
    is_missing.then(|| {
        format!("{device} does not exist on this machine: create it there before the server starts")
    })
}

/// The commands that follow, for the user to copy.
fn next_commands(starter: &Starter, args: &InitArgs) -> String {
    let mut commands = Vec::new();
    let own = args.file.as_deref().unwrap_or(Path::new("FILE"));
    if let StarterAccess::Keys { .. } = starter.access {
        commands.extend(key_commands(starter));
    }
    if let (Some(pair), Some(peer)) = (&starter.pair, &args.peer_file) {
        let host = pair.peer.host();
        commands.push(format!("scp {} root@{host}:{}", peer.display(), own.display()));
    }
    let both = if starter.pair.is_some() { "   # on both nodes" } else { "" };
    commands.push(format!("flagstone serve {}{both}", own.display()));
    if let Some(pair) = &starter.pair {
        let (volume, node, peer) = (&starter.volume, &pair.node.name, &pair.peer.name);
        let create = format!("flagstone mirror create {volume}");
        commands.push(format!("{create} --source   # on {node}, which has the data"));
        commands
            .push(format!("{create} --target --watch   # on {peer}, whose device is overwritten"));
    }
    let title = "# next (--install in place of FILE does this for the service of the package):";
    format!("{title}\n#   {}\n", commands.join("\n#   "))
}

/// The commands that make the keys and bring them to the peer.
fn key_commands(starter: &Starter) -> Vec<String> {
    let folder = Path::new(HOST_KEY).parent().unwrap_or(Path::new("/")).display();
    let make = |key| format!("flagstone key generate {key}");
    let pair = starter.pair.as_ref();
    let mut commands = vec![format!("mkdir -p -m 700 {folder}"), make(HOST_KEY)];
    commands.extend(pair.map(|_| make(PAIR_KEY)));
    if let Some(pair) = pair {
        commands.push(format!("scp -rp {folder} root@{}:/etc/flagstone/", pair.peer.host()));
    }
    commands
}

/// Fails if `file` exists, unless it may be replaced.
fn consent(file: &Path, force: bool) -> Result<(), Failure> {
    if force || fs::symlink_metadata(file).is_err() {
        return Ok(());
    }
    let exists = format!("{} exists", file.display());
    let is_yes = |answer: String| ["y", "yes"].contains(&answer.to_lowercase().as_str());
    let agreed = io::stdin().is_terminal() && is_yes(ask(&format!("{exists}: replace it? [y/N]"))?);
    match agreed {
        true => Ok(()),
        false => Err(Failure::usage(exists + ": give another name, or --force to replace it")),
    }
}

fn configuration(path: &Path, text: &str) -> NewFile {
    let text = Zeroizing::new(text.to_owned());
    NewFile { path: path.to_owned(), text, mode: 0o644, owner: None, what: "the configuration" }
}

/// Writes all files or none, with consent, and returns a line for each.
fn write(files: Vec<NewFile>, force: bool) -> Result<String, Failure> {
    refuse_repeated(&files)?;
    for file in &files {
        consent(&file.path, force)?;
    }
    write_all(&files).map_err(|(path, error)| {
        Failure::failed(format!("cannot write {}: {error}", path.display()))
    })?;
    Ok(files.iter().map(|file| format!("# {} is written\n", file.path.display())).collect())
}

/// One file would replace the other.
fn refuse_repeated(files: &[NewFile]) -> Result<(), Failure> {
    let Some(path) = repeated(files) else { return Ok(()) };
    let path = path.display();
    Err(Failure::usage(format!("{path} is named for two files: give the peer's another name")))
}

fn starter(args: &InitArgs) -> Result<Starter, Failure> {
    // An answer is wanted to the optional questions only from a user who gave no options.
    let interview = args.device.is_none() && io::stdin().is_terminal();
    let device =
        required("--device", &args.device, "Device that stores the data, such as /dev/sdb")?;
    let mut args = args.clone();
    if interview && args.peer.is_none() {
        args.peer = optional("Mirror to another node, as NAME=ADDRESS; empty for no mirror")?;
    }
    let pair = pair(&args, &device)?;
    if interview && limit(&args).is_none() {
        let disk = optional("Limit like a cloud disk, as TYPE SIZE MACHINE; empty for no limit")?;
        let disk = disk.unwrap_or_default();
        let mut words = disk.split_whitespace().map(str::to_owned);
        (args.profile, args.size, args.machine) = (words.next(), words.next(), words.next());
        if args.profile.is_some() && args.machine.is_none() {
            return Err(Failure::usage("write three words, such as pd-ssd 500GB n2-standard-8"));
        }
    }
    let listen = args.listen.clone().unwrap_or_else(|| match &pair {
        // A peer has to reach this node; a single disk is served to this machine.
        Some(pair) => pair.node.listen(),
        None => "127.0.0.1:4420".to_owned(),
    });
    let access = access(&args, &listen, pair.as_ref())?;
    Ok(Starter { volume: args.volume.clone(), device, listen, access, pair, limit: limit(&args) })
}

/// The proof that is required at `listen`. A wrong address is reported by the check of the file.
fn access(
    args: &InitArgs,
    listen: &str,
    pair: Option<&StarterPair>,
) -> Result<StarterAccess, Failure> {
    let spec: Result<ListenSpec, _> = format!("nvme-tcp://{listen}").parse();
    let is_local = spec.is_ok_and(|spec| spec.is_local())
        && pair.is_none_or(|pair| pair.node.is_local() && pair.peer.is_local());
    if is_local && args.host.is_none() {
        return Ok(StarterAccess::Local);
    }
    if args.insecure {
        return Ok(StarterAccess::Insecure);
    }
    let question = "NQN of the host (its /etc/nvme/hostnqn), or --insecure to let anyone in";
    let host_nqn = required("--host", &args.host, question)?;
    Ok(StarterAccess::Keys { host_nqn })
}

/// Both nodes, if any option names one.
fn pair(args: &InitArgs, device: &str) -> Result<Option<StarterPair>, Failure> {
    let Some(peer) = &args.peer else { return Ok(None) };
    let node = required("--node", &args.node, "This node, as NAME=ADDRESS")?;
    Ok(Some(StarterPair {
        node: named(&node, "--node")?,
        peer: named(peer, "--peer")?,
        peer_device: args.peer_device.clone().unwrap_or_else(|| device.to_owned()),
    }))
}

fn named(text: &str, option: &str) -> Result<StarterNode, Failure> {
    let found =
        text.split_once('=').filter(|(name, address)| !name.is_empty() && !address.is_empty());
    let (name, address) = found.ok_or_else(|| {
        Failure::usage(format!("{option}: write NAME=ADDRESS, such as node-b=10.0.0.2"))
    })?;
    let node = StarterNode { name: name.to_owned(), address: address.to_owned() };
    node.check().map_err(|error| Failure::usage(format!("{option}: {address}: {error}")))?;
    Ok(node)
}

fn limit(args: &InitArgs) -> Option<StarterLimit> {
    if let (Some(kind), Some(size), Some(machine)) = (&args.profile, &args.size, &args.machine) {
        let (kind, size, machine) = (kind.clone(), size.clone(), machine.clone());
        return Some(StarterLimit::Profile { kind, size, machine });
    }
    let (iops, throughput) = (args.iops, args.throughput.clone());
    (iops.is_some() || throughput.is_some()).then_some(StarterLimit::Rates { iops, throughput })
}

/// The value of an option, asked for on a terminal if it is missing.
fn required(option: &str, value: &Option<String>, question: &str) -> Result<String, Failure> {
    if let Some(value) = value {
        return Ok(value.clone());
    }
    let answer = if io::stdin().is_terminal() { optional(question)? } else { None };
    answer
        .ok_or_else(|| Failure::usage(format!("{option} is missing: {}", question.to_lowercase())))
}

fn optional(question: &str) -> Result<Option<String>, Failure> {
    Ok(Some(ask(question)?).filter(|answer| !answer.is_empty()))
}

/// The answer to a question on the terminal; empty at the end of the input.
fn ask(question: &str) -> Result<String, Failure> {
    complain(&format!("{question}: "));
    let mut line = String::new();
    io::stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut line).map_err(Failure::failed)?;
    Ok(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first of two files was written before the second failed, and `FILE.new` was destroyed.
    #[test]
    fn both_files_of_a_pair_are_written_or_none() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let pair = |peer: &str| {
            write([at("a"), at(peer)].map(|path| configuration(&path, "text")).into(), false)
        };
        for (peer, exit) in [("a", Exit::Usage), ("./a", Exit::Usage), ("no/p", Exit::Failed)] {
            let Failure(found, said) = pair(peer).unwrap_err();
            assert_eq!(found, exit, "{said}");
            assert!(!at("a").exists(), "{said}");
        }
        fs::write(at("a.new"), "mine").unwrap();
        pair("b").unwrap();
        assert_eq!(fs::read_to_string(at("a.new")).unwrap(), "mine");
        assert!(at("a").exists() && at("b").exists());
    }

    #[test]
    fn commands_of_a_pair_with_ipv6_can_be_run() {
        let node = |text: &str| named(text, "--node").unwrap();
        let pair = StarterPair {
            node: node("a=[fd00::1]"),
            peer: node("b=[fd00::2]"),
            peer_device: "/dev/sdb".to_owned(),
        };
        let starter = Starter {
            volume: "db".to_owned(),
            device: "/dev/sdb".to_owned(),
            listen: pair.node.listen(),
            access: StarterAccess::Keys { host_nqn: "nqn".to_owned() },
            pair: Some(pair.clone()),
            limit: None,
        };
        let shown = pair_commands(&starter, &pair, Path::new("b.setup"));
        assert!(shown.contains("ssh root@fd00::2 ") && shown.contains("-a fd00::1 "), "{shown}");
        assert!(shown.contains("ssh root@fd00::1 cat"), "{shown}");
        assert!(key_commands(&starter).concat().contains("root@[fd00::2]:/"));
        let Failure(_, said) = named("b=fd00::2", "--peer").unwrap_err();
        assert!(said.contains("--peer") && said.contains("brackets"), "{said}");
    }

    #[test]
    fn missing_device_is_warned_of() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        let device = path.to_str().unwrap();
        let warning = missing_device(Path::new("/"), device).unwrap();
        assert!(warning.contains(device) && warning.contains("does not exist"), "{warning}");
        fs::write(&path, "").unwrap();
        assert_eq!(missing_device(Path::new("/"), device), None);
        for other in ["memory:1GiB", "nbd://h/x"] {
            assert_eq!(missing_device(Path::new("/"), other), None);
        }
    }
}
