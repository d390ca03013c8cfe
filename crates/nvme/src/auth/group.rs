//! The Diffie-Hellman exchange over the finite fields of RFC 7919.

mod primes;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};

/// A secret exponent of 512 bits: twice what RFC 7919 (section 5.2) asks for in its largest group, and much less work
/// than one as long as the prime.
pub(super) const EXPONENT_BYTES: usize = 64;
const GENERATOR: u8 = 2;

/// How two sides agree on a key that an eavesdropper does not learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DhGroup {
    /// They don't.
    Null,
    Ffdhe2048,
    Ffdhe3072,
    Ffdhe4096,
    Ffdhe6144,
    Ffdhe8192,
}

impl DhGroup {
    pub const ALL: [DhGroup; 6] = [
        DhGroup::Null,
        DhGroup::Ffdhe2048,
        DhGroup::Ffdhe3072,
        DhGroup::Ffdhe4096,
        DhGroup::Ffdhe6144,
        DhGroup::Ffdhe8192,
    ];

    /// As it stands in messages (base specification, figure "DH Group Identifiers").
    pub fn identifier(self) -> u8 {
        self as u8
    }

    pub fn from_identifier(identifier: u8) -> Option<DhGroup> {
        DhGroup::ALL.into_iter().find(|group| group.identifier() == identifier)
    }

    pub fn name(self) -> &'static str {
        match self {
            DhGroup::Null => "null",
            DhGroup::Ffdhe2048 => "ffdhe2048",
            DhGroup::Ffdhe3072 => "ffdhe3072",
            DhGroup::Ffdhe4096 => "ffdhe4096",
            DhGroup::Ffdhe6144 => "ffdhe6144",
            DhGroup::Ffdhe8192 => "ffdhe8192",
        }
    }

    fn prime_hex(self) -> Option<&'static str> {
        match self {
            DhGroup::Null => None,
            DhGroup::Ffdhe2048 => Some(primes::FFDHE2048),
            DhGroup::Ffdhe3072 => Some(primes::FFDHE3072),
            DhGroup::Ffdhe4096 => Some(primes::FFDHE4096),
            DhGroup::Ffdhe6144 => Some(primes::FFDHE6144),
            DhGroup::Ffdhe8192 => Some(primes::FFDHE8192),
        }
    }

    /// Of a public value and of the shared key, in bytes; zero without an exchange.
    pub fn length_bytes(self) -> usize {
        self.prime_hex().map_or(0, |hex| hex.len() / 2)
    }

    /// The public value of a secret exponent; empty without an exchange.
    pub(super) fn public_value(self, exponent: &[u8; EXPONENT_BYTES]) -> Vec<u8> {
        let Some(field) = PrimeField::from_group(self) else { return Vec::new() };
        let generator = BoxedUint::from_be_slice_truncated(&[GENERATOR], field.bits);
        field.power(generator, exponent)
    }

    /// The key that both sides come to, or `None` for a value that no honest side sends.
    pub(super) fn shared_key(self, public_value: &[u8], exponent: &[u8; EXPONENT_BYTES]) -> Option<Vec<u8>> {
        let field = PrimeField::from_group(self)?;
        let value = BoxedUint::from_be_slice(public_value, field.bits).ok()?;
        // 0, 1 and p - 1 give a key that everybody knows (RFC 7919, section 5.1).
        let one = BoxedUint::from_be_slice_truncated(&[1], field.bits);
        let last = field.prime.wrapping_sub(&one);
        (public_value.len() == self.length_bytes() && value > one && value < last)
            .then(|| field.power(value, exponent))
    }
}

struct PrimeField {
    bits: u32,
    prime: BoxedUint,
    parameters: BoxedMontyParams,
}

impl PrimeField {
    fn from_group(group: DhGroup) -> Option<PrimeField> {
        let hex = group.prime_hex()?;
        let bits = hex.len() as u32 * 4;
        let prime: Option<BoxedUint> = BoxedUint::from_be_hex(hex, bits).into();
        let prime = prime.expect("the constants are hexadecimal numbers of their length");
        let odd: Option<Odd<BoxedUint>> = Odd::new(prime.clone()).into();
        let parameters = BoxedMontyParams::new_vartime(odd.expect("the constants are odd"));
        Some(PrimeField { bits, prime, parameters })
    }

    /// Big endian, as long as the prime.
    fn power(&self, base: BoxedUint, exponent: &[u8; EXPONENT_BYTES]) -> Vec<u8> {
        let exponent = BoxedUint::from_be_slice_truncated(exponent, EXPONENT_BYTES as u32 * 8);
        let form = BoxedMontyForm::new(base, &self.parameters);
        form.pow(&exponent).retrieve().to_be_bytes().into_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_agreement_matches_in_each_group() {
        let (left, right) = ([0x5a; EXPONENT_BYTES], [0xc3; EXPONENT_BYTES]);
        for group in DhGroup::ALL.into_iter().skip(1) {
            let (ours, theirs) = (group.public_value(&left), group.public_value(&right));
            assert_eq!(ours.len(), group.length_bytes());
            let key = group.shared_key(&theirs, &left).unwrap();
            assert_eq!(Some(&key), group.shared_key(&ours, &right).as_ref(), "{}", group.name());
            assert_eq!(key.len(), group.length_bytes());
        }
        assert!(DhGroup::Null.public_value(&left).is_empty());
        assert_eq!(DhGroup::Null.shared_key(&[], &left), None);
    }

    #[test]
    fn values_that_give_a_known_key_are_refused() {
        let group = DhGroup::Ffdhe2048;
        let number = |value: BoxedUint| value.to_be_bytes().into_vec();
        let field = PrimeField::from_group(group).unwrap();
        let small = |value: u8| BoxedUint::from_be_slice_truncated(&[value], field.bits);
        for (value, is_good) in [
            (small(0), false),
            (small(1), false),
            (small(2), true),
            (field.prime.wrapping_sub(small(2)), true),
            (field.prime.wrapping_sub(small(1)), false),
            (field.prime.clone(), false),
            (field.prime.wrapping_add(small(1)), false),
        ] {
            let shared = group.shared_key(&number(value.clone()), &[7; EXPONENT_BYTES]);
            assert_eq!(shared.is_some(), is_good, "{value:?}");
        }
        assert_eq!(group.shared_key(&[2], &[7; EXPONENT_BYTES]), None, "it is too short");
        assert_eq!(group.shared_key(&[2; 257], &[7; EXPONENT_BYTES]), None, "it is too long");
    }
}
