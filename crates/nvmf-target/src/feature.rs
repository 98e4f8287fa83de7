//! Get Features and Set Features (Base 5.1.11, 5.1.25).
//!
//! No value is saveable. A controller reset restores every default except the keep alive timeout,
//! which belongs to the connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use flagstone_nvme::command::Sqe;
use flagstone_nvme::command::admin::{FeatureSelect, GetFeatures, SetFeatures};
use flagstone_nvme::event::EventMask;
use flagstone_nvme::feature::{
    DEALLOCATED_ERROR, EXTENDED_HOST_ID, FeatureId, HostBehavior, NumberOfQueues, POWER_STATE,
    TemperatureThreshold, WRITE_CACHE_ENABLED, capability,
};
use flagstone_nvme::limits::NAMESPACE_ID_ALL;
use flagstone_nvme::log::reservation::{MASK_ALL, NotificationType};
use flagstone_nvme::status::Status;
use flagstone_nvme::wire::Wire;

use super::admin::reply_data;
use super::config::TargetConfig;
use super::controller::Controller;
use super::identify::{DISCOVERY_EVENTS, IO_EVENTS};
use super::reservation::NamespaceReservations;
use super::vendor::CommandReply;

/// Features of I/O controllers, in addition to the volatile write cache if there is one.
pub(super) const IO_FEATURES: [FeatureId; 16] = [
    FeatureId::ARBITRATION,
    FeatureId::POWER_MANAGEMENT,
    FeatureId::TEMPERATURE_THRESHOLD,
    FeatureId::ERROR_RECOVERY,
    FeatureId::VOLATILE_WRITE_CACHE,
    FeatureId::NUMBER_OF_QUEUES,
    FeatureId::INTERRUPT_COALESCING,
    FeatureId::INTERRUPT_VECTOR,
    FeatureId::WRITE_ATOMICITY,
    FeatureId::ASYNC_EVENTS,
    FeatureId::KEEP_ALIVE_TIMER,
    FeatureId::HOST_BEHAVIOR,
    FeatureId::COMMAND_SET_PROFILE,
    FeatureId::HOST_IDENTIFIER,
    FeatureId::RESERVATION_NOTIFICATION_MASK,
    FeatureId::RESERVATION_PERSISTENCE,
];

/// Features of discovery controllers.
pub(super) const DISCOVERY_FEATURES: [FeatureId; 2] =
    [FeatureId::ASYNC_EVENTS, FeatureId::KEEP_ALIVE_TIMER];

/// Interrupt Vector Configuration: the vector, in requests and results.
const INTERRUPT_VECTOR_NUMBER: u32 = 0xffff;
/// Threshold type and sensor of the composite temperature, the only sensor.
const COMPOSITE: u32 = 0;
/// All sensors.
const ALL_SENSORS: u32 = 15;
/// Default over temperature threshold: never reached.
const TEMPERATURE_OVER_DEFAULT: u16 = 0xffff;

/// Values that the host has set and that the controller only stores.
#[derive(Debug)]
pub(super) struct Features {
    arbitration: u32,
    power: u32,
    /// Over and under threshold, in kelvins.
    temperature: [u16; 2],
    /// Error recovery value by namespace; missing entries are 0.
    error_recovery: BTreeMap<u32, u32>,
    /// Reservation Notification Mask by namespace; missing entries are 0.
    reservation_masks: BTreeMap<u32, u32>,
    write_atomicity: u32,
    queues: NumberOfQueues,
    behavior: HostBehavior,
}

impl Features {
    pub(super) fn new(config: &TargetConfig) -> Features {
        let most = config.max_io_queues;
        Features {
            arbitration: 0,
            power: 0,
            temperature: [TEMPERATURE_OVER_DEFAULT, 0],
            error_recovery: BTreeMap::new(),
            reservation_masks: BTreeMap::new(),
            write_atomicity: 0,
            queues: NumberOfQueues { submission: most, completion: most },
            behavior: HostBehavior::default(),
        }
    }
}

/// Data of Set Features for `feature`, in bytes.
pub(super) fn set_data_bytes(feature: FeatureId) -> u32 {
    match feature {
        FeatureId::HOST_BEHAVIOR => HostBehavior::BYTES as u32,
        _ => 0,
    }
}

impl Controller {
    /// Capabilities of a feature ([`capability`]); `None` if this controller lacks it.
    pub(super) fn feature_capability(&self, feature: FeatureId) -> Option<u32> {
        let supported = if self.is_discovery() {
            DISCOVERY_FEATURES.contains(&feature)
        } else {
            IO_FEATURES.contains(&feature)
        };
        match feature {
            _ if !supported => None,
            FeatureId::VOLATILE_WRITE_CACHE if !self.volatile_cache => None,
            // There are no interrupts over fabrics.
            FeatureId::HOST_IDENTIFIER
            | FeatureId::INTERRUPT_COALESCING
            | FeatureId::INTERRUPT_VECTOR => Some(0),
            FeatureId::ERROR_RECOVERY | FeatureId::RESERVATION_NOTIFICATION_MASK => {
                Some(capability::CHANGEABLE | capability::NAMESPACE_SPECIFIC)
            }
            // Reservation Register changes it.
            FeatureId::RESERVATION_PERSISTENCE => Some(capability::NAMESPACE_SPECIFIC),
            _ => Some(capability::CHANGEABLE),
        }
    }

    pub(super) fn get_features(&self, command: &Sqe) -> Result<CommandReply, Status> {
        let get = GetFeatures::parse(command);
        let able = self.feature_capability(get.feature).ok_or(Status::INVALID_FIELD.dnr())?;
        match get.select {
            FeatureSelect::Supported => Ok(CommandReply::result(able)),
            FeatureSelect::Reserved(_) => Err(Status::INVALID_FIELD.dnr()),
            FeatureSelect::Current => self.current(command, &get),
            // A feature without a saved value reports its default.
            FeatureSelect::Default | FeatureSelect::Saved => self.default_value(command, &get),
        }
    }

    fn default_value(&self, command: &Sqe, get: &GetFeatures) -> Result<CommandReply, Status> {
        match get.feature {
            FeatureId::HOST_BEHAVIOR => {
                Ok(CommandReply::success(Some(reply_data(command, HostBehavior::BYTES)?)))
            }
            FeatureId::HOST_IDENTIFIER | FeatureId::KEEP_ALIVE_TIMER => self.current(command, get),
            FeatureId::VOLATILE_WRITE_CACHE => Ok(CommandReply::result(1)),
            FeatureId::ASYNC_EVENTS => Ok(CommandReply::result(0)),
            _ => self.kept(get, &Features::new(self.target.config())),
        }
    }

    fn current(&self, command: &Sqe, get: &GetFeatures) -> Result<CommandReply, Status> {
        match get.feature {
            FeatureId::VOLATILE_WRITE_CACHE => {
                Ok(CommandReply::result(u32::from(!self.is_write_through())))
            }
            FeatureId::ASYNC_EVENTS => Ok(CommandReply::result(self.events.enabled().0)),
            FeatureId::KEEP_ALIVE_TIMER => Ok(CommandReply::result(self.keep_alive.timeout_ms())),
            FeatureId::HOST_IDENTIFIER => {
                // Host identifiers have 128 bits over fabrics.
                if get.parameter & EXTENDED_HOST_ID == 0 {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                let mut data = reply_data(command, self.host.id.len())?;
                data.copy_from_slice(&self.host.id);
                Ok(CommandReply::success(Some(data)))
            }
            FeatureId::HOST_BEHAVIOR => {
                let mut data = reply_data(command, HostBehavior::BYTES)?;
                data.copy_from_slice(self.features.lock().behavior.bytes());
                Ok(CommandReply::success(Some(data)))
            }
            _ => self.kept(get, &self.features.lock()),
        }
    }

    /// Value of a feature that the controller only stores.
    fn kept(&self, get: &GetFeatures, features: &Features) -> Result<CommandReply, Status> {
        let value = match get.feature {
            FeatureId::ARBITRATION => features.arbitration,
            FeatureId::POWER_MANAGEMENT => features.power,
            FeatureId::TEMPERATURE_THRESHOLD => {
                let (over_or_under, _) = temperature(get.parameter, false)?;
                u32::from(features.temperature[over_or_under])
            }
            // Suites that know controllers of version 1.0 read it without a namespace.
            FeatureId::ERROR_RECOVERY if get.nsid == 0 => 0,
            FeatureId::ERROR_RECOVERY => {
                self.snapshot().find(get.nsid)?;
                features.error_recovery.get(&get.nsid).copied().unwrap_or(0)
            }
            FeatureId::RESERVATION_NOTIFICATION_MASK => {
                self.reservations(get.nsid)?;
                features.reservation_masks.get(&get.nsid).copied().unwrap_or(0)
            }
            FeatureId::RESERVATION_PERSISTENCE => self.reservations(get.nsid)?.persists().into(),
            FeatureId::NUMBER_OF_QUEUES => features.queues.to_dword(),
            FeatureId::WRITE_ATOMICITY => features.write_atomicity,
            // The only command set profile.
            FeatureId::COMMAND_SET_PROFILE => 0,
            FeatureId::INTERRUPT_COALESCING => 0,
            FeatureId::INTERRUPT_VECTOR => {
                let vector = get.parameter & INTERRUPT_VECTOR_NUMBER;
                if vector > u32::from(self.target.config().max_io_queues) {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                vector
            }
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        Ok(CommandReply::result(value))
    }

    pub(super) fn set_features(&self, command: &Sqe, data: &[u8]) -> Result<CommandReply, Status> {
        let set = SetFeatures::parse(command);
        let able = self.feature_capability(set.feature).ok_or(Status::INVALID_FIELD.dnr())?;
        if set.save {
            return Err(Status::FEATURE_NOT_SAVEABLE.dnr());
        }
        // Only Connect sets the host identifier over fabrics (Base 5.1.25.1.28).
        if set.feature == FeatureId::HOST_IDENTIFIER {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        if able & capability::CHANGEABLE == 0 {
            return Err(Status::FEATURE_NOT_CHANGEABLE.dnr());
        }
        let one_namespace = !matches!(set.nsid, 0 | NAMESPACE_ID_ALL);
        if one_namespace && able & capability::NAMESPACE_SPECIFIC == 0 {
            return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.dnr());
        }
        match set.feature {
            FeatureId::ASYNC_EVENTS => self.set_events(EventMask(set.value))?,
            FeatureId::KEEP_ALIVE_TIMER => self.keep_alive.set_timeout_ms(set.value),
            FeatureId::VOLATILE_WRITE_CACHE => {
                self.set_write_through(set.value & WRITE_CACHE_ENABLED == 0);
            }
            FeatureId::NUMBER_OF_QUEUES => return self.set_number_of_queues(set.value),
            FeatureId::HOST_BEHAVIOR => {
                let behavior =
                    HostBehavior::view(data).ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
                behavior.check()?;
                self.features.lock().behavior = *behavior;
            }
            FeatureId::ERROR_RECOVERY => self.set_error_recovery(set.nsid, set.value)?,
            FeatureId::RESERVATION_NOTIFICATION_MASK => {
                self.set_reservation_mask(set.nsid, set.value)?;
            }
            _ => self.features.lock().keep(&set)?,
        }
        Ok(CommandReply::success(None))
    }

    fn set_events(&self, wanted: EventMask) -> Result<(), Status> {
        let ours = if self.is_discovery() { DISCOVERY_EVENTS } else { IO_EVENTS };
        // Critical warnings may be enabled, but this controller never raises one.
        let ours = ours.union(EventMask::CRITICAL_WARNINGS);
        if !ours.contains(wanted) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        self.events.enable(wanted);
        Ok(())
    }

    /// Queues come in pairs, so both counts are equal.
    fn set_number_of_queues(&self, value: u32) -> Result<CommandReply, Status> {
        let asked = NumberOfQueues::from_request(value)?;
        if self.has_io_queues() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        let pairs = asked.submission.min(asked.completion).min(self.target.config().max_io_queues);
        let given = NumberOfQueues { submission: pairs, completion: pairs };
        self.features.lock().queues = given;
        Ok(CommandReply::result(given.to_dword()))
    }

    /// Reservations of a namespace.
    fn reservations(&self, nsid: u32) -> Result<Arc<NamespaceReservations>, Status> {
        let table = self.snapshot();
        let namespace = table.find(nsid)?;
        namespace.reservations.clone().ok_or(Status::INVALID_FIELD.dnr())
    }

    fn set_reservation_mask(&self, nsid: u32, mask: u32) -> Result<(), Status> {
        if mask & !MASK_ALL != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let table = self.snapshot();
        let mut features = self.features.lock();
        features.reservation_masks.retain(|kept, _| table.get(*kept).is_some());
        if nsid == NAMESPACE_ID_ALL {
            let with = table.iter().filter(|namespace| namespace.reservations.is_some());
            features.reservation_masks = with.map(|namespace| (namespace.nsid, mask)).collect();
        } else {
            self.reservations(nsid)?;
            features.reservation_masks.insert(nsid, mask);
        }
        Ok(())
    }

    /// True if the host does not want notifications of `kind` for a namespace.
    pub(super) fn masks_reservation(&self, nsid: u32, kind: NotificationType) -> bool {
        let features = self.features.lock();
        features.reservation_masks.get(&nsid).is_some_and(|mask| mask & kind.mask() != 0)
    }

    fn set_error_recovery(&self, nsid: u32, value: u32) -> Result<(), Status> {
        // No namespace reports support for failing reads of deallocated blocks.
        if value & DEALLOCATED_ERROR != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let table = self.snapshot();
        let mut features = self.features.lock();
        // Forget namespaces that are gone: at most one value is kept per namespace.
        features.error_recovery.retain(|kept, _| table.get(*kept).is_some());
        if nsid == NAMESPACE_ID_ALL {
            features.error_recovery = table.iter().map(|ns| (ns.nsid, value)).collect();
        } else {
            table.find(nsid)?;
            features.error_recovery.insert(nsid, value);
        }
        Ok(())
    }
}

impl Features {
    /// Stores the value of a feature that has no further effect.
    fn keep(&mut self, set: &SetFeatures) -> Result<(), Status> {
        match set.feature {
            FeatureId::ARBITRATION => self.arbitration = set.value,
            FeatureId::POWER_MANAGEMENT => {
                // There is only one power state.
                if set.value & POWER_STATE != 0 {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                self.power = set.value;
            }
            FeatureId::TEMPERATURE_THRESHOLD => {
                let (over_or_under, kelvins) = temperature(set.value, true)?;
                self.temperature[over_or_under] = kelvins;
            }
            FeatureId::WRITE_ATOMICITY => self.write_atomicity = set.value & 1,
            FeatureId::COMMAND_SET_PROFILE if set.value & 0x1ff == 0 => {}
            FeatureId::COMMAND_SET_PROFILE => {
                return Err(Status::COMMAND_SET_COMBINATION_REJECTED.dnr());
            }
            _ => return Err(Status::INVALID_FIELD.dnr()),
        }
        Ok(())
    }
}

/// Index (0 over, 1 under) and kelvins of the threshold in `value`. The composite temperature is
/// the only sensor; Set Features may also address all sensors.
fn temperature(value: u32, setting: bool) -> Result<(usize, u16), Status> {
    let threshold = TemperatureThreshold(value);
    let known = match threshold.sensor() {
        COMPOSITE => true,
        ALL_SENSORS => setting,
        _ => false,
    };
    match threshold.threshold_type() {
        kind @ (0 | 1) if known => Ok((kind as usize, threshold.kelvins() as u16)),
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}
