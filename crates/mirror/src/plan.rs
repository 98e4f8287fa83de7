//! What a mirror does about a peer that it has met: [`decide`] put into action, as a pure function
//! of what both say of themselves.
//!
//! Data flows from the source alone, and the source is who serves hosts. So of two that meet at most
//! one leads (attaches to the other and brings it up to date) and the other follows; both find out
//! by themselves, for the function is symmetric.

use crate::decide::{Amount, Decision, Side, decide};
use crate::format::superblock::Role;
use crate::peer::About;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Attach to the peer as its source.
    Lead {
        /// What to copy; none when both are in sync.
        amount: Option<Amount>,
        /// Take a higher epoch first: we serve nobody yet, or the peer has seen a later epoch.
        promote: bool,
    },
    /// The peer serves hosts with data that ours replaces, and has to notice first. Ask again.
    AwaitStepDown,
    /// The peer attaches to us; first stop serving if we do.
    Follow {
        /// We serve hosts with data that the peer's replaces: nothing of ours is lost, for nothing
        /// was written here alone.
        step_down: bool,
    },
    /// Both are targets and equal: the operator says who serves.
    Idle,
    /// Nothing is copied until the operator says which data is kept. Who serves goes on.
    SplitBrain,
    /// Not two replicas of one volume.
    Unrelated,
    /// Sizes, granularities or logical blocks differ.
    Incompatible,
    /// Neither has whole data.
    NoSource,
}

/// What we do. The peer finds the counterpart.
pub fn plan(mine: &About, peers: &About) -> Plan {
    match decide(&mine.view, &peers.view) {
        Decision::InSync => match leader(mine, peers) {
            Some(Side::Mine) if peers.active => Plan::AwaitStepDown,
            Some(Side::Mine) => lead(None, mine, peers),
            Some(Side::Peers) => Plan::Follow { step_down: mine.active },
            None => Plan::Idle,
        },
        Decision::Resync { source: Side::Mine, .. } if peers.active => Plan::AwaitStepDown,
        Decision::Resync { source: Side::Mine, amount } => lead(Some(amount), mine, peers),
        Decision::Resync { source: Side::Peers, .. } => Plan::Follow { step_down: mine.active },
        Decision::SplitBrain => Plan::SplitBrain,
        Decision::Unrelated => Plan::Unrelated,
        Decision::Incompatible => Plan::Incompatible,
        Decision::NoSource => Plan::NoSource,
    }
}

fn lead(amount: Option<Amount>, mine: &About, peers: &About) -> Plan {
    let promote = !mine.active || mine.view.epoch < peers.view.epoch;
    Plan::Lead { amount, promote }
}

/// Of two with equal data: who serves now, or was the source.
fn leader(mine: &About, peers: &About) -> Option<Side> {
    let of = |mine: bool| Some(if mine { Side::Mine } else { Side::Peers });
    let latest = || {
        let rank = |about: &About| (about.view.epoch, about.view.replica);
        of(rank(mine) > rank(peers))
    };
    match (mine.active, peers.active) {
        (true, true) => return latest(),
        (true, false) => return of(true),
        (false, true) => return of(false),
        (false, false) => {}
    }
    match (mine.role, peers.role) {
        (Role::Source, Role::Source) => latest(),
        (Role::Source, Role::Target) => of(true),
        (Role::Target, Role::Source) => of(false),
        (Role::Target, Role::Target) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decide::View;
    use crate::generation::Lineage;
    use crate::id::{Generation, Uuid};
    use crate::versions::Versions;

    fn about(replica: u8, current: u64, base: u64) -> About {
        let mut lineage = Lineage { current: Generation(current), ..Lineage::default() };
        lineage.bases.0[0] = Generation(base);
        let view = View {
            volume: Uuid([1; 16]),
            replica: Uuid([replica; 16]),
            usable_bytes: 1 << 20,
            bit_bytes: 65536,
            lineage,
            ..View::default()
        };
        let versions = Versions::SPOKEN;
        About { view, role: Role::Target, active: false, volatile_cache: true, versions }
    }

    #[test]
    fn a_source_leads_and_takes_a_new_epoch_only_if_it_must() {
        let target = about(2, 5, 0);
        let mut source = About { role: Role::Source, active: true, ..about(1, 5, 0) };
        assert_eq!(plan(&source, &target), Plan::Lead { amount: None, promote: false });
        assert_eq!(plan(&target, &source), Plan::Follow { step_down: false });
        source.active = false;
        assert_eq!(plan(&source, &target), Plan::Lead { amount: None, promote: true });
        let mut late = target;
        late.view.epoch = 9;
        source.active = true;
        assert_eq!(plan(&source, &late), Plan::Lead { amount: None, promote: true });
    }

    #[test]
    fn a_source_of_the_past_steps_down_when_nothing_of_it_is_lost() {
        let mut old = About { role: Role::Source, active: true, ..about(1, 5, 0) };
        let new = About { role: Role::Source, active: true, ..about(2, 6, 5) };
        assert_eq!(plan(&old, &new), Plan::Follow { step_down: true });
        assert_eq!(plan(&new, &old), Plan::AwaitStepDown);
        old.active = false;
        let amount = Some(Amount::Partial);
        assert_eq!(plan(&new, &old), Plan::Lead { amount, promote: false });
        // Once it has written alone nobody steps down.
        old = About { role: Role::Source, active: true, ..about(1, 7, 5) };
        assert_eq!(plan(&old, &new), Plan::SplitBrain);
    }

    #[test]
    fn two_equal_targets_wait_for_the_operator() {
        assert_eq!(plan(&about(1, 5, 0), &about(2, 5, 0)), Plan::Idle);
    }

    prop_compose! {
        fn any_about(replica: u8)(
            numbers in (0u64..4, 0u64..4, 0u64..3),
            flags in any::<[bool; 6]>(),
        ) -> About {
            let (current, base, epoch) = numbers;
            let [serving, crashed, inconsistent, dirty, active, source] = flags;
            let mut about = about(replica, current, base);
            about.active = active && !inconsistent;
            let serving = serving || about.active;
            about.view = View { epoch, serving, crashed, inconsistent, dirty, ..about.view };
            about.role = if source || about.active { Role::Source } else { Role::Target };
            about
        }
    }

    proptest! {
        /// One leads at most, and what one does the other expects.
        #[test]
        fn both_find_the_counterpart(mine in any_about(1), peers in any_about(2)) {
            let (here, there) = (plan(&mine, &peers), plan(&peers, &mine));
            match here {
                Plan::Lead { .. } => prop_assert_eq!(there, Plan::Follow { step_down: false }),
                Plan::AwaitStepDown => prop_assert_eq!(there, Plan::Follow { step_down: true }),
                Plan::Follow { .. } => {
                    let leads = matches!(there, Plan::Lead { .. } | Plan::AwaitStepDown);
                    prop_assert!(leads, "{:?}", there);
                }
                same => prop_assert_eq!(there, same),
            }
        }

        /// Who leads has the highest epoch afterwards, and serves alone.
        #[test]
        fn leaders_are_fenced_against_the_past(mine in any_about(1), peers in any_about(2)) {
            if let Plan::Lead { promote, .. } = plan(&mine, &peers) {
                prop_assert!(!peers.active);
                prop_assert!(promote || mine.active && mine.view.epoch >= peers.view.epoch);
            }
        }
    }
}
