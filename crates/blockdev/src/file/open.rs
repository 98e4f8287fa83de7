//! Opening a file device: options, capabilities of the disk, and the resulting geometry.

use std::io;
use std::path::Path;

use flagstone_runtime::fs::{File, FileInfo, OpenOptions};

use crate::Geometry;
use crate::limits::FILE_BYTES_MIN;

/// Options for opening a file device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Bypass the page cache if the file system supports it.
    pub direct: bool,
    /// Refuse a file or disk that another program has locked or mounted.
    pub exclusive: bool,
    /// Create a sparse regular file of this many bytes if none exists.
    pub create_bytes: Option<u64>,
    /// Served block size, 512 or 4096 bytes. The default is the logical block size of a disk; for
    /// regular files 4096 if their size is a multiple of it, otherwise 512.
    pub block_bytes: Option<u32>,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions {
            read_only: false,
            direct: true,
            exclusive: true,
            create_bytes: None,
            block_bytes: None,
        }
    }
}

/// Opens, and determines the geometry.
pub(super) fn open(path: &Path, options: &FileOptions) -> io::Result<(File, Geometry)> {
    let wanted = OpenOptions {
        read_only: options.read_only,
        direct: options.direct,
        create_bytes: options.create_bytes,
        exclusive: options.exclusive,
    };
    let about = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display()))
    };
    let file = File::open(path, &wanted).map_err(about)?;
    let geometry = geometry(&file.info(), options)
        .map_err(|text| about(io::Error::new(io::ErrorKind::InvalidInput, text)))?;
    Ok((file, geometry))
}

fn geometry(info: &FileInfo, options: &FileOptions) -> Result<Geometry, String> {
    let block = block_bytes(info, options.block_bytes)?;
    let size_bytes = info.size_bytes;
    check_size(size_bytes, block)?;
    let physical = info.physical_block_bytes.max(block);
    let can_discard = info.can_deallocate && !options.read_only;
    Ok(Geometry {
        size_bytes,
        block_bytes: block,
        physical_block_bytes: if physical.is_multiple_of(block) { physical } else { block },
        optimal_io_bytes: 0,
        memory_align_bytes: info.memory_align_bytes.max(1),
        volatile_cache: true,
        read_only: options.read_only,
        can_discard,
        // A disk may turn out not to support it, and must not be overwritten instead.
        discard_zeroes: can_discard && !info.block_device,
        can_write_zeroes: (info.can_zero || info.can_deallocate) && !options.read_only,
    })
}

/// Refuses a size that would have to be rounded: the end of the data would be lost.
fn check_size(size_bytes: u64, block: u32) -> Result<(), String> {
    let unit = u64::from(block);
    let fits = size_bytes.max(FILE_BYTES_MIN.max(unit)).next_multiple_of(unit);
    if fits == size_bytes {
        return Ok(());
    }
    Err(format!(
        "its size is {size_bytes} bytes; a device needs at least 4 KiB and a multiple of its block \
         size, {block} bytes; enlarge it, for a file with: truncate -s {fits}"
    ))
}

fn block_bytes(info: &FileInfo, asked: Option<u32>) -> Result<u32, String> {
    let logical = info.logical_block_bytes;
    if !logical.is_power_of_two() || !(512..=65536).contains(&logical) {
        return Err(format!("its blocks of {logical} B are not supported (512 B to 64 KiB are)"));
    }
    match asked {
        Some(block @ (512 | 4096)) if block >= logical => Ok(block),
        Some(block @ (512 | 4096)) => Err(format!(
            "a block size of {block} B is less than the disk's own, {logical} B; use {logical}, or \
             leave it out"
        )),
        Some(block) => Err(format!("a block size of {block} B is not supported: use 512 or 4096")),
        None if info.block_device => Ok(logical),
        None if info.size_bytes.is_multiple_of(4096) => Ok(logical.max(4096)),
        None => Ok(logical),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileInfo = FileInfo {
        size_bytes: 1 << 20,
        block_device: false,
        direct: true,
        logical_block_bytes: 512,
        physical_block_bytes: 4096,
        memory_align_bytes: 512,
        can_deallocate: true,
        can_zero: true,
    };

    fn of(info: FileInfo, block_bytes: Option<u32>) -> Result<Geometry, String> {
        geometry(&info, &FileOptions { block_bytes, ..FileOptions::default() })
    }

    #[test]
    fn files_use_4_kib_blocks_if_size_permits() {
        let odd = FileInfo { size_bytes: (1 << 20) + 512, ..FILE };
        assert_eq!(of(FILE, None).unwrap().block_bytes, 4096);
        let geometry = of(odd, None).unwrap();
        assert_eq!((geometry.block_bytes, geometry.size_bytes), (512, (1 << 20) + 512));
        assert_eq!(of(FILE, Some(512)).unwrap().physical_block_bytes, 4096);
    }

    #[test]
    fn file_size_that_loses_bytes_is_refused() {
        for (size_bytes, block, enlarged) in [
            (0, None, "4096"),
            (1000, None, "4096"),
            (512, None, "4096"),
            ((1 << 20) + 700, None, "1049600"),
            ((1 << 20) + 512, Some(4096), "1052672"),
        ] {
            let error = of(FileInfo { size_bytes, ..FILE }, block).unwrap_err();
            assert!(error.contains(&format!("is {size_bytes} bytes")), "{error}");
            assert!(error.contains("at least 4 KiB") && error.contains("multiple"), "{error}");
            assert!(error.ends_with(&format!("truncate -s {enlarged}")), "{error}");
        }
        assert_eq!(of(FileInfo { size_bytes: 4096, ..FILE }, None).unwrap().size_bytes, 4096);
    }

    #[test]
    fn disks_use_their_logical_blocks() {
        let disk = FileInfo { block_device: true, ..FILE };
        assert_eq!(of(disk, None).unwrap().block_bytes, 512);
        let native = FileInfo { logical_block_bytes: 4096, ..disk };
        assert_eq!(of(native, None).unwrap().block_bytes, 4096);
        assert!(of(native, Some(512)).unwrap_err().contains("use 4096"));
        let large = FileInfo { logical_block_bytes: 16384, physical_block_bytes: 16384, ..disk };
        assert_eq!(of(large, None).unwrap().block_bytes, 16384);
    }

    #[test]
    fn unusable_file_is_refused_with_advice() {
        assert!(of(FILE, Some(1024)).unwrap_err().contains("use 512 or 4096"));
        let strange = FileInfo { logical_block_bytes: 520, ..FILE };
        assert!(of(strange, None).unwrap_err().contains("520"));
    }
}
