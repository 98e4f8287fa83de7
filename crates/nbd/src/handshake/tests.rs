//! Negotiations with valid and invalid clients.

use super::*;
use crate::tests::device::NoData;
use crate::wire::expected::EXPECTED_CONTEXT;
use crate::wire::option::{
    OptionReplyHeader, REPLY_HEADER_BYTES, info_request, meta_request, put_option,
};
use crate::wire::transmission_flag as flag;
use crate::wire::{OPTION_REPLY_MAGIC, u16_at, u64_at};
use flagstone_blockdev::Geometry;

fn disks() -> Arc<Exports> {
    let small = Export::new("small", NoData::shared(Geometry::new(1 << 20, 512)));
    let large = Geometry { physical_block_bytes: 16384, ..Geometry::new(1 << 40, 4096) };
    let large = Export::new("large", NoData::shared(large)).described("the large one");
    Arc::new(Exports::new([small, large]).unwrap())
}

/// Client that has read the greeting and sent its flags.
struct Talk {
    server: Handshake,
}

impl Talk {
    fn begin(exports: Arc<Exports>) -> Talk {
        let mut out = Vec::new();
        let mut server = Handshake::new(exports, &mut out);
        assert_eq!(out.len(), 18);
        let (taken, progress) = server.step(&3_u32.to_be_bytes(), &mut out);
        assert!(taken == 4 && matches!(progress, HandshakeStep::Again));
        Talk { server }
    }

    fn say(&mut self, option: u32, data: &[u8]) -> (Vec<(u32, Vec<u8>)>, HandshakeStep) {
        let (mut input, mut out) = (Vec::new(), Vec::new());
        put_option(&mut input, option, data);
        let (taken, progress) = self.server.step(&input, &mut out);
        if !matches!(progress, HandshakeStep::Close(_)) {
            assert_eq!(taken, input.len());
        }
        (replies(&out, option), progress)
    }

    /// Reply type of an option with a single reply.
    fn ask(&mut self, option: u32, data: &[u8]) -> u32 {
        let (replies, progress) = self.say(option, data);
        assert!(matches!(progress, HandshakeStep::Again) && replies.len() == 1, "{replies:?}");
        replies[0].0
    }
}

fn replies(mut out: &[u8], option: u32) -> Vec<(u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !out.is_empty() {
        assert_eq!(u64_at(out, 0), Some(OPTION_REPLY_MAGIC));
        let header = OptionReplyHeader::decode(out).unwrap().unwrap();
        assert_eq!(header.option, option);
        let end = REPLY_HEADER_BYTES + header.len as usize;
        replies.push((header.kind, out[REPLY_HEADER_BYTES..end].to_vec()));
        out = &out[end..];
    }
    replies
}

fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
    replies.iter().map(|reply| reply.0).collect()
}

#[test]
fn go_describes_export_and_begins() {
    let mut talk = Talk::begin(disks());
    assert_eq!(talk.ask(option::STRUCTURED_REPLY, &[]), reply_type::ACK);
    let items = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 99];
    let (replies, progress) = talk.say(option::GO, &info_request("large", &items));
    let HandshakeStep::Begin(session) = progress else { panic!("{progress:?}") };
    assert!(session.sized && session.structured && session.export.name == "large");
    let info = reply_type::INFO;
    assert_eq!(kinds(&replies), [info, info, info, info, reply_type::ACK]);
    assert_eq!(u64_at(&replies[0].1, 2), Some(1 << 40));
    let flags = u16_at(&replies[0].1, 10).unwrap();
    assert_eq!(flags & flag::READ_ONLY, 0);
    for set in [flag::SEND_DF, flag::CAN_MULTI_CONN, flag::SEND_FAST_ZERO, flag::SEND_TRIM] {
        assert_ne!(flags & set, 0);
    }
    assert_eq!(&replies[1].1[2..], b"large");
    assert_eq!(&replies[2].1[2..], b"the large one");
    let sizes: Vec<_> = [2, 6, 10].map(|at| u32_at(&replies[3].1, at).unwrap()).into();
    assert_eq!(sizes, [4096, 16384, 32 << 20]);
}

#[test]
fn info_describes_and_continues() {
    let mut talk = Talk::begin(disks());
    let (replies, progress) = talk.say(option::INFO, &info_request("small", &[]));
    assert!(matches!(progress, HandshakeStep::Again));
    assert_eq!(kinds(&replies), [reply_type::INFO, reply_type::ACK]);
    // DF requires structured replies.
    assert_eq!(u16_at(&replies[0].1, 10).unwrap() & flag::SEND_DF, 0);
}

#[test]
fn read_only_export_flags() {
    let device = NoData::shared(Geometry::new(1 << 20, 512));
    let export = Export::new("x", device).read_only(true);
    let flags = export.transmission_flags(true);
    assert_ne!(flags & flag::READ_ONLY, 0);
    assert_eq!(flags & (flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO), 0);
}

#[test]
fn export_name_with_and_without_zeroes() {
    for (flags, bytes) in [(3_u32, 10), (1, 134)] {
        let mut out = Vec::new();
        let mut server = Handshake::new(disks(), &mut out);
        let _ = server.step(&flags.to_be_bytes(), &mut out);
        out.clear();
        let mut input = Vec::new();
        put_option(&mut input, option::EXPORT_NAME, b"small");
        let (_, progress) = server.step(&input, &mut out);
        assert!(matches!(progress, HandshakeStep::Begin(session) if !session.sized));
        assert_eq!(out.len(), bytes);
        assert_eq!(u64_at(&out, 0), Some(1 << 20));
    }
}

#[test]
fn list_returns_all_exports() {
    let (replies, _) = Talk::begin(disks()).say(option::LIST, &[]);
    let server = reply_type::SERVER;
    assert_eq!(kinds(&replies), [server, server, reply_type::ACK]);
    assert_eq!(replies[0].1, [&[0, 0, 0, 5][..], b"large", b"the large one"].concat());
    assert_eq!(replies[1].1, [&[0, 0, 0, 5][..], b"small"].concat());
}

#[test]
fn default_export_is_only_export() {
    let go = |exports| Talk::begin(exports).say(option::GO, &info_request("", &[])).1;
    assert!(matches!(go(disks()), HandshakeStep::Again));
    let one = Export::new("one", NoData::shared(Geometry::new(512, 512)));
    assert!(matches!(go(Arc::new(Exports::new([one]).unwrap())), HandshakeStep::Begin(_)));
}

#[test]
fn duplicate_exports_are_refused() {
    let export = |name: &str| Export::new(name, NoData::shared(Geometry::new(512, 512)));
    assert!(Exports::new([export("x"), export("x")]).is_err());
    assert!(Exports::new([export("x\0y")]).is_err());
    assert!(Exports::new([export(&"x".repeat(4097))]).is_err());
}

#[test]
fn unknown_export_keeps_negotiation_open() {
    let mut talk = Talk::begin(disks());
    assert_eq!(talk.ask(option::GO, &info_request("huge", &[])), reply_type::ERR_UNKNOWN);
    let (_, progress) = talk.say(option::GO, &info_request("small", &[]));
    assert!(matches!(progress, HandshakeStep::Begin(_)));
    let (_, progress) = Talk::begin(disks()).say(option::EXPORT_NAME, b"huge");
    assert!(matches!(progress, HandshakeStep::Close(HandshakeError::UnknownExport)));
}

#[test]
fn expected_export_unavailable_until_added() {
    let exports = disks();
    exports.expect("later").unwrap();
    assert!(exports.expect("small").is_err() && exports.expect("later").is_err());
    let mut talk = Talk::begin(exports.clone());
    for option in [option::INFO, option::GO] {
        let (replies, _) = talk.say(option, &info_request("later", &[]));
        assert_eq!(kinds(&replies), [reply_type::ERR_UNKNOWN]);
        let said = String::from_utf8_lossy(&replies[0].1);
        assert!(said.contains("not available yet"), "{said}");
    }
    // A client may list the context of an expected export, but not of any other, and may not select
    // it.
    assert_eq!(talk.ask(option::STRUCTURED_REPLY, &[]), reply_type::ACK);
    let is_expected = |name: &str| meta_request(name, &[EXPECTED_CONTEXT]);
    let (replies, _) = talk.say(option::LIST_META_CONTEXT, &is_expected("later"));
    assert_eq!(kinds(&replies), [reply_type::META_CONTEXT, reply_type::ACK]);
    assert_eq!(replies[0].1, [&[0; 4], EXPECTED_CONTEXT.as_bytes()].concat());
    assert_eq!(talk.ask(option::LIST_META_CONTEXT, &is_expected("small")), reply_type::ACK);
    let unknown = reply_type::ERR_UNKNOWN;
    assert_eq!(talk.ask(option::LIST_META_CONTEXT, &is_expected("huge")), unknown);
    assert_eq!(talk.ask(option::LIST_META_CONTEXT, &meta_request("later", &["base:"])), unknown);
    assert_eq!(talk.ask(option::SET_META_CONTEXT, &is_expected("later")), unknown);
    let (_, progress) = Talk::begin(exports.clone()).say(option::EXPORT_NAME, b"later");
    assert!(matches!(progress, HandshakeStep::Close(HandshakeError::UnknownExport)));
    assert_eq!(talk.say(option::LIST, &[]).0.len(), 3);
    let later = || Export::new("later", NoData::shared(Geometry::new(512, 512)));
    exports.add(later()).unwrap();
    assert!(exports.add(later()).is_err());
    assert_eq!(talk.say(option::LIST, &[]).0.len(), 4);
    let (_, progress) = talk.say(option::GO, &info_request("later", &[]));
    assert!(matches!(progress, HandshakeStep::Begin(session) if session.export.name == "later"));
    assert_eq!(talk.ask(option::LIST_META_CONTEXT, &is_expected("later")), reply_type::ACK);
}

#[test]
fn expected_only_export_is_default() {
    let exports = Arc::new(Exports::default());
    exports.expect("one").unwrap();
    let go = || Talk::begin(exports.clone()).say(option::GO, &info_request("", &[])).1;
    assert!(matches!(go(), HandshakeStep::Again));
    exports.add(Export::new("one", NoData::shared(Geometry::new(512, 512)))).unwrap();
    assert!(matches!(go(), HandshakeStep::Begin(_)));
}

#[test]
fn unsupported_options_are_reported() {
    let mut talk = Talk::begin(disks());
    for option in [option::STARTTLS, option::EXTENDED_HEADERS, 4, 12, u32::MAX] {
        assert_eq!(talk.ask(option, &[]), reply_type::ERR_UNSUP);
    }
}

#[test]
fn unmatched_metadata_context_succeeds() {
    let query = |name: &str| {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&1_u32.to_be_bytes());
        data.extend_from_slice(&15_u32.to_be_bytes());
        data.extend_from_slice(b"qemu:allocation");
        data
    };
    let mut talk = Talk::begin(disks());
    assert_eq!(talk.ask(option::SET_META_CONTEXT, &query("small")), reply_type::ERR_INVALID);
    assert_eq!(talk.ask(option::STRUCTURED_REPLY, &[]), reply_type::ACK);
    assert_eq!(talk.ask(option::SET_META_CONTEXT, &query("small")), reply_type::ACK);
    assert_eq!(talk.ask(option::LIST_META_CONTEXT, &query("small")), reply_type::ACK);
    assert_eq!(talk.ask(option::LIST_META_CONTEXT, &query("huge")), reply_type::ERR_UNKNOWN);
    for len in 0..query("small").len() {
        let part = &query("small")[..len];
        assert_eq!(talk.ask(option::SET_META_CONTEXT, part), reply_type::ERR_INVALID);
    }
}

#[test]
fn options_without_data_refuse_data() {
    let mut talk = Talk::begin(disks());
    for option in [option::LIST, option::STRUCTURED_REPLY] {
        assert_eq!(talk.ask(option, b"x"), reply_type::ERR_INVALID);
    }
}

#[test]
fn invalid_go_keeps_connection() {
    let mut talk = Talk::begin(disks());
    let good = info_request("small", &[info::NAME]);
    for len in 0..good.len() {
        assert_eq!(talk.ask(option::GO, &good[..len]), reply_type::ERR_INVALID, "{len}");
    }
    let long = info_request(&"x".repeat(4097), &[]);
    assert_eq!(talk.ask(option::GO, &long), reply_type::ERR_INVALID);
}

#[test]
fn abort_is_acknowledged_and_closes() {
    let (replies, progress) = Talk::begin(disks()).say(option::ABORT, b"bye");
    assert_eq!(kinds(&replies), [reply_type::ACK]);
    assert!(matches!(progress, HandshakeStep::Close(HandshakeError::Aborted)));
}

#[test]
fn unknown_client_flags_close() {
    let mut out = Vec::new();
    let mut server = Handshake::new(disks(), &mut out);
    let (_, progress) = server.step(&0x8000_0003_u32.to_be_bytes(), &mut out);
    assert!(matches!(progress, HandshakeStep::Close(HandshakeError::UnknownFlags(0x8000_0003))));
}

#[test]
fn bad_option_magic_closes() {
    let mut talk = Talk::begin(disks());
    let mut out = Vec::new();
    let (_, progress) = talk.server.step(&[0x55; 16], &mut out);
    assert!(matches!(
        progress,
        HandshakeStep::Close(HandshakeError::BadMagic(0x5555_5555_5555_5555))
    ));
    assert!(out.is_empty());
}

#[test]
fn huge_option_closes_before_data() {
    let mut talk = Talk::begin(disks());
    let mut input = OPTION_MAGIC.to_be_bytes().to_vec();
    input.extend_from_slice(&option::GO.to_be_bytes());
    input.extend_from_slice(&u32::MAX.to_be_bytes());
    let (_, progress) = talk.server.step(&input, &mut Vec::new());
    assert!(matches!(progress, HandshakeStep::Close(HandshakeError::OptionTooLong(u32::MAX))));
}

#[test]
fn too_many_options_close() {
    let mut talk = Talk::begin(disks());
    let exports = 2;
    for _ in 0..MAX_OPTIONS + exports * MAX_OPTIONS_EACH {
        assert_eq!(talk.ask(77, &[]), reply_type::ERR_UNSUP);
    }
    let (_, progress) = talk.say(77, &[]);
    assert!(matches!(progress, HandshakeStep::Close(HandshakeError::TooManyOptions)));
}

#[test]
fn link_selected_for_export() {
    let link = LinkId(0xabc);
    let go = |name: &str, selected: &str| {
        let mut talk = Talk::begin(disks());
        assert_eq!(talk.ask(option::STRUCTURED_REPLY, &[]), reply_type::ACK);
        let (replies, _) =
            talk.say(option::SET_META_CONTEXT, &meta_request(selected, &[&link.encode()]));
        assert_eq!(kinds(&replies), [reply_type::META_CONTEXT, reply_type::ACK]);
        assert_eq!(&replies[0].1[4..], link.encode().as_bytes());
        match talk.say(option::GO, &info_request(name, &[])).1 {
            HandshakeStep::Begin(session) => session.link,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(go("small", "small"), Some(link));
    assert_eq!(go("small", "large"), None);
}

#[test]
fn refused_request_names_export_and_reason() {
    let mut talk = Talk::begin(disks());
    let refused = |talk: &mut Talk| talk.server.take_refusal();
    assert_eq!(talk.ask(option::GO, &info_request("nobody", &[])), reply_type::ERR_UNKNOWN);
    let (export, reason) = ("nobody".to_owned(), NbdRefusalReason::UnknownExport);
    assert_eq!(refused(&mut talk), Some(NbdRefusal { export, reason }));
    assert_eq!(refused(&mut talk), None);
    assert_eq!(talk.ask(option::STARTTLS, &[]), reply_type::ERR_UNSUP);
    assert_eq!(refused(&mut talk).unwrap().reason, NbdRefusalReason::Tls);
    let exports = disks();
    exports.expect("late").unwrap();
    let mut talk = Talk::begin(exports);
    assert_eq!(talk.ask(option::INFO, &info_request("late", &[])), reply_type::ERR_UNKNOWN);
    assert_eq!(refused(&mut talk).unwrap().reason, NbdRefusalReason::NotYet);
    let (_, progress) = talk.say(option::EXPORT_NAME, b"gone");
    assert!(matches!(progress, HandshakeStep::Close(_)));
    assert_eq!(talk.server.refusal(NbdRefusalReason::TimedOut).export, "gone");
}

#[test]
fn client_may_ask_about_every_export() {
    let name = |number: u32| format!("disk-{number}");
    let device = NoData::shared(Geometry::new(1 << 20, 512));
    let exports = (0..60).map(|number| Export::new(name(number), device.clone()));
    let mut talk = Talk::begin(Arc::new(Exports::new(exports).unwrap()));
    for number in 0..60 {
        for _ in 0..5 {
            let (_, progress) = talk.say(option::INFO, &info_request(&name(number), &[]));
            assert!(matches!(progress, HandshakeStep::Again), "{number}: {progress:?}");
        }
    }
    let flood = (0..1000).find(|_| {
        let (_, progress) = talk.say(option::INFO, &info_request("disk-0", &[]));
        matches!(progress, HandshakeStep::Close(HandshakeError::TooManyOptions))
    });
    assert!(flood.is_some(), "the number of options is bounded");
}

#[test]
fn allocation_context_is_listed_and_selected() {
    let mut talk = Talk::begin(disks());
    let query = |text: &str| meta_request("small", &[text]);
    let refused = talk.ask(option::SET_META_CONTEXT, &query("base:allocation"));
    assert_eq!(refused, reply_type::ERR_INVALID, "structured replies come first");
    assert_eq!(talk.ask(option::STRUCTURED_REPLY, &[]), reply_type::ACK);
    let found = [reply_type::META_CONTEXT, reply_type::ACK];
    let (mut everything, any) = (query(""), "small".len() + 4);
    everything.truncate(any);
    everything.extend(0_u32.to_be_bytes());
    for list in [query("base:"), query("base:allocation"), everything.clone()] {
        assert_eq!(kinds(&talk.say(option::LIST_META_CONTEXT, &list).0), found);
    }
    for other in ["base:other", "qemu:allocation-depth", "base", ""] {
        for kind in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
            assert_eq!(talk.ask(kind, &query(other)), reply_type::ACK, "{other}");
        }
    }
    // A selection of nothing, or of a namespace, selects nothing.
    for nothing in [everything, query("base:")] {
        assert_eq!(talk.ask(option::SET_META_CONTEXT, &nothing), reply_type::ACK);
    }
    let (replies, _) = talk.say(option::SET_META_CONTEXT, &query("base:allocation"));
    assert_eq!(kinds(&replies), found);
    assert_eq!(
        replies[0].1,
        [&ALLOCATION_CONTEXT_ID.to_be_bytes()[..], b"base:allocation"].concat()
    );
    let (_, progress) = talk.say(option::GO, &info_request("small", &[]));
    let HandshakeStep::Begin(session) = progress else { panic!("{progress:?}") };
    assert!(session.reports_allocation);
}

#[test]
fn allocation_context_belongs_to_one_export() {
    let mut talk = Talk::begin(disks());
    talk.ask(option::STRUCTURED_REPLY, &[]);
    talk.say(option::SET_META_CONTEXT, &meta_request("small", &["base:allocation"]));
    let (_, progress) = talk.say(option::GO, &info_request("large", &[]));
    let HandshakeStep::Begin(session) = progress else { panic!("{progress:?}") };
    assert!(!session.reports_allocation);
}

#[test]
fn required_tls_comes_before_everything_else() {
    let mut talk = Talk::begin(disks());
    talk.server = talk.server.with_security(Security::Required);
    for kind in [option::GO, option::INFO, option::LIST, option::STRUCTURED_REPLY, 77] {
        assert_eq!(talk.ask(kind, &[]), reply_type::ERR_TLS_REQD, "{kind}");
        assert_eq!(talk.server.take_refusal().unwrap().reason, NbdRefusalReason::TlsRequired);
    }
    assert_eq!(talk.ask(option::STARTTLS, &[1]), reply_type::ERR_INVALID);
    let (replies, progress) = talk.say(option::STARTTLS, &[]);
    assert_eq!(kinds(&replies), [reply_type::ACK]);
    assert!(matches!(progress, HandshakeStep::StartTls));
    let mut talk = Talk::begin(disks());
    talk.server = talk.server.with_security(Security::Required);
    let (_, progress) = talk.say(option::EXPORT_NAME, b"large");
    assert!(matches!(progress, HandshakeStep::Close(HandshakeError::TlsRequired)));
}

/// CVE-2021-3716 of nbdkit: options that an attacker sent before TLS stayed in force after it.
#[test]
fn plain_text_negotiation_is_forgotten_after_tls() {
    let mut talk = Talk::begin(disks());
    talk.server = talk.server.with_security(Security::Offered);
    assert_eq!(talk.ask(option::STRUCTURED_REPLY, &[]), reply_type::ACK);
    let (_, progress) = talk.say(option::STARTTLS, &[]);
    assert!(matches!(progress, HandshakeStep::StartTls));
    talk.server.secured(vec!["alice".to_owned()]);
    assert_eq!(talk.ask(option::STARTTLS, &[]), reply_type::ERR_INVALID);
    let (_, progress) = talk.say(option::GO, &info_request("large", &[]));
    let HandshakeStep::Begin(session) = progress else { panic!("{progress:?}") };
    assert!(!session.structured);
}

#[test]
fn exports_are_listed_and_opened_by_admitted_names() {
    let lists = || {
        let one = Export::new("one", NoData::shared(Geometry::new(1 << 20, 512)));
        let two = Export::new("two", NoData::shared(Geometry::new(1 << 20, 512)));
        let two = two.accessible_to(Some(vec!["alice".to_owned()]));
        Arc::new(Exports::new([one, two]).unwrap())
    };
    for (names, listed) in [(vec!["alice".to_owned()], 2), (vec!["bob".to_owned()], 1)] {
        let mut talk = Talk::begin(lists());
        talk.server.secured(names);
        let (replies, _) = talk.say(option::LIST, &[]);
        assert_eq!(replies.len(), listed + 1);
        let admitted = listed == 2;
        let (replies, progress) = talk.say(option::GO, &info_request("two", &[]));
        assert_eq!(matches!(progress, HandshakeStep::Begin(_)), admitted);
        assert_eq!(kinds(&replies).contains(&reply_type::ERR_POLICY), !admitted);
    }
}
