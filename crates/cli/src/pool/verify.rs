//! `flagstone pool check`, without a server, and the waits for a scrub and a removal.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use flagstone_pool::verify::check::CheckReport;
use flagstone_pool::{NamedDevice, Pool};
use flagstone_runtime::time;
use flagstone_server::api::pool_document::{
    DamageDocument, PairDeviceDocument, PairDeviceStateName, PoolDocument, RemovalDocument,
    ScrubDocument, ScrubStateName,
};
use flagstone_server::http::encode;
use flagstone_stack::{OpenOptions, open_device};
use flagstone_units::display::size;
use serde::Serialize;

use super::args::CheckPoolArgs;
use super::show;
use crate::exit::{Exit, Failure};
use crate::output::{json, print, progress_bar};
use crate::status::server::ApiArgs;

/// Pause between two looks at a scrub.
const PAUSE: Duration = Duration::from_millis(200);

/// `flagstone pool check --json`
#[derive(Serialize)]
struct CheckDocument {
    pool: String,
    id: String,
    update: u64,
    volumes: usize,
    snapshots: usize,
    replayed_chunks: u64,
    verified_bytes: u64,
    live_bytes: u64,
    damages: u64,
    damage: Vec<DamageDocument>,
    /// Devices of pairs whose copy was not checked.
    unchecked_devices: Vec<String>,
}

async fn open(path: &Path) -> Result<NamedDevice, Failure> {
    let name = path.to_str().ok_or_else(|| Failure::usage("a path is not UTF-8"))?.to_owned();
    let spec = name.parse().map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let opened = open_device(&spec, &options).await;
    Ok(NamedDevice { name, device: opened.map_err(Failure::failed)? })
}

pub(super) async fn check(args: &CheckPoolArgs) -> Result<Exit, Failure> {
    let mut devices = Vec::with_capacity(args.devices.len());
    for path in &args.devices {
        devices.push(open(path).await?);
    }
    let bar = progress_bar(Some(0), "{bytes} of {total_bytes} {wide_bar} {eta}");
    let mut progress = |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let report = Pool::check_devices(devices, &mut progress).await;
    bar.finish_and_clear();
    let report = report.map_err(Failure::failed)?;
    let text = match args.json {
        true => json(&document(&report)),
        false => text(&report),
    };
    Ok(print(&text, if report.damages == 0 { Exit::Success } else { Exit::VerifyFailed }))
}

fn document(report: &CheckReport) -> CheckDocument {
    CheckDocument {
        pool: report.name.clone(),
        id: report.id.to_string(),
        update: report.update,
        volumes: report.volumes,
        snapshots: report.snapshots,
        replayed_chunks: report.replayed_chunks,
        verified_bytes: report.verified_bytes,
        live_bytes: report.live_bytes,
        damages: report.damages,
        damage: report.damage.iter().map(DamageDocument::from).collect(),
        unchecked_devices: report.unchecked.iter().map(ToString::to_string).collect(),
    }
}

fn text(report: &CheckReport) -> String {
    let mut text = String::new();
    for damage in &report.damage {
        let _ = writeln!(text, "damaged: {damage}");
    }
    let unlisted = report.damages - report.damage.len() as u64;
    if unlisted > 0 {
        let _ = writeln!(text, "and {unlisted} more");
    }
    let CheckReport { name, volumes, snapshots, .. } = report;
    let _ = writeln!(
        text,
        "pool {name} with {volumes} volumes and {snapshots} snapshots: {} verified, {} chunks to \
         replay, {} damages",
        size(report.verified_bytes),
        report.replayed_chunks,
        report.damages
    );
    for device in &report.unchecked {
        let _ = writeln!(text, "not checked: device {device}, which is absent or is to be rebuilt");
    }
    text
}

/// Waits for the end of a scrub.
pub(super) async fn wait(name: &str, api: &ApiArgs) -> Result<Exit, Failure> {
    let mut server = api.connect()?;
    let bar = progress_bar(Some(0), "{bytes} of {total_bytes} {wide_bar} {eta}");
    let path = format!("/v1/pools/{}", encode(name));
    let scrub = loop {
        let pool: PoolDocument = server.get(&path)?;
        let scrub = pool.scrub.ok_or_else(|| Failure::failed("the scrub was canceled"))?;
        bar.set_length(scrub.total_bytes);
        bar.set_position(scrub.verified_bytes);
        if scrub.state != ScrubStateName::Running {
            break scrub;
        }
        time::sleep(PAUSE).await;
    };
    bar.finish_and_clear();
    let ScrubDocument { state, damages, .. } = &scrub;
    let exit = match (state, damages) {
        (ScrubStateName::Ended, 0) => Exit::Success,
        (ScrubStateName::Ended, _) => Exit::VerifyFailed,
        _ => Exit::Failed,
    };
    Ok(print(&show::scrub(&scrub), exit))
}

/// The removal of a device in progress; `None` after its success.
fn removal<'a>(
    pool: &'a PoolDocument,
    device: &str,
) -> Result<Option<&'a RemovalDocument>, Failure> {
    let name = &pool.name;
    let own = pool.removal.as_ref().filter(|removal| removal.device == device);
    if let Some(RemovalDocument { reason: Some(reason), .. }) = own {
        return Err(Failure::failed(format!("{device} stays in pool {name}: {reason}")));
    }
    if own.is_some() || !pool.devices.iter().any(|own| own == device) {
        return Ok(own);
    }
    Err(Failure::failed(match &pool.reason {
        Some(reason) => format!("{device} is still in pool {name}, which failed: {reason}"),
        None => format!("the removal of {device} was canceled: it stays in pool {name}"),
    }))
}

/// Waits until a device is removed.
pub(super) async fn wait_for_removal(
    name: &str,
    device: &str,
    api: &ApiArgs,
) -> Result<Exit, Failure> {
    let mut server = api.connect()?;
    let bar = progress_bar(Some(0), "{bytes} of {total_bytes} moved {wide_bar} {eta}");
    let path = format!("/v1/pools/{}", encode(name));
    loop {
        let pool: PoolDocument = server.get(&path)?;
        let Some(removal) = removal(&pool, device)? else {
            bar.finish_and_clear();
            return Ok(print(&show::pool(&pool), Exit::Success));
        };
        bar.set_length(removal.total_bytes);
        bar.set_position(removal.total_bytes.saturating_sub(removal.left_bytes));
        time::sleep(PAUSE).await;
    }
}

/// The device of a pair while it is rebuilt; `None` when it is in sync.
fn rebuild<'a>(
    pool: &'a PoolDocument,
    device: &str,
) -> Result<Option<&'a PairDeviceDocument>, Failure> {
    let name = &pool.name;
    let pairs = pool.redundancy.iter().flat_map(|copies| &copies.pairs);
    let own = pairs.flat_map(|pair| &pair.devices).find(|own| own.device == device);
    let own = own.ok_or_else(|| {
        let reason = pool.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        Failure::failed(format!("pool {name} does not show {device}{reason}"))
    })?;
    match own.state {
        PairDeviceStateName::InSync => Ok(None),
        PairDeviceStateName::Rebuilding => Ok(Some(own)),
        state @ (PairDeviceStateName::Missing
        | PairDeviceStateName::Failed
        | PairDeviceStateName::Unknown) => {
            let reason = own.reason.as_deref().unwrap_or("it is not used");
            Err(Failure::failed(format!("{device} is {state} in pool {name}: {reason}")))
        }
    }
}

/// Waits until a device of a pair is rebuilt.
pub(super) async fn wait_for_rebuild(
    name: &str,
    device: &str,
    api: &ApiArgs,
) -> Result<Exit, Failure> {
    let mut server = api.connect()?;
    let bar = progress_bar(Some(0), "{bytes} of {total_bytes} rebuilt {wide_bar} {eta}");
    let path = format!("/v1/pools/{}", encode(name));
    loop {
        let pool: PoolDocument = server.get(&path)?;
        let Some(own) = rebuild(&pool, device)? else {
            bar.finish_and_clear();
            return Ok(print(&show::pool(&pool), Exit::Success));
        };
        bar.set_length(own.total_bytes);
        bar.set_position(own.rebuilt_bytes);
        time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It printed the pool and exited with 0.
    #[test]
    fn canceled_removal_is_no_success() {
        let running = |device: &str| {
            let device = device.to_owned();
            Some(RemovalDocument { device, ..RemovalDocument::default() })
        };
        let pool = |devices: &[&str], removal| PoolDocument {
            name: "fast".to_owned(),
            devices: devices.iter().map(ToString::to_string).collect(),
            removal,
            ..PoolDocument::default()
        };
        let of = |pool: &PoolDocument| {
            removal(pool, "/b").map(|found| found.is_some()).map_err(|failure| failure.1)
        };
        assert_eq!(of(&pool(&["/a", "/b"], running("/b"))), Ok(true));
        assert_eq!(of(&pool(&["/a"], None)), Ok(false));
        for after in [None, running("/a")] {
            let why = of(&pool(&["/a", "/b"], after)).unwrap_err();
            assert!(why.contains("the removal of /b was canceled"), "{why}");
        }
        let reason = Some("no space".to_owned());
        let failed = RemovalDocument { reason: reason.clone(), ..running("/b").unwrap() };
        assert!(of(&pool(&["/a", "/b"], Some(failed))).unwrap_err().ends_with("no space"));
        let closed = PoolDocument { reason, ..pool(&["/a", "/b"], None) };
        assert!(of(&closed).unwrap_err().contains("which failed: no space"));
    }
}
