//! Secure channel concatenation: the target's side, with a raw host.

use flagstone_auth::TlsRing;
use flagstone_auth::tls::{Psk, TlsKey};
use flagstone_nvmf_target::{HostTls, TlsFailureReason, TlsMode};
use flagstone_runtime::net::{Socket, Stream};
use flagstone_runtime::tls::TlsClient;

use super::*;

/// Host that asks for concatenation of `kind`: SC_C.
fn concatenating(kind: Concatenation) -> auth::HostExchange {
    let names = Names { host: options().host.to_string(), subsystem: locked().to_string() };
    let options = auth::host::ExchangeOptions {
        names,
        secret: secret(1),
        controller_secrets: vec![secret(2)],
        hashes: Hash::ALL.into(),
        groups: vec![DhGroup::Null, DhGroup::Ffdhe2048],
        concatenation: kind,
    };
    auth::HostExchange::new(options, 7, Randomness::from_words(random_u64))
}

fn with_optional_tls(keys: KeyPair) -> Server {
    let server = server(TargetConfig::default(), keys);
    server.tls.set(TlsMode::Allowed);
    server
}

async fn concatenate(client: &mut Client, kind: Concatenation) -> Result<Psk, HostFailure> {
    let mut host = concatenating(kind);
    assert_eq!(send(client, &host.negotiate()).await, Status::SUCCESS);
    continued(client, &mut host).await
}

/// The rest of an exchange, after its first message.
async fn continued(client: &mut Client, host: &mut auth::HostExchange) -> Result<Psk, HostFailure> {
    let HostStep::Reply(reply) = host.fetched(&fetch(client).await.unwrap())? else {
        panic!("a reply")
    };
    assert_eq!(send(client, &reply).await, Status::SUCCESS);
    let HostStep::Authenticated(Some(final_reply)) = host.fetched(&fetch(client).await.unwrap())?
    else {
        panic!("authenticated")
    };
    assert_eq!(send(client, &final_reply).await, Status::SUCCESS);
    Ok(host.take_psk().expect("a PSK"))
}

/// Connection with TLS by this key; `None` if the handshake fails.
async fn secured(server: &Server, psk: &Psk) -> Option<Socket> {
    let client = TlsClient::with_psks(vec![flagstone_transport::tls_psk(psk.clone())]).unwrap();
    let stream = Stream::connect(&server.address).await.unwrap();
    Some(client.connect(stream, &[]).await.ok()?.into())
}

async fn handshakes(server: &Server, psk: &Psk) -> bool {
    secured(server, psk).await.is_some()
}

/// Connects a queue over TLS, which needs no authentication.
async fn connected_over(server: &Server, psk: &Psk, qid: u16, controller: u16) -> (Client, u16) {
    let socket = secured(server, psk).await.expect("a handshake");
    let mut client = Client::initialized_over(socket, &options()).await;
    let connected = client.connect(&options(), qid, controller).await;
    assert_eq!(connected.status(), Status::SUCCESS);
    let result = ConnectResult::from_dw0(connected.dw0.get());
    assert!(!result.authentication_required);
    (client, result.controller_id)
}

fn mismatch() -> HostFailure {
    HostFailure::Refused(Explanation::ConcatenationMismatch)
}

#[test]
fn host_that_asked_for_tls_gets_no_plain_io_queue() {
    on_each_driver(async || {
        let server = with_optional_tls(both_keys());
        let (mut client, id) = admin(&server).await;
        let psk = concatenate(&mut client, Concatenation::NewPsk).await.unwrap();
        // Nothing is executed in plain text that is not needed for it.
        is_locked(&mut client).await;
        let mut io = Client::initialized(&server, &options()).await;
        let refused = io.connect(&options(), 1, id).await;
        assert_eq!(refused.status(), Status::CONNECT_INVALID_HOST.dnr());
        assert_eq!(failures(&server, FailureReason::NoTls), 1);
        assert!(handshakes(&server, &psk).await);
        // Nor does one with TLS get it.
        let (mut secured_admin, id) = connected_over(&server, &psk, 0, CONTROLLER_ID_DYNAMIC).await;
        assert_eq!(secured_admin.configure(enabled()).await, Status::SUCCESS);
        let mut io = Client::initialized(&server, &options()).await;
        let refused = io.connect(&options(), 1, id).await;
        assert_eq!(refused.status(), Status::CONNECT_INVALID_HOST.dnr());
        assert_eq!(failures(&server, FailureReason::NoTls), 2);
        drop(connected_over(&server, &psk, 1, id).await);
        // Its other controllers are not concerned.
        let (_other, other_id) = admin(&server).await;
        drop(connected(&server, 1, other_id).await);
        drop((client, io, secured_admin));
    });
}

#[test]
fn concatenation_is_refused_where_tls_cannot_follow() {
    on_each_driver(async || {
        let server = server(TargetConfig::default(), both_keys());
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let off = concatenate(&mut client, Concatenation::NewPsk).await;
        assert_eq!(off.unwrap_err(), mismatch());
        client.closed().await;
        server.tls.set(TlsMode::Allowed);
        // There is no PSK to replace.
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let plain = concatenate(&mut client, Concatenation::ReplacePsk).await;
        assert_eq!(plain.unwrap_err(), mismatch());
        client.closed().await;
        let (mut admin, id) = admin(&server).await;
        let (mut io, _) = connected(&server, 1, id).await;
        assert_eq!(concatenate(&mut io, Concatenation::NewPsk).await.unwrap_err(), mismatch());
        io.closed().await;
        // I/O queues would stay without TLS.
        let (io, _) = connected(&server, 2, id).await;
        assert_eq!(concatenate(&mut admin, Concatenation::NewPsk).await.unwrap_err(), mismatch());
        admin.closed().await;
        drop(io);
        let reason = FailureReason::Refused(Explanation::ConcatenationMismatch);
        assert_eq!(failures(&server, reason), 4);
    });
}

/// The exchange has begun when an I/O queue without TLS joins: the host must not believe that it
/// has a PSK.
#[test]
fn psk_that_cannot_be_kept_is_refused_to_the_host() {
    on_each_driver(async || {
        let server = with_optional_tls(both_keys());
        let (mut client, id) = admin(&server).await;
        let mut begun = concatenating(Concatenation::NewPsk);
        assert_eq!(send(&mut client, &begun.negotiate()).await, Status::SUCCESS);
        let (io, _) = connected(&server, 1, id).await;
        let Ok(HostStep::Reply(reply)) = begun.fetched(&fetch(&mut client).await.unwrap()) else {
            panic!("a reply")
        };
        assert_eq!(send(&mut client, &reply).await, Status::SUCCESS);
        let refused = begun.fetched(&fetch(&mut client).await.unwrap());
        assert_eq!(refused.unwrap_err(), mismatch());
        client.closed().await;
        drop(io);
        let reason = FailureReason::Refused(Explanation::ConcatenationMismatch);
        assert_eq!(failures(&server, reason), 1);
        assert_eq!(server.target.generated_psks(), 0);
        is_sound(&server).await;
    });
}

/// From the reply on, the host is promised the PSK, so no I/O queue without TLS comes in between.
#[test]
fn promised_psk_keeps_plain_io_queues_out() {
    on_each_driver(async || {
        let server = with_optional_tls(both_keys());
        let (mut client, id) = admin(&server).await;
        let mut begun = concatenating(Concatenation::NewPsk);
        assert_eq!(send(&mut client, &begun.negotiate()).await, Status::SUCCESS);
        let Ok(HostStep::Reply(reply)) = begun.fetched(&fetch(&mut client).await.unwrap()) else {
            panic!("a reply")
        };
        assert_eq!(send(&mut client, &reply).await, Status::SUCCESS);
        let mut io = Client::initialized(&server, &options()).await;
        let refused = io.connect(&options(), 1, id).await;
        assert_eq!(refused.status(), Status::CONNECT_INVALID_HOST.dnr());
        let Ok(HostStep::Authenticated(Some(final_reply))) =
            begun.fetched(&fetch(&mut client).await.unwrap())
        else {
            panic!("authenticated")
        };
        assert_eq!(server.target.generated_psks(), 0);
        assert_eq!(send(&mut client, &final_reply).await, Status::SUCCESS);
        assert!(handshakes(&server, &begun.take_psk().unwrap()).await);
        drop((client, io));
        is_sound(&server).await;
    });
}

/// In simulation: time passes at once. The host has used the queue for longer than a handshake may
/// take, and still has the full time to reconnect with TLS.
#[test]
fn host_has_time_to_reconnect_with_its_psk() {
    in_simulation(1, async || {
        let timeout = TargetConfig::default().handshake_timeout;
        let second = Duration::from_secs(1);
        let server = with_optional_tls(both_keys());
        let (mut client, _) = admin(&server).await;
        time::sleep(timeout * 3).await;
        let psk = concatenate(&mut client, Concatenation::NewPsk).await.unwrap();
        time::sleep(timeout - second).await;
        is_locked(&mut client).await;
        time::sleep(second * 3).await;
        client.closed().await;
        assert!(handshakes(&server, &psk).await);
    });
}

/// In simulation: time passes at once. A second exchange, without concatenation, neither opens the
/// plain queue nor gives the host more time.
#[test]
fn plain_queue_that_made_a_psk_stays_locked() {
    in_simulation(1, async || {
        let timeout = TargetConfig::default().handshake_timeout;
        let second = Duration::from_secs(1);
        let server = with_optional_tls(both_keys());
        let (mut client, _) = admin(&server).await;
        concatenate(&mut client, Concatenation::NewPsk).await.unwrap();
        time::sleep(timeout - second).await;
        let mut host = concatenating(Concatenation::None);
        assert_eq!(send(&mut client, &host.negotiate()).await, Status::SUCCESS);
        let reply = host.fetched(&fetch(&mut client).await.unwrap()).unwrap();
        let HostStep::Reply(reply) = reply else { panic!("a reply") };
        assert_eq!(send(&mut client, &reply).await, Status::SUCCESS);
        let last = host.fetched(&fetch(&mut client).await.unwrap()).unwrap();
        let HostStep::Authenticated(last) = last else { panic!("authenticated") };
        assert_eq!(send(&mut client, &last.expect("a last message")).await, Status::SUCCESS);
        is_locked(&mut client).await;
        time::sleep(second * 3).await;
        client.closed().await;
    });
}

/// Somebody who has the PSK of one pair of names gives other names in Connect, or in the identity.
#[test]
fn generated_psk_opens_nothing_for_other_names() {
    on_each_driver(async || {
        let server = with_optional_tls(both_keys());
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let psk = concatenate(&mut client, Concatenation::NewPsk).await.unwrap();
        let others = [
            Options { subsystem: support::subsystem(), ..options() },
            Options { host: Nqn::from_uuid([8; 16]), ..options() },
        ];
        for (at, other) in others.iter().enumerate() {
            let socket = secured(&server, &psk).await.expect("a handshake");
            let mut client = Client::initialized_over(socket, other).await;
            let refused = client.connect(other, 0, CONTROLLER_ID_DYNAMIC).await;
            assert_eq!(refused.status(), Status::CONNECT_INVALID_HOST.dnr());
            assert_eq!(failures(&server, FailureReason::OtherIdentity), 1 + at as u64);
            let identity = String::from_utf8(psk.identity.clone()).unwrap();
            let identity = identity
                .replace(&options().host.to_string(), &other.host.to_string())
                .replace(&locked().to_string(), &other.subsystem.to_string());
            assert_ne!(identity.as_bytes(), psk.identity);
            let renamed = Psk { identity: identity.into_bytes(), ..psk.clone() };
            assert!(!handshakes(&server, &renamed).await);
        }
        assert!(handshakes(&server, &psk).await);
        drop(client);
    });
}

#[test]
fn psk_is_replaced_only_over_tls() {
    on_each_driver(async || {
        let server = with_optional_tls(both_keys());
        let (mut plain, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let first = concatenate(&mut plain, Concatenation::NewPsk).await.unwrap();
        drop(plain);
        let (mut admin, id) = connected_over(&server, &first, 0, CONTROLLER_ID_DYNAMIC).await;
        assert_eq!(admin.configure(enabled()).await, Status::SUCCESS);
        let second = concatenate(&mut admin, Concatenation::ReplacePsk).await.unwrap();
        let third = concatenate(&mut admin, Concatenation::ReplacePsk).await.unwrap();
        for replaced in [&first, &second] {
            assert!(!handshakes(&server, replaced).await);
        }
        let (mut io, _) = connected_over(&server, &third, 1, id).await;
        let data = pattern(1, 4096);
        io.write(1, 0, 512, &data).await.unwrap();
        assert_eq!(io.read(1, 0, 512, data.len()).await.unwrap(), data);
        let new = concatenate(&mut admin, Concatenation::NewPsk).await;
        assert_eq!(new.unwrap_err(), mismatch());
        admin.closed().await;
        drop(io);
        is_sound(&server).await;
    });
}

/// In simulation: time passes at once.
#[test]
fn expired_psk_opens_nothing() {
    in_simulation(1, async || {
        let server = with_optional_tls(both_keys());
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let psk = concatenate(&mut client, Concatenation::NewPsk).await.unwrap();
        assert!(handshakes(&server, &psk).await);
        let mut other = psk.clone();
        other.secret[0] ^= 1;
        assert!(!handshakes(&server, &other).await);
        time::sleep(Duration::from_secs(299)).await;
        assert!(handshakes(&server, &psk).await);
        time::sleep(Duration::from_secs(2)).await;
        assert!(!handshakes(&server, &psk).await);
        let at = |reason| TlsFailureReason::ALL.iter().position(|known| *known == reason).unwrap();
        let failed = server.target.tls_totals().failed;
        assert_eq!(failed[at(TlsFailureReason::WrongKey)], 1);
        assert_eq!(failed[at(TlsFailureReason::UnknownIdentity)], 1);
    });
}

/// A PSK comes from a plain connection, which a listener with required TLS has ruled out.
#[test]
fn generated_psk_opens_no_listener_with_required_tls() {
    on_each_driver(async || {
        let server = with_optional_tls(both_keys());
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let psk = concatenate(&mut client, Concatenation::NewPsk).await.unwrap();
        server.tls.set(TlsMode::Required);
        assert!(!handshakes(&server, &psk).await);
        server.tls.set(TlsMode::Allowed);
        assert!(handshakes(&server, &psk).await);
        drop(client);
    });
}

/// Its TLS key says more than a PSK that anybody with its other key can make.
#[test]
fn host_with_a_tls_key_makes_no_psk() {
    on_each_driver(async || {
        let server = with_optional_tls(both_keys());
        let keys = TlsRing::new(vec![TlsKey::new(&[9; 32], None).unwrap()]);
        let tls = HostTls { keys, required: false };
        server.target.set_tls_keys(&locked(), BTreeMap::from([(options().host, tls)]));
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let refused = concatenate(&mut client, Concatenation::NewPsk).await;
        assert_eq!(refused.unwrap_err(), mismatch());
        client.closed().await;
    });
}

/// In simulation: time passes at once.
#[test]
fn expired_psk_is_erased_without_lookup() {
    in_simulation(1, async || {
        let server = with_optional_tls(both_keys());
        let target = server.target.clone();
        let _erasing = spawn(async move { target.erase_generated_psks().await }).abort_on_drop();
        let (mut client, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        concatenate(&mut client, Concatenation::NewPsk).await.unwrap();
        time::sleep(Duration::from_secs(299)).await;
        // The queue that made it has ended, whether or not its host did that.
        client.closed().await;
        assert_eq!(server.target.controllers(), 0);
        assert_eq!(server.target.generated_psks(), 1);
        time::sleep(Duration::from_secs(12)).await;
        assert_eq!(server.target.generated_psks(), 0);
    });
}

/// A reload replaces the key. The PSK may come from an attacker who has only the old key.
#[test]
fn psk_of_a_replaced_key_opens_nothing() {
    on_each_driver(async || {
        let keys = both_keys();
        let server = with_optional_tls(keys.clone());
        let [mut one, mut other] = [
            connected(&server, 0, CONTROLLER_ID_DYNAMIC).await.0,
            connected(&server, 0, CONTROLLER_ID_DYNAMIC).await.0,
        ];
        let psk = concatenate(&mut one, Concatenation::NewPsk).await.unwrap();
        let mut begun = concatenating(Concatenation::NewPsk);
        assert_eq!(send(&mut other, &begun.negotiate()).await, Status::SUCCESS);
        let waiting = secured(&server, &psk).await.expect("a handshake");
        keys.host.replace(vec![secret(1), secret(3)]);
        assert!(!handshakes(&server, &psk).await);
        // Nor does it where its handshake came before.
        let mut waiting = Client::initialized_over(waiting, &options()).await;
        let refused = waiting.connect(&options(), 0, CONTROLLER_ID_DYNAMIC).await;
        assert_eq!(refused.status(), Status::CONNECT_CONTROLLER_BUSY);
        assert_eq!(failures(&server, FailureReason::PskEnded), 1);
        // Nor does one of an exchange that has begun with the old key.
        let late = continued(&mut other, &mut begun).await.unwrap();
        assert!(!handshakes(&server, &late).await);
        let (mut again, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let new = concatenate(&mut again, Concatenation::NewPsk).await.unwrap();
        assert!(handshakes(&server, &new).await);
        drop((one, other, again));
    });
}

#[test]
fn withdrawn_key_ends_channels_that_it_has_generated() {
    on_each_driver(async || {
        let keys = both_keys();
        let server = with_optional_tls(keys.clone());
        let (mut plain, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let psk = concatenate(&mut plain, Concatenation::NewPsk).await.unwrap();
        drop(plain);
        let (mut admin, id) = connected_over(&server, &psk, 0, CONTROLLER_ID_DYNAMIC).await;
        assert_eq!(admin.configure(enabled()).await, Status::SUCCESS);
        let (io, _) = connected_over(&server, &psk, 1, id).await;
        keys.host.replace(vec![secret(3), secret(1)]);
        assert_eq!(server.target.end_withdrawn(), 0);
        keys.host.replace(vec![secret(3)]);
        assert_eq!(server.target.end_withdrawn(), 1);
        for mut ended in [admin, io] {
            ended.closed().await;
        }
    });
}

/// The PSK outlives the admin queue that made it, because the host then reconnects with TLS.
#[test]
fn psk_ends_with_the_controller_that_uses_it() {
    on_each_driver(async || {
        let server = with_optional_tls(both_keys());
        let (mut plain, _) = connected(&server, 0, CONTROLLER_ID_DYNAMIC).await;
        let first = concatenate(&mut plain, Concatenation::NewPsk).await.unwrap();
        drop(plain);
        eventually("the plain controller ends", || server.target.controllers() == 0).await;
        let (admin, _) = connected_over(&server, &first, 0, CONTROLLER_ID_DYNAMIC).await;
        assert_eq!(server.target.generated_psks(), 1);
        // Its I/O queues fail, and the host tries again by the same PSK.
        drop(admin);
        eventually("the controller ends", || server.target.controllers() == 0).await;
        let (mut admin, id) = connected_over(&server, &first, 0, CONTROLLER_ID_DYNAMIC).await;
        assert_eq!(admin.configure(enabled()).await, Status::SUCCESS);
        let second = concatenate(&mut admin, Concatenation::ReplacePsk).await.unwrap();
        let (io, _) = connected_over(&server, &second, 1, id).await;
        let waiting = secured(&server, &second).await.expect("a handshake");
        drop((admin, io));
        eventually("the controller ends", || server.target.controllers() == 0).await;
        assert_eq!(server.target.generated_psks(), 0);
        assert!(!handshakes(&server, &second).await);
        let mut waiting = Client::initialized_over(waiting, &options()).await;
        let refused = waiting.connect(&options(), 0, CONTROLLER_ID_DYNAMIC).await;
        assert_eq!(refused.status(), Status::CONNECT_CONTROLLER_BUSY);
    });
}
