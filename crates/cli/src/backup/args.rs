//! Options of `flagstone backup` and `flagstone volume backup`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use flagstone_pool::Compression;
use flagstone_runtime::net::Address;
use flagstone_units::parse_duration;

use crate::status::server::ApiArgs;

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    pub(crate) command: BackupCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BackupCommand {
    /// Show the backups: snapshot, time, size, and space in the store
    List(ListBackupsArgs),
    /// Read backups and compare them with their checksums
    Verify(VerifyBackupsArgs),
    /// Remove backups, and objects that no backup needs
    Prune(PruneArgs),
    /// Restore a backup: to a pool through a running server, or to a file without one
    Restore(RestoreArgs),
    /// Serve a backup as a read-only NBD export, straight from the store, until Ctrl-C
    Serve(ServeBackupArgs),
    /// Replace the key file of encrypted backups
    ChangeKey(ChangeKeyArgs),
    /// Make a lost or damaged list of backups again, from copies in the store
    Recover(RecoverArgs),
}

/// An object store.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArgs {
    /// s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX; PREFIX is flagstone if not
    /// given
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// File with the credentials, mode 0600, as `credentials_file` of `[arbiter]`; the machine's
    /// identity in its cloud if not given
    #[arg(long, value_name = "FILE")]
    pub(crate) credentials_file: Option<PathBuf>,
    /// Region of an S3 bucket
    #[arg(long)]
    pub(crate) region: Option<String>,
    /// Storage account of an Azure container
    #[arg(long)]
    pub(crate) account: Option<String>,
    /// The store's server, https://HOST or http://HOST:PORT; the cloud's own if not given
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Authorities that issued the store's certificate, as PEM; this machine's if not given
    #[arg(long, value_name = "FILE")]
    pub(crate) store_ca_file: Option<PathBuf>,
    /// File with the key of encrypted backups, from flagstone key generate FILE --volume. The first
    /// backup decides whether those of the prefix are encrypted
    #[arg(long, value_name = "FILE")]
    pub(crate) backup_key_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MakeBackupArgs {
    /// The snapshot, VOLUME@SNAPSHOT
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Store everything, and use no earlier backup
    #[arg(long)]
    pub(crate) full: bool,
    /// Store a volume that is encrypted at rest without encryption
    #[arg(long, conflicts_with = "backup_key_file")]
    pub(crate) plaintext: bool,
    /// Add a volume although the prefix has backups of another one of its name
    #[arg(long)]
    pub(crate) separate: bool,
    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ServeBackupArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// VOLUME@SNAPSHOT or ID of the backup
    pub(crate) backup: String,
    /// Address of this machine, or path of a Unix socket
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10809")]
    #[arg(value_parser = super::serve::local_address)]
    pub(crate) listen: Address,
    /// Name of the export; that of the volume if not given
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print a JSON document with the URI
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ChangeKeyArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// File with the next key, which replaces that of --backup-key-file
    #[arg(long, value_name = "FILE", requires = "backup_key_file")]
    pub(crate) new_key_file: PathBuf,
    /// Check both keys, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RecoverArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Skip the confirmation of data loss
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Show what would be listed, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListBackupsArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Show the backups of this volume only
    #[arg(long, value_name = "NAME")]
    pub(crate) volume: Option<String>,
    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct VerifyBackupsArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// VOLUME@SNAPSHOT or ID of backups; all if not given
    #[arg(value_name = "BACKUP")]
    pub(crate) backups: Vec<String>,
    /// Read only manifests, and check that all other objects exist
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("rule").args(["keep", "keep_within"]).multiple(true)))]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Remove backups of this volume by --keep or --keep-within
    #[arg(long, value_name = "NAME", requires = "rule")]
    pub(crate) volume: Option<String>,
    /// Keep this many backups, of the newest snapshots
    #[arg(long, value_name = "COUNT", requires = "volume")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep: Option<u64>,
    /// Keep backups of snapshots of this age, such as 31d
    #[arg(long, value_name = "AGE", requires = "volume", value_parser = age)]
    pub(crate) keep_within: Option<Duration>,
    /// Remove this backup, VOLUME@SNAPSHOT (repeatable)
    #[arg(long, value_name = "BACKUP")]
    pub(crate) remove: Vec<String>,
    /// Abandon backups that were interrupted this long ago
    #[arg(long, value_name = "AGE", default_value = "7d", value_parser = age)]
    pub(crate) abandon_after: Duration,
    /// Skip the confirmation of data loss
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Show what would be removed, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("target").args(["pool", "to_file"]).required(true)))]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// VOLUME@SNAPSHOT or ID of the backup
    pub(crate) backup: String,
    /// Name of the new volume
    #[arg(value_name = "VOLUME", required_unless_present = "to_file")]
    pub(crate) volume: Option<String>,
    /// Pool of the new volume
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<String>,
    /// Compression of the new volume: off, lz4, zstd, or auto (lz4 when written, zstd when cold)
    #[arg(
        long,
        value_name = "MODE",
        value_parser = Compression::ALL.map(Compression::name),
        conflicts_with = "to_file"
    )]
    pub(crate) compression: Option<String>,
    /// File on the server with the key that encrypts the new volume, or kms:NAME for its
    /// key_command
    #[arg(long, value_name = "FILE", conflicts_with = "to_file")]
    pub(crate) encryption_key_file: Option<PathBuf>,
    /// Restore a volume that was encrypted at rest to one that is not
    #[arg(long, conflicts_with_all = ["encryption_key_file", "to_file"])]
    pub(crate) plaintext: bool,
    /// Write a new, sparse file instead, without a server
    #[arg(long, value_name = "FILE", conflicts_with_all = ["volume", "api"])]
    pub(crate) to_file: Option<PathBuf>,
    /// Show what would be restored, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print a JSON document
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

/// An age: a duration, or days.
fn age(text: &str) -> Result<Duration, String> {
    if let Some(days) = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok()) {
        return Ok(Duration::from_secs(u64::from(days) * 24 * 3600));
    }
    parse_duration(text).map_err(|error| format!("{error}; days are written as 31d"))
}
