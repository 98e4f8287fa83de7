//! Configuration reload by `POST /v1/reload`, equivalent to SIGHUP.

use std::rc::Rc;

use flagstone_config::Diagnostics;
use serde_json::json;

use super::document::ReloadDocument;
use super::{Api, on};
use crate::http::{Call, Problem, Router};

pub(super) fn routes(api: &Rc<Api>, router: &mut Router) {
    let description = "Reloads the configuration and applies changed limits, like SIGHUP.";
    router.post("/v1/reload", description, on(api, async |api, call| reload(&api, &call)));
}

fn reload(api: &Api, call: &Call) -> Result<ReloadDocument, Problem> {
    call.without_query()?;
    tracing::info!(user = ?call.user, "configuration reload requested");
    let reloaded = api.server.reload((api.reload_config)());
    reloaded.map_err(|diagnostics| problem(&diagnostics))
}

fn problem(diagnostics: &Diagnostics) -> Problem {
    let errors = diagnostics.items();
    let detail = format!(
        "nothing was changed: the configuration has {} errors; `flagstone check` shows them too",
        errors.len()
    );
    Problem::new(422, "configuration", "The configuration has errors", detail)
        .with("mistakes", json!(errors))
}
