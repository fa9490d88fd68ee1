//! Where a redirect leads, and whether a request follows it.

use http::{HeaderValue, StatusCode, Uri};
use url::Url;

/// Whether an answer sends its request elsewhere. 300, 304 and the retired ones are refusals like others.
pub(super) fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Whether an answer may mean that there is no server any more where a redirect had led to.
pub(super) fn is_gone(status: StatusCode) -> bool {
    matches!(status.as_u16(), 404 | 410 | 421) || status.is_server_error()
}

/// Where the request that was answered with `status` and `location` at `from` is to be sent, as it was.
///
/// Only within the origin: headers hold credentials (HTTP-12). 301 and 302 keep the method as 307 and 308 do; what
/// browsers make of them, a GET without a body, no MCP server answers.
///
/// # Errors
///
/// It is not to be followed, as text for a user: without path and query of the target, and what to do about it.
pub(super) fn target(from: &Url, status: StatusCode, location: Option<&HeaderValue>) -> Result<Url, String> {
    let status = status.as_u16();
    let location = location
        .and_then(|location| std::str::from_utf8(location.as_bytes()).ok())
        .and_then(|location| from.join(location.trim()).ok())
        .filter(|to| matches!(to.scheme(), "http" | "https") && to.has_host());
    let Some(mut to) = location else {
        return Err(format!(
            "the server redirects ({status}) without saying where to; look at what stands before it"
        ));
    };
    if to.origin() != from.origin() {
        let origin = to.origin().ascii_serialization();
        let advice = if (from.scheme(), to.scheme()) == ("https", "http") {
            "which is not encrypted; have that mended at the server"
        } else {
            "another origin, which gets no credentials; change the URL of the server if it has moved there, or \
             check the credentials if that is a sign-in page"
        };
        return Err(format!("the server redirects ({status}) to {origin}, {advice}"));
    }
    to.set_fragment(None);
    // Both fail only for URLs that cannot have userinfo.
    let _ = to.set_username("");
    let _ = to.set_password(None);
    Ok(to)
}

/// What a request asked for, to join an address to.
///
/// # Errors
///
/// It is no URL, as text for a user.
pub(super) fn url(uri: &Uri) -> Result<Url, String> {
    Url::parse(&uri.to_string()).map_err(|error| error.to_string())
}

/// An address for errors: without userinfo, query and fragment, which may be secrets.
pub(super) fn shown(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

/// How often one request is sent on.
pub(super) const HOPS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    // HTTP-12, FR-057
    #[test]
    fn redirects_are_followed_within_the_origin_only() {
        let table: &[(&str, &str, Result<&str, &str>)] = &[
            ("http://h/mcp", "/mcp/", Ok("http://h/mcp/")),
            ("http://h/mcp", "mcp/", Ok("http://h/mcp/")),
            ("http://h/a/b", "?x=1", Ok("http://h/a/b?x=1")),
            ("http://h/mcp", "http://h/mcp/", Ok("http://h/mcp/")),
            ("http://h/mcp", "HTTP://H:80/mcp/", Ok("http://h/mcp/")),
            ("https://h/mcp", "//h:443/x", Ok("https://h/x")),
            ("http://h/mcp", " /mcp/ ", Ok("http://h/mcp/")),
            ("http://h/mcp", "http://user:pass@h/x#part", Ok("http://h/x")),
            (
                "http://h:8080/mcp",
                "http://h/mcp",
                Err("to http://h, another origin"),
            ),
            (
                "http://h/mcp",
                "https://h/mcp?code=secret",
                Err("to https://h, another origin"),
            ),
            (
                "https://h/mcp",
                "http://h/mcp",
                Err("to http://h, which is not encrypted"),
            ),
            (
                "http://h/mcp",
                "http://u:secret@o/secret?secret",
                Err("to http://o, another origin"),
            ),
            ("http://h/mcp", "//o/x", Err("to http://o, another origin")),
            (
                "http://h/mcp",
                "http://h.evil/x",
                Err("to http://h.evil, another origin"),
            ),
            ("http://h/mcp", "http://", Err("without saying where to")),
            (
                "http://h/mcp",
                "file:///etc/passwd",
                Err("without saying where to"),
            ),
            (
                "http://h/mcp",
                "javascript:alert(1)",
                Err("without saying where to"),
            ),
        ];
        for (from, location, expected) in table {
            let from = from.parse().unwrap();
            let location = HeaderValue::from_static(location);
            let to = target(&from, StatusCode::TEMPORARY_REDIRECT, Some(&location));

            match (&to, expected) {
                (Ok(to), Ok(expected)) => assert_eq!(to.as_str(), *expected, "{location:?}"),
                (Err(text), Err(expected)) => {
                    assert!(
                        text.contains(expected) && !text.contains("secret"),
                        "{location:?}: {text}"
                    );
                }
                _ => panic!("{from} to {location:?}: {to:?}"),
            }
        }
        assert!(target(&"http://h/".parse().unwrap(), StatusCode::FOUND, None).is_err());
    }

    #[test]
    fn only_five_statuses_redirect() {
        let followed: Vec<u16> = (300..400)
            .filter(|status| is_redirect(StatusCode::from_u16(*status).unwrap()))
            .collect();
        assert_eq!(followed, [301, 302, 303, 307, 308]);
    }
}
