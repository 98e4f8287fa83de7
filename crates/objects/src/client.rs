//! Client of a bucket: its credentials, and its settings in the terms of the library.
//!
//! Credentials come from the configured file, or from the identity that the cloud gives to the
//! machine: its metadata service, or variables of the environment that name a role. Nothing else is
//! taken from the environment, where a variable could turn conditional writes off.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flagstone_config::{BucketStore, Cloud};
use flagstone_stack::private_file;
use object_store::aws::{AmazonS3Builder, AwsCredentialProvider, S3ConditionalPut};
use object_store::azure::{AzureCredentialProvider, MicrosoftAzureBuilder, split_sas};
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder};
use object_store::{BackoffConfig, ObjectStore, RetryConfig};
use rustls::ClientConfig;
use zeroize::Zeroizing;

use crate::credential::{CheckedProvider, NO_WORD};
use crate::http::{Connector, is_word};

/// Longest file of credentials, in bytes. A service account's key has about 2,400.
const SECRET_BYTES_MAX: u64 = 16 << 10;

/// Variables that name an identity, as the clouds' own tools set and read them.
const AWS_IDENTITY: [&str; 9] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
];
const AZURE_IDENTITY: [&str; 5] = [
    "AZURE_CLIENT_ID",
    "AZURE_TENANT_ID",
    "AZURE_AUTHORITY_HOST",
    "AZURE_FEDERATED_TOKEN_FILE",
    "IDENTITY_ENDPOINT",
];
const GOOGLE_IDENTITY: &str = "GOOGLE_APPLICATION_CREDENTIALS";

/// Content of the file with credentials.
pub type Secret = Option<Zeroizing<String>>;

/// Source of the settings of TLS, from the file of authorities; the machine's if `None`.
pub type TlsSource = fn(Option<&Path>) -> io::Result<ClientConfig>;

/// Settings of a client that depend on its use.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Time limit of a request, as far as the library has one.
    pub request_limit: Duration,
    /// Longest answer, in bytes.
    pub answer_bytes_max: usize,
    /// Settings of TLS, read for each connection.
    pub tls: TlsSource,
}

/// Client of the library, and its configuration.
pub struct Client {
    /// The library's client.
    pub store: Box<dyn ObjectStore>,
    /// Protocol of the store.
    pub cloud: Cloud,
    /// Credentials that the client uses.
    pub secret: Secret,
    identity: CredentialSource,
}

/// Source of credentials.
enum CredentialSource {
    Aws(AwsCredentialProvider),
    Azure(AzureCredentialProvider),
    Google(GcpCredentialProvider),
}

impl Client {
    /// Obtains a token, if the credentials are short-lived and none is valid.
    ///
    /// # Errors
    /// The library's.
    pub async fn authenticate(&self) -> object_store::Result<()> {
        match &self.identity {
            CredentialSource::Aws(provider) => provider.get_credential().await.map(drop),
            CredentialSource::Azure(provider) => provider.get_credential().await.map(drop),
            CredentialSource::Google(provider) => provider.get_credential().await.map(drop),
        }
    }
}

/// Reads the file with credentials, if one is configured.
///
/// # Errors
/// It cannot be read, or others may read it.
pub fn secret(settings: &BucketStore) -> io::Result<Secret> {
    let Some(path) = &settings.credentials_file else { return Ok(None) };
    let read = private_file::read(path, SECRET_BYTES_MAX);
    read.map(Some).map_err(|error| failed(&format_args!("{}: {error}", path.display())))
}

/// Makes a client. Sends nothing.
///
/// # Errors
/// The credentials are not of the form that the cloud uses.
pub fn connect(
    settings: &BucketStore,
    secret: Secret,
    options: ClientOptions,
) -> io::Result<Client> {
    let retry = RetryConfig {
        max_retries: 0,
        retry_timeout: options.request_limit,
        backoff: BackoffConfig::default(),
    };
    let is_plain = settings.endpoint.as_ref().is_some_and(|url| url.starts_with("http:"));
    let connector = Connector {
        ca_file: settings.ca_file.clone(),
        answer_bytes_max: options.answer_bytes_max,
        tls: options.tls,
    };
    let options = object_store::ClientOptions::new().with_allow_http(is_plain);
    let bucket = settings.object_store.bucket.as_str();
    let text = secret.as_ref().map(|text| text.as_str());
    let variables = |names: &[&'static str]| -> Vec<(String, String)> {
        let found = names.iter().filter_map(|name| Some((*name, std::env::var(name).ok()?)));
        found.map(|(name, value)| (name.to_lowercase(), value)).collect()
    };
    let cloud = settings.object_store.cloud;
    let (store, identity): (Box<dyn ObjectStore>, _) = match cloud {
        Cloud::S3 => {
            let mut builder = AmazonS3Builder::new()
                .with_bucket_name(bucket)
                .with_region(&settings.region)
                .with_conditional_put(S3ConditionalPut::ETagMatch)
                .with_retry(retry)
                .with_client_options(options)
                .with_http_connector(connector);
            if let Some(endpoint) = &settings.endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            builder = match text {
                Some(text) => {
                    let [id, key] = ["aws_access_key_id", "aws_secret_access_key"]
                        .map(|name| value(settings, text, name));
                    let builder = builder.with_access_key_id(id?).with_secret_access_key(key?);
                    match value(settings, text, "aws_session_token") {
                        Ok(token) => builder.with_token(token),
                        Err(Unusable::Missing(_)) => builder,
                        Err(unusable) => return Err(unusable.into()),
                    }
                }
                None => {
                    variables(&AWS_IDENTITY).into_iter().fold(builder, |builder, (key, value)| {
                        builder.with_config(key.parse().expect("a key of the library"), value)
                    })
                }
            };
            let inner = builder.clone().build().map_err(unusable)?.credentials().clone();
            let token_file = match text {
                Some(_) => None,
                None => std::env::var_os("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(Into::into),
            };
            let checked: AwsCredentialProvider = Arc::new(CheckedProvider { inner, token_file });
            let store = builder.with_credentials(checked.clone()).build().map_err(unusable)?;
            (Box::new(store), CredentialSource::Aws(checked))
        }
        Cloud::Azure => {
            let mut builder = MicrosoftAzureBuilder::new()
                .with_account(&settings.account)
                .with_container_name(bucket)
                .with_retry(retry)
                .with_client_options(options)
                .with_http_connector(connector);
            if let Some(endpoint) = &settings.endpoint {
                builder = builder.with_endpoint(endpoint.clone());
            }
            builder = match text {
                Some(text) => match value(settings, text, "account_key") {
                    Ok(key) => builder.with_access_key(key),
                    Err(Unusable::Missing(missing)) => {
                        let token = match value(settings, text, "sas_token") {
                            Err(Unusable::Missing(_)) => return Err(missing),
                            found => found?,
                        };
                        builder.with_sas_authorization(split_sas(token).map_err(unusable)?)
                    }
                    Err(unusable) => return Err(unusable.into()),
                },
                None => {
                    variables(&AZURE_IDENTITY).into_iter().fold(builder, |builder, (key, value)| {
                        builder.with_config(key.parse().expect("a key of the library"), value)
                    })
                }
            };
            let inner = builder.clone().build().map_err(unusable)?.credentials().clone();
            let checked: AzureCredentialProvider =
                Arc::new(CheckedProvider { inner, token_file: None });
            let store = builder.with_credentials(checked.clone()).build().map_err(unusable)?;
            (Box::new(store), CredentialSource::Azure(checked))
        }
        Cloud::Google => {
            let mut builder = GoogleCloudStorageBuilder::new()
                .with_bucket_name(bucket)
                .with_retry(retry)
                .with_client_options(options)
                .with_http_connector(connector);
            if let Some(endpoint) = &settings.endpoint {
                builder = builder.with_base_url(endpoint);
            }
            builder = match (text, std::env::var(GOOGLE_IDENTITY)) {
                (Some(text), _) => builder.with_service_account_key(text),
                (None, Ok(path)) => builder.with_application_credentials(path),
                (None, Err(_)) => builder,
            };
            let inner = builder.clone().build().map_err(unusable)?.credentials().clone();
            let checked: GcpCredentialProvider =
                Arc::new(CheckedProvider { inner, token_file: None });
            let store = builder.with_credentials(checked.clone()).build().map_err(unusable)?;
            (Box::new(store), CredentialSource::Google(checked))
        }
    };
    Ok(Client { store, cloud, secret, identity })
}

/// Why a value of the file cannot be used.
enum Unusable {
    /// There is none.
    Missing(io::Error),
    /// It is written, and wrong.
    Wrong(io::Error),
}

impl From<Unusable> for io::Error {
    fn from(unusable: Unusable) -> io::Error {
        match unusable {
            Unusable::Missing(error) | Unusable::Wrong(error) => error,
        }
    }
}

/// The value of a line `NAME = VALUE`.
fn value<'a>(settings: &BucketStore, text: &'a str, name: &str) -> Result<&'a str, Unusable> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let mut found = pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    let path = settings.credentials_file.as_ref().map(|path| path.display().to_string());
    let path = path.unwrap_or_default();
    let wrong = |what: &dyn Display| Err(Unusable::Wrong(failed(what)));
    match (found.next(), found.next()) {
        (Some(value), None) if is_word(value.as_bytes()) => Ok(value),
        (Some(""), None) => wrong(&format_args!("{path}: it has an empty {name}")),
        (Some(_), None) => wrong(&format_args!("{path}: {name} {NO_WORD}")),
        (Some(_), Some(_)) => wrong(&format_args!("{path}: it has more than one {name}")),
        (None, _) => Err(Unusable::Missing(failed(&format_args!("{path}: it has no {name}")))),
    }
}

/// The library's errors about a secret may quote it.
fn unusable(error: object_store::Error) -> io::Error {
    drop(error);
    failed(&"the credentials do not have the form of this cloud: see `credentials_file`")
}

fn failed(what: &dyn Display) -> io::Error {
    io::Error::other(what.to_string())
}
