//! `flagstone init`: writes a commented configuration for a common case.
//!
//! What is missing is asked for on a terminal. The result is checked before it is written, and an
//! existing file is never replaced.

use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;

use flagstone_config::starter::{Starter, StarterLimit, StarterNode, StarterPair};
use flagstone_config::{Arguments, Config};

use crate::args::InitArgs;
use crate::exit::{Exit, Failure};
use crate::output::{complain, print, wants_color};

pub(crate) fn run(args: &InitArgs) -> Result<Exit, Failure> {
    let starter = starter(args)?;
    let name = args.file.as_ref().map_or("init".to_owned(), |file| file.display().to_string());
    let (text, peer) = (starter.text(), starter.peer_text());
    for (name, text) in [(name.as_str(), Some(&text)), ("the peer's file", peer.as_ref())] {
        let Some(text) = text else { continue };
        if let Err(mistakes) = Config::check_text(name, text, &Arguments::default()) {
            complain(&mistakes.render(wants_color(&io::stderr())));
            return Ok(Exit::Usage);
        }
    }
    let mut out = match &args.file {
        Some(file) => {
            write_new(file, &text)?;
            format!("# {name} is written: next `flagstone serve {name}`\n")
        }
        None => text,
    };
    if let (Some(peer), Some(pair)) = (peer, &starter.pair) {
        out += &format!("\n# ---- the file of {} ----\n{peer}", pair.peer.name);
    }
    Ok(print(&out, Exit::Success))
}

/// Writes a file that does not exist yet.
fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let refused = |error: io::Error| {
        let message = format!("{}: {error}", path.display());
        match error.kind() {
            io::ErrorKind::AlreadyExists => Failure::usage(message + ": write another name"),
            _ => Failure::failed(message),
        }
    };
    let mut file = File::create_new(path).map_err(refused)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(refused)
}

fn starter(args: &InitArgs) -> Result<Starter, Failure> {
    let device =
        required("--device", &args.device, "Device that stores the data, such as /dev/sdb")?;
    let pair = pair(args, &device)?;
    let listen = args.listen.clone().unwrap_or_else(|| {
        // A peer has to reach this node; a single disk is served to this machine.
        let address = if pair.is_some() { "0.0.0.0:4420" } else { "127.0.0.1:4420" };
        address.to_owned()
    });
    Ok(Starter { volume: args.volume.clone(), device, listen, pair, limit: limit(args) })
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
    Ok(StarterNode { name: name.to_owned(), address: address.to_owned() })
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
    let missing = || Failure::usage(format!("{option} is missing: {}", question.to_lowercase()));
    if !io::stdin().is_terminal() {
        return Err(missing());
    }
    complain(&format!("{question}: "));
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(Failure::failed)?;
    let answer = line.trim();
    if answer.is_empty() { Err(missing()) } else { Ok(answer.to_owned()) }
}
