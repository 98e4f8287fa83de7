//! Seeds of mirror input: replica disks, and compressed messages between nodes.

use std::io;

use flagstone_replication::Codec;
use flagstone_replication::codec::compress;

use super::Corpus;

/// `mirror_replica`: each kind of replica unchanged, and with field values that only an attacker, a
/// bug or a counter near its end would leave.
pub(crate) fn replicas(corpus: &Corpus) -> io::Result<()> {
    for parameters in 0..8_u8 {
        corpus.put("mirror_replica", &format!("as-made-{parameters}"), &[parameters])?;
    }
    // Pages from the end: superblock slots 1 and 0, a bitmap page, activity log records, headers.
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

/// `mirror_codec`: several kinds of data, compressed, with correct and wrong lengths, truncated,
/// and with trailing bytes; and data to compress.
pub(crate) fn compressed(corpus: &Corpus) -> io::Result<()> {
    let text: Vec<u8> = (0..4096).map(|at| b"flagstone "[at % 10]).collect();
    let steps: Vec<u8> = (0..65_536).map(|at| (at / 7 + at / 512) as u8).collect();
    let kinds = [("zeroes", vec![0; 256 << 10]), ("text", text), ("steps", steps)];
    for (codec, bit) in [(Codec::Lz4, 0), (Codec::Zstd, 1)] {
        for (kind, data) in &kinds {
            let sent = flagstone_runtime::block_on(async { compress(codec, data) });
            let sent = sent.map_err(io::Error::other)?.expect("it shrinks");
            let sent = &sent.data[..sent.bytes as usize];
            let put = |name: &str, len: usize, bytes: &[u8]| {
                let len = (len as u32 - 1).to_le_bytes();
                let input = [&[bit][..], &len[..3], bytes].concat();
                corpus.put("mirror_codec", &format!("{}-{kind}-{name}", codec.name()), &input)
            };
            put("whole", data.len(), sent)?;
            put("too-long", data.len() + 1, sent)?;
            put("bomb", 512, sent)?;
            put("cut", data.len(), &sent[..sent.len() - 1])?;
            put("twice", 2 * data.len(), &[sent, sent].concat())?;
        }
        let input = [&[bit | 2, 0, 16, 0][..], b"flagstone"].concat();
        corpus.put("mirror_codec", &format!("{}-to-compress", codec.name()), &input)?;
    }
    Ok(())
}
