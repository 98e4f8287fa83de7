//! Log pages of supported log pages and of commands with their effects (Base 5.1.12.1).

use super::LogId;
use crate::opcode::{AdminOpcode, IoOpcode};
use crate::wire::{U32, wire};

wire! {
    /// Supported Log Pages: per log page identifier, bit 0 supported, bit 1 offset may be an index.
    pub struct SupportedPages [1024] {
        0 => pub pages: [U32; 256], "By log page identifier.";
    }

    /// Commands Supported and Effects: [`Effects`] per opcode.
    pub struct CommandEffects [4096] {
        0 => pub admin: [U32; 256], "Of admin commands, by opcode.";
        1024 => pub io: [U32; 256], "Of I/O commands, by opcode.";
        2048 => pub _reserved2048: [u8; 2048];
    }
}

/// Effects of a command; bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects(pub u32);

impl Effects {
    /// CSUPP: supported.
    pub const SUPPORTED: Self = Self(1 << 0);
    /// LBCC: supported, and changes the content of blocks.
    pub const CHANGES_BLOCKS: Self = Self(1 << 0 | 1 << 1);
    /// NIC: supported, and may change the inventory of namespaces.
    pub const CHANGES_INVENTORY: Self = Self(1 << 0 | 1 << 3);
}

impl SupportedPages {
    /// Marks `log` as supported.
    pub fn add(&mut self, log: LogId) {
        self.pages[usize::from(log.0)] = U32::new(1);
    }
}

impl CommandEffects {
    /// Sets the `effects` of the admin command `opcode`.
    pub fn add_admin(&mut self, opcode: AdminOpcode, effects: Effects) {
        self.admin[usize::from(opcode.0)] = U32::new(effects.0);
    }

    /// Sets the `effects` of the I/O command `opcode`.
    pub fn add_io(&mut self, opcode: IoOpcode, effects: Effects) {
        self.io[usize::from(opcode.0)] = U32::new(effects.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;

    #[test]
    fn effects_entries_match_opcode() {
        let mut effects = CommandEffects::default();
        effects.add_admin(AdminOpcode::IDENTIFY, Effects::SUPPORTED);
        effects.add_io(IoOpcode::WRITE, Effects::CHANGES_BLOCKS);
        effects.add_io(IoOpcode(0xff), Effects::CHANGES_INVENTORY);
        assert_eq!(effects.bytes()[6 * 4], 1);
        assert_eq!(effects.bytes()[1024 + 4], 3);
        assert_eq!(effects.bytes()[2044], 9);
        let mut pages = SupportedPages::default();
        pages.add(LogId::DISCOVERY);
        assert_eq!(pages.bytes()[0x70 * 4], 1);
        assert_eq!(pages.bytes().iter().filter(|&&byte| byte != 0).count(), 1);
    }
}
