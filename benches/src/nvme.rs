//! Minimal NVMe/TCP host that creates an I/O queue for [`crate::exchange`].

use flagstone_nvme::command::fabrics::{
    CONTROLLER_ID_DYNAMIC, ConnectCommand, ConnectData, ConnectResult, PropertyCommand,
};
use flagstone_nvme::command::io::BlockRange;
use flagstone_nvme::limits::{CAPSULE_RESP_BYTES, ENCODED_HEADER_MAX_BYTES, INITIALIZE_BYTES};
use flagstone_nvme::pdu::{CapsuleResp, Digests, Encoder, InitializeRequest};
use flagstone_nvme::property::{Configuration, Property, PropertySize};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::wire::Wire;
use flagstone_nvme::{Cqe, Nqn, Sqe};
use flagstone_runtime::net::{Address, Stream};
use flagstone_runtime::{Buf, buf};

/// An initialized connection.
struct Connection {
    stream: Stream,
    encoder: Encoder,
}

impl Connection {
    async fn open(address: &Address) -> Connection {
        let stream = Stream::connect(address).await.expect("the target listens");
        let request = InitializeRequest::new(Digests::default(), 0, 1);
        stream.send_buf(copy(request.bytes())).await.expect("a connection");
        let (result, _) = stream.recv_exact(buf::alloc(INITIALIZE_BYTES).await).await;
        result.expect("an ICResp");
        Connection { stream, encoder: Encoder::new(Digests::default(), 0) }
    }

    /// Sends a command and returns its completion, which must be a success.
    async fn run(&self, command: &Sqe, data: &[u8]) -> Cqe {
        self.stream.send_buf(capsule(&self.encoder, command, data.len())).await.expect("sent");
        if !data.is_empty() {
            self.stream.send_buf(copy(data)).await.expect("sent");
        }
        let (result, bytes) = self.stream.recv_exact(buf::alloc(CAPSULE_RESP_BYTES).await).await;
        result.expect("a response");
        let completion = CapsuleResp::view(&bytes).expect("complete").completion;
        assert!(completion.status().is_success(), "{}", completion.status());
        completion
    }
}

fn copy(bytes: &[u8]) -> Buf {
    Buf::copy_of(bytes).expect("memory")
}

fn capsule(encoder: &Encoder, command: &Sqe, data_bytes: usize) -> Buf {
    let mut out = [0; ENCODED_HEADER_MAX_BYTES];
    let len = encoder.capsule_cmd(&mut out, command, data_bytes as u32).expect("room");
    copy(&out[..len])
}

/// Creates an I/O queue of `entries` on a new controller of `subsystem`. Also returns the admin
/// queue's connection, which must stay open.
pub async fn io_queue(address: &Address, subsystem: &Nqn, entries: u32) -> (Stream, Stream) {
    let host = Nqn::new("nqn.2026-01.io.flagstone:bench").expect("a name");
    let admin = Connection::open(address).await;
    let data = ConnectData::new([1; 16], CONTROLLER_ID_DYNAMIC, subsystem, &host);
    let connect = ConnectCommand::new(0, 0, 32, 0, false).expect("entries in range");
    let completion = admin.run(&connect.command(), data.bytes()).await;
    let controller = ConnectResult::from_dw0(completion.dw0.get()).controller_id;
    let enable = Configuration(0).with_enable(1).with_sqe_exponent(6).with_cqe_exponent(4);
    let set = PropertyCommand::set(1, Property::CC, PropertySize::FOUR, u64::from(enable.0));
    admin.run(&set.command(), &[]).await;
    let io = Connection::open(address).await;
    let data = ConnectData::new([1; 16], controller, subsystem, &host);
    let connect = ConnectCommand::new(0, 1, entries, 0, false).expect("entries in range");
    io.run(&connect.command(), data.bytes()).await;
    (io.stream, admin.stream)
}

/// `depth` reads or writes of `block_bytes`, as capsules ready to send.
pub fn requests(depth: usize, block_bytes: usize, write: bool) -> Vec<Vec<Buf>> {
    let encoder = Encoder::new(Digests::default(), 0);
    let payload = buf::try_alloc(block_bytes).expect("memory").freeze();
    let blocks = (block_bytes / 4096) as u32;
    let request = |cid: usize| {
        let range = BlockRange::new(cid as u64 * u64::from(blocks), blocks).expect("in range");
        let (cid, len) = (cid as u16, block_bytes as u32);
        if !write {
            return vec![capsule(&encoder, &Sqe::read(cid, 1, range, len), 0)];
        }
        let command = Sqe::write(cid, 1, range, false, SglDescriptor::in_capsule(len));
        vec![capsule(&encoder, &command, block_bytes), payload.clone()]
    };
    (0..depth).map(request).collect()
}
