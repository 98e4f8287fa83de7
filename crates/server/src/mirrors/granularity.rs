//! Granularity of a new replica: the size of its bitmap blocks and regions.
//!
//! A replica gets the configured granularity, or its creation is refused. A region has at most 512
//! bits and a volume at most 2^24 regions, so a large volume cannot have the finest granularity.
//! Beyond 64 TiB the default is coarser, so that the log stays small.

use flagstone_mirror::limits::{
    ACTIVE_REGIONS_MAX, ACTIVE_REGIONS_MIN, BIT_DEFAULT_BYTES, BIT_MAX_BYTES, REGION_MAX_BITS,
    REGIONS_MAX,
};
use flagstone_mirror::ondisk::layout::ReplicaGeometry;

use flagstone_config as config;
use flagstone_units::format_size;

/// Geometry of a new replica, coarser than configured if the format requires it.
pub(super) fn shape(mirror: &config::MirrorConfig, device_bytes: u64) -> ReplicaGeometry {
    let usual = ReplicaGeometry::for_size(device_bytes).bit_bytes;
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

/// The same with the given granularity: a target uses its source's.
pub(super) fn with_bits(
    mirror: &config::MirrorConfig,
    bit_bytes: u32,
    device_bytes: u64,
) -> ReplicaGeometry {
    let mut shape = ReplicaGeometry::for_size(device_bytes);
    shape.bit_bytes = bit_bytes;
    // Keep the region size if possible: it determines the log's write rate.
    let most = bit_bytes.saturating_mul(REGION_MAX_BITS);
    shape.region_bytes = shape.region_bytes.clamp(bit_bytes, most);
    let regions = mirror.activity_log_bytes / u64::from(shape.region_bytes);
    shape.active_regions_max =
        regions.clamp(ACTIVE_REGIONS_MIN.into(), ACTIVE_REGIONS_MAX.into()) as u32;
    shape
}

/// Refusal of a configured granularity that is finer than possible. The default is never refused.
pub(super) fn too_fine(
    name: &str,
    mirror: &config::MirrorConfig,
    shape: &ReplicaGeometry,
) -> Option<String> {
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

/// Advice about a target whose granularity, and so log size, differs from its source's.
pub(super) fn other_granularity(
    name: &str,
    mirror: &config::MirrorConfig,
    shape: &ReplicaGeometry,
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
    use flagstone_mirror::ondisk::layout::layout;

    use super::*;
    use flagstone_config::Config;

    const TIB: u64 = 1 << 40;

    fn mirror(granularity: &str) -> config::MirrorConfig {
        let text = format!(
            "[server]\nnode = \"a\"\n[peer.b]\naddress = \"host\"\ninsecure = true\n[volume.db]\n\
             mirror = {{ peer = \"b\"{granularity} }}\ndevice = \"memory:16MiB\"\n"
        );
        let config = Config::parse("f", &text).unwrap_or_else(|error| panic!("{error}"));
        config.volumes[0].mirror().expect("it has one").clone()
    }

    /// From the finest to the coarsest: the configured granularity if the format supports it, else
    /// the next coarser one and a refusal.
    #[test]
    fn granularity_is_as_configured_or_refused() {
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

    /// A target has its source's bits, and regions of the size that its own crash resync is made
    /// of.
    #[test]
    fn target_keeps_its_activity_log_size() {
        for power in 12..=24 {
            let shape = with_bits(&mirror(""), 1 << power, 1 << 30);
            assert_eq!((shape.check(), shape.bit_bytes), (Ok(()), 1 << power));
            let hot_bytes = u64::from(shape.active_regions_max) * u64::from(shape.region_bytes);
            assert_eq!(hot_bytes, 4 << 30, "bits of 2^{power}");
        }
    }
}
