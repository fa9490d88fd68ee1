//! An event stream, written event by event as its script says.

use super::connection::{Broken, CHUNKED, Connection, LAST_CHUNK};
use super::log::Recorded;
use super::step::{Act, SseEvent};
use crate::fill::fill;
use crate::serve;
use serde_json::Value;
use std::fmt::Write as _;
use std::future::pending;
use std::sync::Arc;

/// How far a stream has come.
struct Position {
    /// The request that is answered, and that placeholders are read from.
    request: Value,
    /// Whether the stream's own request has its answer.
    answered: bool,
    /// The request the stream is the answer of, and those it has waited for, as indices of the log.
    taken: Vec<usize>,
}

impl Connection {
    /// Writes the stream in chunks, so that a clean end and a cut differ.
    pub(super) async fn stream_events(
        &mut self,
        events: Vec<SseEvent>,
        headers: &[(String, String)],
        request: &Recorded,
        index: usize,
    ) -> Result<(), Broken> {
        let own = [
            ("Content-Type", "text/event-stream"),
            ("Cache-Control", "no-cache"),
            CHUNKED,
        ];
        self.write_head(200, headers, &own).await?;
        // A GET asks for no answer, so none can be given up.
        let answered = !request.is_request();
        let mut position = Position {
            request: request.body.clone(),
            answered,
            taken: vec![index],
        };
        for event in events {
            for _ in 0..event.times {
                match self.event(&event, &mut position).await {
                    Ok(()) => {}
                    Err(Broken::ByClient) if position.answered => return Err(Broken::OnPurpose),
                    Err(Broken::Script(missing)) => {
                        // The head is written; a comment is all that can still tell.
                        self.write_chunk(format!(": callboard-testkit: {missing}\n\n").as_bytes())
                            .await?;
                        return Err(Broken::OnPurpose);
                    }
                    Err(broken) => return Err(broken),
                }
            }
        }
        self.write(LAST_CHUNK).await
    }

    async fn event(&mut self, event: &SseEvent, position: &mut Position) -> Result<(), Broken> {
        let id = position.request.get("id").unwrap_or(&Value::Null);
        let message = match &event.act {
            Act::Delay(duration) => return self.unless_dropped(tokio::time::sleep(*duration)).await,
            Act::Hold => return self.unless_dropped(pending()).await,
            Act::Cut => return Err(Broken::OnPurpose),
            Act::After(name) => return self.follow(name, position).await,
            Act::Before(name) => {
                self.take_up(name, position);
                return Ok(());
            }
            Act::Raw(text) => return self.write_chunk(text.as_bytes()).await,
            Act::Torn(text) => {
                let promised = text.len() + 1;
                self.write(format!("{promised:x}\r\n{text}").as_bytes()).await?;
                return Err(Broken::OnPurpose);
            }
            Act::Text(text) => return self.write_event(&event.fields, text).await,
            Act::Message(message) => fill(message, &position.request)?,
            Act::Result(result) => serve::response(id, &fill(result, &position.request)?),
            Act::Error { code, message } => serve::failure(id, &serve::error(*code, message, None)),
        };
        let answers = message.get("method").is_none() && message.get("id") == Some(id);
        self.write_event(&event.fields, &message.to_string()).await?;
        position.answered |= answers;
        Ok(())
    }

    /// Waits for a later request of this name; if it wants an answer, what follows is for it.
    async fn follow(&mut self, name: &str, position: &mut Position) -> Result<(), Broken> {
        let log = Arc::clone(&self.log);
        let found = log.wait_for(|requests| {
            let later = |index: &usize| *index > position.taken[0] && !position.taken.contains(index);
            let mut named = (0..requests.len()).filter(|index| requests[*index].name() == name);
            named.find(later).map(|index| (index, requests[index].clone()))
        });
        let (index, request) = self.unless_dropped(found).await?;
        position.taken.push(index);
        if request.is_request() {
            position.request = request.body;
        }
        Ok(())
    }

    /// Goes back to the last earlier request of this name, if there is one.
    fn take_up(&self, name: &str, position: &mut Position) {
        let requests = self.log.requests();
        let mut earlier = requests.into_iter().take(position.taken[0]).rev();
        if let Some(request) = earlier.find(|request| request.name() == name) {
            position.request = request.body;
        }
    }

    async fn write_event(&mut self, fields: &[(&str, String)], data: &str) -> Result<(), Broken> {
        let mut text = String::new();
        let data = data.split('\n').map(|line| ("data", line));
        for (name, value) in fields.iter().map(|(name, value)| (*name, &**value)).chain(data) {
            let _ = writeln!(text, "{name}: {value}"); // to a string: cannot fail
        }
        text.push('\n');
        self.write_chunk(text.as_bytes()).await
    }
}
