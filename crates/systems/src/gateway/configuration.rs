//! The gateway's configuration, as docs/gateway.md has it.

use std::path::Path;

use underlay_config::units::format_bytes;

use super::process::{ADDRESS, ADMIN, FLUSHES, METADATA_BYTES, Plan, REQUESTS};

/// What the gateway's own files are called in its scratch directory.
pub(super) const KEY_SECRET: &str = "key.secret";
pub(super) const STORE_SECRET: &str = "store.secret";
pub(super) const TOKEN: &str = "admin.token";

/// The text of `gateway.toml`; secrets are in files of their own beside it, in `scratch`.
pub(super) fn text(plan: &Plan, key_id: &str, scratch: &Path) -> String {
    let quoted = |path: &Path| toml_string(&path.display().to_string());
    let in_scratch = |name: &str| quoted(&scratch.join(name));
    let sizes = &plan.sizes;
    let write = match plan.flush_after {
        Some(after) => format!("write = \"back\"\nflush_after = \"{} ms\"", after.as_millis()),
        None => "write = \"through\"".to_owned(),
    };
    let flash = match sizes.flash_bytes {
        0 => String::new(),
        bytes => format!("cache = \"{}\"\n", format_bytes(bytes)),
    };
    let (bucket, behind) = (&plan.serves, &plan.store.name);
    format!(
        "listen = \"{ADDRESS}\"\n\n\
         [local]\ndirectory = {directory}\njournal = \"{journal}\"\nmemory = \"{memory}\"\n{flash}metadata_memory = \"{metadata}\"\n\n\
         [s3]\nendpoint = {endpoint}\nkey_id = {store_key}\nsecret_file = {store_secret}\n\n\
         [bucket.{bucket}]\nstore = \"s3://{behind}\"\n{write}\n\n\
         [key.jobs]\nid = {id}\nsecret_file = {key_secret}\nallow = [{{ bucket = \"{bucket}\", may = [\"read\", \"write\"] }}]\n\n\
         [limits]\nrequests = {requests}\nflushes = {flushes}\npatience = \"{patience} s\"\ndrain = \"0 s\"\n\n\
         [admin]\nlisten = \"{ADMIN}\"\ntoken_file = {token}\n",
        directory = quoted(&plan.directory),
        journal = format_bytes(sizes.journal_bytes),
        memory = format_bytes(sizes.memory_bytes),
        metadata = format_bytes(METADATA_BYTES),
        endpoint = toml_string(&plan.store.endpoint),
        store_key = toml_string(&plan.store.keys.access),
        store_secret = in_scratch(STORE_SECRET),
        id = toml_string(key_id),
        key_secret = in_scratch(KEY_SECRET),
        requests = REQUESTS,
        flushes = FLUSHES,
        patience = plan.patience.as_secs().max(1),
        token = in_scratch(TOKEN),
    )
}

/// A basic string of TOML.
fn toml_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::process::Sizes;
    use super::*;
    use crate::ceph::{Bucket, Keys};

    #[test]
    fn secrets_are_in_files_and_what_is_not_wanted_is_left_out() {
        let plan = Plan {
            system: "test",
            program: "/usr/bin/underlay-gateway".into(),
            directory: "/flash/a \"b\"/gateway".into(),
            scratch: "/scratch".into(),
            sizes: Sizes { memory_bytes: 1 << 26, flash_bytes: 0, journal_bytes: 1 << 30 },
            flush_after: Some(Duration::from_millis(2500)),
            patience: Duration::from_secs(60),
            serves: "lake".to_owned(),
            store: Bucket {
                name: "underlay".to_owned(),
                endpoint: "http://10.0.0.1:7480".to_owned(),
                keys: Keys { access: "ABC".to_owned(), secret: "hidden".to_owned() },
            },
        };
        let back = text(&plan, "JOBS", Path::new("/scratch"));
        assert!(!back.contains("hidden") && !back.contains("\ncache ="), "{back}");
        for line in [
            "directory = \"/flash/a \\\"b\\\"/gateway\"",
            "journal = \"1 GiB\"",
            "write = \"back\"",
            "flush_after = \"2500 ms\"",
            "secret_file = \"/scratch/store.secret\"",
            "[bucket.lake]",
            "store = \"s3://underlay\"",
        ] {
            assert!(back.lines().any(|one| one == line), "{line} in\n{back}");
        }
        let sizes = Sizes { flash_bytes: 1 << 28, ..plan.sizes };
        let through = text(&Plan { flush_after: None, sizes, ..plan }, "JOBS", Path::new("/scratch"));
        assert!(through.contains("write = \"through\"\n") && !through.contains("flush_after"), "{through}");
        assert!(through.contains("\ncache = \"256 MiB\"\n"), "{through}");
    }
}
