//! Control API of a server: documents, actions and metrics over HTTP, on a Unix socket.
//! `docs/api.md` describes it; a test compares the two.
//!
//! Each file adds its routes, its members of the documents, and its metrics; [`router`] lists them.
//!
//! Rules for paths: the version comes first; additions to a version (paths, members, and words
//! where the document says so) break no client; actions are POST and idempotent.

pub mod document;
mod failover_advice;
mod host_metrics;
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
pub mod pool_document;
mod pools;
mod process_metrics;
mod reload;
mod snapshots;
mod users;
mod volumes;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use flagstone_config::{Config, Diagnostics};
use flagstone_runtime::{cores, io_engine_name, time};
use serde_json::Value;

use crate::http::{Call, HandlerAnswer, Problem, Router, openapi};
use crate::serve::Server;
use document::{BufferMemoryDocument, IoEngineName, Resource, ServerDocument};
use mirror_verify::VerifyTask;

pub(crate) use listen::{ApiServer, start};
pub use users::{check_users, hash_line};
pub(crate) use volumes::{connections, devices};

/// Reads the configuration again, for a reload.
pub(crate) type ReloadConfig = Rc<dyn Fn() -> Result<Config, Diagnostics>>;

struct Api {
    server: Rc<Server>,
    reload_config: ReloadConfig,
    /// By volume index: the running verify, or the last one.
    verifies: RefCell<BTreeMap<usize, VerifyTask>>,
}

/// A route's handler with the state that it works on.
fn on<S: 'static, T: HandlerAnswer, Fut: Future<Output = Result<T, Problem>> + 'static>(
    state: &Rc<S>,
    handler: impl Fn(Rc<S>, Call) -> Fut + 'static,
) -> impl Fn(Call) -> Fut + 'static {
    let state = state.clone();
    move |call| handler(state.clone(), call)
}

fn api(server: &Rc<Server>, reload_config: &ReloadConfig) -> Rc<Api> {
    let (server, reload_config) = (server.clone(), reload_config.clone());
    Rc::new(Api { server, reload_config, verifies: RefCell::default() })
}

pub(crate) fn router(server: &Rc<Server>, reload_config: &ReloadConfig) -> Router {
    let api = api(server, reload_config);
    let mut router = Router::new();
    // Filled below, when the table is complete.
    let listed: Rc<RefCell<(Vec<Resource>, Value)>> = Rc::default();
    let (state, resources) = (api.clone(), listed.clone());
    router.get("/v1/", "The server itself, and all resources of the API.", move |_| {
        let document = server_document(&state.server, resources.borrow().0.clone());
        async move { Ok(document) }
    });
    let description = "This API as an OpenAPI 3.1 document.";
    router.get(
        "/v1/openapi.json",
        description,
        on(&listed, async |listed, _| Ok(listed.borrow().1.clone())),
    );
    volumes::routes(&api, &mut router);
    mirror::routes(&api, &mut router);
    pools::routes(&api, &mut router);
    snapshots::routes(&api, &mut router);
    reload::routes(&api, &mut router);
    metrics::routes(&api, &mut router);
    let routes = router.routes();
    let document = openapi::document(&routes);
    *listed.borrow_mut() = (routes.into_iter().map(Into::into).collect(), document);
    router
}

/// The routes of the metrics' TCP address, which is open to every client.
pub(crate) fn metrics_router(server: &Rc<Server>, reload_config: &ReloadConfig) -> Router {
    let mut router = Router::new();
    metrics::routes(&api(server, reload_config), &mut router);
    router
}

fn server_document(server: &Server, resources: Vec<Resource>) -> ServerDocument {
    let engine = IoEngineName::ALL.into_iter().find(|engine| engine.name() == io_engine_name());
    ServerDocument {
        product: "flagstone".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        process_id: std::process::id(),
        uptime_seconds: server.started.elapsed().as_secs_f64(),
        io_engine: engine.unwrap_or_default(),
        cores: cores().len(),
        volumes: server.volumes.borrow().len(),
        listen: server.bound().iter().map(ToString::to_string).collect(),
        insecure: server.insecure_access(),
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
    use crate::signals::Signals;

    #[test]
    fn openapi_document_is_current() {
        let served = flagstone_runtime::block_on(async {
            let text = "[volume.db]\ndevice = \"memory:1MiB\"\n";
            let config = Config::parse("f", text).unwrap_or_else(|error| panic!("{error}"));
            let server = crate::serve::open(config, &Signals::catch().unwrap()).await.unwrap();
            let reload: ReloadConfig = Rc::new(|| unreachable!("nothing is reloaded"));
            let routes = router(&Rc::new(server.expect("it was not stopped")), &reload).routes();
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
