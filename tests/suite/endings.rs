//! How a program may end, and that no server and no guardian outlives it.

use crate::support::{eventually, secs};
use callboard::{Hub, HubBuilder, ServerConfig};
use callboard_testkit::{Script, StdioScript};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;
use tokio::time::timeout;

/// Behind each launcher is a real server, and neither minds SIGTERM or the end of its input.
const LAUNCHER: &str = r#"trap '' TERM; exec 3<&0; "$SUITE_PROGRAM" <&3 & exec 3<&- 0<&-; wait"#;
const SERVERS: usize = 20;

/// Its value is the mark of a run, which the host and all its servers have in their environment.
const MARK: &str = "SUITE_MARK";
/// Which ending the host is to play.
const ENDING: &str = "SUITE_ENDING";
/// The host's word that it waits for one of ours.
const WAITING: &str = "waiting for a word";

/// A way in which a program that holds servers ends.
struct Ending {
    name: &'static str,
    /// What the program does.
    host: fn(),
    /// What is done to it.
    act: fn(Pid),
    /// Its exit code, or else the signal it dies of.
    status: Result<i32, i32>,
}

const ENDINGS: [Ending; 7] = [
    Ending {
        name: "kill -9",
        host: || {
            let _held = Held::start();
            wait_for_a_word();
        },
        act: |host| kill_process(host, Signal::KILL).unwrap(),
        status: Err(9),
    },
    Ending {
        name: "Ctrl-C, which goes to the whole group",
        host: || {
            let _held = Held::start();
            wait_for_a_word();
        },
        act: |host| kill_process_group(host, Signal::INT).unwrap(),
        status: Err(2),
    },
    Ending {
        name: "a panic in main",
        host: || {
            let _held = Held::start();
            wait_for_a_word();
            panic!("as asked");
        },
        act: |_| {},
        status: Ok(101),
    },
    Ending {
        name: "a hub dropped without shutdown at the end of main",
        host: || {
            let held = Held::start();
            wait_for_a_word();
            drop(held.hub);
        },
        act: |_| {},
        status: Ok(0),
    },
    Ending {
        name: "a runtime that ends while the hub lives, and an exit",
        host: || {
            let Held { runtime, hub: _hub } = Held::start();
            wait_for_a_word();
            drop(runtime);
            std::process::exit(3);
        },
        act: |_| {},
        status: Ok(3),
    },
    Ending {
        name: "the runtime of a local hub ends while the hub lives, and the process",
        host: || {
            let runtime = runtime();
            let set = LocalSet::new();
            let hub = set.block_on(&runtime, async {
                let hub = twenty().start_local().unwrap();
                ready(&hub).await;
                hub
            });
            wait_for_a_word();
            drop(set);
            drop(runtime);
            wait_for_a_word();
            drop(hub);
        },
        act: |_| {},
        status: Ok(0),
    },
    Ending {
        name: "a shutdown in order",
        host: || {
            let Held { runtime, hub } = Held::start();
            wait_for_a_word();
            runtime.block_on(hub.shutdown(secs(0)));
            assert_eq!(hub.counts().children, 0, "the guardian is no child");
            wait_for_a_word();
        },
        act: |_| {},
        status: Ok(0),
    },
];

// FR-003, FR-004
#[tokio::test]
async fn no_server_outlives_its_program_however_that_ends() {
    for (index, ending) in ENDINGS.iter().enumerate() {
        let row = ending.name;
        let servers = StdioScript::new(&Script::modern().read_and_ignore()).unwrap();
        let mark = format!("{}-{index}", std::process::id());
        let mut host = Host::start(row, &mark, &servers);
        assert!(host.waits().await, "{row}");
        assert_eq!(
            marked(&mark).len(),
            1 + 2 * SERVERS,
            "{row}: host, launchers, servers"
        );
        let guardians = guardians(host.pid);
        assert_eq!(guardians.len(), 1, "{row}");

        (ending.act)(host.pid);
        host.word().await;
        if host.waits().await {
            // The program lives on, without its servers.
            within_5_s(row, || marked(&mark) == [host.pid]).await;
            host.word().await;
        }
        let status = timeout(secs(10), host.process.wait()).await.expect(row).unwrap();

        assert_eq!(
            status.code().ok_or(status.signal().unwrap_or(0)),
            ending.status,
            "{row}"
        );
        within_5_s(row, || marked(&mark).is_empty() && !is_guardian(guardians[0])).await;
    }
}

async fn within_5_s(row: &str, condition: impl FnMut() -> bool) {
    let waited = timeout(secs(5), eventually(row, condition)).await;
    assert!(waited.is_ok(), "{row}: something is left");
}

/// Not a test by itself but the program that the test above starts and ends.
#[test]
#[ignore = "played by `no_server_outlives_its_program_however_that_ends`"]
fn host() {
    let Ok(name) = std::env::var(ENDING) else { return };
    let ending = ENDINGS.iter().find(|ending| ending.name == name).unwrap();
    (ending.host)();
}

/// Says that it waits, and waits until it may go on.
fn wait_for_a_word() {
    println!("{WAITING}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// What a program has that uses this library.
struct Held {
    runtime: Runtime,
    hub: Hub,
}

impl Held {
    fn start() -> Self {
        let runtime = runtime();
        let hub = runtime.block_on(async {
            let hub = twenty().start().unwrap();
            ready(&hub).await;
            hub
        });
        Self { runtime, hub }
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

fn twenty() -> HubBuilder {
    Hub::builder("suite", "1").servers((0..SERVERS).map(|index| {
        ServerConfig::stdio(format!("server-{index}"), "sh")
            .args(["-c", LAUNCHER])
            .inherit_env()
    }))
}

async fn ready(hub: &Hub) {
    for server in hub.servers() {
        let client = hub.client(server.name.as_str()).unwrap();
        client.ready().within(secs(30)).await.unwrap();
    }
}

/// The program under test: this one, started once more.
struct Host {
    process: Child,
    pid: Pid,
    mark: String,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Host {
    fn start(ending: &str, mark: &str, servers: &StdioScript) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "endings::host", "--ignored", "--nocapture"])
            .env(ENDING, ending)
            .env(MARK, mark)
            .env("SUITE_PROGRAM", servers.program())
            .envs(servers.env())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            pid: Pid::from_raw(process.id().unwrap().try_into().unwrap()).unwrap(),
            stdin: process.stdin.take().unwrap(),
            lines: BufReader::new(process.stdout.take().unwrap()).lines(),
            mark: mark.to_owned(),
            process,
        }
    }

    /// Whether it comes to wait for a word, and not to its end.
    async fn waits(&mut self) -> bool {
        let waits = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if line.contains(WAITING) {
                    return true;
                }
            }
            false
        };
        timeout(secs(60), waits).await.unwrap()
    }

    async fn word(&mut self) {
        // It may be dead.
        let _ = self.stdin.write_all(b"\n").await;
    }
}

/// A test that fails leaves nothing behind either.
impl Drop for Host {
    fn drop(&mut self) {
        for pid in marked(&self.mark) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The processes that have this mark in their environment; the dead have none.
fn marked(mark: &str) -> Vec<Pid> {
    let entry = format!("{MARK}={mark}");
    let is_marked = |pid: &Pid| {
        let environment = proc(*pid, "environ");
        environment.split('\0').any(|variable| variable == entry)
    };
    processes().filter(is_marked).collect()
}

fn guardians(of: Pid) -> Vec<Pid> {
    let parent = format!("PPid:\t{}\n", of.as_raw_pid());
    let is_ours = |pid: &Pid| is_guardian(*pid) && proc(*pid, "status").contains(&parent);
    processes().filter(is_ours).collect()
}

fn is_guardian(pid: Pid) -> bool {
    proc(pid, "cmdline").contains("\0callboard-guardian\0")
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?))
}

/// What the system tells of a process; nothing, where it is gone.
fn proc(pid: Pid, file: &str) -> String {
    let bytes = fs::read(format!("/proc/{}/{file}", pid.as_raw_pid()));
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}
