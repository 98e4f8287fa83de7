//! Fuzz target for the NVMe/TCP target, over its connections.
//!
//! Input: one byte that selects how far the harness proceeds before it sends the input, one byte of
//! parameters (bits 1:0: header and data digests; bits 7:2: seed of the network), then:
//!
//! - 0: the bytes of a connection from its start;
//! - 1: bytes on the admin queue of an enabled controller;
//! - 2: bytes on an I/O queue;
//! - 3, 4: commands on the admin queue and on an I/O queue, as records: a submission queue entry, a
//!   byte n, and n x 64 bytes of in-capsule data (zeroes past the end of the input). They are sent
//!   with correct digests, and R2Ts are answered with the requested data.
//!
//! In addition to the checks of `conversation`, the target must follow the protocol whatever it
//! receives: a host must be able to receive every PDU that it sends.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_auth::KeyPair;
use flagstone_blockdev::MemoryDevice;
use flagstone_nvme::command::fabrics::{
    CONTROLLER_ID_DYNAMIC, ConnectCommand, ConnectData, ConnectResult, PropertyCommand,
};
use flagstone_nvme::limits::{CONNECT_DATA_BYTES, ENCODED_HEADER_MAX_BYTES, INITIALIZE_BYTES};
use flagstone_nvme::pdu::{
    CapsuleResp, CommonHeader, DataHeader, Digests, Encoder, Frame, InitializeRequest,
    InitializeResponse, PduKind, R2tHeader, Receiver, Rules, TermReqHeader,
};
use flagstone_nvme::property::{Property, PropertySize};
use flagstone_nvme::{Nqn, Sqe, Wire, digest};
use flagstone_nvmf_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig, serve};
use flagstone_runtime::net::Address;

use crate::conversation::{self, Client};

/// Small, so that an input of a few KiB reaches every limit.
const MDTS_BYTES: u32 = 64 << 10;
const IN_CAPSULE_BYTES: u32 = 8 << 10;
const NAMESPACE_BYTES: u64 = 1 << 20;
const SUBSYSTEM: &str = "nqn.2026-01.io.flagstone:db";

pub(crate) fn target() -> Arc<Target> {
    target_with(BTreeMap::new())
}

/// A target that demands these keys of its hosts, by their NQN.
pub(crate) fn target_with(keys: BTreeMap<Nqn, KeyPair>) -> Arc<Target> {
    let target = Target::new(TargetConfig {
        mdts_bytes: MDTS_BYTES,
        in_capsule_bytes: IN_CAPSULE_BYTES,
        max_h2c_data_bytes: 16 << 10,
        connection_payload_bytes: 128 << 10,
        max_namespaces: 16,
        max_controllers: 4,
        ..TargetConfig::default()
    })
    .expect("a configuration within its ranges");
    let nqn = subsystem();
    let serial = "1".to_owned();
    let config = SubsystemConfig { nqn, serial, allow_hosts: None, keys };
    target.add_subsystem(config).expect("a new name");
    for (index, block_bytes) in [(1, 512), (2, 4096)] {
        let device = MemoryDevice::new(NAMESPACE_BYTES, block_bytes).expect("a valid size");
        let config = NamespaceConfig {
            nsid: None,
            device: Arc::new(device),
            uuid: [index; 16],
            read_only: false,
        };
        target.add_namespace(&nqn, config).expect("room");
    }
    target
}

pub(crate) fn subsystem() -> Nqn {
    Nqn::new(SUBSYSTEM).expect("a name")
}

/// Runs the conversation described by the input.
pub fn run(input: &[u8]) {
    let [how, parameters, bytes @ ..] = input else { return };
    let digests = Digests::from_dgst(parameters & 3);
    let target = target();
    let observed = target.clone();
    let serve = move |stream| serve(target.clone(), stream);
    conversation::run(u64::from(parameters >> 2), serve, async |address| {
        converse(&address, how % 5, digests, bytes).await;
    });
    assert_eq!(observed.controllers(), 0, "a controller was not released with its host");
}

async fn converse(address: &Address, how: u8, digests: Digests, bytes: &[u8]) {
    if how == 0 {
        let client = Rc::new(Client::connect(address).await);
        client.send_beside(bytes.to_vec());
        client.settle(|received| drop(Received::check(received))).await;
        return;
    }
    let admin = Queue::connect(address, digests, 0, CONTROLLER_ID_DYNAMIC).await;
    let io = match how {
        2 | 4 => Some(Queue::connect(address, digests, 1, admin.controller_id).await),
        _ => None,
    };
    let queue = io.as_ref().unwrap_or(&admin);
    match how {
        1 | 2 => queue.client.send_beside(bytes.to_vec()),
        _ => queue.client.send_beside(queue.records(bytes)),
    }
    let mut answered = 0;
    loop {
        let received = queue.client.settle(Received::check).await;
        let new = received.r2ts.get(answered..).unwrap_or_default();
        if how < 3 || new.is_empty() || received.ended {
            break;
        }
        let data: Vec<u8> = new.iter().flat_map(|r2t| queue.data(r2t)).collect();
        answered = received.r2ts.len();
        queue.client.send_beside(data);
    }
    admin.client.settle(|received| drop(Received::check(received))).await;
}

/// A connection with a completed Connect.
struct Queue {
    client: Rc<Client>,
    encoder: Encoder,
    controller_id: u16,
}

impl Queue {
    /// Connects as any host does. For an admin queue, also enables the controller.
    async fn connect(address: &Address, digests: Digests, qid: u16, controller: u16) -> Queue {
        let client = Rc::new(Client::connect(address).await);
        let encoder = Encoder::new(digests, 0);
        client.send(InitializeRequest::new(digests, 0, 1).bytes()).await;
        let connect = ConnectCommand::new(1, qid, 32, 0, false).expect("32 entries").command();
        let data = ConnectData::new([7; 16], controller, &subsystem(), &Nqn::from_uuid([7; 16]));
        client.send(&capsule(&encoder, &connect, data.bytes())).await;
        let received = client.settle(Received::check).await;
        let result = received.results.get(&1).copied().expect("a valid Connect completes");
        let controller_id = ConnectResult::from_dw0(result).controller_id;
        if qid == 0 {
            let enable = u64::from(ENABLED);
            let set = PropertyCommand::set(2, Property::CC, PropertySize(0), enable).command();
            client.send(&capsule(&encoder, &set, &[])).await;
            let enabled = client.settle(Received::check).await.results.contains_key(&2);
            assert!(enabled, "enabling follows the specification");
        }
        Queue { client, encoder, controller_id }
    }

    /// Records of the input as capsules.
    fn records(&self, mut input: &[u8]) -> Vec<u8> {
        let mut stream = Vec::new();
        while let Some((entry, rest)) = input.split_at_checked(Sqe::BYTES) {
            let (&units, rest) = rest.split_first().unwrap_or((&0, &[]));
            let len = usize::from(units) * 64;
            let (given, rest) = rest.split_at(len.min(rest.len()));
            let mut data = given.to_vec();
            data.resize(len, 0);
            let command = Sqe::view(entry).expect("64 bytes");
            stream.extend(capsule(&self.encoder, command, &data));
            input = rest;
        }
        stream
    }

    /// Data requested by an R2T, in two pieces if possible.
    fn data(&self, r2t: &R2tHeader) -> Vec<u8> {
        let (offset, total) = (r2t.offset.get(), r2t.data_bytes.get());
        let half = if total > 8192 { total / 2 } else { total };
        let mut stream = Vec::new();
        let mut at = 0;
        while at < total {
            let len = half.min(total - at).min(16 << 10);
            let mut out = [0; ENCODED_HEADER_MAX_BYTES];
            let (cid, tag) = (r2t.cid.get(), r2t.transfer_tag.get());
            let last = at + len == total;
            let header = self.encoder.h2c_data(&mut out, cid, tag, offset + at, len, last);
            stream.extend(&out[..header.expect("it fits")]);
            with_digest(&mut stream, &self.encoder, &vec![0xa5; len as usize]);
            at += len;
        }
        stream
    }
}

/// CC: EN, and the entry sizes 2^6 and 2^4 of NVMe (IOSQES, IOCQES).
const ENABLED: u32 = 1 | 6 << 16 | 4 << 20;

fn capsule(encoder: &Encoder, command: &Sqe, data: &[u8]) -> Vec<u8> {
    let mut out = [0; ENCODED_HEADER_MAX_BYTES];
    let len = encoder.capsule_cmd(&mut out, command, data.len() as u32).expect("it fits");
    let mut stream = out[..len].to_vec();
    with_digest(&mut stream, encoder, data);
    stream
}

fn with_digest(stream: &mut Vec<u8>, encoder: &Encoder, data: &[u8]) {
    stream.extend_from_slice(data);
    if !data.is_empty() && encoder.digests().data {
        stream.extend(digest::wire_digest(data));
    }
}

/// Messages received from a target on one connection.
struct Received {
    results: BTreeMap<u16, u32>,
    r2ts: Vec<R2tHeader>,
    /// A TermReq ended the connection.
    ended: bool,
}

impl Received {
    /// Parses a target's stream as a host does.
    ///
    /// # Panics
    ///
    /// If a target may not send it.
    fn check(stream: &[u8]) -> Received {
        let mut all = Received { results: BTreeMap::new(), r2ts: Vec::new(), ended: false };
        let mut rules = Rules::initial(Receiver::Host);
        let mut rest = stream;
        while let Some(common) = CommonHeader::view(rest) {
            assert!(!all.ended, "a target sends nothing after C2HTermReq");
            let frame = rules.check(common).expect("a target follows the protocol");
            let whole = frame.pdu_bytes() as usize;
            // The connection may have ended within a PDU.
            let Some(pdu) = rest.get(..whole) else { break };
            frame.check_header_digest(pdu).expect("a correct header digest");
            all.take(&frame, pdu, &mut rules);
            rest = &rest[whole..];
        }
        all
    }

    fn take(&mut self, frame: &Frame, pdu: &[u8], rules: &mut Rules) {
        match frame.kind {
            PduKind::IcResp => {
                let response =
                    InitializeResponse::view(&pdu[..INITIALIZE_BYTES]).expect("complete");
                let both = Digests { header: true, data: true };
                response.check(both).expect("a valid ICResp");
                // A target's PDU may carry as much data as a command may request.
                *rules = Rules::of_host(response.digests(), 0, MDTS_BYTES);
            }
            PduKind::TermReq => {
                let fatal = TermReqHeader::view(pdu).expect("complete").fatal();
                assert!((1..=6).contains(&fatal.status.0), "a defined status: {fatal}");
                self.ended = true;
            }
            PduKind::CapsuleResp => {
                let completion = &CapsuleResp::view(pdu).expect("complete").completion;
                if completion.status().is_success() {
                    self.results.insert(completion.cid.get(), completion.dw0.get());
                }
            }
            PduKind::Data => {
                DataHeader::view(pdu).expect("complete").check(frame).expect("a valid C2HData");
                if frame.data_digest_bytes > 0 {
                    let (data, sent) =
                        pdu[usize::from(frame.data_offset)..].split_at(frame.data_bytes as usize);
                    assert_eq!(digest::wire_digest(data), *sent, "a correct data digest");
                }
            }
            PduKind::R2t => {
                let r2t = R2tHeader::view(pdu).expect("complete");
                r2t.check(MDTS_BYTES).expect("within the largest command");
                self.r2ts.push(*r2t);
            }
            PduKind::IcReq | PduKind::CapsuleCmd => unreachable!("a host never receives it"),
        }
    }
}

const _: () = assert!(CONNECT_DATA_BYTES <= IN_CAPSULE_BYTES as usize);
