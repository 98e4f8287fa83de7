//! Metrics endpoint `/metrics`, and the metrics of the process.

use std::rc::Rc;

use crate::http::metrics::CONTENT_TYPE;
use crate::http::{Exposition, Kind, Response, Router};
use flagstone_runtime::{buf, task, time};

use super::ApiModule;
use crate::serve::Server;

/// Adds the route of the metrics.
pub(super) fn routes(modules: &Rc<[Rc<dyn ApiModule>]>, router: &mut Router) {
    let modules = modules.clone();
    let route = router.get("/metrics", "Metrics in the Prometheus text format.", move |_| {
        let modules = modules.clone();
        async move {
            let mut out = Exposition::new();
            for module in modules.iter() {
                // Let host I/O on this core proceed.
                task::yield_now().await;
                module.metrics(&mut out);
            }
            Ok(Response::text(CONTENT_TYPE, out.finish()))
        }
    });
    route.answers_text(CONTENT_TYPE);
}

/// API module of the process: its connections and buffers.
pub(super) struct ProcessMetrics {
    server: Rc<Server>,
}

impl ProcessMetrics {
    pub(super) fn new(server: Rc<Server>) -> ProcessMetrics {
        ProcessMetrics { server }
    }
}

impl ApiModule for ProcessMetrics {
    fn metrics(&self, out: &mut Exposition) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        out.family("flagstone_build_info", Kind::Gauge, "1, with the version.").count(&version, 1);
        let started =
            time::wall_clock().as_secs_f64() - self.server.started.elapsed().as_secs_f64();
        let help = "Start time of the server, since the Unix epoch.";
        out.family("flagstone_start_time_seconds", Kind::Gauge, help).value(&[], started);
        let help = "Connections; each NVMe/TCP queue is one.";
        out.family("flagstone_connections", Kind::Gauge, help)
            .count(&[("protocol", "nvme-tcp")], self.server.nvme.count() as u64)
            .count(&[("protocol", "nbd")], self.server.nbd.connections() as u64);
        let help = "Limit of the I/O buffer pool.";
        out.family("flagstone_buffer_memory_limit_bytes", Kind::Gauge, help)
            .count(&[], buf::memory_limit() as u64);
        let help = "Memory held by the I/O buffer pool, in use and idle, including small buffers \
                    above the limit.";
        out.family("flagstone_buffer_memory_held_bytes", Kind::Gauge, help)
            .count(&[], buf::memory_held() as u64);
        let help =
            "Memory held by the I/O buffer pool, without small buffers: bounded by the limit.";
        out.family("flagstone_buffer_memory_bounded_bytes", Kind::Gauge, help)
            .count(&[], buf::memory_under_limit() as u64);
    }
}
