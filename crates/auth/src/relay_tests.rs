//! Tests of secure channel concatenation with an attacker in between, who swaps messages of two
//! concurrent exchanges, and of the names that a generated PSK belongs to.
//!
//! `exchange_tests` covers altered SC_C and challenges.

use crate::concatenation::Concatenation;
use crate::controller::{ControllerExchange, ControllerOptions, ExchangeProgress};
use crate::exchange_tests::{names, randomness, secret};
use crate::group::DhGroup;
use crate::hash::Hash;
use crate::host::{ExchangeOptions, HostExchange, HostFailure, HostStep};
use crate::message::{Explanation, MESSAGE_BYTES, Message, MessageBody};
use crate::response::Names;

const TRANSACTION: u16 = 77;

/// Number `seed` of the hosts of one name, which all have the same secrets.
fn host(seed: u8, names: Names, groups: &[DhGroup]) -> HostExchange {
    let options = ExchangeOptions {
        names,
        secret: secret(7),
        controller_secrets: vec![secret(9)],
        hashes: vec![Hash::Sha256],
        groups: groups.into(),
        concatenation: Concatenation::NewPsk,
    };
    HostExchange::new(options, TRANSACTION, randomness(seed))
}

fn controller(seed: u8, names: Names) -> ControllerExchange {
    let options = ControllerOptions {
        names,
        host_secrets: vec![secret(7)],
        own_secret: Some(secret(9)),
        hashes: Hash::ALL.into(),
        groups: DhGroup::ALL.into(),
        concatenation: Concatenation::NewPsk,
    };
    ControllerExchange::new(options, randomness(seed))
}

fn fetch(controller: &mut ControllerExchange) -> Message {
    Message::parse(&controller.fetch(MESSAGE_BYTES).expect("a message")).unwrap()
}

/// The host's reply. The host must accept the challenge.
fn reply_to(host: &mut HostExchange, challenge: &Message) -> Message {
    match host.fetched(&challenge.encode()) {
        Ok(HostStep::Reply(reply)) => Message::parse(&reply).unwrap(),
        other => panic!("a reply: {other:?}"),
    }
}

/// An exchange after its challenge, or after its reply.
struct Exchange {
    host: HostExchange,
    controller: ControllerExchange,
    message: Message,
}

impl Exchange {
    /// Up to the challenge, with a host that offers these groups.
    fn challenged(seed: u8, groups: &[DhGroup]) -> Exchange {
        let mut controller = controller(seed, names());
        let host = host(seed + 100, names(), groups);
        controller.send(&host.negotiate());
        let message = fetch(&mut controller);
        Exchange { host, controller, message }
    }

    /// Up to the reply.
    fn replied(mut self) -> Exchange {
        self.message = reply_to(&mut self.host, &self.message);
        self
    }

    /// The Diffie-Hellman value in the message.
    fn value(&mut self) -> &mut Vec<u8> {
        match &mut self.message.body {
            MessageBody::Challenge { public_value, .. }
            | MessageBody::Reply { public_value, .. } => public_value,
            other => panic!("a challenge or a reply: {other:?}"),
        }
    }

    /// Delivers the reply. Neither side gets a PSK.
    fn gives_no_psk(mut self) {
        self.controller.send(&self.message.encode());
        assert!(
            matches!(self.controller.progress(), ExchangeProgress::Failing(_)),
            "{:?}",
            self.controller
        );
        let refusal = fetch(&mut self.controller).encode();
        assert!(matches!(self.host.fetched(&refusal), Err(HostFailure::Refused(_))));
        assert_eq!((self.controller.take_psk(), self.host.take_psk()), (None, None));
    }
}

/// A host and its controller compute different session keys, and responses cover these.
#[test]
fn controller_values_swapped_between_exchanges_give_no_psk() {
    let [mut one, mut other] = [1, 2].map(|seed| Exchange::challenged(seed, &[DhGroup::Ffdhe2048]));
    assert_ne!(one.value(), other.value());
    std::mem::swap(one.value(), other.value());
    one.replied().gives_no_psk();
    other.replied().gives_no_psk();
}

/// A Diffie-Hellman value of the attacker, who knows its exponent, gives no PSK either.
#[test]
fn controller_value_of_an_attacker_gives_no_psk() {
    let mut one = Exchange::challenged(1, &[DhGroup::Ffdhe2048]);
    *one.value() = DhGroup::Ffdhe2048.public_value(&[0x33; 64]);
    one.replied().gives_no_psk();
}

#[test]
fn host_values_swapped_between_exchanges_give_no_psk() {
    let [mut one, mut other] =
        [1, 2].map(|seed| Exchange::challenged(seed, &[DhGroup::Ffdhe2048]).replied());
    assert_ne!(one.value(), other.value());
    std::mem::swap(one.value(), other.value());
    one.gives_no_psk();
    other.gives_no_psk();
}

/// Whole challenges are swapped, with their groups: each host gets a group that it did not offer.
#[test]
fn challenges_swapped_between_groups_are_refused() {
    let groups = [DhGroup::Ffdhe2048, DhGroup::Ffdhe3072];
    let [mut one, mut other] = [1, 2].map(|at: u8| {
        let offered = [groups[usize::from(at) - 1]];
        Exchange::challenged(at, &offered)
    });
    std::mem::swap(&mut one.message, &mut other.message);
    for mut exchange in [one, other] {
        let refused = exchange.host.fetched(&exchange.message.encode()).unwrap_err();
        let HostFailure::Distrusted { explanation, final_reply } = refused else { panic!() };
        assert_eq!(explanation, Explanation::GroupNotUsable);
        exchange.controller.send(&final_reply);
        assert_eq!(
            exchange.controller.progress(),
            ExchangeProgress::Failed(Explanation::GroupNotUsable)
        );
        assert_eq!((exchange.controller.take_psk(), exchange.host.take_psk()), (None, None));
    }
}

/// A host that has offered both groups accepts the other exchange's challenge.
#[test]
fn group_altered_in_between_gives_no_psk() {
    let groups = [DhGroup::Ffdhe2048, DhGroup::Ffdhe3072];
    let mut one = Exchange::challenged(1, &groups);
    let MessageBody::Challenge { group, public_value, .. } = &mut one.message.body else {
        panic!()
    };
    assert_eq!(*group, groups[0]);
    (*group, *public_value) = (groups[1], groups[1].public_value(&[0x33; 64]));
    one.replied().gives_no_psk();
}

/// Without a group, an attacker in between would know the PSK.
#[test]
fn null_group_set_in_between_is_refused() {
    let mut one = Exchange::challenged(1, &[DhGroup::Null, DhGroup::Ffdhe2048]);
    let MessageBody::Challenge { group, public_value, .. } = &mut one.message.body else {
        panic!()
    };
    (*group, *public_value) = (DhGroup::Null, Vec::new());
    assert!(one.host.fetched(&one.message.encode()).is_err());
    assert_eq!(one.host.take_psk(), None);
}

/// Runs an exchange in which both sides know each other by these names.
fn succeed(host_names: Names, controller_names: Names) -> Result<crate::tls::Psk, HostFailure> {
    let mut host = host(101, host_names, &[DhGroup::Ffdhe2048]);
    let mut controller = controller(1, controller_names);
    controller.send(&host.negotiate());
    let reply = reply_to(&mut host, &fetch(&mut controller));
    controller.send(&reply.encode());
    let success = fetch(&mut controller).encode();
    let HostStep::Authenticated(Some(final_reply)) = host.fetched(&success)? else { panic!() };
    controller.send(&final_reply);
    let psk = host.take_psk().expect("a PSK");
    assert_eq!(controller.take_psk().as_ref(), Some(&psk));
    Ok(psk)
}

fn other_names() -> [Names; 2] {
    let host = "nqn.2014-08.org.nvmexpress:uuid:b".into();
    [Names { host, ..names() }, Names { subsystem: "nqn.2024-01.x:other".into(), ..names() }]
}

/// The same values and challenges give another PSK and identity to another host or subsystem.
#[test]
fn generated_psk_is_of_its_names_alone() {
    let own = succeed(names(), names()).unwrap();
    for other in other_names() {
        let other = succeed(other.clone(), other).unwrap();
        assert_ne!(own.secret, other.secret);
        assert_ne!(own.identity, other.identity);
    }
}

/// An attacker in between leads a host to another subsystem, or impersonates another host.
#[test]
fn exchange_of_other_names_gives_no_psk() {
    for other in other_names() {
        let refused = succeed(names(), other).unwrap_err();
        assert_eq!(refused, HostFailure::Refused(Explanation::Failed));
    }
}
