//! `flagstone backup` and `flagstone volume backup`: backups of snapshots in an object store. The
//! program talks to the store itself, and to a server only to read and write pools.

pub(crate) mod args;
mod make;
mod restore;
mod serve;
mod show;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flagstone_backup::document::{BackupEntry, Head};
use flagstone_backup::id::WriterId;
use flagstone_backup::limits::{INDEX_BYTES_MAX, MANIFEST_BYTES_MAX, REQUEST_S};
use flagstone_backup::prune::{
    PrunePlan, Retention, Unneeded, abandon_unusable, plan_prune, preview, prune,
};
use flagstone_backup::verify::verify;
use flagstone_backup::{BackupError, Options, Repository};
use flagstone_config::BucketOptions;
use flagstone_objects::ClientOptions;
use flagstone_pool::WrappingKey;
use flagstone_server::http::tls::store_client_config;
use flagstone_server::limits::KEY_FILE_BYTES;
use flagstone_stack::private_file;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use args::{
    BackupArgs, BackupCommand, ChangeKeyArgs, ListBackupsArgs, PruneArgs, RecoverArgs, StoreArgs,
    VerifyBackupsArgs,
};

use crate::confirm::is_agreed;
use crate::exit::{Exit, Failure};
use crate::output::{complain, print, progress_bar};

pub(crate) use make::make;

/// Names of backups that a message lists.
const NAMES_SHOWN: usize = 20;

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Failure {
        let exit = if error.is_damage() { Exit::VerifyFailed } else { Exit::Failed };
        Failure(exit, error.to_string())
    }
}

/// A repository, and the runtime of its requests.
struct Session {
    runtime: Runtime,
    repository: Arc<Repository>,
    url: String,
}

/// Reads a key file.
fn read_key(path: &Path) -> Result<WrappingKey, Failure> {
    let failed = |why: String| Failure::failed(format!("{}: {why}", path.display()));
    let text = private_file::read(path, KEY_FILE_BYTES).map_err(|why| failed(why.to_string()))?;
    WrappingKey::parse(&text).ok_or_else(|| {
        let form = WrappingKey::TEXT_FORM;
        failed(format!("it has no {form}: flagstone key generate FILE --volume writes a new key"))
    })
}

fn tls(ca_file: Option<&Path>) -> std::io::Result<rustls::ClientConfig> {
    store_client_config(ca_file).map_err(std::io::Error::other)
}

impl Session {
    fn open(args: &StoreArgs) -> Result<Session, Failure> {
        let options = BucketOptions {
            url: &args.url,
            region: args.region.as_deref(),
            account: args.account.as_deref(),
            endpoint: args.endpoint.as_deref(),
            ca_file: args.store_ca_file.clone(),
            credentials_file: args.credentials_file.clone(),
        };
        let settings = options.check().map_err(Failure::usage)?;
        flagstone_objects::check(&settings, tls).map_err(Failure::failed)?;
        let secret = flagstone_objects::secret(&settings).map_err(Failure::failed)?;
        let request_limit = Duration::from_secs(REQUEST_S);
        let answer_bytes_max = MANIFEST_BYTES_MAX.max(INDEX_BYTES_MAX) + (1 << 20);
        let options = ClientOptions { request_limit, answer_bytes_max, tls };
        let client = flagstone_objects::connect(&settings, secret, options);
        let store = client.map_err(Failure::failed)?.store;
        let prefix = &settings.object_store.prefix;
        let mut options = Options::new(|text| complain(&format!("flagstone: {text}\n")));
        options.key = args.backup_key_file.as_deref().map(read_key).transpose()?;
        let repository = Arc::new(Repository::new(Arc::from(store), prefix, options));
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Failure::failed)?;
        Ok(Session { runtime, repository, url: args.url.clone() })
    }

    /// The head of a prefix that has one.
    fn head(&self) -> Result<Head, Failure> {
        let head = self.runtime.block_on(self.repository.head())?;
        head.ok_or_else(|| {
            Failure::failed(format!(
                "{} has no backups; make one: flagstone volume backup VOLUME@SNAPSHOT {}",
                self.url, self.url
            ))
        })
    }
}

/// The backup with this ID, or the newest one with this name. Volumes of several pools or servers
/// may have one name, and so may snapshots that were taken again: the name means none of them.
fn find<'a>(head: &'a Head, name: &str) -> Result<&'a BackupEntry, Failure> {
    if let Some(found) = head.backups.iter().find(|entry| entry.id.to_string() == name) {
        return Ok(found);
    }
    let mut named = head.backups.iter().rev().filter(|entry| entry.snapshot.full_name() == name);
    let Some(newest) = named.next() else {
        let names = head.backups.iter().rev().take(NAMES_SHOWN);
        let names: Vec<String> = names.map(|entry| entry.snapshot.full_name()).collect();
        return Err(Failure::failed(format!(
            "there is no backup {name}; the newest are: {}",
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        )));
    };
    let others: Vec<&BackupEntry> = named.collect();
    if others.iter().all(|entry| entry.snapshot.is_same(&newest.snapshot)) {
        return Ok(newest);
    }
    let all = std::iter::once(newest).chain(others).take(NAMES_SHOWN);
    let ids: Vec<String> = all.map(show::with_id).collect();
    Err(Failure::failed(format!(
        "{name} is the name of several snapshots: give the ID of a backup: {}",
        ids.join(", ")
    )))
}

/// The backup with this ID, or the only one with this name: one of several may be damaged.
fn find_one<'a>(head: &'a Head, name: &str) -> Result<&'a BackupEntry, Failure> {
    let named = head.backups.iter().filter(|entry| entry.snapshot.full_name() == name);
    let ids: Vec<String> = named.take(NAMES_SHOWN).map(show::with_id).collect();
    if ids.len() < 2 {
        return find(head, name);
    }
    Err(Failure::failed(format!(
        "there are several backups of {name}: give the ID of one: {}",
        ids.join(", ")
    )))
}

pub(crate) fn run(args: &BackupArgs) -> Result<Exit, Failure> {
    match &args.command {
        BackupCommand::List(args) => list(args),
        BackupCommand::Verify(args) => run_verify(args),
        BackupCommand::Prune(args) => run_prune(args),
        BackupCommand::Restore(args) => restore::run(args),
        BackupCommand::Serve(args) => serve::run(args),
        BackupCommand::ChangeKey(args) => change_key(args),
        BackupCommand::Recover(args) => recover(args),
    }
}

fn list(args: &ListBackupsArgs) -> Result<Exit, Failure> {
    let session = Session::open(&args.store)?;
    let mut head = session.runtime.block_on(session.repository.head())?.unwrap_or_default();
    if let Some(volume) = &args.volume {
        head.backups.retain(|entry| entry.snapshot.volume == *volume);
        head.unfinished.retain(|unfinished| unfinished.snapshot.volume == *volume);
    }
    let text = match args.json {
        true => {
            let unfinished: Vec<_> = head
                .unfinished
                .iter()
                .map(|unfinished| {
                    json!({
                        "snapshot": unfinished.snapshot,
                        "renewed_seconds": unfinished.renewed_seconds,
                    })
                })
                .collect();
            crate::output::json(&json!({
                "encrypted": head.encryption.is_some(),
                "backups": head.backups,
                "unfinished": unfinished,
            }))
        }
        false => show::list(&head, &session.url),
    };
    Ok(print(&text, Exit::Success))
}

fn change_key(args: &ChangeKeyArgs) -> Result<Exit, Failure> {
    let next = read_key(&args.new_key_file)?;
    let session = Session::open(&args.store)?;
    // It fails with a wrong key, and without backups.
    if session.head()?.encryption.is_none() {
        return Err(Failure::failed(format!("{} is not encrypted", session.url)));
    }
    if !args.dry_run {
        session.runtime.block_on(session.repository.change_key(&next))?;
    }
    let (verb, file) = (if args.dry_run { "would need" } else { "need" }, &args.new_key_file);
    let outcome = format!("the backups of {} {verb} the key in {}", session.url, file.display());
    let text = match args.json {
        true => crate::output::json(&json!({"outcome": outcome, "dry_run": args.dry_run})),
        false => outcome + "\n",
    };
    Ok(print(&text, Exit::Success))
}

fn recover(args: &RecoverArgs) -> Result<Exit, Failure> {
    let session = Session::open(&args.store)?;
    let recover = |is_dry_run, left_out: &[WriterId]| {
        session.runtime.block_on(session.repository.recover(is_dry_run, left_out))
    };
    let preview = recover(true, &[])?;
    let left_out: Vec<WriterId> = preview.left_out.iter().map(|left| left.id).collect();
    let recovery = match args.dry_run {
        true => preview,
        false => {
            let lines: Vec<String> = preview.left_out.iter().map(show::left_out).collect();
            let order = format!("recover {}", session.url);
            if !lines.is_empty() && !args.yes && !is_agreed(&order, &lines.join("; ")) {
                return Ok(Exit::Usage);
            }
            recover(false, &left_out)?
        }
    };
    let exit = if recovery.left_out.is_empty() { Exit::Success } else { Exit::VerifyFailed };
    let text = match args.json {
        true => crate::output::json(&json!({"dry_run": args.dry_run, "recovery": recovery})),
        false => show::recovery(&recovery, args.dry_run),
    };
    Ok(print(&text, exit))
}

fn run_verify(args: &VerifyBackupsArgs) -> Result<Exit, Failure> {
    let session = Session::open(&args.store)?;
    let head = session.head()?;
    let selected: Vec<BackupEntry> = match args.backups.is_empty() {
        true => head.backups.clone(),
        false => {
            let found = args.backups.iter().map(|name| find(&head, name).cloned());
            found.collect::<Result<_, _>>()?
        }
    };
    let bar = progress_bar(Some(0), "range {pos} of {len} {wide_bar} {eta}");
    let progress = |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let verified = verify(&session.repository, &selected, args.quick, progress);
    let report = session.runtime.block_on(verified)?;
    bar.finish_and_clear();
    let exit = if report.is_sound() { Exit::Success } else { Exit::VerifyFailed };
    let text = match args.json {
        true => crate::output::json(&report),
        false => show::verification(&report, args.quick),
    };
    Ok(print(&text, exit))
}

fn run_prune(args: &PruneArgs) -> Result<Exit, Failure> {
    let session = Session::open(&args.store)?;
    let head = session.head()?;
    let mut remove = Vec::new();
    for name in &args.remove {
        remove.push(find_one(&head, name)?.id);
    }
    let retention = Retention {
        volume: args.volume.clone(),
        keep: args.keep,
        keep_within_s: args.keep_within.map(|age| age.as_secs()),
        remove,
        abandon_after_s: args.abandon_after.as_secs(),
    };
    let plan = plan_prune(&head, &retention, session.repository.now());
    let plan = abandon_unusable(&session.repository, &head, plan);
    let plan = session.runtime.block_on(plan)?;
    if !args.dry_run && !plan.remove.is_empty() && !args.yes {
        let names: Vec<String> = plan.remove.iter().map(show::named).collect();
        let loss = format!("backups {}", names.join(", "));
        if !is_agreed(&format!("prune {}", session.url), &loss) {
            return Ok(Exit::Usage);
        }
    }
    let unneeded: Unneeded = match args.dry_run {
        true => session.runtime.block_on(preview(&session.repository, &plan))?,
        false => {
            if !args.json {
                complain(&show::plan(&plan, "removing"));
            }
            session.runtime.block_on(prune(&session.repository, &plan))?
        }
    };
    let PrunePlan { remove, abandon } = &plan;
    let text = match args.json {
        true => crate::output::json(&json!({
            "dry_run": args.dry_run, "removed": remove, "abandoned": abandon,
            "deleted_objects": unneeded.objects, "deleted_bytes": unneeded.bytes,
        })),
        false => show::pruned(&plan, unneeded, args.dry_run),
    };
    Ok(print(&text, Exit::Success))
}

#[cfg(test)]
mod tests {
    use flagstone_backup::document::SnapshotIdentity;

    use super::*;

    #[test]
    fn name_of_two_volumes_needs_an_id() {
        let entry = |id: u8, source: u64| BackupEntry {
            id: WriterId([id; 16]),
            snapshot: SnapshotIdentity {
                volume: "db".to_owned(),
                volume_id: "00000000-0000-0000-0000-000000000002".to_owned(),
                pool_id: "00000000-0000-0000-0000-000000000003".to_owned(),
                encrypted: false,
                snapshot: "a".to_owned(),
                snapshot_id: "00000000-0000-0000-0000-000000000001".to_owned(),
                source,
                size_bytes: 4096,
                created_seconds: 0,
            },
            completed_seconds: 0,
            space: Default::default(),
            manifest_bytes: 0,
            manifest_sha256: Default::default(),
            mac: None,
        };
        let one = Head { backups: vec![entry(1, 7), entry(2, 7)], ..Head::default() };
        assert_eq!(find(&one, "db@a").ok().map(|entry| entry.id), Some(WriterId([2; 16])));
        assert!(find_one(&one, "db@a").is_err(), "one of them may be damaged");
        let id = WriterId([1; 16]).to_string();
        assert_eq!(find_one(&one, &id).ok().map(|entry| entry.id), Some(WriterId([1; 16])));
        let two = Head { backups: vec![entry(1, 7), entry(2, 8)], ..Head::default() };
        let Err(Failure(_, text)) = find(&two, "db@a") else { panic!("it is ambiguous") };
        for id in [1, 2] {
            let id = WriterId([id; 16]);
            assert!(text.contains(&id.to_string()), "{text}");
            assert_eq!(find(&two, &id.to_string()).ok().map(|entry| entry.id), Some(id));
        }
    }
}
