//! Pools of the API: their documents, metrics, and the orders on them and their volumes.
//!
//! An order survives its client.

use std::rc::Rc;

use flagstone_config::names::Uuid;
use flagstone_config::redact;
use flagstone_pool::{PoolStatus, Redundancy, VolumeEncryption, VolumeInfo};
use flagstone_runtime::spawn;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::document::VolumeDocument;
use super::pool_document::{
    DedupDocument, LegDocument, OrderDocument, PairDeviceDocument, PairDeviceStateName, PoolAction,
    PoolDocument, PoolLogDocument, PoolPlaceDocument, PoolStateName, PoolsDocument,
    RedundancyDocument, RedundancyName, RemovalDocument, RemovalStateName, ScrubDocument,
    ScrubStateName, UnservedDocument, VolumeAction,
};
use super::{Api, on};
use crate::http::{Call, Exposition, Problem, Router};
use crate::pools::scrub::ScrubOrder;
use crate::pools::settings::{self, KEY_FILE_KEY};
use crate::pools::{
    AcceptedLoss, CloneVolume, ClosedCause, DestroyPool, Fullness, GrowPool, MakePool, MakeVolume,
    Outcome, PoolSlot, PoolState, RemoveDevice, ReplaceDevice, SetLog, SetPool, SetVolume,
    Settings, used_percent,
};
use crate::serve::Server;
use crate::volume::ServedVolume;

/// Body of an order on a pool. `create` and `import` take `devices` and `log_device`, `grow` one
/// device, or two with redundancy, `remove-device` one, `replace-device` the former and the new
/// one; `create`, `grow`,
/// `replace-device` and `set-log` also `destroy_data`, `create` also `redundancy`, `remove-device`
/// also `cancel`. `set-log` takes `log_device`; without, the pool has none then. `create` and
/// `set-log` take `accept_ephemeral`, `import` takes `accept_data_loss` and `shown_data_loss`,
/// `set` takes `map_cache_bytes`. `reopen`, `destroy` and `set-log` take `force`; `scrub` takes
/// `pause` or `cancel`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "PoolOrder")]
struct PoolBody {
    dry_run: bool,
    /// Absolute paths.
    devices: Vec<String>,
    /// Absolute path of the log device.
    log_device: Option<String>,
    /// `none` or `mirror`; `none` if absent.
    redundancy: Option<RedundancyName>,
    /// Memory of the map cache.
    map_cache_bytes: Option<u64>,
    /// The log device may lose its content when its machine stops.
    accept_ephemeral: bool,
    /// Devices whose data may be destroyed.
    destroy_data: Vec<String>,
    /// Import an older copy, or another pool of the name.
    accept_data_loss: bool,
    /// `data_loss` of the preview: another loss is not accepted. Without it, each is.
    shown_data_loss: Option<String>,
    force: bool,
    /// Stop the scrub, and keep its place.
    pause: bool,
    /// Stop the scrub, and forget it; keep the device that is being removed.
    cancel: bool,
}

/// Body of an order on a volume of a pool. `create` takes `pool`, `size_bytes`, `thick`,
/// `encryption_key_file` and `settings`; `resize` `size_bytes`; `set` `thick`, `settings`,
/// `encryption_key_file` and `force`; `rename` `to`, `pool` and `force`; `clone` `snapshot` and
/// `settings`; `delete` `pool` and `force`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "VolumeOrder")]
struct VolumeBody {
    dry_run: bool,
    pool: Option<String>,
    size_bytes: Option<u64>,
    thick: Option<bool>,
    /// Path of the key file of an encrypted volume: the same as this key of `settings`.
    encryption_key_file: Option<String>,
    /// Keys of a volume's table in a configuration, `compression`, `dedup` (`on`, `off`),
    /// `dedup_domain` and `encryption_key_file`; `set` removes keys that are `null`.
    settings: Map<String, Value>,
    to: Option<String>,
    /// The snapshot that becomes the content of a clone.
    snapshot: Option<String>,
    force: bool,
}

pub(super) fn routes(api: &Rc<Api>, router: &mut Router) {
    router.get("/v1/pools", "All pools.", on(api, async |api, _| Ok(all(&api.server))));
    let description = "One pool: its devices, space, volumes and health.";
    router.get(
        "/v1/pools/{name}",
        description,
        on(api, async |api, call| {
            let name = call.text("name");
            Ok(document(&api.server, name, &api.server.pools.slot(name)?))
        }),
    );
    let description = "Creates, imports, grows, scrubs, reopens or destroys a pool, changes its devices, or \
                       previews the outcome.";
    router
        .post("/v1/pools/{name}/{action}", description, on(api, Api::order_pool))
        .takes::<PoolBody>();
    let description = "Creates, grows, changes, renames, clones, promotes or deletes a volume of a \
                       pool, or previews the outcome.";
    router
        .post("/v1/volumes/{name}/{action}", description, on(api, Api::order_volume))
        .takes::<VolumeBody>();
}

/// The body, without members that the order does not take.
pub(super) fn body<T: DeserializeOwned>(call: &Call, takes: &[&str]) -> Result<T, Problem> {
    call.without_query()?;
    let body: Map<String, Value> = call.json()?;
    let accepted = || takes.iter().copied().chain(["dry_run"]);
    if let Some(other) = body.keys().find(|key| !accepted().any(|member| member == *key)) {
        let problem = Problem::invalid(format!("this order has no member `{other}`"));
        return Err(problem.accepting(accepted()));
    }
    serde_json::from_value(Value::Object(body))
        .map_err(|error| Problem::invalid(format!("the body is invalid: {error}")))
}

pub(super) fn missing(member: &str) -> Problem {
    Problem::invalid(format!("`{member}` is missing"))
}

pub(super) fn unknown_action<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Problem {
    Problem::not_found(format!("there is no order `{name}`")).accepting(known)
}

/// Runs an order to its end, even if its client goes away.
pub(super) async fn run(
    name: String,
    dry_run: bool,
    work: impl Future<Output = Result<Outcome, Problem>> + 'static,
) -> Result<OrderDocument, Problem> {
    let stopping = || Problem::stopping("the server is stopping: nothing was confirmed");
    let Outcome { changed, outcome, data_loss, next } =
        spawn(work).await.unwrap_or_else(|_| Err(stopping()))?;
    Ok(OrderDocument { name, changed, dry_run, outcome, data_loss, next })
}

impl Api {
    async fn order_pool(self: Rc<Self>, call: Call) -> Result<OrderDocument, Problem> {
        let (name, word) = (call.text("name").to_owned(), call.text("action"));
        let known = PoolAction::ALL.map(PoolAction::name);
        let action = PoolAction::ALL.into_iter().find(|action| action.name() == word);
        let action = action.ok_or_else(|| unknown_action(word, known))?;
        let takes: &[&str] = match action {
            PoolAction::Create => {
                &["devices", "log_device", "redundancy", "accept_ephemeral", "destroy_data"]
            }
            PoolAction::Grow | PoolAction::ReplaceDevice => &["devices", "destroy_data"],
            PoolAction::RemoveDevice => &["devices", "cancel"],
            PoolAction::Import => &["devices", "log_device", "accept_data_loss", "shown_data_loss"],
            PoolAction::Scrub => &["pause", "cancel"],
            PoolAction::SetLog => &["log_device", "accept_ephemeral", "destroy_data", "force"],
            PoolAction::GiveUpTail => &[],
            PoolAction::Set => &["map_cache_bytes"],
            PoolAction::Reopen | PoolAction::Destroy => &["force"],
        };
        let given: PoolBody = body(&call, takes)?;
        let PoolBody {
            dry_run,
            devices,
            log_device,
            redundancy,
            accept_ephemeral,
            map_cache_bytes,
            destroy_data,
            accept_data_loss,
            shown_data_loss,
            force,
            pause,
            cancel,
        } = given;
        let scrub = match (pause, cancel) {
            (true, true) => {
                return Err(Problem::invalid("`pause` and `cancel` exclude each other"));
            }
            (true, false) => ScrubOrder::Pause,
            (false, true) => ScrubOrder::Cancel,
            (false, false) => ScrubOrder::Run,
        };
        let pool = redact::text(&name);
        tracing::info!(caller = %call.caller, pool, %action, dry_run, "pool order requested");
        let server = self.server.clone();
        let set = SetLog {
            name: name.clone(),
            log: log_device.clone(),
            accept_ephemeral,
            destroy_data: destroy_data.clone(),
            force,
            dry_run,
        };
        let make = MakePool {
            name: name.clone(),
            devices: devices.clone(),
            log: log_device.clone(),
            redundancy: redundancy_of(redundancy)?,
            accept_ephemeral,
            destroy_data: destroy_data.clone(),
            accepted_loss: AcceptedLoss::new(accept_data_loss, shown_data_loss),
            dry_run,
        };
        let destroy = DestroyPool { name: name.clone(), force, dry_run };
        let of = name.clone();
        let one = || match &devices[..] {
            [device] => Ok(device.clone()),
            _ => Err(Problem::invalid("`devices` has one device")),
        };
        let one = match action {
            PoolAction::RemoveDevice => one()?,
            _ => String::new(),
        };
        let [old, new] = match (action, &devices[..]) {
            (PoolAction::ReplaceDevice, [old, new]) => [old.clone(), new.clone()],
            (PoolAction::ReplaceDevice, _) => {
                return Err(Problem::invalid("`devices` has the former and the new device"));
            }
            _ => Default::default(),
        };
        let added = match action {
            PoolAction::Grow => Some(devices.clone()),
            PoolAction::ReplaceDevice => Some(vec![new.clone()]),
            _ => None,
        };
        let destroys = destroy_data.contains(&new);
        if added.is_some_and(|added| destroy_data.iter().any(|device| !added.contains(device))) {
            return Err(Problem::invalid("`destroy_data` has another device than the new one"));
        }
        let work = async move {
            match action {
                PoolAction::Grow => {
                    let grow = GrowPool { name: of, devices, destroy_data, dry_run };
                    server.grow_pool(grow).await
                }
                PoolAction::RemoveDevice => {
                    let remove = RemoveDevice { name: of, device: one, cancel, dry_run };
                    server.remove_device(remove).await
                }
                PoolAction::ReplaceDevice => {
                    let replace =
                        ReplaceDevice { name: of, old, new, destroy_data: destroys, dry_run };
                    server.replace_device(replace).await
                }
                PoolAction::Scrub => server.scrub_pool(&of, scrub, dry_run).await,
                PoolAction::Create => server.create_pool(make).await,
                PoolAction::Import => server.import_pool(make).await,
                PoolAction::Reopen => server.reopen_pool(destroy).await,
                PoolAction::Destroy => server.destroy_pool(destroy).await,
                PoolAction::Set => {
                    let map_cache_bytes =
                        map_cache_bytes.ok_or_else(|| missing("map_cache_bytes"))?;
                    server.set_pool(SetPool { name: of, map_cache_bytes, dry_run }).await
                }
                PoolAction::SetLog => server.set_log(set).await,
                PoolAction::GiveUpTail => server.give_up_tail(&of, dry_run).await,
            }
        };
        run(name, dry_run, work).await
    }

    async fn order_volume(self: Rc<Self>, call: Call) -> Result<OrderDocument, Problem> {
        let (name, word) = (call.text("name").to_owned(), call.text("action"));
        let known = VolumeAction::ALL.map(VolumeAction::name);
        let action = VolumeAction::ALL.into_iter().find(|action| action.name() == word);
        let action = action.ok_or_else(|| unknown_action(word, known))?;
        let takes: &[&str] = match action {
            VolumeAction::Create => {
                &["pool", "size_bytes", "thick", "encryption_key_file", "settings"]
            }
            VolumeAction::Resize => &["size_bytes"],
            VolumeAction::Set => &["thick", "encryption_key_file", "settings", "force"],
            VolumeAction::Rename => &["pool", "to", "force"],
            VolumeAction::Clone => &["snapshot", "settings"],
            VolumeAction::Promote => &[],
            VolumeAction::Delete => &["pool", "force"],
        };
        let given: VolumeBody = body(&call, takes)?;
        let VolumeBody { dry_run, pool, size_bytes, thick, settings, to, snapshot, force, .. } =
            given;
        let key_file = given.encryption_key_file.map(|path| (KEY_FILE_KEY.to_owned(), path.into()));
        let shown = redact::text(&name);
        tracing::info!(caller = %call.caller, volume = shown, %action, dry_run, "volume order requested");
        let (server, of) = (self.server.clone(), name.clone());
        let work = async move {
            let size = size_bytes.ok_or_else(|| missing("size_bytes"));
            let mut settings: Settings = settings;
            settings.extend(key_file);
            match action {
                VolumeAction::Create => {
                    let pool = pool.ok_or_else(|| missing("pool"))?;
                    let (size_bytes, thick) = (size?, thick.unwrap_or_default());
                    let make = MakeVolume { name: of, pool, size_bytes, thick, settings, dry_run };
                    server.create_volume(make).await
                }
                VolumeAction::Resize => server.resize_volume(&of, size_bytes, dry_run).await,
                VolumeAction::Set => {
                    let set = SetVolume { name: of, thick, settings, force, dry_run };
                    server.set_volume(set).await
                }
                VolumeAction::Rename => {
                    let to = to.ok_or_else(|| missing("to"))?;
                    server.rename_volume(pool.as_deref(), &of, &to, force, dry_run).await
                }
                VolumeAction::Clone => {
                    let snapshot = snapshot.ok_or_else(|| missing("snapshot"))?;
                    server.clone_volume(CloneVolume { name: of, snapshot, settings, dry_run }).await
                }
                VolumeAction::Promote => server.promote_volume(&of, dry_run).await,
                VolumeAction::Delete => {
                    server.delete_volume(pool.as_deref(), &of, force, dry_run).await
                }
            }
        };
        run(name, dry_run, work).await
    }
}

/// # Errors
/// 400 for a kind of redundancy that this version does not have.
fn redundancy_of(name: Option<RedundancyName>) -> Result<Redundancy, Problem> {
    match name {
        None | Some(RedundancyName::None) => Ok(Redundancy::None),
        Some(RedundancyName::Mirror) => Ok(Redundancy::Mirror),
        Some(RedundancyName::Unknown) => {
            let problem = Problem::invalid("there is no such `redundancy`");
            Err(problem.accepting(RedundancyName::ALL.map(RedundancyName::name)))
        }
    }
}

fn all(server: &Server) -> PoolsDocument {
    let slots = server.pools.slots();
    PoolsDocument { pools: slots.iter().map(|(name, slot)| document(server, name, slot)).collect() }
}

fn document(server: &Server, name: &str, slot: &PoolSlot) -> PoolDocument {
    let base = PoolDocument {
        name: name.to_owned(),
        devices: slot.set.devices.clone(),
        log_device: server.pools.log_path(name),
        ..PoolDocument::default()
    };
    let status = match &slot.state {
        PoolState::Open(pool) => pool.status(),
        PoolState::Changing { what } => {
            let (state, reason) = (PoolStateName::Changing, Some((*what).to_owned()));
            let next =
                Some("wait until its devices answer, or detach the one that hangs".to_owned());
            return PoolDocument { state, reason, next, ..base };
        }
        PoolState::Closed { reason, cause } => {
            let has_log = base.log_device.is_some();
            let next = match cause {
                ClosedCause::Full { .. } => format!("run {}", server.pools.growth_command(name)),
                ClosedCause::Refused if has_log => format!(
                    "correct the device, which is retried; if it has another path, run flagstone \
                     pool import {name} DEVICE… --log-device DEVICE; if the log device is lost, run flagstone \
                     pool give-up-tail {name}"
                ),
                ClosedCause::Absent => format!(
                    "its creation did not complete, or its devices were replaced: run flagstone \
                     pool create {name} again, or flagstone pool destroy {name}"
                ),
                ClosedCause::Refused => format!(
                    "correct the device, which is retried; if it has another path, run flagstone \
                     pool import {name} DEVICE…"
                ),
            };
            let (state, reason) = (PoolStateName::Closed, Some(reason.clone()));
            return PoolDocument { state, reason, next: Some(next), ..base };
        }
    };
    let received = |name: &str| match &slot.state {
        PoolState::Open(pool) => server.pools.received_bytes(pool, name),
        PoolState::Changing { .. } | PoolState::Closed { .. } => None,
    };
    let unserved = slot.unserved.iter().map(|(name, reason)| UnservedDocument {
        name: name.clone(),
        reason: reason.clone(),
        received_bytes: received(name),
    });
    let of_pool =
        |volume: &&Rc<ServedVolume>| volume.pool.as_ref().is_some_and(|place| place.pool == name);
    let mut volumes: Vec<String> =
        server.volumes().iter().filter(of_pool).map(|volume| volume.name().to_owned()).collect();
    volumes.sort();
    let legs = match &slot.state {
        PoolState::Open(pool) => server.pools.legs_in(name, pool),
        PoolState::Changing { .. } | PoolState::Closed { .. } => Vec::new(),
    };
    let legs = legs.into_iter().map(|(info, mirrored)| LegDocument { name: info.name, mirrored });
    let (scrub, removal) = (server.pools.scrub(name), server.pools.removal(name));
    let redundancy = server.pools.redundancy(name, &status);
    let state = match status.failed {
        Some(_) => PoolStateName::Failed,
        None => PoolStateName::Open,
    };
    PoolDocument {
        state,
        reason: status.failed.map(|error| error.to_string()),
        id: Some(status.id.to_string()),
        capacity_bytes: status.capacity_bytes,
        map_cache_bytes: status.map_cache_bytes,
        used_bytes: status.used_bytes,
        provisioned_bytes: status.provisioned_bytes,
        data_bytes: status.data_bytes,
        stored_bytes: status.stored_bytes,
        held_bytes: status.held_bytes,
        reserved_bytes: status.reserved_bytes,
        used_percent: used_percent(&status),
        threshold_percent: Fullness::of(&status).0,
        log: status.log.as_ref().map(|log| PoolLogDocument {
            present: log.name.is_some(),
            size_bytes: log.size_bytes,
            tail_bytes: log.tail_bytes,
            limit_bytes: log.limit_bytes,
        }),
        volumes,
        legs: legs.collect(),
        unserved: unserved.collect(),
        checkpoints: status.checkpoints,
        cleaned_segments: status.cleaned_segments,
        copied_bytes: status.copied_blocks * flagstone_pool::limits::BLOCK_BYTES as u64,
        deduplicated_bytes: status.deduplicated_bytes,
        dedup: status.dedup.map(|dedup| DedupDocument {
            volumes: dedup.volumes as u64,
            unscanned_bytes: dedup.unscanned_bytes,
            index_bytes: dedup.index_bytes,
        }),
        next: next(server, name, &status, slot)
            .or_else(|| redundancy.as_ref().and_then(|copies| device_advice(name, copies)))
            .or_else(|| removal_advice(name, removal.as_ref()))
            .or_else(|| scrub_advice(name, scrub.as_ref()))
            .or_else(|| left_out_advice(name, redundancy.as_ref()?, scrub.is_some())),
        redundancy,
        removal,
        scrub,
        ..base
    }
}

/// Advice about an open pool.
fn next(server: &Server, name: &str, status: &PoolStatus, slot: &PoolSlot) -> Option<String> {
    if status.failed.is_some() {
        return Some(format!("check its devices, then run flagstone pool reopen {name}"));
    }
    let PoolState::Open(pool) = &slot.state else { return None };
    let lacks = |volume: &VolumeInfo| {
        volume.incomplete && server.pools.mirrored(name, &volume.name).is_none()
    };
    if pool.volumes().iter().any(lacks) {
        return Some(format!(
            "to use these volumes without the writes that were lost, run flagstone pool give-up-tail \
             {name}; or restore them from a snapshot or a copy"
        ));
    }
    if status.log.as_ref().is_some_and(|log| log.name.is_none()) {
        return Some(format!(
            "the log device is missing or takes no writes, and the log goes to the other devices: attach \
             it and restart the server, or run flagstone pool set-log {name} DEVICE, or flagstone pool \
             set-log {name} --none"
        ));
    }
    let is_received = |volume: &&String| server.pools.received_bytes(pool, volume).is_some();
    let is_locked = |volume: &String| {
        let info = pool.volume(volume);
        info.is_some_and(|info| info.encryption == VolumeEncryption::Locked)
    };
    if slot.unserved.keys().any(is_locked) {
        return Some(format!(
            "put the key files of locked volumes back, then run flagstone pool reopen {name}"
        ));
    }
    if let Some(volume) = slot.unserved.keys().find(|volume| !is_received(volume)) {
        return Some(format!("correct the settings: flagstone volume set {volume}"));
    }
    match Fullness::of(status).0 {
        0 => slot.unserved.keys().find(is_received).map(|volume| {
            format!("receive the stream of volume {volume} again, or run flagstone volume delete {volume}")
        }),
        _ if status.is_freeing => {
            Some("the space of deleted volumes and snapshots is being freed: wait".to_owned())
        }
        percent => {
            let prefix = if percent == 100 { "new writes fail: " } else { "" };
            let grow = server.pools.growth_command(name);
            Some(format!(
                "{prefix}delete volumes or snapshots, discard data (fstrim) on hosts, or run {grow}"
            ))
        }
    }
}

/// Advice about a missing or failed device of a pair.
fn device_advice(name: &str, copies: &RedundancyDocument) -> Option<String> {
    let mut devices = copies.pairs.iter().flat_map(|pair| &pair.devices);
    devices.find_map(|PairDeviceDocument { device, state, .. }| {
        let repaired = match state {
            PairDeviceStateName::Missing => "attach",
            PairDeviceStateName::Failed => "correct",
            PairDeviceStateName::InSync
            | PairDeviceStateName::Rebuilding
            | PairDeviceStateName::Unknown => return None,
        };
        Some(format!(
            "{repaired} {device} and run flagstone pool reopen {name}, or replace it: flagstone pool \
             replace-device {name} {device} NEW-DEVICE"
        ))
    })
}

fn left_out_advice(name: &str, copies: &RedundancyDocument, is_scrubbed: bool) -> Option<String> {
    let advice = "a rebuild could not read some blocks: to find the volumes that have them, run \
         flagstone pool scrub";
    (copies.left_out_bytes > 0 && !is_scrubbed).then(|| format!("{advice} {name}"))
}

fn removal_advice(name: &str, removal: Option<&RemovalDocument>) -> Option<String> {
    let removal = removal.filter(|removal| removal.state == RemovalStateName::Failed)?;
    let device = &removal.device;
    Some(format!(
        "{device} was not removed: flagstone pool remove-device {name} {device} tries again"
    ))
}

/// Advice about damage that a scrub found, or a scrub that does not continue by itself.
fn scrub_advice(name: &str, scrub: Option<&ScrubDocument>) -> Option<String> {
    let scrub = scrub?;
    match scrub.state {
        ScrubStateName::Failed => Some(format!("flagstone pool scrub {name} continues the scrub")),
        _ if scrub.damages > 0 => Some(
            "write the damaged ranges again, or roll back to a snapshot that does not have them; \
             then scrub again"
                .to_owned(),
        ),
        _ => None,
    }
}

/// The place of a volume in its pool.
pub(super) fn place(server: &Server, volume: &ServedVolume) -> Option<PoolPlaceDocument> {
    let place = volume.pool.as_ref()?;
    let PoolState::Open(pool) = server.pools.slot(&place.pool).ok()?.state else { return None };
    let info = pool.volume(volume.name())?;
    Some(place_of(&place.pool, info, place.settings.clone()))
}

fn place_of(pool: &str, info: VolumeInfo, settings: Settings) -> PoolPlaceDocument {
    PoolPlaceDocument {
        name: pool.to_owned(),
        thick: info.thick,
        encryption: crate::pools::encryption(pool, &info),
        used_bytes: info.used_bytes,
        stored_bytes: info.stored_bytes,
        origin: info.origin,
        settings,
    }
}

/// The legs in open pools, by pool and name.
pub(super) fn legs(server: &Server) -> Vec<VolumeDocument> {
    let mut documents = Vec::new();
    for (pool_name, slot) in server.pools.slots() {
        let PoolState::Open(pool) = slot.state else { continue };
        for (info, mirrored) in server.pools.legs_in(&pool_name, &pool) {
            documents.push(VolumeDocument {
                name: info.name.clone(),
                size_bytes: info.size_bytes,
                block_bytes: flagstone_pool::limits::BLOCK_BYTES as u32,
                uuid: Uuid::from_bytes(info.uuid.0).to_string(),
                devices: vec![format!("pool:{pool_name}")],
                leg_of: Some(mirrored),
                pool: Some({
                    let settings = settings::from_properties(&info.properties);
                    place_of(&pool_name, info, settings.unwrap_or_default())
                }),
                ..VolumeDocument::default()
            });
        }
    }
    documents
}

type PoolNumber = fn(&PoolDocument) -> u64;

const FAMILIES: [(&str, &str, PoolNumber); 21] = [
    ("flagstone_pool_open", "1 while the pool is open and has not failed, else 0.", |pool| {
        (pool.state == PoolStateName::Open).into()
    }),
    ("flagstone_pool_capacity_bytes", "Space for volumes and their maps.", |pool| {
        pool.capacity_bytes
    }),
    ("flagstone_pool_used_bytes", "Space in use.", |pool| pool.used_bytes),
    ("flagstone_pool_provisioned_bytes", "Sizes of the volumes together.", |pool| {
        pool.provisioned_bytes
    }),
    ("flagstone_pool_data_bytes", "Data of the volumes before compression.", |pool| {
        pool.data_bytes
    }),
    (
        "flagstone_pool_stored_bytes",
        "Space of this data after compression and deduplication.",
        |pool| pool.stored_bytes,
    ),
    (
        "flagstone_pool_held_bytes",
        "Space that overwritten parts of compressed data hold.",
        |pool| pool.held_bytes,
    ),
    (
        "flagstone_pool_reserved_bytes",
        "Space reserved for thick volumes beyond what they use.",
        |pool| pool.reserved_bytes,
    ),
    (
        "flagstone_pool_threshold_percent",
        "Highest of 80, 90, 95 and 100 percent reached by used, held and reserved space.",
        |pool| pool.threshold_percent,
    ),
    ("flagstone_pool_volumes_unserved", "Volumes of the pool that are not served.", |pool| {
        pool.unserved.len() as u64
    }),
    (
        "flagstone_pool_log_missing",
        "1 while the log device of the pool is missing, else 0.",
        |pool| pool.log.as_ref().is_some_and(|log| !log.present).into(),
    ),
    ("flagstone_pool_log_tail_bytes", "Part of the log that only the log device has.", |pool| {
        pool.log.as_ref().map_or(0, |log| log.tail_bytes)
    }),
    ("flagstone_pool_devices_missing", "Devices of pairs that are missing or failed.", |pool| {
        pool.redundancy.as_ref().map_or(0, |copies| copies.missing_devices)
    }),
    (
        "flagstone_pool_rebuild_bytes",
        "Bytes to copy until every device of a pair is in sync.",
        |pool| pool.redundancy.as_ref().map_or(0, |copies| copies.rebuild_bytes),
    ),
    (
        "flagstone_pool_failed_reads_total",
        "Reads that one device of a pair failed and the other answered.",
        |pool| pool.redundancy.as_ref().map_or(0, |copies| copies.failed_reads),
    ),
    (
        "flagstone_pool_left_out_bytes_total",
        "Bytes that no rebuild of a device of a pair could read.",
        |pool| pool.redundancy.as_ref().map_or(0, |copies| copies.left_out_bytes),
    ),
    (
        "flagstone_pool_repaired_bytes_total",
        "Bytes rewritten from the other device of a pair.",
        |pool| pool.redundancy.as_ref().map_or(0, |copies| copies.repaired_bytes),
    ),
    ("flagstone_pool_checkpoints_total", "Checkpoints.", |pool| pool.checkpoints),
    ("flagstone_pool_cleaned_segments_total", "Segments that the cleaner emptied.", |pool| {
        pool.cleaned_segments
    }),
    ("flagstone_pool_copied_bytes_total", "Bytes that the cleaner copied.", |pool| {
        pool.copied_bytes
    }),
    ("flagstone_pool_deduplicated_bytes_total", "Bytes that sharing equal blocks freed.", |pool| {
        pool.deduplicated_bytes
    }),
];

type VolumeNumber = fn(&VolumeInfo) -> u64;

const VOLUME_FAMILIES: [(&str, &str, VolumeNumber); 2] = [
    ("flagstone_pool_volume_data_bytes", "Data of the volume before compression.", |volume| {
        volume.used_bytes
    }),
    (
        "flagstone_pool_volume_stored_bytes",
        "Space of this data after compression and deduplication.",
        |volume| volume.stored_bytes,
    ),
];

pub(super) fn metrics(server: &Server, out: &mut Exposition) {
    let pools = all(server).pools;
    for (name, help, number) in FAMILIES {
        let mut family = out.family(name, help);
        for pool in &pools {
            family.count(&[("pool", &pool.name)], number(pool));
        }
    }
    volume_metrics(server, out);
}

/// Also of volumes that are not served: their space is used.
fn volume_metrics(server: &Server, out: &mut Exposition) {
    let open = server.pools.slots().into_iter().filter_map(|(name, slot)| match slot.state {
        PoolState::Open(pool) => Some((name, pool.volumes())),
        PoolState::Changing { .. } | PoolState::Closed { .. } => None,
    });
    let open: Vec<(String, Vec<VolumeInfo>)> = open.collect();
    for (name, help, number) in VOLUME_FAMILIES {
        let mut family = out.family(name, help);
        for (pool, volume) in open.iter().flat_map(|(pool, all)| all.iter().map(move |v| (pool, v)))
        {
            family.count(&[("pool", pool), ("volume", &volume.name)], number(volume));
        }
    }
}
