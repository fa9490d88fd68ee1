//! What is posted to a transport that is still being connected.

use crate::{Post, queue};
use callboard_proto::wire::{Command, Down};
use std::pin::pin;

/// The most that is taken before there is a connection; what comes after that waits in its queue.
const EARLY: usize = 256;

/// Waits for a connection, with what was posted meanwhile.
///
/// A connection that is closed, or whose link is dropped, is not waited for: `connecting` is dropped.
pub(crate) async fn connected<C>(
    connecting: impl Future<Output = Result<C, Down>>,
    posts: &mut queue::Receiver,
) -> Result<(C, Vec<Post>), Down> {
    let mut early = Vec::new();
    let mut connecting = pin!(connecting);
    loop {
        tokio::select! {
            biased;
            post = posts.recv(), if early.len() < EARLY => match post {
                None | Some(Post { command: Command::Close, .. }) => return Err(Down::Closed),
                Some(post) => early.push(post),
            },
            outcome = &mut connecting => return outcome.map(|connection| (connection, early)),
        }
    }
}
