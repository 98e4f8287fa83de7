//! Target configuration: sizes, counts and timeouts, all of them bounded.

use std::ops::RangeInclusive;
use std::time::Duration;

use flagstone_nvme::command::fabrics::CONTROLLER_ID_MAX;
use flagstone_nvme::limits::{
    CAPSULE_UNIT_BYTES, FABRICS_ADMIN_QUEUE_MIN_ENTRIES, MAXH2CDATA_MIN_BYTES,
};
use flagstone_nvme::log::{AnaGroup, AnaHeader};

use crate::limits::{
    CONNECT_TIMEOUT, CONTROLLERS_MAX, MDTS_MAX_BYTES, MDTS_MIN_BYTES, NAMESPACES_MAX,
    PORT_ID_FIRST_MAX,
};

/// Sizes, counts and timeouts of a target, shared by all its subsystems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetConfig {
    /// In-capsule data of an I/O command, in bytes: a multiple of 16, at most `mdts_bytes`. Writes
    /// up to this size need no R2T round trip. Admin and fabrics commands may always carry 8,192
    /// bytes.
    pub in_capsule_bytes: u32,
    /// I/O queues of one controller, 1 to 1,024.
    pub max_io_queues: u16,
    /// Entries of one queue, 32 to 65,535.
    pub max_queue_entries: u16,
    /// Data of one command, in bytes: a power of two from 8 KiB to 32 MiB (MDTS).
    pub mdts_bytes: u32,
    /// Data of one H2CData PDU, in bytes: a multiple of 4, at least 4 KiB (MAXH2CDATA).
    pub max_h2c_data_bytes: u32,
    /// Hosts may ask for header digests.
    pub allow_header_digest: bool,
    /// Hosts may ask for data digests.
    pub allow_data_digest: bool,
    /// A host is disconnected when, for this long, it neither reads what is sent to it nor sends
    /// the rest of a PDU that it started.
    pub slow_peer_timeout: Duration,
    /// A connection is closed if it has not completed Connect within this time.
    pub handshake_timeout: Duration,
    /// Keep alive timeout of discovery controllers whose host requested none: without it, the
    /// controller of a vanished host would stay forever. I/O controllers use the host's value.
    pub discovery_keep_alive: Duration,
    /// Namespaces of one subsystem, 1 to 65,535, and the largest namespace identifier. The ANA log,
    /// 80 bytes plus 4 per namespace, must fit within `mdts_bytes` because hosts read it in one
    /// transfer.
    pub max_namespaces: u32,
    /// Controllers of the whole target, 1 to 65,519.
    pub max_controllers: u32,
    /// Range of controller identifiers, within 1 to 65,519 (FFEFh). Nodes that serve the same
    /// subsystem must use disjoint ranges (Base 3.1.1), because hosts distinguish paths by
    /// controller identifier. A range smaller than `max_controllers` limits the controllers of each
    /// subsystem.
    pub controller_ids: RangeInclusive<u16>,
    /// Port identifier of the first listener, at least 1. Further listeners count up from it, and
    /// all must be below 65,536. Nodes that serve the same subsystem must use different port
    /// identifiers.
    pub first_port_id: u16,
    /// Most payload of a connection, in bytes; at least `mdts_bytes`. At the limit the
    /// connection stops reading commands until some complete.
    pub connection_payload_bytes: usize,
    /// Model number, 1 to 40 printable ASCII characters.
    pub model: String,
    /// Firmware revision, 1 to 8 printable ASCII characters.
    pub firmware: String,
}

impl Default for TargetConfig {
    fn default() -> TargetConfig {
        TargetConfig {
            in_capsule_bytes: 64 << 10,
            max_io_queues: 128,
            max_queue_entries: 1024,
            mdts_bytes: 1 << 20,
            max_h2c_data_bytes: 1 << 20,
            allow_header_digest: true,
            allow_data_digest: true,
            slow_peer_timeout: Duration::from_secs(30),
            handshake_timeout: CONNECT_TIMEOUT,
            discovery_keep_alive: Duration::from_secs(120),
            max_namespaces: 1024,
            max_controllers: 1024,
            controller_ids: 1..=CONTROLLER_ID_MAX,
            first_port_id: 1,
            // A queue of 128 commands of 64 KiB each.
            connection_payload_bytes: 8 << 20,
            model: "Flagstone".to_owned(),
            firmware: env!("CARGO_PKG_VERSION").chars().take(8).collect(),
        }
    }
}

/// Invalid value of a [`TargetConfig`] field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {expected}")]
pub struct ConfigError {
    /// Field name.
    pub field: &'static str,
    /// Accepted values.
    pub expected: &'static str,
}

impl TargetConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let entries = FABRICS_ADMIN_QUEUE_MIN_ENTRIES..=u16::MAX;
        let mdts = MDTS_MIN_BYTES..=MDTS_MAX_BYTES;
        let rules = [
            (
                mdts.contains(&self.mdts_bytes) && self.mdts_bytes.is_power_of_two(),
                "mdts_bytes",
                "a power of two from 8192 to 33554432",
            ),
            (
                self.in_capsule_bytes <= self.mdts_bytes
                    && self.in_capsule_bytes.is_multiple_of(CAPSULE_UNIT_BYTES),
                "in_capsule_bytes",
                "a multiple of 16, at most mdts_bytes",
            ),
            (
                self.max_h2c_data_bytes >= MAXH2CDATA_MIN_BYTES
                    && self.max_h2c_data_bytes.is_multiple_of(4),
                "max_h2c_data_bytes",
                "a multiple of 4 from 4096",
            ),
            (
                self.connection_payload_bytes >= self.mdts_bytes as usize,
                "connection_payload_bytes",
                "at least mdts_bytes",
            ),
            ((1..=1024).contains(&self.max_io_queues), "max_io_queues", "1 to 1024"),
            (entries.contains(&self.max_queue_entries), "max_queue_entries", "32 to 65535"),
            (!self.slow_peer_timeout.is_zero(), "slow_peer_timeout", "more than 0"),
            (!self.handshake_timeout.is_zero(), "handshake_timeout", "more than 0"),
            (!self.discovery_keep_alive.is_zero(), "discovery_keep_alive", "more than 0"),
            (
                (1..=CONTROLLERS_MAX).contains(&self.max_controllers),
                "max_controllers",
                "1 to 65519",
            ),
            (
                *self.controller_ids.start() >= 1
                    && self.controller_ids.start() <= self.controller_ids.end()
                    && *self.controller_ids.end() <= CONTROLLER_ID_MAX,
                "controller_ids",
                "a nonempty range within 1 to 65519",
            ),
            (
                (1..=PORT_ID_FIRST_MAX).contains(&self.first_port_id),
                "first_port_id",
                "from 1, with room for all listeners below 65536",
            ),
            ((1..=NAMESPACES_MAX).contains(&self.max_namespaces), "max_namespaces", "1 to 65535"),
            (
                ana_log_bytes(ANA_GROUPS, self.max_namespaces) <= u64::from(self.mdts_bytes),
                "max_namespaces",
                "small enough that 80 bytes plus 4 for each fit mdts_bytes",
            ),
            (is_text(&self.model, 40), "model", "1 to 40 printable ASCII characters"),
            (is_text(&self.firmware, 8), "firmware", "1 to 8 printable ASCII characters"),
        ];
        match rules.iter().find(|(kept, ..)| !kept) {
            Some(&(_, field, expected)) => Err(ConfigError { field, expected }),
            None => Ok(()),
        }
    }
}

fn is_text(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// ANA groups of a subsystem, one of them for pending namespaces.
pub(super) const ANA_GROUPS: usize = 2;

/// Length of an ANA log with `groups` groups and together `namespaces` namespaces.
pub(super) fn ana_log_bytes(groups: usize, namespaces: u32) -> u64 {
    (size_of::<AnaHeader>() + groups * size_of::<AnaGroup>()) as u64 + u64::from(namespaces) * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid() {
        assert_eq!(TargetConfig::default().check(), Ok(()));
    }

    #[test]
    fn each_field_is_bounded() {
        type Change = fn(&mut TargetConfig);
        let changes: [(&str, Change); 21] = [
            ("in_capsule_bytes", |c| c.in_capsule_bytes = 8200),
            ("mdts_bytes", |c| c.mdts_bytes = 4096),
            ("in_capsule_bytes", |c| c.in_capsule_bytes = 2 << 20),
            ("max_io_queues", |c| c.max_io_queues = 0),
            ("max_io_queues", |c| c.max_io_queues = 1025),
            ("max_queue_entries", |c| c.max_queue_entries = 31),
            ("mdts_bytes", |c| c.mdts_bytes = 2048),
            ("mdts_bytes", |c| c.mdts_bytes = 3 << 20),
            ("max_h2c_data_bytes", |c| c.max_h2c_data_bytes = 4095),
            ("slow_peer_timeout", |c| c.slow_peer_timeout = Duration::ZERO),
            ("handshake_timeout", |c| c.handshake_timeout = Duration::ZERO),
            ("discovery_keep_alive", |c| c.discovery_keep_alive = Duration::ZERO),
            ("max_namespaces", |c| c.max_namespaces = 65_536),
            ("max_namespaces", |c| {
                (c.mdts_bytes, c.in_capsule_bytes, c.max_namespaces) = (8192, 0, 2037)
            }),
            ("max_controllers", |c| c.max_controllers = 65_520),
            ("controller_ids", |c| c.controller_ids = 0..=9),
            ("controller_ids", |c| c.controller_ids = RangeInclusive::new(9, 8)),
            ("controller_ids", |c| c.controller_ids = 1..=0xfff0),
            ("first_port_id", |c| c.first_port_id = 0),
            ("connection_payload_bytes", |c| c.connection_payload_bytes = 4096),
            ("firmware", |c| c.firmware = "123456789".to_owned()),
        ];
        for (field, change) in changes {
            let mut config = TargetConfig::default();
            change(&mut config);
            assert_eq!(config.check().unwrap_err().field, field);
        }
        let mut most = TargetConfig { max_namespaces: 65_535, ..TargetConfig::default() };
        assert_eq!(most.check(), Ok(()));
        most.model = "caf\u{e9}".to_owned();
        assert_eq!(most.check().unwrap_err().field, "model");
    }
}
