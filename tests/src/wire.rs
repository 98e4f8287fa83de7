//! First bytes of NVMe/TCP and NBD connections, built by hand, for tests that send incomplete or
//! invalid handshakes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longest wait for bytes or the end of a stream. A safety net: they come at once.
const STREAM_WAIT: Duration = Duration::from_secs(60);

/// Length of an ICReq, and of the ICResp that answers it (NVMe/TCP 3.6.2.2, 3.6.2.3).
const NVME_INITIALIZED_BYTES: usize = 128;

/// Length of an NBD server's greeting: two magic numbers and the handshake flags.
const NBD_GREETING_BYTES: usize = 18;

/// Connects to a port of this machine.
///
/// # Panics
///
/// If no server listens there.
pub fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port));
    let stream = stream.unwrap_or_else(|error| panic!("connecting to port {port}: {error}"));
    stream.set_read_timeout(Some(STREAM_WAIT)).expect("the wait is not zero");
    stream
}

/// An ICReq: no digests, no alignment, one R2T.
pub fn nvme_initialize() -> [u8; 128] {
    let mut pdu = [0; NVME_INITIALIZED_BYTES];
    pdu[2] = NVME_INITIALIZED_BYTES as u8;
    pdu[4] = NVME_INITIALIZED_BYTES as u8;
    pdu
}

/// Initializes a new NVMe/TCP connection, and waits for the answer.
///
/// # Errors
///
/// Errors of the stream.
pub fn nvme_open(stream: &mut (impl Read + Write)) -> io::Result<()> {
    stream.write_all(&nvme_initialize())?;
    stream.read_exact(&mut [0; NVME_INITIALIZED_BYTES])
}

/// Command capsule with a Connect for I/O queue `queue`, with in-capsule data. The names are those
/// of `subsystem` and of a test host.
///
/// # Panics
///
/// If the name is too long.
pub fn nvme_connect(subsystem: &str, queue: u16, entries: u16) -> Vec<u8> {
    const DATA_BYTES: usize = 1024;
    const CAPSULE_BYTES: usize = 72;
    let mut pdu = vec![0; CAPSULE_BYTES + DATA_BYTES];
    // Common header: CapsuleCmd, header length, data offset, total length.
    pdu[0] = 4;
    pdu[2] = CAPSULE_BYTES as u8;
    pdu[3] = CAPSULE_BYTES as u8;
    pdu[4..8].copy_from_slice(&((CAPSULE_BYTES + DATA_BYTES) as u32).to_le_bytes());
    // Command: Fabrics, SGLs, type Connect, in-capsule data at offset 0.
    let command = &mut pdu[8..];
    command[0] = 0x7F;
    command[1] = 0x40;
    command[4] = 1;
    command[32..36].copy_from_slice(&(DATA_BYTES as u32).to_le_bytes());
    command[39] = 0x01;
    command[42..44].copy_from_slice(&queue.to_le_bytes());
    command[44..46].copy_from_slice(&(entries - 1).to_le_bytes());
    // Connect data: host identifier, controller identifier (any), names.
    let data = &mut pdu[CAPSULE_BYTES..];
    data[..16].copy_from_slice(b"flagstone tests!");
    data[16..18].copy_from_slice(&0xFFFF_u16.to_le_bytes());
    data[256..256 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
    let host = b"nqn.2014-08.org.nvmexpress:uuid:6a2f43a5-0e4f-4bd1-9c3e-0d3a41a6c5f1";
    data[512..512 + host.len()].copy_from_slice(host);
    pdu
}

/// Client flags, and the option that opens `export` (`NBD_OPT_GO`, without information requests).
///
/// # Panics
/// If the name is longer than 4 GiB.
pub fn nbd_go(export: &str) -> Vec<u8> {
    // Fixed newstyle, no zeroes.
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    let name_bytes = u32::try_from(export.len()).expect("a name is short");
    bytes.extend(b"IHAVEOPT");
    bytes.extend(7_u32.to_be_bytes());
    bytes.extend((4 + name_bytes + 2).to_be_bytes());
    bytes.extend(name_bytes.to_be_bytes());
    bytes.extend(export.as_bytes());
    bytes.extend(0_u16.to_be_bytes());
    bytes
}

/// Opens `export` on a new connection, up to the end of the negotiation.
///
/// # Errors
///
/// Errors of the stream, and `InvalidData` if the server refuses.
pub fn nbd_open(stream: &mut (impl Read + Write), export: &str) -> io::Result<()> {
    /// `NBD_REP_ACK`; errors have the highest bit set.
    const ACK: u32 = 1;
    stream.read_exact(&mut [0; NBD_GREETING_BYTES])?;
    stream.write_all(&nbd_go(export))?;
    loop {
        // Magic number, option, reply type, length.
        let mut header = [0; 20];
        stream.read_exact(&mut header)?;
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let (kind, data_bytes) = (word(12), word(16));
        io::copy(&mut stream.take(u64::from(data_bytes)), &mut io::sink())?;
        match kind {
            ACK => return Ok(()),
            _ if kind >> 31 == 1 => return Err(io::ErrorKind::InvalidData.into()),
            _ => {}
        }
    }
}

/// Write request of `len_bytes` at `offset`, without its data.
pub fn nbd_write(offset: u64, len_bytes: u32) -> Vec<u8> {
    nbd_request(1, offset, len_bytes)
}

/// Read request of `len_bytes` at `offset`.
pub fn nbd_read(offset: u64, len_bytes: u32) -> Vec<u8> {
    nbd_request(0, offset, len_bytes)
}

fn nbd_request(command: u16, offset: u64, len_bytes: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(0_u16.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(7_u64.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len_bytes.to_be_bytes());
    bytes
}
