//! How a namespace is recognised. Names and numbers are used again: another volume may have them tomorrow.

use base16ct::lower::encode_string as hex;

use crate::identify::{ControllerData, NamespaceData, NamespaceDescriptors};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamespaceIdentity {
    nguid: Option<[u8; 16]>,
    uuid: Option<[u8; 16]>,
    eui64: Option<[u8; 8]>,
    serial_number: String,
}

impl NamespaceIdentity {
    pub(super) fn new(
        controller: &ControllerData,
        namespace: &NamespaceData,
        descriptors: &NamespaceDescriptors,
    ) -> NamespaceIdentity {
        // All zeros is none.
        let nguid = descriptors.nguid.unwrap_or(namespace.nguid);
        NamespaceIdentity {
            nguid: Some(nguid).filter(|nguid| *nguid != [0; 16]),
            uuid: descriptors.uuid.filter(|uuid| *uuid != [0; 16]),
            eui64: Some(namespace.eui64).filter(|eui64| *eui64 != [0; 8]),
            serial_number: controller.serial_number.clone(),
        }
    }

    /// How the namespace that is there now tells that it is another one.
    pub(super) fn difference(&self, now: &NamespaceIdentity) -> Option<String> {
        let identifiers = |identity: &NamespaceIdentity| {
            [identity.nguid.map(Vec::from), identity.uuid.map(Vec::from), identity.eui64.map(Vec::from)]
        };
        let (before, found) = (identifiers(self), identifiers(now));
        let mut has_common = false;
        for (name, (before, found)) in ["NGUID", "UUID", "EUI64"].iter().zip(before.iter().zip(&found)) {
            match (before, found) {
                (Some(before), Some(found)) if before != found => {
                    return Some(format!("its {name} is {}, but was {}", hex(found), hex(before)));
                }
                (Some(_), Some(_)) => has_common = true,
                _ => {}
            }
        }
        if has_common {
            // A target may have another serial number each time that it is set up; the namespace is the same.
            return None;
        }
        if before.iter().any(Option::is_some) {
            return Some("it no longer has any of its identifiers".into());
        }
        let (before, found) = (&self.serial_number, &now.serial_number);
        (before != found)
            .then(|| format!("the serial number is '{}', but was '{}'", found.trim(), before.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_identity_prefers_own_identifiers_to_serial_number() {
        let none = NamespaceIdentity { nguid: None, uuid: None, eui64: None, serial_number: "A".into() };
        let complete = NamespaceIdentity { nguid: Some([1; 16]), uuid: Some([2; 16]), ..none.clone() };
        assert_eq!(complete.difference(&complete), None);
        assert_eq!(
            complete.difference(&NamespaceIdentity { serial_number: "B".into(), ..complete.clone() }),
            None
        );
        assert_eq!(complete.difference(&NamespaceIdentity { uuid: None, ..complete.clone() }), None);
        let other =
            complete.difference(&NamespaceIdentity { nguid: Some([9; 16]), ..complete.clone() }).unwrap();
        assert!(other.contains("NGUID is 0909"), "{other}");
        assert!(complete.difference(&none).unwrap().contains("no longer has any of its identifiers"));
        assert_eq!(none.difference(&complete), None);
        let other =
            none.difference(&NamespaceIdentity { serial_number: "B".into(), ..none.clone() }).unwrap();
        assert!(other.contains("'B'") && other.contains("'A'"), "{other}");
    }
}
