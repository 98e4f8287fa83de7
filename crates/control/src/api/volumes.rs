//! The volumes: their documents and their metrics.

use std::rc::Rc;

use flagstone_api::{Call, Exposition, Kind, Problem, Response, Router};
use flagstone_nvme::Nqn;
use flagstone_nvmf::target::status::ControllerStatus;
use flagstone_runtime::task;

use super::Part;
use super::document::{
    ConnectionDocument, IoDocument, ListenerDocument, VolumeDocument, VolumesDocument,
};
use crate::config::{Backing, Layer};
use crate::counted::{self, Totals};
use crate::limits::{API_BATCH, MAX_SUGGESTED_NAMES};
use crate::listen_spec::ListenSpec;
use crate::serve::Server;

type Parts = Rc<[Rc<dyn Part>]>;

/// Adds the routes.
pub(super) fn routes(server: &Rc<Server>, parts: &Parts, router: &mut Router) {
    let (own, own_parts) = (server.clone(), parts.clone());
    router.get(
        "/v1/volumes",
        "All volumes, as below, in the order of the configuration.",
        move |_| {
            let (server, parts) = (own.clone(), own_parts.clone());
            async move { Ok(Response::ok(&all(&server, &parts).await)) }
        },
    );
    let (own, own_parts) = (server.clone(), parts.clone());
    let about = "One volume: what it is, who is attached, and what went through it.";
    router.get("/v1/volumes/{name}", about, move |call: Call| {
        let (server, parts) = (own.clone(), own_parts.clone());
        async move {
            let index = server.find_volume(call.text("name"))?;
            Ok(Response::ok(&document(&server, &parts, index)))
        }
    });
}

impl Server {
    /// The index of the volume of this name. For every route with a volume in it.
    pub(crate) fn find_volume(&self, name: &str) -> Result<usize, Problem> {
        let found = self.config.volumes.iter().position(|volume| volume.name == name);
        found.ok_or_else(|| {
            let names = self.config.volumes.iter().map(|volume| volume.name.as_str());
            Problem::not_found(format!("there is no volume `{name}`"))
                .accepting(names.take(MAX_SUGGESTED_NAMES))
        })
    }
}

impl Server {
    /// True when a flush of what a volume is stored on has failed, and it was not opened again since.
    /// Of a mirrored volume its mirror tells.
    pub(super) fn has_failed_flush(&self, volume: usize) -> bool {
        self.volumes[volume].get().is_some_and(|device| device.must_reopen())
    }
}

async fn all(server: &Server, parts: &Parts) -> VolumesDocument {
    let mut volumes = Vec::with_capacity(server.config.volumes.len());
    for index in 0..server.config.volumes.len() {
        if index % API_BATCH == API_BATCH - 1 {
            // Hosts of this core come first.
            task::yield_now().await;
        }
        volumes.push(document(server, parts, index));
    }
    VolumesDocument { uptime_seconds: server.started.elapsed().as_secs_f64(), volumes }
}

fn document(server: &Server, parts: &Parts, index: usize) -> VolumeDocument {
    let volume = &server.config.volumes[index];
    // One that waits has none yet.
    let geometry = server.volumes[index].get().map(|device| device.geometry());
    let stripe = matches!(volume.backing, Backing::Stripe { .. }).then_some("stripe");
    let layers = volume.layers.iter().map(|layer| match layer {
        Layer::Delay(_) => "delay",
        Layer::Fault(_) => "fault",
        Layer::Limit(_) => "limit",
        Layer::SharedLimit(_) => "shared_limit",
        Layer::Emulate(_) => "emulate",
        Layer::Mirror(_) => "mirror",
    });
    let told = parts.iter().filter_map(|part| part.volume(index));
    VolumeDocument {
        name: volume.name.clone(),
        size_bytes: geometry.map_or(0, |geometry| geometry.size_bytes),
        block_bytes: geometry.map_or(0, |geometry| geometry.block_bytes),
        read_only: volume.read_only || geometry.is_some_and(|geometry| geometry.read_only),
        flush_failed: server.has_failed_flush(index),
        uuid: server.config.volume_uuid(index, &server.machine).to_string(),
        layers: layers.chain(stripe).map(str::to_owned).collect(),
        devices: volume.backing.devices().iter().map(ToString::to_string).collect(),
        listeners: listeners(server, index),
        connections: connections(server, index),
        io: IoDocument::from(&server.counters[index].totals()),
        parts: told.map(|(name, value)| (name.to_owned(), value)).collect(),
    }
}

fn listeners(server: &Server, index: usize) -> Vec<ListenerDocument> {
    let subsystem = server.config.subsystems.iter().find(|one| one.namespaces.contains(&index));
    let bound = server.bound();
    let listener = |spec: &ListenSpec| match spec {
        ListenSpec::NvmeTcp(_) => {
            let subsystem = subsystem?;
            let place = subsystem.namespaces.iter().position(|one| *one == index)?;
            Some(ListenerDocument::NvmeTcp {
                address: spec.to_string(),
                nqn: subsystem.nqn.clone(),
                namespace: place as u32 + 1,
            })
        }
        ListenSpec::NbdTcp(_) | ListenSpec::NbdUnix(_) => Some(ListenerDocument::Nbd {
            address: spec.to_string(),
            export: server.config.volumes[index].nbd_export.clone(),
        }),
    };
    bound.iter().filter_map(listener).collect()
}

/// The NVMe controllers of the subsystem that a volume is in.
fn controllers(server: &Server, index: usize) -> Vec<ControllerStatus> {
    let subsystem = server.config.subsystems.iter().find(|one| one.namespaces.contains(&index));
    let status = subsystem
        .and_then(|subsystem| server.target.subsystem_status(&Nqn::new(&subsystem.nqn).ok()?).ok());
    status.map_or_else(Vec::new, |status| status.controllers)
}

fn connections(server: &Server, index: usize) -> Vec<ConnectionDocument> {
    let nvme =
        controllers(server, index).into_iter().map(|controller| ConnectionDocument::NvmeTcp {
            host_nqn: controller.host_nqn.to_string(),
            controller: controller.id,
            local: controller.local.map(|local| local.to_string()),
            ready: controller.ready,
            queues: controller.queues.len(),
        });
    let export = &server.config.volumes[index].nbd_export;
    let attached = server.nbd.attached().into_iter().filter(|one| one.export == *export);
    nvme.chain(attached.map(|one| ConnectionDocument::Nbd { peer: one.peer })).collect()
}

/// The metrics of the volumes.
pub(super) struct VolumeMetrics {
    server: Rc<Server>,
}

impl VolumeMetrics {
    pub(super) fn new(server: Rc<Server>) -> VolumeMetrics {
        VolumeMetrics { server }
    }
}

/// A number of a kind of calls.
type Number = fn(&counted::CallTotals) -> u64;

const COUNTS: [(&str, Kind, &str, Number); 4] = [
    (
        "flagstone_volume_ios_total",
        Kind::Counter,
        "Calls that ended, well or not, by kind.",
        |calls| calls.count,
    ),
    ("flagstone_volume_errors_total", Kind::Counter, "Calls that failed, by kind.", |calls| {
        calls.errors
    }),
    (
        "flagstone_volume_bytes_total",
        Kind::Counter,
        "Bytes of calls that ended well, by kind.",
        |calls| calls.bytes,
    ),
    ("flagstone_volume_in_flight", Kind::Gauge, "Calls in progress, by kind.", |calls| {
        calls.in_flight
    }),
];

/// Kinds of calls whose latencies are told.
const TIMED: [counted::Call; 3] = [counted::Call::Read, counted::Call::Write, counted::Call::Flush];

impl Part for VolumeMetrics {
    fn metrics(&self, out: &mut Exposition) {
        let server = &self.server;
        let names: Vec<&str> =
            server.config.volumes.iter().map(|volume| volume.name.as_str()).collect();
        let totals: Vec<Totals> =
            server.counters.iter().map(|counters| counters.totals()).collect();
        let mut sizes =
            out.family("flagstone_volume_size_bytes", Kind::Gauge, "Size of the volume.");
        for (name, volume) in names.iter().zip(&server.volumes) {
            if let Some(device) = volume.get() {
                sizes.count(&[("volume", name)], device.geometry().size_bytes);
            }
        }
        for (family, kind, help, number) in COUNTS {
            let mut family = out.family(family, kind, help);
            for (name, totals) in names.iter().zip(&totals) {
                for call in counted::Call::ALL {
                    let labels = [("volume", *name), ("kind", call.name())];
                    family.count(&labels, number(totals.of(call)));
                }
            }
        }
        latencies(out, &names, &totals);
        self.attached(out, &names);
    }
}

fn latencies(out: &mut Exposition, names: &[&str], totals: &[Totals]) {
    let help = "How long calls took; those answered at once count as below a microsecond.";
    let mut family = out.family("flagstone_volume_latency_seconds", Kind::Histogram, help);
    for (name, totals) in names.iter().zip(totals) {
        for call in TIMED {
            let latency = &totals.of(call).latency;
            let bounds = latency.doublings().map(|(end, below)| (end as f64 / 1e9, below));
            let labels = [("volume", *name), ("kind", call.name())];
            family.histogram(&labels, bounds, latency.count(), latency.sum_ns as f64 / 1e9);
        }
    }
}

impl VolumeMetrics {
    fn attached(&self, out: &mut Exposition, names: &[&str]) {
        let server = &self.server;
        let attached = server.nbd.attached();
        let help = "Hosts that are attached: NVMe controllers, NBD connections.";
        let mut family = out.family("flagstone_volume_hosts", Kind::Gauge, help);
        for (index, name) in names.iter().enumerate() {
            let export = &server.config.volumes[index].nbd_export;
            let nbd = attached.iter().filter(|one| one.export == *export).count();
            let nvme = controllers(server, index).len();
            family.count(&[("volume", name), ("protocol", "nvme-tcp")], nvme as u64);
            family.count(&[("volume", name), ("protocol", "nbd")], nbd as u64);
        }
    }
}
