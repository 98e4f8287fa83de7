//! Get Log Page (Base 5.1.12).
//!
//! A log page is never assembled as a whole. It is written piecewise into a [`LogPageWindow`],
//! which keeps the part that the host requested. The requested range is checked against the length
//! of the page before anything is written or allocated.

use flagstone_nvme::command::Sqe;
use flagstone_nvme::command::admin::GetLogPage;
use flagstone_nvme::feature::{FeatureId, capability};
use flagstone_nvme::identify::NamespaceList;
use flagstone_nvme::identify::csi;
use flagstone_nvme::limits::NAMESPACE_ID_ALL;
use flagstone_nvme::log::{
    AnaGroup, AnaHeader, CommandEffects, Effects, ErrorEntry, FirmwareSlots, LogId,
    ReservationNotification, SmartHealth, SupportedPages, ana, window,
};
use flagstone_nvme::opcode::{AdminOpcode, IoOpcode};
use flagstone_nvme::status::Status;
use flagstone_nvme::wire::{U16, U32, U64, U128, Wire};

use flagstone_runtime::BufMut;

use super::admin::reply_data;
use super::config::ana_log_bytes;
use super::controller::Controller;
use super::feature::{DISCOVERY_FEATURES, IO_FEATURES};
use super::identify::{ANA_GROUP, PENDING_ANA_GROUP};
use super::namespace::{NamespaceTable, PENDING_ANA};
use super::vendor::CommandReply;
use crate::limits::ERROR_LOG_ENTRIES;

/// Log pages of I/O controllers.
const IO_LOGS: [LogId; 10] = [
    LogId::SUPPORTED_PAGES,
    LogId::ERROR,
    LogId::SMART,
    LogId::FIRMWARE_SLOT,
    LogId::CHANGED_NAMESPACES,
    LogId::COMMAND_EFFECTS,
    LogId::ANA,
    LogId::FEATURE_EFFECTS,
    LogId::RESERVATION,
    MI_EFFECTS,
];
/// Log pages of discovery controllers.
const DISCOVERY_LOGS: [LogId; 3] = [LogId::SUPPORTED_PAGES, LogId::ERROR, LogId::DISCOVERY];
/// NVMe-MI Commands Supported and Effects: always empty.
const MI_EFFECTS: LogId = LogId(0x13);
const MI_EFFECTS_BYTES: u64 = 4096;

/// FSUPP, and the scope of a feature or command in bits 20 and up: namespace, then controller (Base
/// 5.1.12.1.6, 5.1.12.1.18).
const FEATURE_SUPPORTED: u32 = 1;
const SCOPE_NAMESPACE: u32 = 1 << 20;
const SCOPE_CONTROLLER: u32 = 1 << 21;

/// Requested part of a log page.
pub(super) struct LogPageWindow {
    data: BufMut,
    /// Offset of the part within the page.
    offset: u64,
    /// Bytes of the page written so far.
    at: u64,
}

impl LogPageWindow {
    /// Creates a zeroed window for the part of a page of `page_bytes` that `get` requests.
    ///
    /// # Errors
    /// Invalid Field for an offset beyond the page or more than `most` bytes; every error of
    /// [`reply_data`].
    pub(super) fn new(
        command: &Sqe,
        get: &GetLogPage,
        page_bytes: u64,
        most: u32,
    ) -> Result<LogPageWindow, Status> {
        // No page here has an index of entries.
        if get.offset_is_index || get.data_bytes > u64::from(most) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        window(page_bytes, get.offset, get.data_bytes)?;
        let data = reply_data(command, get.data_bytes as usize)?;
        Ok(LogPageWindow { data, offset: get.offset, at: 0 })
    }

    /// Writes the next bytes of the page.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let from = self.at;
        self.at = from.saturating_add(bytes.len() as u64);
        // Intersection of `bytes` and the window, relative to each.
        let skip = usize::try_from(self.offset.saturating_sub(from)).unwrap_or(usize::MAX);
        let Some(bytes) = bytes.get(skip..) else { return };
        let start = usize::try_from(from.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let Some(room) = self.data.get_mut(start..) else { return };
        let count = bytes.len().min(room.len());
        room[..count].copy_from_slice(&bytes[..count]);
    }

    /// Skips the next bytes of the page, which stay zero.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.at = self.at.saturating_add(bytes);
    }

    /// True if any of the next `bytes` bytes was requested.
    pub(super) fn wants(&self, bytes: u64) -> bool {
        let end = self.offset.saturating_add(self.data.len() as u64);
        self.at < end && self.at.saturating_add(bytes) > self.offset
    }

    /// True if the rest of the page was not requested.
    pub(super) fn is_full(&self) -> bool {
        self.at >= self.offset.saturating_add(self.data.len() as u64)
    }

    pub(super) fn done(self) -> CommandReply {
        CommandReply::success(Some(self.data))
    }
}

impl Controller {
    pub(super) fn get_log_page(&self, command: &Sqe) -> Result<CommandReply, Status> {
        let get = GetLogPage::parse(command);
        let logs: &[LogId] = if self.is_discovery() { &DISCOVERY_LOGS } else { &IO_LOGS };
        if !logs.contains(&get.log) {
            return Err(Status::INVALID_LOG_PAGE.dnr());
        }
        let done = match get.log {
            LogId::SUPPORTED_PAGES => {
                let mut pages = SupportedPages::default();
                logs.iter().for_each(|&log| pages.add(log));
                self.page(command, &get, pages.bytes())
            }
            LogId::ERROR => self.error_log(command, &get),
            // LPA reports no per-namespace SMART log.
            LogId::SMART if !matches!(get.nsid, 0 | NAMESPACE_ID_ALL) => {
                Err(Status::INVALID_FIELD.dnr())
            }
            LogId::SMART => self.page(command, &get, self.smart().bytes()),
            LogId::FIRMWARE_SLOT => {
                let slots = FirmwareSlots::one(&self.target.config().firmware);
                self.page(command, &get, slots.bytes())
            }
            LogId::CHANGED_NAMESPACES => self.changed_namespaces(command, &get),
            LogId::COMMAND_EFFECTS if get.csi != csi::NVM => Err(Status::INVALID_FIELD.dnr()),
            LogId::COMMAND_EFFECTS => {
                let effects = command_effects(&self.snapshot());
                self.page(command, &get, effects.bytes())
            }
            LogId::ANA => self.ana_log(command, &get),
            LogId::FEATURE_EFFECTS => self.page(command, &get, self.feature_effects().bytes()),
            LogId::DISCOVERY => self.discovery_log(command, &get),
            LogId::RESERVATION => {
                let mut window =
                    self.window(command, &get, ReservationNotification::BYTES as u64)?;
                let notification = self.events.reservation_notification(get.retain_event);
                window.push(notification.bytes());
                return Ok(window.done());
            }
            _ => Ok(self.window(command, &get, MI_EFFECTS_BYTES)?.done()),
        }?;
        if !get.retain_event {
            self.events.log_read(get.log);
        }
        Ok(done)
    }

    /// Window for the requested part of a page of `page_bytes`.
    pub(super) fn window(
        &self,
        command: &Sqe,
        get: &GetLogPage,
        page_bytes: u64,
    ) -> Result<LogPageWindow, Status> {
        LogPageWindow::new(command, get, page_bytes, self.target.config().mdts_bytes)
    }

    fn page(&self, command: &Sqe, get: &GetLogPage, page: &[u8]) -> Result<CommandReply, Status> {
        let mut window = self.window(command, get, page.len() as u64)?;
        window.push(page);
        Ok(window.done())
    }

    fn error_log(&self, command: &Sqe, get: &GetLogPage) -> Result<CommandReply, Status> {
        let page_bytes = (ERROR_LOG_ENTRIES * ErrorEntry::BYTES) as u64;
        let mut window = self.window(command, get, page_bytes)?;
        self.errors.lock().iter().for_each(|entry| window.push(entry.bytes()));
        Ok(window.done())
    }

    fn smart(&self) -> SmartHealth {
        let totals = self.subsystem.totals();
        SmartHealth {
            available_spare: 100,
            spare_threshold: 10,
            data_units_read: SmartHealth::data_units(u128::from(totals.read_bytes)),
            data_units_written: SmartHealth::data_units(u128::from(totals.written_bytes)),
            host_reads: U128::new(u128::from(totals.reads)),
            host_writes: U128::new(u128::from(totals.writes)),
            media_errors: U128::new(u128::from(totals.media_errors)),
            error_entries: U128::new(u128::from(self.error_count())),
            ..SmartHealth::default()
        }
    }

    fn changed_namespaces(&self, command: &Sqe, get: &GetLogPage) -> Result<CommandReply, Status> {
        let mut window = self.window(command, get, NamespaceList::BYTES as u64)?;
        for nsid in self.events.changed_namespaces(get.retain_event) {
            window.push(U32::new(nsid).bytes());
        }
        Ok(window.done())
    }

    fn ana_log(&self, command: &Sqe, get: &GetLogPage) -> Result<CommandReply, Status> {
        let table = self.snapshot();
        let change_count = self.subsystem.ana_changes();
        let groups_only = get.specific & ana::GROUPS_ONLY != 0;
        let mut groups = vec![(ANA_GROUP, table.ana(), table.iter().map(|one| one.nsid).collect())];
        if table.pending().len() > 0 {
            groups.push((PENDING_ANA_GROUP, PENDING_ANA, table.pending().collect::<Vec<u32>>()));
        }
        if groups_only {
            groups.iter_mut().for_each(|(_, _, namespaces)| namespaces.clear());
        }
        let namespaces = groups.iter().map(|(_, _, namespaces)| namespaces.len() as u32).sum();
        let mut window = self.window(command, get, ana_log_bytes(groups.len(), namespaces))?;
        let header = AnaHeader {
            change_count: U64::new(change_count),
            groups: U16::new(groups.len() as u16),
            ..AnaHeader::default()
        };
        window.push(header.bytes());
        for (id, state, namespaces) in groups {
            let group = AnaGroup {
                id: U32::new(id),
                namespaces: U32::new(namespaces.len() as u32),
                change_count: U64::new(change_count),
                state: state.0,
                ..AnaGroup::default()
            };
            window.push(group.bytes());
            namespaces.into_iter().for_each(|nsid| window.push(U32::new(nsid).bytes()));
        }
        Ok(window.done())
    }

    /// Feature Identifiers Supported and Effects, laid out like [`SupportedPages`]: four bytes per
    /// identifier.
    fn feature_effects(&self) -> SupportedPages {
        let mut effects = SupportedPages::default();
        let features: &[FeatureId] =
            if self.is_discovery() { &DISCOVERY_FEATURES } else { &IO_FEATURES };
        for &feature in features {
            if let Some(able) = self.feature_capability(feature) {
                let of_namespace = able & capability::NAMESPACE_SPECIFIC != 0;
                let scope = if of_namespace { SCOPE_NAMESPACE } else { SCOPE_CONTROLLER };
                effects.pages[usize::from(feature.0)] = U32::new(FEATURE_SUPPORTED | scope);
            }
        }
        effects
    }
}

/// Supported commands and their effects.
fn command_effects(table: &NamespaceTable) -> CommandEffects {
    let mut effects = CommandEffects::default();
    for opcode in [
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::IDENTIFY,
        AdminOpcode::ABORT,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::ASYNC_EVENT_REQUEST,
        AdminOpcode::KEEP_ALIVE,
    ] {
        effects.add_admin(opcode, Effects(Effects::SUPPORTED.0 | SCOPE_CONTROLLER));
    }
    // No scope, which is optional: Linux up to 6.3 warns of "unusual effects" of I/O commands for
    // any other bit.
    for opcode in [IoOpcode::FLUSH, IoOpcode::READ, IoOpcode::COMPARE, IoOpcode::VERIFY] {
        effects.add_io(opcode, Effects::SUPPORTED);
    }
    for opcode in
        [IoOpcode::WRITE, IoOpcode::WRITE_ZEROES, IoOpcode::DATASET_MANAGEMENT, IoOpcode::COPY]
    {
        effects.add_io(opcode, Effects::CHANGES_BLOCKS);
    }
    if table.iter().any(|namespace| namespace.reservations.is_some()) {
        for opcode in [
            IoOpcode::RESERVATION_REGISTER,
            IoOpcode::RESERVATION_REPORT,
            IoOpcode::RESERVATION_ACQUIRE,
            IoOpcode::RESERVATION_RELEASE,
        ] {
            effects.add_io(opcode, Effects::SUPPORTED);
        }
    }
    for handler in table.iter().filter_map(|namespace| namespace.vendor.as_ref()) {
        let commands = handler.commands();
        for &opcode in commands.admin {
            effects.add_admin(opcode, Effects(Effects::SUPPORTED.0 | SCOPE_NAMESPACE));
        }
        for &opcode in commands.io {
            effects.add_io(opcode, Effects::CHANGES_BLOCKS);
        }
    }
    effects
}
