//! What `flagstone mirror` takes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use flagstone_control::units::{parse_rate, parse_size};

use crate::status::pause;

/// Arguments of `flagstone mirror`.
#[derive(Debug, Args)]
pub struct MirrorArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: MirrorCommand,
}

/// What `flagstone mirror` does.
#[derive(Debug, Subcommand)]
pub enum MirrorCommand {
    /// Say how mirrors do: state, what is out of date, and what to do next
    Status(StatusArgs),
    /// Make this node's replica of a volume
    Create(CreateArgs),
    /// Stop sending to a peer, and track what it lacks
    Pause(PeerArgs),
    /// Go on after pause or break
    Continue(PeerArgs),
    /// Bring a peer up to date now
    Resync(ResyncArgs),
    /// Do without a peer, and do not track what it lacks
    Break(PeerArgs),
    /// Hand the volume from one node to the other; nothing is lost
    Switchover(SwitchoverArgs),
    /// Serve the volume here, though the node that served it cannot be asked
    Failover(ForceArgs),
    /// Compare both sides by checksums, while hosts go on
    Verify(VerifyArgs),
    /// End a split brain by saying whose data is kept
    Resolve(ResolveArgs),
    /// Have the volume grow to what the devices of all its nodes have room for now
    Grow(GrowArgs),
    /// Make this node a target: it serves the volume no more
    Demote(DemoteArgs),
    /// Forget that the volume's device here is a replica; its data stays
    Delete(ForceArgs),
}

/// How the server is asked, and how its answer is shown.
#[derive(Debug, Clone, Args)]
pub struct Asking {
    /// The server's own documents on standard output, of docs/api.md; with --watch one a line
    #[arg(long)]
    pub json: bool,
    /// Unix socket of the server's API, which it prints at its start; the default places if not given
    #[arg(long, value_name = "PATH")]
    pub api: Option<PathBuf>,
    /// Show the state again and again: of status until interrupted, else until it has settled
    #[arg(long)]
    pub watch: bool,
    /// Pause between two looks of --watch, 100ms or longer
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = pause)]
    pub interval: Duration,
}

/// What all actions take.
#[derive(Debug, Clone, Args)]
pub struct Acting {
    /// Say what would be done, from the present state, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// How the server is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Arguments of `flagstone mirror status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Tell all about the mirror of this volume, rather than a line of each
    pub volume: Option<String>,
    /// How the server is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Arguments of `flagstone mirror create`.
#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("role").args(["source", "target"]).required(true)))]
pub struct CreateArgs {
    /// The volume
    pub volume: String,
    /// What is on the device is the volume's data; its end takes the mirror's metadata
    #[arg(long)]
    pub source: bool,
    /// The volume's data is copied here from its source: everything on the device is overwritten
    #[arg(long)]
    pub target: bool,
    /// With --target: overwrite a device that is not empty, or that may have an earlier replica
    #[arg(long, conflicts_with = "source")]
    pub destroy_data: bool,
    /// With --source: begin a new volume though an earlier replica of it may be here, or a peer has one
    #[arg(long, conflicts_with = "target")]
    pub anew: bool,
    /// Do not ask before something is lost
    #[arg(long, short)]
    pub yes: bool,
    /// What all actions take.
    #[command(flatten)]
    pub acting: Acting,
}

/// Arguments of actions on a peer.
#[derive(Debug, Clone, Args)]
pub struct PeerArgs {
    /// The volume
    pub volume: String,
    /// The peer, when the volume has several
    #[arg(long, value_name = "NAME")]
    pub peer: Option<String>,
    /// What all actions take.
    #[command(flatten)]
    pub acting: Acting,
}

/// Arguments of `flagstone mirror resync`.
#[derive(Debug, Clone, Args)]
pub struct ResyncArgs {
    /// Which mirror.
    #[command(flatten)]
    pub of: PeerArgs,
    /// Copy everything, whatever is known to be equal
    #[arg(long)]
    pub full: bool,
    /// Whether to compare checksums first and copy what differs; as configured if not given
    #[arg(long, value_name = "YES|NO")]
    pub compare: Option<YesNo>,
}

/// Yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum YesNo {
    /// Yes
    Yes,
    /// No
    No,
}

/// Arguments of `flagstone mirror switchover`.
#[derive(Debug, Clone, Args)]
pub struct SwitchoverArgs {
    /// Which mirror.
    #[command(flatten)]
    pub of: PeerArgs,
    /// The node that is to serve the volume: a peer, or this one, which it is if not given
    #[arg(long, value_name = "NODE")]
    pub to: Option<String>,
}

/// Arguments of `flagstone mirror verify`.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// Which mirror.
    #[command(flatten)]
    pub of: PeerArgs,
    /// Copy what differs to the peer at the end
    #[arg(long, alias = "mark")]
    pub repair: bool,
    /// Compare no more than this a second, such as 100MB/s; no limit if not given
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub max_rate: Option<u64>,
    /// Stop the verify that runs
    #[arg(long, conflicts_with_all = ["repair", "max_rate", "watch"])]
    pub stop: bool,
}

/// Whose data is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Keep {
    /// This node's; the peer gives its own up
    Mine,
    /// The peer's; this node gives its own up
    Peer,
}

/// Arguments of `flagstone mirror resolve`.
#[derive(Debug, Clone, Args)]
pub struct ResolveArgs {
    /// Which mirror.
    #[command(flatten)]
    pub of: PeerArgs,
    /// Whose data is kept
    #[arg(long, value_enum, value_name = "SIDE")]
    pub keep: Keep,
    /// Do not ask before something is lost
    #[arg(long, short)]
    pub yes: bool,
}

/// Arguments of `flagstone mirror demote`.
#[derive(Debug, Clone, Args)]
pub struct DemoteArgs {
    /// The volume
    pub volume: String,
    /// What all actions take.
    #[command(flatten)]
    pub acting: Acting,
}

/// Arguments of `flagstone mirror grow`.
#[derive(Debug, Clone, Args)]
pub struct GrowArgs {
    /// The volume
    pub volume: String,
    /// Grow to this size, such as 200GiB, rather than to all that there is room for
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// What all actions take.
    #[command(flatten)]
    pub acting: Acting,
}

/// Arguments of `flagstone mirror failover` and `delete`.
#[derive(Debug, Clone, Args)]
pub struct ForceArgs {
    /// The volume
    pub volume: String,
    /// Do it though a source is attached or the disk here is in doubt after a failed flush (failover), or
    /// hosts are served (delete)
    #[arg(long)]
    pub force: bool,
    /// Do not ask before something is lost
    #[arg(long, short)]
    pub yes: bool,
    /// What all actions take.
    #[command(flatten)]
    pub acting: Acting,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn rate(text: &str) -> Result<u64, String> {
    match parse_rate(text) {
        Ok(0) => Err("write a rate above 0, such as 100MB/s".to_owned()),
        Ok(rate) => Ok(rate),
        Err(error) => Err(error.to_string()),
    }
}
