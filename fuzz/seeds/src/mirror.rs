//! Disks of replicas.

use std::io;

use super::Corpus;

/// `mirror_replica`: each kind of replica as it is, and with fields that only an attacker, a mistake
/// or the end of all time would leave.
pub(crate) fn replicas(corpus: &Corpus) -> io::Result<()> {
    for parameters in 0..8_u8 {
        corpus.put("mirror_replica", &format!("as-made-{parameters}"), &[parameters])?;
    }
    // Pages from the end: superblock slots 1 and 0, a bitmap page, hot records, headers.
    let changes: [(&str, u8, &[u8], u16, &[u8]); 9] = [
        ("last-sequence", 0, &[0, 1], 16, &[0xFF; 8]),
        ("last-incarnation", 0, &[0, 1], 120, &[0xFF; 8]),
        ("last-epoch", 2, &[0, 1], 88, &[0xFF; 8]),
        ("smaller-volume", 0, &[0, 1], 56, &[0, 0x10, 0, 0, 0, 0, 0, 0]),
        ("larger-regions", 0, &[0, 1], 68, &[0, 0, 1, 0]),
        ("moved", 4, &[0, 1], 400, &[0, 0x10, 0, 0, 0, 0, 0, 0]),
        ("log-header-sequence", 0, &[5, 6], 16, &[0xFF; 8]),
        ("hot-sequence", 2, &[3, 4], 16, &[0xFF; 8]),
        ("bits-beyond-the-end", 0, &[2], 48, &[0xFF; 16]),
    ];
    for (name, parameters, pages, at, bytes) in changes {
        let mut input = vec![parameters];
        for page in pages {
            input.push(*page);
            input.extend(at.to_le_bytes());
            input.push(bytes.len() as u8);
            input.extend(bytes);
        }
        corpus.put("mirror_replica", name, &input)?;
    }
    Ok(())
}
