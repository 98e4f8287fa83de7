//! Options of `flagstone mirror`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use flagstone_units::{parse_rate, parse_size};

use crate::status::pause;

/// Arguments of `flagstone mirror`.
#[derive(Debug, Args)]
pub struct MirrorArgs {
    /// The command.
    #[command(subcommand)]
    pub command: MirrorCommand,
}

/// Commands of `flagstone mirror`.
#[derive(Debug, Subcommand)]
pub enum MirrorCommand {
    /// Show the state of mirrors, their out-of-sync data, and the next step
    Status(MirrorStatusArgs),
    /// Create this node's replica of a volume
    Create(CreateArgs),
    /// Pause mirroring to a peer, and track its out-of-sync blocks
    Pause(PeerArgs),
    /// Resume mirroring after pause or break
    Continue(PeerArgs),
    /// Resynchronize a peer now
    Resync(ResyncArgs),
    /// Detach a peer without tracking its out-of-sync blocks
    Break(PeerArgs),
    /// Move the source role between the nodes without data loss
    Switchover(SwitchoverArgs),
    /// Make this node the source although the current source is unreachable
    Failover(ForceArgs),
    /// Compare the checksums of both replicas while hosts are served
    Verify(VerifyArgs),
    /// End a split brain by choosing the data to keep
    Resolve(ResolveArgs),
    /// Grow the volume to the size that the devices of all nodes allow
    Grow(GrowArgs),
    /// Make this node a target: it stops serving the volume
    Demote(DemoteArgs),
    /// Remove the replica from the volume's device here; the data stays
    Delete(ForceArgs),
}

/// Connection to the server and format of its answers.
#[derive(Debug, Clone, Args)]
pub struct QueryArgs {
    /// Print the server's JSON documents (docs/api.md); with --watch one per line
    #[arg(long)]
    pub json: bool,
    /// Unix socket of the server's API, which the server prints at startup; the default sockets if
    /// not given
    #[arg(long, value_name = "PATH")]
    pub api: Option<PathBuf>,
    /// Repeat the state: for status until interrupted, otherwise until the action has finished
    #[arg(long)]
    pub watch: bool,
    /// Interval of --watch, 100ms or longer
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = pause)]
    pub interval: Duration,
}

/// Options of all actions.
#[derive(Debug, Clone, Args)]
pub struct ActionArgs {
    /// Show the effect of the action on the current state, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Server.
    #[command(flatten)]
    pub query: QueryArgs,
}

/// Arguments of `flagstone mirror status`.
#[derive(Debug, Clone, Args)]
pub struct MirrorStatusArgs {
    /// Show the details of this volume's mirror
    pub volume: Option<String>,
    /// Server.
    #[command(flatten)]
    pub query: QueryArgs,
}

/// Arguments of `flagstone mirror create`.
#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("role").args(["source", "target"]).required(true)))]
pub struct CreateArgs {
    /// The volume
    pub volume: String,
    /// Keep the data on the device as the volume's data; the end of the device holds the metadata
    #[arg(long)]
    pub source: bool,
    /// Copy the volume's data from its source, which overwrites the device
    #[arg(long)]
    pub target: bool,
    /// With --target: overwrite a device that is not empty, or that may hold an earlier replica
    #[arg(long, conflicts_with = "source")]
    pub destroy_data: bool,
    /// With --source: start a new volume although an earlier replica may be here, or on a peer
    #[arg(long, conflicts_with = "target")]
    pub anew: bool,
    /// Skip the confirmation of data loss
    #[arg(long, short)]
    pub yes: bool,
    /// All actions.
    #[command(flatten)]
    pub action_args: ActionArgs,
}

/// Arguments of actions on a peer.
#[derive(Debug, Clone, Args)]
pub struct PeerArgs {
    /// The volume
    pub volume: String,
    /// The peer, if the volume has several
    #[arg(long, value_name = "NAME")]
    pub peer: Option<String>,
    /// All actions.
    #[command(flatten)]
    pub action_args: ActionArgs,
}

/// Arguments of `flagstone mirror resync`.
#[derive(Debug, Clone, Args)]
pub struct ResyncArgs {
    /// Mirror.
    #[command(flatten)]
    pub of: PeerArgs,
    /// Copy everything, even blocks known to be in sync
    #[arg(long)]
    pub full: bool,
    /// Compare checksums first and copy only differences; as configured if not given
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
    /// Mirror.
    #[command(flatten)]
    pub of: PeerArgs,
    /// The new source: a peer or this node; this node if not given
    #[arg(long, value_name = "NODE")]
    pub to: Option<String>,
}

/// Arguments of `flagstone mirror verify`.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// Mirror.
    #[command(flatten)]
    pub of: PeerArgs,
    /// Copy differing blocks to the peer at the end
    #[arg(long, alias = "mark")]
    pub repair: bool,
    /// Maximum rate of the comparison, such as 100MB/s; unlimited if not given
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub max_rate: Option<u64>,
    /// Stop the running verify
    #[arg(long, conflicts_with_all = ["repair", "max_rate", "watch"])]
    pub stop: bool,
}

/// The replica whose data is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KeepSide {
    /// Keep this node's data; the peer discards its own
    Mine,
    /// Keep the peer's data; this node discards its own
    Peer,
}

/// Arguments of `flagstone mirror resolve`.
#[derive(Debug, Clone, Args)]
pub struct ResolveArgs {
    /// Mirror.
    #[command(flatten)]
    pub of: PeerArgs,
    /// The data to keep
    #[arg(long, value_enum, value_name = "SIDE")]
    pub keep: KeepSide,
    /// Skip the confirmation of data loss
    #[arg(long, short)]
    pub yes: bool,
}

/// Arguments of `flagstone mirror demote`.
#[derive(Debug, Clone, Args)]
pub struct DemoteArgs {
    /// The volume
    pub volume: String,
    /// All actions.
    #[command(flatten)]
    pub action_args: ActionArgs,
}

/// Arguments of `flagstone mirror grow`.
#[derive(Debug, Clone, Args)]
pub struct GrowArgs {
    /// The volume
    pub volume: String,
    /// Grow to this size, such as 200GiB, instead of the largest possible
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// All actions.
    #[command(flatten)]
    pub action_args: ActionArgs,
}

/// Arguments of `flagstone mirror failover` and `delete`.
#[derive(Debug, Clone, Args)]
pub struct ForceArgs {
    /// The volume
    pub volume: String,
    /// Proceed although a source is attached or the local disk is unverified after a failed flush
    /// (failover), or hosts are served (delete)
    #[arg(long)]
    pub force: bool,
    /// Skip the confirmation of data loss
    #[arg(long, short)]
    pub yes: bool,
    /// All actions.
    #[command(flatten)]
    pub action_args: ActionArgs,
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
