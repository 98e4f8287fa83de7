//! What versions of sectors look like: content that names its sector and version, so that any of it can
//! be told wherever it is found.

use flagstone_runtime::sim::Rng;

/// Unit of tearing, in bytes.
pub const SECTOR_BYTES: usize = 512;

/// Versions begin at 1; a sector of zeroes is of this one.
pub(crate) const ZEROES: u32 = 0;

/// The content of a version of a sector.
pub(crate) fn content(seed: u64, sector: usize, version: u32) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    if version == ZEROES {
        return bytes;
    }
    let name = (sector as u64) << 32 | u64::from(version);
    let mut rng = Rng::new(seed ^ name);
    let (words, _) = bytes.as_chunks_mut::<8>();
    words[0] = name.to_le_bytes();
    // One draw a sector: words apart by an odd constant each are as different as is needed here.
    let mut next = rng.next_u64();
    for word in &mut words[1..] {
        *word = next.to_le_bytes();
        next = next.wrapping_add(0x9E37_79B9_7F4A_7C15);
    }
    bytes
}

/// The version that a sector's bytes are, or what else they are.
pub(crate) fn version_of(seed: u64, sector: usize, bytes: &[u8]) -> Result<u32, String> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(ZEROES);
    }
    let (head, _) = bytes.split_first_chunk::<8>().ok_or("too few bytes")?;
    let name = u64::from_le_bytes(*head);
    let (found, version) = ((name >> 32) as usize, name as u32);
    let expected = content(seed, found, version);
    if version == ZEROES || bytes != expected {
        let same = bytes.iter().zip(&expected).filter(|(a, b)| a == b).count();
        return Err(format!("torn or foreign bytes ({same} of 512 are of version {version})"));
    }
    if found != sector {
        return Err(format!("what belongs to sector {found}, of version {version}"));
    }
    Ok(version)
}
