//! Discovery: reads a target's discovery log.

use std::rc::Rc;

use flagstone_nvme::Nqn;
use flagstone_nvme::command::admin::GetLogPage;
use flagstone_nvme::log::discovery::SubsystemType;
use flagstone_nvme::log::{DiscoveryEntry, DiscoveryHeader, LogId};
use flagstone_nvme::wire::Wire;
use flagstone_runtime::net::Address;
use flagstone_runtime::{BufMut, buf, time};

use super::admission::CommandQueue;
use super::command::CommandData;
use super::connect::{AdminController, ConnectParams, ask};
use super::{HostError, HostOptions};
use crate::limits::{DISCOVERY_ATTEMPTS, DISCOVERY_ENTRIES};

/// Entries per read: 4 KiB, which every transfer limit allows.
const ENTRIES_AT_ONCE: u64 = 4;

/// NVM subsystem, and one address of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredSubsystem {
    /// NQN.
    pub subnqn: Nqn,
    /// Address to connect to.
    pub address: Address,
    /// Port identifier of the address.
    pub port_id: u16,
    /// Hosts have to use TLS there.
    pub requires_tls: bool,
}

/// Reads from the discovery service at `address` the NVM subsystems that this host may connect to
/// over TCP, one entry per subsystem and address. Referrals are not followed, and entries that
/// cannot be parsed are skipped.
///
/// # Errors
/// The cause of the failure, within [`HostOptions::connect_timeout`].
pub async fn discover(
    address: Address,
    options: &HostOptions,
) -> Result<Vec<DiscoveredSubsystem>, HostError> {
    let keep_alive = std::time::Duration::ZERO;
    let options = HostOptions { keep_alive, ..options.clone() };
    let timeout = options.connect_timeout;
    let params = ConnectParams::new(address, Nqn::discovery(), options)?;
    time::timeout(timeout, read(&params)).await?
}

async fn read(params: &ConnectParams) -> Result<Vec<DiscoveredSubsystem>, HostError> {
    let admin = AdminController::connect(params, Rc::<CommandQueue>::default()).await?;
    read_all(&admin).await.map_err(|error| admin.end.explain(error))
}

async fn read_all(admin: &AdminController) -> Result<Vec<DiscoveredSubsystem>, HostError> {
    for _ in 0..DISCOVERY_ATTEMPTS {
        let (generation, entries) = read_header(admin).await?;
        let found = read_entries(admin, entries).await?;
        if read_header(admin).await?.0 == generation {
            // A failed shutdown does not invalidate the log.
            let _ = admin.shut_down().await;
            return Ok(found);
        }
    }
    Err(HostError::InvalidProperties("a discovery log that keeps changing"))
}

async fn read_header(admin: &AdminController) -> Result<(u64, u64), HostError> {
    let page = read_log(admin, 0, DiscoveryHeader::BYTES).await?;
    let header = DiscoveryHeader::view(&page).expect("as long as was asked for");
    if header.record_format.get() != 0 {
        return Err(HostError::Unsupported("another format of the discovery log"));
    }
    let entries = header.entries.get();
    if entries > DISCOVERY_ENTRIES {
        return Err(HostError::InvalidProperties("a discovery log of more than 4,096 entries"));
    }
    Ok((header.generation.get(), entries))
}

async fn read_entries(
    admin: &AdminController,
    count: u64,
) -> Result<Vec<DiscoveredSubsystem>, HostError> {
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
        requires_tls: entry.requires_tls(),
    })
}

async fn read_log(admin: &AdminController, offset: u64, bytes: usize) -> Result<BufMut, HostError> {
    let log = GetLogPage::new(LogId::DISCOVERY, 0, offset, bytes as u32);
    let command = log.command(0).expect("a multiple of 4 bytes");
    let place = CommandData::In(buf::alloc_small(bytes));
    match ask(&admin.queue, "the discovery log", command, place).await?.1 {
        CommandData::In(page) => Ok(page),
        _ => unreachable!("the place comes back"),
    }
}
