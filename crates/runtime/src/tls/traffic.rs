//! Traffic secrets: the keys of a connection's records in the form that the kernel takes.
//!
//! The library does not give its keys away, but it logs the secrets that they come from (RFC 8446,
//! section 7.1) to a callback, as for a debugger. They are kept only for a handshake that asks for
//! them ([`collecting`]), and erased when dropped.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use aws_lc_rs::hkdf::{self, HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use s2n_tls::config::Builder;
use s2n_tls::error::Error;
use zeroize::Zeroizing;

// From <linux/tls.h>.
const TLS_1_3_VERSION: u16 = 0x0304;
const TLS_CIPHER_AES_GCM_128: u16 = 51;
const TLS_CIPHER_AES_GCM_256: u16 = 52;
/// The kernel's "salt": the first part of the initialization vector.
const SALT_BYTES: usize = 4;
const IV_BYTES: usize = 12;

/// Cipher suites that are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suite {
    Aes128GcmSha256,
    Aes256GcmSha384,
}

impl Suite {
    /// The suite with this name of RFC 8446.
    pub(super) fn named(name: &str) -> Option<Suite> {
        [Suite::Aes128GcmSha256, Suite::Aes256GcmSha384].into_iter().find(|it| it.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Suite::Aes128GcmSha256 => "TLS_AES_128_GCM_SHA256",
            Suite::Aes256GcmSha384 => "TLS_AES_256_GCM_SHA384",
        }
    }

    fn kernel_cipher(self) -> u16 {
        match self {
            Suite::Aes128GcmSha256 => TLS_CIPHER_AES_GCM_128,
            Suite::Aes256GcmSha384 => TLS_CIPHER_AES_GCM_256,
        }
    }

    fn key_bytes(self) -> usize {
        match self {
            Suite::Aes128GcmSha256 => 16,
            Suite::Aes256GcmSha384 => 32,
        }
    }

    fn secret_bytes(self) -> usize {
        match self {
            Suite::Aes128GcmSha256 => 32,
            Suite::Aes256GcmSha384 => 48,
        }
    }

    fn hash(self) -> hkdf::Algorithm {
        match self {
            Suite::Aes128GcmSha256 => HKDF_SHA256,
            Suite::Aes256GcmSha384 => HKDF_SHA384,
        }
    }

    /// HKDF-Expand-Label without context. The library of the hash erases its own state.
    fn expand(self, secret: &[u8], label: &str, out: &mut [u8]) {
        let label = format!("tls13 {label}");
        let length = (out.len() as u16).to_be_bytes();
        let info = [&length[..], &[label.len() as u8], label.as_bytes(), &[0]];
        let secret = Prk::new_less_safe(self.hash(), secret);
        let expanded = secret.expand(&info, OutputLength(out.len()));
        expanded.and_then(|key| key.fill(out)).expect("its length is that of the output");
    }
}

struct OutputLength(usize);

impl KeyType for OutputLength {
    fn len(&self) -> usize {
        self.0
    }
}

/// Keys of the records after a secret was made, as the kernel's `tls12_crypto_info_aes_gcm_*`.
pub(super) fn kernel_keys(suite: Suite, secret: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut iv = Zeroizing::new([0; IV_BYTES]);
    suite.expand(secret, "iv", &mut *iv);
    let (salt, rest) = iv.split_at(SALT_BYTES);
    let all = 2 + 2 + suite.key_bytes() + IV_BYTES + 8;
    // Growing would leave a copy behind.
    let mut info = Zeroizing::new(Vec::with_capacity(all));
    info.extend_from_slice(&TLS_1_3_VERSION.to_ne_bytes());
    info.extend_from_slice(&suite.kernel_cipher().to_ne_bytes());
    info.extend_from_slice(rest);
    let key_at = info.len();
    info.resize(key_at + suite.key_bytes(), 0);
    suite.expand(secret, "key", &mut info[key_at..]);
    info.extend_from_slice(salt);
    // Number of the first record.
    info.extend_from_slice(&[0; 8]);
    debug_assert_eq!(info.len(), all);
    info
}

/// Secret after a KeyUpdate (RFC 8446, section 7.2).
pub(super) fn next_secret(suite: Suite, secret: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut next = Zeroizing::new(vec![0; suite.secret_bytes()]);
    suite.expand(secret, "traffic upd", &mut next);
    next
}

/// Secrets of the data of both sides. Erased when dropped.
#[derive(Default)]
pub(super) struct TrafficSecrets {
    client: Zeroizing<Vec<u8>>,
    server: Zeroizing<Vec<u8>>,
}

/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    pub(super) fn peer(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

impl TrafficSecrets {
    /// Keeps the secret of a line of the key log, if it is one of the data.
    fn note(&mut self, line: &[u8]) {
        let mut words = line.split(|byte| *byte == b' ');
        let place = match words.next() {
            Some(b"CLIENT_TRAFFIC_SECRET_0") => &mut self.client,
            Some(b"SERVER_TRAFFIC_SECRET_0") => &mut self.server,
            _ => return,
        };
        // The word between is the client's random.
        *place = words.nth(1).and_then(from_hexadecimal).unwrap_or_default();
    }

    /// Takes the secret of the records that `sender` sends. `None` if it is not known.
    pub(super) fn take(&mut self, suite: Suite, sender: Side) -> Option<Zeroizing<Vec<u8>>> {
        let secret = match sender {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        };
        (secret.len() == suite.secret_bytes()).then(|| std::mem::take(secret))
    }
}

fn from_hexadecimal(digits: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
    for pair in digits.chunks(2) {
        let digit = |at: usize| char::from(*pair.get(at)?).to_digit(16);
        bytes.push((digit(0)? << 4 | digit(1)?) as u8);
    }
    Some(bytes)
}

thread_local! {
    /// Secrets of the connection that this thread negotiates, if it asks for them.
    static COLLECTED: RefCell<Option<TrafficSecrets>> = const { RefCell::new(None) };
}

/// Runs a step of a handshake, and adds its traffic secrets to `secrets`, unless that is `None`.
pub(super) fn collecting<T>(secrets: &mut Option<TrafficSecrets>, step: impl FnOnce() -> T) -> T {
    if secrets.is_none() {
        return step();
    }
    /// Erases the secrets if the step panics.
    struct Erase;
    impl Drop for Erase {
        fn drop(&mut self) {
            drop(COLLECTED.take());
        }
    }
    COLLECTED.set(secrets.take());
    let _erase = Erase;
    let result = step();
    *secrets = COLLECTED.take();
    result
}

/// Lets connections of a configuration log their secrets to [`collecting`].
pub(super) fn log_keys(builder: &mut Builder) -> Result<(), Error> {
    // SAFETY: the callback does not use its context.
    unsafe { builder.set_key_log_callback(Some(log_key), std::ptr::null_mut()) }.map(drop)
}

unsafe extern "C" fn log_key<T>(_: *mut c_void, _: *mut T, line: *mut u8, length: usize) -> c_int {
    // SAFETY: the library passes a line of `length` readable bytes.
    let line = unsafe { std::slice::from_raw_parts(line, length) };
    COLLECTED.with_borrow_mut(|collected| {
        if let Some(secrets) = collected {
            secrets.note(line);
        }
    });
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(digits: &str) -> Vec<u8> {
        from_hexadecimal(digits.replace(' ', "").as_bytes()).unwrap().to_vec()
    }

    /// RFC 8448, section 3: application traffic secrets of client and server, and their keys.
    #[test]
    fn kernel_keys_are_those_of_rfc_8448() {
        let client = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
        let server = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
        let mut secrets = TrafficSecrets::default();
        let random = "00".repeat(32);
        secrets.note(format!("CLIENT_HANDSHAKE_TRAFFIC_SECRET {random} {random}").as_bytes());
        assert!(secrets.take(Suite::Aes128GcmSha256, Side::Client).is_none());
        secrets.note(format!("CLIENT_TRAFFIC_SECRET_0 {random} {client}").as_bytes());
        secrets.note(format!("SERVER_TRAFFIC_SECRET_0 {random} {server}").as_bytes());
        // They are of the other hash.
        assert!(secrets.take(Suite::Aes256GcmSha384, Side::Client).is_none());
        for (side, key, iv) in [
            (Side::Client, "17422dda596ed5d9acd890e3c63f5051", "5b78923dee08579033e523d9"),
            (Side::Server, "9f02283b6c9c07efc26bb9f2ac92e356", "cf782b88dd83549aadf1e984"),
        ] {
            let (version, cipher) = (0x0304_u16.to_ne_bytes(), 51_u16.to_ne_bytes());
            let (key, iv) = (bytes(key), bytes(iv));
            let wanted = [&version[..], &cipher, &iv[4..], &key, &iv[..4], &[0; 8]].concat();
            let secret = secrets.take(Suite::Aes128GcmSha256, side).unwrap();
            let keys = kernel_keys(Suite::Aes128GcmSha256, &secret);
            assert_eq!((keys.as_slice(), keys.len()), (wanted.as_slice(), 40), "{side:?}");
        }
        assert!(secrets.take(Suite::Aes128GcmSha256, Side::Client).is_none(), "it is taken");
    }

    #[test]
    fn keys_of_aes_256_have_the_layout_of_the_kernel() {
        let mut secrets = TrafficSecrets::default();
        secrets.note(format!("SERVER_TRAFFIC_SECRET_0 00 {}", "5a".repeat(48)).as_bytes());
        let secret = secrets.take(Suite::Aes256GcmSha384, Side::Server).unwrap();
        let keys = kernel_keys(Suite::Aes256GcmSha384, &secret);
        assert_eq!((keys.len(), &keys[2..4]), (56, &52_u16.to_ne_bytes()[..]));
        assert_eq!(keys[48..], [0; 8]);
        assert_ne!(keys[12..44], [0; 32]);
    }

    #[test]
    fn malformed_lines_leave_no_secret() {
        for line in [
            "SERVER_TRAFFIC_SECRET_0",
            "SERVER_TRAFFIC_SECRET_0 00",
            "SERVER_TRAFFIC_SECRET_0 00 5",
            "SERVER_TRAFFIC_SECRET_0 00 zz",
            "",
        ] {
            let mut secrets = TrafficSecrets::default();
            secrets.note(line.as_bytes());
            assert!(secrets.server.is_empty(), "{line}");
        }
    }

    #[test]
    fn secrets_are_collected_only_on_request() {
        let mut line = *b"CLIENT_TRAFFIC_SECRET_0 00 5a5a";
        let mut log = || {
            let null = std::ptr::null_mut::<u8>();
            // SAFETY: the line is readable.
            unsafe { log_key(std::ptr::null_mut(), null, line.as_mut_ptr(), line.len()) }
        };
        let mut secrets = None;
        collecting(&mut secrets, &mut log);
        assert!(secrets.is_none());
        let mut secrets = Some(TrafficSecrets::default());
        collecting(&mut secrets, &mut log);
        assert_eq!(secrets.unwrap().client.as_slice(), [0x5a, 0x5a]);
        assert!(COLLECTED.take().is_none());
    }
}
