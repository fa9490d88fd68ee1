//! The queue between a connection and its transport; both live on one thread.
//!
//! A channel of tokio's takes 7 KiB before anything is sent; this takes nothing until then, and little at rest.

use crate::{NotTaken, Post};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use tokio::task::coop;

/// A queue of at most `bound` posts.
pub(crate) fn bounded(bound: usize) -> (Sender, Receiver) {
    let shared = Rc::new(RefCell::new(Queue {
        posts: VecDeque::new(),
        bound,
        is_closed: false,
        waker: None,
    }));
    (Sender(Rc::clone(&shared)), Receiver(shared))
}

/// The connection's end.
#[derive(Debug)]
pub(crate) struct Sender(Rc<RefCell<Queue>>);

/// The transport's end.
#[derive(Debug)]
pub(crate) struct Receiver(Rc<RefCell<Queue>>);

#[derive(Debug)]
struct Queue {
    posts: VecDeque<Post>,
    bound: usize,
    /// Nothing more comes in.
    is_closed: bool,
    /// Of who waits at the transport's end.
    waker: Option<Waker>,
}

impl Sender {
    /// Never waits.
    pub(crate) fn try_send(&self, post: Post) -> Result<(), NotTaken> {
        let waker = {
            let mut queue = self.0.borrow_mut();
            if queue.is_closed {
                return Err(NotTaken::Gone);
            }
            if queue.posts.len() >= queue.bound {
                return Err(NotTaken::Full);
            }
            queue.posts.push_back(post);
            queue.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let waker = {
            let mut queue = self.0.borrow_mut();
            queue.is_closed = true;
            queue.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Receiver {
    /// The next post; `None` once the other end is gone, or this one closed, and all has been taken. Cancel safe.
    pub(crate) async fn recv(&mut self) -> Option<Post> {
        poll_fn(|task| self.poll(task, Queue::take)).await
    }

    /// Waits for one post at least, and appends as many as there are, up to `limit`; 0 where `recv` gives `None`.
    /// Cancel safe.
    pub(crate) async fn recv_many(&mut self, posts: &mut Vec<Post>, limit: usize) -> usize {
        let mut take = |queue: &mut Queue| {
            let count = queue.posts.len().min(limit);
            posts.extend(queue.posts.drain(..count));
            queue.give_back();
            (count > 0).then_some(count)
        };
        poll_fn(|task| self.poll(task, &mut take)).await.unwrap_or(0)
    }

    /// Takes no more; what is queued can still be taken.
    pub(crate) fn close(&mut self) {
        self.0.borrow_mut().is_closed = true;
    }

    fn poll<T>(&self, task: &mut Context<'_>, take: impl FnOnce(&mut Queue) -> Option<T>) -> Poll<Option<T>> {
        // The others on this thread have their turn, however much is queued.
        let turn = ready!(coop::poll_proceed(task));
        let mut queue = self.0.borrow_mut();
        let taken = take(&mut queue);
        if taken.is_none() && !queue.is_closed {
            queue.waker = Some(task.waker().clone());
            return Poll::Pending;
        }
        turn.made_progress();
        Poll::Ready(taken)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let queued = {
            let mut queue = self.0.borrow_mut();
            queue.is_closed = true;
            std::mem::take(&mut queue.posts)
        };
        // Whoever is told of it may look at the queue.
        drop(queued);
    }
}

impl Queue {
    fn take(&mut self) -> Option<Post> {
        let post = self.posts.pop_front();
        self.give_back();
        post
    }

    /// Gives back what a burst has taken.
    fn give_back(&mut self) {
        if self.posts.is_empty() && self.posts.capacity() > KEEP {
            self.posts = VecDeque::new();
        }
    }
}

/// Room for so many posts is kept.
const KEEP: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use callboard_proto::wire::Command;
    use futures_util::FutureExt;

    fn post(key: u64) -> Post {
        Post {
            command: Command::Abort { key },
            mark: None,
        }
    }

    fn key(post: Post) -> u64 {
        match post.command {
            Command::Abort { key } => key,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn posts_come_in_order_up_to_the_bound_and_a_burst_gives_back_its_room() {
        let (sender, mut receiver) = bounded(100);
        for number in 0..100 {
            sender.try_send(post(number)).unwrap();
        }
        assert_eq!(sender.try_send(post(100)), Err(NotTaken::Full));
        assert_eq!(receiver.recv().await.map(key), Some(0));
        let mut taken = Vec::new();
        assert_eq!(receiver.recv_many(&mut taken, 90).await, 90);
        assert_eq!(receiver.recv_many(&mut taken, 90).await, 9);
        assert!(taken.into_iter().map(key).eq(1..100));
        assert_eq!(receiver.0.borrow().posts.capacity(), 0);
        assert!(receiver.recv().now_or_never().is_none());
        assert!(receiver.recv_many(&mut Vec::new(), 90).now_or_never().is_none());
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_a_post_and_by_the_end() {
        let (sender, mut receiver) = bounded(1);
        let (first, ()) = tokio::join!(receiver.recv(), async { sender.try_send(post(7)).unwrap() });
        assert_eq!(first.map(key), Some(7));
        sender.try_send(post(8)).unwrap();
        let end = async {
            let last = receiver.recv().await.map(key);
            (last, receiver.recv().await.is_none())
        };
        let (last, ()) = tokio::join!(end, async { drop(sender) });
        assert_eq!(last, (Some(8), true), "what was queued is still taken");
        assert_eq!(receiver.recv_many(&mut Vec::new(), 1).await, 0);
    }

    #[tokio::test]
    async fn closed_queue_takes_nothing_more_and_keeps_what_it_has() {
        let (sender, mut receiver) = bounded(2);
        sender.try_send(post(1)).unwrap();
        receiver.close();
        assert_eq!(sender.try_send(post(2)), Err(NotTaken::Gone));
        assert_eq!(receiver.recv().await.map(key), Some(1));
        assert!(receiver.recv().await.is_none());
        drop(receiver);
        assert_eq!(sender.try_send(post(2)), Err(NotTaken::Gone));
    }

    /// However much is queued, a task that takes it lets others go on.
    #[tokio::test]
    async fn taking_does_not_keep_a_thread_for_ever() {
        let (sender, mut receiver) = bounded(10_000);
        for number in 0..10_000 {
            sender.try_send(post(number)).unwrap();
        }
        let all = async {
            for _ in 0..10_000 {
                receiver.recv().await;
            }
        };
        let (mut taken, mut turns) = (std::pin::pin!(all), 0);
        poll_fn(|task| {
            turns += 1;
            taken.as_mut().poll(task)
        })
        .await;
        assert!(turns > 1, "all at once");
    }
}
