//! Signals to the supervisor.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::sync::Notify;

/// A signal that the supervisor should act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caught {
    pub signal: i32,
    /// Who sent it; 0 for the kernel and for senders outside of this pid namespace.
    pub sender: i32,
}

/// SIGTERM and SIGINT in the order in which they came, without those that a descendant sent.
#[derive(Debug, Clone)]
pub struct Signals(Rc<Queue>);

#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: RefCell<VecDeque<Caught>>,
    arrived: Notify,
}

impl Queue {
    pub(super) fn push(&self, caught: Caught) {
        let mut waiting = self.waiting.borrow_mut();
        // Two decide all that can be decided (drain, then leave at once).
        if waiting.len() < 16 {
            waiting.push_back(caught);
        }
        self.arrived.notify_one();
    }
}

impl Signals {
    pub(super) fn new(queue: Rc<Queue>) -> Signals {
        Signals(queue)
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// Nothing is lost: a signal is taken only when it is returned.
    pub async fn next(&self) -> Caught {
        loop {
            let arrived = self.0.arrived.notified();
            if let Some(caught) = self.0.waiting.borrow_mut().pop_front() {
                return caught;
            }
            arrived.await;
        }
    }
}
