//! Discovery logs of broken or malicious targets.

mod common;
#[path = "../../nvmf-target/tests/support/harness.rs"]
mod support;

use std::cell::Cell;

use common::fake::{Fake, Quirks};
use common::options;
use flagstone_nvme::Nqn;
use flagstone_nvme::log::discovery::SubsystemType;
use flagstone_nvme::log::{DiscoveryEntry, DiscoveryHeader};
use flagstone_nvme::wire::{U16, U64, Wire};
use flagstone_nvmf_host::{DiscoveredSubsystem, HostError, discover};
use support::on_each_driver;

fn log(header: DiscoveryHeader, entries: &[DiscoveryEntry]) -> Vec<u8> {
    let mut bytes = header.bytes().to_vec();
    entries.iter().for_each(|entry| bytes.extend_from_slice(entry.bytes()));
    bytes
}

async fn found(
    discovery: impl Fn() -> Vec<u8> + 'static,
) -> Result<Vec<DiscoveredSubsystem>, HostError> {
    let quirks = Quirks { discovery: Some(Box::new(discovery)), ..Quirks::default() };
    let fake = Fake::start(quirks);
    discover(fake.address.clone(), &options()).await
}

#[test]
fn long_log_with_invalid_entries() {
    on_each_driver(async || {
        let name = Nqn::new("nqn.2024-01.example:db").unwrap();
        let tcp = |port: u16| {
            let at = std::net::SocketAddr::from(([192, 0, 2, 1], port));
            DiscoveryEntry::tcp(SubsystemType::NVM, &name, at, port)
        };
        let mut entries: Vec<_> = (1..=9).map(tcp).collect();
        entries[2].transport = 1;
        entries[4].subnqn = [b'x'; 256];
        entries[5].subsystem_type = SubsystemType::REFERRAL.0;
        entries[7].service = [b'9'; 32];
        let header = DiscoveryHeader { entries: U64::new(9), ..Default::default() };
        let found = found(move || log(header, &entries)).await.unwrap();
        let ports: Vec<u16> = found.iter().map(|entry| entry.port_id).collect();
        assert_eq!(ports, [1, 2, 4, 7, 9]);
        assert!(found.iter().all(|entry| entry.subnqn == name));
    });
}

#[test]
fn huge_invalid_or_changing_log() {
    on_each_driver(async || {
        let header = |entries: u64, generation: u64, format: u16| DiscoveryHeader {
            entries: U64::new(entries),
            generation: U64::new(generation),
            record_format: U16::new(format),
            ..Default::default()
        };
        for count in [4097, u64::MAX] {
            let refused = found(move || log(header(count, 1, 0), &[])).await;
            assert!(matches!(refused, Err(HostError::InvalidProperties(_))), "{refused:?}");
        }
        let refused = found(move || log(header(0, 1, 1), &[])).await;
        assert!(matches!(refused, Err(HostError::Unsupported(_))), "{refused:?}");
        let reads = Cell::new(0);
        let refused = found(move || {
            reads.set(reads.get() + 1);
            log(header(0, reads.get(), 0), &[])
        })
        .await;
        assert!(matches!(refused, Err(HostError::InvalidProperties(_))), "{refused:?}");
        assert_eq!(found(move || log(header(0, 7, 0), &[])).await.unwrap(), []);
    });
}
