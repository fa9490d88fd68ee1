//! What kills the children where this process cannot: after `kill -9`, an abort, or an exit in the middle of things.
//!
//! ```text
//!  spawn ──Ward──► GUARDIAN, one a process ──"+PGID" "-PGID"──► /bin/sh, which reads to the end of its input
//! ```
//! The shell is the only one that holds the other end of the pipe, and this process the only one that holds ours:
//! however the process ends, the system closes it, and the shell kills the groups that are still listed (FR-003,
//! FR-004). It is started with the first child, has a session of its own, so that neither Ctrl-C nor our own signals
//! reach it, and lives until this process ends: between two children it only waits. It counts as no child.
//!
//! Not covered: a child in the moment between its start and [`enlist`], processes that leave the group, and a guardian
//! that is killed by its own number: it is missed, and another started, only when the next child starts or ends.
//!
//! Start reading at [`enlist`].

use process_wrap::std::{ChildWrapper, CommandWrap, ProcessSession};
use rustix::process::Pid;
use std::collections::BTreeSet;
use std::io::{self, PipeWriter, Write};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Its arguments are the groups known from the start. Everything in it is built in: it has no `PATH`.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
groups=" $* "
while read -r line; do
    group=${line#?}
    case $line in
        +*) groups="$groups$group " ;;
        *) case $groups in *" $group "*) groups="${groups%%" $group "*} ${groups#*" $group "}" ;; esac ;;
    esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
"#;

static GUARDIAN: Mutex<Guardian> = Mutex::new(Guardian::new("/bin/sh"));

/// Has the guardian ready, so that nothing but a write is left to do when the child is there.
pub(super) fn prepare() {
    guardian().ready();
}

/// Lists a process group that was just founded. Never waits: a shell that does not read is replaced.
pub(super) fn enlist(group: Pid) -> Ward {
    guardian().add(group);
    Ward(group)
}

/// A process group that dies with this process; dropped, it is forgotten, so that its number can be a stranger's.
#[derive(Debug)]
#[must_use = "dropped, the group is not guarded any more"]
pub(super) struct Ward(Pid);

impl Drop for Ward {
    fn drop(&mut self) {
        guardian().remove(self.0);
    }
}

fn guardian() -> MutexGuard<'static, Guardian> {
    GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Guardian {
    program: &'static str,
    /// What the shell knows, or would if there were one.
    groups: BTreeSet<i32>,
    shell: Option<Shell>,
    /// Shells that were killed and not yet waited for.
    former: Vec<Box<dyn ChildWrapper>>,
    is_warned: bool,
}

struct Shell {
    process: Box<dyn ChildWrapper>,
    /// Does not block: the shell may have been stopped.
    pipe: PipeWriter,
}

impl Guardian {
    const fn new(program: &'static str) -> Self {
        Self {
            program,
            groups: BTreeSet::new(),
            shell: None,
            former: Vec::new(),
            is_warned: false,
        }
    }

    fn add(&mut self, group: Pid) {
        let group = group.as_raw_pid();
        self.groups.insert(group);
        self.tell('+', group);
    }

    fn remove(&mut self, group: Pid) {
        let group = group.as_raw_pid();
        self.groups.remove(&group);
        self.tell('-', group);
    }

    /// Sends a line. Whoever cannot take it, being dead or stopped, is replaced by one that knows all groups.
    fn tell(&mut self, sign: char, group: i32) {
        // One write of less than `PIPE_BUF`: all of it or nothing.
        let line = format!("{sign}{group}\n");
        match self
            .shell
            .as_mut()
            .map(|shell| shell.pipe.write_all(line.as_bytes()))
        {
            Some(Ok(())) => return,
            Some(Err(error)) => {
                tracing::debug!(%error, "the guardian of the child processes is replaced");
                self.dismiss();
            }
            None => {}
        }
        if !self.groups.is_empty() {
            self.ready();
        }
    }

    /// Starts a shell where there is none that lives.
    fn ready(&mut self) {
        self.former.retain_mut(|former| !is_over(former.as_mut()));
        if self
            .shell
            .as_mut()
            .is_some_and(|shell| is_over(shell.process.as_mut()))
        {
            self.shell = None;
        }
        if self.shell.is_some() {
            return;
        }
        match Shell::start(self.program, &self.groups) {
            Ok(shell) => self.shell = Some(shell),
            Err(error) if !self.is_warned => {
                self.is_warned = true;
                tracing::warn!(
                    program = self.program,
                    %error,
                    "no guardian could be started: if this process is killed, its child processes live on"
                );
            }
            Err(_) => {}
        }
    }

    /// Kills the shell, which must not see the end of its input: it would kill what it has listed.
    fn dismiss(&mut self) {
        if let Some(Shell { mut process, pipe }) = self.shell.take() {
            // It fails where the shell is dead already.
            let _ = process.inner_mut().kill();
            drop(pipe);
            self.former.push(process);
        }
    }
}

impl Shell {
    fn start(program: &str, groups: &BTreeSet<i32>) -> io::Result<Self> {
        // Both ends are closed on exec: the children, too, must not hold them.
        let (input, pipe) = io::pipe()?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let mut command = Command::new(program);
        command
            .args(["-c", SCRIPT, "callboard-guardian"])
            .args(groups.iter().map(i32::to_string))
            .env_clear()
            .current_dir("/")
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut command = CommandWrap::from(command);
        command.wrap(ProcessSession);
        let process = command.spawn()?;
        Ok(Self { process, pipe })
    }
}

/// Whether a shell has ended; where the system cannot tell, the pipe will.
fn is_over(process: &mut dyn ChildWrapper) -> bool {
    matches!(process.inner_mut().try_wait(), Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, getpgid, getpgrp, getsid, kill_process};
    use std::os::fd::AsRawFd;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Child;
    use std::sync::Arc;
    use tracing_subscriber::fmt::MakeWriter;

    /// A process that leads a group of its own; killed when dropped.
    struct Leader(Child);

    impl Leader {
        fn start() -> Self {
            let child = Command::new("sleep").arg("30").process_group(0).spawn();
            Self(child.expect("a process"))
        }

        fn group(&self) -> Pid {
            Pid::from_child(&self.0)
        }

        /// Waits for its end; the signal it died of.
        fn signal(&mut self) -> Option<i32> {
            self.0.wait().unwrap().signal()
        }

        fn is_alive(&mut self) -> bool {
            self.0.try_wait().unwrap().is_none()
        }
    }

    impl Drop for Leader {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn guarding<'a>(leaders: impl IntoIterator<Item = &'a Leader>) -> Guardian {
        let mut guardian = Guardian::new("/bin/sh");
        guardian.ready();
        for leader in leaders {
            guardian.add(leader.group());
        }
        guardian
    }

    fn shell(guardian: &Guardian) -> Pid {
        let id = guardian.shell.as_ref().expect("a shell").process.id();
        Pid::from_raw(id.try_into().unwrap()).unwrap()
    }

    /// What the system does at the end of this process; returns when the shell has done its work.
    fn end(mut guardian: Guardian) {
        let Shell { mut process, pipe } = guardian.shell.take().expect("a shell");
        drop(pipe);
        process.wait().unwrap();
    }

    // FR-003, FR-004
    #[test]
    fn groups_that_are_listed_die_with_the_pipe_and_no_other() {
        let mut leaders: Vec<Leader> = (0..6).map(|_| Leader::start()).collect();
        let mut guardian = guarding(&leaders[..5]);

        for forgotten in [0, 2, 4] {
            guardian.remove(leaders[forgotten].group());
        }
        guardian.remove(leaders[5].group());
        guardian.add(leaders[4].group());
        end(guardian);

        for (index, is_listed) in [false, true, false, true, true, false].into_iter().enumerate() {
            if is_listed {
                assert_eq!(leaders[index].signal(), Some(9), "group {index}");
            } else {
                assert!(leaders[index].is_alive(), "group {index}");
            }
        }
    }

    #[test]
    fn guardian_that_was_killed_is_replaced_by_one_that_knows_all_groups() {
        let mut leaders = [Leader::start(), Leader::start()];
        let mut guardian = guarding(&leaders[..1]);
        let first = shell(&guardian);

        kill_process(first, Signal::KILL).unwrap();
        // It may not be dead at once; each of these finds out, by the pipe or by the exit.
        while shell(&guardian) == first {
            guardian.add(leaders[1].group());
            guardian.ready();
        }
        end(guardian);

        for leader in &mut leaders {
            assert_eq!(leader.signal(), Some(9));
        }
    }

    #[test]
    fn guardian_that_does_not_read_is_replaced_without_a_wait() {
        let mut leaders = [Leader::start(), Leader::start()];
        let mut guardian = guarding(&leaders);
        let first = shell(&guardian);
        kill_process(first, Signal::STOP).unwrap();

        while shell(&guardian) == first {
            guardian.remove(leaders[0].group());
            guardian.add(leaders[0].group());
        }
        guardian.remove(leaders[1].group());
        // Going on, it would read the end of its input, and act on what it knows.
        let _ = kill_process(first, Signal::CONT);
        for mut former in guardian.former.drain(..) {
            assert_eq!(former.wait().unwrap().signal(), Some(9));
        }
        end(guardian);

        assert_eq!(leaders[0].signal(), Some(9));
        assert!(leaders[1].is_alive());
    }

    #[test]
    fn guardian_is_out_of_the_reach_of_the_terminal_and_of_polite_signals() {
        let mut leader = Leader::start();
        let guardian = guarding([&leader]);
        let shell = shell(&guardian);

        assert_eq!(getsid(Some(shell)).unwrap(), shell, "a session of its own");
        assert_ne!(getpgid(Some(shell)).unwrap(), getpgrp());
        // What was written is read behind the trap.
        wait_until_read(&guardian);
        for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM] {
            kill_process(shell, signal).unwrap();
        }
        end(guardian);

        assert_eq!(leader.signal(), Some(9));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn guardian_holds_nothing_and_nobody_else_holds_its_pipe() {
        let leader = Leader::start();
        let guardian = guarding([&leader]);
        let link = |path: String| std::fs::read_link(path).unwrap();
        let shell = shell(&guardian).as_raw_pid();
        let pipe = link(format!(
            "/proc/self/fd/{}",
            guardian.shell.as_ref().unwrap().pipe.as_raw_fd()
        ));

        let of_shell = ["cwd", "fd/0", "fd/1", "fd/2"].map(|name| link(format!("/proc/{shell}/{name}")));
        let of_child = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();

        let null = || "/dev/null".into();
        assert_eq!(of_shell, ["/".into(), pipe.clone(), null(), null()]);
        let environment = std::fs::read_to_string(format!("/proc/{shell}/environ")).unwrap();
        assert_eq!(environment, "");
        let of_child = String::from_utf8(of_child.stdout).unwrap();
        assert!(!of_child.contains(pipe.to_str().unwrap()), "{of_child}");
        end(guardian);
    }

    #[test]
    fn system_without_a_shell_is_told_once_and_works_on() {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).finish();
        let leader = Leader::start();

        tracing::subscriber::with_default(subscriber, || {
            let mut guardian = Guardian::new("/no/such/shell");
            for _ in 0..3 {
                guardian.ready();
                guardian.add(leader.group());
                guardian.remove(leader.group());
            }
            assert!(guardian.shell.is_none());
        });

        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.matches("no guardian").count(), 1, "{log}");
        assert!(log.contains("/no/such/shell"), "{log}");
    }

    /// Waits until the shell has taken every line.
    fn wait_until_read(guardian: &Guardian) {
        let pipe = &guardian.shell.as_ref().unwrap().pipe;
        while rustix::io::ioctl_fionread(pipe).unwrap() > 0 {
            std::thread::yield_now();
        }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Log {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }
}
