//! Open question of a mirrored volume, whether this node serves hosts: a mirror asks its peers.
//!
//! Peers may take seconds to answer, and other volumes do not wait for that. Hosts of the volume
//! do: they are admitted when the question is answered.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_mirror::Mirror;
use flagstone_runtime::spawn_detached;
use flagstone_runtime::sync::Notify;

use super::MirroredVolume;

/// Questions of a volume. There is more than one if the replica is opened again meanwhile.
#[derive(Default)]
pub(crate) struct OpenQuestions {
    open: Cell<u32>,
    answered: Notify,
}

/// An open question; answered on drop.
struct OpenQuestion(Rc<OpenQuestions>);

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.answered.notify();
    }
}

impl OpenQuestions {
    fn begin(self: &Rc<Self>) -> OpenQuestion {
        self.open.set(self.open.get() + 1);
        OpenQuestion(self.clone())
    }

    /// True if nothing is asked.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.get() == 0
    }

    /// Waits until nothing is asked, usually at most [`ASK_MS`](flagstone_mirror::limits::ASK_MS).
    pub(crate) async fn answered(&self) {
        self.answered.wait_for(|| self.is_empty().then_some(())).await;
    }
}

impl MirroredVolume {
    /// Starts a mirror that asks its peers first.
    pub(super) fn start_after_question(self: &Rc<Self>, mirror: Mirror) {
        let (this, question) = (Rc::downgrade(self), self.questions.begin());
        spawn_detached(async move {
            let _question = question;
            let started = mirror.start().await;
            let Some(this) = this.upgrade() else { return };
            match started {
                // Before hosts are admitted.
                Ok(_) => this.set_ana_state(mirror.status().serving),
                Err(_) if mirror.is_closed() => {}
                Err(error) => {
                    tracing::error!(volume = this.name, "the mirror cannot serve hosts: {error}");
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use flagstone_runtime::block_on;

    use super::*;

    #[test]
    fn volume_is_decided_when_all_are_answered() {
        block_on(async {
            let questions = Rc::new(OpenQuestions::default());
            questions.answered().await;
            let (first, second) = (questions.begin(), questions.begin());
            let waiting = flagstone_runtime::spawn({
                let questions = questions.clone();
                async move { questions.answered().await }
            });
            drop(first);
            flagstone_runtime::time::sleep(std::time::Duration::from_millis(1)).await;
            assert!(!questions.is_empty() && !waiting.is_finished());
            drop(second);
            waiting.await.unwrap();
            assert!(questions.is_empty());
        })
        .unwrap();
    }
}
