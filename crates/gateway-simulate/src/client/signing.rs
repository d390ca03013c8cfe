//! Signatures of version 4, in headers and in chunks.

use std::time::{SystemTime, UNIX_EPOCH};

use base16ct::lower::encode_string as hex;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

const REGION: &str = "us-east-1";
/// What S3 has escaped in a query, and in a path.
const QUERY: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: AsciiSet = QUERY.remove(b'/');

pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(super) fn base64_of(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    match Hmac::<Sha256>::new_from_slice(key) {
        Ok(mut hmac) => {
            hmac.update(text.as_bytes());
            hmac.finalize().into_bytes().to_vec()
        }
        // A key of any length will do.
        Err(_) => Vec::new(),
    }
}

/// As S3 wants names in a target: everything but letters, digits and four signs by its bytes.
pub(super) fn escaped(text: &str, keeps_slash: bool) -> String {
    utf8_percent_encode(text, if keeps_slash { &PATH } else { &QUERY }).to_string()
}

pub(super) fn unescaped(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

/// Seconds of a day, and the day as the calendar has it (Howard Hinnant's `civil_from_days`).
fn date_of(unix_s: u64) -> (String, String) {
    let (days, second) = ((unix_s / 86_400) as i64, unix_s % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let date = format!("{year:04}{month:02}{day:02}");
    let time = format!("{date}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60);
    (date, time)
}

/// A head that is signed, and what chunks have to be signed with.
pub(super) struct SignedHead {
    /// Headers with the signature.
    pub(super) headers: Vec<(String, String)>,
    pub(super) signature: String,
    time: String,
    scope: String,
    key: Vec<u8>,
}

/// The signed parts of a request.
pub(super) struct SigningInput<'a> {
    pub(super) id: &'a str,
    pub(super) secret: &'a str,
    pub(super) host: &'a str,
    pub(super) method: &'a str,
    /// Escaped.
    pub(super) path: &'a str,
    /// In order and escaped.
    pub(super) query: &'a str,
    pub(super) headers: &'a [(String, String)],
    pub(super) hash: &'a str,
}

impl SigningInput<'_> {
    pub(super) fn sign(&self) -> SignedHead {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (day, time) = date_of(now.as_secs());
        let mut headers: Vec<(String, String)> = self.headers.to_vec();
        let own = [("host", self.host), ("x-amz-content-sha256", self.hash), ("x-amz-date", &time)];
        headers.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        headers.sort();
        let list: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let list = list.join(";");
        let canonical: String =
            headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let SigningInput { method, path, query, hash, .. } = self;
        let request = format!("{method}\n{path}\n{query}\n{canonical}\n{list}\n{hash}");
        let scope = format!("{day}/{REGION}/s3/aws4_request");
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", sha256(request.as_bytes()));
        let mut key = hmac(format!("AWS4{}", self.secret).as_bytes(), &day);
        for part in [REGION, "s3", "aws4_request"] {
            key = hmac(&key, part);
        }
        let signature = hex(&hmac(&key, &text));
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={list}, Signature={signature}",
            self.id
        );
        headers.push(("authorization".to_owned(), authorization));
        SignedHead { headers, signature, time, scope, key }
    }
}

impl SignedHead {
    /// The signature of a chunk behind the one with this signature.
    pub(super) fn sign_chunk(&self, former: &str, bytes: &[u8]) -> String {
        let text = format!(
            "AWS4-HMAC-SHA256-PAYLOAD\n{}\n{}\n{former}\n{}\n{}",
            self.time,
            self.scope,
            sha256(b""),
            sha256(bytes)
        );
        hex(&hmac(&self.key, &text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_s, time) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_800_000_000, "20270115T080000Z"),
            (1_709_251_199, "20240229T235959Z"),
        ] {
            assert_eq!(date_of(unix_s).1, time);
        }
    }

    #[test]
    fn names_are_escaped_and_come_back() {
        for name in ["a/b", "\u{10ffff}x", "a b+c%41", "\u{e9}"] {
            assert_eq!(unescaped(&escaped(name, true)), name);
        }
        assert_eq!(escaped("a/b+\u{e9}", false), "a%2Fb%2B%C3%A9");
    }

    #[test]
    fn chunk_signature_depends_on_former_one() {
        let headers = Vec::new();
        let signing = SigningInput {
            id: "ID",
            secret: "SECRET",
            host: "h",
            method: "PUT",
            path: "/b/k",
            query: "",
            headers: &headers,
            hash: "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        };
        let signed = signing.sign();
        let first = signed.sign_chunk(&signed.signature, b"bytes");
        assert_ne!(first, signed.sign_chunk(&first, b"bytes"));
        assert_ne!(first, signed.sign_chunk(&signed.signature, b"other"));
        assert_eq!(first.len(), 64);
    }
}
