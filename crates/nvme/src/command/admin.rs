//! Admin commands (Base 5.1).

use super::Sqe;
use crate::event::AsyncEvent;
use crate::feature::FeatureId;
use crate::identify::Cns;
use crate::log::LogId;
use crate::opcode::AdminOpcode;
use crate::sgl::SglDescriptor;
use crate::wire::U32;

/// Identify (Base 5.1.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// Structure to return.
    pub cns: Cns,
    /// Namespace of the structure, or the identifier above which a list starts.
    pub nsid: u32,
    /// Controller identifier, for structures of a controller.
    pub controller_id: u16,
    /// Command set identifier, see [`crate::identify::csi`].
    pub csi: u8,
}

impl Identify {
    /// Parses `command`; all bit patterns are valid.
    pub const fn parse(command: &Sqe) -> Self {
        let (cdw10, cdw11) = (command.cdw10.get(), command.cdw11.get());
        Self {
            cns: Cns(cdw10 as u8),
            nsid: command.nsid.get(),
            controller_id: (cdw10 >> 16) as u16,
            csi: (cdw11 >> 24) as u8,
        }
    }

    /// Identify with structure `cns` of namespace `nsid`; the other fields are 0.
    pub const fn new(cns: Cns, nsid: u32) -> Self {
        Self { cns, nsid, controller_id: 0, csi: 0 }
    }

    /// The command, with a transfer of 4096 bytes.
    pub fn command(self, cid: u16) -> Sqe {
        let data = SglDescriptor::transport(crate::limits::IDENTIFY_BYTES as u32);
        let mut command = Sqe::new(AdminOpcode::IDENTIFY.0, cid, self.nsid, data);
        command.cdw10 = U32::new(u32::from(self.cns.0) | u32::from(self.controller_id) << 16);
        command.cdw11 = U32::new(u32::from(self.csi) << 24);
        command
    }
}

/// Get Log Page (Base 5.1.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Log page.
    pub log: LogId,
    /// Namespace of the log page.
    pub nsid: u32,
    /// Log specific parameter, 7 bits.
    pub specific: u8,
    /// Retain asynchronous event: reading does not clear it.
    pub retain_event: bool,
    /// Requested length in bytes: 4 to 2^34 in steps of 4.
    pub data_bytes: u64,
    /// Start: bytes, or an index if `offset_is_index`.
    pub offset: u64,
    /// OT: `offset` is an index of entries.
    pub offset_is_index: bool,
    /// Command set identifier.
    pub csi: u8,
}

impl GetLogPage {
    /// Parses `command`; all bit patterns are valid.
    pub const fn parse(command: &Sqe) -> Self {
        let (cdw10, cdw11) = (command.cdw10.get(), command.cdw11.get());
        let cdw14 = command.cdw14.get();
        let dwords_0based = (cdw10 >> 16) | (cdw11 & 0xffff) << 16;
        Self {
            log: LogId(cdw10 as u8),
            nsid: command.nsid.get(),
            specific: (cdw10 >> 8) as u8 & 0x7f,
            retain_event: cdw10 & (1 << 15) != 0,
            data_bytes: (dwords_0based as u64 + 1) * 4,
            offset: command.cdw12.get() as u64 | (command.cdw13.get() as u64) << 32,
            offset_is_index: cdw14 & (1 << 23) != 0,
            csi: (cdw14 >> 24) as u8,
        }
    }

    /// `data_bytes` of log page `log` from byte `offset`, the other fields 0.
    pub const fn new(log: LogId, nsid: u32, offset: u64, data_bytes: u32) -> Self {
        Self {
            log,
            nsid,
            specific: 0,
            retain_event: false,
            data_bytes: data_bytes as u64,
            offset,
            offset_is_index: false,
            csi: 0,
        }
    }

    /// The command; `None` unless `data_bytes` is 4 to 2^32 - 4 and a multiple of 4.
    pub fn command(self, cid: u16) -> Option<Sqe> {
        let data_bytes = u32::try_from(self.data_bytes).ok()?;
        if data_bytes == 0 || !data_bytes.is_multiple_of(4) {
            return None;
        }
        let dwords_0based = data_bytes / 4 - 1;
        let data = SglDescriptor::transport(data_bytes);
        let mut command = Sqe::new(AdminOpcode::GET_LOG_PAGE.0, cid, self.nsid, data);
        command.cdw10 = U32::new(
            u32::from(self.log.0)
                | u32::from(self.specific & 0x7f) << 8
                | u32::from(self.retain_event) << 15
                | dwords_0based << 16,
        );
        command.cdw11 = U32::new(dwords_0based >> 16);
        command.cdw12 = U32::new(self.offset as u32);
        command.cdw13 = U32::new((self.offset >> 32) as u32);
        command.cdw14 = U32::new(u32::from(self.offset_is_index) << 23 | u32::from(self.csi) << 24);
        Some(command)
    }
}

/// Value selected in Get Features (Base 5.1.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureSelect {
    /// The current value.
    Current,
    /// The value after a reset if none is saved.
    Default,
    /// The saved value.
    Saved,
    /// The capabilities of the feature; see [`crate::feature::capability`].
    Supported,
    /// A reserved value.
    Reserved(u8),
}

/// Get Features (Base 5.1.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetFeatures {
    /// Feature.
    pub feature: FeatureId,
    /// Selected value.
    pub select: FeatureSelect,
    /// Namespace of the feature.
    pub nsid: u32,
    /// Command dword 11, specific to the feature.
    pub parameter: u32,
}

impl GetFeatures {
    /// Parses `command`; all bit patterns are valid.
    pub const fn parse(command: &Sqe) -> Self {
        let cdw10 = command.cdw10.get();
        let select = match (cdw10 >> 8) as u8 & 7 {
            0 => FeatureSelect::Current,
            1 => FeatureSelect::Default,
            2 => FeatureSelect::Saved,
            3 => FeatureSelect::Supported,
            other => FeatureSelect::Reserved(other),
        };
        Self {
            feature: FeatureId(cdw10 as u8),
            select,
            nsid: command.nsid.get(),
            parameter: command.cdw11.get(),
        }
    }
}

/// Set Features (Base 5.1.25).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFeatures {
    /// Feature.
    pub feature: FeatureId,
    /// SV: keep the value over a reset.
    pub save: bool,
    /// Namespace of the feature.
    pub nsid: u32,
    /// Command dword 11, the value.
    pub value: u32,
}

impl SetFeatures {
    /// Parses `command`; all bit patterns are valid.
    pub const fn parse(command: &Sqe) -> Self {
        let cdw10 = command.cdw10.get();
        Self {
            feature: FeatureId(cdw10 as u8),
            save: cdw10 >> 31 != 0,
            nsid: command.nsid.get(),
            value: command.cdw11.get(),
        }
    }
}

/// Abort (Base 5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Submission queue of the command to abort.
    pub sqid: u16,
    /// Identifier of the command to abort.
    pub cid: u16,
}

impl Abort {
    /// Bit 0 of dword 0 of the completion: the command was *not* aborted.
    pub const NOT_ABORTED: u32 = 1;

    /// Parses `command`; all bit patterns are valid.
    pub const fn parse(command: &Sqe) -> Self {
        let cdw10 = command.cdw10.get();
        Self { sqid: cdw10 as u16, cid: (cdw10 >> 16) as u16 }
    }
}

impl Sqe {
    /// Get Features of the current value of `feature`, with a transfer of `data_bytes`.
    pub fn get_features(cid: u16, feature: FeatureId, parameter: u32, data_bytes: u32) -> Self {
        let data = SglDescriptor::transport(data_bytes);
        let mut command = Self::new(AdminOpcode::GET_FEATURES.0, cid, 0, data);
        command.cdw10 = U32::new(u32::from(feature.0));
        command.cdw11 = U32::new(parameter);
        command
    }

    /// Set Features of `feature` to `value`, not saved, without data.
    pub fn set_features(cid: u16, feature: FeatureId, value: u32) -> Self {
        let data = SglDescriptor::transport(0);
        let mut command = Self::new(AdminOpcode::SET_FEATURES.0, cid, 0, data);
        command.cdw10 = U32::new(u32::from(feature.0));
        command.cdw11 = U32::new(value);
        command
    }

    /// Abort of command `of.cid` on queue `of.sqid`.
    pub fn abort(cid: u16, of: Abort) -> Self {
        let data = SglDescriptor::transport(0);
        let mut command = Self::new(AdminOpcode::ABORT.0, cid, 0, data);
        command.cdw10 = U32::new(u32::from(of.sqid) | u32::from(of.cid) << 16);
        command
    }

    /// Keep Alive.
    pub fn keep_alive(cid: u16) -> Self {
        Self::new(AdminOpcode::KEEP_ALIVE.0, cid, 0, SglDescriptor::transport(0))
    }

    /// Asynchronous Event Request; it completes with an [`AsyncEvent`] when one occurs.
    pub fn async_event_request(cid: u16) -> Self {
        Self::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, cid, 0, SglDescriptor::transport(0))
    }
}

impl super::Cqe {
    /// The event that completes an Asynchronous Event Request.
    pub const fn async_event(&self) -> AsyncEvent {
        AsyncEvent::from_result(self.dw0.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;
    use proptest::prelude::*;

    #[test]
    fn log_lengths_are_0_based_dwords() {
        let mut command = Sqe::default();
        assert_eq!(GetLogPage::parse(&command).data_bytes, 4);
        command.cdw10 = U32::new(u32::MAX);
        command.cdw11 = U32::new(u32::MAX);
        assert_eq!(GetLogPage::parse(&command).data_bytes, 1 << 34);
        assert!(GetLogPage::new(LogId::SMART, 0, 0, 0).command(1).is_none());
        assert!(GetLogPage::new(LogId::SMART, 0, 0, 6).command(1).is_none());
        // As sent by nvme-cli: 512 bytes of SMART.
        let smart = GetLogPage::new(LogId::SMART, u32::MAX, 0, 512).command(1).unwrap();
        assert_eq!(smart.cdw10.get(), 0x007f_0002);
    }

    #[test]
    fn select_and_save_are_read() {
        let mut command = Sqe::get_features(1, FeatureId::VOLATILE_WRITE_CACHE, 5, 0);
        assert_eq!(GetFeatures::parse(&command).select, FeatureSelect::Current);
        command.cdw10 = U32::new(0x306);
        let parsed = GetFeatures::parse(&command);
        assert_eq!(parsed.select, FeatureSelect::Supported);
        assert_eq!(parsed.feature, FeatureId::VOLATILE_WRITE_CACHE);
        assert_eq!(parsed.parameter, 5);
        command.cdw10 = U32::new(0x8000_070f);
        assert_eq!(GetFeatures::parse(&command).select, FeatureSelect::Reserved(7));
        assert!(SetFeatures::parse(&command).save);
        let set = SetFeatures::parse(&Sqe::set_features(1, FeatureId::KEEP_ALIVE_TIMER, 9));
        assert_eq!((set.feature, set.value, set.save), (FeatureId::KEEP_ALIVE_TIMER, 9, false));
    }

    proptest! {
        #[test]
        fn host_and_target_codecs_agree(
            code: u8, nsid: u32, id: u16, sqid: u16, csi: u8, small in 0u8..128,
            dwords in 1u32..0x4000_0000, offset: u64, flag: bool, index: bool,
        ) {
            let identify = Identify {
                cns: Cns(code), nsid, controller_id: id, csi,
            };
            let command = identify.command(id);
            prop_assert_eq!(Identify::parse(Sqe::view(command.bytes()).unwrap()), identify);
            prop_assert_eq!(command.cid.get(), id);

            let log = GetLogPage {
                log: LogId(code), nsid, specific: small, retain_event: flag,
                data_bytes: u64::from(dwords) * 4, offset,
                offset_is_index: index, csi,
            };
            prop_assert_eq!(GetLogPage::parse(&log.command(id).unwrap()), log);

            let abort = Abort { sqid, cid: id };
            prop_assert_eq!(Abort::parse(&Sqe::abort(1, abort)), abort);
        }
    }
}
