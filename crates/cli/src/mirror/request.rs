//! What each command asks of the server, and when what it began has settled.

use flagstone_control::api::mirror_document::{MirrorDocument, ReplicaDocument};
use serde_json::{Map, Value};

use super::args::{Acting, Asking, ForceArgs, Keep, MirrorCommand, PeerArgs, YesNo};

/// A request for an action.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) action: &'static str,
    pub(super) volume: String,
    pub(super) peer: Option<String>,
    pub(super) body: Map<String, Value>,
    /// It may lose something, and nobody said yet that this is fine.
    pub(super) asks_first: bool,
    pub(super) dry_run: bool,
    pub(super) asking: Asking,
}

impl Request {
    fn new(action: &'static str, volume: &str, acting: &Acting) -> Request {
        Request {
            action,
            volume: volume.to_owned(),
            peer: None,
            body: Map::new(),
            asks_first: false,
            dry_run: acting.dry_run,
            asking: acting.asking.clone(),
        }
    }

    fn of(action: &'static str, args: &PeerArgs) -> Request {
        let request = Request::new(action, &args.volume, &args.acting);
        let request = Request { peer: args.peer.clone(), ..request };
        request.with("peer", args.peer.clone())
    }

    fn forced(action: &'static str, args: &ForceArgs) -> Request {
        let request = Request::new(action, &args.volume, &args.acting);
        Request { asks_first: !args.yes, ..request }.flag("force", args.force)
    }

    fn with(mut self, member: &str, value: Option<impl Into<Value>>) -> Request {
        if let Some(value) = value {
            self.body.insert(member.to_owned(), value.into());
        }
        self
    }

    fn flag(self, member: &str, is: bool) -> Request {
        self.with(member, is.then_some(true))
    }
}

/// What a command asks for; status asks for no action.
pub(super) fn request(command: &MirrorCommand) -> Option<Request> {
    Some(match command {
        MirrorCommand::Status(_) => return None,
        MirrorCommand::Create(args) => {
            let request = Request::new("create", &args.volume, &args.acting)
                .with("role", Some(if args.source { "source" } else { "target" }))
                .flag("destroy_data", args.destroy_data)
                .flag("anew", args.anew);
            // An empty device has nothing to lose, and a source keeps what it has.
            Request { asks_first: (args.destroy_data || args.anew) && !args.yes, ..request }
        }
        MirrorCommand::Pause(args) => Request::of("pause", args),
        MirrorCommand::Continue(args) => Request::of("continue", args),
        MirrorCommand::Break(args) => Request::of("break", args),
        MirrorCommand::Resync(args) => Request::of("resync", &args.of)
            .flag("full", args.full)
            .with("compare", args.compare.map(|compare| compare == YesNo::Yes)),
        MirrorCommand::Switchover(args) => {
            Request::of("switchover", &args.of).with("to", args.to.clone())
        }
        MirrorCommand::Failover(args) => Request::forced("failover", args),
        MirrorCommand::Verify(args) => Request::of("verify", &args.of)
            .flag("repair", args.repair)
            .flag("stop", args.stop)
            .with("bytes_per_second", args.max_rate),
        MirrorCommand::Resolve(args) => {
            let keep = if args.keep == Keep::Mine { "mine" } else { "peer" };
            let request = Request::of("resolve", &args.of).with("keep", Some(keep));
            Request { asks_first: !args.yes, ..request }
        }
        MirrorCommand::Demote(args) => Request::new("demote", &args.volume, &args.acting),
        MirrorCommand::Grow(args) => {
            Request::new("grow", &args.volume, &args.acting).with("size_bytes", args.size)
        }
        MirrorCommand::Delete(args) => Request::forced("delete", args),
    })
}

/// Whether what an action began has come to its end, or cannot go on without the operator.
pub(super) fn is_settled(action: &str, peer: Option<&str>, now: &MirrorDocument) -> bool {
    if action == "verify" {
        let Some(verify) = &now.verify else { return true };
        // What differs is copied at the end.
        let copies = verify.repair && verify.error.is_none() && verify.differing_bytes > 0;
        return !verify.running && (!copies || is_settled("resync", Some(&verify.peer), now));
    }
    let growing = |replica: &ReplicaDocument| replica.growing_to_bytes.is_some();
    if action == "grow" && now.replica.as_ref().is_some_and(growing) {
        return false;
    }
    if !["create", "continue", "resync", "resolve", "switchover", "grow"].contains(&action) {
        return true;
    }
    let mut peers = now.peers.iter().filter(|one| peer.is_none_or(|peer| one.name == peer));
    peers.all(|peer| {
        let copies = ["resynchronizing", "resync-pending", "disconnected"];
        // A target without whole data is brought up to date by its source.
        let is_fed = peer.state == "target"
            && now
                .replica
                .as_ref()
                .is_some_and(|replica| replica.inconsistent || replica.holds_nothing());
        !copies.contains(&peer.state.as_str()) && !is_fed
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use flagstone_control::api::mirror_document::{PeerDocument, VerifyDocument};
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
    fn every_command_asks_for_its_action() {
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
                "create db --source --anew",
                "create",
                json!({ "role": "source", "anew": true }),
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
            ("grow db", "grow", json!({}), false),
            ("grow db --size 2GiB", "grow", json!({ "size_bytes": 2u64 << 30 }), false),
            ("delete db", "delete", json!({}), true),
        ] {
            let found = request(&parse(line).expect(line)).expect(line);
            assert_eq!((found.action, found.volume.as_str()), (action, "db"), "{line}");
            assert_eq!(Value::Object(found.body), body, "{line}");
            assert_eq!(found.asks_first, asks_first, "{line}");
        }
        assert!(request(&parse("status").expect("right")).is_none());
        let dry = request(&parse("pause db --dry-run").expect("right")).expect("an action");
        assert!(dry.dry_run);
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (line, part) in [
            ("create db", "--source"),
            ("create db --source --target", "cannot be used with"),
            ("create db --source --destroy-data", "cannot be used with"),
            ("create db --target --anew", "cannot be used with"),
            ("resolve db", "--keep"),
            ("resolve db --keep both", "possible values: mine, peer"),
            ("verify db --max-rate 0B/s", "above 0"),
            ("verify db --stop --repair", "cannot be used with"),
            ("demote db --peer b", "unexpected argument"),
            ("grow db --size huge", "huge"),
            ("pause", "<VOLUME>"),
            ("status --interval 1ms", "100ms or longer"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn what_was_begun_is_watched_to_its_end() {
        let now = |state: &str| MirrorDocument {
            peers: vec![PeerDocument {
                name: "b".into(),
                state: state.into(),
                ..Default::default()
            }],
            replica: Some(ReplicaDocument { generation: "00ab".into(), ..Default::default() }),
            ..MirrorDocument::default()
        };
        for action in ["create", "continue", "resync", "resolve", "switchover", "grow"] {
            for (state, settled) in [
                ("mirroring", true),
                ("split-brain", true),
                ("paused", true),
                ("target", true),
                ("resynchronizing", false),
                ("resync-pending", false),
                ("disconnected", false),
            ] {
                assert_eq!(is_settled(action, None, &now(state)), settled, "{action} {state}");
            }
        }
        assert!(is_settled("resync", Some("c"), &now("resynchronizing")), "another peer's");
        assert!(is_settled("pause", None, &now("disconnected")));
        let mut fed = now("target");
        fed.replica.as_mut().unwrap().inconsistent = true;
        assert!(!is_settled("create", None, &fed));
        // One that was just made holds nothing yet.
        let blank = ReplicaDocument { generation: "0000".into(), ..ReplicaDocument::default() };
        assert!(!is_settled(
            "create",
            None,
            &MirrorDocument { replica: Some(blank), ..now("target") }
        ));
        let mut grows = now("mirroring");
        grows.replica.as_mut().unwrap().growing_to_bytes = Some(4096);
        assert!(!is_settled("grow", None, &grows), "what is new is being zeroed");
        assert!(is_settled("continue", None, &grows));
        let mut verifies = now("mirroring");
        let verify = VerifyDocument { running: true, ..VerifyDocument::default() };
        verifies.verify = Some(verify);
        assert!(!is_settled("verify", None, &verifies));
        verifies.verify.as_mut().unwrap().running = false;
        assert!(is_settled("verify", None, &verifies));
        let verify = VerifyDocument {
            peer: "b".into(),
            repair: true,
            differing_bytes: 1,
            ..Default::default()
        };
        verifies.verify = Some(verify);
        assert!(is_settled("verify", None, &verifies));
        verifies.peers[0].state = "resynchronizing".into();
        assert!(!is_settled("verify", None, &verifies), "what differs is being copied");
    }
}
