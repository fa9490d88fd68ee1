//! The stdio transport against real child processes.

mod seam;

use callboard_proto::frame::{Frame, RequestId};
use callboard_proto::wire::{Down, Ended, Event, StartFailure};
use callboard_transport::stdio::{self, Reaper, StdioConfig};
use callboard_transport::{Link, NotTaken, Post};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use seam::{Delivered, abort, close, events, local, send};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{LocalSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

/// A server under test, and the connection to it.
struct Server {
    link: Link,
    delivered: Delivered,
    reaper: Reaper,
    gone: oneshot::Receiver<()>,
}

impl Server {
    fn start(config: &StdioConfig) -> Self {
        let (events, delivered) = events();
        let reaper = Reaper::new();
        let (tell, gone) = oneshot::channel();
        let link = stdio::open(config, events, &reaper, tell);
        Self {
            link,
            delivered,
            reaper,
            gone,
        }
    }

    /// Starts a shell script and waits for `Up`.
    async fn script(script: &str) -> Self {
        let mut server = Self::start(&sh(script));
        server.delivered.up().await;
        server
    }

    /// Waits until nothing is left of the server.
    async fn gone(self) {
        timeout(Duration::from_secs(10), self.gone)
            .await
            .expect("gone in time")
            .expect("told");
        assert_eq!(self.reaper.children(), 0);
    }

    /// Drops the link and waits until nothing is left of the server.
    async fn dropped(self) {
        drop(self.link);
        timeout(Duration::from_secs(10), self.gone)
            .await
            .expect("gone in time")
            .expect("told");
        assert_eq!(self.reaper.children(), 0);
    }

    /// Expects a message whose params are a process id.
    async fn pid(&mut self) -> Pid {
        pid(&self.delivered.params().await)
    }
}

/// The process id in `[…]`.
fn pid(params: &str) -> Pid {
    let number = params.trim_matches(['[', ']']).parse().expect("a number");
    Pid::from_raw(number).expect("a process")
}

fn sh(script: &str) -> StdioConfig {
    let mut config = StdioConfig::new("test", "sh");
    // A function that sends a notification with these params.
    let say = r#"say() { printf '{"jsonrpc":"2.0","method":"m","params":%s}\n' "$1"; };"#;
    config.args = vec!["-c".to_owned(), format!("{say} {script}")];
    config
}

/// A file for this run alone.
fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()))
}

fn is_alive(process: Pid) -> bool {
    test_kill_process(process).is_ok()
}

/// Waits for the death of a process that is not our child, and so is reaped by somebody else.
async fn dies(process: Pid) {
    for _ in 0..500 {
        if !is_alive(process) {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{process:?} lives on");
}

fn exited(status: &str, stderr: &str) -> Down {
    Down::Exited {
        status: Some(status.to_owned()),
        stderr: stderr.to_owned(),
    }
}

// STD-01, STD-02
#[tokio::test]
async fn every_message_is_one_line_and_every_line_one_message() {
    local(async {
        let mut server = Server::start(&StdioConfig::new("test", "cat"));
        server.delivered.up().await;

        let marks: Vec<_> = (0..3_000)
            .map(|key| send(&server.link, key, &format!("[{key}]")))
            .collect();

        for key in 0..3_000 {
            let event = server.delivered.next().await;
            let Event::Frame {
                frame: Frame::Request { id, params, .. },
                ..
            } = event
            else {
                panic!("{event:?}")
            };
            assert_eq!(id, RequestId::Number(key));
            assert_eq!(params.unwrap(), format!("[{key}]"));
        }
        assert!(marks.iter().all(|mark| mark.is_written()));
    })
    .await;
}

// FR-012
#[tokio::test]
async fn large_messages_pass_both_ways_and_keep_their_place() {
    local(async {
        let mut server = Server::start(&StdioConfig::new("test", "cat"));
        server.delivered.up().await;
        let sizes = [1, 5 << 20, 2, 300 << 10, 70_000, 3, 1 << 20];

        for (key, size) in sizes.into_iter().enumerate() {
            send(&server.link, key as u64, &format!(r#"["{}"]"#, "x".repeat(size)));
        }

        for size in sizes {
            assert_eq!(server.delivered.params().await.len(), size + 4);
        }
    })
    .await;
}

// STD-09, FR-011, FR-014
#[tokio::test]
async fn line_that_is_no_message_costs_only_itself() {
    local(async {
        let mut server =
            Server::script(r"echo Server started; printf '\t\t\n\377\376\n{\n'; say 1; say []; cat").await;

        for line in ["text", "not UTF-8", "half an object", "params that are a number"] {
            let event = server.delivered.next().await;
            assert!(matches!(event, Event::Junk { .. }), "{line}: {event:?}");
        }
        assert_eq!(server.delivered.params().await, "[]");
    })
    .await;
}

// FR-013
#[tokio::test]
async fn line_over_the_limit_is_skipped_and_the_next_one_delivered() {
    local(async {
        let mut config = sh(r#"say '["'$(printf %01000d 0)'"]'; say []; cat"#);
        config.frame_limit = 500;
        let mut server = Server::start(&config);
        server.delivered.up().await;

        let event = server.delivered.next().await;

        assert!(
            matches!(
                event,
                Event::TooLarge {
                    key: None,
                    limit: 500
                }
            ),
            "{event:?}"
        );
        assert_eq!(server.delivered.params().await, "[]");
    })
    .await;
}

// FR-013
#[tokio::test]
async fn line_without_end_ends_the_connection_and_the_child() {
    local(async {
        let mut config = sh("say []; cat /dev/zero");
        config.frame_limit = 100_000;
        let mut server = Server::start(&config);
        server.delivered.up().await;

        assert_eq!(
            server.delivered.params().await,
            "[]",
            "what came before it is delivered"
        );
        assert_eq!(server.delivered.down().await, Down::TooLarge(100_000));
        server.gone().await;
    })
    .await;
}

// FR-001, FR-002
#[tokio::test]
async fn exit_is_told_with_its_status_and_the_last_of_stderr() {
    local(async {
        let mut server = Server::script("echo one >&2; echo two >&2; exit 3").await;
        assert_eq!(
            server.delivered.down().await,
            exited("exit status 3", "one\ntwo\n")
        );
        server.gone().await;

        let mut server = Server::script("kill -9 $$").await;
        assert_eq!(server.delivered.down().await, exited("signal 9 (SIGKILL)", ""));
        server.gone().await;
    })
    .await;
}

// FR-001
#[tokio::test]
async fn end_of_a_child_is_told_within_a_second() {
    local(async {
        let mut server = Server::script("read line; exit 1").await;
        send(&server.link, 1, "[]");
        let sent = Instant::now();

        assert_eq!(server.delivered.down().await, exited("exit status 1", ""));
        assert!(sent.elapsed() < Duration::from_secs(1), "{:?}", sent.elapsed());
    })
    .await;
}

#[tokio::test]
async fn last_answers_are_not_overtaken_by_the_exit() {
    local(async {
        for _ in 0..20 {
            let mut server =
                Server::script("read line; i=0; while [ $i -lt 200 ]; do say [$i]; i=$((i+1)); done; exit 7")
                    .await;
            send(&server.link, 1, "[]");

            for index in 0..200 {
                assert_eq!(server.delivered.params().await, format!("[{index}]"));
            }
            assert_eq!(server.delivered.down().await, exited("exit status 7", ""));
        }
    })
    .await;
}

// The connection is busy while the child answers and dies: what is still in the pipe is read nevertheless.
#[tokio::test]
async fn last_answers_are_not_overtaken_by_the_exit_while_the_reader_waits_for_credit() {
    local(async {
        let long = "x".repeat(800);
        let mut server = Server::script(&format!(
            "read line; i=0; while [ $i -lt 250 ]; do say \"[$i,\\\"{long}\\\"]\"; i=$((i+1)); done; exit 7"
        ))
        .await;
        send(&server.link, 1, "[]");
        timeout(Duration::from_secs(10), &mut server.gone)
            .await
            .expect("gone in time")
            .expect("told");

        for index in 0..250 {
            let params = server.delivered.params().await;
            assert!(params.starts_with(&format!("[{index},")), "{params}");
        }
        assert_eq!(server.delivered.down().await, exited("exit status 7", ""));
    })
    .await;
}

#[tokio::test]
async fn process_that_left_the_group_and_holds_the_pipes_does_not_hold_up_the_end() {
    local(async {
        let mut server = Server::script("setsid sleep 100 & say [$!]; exit 4").await;
        let stranger = server.pid().await;
        let exit = Instant::now();

        let down = server.delivered.down().await;

        kill_process(stranger, Signal::KILL).unwrap();
        assert_eq!(down, exited("exit status 4", ""));
        assert!(exit.elapsed() < Duration::from_secs(1), "{:?}", exit.elapsed());
    })
    .await;
}

#[tokio::test]
async fn closed_output_of_a_living_child_ends_the_connection() {
    local(async {
        let mut server = Server::script("echo bye >&2; exec 1>&-; sleep 100").await;

        let down = server.delivered.down().await;

        assert_eq!(
            down,
            Down::Exited {
                status: None,
                stderr: "bye\n".to_owned()
            }
        );
        server.dropped().await;
    })
    .await;
}

#[tokio::test]
async fn closed_input_of_a_living_child_ends_the_connection() {
    local(async {
        let mut server = Server::script("exec 0<&-; say []; sleep 100").await;
        server.delivered.params().await;

        // The first may still be taken: a fork of another test can hold the pipe for a moment.
        for key in 0.. {
            send(&server.link, key, "[]");
            sleep(Duration::from_millis(20)).await;
            if !server.delivered.is_empty() {
                break;
            }
        }

        let down = server.delivered.down().await;
        assert!(
            matches!(&down, Down::Io(text) if text.contains("input")),
            "{down:?}"
        );
    })
    .await;
}

// FR-009
#[tokio::test]
async fn program_that_cannot_be_started_is_told_apart_from_a_folder_that_is_missing() {
    let no_program = StdioConfig::new("test", "no-such-program-anywhere");
    let mut no_folder = StdioConfig::new("test", "cat");
    no_folder.cwd = Some(PathBuf::from("/no/such/folder"));
    let not_executable = StdioConfig::new("test", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let mut off_path = StdioConfig::new("test", "cat");
    off_path.env = vec![("PATH".to_owned(), "/nowhere".to_owned())];
    let script = scratch("no-interpreter");
    // Written by another process: a program that is open for writing, even in a fork of ours, cannot be run.
    let write = format!(
        "echo '#!/no/such/interpreter' > {0}; chmod +x {0}",
        script.display()
    );
    assert!(
        std::process::Command::new("sh")
            .args(["-c", &write])
            .status()
            .unwrap()
            .success()
    );
    let no_interpreter = StdioConfig::new("test", script.to_str().unwrap());
    type Is = fn(&StartFailure) -> bool;
    let table: [(StdioConfig, Is); 5] = [
        (
            no_program,
            |failure| matches!(failure, StartFailure::NoSuchProgram(name) if name.contains("no-such")),
        ),
        (
            no_folder,
            |failure| matches!(failure, StartFailure::NoSuchDirectory(path) if path == "/no/such/folder"),
        ),
        (not_executable, |failure| {
            matches!(failure, StartFailure::NotPermitted(_))
        }),
        (off_path, |failure| {
            matches!(failure, StartFailure::NoSuchProgram(_))
        }),
        (
            no_interpreter,
            |failure| matches!(failure, StartFailure::Other(text) if text.contains("interpreter")),
        ),
    ];
    local(async {
        for (config, is_expected) in table {
            let mut server = Server::start(&config);
            assert!(
                server.delivered.is_empty(),
                "nothing is told before `open` has returned"
            );

            let down = server.delivered.down().await;

            assert!(
                matches!(&down, Down::Start(failure) if is_expected(failure)),
                "{config:?}: {down:?}"
            );
            server.gone().await;
        }
    })
    .await;
    std::fs::remove_file(&script).unwrap();
}

#[tokio::test]
async fn child_runs_in_its_folder_with_its_arguments_and_variables() {
    local(async {
        let mut config = sh(r#"say "[\"$(pwd) $GREETING $0\"]""#);
        config.args.push("argument".to_owned());
        config.cwd = Some(PathBuf::from("/usr"));
        config.program = "../bin/sh".to_owned();
        config.env = vec![("GREETING".to_owned(), "hello".to_owned())];
        let mut server = Server::start(&config);
        server.delivered.up().await;

        assert_eq!(server.delivered.params().await, r#"["/usr hello argument"]"#);
    })
    .await;
}

// FR-015, STD-03
#[tokio::test]
async fn noisy_stderr_neither_blocks_the_child_nor_fails_it() {
    local(async {
        let mut server =
            Server::script("head -c 262144 /dev/zero | tr '\\0' x >&2; say []; i=0; while [ $i -lt 1000 ]; do echo line $i >&2; i=$((i+1)); done; exit 1").await;

        assert_eq!(server.delivered.params().await, "[]");
        let Down::Exited { stderr, .. } = server.delivered.down().await else { panic!() };
        assert!(stderr.len() <= 2_048 && stderr.len() > 1_900, "{}", stderr.len());
        assert!(stderr.starts_with("line ") && stderr.ends_with("\nline 999\n"), "{stderr}");
        assert!(server.link.stderr().len() > 60_000);
    })
    .await;
}

// STD-04
#[tokio::test]
async fn close_writes_what_is_queued_and_reads_what_is_answered() {
    local(async {
        let mut server = Server::start(&StdioConfig::new("test", "cat"));
        server.delivered.up().await;
        let large = format!(r#"["{}"]"#, "x".repeat(2 << 20));

        send(&server.link, 1, &large);
        send(&server.link, 2, "[2]");
        close(&server.link);
        close(&server.link);

        assert_eq!(server.delivered.params().await.len(), large.len());
        assert_eq!(server.delivered.params().await, "[2]");
        assert_eq!(server.delivered.down().await, Down::Closed);
        server.gone().await;
    })
    .await;
}

// STD-04, FR-005
#[tokio::test]
async fn child_that_ignores_every_polite_sign_is_killed_within_the_graces() {
    local(async {
        let mut config = sh("trap '' TERM; say [$$]; while :; do sleep 1; done");
        config.close_grace = Duration::from_millis(100);
        config.term_grace = Duration::from_millis(200);
        let mut server = Server::start(&config);
        server.delivered.up().await;
        server.delivered.params().await;
        let start = Instant::now();

        close(&server.link);

        assert_eq!(server.delivered.down().await, Down::Closed);
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(300), "{took:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
        server.gone().await;
    })
    .await;
}

// STD-04
#[tokio::test]
async fn child_that_minds_sigterm_gets_it_before_sigkill() {
    local(async {
        let mut config = sh("trap 'say [15]; exit 0' TERM; say []; while :; do sleep 0.05; done");
        config.close_grace = Duration::from_millis(100);
        config.term_grace = Duration::from_secs(10);
        let mut server = Server::start(&config);
        server.delivered.up().await;
        server.delivered.params().await;

        close(&server.link);

        assert_eq!(server.delivered.params().await, "[15]");
        assert_eq!(server.delivered.down().await, Down::Closed);
        server.gone().await;
    })
    .await;
}

// FR-003
#[tokio::test]
async fn close_ends_the_server_behind_a_launcher() {
    local(async {
        // The real server ignores end-of-file and SIGTERM; its launcher does not.
        let mut config = sh(r#"sh -c 'trap "" TERM; while :; do sleep 1; done' & say [$!]; wait"#);
        config.close_grace = Duration::from_millis(100);
        config.term_grace = Duration::from_millis(100);
        let mut server = Server::start(&config);
        server.delivered.up().await;
        let real = server.pid().await;

        close(&server.link);

        assert_eq!(server.delivered.down().await, Down::Closed);
        server.gone().await;
        dies(real).await;
    })
    .await;
}

// FR-003
#[tokio::test]
async fn crash_of_a_launcher_takes_the_server_with_it() {
    local(async {
        let mut server = Server::script("sleep 100 & say [$!]; exit 5").await;
        let real = server.pid().await;

        assert_eq!(server.delivered.down().await, exited("exit status 5", ""));
        server.gone().await;
        dies(real).await;
    })
    .await;
}

// FR-003
#[tokio::test]
async fn dropping_the_link_kills_the_whole_group_at_once() {
    local(async {
        let mut server = Server::script("trap '' TERM; say [$$]; sleep 100 & say [$!]; wait").await;
        let (leader, other) = (server.pid().await, server.pid().await);
        assert!(is_alive(leader) && is_alive(other));
        assert_eq!(server.reaper.children(), 1);
        let Server {
            link, reaper, gone, ..
        } = server;
        let start = Instant::now();

        drop(link);

        gone.await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        assert!(!is_alive(leader), "reaped");
        assert_eq!(reaper.children(), 0);
        dies(other).await;
    })
    .await;
}

#[tokio::test]
async fn close_ladder_goes_on_after_the_link_is_dropped() {
    local(async {
        let farewell = scratch("farewell");
        let script = format!(
            "cat >&2; exec 1>&-; sleep 0.3; echo saved > {}",
            farewell.display()
        );
        let mut server = Server::script(&script).await;

        close(&server.link);
        assert_eq!(server.delivered.down().await, Down::Closed);
        let Server { link, gone, .. } = server;
        drop(link);

        gone.await.unwrap();
        assert_eq!(std::fs::read_to_string(&farewell).unwrap(), "saved\n");
        std::fs::remove_file(&farewell).unwrap();
    })
    .await;
}

// FR-004
#[test]
fn end_of_the_runtime_leaves_no_process() {
    for is_set_dropped_first in [true, false] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let set = LocalSet::new();
        let children = Arc::new(AtomicUsize::new(0));
        let reaper = Reaper::with_counter(children.clone());
        let (events, mut delivered) = events();
        let script = sh("trap '' TERM; sleep 100 & say [$!]; say [$$]; wait");
        let (tell, mut gone) = oneshot::channel();
        let (link, other, leader) = set.block_on(&runtime, async {
            let link = stdio::open(&script, events, &reaper, tell);
            delivered.up().await;
            let other = pid(&delivered.params().await);
            (link, other, pid(&delivered.params().await))
        });
        assert_eq!(children.load(Ordering::Relaxed), 1);

        if is_set_dropped_first {
            drop(set);
            drop(runtime);
        } else {
            drop(runtime);
            drop(set);
        }

        assert!(!is_alive(leader), "killed and reaped without a runtime");
        assert_eq!(children.load(Ordering::Relaxed), 0);
        assert!(gone.try_recv().is_ok());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(dies(other));
        drop(link);
    }
}

// FR-016
#[tokio::test]
async fn unsent_message_can_be_taken_back_from_a_server_that_stops_reading() {
    local(async {
        let mut config = sh("say []; sleep 100");
        config.close_grace = Duration::from_millis(100);
        config.term_grace = Duration::from_millis(100);
        let mut server = Server::start(&config);
        server.delivered.up().await;
        server.delivered.params().await;
        let large = format!(r#"["{}"]"#, "x".repeat(2 << 20));

        let begun = send(&server.link, 1, &large);
        while !begun.is_written() {
            yield_now().await;
        }
        let unsent = send(&server.link, 2, "[]");
        let also_unsent = send(&server.link, 3, "[]");
        abort(&server.link, 2);
        abort(&server.link, 1);
        abort(&server.link, 99);

        assert!(matches!(server.delivered.ended().await, (2, Ended::Removed)));
        assert!(matches!(server.delivered.ended().await, (1, Ended::AlreadySent)));
        assert!(matches!(server.delivered.ended().await, (99, Ended::AlreadySent)));
        close(&server.link);
        assert_eq!(server.delivered.down().await, Down::Closed);
        assert!(begun.is_written());
        assert!(!unsent.is_written() && !also_unsent.is_written());
        server.gone().await;
    })
    .await;
}

// FR-016
#[tokio::test]
async fn commands_are_taken_while_the_pipe_is_full() {
    local(async {
        let mut config = StdioConfig::new("test", "sleep");
        config.args = vec!["100".to_owned()];
        config.queue = 4;
        let mut server = Server::start(&config);
        server.delivered.up().await;
        let params = format!(r#"["{}"]"#, "x".repeat(50_000));

        let mut unsent = 0;
        for key in 0..100 {
            let mark = send(&server.link, key, &params);
            yield_now().await;
            yield_now().await;
            unsent += usize::from(!mark.is_written());
        }

        assert!(unsent > 50, "{unsent}");
    })
    .await;
}

#[tokio::test]
async fn full_queue_refuses_and_does_not_wait() {
    local(async {
        let mut config = StdioConfig::new("test", "cat");
        config.queue = 2;
        let server = Server::start(&config);

        send(&server.link, 1, "[]");
        send(&server.link, 2, "[]");
        let post = Post {
            command: callboard_proto::wire::Command::Close,
            mark: None,
        };

        assert_eq!(server.link.post(post), Err(NotTaken::Full));
    })
    .await;
}

// FR-016
#[tokio::test]
async fn server_that_reads_nothing_for_too_long_is_given_up() {
    local(async {
        let mut config = StdioConfig::new("test", "sleep");
        config.args = vec!["100".to_owned()];
        config.stall_limit = Duration::from_millis(200);
        let mut server = Server::start(&config);
        server.delivered.up().await;
        let start = Instant::now();

        let mark = send(&server.link, 1, &format!(r#"["{}"]"#, "x".repeat(2 << 20)));

        assert_eq!(server.delivered.down().await, Down::NotReading);
        assert!(start.elapsed() >= Duration::from_millis(200));
        assert!(mark.is_written());
    })
    .await;
}

#[tokio::test]
async fn server_that_reads_slowly_is_not_given_up() {
    local(async {
        let mut config = sh("while head -c 100000 >/dev/null; do sleep 0.1; done & sleep 1; say []; wait");
        // In the background a shell's stdin is /dev/null unless it is said otherwise.
        config.args[1] = config.args[1]
            .replace("done &", "done <&3 &")
            .replace("while", "exec 3<&0; while");
        config.stall_limit = Duration::from_millis(400);
        let mut server = Server::start(&config);
        server.delivered.up().await;

        send(&server.link, 1, &format!(r#"["{}"]"#, "x".repeat(8 << 20)));

        assert_eq!(server.delivered.params().await, "[]");
    })
    .await;
}

#[tokio::test]
async fn reader_waits_for_a_connection_that_is_slow() {
    local(async {
        let mut server =
            Server::script("i=0; while [ $i -lt 20000 ]; do say [$i]; i=$((i+1)); done; cat").await;

        // Nobody takes a batch meanwhile: what is on its way is bounded by the credit.
        sleep(Duration::from_millis(500)).await;

        for index in 0..20_000 {
            assert_eq!(server.delivered.params().await, format!("[{index}]"));
        }
    })
    .await;
}
