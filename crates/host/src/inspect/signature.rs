//! Signatures of file systems, volumes and partition tables, by magic number.
//!
//! A signature proves presence, not integrity. A weak magic number of two bytes counts only with
//! plausible fields around it, so that a disk of random bytes does not look used: fewer than one of
//! 10^9 such devices raises a false alarm.

use std::io::{self, Read as _, SeekFrom};

use serde::Serialize;

use crate::limits::{HEAD_BYTES, TAIL_BYTES};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiskSignature {
    /// Name: `ext4`, `xfs`, `LVM2 physical volume`, `GPT`.
    pub kind: &'static str,
    /// Offset of the magic number, in bytes from the start of the device.
    pub offset_bytes: u64,
}

/// A part of a device: its bytes and their offset.
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// The bytes at an absolute offset, if all were read.
    fn at(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..from.checked_add(length)?)
    }

    fn has(&self, offset: u64, magic: &[u8]) -> bool {
        self.at(offset, magic.len()) == Some(magic)
    }

    fn le32(&self, offset: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.at(offset, 4)?.try_into().ok()?))
    }
}

/// Magic numbers of at least four bytes at a fixed offset.
const FIXED: &[(u64, &[u8], &str)] = &[
    (0, b"XFSB", "xfs"),
    (0, b"LUKS\xba\xbe", "LUKS"),
    (0x4000, b"SKUL\xba\xbe", "LUKS (second header)"),
    (0, b"hsqs", "squashfs"),
    (0, b"dmvdo001", "VDO"),
    (0, b"bluestore block device", "Ceph BlueStore"),
    (0, b"\xfc\x4e\x2b\xa9", "md RAID member (1.1)"),
    (4096, b"\xfc\x4e\x2b\xa9", "md RAID member (1.2)"),
    (3, b"NTFS    ", "ntfs"),
    (3, b"EXFAT   ", "exfat"),
    (3, b"-FVE-FS-", "BitLocker"),
    (82, b"FAT32   ", "vfat"),
    (54, b"FAT16   ", "vfat"),
    (54, b"FAT12   ", "vfat"),
    (32, b"NXSB", "apfs"),
    (32, b"ORCLDISK", "Oracle ASM disk"),
    (512, b"EFI PART", "GPT"),
    (4096, b"EFI PART", "GPT"),
    (512, b"!Stra0tis", "Stratis"),
    (1024, b"\x10\x20\xf5\xf2", "f2fs"),
    (1024, b"OCFSV2", "ocfs2"),
    (2048, b"OCFSV2", "ocfs2"),
    (4096, b"OCFSV2", "ocfs2"),
    (4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "bcache"),
    (4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "bcachefs"),
    (0x8000, b"JFS1", "jfs"),
    (0x8001, b"CD001", "iso9660"),
    (0x1_0000, b"\x01\x16\x19\x70", "gfs2"),
    (0x1_0034, b"ReIsErFs", "reiserfs"),
    (0x1_0034, b"ReIsEr2Fs", "reiserfs"),
    (0x1_0034, b"ReIsEr3Fs", "reiserfs"),
    (0x1_0040, b"_BHRfS_M", "btrfs"),
];

/// End of the first page of swap space, and of a suspended system in it.
const SWAP: &[&[u8; 10]] =
    &[b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND\0", b"S2SUSPEND\0", b"ULSUSPEND\0", b"LINHIB0001"];

/// Magic number of md superblocks on little-endian hosts.
const MD: &[u8] = b"\xfc\x4e\x2b\xa9";

/// ZFS uberblocks are in the second half of a label, at least 1 KiB apart.
const ZFS_LABEL_BYTES: u64 = 256 << 10;
const ZFS_UBERBLOCKS_FROM: u64 = 128 << 10;
const ZFS_MAGIC: [&[u8; 8]; 2] =
    [b"\x0c\xb1\xba\x00\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\xba\xb1\x0c"];

/// Signatures on a device or file of `size_bytes`. Reads at most [`HEAD_BYTES`] and [`TAIL_BYTES`].
///
/// # Errors
/// A read error. A device that ends before `size_bytes` is no error.
pub fn signatures<D: io::Read + io::Seek>(
    device: &mut D,
    size_bytes: u64,
) -> io::Result<Vec<DiskSignature>> {
    let head = read(device, 0, HEAD_BYTES.min(size_bytes))?;
    let tail_start = size_bytes.saturating_sub(TAIL_BYTES);
    let tail = read(device, tail_start, size_bytes - tail_start)?;
    let mut found = Vec::new();
    fixed(&head, &mut found);
    ext(&head, &mut found);
    lvm(&head, &mut found);
    swap(&head, &mut found);
    boot_sector(&head, &mut found);
    zfs(&head, &[0, ZFS_LABEL_BYTES], &mut found);
    if let Some(last) = (size_bytes / ZFS_LABEL_BYTES).checked_sub(2) {
        let last = last * ZFS_LABEL_BYTES;
        zfs(&tail, &[last, last + ZFS_LABEL_BYTES], &mut found);
    }
    at_the_end(&tail, size_bytes, &mut found);
    Ok(found)
}

fn read<D: io::Read + io::Seek>(device: &mut D, start: u64, length: u64) -> io::Result<Window> {
    device.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    device.by_ref().take(length).read_to_end(&mut bytes)?;
    Ok(Window { start, bytes })
}

fn add(found: &mut Vec<DiskSignature>, kind: &'static str, offset_bytes: u64) {
    if !found.iter().any(|signature| signature.kind == kind) {
        found.push(DiskSignature { kind, offset_bytes });
    }
}

fn fixed(head: &Window, found: &mut Vec<DiskSignature>) {
    for &(offset, magic, kind) in FIXED {
        if head.has(offset, magic) {
            add(found, kind, offset);
        }
    }
}

/// ext2, ext3 and ext4: a two-byte magic number at 0x38 of the superblock at 1 KiB.
fn ext(head: &Window, found: &mut Vec<DiskSignature>) {
    const SUPERBLOCK: u64 = 1024;
    let field = |offset| head.le32(SUPERBLOCK + offset).unwrap_or(u32::MAX);
    let plausible = field(0x18) <= 6 && field(0x4c) <= 1 && field(0x00) != 0;
    if plausible && head.has(SUPERBLOCK + 0x38, b"\x53\xef") {
        let extents_or_64bit = field(0x60) & 0x02c0 != 0;
        let kind = match (extents_or_64bit, field(0x5c) & 0x4 != 0) {
            (true, _) => "ext4",
            (false, true) => "ext3",
            (false, false) => "ext2",
        };
        add(found, kind, SUPERBLOCK + 0x38);
    }
}

/// The LVM2 label is in one of the first four sectors.
fn lvm(head: &Window, found: &mut Vec<DiskSignature>) {
    for sector in 0..4 {
        if head.has(sector * 512, b"LABELONE") && head.has(sector * 512 + 24, b"LVM2 001") {
            add(found, "LVM2 physical volume", sector * 512);
        }
    }
}

/// The swap magic ends the first page, whose size is that of the host that created it.
fn swap(head: &Window, found: &mut Vec<DiskSignature>) {
    for page_bytes in [4_096, 8_192, 16_384, 32_768, 65_536] {
        let offset = page_bytes - 10;
        if SWAP.iter().any(|magic| head.has(offset, magic.as_slice())) {
            add(found, "swap", offset);
        }
    }
}

/// A DOS partition table: 55 AA, and four entries that start with 00 or 80.
fn boot_sector(head: &Window, found: &mut Vec<DiskSignature>) {
    const ENTRIES: [u64; 4] = [446, 462, 478, 494];
    let entry = |offset| head.at(offset, 16);
    let status_is_right = |offset| entry(offset).is_some_and(|e| matches!(e[0], 0 | 0x80));
    if !head.has(510, b"\x55\xaa") || !ENTRIES.into_iter().all(status_is_right) {
        return;
    }
    let used = |offset| entry(offset).is_some_and(|e| e[4] != 0 && e[8..] != [0; 8]);
    let kind = match ENTRIES.into_iter().any(used) {
        true => "MBR partition table",
        false => "boot sector without partitions",
    };
    add(found, kind, 510);
}

fn zfs(window: &Window, labels: &[u64], found: &mut Vec<DiskSignature>) {
    for label in labels {
        for offset in (label + ZFS_UBERBLOCKS_FROM..label + ZFS_LABEL_BYTES).step_by(1024) {
            if ZFS_MAGIC.iter().any(|magic| window.has(offset, magic.as_slice())) {
                return add(found, "ZFS member", offset);
            }
        }
    }
}

/// The backup GPT, and md metadata 0.90 and 1.0.
fn at_the_end(tail: &Window, size_bytes: u64, found: &mut Vec<DiskSignature>) {
    for block_bytes in [512, 4096] {
        if let Some(offset) = size_bytes.checked_sub(block_bytes)
            && tail.has(offset, b"EFI PART")
        {
            add(found, "GPT (backup)", offset);
        }
    }
    let old = (size_bytes & !0xffff).checked_sub(0x1_0000);
    let new = (size_bytes & !0xfff).checked_sub(8192);
    for (offset, kind) in [(old, "md RAID member (0.90)"), (new, "md RAID member (1.0)")] {
        if let Some(offset) = offset.filter(|&offset| tail.has(offset, MD)) {
            add(found, kind, offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    const SIZE: usize = 4 << 20;

    fn kinds(bytes: Vec<u8>) -> Vec<&'static str> {
        let size = bytes.len() as u64;
        let found = signatures(&mut Cursor::new(bytes), size).expect("memory reads");
        found.into_iter().map(|signature| signature.kind).collect()
    }

    fn with(parts: &[(usize, &[u8])]) -> Vec<&'static str> {
        let mut bytes = vec![0; SIZE];
        for (offset, part) in parts {
            bytes[*offset..offset + part.len()].copy_from_slice(part);
        }
        kinds(bytes)
    }

    #[test]
    fn magic_numbers_match_only_their_offset() {
        for &(offset, magic, kind) in FIXED {
            let offset = usize::try_from(offset).expect("it is small");
            assert_eq!(with(&[(offset, magic)]), [kind]);
            assert!(with(&[(offset + 0x2_2222, magic)]).is_empty(), "{kind}");
        }
        for magic in SWAP {
            assert_eq!(with(&[(4086, magic.as_slice())]), ["swap"]);
            assert_eq!(with(&[(65526, magic.as_slice())]), ["swap"]);
        }
        assert_eq!(with(&[(512, b"LABELONE"), (536, b"LVM2 001")]), ["LVM2 physical volume"]);
        assert_eq!(with(&[(SIZE - 512, b"EFI PART")]), ["GPT (backup)"]);
        assert_eq!(with(&[(SIZE - 0x1_0000, MD)]), ["md RAID member (0.90)"]);
        assert_eq!(with(&[(SIZE - 8192, MD)]), ["md RAID member (1.0)"]);
        let first_uberblock = 128 << 10;
        for label in [0, 256 << 10, SIZE - (512 << 10), SIZE - (256 << 10)] {
            assert_eq!(with(&[(label + first_uberblock, ZFS_MAGIC[0])]), ["ZFS member"]);
            assert_eq!(with(&[(label + first_uberblock + 7168, ZFS_MAGIC[1])]), ["ZFS member"]);
        }
    }

    #[test]
    fn weak_magic_numbers_need_plausible_fields() {
        let ext: &[(usize, &[u8])] = &[(1024, &[8, 0, 0, 0]), (1080, b"\x53\xef")];
        assert_eq!(with(ext), ["ext2"]);
        let mut four = ext.to_vec();
        four.push((1024 + 0x60, b"\xc2\x02"));
        assert_eq!(with(&four), ["ext4"]);
        let mut implausible = ext.to_vec();
        implausible.push((1024 + 0x18, &[99]));
        assert!(with(&implausible).is_empty());

        assert_eq!(with(&[(510, b"\x55\xaa")]), ["boot sector without partitions"]);
        let entry: &[u8] = b"\x80\0\0\0\x83\0\0\0\x01\0\0\0\x01\0\0\0";
        assert_eq!(with(&[(446, entry), (510, b"\x55\xaa")]), ["MBR partition table"]);
        assert!(with(&[(462, b"\x17"), (510, b"\x55\xaa")]).is_empty());
    }

    #[test]
    fn blank_device_has_no_signature() {
        for size in [0, 1, 511, 512, 4096, 8191, 1 << 16, (1 << 20) + 1, SIZE] {
            assert!(kinds(vec![0; size]).is_empty(), "{size}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_have_no_signature(seed in prop::collection::vec(any::<u8>(), 4096), size in 0..SIZE) {
            let bytes: Vec<u8> = seed.iter().copied().cycle().take(size).collect();
            // A repeated seed of 4 KiB holds a given four-byte magic with probability 2^-32 per
            // offset.
            prop_assert!(kinds(bytes).is_empty());
        }

        #[test]
        fn wrong_device_size_is_harmless(size in any::<u64>(), length in 0_usize..10_000) {
            let found = signatures(&mut Cursor::new(vec![0xff; length]), size);
            prop_assert!(found.is_ok_and(|found| found.is_empty()));
        }
    }
}
