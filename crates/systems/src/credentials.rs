//! User and password of an existing cluster, from two environment variables, and random passwords for what is started
//! here.

use crate::system::SystemError;

/// The values of the two variables, or `None` if neither is set. If only one is set, the error is the name of the
/// other.
pub(crate) fn read(
    variable: impl Fn(&str) -> Option<String>,
    names: [&'static str; 2],
) -> Result<Option<(String, String)>, &'static str> {
    match names.map(variable) {
        [Some(username), Some(password)] => Ok(Some((username, password))),
        [None, None] => Ok(None),
        [username, _] => Err(if username.is_none() { names[0] } else { names[1] }),
    }
}

/// The error that `system` needs the environment variable `name`.
pub(crate) fn missing(system: &'static str, name: &str, remedy: String) -> SystemError {
    SystemError::Missing { system, missing: format!("the environment variable {name}"), remedy }
}

/// 128 random bits in hexadecimal digits.
pub(crate) fn random_password() -> std::io::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)?;
    Ok(base16ct::lower::encode_string(&random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_credential_is_refused_naming_the_other() {
        let login_with = |set: &'static [&str]| {
            read(|name| set.contains(&name).then(|| name.to_lowercase()), ["USER", "PASSWORD"])
        };
        assert_eq!(login_with(&["USER", "PASSWORD"]), Ok(Some(("user".to_owned(), "password".to_owned()))));
        assert_eq!(
            (login_with(&[]), login_with(&["USER"]), login_with(&["PASSWORD"])),
            (Ok(None), Err("PASSWORD"), Err("USER"))
        );
    }
}
