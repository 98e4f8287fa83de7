//! Configuration reload by `POST /v1/reload`, equivalent to SIGHUP.

use std::rc::Rc;

use crate::http::{Call, Problem, Response, Router};
use serde_json::json;

use super::document::ReloadDocument;
use super::{ApiModule, ReloadConfig};
use crate::serve::Server;
use flagstone_config::Diagnostics;

/// API module of the configuration reload.
pub(super) struct ReloadApi {
    server: Rc<Server>,
    reload_config: ReloadConfig,
}

impl ReloadApi {
    pub(super) fn new(server: Rc<Server>, reload_config: ReloadConfig) -> ReloadApi {
        ReloadApi { server, reload_config }
    }

    fn run(&self, call: &Call) -> Result<Response, Problem> {
        call.without_query()?;
        tracing::info!(user = ?call.request.user, "configuration reload requested");
        let read = (self.reload_config)();
        let reloaded = self.server.limits.reload(&self.server.config, read);
        let reloaded = reloaded.map_err(|diagnostics| problem(&diagnostics))?;
        Ok(Response::ok(&ReloadDocument {
            limits_changed: reloaded.limits_changed,
            restart_needed: reloaded.restart_needed,
        }))
    }
}

impl ApiModule for ReloadApi {
    fn routes(self: Rc<Self>, router: &mut Router) {
        let description = "Reloads the configuration and applies changed limits, like SIGHUP.";
        let route = router.post("/v1/reload", description, move |call| {
            let result = self.run(&call);
            async move { result }
        });
        route.answers::<ReloadDocument>();
    }
}

fn problem(diagnostics: &Diagnostics) -> Problem {
    let errors: Vec<_> = diagnostics
        .items()
        .iter()
        .map(|item| {
            json!({
                "line": item.location.as_ref().map(|at| at.line),
                "column": item.location.as_ref().map(|at| at.column),
                "message": item.message,
                "help": item.help,
                "note": item.note,
            })
        })
        .collect();
    let detail = format!(
        "nothing was changed: the configuration has {} errors; `flagstone check` shows them too",
        errors.len()
    );
    Problem::new(422, "configuration", "The configuration has errors", detail)
        .with("mistakes", errors)
}
