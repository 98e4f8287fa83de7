//! `/metrics`, and what of it is about the process.

use std::rc::Rc;

use flagstone_api::metrics::CONTENT_TYPE;
use flagstone_api::{Exposition, Kind, Response, Router};
use flagstone_runtime::{buf, task, time};

use super::Part;
use crate::serve::Server;

/// Adds the route.
pub(super) fn routes(parts: &Rc<[Rc<dyn Part>]>, router: &mut Router) {
    let parts = parts.clone();
    router.get("/metrics", "Metrics, as Prometheus reads them.", move |_| {
        let parts = parts.clone();
        async move {
            let mut out = Exposition::new();
            for part in parts.iter() {
                // Hosts of this core come first.
                task::yield_now().await;
                part.metrics(&mut out);
            }
            Ok(Response::text(CONTENT_TYPE, out.finish()))
        }
    });
}

/// The process, its connections and its memory.
pub(super) struct Process {
    server: Rc<Server>,
}

impl Process {
    pub(super) fn new(server: Rc<Server>) -> Process {
        Process { server }
    }
}

impl Part for Process {
    fn metrics(&self, out: &mut Exposition) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        out.family("flagstone_build_info", Kind::Gauge, "1, with what was built.")
            .count(&version, 1);
        let started =
            time::wall_clock().as_secs_f64() - self.server.started.elapsed().as_secs_f64();
        let help = "When it began to serve, since the Unix epoch.";
        out.family("flagstone_start_time_seconds", Kind::Gauge, help).value(&[], started);
        let help = "Connections: of NVMe/TCP each queue is one.";
        out.family("flagstone_connections", Kind::Gauge, help)
            .count(&[("protocol", "nvme-tcp")], self.server.nvme.count() as u64)
            .count(&[("protocol", "nbd")], self.server.nbd.connections() as u64);
        let help = "Ceiling of the pooled I/O buffers.";
        out.family("flagstone_memory_limit_bytes", Kind::Gauge, help)
            .count(&[], buf::memory_limit() as u64);
        let help = "What the pooled I/O buffers hold, in use and idle, small ones beyond the \
                    ceiling included.";
        out.family("flagstone_memory_held_bytes", Kind::Gauge, help)
            .count(&[], buf::memory_held() as u64);
        let help = "The same without small ones: what the ceiling bounds.";
        out.family("flagstone_memory_under_ceiling_bytes", Kind::Gauge, help)
            .count(&[], buf::memory_under_ceiling() as u64);
    }
}
