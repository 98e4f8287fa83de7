//! Seeds of NVMe/TCP input: streams, commands and controller answers.

use std::io;

use flagstone_auth::message::MessageBody;
use flagstone_auth::{DhGroup, Explanation, Hash, Message};
use flagstone_nvme::command::admin::{Abort, GetLogPage, Identify};
use flagstone_nvme::command::fabrics::{ConnectCommand, ConnectData, PropertyCommand};
use flagstone_nvme::command::io::{BlockRange, DsmRange, IoOptions};
use flagstone_nvme::feature::{FeatureId, NumberOfQueues};
use flagstone_nvme::identify::{
    Cns, DescriptorWriter, IdentifyController, IdentifyNamespace, NamespaceDescriptor,
    NamespaceList,
};
use flagstone_nvme::limits::{ENCODED_HEADER_MAX_BYTES, IDENTIFY_BYTES, TERM_REQ_MAX_BYTES};
use flagstone_nvme::log::discovery::SubsystemType;
use flagstone_nvme::log::{AnaGroup, AnaHeader, AnaState, DiscoveryEntry, LogId};
use flagstone_nvme::pdu::{
    DataFlags, Digests, Encoder, Fatal, InitializeRequest, InitializeResponse, Receiver,
    encode_term_req,
};
use flagstone_nvme::property::{Property, PropertySize};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::wire::{U16, U32};
use flagstone_nvme::{Cqe, Nqn, Sqe, Status, Wire};

use super::Corpus;

const DIGESTS: [(&str, Digests); 4] = [
    ("plain", Digests { header: false, data: false }),
    ("header-digest", Digests { header: true, data: false }),
    ("data-digest", Digests { header: false, data: true }),
    ("digests", Digests { header: true, data: true }),
];

/// A stream of PDUs in one direction.
struct Stream {
    bytes: Vec<u8>,
    encoder: Encoder,
}

impl Stream {
    /// `host`: a stream read by a host, otherwise by a target. With `mend`, digests are corrected
    /// on reading.
    fn new(host: bool, digests: Digests, alignment: u8, mend: bool) -> Self {
        let parameters = u8::from(host) | digests.to_dgst() << 1 | alignment << 3;
        let mut bytes = vec![parameters, u8::from(mend)];
        if host {
            bytes.extend(InitializeResponse::new(digests, alignment, 128 << 10).bytes());
        } else {
            bytes.extend(InitializeRequest::new(digests, alignment, 1).bytes());
        }
        Self { bytes, encoder: Encoder::new(digests, alignment) }
    }

    /// Appends a header produced by `write`, and its data with its digest.
    fn push(&mut self, data: &[u8], write: impl Fn(&Encoder, &mut [u8]) -> Option<usize>) {
        let mut out = [0; ENCODED_HEADER_MAX_BYTES];
        let len = write(&self.encoder, &mut out).expect("a valid PDU");
        self.bytes.extend(&out[..len]);
        self.bytes.extend(data);
        if !data.is_empty() && self.encoder.digests().data {
            self.bytes.extend(flagstone_nvme::digest::wire_digest(data));
        }
    }

    fn capsule(&mut self, command: &Sqe, data: &[u8]) {
        self.push(data, |encoder, out| encoder.capsule_cmd(out, command, data.len() as u32));
    }
}

fn range(start: u64, blocks: u32) -> BlockRange {
    BlockRange::new(start, blocks).expect("a valid range")
}

fn connect(qid: u16) -> (Sqe, ConnectData) {
    let command = ConnectCommand::new(1, qid, 32, 15_000, false).expect("32 entries");
    let subsystem = Nqn::new("nqn.2026-01.io.flagstone:db").expect("a name");
    let host = Nqn::from_uuid([7; 16]);
    (command.command(), ConnectData::new([7; 16], 0xffff, &subsystem, &host))
}

/// `nvme_pdu`: both directions, with and without digests and padding.
pub(crate) fn pdu(corpus: &Corpus) -> io::Result<()> {
    for (name, digests) in DIGESTS {
        for alignment in [0, 17, 31] {
            for mend in [false, true] {
                let name = format!("{name}-align{alignment}-{}", if mend { "mend" } else { "raw" });
                let to_target = to_target(digests, alignment, mend);
                corpus.put("nvme_pdu", &format!("target-{name}"), &to_target)?;
                let to_host = to_host(digests, alignment, mend);
                corpus.put("nvme_pdu", &format!("host-{name}"), &to_host)?;
            }
        }
    }
    for (host, sender, name) in
        [(false, Receiver::Host, "target"), (true, Receiver::Controller, "host")]
    {
        let mut stream = Stream::new(host, Digests::default(), 0, false);
        let mut out = [0; TERM_REQ_MAX_BYTES];
        let len = encode_term_req(&mut out, sender, Fatal::field(4), &[3; 72]).expect("it fits");
        stream.bytes.extend(&out[..len]);
        corpus.put("nvme_pdu", &format!("{name}-term-req"), &stream.bytes)?;
    }
    Ok(())
}

fn to_target(digests: Digests, alignment: u8, mend: bool) -> Vec<u8> {
    let mut stream = Stream::new(false, digests, alignment, mend);
    let (command, data) = connect(0);
    stream.capsule(&command, data.bytes());
    stream.capsule(&Sqe::read(2, 1, range(0, 8), 4096), &[]);
    let in_capsule = SglDescriptor::in_capsule(512);
    stream.capsule(&Sqe::write(3, 1, range(8, 1), true, in_capsule), &[0xa5; 512]);
    stream.capsule(&Sqe::write(4, 1, range(0, 2), false, SglDescriptor::transport(1024)), &[]);
    stream.push(&[1; 512], |encoder, out| encoder.h2c_data(out, 4, 4, 0, 512, false));
    stream.push(&[2; 512], |encoder, out| encoder.h2c_data(out, 4, 4, 512, 512, true));
    stream.capsule(&Sqe::flush(5, 1), &[]);
    stream.bytes
}

fn to_host(digests: Digests, alignment: u8, mend: bool) -> Vec<u8> {
    let mut stream = Stream::new(true, digests, alignment, mend);
    let flags = |last, success| DataFlags { last, success };
    let half = [1; 2048];
    stream.push(&half, |encoder, out| encoder.c2h_data(out, 0, 0, 2048, flags(false, false)));
    stream.push(&half, |encoder, out| encoder.c2h_data(out, 0, 2048, 2048, flags(true, true)));
    stream.push(&[], |encoder, out| encoder.r2t(out, 1, 9, 4096, 4096));
    let failed = Cqe::new(2, Status::LBA_OUT_OF_RANGE.dnr());
    stream.push(&[], |encoder, out| encoder.capsule_resp(out, &failed));
    stream.push(&[], |encoder, out| {
        encoder.capsule_resp(out, &Cqe::with_result(3, Status::SUCCESS, 7))
    });
    stream.bytes
}

/// `nvme_command` and `nvme_target`: each command once, with its data.
pub(crate) fn commands(corpus: &Corpus) -> io::Result<()> {
    let none = SglDescriptor::transport(0);
    let (connect, connect_data) = connect(1);
    let ranges: Vec<u8> = [DsmRange::new(0, 8), DsmRange::new(1 << 20, 64)]
        .iter()
        .flat_map(|r| r.bytes().to_vec())
        .collect();
    let list = SglDescriptor::in_capsule(32);
    let zeroes = IoOptions { fua: true, deallocate: true };
    let queues = NumberOfQueues { submission: 4, completion: 4 }.to_dword();
    let log = |log, bytes| GetLogPage::new(log, 0, 0, bytes).command(1).expect("whole dwords");
    let size = |bytes: u8| PropertySize(if bytes == 8 { 1 } else { 0 });
    let all: &[(&str, Sqe, &[u8])] = &[
        ("read", Sqe::read(1, 1, range(7, 8), 4096), &[]),
        ("write", Sqe::write(1, 1, range(7, 1), true, SglDescriptor::in_capsule(512)), &[9; 512]),
        (
            "write-transport",
            Sqe::write(1, 1, range(0, 256), false, SglDescriptor::transport(1 << 17)),
            &[],
        ),
        ("write-zeroes", Sqe::write_zeroes(1, 1, range(0, 65_536), zeroes), &[]),
        ("compare", Sqe::compare(1, 1, range(0, 1), SglDescriptor::in_capsule(512)), &[0; 512]),
        ("verify", Sqe::verify(1, 1, range(1 << 21, 1)), &[]),
        ("flush", Sqe::flush(1, u32::MAX), &[]),
        ("deallocate", Sqe::deallocate(1, 1, 2, list).expect("two ranges"), &ranges),
        ("identify", Identify::new(Cns(1), 0).command(1), &[]),
        ("identify-descriptors", Identify::new(Cns(3), 1).command(1), &[]),
        ("log-smart", log(LogId::SMART, 512), &[]),
        ("log-discovery", log(LogId::DISCOVERY, 4096), &[]),
        ("get-features", Sqe::get_features(1, FeatureId::VOLATILE_WRITE_CACHE, 0, 0), &[]),
        ("set-queues", Sqe::set_features(1, FeatureId::NUMBER_OF_QUEUES, queues), &[]),
        ("keep-alive", Sqe::keep_alive(1), &[]),
        ("async-event", Sqe::async_event_request(1), &[]),
        ("abort", Sqe::abort(1, Abort { sqid: 1, cid: 2 }), &[]),
        ("connect", connect, connect_data.bytes()),
        ("disconnect", Sqe::disconnect(1), &[]),
        ("property-get", PropertyCommand::get(1, Property::CAP, size(8)).command(), &[]),
        ("property-set", PropertyCommand::set(1, Property::CC, size(4), 0x46_0001).command(), &[]),
        ("unknown", Sqe::new(0xc5, 1, 1, none), &[]),
    ];
    for (name, command, data) in all {
        corpus.put("nvme_command", name, &[command.bytes(), data].concat())?;
    }
    conversations(corpus, all)
}

/// `nvme_target`: all commands as records and as bytes, on both kinds of queue; and a connection
/// from its start.
fn conversations(corpus: &Corpus, all: &[(&str, Sqe, &[u8])]) -> io::Result<()> {
    let mut number = 0;
    let mut record = |command: &Sqe, data: &[u8]| {
        number += 1;
        let command = Sqe { cid: U16::new(number), ..*command };
        let units = data.len().div_ceil(64);
        let mut record = command.bytes().to_vec();
        record.push(units as u8);
        record.extend(data);
        record.resize(65 + units * 64, 0);
        record
    };
    let records: Vec<u8> = all.iter().flat_map(|(_, sqe, data)| record(sqe, data)).collect();
    for (name, digests) in DIGESTS {
        for (how, queue) in [(3, "admin"), (4, "io")] {
            let input = [&[how, digests.to_dgst() | 5 << 2], &records[..]].concat();
            corpus.put("nvme_target", &format!("records-{queue}-{name}"), &input)?;
        }
        // Without the parameter bytes of `nvme_pdu`.
        let stream = &to_target(digests, 0, false)[2..];
        corpus.put("nvme_target", &format!("start-{name}"), &[&[0, 4], stream].concat())?;
    }
    for (name, command, data) in all {
        let input = [&[4, 0], &record(command, data)[..]].concat();
        corpus.put("nvme_target", &format!("io-{name}"), &input)?;
        let input = [&[3, 0], &record(command, data)[..]].concat();
        corpus.put("nvme_target", &format!("admin-{name}"), &input)?;
    }
    let mut stream = Stream::new(false, Digests::default(), 0, false);
    let start = stream.bytes.len();
    stream.capsule(&Sqe::write(4, 1, range(0, 2), false, SglDescriptor::transport(1024)), &[]);
    stream.push(&[1; 512], |encoder, out| encoder.h2c_data(out, 4, 0, 0, 512, false));
    stream.push(&[2; 512], |encoder, out| encoder.h2c_data(out, 4, 0, 512, 512, true));
    stream.capsule(&Sqe::read(5, 1, range(0, 2), 1024), &[]);
    let bytes = &stream.bytes[start..];
    corpus.put("nvme_target", "bytes-io", &[&[2, 0], bytes].concat())?;
    corpus.put("nvme_target", "bytes-admin", &[&[1, 0], bytes].concat())
}

/// `nvme_reply`: one structure of each kind, after its kind byte.
pub(crate) fn replies(corpus: &Corpus) -> io::Result<()> {
    let put = |choice: u8, name: &str, bytes: &[u8]| {
        // Readers treat missing bytes as 0, so trailing zeroes need not be stored.
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
        corpus.put("nvme_reply", name, &[&[choice], &bytes[..end]].concat())
    };
    let name = Nqn::new("nqn.2026-01.io.flagstone:db").expect("a name");

    let mut controller = IdentifyController::default();
    controller.set_names("0123456789", "Flagstone", "0.1.0");
    controller.set_capsules(64 << 10);
    controller.max_transfer_exponent = 8;
    controller.subnqn = name.to_field();
    put(0, "controller", controller.bytes())?;

    let mut namespace = IdentifyNamespace::default();
    namespace.size_blocks = 262_144.into();
    namespace.capacity_blocks = 262_144.into();
    namespace.formats[0].block_exponent = 12;
    put(1, "namespace", namespace.bytes())?;

    let mut page = [0; IDENTIFY_BYTES];
    let mut writer = DescriptorWriter::new(&mut page);
    for descriptor in [NamespaceDescriptor::Nguid([1; 16]), NamespaceDescriptor::Uuid([2; 16])] {
        writer.push(&descriptor).expect("room");
    }
    writer.push_nvm().expect("room");
    put(2, "descriptors", &page)?;

    let mut list = NamespaceList::default();
    list.fill(0, [1, 2, 5]);
    put(3, "namespaces", list.bytes())?;

    for (version, at) in [("v4", "192.0.2.7:4420"), ("v6", "[2001:db8::1]:8009")] {
        let at = at.parse().expect("an address");
        let entry = DiscoveryEntry::tcp(SubsystemType::NVM, &name, at, 1);
        put(4, &format!("discovery-{version}"), entry.bytes())?;
    }

    let header = AnaHeader { groups: U16::new(1), ..Default::default() };
    let group = AnaGroup {
        id: U32::new(1),
        namespaces: U32::new(2),
        state: AnaState::OPTIMIZED.0,
        ..Default::default()
    };
    let groups = [header.bytes(), group.bytes(), &[1, 0, 0, 0, 2, 0, 0, 0]].concat();
    corpus.put("nvme_reply", "ana", &[&[5], &groups[..]].concat())?;
    put(6, "smart", &[0, 0x2c, 1, 100, 10])?;
    let status = Status::CONNECT_INVALID_PARAMETERS.dnr();
    put(7, "completion", Cqe::with_result(1, status, 0x1_0100).bytes())
}

/// `nvme_authentication`: one message of each kind, for both sides, and a secret.
pub(crate) fn authentication(corpus: &Corpus) -> io::Result<()> {
    let (hash, group) = (Hash::Sha256, DhGroup::Null);
    let (digest, none) = (vec![7; 32], Vec::new());
    let sequence = 1;
    let groups = vec![DhGroup::Null, DhGroup::Ffdhe2048];
    for (name, body) in [
        (
            "negotiate",
            MessageBody::Negotiate {
                concatenation: 0,
                hashes: Hash::ALL.into(),
                groups: DhGroup::ALL.into(),
            },
        ),
        (
            "challenge",
            MessageBody::Challenge {
                hash,
                group,
                sequence,
                challenge: digest.clone(),
                public_value: none.clone(),
            },
        ),
        (
            "reply",
            MessageBody::Reply {
                response: digest.clone(),
                challenge: Some(digest.clone()),
                sequence,
                public_value: none,
            },
        ),
        ("success1", MessageBody::Success1 { digest_bytes: 32, response: Some(digest) }),
        ("success2", MessageBody::Success2),
        ("failure1", MessageBody::Failure1(Explanation::Failed)),
        ("failure2", MessageBody::Failure2(Explanation::Failed)),
        (
            "concatenate",
            MessageBody::Negotiate { concatenation: 2, hashes: Hash::ALL.into(), groups },
        ),
    ] {
        let message = Message { transaction: 7, body }.encode();
        corpus.put("nvme_authentication", name, &[&[0], &message[..]].concat())?;
        let length = (message.len() as u16).to_le_bytes();
        for (side, choice) in [("controller", 1), ("host", 2), ("concatenating-host", 128)] {
            let name = format!("{side}-{name}");
            let input = [&[choice], &length[..], &message[..]].concat();
            corpus.put("nvme_authentication", &name, &input)?;
        }
    }
    let secret = b"\x03DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    corpus.put("nvme_authentication", "secret", secret)?;
    let key = b"\x05NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    corpus.put("nvme_authentication", "tls-key", key)?;
    let identity = b"NVMe0R01 nqn.2026-01.x:a nqn.2026-01.x:b";
    let prefixed = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let binder = [&[32][..], &[7; 32]].concat();
    let offered = [prefixed(identity), vec![0; 4]].concat();
    let psk = [prefixed(&offered), prefixed(&binder)].concat();
    let extensions = [&41_u16.to_be_bytes()[..], &prefixed(&psk)].concat();
    let body = [&[3, 3][..], &[9; 32], &[0, 0, 2, 0x13, 1, 1, 0], &prefixed(&extensions)].concat();
    let hello = [&[4, 1, 0][..], &prefixed(&body)].concat();
    corpus.put("nvme_authentication", "client-hello", &hello)
}

/// `nvme_host`: PDUs in place of the target's messages on each connection, and between them.
/// `nvme_keys`: the same for either side of a session with keys.
pub(crate) fn tampered(corpus: &Corpus) -> io::Result<()> {
    let encoder = Encoder::new(Digests::default(), 0);
    let written = |write: &dyn Fn(&mut [u8]) -> Option<usize>| {
        let mut out = [0; ENCODED_HEADER_MAX_BYTES];
        let len = write(&mut out).expect("it fits");
        out[..len].to_vec()
    };
    let last = DataFlags { last: true, success: false };
    let mut term_req = [0; TERM_REQ_MAX_BYTES];
    let end = encode_term_req(&mut term_req, Receiver::Controller, Fatal::SEQUENCE, &[4; 8]);
    let pdus: [(&str, Vec<u8>); 6] = [
        ("resp", written(&|out| encoder.capsule_resp(out, &Cqe::new(1, Status::INVALID_FIELD)))),
        ("r2t", written(&|out| encoder.r2t(out, 1, 1, 0, 4096))),
        ("data", written(&|out| encoder.c2h_data(out, 1, 0, 512, last))),
        ("term-req", term_req[..end.expect("it fits")].to_vec()),
        ("initialize", InitializeResponse::new(Digests::default(), 0, 4096).bytes().to_vec()),
        ("ones", vec![0xff; 8]),
    ];
    // ICResp only; with the Connect response; with the first property; into the Identify data.
    for (at, pass_bytes) in [0_u16, 128, 152, 176, 300, 4600].into_iter().enumerate() {
        for (index, (name, pdu)) in pdus.iter().enumerate() {
            let (how, connection) = ((index + at) as u8 % 4, at as u8 % 4);
            let [low, high] = pass_bytes.to_le_bytes();
            let input = [&[0, how | connection << 2, low, high], &pdu[..]].concat();
            corpus.put("nvme_host", &format!("{name}-{at}"), &input)?;
        }
    }
    corpus.put("nvme_host", "untouched", &[3, 0, 0, 0])?;
    // Into the Connect response; into each message of the first authentication; after it.
    for keys in 0..4_u8 {
        for (at, pass_bytes) in
            [152_u16, 176, 240, 300, 500, 900, 1400, 4600].into_iter().enumerate()
        {
            for (index, (name, pdu)) in pdus.iter().enumerate() {
                let (how, side) = ((index + at) as u8 % 4, (index as u8 & 1) << 2);
                let [low, high] = pass_bytes.to_le_bytes();
                let input = [&[keys | side, how, low, high], &pdu[..]].concat();
                corpus.put("nvme_keys", &format!("{name}-{keys}-{at}"), &input)?;
            }
        }
        corpus.put("nvme_keys", &format!("untouched-{keys}"), &[keys, 0, 0, 0])?;
    }
    Ok(())
}
