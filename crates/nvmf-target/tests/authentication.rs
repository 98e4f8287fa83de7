//! Authentication of hosts: conforming ones, and an adversary who may send anything in any order.
//!
//! Every test runs on both real drivers and in simulation. Left out: the cost of the group
//! operations, which take no time in simulation.

mod concatenation;
mod support;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use flagstone_auth::message::{MESSAGE_BYTES, Message, MessageBody};
use flagstone_auth::{
    self as auth, DhGroup, Explanation, Hash, KeyDemand, KeyPair, KeyRing, Names, Secret,
};
use flagstone_auth::{Concatenation, HostFailure, HostStep, Randomness};
use flagstone_nvme::command::admin::{GetLogPage, Identify};
use flagstone_nvme::command::fabrics::{
    AuthenticationCommand, CONTROLLER_ID_DYNAMIC, ConnectResult, PropertyCommand,
};
use flagstone_nvme::identify::Cns;
use flagstone_nvme::log::LogId;
use flagstone_nvme::property::{Property, PropertySize};
use flagstone_nvme::wire::U32;
use flagstone_nvme::{Nqn, Sqe, Status};
use flagstone_nvmf_target::{FailureReason, NamespaceConfig, SubsystemConfig, TargetConfig};
use flagstone_runtime::{random_u64, spawn, time};

use support::client::enabled;
use support::{
    BlockingDevice, Client, Options, Server, eventually, in_simulation, on_each_driver, pattern,
};

const REQUIRED: Status = Status::AUTHENTICATION_REQUIRED;

fn locked() -> Nqn {
    Nqn::new("nqn.2026-01.io.flagstone:locked").unwrap()
}

fn options() -> Options {
    Options { subsystem: locked(), ..Options::default() }
}

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32], Some(Hash::Sha256)).unwrap()
}

/// Server with a second subsystem, which the host of [`options`] has to prove `keys` for.
fn server(config: TargetConfig, keys: KeyPair) -> Server {
    let server = Server::with(config);
    let keys = BTreeMap::from([(options().host, keys)]);
    let (nqn, serial) = (locked(), "SN-2".to_owned());
    server.target.add_subsystem(SubsystemConfig { nqn, serial, allow_hosts: None, keys }).unwrap();
    let device = BlockingDevice::memory();
    let namespace = NamespaceConfig { nsid: None, device, uuid: [3; 16], read_only: false };
    server.target.add_namespace(&locked(), namespace).unwrap();
    server
}

/// Keys of both sides.
fn both_keys() -> KeyPair {
    KeyPair { controller: Some(KeyRing::new(vec![secret(2)])), ..one_key() }
}

fn one_key() -> KeyPair {
    KeyPair { host: KeyRing::new(vec![secret(1)]), controller: None, demand: KeyDemand::Required }
}

fn failures(server: &Server, reason: FailureReason) -> u64 {
    let at = FailureReason::ALL.iter().position(|known| *known == reason).unwrap();
    server.target.authentication_totals().failed[at]
}

/// Exchange of a host with `secret`, which demands a proof of `controller`.
fn exchange(secret: Secret, controller: Option<Secret>, group: DhGroup) -> auth::HostExchange {
    let names = Names { host: options().host.to_string(), subsystem: locked().to_string() };
    let options = auth::host::ExchangeOptions {
        names,
        secret,
        controller_secrets: controller.into_iter().collect(),
        hashes: Hash::ALL.into(),
        groups: vec![group],
        concatenation: Concatenation::None,
    };
    auth::HostExchange::new(options, 7, Randomness::from_words(random_u64))
}

/// Connects a queue, which has to authenticate.
async fn connected(server: &Server, qid: u16, controller: u16) -> (Client, u16) {
    let mut client = Client::initialized(server, &options()).await;
    let connected = client.connect(&options(), qid, controller).await;
    assert_eq!(connected.status(), Status::SUCCESS);
    let result = ConnectResult::from_dw0(connected.dw0.get());
    assert!(result.authentication_required && !result.secure_channel_required);
    (client, result.controller_id)
}

async fn send(client: &mut Client, message: &[u8]) -> Status {
    let command = AuthenticationCommand::send(40, message.len() as u32).command();
    client.call_with(command, message).await.status().code()
}

async fn fetch(client: &mut Client) -> Result<Vec<u8>, Status> {
    let room = AuthenticationCommand::receive(41, MESSAGE_BYTES as u32).command();
    client.ask(room).await.map_err(Status::code)
}

/// Runs an exchange; the messages that the host sent.
async fn authenticate(
    client: &mut Client,
    mut host: auth::HostExchange,
) -> Result<Vec<Vec<u8>>, HostFailure> {
    let mut sent = vec![host.negotiate()];
    loop {
        assert_eq!(send(client, sent.last().unwrap()).await, Status::SUCCESS);
        match host.fetched(&fetch(client).await.unwrap()) {
            Ok(HostStep::Reply(reply)) => sent.push(reply),
            Ok(HostStep::Authenticated(final_reply)) => {
                if let Some(final_reply) = final_reply {
                    assert_eq!(send(client, &final_reply).await, Status::SUCCESS);
                    sent.push(final_reply);
                }
                return Ok(sent);
            }
            Err(failure) => {
                if let HostFailure::Distrusted { final_reply, .. } = &failure {
                    assert_eq!(send(client, final_reply).await, Status::SUCCESS);
                }
                return Err(failure);
            }
        }
    }
}

/// Connected, authenticated and enabled admin queue.
async fn admin(server: &Server) -> (Client, u16) {
    let (mut client, id) = connected(server, 0, CONTROLLER_ID_DYNAMIC).await;
    authenticate(&mut client, exchange(secret(1), None, DhGroup::Null)).await.unwrap();
    assert_eq!(client.configure(enabled()).await, Status::SUCCESS);
    assert_eq!(client.status().await.ready(), 1);
    (client, id)
}

/// The queue executes nothing but authentication.
async fn is_locked(client: &mut Client) {
    let property = PropertyCommand::get(1, Property::CAP, PropertySize::EIGHT).command();
    let identify = Identify::new(Cns::CONTROLLER, 0).command(2);
    let commands = [property, identify, Sqe::async_event_request(3), Sqe::keep_alive(4)];
    for command in commands.into_iter().chain([Sqe::disconnect(5), Sqe::flush(6, 1)]) {
        let status = client.ask(command).await.unwrap_err();
        assert_eq!(status.code(), REQUIRED, "{command:?}");
    }
    assert_eq!(client.read(1, 0, 512, 512).await.unwrap_err().code(), REQUIRED);
    let data = pattern(1, 512);
    assert_eq!(client.write(1, 0, 512, &data).await.unwrap_err().code(), REQUIRED);
    assert_eq!(client.write_r2t(1, 0, 512, &data).await.unwrap_err().code(), REQUIRED);
}

async fn is_sound(server: &Server) {
    eventually("the locked subsystem is deserted", || {
        server.target.subsystem_status(&locked()).unwrap().controllers.is_empty()
    })
    .await;
    server.is_sound().await;
}

#[test]
fn unauthenticated_queue_executes_only_authentication() {
    on_each_driver(async || {
        let server = server(TargetConfig::default(), one_key());
        let (mut client, id) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        is_locked(&mut client).await;
        authenticate(&mut client, exchange(secret(1), None, DhGroup::Ffdhe2048)).await.unwrap();
        let status = server.target.subsystem_status(&locked()).unwrap();
        assert!(status.controllers[0].authenticated);
        assert_eq!(client.configure(enabled()).await, Status::SUCCESS);
        assert_eq!(client.status().await.ready(), 1);
        // Each queue has to authenticate for itself.
        let (mut io, _) = connected(&server, 1, id).await;
        is_locked(&mut io).await;
        authenticate(&mut io, exchange(secret(1), None, DhGroup::Null)).await.unwrap();
        let data = pattern(1, 4096);
        io.write(1, 0, 512, &data).await.unwrap();
        assert_eq!(io.read(1, 0, 512, data.len()).await.unwrap(), data);
        // Fails later too.
        authenticate(&mut io, exchange(secret(1), None, DhGroup::Null)).await.unwrap();
        assert_eq!(io.read(1, 0, 512, data.len()).await.unwrap(), data);
        let again = authenticate(&mut client, exchange(secret(2), None, DhGroup::Null)).await;
        assert_eq!(again.unwrap_err(), HostFailure::Refused(Explanation::Failed));
        client.closed().await;
        assert_eq!(server.target.authentication_totals().succeeded, 3);
        drop((client, io));
        is_sound(&server).await;
    });
}

/// Regression: commands that were refused for lack of a key kept the controller of a silent host
/// alive, and displaced the entries of its error log.
#[test]
fn unauthenticated_queue_is_no_traffic_of_the_host() {
    in_simulation(1, async || {
        let config =
            TargetConfig { handshake_timeout: Duration::from_secs(600), ..TargetConfig::default() };
        let server = server(config, one_key());
        let with_keep_alive = Options { keep_alive_ms: 15_000, ..options() };
        let mut host = Client::initialized(&server, &with_keep_alive).await;
        let connected = host.connect(&with_keep_alive, 0, CONTROLLER_ID_DYNAMIC).await;
        let id = ConnectResult::from_dw0(connected.dw0.get()).controller_id;
        authenticate(&mut host, exchange(secret(1), None, DhGroup::Null)).await.unwrap();
        assert_eq!(host.configure(enabled()).await, Status::SUCCESS);
        assert_eq!(host.status().await.ready(), 1);
        let log = || GetLogPage::new(LogId::ERROR, 0, 0, 64).command(1).unwrap();
        let before = host.ask(log()).await.unwrap();
        let (mut stranger, _) = self::connected(&server, 1, id).await;
        assert_eq!(fetch(&mut stranger).await, Err(Status::COMMAND_SEQUENCE_ERROR));
        assert_eq!(stranger.read(1, 0, 512, 512).await.unwrap_err().code(), REQUIRED);
        assert_eq!(host.ask(log()).await.unwrap(), before);
        let silent_since = time::now();
        while silent_since.elapsed() < Duration::from_secs(14) {
            time::sleep(Duration::from_secs(2)).await;
            assert_eq!(stranger.read(1, 0, 512, 512).await.unwrap_err().code(), REQUIRED);
            assert!(fetch(&mut stranger).await.is_err());
            let mut another = Client::initialized(&server, &options()).await;
            assert_eq!(another.connect(&options(), 2, id).await.status(), Status::SUCCESS);
        }
        time::sleep(Duration::from_secs(10)).await;
        assert!(server.target.subsystem_status(&locked()).unwrap().controllers.is_empty());
        drop((host, stranger));
        is_sound(&server).await;
    });
}

#[test]
fn wrong_and_missing_keys_are_refused_and_counted() {
    on_each_driver(async || {
        let server = server(TargetConfig::default(), one_key());
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let refused = authenticate(&mut client, exchange(secret(2), None, DhGroup::Null)).await;
        assert_eq!(refused.unwrap_err(), HostFailure::Refused(Explanation::Failed));
        client.closed().await;
        assert_eq!(failures(&server, FailureReason::Refused(Explanation::Failed)), 1);
        // A host that demands a proof of a subsystem without a key.
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let host = exchange(secret(1), Some(secret(3)), DhGroup::Null);
        assert!(authenticate(&mut client, host).await.is_err());
        client.closed().await;
        let unknown_host = Options { host: Nqn::from_uuid([8; 16]), ..options() };
        let mut client = Client::initialized(&server, &unknown_host).await;
        let refused = client.connect(&unknown_host, 0, CONTROLLER_ID_DYNAMIC).await;
        assert_eq!(refused.status(), Status::CONNECT_INVALID_HOST.dnr());
        assert_eq!(failures(&server, FailureReason::NoKey), 1);
        drop(client);
        is_sound(&server).await;
    });
}

#[test]
fn host_detects_a_target_with_another_key() {
    on_each_driver(async || {
        let ring = KeyRing::new(vec![secret(1)]);
        let server = server(TargetConfig::default(), KeyPair::shared(&ring));
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let host = exchange(secret(1), Some(secret(2)), DhGroup::Null);
        let distrusted = authenticate(&mut client, host).await.unwrap_err();
        assert!(matches!(distrusted, HostFailure::Distrusted { .. }), "{distrusted:?}");
        client.closed().await;
        assert_eq!(failures(&server, FailureReason::Distrusted), 1);
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let host = exchange(secret(1), Some(secret(1)), DhGroup::Null);
        authenticate(&mut client, host).await.unwrap();
        drop(client);
        is_sound(&server).await;
    });
}

/// Rotation, with a controller for each thing that a host may have done before the old key goes.
#[test]
fn withdrawn_key_ends_only_controllers_that_use_it() {
    on_each_driver(async || {
        let ring = KeyRing::new(vec![secret(1)]);
        let keys = KeyPair { host: ring.clone(), controller: None, demand: KeyDemand::Required };
        let server = server(TargetConfig::default(), keys);
        let with = |byte| exchange(secret(byte), None, DhGroup::Null);
        let (mut old, _) = admin(&server).await;
        let (mut partly, id) = admin(&server).await;
        let (mut again, _) = admin(&server).await;
        let (mut waits, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let (mut io, _) = connected(&server, 1, id).await;
        authenticate(&mut io, with(1)).await.unwrap();
        assert!(ring.replace(vec![secret(1), secret(2)]));
        assert_eq!(server.target.end_withdrawn(), 0);
        let (mut new, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        authenticate(&mut new, with(2)).await.unwrap();
        for one in [&mut partly, &mut again] {
            authenticate(one, with(2)).await.unwrap();
        }
        // An exchange that began with the old key, and ends when the key is gone.
        let mut late = with(1);
        assert_eq!(send(&mut waits, &late.negotiate()).await, Status::SUCCESS);
        let Ok(HostStep::Reply(reply)) = late.fetched(&fetch(&mut waits).await.unwrap()) else {
            panic!("a reply")
        };
        assert!(ring.replace(vec![secret(2)]));
        assert_eq!(server.target.end_withdrawn(), 2);
        for ended in [&mut old, &mut partly, &mut io] {
            ended.closed().await;
        }
        assert_eq!(send(&mut waits, &reply).await, Status::SUCCESS);
        assert_eq!(fetch(&mut waits).await, Err(Status::COMMAND_SEQUENCE_ERROR));
        waits.closed().await;
        assert_eq!(failures(&server, FailureReason::Withdrawn), 1);
        assert_eq!(again.status().await.ready(), 1);
        assert_eq!(new.configure(enabled()).await, Status::SUCCESS);
        assert_eq!(server.target.end_withdrawn(), 0);
        drop((old, partly, again, waits, io, new));
        is_sound(&server).await;
    });
}

#[test]
fn rotated_keys_leave_connections_alone() {
    on_each_driver(async || {
        let ring = KeyRing::new(vec![secret(1)]);
        let keys = KeyPair { host: ring.clone(), controller: None, demand: KeyDemand::Required };
        let server = server(TargetConfig::default(), keys);
        let (mut old, _) = admin(&server).await;
        assert!(ring.replace(vec![secret(1), secret(2)]));
        for byte in [1, 2] {
            let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
            authenticate(&mut client, exchange(secret(byte), None, DhGroup::Null)).await.unwrap();
        }
        ring.replace(vec![secret(2)]);
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        authenticate(&mut client, exchange(secret(1), None, DhGroup::Null)).await.unwrap_err();
        assert_eq!(old.status().await.ready(), 1);
        drop((old, client));
        is_sound(&server).await;
    });
}

/// Replayed, reflected and reordered messages of a successful exchange.
#[test]
fn adversary_without_the_key_never_passes() {
    on_each_driver(async || {
        let ring = KeyRing::new(vec![secret(1)]);
        let server = server(TargetConfig::default(), KeyPair::shared(&ring));
        let (mut victim, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let host = exchange(secret(1), Some(secret(1)), DhGroup::Null);
        let recorded = authenticate(&mut victim, host).await.unwrap();
        drop(victim);
        let [negotiate, reply, success] = &recorded[..] else { panic!("three messages") };
        // Replay.
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        assert_eq!(send(&mut client, negotiate).await, Status::SUCCESS);
        let challenge = Message::parse(&fetch(&mut client).await.unwrap()).unwrap();
        assert_eq!(send(&mut client, reply).await, Status::SUCCESS);
        refused(&mut client, Explanation::Failed).await;
        // Reflection: this side's challenge as the adversary's own, and its own response back.
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        send(&mut client, negotiate).await;
        let MessageBody::Challenge { challenge: asked, .. } =
            Message::parse(&fetch(&mut client).await.unwrap()).unwrap().body
        else {
            panic!("{challenge:?}")
        };
        let body = MessageBody::Reply {
            response: asked.clone(),
            challenge: Some(asked),
            sequence: 1,
            public_value: Vec::new(),
        };
        send(&mut client, &Message { transaction: 7, body }.encode()).await;
        refused(&mut client, Explanation::Failed).await;
        // Wrong order, from the start and in the middle.
        for first in [reply, success] {
            let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
            assert_eq!(fetch(&mut client).await, Err(Status::COMMAND_SEQUENCE_ERROR));
            send(&mut client, first).await;
            is_locked(&mut client).await;
            refused(&mut client, Explanation::IncorrectMessage).await;
            let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
            send(&mut client, negotiate).await;
            // The challenge was not fetched.
            send(&mut client, first).await;
            refused(&mut client, Explanation::IncorrectMessage).await;
        }
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        send(&mut client, negotiate).await;
        fetch(&mut client).await.unwrap();
        assert_eq!(fetch(&mut client).await, Err(Status::COMMAND_SEQUENCE_ERROR));
        send(&mut client, success).await;
        refused(&mut client, Explanation::IncorrectMessage).await;
        assert_eq!(server.target.authentication_totals().succeeded, 1);
        drop(client);
        is_sound(&server).await;
    });
}

/// The target gives `explanation`, and closes.
async fn refused(client: &mut Client, explanation: Explanation) {
    let message = Message::parse(&fetch(client).await.unwrap()).unwrap();
    assert_eq!(message.body, MessageBody::Failure1(explanation));
    client.closed().await;
}

#[test]
fn truncated_messages_and_invalid_commands_are_refused() {
    on_each_driver(async || {
        let server = server(TargetConfig::default(), one_key());
        let negotiate = exchange(secret(1), None, DhGroup::Null).negotiate();
        for bytes in [1, 5, 6, 7, 8, 12, 40, negotiate.len() - 1] {
            let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
            assert_eq!(send(&mut client, &negotiate[..bytes]).await, Status::SUCCESS);
            refused(&mut client, Explanation::IncorrectPayload).await;
        }
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let good = AuthenticationCommand::send(40, negotiate.len() as u32);
        let changes: [fn(&mut AuthenticationCommand); 4] = [
            |command| command.security_protocol = 0xe8,
            |command| command.spsp0 = 0,
            |command| command.spsp1 = 0,
            |command| command.message_bytes = U32::new(4),
        ];
        for change in changes {
            let mut command = good;
            change(&mut command);
            let status = client.call_with(command.command(), &negotiate).await.status();
            assert_eq!(status.code(), Status::INVALID_FIELD);
        }
        let long = vec![0; MESSAGE_BYTES + 4];
        assert_eq!(send(&mut client, &long).await, Status::INVALID_FIELD);
        // Too little room for the challenge, then enough.
        assert_eq!(send(&mut client, &negotiate).await, Status::SUCCESS);
        let little = client.ask(AuthenticationCommand::receive(41, 8).command()).await;
        assert_eq!(little.unwrap_err().code(), Status::INVALID_FIELD);
        assert!(fetch(&mut client).await.is_ok());
        drop(client);
        is_sound(&server).await;
    });
}

/// A host that stops at any step loses its connection, and room for others returns. In simulation:
/// on a busy machine, a real host may need longer than a short time limit before it stalls.
#[test]
fn stalled_exchanges_end() {
    in_simulation(1, async || {
        let server =
            server(TargetConfig::default(), KeyPair::shared(&KeyRing::new(vec![secret(1)])));
        for step in 0..4 {
            let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
            let mut host = exchange(secret(1), Some(secret(1)), DhGroup::Null);
            if step > 0 {
                send(&mut client, &host.negotiate()).await;
            }
            if step > 1 {
                let challenge = fetch(&mut client).await.unwrap();
                let Ok(HostStep::Reply(reply)) = host.fetched(&challenge) else { panic!() };
                if step > 2 {
                    send(&mut client, &reply).await;
                }
            }
            client.closed().await;
        }
        eventually("all count as abandoned", || failures(&server, FailureReason::Abandoned) == 4)
            .await;
    });
}

/// One address cannot take all handshakes, nor keep attached hosts from reading.
#[test]
fn handshakes_in_flight_are_bounded() {
    on_each_driver(async || {
        let server = server(TargetConfig::default(), one_key());
        let mut held = Vec::new();
        let busy = loop {
            let mut client = Client::initialized(&server, &options()).await;
            let completion = client.connect(&options(), 0, CONTROLLER_ID_DYNAMIC).await;
            if !completion.status().is_success() {
                break completion.status();
            }
            held.push(client);
        };
        // Retried by hosts.
        assert_eq!((busy, held.len()), (Status::CONNECT_CONTROLLER_BUSY, 32));
        server.still_serves().await;
        held.clear();
        eventually("room again", || failures(&server, FailureReason::Abandoned) == 32).await;
        is_sound(&server).await;
    });
}

/// Time of `count` reads, one after the other, of an attached host.
async fn reading(host: &mut Client, count: u16) -> Duration {
    let began = time::now();
    for _ in 0..count {
        host.read(1, 0, 512, 4096).await.unwrap();
    }
    began.elapsed()
}

/// In simulation, where computing takes no time: what a flood makes others wait for.
#[test]
fn handshake_flood_leaves_attached_hosts_alone() {
    for seed in 1..=3 {
        in_simulation(seed, async || {
            let server = Rc::new(server(TargetConfig::default(), one_key()));
            let (_admin, id) = admin(&server).await;
            let (mut host, _) = connected(&server, 1, id).await;
            authenticate(&mut host, exchange(secret(1), None, DhGroup::Null)).await.unwrap();
            let alone = reading(&mut host, 1000).await;
            let stop = Rc::new(Cell::new(false));
            // More than may be in flight, each with a wrong key, again and again.
            let flood: Vec<_> = (0..64)
                .map(|_| {
                    let (server, stop) = (server.clone(), stop.clone());
                    spawn(async move {
                        while !stop.get() {
                            let mut client = Client::initialized(&server, &options()).await;
                            let dynamic = CONTROLLER_ID_DYNAMIC;
                            let connected = client.connect(&options(), 0, dynamic).await;
                            if connected.status().is_success() {
                                let guess = exchange(secret(2), None, DhGroup::Null);
                                assert!(authenticate(&mut client, guess).await.is_err());
                            }
                        }
                    })
                })
                .collect();
            let refused = || {
                failures(&server, FailureReason::Refused(Explanation::Failed)) > 0
                    && failures(&server, FailureReason::Busy) > 0
            };
            eventually("the flood is refused", refused).await;
            let flooded = reading(&mut host, 1000).await;
            assert!(flooded <= alone.mul_f64(1.1), "{flooded:?} {alone:?}");
            stop.set(true);
            for one in flood {
                one.await.unwrap();
            }
        });
    }
}
