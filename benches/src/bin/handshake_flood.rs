//! Handshake flood: connections that guess the key of a host, again and again, until the time is
//! over.
//!
//! Prints how many attempts were refused. It runs on one core, and lets the target compute more
//! than it computes itself only as far as the protocol does.
//!
//! `handshake_flood ADDRESS NQN HOSTNQN [--tls] [--connections N] [--seconds S]`; `--tls` guesses
//! the key of TLS
#![allow(clippy::disallowed_methods, reason = "a program's edge: it starts the runtime")]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_auth::tls::TlsKey;
use flagstone_auth::{Hash, KeyDemand, KeyPair, KeyRing, Secret, TlsRing};
use flagstone_nvme::Nqn;
use flagstone_nvmf_host::{HostOptions, RemoteDevice, RemoteTls};
use flagstone_runtime::net::Address;
use flagstone_runtime::{RuntimeConfig, run, spawn, time};

struct Plan {
    address: Address,
    subsystem: Nqn,
    host: Nqn,
    connections: u64,
    seconds: u64,
    tls: bool,
}

impl Plan {
    fn from_args() -> Result<Plan, String> {
        let mut args = std::env::args().skip(1);
        let mut word = |what: &str| args.next().ok_or_else(|| format!("{what} is missing"));
        let address = word("ADDRESS")?.parse().map_err(|error| format!("ADDRESS: {error}"))?;
        let mut nqn =
            |what: &str| Nqn::new(&word(what)?).map_err(|error| format!("{what}: {error}"));
        let (subsystem, host) = (nqn("NQN")?, nqn("HOSTNQN")?);
        let address = Address::Tcp(address);
        let mut plan = Plan { address, subsystem, host, connections: 128, seconds: 3, tls: false };
        while let Some(flag) = args.next() {
            if flag == "--tls" {
                plan.tls = true;
                continue;
            }
            let value = args.next().and_then(|value| value.parse().ok());
            let value = value.ok_or_else(|| format!("{flag} takes a number"))?;
            match flag.as_str() {
                "--connections" => plan.connections = value,
                "--seconds" => plan.seconds = value,
                _ => return Err(format!("unknown flag {flag}")),
            }
        }
        Ok(plan)
    }

    fn options(&self) -> HostOptions {
        if self.tls {
            let guess = TlsKey::new(&[7; 32], None).expect("32 bytes are a key");
            let tls = RemoteTls::required(TlsRing::new(vec![guess]));
            let host_nqn = Some(self.host);
            return HostOptions { host_nqn, tls: Some(tls), ..HostOptions::default() };
        }
        let guess = Secret::new(&[7; 32], Some(Hash::Sha256)).expect("32 bytes are a secret");
        let keys = KeyPair {
            host: KeyRing::new(vec![guess]),
            controller: None,
            demand: KeyDemand::Required,
        };
        HostOptions { host_nqn: Some(self.host), keys: Some(keys), ..HostOptions::default() }
    }
}

async fn flood(plan: Plan) -> u64 {
    let plan = Rc::new(plan);
    let end = time::now() + Duration::from_secs(plan.seconds);
    let refused = Rc::new(Cell::new(0));
    let tasks: Vec<_> = (0..plan.connections)
        .map(|_| {
            let (plan, refused) = (plan.clone(), refused.clone());
            spawn(async move {
                while time::now() < end {
                    let (address, options) = (plan.address.clone(), plan.options());
                    let guess = RemoteDevice::connect(address, &plan.subsystem, options);
                    if let Ok(Err(_)) = time::timeout(end.since(time::now()), guess).await {
                        refused.set(refused.get() + 1);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        let _ = task.await;
    }
    refused.get()
}

fn main() {
    let plan = Plan::from_args().unwrap_or_else(|error| {
        eprintln!("handshake_flood: {error}");
        std::process::exit(2);
    });
    let seconds = plan.seconds;
    let config = RuntimeConfig { cores: 1, ..RuntimeConfig::default() };
    match run(&config, || flood(plan)) {
        Ok(refused) => println!("{refused} attempts were refused in {seconds} s"),
        Err(error) => {
            eprintln!("handshake_flood: {error}");
            std::process::exit(1);
        }
    }
}
