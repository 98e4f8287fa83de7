//! Configuration reload by `POST /v1/reload`, equivalent to SIGHUP.

use std::rc::Rc;

use flagstone_units::counted;
use serde_json::json;

use super::document::ReloadDocument;
use super::{Api, on};
use crate::http::{Call, Problem, Router};
use crate::reload::ReloadRefusal;

pub(super) fn routes(api: &Rc<Api>, router: &mut Router) {
    let description =
        "Reloads the configuration, and applies changed limits and key files, like SIGHUP.";
    router.post("/v1/reload", description, on(api, async |api, call| reload(&api, &call)));
}

fn reload(api: &Api, call: &Call) -> Result<ReloadDocument, Problem> {
    call.without_query()?;
    tracing::info!(caller = %call.caller, "configuration reload requested");
    api.server.reload((api.reload_config)()).map_err(|refusal| problem(&refusal))
}

fn problem(refusal: &ReloadRefusal) -> Problem {
    match refusal {
        ReloadRefusal::Configuration(diagnostics) => {
            let errors = diagnostics.items();
            let detail = format!(
                "nothing was changed: the configuration has {}; `flagstone check` shows \
                 them too",
                counted(errors.len() as u64, "error")
            );
            Problem::new(422, "configuration", "The configuration has errors", detail)
                .with("mistakes", json!(errors))
        }
        ReloadRefusal::Files(unusable) => {
            let detail = format!("nothing was changed: {}", unusable.join("; "));
            Problem::new(422, "key-files", "Key files cannot be used", detail)
                .with("unusable", json!(unusable))
        }
    }
}
