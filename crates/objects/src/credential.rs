//! Credentials in a form that requests can carry. The library puts a token into a header and panics
//! where that is impossible, which would end the daemon.

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use object_store::aws::AwsCredential;
use object_store::azure::AzureCredential;
use object_store::client::CredentialProvider;
use object_store::gcp::GcpCredential;

use crate::http::is_word;

/// The reason for a refusal. It does not quote the secret.
pub(super) const NO_WORD: &str = "has bytes other than printable ASCII without spaces";

/// Credentials that end up in headers.
pub(super) trait HeaderTexts: Debug + Send + Sync + 'static {
    /// The texts that requests carry as they are.
    fn header_texts(&self) -> Vec<&str>;
}

impl HeaderTexts for AwsCredential {
    fn header_texts(&self) -> Vec<&str> {
        [self.key_id.as_str(), self.secret_key.as_str()]
            .into_iter()
            .chain(self.token.as_deref())
            .collect()
    }
}

impl HeaderTexts for AzureCredential {
    fn header_texts(&self) -> Vec<&str> {
        match self {
            AzureCredential::BearerToken(token) => vec![token],
            // Signed with, or encoded into the query.
            AzureCredential::AccessKey(_) | AzureCredential::SASToken(_) => Vec::new(),
        }
    }
}

impl HeaderTexts for GcpCredential {
    fn header_texts(&self) -> Vec<&str> {
        vec![&self.bearer]
    }
}

/// A provider whose unusable credentials are errors.
#[derive(Debug)]
pub(super) struct CheckedProvider<T> {
    pub(super) inner: Arc<dyn CredentialProvider<Credential = T>>,
    /// File of a token that the provider sends.
    pub(super) token_file: Option<PathBuf>,
}

type Obtained<'a, T> = Pin<Box<dyn Future<Output = object_store::Result<Arc<T>>> + Send + 'a>>;

impl<T: HeaderTexts> CredentialProvider for CheckedProvider<T> {
    type Credential = T;

    fn get_credential<'service, 'future>(&'service self) -> Obtained<'future, T>
    where
        'service: 'future,
        Self: 'future,
    {
        Box::pin(async {
            let token = self.token_file.as_ref().map(std::fs::read);
            if token.transpose().map_err(refused)?.is_some_and(|token| !is_word(&token)) {
                return Err(refused(format!("the file of the authorization token {NO_WORD}")));
            }
            let credential = self.inner.get_credential().await?;
            match credential.header_texts().iter().all(|text| is_word(text.as_bytes())) {
                true => Ok(credential),
                false => Err(refused(format!("a key or a token of the identity {NO_WORD}"))),
            }
        })
    }
}

fn refused(what: impl ToString) -> object_store::Error {
    object_store::Error::Generic {
        store: "credentials",
        source: io::Error::other(what.to_string()).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use object_store::StaticCredentialProvider;

    use super::*;

    fn obtained<T: HeaderTexts>(credential: T, token_file: Option<PathBuf>) -> Option<String> {
        let inner = Arc::new(StaticCredentialProvider::new(credential));
        let checked = CheckedProvider { inner, token_file };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(checked.get_credential()).err().map(|error| error.to_string())
    }

    fn aws(key: &str, secret: &str, token: Option<&str>) -> AwsCredential {
        AwsCredential {
            key_id: key.into(),
            secret_key: secret.into(),
            token: token.map(Into::into),
        }
    }

    /// Each would end the daemon in the library.
    #[test]
    fn unusable_tokens_of_identity_are_errors() {
        for bad in ["", "t\n", "\u{201c}t\u{201d}", "t\u{200b}", "t\0", "t\u{7f}"] {
            let found = [
                obtained(aws(bad, "s", None), None),
                obtained(aws("k", bad, None), None),
                obtained(aws("k", "s", Some(bad)), None),
                obtained(AzureCredential::BearerToken(bad.into()), None),
                obtained(GcpCredential { bearer: bad.into() }, None),
            ];
            for refused in found {
                let refused = refused.expect("it cannot be sent");
                assert!(refused.contains("printable ASCII"), "{refused}");
            }
        }
        assert_eq!(obtained(aws("AKIA1", "s/+=", Some("t//+==")), None), None);
        assert_eq!(obtained(AzureCredential::BearerToken("ey.J-_".into()), None), None);
        assert_eq!(obtained(GcpCredential { bearer: "ya29.c.b".into() }, None), None);
    }

    #[test]
    fn unusable_file_of_a_token_is_an_error() {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(b"token").expect("it can be written");
        let path = Some(file.path().to_owned());
        assert_eq!(obtained(aws("k", "s", None), path.clone()), None);
        file.write_all(b"\n").expect("it can be written");
        let refused = obtained(aws("k", "s", None), path).expect("it ends with a line feed");
        assert!(refused.contains("printable ASCII"), "{refused}");
    }
}
