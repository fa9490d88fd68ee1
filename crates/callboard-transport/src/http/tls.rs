//! Whom a client trusts over TLS, and who it says it is.

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use tracing::warn;

/// What a server's certificate is checked against, and what certificate a client shows.
///
/// Trusted are Mozilla's roots, what `SSL_CERT_FILE` and `SSL_CERT_DIR` name, and the authorities added here. Equal
/// settings share one configuration over the whole process, with its resumable sessions.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    settings: Arc<Settings>,
}

/// What a configuration is made from; the key that it is known by.
#[derive(Clone, Default, PartialEq, Eq)]
struct Settings {
    authorities: Vec<CertificateDer<'static>>,
    identity: Option<Arc<Identity>>,
}

#[derive(PartialEq, Eq)]
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Tls {
    /// Without additional authorities and without a certificate of the client's own.
    ///
    /// The first time in a process, what `SSL_CERT_FILE` and `SSL_CERT_DIR` name is read.
    #[must_use]
    pub fn system() -> Self {
        static SYSTEM: OnceLock<Tls> = OnceLock::new();
        SYSTEM
            .get_or_init(|| Self {
                config: Arc::new(
                    build(&Settings::default()).expect("there is nothing in it that can be wrong"),
                ),
                settings: Arc::default(),
            })
            .clone()
    }

    /// Trusts these authorities too: one certificate or more, as PEM.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, in words for a user.
    pub fn authority(&self, pem: &[u8]) -> Result<Self, String> {
        let mut settings = Settings::clone(&self.settings);
        settings.authorities.extend(certificates(pem)?);
        Self::of(settings)
    }

    /// Shows this certificate to servers that ask for one: PEM of the certificate, then those that vouch for it; and
    /// PEM of its private key.
    ///
    /// # Errors
    ///
    /// What is wrong with them, in words for a user; nothing of the key.
    pub fn identity(&self, chain: &[u8], key: &[u8]) -> Result<Self, String> {
        let chain = certificates(chain)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| "the key is no PEM of a private key; an encrypted one has to be decrypted first")?;
        let settings = Settings {
            identity: Some(Arc::new(Identity { chain, key })),
            ..Settings::clone(&self.settings)
        };
        Self::of(settings)
    }

    /// The one of these settings, shared with all others that have them.
    fn of(settings: Settings) -> Result<Self, String> {
        static KNOWN: Mutex<Vec<(Arc<Settings>, Weak<ClientConfig>)>> = Mutex::new(Vec::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, config)| config.strong_count() > 0);
        let found = known.iter().find(|(known, _)| **known == settings);
        if let Some((settings, config)) = found
            && let Some(config) = config.upgrade()
        {
            let settings = Arc::clone(settings);
            return Ok(Self { config, settings });
        }
        let config = Arc::new(build(&settings)?);
        let settings = Arc::new(settings);
        known.push((Arc::clone(&settings), Arc::downgrade(&config)));
        Ok(Self { config, settings })
    }

    pub(super) fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self::system()
    }
}

/// Two are the same where they share their configuration.
impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config)
    }
}

impl Eq for Tls {}

/// Without certificates and keys.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authorities", &self.settings.authorities.len())
            .field("identity", &self.settings.identity.is_some())
            .finish()
    }
}

fn build(settings: &Settings) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    roots.add_parsable_certificates(of_environment());
    for authority in &settings.authorities {
        roots
            .add(authority.clone())
            .map_err(|error| format!("it holds a certificate that cannot vouch for others, {error}"))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has the cipher suites of both TLS versions")
        .with_root_certificates(roots);
    let mut config = match settings.identity.as_deref() {
        None => builder.with_no_client_auth(),
        Some(Identity { chain, key }) => builder
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|error| format!("certificate and key cannot be used together, {error}"))?,
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err("there is no PEM certificate in it".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!("it is no PEM, {error}")),
    }
}

/// The certificates of `SSL_CERT_FILE` and `SSL_CERT_DIR`, as other programs use them. What cannot be read is told and
/// left out: a server whose authority is missing then says so itself.
fn of_environment() -> Vec<CertificateDer<'static>> {
    let mut found = Vec::new();
    if let Some(file) = std::env::var_os("SSL_CERT_FILE") {
        read_into(&mut found, Path::new(&file), "SSL_CERT_FILE");
    }
    let directories = std::env::var_os("SSL_CERT_DIR").unwrap_or_default();
    for directory in std::env::split_paths(&directories).filter(|path| !path.as_os_str().is_empty()) {
        match std::fs::read_dir(&directory) {
            Ok(entries) => {
                let files = entries.filter_map(Result::ok).map(|entry| entry.path());
                let mut files: Vec<PathBuf> = files.filter(|path| path.is_file()).collect();
                files.sort();
                for file in files {
                    read_into(&mut found, &file, "SSL_CERT_DIR");
                }
            }
            Err(error) => warn!(?directory, %error, "the directory in SSL_CERT_DIR cannot be read"),
        }
    }
    found
}

fn read_into(found: &mut Vec<CertificateDer<'static>>, file: &Path, variable: &str) {
    let read = std::fs::read(file).map_err(|error| error.to_string());
    match read.and_then(|pem| certificates(&pem)) {
        Ok(certificates) => found.extend(certificates),
        Err(error) => warn!(
            ?file,
            variable, error, "a file of trusted certificates cannot be used"
        ),
    }
}

/// Why a handshake was given up, where TLS itself says so: what it means and what to do.
pub(super) fn refused(error: &(dyn Error + 'static)) -> Option<String> {
    let error = innermost(error)?;
    let why = match error {
        rustls::Error::InvalidCertificate(why) => why,
        rustls::Error::AlertReceived(alert) => return Some(refused_us(*alert, error)),
        rustls::Error::InvalidMessage(_) => {
            return Some(format!(
                "what answers does not speak TLS; is the URL one of http://? ({error})"
            ));
        }
        _ => return Some(format!("TLS failed: {error}")),
    };
    let advice = match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its issuer is not trusted here; add the issuer's certificate with `ca_certificate` or in SSL_CERT_FILE"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired; have it renewed at the server"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet; check the clocks"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another name; check the host in the URL"
        }
        _ => "have it mended at the server",
    };
    Some(format!(
        "the server's certificate is not accepted: {advice} ({why})"
    ))
}

/// What the server's alert means for this side.
fn refused_us(alert: AlertDescription, error: &rustls::Error) -> String {
    use AlertDescription as A;
    let advice = match alert {
        A::CertificateRequired => {
            "the server wants a certificate of the client's own; give one with `client_certificate`"
        }
        A::BadCertificate
        | A::UnsupportedCertificate
        | A::CertificateRevoked
        | A::CertificateExpired
        | A::CertificateUnknown
        | A::UnknownCA
        | A::AccessDenied => {
            "the server does not accept this client's certificate; check `client_certificate`"
        }
        _ => return format!("TLS failed: {error}"),
    };
    format!("{advice} ({error})")
}

/// Whether the server ended the handshake, as it does where it misses a client certificate: nothing was run then,
/// though in TLS 1.3 the request may have been written already.
pub(super) fn refused_by_server(error: &(dyn Error + 'static)) -> bool {
    matches!(innermost(error), Some(rustls::Error::AlertReceived(_)))
}

/// The error of TLS itself; `io::Error` hides it from the chain of sources.
fn innermost<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inside) => Some(inside),
            None => error.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{Error, InvalidMessage};

    #[test]
    fn what_the_server_says_of_tls_is_told_with_what_to_do() {
        use AlertDescription as A;
        let table = [
            (
                Error::AlertReceived(A::CertificateRequired),
                "give one with `client_certificate`",
            ),
            (
                Error::AlertReceived(A::UnknownCA),
                "does not accept this client's certificate",
            ),
            (
                Error::AlertReceived(A::AccessDenied),
                "does not accept this client's certificate",
            ),
            (
                Error::AlertReceived(A::HandshakeFailure),
                "TLS failed: received fatal alert",
            ),
            (
                Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "is the URL one of http://?",
            ),
            (Error::General("x".to_owned()), "TLS failed: unexpected error"),
        ];
        for (error, expected) in table {
            let text = refused(&io::Error::other(error)).expect("an error of TLS");
            assert!(text.contains(expected), "{text}");
        }
    }
}
