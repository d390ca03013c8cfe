//! DH-HMAC-CHAP: both sides against each other, and against messages that were computed from the specification's
//! formulas by a program of another language.

use proptest::prelude::*;
use sha2::{Digest, Sha256};
use underlay_nvme::auth::*;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6f1c5c1e-0000-4000-8000-0123456789ab";
const SUBSYSTEM: &str = "nqn.2026-01.org.example:pool.data";
const HOST_SECRET: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const CONTROLLER_SECRET: &str =
    "DHHC-1:02:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOEhYaHiImKi4yNjo+QkZKTvGwQfg==:";

fn entropy(factor: usize, offset: usize) -> SessionEntropy {
    SessionEntropy::from_seed(&std::array::from_fn(|index| (index * factor + offset) as u8))
}

fn secret(text: &str) -> AuthSecret {
    AuthSecret::parse(text).unwrap()
}

struct Sides {
    host: HostSession,
    controller: ControllerSession,
}

fn sides(host: HostSecrets, controller: ControllerSecrets, hash: AuthHash, group: DhGroup) -> Sides {
    let policy = AuthPolicy { hashes: vec![hash], groups: vec![group] };
    Sides {
        host: HostSession::new(host, HOST, SUBSYSTEM, entropy(7, 3)),
        controller: ControllerSession::new(controller, policy, HOST, SUBSYSTEM, entropy(11, 5)),
    }
}

fn both_prove(hash: AuthHash, group: DhGroup) -> Sides {
    let (host, controller) = (secret(HOST_SECRET), secret(CONTROLLER_SECRET));
    sides(
        HostSecrets { host: host.clone(), controller: Some(controller.clone()) },
        ControllerSecrets { host, controller: Some(controller) },
        hash,
        group,
    )
}

/// How it ends on the host's side, with every message that travelled.
fn run(sides: &mut Sides, mut change: impl FnMut(usize, &mut Vec<u8>)) -> (HostStep, Vec<Vec<u8>>) {
    let mut messages = Vec::new();
    let mut carry = |mut message: Vec<u8>| {
        change(messages.len(), &mut message);
        messages.push(message.clone());
        message
    };
    let mut to_controller = carry(sides.host.start());
    let end = loop {
        sides.controller.receive(&to_controller);
        let mut answer = carry(sides.controller.next_message().expect("an answer is there"));
        answer.extend([0; 100]);
        match sides.host.receive(&answer) {
            HostStep::Exchange(message) => to_controller = carry(message),
            HostStep::SendAndFinish(message) => {
                sides.controller.receive(&carry(message));
                break HostStep::Finished;
            }
            HostStep::Failed { send, error } => {
                if let Some(message) = send {
                    sides.controller.receive(&message);
                }
                break HostStep::Failed { send: None, error };
            }
            HostStep::Finished => break HostStep::Finished,
        }
    };
    (end, messages)
}

fn untouched(_: usize, _: &mut Vec<u8>) {}

/// SHA-256 of challenge, reply and success1, made with Python's hashlib, hmac and pow.
const VECTORS: [(AuthHash, DhGroup, [&str; 3]); 6] = [
    (
        AuthHash::Sha256,
        DhGroup::Null,
        [
            "1e35ed28777665bbc02e87ce16ff166790f0bf974a0c91d5f13a91f01c9ef9ac",
            "9433774e2b006e043bce316d3d9c1afa0c2ce6511f7634f8affe6f870373b862",
            "727e5f47304e2603b3e8105beb0dd4afe8a814f0feea15b092a35404267347e7",
        ],
    ),
    (
        AuthHash::Sha256,
        DhGroup::Ffdhe2048,
        [
            "c68e6bbd8988d8212c7428762d5e7fd682521d24c10bb7f61109f8dd689a0d6d",
            "0eada4f0e745a3855127c6d47059df0c55bca3f9adaac3170079de295de8d5f3",
            "3defeec9fbca06ddde05e5dd50fe5a3c6d64347529cbd16203c3a13f34087383",
        ],
    ),
    (
        AuthHash::Sha384,
        DhGroup::Null,
        [
            "6dac4e687562301f9ba8f25cb5039c9a995c6ebbfd46eb3f99fac37e4ef73ee7",
            "4e280d713e5a6c0a1c4e935dc7dcb593e0a6dfbe1564b499e50137bc4e4e842f",
            "4fc593af85c442bd5c5fc48bf690219077403941fd57bf8d38397e6f50eac11c",
        ],
    ),
    (
        AuthHash::Sha384,
        DhGroup::Ffdhe2048,
        [
            "c45cd5b7a96994accbfc0d338ab68cf3fb05348edf917996a8cf25eff05f7f9e",
            "962c5705406348c758470de15fb72d351c0393c4b7789bacc1baa5647c9a38a7",
            "c77b5e95c870649a56adcfcc67fef7fff93a72fccd52517403e06f71b11e9b86",
        ],
    ),
    (
        AuthHash::Sha512,
        DhGroup::Null,
        [
            "9b8f7f10ca649d8609cf0dd353b243651c49a847f684969ee5e9e2d7a980717a",
            "5119a22bdcd6cc9f0fe5bfb647e9ace9bf28563e07375c4e993e483977bc738c",
            "149bcf26bb6a68d1fd6b23ecb81fbef8d09a10a5b6997bc9a9b46801936660e8",
        ],
    ),
    (
        AuthHash::Sha512,
        DhGroup::Ffdhe2048,
        [
            "9a0a7824d04e913d9c1047965382f7931f18eb6cd00b9ce1f5f056f0c401c7e2",
            "2d1d3fd1c82ec6e38df483ac4a464c55d5403a0f092231d5010900c35f28d5df",
            "56a3144334863383954b0b58d2491d08ca138c2c11030505987f6bacd5f9222f",
        ],
    ),
];

#[test]
fn messages_are_those_that_the_formulas_give() {
    for (hash, group, digests) in VECTORS {
        let mut sides = both_prove(hash, group);
        let (end, messages) = run(&mut sides, untouched);
        assert_eq!(end, HostStep::Finished);
        assert_eq!(sides.controller.progress(), &AuthProgress::Authenticated);
        let found: Vec<String> = messages[1..4]
            .iter()
            .map(|message| base16ct::lower::encode_string(&Sha256::digest(message)))
            .collect();
        assert_eq!(found, digests, "{hash:?} {group:?}");
    }
}

#[test]
fn reply_matches_reference_bytes() {
    let (_, messages) = run(&mut both_prove(AuthHash::Sha256, DhGroup::Null), untouched);
    let expected = "010200009fa6200001000000838a9198cc503ad78a68deebb57940006fe8b1c9585ac63f421a0374\
                    2537709de4e335f0030a11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ced5dc";
    let found = base16ct::lower::encode_string(&messages[2]);
    assert_eq!(found, expected);
}

#[test]
fn exchange_succeeds_for_all_hashes_and_groups() {
    for hash in AuthHash::ALL {
        for group in DhGroup::ALL {
            for asks in [false, true] {
                let controller = asks.then(|| secret(CONTROLLER_SECRET));
                let mut sides = sides(
                    HostSecrets { host: secret(HOST_SECRET), controller: controller.clone() },
                    ControllerSecrets { host: secret(HOST_SECRET), controller },
                    hash,
                    group,
                );
                let (end, messages) = run(&mut sides, untouched);
                assert_eq!(end, HostStep::Finished, "{hash:?} {group:?} {asks}");
                assert_eq!(sides.controller.progress(), &AuthProgress::Authenticated);
                assert_eq!(messages.len(), if asks { 5 } else { 4 });
                assert!(messages.iter().all(|message| message.len() <= MAX_MESSAGE_BYTES));
            }
        }
    }
}

fn host_error(sides: &mut Sides) -> AuthError {
    match run(sides, untouched).0 {
        HostStep::Failed { error, .. } => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn wrong_secrets_are_refused_by_whoever_meets_them() {
    let (host, other) = (secret(HOST_SECRET), AuthSecret::generate(AuthHash::Sha256).unwrap());
    let controller = secret(CONTROLLER_SECRET);
    let session = |host: &AuthSecret,
                   controller: Option<&AuthSecret>,
                   expected: &AuthSecret,
                   own: Option<&AuthSecret>| {
        sides(
            HostSecrets { host: host.clone(), controller: controller.cloned() },
            ControllerSecrets { host: expected.clone(), controller: own.cloned() },
            AuthHash::Sha256,
            DhGroup::Ffdhe2048,
        )
    };
    let mut wrong_host = session(&other, None, &host, None);
    assert_eq!(host_error(&mut wrong_host), AuthError::Refused(FailureCode::AuthenticationFailed));
    assert_eq!(wrong_host.controller.progress(), &AuthProgress::Failed(AuthError::HostUnproved));

    let mut wrong_controller = session(&host, Some(&controller), &host, Some(&other));
    assert_eq!(host_error(&mut wrong_controller), AuthError::ControllerUnproved);
    assert_eq!(
        wrong_controller.controller.progress(),
        &AuthProgress::Failed(AuthError::Refused(FailureCode::AuthenticationFailed))
    );

    let mut no_proof = session(&host, Some(&controller), &host, None);
    assert_eq!(host_error(&mut no_proof), AuthError::Refused(FailureCode::AuthenticationFailed));
    assert_eq!(no_proof.controller.progress(), &AuthProgress::Failed(AuthError::NoControllerSecret));
}

#[test]
fn reflected_challenge_is_refused() {
    let mut sides = both_prove(AuthHash::Sha256, DhGroup::Null);
    let mut seen = Vec::new();
    let (end, _) = run(&mut sides, |index, message| match index {
        1 => seen = message[16..48].to_vec(),
        2 => message[48..80].copy_from_slice(&seen),
        _ => {}
    });
    assert!(matches!(end, HostStep::Failed { error: AuthError::Refused(_), .. }), "{end:?}");
    assert_eq!(sides.controller.progress(), &AuthProgress::Failed(AuthError::HostUnproved));
}

#[test]
fn missing_common_parameter_is_named() {
    let mut sides = both_prove(AuthHash::Sha256, DhGroup::Ffdhe3072);
    sides.host = sides.host.with_groups(vec![DhGroup::Null]);
    assert_eq!(host_error(&mut sides), AuthError::Refused(FailureCode::DhGroupNotUsable));

    let mut sides = both_prove(AuthHash::Sha256, DhGroup::Null);
    let (end, _) = run(&mut sides, |index, message| {
        if index == 0 {
            message[6] = 1;
        }
    });
    let refused = AuthError::Refused(FailureCode::SecureChannelMismatch);
    assert_eq!(end, HostStep::Failed { send: None, error: refused });
}

#[test]
fn messages_out_of_order_end_the_session() {
    let mut sides = both_prove(AuthHash::Sha256, DhGroup::Null);
    let (start, success) = (sides.host.start(), AuthMessage::Success2 { transaction: 0 }.encode());
    assert_eq!(sides.controller.receive(&success), &AuthProgress::Failed(AuthError::OutOfOrder));
    assert!(sides.controller.next_message().is_some());
    assert_eq!(sides.controller.next_message(), None);
    // Even the right message comes too late now.
    assert_eq!(sides.controller.receive(&start), &AuthProgress::Failed(AuthError::OutOfOrder));
    assert!(matches!(sides.host.receive(&start), HostStep::Failed { error: AuthError::OutOfOrder, .. }));
}

#[test]
fn secrets_in_their_written_form() {
    for text in [HOST_SECRET, CONTROLLER_SECRET] {
        assert_eq!(secret(text).reveal(), text);
        assert_eq!(format!("{:?}", secret(text)), "Secret(..)");
    }
    let plain = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P4zODhA=:";
    assert_eq!(secret(plain).reveal(), plain);
    let refused = |text: &str| AuthSecret::parse(text).unwrap_err();
    assert_eq!(refused(""), SecretError::Form);
    assert_eq!(refused(&HOST_SECRET[..20]), SecretError::Form);
    assert_eq!(refused(&HOST_SECRET.replace(":01:", ":04:")), SecretError::Transformation);
    assert_eq!(refused(&HOST_SECRET.replace(":01:", ":02:")), SecretError::Length(32));
    assert_eq!(refused(&HOST_SECRET.replace("AAEC", "AAED")), SecretError::Checksum);
    assert_eq!(refused(&HOST_SECRET.replace("AAEC", "AA!C")), SecretError::Encoding);
    assert_eq!(refused("DHHC-1:00:AAA=:"), SecretError::Length(0));
    assert_eq!(AuthSecret::new(Some(AuthHash::Sha384), vec![0; 32]), Err(SecretError::Length(32)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A byte changed on the way is noticed by one of the two, but for bytes that mean nothing.
    #[test]
    fn message_tampering_is_noticed(
        index in 1_usize..4, position in any::<prop::sample::Index>(), flip in 1_u8..=255,
    ) {
        let mut sides = both_prove(AuthHash::Sha256, DhGroup::Null);
        let mut is_reserved = false;
        let (end, _) = run(&mut sides, |number, message| {
            if number == index {
                let position = position.index(message.len());
                // Reserved bytes, and all but the lowest bit of the flags that say what follows.
                is_reserved = matches!((index, position), (_, 2 | 3 | 7) | (2, 9) | (3, 9..16))
                    || (matches!((index, position), (2 | 3, 8)) && flip & 1 == 0);
                message[position] ^= flip;
            }
        });
        let both_in = end == HostStep::Finished && sides.controller.progress() == &AuthProgress::Authenticated;
        prop_assert_eq!(both_in, is_reserved);
    }

    #[test]
    fn secrets_survive_being_written(key in prop::collection::vec(any::<u8>(), 32), hashed in any::<bool>()) {
        let secret = AuthSecret::new(hashed.then_some(AuthHash::Sha256), key).unwrap();
        prop_assert_eq!(AuthSecret::parse(&secret.reveal()), Ok(secret));
    }

    #[test]
    fn any_text_is_a_secret_or_refused(text in "(DHHC-1:0[0-3]:)?[ -~]{0,100}") {
        let _ = AuthSecret::parse(&text);
    }

    #[test]
    fn any_bytes_are_a_message_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..2) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok(message) = AuthMessage::decode(&bytes) {
            prop_assert_eq!(AuthMessage::decode(&message.encode()), Ok(message));
        }
        let mut sides = both_prove(AuthHash::Sha256, DhGroup::Null);
        sides.controller.receive(&bytes);
        sides.host.receive(&bytes);
    }
}
