//! A certificate for the gateway of one cluster, for clients that talk to it over TLS alone, and the files by which they trust it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::hash::{MessageDigest, hash};
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509NameBuilder};

use underlay_files::Access;

/// Longer than any run.
const DAYS: u32 = 365;
const NAME: &str = "underlay";
/// Of a file without secrets, which Java wants one for. It is Java's own for such files.
const TRUST_PASSWORD: &str = "changeit";

/// Where the files of a cluster are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    folder: PathBuf,
}

impl Certificate {
    /// Makes a key and a certificate for `address` in `folder`, each readable by this user alone.
    pub(super) fn make(folder: &Path, address: Ipv4Addr) -> std::io::Result<Certificate> {
        let certificate = Certificate { folder: folder.to_owned() };
        let (key, public) = signed(address)?;
        let write = |path: PathBuf, bytes: &[u8]| underlay_files::replace(&path, Access::Private, bytes);
        write(certificate.key(), &key.private_key_to_pem_pkcs8()?)?;
        write(certificate.chain(), &public.to_pem()?)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        write(certificate.trusted_by_java(), &java_key_store(&public.to_der()?, now.as_millis())?)?;
        Ok(certificate)
    }

    pub(super) fn key(&self) -> PathBuf {
        self.folder.join("gateway.key")
    }

    /// The certificate as PEM, which is its own authority.
    pub(crate) fn chain(&self) -> PathBuf {
        self.folder.join("gateway.pem")
    }

    pub(crate) fn trusted_by_java(&self) -> PathBuf {
        self.folder.join("gateway.jks")
    }
}

fn signed(address: Ipv4Addr) -> Result<(PKey<Private>, X509), ErrorStack> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    let key = PKey::from_ec_key(EcKey::generate(&group)?)?;
    let mut name = X509NameBuilder::new()?;
    name.append_entry_by_nid(Nid::COMMONNAME, NAME)?;
    let name = name.build();
    let mut builder = X509::builder()?;
    // Version 3.
    builder.set_version(2)?;
    builder.set_serial_number(&*BigNum::from_u32(1)?.to_asn1_integer()?)?;
    builder.set_subject_name(&name)?;
    builder.set_issuer_name(&name)?;
    builder.set_not_before(&*Asn1Time::days_from_now(0)?)?;
    builder.set_not_after(&*Asn1Time::days_from_now(DAYS)?)?;
    builder.set_pubkey(&key)?;
    builder.append_extension(BasicConstraints::new().critical().ca().build()?)?;
    let names =
        SubjectAlternativeName::new().ip(&address.to_string()).build(&builder.x509v3_context(None, None))?;
    builder.append_extension(names)?;
    builder.sign(&key, MessageDigest::sha256())?;
    Ok((key, builder.build()))
}

/// A file of Java's first format with one certificate to trust. Java reads none of PEM.
fn java_key_store(certificate: &[u8], now_ms: u128) -> Result<Vec<u8>, ErrorStack> {
    const MAGIC: u32 = 0xfeed_feed;
    const VERSION: u32 = 2;
    const TRUSTED: u32 = 2;
    let mut bytes = Vec::new();
    let number = |bytes: &mut Vec<u8>, number: u32| bytes.extend(number.to_be_bytes());
    // Behind its length in two bytes.
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend(text.as_bytes());
    };
    [MAGIC, VERSION, 1, TRUSTED].into_iter().for_each(|each| number(&mut bytes, each));
    text(&mut bytes, NAME);
    bytes.extend(u64::try_from(now_ms).unwrap_or(u64::MAX).to_be_bytes());
    text(&mut bytes, "X.509");
    number(&mut bytes, u32::try_from(certificate.len()).unwrap_or(u32::MAX));
    bytes.extend(certificate);
    // Its checksum begins with the password and these words.
    let mut summed: Vec<u8> = TRUST_PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect();
    summed.extend(b"Mighty Aphrodite");
    summed.extend(&bytes);
    bytes.extend(hash(MessageDigest::sha1(), &summed)?.iter());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::process::Command;

    use super::*;
    use crate::java::Java;
    use crate::pid_namespace::program_of;

    #[test]
    fn java_trusts_it_and_nobody_else_can_read_its_key() {
        let folder = tempfile::TempDir::new().unwrap();
        let certificate = Certificate::make(folder.path(), Ipv4Addr::new(10, 9, 8, 7)).unwrap();
        let mode = |path: PathBuf| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(certificate.key()), mode(certificate.chain())), (0o600, 0o600));
        let java = program_of("test", &Java::find("test").unwrap()).unwrap();
        let told = Command::new(java.with_file_name("keytool"))
            .args(["-list", "-v", "-storepass", TRUST_PASSWORD, "-keystore"])
            .arg(certificate.trusted_by_java())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains("trustedCertEntry") && told.contains("10.9.8.7"), "{told}");
    }
}
