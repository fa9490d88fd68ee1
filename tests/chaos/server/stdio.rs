//! A server that is a process: one message per line.

use super::{Asked, FLOOD, Job, LOG, PAGE, Site};
use crate::plan::Fault;
use std::io::Write as _;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Serves until its input ends, or a call ends it.
pub(crate) fn serve(site: &Site) {
    for line in std::io::stdin().lines() {
        let Ok(line) = line else { return };
        match site.asked(line.as_bytes()) {
            Asked::Job(job) => work(site, job),
            Asked::Plain(answer) => say(&[&answer]),
            Asked::Nothing => {}
        }
    }
}

fn work(site: &Site, job: Job) {
    match job.fault {
        Fault::EndBefore => std::process::exit(3),
        Fault::Deaf => pause(job.pause),
        _ => {}
    }
    if job.fault.runs() {
        site.run(&job);
    }
    let answer = site.answer(&job);
    match job.fault {
        Fault::Hang => {}
        Fault::Late | Fault::Progress => after_a_while(job, answer),
        Fault::Twice => say(&[&answer, &answer]),
        Fault::Flood => {
            let mut lines = vec![LOG; FLOOD];
            lines.push(&answer);
            say(&lines);
        }
        Fault::Garbage => {
            let nobody = r#"{"jsonrpc":"2.0","id":4294967295,"result":{}}"#;
            say(&[
                PAGE,
                "",
                "npm warn deprecated",
                "{\"jsonrpc\":",
                "[]",
                "\u{fffd}\u{0}",
                nobody,
                &answer,
            ]);
        }
        Fault::Stderr => {
            let line = "a line that nobody reads\n".repeat((128 << 10) / 25);
            let _ = std::io::stderr().write_all(line.as_bytes());
            say(&[&answer]);
        }
        Fault::EndAfter => std::process::exit(4),
        Fault::Half => {
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(&answer.as_bytes()[..answer.len() / 2]);
            let _ = out.flush();
            std::process::exit(5);
        }
        _ => say(&[&answer]),
    }
}

/// Tells progress at once and the answer later, while others are served.
fn after_a_while(job: Job, answer: String) {
    let progress = job.progress();
    let progress: Vec<&str> = progress.iter().map(String::as_str).collect();
    let (first, rest) = progress.split_at(progress.len() / 2);
    say(first);
    let rest: Arc<[String]> = rest.iter().map(|line| (*line).to_owned()).collect();
    thread::spawn(move || {
        pause(job.pause);
        let mut lines: Vec<&str> = rest.iter().map(String::as_str).collect();
        lines.push(&answer);
        say(&lines);
    });
}

/// Writes lines, all in one piece. A client that is gone is noticed by the end of the input.
fn say(lines: &[&str]) {
    let mut text = String::new();
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

#[expect(
    clippy::disallowed_methods,
    reason = "this process has no clock to pause and no arbiter to block"
)]
fn pause(time: Duration) {
    thread::sleep(time);
}
