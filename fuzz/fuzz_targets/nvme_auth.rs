//! Messages of DH-HMAC-CHAP and written secrets, as anybody may send them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_nvme::auth::{
    AuthHash, AuthMessage, AuthPolicy, AuthProgress, AuthSecret, ControllerSecrets, ControllerSession,
    DhGroup, HostSecrets, HostSession, HostStep, SessionEntropy,
};

const HOST: &str = "nqn.2026-01.org.example:host";
const SUBSYSTEM: &str = "nqn.2026-01.org.example:subsystem";

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(secret) = AuthSecret::parse(text)
    {
        assert_eq!(AuthSecret::parse(&secret.reveal()), Ok(secret));
    }
    if let Ok(message) = AuthMessage::decode(data) {
        assert_eq!(AuthMessage::decode(&message.encode()), Ok(message));
    }
    // No sequence of messages admits a peer without the secrets.
    let secret =
        |fill: u8| AuthSecret::new(Some(AuthHash::Sha256), vec![fill; 32]).expect("the length is right");
    let (host, controller) = (secret(1), secret(2));
    let secrets = ControllerSecrets { host: host.clone(), controller: Some(controller.clone()) };
    let policy = AuthPolicy { groups: vec![DhGroup::Null], ..AuthPolicy::default() };
    let mut served = ControllerSession::new(
        secrets,
        policy,
        HOST,
        SUBSYSTEM,
        SessionEntropy::from_seed(&[3; SessionEntropy::SEED_BYTES]),
    );
    let secrets = HostSecrets { host, controller: Some(controller) };
    let mut serving = HostSession::new(
        secrets,
        HOST,
        SUBSYSTEM,
        SessionEntropy::from_seed(&[4; SessionEntropy::SEED_BYTES]),
    );
    let mut rest = data;
    while let Some((&length, tail)) = rest.split_first() {
        let (message, tail) = tail.split_at(tail.len().min(usize::from(length)));
        assert_ne!(served.receive(message), &AuthProgress::Authenticated);
        let _ = served.next_message();
        assert!(!matches!(serving.receive(message), HostStep::Finished | HostStep::SendAndFinish(_)));
        rest = tail;
    }
});
