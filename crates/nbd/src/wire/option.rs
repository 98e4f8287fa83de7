//! "Option types", "Option reply types" and their data. Used a few times per connection, so replies
//! are built in a `Vec`.

use super::{OPTION_MAGIC, OPTION_REPLY_MAGIC, u16_at, u32_at, u64_at};
use crate::limits::MAX_STRING_BYTES;

#[expect(clippy::module_inception, reason = "the protocol calls them options too")]
pub mod option {
    /// Select an export and begin; has no error reply.
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    /// Describe an export and begin.
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    /// Enable 64-bit headers (experimental).
    pub const EXTENDED_HEADERS: u32 = 11;
}

pub mod reply_type {
    pub const ACK: u32 = 1;
    /// An export's name and description.
    pub const SERVER: u32 = 2;
    /// Information item of an export.
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERROR_BIT: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
}

/// Information items of INFO and GO.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Length of an option's header, in bytes: magic, option, length.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Length of an option reply's header, in bytes: magic, option, type, length.
pub const REPLY_HEADER_BYTES: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// An [`option`], or an unknown one.
    pub option: u32,
    /// Length of the data, in bytes.
    pub len: u32,
}

/// Invalid magic: the stream is out of sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an option (reply) begins with 0x{0:016x}")]
pub struct BadOptionMagic(pub u64);

impl OptionHeader {
    /// Decodes a header; `None` when it is incomplete.
    pub fn decode(bytes: &[u8]) -> Result<Option<OptionHeader>, BadOptionMagic> {
        let Some(bytes) = bytes.first_chunk::<OPTION_HEADER_BYTES>() else { return Ok(None) };
        match u64_at(bytes, 0) {
            Some(OPTION_MAGIC) => {}
            other => return Err(BadOptionMagic(other.unwrap_or(0))),
        }
        let fields = || Some(OptionHeader { option: u32_at(bytes, 8)?, len: u32_at(bytes, 12)? });
        Ok(fields())
    }
}

pub fn put_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// Appends a reply to `option`.
pub fn put_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// Appends one information item as a reply to `option`.
pub fn put_info(out: &mut Vec<u8>, option: u32, item: u16, parts: &[&[u8]]) {
    let mut data = item.to_be_bytes().to_vec();
    for part in parts {
        data.extend_from_slice(part);
    }
    put_reply(out, option, reply_type::INFO, &data);
}

/// Invalid option data, answered with [`reply_type::ERR_INVALID`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOption {
    /// A length exceeds the data, or data is missing.
    #[error("the option's data is truncated")]
    Truncated,
    /// Data beyond the lengths it contains.
    #[error("the option has trailing bytes")]
    Trailing,
    /// Data in an option without data.
    #[error("the option takes no data")]
    Unexpected,
    /// A string is longer than [`MAX_STRING_BYTES`], not UTF-8, or contains NUL.
    #[error("a name is too long or not text")]
    BadString,
}

/// Parses a protocol string ("Conventions").
pub fn string(bytes: &[u8]) -> Result<&str, InvalidOption> {
    if bytes.len() > MAX_STRING_BYTES || bytes.contains(&0) {
        return Err(InvalidOption::BadString);
    }
    std::str::from_utf8(bytes).map_err(|_| InvalidOption::BadString)
}

/// Reads length-prefixed fields.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], InvalidOption> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(InvalidOption::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn u16(&mut self) -> Result<u16, InvalidOption> {
        u16_at(self.bytes(2)?, 0).ok_or(InvalidOption::Truncated)
    }

    fn u32(&mut self) -> Result<u32, InvalidOption> {
        u32_at(self.bytes(4)?, 0).ok_or(InvalidOption::Truncated)
    }

    fn string(&mut self) -> Result<&'a str, InvalidOption> {
        let len = self.u32()? as usize;
        string(self.bytes(len)?)
    }

    fn end(&self) -> Result<(), InvalidOption> {
        if self.rest.is_empty() { Ok(()) } else { Err(InvalidOption::Trailing) }
    }
}

/// Data of INFO and GO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export's name.
    pub name: &'a str,
    /// [`info::NAME`] is requested.
    pub wants_name: bool,
    /// [`info::DESCRIPTION`] is requested.
    pub wants_description: bool,
    /// [`info::BLOCK_SIZE`] is requested, and will be honored.
    pub wants_block_size: bool,
}

impl<'a> InfoRequest<'a> {
    /// Decodes the data of an INFO or GO.
    pub fn decode(data: &'a [u8]) -> Result<InfoRequest<'a>, InvalidOption> {
        let mut cursor = Cursor { rest: data };
        let name = cursor.string()?;
        let count = cursor.u16()?;
        let mut request = InfoRequest {
            name,
            wants_name: false,
            wants_description: false,
            wants_block_size: false,
        };
        for _ in 0..count {
            match cursor.u16()? {
                info::NAME => request.wants_name = true,
                info::DESCRIPTION => request.wants_description = true,
                info::BLOCK_SIZE => request.wants_block_size = true,
                _ => {}
            }
        }
        cursor.end()?;
        Ok(request)
    }
}

/// Encodes an INFO or GO for `name` that requests `items`.
pub fn info_request(name: &str, items: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(items.len() as u16).to_be_bytes());
    for item in items {
        data.extend_from_slice(&item.to_be_bytes());
    }
    data
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The export's name.
    pub name: &'a str,
    /// Last query in the namespace searched for.
    pub query: Option<&'a str>,
}

impl<'a> MetaRequest<'a> {
    /// Decodes the data and finds a query with the given `prefix`.
    pub fn decode(data: &'a [u8], prefix: &str) -> Result<MetaRequest<'a>, InvalidOption> {
        let mut cursor = Cursor { rest: data };
        let mut request = MetaRequest { name: cursor.string()?, query: None };
        for _ in 0..cursor.u32()? {
            let query = cursor.string()?;
            if query.starts_with(prefix) {
                request.query = Some(query);
            }
        }
        cursor.end()?;
        Ok(request)
    }
}

/// Encodes a LIST_META_CONTEXT or SET_META_CONTEXT.
pub fn meta_request(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

/// Header of a server's option reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// Option being replied to.
    pub option: u32,
    /// A [`reply_type`], or an unknown one.
    pub kind: u32,
    /// Length of the data, in bytes.
    pub len: u32,
}

impl OptionReplyHeader {
    /// Decodes a header; `None` when it is incomplete.
    pub fn decode(bytes: &[u8]) -> Result<Option<OptionReplyHeader>, BadOptionMagic> {
        let Some(bytes) = bytes.first_chunk::<REPLY_HEADER_BYTES>() else { return Ok(None) };
        match u64_at(bytes, 0) {
            Some(OPTION_REPLY_MAGIC) => {}
            other => return Err(BadOptionMagic(other.unwrap_or(0))),
        }
        let fields = || {
            let (option, kind) = (u32_at(bytes, 8)?, u32_at(bytes, 12)?);
            Some(OptionReplyHeader { option, kind, len: u32_at(bytes, 16)? })
        };
        Ok(fields())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn info_request_round_trips() {
        let data = info_request("disk", &[info::NAME, info::BLOCK_SIZE, 77]);
        let request = InfoRequest::decode(&data).unwrap();
        assert_eq!(request.name, "disk");
        assert!(request.wants_name && request.wants_block_size && !request.wants_description);
    }

    #[test]
    fn truncated_info_request_is_refused() {
        let data = info_request("disk", &[info::NAME]);
        for len in 0..data.len() {
            assert_eq!(InfoRequest::decode(&data[..len]), Err(InvalidOption::Truncated), "{len}");
        }
    }

    #[test]
    fn trailing_bytes_of_info_request_are_refused() {
        let mut data = info_request("disk", &[]);
        data.push(0);
        assert_eq!(InfoRequest::decode(&data), Err(InvalidOption::Trailing));
    }

    #[test]
    fn huge_name_length_is_refused() {
        let mut data = info_request("disk", &[]);
        data[0..4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(InfoRequest::decode(&data), Err(InvalidOption::Truncated));
    }

    #[test]
    fn names_must_be_short_text() {
        assert!(string(&[b'a'; MAX_STRING_BYTES]).is_ok());
        assert_eq!(string(&[b'a'; MAX_STRING_BYTES + 1]), Err(InvalidOption::BadString));
        assert_eq!(string(b"a\0b"), Err(InvalidOption::BadString));
        assert_eq!(string(&[0xff, 0xfe]), Err(InvalidOption::BadString));
    }

    #[test]
    fn huge_query_count_is_refused() {
        let mut data = 0_u32.to_be_bytes().to_vec();
        data.extend_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(MetaRequest::decode(&data, ""), Err(InvalidOption::Truncated));
    }

    proptest! {
        #[test]
        fn options_and_replies_round_trip(option: u32, kind: u32, data: Vec<u8>) {
            let len = data.len() as u32;
            let mut out = Vec::new();
            put_option(&mut out, option, &data);
            prop_assert_eq!(OptionHeader::decode(&out), Ok(Some(OptionHeader { option, len })));
            prop_assert_eq!(&out[OPTION_HEADER_BYTES..], &data[..]);
            out.clear();
            put_reply(&mut out, option, kind, &data);
            prop_assert_eq!(OptionReplyHeader::decode(&out), Ok(Some(OptionReplyHeader { option, kind, len })));
            prop_assert_eq!(&out[REPLY_HEADER_BYTES..], &data[..]);
        }

        #[test]
        fn random_option_data_does_not_panic(data: Vec<u8>) {
            let _ = InfoRequest::decode(&data);
            let _ = MetaRequest::decode(&data, "x");
        }
    }
}
