//! Volumes of the API: their documents and metrics.

use std::rc::Rc;

use flagstone_blockdev::stats::{Call as IoCall, CallTotals, Totals};
use flagstone_config::limits::MAX_SUGGESTED_NAMES;
use flagstone_config::listen_spec::ListenSpec;
use flagstone_config::{Backing, Layer};
use flagstone_nvme::Nqn;
use flagstone_nvmf_target::status::ControllerStatus;
use flagstone_runtime::task;

use super::document::{
    ConnectionDocument, IoDocument, ListenerDocument, VolumeDocument, VolumesDocument,
};
use super::{Api, limits, on, pending};
use crate::http::{Exposition, Problem, Router};
use crate::limits::API_BATCH;
use crate::serve::Server;
use crate::subsystems::namespace_of;

pub(super) fn routes(api: &Rc<Api>, router: &mut Router) {
    let description = "All volumes, in the order of the configuration.";
    router.get("/v1/volumes", description, on(api, async |api, _| Ok(all(&api).await)));
    let description = "One volume: its properties, attached hosts and I/O.";
    router.get(
        "/v1/volumes/{name}",
        description,
        on(api, async |api, call| {
            let index = api.server.find_volume(call.text("name"))?;
            Ok(document(&api, index))
        }),
    );
}

impl Server {
    pub(crate) fn find_volume(&self, name: &str) -> Result<usize, Problem> {
        let found = self.config.volumes.iter().position(|volume| volume.name == name);
        found.ok_or_else(|| {
            let names = self.config.volumes.iter().map(|volume| volume.name.as_str());
            Problem::not_found(format!("there is no volume `{name}`"))
                .accepting(names.take(MAX_SUGGESTED_NAMES))
        })
    }

    /// A flush has failed, without a reopen since. For mirrored volumes see the replica instead.
    pub(super) fn has_failed_flush(&self, volume: usize) -> bool {
        self.volumes[volume].get().is_some_and(|device| device.must_reopen())
    }
}

async fn all(api: &Api) -> VolumesDocument {
    let server = &api.server;
    let mut volumes = Vec::with_capacity(server.config.volumes.len());
    for index in 0..server.config.volumes.len() {
        if index % API_BATCH == API_BATCH - 1 {
            // Let host I/O on this core proceed.
            task::yield_now().await;
        }
        volumes.push(document(api, index));
    }
    VolumesDocument { uptime_seconds: server.started.elapsed().as_secs_f64(), volumes }
}

fn document(api: &Api, index: usize) -> VolumeDocument {
    let server = &api.server;
    let volume = &server.config.volumes[index];
    // A pending volume has no device yet.
    let geometry = server.volumes[index].get().map(|device| device.geometry());
    let stripe = matches!(volume.backing, Backing::Stripe { .. }).then_some("stripe");
    let layers = volume.layers.iter().map(|layer| match layer {
        Layer::Delay(_) => "delay",
        Layer::Fault(_) => "fault",
        Layer::Limit(_) => "limit",
        Layer::SharedLimit(_) => "shared_limit",
        Layer::DiskModel(_) => "disk_model",
        Layer::Mirror(_) => "mirror",
    });
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
        limits: limits::documents(server, index),
        pending: pending::document(server, index),
        mirror: server.mirror_of(index).map(|mirrored| api.mirror_document(&mirrored)),
    }
}

fn listeners(server: &Server, index: usize) -> Vec<ListenerDocument> {
    let bound = server.bound();
    let listener = |spec: &ListenSpec| match spec {
        ListenSpec::NvmeTcp(_) => {
            let (subsystem, namespace) = namespace_of(&server.config, index)?;
            let nqn = subsystem.nqn.clone();
            Some(ListenerDocument::NvmeTcp { address: spec.to_string(), nqn, namespace })
        }
        ListenSpec::NbdTcp(_) | ListenSpec::NbdUnix(_) => Some(ListenerDocument::Nbd {
            address: spec.to_string(),
            export: server.config.volumes[index].nbd_export.clone(),
        }),
    };
    bound.iter().filter_map(listener).collect()
}

fn controllers(server: &Server, index: usize) -> Vec<ControllerStatus> {
    let status = namespace_of(&server.config, index).and_then(|(subsystem, _)| {
        server.target.subsystem_status(&Nqn::new(&subsystem.nqn).ok()?).ok()
    });
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

pub(super) fn metrics(server: &Server, out: &mut Exposition) {
    let names: Vec<&str> =
        server.config.volumes.iter().map(|volume| volume.name.as_str()).collect();
    let totals: Vec<Totals> = server.counters.iter().map(|counters| counters.totals()).collect();
    let mut sizes = out.family("flagstone_volume_size_bytes", "Size of the volume.");
    for (name, volume) in names.iter().zip(&server.volumes) {
        if let Some(device) = volume.get() {
            sizes.count(&[("volume", name)], device.geometry().size_bytes);
        }
    }
    for (family, help, number) in COUNTS {
        let mut family = out.family(family, help);
        for (name, totals) in names.iter().zip(&totals) {
            for call in IoCall::ALL {
                let labels = [("volume", *name), ("kind", call.name())];
                family.count(&labels, number(totals.of(call)));
            }
        }
    }
    let help = "Latency of calls; immediate answers count as below a microsecond.";
    let mut family = out.histogram("flagstone_volume_latency_seconds", help);
    for (name, totals) in names.iter().zip(&totals) {
        for call in TIMED {
            let latency = &totals.of(call).latency;
            let bounds = latency.doublings().map(|(end, below)| (end as f64 / 1e9, below));
            let labels = [("volume", *name), ("kind", call.name())];
            family.histogram(&labels, bounds, latency.count(), latency.sum_ns as f64 / 1e9);
        }
    }
    let attached = server.nbd.attached();
    let help = "Attached hosts: NVMe controllers and NBD connections.";
    let mut family = out.family("flagstone_volume_hosts", help);
    for (index, name) in names.iter().enumerate() {
        let export = &server.config.volumes[index].nbd_export;
        let nbd = attached.iter().filter(|one| one.export == *export).count();
        let nvme = controllers(server, index).len();
        family.count(&[("volume", name), ("protocol", "nvme-tcp")], nvme as u64);
        family.count(&[("volume", name), ("protocol", "nbd")], nbd as u64);
    }
}
