//! Discovery log page (Base 5.1.12.3): reachable subsystems and their addresses.

use crate::codes::codes;
use crate::limits::FABRICS_ADMIN_QUEUE_MIN_ENTRIES;
use crate::nqn::{Nqn, NqnError};
use crate::wire::{U16, U32, U64, ascii, fill_ascii, wire};
use core::net::{IpAddr, SocketAddr};

codes! {
    /// TRTYPE: transport.
    pub struct Transport(u8) {
        RDMA = 0x01, "rdma";
        FIBRE_CHANNEL = 0x02, "fc";
        TCP = 0x03, "tcp";
        LOOP = 0xfe, "loop";
    }
}

codes! {
    /// ADRFAM: family of the address.
    pub struct AddressFamily(u8) {
        IPV4 = 0x01, "ipv4";
        IPV6 = 0x02, "ipv6";
        FIBRE_CHANNEL = 0x04, "fc";
        LOOP = 0xfe, "loop";
    }
}

codes! {
    /// SUBTYPE: kind of subsystem at the address.
    pub struct SubsystemType(u8) {
        REFERRAL = 0x01, "referral to another discovery service";
        NVM = 0x02, "NVM subsystem";
        CURRENT_DISCOVERY = 0x03, "this discovery subsystem";
    }
}

wire! {
    /// Header of the log page.
    pub struct DiscoveryHeader [1024] {
        /// GENCTR: changes with the log page. A host that sees a change between two reads starts
        /// over.
        0 => pub generation: U64;
        8 => pub entries: U64, "NUMREC: number of entries that follow.";
        16 => pub record_format: U16, "RECFMT: format of the entries, 0.";
        18 => pub _unused18: [u8; 2];
        20 => pub total_bytes: U32, "TDLPL: length of the log page with extended entries, bytes.";
        24 => pub _reserved24: [u8; 1000];
    }

    /// One entry.
    pub struct DiscoveryEntry [1024] {
        0 => pub transport: u8, "TRTYPE.";
        1 => pub family: u8, "ADRFAM.";
        2 => pub subsystem_type: u8, "SUBTYPE.";
        /// TREQ: bits 1:0 secure channel (0 not reported, 1 required, 2 not required), bit 2 flow
        /// control of submission queues can be disabled.
        3 => pub requirements: u8;
        4 => pub port_id: U16, "PORTID: port of the subsystem.";
        /// CNTLID: FFFFh for the dynamic controller model, FFFEh for any controller of the static
        /// model.
        6 => pub controller_id: U16;
        /// ASQSZ: largest number of entries of the admin submission queue; at least 32.
        8 => pub admin_queue_entries: U16;
        10 => pub flags: U16, "EFLAGS: see [`entry_flags`].";
        12 => pub _reserved12: [u8; 20];
        32 => pub service: [u8; 32], "TRSVCID: port number, decimal ASCII.";
        64 => pub _reserved64: [u8; 192];
        256 => pub subnqn: [u8; 256], "SUBNQN: name of the subsystem.";
        512 => pub address: [u8; 256], "TRADDR: address, ASCII.";
        /// TSAS: for TCP, byte 0 is the security: 0 none, 2 TLS 1.3.
        768 => pub transport_specific: [u8; 256];
    }
}

/// EFLAGS, bits.
pub mod entry_flags {
    /// EPCSD: persistent connections to this discovery subsystem are supported.
    pub const PERSISTENT: u16 = 1 << 1;
}

/// TREQ bit 2: flow control of submission queues can be disabled.
pub const FLOW_CONTROL_OPTIONAL: u8 = 1 << 2;

/// TREQ bits 1:0: hosts have to use a secure channel.
pub const CHANNEL_REQUIRED: u8 = 1;

/// TSAS byte 0 of TCP: TLS 1.3.
pub const SECURITY_TLS_1_3: u8 = 2;

impl DiscoveryEntry {
    /// An entry for `subnqn` at the TCP address `at`, on port `port_id` of the subsystem, in the
    /// dynamic controller model, with optional flow control. Nothing is said about secure channels.
    pub fn tcp(kind: SubsystemType, subnqn: &Nqn, at: SocketAddr, port_id: u16) -> Self {
        let mut entry = Self {
            transport: Transport::TCP.0,
            family: family_of(at.ip()).0,
            subsystem_type: kind.0,
            // Not "secure channel not required": libnvme 1.3 (Debian 12) then passes an option
            // `tls` that its kernel does not know, and connects to nothing.
            requirements: FLOW_CONTROL_OPTIONAL,
            port_id: U16::new(port_id),
            controller_id: U16::new(crate::command::fabrics::CONTROLLER_ID_DYNAMIC),
            admin_queue_entries: U16::new(FABRICS_ADMIN_QUEUE_MIN_ENTRIES),
            subnqn: subnqn.to_field(),
            ..Self::default()
        };
        fill_ascii(&mut entry.service, &at.port().to_string());
        fill_ascii(&mut entry.address, &at.ip().to_string());
        entry
    }

    /// Announces TLS 1.3 on this port: required, or possible. What is possible is not announced as
    /// "not required": libnvme then asks for secure concatenation by itself, which hosts without a
    /// key for authentication cannot do.
    pub fn set_tls(&mut self, required: bool) {
        self.requirements |= if required { CHANNEL_REQUIRED } else { 0 };
        self.transport_specific[0] = SECURITY_TLS_1_3;
    }

    /// True if hosts have to use TLS 1.3 on this port.
    pub fn requires_tls(&self) -> bool {
        self.requirements & 3 == CHANNEL_REQUIRED && self.transport_specific[0] == SECURITY_TLS_1_3
    }

    /// Name of the subsystem.
    ///
    /// # Errors
    /// The field is not a valid name.
    pub fn subnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }

    /// TCP address and port of an entry for TCP over IPv4 or IPv6; `None` for other transports and
    /// invalid addresses.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        let address: IpAddr = ascii(&self.address)?.parse().ok()?;
        if self.transport != Transport::TCP.0 || self.family != family_of(address).0 {
            return None;
        }
        Some(SocketAddr::new(address, ascii(&self.service)?.parse().ok()?))
    }
}

const fn family_of(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::IPV4,
        IpAddr::V6(_) => AddressFamily::IPV6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;
    use proptest::prelude::*;

    #[test]
    fn discovery_entry_layout_matches_linux() {
        let name = Nqn::new("nqn.2024-01.example:db").unwrap();
        let at = "192.0.2.7:4420".parse().unwrap();
        let entry = DiscoveryEntry::tcp(SubsystemType::NVM, &name, at, 1);
        assert_eq!(entry.bytes()[..10], [3, 1, 2, 4, 1, 0, 0xff, 0xff, 32, 0]);
        assert_eq!(&entry.service[..5], b"4420 ");
        assert_eq!(&entry.address[..10], b"192.0.2.7 ");
        assert_eq!(entry.subnqn(), Ok(name));
    }

    #[test]
    fn address_of_other_transport_is_none() {
        let at: SocketAddr = "[2001:db8::1]:4420".parse().unwrap();
        let good = DiscoveryEntry::tcp(SubsystemType::NVM, &Nqn::discovery(), at, 1);
        assert_eq!(good.tcp_address(), Some(at));
        let family = DiscoveryEntry { family: AddressFamily::IPV4.0, ..good };
        assert_eq!(family.tcp_address(), None);
        let transport = DiscoveryEntry { transport: Transport::RDMA.0, ..good };
        assert_eq!(transport.tcp_address(), None);
        let service = DiscoveryEntry { service: [b'9'; 32], ..good };
        assert_eq!(service.tcp_address(), None);
    }

    proptest! {
        #[test]
        fn discovery_address_round_trips(ip: IpAddr, port: u16) {
            let at = SocketAddr::new(ip, port);
            let entry = DiscoveryEntry::tcp(SubsystemType::NVM, &Nqn::discovery(), at, 1);
            prop_assert_eq!(entry.tcp_address(), Some(at));
        }

        #[test]
        fn any_bytes_parse_or_fail(bytes in prop::collection::vec(any::<u8>(), 1024)) {
            let entry = DiscoveryEntry::view(&bytes).unwrap();
            let _ = (entry.tcp_address(), entry.subnqn());
        }
    }
}
