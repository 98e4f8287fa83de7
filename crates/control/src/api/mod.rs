//! The control API of a server: what `flagstone status` and other programs ask over a Unix socket,
//! and the metrics. `docs/api.md` describes it; a test compares the two.
//!
//! What it tells is made by *parts*, and so is what it does. A [`Part`] adds routes, a member of
//! every volume's document, and metrics; the volumes themselves, their limits, their mirrors and the
//! reload are such. A new feature adds one more in [`parts`], and nothing else here changes:
//!
//! ```text
//! impl Part for Mirrors {
//!     fn routes(self: Rc<Self>, router: &mut Router) {
//!         let about = "Acts on the mirror of a volume, or says what that would come to.";
//!         router.post("/v1/volumes/{name}/mirror/{action}", about, move |call| {
//!             self.clone().act(call)
//!         });
//!     }
//!     fn volume(&self, index: usize) -> Option<(&'static str, Value)> { … }   // "mirror": { … }
//!     fn metrics(&self, out: &mut Exposition) { … }                // flagstone_mirror_…
//! }
//! ```
//!
//! Rules of the paths: a version first; what is added to a version breaks nobody (new paths, new
//! members, new words where the document says so); actions are POST and safe to repeat.

pub mod document;
mod limits;
mod listen;
mod metrics;
mod mirror;
pub mod mirror_document;
mod mirror_foresee;
mod mirror_metrics;
mod mirror_order;
mod mirror_verify;
mod mirror_view;
mod reload;
mod volumes;
mod waiting;

use std::rc::Rc;

use flagstone_api::{Exposition, Response, Router};
use flagstone_runtime::{cores, driver_name, time};
use serde_json::Value;

pub(crate) use listen::{Control, start};

use crate::config::{Config, Diagnostics};
use crate::serve::Server;
use document::{MemoryDocument, Resource, ServerDocument};

/// Reads the configuration again.
pub(crate) type Reread = Rc<dyn Fn() -> Result<Config, Diagnostics>>;

/// What a part of the server adds to the API. See the module.
pub(crate) trait Part {
    /// Adds its routes.
    fn routes(self: Rc<Self>, router: &mut Router) {
        let _ = router;
    }

    /// Its member of the document of the volume at `index` of the configuration, with its name.
    fn volume(&self, index: usize) -> Option<(&'static str, Value)> {
        let _ = index;
        None
    }

    /// Writes its metrics. Each family once, with all its samples.
    fn metrics(&self, out: &mut Exposition) {
        let _ = out;
    }
}

/// The parts of a server, those that others build on first.
fn parts(server: &Rc<Server>, reread: Reread) -> Vec<Rc<dyn Part>> {
    vec![
        Rc::new(metrics::Process::new(server.clone())),
        Rc::new(volumes::VolumeMetrics::new(server.clone())),
        Rc::new(waiting::Waits::new(server.clone())),
        Rc::new(limits::Limits::new(server.clone())),
        Rc::new(mirror::Mirrors::new(server.clone())),
        Rc::new(reload::Reload::new(server.clone(), reread)),
    ]
}

/// The routes of a server.
pub(crate) fn router(server: &Rc<Server>, reread: Reread) -> Router {
    let parts: Rc<[Rc<dyn Part>]> = parts(server, reread).into();
    let mut router = Router::new();
    volumes::routes(server, &parts, &mut router);
    for part in parts.iter() {
        part.clone().routes(&mut router);
    }
    metrics::routes(&parts, &mut router);
    // Last, as it lists the others.
    let mut resources: Vec<Resource> = router.routes().into_iter().map(Into::into).collect();
    let about = "The server itself, and everything that there is to ask for.";
    resources
        .insert(0, Resource { method: "GET".into(), path: "/v1/".into(), about: about.into() });
    let server = server.clone();
    router.get("/v1/", about, move |_| {
        let document = server_document(&server, resources.clone());
        async move { Ok(Response::ok(&document)) }
    });
    router
}

/// The routes of the TCP address of the metrics, which whoever comes may ask.
pub(crate) fn metrics_router(server: &Rc<Server>, reread: Reread) -> Router {
    let mut router = Router::new();
    metrics::routes(&parts(server, reread).into(), &mut router);
    router
}

fn server_document(server: &Server, resources: Vec<Resource>) -> ServerDocument {
    ServerDocument {
        product: "flagstone".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        process_id: std::process::id(),
        uptime_seconds: server.started.elapsed().as_secs_f64(),
        driver: driver_name().into(),
        cores: cores().len(),
        volumes: server.config.volumes.len(),
        listen: server.bound().iter().map(ToString::to_string).collect(),
        nvme_connections: server.nvme.count(),
        nbd_connections: server.nbd.connections(),
        memory: MemoryDocument {
            limit_bytes: flagstone_runtime::buf::memory_limit(),
            held_bytes: flagstone_runtime::buf::memory_held(),
        },
        time_seconds: time::wall_clock().as_secs_f64(),
        resources,
    }
}
