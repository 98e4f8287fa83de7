//! Wire structures: declaration, reading and writing.
//!
//! A structure is declared with its byte offsets, as the specifications print them:
//!
//! ```text
//! wire! {
//!     /// NVMe/TCP common header.
//!     pub struct CommonHeader [8] {
//!         0 => pub kind: u8, "PDU-Type.";
//!         4 => pub pdu_bytes: U32, "PLEN: total length, bytes.";
//!     }
//! }
//! ```
//!
//! The compiler checks each offset and the size, so there is no padding, and no misplaced field.
//! A field named `_reserved` is reserved by the specification. One named `_unused` covers fields
//! that the specification defines and this project does not read or set; they are 0.
//!
//! All fields are bytes or little-endian integers of alignment 1: a structure can be viewed at any
//! address, on any machine.

pub use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A structure that is its own wire format.
///
/// Implemented for every structure of this crate and for byte arrays. Every bit pattern is a value;
/// the methods of the structure check whether it is meaningful.
pub trait Wire: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Sized {
    /// Its size, in bytes.
    const BYTES: usize = size_of::<Self>();

    /// The structure at the start of `bytes`, in place; `None` if `bytes` is shorter.
    #[inline]
    fn view(bytes: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(bytes).ok().map(|(structure, _rest)| structure)
    }

    /// Mutable form of [`Wire::view`].
    #[inline]
    fn view_mut(bytes: &mut [u8]) -> Option<&mut Self> {
        Self::mut_from_prefix(bytes).ok().map(|(structure, _rest)| structure)
    }

    /// All whole structures in `bytes`, in place. Trailing bytes are ignored.
    #[inline]
    fn view_list(bytes: &[u8]) -> &[Self] {
        const { assert!(Self::BYTES > 0, "a list of nothing has no length") };
        let count = bytes.len() / Self::BYTES;
        <[Self]>::ref_from_prefix_with_elems(bytes, count).map_or(&[], |(list, _rest)| list)
    }

    /// The structure with every bit 0.
    #[inline]
    fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Its bytes in wire format.
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    /// Writes it at the start of `out` and returns its size; `None`, with nothing written, if `out`
    /// is too short.
    #[inline]
    #[must_use]
    fn encode(&self, out: &mut [u8]) -> Option<usize> {
        self.write_to_prefix(out).ok().map(|()| Self::BYTES)
    }
}

impl<T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned> Wire for T {}

/// Fills `field` with `text`, padded with spaces, like the ASCII strings of Identify. Characters
/// outside printable ASCII become `?`; longer text is truncated.
pub fn fill_ascii(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (byte, character) in field.iter_mut().zip(text.chars()) {
        *byte = if matches!(character, ' '..='~') { character as u8 } else { b'?' };
    }
}

/// The text of a space-padded or NUL-terminated ASCII field, without its padding; `None` if it
/// contains a byte that is not printable ASCII.
pub fn ascii(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    let text = core::str::from_utf8(&field[..end]).ok()?.trim_end_matches(' ');
    text.bytes().all(|byte| matches!(byte, 0x20..=0x7e)).then_some(text)
}

/// Declares wire structures; the documentation of the module has an example.
macro_rules! wire {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident [$size:literal] {
            $(
                $(#[$fmeta:meta])*
                $offset:literal => $fvis:vis $field:ident: $ty:ty $(, $text:literal)?;
            )*
        }
    )*) => {$(
        $(#[$meta])*
        #[doc = concat!("\n\nSize: ", stringify!($size), " bytes.")]
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $( $(#[$fmeta])* $(#[doc = $text])? #[doc = concat!("\n\nByte ", stringify!($offset), ".")] $fvis $field: $ty, )*
        }

        const _: () = {
            assert!(size_of::<$name>() == $size, stringify!($name));
            $( assert!(core::mem::offset_of!($name, $field) == $offset, stringify!($field)); )*
        };

        impl Default for $name {
            /// Every bit 0.
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    )*};
}

pub(crate) use wire;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_is_padded_cut_and_cleaned() {
        let mut field = [0; 8];
        fill_ascii(&mut field, "ab");
        assert_eq!(&field, b"ab      ");
        assert_eq!(ascii(&field), Some("ab"));
        fill_ascii(&mut field, "a\u{e9}\nlonger than it");
        assert_eq!(&field, b"a??longe");
        assert_eq!(ascii(b"ab\0\xff"), Some("ab"));
        assert_eq!(ascii(b"a\xff"), None);
        assert_eq!(ascii(b"a\x07"), None);
    }

    #[test]
    fn short_slice_is_refused() {
        assert!(<[u8; 4]>::view(&[1, 2, 3]).is_none());
        let mut out = [9; 3];
        assert!([1u8, 2, 3, 4].encode(&mut out).is_none());
        assert_eq!(out, [9; 3]);
    }

    #[test]
    fn list_ignores_trailing_bytes() {
        let list = U16::view_list(&[1, 0, 2, 0, 3]);
        assert_eq!(list, [U16::new(1), U16::new(2)]);
        assert!(U32::view_list(&[1, 0, 0]).is_empty());
    }
}
