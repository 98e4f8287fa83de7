//! Tests of whole exchanges, with an adversary between both sides, and with known answers.
//!
//! Not covered: the commands that carry the messages, timeouts and the state of the queue, which
//! target and host test.

use proptest::prelude::*;

use crate::concatenation::Concatenation;
use crate::controller::{ControllerExchange, ControllerOptions, ExchangeProgress, Randomness};
use crate::group::DhGroup;
use crate::hash::Hash;
use crate::host::{ExchangeOptions, HostExchange, HostFailure, HostStep};
use crate::message::{Explanation, MESSAGE_BYTES, Message, MessageBody};
use crate::response::{Names, Question};
use crate::secret::Secret;

pub(crate) fn names() -> Names {
    Names { host: "nqn.2014-08.org.nvmexpress:uuid:a".into(), subsystem: "nqn.2024-01.x:db".into() }
}

pub(crate) fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 48], Some(Hash::Sha384)).unwrap()
}

pub(crate) fn randomness(seed: u8) -> Randomness {
    let mut next = seed;
    Randomness::draw(|bytes| {
        for byte in bytes {
            next = next.wrapping_mul(17).wrapping_add(43);
            *byte = next;
        }
    })
}

fn controller(host_secrets: Vec<Secret>, own_secret: Option<Secret>) -> ControllerExchange {
    let options = ControllerOptions {
        names: names(),
        host_secrets,
        own_secret,
        hashes: Hash::ALL.into(),
        groups: DhGroup::ALL.into(),
        concatenation: Concatenation::NewPsk,
    };
    ControllerExchange::new(options, randomness(1))
}

fn host(
    secret: Secret,
    controller_secret: Option<Secret>,
    group: DhGroup,
    hash: Hash,
) -> HostExchange {
    let options = ExchangeOptions {
        names: names(),
        secret,
        controller_secrets: controller_secret.into_iter().collect(),
        hashes: vec![hash],
        groups: vec![group],
        concatenation: Concatenation::None,
    };
    HostExchange::new(options, 77, randomness(2))
}

/// Runs an exchange; returns its result at the controller and at the host.
fn run(
    host: &mut HostExchange,
    controller: &mut ControllerExchange,
) -> (ExchangeProgress, Result<(), HostFailure>) {
    controller.send(&host.negotiate());
    let outcome = loop {
        let message = controller.fetch(MESSAGE_BYTES).expect("a message to fetch");
        match host.fetched(&message) {
            Ok(HostStep::Reply(reply)) => controller.send(&reply),
            Ok(HostStep::Authenticated(final_reply)) => {
                if let Some(final_reply) = final_reply {
                    controller.send(&final_reply);
                }
                break Ok(());
            }
            Err(failure) => {
                if let HostFailure::Distrusted { final_reply, .. } = &failure {
                    controller.send(final_reply);
                }
                break Err(failure);
            }
        }
    };
    (controller.progress(), outcome)
}

/// Linux offers the null group first.
#[test]
fn null_group_is_the_last_resort() {
    let selected = |groups: Vec<DhGroup>| {
        let mut controller = controller(vec![secret(1)], None);
        let body = MessageBody::Negotiate { concatenation: 0, hashes: Hash::ALL.into(), groups };
        controller.send(&Message { transaction: 1, body }.encode());
        let challenge = controller.fetch(MESSAGE_BYTES).unwrap();
        match Message::parse(&challenge).unwrap().body {
            MessageBody::Challenge { group, .. } => group,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        selected(vec![DhGroup::Null, DhGroup::Ffdhe2048, DhGroup::Ffdhe3072]),
        DhGroup::Ffdhe2048
    );
    assert_eq!(selected(vec![DhGroup::Null]), DhGroup::Null);
}

/// Debian 13's kernel offers SHA-384 for concatenation, which its ktls-utils cannot use.
#[test]
fn hash_of_the_key_is_selected() {
    let selected = |transformation, hashes: &[Hash]| {
        let secret = Secret::new(&[1; 32], transformation).unwrap();
        let mut controller = controller(vec![secret], None);
        let (hashes, groups) = (hashes.into(), vec![DhGroup::Null]);
        let body = MessageBody::Negotiate { concatenation: 0, hashes, groups };
        controller.send(&Message { transaction: 1, body }.encode());
        match Message::parse(&controller.fetch(MESSAGE_BYTES).unwrap()).unwrap().body {
            MessageBody::Challenge { hash, .. } => hash,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(selected(Some(Hash::Sha256), &Hash::ALL), Hash::Sha256);
    assert_eq!(selected(None, &Hash::ALL), Hash::Sha512);
    assert_eq!(selected(Some(Hash::Sha256), &[Hash::Sha384]), Hash::Sha384);
}

/// Known answers from another implementation of the formula (Base 8.3.5.5.5, 8.3.5.5.6), in Python.
#[test]
fn responses_match_known_answers() {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let challenge: Vec<u8> = (0..32).collect();
    let peer = DhGroup::Ffdhe2048.public_value(&[0xc3; 64]);
    let shared = DhGroup::Ffdhe2048.shared_secret(&[0x5a; 64], &peer).unwrap();
    let question = |shared_secret| Question {
        hash: Hash::Sha256,
        challenge: &challenge,
        sequence: 5,
        transaction: 77,
        concatenation: Concatenation::None,
        shared_secret,
    };
    let (plain, augmented) = (question(None), question(shared.as_ref()));
    assert_eq!(
        hex(&plain.host_response(&secret(7), &names())),
        "628436bb13856822fe2d7a6e748919fc97c7e665f8bd33eca71f7a385f4c9255"
    );
    assert_eq!(
        hex(&augmented.host_response(&secret(7), &names())),
        "3def4db9cbb60ad3581f9223ed6a32b33cffc5e4344a2015be764ddce2ebdb90"
    );
    assert_eq!(
        hex(&augmented.controller_response(&secret(9), &names())),
        "252c486a73685e4c110d2aa8b855ffec011af6f7c6db1ca339c51b2c53f116f1"
    );
}

#[test]
fn exchange_succeeds_with_every_hash_and_group() {
    for group in DhGroup::ALL {
        for hash in Hash::ALL {
            for mutual in [None, Some(secret(9))] {
                let mut controller = controller(vec![secret(7)], Some(secret(9)));
                let mut host = host(secret(7), mutual, group, hash);
                assert_eq!(
                    run(&mut host, &mut controller),
                    (ExchangeProgress::Authenticated, Ok(()))
                );
            }
            if group.value_bytes() > 512 {
                // The large groups take a while without optimization.
                break;
            }
        }
    }
}

#[test]
fn either_of_two_secrets_of_a_host_is_accepted() {
    for byte in [3, 4] {
        let mut controller = controller(vec![secret(3), secret(4)], None);
        let mut host = host(secret(byte), None, DhGroup::Null, Hash::Sha256);
        assert_eq!(run(&mut host, &mut controller), (ExchangeProgress::Authenticated, Ok(())));
    }
}

#[test]
fn wrong_host_secret_is_refused() {
    for secrets in [vec![], vec![secret(8)]] {
        let mut controller = controller(secrets, None);
        let mut host = host(secret(7), None, DhGroup::Ffdhe2048, Hash::Sha512);
        let refused = Err(HostFailure::Refused(Explanation::Failed));
        let failed = ExchangeProgress::Failed(Explanation::Failed);
        assert_eq!(run(&mut host, &mut controller), (failed, refused));
    }
}

#[test]
fn controller_without_the_secret_is_not_trusted() {
    for own in [None, Some(secret(1))] {
        let mut controller = controller(vec![secret(7)], own);
        let mut host = host(secret(7), Some(secret(9)), DhGroup::Null, Hash::Sha256);
        let (progress, outcome) = run(&mut host, &mut controller);
        assert_eq!(progress, ExchangeProgress::Failed(Explanation::Failed));
        assert!(outcome.is_err());
    }
}

/// A host that requires authentication of the controller must not accept success without it.
#[test]
fn success_without_the_wanted_proof_is_refused() {
    let mut controller = controller(vec![secret(7)], Some(secret(9)));
    let mut host = host(secret(7), Some(secret(9)), DhGroup::Null, Hash::Sha256);
    controller.send(&host.negotiate());
    host.fetched(&controller.fetch(MESSAGE_BYTES).unwrap()).unwrap();
    let body = MessageBody::Success1 { digest_bytes: 32, response: None };
    let forged = Message { transaction: 77, body }.encode();
    assert!(matches!(host.fetched(&forged), Err(HostFailure::Distrusted { .. })));
}

/// A relay that makes one side answer its own challenge.
#[test]
fn reflected_challenge_is_refused() {
    let mut controller = controller(vec![secret(7)], Some(secret(7)));
    let mut host = host(secret(7), Some(secret(7)), DhGroup::Null, Hash::Sha256);
    controller.send(&host.negotiate());
    let challenge = controller.fetch(MESSAGE_BYTES).unwrap();
    let Ok(HostStep::Reply(reply)) = host.fetched(&challenge) else { panic!("a reply") };
    let MessageBody::Challenge { challenge: c1, .. } = Message::parse(&challenge).unwrap().body
    else {
        panic!("a challenge")
    };
    let mut reply = Message::parse(&reply).unwrap();
    let MessageBody::Reply { challenge: c2, .. } = &mut reply.body else { panic!("a reply") };
    *c2 = Some(c1);
    controller.send(&reply.encode());
    controller.fetch(MESSAGE_BYTES);
    assert_eq!(controller.progress(), ExchangeProgress::Failed(Explanation::Failed));
}

/// The reply of one exchange is not valid in the next.
#[test]
fn missing_controller_key_is_no_wrong_key_of_host() {
    let mut controller = controller(vec![secret(7)], None);
    let mut host = host(secret(7), Some(secret(8)), DhGroup::Null, Hash::Sha256);
    controller.send(&host.negotiate());
    let challenge = controller.fetch(MESSAGE_BYTES).unwrap();
    let Ok(HostStep::Reply(reply)) = host.fetched(&challenge) else { panic!("a reply") };
    controller.send(&reply);
    assert_eq!(controller.progress(), ExchangeProgress::Unprovable);
    let failure = Message::parse(&controller.fetch(MESSAGE_BYTES).unwrap()).unwrap();
    assert_eq!(failure.body, MessageBody::Failure1(Explanation::Failed));
}

#[test]
fn replayed_reply_is_refused() {
    let mut first = controller(vec![secret(7)], None);
    let mut host = host(secret(7), None, DhGroup::Null, Hash::Sha256);
    first.send(&host.negotiate());
    let challenge = first.fetch(MESSAGE_BYTES).unwrap();
    let Ok(HostStep::Reply(reply)) = host.fetched(&challenge) else { panic!("a reply") };
    let mut second = ControllerExchange::new(
        ControllerOptions {
            names: names(),
            host_secrets: vec![secret(7)],
            own_secret: None,
            hashes: Hash::ALL.into(),
            groups: DhGroup::ALL.into(),
            concatenation: Concatenation::None,
        },
        randomness(3),
    );
    second.send(&host.negotiate());
    second.fetch(MESSAGE_BYTES).unwrap();
    second.send(&reply);
    assert_eq!(second.fetch(MESSAGE_BYTES).map(|_| second.progress()), {
        Some(ExchangeProgress::Failed(Explanation::Failed))
    });
}

#[test]
fn selection_outside_the_offer_is_refused() {
    let host = |groups: Vec<DhGroup>| {
        let options = ExchangeOptions {
            names: names(),
            secret: secret(7),
            controller_secrets: Vec::new(),
            hashes: vec![Hash::Sha384],
            groups,
            concatenation: Concatenation::None,
        };
        HostExchange::new(options, 77, randomness(2))
    };
    let weak = MessageBody::Challenge {
        hash: Hash::Sha384,
        group: DhGroup::Null,
        sequence: 1,
        challenge: vec![1; 48],
        public_value: vec![],
    };
    let bytes = Message { transaction: 77, body: weak }.encode();
    let mut strict = host(vec![DhGroup::Ffdhe2048]);
    assert!(matches!(
        strict.fetched(&bytes),
        Err(HostFailure::Distrusted { explanation: Explanation::GroupNotUsable, .. })
    ));
    assert!(host(vec![DhGroup::Null]).fetched(&bytes).is_ok());
    let mut controller = controller(vec![secret(7)], None);
    controller.send(&host(vec![]).negotiate());
    controller.fetch(MESSAGE_BYTES);
    assert_eq!(controller.progress(), ExchangeProgress::Failed(Explanation::GroupNotUsable));
}

#[test]
fn fetch_with_small_buffer_keeps_message() {
    let mut controller = controller(vec![secret(7)], None);
    let host = host(secret(7), None, DhGroup::Null, Hash::Sha256);
    assert_eq!(controller.fetch(MESSAGE_BYTES), None);
    controller.send(&host.negotiate());
    assert_eq!(controller.fetch(47), None);
    assert_eq!(controller.progress(), ExchangeProgress::AwaitsFetch);
    assert_eq!(controller.fetch(48).map(|message| message.len()), Some(48));
}

/// Host that requests concatenation, and offers `hashes`.
fn concatenating(hashes: &[Hash], controller_secrets: Vec<Secret>) -> HostExchange {
    let options = ExchangeOptions {
        names: names(),
        secret: secret(7),
        controller_secrets,
        hashes: hashes.into(),
        groups: vec![DhGroup::Null, DhGroup::Ffdhe2048],
        concatenation: Concatenation::NewPsk,
    };
    HostExchange::new(options, 77, randomness(2))
}

#[test]
fn concatenation_gives_both_sides_the_same_psk() {
    for (hashes, bytes) in [(&Hash::ALL[..], 48), (&[Hash::Sha256], 32)] {
        let mut controller = controller(vec![secret(7)], Some(secret(9)));
        let mut host = concatenating(hashes, vec![secret(9)]);
        assert_eq!((controller.take_psk(), host.take_psk()), (None, None));
        assert_eq!(run(&mut host, &mut controller), (ExchangeProgress::Authenticated, Ok(())));
        let shown = format!("{controller:?} {host:?}");
        let psk = host.take_psk().expect("a PSK");
        let secret = format!("{:?}", psk.secret.as_slice());
        assert!(shown.contains("NVMe1G0") && !shown.contains(&secret[1..20]), "{shown}");
        assert_eq!(psk.secret.len(), bytes);
        assert_eq!(Some(psk), controller.take_psk());
        assert_eq!((controller.take_psk(), host.take_psk()), (None, None));
        assert!(controller.has_proven());
    }
    let mut controller = controller(vec![secret(7)], None);
    let mut plain = host(secret(7), None, DhGroup::Ffdhe2048, Hash::Sha256);
    assert_eq!(run(&mut plain, &mut controller), (ExchangeProgress::Authenticated, Ok(())));
    assert_eq!((controller.take_psk(), plain.take_psk()), (None, None));
    assert!(!controller.has_proven());
}

/// An attacker in between without a key. The PSK contains nothing of the host's secret, so a host
/// that accepted the PSK without a proof would give its data to the attacker.
#[test]
fn host_without_a_controller_key_does_not_concatenate() {
    let mut impostor = controller(vec![secret(1)], Some(secret(2)));
    let mut host = concatenating(&Hash::ALL, Vec::new());
    impostor.send(&host.negotiate());
    let refused = host.fetched(&impostor.fetch(MESSAGE_BYTES).unwrap()).unwrap_err();
    let unproven = HostFailure::Distrusted {
        explanation: Explanation::ConcatenationMismatch,
        final_reply: Message {
            transaction: 77,
            body: MessageBody::Failure2(Explanation::ConcatenationMismatch),
        }
        .encode(),
    };
    assert_eq!((refused, host.take_psk()), (unproven, None));
}

/// Linux sends C2 with sequence number 0, even with a key of the controller.
#[test]
fn linux_concatenates_without_a_proof_of_the_controller() {
    let mut controller = controller(vec![secret(7)], Some(secret(9)));
    let mut host = concatenating(&[Hash::Sha256], vec![secret(9)]);
    controller.send(&host.negotiate());
    let Ok(HostStep::Reply(reply)) = host.fetched(&controller.fetch(MESSAGE_BYTES).unwrap()) else {
        panic!("a reply")
    };
    let mut reply = Message::parse(&reply).unwrap();
    let MessageBody::Reply { sequence, .. } = &mut reply.body else { panic!() };
    *sequence = 0;
    controller.send(&reply.encode());
    let success = controller.fetch(MESSAGE_BYTES).unwrap();
    assert_eq!(controller.progress(), ExchangeProgress::Authenticated);
    assert!(controller.take_psk().is_some() && !controller.has_proven());
    // An attacker in between cannot do the same to our host.
    let refused = host.fetched(&success).unwrap_err();
    assert!(matches!(refused, HostFailure::Distrusted { explanation: Explanation::Failed, .. }));
    assert_eq!(host.take_psk(), None);
}

/// Requests that the queue does not permit, invalid values of SC_C, and parameters that give no
/// PSK.
#[test]
fn concatenation_with_null_group_or_sha512_is_refused() {
    let negotiate = |concatenation, hashes: &[Hash], groups: &[DhGroup]| {
        let mut controller = controller(vec![secret(7)], None);
        let body =
            MessageBody::Negotiate { concatenation, hashes: hashes.into(), groups: groups.into() };
        controller.send(&Message { transaction: 1, body }.encode());
        controller.progress()
    };
    let mismatch = ExchangeProgress::Failing(Explanation::ConcatenationMismatch);
    for kind in [1, 3, 4, 255] {
        assert_eq!(negotiate(kind, &Hash::ALL, &DhGroup::ALL), mismatch, "{kind}");
    }
    assert_eq!(negotiate(2, &Hash::ALL, &[DhGroup::Null]), mismatch);
    let no_hash = ExchangeProgress::Failing(Explanation::HashNotUsable);
    assert_eq!(negotiate(2, &[Hash::Sha512], &DhGroup::ALL), no_hash);
    assert_eq!(negotiate(2, &Hash::ALL, &DhGroup::ALL), ExchangeProgress::AwaitsFetch);
}

/// An attacker in between removes SC_C (a downgrade to plain text), or drops C2.
#[test]
fn altered_concatenation_is_refused() {
    let mut controller = controller(vec![secret(7)], Some(secret(9)));
    let mut host = concatenating(&[Hash::Sha256], vec![secret(9)]);
    let mut downgraded = Message::parse(&host.negotiate()).unwrap();
    let MessageBody::Negotiate { concatenation, .. } = &mut downgraded.body else { panic!() };
    *concatenation = 0;
    controller.send(&downgraded.encode());
    let refused = Err(HostFailure::Refused(Explanation::Failed));
    let Ok(HostStep::Reply(reply)) = host.fetched(&controller.fetch(MESSAGE_BYTES).unwrap()) else {
        panic!("a reply")
    };
    controller.send(&reply);
    assert_eq!(host.fetched(&controller.fetch(MESSAGE_BYTES).unwrap()).map(drop), refused);
    assert_eq!((host.take_psk(), controller.take_psk()), (None, None));

    let mut controller = self::controller(vec![secret(7)], Some(secret(9)));
    let mut host = concatenating(&[Hash::Sha256], vec![secret(9)]);
    controller.send(&host.negotiate());
    let Ok(HostStep::Reply(reply)) = host.fetched(&controller.fetch(MESSAGE_BYTES).unwrap()) else {
        panic!("a reply")
    };
    let mut reply = Message::parse(&reply).unwrap();
    let MessageBody::Reply { challenge, .. } = &mut reply.body else { panic!() };
    *challenge = None;
    controller.send(&reply.encode());
    assert_eq!(controller.progress(), ExchangeProgress::Failing(Explanation::IncorrectPayload));
}

/// A queue that cannot keep the PSK: its host has to learn that, and not that it has one.
#[test]
fn refused_psk_is_a_failure_to_both_sides() {
    let mut controller = controller(vec![secret(7)], Some(secret(9)));
    let mut host = concatenating(&[Hash::Sha256], vec![secret(9)]);
    controller.refuse(Explanation::ConcatenationMismatch);
    assert_eq!(controller.progress(), ExchangeProgress::AwaitsHost);
    controller.send(&host.negotiate());
    assert_eq!(controller.asked_concatenation(), Some(2));
    assert_eq!(controller.progress(), ExchangeProgress::AwaitsFetch);
    let reply = reply_to(&mut host, &controller.fetch(MESSAGE_BYTES).unwrap());
    assert!(!controller.offers_psk());
    controller.send(&reply);
    assert!(controller.offers_psk());
    controller.refuse(Explanation::ConcatenationMismatch);
    assert_eq!(
        controller.progress(),
        ExchangeProgress::Failing(Explanation::ConcatenationMismatch)
    );
    let failure = host.fetched(&controller.fetch(MESSAGE_BYTES).unwrap()).unwrap_err();
    assert_eq!(failure, HostFailure::Refused(Explanation::ConcatenationMismatch));
    assert_eq!((controller.take_psk(), host.take_psk()), (None, None));
}

/// The reply of a host, which has to accept the challenge.
fn reply_to(host: &mut HostExchange, challenge: &[u8]) -> Vec<u8> {
    match host.fetched(challenge) {
        Ok(HostStep::Reply(reply)) => reply,
        other => panic!("a reply: {other:?}"),
    }
}

proptest! {
    /// An exchange with one changed byte authenticates no host, unless the byte is reserved.
    #[test]
    fn altered_reply_fails_authentication(position in 0usize..80, flip in 1u8..=255) {
        let mut controller = controller(vec![secret(7)], Some(secret(9)));
        let mut host = host(secret(7), Some(secret(9)), DhGroup::Null, Hash::Sha256);
        controller.send(&host.negotiate());
        let challenge = controller.fetch(MESSAGE_BYTES).unwrap();
        let Ok(HostStep::Reply(mut reply)) = host.fetched(&challenge) else { panic!("a reply") };
        let reserved = [2, 3, 7, 9];
        reply[position] ^= flip;
        controller.send(&reply);
        let success = controller.fetch(MESSAGE_BYTES).unwrap();
        let trusted = host.fetched(&success).is_ok();
        prop_assert_eq!(trusted, reserved.contains(&position));
    }

    #[test]
    fn arbitrary_messages_never_authenticate(messages in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 0..200), 1..6)) {
        let mut controller = controller(vec![secret(7)], None);
        for message in messages {
            controller.send(&message);
            let _ = controller.fetch(MESSAGE_BYTES);
        }
        prop_assert_ne!(controller.progress(), ExchangeProgress::Authenticated);
    }
}
