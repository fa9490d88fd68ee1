//! The user at the terminal: shown what a server asks, and what becomes of it is the user's word.
//!
//! ```text
//! stdin ──thread──► lines ──► Dialog: accept, decline, cancel ──► ElicitResult
//!                               │ stderr
//! ```
//! Everything of the server is shown without what could steer the terminal, and pages are shown, never opened.

use crate::form::{Field, Form};
use crate::output::{bold, clean, indent};
use callboard::message::{Elicit, ElicitRequest, ElicitResult};
use serde_json::{Map, Value};
use std::io::{self, BufRead as _, IsTerminal as _, Write};
use tokio::sync::{Mutex, mpsc};
use url::{Host, Position, Url};

/// The terminal that this program runs in. One question at a time.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// What is typed; read from the first question on.
    lines: Mutex<Option<Lines>>,
}

type Lines = mpsc::Receiver<String>;

impl Terminal {
    /// The terminal, where there is a user to read and to write.
    pub(crate) fn attached() -> Option<Self> {
        let attached = io::stdin().is_terminal() && io::stderr().is_terminal();
        attached.then(|| Self {
            lines: Mutex::default(),
        })
    }

    /// Has the user answer. The end of the input is `cancel`.
    ///
    /// Cancel safe: dropped, it leaves a clean line behind.
    pub(crate) async fn elicit(
        &self,
        server: &str,
        ask: &ElicitRequest,
        form: Option<&Form>,
    ) -> io::Result<ElicitResult> {
        let mut lines = self.lines.lock().await;
        let mut dialog = Dialog {
            lines: lines.get_or_insert_with(typed),
            shown: anstream::stderr(),
            open: false,
        };
        dialog.elicit(server, ask, form).await
    }
}

/// Reads standard input on a thread of its own: it ends with the process, which need not wait for a line. It reads one
/// line ahead, so that what is piped in is not held in memory.
fn typed() -> Lines {
    let (sender, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// One question of a server, talked over with the user.
struct Dialog<'a, W: Write> {
    lines: &'a mut Lines,
    shown: W,
    /// A line is begun and waits for its answer.
    open: bool,
}

/// What the user decided.
enum Said {
    Yes,
    Edit,
    Decline,
    Cancel,
}

impl<W: Write> Dialog<'_, W> {
    async fn elicit(
        &mut self,
        server: &str,
        ask: &ElicitRequest,
        form: Option<&Form>,
    ) -> io::Result<ElicitResult> {
        let message = indent(&clean(&ask.message));
        match (&ask.ask, form) {
            (Elicit::Url { url, .. }, _) => {
                writeln!(self.shown, "\nServer {} wants you to visit a page.", bold(server))?;
                writeln!(self.shown, "    {message}")?;
                self.visit(url).await
            }
            (_, Some(form)) => {
                writeln!(self.shown, "\nServer {} asks you:", bold(server))?;
                writeln!(self.shown, "    {message}")?;
                self.fill(form).await
            }
            _ => Ok(ElicitResult::cancel()),
        }
    }

    /// ELI-04, ELI-05: no field need be filled in to say no, and what is filled in is shown before it is sent.
    async fn fill(&mut self, form: &Form) -> io::Result<ElicitResult> {
        for field in &form.fields {
            writeln!(self.shown, "  - {}", described(field))?;
        }
        match self
            .choose("Answer it? [y]es, [d]ecline or [c]ancel", "y")
            .await?
        {
            Said::Decline => return Ok(ElicitResult::decline()),
            Said::Cancel => return Ok(ElicitResult::cancel()),
            Said::Yes | Said::Edit => {}
        }
        let mut values = Map::new();
        loop {
            for field in &form.fields {
                if !self.ask(field, &mut values).await? {
                    return Ok(ElicitResult::cancel());
                }
            }
            let content = match form.complete(values.clone()) {
                Ok(content) => content,
                Err(reason) => {
                    writeln!(self.shown, "  it does not fit the form: {}", clean(&reason))?;
                    continue;
                }
            };
            for (name, value) in &content {
                writeln!(self.shown, "    {}: {}", clean(name), clean(&shown(value)))?;
            }
            let said = self.choose("Send this? [y]es, [e]dit, [d]ecline or [c]ancel", "ye");
            match said.await? {
                Said::Yes => return Ok(ElicitResult::accept(content)),
                Said::Edit => {}
                Said::Decline => return Ok(ElicitResult::decline()),
                Said::Cancel => return Ok(ElicitResult::cancel()),
            }
        }
    }

    /// Asks for one field until there is a value that fits; `false` at the end of the input.
    async fn ask(&mut self, field: &Field, values: &mut Map<String, Value>) -> io::Result<bool> {
        for (number, choice) in field.choices.iter().enumerate() {
            writeln!(self.shown, "    {}. {}", number + 1, clean(&choice.title))?;
        }
        loop {
            let offered = values.get(&field.name).or(field.default.as_ref()).cloned();
            let default = offered
                .as_ref()
                .map(|value| format!(" [{}]", clean(&shown(value))))
                .unwrap_or_default();
            let Some(line) = self
                .line(&format!("  {}{default}: ", clean(&field.title)))
                .await?
            else {
                return Ok(false);
            };
            if line.is_empty() {
                match offered {
                    Some(value) => {
                        values.insert(field.name.clone(), value);
                    }
                    None if field.required => {
                        writeln!(self.shown, "  it is required; Ctrl-D cancels")?;
                        continue;
                    }
                    None => {}
                }
                return Ok(true);
            }
            match field.parse(&line) {
                Ok(value) => {
                    values.insert(field.name.clone(), value);
                    return Ok(true);
                }
                Err(reason) => writeln!(self.shown, "  {}", clean(&reason))?,
            }
        }
    }

    /// ELI-08 to ELI-12, ELI-14: the page is shown in full, its host stands out, and the user opens it.
    async fn visit(&mut self, url: &str) -> io::Result<ElicitResult> {
        let Ok(url) = Url::parse(url) else {
            return Ok(ElicitResult::cancel());
        };
        writeln!(
            self.shown,
            "    {}{}{}",
            &url[..Position::BeforeHost],
            bold(&url[Position::BeforeHost..Position::AfterHost]),
            &url[Position::AfterHost..]
        )?;
        for warning in warnings(&url) {
            writeln!(self.shown, "  {} {warning}", bold("warning:"))?;
        }
        let agreed = self.choose("Do you agree to visit it? [y]es, [d]ecline or [c]ancel", "y");
        match agreed.await? {
            Said::Decline => return Ok(ElicitResult::decline()),
            Said::Cancel => return Ok(ElicitResult::cancel()),
            Said::Yes | Said::Edit => {}
        }
        writeln!(
            self.shown,
            "  Open it in a browser of yours; nothing is opened from here."
        )?;
        let done = self.choose("Done there? [y]es, [d]ecline or [c]ancel", "y");
        Ok(match done.await? {
            Said::Yes | Said::Edit => ElicitResult::accept_empty(),
            Said::Decline => ElicitResult::decline(),
            Said::Cancel => ElicitResult::cancel(),
        })
    }

    /// Asks until the word begins with one of `ways`, or with `d` or `c`.
    async fn choose(&mut self, question: &str, ways: &str) -> io::Result<Said> {
        loop {
            let Some(line) = self.line(&format!("  {question}: ")).await? else {
                return Ok(Said::Cancel);
            };
            match line.trim().to_lowercase().chars().next() {
                Some('d') => return Ok(Said::Decline),
                Some('c') => return Ok(Said::Cancel),
                Some('y') if ways.contains('y') => return Ok(Said::Yes),
                Some('e') if ways.contains('e') => return Ok(Said::Edit),
                _ => {}
            }
        }
    }

    /// One line of the user; `None` at the end of the input.
    async fn line(&mut self, question: &str) -> io::Result<Option<String>> {
        write!(self.shown, "{question}")?;
        self.shown.flush()?;
        self.open = true;
        let line = self.lines.recv().await;
        self.open = false;
        if line.is_none() {
            writeln!(self.shown)?;
        }
        Ok(line)
    }
}

impl<W: Write> Drop for Dialog<'_, W> {
    fn drop(&mut self) {
        if self.open {
            // What comes next begins a line of its own.
            let _ = writeln!(self.shown);
        }
    }
}

/// `Your name (text, required): how to address you`
fn described(field: &Field) -> String {
    let required = if field.required { ", required" } else { "" };
    let mut text = format!("{} ({}{required})", field.title, field.type_name());
    if let Some(description) = &field.description {
        text.push_str(&format!(": {description}"));
    }
    indent(&clean(&text))
}

/// A value as a user writes it.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// What should make a user look twice at an address (ELI-12).
fn warnings(url: &Url) -> Vec<&'static str> {
    let mut warnings = Vec::new();
    if url.scheme() != "https" {
        warnings.push("it is not https: others can read and change what is exchanged with it");
    }
    match url.host() {
        Some(Host::Domain(host)) if host.split('.').any(|label| label.starts_with("xn--")) => {
            warnings.push("its name has letters that may look like others (xn--…)");
        }
        Some(Host::Ipv4(_) | Host::Ipv6(_)) => warnings.push("it has an address in place of a name"),
        _ => {}
    }
    if !url.username().is_empty() || url.password().is_some() {
        warnings.push("what stands before the @ is not the host");
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use callboard::message::{ElicitAction, RawJson};
    use serde_json::json;

    // ELI-03, ELI-04, ELI-05, ELI-07
    #[tokio::test]
    async fn a_form_is_filled_in_reviewed_and_can_be_declined_at_each_step() {
        let ask = json!({"message": "Who\u{1b}[2J?", "requestedSchema": {"type": "object", "required": ["name"],
            "properties": {"age": {"type": "integer", "title": "Your age", "default": 30}, "name": {"type": "string"}}}});
        let table: [(&[&str], ElicitAction, Option<Value>); 8] = [
            (
                &["y", "", "Ada", "y"],
                ElicitAction::Accept,
                Some(json!({"age": 30, "name": "Ada"})),
            ),
            (
                &["what?", "yes", "old", "7", "", "Ada", "e", "", "Bob", "y"],
                ElicitAction::Accept,
                Some(json!({"age": 7, "name": "Bob"})),
            ),
            (&["d"], ElicitAction::Decline, None),
            (&["c"], ElicitAction::Cancel, None),
            (&["y", "", "Ada", "d"], ElicitAction::Decline, None),
            (&["y", "", "Ada", "c"], ElicitAction::Cancel, None),
            (&["y", "7"], ElicitAction::Cancel, None),
            (&[], ElicitAction::Cancel, None),
        ];
        for (typed, action, content) in table {
            let (result, shown) = talk(&ask, typed).await;

            assert_eq!(result.action, action, "{typed:?}: {shown}");
            let given = result.content.map(|content| content.decode::<Value>().unwrap());
            assert_eq!(given, content, "{typed:?}: {shown}");
            for part in [
                "files",
                "Who [2J?",
                "Your age (whole number)",
                "name (text, required)",
            ] {
                assert!(shown.contains(part), "`{part}` is missing in: {shown}");
            }
            assert!(!shown.contains("\u{1b}[2J"), "{shown}");
        }
    }

    // ELI-08, ELI-09, ELI-10, ELI-12
    #[tokio::test]
    async fn a_page_is_shown_in_full_and_only_a_yes_is_consent() {
        let ask = json!({"mode": "url", "message": "Sign in", "elicitationId": "1",
            "url": "http://ada@xn--exmple-cua.com/sign?in=1"});
        let table: [(&[&str], ElicitAction); 6] = [
            (&["y", "y"], ElicitAction::Accept),
            (&["", "y", "", "y"], ElicitAction::Accept),
            (&["d"], ElicitAction::Decline),
            (&["c"], ElicitAction::Cancel),
            (&["y", "c"], ElicitAction::Cancel),
            (&[], ElicitAction::Cancel),
        ];
        for (typed, action) in table {
            let (result, shown) = talk(&ask, typed).await;

            assert_eq!(result.action, action, "{typed:?}: {shown}");
            assert!(result.content.is_none());
            let plain = anstream::adapter::strip_str(&shown).to_string();
            for part in [
                "http://ada@xn--exmple-cua.com/sign?in=1",
                "not https",
                "xn--…",
                "before the @",
            ] {
                assert!(plain.contains(part), "`{part}` is missing in: {plain}");
            }
            assert!(
                shown.contains(&bold("xn--exmple-cua.com")),
                "the host stands out: {shown}"
            );
        }
    }

    async fn talk(ask: &Value, typed: &[&str]) -> (ElicitResult, String) {
        let ask = ElicitRequest::from_raw(RawJson::of(ask).unwrap()).unwrap();
        let form = match &ask.ask {
            Elicit::Form { schema } => Some(Form::read(schema).unwrap()),
            _ => None,
        };
        let (sender, mut lines) = mpsc::channel(typed.len().max(1));
        for line in typed {
            sender.send((*line).to_owned()).await.unwrap();
        }
        drop(sender);
        let mut shown = Vec::new();
        let mut dialog = Dialog {
            lines: &mut lines,
            shown: &mut shown,
            open: false,
        };
        let result = dialog.elicit("files", &ask, form.as_ref()).await.unwrap();
        drop(dialog);
        (result, String::from_utf8(shown).unwrap())
    }
}
