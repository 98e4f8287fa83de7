//! Granularities of a replica that is made: what a bit of its log stands for, and its regions.
//!
//! What the configuration asks for is what the replica gets, or it is refused. A log's regions have at
//! most 512 bits and a volume 2^24 of them, so a large volume cannot have the finest bits; and beyond
//! 64 TiB it has coarser ones than are the default, so that its log stays small.

use flagstone_mirror::limits::{
    BIT_DEFAULT_BYTES, BIT_MAX_BYTES, HOT_MAX, HOT_MIN, REGION_MAX_BITS, REGIONS_MAX,
};
use flagstone_mirror::shape::Shape;

use crate::config;
use crate::units::format_size;

/// Granularities of a replica that is made on a device of so many bytes. Its bits are coarser than the
/// configuration has them where no finer ones are possible.
pub(super) fn shape(mirror: &config::Mirror, device_bytes: u64) -> Shape {
    let usual = Shape::for_size(device_bytes).bit_bytes;
    let mut bit_bytes = mirror.granularity_bytes;
    if usual > BIT_DEFAULT_BYTES {
        bit_bytes = bit_bytes.max(usual);
    }
    let mut shape = with_bits(mirror, bit_bytes, device_bytes);
    while shape.regions() > REGIONS_MAX && shape.bit_bytes < BIT_MAX_BYTES {
        shape = with_bits(mirror, 2 * shape.bit_bytes, device_bytes);
    }
    shape
}

/// The same, with bits of so many bytes: a target has those of its source.
pub(super) fn with_bits(mirror: &config::Mirror, bit_bytes: u32, device_bytes: u64) -> Shape {
    let mut shape = Shape::for_size(device_bytes);
    shape.bit_bytes = bit_bytes;
    // Regions keep their size while they can: it is what the log writes for.
    let most = bit_bytes.saturating_mul(REGION_MAX_BITS);
    shape.region_bytes = shape.region_bytes.clamp(bit_bytes, most);
    let hot = mirror.crash_resync_bytes / u64::from(shape.region_bytes);
    shape.hot_regions = hot.clamp(HOT_MIN.into(), HOT_MAX.into()) as u32;
    shape
}

/// Why a volume with these granularities, as [`shape`] gives them, is not what its configuration asks
/// for. The default asks for nothing.
pub(super) fn too_fine(name: &str, mirror: &config::Mirror, shape: &Shape) -> Option<String> {
    let asked = mirror.granularity_bytes;
    let [asked_for, least] = [asked, shape.bit_bytes].map(|bytes| format_size(bytes.into()));
    (asked < shape.bit_bytes && asked != BIT_DEFAULT_BYTES).then(|| {
        format!(
            "`granularity` of the mirror of `{name}` is {asked_for}, and a volume of {} has {least} at \
             least: write granularity = \"{least}\" or more, or remove it, and start this server again",
            format_size(shape.usable_bytes)
        )
    })
}

/// What to do where a target with these granularities, which are its source's, is not of the size that
/// the configuration here makes, as its log is of another.
pub(super) fn other_granularity(
    name: &str,
    mirror: &config::Mirror,
    shape: &Shape,
) -> Option<String> {
    let own = self::shape(mirror, shape.usable_bytes).bit_bytes;
    let [here, there] = [own, shape.bit_bytes].map(|bytes| format_size(bytes.into()));
    (own != shape.bit_bytes).then(|| {
        format!(
            "a bit of the log stands for {there} on the source and for {here} here, so their logs are not \
             of one size: write granularity = \"{there}\" in the mirror of `{name}` here, and start this \
             server again"
        )
    })
}

#[cfg(test)]
mod tests {
    use flagstone_mirror::limits::BIT_MIN_BYTES;
    use flagstone_mirror::replica::read_superblock;
    use flagstone_mirror::shape::layout;
    use flagstone_runtime::block_on;

    use super::super::CreateRole;
    use super::super::testing::{Node, listener, port};
    use super::*;
    use crate::config::Config;

    const TIB: u64 = 1 << 40;

    fn mirror(granularity: &str) -> config::Mirror {
        let text = format!(
            "[server]\nnode = \"a\"\n[peer.b]\naddress = \"host\"\n[volume.db]\n\
             mirror = {{ peer = \"b\"{granularity} }}\ndevice = \"memory:16MiB\"\n"
        );
        let config = Config::parse("f", &text).unwrap_or_else(|error| panic!("{error}"));
        config.volumes[0].mirror().expect("it has one").clone()
    }

    /// What is written is what the replica gets, from the finest to the coarsest, wherever the format
    /// has it; else the next that it has, with the refusal that tells so.
    #[test]
    fn the_granularity_that_is_asked_for_is_the_one_that_is_made_or_refused() {
        for power in 12..=24 {
            let asked = 1_u32 << power;
            let mirror = mirror(&format!(", granularity = \"{asked}\""));
            assert_eq!(mirror.granularity_bytes, asked);
            for (bytes, least) in [
                (16 << 20, BIT_MIN_BYTES),
                (32 * TIB, BIT_MIN_BYTES),
                (32 * TIB + 4096, 2 * BIT_MIN_BYTES),
                (64 * TIB, 2 * BIT_MIN_BYTES),
                (64 * TIB + 4096, 2 * BIT_DEFAULT_BYTES),
                (200 * TIB, 4 * BIT_DEFAULT_BYTES),
            ] {
                let shape = shape(&mirror, bytes);
                assert_eq!(shape.check(), Ok(()), "{asked} of {bytes}");
                assert_eq!(shape.bit_bytes, asked.max(least), "{asked} of {bytes}");
                let refused = too_fine("db", &mirror, &shape);
                let is_default = asked == BIT_DEFAULT_BYTES;
                assert_eq!(refused.is_some(), asked < least && !is_default, "{asked} of {bytes}");
                if let Some(refused) = refused {
                    let advice =
                        format!("write granularity = \"{}\" or more", format_size(least.into()));
                    assert!(refused.contains(&advice), "{refused}");
                }
                assert!(layout(bytes, &shape).is_some_and(|layout| layout.usable_bytes > 0));
            }
        }
        assert_eq!(mirror("").granularity_bytes, BIT_DEFAULT_BYTES);
    }

    /// A target has its source's bits, and regions of the size that its own crash resync is made of.
    #[test]
    fn a_target_keeps_its_crash_resync_with_the_bits_of_its_source() {
        for power in 12..=24 {
            let shape = with_bits(&mirror(""), 1 << power, 1 << 30);
            assert_eq!((shape.check(), shape.bit_bytes), (Ok(()), 1 << power));
            let hot_bytes = u64::from(shape.hot_regions) * u64::from(shape.region_bytes);
            assert_eq!(hot_bytes, 4 << 30, "bits of 2^{power}");
        }
    }

    /// On disk; and a target whose configuration has another is told which one it needs.
    #[test]
    fn replicas_have_the_granularity_of_the_source() {
        block_on(async {
            let (a, b) = (listener(), listener());
            let text = |name: &str, peer: &str, port: u16, granularity: &str| {
                format!(
                    "[server]\nnode = \"{name}\"\n[peer.{peer}]\naddress = \"127.0.0.1:{port}\"\n\
                     [volume.db]\nmirror = {{ peer = \"{peer}\"{granularity} }}\n\
                     device = \"memory:64MiB\"\n"
                )
            };
            let fine = ", granularity = \"4KiB\"";
            let other = text("b", "a", port(&a), "");
            let texts = [text("a", "b", port(&b), fine), text("b", "a", port(&a), fine)];
            let [a, b] = [Node::of(&texts[0], a).await, Node::of(&texts[1], b).await];
            a.mirrored.create(CreateRole::Source, false, false).await.unwrap();
            let coarse = Node::of(&other, listener()).await;
            let refused = coarse.mirrored.create(CreateRole::Target, false, false).await;
            let refused = refused.unwrap_err().to_string();
            for part in ["4KiB on the source and for 64KiB here", "granularity = \"4KiB\""] {
                assert!(refused.contains(part), "no `{part}`: {refused}");
            }
            coarse.mirrored.end().await;
            b.mirrored.create(CreateRole::Target, false, false).await.unwrap();
            a.is_in_sync().await;
            for node in [&a, &b] {
                let found = read_superblock(&node.mirrored.leg).await.unwrap();
                assert_eq!(found.shape.bit_bytes, 4096);
            }
            a.mirrored.end().await;
            b.mirrored.end().await;
        })
        .unwrap();
    }
}
