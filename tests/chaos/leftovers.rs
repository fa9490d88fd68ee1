//! What this process has: sockets, threads, children. Read from `/proc`; elsewhere it has nothing to compare.

use std::path::Path;
use std::time::Duration;
use tokio::time::{Instant, sleep};

pub(crate) struct Leftovers {
    sockets: usize,
    /// All other descriptors, but for pipes.
    others: usize,
    threads: Vec<String>,
    /// Processes that were started for this folder.
    processes: Vec<String>,
    /// All children of this process, but for the guardian.
    children: Vec<String>,
}

impl Leftovers {
    pub(crate) fn now(folder: &Path) -> Self {
        let mut found = Self {
            sockets: 0,
            others: 0,
            threads: Vec::new(),
            processes: Vec::new(),
            children: Vec::new(),
        };
        for descriptor in listed("/proc/self/fd") {
            match std::fs::read_link(Path::new("/proc/self/fd").join(descriptor)) {
                Ok(target) if target.to_string_lossy().starts_with("socket:") => found.sockets += 1,
                Ok(target) if target.to_string_lossy().starts_with("pipe:") => {}
                _ => found.others += 1,
            }
        }
        for thread in listed("/proc/self/task") {
            let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
            found.threads.extend(name.map(|name| name.trim().to_owned()));
        }
        let us = std::process::id();
        for process in listed("/proc") {
            if process.parse() == Ok(us) || !process.starts_with(|first: char| first.is_ascii_digit()) {
                continue;
            }
            let command = std::fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let command = command.replace('\0', " ");
            if command.contains(&*folder.to_string_lossy()) {
                found.processes.push(process.clone());
            }
            if parent(&process) == Some(us) && !command.starts_with("/bin/sh ") {
                found.children.push(format!("{process} {command}"));
            }
        }
        found.threads.sort();
        found
    }

    /// Only counted: a thread has its name some time after its start.
    fn counts(&self) -> [usize; 5] {
        let Self {
            sockets,
            others,
            threads,
            processes,
            children,
        } = self;
        [*sockets, *others, threads.len(), processes.len(), children.len()]
    }

    /// Waits until everything is as it was `before`; says what is not. Idle threads of a pool last for 10 s.
    pub(crate) async fn return_to(before: &Self, folder: &Path) -> Option<String> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let now = Self::now(folder);
            if now.counts() == before.counts() {
                return None;
            }
            if Instant::now() > end {
                return Some(format!(
                    "after the shutdown there is {now}, and before there was {before}"
                ));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

impl std::fmt::Display for Leftovers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            sockets,
            others,
            threads,
            processes,
            children,
        } = self;
        write!(
            f,
            "{sockets} sockets, {others} other descriptors, threads {threads:?}, processes {processes:?}, children {children:?}"
        )
    }
}

fn listed(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The parent of a process: the second field behind its name, which is in brackets and may hold anything.
fn parent(process: &str) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let behind = status.rsplit_once(')')?.1;
    behind.split_whitespace().nth(1)?.parse().ok()
}
