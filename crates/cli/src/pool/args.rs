//! Options of `flagstone pool`, `flagstone volume` and `flagstone snapshot`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use flagstone_pool::{Compression, Dedup};
use flagstone_server::api::pool_document::RedundancyName;
use flagstone_units::parse_size;

use crate::backup::args::MakeBackupArgs;
use crate::completions;
use crate::plan::args::{CatalogArg, PriceArgs};
use crate::status::server::ApiArgs;
use crate::status::{QueryArgs, StatusArgs};

#[derive(Debug, Args)]
pub(crate) struct PoolArgs {
    #[command(subcommand)]
    pub(crate) command: PoolCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Create a pool on devices, from which volumes are made
    Create(CreatePoolArgs),
    /// Show pools: space, volumes, health, and the next step
    Status(PoolStatusArgs),
    /// Show what thin volumes, compression, deduplication and clones save, and what that costs
    Savings(PoolSavingsArgs),
    /// Open an existing pool: from another machine, or when its devices have other paths
    Import(ImportArgs),
    /// Add a device to a pool while it is used
    Grow(GrowArgs),
    /// Move everything from a device to the others, and remove it
    RemoveDevice(RemoveDeviceArgs),
    /// Replace a device of a pair, or a missing one, and rebuild the new one
    ReplaceDevice(ReplaceDeviceArgs),
    /// Verify every live block of an open pool, in the background
    Scrub(ScrubArgs),
    /// Check the devices of a closed pool without a server, and change nothing
    Check(CheckPoolArgs),
    /// Close a pool after a device failed, and open it again
    Reopen(PoolForceArgs),
    /// Remove a pool with all its volumes
    Destroy(PoolForceArgs),
    /// Change the memory of a pool's map cache
    Set(SetPoolArgs),
    /// Give a pool another log device, or none
    SetLog(SetLogArgs),
    /// Give up the writes that only a lost log device had
    GiveUpTail(GiveUpTailArgs),
}

#[derive(Debug, Args)]
pub(crate) struct VolumeArgs {
    #[command(subcommand)]
    pub(crate) command: VolumeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create a volume in a pool, and serve it
    Create(CreateVolumeArgs),
    /// Show all volumes: kind, device or pool, size and space in use
    List(QueryArgs),
    /// Show one volume, as flagstone status VOLUME does
    Show(StatusArgs),
    /// Grow a volume while hosts use it
    Resize(ResizeArgs),
    /// Change the settings of a volume
    Set(SetArgs),
    /// Give a volume another name
    Rename(RenameArgs),
    /// Create a volume that begins as a snapshot, whose space it shares
    Clone(CloneArgs),
    /// Let a clone take over the snapshots from which it continues
    Promote(PromoteArgs),
    /// Write a snapshot to standard output, for another pool
    Send(SendArgs),
    /// Make a volume, or bring one up to date, from a stream on standard input
    Receive(ReceiveArgs),
    /// Store a snapshot in an object store, or what changed since the last backup of the volume
    Backup(MakeBackupArgs),
    /// Delete a volume with its data
    Delete(DeleteArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SendArgs {
    /// The snapshot, VOLUME@SNAPSHOT
    pub(crate) name: String,
    /// Send what differs from this snapshot, which the receiver has
    #[arg(long, value_name = "VOLUME@SNAPSHOT")]
    pub(crate) since: Option<String>,
    /// Continue a file that was cut, at this byte of the volume
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub(crate) offset: u64,
    /// Leave out the first bytes of the volume, which the receiver has
    #[arg(long, value_name = "BYTES", conflicts_with = "offset")]
    pub(crate) resume: Option<u64>,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ReceiveArgs {
    /// The volume: a new one, or an existing one with the base as a snapshot for a stream with a
    /// base
    pub(crate) name: String,
    /// Pool of a new volume
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<String>,
    /// Compression of a new volume: off, lz4, zstd, or auto (lz4 when written, zstd when cold)
    #[arg(long, value_name = "MODE", value_parser = Compression::ALL.map(Compression::name))]
    pub(crate) compression: Option<String>,
    /// File on the server with the key that encrypts a new volume, or kms:NAME for its key_command
    #[arg(long, value_name = "FILE")]
    pub(crate) encryption_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) force: ForceArgs,
    /// Print the server's JSON document (docs/api.md)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Take a snapshot, or several at one point of the order of writes
    Create(CreateSnapshotArgs),
    /// Show all snapshots
    List(ListSnapshotsArgs),
    /// Show the ranges that differ between two snapshots
    Diff(DiffArgs),
    /// Give a volume the content of one of its snapshots
    Rollback(RollbackArgs),
    /// Delete a snapshot
    Delete(DeleteSnapshotArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CreateSnapshotArgs {
    /// VOLUME@SNAPSHOT, such as db@before-upgrade; several of one SNAPSHOT are taken together
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
    /// Of mirrored volumes, only on this node
    #[arg(long)]
    pub(crate) local_only: bool,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListSnapshotsArgs {
    /// Show the snapshots of this volume only
    #[arg(add = completions::volumes())]
    pub(crate) volume: Option<String>,
    #[command(flatten)]
    pub(crate) query: QueryArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DiffArgs {
    /// The older snapshot, VOLUME@SNAPSHOT
    pub(crate) from: String,
    /// The newer snapshot
    pub(crate) to: String,
    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RollbackArgs {
    /// VOLUME@SNAPSHOT
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) loss: LossArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteSnapshotArgs {
    /// VOLUME@SNAPSHOT
    pub(crate) name: String,
    /// Of a mirrored volume, only on this node
    #[arg(long)]
    pub(crate) local_only: bool,
    /// Skip the confirmation of data loss
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CloneArgs {
    /// The snapshot, VOLUME@SNAPSHOT
    pub(crate) snapshot: String,
    /// Name of the new volume
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PromoteArgs {
    /// The clone
    #[arg(add = completions::volumes())]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct OrderArgs {
    /// Show the effect of the order, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the server's JSON document (docs/api.md)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CreatePoolArgs {
    /// Name of the new pool
    pub(crate) name: String,
    /// Its disks or files, 1 to 16; with redundancy, the two of each pair one after the other
    #[arg(required = true)]
    pub(crate) devices: Vec<PathBuf>,
    /// Copies of everything: none (one copy), or mirror (two, on pairs of devices)
    #[arg(long, value_name = "KIND", default_value = "none",
          value_parser = RedundancyName::ALL.map(RedundancyName::name))]
    pub(crate) redundancy: String,
    /// Fast device for the newest part of the log, such as a local SSD
    #[arg(long, value_name = "DEVICE")]
    pub(crate) log_device: Option<PathBuf>,
    /// A device, exactly as written, if its data may be destroyed (repeatable)
    #[arg(long, value_name = "DEVICE")]
    pub(crate) destroy_data: Vec<PathBuf>,
    /// Skip the confirmation of a log device that is erased when the machine stops
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("new").args(["device", "none"]).required(true)))]
pub(crate) struct SetLogArgs {
    /// The pool
    pub(crate) name: String,
    /// The new log device
    pub(crate) device: Option<PathBuf>,
    /// Use no log device
    #[arg(long)]
    pub(crate) none: bool,
    /// The new log device, exactly as written, if its data may be destroyed
    #[arg(long, value_name = "DEVICE")]
    pub(crate) destroy_data: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) loss: LossArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SetPoolArgs {
    /// The pool
    pub(crate) name: String,
    /// Memory of the map, 1 MiB to 64 GiB (64 MiB map 15.75 GiB of data)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) map_cache: u64,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct GiveUpTailArgs {
    /// The pool
    pub(crate) name: String,
    /// Skip the confirmation of data loss
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PoolStatusArgs {
    /// Show this pool only
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) query: QueryArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PoolSavingsArgs {
    /// Name of the pool
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) price: PriceArgs,
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ImportArgs {
    /// Name of the pool
    pub(crate) name: String,
    /// All its disks or files
    #[arg(required = true)]
    pub(crate) devices: Vec<PathBuf>,
    /// Its log device
    #[arg(long, value_name = "DEVICE")]
    pub(crate) log_device: Option<PathBuf>,
    /// Do not ask before an older copy or another pool is opened
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct GrowArgs {
    /// The pool
    pub(crate) name: String,
    /// The disk or file to add; two disks with --redundancy mirror
    #[arg(required = true, num_args = 1..=2)]
    pub(crate) devices: Vec<PathBuf>,
    /// The device, exactly as written, if its data may be destroyed
    #[arg(long, value_name = "DEVICE")]
    pub(crate) destroy_data: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RemoveDeviceArgs {
    /// The pool
    pub(crate) name: String,
    /// The disk or file to remove
    pub(crate) device: PathBuf,
    /// Keep the device that is being removed
    #[arg(long)]
    pub(crate) cancel: bool,
    /// Wait until it is removed
    #[arg(long, conflicts_with_all = ["cancel", "dry_run"])]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ReplaceDeviceArgs {
    /// The pool
    pub(crate) name: String,
    /// The disk or file to replace, or the identifier of a missing one
    pub(crate) old: PathBuf,
    /// The new disk or file
    pub(crate) new: PathBuf,
    /// The new device, exactly as written, if its data may be destroyed
    #[arg(long, value_name = "DEVICE")]
    pub(crate) destroy_data: Vec<PathBuf>,
    /// Wait until it is rebuilt
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ScrubArgs {
    /// The pool
    pub(crate) name: String,
    /// Stop the scrub; the next one continues where it stopped
    #[arg(long, conflicts_with = "cancel")]
    pub(crate) pause: bool,
    /// Stop the scrub, and forget it
    #[arg(long)]
    pub(crate) cancel: bool,
    /// Wait for the end, and exit with status 3 if there is damage
    #[arg(long, conflicts_with_all = ["pause", "cancel", "dry_run"])]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CheckPoolArgs {
    /// All disks or files of the pool
    #[arg(required = true)]
    pub(crate) devices: Vec<PathBuf>,
    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PoolForceArgs {
    /// The pool
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) loss: LossArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ForceArgs {
    /// Proceed although hosts are attached, which are disconnected, or a pool cannot be opened
    #[arg(long)]
    pub(crate) force: bool,
}

/// Options of an order that may lose data, and disconnect hosts.
#[derive(Debug, Clone, Args)]
pub(crate) struct LossArgs {
    #[command(flatten)]
    pub(crate) force: ForceArgs,
    /// Skip the confirmation of data loss
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CreateVolumeArgs {
    /// Name of the new volume
    pub(crate) name: String,
    /// The pool that stores it
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: String,
    /// Size, such as 200GiB; may exceed the space of the pool
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) size: u64,
    /// Reserve the whole size in the pool
    #[arg(long)]
    pub(crate) thick: bool,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

/// Settings of a volume: keys of its table in the configuration.
#[derive(Debug, Clone, Args)]
pub(crate) struct SettingArgs {
    /// Rate limit: a key of `limit` in the configuration, such as iops=15000 (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) limit: Vec<(String, String)>,
    /// Host that may connect over NVMe/TCP; every host if not given (repeatable)
    #[arg(long, value_name = "NQN")]
    pub(crate) allow_host: Vec<String>,
    /// Logical block size that hosts see
    #[arg(long, value_name = "SIZE")]
    pub(crate) block_size: Option<String>,
    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Compress new data: off, lz4, zstd, or auto (lz4 when written, zstd once it is cold)
    #[arg(long, value_name = "MODE", value_parser = Compression::ALL.map(Compression::name))]
    pub(crate) compression: Option<String>,
    /// Share equal blocks with other volumes of the pool that allow the same hosts: on, off
    #[arg(long, value_name = "SETTING", value_parser = Dedup::ALL.map(Dedup::name))]
    pub(crate) dedup: Option<String>,
    /// Share with the volumes that have the same domain, whatever their hosts
    #[arg(long, value_name = "NAME")]
    pub(crate) dedup_domain: Option<String>,
    /// File on the server with the key that encrypts the volume (flagstone key generate --volume),
    /// or kms:NAME for its key_command
    #[arg(long, value_name = "FILE")]
    pub(crate) encryption_key_file: Option<PathBuf>,
    /// Another key of the volume's table, such as nbd_export=data or shared_limit=vm (repeatable)
    #[arg(long = "setting", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) others: Vec<(String, String)>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ResizeArgs {
    /// The volume
    #[arg(add = completions::volumes())]
    pub(crate) name: String,
    /// Its new size, such as 300GiB; without, that of the device of a volume of the configuration
    #[arg(value_parser = size)]
    pub(crate) size: Option<u64>,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("reservation").args(["thick", "thin"])))]
pub(crate) struct SetArgs {
    /// The volume
    #[arg(add = completions::volumes())]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    /// Remove a setting, such as limit or allow_hosts (repeatable)
    #[arg(long, value_name = "KEY")]
    pub(crate) unset: Vec<String>,
    /// Reserve the whole size in the pool
    #[arg(long)]
    pub(crate) thick: bool,
    /// Reserve no space
    #[arg(long)]
    pub(crate) thin: bool,
    #[command(flatten)]
    pub(crate) force: ForceArgs,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RenameArgs {
    /// The volume
    #[arg(add = completions::volumes())]
    pub(crate) name: String,
    /// Its new name
    pub(crate) to: String,
    /// The pool, for a name that two pools have
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<String>,
    #[command(flatten)]
    pub(crate) force: ForceArgs,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DeleteArgs {
    /// The volume
    #[arg(add = completions::volumes())]
    pub(crate) name: String,
    /// The pool, for a name that two pools have
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<String>,
    #[command(flatten)]
    pub(crate) loss: LossArgs,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as iops=15000")?;
    Ok((key.to_owned(), value.to_owned()))
}
