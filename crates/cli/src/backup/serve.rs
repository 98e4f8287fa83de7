//! `flagstone backup serve`: a backup as a read-only NBD export, straight from the object store.
//!
//! Requests to the store are made by one thread; the server's core asks it for ranges and waits.
//! A request has a time limit, after which the client's read fails.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flagstone_backup::{BackupError, BackupReader};
use flagstone_blockdev::limits::EXTENTS_MAX;
use flagstone_blockdev::{BlockDevice, Extent, Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_nbd::{Drain, Export, Exports, NbdServer, ServerOptions};
use flagstone_runtime::buf::{Buf, BufMut};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::sync::{OneSender, oneshot};
use flagstone_runtime::{RuntimeConfig, run as run_cores, signal, spawn_detached};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::args::ServeBackupArgs;
use super::{Session, find, show};
use crate::exit::{Exit, Failure};
use crate::output::{complain, print};

/// Time limit of a read.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// Reads that ask the store at the same time; others wait. Each holds a piece or a few.
const READS_AT_ONCE: usize = 16;

/// Question of the core to the thread of the store.
enum Question {
    Read { offset: u64, len: usize, answer: OneSender<Result<Vec<u8>, IoError>> },
    Extents { offset: u64, len: u64, answer: OneSender<Result<Vec<Extent>, IoError>> },
}

/// Backup as a device.
#[derive(Debug)]
struct BackupDevice {
    geometry: Geometry,
    /// Bounded by the memory that clients have for requests.
    questions: mpsc::UnboundedSender<Question>,
}

impl BackupDevice {
    fn new(size_bytes: u64, questions: mpsc::UnboundedSender<Question>) -> BackupDevice {
        let geometry = Geometry {
            read_only: true,
            can_discard: false,
            can_write_zeroes: false,
            ..Geometry::new(size_bytes, 4096)
        };
        BackupDevice { geometry, questions }
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(OneSender<Result<T, IoError>>) -> Question,
    ) -> impl Future<Output = Result<T, IoError>> + 'static {
        let (answer, answered) = oneshot();
        let sent = self.questions.send(question(answer));
        async move {
            sent.map_err(|_| IoError::ReadFault)?;
            answered.await.unwrap_or(Err(IoError::ReadFault))
        }
    }
}

impl BlockDevice for BackupDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        IoFuture::checked(self.geometry.check(offset, len), || {
            IoFuture::later(self.ask(|answer| Question::Extents { offset, len, answer }))
        })
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> IoFuture<BufMut> {
        let len = buf.len();
        IoFuture::checked(self.geometry.check_transfer(offset, len), || {
            let asked = self.ask(|answer| Question::Read { offset, len, answer });
            IoFuture::later(async move {
                buf.copy_from_slice(&asked.await?);
                Ok(buf)
            })
        })
    }

    fn write(&self, _offset: u64, _data: Buf, _fua: bool) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::ReadOnly))
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::ReadOnly))
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::ReadOnly))
    }
}

/// The answer of the store within the time limit. A failure is shown.
async fn in_time<T>(
    offset: u64,
    answer: impl Future<Output = Result<T, BackupError>>,
) -> Result<T, IoError> {
    let why = match timeout(READ_LIMIT, answer).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("the store did not answer in {} s", READ_LIMIT.as_secs()),
    };
    complain(&format!("flagstone: a read at {offset} B failed: {why}\n"));
    Err(IoError::ReadFault)
}

async fn answer(reader: &BackupReader, question: Question) {
    match question {
        Question::Read { offset, len, answer } => {
            let mut content = vec![0; len];
            let read = in_time(offset, reader.read(offset, &mut content)).await;
            answer.send(read.map(|()| content));
        }
        Question::Extents { offset, len, answer } => {
            let runs = in_time(offset, reader.runs(offset, len, EXTENTS_MAX)).await;
            let extent = |run: flagstone_backup::Run| Extent { len: run.len, is_hole: run.is_hole };
            answer.send(runs.map(|runs| runs.into_iter().map(extent).collect()));
        }
    }
}

/// Thread that asks the store, until the device is dropped.
fn start(
    runtime: Runtime,
    reader: BackupReader,
    mut questions: mpsc::UnboundedReceiver<Question>,
) -> Result<(), Failure> {
    let thread = std::thread::Builder::new().name("flagstone-store".to_owned());
    let started = thread.spawn(move || {
        let (reader, places) = (Arc::new(reader), Arc::new(Semaphore::new(READS_AT_ONCE)));
        runtime.block_on(async {
            while let Some(question) = questions.recv().await {
                let Ok(place) = places.clone().acquire_owned().await else { break };
                let reader = reader.clone();
                tokio::spawn(async move {
                    answer(&reader, question).await;
                    drop(place);
                });
            }
        });
    });
    started.map(drop).map_err(Failure::failed)
}

/// A place that only this machine reaches: NBD without TLS authenticates no client.
pub(super) fn local_address(text: &str) -> Result<Address, String> {
    if text.starts_with('/') {
        return Ok(Address::Unix(PathBuf::from(text)));
    }
    let address: SocketAddr = text.parse().map_err(|_| {
        "write an address and a port, such as 127.0.0.1:10809, or the path of a socket".to_owned()
    })?;
    match address.ip().is_loopback() {
        true => Ok(Address::Tcp(address)),
        false => Err(format!(
            "{} can be reached by others, and NBD without TLS authenticates no client: listen on {}, \
             and forward the port with ssh",
            address.ip(),
            Ipv4Addr::LOCALHOST
        )),
    }
}

/// URI of the export.
fn uri(address: &Address, name: &str) -> String {
    match address {
        Address::Tcp(address) => format!("nbd://{address}/{name}"),
        Address::Unix(path) => format!("nbd+unix:///{name}?socket={}", path.display()),
    }
}

pub(super) fn run(args: &ServeBackupArgs) -> Result<Exit, Failure> {
    let session = Session::open(&args.store)?;
    let head = session.head()?;
    let entry = find(&head, &args.backup)?.clone();
    let reader = BackupReader::open(session.repository.clone(), &entry);
    let reader = session.runtime.block_on(reader)?;
    let (questions, asked) = mpsc::unbounded_channel();
    let device = Arc::new(BackupDevice::new(reader.size_bytes(), questions));
    let name = args.name.clone().unwrap_or_else(|| entry.snapshot.volume.clone());
    let export = Export::new(name.clone(), device).described(format!("backup {}", entry.id));
    let exports = Arc::new(Exports::new([export]).map_err(Failure::usage)?);
    start(session.runtime, reader, asked)?;
    signal::catch_termination().map_err(Failure::failed)?;
    let served = run_cores(&RuntimeConfig::default(), || async move {
        let drain = Drain::new();
        let server = NbdServer::new(exports, ServerOptions::default(), drain.clone());
        let listener = Listener::bind(&args.listen)
            .map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
        let uri = uri(listener.address(), &name);
        let text = match args.json {
            true => crate::output::json(&json!({"uri": uri, "backup": entry})),
            false => {
                format!("backup {}, read-only: {uri}\nCtrl-C ends it\n", show::with_id(&entry))
            }
        };
        print(&text, Exit::Success);
        spawn_detached(async move {
            signal::terminated().await;
            drain.begin();
        });
        server.run(listener).await;
        Ok::<(), String>(())
    });
    served.map_err(Failure::failed)?.map_err(Failure::failed)?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_is_served_on_local_addresses_alone() {
        for good in ["127.0.0.1:10809", "[::1]:0", "/run/backup.sock"] {
            assert!(local_address(good).is_ok(), "{good}");
        }
        for bad in ["0.0.0.0:10809", "10.0.0.1:1", "localhost", "", "[::]:0"] {
            assert!(local_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn uris_name_the_export() {
        let tcp = local_address("127.0.0.1:10809").expect("an address");
        assert_eq!(uri(&tcp, "db"), "nbd://127.0.0.1:10809/db");
        let unix = local_address("/run/b").expect("a path");
        assert_eq!(uri(&unix, "db"), "nbd+unix:///db?socket=/run/b");
    }
}
