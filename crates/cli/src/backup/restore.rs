//! `flagstone backup restore`: to a pool, as `flagstone volume receive` does, or to a sparse file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use flagstone_backup::document::BackupEntry;
use flagstone_backup::id::WriterId;
use flagstone_backup::{BackupError, Chunk, Restore};
use flagstone_pool::stream::frame::{FrameBody, StreamFrame, StreamStart};
use indicatif::ProgressBar;
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use serde_json::json;
use tokio::runtime::Runtime;

use super::args::RestoreArgs;
use super::{Session, find, show};
use crate::exit::{Exit, Failure};
use crate::output::{print, progress_bar};
use crate::pool::args::{ForceArgs, ReceiveArgs};
use crate::pool::stream::{FrameSource, receive_from};

const TEMPLATE: &str = "{bytes} of {total_bytes} {wide_bar} {bytes_per_sec} {eta}";

/// Bytes of frames after which they are sent.
const FRAMES_BYTES: usize = 1 << 20;

/// Stream of a backup, for a server.
struct BackupStream<'a> {
    runtime: &'a Runtime,
    entry: &'a BackupEntry,
    restore: Restore,
    state: StreamState,
    /// The failure that ended the stream.
    failure: Option<BackupError>,
}

#[derive(PartialEq)]
enum StreamState {
    Begins,
    Continues,
    Ended,
}

impl BackupStream<'_> {
    fn frame(&self, offset: u64, body: FrameBody<'_>, out: &mut Vec<u8>) {
        let identity = &self.entry.snapshot;
        let (snapshot, source) = (identity.uuid(), identity.source);
        StreamFrame { snapshot, source, offset, body }.encode(out);
    }
}

impl FrameSource for BackupStream<'_> {
    fn more(&mut self, bytes: &mut Vec<u8>) -> Result<(), String> {
        if let Some(failure) = &self.failure {
            return Err(failure.to_string());
        }
        let identity = &self.entry.snapshot;
        if self.state == StreamState::Begins {
            self.state = StreamState::Continues;
            let start = StreamStart {
                name: identity.snapshot.clone(),
                base: None,
                size_bytes: identity.size_bytes,
                created_s: identity.created_seconds,
            };
            // Alone: the answer says what the server has.
            self.frame(0, FrameBody::Begin(start), bytes);
            return Ok(());
        }
        let before = bytes.len();
        while self.state == StreamState::Continues && bytes.len() - before < FRAMES_BYTES {
            let next = self.runtime.block_on(self.restore.next()).map_err(|error| {
                self.failure = Some(error.clone());
                error.to_string()
            })?;
            match next {
                Some(Chunk { offset, data: Some(data), .. }) => {
                    self.frame(offset, FrameBody::Data(&data), bytes);
                }
                Some(Chunk { offset, len, data: None }) => {
                    self.frame(offset, FrameBody::Zero(len), bytes);
                }
                None => {
                    self.frame(identity.size_bytes, FrameBody::End, bytes);
                    self.state = StreamState::Ended;
                }
            }
        }
        Ok(())
    }

    fn skip_to(&mut self, at: u64) {
        self.restore.skip_to(at);
    }

    fn advice(&self, _: u64) -> String {
        "run the same command again: the restore continues".to_owned()
    }
}

pub(super) fn run(args: &RestoreArgs) -> Result<Exit, Failure> {
    let session = Session::open(&args.store)?;
    let head = session.head()?;
    let entry = find(&head, &args.backup)?;
    if let Some(file) = &args.to_file
        && fs::symlink_metadata(file).is_ok()
    {
        return Err(Failure::failed(format!(
            "{} exists: give the name of a new file",
            file.display()
        )));
    }
    let opened = Restore::open(session.repository.clone(), entry);
    let opened = session.runtime.block_on(opened).map_err(Failure::from);
    let restore = opened.map_err(|failure| explain(&session, entry, failure))?;
    let target = match (&args.to_file, &args.volume, &args.pool) {
        (Some(file), ..) => format!("file {}", file.display()),
        (None, Some(volume), Some(pool)) => format!("volume {volume} in pool {pool}"),
        (None, ..) => return Err(Failure::usage("give --to-file, or a volume and --pool")),
    };
    let is_safe = args.to_file.is_some() || args.plaintext || args.encryption_key_file.is_some();
    if entry.snapshot.encrypted && !is_safe {
        return Err(Failure::failed(format!(
            "volume {} was encrypted at rest: give the new one its own key with \
             --encryption-key-file, or --plaintext",
            entry.snapshot.volume
        )));
    }
    let verb = if args.dry_run { "would be restored" } else { "is restored" };
    let (name, id, space) = (show::named(entry), entry.id, show::space(entry));
    let mut outcome = format!("{name}, ID {id}, {verb} to {target}: {space}");
    if !args.dry_run {
        let restored = match (&args.to_file, &args.volume) {
            (Some(file), _) => to_file(&session.runtime, restore, entry, file),
            (None, Some(volume)) => to_pool(&session.runtime, restore, entry, args, volume),
            (None, None) => Ok(()),
        };
        restored.map_err(|failure| explain(&session, entry, failure))?;
    }
    let text = match args.json {
        true => crate::output::json(
            &json!({"outcome": outcome, "dry_run": args.dry_run, "backup": entry}),
        ),
        false => {
            outcome.push('\n');
            outcome
        }
    };
    Ok(print(&text, Exit::Success))
}

/// Damage of a backup that a prune removed meanwhile is none.
fn explain(session: &Session, entry: &BackupEntry, failure: Failure) -> Failure {
    let Failure(Exit::VerifyFailed, text) = failure else { return failure };
    match session.runtime.block_on(session.repository.head()) {
        Ok(Some(head)) if head.backups.iter().all(|listed| listed.id != entry.id) => {
            Failure::failed(format!("the backup was removed meanwhile, by a prune: {text}"))
        }
        _ => Failure(Exit::VerifyFailed, text),
    }
}

fn to_pool(
    runtime: &Runtime,
    restore: Restore,
    entry: &BackupEntry,
    args: &RestoreArgs,
    volume: &str,
) -> Result<(), Failure> {
    let target = ReceiveArgs {
        name: volume.to_owned(),
        pool: args.pool.clone(),
        compression: args.compression.clone(),
        encryption_key_file: args.encryption_key_file.clone(),
        force: ForceArgs { force: false },
        json: false,
        api: args.api.clone(),
    };
    let (state, failure) = (StreamState::Begins, None);
    let mut stream = BackupStream { runtime, entry, restore, state, failure };
    let received = receive_from(&target, &mut stream);
    match (received, stream.failure) {
        (Err(Failure(_, text)), Some(error)) if error.is_damage() => {
            Err(Failure(Exit::VerifyFailed, text))
        }
        (Err(failure), _) => Err(failure),
        (Ok(_), Some(error)) => Err(error.into()),
        (Ok(_), None) => Ok(()),
    }
}

/// A file that has its name only when it is complete. Until then it has a name of its own, so that
/// two restores to one name do not write to one file.
struct NewFile {
    file: File,
    path: PathBuf,
    partial: PathBuf,
}

impl NewFile {
    fn create(path: &Path, len: u64) -> io::Result<NewFile> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".partial-{}", WriterId::random()));
        let partial = PathBuf::from(partial);
        // Follows no link, and opens no file that exists.
        let flags = OFlags::NOFOLLOW.bits() as i32;
        // Its owner's alone: the volume may have been encrypted.
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).custom_flags(flags);
        let file = options.open(&partial)?;
        let new = NewFile { file, path: path.to_owned(), partial };
        new.file.set_len(len)?;
        Ok(new)
    }

    /// Gives the file its name. Fails if another file has it.
    fn complete(&self) -> io::Result<()> {
        self.file.sync_all()?;
        match fs::hard_link(&self.partial, &self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                // Some file systems have no links.
                let flags = RenameFlags::NOREPLACE;
                renameat_with(CWD, &self.partial, CWD, &self.path, flags)?;
            }
            linked => linked?,
        }
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = OpenOptions::new().read(true).open(folder.unwrap_or(Path::new(".")))?;
        folder.sync_all()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Missing after a rename.
        let _ = fs::remove_file(&self.partial);
    }
}

fn to_file(
    runtime: &Runtime,
    mut restore: Restore,
    entry: &BackupEntry,
    path: &Path,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::failed(format!("{}: {error}", path.display()));
    let size = entry.snapshot.size_bytes;
    let bar: ProgressBar = progress_bar(Some(size), TEMPLATE);
    let new = NewFile::create(path, size).map_err(failed)?;
    while let Some(chunk) = runtime.block_on(restore.next())? {
        if let Some(data) = &chunk.data {
            new.file.write_all_at(data, chunk.offset).map_err(failed)?;
        }
        bar.set_position(chunk.offset + chunk.len);
    }
    new.complete().map_err(failed)?;
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_restores_to_one_file_keep_the_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("b.img");
        let one = NewFile::create(&path, 4).expect("a file");
        let two = NewFile::create(&path, 4).expect("a file of its own");
        one.file.write_all_at(b"good", 0).expect("it is written");
        two.file.write_all_at(b"late", 0).expect("it is written");
        one.complete().expect("the name is free");
        assert_eq!(two.complete().expect_err("it exists").kind(), io::ErrorKind::AlreadyExists);
        drop((one, two));
        assert_eq!(fs::read(&path).expect("it is kept"), b"good");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "no leftovers");
    }
}
