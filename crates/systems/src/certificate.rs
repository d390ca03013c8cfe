//! Certificates that a run makes for its own servers, for clients that talk to these over TLS alone, and the files by
//! which they trust them.

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

/// That of one server, which is its own authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerCertificate {
    folder: PathBuf,
    /// DER.
    public: Vec<u8>,
}

impl ServerCertificate {
    /// Makes a key and a certificate for `address` in `folder`, each readable by this user alone.
    pub(crate) fn make(folder: &Path, address: Ipv4Addr) -> std::io::Result<ServerCertificate> {
        let (key, public) = signed(address)?;
        let certificate = ServerCertificate { folder: folder.to_owned(), public: public.to_der()? };
        let write = |path: PathBuf, bytes: &[u8]| underlay_files::replace(&path, Access::Private, bytes);
        write(certificate.key(), &key.private_key_to_pem_pkcs8()?)?;
        write(certificate.chain(), &public.to_pem()?)?;
        Ok(certificate)
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.folder.join("gateway.key")
    }

    /// The certificate as PEM.
    pub(crate) fn chain(&self) -> PathBuf {
        self.folder.join("gateway.pem")
    }
}

/// Writes a file by which Java trusts all of these and nobody else; `None` without any.
pub(crate) fn trusted_by_java(file: &Path, all: &[&ServerCertificate]) -> std::io::Result<Option<PathBuf>> {
    if all.is_empty() {
        return Ok(None);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    underlay_files::replace(file, Access::Private, &java_key_store(all, now.as_millis())?)?;
    Ok(Some(file.to_owned()))
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

/// A file of Java's first format with certificates to trust. Java reads none of PEM.
fn java_key_store(all: &[&ServerCertificate], now_ms: u128) -> Result<Vec<u8>, ErrorStack> {
    const MAGIC: u32 = 0xfeed_feed;
    const VERSION: u32 = 2;
    const TRUSTED: u32 = 2;
    let mut bytes = Vec::new();
    let number = |bytes: &mut Vec<u8>, number: u32| bytes.extend(number.to_be_bytes());
    let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    // Behind its length in two bytes.
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend(text.as_bytes());
    };
    [MAGIC, VERSION, length(all.len())].into_iter().for_each(|each| number(&mut bytes, each));
    for (index, certificate) in all.iter().enumerate() {
        number(&mut bytes, TRUSTED);
        text(&mut bytes, &format!("{NAME}-{index}"));
        bytes.extend(u64::try_from(now_ms).unwrap_or(u64::MAX).to_be_bytes());
        text(&mut bytes, "X.509");
        number(&mut bytes, length(certificate.public.len()));
        bytes.extend(&certificate.public);
    }
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
    fn java_trusts_certificates_and_keys_stay_private() {
        let folder = tempfile::TempDir::new().unwrap();
        let made = [("store", 7), ("between", 6)].map(|(name, last)| {
            let own = folder.path().join(name);
            std::fs::create_dir(&own).unwrap();
            ServerCertificate::make(&own, Ipv4Addr::new(10, 9, 8, last)).unwrap()
        });
        let mode = |path: PathBuf| std::fs::metadata(path).unwrap().mode() & 0o777;
        for certificate in &made {
            assert_eq!((mode(certificate.key()), mode(certificate.chain())), (0o600, 0o600));
        }
        let file = folder.path().join("trusted.jks");
        assert_eq!(trusted_by_java(&file, &[]).unwrap(), None);
        assert!(!file.exists());
        let file = trusted_by_java(&file, &[&made[0], &made[1]]).unwrap().unwrap();
        assert_eq!(mode(file.clone()), 0o600);
        let java = program_of("test", &Java::find("test").unwrap()).unwrap();
        let output = Command::new(java.with_file_name("keytool"))
            .args(["-list", "-v", "-storepass", TRUST_PASSWORD, "-keystore"])
            .arg(file)
            .output()
            .unwrap();
        let listing = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(listing.matches("trustedCertEntry").count(), 2, "{listing}");
        assert!(listing.contains("10.9.8.7") && listing.contains("10.9.8.6"), "{listing}");
    }
}
