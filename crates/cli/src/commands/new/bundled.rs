//! The studies that come with Underlay, under a name of the user's own.

use underlay_config::closest;

use crate::exit_codes::ExitFailure;

const STUDIES: [(&str, &str); 13] = [
    ("quickstart", include_str!("../../../../../studies/quickstart.toml")),
    ("accumulo-flash", include_str!("../../../../../studies/accumulo-flash.toml")),
    ("cassandra-nvme-tcp", include_str!("../../../../../studies/cassandra-nvme-tcp.toml")),
    ("fio", include_str!("../../../../../studies/fio.toml")),
    ("mapreduce-ssd", include_str!("../../../../../studies/mapreduce-ssd.toml")),
    ("oracle-nosql-flash", include_str!("../../../../../studies/oracle-nosql-flash.toml")),
    ("oracle-nosql-flash-je-ha", include_str!("../../../../../studies/oracle-nosql-flash-je-ha.toml")),
    ("oracle-nosql-flash-rocksdb", include_str!("../../../../../studies/oracle-nosql-flash-rocksdb.toml")),
    ("oracle-nosql-flash-shards", include_str!("../../../../../studies/oracle-nosql-flash-shards.toml")),
    (
        "oracle-nosql-flash-shards-je-ha",
        include_str!("../../../../../studies/oracle-nosql-flash-shards-je-ha.toml"),
    ),
    ("postgresql", include_str!("../../../../../studies/postgresql.toml")),
    ("spark-object-store", include_str!("../../../../../studies/spark-object-store.toml")),
    ("sqlite", include_str!("../../../../../studies/sqlite.toml")),
];

/// The values of `--like`.
pub(in crate::commands) fn names() -> impl Iterator<Item = &'static str> {
    STUDIES.into_iter().map(|(name, _)| name)
}

/// Those of them whose program is described by commands.
pub(super) fn list_command_studies() -> impl Iterator<Item = &'static str> {
    let described = |text: &str| text.lines().any(|line| line.starts_with("kind = \"command\""));
    STUDIES.into_iter().filter(move |(_, text)| described(text)).map(|(name, _)| name)
}

/// The study `like`, called `name`.
pub(super) fn copy(like: &str, name: &str) -> Result<String, ExitFailure> {
    let Some((_, text)) = STUDIES.iter().find(|(name, _)| *name == like) else {
        let names = STUDIES.map(|(name, _)| name);
        let meant = closest(like, names).map(|meant| format!("did you mean '{meant}'? ")).unwrap_or_default();
        return Err(ExitFailure::Mistake(format!(
            "there is no bundled study '{like}': {meant}expected one of {}",
            names.join(", ")
        )));
    };
    let lines = text.lines().map(|line| match line.starts_with("name = ") {
        true => format!("name = \"{name}\"\n"),
        false => format!("{line}\n"),
    });
    Ok(lines.collect())
}
