//! What can be asked of a mirror: the actions, and what each takes.

use flagstone_api::Problem;
use serde::Deserialize;
use serde_json::{Map, Value};

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Create {
        source: bool,
        /// Over data, or what may be an earlier replica: `destroy_data` of a target, `anew` of a source.
        anew: bool,
    },
    Pause,
    Continue,
    Resync {
        full: bool,
        compare: Option<bool>,
    },
    Break,
    /// Who is to be the source; this node when not said.
    Switchover {
        to: Option<String>,
    },
    Failover {
        force: bool,
    },
    Verify {
        repair: bool,
        bytes_per_second: Option<u64>,
        stop: bool,
    },
    Resolve {
        keep_mine: bool,
    },
    Demote,
    /// To so many bytes; to what all have room for when not said.
    Grow {
        size_bytes: Option<u64>,
    },
    Delete {
        force: bool,
    },
}

/// An action, and what all have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) action: Action,
    pub(super) peer: Option<String>,
    pub(super) dry_run: bool,
}

/// The actions, with the members of the body that each takes beside `dry_run`.
pub(super) const ACTIONS: [(&str, &[&str]); 12] = [
    ("create", &["role", "destroy_data", "anew"]),
    ("pause", &["peer"]),
    ("continue", &["peer"]),
    ("resync", &["peer", "full", "compare"]),
    ("break", &["peer"]),
    ("switchover", &["peer", "to"]),
    ("failover", &["force"]),
    ("verify", &["peer", "repair", "bytes_per_second", "stop"]),
    ("resolve", &["peer", "keep"]),
    ("demote", &[]),
    ("grow", &["size_bytes"]),
    ("delete", &["force"]),
];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    peer: Option<String>,
    dry_run: bool,
    role: Option<String>,
    destroy_data: bool,
    anew: bool,
    full: bool,
    compare: Option<bool>,
    to: Option<String>,
    force: bool,
    repair: bool,
    bytes_per_second: Option<u64>,
    stop: bool,
    keep: Option<String>,
    size_bytes: Option<u64>,
}

impl Order {
    /// Reads an action and its body.
    pub(super) fn parse(action: &str, body: Map<String, Value>) -> Result<Order, Problem> {
        let found = ACTIONS.iter().find(|(name, _)| *name == action);
        let (name, members) = found.ok_or_else(|| {
            Problem::not_found(format!("there is no action `{action}` of a mirror"))
                .accepting(ACTIONS.iter().map(|(name, _)| *name))
        })?;
        let mut accepted = members.to_vec();
        accepted.push("dry_run");
        if let Some(other) = body.keys().find(|key| !accepted.contains(&key.as_str())) {
            return Err(Problem::invalid(format!("`{name}` takes no `{other}`"))
                .accepting(accepted.iter().copied()));
        }
        let body: Body = serde_json::from_value(Value::Object(body)).map_err(|error| {
            Problem::invalid(format!("the body is not what is asked for: {error}"))
        })?;
        let action = match *name {
            "create" => create(&body)?,
            "pause" => Action::Pause,
            "continue" => Action::Continue,
            "resync" => Action::Resync { full: body.full, compare: body.compare },
            "break" => Action::Break,
            "switchover" => Action::Switchover { to: body.to },
            "failover" => Action::Failover { force: body.force },
            "verify" => verify(&body)?,
            "resolve" => Action::Resolve {
                keep_mine: one_of("keep", body.keep.as_deref(), ["mine", "peer"])?,
            },
            "demote" => Action::Demote,
            "grow" => Action::Grow { size_bytes: body.size_bytes },
            _ => Action::Delete { force: body.force },
        };
        Ok(Order { action, peer: body.peer, dry_run: body.dry_run })
    }
}

/// Whether it is the first of the two words that are accepted.
fn one_of(member: &str, given: Option<&str>, words: [&str; 2]) -> Result<bool, Problem> {
    match given {
        Some(word) if word == words[0] => Ok(true),
        Some(word) if word == words[1] => Ok(false),
        Some(word) => {
            Err(Problem::invalid(format!("`{member}` cannot be `{word}`")).accepting(words))
        }
        None => Err(Problem::invalid(format!("`{member}` is missing")).accepting(words)),
    }
}

fn create(body: &Body) -> Result<Action, Problem> {
    let source = one_of("role", body.role.as_deref(), ["source", "target"])?;
    let (anew, other) =
        if source { (body.anew, body.destroy_data) } else { (body.destroy_data, body.anew) };
    if other {
        return Err(Problem::invalid(
            "`destroy_data` goes with the role `target`, and `anew` with `source`",
        ));
    }
    Ok(Action::Create { source, anew })
}

fn verify(body: &Body) -> Result<Action, Problem> {
    if body.bytes_per_second == Some(0) {
        return Err(Problem::invalid("`bytes_per_second` cannot be 0: leave it out for no limit"));
    }
    if body.stop && (body.repair || body.bytes_per_second.is_some()) {
        return Err(Problem::invalid("`stop` goes with no other member but `peer` and `dry_run`"));
    }
    let (repair, bytes_per_second, stop) = (body.repair, body.bytes_per_second, body.stop);
    Ok(Action::Verify { repair, bytes_per_second, stop })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(action: &str, body: Value) -> Result<Order, Problem> {
        let Value::Object(body) = body else { panic!("an object") };
        Order::parse(action, body)
    }

    fn action(action: &str, body: Value) -> Action {
        parse(action, body).unwrap_or_else(|problem| panic!("{problem:?}")).action
    }

    #[test]
    fn every_action_is_read() {
        for (name, body, expected) in [
            (
                "create",
                json!({ "role": "target", "destroy_data": true }),
                Action::Create { source: false, anew: true },
            ),
            ("create", json!({ "role": "source" }), Action::Create { source: true, anew: false }),
            (
                "create",
                json!({ "role": "source", "anew": true }),
                Action::Create { source: true, anew: true },
            ),
            ("pause", json!({}), Action::Pause),
            ("continue", json!({}), Action::Continue),
            ("resync", json!({}), Action::Resync { full: false, compare: None }),
            (
                "resync",
                json!({ "full": true, "compare": true }),
                Action::Resync { full: true, compare: Some(true) },
            ),
            ("break", json!({}), Action::Break),
            ("switchover", json!({}), Action::Switchover { to: None }),
            ("switchover", json!({ "to": "b" }), Action::Switchover { to: Some("b".into()) }),
            ("failover", json!({ "force": true }), Action::Failover { force: true }),
            (
                "verify",
                json!({ "repair": true, "bytes_per_second": 5 }),
                Action::Verify { repair: true, bytes_per_second: Some(5), stop: false },
            ),
            (
                "verify",
                json!({ "stop": true }),
                Action::Verify { repair: false, bytes_per_second: None, stop: true },
            ),
            ("resolve", json!({ "keep": "mine" }), Action::Resolve { keep_mine: true }),
            ("resolve", json!({ "keep": "peer" }), Action::Resolve { keep_mine: false }),
            ("demote", json!({}), Action::Demote),
            ("grow", json!({}), Action::Grow { size_bytes: None }),
            ("grow", json!({ "size_bytes": 8192 }), Action::Grow { size_bytes: Some(8192) }),
            ("delete", json!({}), Action::Delete { force: false }),
        ] {
            assert_eq!(action(name, body), expected, "{name}");
        }
        let order = parse("pause", json!({ "peer": "b", "dry_run": true })).unwrap();
        assert_eq!((order.peer.as_deref(), order.dry_run), (Some("b"), true));
    }

    #[test]
    fn every_action_takes_a_dry_run_and_nothing_unknown() {
        for (name, members) in ACTIONS {
            let needed = match name {
                "create" => json!({ "role": "source" }),
                "resolve" => json!({ "keep": "mine" }),
                _ => json!({}),
            };
            let mut dry = needed.clone();
            dry["dry_run"] = true.into();
            assert!(parse(name, dry).unwrap().dry_run, "{name}");
            let mut strange = needed;
            strange["colour"] = "red".into();
            let problem = parse(name, strange).unwrap_err();
            assert_eq!(problem.status, 422, "{name}");
            assert_eq!(problem.accepted.len(), members.len() + 1, "{name}");
        }
    }

    #[test]
    fn mistakes_say_what_is_accepted() {
        let problem = parse("pouse", json!({})).unwrap_err();
        assert_eq!((problem.status, problem.accepted.len()), (404, ACTIONS.len()));
        for (action, body, part) in [
            ("create", json!({}), "`role` is missing"),
            ("create", json!({ "role": "boss" }), "`role` cannot be `boss`"),
            ("create", json!({ "role": "source", "destroy_data": true }), "`anew` with `source`"),
            ("create", json!({ "role": "target", "anew": true }), "`anew` with `source`"),
            ("resolve", json!({}), "`keep` is missing"),
            ("resolve", json!({ "keep": "both" }), "`keep` cannot be `both`"),
            ("resync", json!({ "full": "yes" }), "the body is not what is asked for"),
            ("verify", json!({ "bytes_per_second": 0 }), "cannot be 0"),
            ("verify", json!({ "bytes_per_second": -1 }), "the body is not"),
            ("verify", json!({ "stop": true, "repair": true }), "`stop` goes with no other"),
            ("grow", json!({ "size_bytes": "1GiB" }), "the body is not"),
            ("pause", json!({ "full": true }), "`pause` takes no `full`"),
            ("demote", json!({ "peer": "b" }), "`demote` takes no `peer`"),
        ] {
            let problem = parse(action, body).unwrap_err();
            assert_eq!(problem.status, 422, "{action}");
            assert!(problem.detail.contains(part), "{}", problem.detail);
        }
    }
}
