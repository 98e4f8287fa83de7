//! Metrics endpoint `/metrics`, and the metrics of the process.

use std::rc::Rc;

use flagstone_nvmf_target::{FailureReason, TlsFailureReason};
use flagstone_runtime::{buf, task};

use super::{
    Api, host_metrics, limits, mirror, on, pending, pools, process_metrics, users, volumes,
};
use crate::http::{Exposition, Router};
use crate::serve::Server;

pub(super) fn routes(api: &Rc<Api>, router: &mut Router) {
    let description = "Metrics in the Prometheus text format.";
    router.get(
        "/metrics",
        description,
        on(api, async |api, _| {
            let mut out = Exposition::new();
            process(&api.server, &mut out);
            process_metrics::write(&mut out);
            for write in [
                volumes::metrics,
                host_metrics::write,
                pending::metrics,
                limits::metrics,
                pools::metrics,
                crate::insecure::metrics,
                users::metrics,
            ] {
                // Let host I/O on this core proceed.
                task::yield_now().await;
                write(&api.server, &mut out);
            }
            task::yield_now().await;
            mirror::metrics(&api, &mut out);
            Ok(out)
        }),
    );
}

fn process(server: &Server, out: &mut Exposition) {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    out.family("flagstone_build_info", "1, with the version.").count(&version, 1);
    let help = "Start of the server, since the Unix epoch.";
    out.family("flagstone_start_time_seconds", help).value(&[], server.started_at.as_secs_f64());
    out.family("flagstone_connections", "Connections, NVMe/TCP queues each.")
        .count(&[("protocol", "nvme-tcp")], server.nvme.count() as u64)
        .count(&[("protocol", "nbd")], server.nbd.connections() as u64);
    let totals = server.target.authentication_totals();
    let help = "NVMe/TCP queues whose hosts proved their keys.";
    out.family("flagstone_authentications_total", help).count(&[], totals.succeeded);
    let help = "Failed authentications of NVMe/TCP hosts, by reason.";
    let mut failures = out.family("flagstone_authentication_failures_total", help);
    for (reason, count) in FailureReason::ALL.iter().zip(totals.failed) {
        failures.count(&[("reason", reason.name())], count);
    }
    let help = "Refused requests of NBD negotiations, by reason.";
    let mut refusals = out.family("flagstone_nbd_refusals_total", help);
    for (reason, count) in server.nbd.refusals() {
        refusals.count(&[("reason", reason)], count);
    }
    let totals = server.target.tls_totals();
    let help = "NVMe/TCP connections whose TLS handshakes succeeded.";
    out.family("flagstone_tls_handshakes_total", help).count(&[], totals.succeeded);
    let help = "Connections of NVMe/TCP hosts with TLS by the kernel.";
    out.family("flagstone_tls_kernel_connections_total", help).count(&[], totals.by_kernel);
    let help = "Failed TLS handshakes of NVMe/TCP hosts, by reason.";
    let mut failures = out.family("flagstone_tls_failures_total", help);
    for (reason, count) in TlsFailureReason::ALL.iter().zip(totals.failed) {
        failures.count(&[("reason", reason.name())], count);
    }
    let memory = [
        (
            "flagstone_buffer_memory_limit_bytes",
            "Limit of the I/O buffer pool.",
            buf::memory_limit(),
        ),
        (
            "flagstone_buffer_memory_held_bytes",
            "Memory held by the I/O buffer pool, in use and idle, including small buffers above the \
             limit.",
            buf::memory_held(),
        ),
        (
            "flagstone_buffer_memory_bounded_bytes",
            "Memory held by the buffer pool, as bounded by the limit.",
            buf::memory_under_limit(),
        ),
    ];
    for (name, help, bytes) in memory {
        out.family(name, help).count(&[], bytes as u64);
    }
}
