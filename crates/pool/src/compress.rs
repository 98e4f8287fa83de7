//! Compression of units: contexts of each core, the give-up on data that does not compress, and
//! decompression of bytes that may be hostile. Units of encrypted volumes are encrypted after the
//! compression.
//!
//! Invariants: neither direction allocates once a core has its contexts; decompression writes into
//! a buffer of the exact size of the unit, so a bomb fails instead of growing. One unit is
//! decompressed at a time per core, which bounds the memory to one scratch of 32 KiB each.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};
use zstd::bulk::{Compressor, Decompressor};

use crate::crypt::VolumeCipher;
use crate::limits::{BLOCK_BYTES, GIVE_UP_MAX, UNIT_BLOCKS, ZSTD_LEVEL};
use crate::ondisk::unit::{
    CONTENT_AT, Codec, ENCRYPTED_HEADER_BYTES, HEADER_BYTES, UnitBody, compressed_of,
    decode_header, encode_encrypted_header, encode_header, is_worthwhile, put_content_len,
};

/// Bytes of a unit.
const UNIT_BYTES: usize = UNIT_BLOCKS * BLOCK_BYTES;

/// Bytes before the compressed ones in an encrypted unit.
const ENCRYPTED_BYTES: usize = ENCRYPTED_HEADER_BYTES + CONTENT_AT;

/// Name of the volume's property.
pub const COMPRESSION_PROPERTY: &str = "compression";

/// Whether and how a volume's data is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    Off,
    /// LZ4, when written and by the cleaner.
    Lz4,
    /// Zstandard, when written and by the cleaner.
    Zstd,
    /// LZ4 when written, Zstandard by the cleaner.
    Auto,
}

impl Compression {
    /// All settings.
    pub const ALL: [Compression; 4] =
        [Compression::Off, Compression::Lz4, Compression::Zstd, Compression::Auto];

    /// Its name in properties and configuration.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Off => "off",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
            Compression::Auto => "auto",
        }
    }

    /// The setting of this name.
    pub fn parse(name: &str) -> Option<Compression> {
        Compression::ALL.into_iter().find(|setting| setting.name() == name)
    }

    /// The setting among a volume's properties; off without a known one.
    pub fn of(properties: &BTreeMap<String, String>) -> Compression {
        let name = properties.get(COMPRESSION_PROPERTY);
        name.and_then(|name| Compression::parse(name)).unwrap_or_default()
    }

    /// Codec of writes.
    pub(crate) fn on_write(self) -> Option<Codec> {
        match self {
            Compression::Off => None,
            Compression::Lz4 | Compression::Auto => Some(Codec::Lz4),
            Compression::Zstd => Some(Codec::Zstd),
        }
    }

    /// Codec of the cleaner.
    pub(crate) fn when_cold(self) -> Option<Codec> {
        match self {
            Compression::Off => None,
            Compression::Lz4 => Some(Codec::Lz4),
            Compression::Zstd | Compression::Auto => Some(Codec::Zstd),
        }
    }
}

/// Early give-up: after units that did not shrink, as many are not tried, twice as many each time.
#[derive(Debug, Default)]
pub(crate) struct GiveUp {
    /// Units that are not tried.
    skip: AtomicU32,
    /// Units to skip after the next failure.
    next: AtomicU32,
}

impl GiveUp {
    /// Whether to try the next unit. Cores may race: an estimate is enough.
    pub(crate) fn tries(&self) -> bool {
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
        }
        skip == 0
    }

    /// Counts a unit that was tried.
    pub(crate) fn count(&self, shrank: bool) {
        if shrank {
            self.next.store(0, Ordering::Relaxed);
            return;
        }
        let next = self.next.load(Ordering::Relaxed);
        self.skip.store(next, Ordering::Relaxed);
        self.next.store((2 * next).clamp(1, GIVE_UP_MAX), Ordering::Relaxed);
    }
}

/// Contexts and scratch of a core.
struct Tools {
    lz4: CompressTable,
    zstd: Option<Compressor<'static>>,
    unzstd: Option<Decompressor<'static>>,
    compressed: Vec<u8>,
    unit: Vec<u8>,
}

impl Default for Tools {
    fn default() -> Tools {
        Tools {
            // Units are shorter than 64 KiB.
            lz4: CompressTable::small(),
            zstd: None,
            unzstd: None,
            // LZ4 needs its worst case; more than 7/8 is of no use.
            compressed: vec![
                0;
                ENCRYPTED_BYTES + lz4_flex::block::get_maximum_output_size(UNIT_BYTES)
            ],
            unit: vec![0; UNIT_BYTES],
        }
    }
}

thread_local! {
    /// Nothing here awaits, so one set per core is enough.
    static TOOLS: RefCell<Tools> = RefCell::default();
}

#[cfg(test)]
thread_local! {
    static UNITS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Units that this core has tried to compress.
#[cfg(test)]
pub(crate) fn units_compressed() -> usize {
    UNITS.get()
}

/// Compresses a unit of 2 to 8 blocks and passes its stored blocks on; `None` if it does not shrink
/// to 7/8.
pub fn compressed<T>(codec: Codec, data: &[u8], keep: impl FnOnce(&[u8]) -> T) -> Option<T> {
    compressed_with(codec, data, None, keep)
}

/// As [`compressed`]; then encrypts the unit, if its volume is encrypted.
pub(crate) fn compressed_with<T>(
    codec: Codec,
    data: &[u8],
    cipher: Option<&VolumeCipher>,
    keep: impl FnOnce(&[u8]) -> T,
) -> Option<T> {
    let blocks = data.len() / BLOCK_BYTES;
    if !(2..=UNIT_BLOCKS).contains(&blocks) {
        return None;
    }
    #[cfg(test)]
    UNITS.set(UNITS.get() + 1);
    TOOLS.with_borrow_mut(|tools| {
        let Tools { lz4, zstd, compressed, .. } = tools;
        let head = if cipher.is_some() { ENCRYPTED_BYTES } else { HEADER_BYTES };
        let out = &mut compressed[head..];
        let len = match codec {
            Codec::Lz4 => compress_into_with_table(data, out, lz4).ok()?,
            Codec::Zstd => {
                if zstd.is_none() {
                    *zstd = Compressor::new(ZSTD_LEVEL).ok();
                }
                zstd.as_mut()?.compress_to_buffer(data, out).ok()?
            }
        };
        let used = head + len;
        let stored = used.div_ceil(BLOCK_BYTES);
        if !is_worthwhile(blocks, stored) {
            return None;
        }
        let unit = &mut compressed[..stored * BLOCK_BYTES];
        unit[used..].fill(0);
        match cipher {
            None => encode_header(codec, blocks, len, unit),
            Some(cipher) => {
                let content = &mut unit[ENCRYPTED_HEADER_BYTES..];
                put_content_len(len, content);
                let nonce = cipher.encrypt_unit(content);
                encode_encrypted_header(codec, blocks, nonce, unit);
            }
        }
        Some(keep(unit))
    })
}

/// Whether these stored blocks, whose checksum was right, are a unit of this many blocks. The
/// content of an encrypted unit is not looked at.
pub(crate) fn is_unit(stored: &[u8], blocks: usize) -> bool {
    match decode_header(stored, blocks) {
        Ok((_, UnitBody::Encrypted { .. })) => true,
        Ok((_, UnitBody::Plain(_))) => decompressed(stored, blocks, |_| ()).is_some(),
        Err(_) => false,
    }
}

/// Decompresses the stored blocks of a unit, whose checksum was right, and passes its blocks on;
/// `None` if they are no unit of this many blocks.
pub fn decompressed<T>(stored: &[u8], blocks: usize, keep: impl FnOnce(&[u8]) -> T) -> Option<T> {
    decompressed_with(stored, blocks, None, keep)
}

/// As [`decompressed`], after decryption if the volume is encrypted. `None` too for an encrypted
/// unit of a volume that is not, and the reverse.
pub(crate) fn decompressed_with<T>(
    stored: &[u8],
    blocks: usize,
    cipher: Option<&VolumeCipher>,
    keep: impl FnOnce(&[u8]) -> T,
) -> Option<T> {
    let (codec, body) = decode_header(stored, blocks).ok()?;
    TOOLS.with_borrow_mut(|tools| {
        let Tools { unzstd, unit, compressed, .. } = tools;
        let bytes = match (body, cipher) {
            (UnitBody::Plain(bytes), None) => bytes,
            (UnitBody::Encrypted { nonce, content }, Some(cipher)) => {
                let scratch = compressed.get_mut(..content.len())?;
                scratch.copy_from_slice(content);
                cipher.decrypt_unit(nonce, scratch);
                compressed_of(scratch)?
            }
            (UnitBody::Plain(_), Some(_)) | (UnitBody::Encrypted { .. }, None) => return None,
        };
        let unit = unit.get_mut(..blocks * BLOCK_BYTES)?;
        let len = match codec {
            Codec::Lz4 => decompress_into(bytes, unit).ok()?,
            Codec::Zstd => {
                if unzstd.is_none() {
                    *unzstd = Decompressor::new().ok();
                }
                unzstd.as_mut()?.decompress_to_buffer(bytes, unit).ok()?
            }
        };
        (len == unit.len()).then(|| keep(unit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::crypt::tests::cipher;

    fn unit(blocks: usize, codec: Codec) -> (Vec<u8>, Vec<u8>) {
        let data: Vec<u8> = (0..blocks * BLOCK_BYTES).map(|at| (at / 100) as u8).collect();
        let stored = compressed(codec, &data, <[u8]>::to_vec).expect("it shrinks");
        (data, stored)
    }

    #[test]
    fn units_round_trip() {
        for codec in [Codec::Lz4, Codec::Zstd] {
            for blocks in 2..=UNIT_BLOCKS {
                let (data, stored) = unit(blocks, codec);
                assert_eq!(decompressed(&stored, blocks, <[u8]>::to_vec), Some(data));
                assert_eq!(decompressed(&stored, blocks - 1, |_| ()), None, "another size");
            }
        }
    }

    #[test]
    fn encrypted_units_round_trip_with_their_cipher_alone() {
        let cipher = cipher();
        for codec in [Codec::Lz4, Codec::Zstd] {
            for blocks in 2..=UNIT_BLOCKS {
                let (data, plain) = unit(blocks, codec);
                let sealed = || compressed_with(codec, &data, Some(&cipher), <[u8]>::to_vec);
                let stored = sealed().expect("it shrinks");
                let open = |cipher| decompressed_with(&stored, blocks, cipher, <[u8]>::to_vec);
                assert_eq!((open(Some(&cipher)), open(None)), (Some(data.clone()), None));
                assert!(decompressed_with(&plain, blocks, Some(&cipher), |_| ()).is_none());
                assert!(is_unit(&stored, blocks) && !is_unit(&stored, blocks - 1));
                assert_ne!(sealed().expect("it shrinks"), stored, "the nonce is new");
            }
        }
    }

    #[test]
    fn data_that_does_not_shrink_is_refused() {
        let mut state = 1_u64;
        let random: Vec<u8> = (0..UNIT_BYTES)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        for codec in [Codec::Lz4, Codec::Zstd] {
            assert_eq!(compressed(codec, &random, |_| ()), None);
            assert_eq!(compressed(codec, &random[..BLOCK_BYTES], |_| ()), None, "one block");
        }
    }

    #[test]
    fn bombs_fail_within_the_size_of_the_unit() {
        let bomb = vec![0; 64 << 20];
        let lz4 = lz4_flex::block::compress(&bomb[..UNIT_BYTES * 4]);
        let zstd = zstd::bulk::compress(&bomb, 3).expect("it compresses");
        for (codec, bytes) in [(Codec::Lz4, lz4), (Codec::Zstd, zstd)] {
            let mut stored = vec![0; (HEADER_BYTES + bytes.len()).next_multiple_of(BLOCK_BYTES)];
            encode_header(codec, UNIT_BLOCKS, bytes.len(), &mut stored);
            stored[HEADER_BYTES..HEADER_BYTES + bytes.len()].copy_from_slice(&bytes);
            assert_eq!(decompressed(&stored, UNIT_BLOCKS, |_| ()), None);
        }
    }

    proptest! {
        #[test]
        fn damaged_units_never_panic(at in 0..4096_usize, byte: u8, codec in 0..2_usize, blocks in 2..=8_usize) {
            let (_, mut stored) = unit(blocks, [Codec::Lz4, Codec::Zstd][codec]);
            stored[at] = byte;
            if let Some(len) = decompressed(&stored, blocks, <[u8]>::len) {
                prop_assert_eq!(len, blocks * BLOCK_BYTES);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..9000), blocks in 0..10_usize) {
            if let Some(len) = decompressed_with(&bytes, blocks, Some(&cipher()), <[u8]>::len) {
                prop_assert_eq!(len, blocks * BLOCK_BYTES);
            }
            if let Some(len) = decompressed(&bytes, blocks, <[u8]>::len) {
                prop_assert_eq!(len, blocks * BLOCK_BYTES);
            }
        }
    }

    #[test]
    fn give_up_doubles_until_a_unit_shrinks() {
        let state = GiveUp::default();
        let mut tried = 0;
        for _ in 0..1000 {
            if state.tries() {
                tried += 1;
                state.count(false);
            }
        }
        assert!(tried < 32, "{tried}");
        while !state.tries() {}
        state.count(true);
        assert!(state.tries(), "compressible data is tried at once");
    }
}
