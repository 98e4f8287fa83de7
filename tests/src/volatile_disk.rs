//! Disk with a volatile cache, as an NBD server of this process on a Unix socket.
//!
//! The content is a file, which outside tools can compare at any moment. The durable content of
//! each sector written since the last flush is kept in memory: a power loss brings it back for any
//! part of these sectors. A hung disk answers nothing until it is released.
//!
//! Left out: torn sectors, and sectors whose content after a power loss is neither the oldest nor
//! the newest since the last flush.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::rng::Rng;

/// Unit that a power loss keeps or loses as a whole, in bytes.
const SECTOR_BYTES: u64 = 512;

/// Longest request, in bytes.
const MAX_REQUEST_BYTES: u32 = 32 << 20;

/// Numbers of the NBD protocol.
mod nbd {
    pub(super) const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
    pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_E889_0455_65A9;
    pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
    pub(super) const REPLY_MAGIC: u32 = 0x6744_6698;
    /// Fixed newstyle, no zeroes.
    pub(super) const HANDSHAKE_FLAGS: u16 = 3;
    pub(super) const OPTION_GO: u32 = 7;
    pub(super) const REPLY_ACK: u32 = 1;
    pub(super) const REPLY_INFO: u32 = 3;
    pub(super) const REPLY_UNSUPPORTED: u32 = 1 << 31 | 1;
    pub(super) const INFO_EXPORT: u16 = 0;
    pub(super) const INFO_BLOCK_SIZE: u16 = 3;
    /// Has flags; flush, FUA, trim, write zeroes; a flush covers all connections.
    pub(super) const EXPORT_FLAGS: u16 = 1 | 4 | 8 | 32 | 64 | 256;
    pub(super) const FUA: u16 = 1;
    pub(super) const EINVAL: u32 = 22;
    pub(super) const EIO: u32 = 5;
}

/// A disk with a volatile cache. Dropping it ends its connections.
#[derive(Debug)]
pub struct VolatileDisk {
    shared: Arc<Shared>,
    socket: PathBuf,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug)]
struct State {
    file: File,
    size_bytes: u64,
    /// Durable content of the sectors that were written since.
    unflushed: BTreeMap<u64, [u8; SECTOR_BYTES as usize]>,
    /// Counts the owners. Requests of earlier ones have no effect.
    owner: u64,
    hung: bool,
    open: bool,
}

impl VolatileDisk {
    /// Serves the file `path` on `socket`.
    ///
    /// # Panics
    ///
    /// If the file or the socket cannot be used.
    pub fn serve(path: &Path, socket: PathBuf) -> VolatileDisk {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("the file exists");
        let size_bytes = file.metadata().expect("the file is open").len();
        let state = State {
            file,
            size_bytes,
            unflushed: BTreeMap::new(),
            owner: 0,
            hung: false,
            open: true,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), released: Condvar::new() });
        let listener = UnixListener::bind(&socket).expect("the socket is new");
        let serving = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = serving.clone();
                let owner = match shared.lock() {
                    state if state.open => state.owner,
                    _ => return,
                };
                // An error of the stream is the end of its client.
                thread::spawn(move || drop(shared.converse(stream, owner)));
            }
        });
        VolatileDisk { shared, socket }
    }

    /// Device of a volume, in the grammar of the configuration.
    pub fn device(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// The process that used the disk is dead: its requests have no effect from now on.
    pub fn change_owner(&self) {
        self.shared.lock().owner += 1;
    }

    /// Loses power: any part of the sectors written since the last flush gets its durable content
    /// back. Returns the numbers of unflushed and of lost sectors.
    ///
    /// # Panics
    ///
    /// If the file cannot be written.
    pub fn lose_power(&self, rng: &mut Rng) -> (u64, u64) {
        let mut state = self.shared.lock();
        state.owner += 1;
        let unflushed = std::mem::take(&mut state.unflushed);
        // All, none, or about one in a number of sectors.
        let one_in = [1, 1, 2, 8, u64::MAX][rng.below(5) as usize];
        let mut lost = 0;
        for (sector, content) in &unflushed {
            if rng.below(one_in) == 0 {
                state.file.write_all_at(content, sector * SECTOR_BYTES).expect("a file in use");
                lost += 1;
            }
        }
        (unflushed.len() as u64, lost)
    }

    /// Stops answering, or continues with the requests received meanwhile.
    pub fn hang(&self, hung: bool) {
        self.shared.lock().hung = hung;
        self.shared.released.notify_all();
    }
}

impl Drop for VolatileDisk {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        (state.open, state.hung) = (false, false);
        drop(state);
        self.shared.released.notify_all();
        // Wakes the listener, which then ends.
        let _ = UnixStream::connect(&self.socket);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn converse(&self, mut stream: UnixStream, owner: u64) -> io::Result<()> {
        self.negotiate(&mut stream)?;
        let mut header = [0; 28];
        let mut data = Vec::new();
        loop {
            stream.read_exact(&mut header)?;
            let request = Request::decode(&header)?;
            data.resize(if request.command == 1 { request.len as usize } else { 0 }, 0);
            stream.read_exact(&mut data)?;
            if request.command == 2 {
                return Ok(());
            }
            let mut state = self.lock();
            while state.hung && state.owner == owner {
                self.released.wait(&mut state);
            }
            if !state.open || state.owner != owner {
                return Ok(());
            }
            let error = state.execute(&request, &mut data).map_or_else(|error| error, |()| 0);
            drop(state);
            let mut reply = nbd::REPLY_MAGIC.to_be_bytes().to_vec();
            reply.extend(error.to_be_bytes());
            reply.extend(request.cookie);
            if request.command == 0 && error == 0 {
                reply.extend(&data);
            }
            stream.write_all(&reply)?;
        }
    }

    /// Fixed newstyle negotiation: any export name is accepted.
    fn negotiate(&self, stream: &mut UnixStream) -> io::Result<()> {
        stream.write_all(b"NBDMAGIC")?;
        stream.write_all(nbd::OPTION_MAGIC)?;
        stream.write_all(&nbd::HANDSHAKE_FLAGS.to_be_bytes())?;
        stream.read_exact(&mut [0; 4])?;
        loop {
            let mut header = [0; 16];
            stream.read_exact(&mut header)?;
            if header[..8] != *nbd::OPTION_MAGIC {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let (option, len) = (word(&header, 8), word(&header, 12));
            io::copy(&mut io::Read::take(&mut *stream, u64::from(len)), &mut io::sink())?;
            if option != nbd::OPTION_GO {
                reply_to(stream, option, nbd::REPLY_UNSUPPORTED, &[])?;
                continue;
            }
            let mut export = nbd::INFO_EXPORT.to_be_bytes().to_vec();
            export.extend(self.lock().size_bytes.to_be_bytes());
            export.extend(nbd::EXPORT_FLAGS.to_be_bytes());
            reply_to(stream, option, nbd::REPLY_INFO, &export)?;
            let mut blocks = nbd::INFO_BLOCK_SIZE.to_be_bytes().to_vec();
            for bytes in [SECTOR_BYTES as u32, 4096, MAX_REQUEST_BYTES] {
                blocks.extend(bytes.to_be_bytes());
            }
            reply_to(stream, option, nbd::REPLY_INFO, &blocks)?;
            return reply_to(stream, option, nbd::REPLY_ACK, &[]);
        }
    }
}

fn reply_to(stream: &mut UnixStream, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut reply = nbd::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    for word in [option, kind, data.len() as u32] {
        reply.extend(word.to_be_bytes());
    }
    reply.extend(data);
    stream.write_all(&reply)
}

struct Request {
    flags: u16,
    command: u16,
    cookie: [u8; 8],
    offset: u64,
    len: u32,
}

impl Request {
    fn decode(header: &[u8; 28]) -> io::Result<Request> {
        let len = word(header, 24);
        if word(header, 0) != nbd::REQUEST_MAGIC || len > MAX_REQUEST_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let cookie = std::array::from_fn(|at| header[8 + at]);
        let offset = u64::from(word(header, 16)) << 32 | u64::from(word(header, 20));
        let flags = u16::from_be_bytes([header[4], header[5]]);
        let command = u16::from_be_bytes([header[6], header[7]]);
        Ok(Request { flags, command, cookie, offset, len })
    }
}

/// The big-endian 32 bits at `at`.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

impl State {
    /// Executes a request, whose payload or answer is `data`.
    fn execute(&mut self, request: &Request, data: &mut Vec<u8>) -> Result<(), u32> {
        let Request { offset, len, .. } = *request;
        let aligned = offset.is_multiple_of(SECTOR_BYTES)
            && u64::from(len).is_multiple_of(SECTOR_BYTES)
            && offset.checked_add(u64::from(len)).is_some_and(|end| end <= self.size_bytes);
        match request.command {
            3 => self.unflushed.clear(),
            _ if !aligned => return Err(nbd::EINVAL),
            0 => {
                data.resize(len as usize, 0);
                self.file.read_exact_at(data, offset).map_err(|_| nbd::EIO)?;
            }
            1 => self.write(offset, data, request.flags & nbd::FUA != 0)?,
            // Trim, write zeroes.
            4 | 6 => {
                data.resize(len as usize, 0);
                self.write(offset, data, request.flags & nbd::FUA != 0)?;
            }
            _ => return Err(nbd::EINVAL),
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> Result<(), u32> {
        let first = offset / SECTOR_BYTES;
        for sector in first..first + data.len() as u64 / SECTOR_BYTES {
            if fua {
                self.unflushed.remove(&sector);
            } else if !self.unflushed.contains_key(&sector) {
                let mut content = [0; SECTOR_BYTES as usize];
                let read = self.file.read_exact_at(&mut content, sector * SECTOR_BYTES);
                read.map_err(|_| nbd::EIO)?;
                self.unflushed.insert(sector, content);
            }
        }
        self.file.write_all_at(data, offset).map_err(|_| nbd::EIO)
    }
}
