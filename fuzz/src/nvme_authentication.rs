//! Fuzz target for messages of authentication, as both sides take them, for secrets and TLS keys as
//! text, and for ClientHellos with their PSK identities.
//!
//! Input: one byte that selects the reader, then messages, each after its length in two bytes.

use flagstone_auth::host::ExchangeOptions;
use flagstone_auth::message::MESSAGE_BYTES;
use flagstone_auth::tls::{Hello, IDENTITIES, Identity, TlsKey, derived};
use flagstone_auth::{
    Concatenation, ControllerExchange, ControllerOptions, DhGroup, ExchangeProgress, Hash,
    HostExchange, HostStep, Message, Names, Randomness, Secret,
};

/// Takes the messages.
pub fn run(input: &[u8]) {
    let Some((choice, data)) = input.split_first() else { return };
    match choice % 6 {
        0 => round_trip(data),
        1 => controller(data),
        2 => host(data, if *choice < 128 { Concatenation::None } else { Concatenation::NewPsk }),
        3 => secret(data),
        4 => hello(data),
        _ => tls_key(data),
    }
}

fn round_trip(data: &[u8]) {
    if let Ok(message) = Message::parse(data) {
        let bytes = message.encode();
        assert!(bytes.len() <= MESSAGE_BYTES);
        assert_eq!(Message::parse(&bytes), Ok(message));
    }
}

fn messages(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = data.split_first_chunk()?;
        let (message, rest) =
            rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        data = rest;
        Some(message)
    })
    // Each may cost two exponentiations.
    .take(8)
}

fn names() -> Names {
    Names { host: "nqn.2014-08.org.nvmexpress:uuid:a".into(), subsystem: "nqn.2026-01.x:db".into() }
}

fn known(byte: u8) -> Secret {
    Secret::new(&[byte; 32], Some(Hash::Sha256)).expect("32 bytes")
}

fn randomness(seed: u64) -> Randomness {
    let mut next = seed;
    Randomness::from_words(|| {
        next = next.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        next
    })
}

/// No message authenticates a host without the key.
fn controller(data: &[u8]) {
    let options = ControllerOptions {
        names: names(),
        host_secrets: vec![known(1)],
        own_secret: Some(known(2)),
        hashes: Hash::ALL.into(),
        groups: vec![DhGroup::Null, DhGroup::Ffdhe2048],
        concatenation: Concatenation::NewPsk,
    };
    let mut controller = ControllerExchange::new(options, randomness(1));
    for message in messages(data) {
        controller.send(message);
        if let Some(answer) = controller.fetch(MESSAGE_BYTES) {
            assert!(Message::parse(&answer).is_ok());
        }
        assert_ne!(controller.progress(), ExchangeProgress::Authenticated);
        assert_eq!(controller.take_psk(), None);
    }
}

/// No target is trusted without its key.
fn host(data: &[u8], concatenation: Concatenation) {
    let options = ExchangeOptions {
        names: names(),
        secret: known(1),
        controller_secrets: vec![known(2)],
        hashes: Hash::ALL.into(),
        groups: vec![DhGroup::Null, DhGroup::Ffdhe2048],
        concatenation,
    };
    let mut host = HostExchange::new(options, 7, randomness(2));
    assert!(Message::parse(&host.negotiate()).is_ok());
    for message in messages(data) {
        match host.fetched(message) {
            Ok(HostStep::Reply(reply)) => assert!(Message::parse(&reply).is_ok()),
            Ok(HostStep::Authenticated(_)) => panic!("authenticated without the key"),
            Err(_) => assert_eq!(host.take_psk(), None),
        }
    }
}

fn secret(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(secret) = Secret::parse(text) {
        let written = secret.text();
        assert!(Secret::parse(&written).is_ok_and(|again| again == secret));
    }
}

/// No ClientHello proves a key that its sender does not know.
fn hello(data: &[u8]) {
    let Ok(hello) = Hello::parse(data) else { return };
    assert!(hello.identities.len() <= IDENTITIES);
    let key = TlsKey::new(&[1; 32], None).expect("32 bytes");
    for (index, offered) in hello.identities.iter().enumerate() {
        let Some(identity) = Identity::parse(offered) else { continue };
        assert_eq!(identity.to_string().as_bytes(), *offered);
        for psk in derived(&key, &identity) {
            assert!(!hello.proves(index, &psk), "proven without the key");
        }
    }
}

fn tls_key(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(key) = TlsKey::parse(text) {
        let written = key.text();
        assert!(TlsKey::parse(&written).is_ok_and(|again| again == key));
    }
}
