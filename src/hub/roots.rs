//! Loads the root certificates that TLS connections to the hub and other servers trust.

use std::path::{Path, PathBuf};

use rustls_native_certs::{load_certs_from_paths, load_native_certs};
use ureq::tls::{Certificate, RootCerts};

/// Variables with the path of a PEM file of trusted certificates, such as a company's, in order of precedence.
pub(super) const VARIABLES: [&str; 3] = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

/// The trusted root certificates in DER: those of the file that one of `VARIABLES` names, else the system's. Empty
/// if the system has none, as in a bare container: callers then use Mozilla's.
pub fn trusted_roots() -> Vec<Vec<u8>> {
    let mut files = VARIABLES.iter().filter_map(std::env::var_os);
    let file = files.find(|file| !file.is_empty()).map(PathBuf::from);
    load(file.as_deref())
}

pub(super) fn of(file: Option<&Path>) -> RootCerts {
    let roots = load(file);
    if roots.is_empty() {
        return RootCerts::WebPki;
    }
    let certificates = roots
        .iter()
        .map(|der| Certificate::from_der(der).to_owned());
    RootCerts::from(certificates.collect::<Vec<_>>())
}

fn load(file: Option<&Path>) -> Vec<Vec<u8>> {
    let read = match file {
        Some(file) => load_certs_from_paths(Some(file), None),
        None => load_native_certs(),
    };
    for error in &read.errors {
        tracing::debug!(%error, "failed to read a trusted root certificate: continuing without it");
    }
    if let (Some(file), true) = (file, read.certs.is_empty()) {
        warn_of_unusable(file, read.errors.first());
    }
    read.certs.iter().map(|der| der.to_vec()).collect()
}

fn warn_of_unusable(file: &Path, error: Option<&rustls_native_certs::Error>) {
    let file = file.display();
    match error {
        Some(error) => tracing::warn!(
            %file,
            %error,
            "failed to read the trusted root certificates, using Mozilla's: correct the file, or unset the variable \
             that names it (SSL_CERT_FILE, REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE)"
        ),
        None => tracing::warn!(
            %file,
            "the file of trusted root certificates has no certificate, using Mozilla's: correct the file, or unset the \
             variable that names it (SSL_CERT_FILE, REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_falls_back_to_mozillas_roots() {
        let dir = tempfile::tempdir().expect("a temporary folder can be made");
        let file = dir.path().join("roots.pem");
        for text in [
            "",
            "nonsense",
            "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
        ] {
            std::fs::write(&file, text).expect("the file can be written");
            assert!(matches!(of(Some(&file)), RootCerts::WebPki), "{text:?}");
        }
        let one = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";
        std::fs::write(&file, one).expect("the file can be written");
        assert_eq!(load(Some(&file)), [[1, 2, 3]]);
        assert!(matches!(of(Some(&file)), RootCerts::Specific(_)));
    }
}
