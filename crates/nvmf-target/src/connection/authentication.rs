//! Authentication of a queue: its state, and the commands Authentication Send and Receive
//! (Base 6.1, 6.2, 8.3.5).
//!
//! A queue of a subsystem with keys executes only these commands until its host is authenticated,
//! and again after a plain queue has made a PSK, because the host then reconnects with TLS. A host
//! may authenticate again later; a failure then also ends the connection. The group operations run
//! on other threads.

use std::rc::Rc;
use std::time::Duration;

use flagstone_auth::message::MESSAGE_BYTES;
use flagstone_auth::{
    self as auth, ControllerOptions, DhGroup, ExchangeProgress, Explanation, Hash, KeyUse,
    KeyVersion, Names, Randomness,
};
use flagstone_nvme::command::fabrics::AuthenticationCommand;
use flagstone_nvme::{FabricsType, Sqe, Status};
use flagstone_runtime::time::{self, Instant};
use flagstone_runtime::{Buf, BufMut, compute, random_u64, spawn_detached};

use super::{Connection, Overdue};
use crate::CommandReply;
use crate::admin::reply_data;
use crate::concatenation::{ConcatenationRefusal, ConcatenationRule};
use crate::connect::Connected;
use crate::generated_psks::NewPsk;
use crate::handshakes::{FailureReason, PendingHandshake};
use crate::tls::ChannelProof;

/// Authentication of a queue.
pub(crate) enum Authentication {
    /// The subsystem has no key of the host.
    NotRequired,
    /// Only authentication commands are executed.
    Required(Stage),
    /// All commands are executed. The host may authenticate, for the first time or again.
    Passed(Stage),
    /// The host has made a PSK over plain TCP at this time, and has to reconnect with TLS. Only
    /// authentication commands are executed.
    PskMade(Instant, Stage),
    /// No command is executed, and the connection is about to end.
    Failed,
}

/// Progress of an exchange.
pub(crate) enum Stage {
    /// None has begun.
    Idle,
    /// Connect has reserved the handshake.
    Admitted(PendingHandshake),
    /// The host has to send or fetch a message.
    Exchanging(Box<Exchange>),
    /// A message is being computed.
    Computing(Instant),
}

/// An exchange that has begun.
pub(crate) struct Exchange {
    controller: auth::ControllerExchange,
    keys: KeyVersion,
    /// Uses of the host's secrets, in the order of the exchange.
    uses: Vec<KeyUse>,
    concatenation: ConcatenationRule,
    handshake: PendingHandshake,
    began: Instant,
}

/// Result of an exchange for its PSK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PskOutcome {
    /// The host has not asked for one, or has to continue.
    None,
    /// The host and this side have it.
    Kept,
    /// The host learns that it has none.
    Refused(ConcatenationRefusal),
}

/// Transfer for a command of an exchange.
enum Step {
    Send(Vec<u8>),
    /// A message of at most this many bytes.
    Fetch(usize),
}

impl Authentication {
    /// State after Connect: `handshake` if the host has to authenticate, and `is_optional` if it
    /// may. A generated PSK is the result of an authentication, which may be repeated.
    pub(super) fn new(
        handshake: Option<PendingHandshake>,
        is_optional: bool,
        channel: ChannelProof<'_>,
    ) -> Authentication {
        match (handshake, channel) {
            (Some(handshake), _) => Self::Required(Stage::Admitted(handshake)),
            (None, ChannelProof::GeneratedPsk(_)) => Self::Passed(Stage::Idle),
            (None, _) if is_optional => Self::Passed(Stage::Idle),
            (None, ChannelProof::Plain | ChannelProof::ConfiguredKey(_)) => Self::NotRequired,
        }
    }

    /// True if all commands are executed.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::NotRequired | Self::Passed(_))
    }

    /// Why the connection has to end, if its host has had `timeout` since `connected` and since it
    /// began what is open now.
    pub(super) fn overdue(&self, connected: Instant, timeout: Duration) -> Option<Overdue> {
        let is_late = |since: Instant| since.elapsed() >= timeout;
        match self {
            Self::Required(stage) | Self::PskMade(_, stage) if stage.is_evicted() => {
                Some(Overdue::Evicted)
            }
            Self::Required(_) | Self::Failed => {
                is_late(connected).then_some(Overdue::Authentication)
            }
            // The connection's age does not matter: the host may have used it for days.
            Self::PskMade(since, _) => is_late(*since).then_some(Overdue::Reconnect),
            Self::Passed(stage) => {
                let is_late = stage.began().is_some_and(is_late);
                is_late.then_some(Overdue::Authentication)
            }
            Self::NotRequired => None,
        }
    }

    fn stage(&mut self) -> Option<&mut Stage> {
        match self {
            Self::Required(stage) | Self::Passed(stage) | Self::PskMade(_, stage) => Some(stage),
            Self::NotRequired | Self::Failed => None,
        }
    }
}

impl Stage {
    /// True if the exchange was evicted in favor of another host's.
    fn is_evicted(&self) -> bool {
        match self {
            Self::Admitted(handshake) => handshake.is_evicted(),
            Self::Exchanging(exchange) => exchange.handshake.is_evicted(),
            Self::Idle | Self::Computing(_) => false,
        }
    }

    fn began(&self) -> Option<Instant> {
        match self {
            Self::Exchanging(exchange) => Some(exchange.began),
            Self::Computing(began) => Some(*began),
            Self::Idle | Self::Admitted(_) => None,
        }
    }
}

impl Connection {
    /// Refuses a command that needs authentication, unless its queue has it.
    ///
    /// # Errors
    /// Authentication Required.
    #[inline]
    pub(super) fn check_authenticated(&self, command: &Sqe) -> Result<(), Status> {
        let session = self.session.borrow();
        let open = session.as_ref().is_none_or(|session| session.authentication.is_open());
        if open || is_authentication(command) {
            Ok(())
        } else {
            Err(Status::AUTHENTICATION_REQUIRED.dnr())
        }
    }

    /// Executes Authentication Send or Receive, which is in flight with `payload` bytes.
    pub(super) fn run_authentication(
        self: &Rc<Self>,
        command: Sqe,
        data: Option<Buf>,
        payload: usize,
    ) {
        let begun = self.step(&command, data).and_then(|step| Ok((self.begin_step(&step)?, step)));
        let ((mut exchange, delay), step) = match begun {
            Ok(begun) => begun,
            Err(status) => return self.authentication_done(&command, Err(status), payload),
        };
        let connection = self.clone();
        spawn_detached(async move {
            if !delay.is_zero() {
                time::sleep(delay).await;
            }
            let computed = compute(move || {
                let outcome = step.run(&mut exchange.controller);
                (exchange, outcome)
            });
            let outcome = match computed.await {
                Ok((exchange, outcome)) => connection
                    .exchanged(exchange)
                    .and(outcome)
                    .and_then(|message| message.map(|one| fetched(&command, &one)).transpose()),
                Err(error) => {
                    tracing::error!("authentication: cannot compute: {error}");
                    connection.fail_authentication();
                    Err(Status::INTERNAL_ERROR)
                }
            };
            connection.authentication_done(&command, outcome, payload);
        });
    }

    /// Checks an authentication command.
    fn step(&self, command: &Sqe, data: Option<Buf>) -> Result<Step, Status> {
        command.check_flags().map_err(Status::dnr)?;
        let bytes = AuthenticationCommand::of(command).check().map_err(Status::dnr)? as usize;
        if bytes > MESSAGE_BYTES {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if command.fabrics_type() == Some(FabricsType::AUTHENTICATION_RECEIVE) {
            // Checks the data pointer, too.
            return reply_data(command, bytes).map(|_| Step::Fetch(bytes));
        }
        let data = data.filter(|data| data.len() == bytes);
        data.map(|data| Step::Send(data.to_vec())).ok_or(Status::INVALID_FIELD.dnr())
    }

    /// Takes the exchange that `step` continues or begins, and the time for which one that the
    /// target has not asked for has to wait: Connect did not delay it.
    fn begin_step(&self, step: &Step) -> Result<(Box<Exchange>, Duration), Status> {
        let mut session = self.session.borrow_mut();
        let out_of_order = Status::COMMAND_SEQUENCE_ERROR.dnr();
        let session = session.as_mut().ok_or(out_of_order)?;
        let controller = &session.connected.controller;
        let concatenation = self.concatenation(controller, session.connected.queue.qid);
        // A host that need not authenticate has no key for an exchange.
        let stage = session.authentication.stage().ok_or(out_of_order)?;
        let begin = |handshake: PendingHandshake| {
            let keys = controller.subsystem.keys_of(&controller.host.nqn);
            let keys = keys.ok_or(out_of_order)?;
            // Before the secrets are read: a replacement in between invalidates keys derived from
            // them.
            let version = keys.version();
            let (host_secrets, uses) = keys.host.uses().into_iter().unzip();
            let options = ControllerOptions {
                names: Names {
                    host: controller.host.nqn.to_string(),
                    subsystem: controller.subsystem.nqn.to_string(),
                },
                host_secrets,
                own_secret: keys.controller.as_ref().and_then(auth::KeyRing::first),
                hashes: Hash::ALL.into(),
                groups: DhGroup::ALL.into(),
                concatenation: concatenation.accepted,
            };
            let controller =
                auth::ControllerExchange::new(options, Randomness::from_words(random_u64));
            let (keys, began) = (version, time::now());
            Ok(Box::new(Exchange { controller, keys, uses, concatenation, handshake, began }))
        };
        let (exchange, delay) = match (std::mem::replace(stage, Stage::Idle), step) {
            (Stage::Exchanging(exchange), _) => (exchange, Duration::ZERO),
            (Stage::Admitted(handshake), Step::Send(_)) => (begin(handshake)?, Duration::ZERO),
            (Stage::Idle, Step::Send(_)) => {
                let handshake = self.target.handshakes.begin(self.source());
                let most = self.target.config().handshake_timeout / 2;
                let delay = self.target.handshakes.delay(self.source()).min(most);
                (begin(handshake.ok_or(Status::COMMAND_INTERRUPTED)?)?, delay)
            }
            (other, _) => {
                *stage = other;
                return Err(out_of_order);
            }
        };
        *stage = Stage::Computing(exchange.began);
        Ok((exchange, delay))
    }

    /// Takes an exchange back after a step.
    ///
    /// # Errors
    /// The status of the command, if the host must not regard the step as a success.
    fn exchanged(&self, mut exchange: Box<Exchange>) -> Result<(), Status> {
        let psk = self.settle_psk(&mut exchange);
        let progress = exchange.controller.progress();
        let mut is_withdrawn = false;
        if progress == ExchangeProgress::Authenticated {
            let key = exchange.key();
            // Before the check: a key that is withdrawn after it is found on the queue.
            self.with_controller(|_, queue| queue.proved_authentication(key.clone()));
            is_withdrawn = key.is_withdrawn();
        }
        let failure = match (progress, psk) {
            (ExchangeProgress::Authenticated, _) if is_withdrawn => Some(FailureReason::Withdrawn),
            (ExchangeProgress::Authenticated, PskOutcome::Refused(_)) => {
                Some(FailureReason::Refused(Explanation::ConcatenationMismatch))
            }
            (
                ExchangeProgress::AwaitsHost
                | ExchangeProgress::AwaitsFetch
                | ExchangeProgress::Authenticated,
                _,
            ) => None,
            (ExchangeProgress::Failing(explanation), _) => {
                Some(FailureReason::Refused(explanation))
            }
            (ExchangeProgress::Unprovable, _) => Some(FailureReason::NoOwnKey),
            (ExchangeProgress::Failed(_), _) => Some(FailureReason::Distrusted),
        };
        if let Some(reason) = failure
            && exchange.handshake.fail(reason)
        {
            self.log_failure(reason, exchange.concatenation_refusal(reason, psk));
        }
        let mut session = self.session.borrow_mut();
        let Some(session) = session.as_mut() else { return Ok(()) };
        match (progress, psk) {
            (ExchangeProgress::Authenticated, _) if failure.is_some() => {
                session.authentication = Authentication::Failed;
                return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
            }
            (ExchangeProgress::Authenticated, _) => {
                exchange.handshake.succeed();
                // Only hosts of volumes authenticate.
                self.unproven.take();
                session.connected.controller.passed_authentication(session.connected.queue.qid);
                // The host reconnects with TLS, and sends no other command on this queue, even
                // after an exchange without concatenation.
                session.authentication = match (&session.authentication, psk, self.channel()) {
                    (Authentication::PskMade(since, _), ..) => {
                        Authentication::PskMade(*since, Stage::Idle)
                    }
                    (_, PskOutcome::Kept, ChannelProof::Plain) => {
                        Authentication::PskMade(time::now(), Stage::Idle)
                    }
                    _ => Authentication::Passed(Stage::Idle),
                };
            }
            (ExchangeProgress::Failed(_), _) => session.authentication = Authentication::Failed,
            _ => {
                if let Some(stage) = session.authentication.stage() {
                    *stage = Stage::Exchanging(exchange);
                }
            }
        }
        Ok(())
    }

    /// Promises the PSK of an exchange before the host learns of success, and keeps it at the end.
    /// A PSK that cannot be promised makes the exchange fail.
    fn settle_psk(&self, exchange: &mut Exchange) -> PskOutcome {
        let ended = Err(ConcatenationRefusal::ControllerEnded);
        if exchange.controller.offers_psk() {
            let promised = self.with_controller(|controller, _| controller.promise_psk());
            return match promised.unwrap_or(ended) {
                Ok(()) => PskOutcome::None,
                Err(refusal) => {
                    exchange.controller.refuse(Explanation::ConcatenationMismatch);
                    PskOutcome::Refused(refusal)
                }
            };
        }
        let Some(psk) = exchange.controller.take_psk() else { return PskOutcome::None };
        let (keys, proven) = (exchange.keys.clone(), exchange.controller.has_proven());
        let new = NewPsk { psk, keys, key: exchange.key(), proven };
        let kept = self.with_controller(|controller, _| controller.keep_psk(new));
        kept.unwrap_or(ended).map_or_else(PskOutcome::Refused, |()| PskOutcome::Kept)
    }

    /// Logs a failure. A `refusal` of concatenation says more than `reason`.
    fn log_failure(&self, reason: FailureReason, refusal: Option<ConcatenationRefusal>) {
        let names = self.with_controller(|controller, queue| {
            (controller.host.nqn, controller.subsystem.nqn, queue.qid)
        });
        let Some((host, subsystem, qid)) = names else { return };
        let reason = refusal.map_or_else(|| reason.to_string(), |refusal| refusal.to_string());
        let reason = format!("{reason}; queue {qid} of subsystem {subsystem}");
        let (peer, host) = (self.stream.peer(), host.to_string());
        self.target.authentication_refusals.refused(&peer, host.as_bytes(), &reason);
    }

    fn fail_authentication(&self) {
        if let Some(session) = self.session.borrow_mut().as_mut() {
            session.authentication = Authentication::Failed;
        }
    }

    /// Answers an authentication command. The connection of a host that failed ends after that.
    fn authentication_done(
        &self,
        command: &Sqe,
        outcome: Result<Option<BufMut>, Status>,
        payload: usize,
    ) {
        let outcome = outcome.map(CommandReply::success);
        let reply = self.session.borrow().as_ref().map(|session| {
            session.saw_traffic();
            let Connected { controller, queue, .. } = &session.connected;
            match session.is_of_host() {
                true => controller.reply(queue.qid, command, outcome),
                false => outcome.unwrap_or_else(|status| CommandReply::failure(status, 0)),
            }
        });
        self.answer(command, reply, payload);
        let session = self.session.borrow();
        let failed = |session: &super::QueueSession| {
            matches!(session.authentication, Authentication::Failed)
        };
        if session.as_ref().is_some_and(failed) {
            self.stream.shutdown_receiving();
        }
    }
}

impl Exchange {
    /// Use of the key that the host has proven. Before that, a use without an end.
    fn key(&self) -> KeyUse {
        let matched = self.controller.matched_secret();
        matched.and_then(|at| self.uses.get(at)).cloned().unwrap_or_default()
    }

    /// Why concatenation was refused, if `reason` says that it was.
    fn concatenation_refusal(
        &self,
        reason: FailureReason,
        psk: PskOutcome,
    ) -> Option<ConcatenationRefusal> {
        match (psk, reason) {
            (PskOutcome::Refused(refusal), _) => Some(refusal),
            (_, FailureReason::Refused(Explanation::ConcatenationMismatch)) => {
                Some(self.concatenation.refusal(self.controller.asked_concatenation()?))
            }
            _ => None,
        }
    }
}

impl Step {
    /// Runs on another thread. Returns the message that the host fetches.
    fn run(self, controller: &mut auth::ControllerExchange) -> Result<Option<Vec<u8>>, Status> {
        match self {
            Step::Send(bytes) => {
                controller.send(&bytes);
                Ok(None)
            }
            Step::Fetch(room) => {
                let nothing = controller.progress() == ExchangeProgress::AwaitsHost;
                let message = controller.fetch(room).ok_or(match nothing {
                    true => Status::COMMAND_SEQUENCE_ERROR.dnr(),
                    false => Status::INVALID_FIELD.dnr(),
                })?;
                Ok(Some(message))
            }
        }
    }
}

/// Reply data of a fetch: the message, and zeroes after it, as long as the host asked for.
fn fetched(command: &Sqe, message: &[u8]) -> Result<BufMut, Status> {
    let mut data = reply_data(command, command.data.data_bytes.get() as usize)?;
    data[..message.len()].copy_from_slice(message);
    Ok(data)
}

/// True for Authentication Send and Receive.
pub(super) fn is_authentication(command: &Sqe) -> bool {
    matches!(
        command.fabrics_type(),
        Some(FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE)
    )
}
