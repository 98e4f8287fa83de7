//! Action requests of a mirror: parses the action and its JSON body.

use flagstone_mirror::ondisk::superblock::ReplicaRole;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::mirror_document::{MirrorAction, ResolveKeep};
use crate::http::Problem;
use flagstone_config::device_spec::DeviceSpec;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParsedAction {
    Create {
        role: ReplicaRole,
        /// Overwrite what is there: `destroy_data` of a target, `new_volume` of a source.
        overwrite: bool,
        /// The device reads as zeroes.
        empty: bool,
    },
    Pause,
    Continue,
    Resync {
        full: bool,
        compare: Option<bool>,
    },
    Break,
    /// `to` is the node to become the source; this node if `None`.
    Switchover {
        to: Option<String>,
    },
    Failover {
        force: bool,
    },
    Maintenance {
        on: bool,
    },
    Fence,
    Verify {
        repair: bool,
        bytes_per_second: Option<u64>,
        stop: bool,
    },
    Resolve {
        keep: ResolveKeep,
    },
    Demote,
    /// The largest size that fits on all nodes if `size_bytes` is `None`.
    Grow {
        size_bytes: Option<u64>,
    },
    /// `to` is the new device; the data device if `None`.
    MoveLog {
        to: Option<DeviceSpec>,
    },
    AddPeer {
        name: String,
        address: Option<String>,
        insecure: bool,
    },
    RemovePeer {
        name: String,
    },
    Delete {
        force: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ActionRequest {
    pub(super) action: ParsedAction,
    pub(super) peer: Option<String>,
    pub(super) dry_run: bool,
}

impl MirrorAction {
    /// Members of the action's body, besides `dry_run`.
    pub(super) fn members(self) -> &'static [&'static str] {
        match self {
            MirrorAction::Create => &["role", "destroy_data", "new_volume", "empty"],
            MirrorAction::Pause | MirrorAction::Continue | MirrorAction::Break => &["peer"],
            MirrorAction::Resync => &["peer", "full", "compare"],
            MirrorAction::Switchover => &["peer", "to"],
            MirrorAction::Failover | MirrorAction::Delete => &["force"],
            MirrorAction::Verify => &["peer", "repair", "bytes_per_second", "stop"],
            MirrorAction::Resolve => &["peer", "keep"],
            MirrorAction::Demote | MirrorAction::Fence => &[],
            MirrorAction::Maintenance => &["on"],
            MirrorAction::Grow => &["size_bytes"],
            MirrorAction::MoveLog => &["to", "to_data_device"],
            MirrorAction::AddPeer => &["peer", "address", "insecure"],
            MirrorAction::RemovePeer => &["peer"],
        }
    }

    pub(super) fn parse(name: &str) -> Result<MirrorAction, Problem> {
        MirrorAction::ALL.into_iter().find(|action| action.name() == name).ok_or_else(|| {
            Problem::not_found(format!("a mirror has no action `{name}`"))
                .accepting(MirrorAction::ALL.map(MirrorAction::name))
        })
    }
}

/// Role of a replica to create.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum CreateRole {
    Target,
    Source,
}

/// Body of an action of a mirror. Each action takes `dry_run` and some of the other members.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ActionRequest")]
pub(super) struct ActionBody {
    peer: Option<String>,
    dry_run: bool,
    role: Option<CreateRole>,
    destroy_data: bool,
    new_volume: bool,
    empty: bool,
    full: bool,
    compare: Option<bool>,
    to: Option<String>,
    force: bool,
    on: Option<bool>,
    repair: bool,
    bytes_per_second: Option<u64>,
    stop: bool,
    keep: Option<ResolveKeep>,
    size_bytes: Option<u64>,
    to_data_device: bool,
    address: Option<String>,
    insecure: bool,
}

impl ActionRequest {
    pub(super) fn parse(
        name: MirrorAction,
        body: Map<String, Value>,
    ) -> Result<ActionRequest, Problem> {
        let mut accepted = name.members().to_vec();
        accepted.push("dry_run");
        if let Some(other) = body.keys().find(|key| !accepted.contains(&key.as_str())) {
            return Err(Problem::invalid(format!("action `{name}` has no member `{other}`"))
                .accepting(accepted.iter().copied()));
        }
        let body: ActionBody = serde_json::from_value(Value::Object(body))
            .map_err(|error| Problem::invalid(format!("the body is invalid: {error}")))?;
        let action = match name {
            MirrorAction::Create => create(&body)?,
            MirrorAction::Pause => ParsedAction::Pause,
            MirrorAction::Continue => ParsedAction::Continue,
            MirrorAction::Resync => ParsedAction::Resync { full: body.full, compare: body.compare },
            MirrorAction::Break => ParsedAction::Break,
            MirrorAction::Switchover => ParsedAction::Switchover { to: body.to },
            MirrorAction::Failover => ParsedAction::Failover { force: body.force },
            MirrorAction::Maintenance => {
                let on = body.on.ok_or_else(|| missing("on", ["true", "false"]))?;
                ParsedAction::Maintenance { on }
            }
            MirrorAction::Fence => ParsedAction::Fence,
            MirrorAction::Verify => verify(&body)?,
            MirrorAction::Resolve => {
                let missing = || missing("keep", ResolveKeep::ALL.map(ResolveKeep::name));
                ParsedAction::Resolve { keep: body.keep.ok_or_else(missing)? }
            }
            MirrorAction::Demote => ParsedAction::Demote,
            MirrorAction::Grow => ParsedAction::Grow { size_bytes: body.size_bytes },
            MirrorAction::MoveLog => move_log(&body)?,
            MirrorAction::AddPeer => {
                let (name, insecure) = (named_peer(&body)?, body.insecure);
                ParsedAction::AddPeer { name, address: body.address, insecure }
            }
            MirrorAction::RemovePeer => ParsedAction::RemovePeer { name: named_peer(&body)? },
            MirrorAction::Delete => ParsedAction::Delete { force: body.force },
        };
        Ok(ActionRequest { action, peer: body.peer, dry_run: body.dry_run })
    }
}

fn missing(member: &str, values: [&str; 2]) -> Problem {
    Problem::invalid(format!("`{member}` is missing")).accepting(values)
}

fn named_peer(body: &ActionBody) -> Result<String, Problem> {
    let name = body.peer.clone().filter(|name| !name.is_empty());
    name.ok_or_else(|| Problem::invalid("`peer` is missing: the name of a node"))
}

fn create(body: &ActionBody) -> Result<ParsedAction, Problem> {
    let roles = [ReplicaRole::Source, ReplicaRole::Target].map(ReplicaRole::name);
    let (role, overwrite, other) = match body.role.ok_or_else(|| missing("role", roles))? {
        CreateRole::Source => (ReplicaRole::Source, body.new_volume, body.destroy_data),
        CreateRole::Target => (ReplicaRole::Target, body.destroy_data, body.new_volume),
    };
    if other {
        return Err(Problem::invalid(
            "`destroy_data` requires the role `target`, and `new_volume` the role `source`",
        ));
    }
    Ok(ParsedAction::Create { role, overwrite, empty: body.empty })
}

fn move_log(body: &ActionBody) -> Result<ParsedAction, Problem> {
    let to = match (&body.to, body.to_data_device) {
        (None, true) => None,
        (Some(text), false) => Some(
            text.parse::<DeviceSpec>()
                .map_err(|error| Problem::invalid(format!("`to` is invalid: {error}")))?,
        ),
        _ => {
            let members = ["to", "to_data_device"];
            return Err(
                Problem::invalid("give one of `to` and `to_data_device`").accepting(members)
            );
        }
    };
    Ok(ParsedAction::MoveLog { to })
}

fn verify(body: &ActionBody) -> Result<ParsedAction, Problem> {
    if body.bytes_per_second == Some(0) {
        return Err(Problem::invalid("`bytes_per_second` cannot be 0: omit it for no limit"));
    }
    if body.stop && (body.repair || body.bytes_per_second.is_some()) {
        return Err(Problem::invalid("`stop` cannot be used with `repair` or `bytes_per_second`"));
    }
    let (repair, bytes_per_second, stop) = (body.repair, body.bytes_per_second, body.stop);
    Ok(ParsedAction::Verify { repair, bytes_per_second, stop })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(action: &str, body: Value) -> Result<ActionRequest, Problem> {
        let Value::Object(body) = body else { panic!("an object") };
        ActionRequest::parse(MirrorAction::parse(action)?, body)
    }

    fn action(action: &str, body: Value) -> ParsedAction {
        parse(action, body).unwrap_or_else(|problem| panic!("{problem:?}")).action
    }

    #[test]
    fn action_bodies_are_parsed() {
        let create = |role, overwrite| ParsedAction::Create { role, overwrite, empty: false };
        let (source, target) = (ReplicaRole::Source, ReplicaRole::Target);
        for (name, body, expected) in [
            ("create", json!({ "role": "target", "destroy_data": true }), create(target, true)),
            ("create", json!({ "role": "source" }), create(source, false)),
            ("create", json!({ "role": "source", "new_volume": true }), create(source, true)),
            (
                "create",
                json!({ "role": "source", "empty": true }),
                ParsedAction::Create { role: source, overwrite: false, empty: true },
            ),
            ("pause", json!({}), ParsedAction::Pause),
            ("continue", json!({}), ParsedAction::Continue),
            ("resync", json!({}), ParsedAction::Resync { full: false, compare: None }),
            (
                "resync",
                json!({ "full": true, "compare": true }),
                ParsedAction::Resync { full: true, compare: Some(true) },
            ),
            ("break", json!({}), ParsedAction::Break),
            ("switchover", json!({}), ParsedAction::Switchover { to: None }),
            ("switchover", json!({ "to": "b" }), ParsedAction::Switchover { to: Some("b".into()) }),
            ("failover", json!({ "force": true }), ParsedAction::Failover { force: true }),
            ("maintenance", json!({ "on": true }), ParsedAction::Maintenance { on: true }),
            ("maintenance", json!({ "on": false }), ParsedAction::Maintenance { on: false }),
            ("fence", json!({}), ParsedAction::Fence),
            (
                "verify",
                json!({ "repair": true, "bytes_per_second": 5 }),
                ParsedAction::Verify { repair: true, bytes_per_second: Some(5), stop: false },
            ),
            (
                "verify",
                json!({ "stop": true }),
                ParsedAction::Verify { repair: false, bytes_per_second: None, stop: true },
            ),
            (
                "resolve",
                json!({ "keep": "mine" }),
                ParsedAction::Resolve { keep: ResolveKeep::Mine },
            ),
            (
                "resolve",
                json!({ "keep": "peer" }),
                ParsedAction::Resolve { keep: ResolveKeep::Peer },
            ),
            ("demote", json!({}), ParsedAction::Demote),
            ("grow", json!({}), ParsedAction::Grow { size_bytes: None }),
            ("grow", json!({ "size_bytes": 8192 }), ParsedAction::Grow { size_bytes: Some(8192) }),
            ("move-log", json!({ "to_data_device": true }), ParsedAction::MoveLog { to: None }),
            (
                "move-log",
                json!({ "to": "/dev/nvme1n1" }),
                ParsedAction::MoveLog { to: Some("/dev/nvme1n1".parse().unwrap()) },
            ),
            (
                "add-peer",
                json!({ "peer": "c", "address": "192.0.2.3", "insecure": true }),
                ParsedAction::AddPeer {
                    name: "c".into(),
                    address: Some("192.0.2.3".into()),
                    insecure: true,
                },
            ),
            ("remove-peer", json!({ "peer": "c" }), ParsedAction::RemovePeer { name: "c".into() }),
            ("delete", json!({}), ParsedAction::Delete { force: false }),
        ] {
            assert_eq!(action(name, body), expected, "{name}");
        }
        let request = parse("pause", json!({ "peer": "b", "dry_run": true })).unwrap();
        assert_eq!((request.peer.as_deref(), request.dry_run), (Some("b"), true));
    }

    #[test]
    fn actions_accept_dry_run_and_reject_unknown_members() {
        for name in MirrorAction::ALL {
            let needed = match name {
                MirrorAction::Create => json!({ "role": "source" }),
                MirrorAction::Resolve => json!({ "keep": "mine" }),
                MirrorAction::Maintenance => json!({ "on": true }),
                MirrorAction::MoveLog => json!({ "to_data_device": true }),
                MirrorAction::AddPeer | MirrorAction::RemovePeer => json!({ "peer": "c" }),
                _ => json!({}),
            };
            let mut dry = needed.clone();
            dry["dry_run"] = true.into();
            assert!(parse(name.name(), dry).unwrap().dry_run, "{name}");
            let mut unknown = needed;
            unknown["color"] = "red".into();
            let problem = parse(name.name(), unknown).unwrap_err();
            assert_eq!(problem.status, 422, "{name}");
            assert_eq!(problem.accepted.len(), name.members().len() + 1, "{name}");
        }
    }

    #[test]
    fn invalid_action_names_accepted_values() {
        let problem = parse("pouse", json!({})).unwrap_err();
        assert_eq!((problem.status, problem.accepted.len()), (404, MirrorAction::ALL.len()));
        for (action, body, part) in [
            ("create", json!({}), "`role` is missing"),
            (
                "create",
                json!({ "role": "boss" }),
                "unknown variant `boss`, expected `target` or `source`",
            ),
            ("create", json!({ "role": "source", "destroy_data": true }), "`new_volume` the role"),
            (
                "create",
                json!({ "role": "target", "new_volume": true }),
                "`new_volume` the role `source`",
            ),
            ("resolve", json!({}), "`keep` is missing"),
            ("add-peer", json!({}), "`peer` is missing"),
            ("move-log", json!({}), "give one of `to` and `to_data_device`"),
            ("move-log", json!({ "to": "/a", "to_data_device": true }), "give one of"),
            ("move-log", json!({ "to": "sdb:1" }), "`to` is invalid"),
            (
                "resolve",
                json!({ "keep": "both" }),
                "unknown variant `both`, expected `mine` or `peer`",
            ),
            ("resync", json!({ "full": "yes" }), "the body is invalid"),
            ("verify", json!({ "bytes_per_second": 0 }), "cannot be 0"),
            ("verify", json!({ "bytes_per_second": -1 }), "the body is invalid"),
            ("verify", json!({ "stop": true, "repair": true }), "`stop` cannot be used with"),
            ("grow", json!({ "size_bytes": "1GiB" }), "the body is invalid"),
            ("pause", json!({ "full": true }), "`pause` has no member `full`"),
            ("demote", json!({ "peer": "b" }), "`demote` has no member `peer`"),
        ] {
            let problem = parse(action, body).unwrap_err();
            assert_eq!(problem.status, 422, "{action}");
            assert!(problem.detail.contains(part), "{}", problem.detail);
        }
    }
}
