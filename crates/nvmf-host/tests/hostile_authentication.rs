//! Broken or malicious targets during authentication: the host ends with a reason in its time, and
//! leaks nothing.

mod common;
#[path = "../../nvmf-target/tests/support/harness.rs"]
mod support;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use common::fake::{AuthenticationAnswer, Fake, Quirks};
use common::{options, subnqn};
use flagstone_auth::message::MESSAGE_BYTES;
use flagstone_auth::{
    Concatenation, ControllerExchange, ControllerOptions, DhGroup, Hash, KeyDemand, KeyPair,
    KeyRing, Names, Randomness, Secret,
};
use flagstone_blockdev::BlockDevice;
use flagstone_nvme::{FabricsType, Nqn, Status};
use flagstone_nvmf_host::{HostError, HostOptions, RemoteDevice, RemoteSession};
use flagstone_runtime::{random_u64, time};
use support::in_simulation;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

fn host() -> Nqn {
    Nqn::from_uuid([7; 16])
}

fn keys(demand: KeyDemand) -> KeyPair {
    let secret = Secret::new(&[1; 32], Some(Hash::Sha256)).unwrap();
    KeyPair { demand, ..KeyPair::shared(&KeyRing::new(vec![secret])) }
}

fn with_keys(demand: KeyDemand) -> HostOptions {
    HostOptions {
        host_nqn: Some(host()),
        keys: Some(keys(demand)),
        connect_timeout: CONNECT_TIMEOUT,
        ..options()
    }
}

/// Controller that knows the keys.
fn controller() -> ControllerExchange {
    let keys = keys(KeyDemand::Required);
    let options = ControllerOptions {
        names: Names { host: host().to_string(), subsystem: subnqn().to_string() },
        host_secrets: keys.host.secrets(),
        own_secret: keys.host.first(),
        hashes: Hash::ALL.into(),
        groups: vec![DhGroup::Null],
        concatenation: Concatenation::None,
    };
    ControllerExchange::new(options, Randomness::from_words(random_u64))
}

/// What a target does at a step of an exchange, counted in commands.
type Deviation = fn(usize, Vec<u8>) -> AuthenticationAnswer;

/// Fake whose exchange deviates at command `step`; each connection begins an exchange.
fn fake(step: usize, deviation: Deviation) -> Fake {
    let (exchange, count) = (RefCell::new(controller()), Cell::new(0));
    let answer = move |kind, message: &[u8]| {
        let mut exchange = exchange.borrow_mut();
        if kind == FabricsType::AUTHENTICATION_SEND && message.get(1) == Some(&0) {
            // AUTH_Negotiate.
            *exchange = controller();
            count.set(0);
        }
        let at = count.replace(count.get() + 1);
        let fetched = match kind {
            FabricsType::AUTHENTICATION_SEND => {
                exchange.send(message);
                Vec::new()
            }
            _ => exchange.fetch(MESSAGE_BYTES).unwrap_or_default(),
        };
        match at == step {
            true => deviation(at, fetched),
            false if kind == FabricsType::AUTHENTICATION_SEND => {
                AuthenticationAnswer::Status(Status::SUCCESS)
            }
            false => AuthenticationAnswer::Message(fetched),
        }
    };
    Fake::start(Quirks {
        requires_authentication: true,
        authentication: Some(Box::new(answer)),
        ..Quirks::default()
    })
}

async fn refusal(fake: &Fake, demand: KeyDemand) -> HostError {
    let begun = time::now();
    let connected = RemoteDevice::connect(fake.address.clone(), &subnqn(), with_keys(demand)).await;
    let error = connected.expect_err("the target has not proven itself");
    assert!(begun.elapsed() <= CONNECT_TIMEOUT + Duration::from_millis(1), "{error}");
    error
}

#[test]
fn conforming_exchange_succeeds() {
    in_simulation(1, async || {
        let fake = fake(usize::MAX, |_, _| AuthenticationAnswer::Silence);
        let options = with_keys(KeyDemand::Required);
        let device = RemoteDevice::connect(fake.address.clone(), &subnqn(), options).await;
        device.unwrap().flush().await.unwrap();
    });
}

/// Negotiate, challenge, reply, success, and the host's own success.
#[test]
fn stall_at_each_step_ends_in_time() {
    for step in 0..5 {
        in_simulation(2, async || {
            let fake = fake(step, |_, _| AuthenticationAnswer::Silence);
            let error = refusal(&fake, KeyDemand::Required).await;
            assert!(matches!(error, HostError::TimedOut), "step {step}: {error}");
        });
    }
}

#[test]
fn malformed_messages_are_refused_with_a_reason() {
    let cases: [(&str, usize, Deviation); 9] = [
        ("cut challenge", 1, |_, sent| {
            AuthenticationAnswer::Message(sent[..sent.len() / 2].to_vec())
        }),
        ("header alone", 1, |_, sent| AuthenticationAnswer::Message(sent[..4].to_vec())),
        ("zeroes", 1, |_, _| AuthenticationAnswer::Message(vec![0; MESSAGE_BYTES])),
        ("ones", 1, |_, _| AuthenticationAnswer::Message(vec![0xff; MESSAGE_BYTES])),
        ("success instead of a challenge", 1, |_, mut sent| {
            sent[1] = 3;
            AuthenticationAnswer::Message(sent)
        }),
        ("other transaction", 1, |_, mut sent| {
            sent[4] ^= 1;
            AuthenticationAnswer::Message(sent)
        }),
        ("challenge of another length", 1, |_, mut sent| {
            sent[8] = sent[8].wrapping_add(1);
            AuthenticationAnswer::Message(sent)
        }),
        ("cut success", 3, |_, sent| AuthenticationAnswer::Message(sent[..12].to_vec())),
        ("wrong response", 3, |_, mut sent| {
            *sent.last_mut().unwrap() ^= 1;
            AuthenticationAnswer::Message(sent)
        }),
    ];
    for (what, step, deviation) in cases {
        in_simulation(3, async || {
            let error = refusal(&fake(step, deviation), KeyDemand::Required).await;
            let distrusts = matches!(error, HostError::Authentication(_));
            assert!(distrusts && !error.may_pass(), "{what}: {error}");
        });
    }
}

/// Commands fail at each step, as they would without a key: that is no reason to do without one.
#[test]
fn refusals_are_no_reason_to_do_without_keys() {
    for step in 0..5 {
        in_simulation(4, async || {
            let fake = fake(step, |_, _| {
                AuthenticationAnswer::Status(Status::COMMAND_SEQUENCE_ERROR.dnr())
            });
            let error = refusal(&fake, KeyDemand::Optional).await;
            assert!(matches!(error, HostError::FabricsRefused { .. }), "step {step}: {error}");
        });
    }
}

/// A target that does not ask for authentication, and answers the first message with `status`.
fn unasking(status: Status) -> Fake {
    Fake::start(Quirks {
        authentication: Some(Box::new(move |_, _| AuthenticationAnswer::Status(status))),
        ..Quirks::default()
    })
}

#[test]
fn only_a_target_without_key_is_used_without() {
    for status in [Status::COMMAND_SEQUENCE_ERROR, Status::INVALID_OPCODE] {
        in_simulation(5, async || {
            let fake = unasking(status.dnr());
            let options = with_keys(KeyDemand::Optional);
            let device = RemoteDevice::connect(fake.address.clone(), &subnqn(), options).await;
            device.unwrap().flush().await.unwrap();
            let error = refusal(&fake, KeyDemand::Required).await;
            assert!(matches!(error, HostError::NoProof), "{error}");
        });
    }
    let others = [
        Status::INVALID_FIELD.dnr(),
        Status::INTERNAL_ERROR.dnr(),
        Status::AUTHENTICATION_REQUIRED.dnr(),
        Status::COMMAND_SEQUENCE_ERROR,
        Status::INVALID_OPCODE,
    ];
    for status in others {
        in_simulation(6, async || {
            let error = refusal(&unasking(status), KeyDemand::Optional).await;
            assert!(matches!(error, HostError::FabricsRefused { .. }), "{status}: {error}");
        });
    }
}

/// The first exchanges of both queues succeed, and the next ones do not end.
#[test]
fn stalled_or_postponed_repetition_ends_the_association() {
    const INTERVAL: Duration = Duration::from_secs(5);
    for stalls in [true, false] {
        in_simulation(7, async || {
            let exchange = RefCell::new(controller());
            let begun = Cell::new(0);
            let answer = move |kind, message: &[u8]| {
                if kind != FabricsType::AUTHENTICATION_SEND {
                    let fetched = exchange.borrow_mut().fetch(MESSAGE_BYTES);
                    return AuthenticationAnswer::Message(fetched.unwrap());
                }
                if message.get(1) == Some(&0) {
                    *exchange.borrow_mut() = controller();
                    begun.set(begun.get() + 1);
                }
                if begun.get() > 2 && stalls {
                    return AuthenticationAnswer::Silence;
                } else if begun.get() > 2 {
                    // As Flagstone's target says it.
                    return AuthenticationAnswer::Status(Status::COMMAND_INTERRUPTED.more());
                }
                exchange.borrow_mut().send(message);
                AuthenticationAnswer::Status(Status::SUCCESS)
            };
            let fake = Fake::start(Quirks {
                requires_authentication: true,
                authentication: Some(Box::new(answer)),
                ..Quirks::default()
            });
            let options = HostOptions {
                reauthentication_interval: INTERVAL,
                ..with_keys(KeyDemand::Required)
            };
            let session = RemoteSession::connect(fake.address.clone(), &subnqn(), options).await;
            let session = session.unwrap();
            time::sleep(INTERVAL + Duration::from_secs(3)).await;
            session.flush().await.unwrap();
            let lost = time::timeout(Duration::from_secs(40), session.lost()).await;
            lost.expect("the association ends").unwrap();
        });
    }
}
