//! Control API of a server: documents, actions and metrics over HTTP, on a Unix socket.
//! `docs/api.md` describes it; a test compares the two.
//!
//! The API is composed of modules. An [`ApiModule`] adds routes, a member of every volume's document,
//! and metrics. A new feature adds one more to [`modules`], and nothing else here changes:
//!
//! ```text
//! impl ApiModule for MirrorsApi {
//!     fn routes(self: Rc<Self>, router: &mut Router) {
//!         let description = "Acts on the mirror of a volume, or previews the outcome.";
//!         router.post("/v1/volumes/{name}/mirror/{action}", description, move |call| {
//!             self.clone().act(call)
//!         });
//!     }
//!     fn volume(&self, index: usize) -> Option<(&'static str, Value)> { … }   // "mirror": { … }
//!     fn metrics(&self, out: &mut Exposition) { … }                // flagstone_mirror_…
//! }
//! ```
//!
//! Rules for paths: the version comes first; additions to a version (paths, members, and words where
//! the document says so) break no client; actions are POST and idempotent.

pub mod document;
mod limits;
mod listen;
mod metrics;
mod mirror;
mod mirror_action;
mod mirror_advice;
pub mod mirror_document;
mod mirror_metrics;
mod mirror_preview;
mod mirror_status;
mod mirror_verify;
mod pending;
mod reload;
mod volumes;

use std::cell::OnceCell;
use std::rc::Rc;

use crate::http::{Exposition, Response, Router};
use flagstone_runtime::{cores, io_engine_name, time};
use serde_json::Value;

pub(crate) use listen::{ApiServer, start};

use crate::serve::Server;
use document::{BufferMemoryDocument, Resource, ServerDocument};
use flagstone_config::{Config, Diagnostics};

/// Reads the configuration again, for a reload.
pub(crate) type ReloadConfig = Rc<dyn Fn() -> Result<Config, Diagnostics>>;

/// A module of the API.
pub(crate) trait ApiModule {
    /// Adds the module's routes.
    fn routes(self: Rc<Self>, router: &mut Router) {
        let _ = router;
    }

    /// The module's member of the document of the volume at `index`, with its name.
    fn volume(&self, index: usize) -> Option<(&'static str, Value)> {
        let _ = index;
        None
    }

    /// Writes the module's metrics, each family once with all its samples.
    fn metrics(&self, out: &mut Exposition) {
        let _ = out;
    }
}

/// The modules of a server.
fn modules(server: &Rc<Server>, reload: ReloadConfig) -> Vec<Rc<dyn ApiModule>> {
    vec![
        Rc::new(metrics::ProcessMetrics::new(server.clone())),
        Rc::new(volumes::VolumeMetrics::new(server.clone())),
        Rc::new(pending::PendingApi::new(server.clone())),
        Rc::new(limits::LimitsApi::new(server.clone())),
        Rc::new(mirror::MirrorsApi::new(server.clone())),
        Rc::new(reload::ReloadApi::new(server.clone(), reload)),
    ]
}

/// The routes of a server.
pub(crate) fn router(server: &Rc<Server>, reload: ReloadConfig) -> Router {
    let modules: Rc<[Rc<dyn ApiModule>]> = modules(server, reload).into();
    let mut router = Router::new();
    // Filled below, when the table is complete.
    let resources: Rc<OnceCell<Vec<Resource>>> = Rc::default();
    let openapi: Rc<OnceCell<Value>> = Rc::default();
    let (own, listed) = (server.clone(), resources.clone());
    let root = router.get("/v1/", "The server itself, and all resources of the API.", move |_| {
        let document = server_document(&own, listed.get().cloned().unwrap_or_default());
        async move { Ok(Response::ok(&document)) }
    });
    root.answers::<ServerDocument>();
    let served = openapi.clone();
    let route = router.get("/v1/openapi.json", "This API as an OpenAPI 3.1 document.", move |_| {
        let served = served.clone();
        async move { Ok(Response::ok(&served.get())) }
    });
    route.answers::<Value>();
    volumes::routes(server, &modules, &mut router);
    for module in modules.iter() {
        module.clone().routes(&mut router);
    }
    metrics::routes(&modules, &mut router);
    let routes = router.routes();
    let _ = openapi.set(crate::http::openapi::document(&routes));
    let _ = resources.set(routes.into_iter().map(Into::into).collect());
    router
}

/// The routes of the metrics' TCP address, which is open to every client.
pub(crate) fn metrics_router(server: &Rc<Server>, reload: ReloadConfig) -> Router {
    let mut router = Router::new();
    metrics::routes(&modules(server, reload).into(), &mut router);
    router
}

fn server_document(server: &Server, resources: Vec<Resource>) -> ServerDocument {
    ServerDocument {
        product: "flagstone".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        process_id: std::process::id(),
        uptime_seconds: server.started.elapsed().as_secs_f64(),
        io_engine: io_engine_name().into(),
        cores: cores().len(),
        volumes: server.config.volumes.len(),
        listen: server.bound().iter().map(ToString::to_string).collect(),
        nvme_connections: server.nvme.count(),
        nbd_connections: server.nbd.connections(),
        buffer_memory: BufferMemoryDocument {
            limit_bytes: flagstone_runtime::buf::memory_limit(),
            held_bytes: flagstone_runtime::buf::memory_held(),
        },
        time_seconds: time::wall_clock().as_secs_f64(),
        resources,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::http::openapi;
    use crate::signals::Signals;

    #[test]
    fn openapi_document_is_current() {
        let served = flagstone_runtime::block_on(async {
            let text = "[volume.db]\ndevice = \"memory:1MiB\"\n";
            let config = Config::parse("f", text).unwrap_or_else(|error| panic!("{error}"));
            let server = crate::serve::open(config, &Signals::catch().unwrap()).await.unwrap();
            let reload: ReloadConfig = Rc::new(|| unreachable!("nothing is reloaded"));
            let routes = router(&Rc::new(server.expect("it was not stopped")), reload).routes();
            openapi::document(&routes)
        });
        let text = serde_json::to_string_pretty(&served.unwrap()).unwrap() + "\n";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            return std::fs::write(path, text).unwrap();
        }
        assert!(
            std::fs::read_to_string(path).unwrap_or_default() == text,
            "docs/openapi.json is out of date; run: \
             UPDATE_DOCS=1 cargo test -p flagstone-server openapi"
        );
    }
}
