//! Volumes of the API: their documents and metrics.

use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_blockdev::stats::{CallKind as IoCall, CallTotals, Totals};
use flagstone_config::limits::MAX_SUGGESTED_NAMES;
use flagstone_config::listen_spec::ListenSpec;
use flagstone_config::{Backing, Subsystem};
use flagstone_nvme::Nqn;
use flagstone_nvmf_target::status::ControllerSummary;
use flagstone_runtime::task;

use super::document::{
    ConnectionDocument, IoDocument, ListenerDocument, VolumeDocument, VolumesDocument,
};
use super::{Api, limits, on, pending, pools};
use crate::http::{Exposition, Problem, Router};
use crate::limits::API_BATCH;
use crate::serve::Server;
use crate::stack::layer_name;
use crate::volume::ServedVolume;

pub(super) fn routes(api: &Rc<Api>, router: &mut Router) {
    let description =
        "All volumes, in the order of the configuration, then volumes of pools, then legs.";
    router.get("/v1/volumes", description, on(api, async |api, _| Ok(all(&api).await)));
    let description = "One volume: its properties, attached hosts and I/O.";
    router.get(
        "/v1/volumes/{name}",
        description,
        on(api, async |api, call| {
            let name = call.text("name");
            let is_named = |leg: &VolumeDocument| leg.name == name;
            let leg = || pools::legs(&api.server).into_iter().find(is_named);
            match api.server.find_volume(name) {
                Ok(volume) => Ok(document(&api, &volume)),
                Err(unknown) => leg().ok_or(unknown),
            }
        }),
    );
}

impl Server {
    pub(crate) fn find_volume(&self, name: &str) -> Result<Rc<ServedVolume>, Problem> {
        let volumes = self.volumes();
        let found = volumes.iter().find(|volume| volume.name() == name).cloned();
        found.ok_or_else(|| {
            for (pool, slot) in self.pools.slots() {
                if let Some(why) = slot.unserved.get(name) {
                    let problem = format!("volume `{name}` of pool {pool} is not served: {why}");
                    return Problem::not_found(problem);
                }
            }
            if let Some(why) = self.pools.unknown_names() {
                return Problem::not_found(format!(
                    "volume `{name}` is not served, but {why} and may have it: see flagstone pool status"
                ));
            }
            let names = volumes.iter().map(|volume| volume.name());
            Problem::not_found(format!("there is no volume `{name}`"))
                .accepting(names.take(MAX_SUGGESTED_NAMES))
        })
    }
}

impl ServedVolume {
    /// A flush has failed, without a reopen since. For mirrored volumes see the replica instead.
    pub(super) fn has_failed_flush(&self) -> bool {
        self.device.get().is_some_and(|device| device.must_reopen())
    }
}

async fn all(api: &Api) -> VolumesDocument {
    let server = &api.server;
    let served = server.volumes();
    let mut volumes = Vec::with_capacity(served.len());
    for (index, volume) in served.iter().enumerate() {
        if index % API_BATCH == API_BATCH - 1 {
            // Let host I/O on this core proceed.
            task::yield_now().await;
        }
        volumes.push(document(api, volume));
    }
    volumes.extend(pools::legs(server));
    VolumesDocument { uptime_seconds: server.started.elapsed().as_secs_f64(), volumes }
}

fn document(api: &Api, served: &ServedVolume) -> VolumeDocument {
    let (server, volume) = (&api.server, &served.config);
    // A pending volume has no device yet.
    let geometry = served.device.get().map(|device| device.geometry());
    let stripe = matches!(volume.backing, Backing::Stripe { .. }).then_some("stripe");
    let layers = volume.layers.iter().map(layer_name);
    VolumeDocument {
        name: volume.name.clone(),
        size_bytes: geometry.map_or(0, |geometry| geometry.size_bytes),
        block_bytes: geometry.map_or(0, |geometry| geometry.block_bytes),
        read_only: volume.read_only || geometry.is_some_and(|geometry| geometry.read_only),
        flush_failed: served.has_failed_flush(),
        uuid: served.uuid.to_string(),
        layers: layers.chain(stripe).map(str::to_owned).collect(),
        devices: devices(&volume.backing),
        listeners: listeners(server, served),
        connections: connections(server, served),
        io: IoDocument::from(&served.counters.totals()),
        limits: limits::documents(server, served),
        pending: pending::document(server, served.number),
        mirror: server.mirror_of(served.number).map(|mirrored| api.mirror_document(&mirrored)),
        pool: pools::place(server, served),
        leg_of: None,
    }
}

/// The devices as the configuration writes them; of a pool `pool:NAME`.
pub(crate) fn devices(backing: &Backing) -> Vec<String> {
    match backing {
        Backing::Pool(pool) => vec![format!("pool:{pool}")],
        other => other.devices().iter().map(ToString::to_string).collect(),
    }
}

fn listeners(server: &Server, volume: &ServedVolume) -> Vec<ListenerDocument> {
    let bound = server.bound();
    let listener = |spec: &ListenSpec| match spec {
        ListenSpec::NvmeTcp(_) => {
            let (nqn, namespace) = (volume.subsystem.nqn.clone(), volume.nsid);
            ListenerDocument::NvmeTcp { address: spec.to_string(), nqn, namespace }
        }
        ListenSpec::NbdTcp(_) | ListenSpec::NbdUnix(_) => ListenerDocument::Nbd {
            address: spec.to_string(),
            export: volume.config.nbd_export.clone(),
        },
    };
    bound.iter().map(listener).collect()
}

fn controllers(server: &Server, subsystem: &Subsystem) -> Vec<ControllerSummary> {
    let nqn = Nqn::new(&subsystem.nqn).ok();
    let status = nqn.and_then(|nqn| server.target.subsystem_status(&nqn).ok());
    status.map_or_else(Vec::new, |status| status.controllers)
}

pub(crate) fn connections(server: &Server, volume: &ServedVolume) -> Vec<ConnectionDocument> {
    let controllers = controllers(server, &volume.subsystem);
    let nvme = controllers.into_iter().map(|controller| ConnectionDocument::NvmeTcp {
        host_nqn: controller.host_nqn.to_string(),
        controller: controller.id,
        local: controller.local.map(|local| local.to_string()),
        authenticated: controller.authenticated,
        ready: controller.ready,
        queues: controller.queues.len(),
    });
    let export = &volume.config.nbd_export;
    let attached = server.nbd.attached().into_iter().filter(|one| one.export == *export);
    nvme.chain(attached.map(|one| ConnectionDocument::Nbd { peer: one.peer })).collect()
}

/// Ends of the latency buckets in metrics, as powers of two nanoseconds: immediate answers, 16 µs,
/// each doubling from 66 µs to 4.2 ms, then 17 ms, 134 ms and 1.1 s.
const BUCKET_POWERS: [u32; 12] = [10, 14, 16, 17, 18, 19, 20, 21, 22, 24, 27, 30];

type CallCounter = fn(&CallTotals) -> u64;

const COUNTS: [(&str, &str, CallCounter); 4] = [
    ("flagstone_volume_ios_total", "Completed calls, including failed ones, by kind.", |calls| {
        calls.count
    }),
    ("flagstone_volume_errors_total", "Failed calls, by kind.", |calls| calls.errors),
    ("flagstone_volume_bytes_total", "Bytes of successful calls, by kind.", |calls| calls.bytes),
    ("flagstone_volume_in_flight", "Calls in progress, by kind.", |calls| calls.in_flight),
];

const TIMED: [IoCall; 3] = [IoCall::Read, IoCall::Write, IoCall::Flush];

/// The kinds of calls that have happened: other kinds have no samples.
fn happened(totals: &Totals) -> impl Iterator<Item = (IoCall, &CallTotals)> {
    let all = IoCall::ALL.into_iter().map(|call| (call, totals.of(call)));
    all.filter(|(_, calls)| calls.count + calls.in_flight > 0)
}

pub(super) fn metrics(server: &Server, out: &mut Exposition) {
    let volumes = server.volumes();
    let names = || volumes.iter().map(|volume| volume.name());
    let totals: Vec<Totals> = volumes.iter().map(|volume| volume.counters.totals()).collect();
    let mut sizes = out.family("flagstone_volume_size_bytes", "Size of the volume.");
    for volume in &volumes {
        if let Some(device) = volume.device.get() {
            sizes.count(&[("volume", volume.name())], device.geometry().size_bytes);
        }
    }
    for (family, help, number) in COUNTS {
        let mut family = out.family(family, help);
        for (name, totals) in names().zip(&totals) {
            for (call, calls) in happened(totals) {
                family.count(&[("volume", name), ("kind", call.name())], number(calls));
            }
        }
    }
    let help = "Latency; immediate answers count as below 1 µs.";
    let mut family = out.histogram("flagstone_volume_latency_seconds", help);
    for (name, totals) in names().zip(&totals) {
        for (call, calls) in happened(totals).filter(|(call, _)| TIMED.contains(call)) {
            let latency = &calls.latency;
            let bucket = |power| ((1_u64 << power) as f64 / 1e9, latency.below_power(power));
            let bounds = BUCKET_POWERS.into_iter().map(bucket);
            let labels = [("volume", name), ("kind", call.name())];
            family.histogram(&labels, bounds, latency.count(), latency.sum_ns as f64 / 1e9);
        }
    }
    layers(&volumes, out);
    let help = "Attached hosts: NVMe controllers and NBD connections.";
    let mut family = out.family("flagstone_volume_hosts", help);
    let mut nvme: BTreeMap<&str, usize> = BTreeMap::new();
    let attached = server.nbd.attached();
    for volume in &volumes {
        let nvme = *nvme
            .entry(&volume.subsystem.nqn)
            .or_insert_with(|| controllers(server, &volume.subsystem).len());
        let export = &volume.config.nbd_export;
        let nbd = attached.iter().filter(|one| one.export == *export).count();
        family.count(&[("volume", volume.name())], (nvme + nbd) as u64);
    }
}

/// Calls below each layer: the difference to the layer above, or to the volume, is the layer's own.
fn layers(volumes: &[Rc<ServedVolume>], out: &mut Exposition) {
    let counted = || {
        volumes.iter().flat_map(|volume| {
            let layers = volume.layers.get().into_iter().flatten();
            layers.map(|layer| (volume.name(), layer))
        })
    };
    let mut ios =
        out.family("flagstone_layer_ios_total", "Calls completed below a layer, by kind.");
    for (volume, layer) in counted() {
        for (call, calls) in happened(&layer.below.totals()) {
            let labels = [("volume", volume), ("layer", layer.name()), ("kind", call.name())];
            ios.count(&labels, calls.count);
        }
    }
    let help =
        "Time of calls completed below a layer; its share is the difference to the layer above.";
    let mut seconds = out.family("flagstone_layer_seconds_total", help);
    for (volume, layer) in counted() {
        for (call, calls) in happened(&layer.below.totals()) {
            let labels = [("volume", volume), ("layer", layer.name()), ("kind", call.name())];
            seconds.value(&labels, calls.latency.sum_ns as f64 / 1e9);
        }
    }
}
