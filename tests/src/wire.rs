//! First bytes of NVMe/TCP and NBD connections, built by hand, for tests that send incomplete or
//! invalid handshakes.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net;

/// Longest wait for bytes or the end of a stream. A safety net: they come at once.
const STREAM_WAIT: Duration = Duration::from_secs(60);

/// Length of an ICReq, and of the ICResp that answers it (NVMe/TCP 3.6.2.2, 3.6.2.3).
const NVME_INITIALIZED_BYTES: usize = 128;

/// Length of an NBD server's greeting: two magic numbers and the handshake flags.
const NBD_GREETING_BYTES: usize = 18;

/// Name of the host of [`nvme_connect`].
pub const NVME_HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6a2f43a5-0e4f-4bd1-9c3e-0d3a41a6c5f1";

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

/// Connects to a port of this machine from an address of its loopback network, 127.0.0.0/8.
///
/// # Panics
///
/// If no server listens there.
pub fn connect_from(source: [u8; 4], port: u16) -> TcpStream {
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None);
    let socket = socket.expect("a socket");
    net::bind(&socket, &SocketAddr::from((source, 0))).expect("an address of loopback");
    net::connect(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("a listener");
    socket.into()
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
    data[512..512 + NVME_HOST.len()].copy_from_slice(NVME_HOST.as_bytes());
    pdu
}

/// Capsule without data of a command whose other bytes `fill` sets, with data to the host of
/// `data_bytes`.
fn nvme_command(data_bytes: u32, fill: impl FnOnce(&mut [u8])) -> [u8; 72] {
    let mut pdu = [0; 72];
    (pdu[0], pdu[2], pdu[4]) = (4, 72, 72);
    let command = &mut pdu[8..];
    command[1] = 0x40;
    command[32..36].copy_from_slice(&data_bytes.to_le_bytes());
    // Transport SGL data block.
    command[39] = 0x5A;
    fill(command);
    pdu
}

/// Receives PDUs up to a response, and returns their data.
///
/// # Errors
///
/// Errors of the stream, and `InvalidData` if the server refuses.
pub fn nvme_answer(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    loop {
        let mut header = [0; 8];
        stream.read_exact(&mut header)?;
        let bytes = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let mut rest = vec![0; bytes as usize - header.len()];
        stream.read_exact(&mut rest)?;
        match header[0] {
            // C2HData; with the flag SUCCESS it is also the response.
            7 => data.extend(&rest[usize::from(header[3]) - header.len()..]),
            5 if rest[14..16] == [0, 0] => return Ok(data),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        if header[1] & 8 != 0 {
            return Ok(data);
        }
    }
}

/// Discovery log of the server at a port: address and name of each NVM subsystem.
///
/// # Errors
///
/// Errors of the stream, and `InvalidData` if the server refuses.
pub fn nvme_discover(port: u16) -> io::Result<Vec<(String, String)>> {
    const ENTRY_BYTES: usize = 1024;
    const LOG_BYTES: u32 = 32 << 10;
    let mut stream = connect(port);
    nvme_open(&mut stream)?;
    stream.write_all(&nvme_connect("nqn.2014-08.org.nvmexpress.discovery", 0, 32))?;
    nvme_answer(&mut stream)?;
    stream.write_all(&nvme_enable())?;
    nvme_answer(&mut stream)?;
    stream.write_all(&nvme_command(LOG_BYTES, |command| {
        command[0] = 0x02;
        let dwords = LOG_BYTES / 4 - 1;
        command[40..44].copy_from_slice(&(dwords << 16 | 0x70).to_le_bytes());
    }))?;
    let log = nvme_answer(&mut stream)?;
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.trim_end_matches(['\0', ' ']).to_owned()
    };
    let count = log[8] as usize;
    let entries = log[ENTRY_BYTES..].chunks(ENTRY_BYTES).take(count);
    // Byte 2 is the type: 2 for an NVM subsystem.
    Ok(entries
        .filter(|entry| entry[2] == 2)
        .map(|entry| {
            let address = format!("{}:{}", text(&entry[512..768]), text(&entry[32..64]));
            (address, text(&entry[256..512]))
        })
        .collect())
}

/// Attaches host `number` to a subsystem, from an address as for [`connect_from`]: connections of
/// its admin queue and of its first I/O queue, of 32 entries.
///
/// # Errors
///
/// Errors of the stream, and `InvalidData` if the server refuses.
///
/// # Panics
/// If `number` has more than 8 digits.
pub fn nvme_attach(
    source: [u8; 4],
    port: u16,
    subsystem: &str,
    number: usize,
) -> io::Result<[TcpStream; 2]> {
    const DATA: usize = 72;
    let connect_host = |queue: u16, controller: u16| {
        let mut pdu = nvme_connect(subsystem, queue, 32);
        let digits = format!("{number:08}");
        // Another host identifier and name; the latter ends in digits.
        pdu[DATA..DATA + 8].copy_from_slice(digits.as_bytes());
        pdu[DATA + 16..DATA + 18].copy_from_slice(&controller.to_le_bytes());
        let end = DATA + 512 + NVME_HOST.len();
        pdu[end - 8..end].copy_from_slice(digits.as_bytes());
        pdu
    };
    let mut admin = connect_from(source, port);
    nvme_open(&mut admin)?;
    admin.write_all(&connect_host(0, 0xFFFF))?;
    let controller = nvme_result(&mut admin)? as u16;
    admin.write_all(&nvme_enable())?;
    nvme_answer(&mut admin)?;
    let mut queue = connect_from(source, port);
    nvme_open(&mut queue)?;
    queue.write_all(&connect_host(1, controller))?;
    nvme_answer(&mut queue)?;
    Ok([admin, queue])
}

/// Read of the first MiB of namespace 1, in blocks of 4,096 bytes.
pub fn nvme_read_mib(id: u16) -> [u8; 72] {
    nvme_command(1 << 20, |command| {
        command[0] = 0x02;
        command[2..4].copy_from_slice(&id.to_le_bytes());
        command[4] = 1;
        command[48] = 255;
    })
}

/// First dword of a response without data: of a Connect, the controller.
fn nvme_result(stream: &mut impl Read) -> io::Result<u32> {
    let mut pdu = [0; 24];
    stream.read_exact(&mut pdu)?;
    match (pdu[0], &pdu[22..24]) {
        (5, [0, 0]) => Ok(u32::from_le_bytes([pdu[8], pdu[9], pdu[10], pdu[11]])),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Property Set of CC: enabled, with the usual entry sizes.
fn nvme_enable() -> [u8; 72] {
    nvme_command(0, |command| {
        command[0] = 0x7F;
        command[44] = 0x14;
        command[48..52].copy_from_slice(&0x0046_0001_u32.to_le_bytes());
    })
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
