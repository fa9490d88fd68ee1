//! From the text of a URL to the way to a server: Streamable HTTP, or a Unix socket.

use std::path::PathBuf;
use url::Url;

/// What a URL names.
pub(super) enum Target {
    Http(Url),
    Unix(PathBuf),
}

/// Reads a URL; what is wrong with it is told without showing anything of it but its scheme.
pub(super) fn read(text: &str) -> Result<Target, String> {
    let url: Url = text.parse().map_err(|error: url::ParseError| error.to_string())?;
    match url.scheme() {
        "http" | "https" if url.host_str().is_none_or(str::is_empty) => Err("it has no host".to_owned()),
        "http" | "https" => Ok(Target::Http(url)),
        "unix" => socket(&url).map(Target::Unix),
        other => Err(format!("its scheme is `{other}`; use http, https or unix")),
    }
}

/// The path of `unix:///run/x.sock`, its `%20` and the like decoded.
fn socket(url: &Url) -> Result<PathBuf, String> {
    if url.has_host() && url.host_str().is_some_and(|host| !host.is_empty()) {
        // The first folder was taken for a host.
        return Err("a unix URL has no host; write three slashes, unix:///run/x.sock".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("a unix URL is nothing but a path; write `?` as %3F and `#` as %23".to_owned());
    }
    if url.cannot_be_a_base() || url.path().trim_matches('/').is_empty() {
        return Err("a unix URL has the whole path of a socket, unix:///run/x.sock".to_owned());
    }
    url.to_file_path()
        .map_err(|()| "its path cannot be that of a socket".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_an_endpoint_or_a_socket() {
        let table = [
            ("http://h/mcp", Ok("http://h/mcp")),
            ("https://h", Ok("https://h/")),
            ("unix:///run/x.sock", Ok("/run/x.sock")),
            ("UNIX:///run/x.sock", Ok("/run/x.sock")),
            ("unix:/run/x.sock", Ok("/run/x.sock")),
            ("unix:///a%20b/%3F%23%25.sock", Ok("/a b/?#%.sock")),
            ("unix:///run/ä.sock", Ok("/run/ä.sock")),
            ("unix://run/x.sock", Err("three slashes")),
            ("unix://user@/x", Err("")),
            ("unix:x.sock", Err("the whole path")),
            ("unix:", Err("the whole path")),
            ("unix:///", Err("the whole path")),
            ("unix:///x.sock?a", Err("%3F")),
            ("unix:///x.sock#a", Err("%23")),
            ("http://", Err("host")),
            ("ws://h", Err("`ws`; use http, https or unix")),
            ("x", Err("relative URL")),
        ];
        for (text, expected) in table {
            let read = read(text).map(|target| match target {
                Target::Http(url) => url.to_string(),
                Target::Unix(path) => path.display().to_string(),
            });
            match (&read, expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read, expected, "{text}"),
                (Err(told), Err(words)) => assert!(told.contains(words), "{text}: {told}"),
                _ => panic!("{text}: {read:?}"),
            }
        }
    }
}
