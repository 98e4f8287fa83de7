//! Host by hand that makes a TLS PSK by secure concatenation, so that a test knows the PSK that the
//! server keeps, and the forms in which a secret could be written.

use std::io::Write as _;
use std::net::TcpStream;

use flagstone_auth::host::ExchangeOptions;
use flagstone_auth::message::MESSAGE_BYTES;
use flagstone_auth::tls::Psk;
use flagstone_auth::{
    Concatenation, DhGroup, Hash, HostExchange, HostStep, Names, Randomness, Secret,
};
use flagstone_nvme::Sqe;
use flagstone_nvme::command::fabrics::AuthenticationCommand;
use flagstone_nvme::wire::Wire as _;
use flagstone_tests::rng::Rng;
use flagstone_tests::wire;

/// PSK of the host [`wire::NVME_HOST`], made with `key` (of both sides) on a plain connection,
/// which then ends.
pub(crate) fn generate_psk(port: u16, subsystem: &str, key: &str) -> Psk {
    let secret = Secret::parse(key.trim()).expect("a key");
    let options = ExchangeOptions {
        names: Names { host: wire::NVME_HOST.to_owned(), subsystem: subsystem.to_owned() },
        secret: secret.clone(),
        controller_secrets: vec![secret],
        hashes: vec![Hash::Sha256],
        groups: vec![DhGroup::Ffdhe2048],
        concatenation: Concatenation::NewPsk,
    };
    // The server draws its own part, so that the PSK differs in each run.
    let mut rng = Rng::new(1);
    let randomness = Randomness::draw(|bytes| {
        for byte in bytes {
            *byte = rng.below(256) as u8;
        }
    });
    let mut host = HostExchange::new(options, 1, randomness);
    let mut stream = wire::connect(port);
    wire::nvme_open(&mut stream).expect("the server answers");
    stream.write_all(&wire::nvme_connect(subsystem, 0, 32)).expect("the server receives");
    wire::nvme_answer(&mut stream).expect("Connect succeeds");
    send(&mut stream, &host.negotiate());
    loop {
        let room = AuthenticationCommand::receive(1, MESSAGE_BYTES as u32);
        let message = call(&mut stream, &room.command(), &[]);
        match host.fetched(&message).expect("the server is satisfied") {
            HostStep::Reply(reply) => send(&mut stream, &reply),
            HostStep::Authenticated(farewell) => {
                send(&mut stream, &farewell.expect("the server has proven its key"));
                return host.take_psk().expect("a PSK");
            }
        }
    }
}

fn send(stream: &mut TcpStream, message: &[u8]) {
    let command = AuthenticationCommand::send(1, message.len() as u32).command();
    call(stream, &command, message);
}

/// Sends a command capsule with this data, and returns the data of its answer.
fn call(stream: &mut TcpStream, command: &Sqe, data: &[u8]) -> Vec<u8> {
    const CAPSULE_BYTES: usize = 72;
    let mut pdu = vec![0; 8];
    (pdu[0], pdu[2]) = (4, CAPSULE_BYTES as u8);
    // Only a capsule with data has an offset of the data.
    pdu[3] = if data.is_empty() { 0 } else { CAPSULE_BYTES as u8 };
    pdu[4..].copy_from_slice(&((CAPSULE_BYTES + data.len()) as u32).to_le_bytes());
    pdu.extend(command.bytes());
    pdu.extend(data);
    stream.write_all(&pdu).expect("the server receives");
    wire::nvme_answer(stream).expect("the command succeeds")
}

/// Beginning and end of a secret in each form that it could be written in: raw bytes, hexadecimal,
/// base64, and Rust's debug output.
pub(crate) fn forms(secret: &[u8]) -> Vec<Vec<u8>> {
    let (first, last) = (&secret[..12], &secret[secret.len() - 12..]);
    let mut forms = vec![first.to_vec(), last.to_vec()];
    for part in [first, last] {
        let hex: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
        forms.push(hex.to_uppercase().into_bytes());
        forms.push(hex.into_bytes());
        let debug = format!("{part:?}");
        forms.push(debug.trim_matches(['[', ']']).as_bytes().to_vec());
    }
    // A multiple of 3 bytes from the beginning has its own digits, whatever follows.
    forms.push(base64(first, b"+/"));
    forms.push(base64(first, b"-_"));
    forms
}

fn base64(bytes: &[u8], more: &[u8; 2]) -> Vec<u8> {
    let digits: Vec<u8> =
        (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(*more).collect();
    let digit = |bits: u32| digits[(bits & 63) as usize];
    let group = |part: &[u8]| {
        let bits = part.iter().fold(0, |bits, &byte| bits << 8 | u32::from(byte));
        [bits >> 18, bits >> 12, bits >> 6, bits].map(digit)
    };
    bytes.chunks_exact(3).flat_map(group).collect()
}

/// The first of `forms` that `text` has.
pub(crate) fn leaked<'a>(text: &[u8], forms: &'a [Vec<u8>]) -> Option<&'a [u8]> {
    let is_in = |form: &&Vec<u8>| text.windows(form.len()).any(|window| window == form.as_slice());
    forms.iter().find(is_in).map(Vec::as_slice)
}

#[test]
fn each_form_of_a_secret_is_found() {
    let secret: Vec<u8> = (0..32).map(|byte| byte * 7 + 3).collect();
    let forms = forms(&secret);
    assert_eq!(base64(b"any carnal p", b"+/"), b"YW55IGNhcm5hbCBw");
    let written = [
        secret.clone(),
        format!("psk={}", secret.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
            .into(),
        format!("Psk {{ secret: {secret:?} }}").into(),
        base64(&secret[..30], b"+/"),
    ];
    for text in &written {
        assert!(leaked(text, &forms).is_some(), "{text:?}");
    }
    assert_eq!(leaked(b"NVMe1R01 host subsystem", &forms), None);
}
