//! Options of `flagstone mirror`.

use clap::{Args, Subcommand};
use flagstone_server::api::mirror_document::ResolveKeep;
use flagstone_units::{parse_rate, parse_size};

use crate::completions;
use crate::status::{QueryArgs, StatusArgs};
use crate::words::{KEPT_SIDES, ON_OFF, YES_NO, one_of};

#[derive(Debug, Args)]
pub(crate) struct MirrorArgs {
    #[command(subcommand)]
    pub(crate) command: MirrorCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MirrorCommand {
    /// Show the state of mirrors, their out-of-sync data, and the next step
    Status(StatusArgs),
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
    /// Make this node the source without a hand-over by the current one
    Failover(ForceArgs),
    /// Suspend automatic failover for maintenance, or resume it
    Maintenance(MaintenanceArgs),
    /// Run the command that stops the machine of the peer; --dry-run checks it
    Fence(FenceArgs),
    /// Compare the checksums of both replicas while hosts are served
    Verify(VerifyArgs),
    /// End a split brain by choosing the data to keep
    Resolve(ResolveArgs),
    /// Grow the volume to the size that the devices of all nodes allow
    Grow(GrowArgs),
    /// Move the write-intent log of the volume to another device here, without a resync
    MoveLog(MoveLogArgs),
    /// Make a node a peer of the volume while hosts work; it receives a copy
    AddPeer(AddPeerArgs),
    /// End the membership of a peer while hosts work
    RemovePeer(MemberArgs),
    /// Make this node a target: it stops serving the volume
    Demote(VolumeArgs),
    /// Remove the replica from the volume's device here; the data stays
    Delete(ForceArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ActionArgs {
    /// Show the effect of the action on the current state, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) query: QueryArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct VolumeArgs {
    /// The volume, or its consistency group for an order to all of its volumes
    #[arg(add = completions::volumes())]
    pub(crate) volume: String,
    #[command(flatten)]
    pub(crate) action_args: ActionArgs,
}

#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("role").args(["source", "target"]).required(true)))]
pub(crate) struct CreateArgs {
    /// Keep the data on the device as the volume's data; the end of the device holds the metadata
    #[arg(long)]
    pub(crate) source: bool,
    /// Copy the volume's data from its source, which overwrites the device
    #[arg(long)]
    pub(crate) target: bool,
    /// With --target: overwrite a device that is not empty, or that may hold an earlier replica
    #[arg(long, conflicts_with = "source")]
    pub(crate) destroy_data: bool,
    /// With --source: start a new volume although an earlier replica may be here, or on a peer
    #[arg(long, conflicts_with = "target")]
    pub(crate) new_volume: bool,
    /// The device reads as zeroes, on both nodes: nothing but hosts' writes has to be copied. Reads
    /// all of it, except for holes, and refuses a device that has other data
    #[arg(long, conflicts_with = "destroy_data")]
    pub(crate) empty: bool,
    /// Skip the confirmation of data loss
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) on: VolumeArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PeerArgs {
    /// The peer, if the volume has several
    #[arg(long, value_name = "NAME", add = completions::peers())]
    pub(crate) peer: Option<String>,
    #[command(flatten)]
    pub(crate) on: VolumeArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ResyncArgs {
    #[command(flatten)]
    pub(crate) of: PeerArgs,
    /// Copy everything, even blocks known to be in sync
    #[arg(long)]
    pub(crate) full: bool,
    /// Compare checksums first and copy only differences; as configured if not given
    #[arg(long, value_name = "YES|NO", value_parser = one_of(YES_NO))]
    pub(crate) compare: Option<bool>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SwitchoverArgs {
    #[command(flatten)]
    pub(crate) of: PeerArgs,
    /// The new source: a peer or this node; this node if not given
    #[arg(long, value_name = "NODE", add = completions::all_nodes())]
    pub(crate) to: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MaintenanceArgs {
    #[command(flatten)]
    pub(crate) on: VolumeArgs,
    /// `on` suspends automatic failover, `off` resumes it
    #[arg(value_name = "on|off", action = clap::ArgAction::Set, value_parser = one_of(ON_OFF))]
    pub(crate) suspend: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct FenceArgs {
    /// Skip the confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) on: VolumeArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) of: PeerArgs,
    /// Copy differing blocks to the peer at the end
    #[arg(long, alias = "mark")]
    pub(crate) repair: bool,
    /// Maximum rate of the comparison, such as 100MB/s; unlimited if not given
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) max_rate: Option<u64>,
    /// Stop the running verify
    #[arg(long, conflicts_with_all = ["repair", "max_rate", "watch"])]
    pub(crate) stop: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ResolveArgs {
    #[command(flatten)]
    pub(crate) of: PeerArgs,
    /// The data to keep
    #[arg(long, value_name = "SIDE", value_parser = one_of(KEPT_SIDES))]
    pub(crate) keep: ResolveKeep,
    /// Skip the confirmation of data loss
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct GrowArgs {
    /// Grow to this size, such as 200GiB, instead of the largest possible
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) size: Option<u64>,
    #[command(flatten)]
    pub(crate) on: VolumeArgs,
}

#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("place").args(["to", "to_data_device"]).required(true)))]
pub(crate) struct MoveLogArgs {
    /// The new device, as in `intent_log` of the configuration: a disk, or a file, which is created
    #[arg(long, value_name = "DEVICE")]
    pub(crate) to: Option<String>,
    /// Move the log onto the volume's own device
    #[arg(long)]
    pub(crate) to_data_device: bool,
    #[command(flatten)]
    pub(crate) on: VolumeArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AddPeerArgs {
    #[command(flatten)]
    pub(crate) peer: MemberArgs,
    /// Where it serves NVMe/TCP, as `HOST` or `HOST:PORT`; not needed if the server's configuration
    /// has its [peer.NAME]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Option<String>,
    /// Accept a node on another machine without a key: anyone who takes its name or address can
    /// read and overwrite the mirror
    #[arg(long)]
    pub(crate) insecure: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MemberArgs {
    /// The volume
    #[arg(add = completions::volumes())]
    pub(crate) volume: String,
    /// The node, by the name that it calls itself
    #[arg(value_name = "PEER", add = completions::peers())]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) action_args: ActionArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ForceArgs {
    /// Proceed although a peer serves hosts or does not answer, or the local disk is unverified
    /// after a failed flush (failover), or hosts are served (delete)
    #[arg(long)]
    pub(crate) force: bool,
    /// Skip the confirmation of data loss
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) on: VolumeArgs,
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
