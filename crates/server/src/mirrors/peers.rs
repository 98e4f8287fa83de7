//! Peers of a mirrored volume at run time: `flagstone mirror add-peer` and `remove-peer`.
//!
//! The configuration file is the operator's and is not changed. The replica's superblock records
//! the difference to the file, which is ignored as soon as the file agrees.
//!
//! The mirror is replaced by one with other legs while host I/O waits. One write of the superblock
//! has the whole change, so a crash leaves the peers before or after it. A peer is told of its
//! removal before that write, because the address of a peer added at run time is lost with it. If
//! the source crashes in between, the removed peer is paused, and the command can be repeated or
//! `continue` used: a source that attaches makes it a member again.

use std::rc::Rc;

use flagstone_mirror::limits::{MEMBER_TEXT_MAX, PEERS_MAX};
use flagstone_mirror::manage::replica::{Replica, ReplicaError};
use flagstone_mirror::ondisk::member::{Member, MemberChange};
use flagstone_mirror::ondisk::superblock::Superblock;
use flagstone_mirror::state::machine::NodeRole;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::{Mirror, PeerChange};
use flagstone_nvme::Nqn;
use flagstone_runtime::spawn;

use super::create::{failed, refuse};
use super::grow::{Changing, Replacement};
use super::{
    CreateError, MirrorFailure, MirroredVolume, announce, host_name, ports_of, resolve, share_among,
};
use flagstone_config::Peer;

/// Outcome of a change of the peers, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeersChanged {
    pub changed: bool,
    pub outcome: String,
}

/// The peers of the file, as changed since.
fn members_of(
    configured: Vec<Peer>,
    known: &[Peer],
    members: &[Member],
) -> Result<Vec<Peer>, String> {
    let removed = |peer: &Peer| {
        members.iter().any(|one| one.name == peer.name && one.change == MemberChange::Removed)
    };
    let mut peers: Vec<Peer> = configured.iter().filter(|peer| !removed(peer)).cloned().collect();
    for Member { name, change } in members {
        let MemberChange::Added(address) = change else { continue };
        if peers.iter().any(|peer| peer.name == *name) {
            continue;
        }
        let table = known.iter().find(|peer| peer.name == *name).cloned();
        peers.push(table.map_or_else(|| Peer::at(name, address), Ok)?);
    }
    if peers.len() > PEERS_MAX {
        let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
        return Err(format!(
            "the configuration and `flagstone mirror add-peer` together give it the peers {}, and it can \
             have {PEERS_MAX}: name fewer in the configuration",
            names.join(", ")
        ));
    }
    // The file was changed back to a single peer that had been removed.
    Ok(if peers.is_empty() { configured } else { peers })
}

/// The record that makes `name` a peer at an address, or none, beside the names of the file.
fn changed_members(
    members: &[Member],
    configured: &[Peer],
    name: &str,
    change: MemberChange,
) -> Vec<Member> {
    let others = members.iter().filter(|member| member.name != name).cloned();
    let new = Member { name: name.to_owned(), change };
    others.chain([new]).filter(|member| differs(member, configured)).collect()
}

/// The file does not agree with the record.
fn differs(member: &Member, configured: &[Peer]) -> bool {
    let in_file = configured.iter().any(|peer| peer.name == member.name);
    (member.change == MemberChange::Removed) == in_file
}

impl MirroredVolume {
    /// Names of its peers, in the order of the legs of [`Mirror`].
    pub(crate) fn peers(&self) -> Vec<String> {
        self.links.borrow().iter().map(|peer| peer.name.clone()).collect()
    }

    /// Its peers, in the same order.
    pub(crate) fn links(&self) -> Vec<Peer> {
        self.links.borrow().clone()
    }

    fn configured_peers(&self) -> Vec<Peer> {
        self.config.peers.iter().map(|peer| self.configured[*peer].clone()).collect()
    }

    pub(super) fn members(&self, members: &[Member]) -> Result<Vec<Peer>, String> {
        members_of(self.configured_peers(), &self.configured, members)
    }

    /// Forgets records with which the file agrees, so that later changes of the file count.
    pub(super) async fn forget_settled_members(
        &self,
        replica: &Replica,
    ) -> Result<(), MirrorFailure> {
        let configured = self.configured_peers();
        let is_settled = |member: &Member| !differs(member, &configured);
        if replica.superblock().members.iter().any(is_settled) {
            let forget = move |superblock: &mut Superblock| {
                superblock.members.retain(|member| differs(member, &configured));
            };
            replica.update(forget).await.map_err(ReplicaError::Io)?;
        }
        Ok(())
    }

    /// Refuses a change of the mirror while another is in progress.
    fn check_unchanging(&self) -> Result<(), CreateError> {
        let moves_log = self.moving_log.get() || self.log_moves.borrow().are_running();
        match self.growing.get() || self.growing_to.get().is_some() || moves_log {
            true => {
                let name = &self.name;
                refuse(format!("`{name}` is being changed: repeat the command after that"))
            }
            false => Ok(()),
        }
    }

    /// Begins a change of the peers, unless another change has begun since the order was checked.
    fn begin_change(self: &Rc<Self>) -> Result<Changing, CreateError> {
        self.check_unchanging()?;
        Ok(Changing::new(self))
    }

    /// The mirror, if its peers may change now.
    fn changeable(&self) -> Result<Mirror, CreateError> {
        let name = &self.name;
        let Some(mirror) = self.mirror().filter(|mirror| !mirror.is_closed()) else {
            return refuse(format!(
                "the replica of `{name}` is not open on this node: see `flagstone mirror status {name}`"
            ));
        };
        self.check_unchanging()?;
        if let Some(group) = &self.config.group {
            return refuse(format!(
                "`{name}` belongs to group {group}, whose volumes have one peer, the same one: change the \
                 configuration of both nodes and restart"
            ));
        }
        if mirror.failover_status().is_some() {
            return refuse(format!(
                "`{name}` fails over by itself, which is for two nodes that have agreed: write failover = \
                 \"manual\" on both, restart them, and repeat the command"
            ));
        }
        if mirror.status().local_device_failed {
            return refuse(format!("the device of `{name}` on {} has failed", self.node));
        }
        match mirror.machine_state().role {
            NodeRole::Serving { .. } | NodeRole::Target { .. } => Ok(mirror),
            _ => refuse(format!(
                "{} neither serves `{name}` nor is its target: see `flagstone mirror status {name}`",
                self.node
            )),
        }
    }

    /// Makes the node `name` a peer. It is reached at `address`, or as its table in the
    /// configuration says. `is_allowed` returns false for a peer that needs a key and has none.
    pub(crate) async fn add_peer(
        self: &Rc<Self>,
        name: &str,
        address: Option<&str>,
        is_allowed: impl Fn(&Peer) -> bool,
        dry_run: bool,
    ) -> Result<PeersChanged, CreateError> {
        let (volume, links) = (&self.name, self.links());
        let mirror = self.changeable()?;
        let table = self.configured.iter().find(|peer| peer.name == name);
        let given = address.map(|address| Peer::at(name, address)).transpose();
        let given = given.or_else(|error| refuse(format!("peer `{name}`: {error}")))?;
        if let Some(link) = links.iter().find(|link| link.name == name) {
            return match given.filter(|given| given.address != link.address) {
                None => Ok(self.unchanged(format!("{name} is a peer of {volume} already"))),
                Some(_) => refuse(format!(
                    "{name} is a peer of `{volume}` already, at {}: remove it first",
                    link.address
                )),
            };
        }
        let peer = match (table, given) {
            (Some(table), Some(given)) if table.address != given.address => {
                return refuse(format!(
                    "[peer.{name}] of the configuration has the address {}: omit --address",
                    table.address
                ));
            }
            (Some(table), _) => table.clone(),
            (None, Some(given)) => given,
            (None, None) => {
                return refuse(format!(
                    "this server knows no [peer.{name}]: give its address with --address HOST:PORT"
                ));
            }
        };
        self.check_new_peer(&peer, &links, table.is_some())?;
        if !is_allowed(&peer) {
            return refuse(format!(
                "anyone who takes the name or address of {name} ({}) could read and overwrite the mirror: \
                 write key_file in [peer.{name}] of the configuration and restart this server, or accept \
                 that with --insecure",
                peer.address
            ));
        }
        let mut legs: Vec<_> = (0..links.len()).map(Some).collect();
        legs.push(None);
        self.check_records(&mirror, &legs)?;
        let status = mirror.status();
        let found = self.identify_peer(&peer, status.replica, mirror.versions()).await;
        match &found {
            Ok(found) if found.view.volume != status.volume => {
                return refuse(format!(
                    "{name} has a replica of another volume under this name: delete it there, or name \
                     another node"
                ));
            }
            Ok(found) if found.is_serving && status.serving => {
                return refuse(format!(
                    "{name} serves hosts itself: first run `flagstone mirror demote {volume}` there"
                ));
            }
            _ => {}
        }
        let change = MemberChange::Added(peer.address.to_string());
        if !dry_run {
            let changing = self.begin_change()?;
            self.change_peers(&mirror, changing, legs, (name, change)).await?;
            let nodes = self.configured.iter().map(|peer| peer.name.as_str());
            let share = share_among(nodes.chain([self.node.as_str()]), name);
            let ports = ports_of(self.nqn, &peer, share).collect();
            let task = spawn(announce(ports, self.target().map_err(failed)?)).abort_on_drop();
            *self.announcing.borrow_mut() = Some(task);
        }
        let copied = match (status.serving, found) {
            (false, _) => "; its source copies the volume to it".to_owned(),
            (true, Ok(_)) => " and receives a copy of the volume".to_owned(),
            (true, Err(error)) => format!(
                ". It receives a copy of the volume when it answers ({error}): run `flagstone mirror \
                 create {volume} --target` there"
            ),
        };
        let names: Vec<_> = links.iter().map(|peer| peer.name.as_str()).chain([name]).collect();
        let advice = self.advice(&names, name, "add-peer");
        let outcome = format!("{name} becomes a peer of {}{copied}. {advice}", self.node);
        Ok(PeersChanged { changed: true, outcome })
    }

    fn check_new_peer(&self, peer: &Peer, links: &[Peer], known: bool) -> Result<(), CreateError> {
        let name = &peer.name;
        if *name == self.node {
            return refuse(format!("{name} is this node itself: name another"));
        }
        if links.len() >= PEERS_MAX {
            return refuse(format!(
                "`{}` has {PEERS_MAX} peers, which is the most: remove one first",
                self.name
            ));
        }
        if let Err(error) = Nqn::new(&host_name(&self.nqn_prefix, name)) {
            return refuse(format!("{name}: {error}"));
        }
        self.keys_of(peer).or_else(refuse)?;
        if let Some(link) =
            links.iter().find(|link| link.key_file.is_some() != peer.key_file.is_some())
        {
            let (keyed, open) = match peer.key_file {
                Some(_) => (name, &link.name),
                None => (&link.name, name),
            };
            return refuse(format!(
                "peer `{keyed}` has a `key_file` and peer `{open}` has none: write one in [peer.{open}] of \
                 the configuration, and restart this server"
            ));
        }
        let address = peer.address.to_string();
        if name.len() + address.len() > MEMBER_TEXT_MAX {
            return refuse(format!("the name and address of {name} are too long"));
        }
        let in_file = |link: &Peer| self.configured.iter().any(|peer| peer.name == link.name);
        if let Some(link) = links.iter().find(|link| !in_file(link)) {
            return refuse(format!(
                "{0} was added at run time: first add [peer.{0}] to the configuration, and restart this \
                 server",
                link.name
            ));
        }
        let mut nodes = self.configured.iter().chain(links).map(|peer| &peer.name);
        let later = nodes.find(|node| *node > name).or((self.node > *name).then_some(&self.node));
        match later {
            // The nodes divide controller IDs by the order of their names.
            Some(later) if !known => refuse(format!(
                "{name} sorts before {later}, so the nodes would take other controller IDs: give the new \
                 node a name that sorts last, or add [peer.{name}] to the configuration of every node and \
                 restart the servers"
            )),
            _ => Ok(()),
        }
    }

    fn check_records(&self, mirror: &Mirror, legs: &[Option<usize>]) -> Result<(), CreateError> {
        match mirror.knows_records_of(legs) {
            true => Ok(()),
            false => refuse(format!(
                "not all peers of `{}` have been reached since this server started, so it is not known \
                 which record belongs to which: start one of them, and repeat the command",
                self.name
            )),
        }
    }

    /// Ends the membership of the node `name`.
    pub(crate) async fn remove_peer(
        self: &Rc<Self>,
        name: &str,
        dry_run: bool,
    ) -> Result<PeersChanged, CreateError> {
        let (volume, links) = (&self.name, self.links());
        let mirror = self.changeable()?;
        let serving = mirror.is_serving();
        let Some(leg) = links.iter().position(|link| link.name == name) else {
            let former = self.configured.iter().find(|peer| peer.name == name);
            let reported = match former.filter(|_| serving && !dry_run) {
                Some(former) => self.report_removal(&mirror, former).await,
                None => format!(
                    ". If it was down when it was removed, run `flagstone mirror delete {volume}` there \
                     before it is used again"
                ),
            };
            return Ok(self.unchanged(format!("{name} is no peer of {volume}{reported}")));
        };
        if links.len() == 1 {
            return refuse(format!(
                "{name} is the only peer of `{volume}`: `flagstone mirror break {volume}` does without it"
            ));
        }
        if !serving && mirror.source() == Some(leg) {
            return refuse(format!("{name} is the source of `{volume}`: move the role first"));
        }
        if mirror.state(leg) == MirrorState::SplitBrain {
            return refuse(format!(
                "{name} has data that this node lacks (split brain): see `flagstone mirror status {volume}`"
            ));
        }
        let legs: Vec<_> = (0..links.len()).filter(|one| *one != leg).map(Some).collect();
        self.check_records(&mirror, &legs)?;
        let (mut reported, desired) = (String::new(), mirror.desired_state(leg));
        if !dry_run {
            // Before the peer learns that it was removed.
            let changing = self.begin_change()?;
            if serving {
                // Host writes that wait for a lost peer (`on_peer_loss = "block"`) continue.
                mirror.set_desired_state(leg, DesiredState::Paused).await.map_err(failed)?;
                reported = self.report_removal(&mirror, &links[leg]).await;
            }
            let change = (name, MemberChange::Removed);
            let changed = self.change_peers(&mirror, changing, legs, change).await;
            if let (Err(_), Some(mirror), true) = (&changed, self.mirror(), serving) {
                // It continues as before. If not even that can be recorded, status shows it.
                let _ = mirror.set_desired_state(leg, desired).await;
            }
            changed?;
            self.forget_paths(&links[leg]).await;
        }
        let names = links.iter().map(|peer| peer.name.as_str()).filter(|one| *one != name);
        let names: Vec<_> = names.collect();
        let outcome = format!(
            "{name} is no peer of {} any more{reported}. Disconnect the hosts' paths to {name}. {}",
            self.node,
            self.advice(&names, name, "remove-peer")
        );
        Ok(PeersChanged { changed: true, outcome })
    }

    async fn report_removal(&self, mirror: &Mirror, peer: &Peer) -> String {
        let reported = match self.connector(peer) {
            Ok(connector) => {
                mirror.report_removal(&connector).await.map_err(|error| error.to_string())
            }
            Err(error) => Err(error),
        };
        match reported {
            Ok(()) => format!(", and {} knows that it was removed", peer.name),
            Err(error) => format!(
                ". {} does not know that it was removed ({error}): run `flagstone mirror delete {}` there before it is used again",
                peer.name, self.name
            ),
        }
    }

    async fn forget_paths(&self, peer: &Peer) {
        self.announcing.borrow_mut().take();
        let Ok(target) = self.target() else { return };
        for address in peer.reached_by_hosts() {
            if let Some(address) = resolve(address).await
                && let Err(error) = target.remove_remote_port(&self.nqn, address)
            {
                tracing::warn!("hosts still learn of the path over {address}: {error}");
            }
        }
    }

    fn unchanged(&self, outcome: String) -> PeersChanged {
        PeersChanged { changed: false, outcome }
    }

    /// The line for the configuration file, and where else to run the command. After a crash, a
    /// source with fewer peers than its target would leave the role to it, and the target wait for
    /// the third.
    fn advice(&self, names: &[&str], changed: &str, command: &str) -> String {
        let others: Vec<&str> = names.iter().copied().filter(|name| *name != changed).collect();
        format!(
            "Set `peers = {names:?}` in `mirror` of [volume.{volume}]; until then the replica remembers the \
             change. Run `flagstone mirror {command} {volume} {changed}` on {} too, unless that was done",
            others.join(" and "),
            volume = self.name
        )
    }

    /// Replaces the mirror in a task of its own, because a partial change is useless.
    async fn change_peers(
        self: &Rc<Self>,
        mirror: &Mirror,
        changing: Changing,
        legs: Vec<Option<usize>>,
        (name, change): (&str, MemberChange),
    ) -> Result<(), CreateError> {
        let members = mirror.members();
        let members = changed_members(&members, &self.configured_peers(), name, change);
        let (this, mirror) = (self.clone(), mirror.clone());
        let task = spawn(async move {
            let change = Replacement::Peers(PeerChange { legs, members });
            let replaced = this.replace_mirror(&mirror, change).await;
            drop(changing);
            replaced.and_then(|(changed, _)| changed)
        });
        let changed = task.await.unwrap_or_else(|_| Err("the server is stopping".to_owned()));
        changed.map_err(failed)?;
        tracing::info!(volume = self.name, peers = ?self.peers(), "the mirror has other peers");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str) -> Peer {
        Peer::at(name, "192.0.2.1").expect("a peer")
    }

    fn added(name: &str) -> Member {
        Member { name: name.into(), change: MemberChange::Added("192.0.2.9:7".into()) }
    }

    fn removed(name: &str) -> Member {
        Member { name: name.into(), change: MemberChange::Removed }
    }

    #[test]
    fn members_change_peers_until_file_agrees() {
        let names = |file: &[&str], members: &[Member]| {
            let file = file.iter().map(|name| peer(name)).collect();
            let peers = members_of(file, &[], members);
            peers.map(|peers| peers.into_iter().map(|peer| peer.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["b"], &[]).unwrap(), ["b"]);
        assert_eq!(names(&["b"], &[added("c")]).unwrap(), ["b", "c"]);
        assert_eq!(names(&["b", "c"], &[added("c")]).unwrap(), ["b", "c"]);
        assert_eq!(names(&["b", "c"], &[removed("b")]).unwrap(), ["c"]);
        assert_eq!(names(&["c"], &[removed("b")]).unwrap(), ["c"]);
        assert_eq!(names(&["b"], &[removed("b")]).unwrap(), ["b"], "a mirror has a peer");
        assert!(names(&["b", "d"], &[added("c")]).unwrap_err().contains("b, d, c"));
    }

    #[test]
    fn members_name_only_differences_to_file() {
        let file = [peer("b"), peer("c")];
        let change = |members: &[Member], name: &str, member: Member| {
            changed_members(members, &file, name, member.change)
        };
        assert_eq!(change(&[], "d", added("d")), [added("d")]);
        assert_eq!(change(&[], "b", removed("b")), [removed("b")]);
        assert_eq!(change(&[removed("b")], "b", added("b")), []);
        assert_eq!(change(&[added("d")], "d", removed("d")), []);
        assert_eq!(
            change(&[removed("b"), removed("x")], "d", added("d")),
            [removed("b"), added("d")]
        );
    }
}
