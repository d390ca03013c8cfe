//! User and password of a cluster that runs already, from two variables of the environment.

use crate::system::SystemError;

/// The values of the variables of these two `names`, or `None` where neither is set. `Err` is the name of the one that is
/// missing.
pub fn read(
    variable: impl Fn(&str) -> Option<String>,
    names: [&'static str; 2],
) -> Result<Option<(String, String)>, &'static str> {
    match names.map(variable) {
        [Some(username), Some(password)] => Ok(Some((username, password))),
        [None, None] => Ok(None),
        [username, _] => Err(if username.is_none() { names[0] } else { names[1] }),
    }
}

/// `system` can't do without the environment variable `name`.
pub fn missing(system: &'static str, name: &str, remedy: String) -> SystemError {
    SystemError::Missing { system, missing: format!("the environment variable {name}"), remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_is_a_mistake_and_the_other_is_named() {
        let with = |set: &'static [&str]| {
            read(|name| set.contains(&name).then(|| name.to_lowercase()), ["USER", "PASSWORD"])
        };
        assert_eq!(with(&["USER", "PASSWORD"]), Ok(Some(("user".to_owned(), "password".to_owned()))));
        assert_eq!(
            (with(&[]), with(&["USER"]), with(&["PASSWORD"])),
            (Ok(None), Err("PASSWORD"), Err("USER"))
        );
    }
}
