//! `POST /v1/reload`: what SIGHUP does, with an answer.

use std::rc::Rc;

use flagstone_api::{Call, Problem, Response, Router};
use serde_json::json;

use super::document::ReloadDocument;
use super::{Part, Reread};
use crate::config::Diagnostics;
use crate::serve::Server;

/// See the module.
pub(super) struct Reload {
    server: Rc<Server>,
    reread: Reread,
}

impl Reload {
    pub(super) fn new(server: Rc<Server>, reread: Reread) -> Reload {
        Reload { server, reread }
    }

    fn run(&self, call: &Call) -> Result<Response, Problem> {
        call.without_query()?;
        tracing::info!(user = ?call.request.user, "asked to read the configuration again");
        let read = (self.reread)();
        let reloaded = self.server.limits.reload(&self.server.config, read);
        let reloaded = reloaded.map_err(|mistakes| problem(&mistakes))?;
        Ok(Response::ok(&ReloadDocument {
            limits_changed: reloaded.limits_changed,
            restart_needed: reloaded.restart_needed,
        }))
    }
}

impl Part for Reload {
    fn routes(self: Rc<Self>, router: &mut Router) {
        let about =
            "Reads the configuration again and takes over the numbers of limits, as SIGHUP does.";
        router.post("/v1/reload", about, move |call| {
            let result = self.run(&call);
            async move { result }
        });
    }
}

fn problem(diagnostics: &Diagnostics) -> Problem {
    let mistakes: Vec<_> = diagnostics
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
        "nothing is changed: the configuration has {} mistakes, of which `flagstone check` tells too",
        mistakes.len()
    );
    Problem::new(422, "configuration", "The configuration has mistakes", detail)
        .with("mistakes", mistakes)
}
