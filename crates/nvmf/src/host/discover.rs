//! What a target serves: its discovery log, read.

use std::rc::Rc;

use flagstone_nvme::command::admin::GetLogPage;
use flagstone_nvme::log::discovery::SubsystemType;
use flagstone_nvme::log::{DiscoveryEntry, DiscoveryHeader, LogId};
use flagstone_nvme::wire::Wire;
use flagstone_nvme::{Cqe, Nqn};
use flagstone_runtime::net::Address;
use flagstone_runtime::{BufMut, buf, time};

use super::command::{Data, Outcome};
use super::connect::{Admin, Place};
use super::gate::Gate;
use super::{HostError, HostOptions};
use crate::limits::{HOST_DISCOVERY_ATTEMPTS, HOST_DISCOVERY_ENTRIES};

/// Entries in one read: 4 KiB, which no limit on transfers is below.
const ENTRIES_AT_ONCE: u64 = 4;

/// An NVM subsystem, and one address where it can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredSubsystem {
    /// Its name.
    pub subnqn: Nqn,
    /// Where to connect.
    pub address: Address,
    /// The subsystem's port that the address is of.
    pub port_id: u16,
}

/// Asks the discovery service at `address` for the NVM subsystems that this host may connect to
/// over TCP, an entry for each subsystem and address. Referrals are not followed; entries that
/// cannot be understood are left out.
///
/// # Errors
/// Why it cannot be asked, in less than [`HostOptions::connect_timeout`].
pub async fn discover(
    address: Address,
    options: &HostOptions,
) -> Result<Vec<DiscoveredSubsystem>, HostError> {
    let keep_alive = std::time::Duration::ZERO;
    let options = HostOptions { keep_alive, ..options.clone() };
    let patience = options.connect_timeout;
    let place = Place::new(address, Nqn::discovery(), options)?;
    time::timeout(patience, read(&place)).await?
}

async fn read(place: &Place) -> Result<Vec<DiscoveredSubsystem>, HostError> {
    let admin = Admin::connect(place, Rc::<Gate>::default()).await?;
    match read_all(&admin).await {
        Ok(found) => Ok(found),
        Err(error) => Err(admin.end.explain(error)),
    }
}

async fn read_all(admin: &Admin) -> Result<Vec<DiscoveredSubsystem>, HostError> {
    for _ in 0..HOST_DISCOVERY_ATTEMPTS {
        let (generation, entries) = read_header(admin).await?;
        let found = read_entries(admin, entries).await?;
        if read_header(admin).await?.0 == generation {
            // A target that does not shut down in order is no reason to fail.
            let _ = admin.shut_down().await;
            return Ok(found);
        }
    }
    Err(HostError::Nonsense("a discovery log that changes all the time"))
}

async fn read_header(admin: &Admin) -> Result<(u64, u64), HostError> {
    let page = read_log(admin, 0, DiscoveryHeader::BYTES).await?;
    let header = DiscoveryHeader::view(&page).expect("as long as was asked for");
    if header.record_format.get() != 0 {
        return Err(HostError::Unsupported("another format of the discovery log"));
    }
    let entries = header.entries.get();
    if entries > HOST_DISCOVERY_ENTRIES {
        return Err(HostError::Nonsense("a discovery log of more than 4,096 entries"));
    }
    Ok((header.generation.get(), entries))
}

async fn read_entries(admin: &Admin, count: u64) -> Result<Vec<DiscoveredSubsystem>, HostError> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < count {
        let entries = (count - at).min(ENTRIES_AT_ONCE);
        let offset = DiscoveryHeader::BYTES as u64 + at * DiscoveryEntry::BYTES as u64;
        let page = read_log(admin, offset, entries as usize * DiscoveryEntry::BYTES).await?;
        found.extend(DiscoveryEntry::view_list(&page).iter().filter_map(understand));
        at += entries;
    }
    Ok(found)
}

fn understand(entry: &DiscoveryEntry) -> Option<DiscoveredSubsystem> {
    if SubsystemType(entry.subsystem_type) != SubsystemType::NVM {
        return None;
    }
    Some(DiscoveredSubsystem {
        subnqn: entry.subnqn().ok()?,
        address: Address::Tcp(entry.tcp_address()?),
        port_id: entry.port_id.get(),
    })
}

async fn read_log(admin: &Admin, offset: u64, bytes: usize) -> Result<BufMut, HostError> {
    let log = GetLogPage::new(LogId::DISCOVERY, 0, offset, bytes as u32);
    let command = log.command(0).expect("a multiple of 4 bytes");
    let place = Data::In(buf::alloc(bytes).await);
    match admin.queue.run(&command, place).await {
        (Outcome::Completed(cqe), Data::In(page)) if cqe.status().is_success() => Ok(page),
        (Outcome::Completed(cqe), _) => Err(refused(&cqe)),
        (Outcome::Lost, _) => Err(HostError::Closed),
    }
}

fn refused(cqe: &Cqe) -> HostError {
    HostError::Refused { what: "the discovery log", status: cqe.status() }
}
