//! Opcodes of the three command sets (Base 5, Base 6, NVM Command Set 3).

use crate::codes::codes;

/// Direction of the data of a command, from its opcode (Base 4.1.1, opcode bits 1:0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirection {
    /// No data.
    None,
    /// From the host to the controller, for example Write.
    HostToController,
    /// From the controller to the host, for example Read.
    ControllerToHost,
    /// Both directions: unused here.
    Both,
}

impl DataDirection {
    /// The direction in bits 1:0 of an opcode or of a fabrics command type.
    #[inline]
    pub const fn of(opcode: u8) -> Self {
        match opcode & 3 {
            0 => Self::None,
            1 => Self::HostToController,
            2 => Self::ControllerToHost,
            _ => Self::Both,
        }
    }
}

codes! {
    /// Opcode of a command of the NVM command set, on an I/O queue.
    pub struct IoOpcode(u8) {
        FLUSH = 0x00, "Flush";
        WRITE = 0x01, "Write";
        READ = 0x02, "Read";
        WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
        COMPARE = 0x05, "Compare";
        WRITE_ZEROES = 0x08, "Write Zeroes";
        DATASET_MANAGEMENT = 0x09, "Dataset Management";
        VERIFY = 0x0c, "Verify";
        RESERVATION_REGISTER = 0x0d, "Reservation Register";
        RESERVATION_REPORT = 0x0e, "Reservation Report";
        RESERVATION_ACQUIRE = 0x11, "Reservation Acquire";
        RESERVATION_RELEASE = 0x15, "Reservation Release";
        CANCEL = 0x18, "Cancel";
        COPY = 0x19, "Copy";
        FABRICS = 0x7f, "Fabrics Command";
    }
}

codes! {
    /// Opcode of a command on the admin queue.
    pub struct AdminOpcode(u8) {
        GET_LOG_PAGE = 0x02, "Get Log Page";
        IDENTIFY = 0x06, "Identify";
        ABORT = 0x08, "Abort";
        SET_FEATURES = 0x09, "Set Features";
        GET_FEATURES = 0x0a, "Get Features";
        ASYNC_EVENT_REQUEST = 0x0c, "Asynchronous Event Request";
        KEEP_ALIVE = 0x18, "Keep Alive";
        FABRICS = 0x7f, "Fabrics Command";
        SANITIZE = 0x84, "Sanitize";
    }
}

impl IoOpcode {
    /// Whether it is in the vendor specific range, 80h to FFh.
    pub const fn is_vendor_specific(self) -> bool {
        self.0 >= 0x80
    }
}

impl AdminOpcode {
    /// Whether it is in the vendor specific range, C0h to FFh.
    pub const fn is_vendor_specific(self) -> bool {
        self.0 >= 0xc0
    }
}

codes! {
    /// Fabrics command type (FCTYPE) of a command with opcode 7Fh (Base 6).
    pub struct FabricsType(u8) {
        PROPERTY_SET = 0x00, "Property Set";
        CONNECT = 0x01, "Connect";
        PROPERTY_GET = 0x04, "Property Get";
        AUTHENTICATION_SEND = 0x05, "Authentication Send";
        AUTHENTICATION_RECEIVE = 0x06, "Authentication Receive";
        DISCONNECT = 0x08, "Disconnect";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcode_gives_data_direction() {
        for (opcode, direction) in [
            (IoOpcode::FLUSH.0, DataDirection::None),
            (IoOpcode::WRITE.0, DataDirection::HostToController),
            (IoOpcode::READ.0, DataDirection::ControllerToHost),
            (IoOpcode::COMPARE.0, DataDirection::HostToController),
            (IoOpcode::WRITE_ZEROES.0, DataDirection::None),
            (IoOpcode::DATASET_MANAGEMENT.0, DataDirection::HostToController),
            (IoOpcode::VERIFY.0, DataDirection::None),
            (IoOpcode::RESERVATION_REGISTER.0, DataDirection::HostToController),
            (IoOpcode::RESERVATION_REPORT.0, DataDirection::ControllerToHost),
            (IoOpcode::RESERVATION_ACQUIRE.0, DataDirection::HostToController),
            (IoOpcode::RESERVATION_RELEASE.0, DataDirection::HostToController),
            (AdminOpcode::IDENTIFY.0, DataDirection::ControllerToHost),
            (FabricsType::CONNECT.0, DataDirection::HostToController),
            (FabricsType::PROPERTY_GET.0, DataDirection::None),
            (FabricsType::AUTHENTICATION_SEND.0, DataDirection::HostToController),
            (FabricsType::AUTHENTICATION_RECEIVE.0, DataDirection::ControllerToHost),
            (0xff, DataDirection::Both),
        ] {
            assert_eq!(DataDirection::of(opcode), direction, "{opcode:#x}");
        }
        assert!(AdminOpcode(0xc0).is_vendor_specific());
        assert!(!AdminOpcode(0xbf).is_vendor_specific());
        assert_eq!(AdminOpcode(0xc0).to_string(), "0xc0");
        assert_eq!(format!("{:?}", IoOpcode::READ), "IoOpcode(0x02 Read)");
    }
}
