//! Fuzz target for sessions with keys: our host and our target, with the messages of one of them
//! tampered with, before, during and after the authentication of each queue.
//!
//! Input: one byte of parameters (bits 1:0: the keys, see [`Keys`]; bit 2: the host's messages are
//! changed, otherwise the target's; bits 7:3: seed of the network), then the input of `tamper`.
//!
//! In addition to the checks of `nvme_host`, whatever an attacker on the network does: a target
//! authenticates no host without its key, and a host uses no target without the controller's key
//! that it demands.

use std::collections::BTreeMap;
use std::time::Duration;

use flagstone_auth::{Hash, KeyDemand, KeyPair, KeyRing, Secret};
use flagstone_nvme::Nqn;
use flagstone_nvmf_host::{HostOptions, RemoteDevice};
use flagstone_nvmf_target::serve;
use flagstone_runtime::net::Address;
use flagstone_runtime::time;

use crate::conversation;
use crate::nvme_target::{subsystem, target_with};
use crate::remote;
use crate::tamper::{Side, Tampering};

/// Time limit for all calls of a host, including its timeouts.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Short, so that a session repeats its authentication while it is used.
const REAUTHENTICATION: Duration = Duration::from_millis(2);

/// Keys of the host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// The host proves itself.
    OneWay,
    /// Both prove themselves.
    Mutual,
    /// The host has another key than the target knows.
    WrongHost,
    /// The host demands the proof of another controller's key.
    WrongController,
}

/// Attaches, uses and detaches a namespace.
pub fn run(input: &[u8]) {
    let Some((&parameters, rest)) = input.split_first() else { return };
    let side = if parameters & 4 == 0 { Side::Server } else { Side::Client };
    let Some(tampering) = Tampering::parse(side, rest) else { return };
    let keys = match parameters & 3 {
        0 => Keys::OneWay,
        1 => Keys::Mutual,
        2 => Keys::WrongHost,
        _ => Keys::WrongController,
    };
    let mine = match keys {
        Keys::OneWay => pair(1, None),
        Keys::Mutual => pair(1, Some(2)),
        Keys::WrongHost => pair(3, Some(2)),
        Keys::WrongController => pair(1, Some(3)),
    };
    let target = target_with(BTreeMap::from([(host(), pair(1, Some(2)))]));
    let observed = target.clone();
    let serve = move |stream| serve(target.clone(), stream);
    conversation::run_tampered(u64::from(parameters >> 3), tampering, serve, async |address| {
        let all = use_it(address, keys, mine);
        time::timeout(TIMEOUT, all).await.expect("a host times out");
    });
    assert_eq!(observed.controllers(), 0, "a controller was not released with its host");
    if keys == Keys::WrongHost {
        let totals = observed.authentication_totals();
        assert_eq!(totals.succeeded, 0, "a host without the key was authenticated");
    }
}

async fn use_it(address: Address, keys: Keys, mine: KeyPair) {
    let options = HostOptions {
        host_nqn: Some(host()),
        keys: Some(mine),
        reauthentication_interval: REAUTHENTICATION,
        queue_depth: 16,
        nsid: Some(1),
        keep_alive: Duration::from_secs(2),
        command_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(2),
        loss_timeout: Duration::from_secs(5),
        ..HostOptions::default()
    };
    if let Ok(device) = RemoteDevice::connect(address, &subsystem(), options).await {
        assert!(keys != Keys::WrongController, "a target without the key was trusted");
        remote::use_device(&*device).await;
        device.disconnect().await;
    }
}

fn host() -> Nqn {
    Nqn::from_uuid([7; 16])
}

fn pair(host: u8, controller: Option<u8>) -> KeyPair {
    let controller = controller.map(ring);
    KeyPair { host: ring(host), controller, demand: KeyDemand::Required }
}

fn ring(byte: u8) -> KeyRing {
    KeyRing::new(vec![Secret::new(&[byte; 32], Some(Hash::Sha256)).expect("a valid length")])
}
