//! From a configuration to a running child, or to the reason why there is none.

use super::StdioConfig;
use super::guardian;
use super::reaper::{Group, Process};
use crate::{Events, queue};
use callboard_proto::wire::{Down, StartFailure};
use process_wrap::tokio::{CommandWrap, ProcessGroup};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};

/// A child that has just been started, and our ends of its pipes.
pub(super) struct Spawned {
    pub(super) process: Process,
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

/// Starts the child in a process group of its own.
///
/// What is wrong is looked for here, before the system is asked: it answers a missing program, a missing
/// directory and a script without its interpreter alike.
pub(super) fn spawn(config: &StdioConfig) -> Result<Spawned, StartFailure> {
    check(config)?;
    let env = environment(config, std::env::vars_os());
    let cwd = directory(config.cwd.as_deref())?;
    let program = resolve(&config.program, search_path(&env), &cwd)?;
    let mut command = Command::new(&program);
    command
        .arg0(&config.program)
        .args(&config.args)
        .env_clear()
        .envs(env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if config.cwd.is_some() {
        command.current_dir(&cwd);
    }
    let mut command = CommandWrap::from(command);
    command.wrap(ProcessGroup::leader());
    guardian::prepare();
    let mut child = command
        .spawn()
        .map_err(|error| explain(&config.program, &error))?;
    let group = child.id().and_then(Group::new);
    let pipes = (child.stdin().take(), child.stdout().take(), child.stderr().take());
    let (Some(group), (Some(stdin), Some(stdout), Some(stderr))) = (group, pipes) else {
        // Cannot be: all three were asked for, and nobody has waited for the child.
        let _ = child.start_kill();
        return Err(StartFailure::Other("the child has no pipes".to_owned()));
    };
    let process = Process {
        ward: guardian::enlist(group.id()),
        child,
        group,
    };
    widen(&stdin);
    widen(&stdout);
    Ok(Spawned {
        process,
        stdin,
        stdout,
        stderr,
    })
}

/// Refuses what no program can be given.
fn check(config: &StdioConfig) -> Result<(), StartFailure> {
    let has_nul = |text: &str| text.contains('\0');
    let fault = if config.program.is_empty() {
        "`command` is empty".to_owned()
    } else if has_nul(&config.program) {
        "`command` has a NUL character in it".to_owned()
    } else if let Some(index) = config.args.iter().position(|arg| has_nul(arg)) {
        format!("`args` has a NUL character in its argument {}", index + 1)
    } else if let Some((name, _)) = config.env.iter().find(|(name, _)| !is_name(name)) {
        format!("`env` has the variable {name:?}; a name is not empty, and has neither `=` nor NUL in it")
    } else if let Some((name, _)) = config.env.iter().find(|(_, value)| has_nul(value)) {
        format!("`env` has a NUL character in the value of `{name}`")
    } else if config
        .cwd
        .as_deref()
        .is_some_and(|cwd| cwd.as_os_str().as_bytes().contains(&0))
    {
        "`cwd` has a NUL character in it".to_owned()
    } else {
        return Ok(());
    };
    Err(StartFailure::Unusable(fault))
}

/// Whether a variable may be called so.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Tells that there is no child; until then, commands find the queue open, and nobody reading it.
pub(super) async fn refuse(failure: StartFailure, events: Events, posts: queue::Receiver) {
    events.down(Down::Start(failure));
    drop(posts);
}

/// The child's environment: the harmless part of `host`, or all of it, and over it the configured variables.
fn environment(
    config: &StdioConfig,
    host: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let inherited = host.filter(|(name, value)| config.inherit_env || is_harmless(name, value));
    let configured = config.env.iter().map(|(name, value)| (name.into(), value.into()));
    inherited.chain(configured).collect()
}

/// Whether a variable may be given to any server: what programs need to find their way, and no secrets.
fn is_harmless(name: &OsStr, value: &OsStr) -> bool {
    const NAMES: [&str; 12] = [
        "HOME",
        "LANG",
        "LOGNAME",
        "NODE_EXTRA_CA_CERTS",
        "PATH",
        "SHELL",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TERM",
        "TMPDIR",
        "TZ",
        "USER",
    ];
    // Written in either case in practice, and some programs know only the one or the other.
    const PROXIES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
    const PREFIXES: [&str; 4] = ["LC_", "UV_", "XDG_", "npm_config_"];
    let Some(name) = name.to_str() else { return false };
    // An exported shell function: code, not data.
    !value.as_bytes().starts_with(b"()")
        && (NAMES.contains(&name)
            || PROXIES.iter().any(|proxy| proxy.eq_ignore_ascii_case(name))
            || PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

/// The child's `PATH`, or what the system takes where there is none.
fn search_path(env: &[(OsString, OsString)]) -> &OsStr {
    let last = env.iter().rev().find(|(name, _)| name == "PATH");
    last.map_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"), |(_, value)| value)
}

/// The absolute working directory, which exists and may be entered.
fn directory(cwd: Option<&Path>) -> Result<PathBuf, StartFailure> {
    let Some(cwd) = cwd else {
        return std::env::current_dir().map_err(|error| StartFailure::Other(error.to_string()));
    };
    let shown = || cwd.display().to_string();
    let absolute = std::path::absolute(cwd).map_err(|_| StartFailure::NoSuchDirectory(shown()))?;
    // To look at `.` inside of it takes the very permission that entering it takes.
    match std::fs::metadata(absolute.join(".")) {
        Ok(_) => Ok(absolute),
        Err(error) => Err(match error.kind() {
            ErrorKind::PermissionDenied => StartFailure::DirectoryNotPermitted(shown()),
            ErrorKind::NotADirectory => StartFailure::NotADirectory(shown()),
            _ => StartFailure::NoSuchDirectory(shown()),
        }),
    }
}

/// The program's absolute path: as the child's shell would find it, seen from its working directory.
fn resolve(program: &str, path: &OsStr, cwd: &Path) -> Result<PathBuf, StartFailure> {
    let candidates: Vec<PathBuf> = if program.contains('/') {
        vec![cwd.join(program)]
    } else {
        std::env::split_paths(path)
            .map(|directory| cwd.join(directory).join(program))
            .collect()
    };
    let mut failure = StartFailure::NoSuchProgram(program.to_owned());
    for candidate in candidates {
        match std::fs::metadata(&candidate) {
            Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => return Ok(candidate),
            Ok(found) if found.is_file() => failure = StartFailure::NotPermitted(program.to_owned()),
            // A directory of the program's name on `PATH` is nothing, and so is one that may not be searched.
            _ if !program.contains('/') => {}
            Ok(_) => failure = StartFailure::IsDirectory(program.to_owned()),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                failure = StartFailure::NotPermitted(program.to_owned());
            }
            Err(_) => {}
        }
    }
    Err(failure)
}

/// What the system's refusal means, directory and program being there.
fn explain(program: &str, error: &io::Error) -> StartFailure {
    match Errno::from_io_error(error) {
        Some(Errno::ACCESS | Errno::PERM) => StartFailure::NotPermitted(program.to_owned()),
        Some(Errno::NOENT | Errno::NOTDIR) => StartFailure::NoInterpreter(program.to_owned()),
        Some(Errno::NOEXEC) => StartFailure::NotAProgram(program.to_owned()),
        Some(Errno::TOOBIG) => StartFailure::Unusable(
            "the arguments and the environment are longer than the system allows; shorten `args` or `env`"
                .to_owned(),
        ),
        _ => StartFailure::Other(error.to_string()),
    }
}

/// Asks for a larger pipe, so that one read or write carries more messages; a refusal does no harm.
#[cfg(target_os = "linux")]
fn widen(pipe: impl std::os::fd::AsFd) {
    const PIPE: usize = 256 << 10;
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE);
}

#[cfg(not(target_os = "linux"))]
fn widen<P>(_pipe: P) {}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(config: &StdioConfig, host: &[(&str, &str)]) -> Vec<String> {
        let host = host
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let names = environment(config, host)
            .into_iter()
            .map(|(name, _)| name.into_string());
        names.map(Result::unwrap).collect()
    }

    #[test]
    fn child_gets_what_is_harmless_and_what_is_configured() {
        let host = [
            ("PATH", "/bin"),
            ("LC_ALL", "C"),
            ("https_proxy", "p"),
            ("npm_config_cache", "/c"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("GITHUB_TOKEN", "t"),
            ("PATHOLOGY", "x"),
            ("TERM", "() { :; }"),
        ];
        let mut config = StdioConfig::new("a", "b");
        config.env = vec![("API_KEY".to_owned(), "k".to_owned())];

        assert_eq!(
            names(&config, &host),
            ["PATH", "LC_ALL", "https_proxy", "npm_config_cache", "API_KEY"]
        );

        config.inherit_env = true;
        assert_eq!(names(&config, &host).len(), host.len() + 1);
    }

    // FR-009
    #[test]
    fn what_is_wrong_with_the_command_is_named() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = OsStr::new("/nowhere:.:/bin");
        let no_program = |name: &str| Err(StartFailure::NoSuchProgram(name.to_owned()));
        let not_permitted = |name: &str| Err(StartFailure::NotPermitted(name.to_owned()));

        assert_eq!(resolve("sh", path, here), Ok(PathBuf::from("/bin/sh")));
        assert_eq!(
            resolve("bin/sh", path, Path::new("/")),
            Ok(PathBuf::from("/bin/sh"))
        );
        assert_eq!(
            resolve("sh", OsStr::new("bin"), Path::new("/")),
            Ok(PathBuf::from("/bin/sh"))
        );
        assert_eq!(
            resolve("no-such-program", path, here),
            no_program("no-such-program")
        );
        assert_eq!(resolve("./sh", path, here), no_program("./sh"));
        assert_eq!(
            resolve("src", path, here),
            no_program("src"),
            "a directory is not looked for"
        );
        let directory = Err(StartFailure::IsDirectory("./src".to_owned()));
        assert_eq!(resolve("./src", path, here), directory);
        assert_eq!(
            resolve("sh", OsStr::new(":/nowhere"), Path::new("/bin")),
            Ok(PathBuf::from("/bin/sh")),
            "an empty entry is the working directory"
        );
        assert_eq!(resolve("./Cargo.toml", path, here), not_permitted("./Cargo.toml"));
        assert_eq!(resolve("Cargo.toml", path, here), not_permitted("Cargo.toml"));
    }

    #[test]
    fn debug_of_a_configuration_shows_no_value_of_the_environment() {
        let mut config = StdioConfig::new("a", "b");
        config.env = vec![("API_KEY".to_owned(), "planted-secret".to_owned())];

        let shown = format!("{config:?}");

        assert!(
            shown.contains("API_KEY") && !shown.contains("planted-secret"),
            "{shown}"
        );
    }
}
