//! `flagstone pool savings`: space and money that a pool saves, by kind and by volume.
//!
//! Invariant: the kinds add up to the space in use, so each byte is explained once. Compression and
//! deduplication store blocks in the same units, so the settings of the volumes say which of them
//! saves the space.

use std::fmt::Write as _;

use flagstone_cloud::CapacityPrice;
use flagstone_pool::{COMPRESSION_PROPERTY, Compression, DEDUP_PROPERTY, Dedup};
use flagstone_server::api::document::{VolumeDocument, VolumesDocument};
use flagstone_server::api::pool_document::{PoolDocument, PoolPlaceDocument};
use flagstone_server::http::encode;
use flagstone_units::columns::{Left, Right, lines};
use flagstone_units::display::size;
use flagstone_units::grouped;
use serde::Serialize;
use serde_json::Value;

use super::args::PoolSavingsArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, print};
use crate::plan::{price, price_note};
use crate::status::run_client;
use crate::status::server::read;

/// Savings of a pool.
#[derive(Debug, Serialize)]
struct Savings {
    pool: String,
    /// Sizes of all volumes, as a disk for each of them would have.
    provisioned_bytes: u64,
    /// In the order in which they apply.
    kinds: Vec<Kind>,
    /// Of all copies, as is the capacity.
    used_bytes: u64,
    capacity_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Cost>,
    volumes: Vec<VolumeSavings>,
}

/// One kind of savings. Negative: it takes space.
#[derive(Debug, Serialize)]
struct Kind {
    kind: &'static str,
    #[serde(skip)]
    title: &'static str,
    saved_bytes: i64,
}

/// Capacity per month, in US dollars.
#[derive(Debug, Serialize)]
struct Cost {
    price: CapacityPrice,
    /// Of a disk for each volume.
    provisioned_usd: f64,
    /// Of the space in use.
    used_usd: f64,
    /// Of the pool's devices as they are.
    capacity_usd: f64,
}

#[derive(Debug, Serialize)]
struct VolumeSavings {
    name: String,
    size_bytes: u64,
    data_bytes: u64,
    stored_bytes: u64,
    /// What saves the difference of the two.
    saved_by: Reduction,
}

/// Settings of a volume that reduce its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Reduction {
    /// Compression, or what was compressed before it was turned off.
    Compression,
    Deduplication,
    CompressionAndDeduplication,
}

impl Reduction {
    fn of(place: &PoolPlaceDocument) -> Reduction {
        let is_set = |key: &str, off: &str| {
            let value = place.settings.get(key).and_then(Value::as_str);
            value.is_some_and(|value| value != off)
        };
        let is_compressed = is_set(COMPRESSION_PROPERTY, Compression::Off.name());
        match (is_compressed, is_set(DEDUP_PROPERTY, Dedup::Off.name())) {
            (_, false) => Reduction::Compression,
            (false, true) => Reduction::Deduplication,
            (true, true) => Reduction::CompressionAndDeduplication,
        }
    }

    /// Name in JSON, and title.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Reduction::Compression => ("compression", "compression"),
            Reduction::Deduplication => ("deduplication", "deduplication"),
            Reduction::CompressionAndDeduplication => {
                ("compression_and_deduplication", "compression, deduplication")
            }
        }
    }
}

pub(super) fn run(args: &PoolSavingsArgs) -> Result<Exit, Failure> {
    let price = price(&args.catalog.open()?, &args.price)?;
    run_client(|| async {
        let mut server = args.api.connect()?;
        let pool = server.get_text(&format!("/v1/pools/{}", encode(&args.name)))?;
        let pool: PoolDocument = read(pool.as_bytes())?;
        if pool.id.is_none() {
            let reason = pool.reason.as_deref().unwrap_or("it is closed");
            return Err(Failure::failed(format!("pool {} is not open: {reason}", args.name)));
        }
        let volumes = server.get_text("/v1/volumes")?;
        let volumes: VolumesDocument = read(volumes.as_bytes())?;
        let savings = savings(&pool, &volumes.volumes, price);
        let text = if args.catalog.json { output::json(&savings) } else { text(&savings) };
        Ok(print(&text, Exit::Success))
    })
}

fn difference(from: u64, to: u64) -> i64 {
    i64::try_from(i128::from(from) - i128::from(to)).unwrap_or(i64::MAX)
}

fn savings(
    pool: &PoolDocument,
    volumes: &[VolumeDocument],
    price: Option<CapacityPrice>,
) -> Savings {
    let own = volumes.iter().filter_map(|volume| {
        let place = volume.pool.as_ref().filter(|place| place.name == pool.name)?;
        Some(VolumeSavings {
            name: volume.name.clone(),
            size_bytes: volume.size_bytes,
            data_bytes: place.used_bytes,
            stored_bytes: place.stored_bytes,
            saved_by: Reduction::of(place),
        })
    });
    let own: Vec<VolumeSavings> = own.collect();
    let mut kinds = Vec::new();
    let mut add = |(kind, title), saved_bytes| kinds.push(Kind { kind, title, saved_bytes });
    let written = difference(pool.provisioned_bytes, pool.data_bytes);
    add(("thin", "not written, discarded or zero"), written);
    // What volumes with deduplication do not save is that of compression.
    let mut compression = difference(pool.data_bytes, pool.stored_bytes);
    let others = [Reduction::Deduplication, Reduction::CompressionAndDeduplication];
    let mut saved = Vec::new();
    for by in others {
        let own = own.iter().filter(|volume| volume.saved_by == by);
        let own: Vec<i64> =
            own.map(|volume| difference(volume.data_bytes, volume.stored_bytes)).collect();
        if !own.is_empty() {
            let sum = own.into_iter().fold(0, i64::saturating_add);
            compression = compression.saturating_sub(sum);
            saved.push((by.names(), sum));
        }
    }
    add(Reduction::Compression.names(), compression);
    saved.into_iter().for_each(|(names, sum)| add(names, sum));
    let shared = difference(pool.stored_bytes, pool.used_bytes);
    add(("shared", "clones, less snapshots and maps"), shared);
    let copies = match pool.redundancy {
        Some(_) => {
            let saved_bytes = difference(0, pool.used_bytes);
            kinds.push(Kind { kind: "redundancy", title: "second copy", saved_bytes });
            2
        }
        None => 1,
    };
    let (used_bytes, capacity_bytes) = (copies * pool.used_bytes, copies * pool.capacity_bytes);
    Savings {
        pool: pool.name.clone(),
        provisioned_bytes: pool.provisioned_bytes,
        kinds,
        used_bytes,
        capacity_bytes,
        cost: price.map(|price| Cost {
            provisioned_usd: pool.provisioned_bytes as f64 * price.usd_per_byte,
            used_usd: used_bytes as f64 * price.usd_per_byte,
            capacity_usd: capacity_bytes as f64 * price.usd_per_byte,
            price,
        }),
        volumes: own,
    }
}

fn text(savings: &Savings) -> String {
    let mut text = format!("pool {}\n\n", savings.pool);
    let usd_per_byte = savings.cost.as_ref().map(|cost| cost.price.usd_per_byte);
    let row = |title: &str, negative: bool, bytes: u64| {
        let sign = if negative && bytes > 0 { "-" } else { "" };
        let mut row = vec![
            title.to_owned(),
            format!("{sign}{}", size(bytes)),
            match savings.provisioned_bytes {
                0 => "-".to_owned(),
                all => format!("{sign}{:.1} %", bytes as f64 / all as f64 * 100.0),
            },
        ];
        row.extend(usd_per_byte.map(|usd| format!("{sign}{}", grouped(bytes as f64 * usd, 2))));
        row
    };
    let mut rows = vec![row("sizes of all volumes", false, savings.provisioned_bytes)];
    for Kind { title, saved_bytes, .. } in &savings.kinds {
        rows.push(row(title, *saved_bytes > 0, saved_bytes.unsigned_abs()));
    }
    rows.push(row("used", false, savings.used_bytes));
    rows.push(row("capacity of the pool", false, savings.capacity_bytes));
    let mut head = vec![("space", Left), ("bytes", Right), ("of sizes", Right)];
    head.extend(usd_per_byte.map(|_| ("USD/month", Right)));
    text.extend(lines(&head, &rows).iter().map(|line| format!("{line}\n")));

    if !savings.volumes.is_empty() {
        let head = [
            ("volume", Left),
            ("size", Right),
            ("data", Right),
            ("stored", Right),
            ("ratio", Right),
            ("saved by", Left),
        ];
        let rows: Vec<Vec<String>> = savings.volumes.iter().map(volume_row).collect();
        text.push('\n');
        text.extend(lines(&head, &rows).iter().map(|line| format!("{line}\n")));
    }
    if let Some(Cost { price, .. }) = &savings.cost {
        let _ = writeln!(text, "\n{}", price_note(price));
    }
    text
}

fn volume_row(volume: &VolumeSavings) -> Vec<String> {
    let ratio = match (volume.data_bytes, volume.stored_bytes) {
        (0, _) | (_, 0) => "-".to_owned(),
        (data, stored) => format!("{:.2}:1", data as f64 / stored as f64),
    };
    vec![
        volume.name.clone(),
        size(volume.size_bytes),
        size(volume.data_bytes),
        size(volume.stored_bytes),
        ratio,
        match volume.stored_bytes < volume.data_bytes {
            true => volume.saved_by.names().1.to_owned(),
            false => "-".to_owned(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use flagstone_cloud::Catalog;
    use flagstone_server::api::pool_document::RedundancyDocument;
    use serde_json::json;

    use super::*;

    fn volume(name: &str, pool: &str, data_gib: u64, stored_gib: u64) -> VolumeDocument {
        VolumeDocument {
            name: name.to_owned(),
            size_bytes: 200 << 30,
            pool: Some(PoolPlaceDocument {
                name: pool.to_owned(),
                used_bytes: data_gib << 30,
                stored_bytes: stored_gib << 30,
                ..PoolPlaceDocument::default()
            }),
            ..VolumeDocument::default()
        }
    }

    fn pool() -> PoolDocument {
        PoolDocument {
            name: "fast".to_owned(),
            provisioned_bytes: 400 << 30,
            data_bytes: 100 << 30,
            stored_bytes: 60 << 30,
            used_bytes: 40 << 30,
            capacity_bytes: 300 << 30,
            ..PoolDocument::default()
        }
    }

    #[test]
    fn savings_show_kinds_volumes_and_cost() {
        let price = Catalog::builtin("gcp-2019").unwrap().capacity_price("pd-ssd", false).unwrap();
        let price = CapacityPrice { usd_per_byte: 0.17 / 1e9, ..price };
        let volumes = [volume("db", "fast", 50, 10), volume("x", "slow", 1, 1)];
        let savings = savings(&pool(), &volumes, Some(price));
        let sum: i64 = savings.kinds.iter().map(|kind| kind.saved_bytes).sum();
        assert_eq!(savings.provisioned_bytes as i64 - sum, savings.used_bytes as i64);
        let text = text(&savings);
        assert!(
            text.starts_with(
                "\
pool fast

space                               bytes  of sizes  USD/month
sizes of all volumes              400 GiB   100.0 %      73.01
not written, discarded or zero   -300 GiB   -75.0 %     -54.76
compression                       -40 GiB   -10.0 %      -7.30
clones, less snapshots and maps   -20 GiB    -5.0 %      -3.65
used                               40 GiB    10.0 %       7.30
capacity of the pool              300 GiB    75.0 %      54.76

volume     size    data  stored   ratio  saved by
db      200 GiB  50 GiB  10 GiB  5.00:1  compression

prices: capacity of pd-ssd in "
            ),
            "{text}"
        );
    }

    #[test]
    fn dedup_is_shown_by_kind_and_volume() {
        let with = |name: &str, stored_gib: u64, settings: Value| {
            let mut volume = volume(name, "fast", 20, stored_gib);
            let place = volume.pool.as_mut().unwrap();
            place.settings = settings.as_object().unwrap().clone();
            volume
        };
        let volumes = [
            with("plain", 12, json!({"dedup": "on", "compression": "off"})),
            with("both", 8, json!({"dedup": "on", "compression": "lz4"})),
            with("off", 15, json!({"dedup": "off", "compression": "lz4"})),
            with("none", 20, json!({})),
        ];
        let savings = savings(&pool(), &volumes, None);
        let sum: i64 = savings.kinds.iter().map(|kind| kind.saved_bytes).sum();
        assert_eq!(savings.provisioned_bytes as i64 - sum, savings.used_bytes as i64);
        let text = text(&savings);
        for line in [
            "compression                       -20 GiB    -5.0 %\n",
            "deduplication                      -8 GiB    -2.0 %\n",
            "compression, deduplication        -12 GiB    -3.0 %\n",
            "plain   200 GiB  20 GiB  12 GiB  1.67:1  deduplication\n",
            "both    200 GiB  20 GiB   8 GiB  2.50:1  compression, deduplication\n",
            "off     200 GiB  20 GiB  15 GiB  1.33:1  compression\n",
            "none    200 GiB  20 GiB  20 GiB  1.00:1  -\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        let json = serde_json::to_value(&savings).unwrap();
        assert_eq!(json["kinds"][2]["kind"], "deduplication");
        assert_eq!(json["volumes"][1]["saved_by"], "compression_and_deduplication");
    }

    /// Both copies take space on devices that cost money.
    #[test]
    fn second_copy_takes_space() {
        let redundancy = Some(RedundancyDocument::default());
        let savings = savings(&PoolDocument { redundancy, ..pool() }, &[], None);
        let sum: i64 = savings.kinds.iter().map(|kind| kind.saved_bytes).sum();
        assert_eq!((savings.used_bytes, savings.capacity_bytes), (80 << 30, 600 << 30));
        assert_eq!(savings.provisioned_bytes as i64 - sum, savings.used_bytes as i64);
    }

    /// Snapshots take more than clones share, and compression saves nothing.
    #[test]
    fn space_that_is_taken_is_not_negative() {
        let pool = PoolDocument { stored_bytes: 100 << 30, used_bytes: 130 << 30, ..pool() };
        let savings = savings(&pool, &[], None);
        assert_eq!(savings.kinds[2].saved_bytes, -(30 << 30));
        let text = text(&savings);
        assert!(text.contains("clones, less snapshots and maps    30 GiB     7.5 %\n"), "{text}");
        assert!(text.contains("compression                           0 B     0.0 %\n"), "{text}");
        assert!(!text.contains("USD"), "{text}");
    }
}
