//! Scrubs of pools: one per pool, in the background, with its progress in the state directory.
//!
//! A scrub works half of the time, so that hosts keep most of the disk. It continues after a
//! restart of the server. After a pause or a failed device, an order continues it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_pool::limits::BLOCK_BYTES;
use flagstone_pool::verify::scrub::ScrubPlace;
use flagstone_pool::{Pool, PoolId};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{spawn, time};
use serde::{Deserialize, Serialize};

use super::orders::Outcome;
use super::state_directory::StateDirectory;
use crate::api::pool_document::{DamageDocument, ScrubDocument, ScrubStateName};
use crate::http::Problem;
use crate::limits::{SCRUB_DAMAGE, SCRUB_SAVE_PERIOD};
use crate::serve::Server;

/// Shortest pause between two steps, so that a step in memory does not occupy the core.
const PAUSE_MIN: Duration = Duration::from_micros(50);

/// `pool scrub`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScrubOrder {
    /// Begin or continue.
    Run,
    /// Stop, and keep the place.
    Pause,
    /// Stop, and discard the place.
    Cancel,
}

/// Reason why a scrub ends before it has verified everything.
#[derive(Clone, Copy)]
enum End {
    Paused,
    Forgotten,
}

/// Progress of a scrub in the state directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Saved {
    version: u32,
    /// Identifier of the pool: names are reused.
    pool: String,
    volume: u32,
    block: u64,
    document: ScrubDocument,
}

const VERSION: u32 = 1;

/// A scrub: running, stopped or complete.
pub(crate) struct Scrub {
    saved: Rc<RefCell<Saved>>,
    task: Option<AbortOnDrop<()>>,
}

impl Scrub {
    pub(crate) fn document(&self) -> ScrubDocument {
        self.saved.borrow().document.clone()
    }

    fn is_running(&self) -> bool {
        self.saved.borrow().document.state == ScrubStateName::Running
    }
}

fn file_name(pool: &str) -> String {
    format!("scrub-{pool}.json")
}

async fn write(directory: &StateDirectory, name: &str, saved: &Saved) -> Result<(), String> {
    let text = serde_json::to_vec(saved).expect("it is JSON");
    directory.write_file(&file_name(name), Some(text)).await
}

async fn save(directory: &StateDirectory, name: &str, saved: &RefCell<Saved>) {
    let now = saved.borrow().clone();
    if let Err(why) = write(directory, name, &now).await {
        tracing::warn!("{why}: a scrub of pool {name} may begin again from an earlier place");
    }
}

fn begun(pool: PoolId) -> Saved {
    let document = ScrubDocument {
        state: ScrubStateName::Running,
        started_seconds: time::wall_clock().as_secs(),
        ..ScrubDocument::default()
    };
    Saved { version: VERSION, pool: pool.to_string(), volume: 0, block: 0, document }
}

/// Verifies from the saved place to the end.
async fn work(pool: Pool, saved: &RefCell<Saved>, save: impl AsyncFn()) -> Result<(), String> {
    let place = ScrubPlace { volume: saved.borrow().volume, block: saved.borrow().block };
    if place == ScrubPlace::default() {
        pool.begin_scrub().await.map_err(|error| error.to_string())?;
    }
    let mut place = Some(place);
    let mut last_save = time::now();
    while let Some(at) = place {
        let start = time::now();
        let step = pool.scrub(at).await.map_err(|error| error.to_string())?;
        place = step.next;
        {
            let mut saved = saved.borrow_mut();
            if let Some(next) = place {
                (saved.volume, saved.block) = (next.volume, next.block);
            }
            let document = &mut saved.document;
            document.verified_bytes += step.verified_bytes;
            document.repaired_bytes += step.repaired_blocks * BLOCK_BYTES as u64;
            document.total_bytes = pool.live_bytes().max(document.verified_bytes);
            for damage in &step.damage {
                tracing::error!("scrub: {damage}");
                document.damages += 1;
                if document.damage.len() < SCRUB_DAMAGE {
                    document.damage.push(DamageDocument::from(damage));
                }
            }
        }
        if last_save.elapsed() > SCRUB_SAVE_PERIOD {
            save().await;
            last_save = time::now();
        }
        time::sleep(start.elapsed().max(PAUSE_MIN)).await;
    }
    Ok(())
}

impl Server {
    /// Begins, continues, pauses or cancels the scrub of a pool.
    pub(crate) async fn scrub_pool(
        &self,
        name: &str,
        scrub: ScrubOrder,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let _order = self.pools.order(name).await?;
        let pool = self.pools.open_pool(name)?;
        let now = self.pools.scrub(name);
        let (is_running, may_continue) = match &now {
            Some(scrub) => (
                scrub.state == ScrubStateName::Running,
                [ScrubStateName::Paused, ScrubStateName::Failed].contains(&scrub.state),
            ),
            None => (false, false),
        };
        let next = format!("flagstone pool status {name} --watch");
        let outcome = match scrub {
            ScrubOrder::Run if is_running => {
                return Ok(Outcome::unchanged(format!("pool {name} is being scrubbed already"))
                    .with_next(next));
            }
            ScrubOrder::Run if may_continue => {
                Outcome::changed(format!("the scrub of pool {name} continues")).with_next(next)
            }
            ScrubOrder::Run => {
                Outcome::changed(format!("every live block of pool {name} is verified"))
                    .with_next(next)
            }
            ScrubOrder::Pause if !is_running => {
                return Ok(Outcome::unchanged(format!("pool {name} is not being scrubbed")));
            }
            ScrubOrder::Pause => Outcome::changed(format!("the scrub of pool {name} is paused"))
                .with_next(format!("flagstone pool scrub {name} continues it")),
            ScrubOrder::Cancel if now.is_none() => {
                return Ok(Outcome::unchanged(format!("pool {name} has no scrub")));
            }
            ScrubOrder::Cancel => {
                Outcome::changed(format!("the scrub of pool {name} is forgotten"))
            }
        };
        if dry_run {
            return Ok(outcome);
        }
        let directory = self.pools.writable()?.clone();
        match scrub {
            ScrubOrder::Run => {
                let last = may_continue.then(|| self.pools.saved_scrub(name)).flatten();
                let saved = last.unwrap_or_else(|| begun(pool.status().id));
                self.pools.run_scrub(name, pool, directory, saved).await;
            }
            ScrubOrder::Pause => self.pools.end_scrub(name, pool, directory, End::Paused).await?,
            ScrubOrder::Cancel => {
                self.pools.end_scrub(name, pool, directory, End::Forgotten).await?;
            }
        }
        Ok(outcome)
    }
}

impl super::Pools {
    /// Scrub of a pool: the running or the last one.
    pub(crate) fn scrub(&self, name: &str) -> Option<ScrubDocument> {
        self.scrubs.borrow().get(name).map(Scrub::document)
    }

    fn saved_scrub(&self, name: &str) -> Option<Saved> {
        self.scrubs.borrow().get(name).map(|scrub| scrub.saved.borrow().clone())
    }

    async fn run_scrub(&self, name: &str, pool: Pool, directory: StateDirectory, mut saved: Saved) {
        saved.document.state = ScrubStateName::Running;
        saved.document.reason = None;
        let saved = Rc::new(RefCell::new(saved));
        save(&directory, name, &saved).await;
        self.begin_scrub(name, pool, directory, saved);
    }

    fn begin_scrub(
        &self,
        name: &str,
        pool: Pool,
        directory: StateDirectory,
        saved: Rc<RefCell<Saved>>,
    ) {
        let (shared, own) = (saved.clone(), name.to_owned());
        let task = async move {
            let done = work(pool, &shared, async || save(&directory, &own, &shared).await).await;
            {
                let mut saved = shared.borrow_mut();
                let document = &mut saved.document;
                document.ended_seconds = Some(time::wall_clock().as_secs());
                match done {
                    Ok(()) => document.state = ScrubStateName::Ended,
                    Err(why) => {
                        (document.state, document.reason) = (ScrubStateName::Failed, Some(why));
                    }
                }
                let (state, damages) = (document.state, document.damages);
                tracing::info!(pool = own, %state, damages, "scrub ended");
            }
            save(&directory, &own, &shared).await;
        };
        let task = Some(spawn(task).abort_on_drop());
        self.scrubs.borrow_mut().insert(name.to_owned(), Scrub { saved, task });
    }

    /// Pauses or discards a scrub, durably. If this cannot be recorded, the scrub continues:
    /// otherwise a later start of the server would continue it.
    async fn end_scrub(
        &self,
        name: &str,
        pool: Pool,
        directory: StateDirectory,
        end: End,
    ) -> Result<(), Problem> {
        let (saved, is_running) = {
            let mut scrubs = self.scrubs.borrow_mut();
            let Some(scrub) = scrubs.get_mut(name) else { return Ok(()) };
            // Its task saves nothing any more.
            scrub.task = None;
            (scrub.saved.clone(), scrub.is_running())
        };
        let recorded = match end {
            End::Paused => {
                let mut paused = saved.borrow().clone();
                paused.document.state = ScrubStateName::Paused;
                write(&directory, name, &paused).await
            }
            End::Forgotten => directory.write_file(&file_name(name), None).await,
        };
        match (recorded, end) {
            (Ok(()), End::Paused) => saved.borrow_mut().document.state = ScrubStateName::Paused,
            (Ok(()), End::Forgotten) => drop(self.scrubs.borrow_mut().remove(name)),
            (Err(why), _) => {
                if is_running {
                    self.begin_scrub(name, pool, directory, saved);
                }
                return Err(super::failed(format!(
                    "{why}; the scrub of pool {name} is as it was: repeat the order"
                )));
            }
        }
        Ok(())
    }

    /// Stops the tasks of a pool that is being closed. A scrub continues when the pool is open
    /// again.
    pub(super) async fn halt_scrub(&self, name: &str) {
        let halted = self.scrubs.borrow_mut().remove(name);
        if let (Some(Scrub { saved, task }), Ok(directory)) = (halted, self.writable()) {
            drop(task);
            save(directory, name, &saved).await;
        }
    }

    /// Continues the recorded scrub of a pool that was opened.
    pub(super) async fn resume_scrub(&self, name: &str, pool: &Pool) {
        let Ok(directory) = self.writable() else { return };
        let Some(text) = directory.read_file(&file_name(name)).await else { return };
        let saved = match serde_json::from_slice::<Saved>(&text) {
            Ok(saved) if saved.version == VERSION => saved,
            _ => return tracing::warn!("the saved scrub of pool {name} cannot be used"),
        };
        if saved.pool != pool.status().id.to_string() {
            return;
        }
        if saved.document.state == ScrubStateName::Running {
            tracing::info!("the scrub of pool {name} continues");
            return self.run_scrub(name, pool.clone(), directory.clone(), saved).await;
        }
        let scrub = Scrub { saved: Rc::new(RefCell::new(saved)), task: None };
        self.scrubs.borrow_mut().insert(name.to_owned(), scrub);
    }

    /// Discards the scrub of a pool that is destroyed.
    pub(super) async fn forget_scrub(&self, name: &str) {
        self.scrubs.borrow_mut().remove(name);
        if let Ok(directory) = self.writable() {
            let _ = directory.write_file(&file_name(name), None).await;
        }
    }
}
