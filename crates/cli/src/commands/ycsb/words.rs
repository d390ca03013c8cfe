//! Arguments as YCSB's own commands take them (`-threads 4`), turned into ours, so that scripts go on working.

use std::ffi::OsString;

/// Options of several letters after one dash that take a value, and ours.
const WORDS: [(&str, &str); 2] = [("-threads", "--threads"), ("-l", "--label")];
/// Those that change nothing here, passed on as properties so that a note mentions them.
const PROPERTIES: [(&str, &str); 3] = [("-db", "db"), ("-cp", "classpath"), ("-jvm-args", "jvm-args")];
/// Those without a value that repeat the phase.
const PHASES: [(&str, &str); 2] = [("-load", "load"), ("-t", "run")];

/// The arguments of this program, with those of `ycsb` in our words. Arguments after `--` are left alone.
pub(crate) fn translated(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments;
    let mut ours: Vec<OsString> = arguments.by_ref().take(2).collect();
    if ours.get(1).is_none_or(|command| command != "ycsb") {
        ours.extend(arguments);
        return ours;
    }
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            ours.push(argument);
            ours.extend(arguments);
            return ours;
        }
        let Some(word) = argument.to_str() else {
            ours.push(argument);
            continue;
        };
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        if let Some((_, property)) = PROPERTIES.iter().find(|(theirs, _)| *theirs == name) {
            let value = value.map(OsString::from).or_else(|| arguments.next());
            let mut property_argument = OsString::from(format!("{property}="));
            property_argument.push(value.unwrap_or_default());
            ours.extend([OsString::from("-p"), property_argument]);
        } else if word == "-target" {
            // YCSB takes 0 for no limit; no rate of ours is 0.
            let rate = arguments.next();
            match rate.as_ref().is_some_and(|rate| rate == "0") {
                true => ours.extend(["-p", "target=0"].map(OsString::from)),
                false => ours.extend([OsString::from("--rate")].into_iter().chain(rate)),
            }
        } else if let Some((_, own)) = WORDS.iter().find(|(theirs, _)| *theirs == word) {
            ours.push(OsString::from(own));
        } else if !PHASES.iter().any(|&(theirs, phase)| theirs == word && ours.iter().any(|one| one == phase))
        {
            ours.push(argument);
        }
    }
    ours
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translate(text: &str) -> String {
        let words = translated(text.split(' ').map(OsString::from));
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ycsbs_words_become_ours() {
        assert_eq!(
            translate("underlay ycsb run rocksdb -threads 4 -target 100 -P w -p a=b -s -l first"),
            "underlay ycsb run rocksdb --threads 4 --rate 100 -P w -p a=b -s --label first"
        );
        assert_eq!(
            translate("underlay ycsb load rocksdb -load -db site.ycsb.X -jvm-args=-Xmx1g -cp a.jar -s"),
            "underlay ycsb load rocksdb -p db=site.ycsb.X -p jvm-args=-Xmx1g -p classpath=a.jar -s"
        );
        assert_eq!(translate("underlay ycsb run null -t"), "underlay ycsb run null");
        assert_eq!(translate("underlay ycsb run null -target 0 -s"), "underlay ycsb run null -p target=0 -s");
        assert_eq!(translate("underlay ycsb run null -target"), "underlay ycsb run null --rate");
        // One that says something else stays, for the parser to refuse.
        assert_eq!(translate("underlay ycsb run null -load"), "underlay ycsb run null -load");
        assert_eq!(translate("underlay ycsb run null --threads 2"), "underlay ycsb run null --threads 2");
        assert_eq!(translate("underlay ycsb run null -- -t"), "underlay ycsb run null -- -t");
        assert_eq!(translate("underlay run -l"), "underlay run -l");
        assert_eq!(translate("underlay"), "underlay");
    }
}
