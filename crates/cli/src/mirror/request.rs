//! API requests of the mirror commands, and when their effects have finished.

use flagstone_config::device_spec::DeviceSpec;
use flagstone_server::api::mirror_document::{
    MirrorAction, MirrorDocument, ReplicaDocument, ReplicaRole, ReportedState,
};
use serde_json::{Map, Value};

use super::args::{ForceArgs, MemberArgs, MirrorCommand, PeerArgs, VolumeArgs};
use crate::status::QueryArgs;

#[derive(Clone, Debug)]
pub(super) struct ActionRequest {
    pub(super) action: MirrorAction,
    pub(super) volume: String,
    pub(super) peer: Option<String>,
    pub(super) body: Map<String, Value>,
    /// The action may lose data and the user has not confirmed it.
    pub(super) asks_first: bool,
    pub(super) dry_run: bool,
    /// The server answers when it has read a whole device, asked the arbiter, or run a command.
    pub(super) waits: bool,
    pub(super) query: QueryArgs,
}

impl ActionRequest {
    fn new(action: MirrorAction, on: &VolumeArgs) -> ActionRequest {
        ActionRequest {
            action,
            volume: on.volume.clone(),
            peer: None,
            body: Map::new(),
            asks_first: false,
            dry_run: on.action_args.dry_run,
            waits: false,
            query: on.action_args.query.clone(),
        }
    }

    fn of(action: MirrorAction, args: &PeerArgs) -> ActionRequest {
        let request = ActionRequest::new(action, &args.on);
        let request = ActionRequest { peer: args.peer.clone(), ..request };
        request.with("peer", args.peer.clone())
    }

    fn member(action: MirrorAction, args: &MemberArgs) -> ActionRequest {
        let MemberArgs { volume, name, action_args } = args.clone();
        let request = ActionRequest::new(action, &VolumeArgs { volume, action_args });
        ActionRequest { peer: Some(name.clone()), ..request }.with("peer", Some(name))
    }

    fn forced(action: MirrorAction, args: &ForceArgs) -> ActionRequest {
        let request = ActionRequest::new(action, &args.on);
        ActionRequest { asks_first: !args.yes, ..request }.with_true("force", args.force)
    }

    fn with(mut self, member: &str, value: Option<impl Into<Value>>) -> ActionRequest {
        if let Some(value) = value {
            self.body.insert(member.to_owned(), value.into());
        }
        self
    }

    fn with_true(self, member: &str, is: bool) -> ActionRequest {
        self.with(member, is.then_some(true))
    }
}

pub(super) fn request(command: &MirrorCommand) -> Option<ActionRequest> {
    Some(match command {
        MirrorCommand::Status(_) => return None,
        MirrorCommand::Create(args) => {
            let role = if args.source { ReplicaRole::Source } else { ReplicaRole::Target };
            let request = ActionRequest::new(MirrorAction::Create, &args.on)
                .with("role", Some(role.name()))
                .with_true("destroy_data", args.destroy_data)
                .with_true("new_volume", args.new_volume)
                .with_true("empty", args.empty);
            // An empty device has nothing to lose, and a source keeps its data.
            ActionRequest {
                asks_first: (args.destroy_data || args.new_volume) && !args.yes,
                waits: args.empty,
                ..request
            }
        }
        MirrorCommand::Pause(args) => ActionRequest::of(MirrorAction::Pause, args),
        MirrorCommand::Continue(args) => ActionRequest::of(MirrorAction::Continue, args),
        MirrorCommand::Break(args) => ActionRequest::of(MirrorAction::Break, args),
        MirrorCommand::Resync(args) => ActionRequest::of(MirrorAction::Resync, &args.of)
            .with_true("full", args.full)
            .with("compare", args.compare),
        MirrorCommand::Switchover(args) => {
            ActionRequest::of(MirrorAction::Switchover, &args.of).with("to", args.to.clone())
        }
        MirrorCommand::Failover(args) => ActionRequest::forced(MirrorAction::Failover, args),
        MirrorCommand::Maintenance(args) => {
            let request = ActionRequest::new(MirrorAction::Maintenance, &args.on);
            // The arbiter may take longer to answer than the server does.
            ActionRequest { waits: true, ..request }.with("on", Some(args.suspend))
        }
        MirrorCommand::Fence(args) => {
            let request = ActionRequest::new(MirrorAction::Fence, &args.on);
            ActionRequest { asks_first: !args.yes, waits: true, ..request }
        }
        MirrorCommand::Verify(args) => ActionRequest::of(MirrorAction::Verify, &args.of)
            .with_true("repair", args.repair)
            .with_true("stop", args.stop)
            .with("bytes_per_second", args.max_rate),
        MirrorCommand::Resolve(args) => {
            let request = ActionRequest::of(MirrorAction::Resolve, &args.of)
                .with("keep", Some(args.keep.name()));
            ActionRequest { asks_first: !args.yes, ..request }
        }
        MirrorCommand::Demote(args) => ActionRequest::new(MirrorAction::Demote, args),
        MirrorCommand::Grow(args) => {
            ActionRequest::new(MirrorAction::Grow, &args.on).with("size_bytes", args.size)
        }
        MirrorCommand::MoveLog(args) => ActionRequest::new(MirrorAction::MoveLog, &args.on)
            .with("to", args.to.as_deref().map(absolute))
            .with_true("to_data_device", args.to_data_device),
        MirrorCommand::AddPeer(args) => ActionRequest::member(MirrorAction::AddPeer, &args.peer)
            .with("address", args.address.clone())
            .with_true("insecure", args.insecure),
        MirrorCommand::RemovePeer(args) => ActionRequest::member(MirrorAction::RemovePeer, args),
        MirrorCommand::Delete(args) => ActionRequest::forced(MirrorAction::Delete, args),
    })
}

/// A device as the server understands it, which has another working directory.
fn absolute(device: &str) -> String {
    match device.parse() {
        Ok(DeviceSpec::Path(path)) => {
            std::path::absolute(&path).unwrap_or(path).to_string_lossy().into_owned()
        }
        _ => device.to_owned(),
    }
}

/// Whether an action has finished, or needs the operator to continue.
pub(super) fn is_settled(action: MirrorAction, peer: Option<&str>, now: &MirrorDocument) -> bool {
    if action == MirrorAction::Verify {
        let Some(verify) = &now.verify else { return true };
        // Differing blocks are copied at the end.
        let copies = verify.repair && verify.error.is_none() && verify.differing_bytes > 0;
        return !verify.running
            && (!copies || is_settled(MirrorAction::Resync, Some(&verify.peer), now));
    }
    let growing = |replica: &ReplicaDocument| replica.growing_to_bytes.is_some();
    if action == MirrorAction::Grow && now.replica.as_ref().is_some_and(growing) {
        return false;
    }
    let copies_data = matches!(
        action,
        MirrorAction::Create
            | MirrorAction::Continue
            | MirrorAction::Resync
            | MirrorAction::Resolve
            | MirrorAction::Switchover
            | MirrorAction::Grow
            | MirrorAction::AddPeer
    );
    if !copies_data {
        return true;
    }
    let mut peers = now.peers.iter().filter(|one| peer.is_none_or(|peer| one.name == peer));
    peers.all(|peer| {
        let copies = matches!(
            peer.state,
            ReportedState::Resynchronizing
                | ReportedState::ResyncPending
                | ReportedState::Disconnected
        );
        // The source brings an incomplete target up to date.
        let is_fed = peer.state == ReportedState::Target
            && now
                .replica
                .as_ref()
                .is_some_and(|replica| replica.inconsistent || replica.holds_nothing());
        !copies && !is_fed
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use flagstone_server::api::mirror_document::{PeerDocument, VerifyDocument};
    use serde_json::json;

    use super::super::args::MirrorArgs;
    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: MirrorArgs,
    }

    fn parse(line: &str) -> Result<MirrorCommand, String> {
        let words = std::iter::once("mirror").chain(line.split(' '));
        let parsed = Line::try_parse_from(words).map(|line| line.args.command);
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn mirror_commands_build_requests() {
        for (line, action, body, asks_first) in [
            ("create db --source", "create", json!({ "role": "source" }), false),
            ("create db --target", "create", json!({ "role": "target" }), false),
            (
                "create db --target --destroy-data",
                "create",
                json!({ "role": "target", "destroy_data": true }),
                true,
            ),
            (
                "create db --target --destroy-data --yes",
                "create",
                json!({ "role": "target", "destroy_data": true }),
                false,
            ),
            (
                "create db --source --new-volume",
                "create",
                json!({ "role": "source", "new_volume": true }),
                true,
            ),
            ("pause db --peer b", "pause", json!({ "peer": "b" }), false),
            ("continue db", "continue", json!({}), false),
            ("break db", "break", json!({}), false),
            ("resync db", "resync", json!({}), false),
            (
                "resync db --full --compare no",
                "resync",
                json!({ "full": true, "compare": false }),
                false,
            ),
            ("switchover db --to b", "switchover", json!({ "to": "b" }), false),
            ("failover db", "failover", json!({}), true),
            ("failover db --force -y", "failover", json!({ "force": true }), false),
            (
                "verify db --repair --max-rate 1MB/s",
                "verify",
                json!({ "repair": true, "bytes_per_second": 1_000_000 }),
                false,
            ),
            ("verify db --mark", "verify", json!({ "repair": true }), false),
            ("verify db --stop", "verify", json!({ "stop": true }), false),
            ("resolve db --keep peer", "resolve", json!({ "keep": "peer" }), true),
            ("resolve db --keep mine --yes", "resolve", json!({ "keep": "mine" }), false),
            ("demote db", "demote", json!({}), false),
            ("maintenance db on", "maintenance", json!({ "on": true }), false),
            ("maintenance db off", "maintenance", json!({ "on": false }), false),
            ("fence db", "fence", json!({}), true),
            ("fence db --yes", "fence", json!({}), false),
            ("grow db", "grow", json!({}), false),
            ("grow db --size 2GiB", "grow", json!({ "size_bytes": 2u64 << 30 }), false),
            (
                "add-peer db c --address 192.0.2.3 --insecure",
                "add-peer",
                json!({ "peer": "c", "address": "192.0.2.3", "insecure": true }),
                false,
            ),
            ("remove-peer db c", "remove-peer", json!({ "peer": "c" }), false),
            ("delete db", "delete", json!({}), true),
        ] {
            let found = request(&parse(line).expect(line)).expect(line);
            assert_eq!((found.action.name(), found.volume.as_str()), (action, "db"), "{line}");
            assert_eq!(Value::Object(found.body), body, "{line}");
            assert_eq!(found.asks_first, asks_first, "{line}");
        }
        assert!(request(&parse("status").expect("right")).is_none());
        let dry = request(&parse("pause db --dry-run").expect("right")).expect("an action");
        assert!(dry.dry_run);
    }

    #[test]
    fn invalid_mirror_options_name_accepted_values() {
        for (line, part) in [
            ("create db", "--source"),
            ("create db --source --target", "cannot be used with"),
            ("create db --source --destroy-data", "cannot be used with"),
            ("create db --target --new-volume", "cannot be used with"),
            ("resolve db", "--keep"),
            ("resolve db --keep both", "possible values: mine, peer"),
            ("verify db --max-rate 0B/s", "above 0"),
            ("verify db --stop --repair", "cannot be used with"),
            ("demote db --peer b", "unexpected argument"),
            ("maintenance db", "required"),
            ("maintenance db yes", "invalid value"),
            ("grow db --size huge", "huge"),
            ("pause", "<VOLUME>"),
            ("status --interval 1ms", "100ms or longer"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn watch_ends_when_action_settles() {
        let now = |state: ReportedState| MirrorDocument {
            peers: vec![PeerDocument { name: "b".into(), state, ..Default::default() }],
            replica: Some(ReplicaDocument { generation: "00ab".into(), ..Default::default() }),
            ..MirrorDocument::default()
        };
        for action in [
            MirrorAction::Create,
            MirrorAction::Continue,
            MirrorAction::Resync,
            MirrorAction::Resolve,
            MirrorAction::Switchover,
            MirrorAction::Grow,
        ] {
            for (state, settled) in [
                (ReportedState::Mirroring, true),
                (ReportedState::SplitBrain, true),
                (ReportedState::Paused, true),
                (ReportedState::Target, true),
                (ReportedState::Resynchronizing, false),
                (ReportedState::ResyncPending, false),
                (ReportedState::Disconnected, false),
            ] {
                assert_eq!(is_settled(action, None, &now(state)), settled, "{action} {state}");
            }
        }
        assert!(
            is_settled(MirrorAction::Resync, Some("c"), &now(ReportedState::Resynchronizing)),
            "another peer's"
        );
        assert!(is_settled(MirrorAction::Pause, None, &now(ReportedState::Disconnected)));
        let mut fed = now(ReportedState::Target);
        fed.replica.as_mut().unwrap().inconsistent = true;
        assert!(!is_settled(MirrorAction::Create, None, &fed));
        // A new replica holds no data yet.
        let blank = ReplicaDocument { generation: "0000".into(), ..ReplicaDocument::default() };
        assert!(!is_settled(
            MirrorAction::Create,
            None,
            &MirrorDocument { replica: Some(blank), ..now(ReportedState::Target) }
        ));
        let mut grows = now(ReportedState::Mirroring);
        grows.replica.as_mut().unwrap().growing_to_bytes = Some(4096);
        assert!(!is_settled(MirrorAction::Grow, None, &grows), "what is new is being zeroed");
        assert!(is_settled(MirrorAction::Continue, None, &grows));
        let mut verifies = now(ReportedState::Mirroring);
        let verify = VerifyDocument { running: true, ..VerifyDocument::default() };
        verifies.verify = Some(verify);
        assert!(!is_settled(MirrorAction::Verify, None, &verifies));
        verifies.verify.as_mut().unwrap().running = false;
        assert!(is_settled(MirrorAction::Verify, None, &verifies));
        let verify = VerifyDocument {
            peer: "b".into(),
            repair: true,
            differing_bytes: 1,
            ..Default::default()
        };
        verifies.verify = Some(verify);
        assert!(is_settled(MirrorAction::Verify, None, &verifies));
        verifies.peers[0].state = ReportedState::Resynchronizing;
        assert!(!is_settled(MirrorAction::Verify, None, &verifies), "what differs is being copied");
    }
}
