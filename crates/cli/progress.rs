//! `--progress`: a bar on a terminal, a line for each progress elsewhere. On stderr, so that stdout is the result.

use crate::output::brief;
use callboard::message::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Shows how far a call is.
#[derive(Debug)]
pub(crate) enum Display {
    /// Nowhere.
    Off,
    /// A line each.
    Lines,
    /// A bar, drawn in place.
    Bar(Mutex<Bar>),
}

/// The state of a bar, whose only owner is its [`Display`].
#[derive(Debug, Default)]
pub(crate) struct Bar {
    drawn: Option<ProgressBar>,
    /// How many wait for the user at the moment.
    holders: usize,
}

/// Keeps the place of the bar free until it is dropped: something else is written there.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Display);

/// Takes the bar away for good when it is dropped.
#[derive(Debug)]
pub(crate) struct Shown<'a>(&'a Display);

impl Display {
    pub(crate) fn new(wanted: bool) -> Self {
        match (wanted, io::stderr().is_terminal()) {
            (false, _) => Self::Off,
            (true, false) => Self::Lines,
            (true, true) => Self::Bar(Mutex::default()),
        }
    }

    /// Whether anything is shown.
    pub(crate) fn is_on(&self) -> bool {
        !matches!(self, Self::Off)
    }

    pub(crate) fn show(&self, progress: &Progress) {
        match self {
            Self::Off => {}
            Self::Lines => {
                // Where stderr takes nothing there is nobody to show it to.
                let _ = writeln!(io::stderr().lock(), "progress: {}", line(progress));
            }
            Self::Bar(_) => self.with_bar(|bar| bar.show(progress)),
        }
    }

    /// Owes the end of the bar, however the call ends.
    pub(crate) fn until_dropped(&self) -> Shown<'_> {
        Shown(self)
    }

    /// Takes the bar away while the user is asked. The next progress after that brings it back.
    pub(crate) fn hold(&self) -> Held<'_> {
        self.with_bar(|bar| {
            bar.clear();
            bar.holders += 1;
        });
        Held(self)
    }

    fn with_bar(&self, work: impl FnOnce(&mut Bar)) {
        if let Self::Bar(bar) = self {
            work(&mut bar.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Bar {
    fn show(&mut self, progress: &Progress) {
        if self.holders > 0 {
            return;
        }
        let share = share(progress);
        let template = if share.is_some() {
            "[{bar:30}] {msg}"
        } else {
            "{spinner} {msg}"
        };
        let bar = self.drawn.get_or_insert_with(|| ProgressBar::new(LENGTH));
        // Both templates are ours; one that could not be read would leave the style as it is.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_position(share.map_or(0, |share| (share * LENGTH as f64) as u64));
        bar.set_message(line(progress));
        bar.enable_steady_tick(TICK);
    }

    fn clear(&mut self) {
        if let Some(bar) = self.drawn.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.0.with_bar(Bar::clear);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.with_bar(|bar| bar.holders -= 1);
    }
}

/// How far it is, from 0 to 1, where the server knows how far it goes.
fn share(progress: &Progress) -> Option<f64> {
    let total = progress.total.filter(|total| *total > 0.0)?;
    Some((progress.progress / total).clamp(0.0, 1.0))
}

/// `3/5 step 3`, a server's words on one line.
fn line(progress: &Progress) -> String {
    brief(&progress.to_string())
}

/// The full length of a bar: it moves by thousandths, whatever a server counts in.
const LENGTH: u64 = 1000;

/// How often a bar shows that the program lives.
const TICK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use callboard::message::RawJson;
    use serde_json::json;

    #[test]
    fn a_share_is_between_nothing_and_all() {
        let table = [
            (json!({"progressToken": 1, "progress": 1, "total": 4}), Some(0.25)),
            (json!({"progressToken": 1, "progress": 9, "total": 4}), Some(1.0)),
            (json!({"progressToken": 1, "progress": -1, "total": 4}), Some(0.0)),
            (json!({"progressToken": 1, "progress": 1, "total": 0}), None),
            (json!({"progressToken": 1, "progress": 1}), None),
        ];
        for (params, expected) in table {
            assert_eq!(share(&read(&params)), expected, "{params}");
        }
    }

    #[test]
    fn the_words_of_a_server_stay_on_one_line() {
        let params =
            json!({"progressToken": 1, "progress": 1.5, "total": 3, "message": "half\u{1b}[2J\nand more"});
        assert_eq!(line(&read(&params)), "1.5/3 half [2J");
    }

    fn read(params: &serde_json::Value) -> Progress {
        Progress::from_raw(RawJson::of(params).unwrap()).unwrap()
    }
}
