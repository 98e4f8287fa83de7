//! `flagstone volume list`: where the data of each volume is.

use flagstone_server::api::document::{VolumeDocument, VolumesDocument};
use flagstone_server::api::pool_document::{PoolDocument, PoolStateName, PoolsDocument};
use flagstone_units::display::size;
use flagstone_units::exact_size;

use crate::exit::{Exit, Failure};
use crate::status::server::read;
use crate::status::table::not_served;
use crate::status::{QueryArgs, run_client};
use flagstone_units::columns::{Left, Right, lines};

pub(super) fn list(args: &QueryArgs) -> Result<Exit, Failure> {
    run_client(|| {
        args.repeat(|server| {
            let body = server.get_text("/v1/volumes")?;
            match args.json {
                true => args.as_json(body),
                false => {
                    let pools = server.get_text("/v1/pools")?;
                    let pools = read::<PoolsDocument>(pools.as_bytes())?.pools;
                    Ok(table(&read::<VolumesDocument>(body.as_bytes())?.volumes, &pools))
                }
            }
        })
    })
}

/// The volumes, and the pools whose volumes are not served.
fn table(volumes: &[VolumeDocument], pools: &[PoolDocument]) -> String {
    let closed = pools.iter().filter(|pool| pool.state != PoolStateName::Open);
    let closed: String = closed
        .map(|pool| {
            let name = &pool.name;
            format!(
                "pool {name} is not open, and its volumes are not served: see flagstone pool status \
                 {name}\n"
            )
        })
        .collect();
    if volumes.is_empty() {
        let next = "no volumes; next: flagstone volume create NAME --pool POOL --size SIZE\n";
        return if closed.is_empty() { next.to_owned() } else { closed };
    }
    let head = [
        ("volume", Left),
        ("kind", Left),
        ("on", Left),
        ("size", Right),
        ("used", Right),
        ("hosts", Right),
        ("state", Left),
        ("clone of", Left),
    ];
    let rows: Vec<Vec<String>> = volumes.iter().map(row).collect();
    let table = lines(&head, &rows);
    table.iter().map(|line| format!("{}\n", line.trim_end())).chain([closed]).collect()
}

fn row(volume: &VolumeDocument) -> Vec<String> {
    let place = volume.pool.as_ref();
    vec![
        volume.name.clone(),
        kind(volume),
        volume.devices.join(", "),
        match &volume.pending {
            Some(_) => "-".to_owned(),
            None => exact_size(volume.size_bytes),
        },
        place.map_or("-".to_owned(), |place| size(place.used_bytes)),
        volume.connections.len().to_string(),
        state(volume).to_owned(),
        place.and_then(|place| place.origin.clone()).unwrap_or_default(),
    ]
}

fn kind(volume: &VolumeDocument) -> String {
    let space = match &volume.pool {
        Some(place) if place.thick => Some("thick"),
        Some(_) => Some("thin"),
        None => None,
    };
    if let (Some(space), Some(mirrored)) = (space, &volume.leg_of) {
        return format!("{space}, leg of {mirrored}");
    }
    match (space, &volume.mirror) {
        (Some(space), Some(_)) => format!("{space}, mirrored"),
        (Some(space), None) => space.to_owned(),
        (None, Some(_)) => "mirrored".to_owned(),
        (None, None) => "plain".to_owned(),
    }
}

fn state(volume: &VolumeDocument) -> &'static str {
    match volume {
        volume if volume.leg_of.is_some() => "used by its mirror",
        volume if volume.pending.is_some() => "not open",
        volume if not_served(volume).is_some() => "not served here",
        volume if volume.flush_failed => "rejects writes",
        volume if volume.read_only => "read-only",
        _ => "served",
    }
}

#[cfg(test)]
mod tests {
    use flagstone_server::api::document::PendingDocument;
    use flagstone_server::api::mirror_document::MirrorDocument;
    use flagstone_server::api::pool_document::PoolPlaceDocument;

    use super::*;

    fn on(name: &str, device: &str) -> VolumeDocument {
        VolumeDocument {
            name: name.to_owned(),
            size_bytes: 200 << 30,
            devices: vec![device.to_owned()],
            ..VolumeDocument::default()
        }
    }

    #[test]
    fn list_shows_where_the_data_is() {
        let place = |thick, origin: Option<&str>| PoolPlaceDocument {
            name: "fast".to_owned(),
            thick,
            used_bytes: 47 << 20,
            stored_bytes: 47 << 20,
            origin: origin.map(str::to_owned),
            encryption: None,
            settings: serde_json::Map::new(),
        };
        let volumes = [
            VolumeDocument { read_only: true, ..on("db", "disk.img") },
            VolumeDocument { pool: Some(place(true, None)), ..on("orders", "pool:fast") },
            VolumeDocument {
                pool: Some(place(false, Some("orders@monday"))),
                ..on("test", "pool:fast")
            },
            VolumeDocument {
                pending: Some(PendingDocument {
                    reason: "connection refused".to_owned(),
                    attempts: 1,
                    seconds: 2.0,
                    next_seconds: None,
                }),
                ..on("far", "nbd://10.0.0.2/x")
            },
            VolumeDocument {
                mirror: Some(MirrorDocument::default()),
                pool: Some(place(false, None)),
                ..on("shop", "pool:fast")
            },
            VolumeDocument {
                leg_of: Some("crm".to_owned()),
                pool: Some(place(false, None)),
                ..on("crm-leg", "pool:fast")
            },
        ];
        assert_eq!(
            table(&volumes, &[]),
            "\
volume   kind              on                   size    used  hosts  state               clone of
db       plain             disk.img          200 GiB       -      0  read-only
orders   thick             pool:fast         200 GiB  47 MiB      0  served
test     thin              pool:fast         200 GiB  47 MiB      0  served              orders@monday
far      plain             nbd://10.0.0.2/x        -       -      0  not open
shop     thin, mirrored    pool:fast         200 GiB  47 MiB      0  not served here
crm-leg  thin, leg of crm  pool:fast         200 GiB  47 MiB      0  used by its mirror
"
        );
        assert!(table(&[], &[]).starts_with("no volumes; next: flagstone volume create"));
    }

    /// Such a server once had "no volumes".
    #[test]
    fn list_names_closed_pools() {
        let name = "fast".to_owned();
        let closed = PoolDocument { name, state: PoolStateName::Closed, ..PoolDocument::default() };
        let listed = table(&[], &[closed]);
        assert!(listed.starts_with("pool fast is not open"), "{listed}");
        let open = PoolDocument { state: PoolStateName::Open, ..PoolDocument::default() };
        assert!(table(&[], &[open]).starts_with("no volumes"));
    }
}
