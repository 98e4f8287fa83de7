//! Names in an X.509 certificate.

use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::limits::TLS_CERTIFICATE_NAMES;

/// Names of a certificate in DER: the common name of its subject, then the DNS names, mail
/// addresses and URIs among its alternative names, at most [`TLS_CERTIFICATE_NAMES`]. `None` if it
/// cannot be read.
pub(super) fn leaf_names(der: &[u8]) -> Option<Vec<String>> {
    let certificate = Certificate::from_der(der).ok()?;
    let certificate = certificate.tbs_certificate();
    let common = certificate.subject().common_name().ok()?;
    let mut names: Vec<String> = common.iter().map(|name| name.value().into_owned()).collect();
    if let Some((_, SubjectAltName(others))) = certificate.get_extension().ok()? {
        names.extend(others.into_iter().filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.to_string()),
            GeneralName::Rfc822Name(name) => Some(name.to_string()),
            GeneralName::UniformResourceIdentifier(name) => Some(name.to_string()),
            _ => None,
        }));
    }
    names.truncate(TLS_CERTIFICATE_NAMES);
    Some(names)
}
