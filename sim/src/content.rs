//! Sector content: bytes that name their sector and version, so that stale, lost, torn and
//! misplaced data can be identified.

use flagstone_runtime::rng::Rng;

/// Unit of tearing, in bytes.
pub const SECTOR_BYTES: usize = 512;

/// Version of a sector of zeroes. Written versions begin at 1.
pub(crate) const ZEROES: u32 = 0;

/// Content of one version of a sector.
pub(crate) fn content(seed: u64, sector: usize, version: u32) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    if version == ZEROES {
        return bytes;
    }
    let name = (sector as u64) << 32 | u64::from(version);
    let mut rng = Rng::new(seed ^ name);
    let (words, _) = bytes.as_chunks_mut::<8>();
    words[0] = name.to_le_bytes();
    // One draw per sector: words that differ by an odd constant are different enough here.
    let mut next = rng.next_u64();
    for word in &mut words[1..] {
        *word = next.to_le_bytes();
        next = next.wrapping_add(0x9E37_79B9_7F4A_7C15);
    }
    bytes
}

/// Version that a sector's bytes hold, or a description of foreign content.
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
        return Err(format!("content of sector {found}, version {version}"));
    }
    Ok(version)
}
