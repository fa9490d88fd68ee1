//! The way to a server over HTTP: proxies, certificates, sockets.

use super::{HttpSettings, Reach, ServerConfig};
use crate::error::ConfigError;
use callboard_transport::http::{Proxy, Tls};
use std::path::Path;

/// Settings of servers over HTTP, ignored for all others.
impl ServerConfig {
    /// The proxy on the way to the server, `http://host:port`, with userinfo where it wants credentials. Through it
    /// an `https` server is reached in a tunnel. Only proxies that are themselves spoken to over `http` will do.
    ///
    /// Default: what `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` say for the server's address, in capitals
    /// or not, when the hub starts; and none for a server on this machine.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Server`] for what is no such URL.
    pub fn proxy(mut self, url: &str) -> Result<Self, ConfigError> {
        let proxy = url.parse().map_err(|reason| ConfigError::Server {
            server: self.name.clone(),
            reason: format!("the proxy cannot be used, {reason}"),
        })?;
        if let Some(http) = self.http_settings() {
            http.proxy = Proxy::Through(proxy);
        }
        Ok(self)
    }

    /// Reaches the server directly, whatever proxy the environment names.
    #[must_use]
    pub fn no_proxy(mut self) -> Self {
        if let Some(http) = self.http_settings() {
            http.proxy = Proxy::Direct;
        }
        self
    }

    /// Trusts the certificates that these authorities issue: one PEM certificate or more. Beside them Mozilla's roots
    /// are trusted, and what the variables `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Certificate`].
    pub fn ca_certificate(self, pem: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        self.tls("the CA certificate", |tls| tls.authority(pem.as_ref()))
    }

    /// The same as [`ca_certificate`](Self::ca_certificate), from a file that is read at once.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Certificate`], which names the file.
    pub fn ca_certificate_file(self, path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        self.tls(&path.display().to_string(), |tls| tls.authority(&read(path)?))
    }

    /// Shows this certificate to a server that asks for one (mutual TLS): PEM of the certificate, then of those that
    /// vouch for it, and PEM of its private key, which is a secret.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Certificate`], also where the two do not belong together.
    pub fn client_certificate(
        self,
        chain_pem: impl AsRef<[u8]>,
        key_pem: impl AsRef<[u8]>,
    ) -> Result<Self, ConfigError> {
        self.tls("the client certificate", |tls| {
            tls.identity(chain_pem.as_ref(), key_pem.as_ref())
        })
    }

    /// The same as [`client_certificate`](Self::client_certificate), from two files, or one twice, that are read at
    /// once.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Certificate`], which names the files.
    pub fn client_certificate_files(
        self,
        chain: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, ConfigError> {
        let (chain, key) = (chain.as_ref(), key.as_ref());
        let both = format!("{} with {}", chain.display(), key.display());
        self.tls(&both, |tls| tls.identity(&read(chain)?, &read(key)?))
    }

    /// How many requests may have a socket each at the server's origin, where it speaks HTTP/1.1; later ones wait
    /// within their limits, and are not sent till then. Listening, signs of life, notifications and answers to the
    /// server are not counted. Servers at one origin that live on one thread of the hub share the places, and the one counts that
    /// allows the most. Default: as many as may be on the wire, [`max_in_flight`](Self::max_in_flight) and a reserve of 16
    /// for what must not wait behind calls; with fewer sockets than that it may have to.
    #[must_use]
    pub fn max_sockets(mut self, sockets: usize) -> Self {
        if let Some(http) = self.http_settings() {
            http.sockets = Some(sockets.max(1));
        }
        self
    }

    fn tls(
        mut self,
        what: &str,
        change: impl FnOnce(&Tls) -> Result<Tls, String>,
    ) -> Result<Self, ConfigError> {
        let server = self.name.clone();
        if let Some(http) = self.http_settings() {
            http.tls = change(&http.tls).map_err(|reason| ConfigError::Certificate {
                server,
                what: what.to_owned(),
                reason,
            })?;
        }
        Ok(self)
    }

    fn http_settings(&mut self) -> Option<&mut HttpSettings> {
        match &mut self.reach {
            Reach::Http(http) => Some(http),
            Reach::Stdio(_) | Reach::Unix(_) | Reach::Memory(_) | Reach::Custom(_) => None,
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("`{}` cannot be read, {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_refused_with_its_place() {
        let docs = || ServerConfig::http("docs", "https://docs.example/mcp").unwrap();
        let empty = std::env::temp_dir().join(format!("callboard-empty-{}.pem", std::process::id()));
        std::fs::write(&empty, "no certificate").unwrap();
        let empty_name = empty.display();

        let table = [
            (
                docs().proxy("socks5://user:secret@proxy:1080").unwrap_err(),
                "server `docs`: the proxy cannot be used, only proxies spoken to over http:// are supported".to_owned(),
            ),
            (
                docs().ca_certificate("secret").unwrap_err(),
                "server `docs`: the CA certificate cannot be used, there is no PEM certificate in it".to_owned(),
            ),
            (
                docs().ca_certificate_file(&empty).unwrap_err(),
                format!("server `docs`: {empty_name} cannot be used, there is no PEM certificate in it"),
            ),
            (
                docs().ca_certificate_file("/nowhere/ca.pem").unwrap_err(),
                "server `docs`: /nowhere/ca.pem cannot be used, `/nowhere/ca.pem` cannot be read, No such file or \
                 directory (os error 2)"
                    .to_owned(),
            ),
            (
                docs().client_certificate_files(&empty, "/nowhere/key.pem").unwrap_err(),
                format!(
                    "server `docs`: {empty_name} with /nowhere/key.pem cannot be used, `/nowhere/key.pem` cannot be \
                     read, No such file or directory (os error 2)"
                ),
            ),
            (
                docs().client_certificate("secret", "secret").unwrap_err(),
                "server `docs`: the client certificate cannot be used, there is no PEM certificate in it".to_owned(),
            ),
        ];

        std::fs::remove_file(&empty).unwrap();
        for (error, expected) in table {
            assert_eq!(error.to_string(), expected);
        }
    }
}
