//! Whether a request has to end: all of them (C3), or those of its key (G1).
//!
//! Held by the exchange, asked by the pump while it waits. Registers with the sender once, and not
//! again for each chunk: that takes a lock which all requests share.

use super::exchange::Admitted;
use super::shared::EndNow;
use crate::relay::Input;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::sync::watch;

/// One request's ear for its end.
pub struct Notice {
    receiver: watch::Receiver<EndNow>,
    /// Resolves with the next change, and who is woken then.
    registered: Option<(Changed, Waker)>,
}

type Changed = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl Notice {
    /// Hears what is told from now on, and what was told already.
    pub(super) fn new(mut receiver: watch::Receiver<EndNow>) -> Self {
        receiver.mark_changed();
        Self { receiver, registered: None }
    }

    /// What the request is told at this moment.
    pub(super) fn now(&self, admitted: Option<&Admitted>) -> Option<Input> {
        self.receiver.borrow().tells(admitted)
    }

    /// Resolves when all requests have to end.
    pub(super) async fn all_end(&self) {
        let mut receiver = self.receiver.clone();
        // The sender lives as long as the process.
        let _told = receiver.wait_for(|end| end.all).await;
    }

    /// Ready when the request has to end.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, admitted: Option<&Admitted>) -> Poll<Input> {
        loop {
            if self.receiver.has_changed().unwrap_or(false) {
                self.registered = None;
                let told = self.receiver.borrow_and_update().tells(admitted);
                if let Some(told) = told {
                    self.receiver.mark_changed();
                    return Poll::Ready(told);
                }
            }
            let is_registered = self.registered.as_ref().is_some_and(|(_, waker)| waker.will_wake(context.waker()));
            if is_registered {
                return Poll::Pending;
            }
            let mut receiver = self.receiver.clone();
            let mut changed: Changed = Box::pin(async move { drop(receiver.changed().await) });
            if changed.as_mut().poll(context).is_pending() {
                self.registered = Some((changed, context.waker().clone()));
                return Poll::Pending;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll_with(notice: &mut Notice, count: &Arc<Count>) -> Poll<Input> {
        notice.poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))), None)
    }

    #[test]
    fn c3_it_is_woken_once_for_many_waits_and_told_every_time_from_then_on() {
        let sender = watch::Sender::new(EndNow::default());
        let mut notice = Notice::new(sender.subscribe());
        let count = Arc::new(Count::default());
        for _ in 0..3 {
            assert!(poll_with(&mut notice, &count).is_pending());
        }
        assert!(notice.now(None).is_none());
        sender.send_modify(|end| end.all = true);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        for _ in 0..2 {
            assert!(matches!(poll_with(&mut notice, &count), Poll::Ready(Input::Drain)));
        }
    }

    #[test]
    fn c3_a_change_that_is_not_for_it_leaves_it_listening() {
        let sender = watch::Sender::new(EndNow::default());
        let mut notice = Notice::new(sender.subscribe());
        let (count, other) = (Arc::new(Count::default()), Arc::new(Count::default()));
        assert!(poll_with(&mut notice, &count).is_pending());
        sender.send_modify(|end| end.keys.extend([[1; 32]]));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(poll_with(&mut notice, &count).is_pending());
        // Another task goes on with it: that one is woken.
        assert!(poll_with(&mut notice, &other).is_pending());
        sender.send_modify(|end| end.all = true);
        assert_eq!((count.0.load(Ordering::SeqCst), other.0.load(Ordering::SeqCst)), (1, 1));
        assert!(poll_with(&mut notice, &other).is_ready());
    }

    #[tokio::test]
    async fn c3_what_was_told_before_is_heard() {
        let sender = watch::Sender::new(EndNow { all: true, ..EndNow::default() });
        let mut notice = Notice::new(sender.subscribe());
        notice.all_end().await;
        assert!(matches!(poll_fn(|context| notice.poll(context, None)).await, Input::Drain));
    }
}
