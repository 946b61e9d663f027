//! Where a host on this machine keeps what the command line needs to find it.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::CliError;

/// `given`, or the data folder that `sless up` uses when it is told none.
pub(crate) fn data_dir(given: Option<&Path>) -> PathBuf {
    choose(given, nix::unistd::geteuid().is_root(), folder_of("XDG_DATA_HOME"), folder_of("HOME"))
}

fn choose(given: Option<&Path>, root: bool, xdg: Option<PathBuf>, home: Option<PathBuf>) -> PathBuf {
    match given {
        Some(given) => given.to_owned(),
        // Not below root's home: handlers may run under a uid of their own, which may not look in there.
        None if root => PathBuf::from("/var/lib/sless"),
        None => xdg
            .or_else(|| home.map(|home| home.join(".local/share")))
            .map_or_else(|| PathBuf::from(".sless"), |folder| folder.join("sless")),
    }
}

/// The admin token that `sless up` makes when it is given none.
pub(crate) fn token_file(data: &Path) -> PathBuf {
    data.join("private/token")
}

/// The address of the host that runs on this data folder.
pub(crate) fn url_file(data: &Path) -> PathBuf {
    data.join("private/url")
}

/// Where `sless login` keeps what it was told.
pub(crate) fn login_file() -> Result<PathBuf, CliError> {
    let config = folder_of("XDG_CONFIG_HOME").or_else(|| folder_of("HOME").map(|home| home.join(".config")));
    config.map(|folder| folder.join("sless/login.json")).ok_or_else(|| {
        CliError::Refused(
            "neither HOME nor XDG_CONFIG_HOME is set: there is no place to keep a login".to_owned(),
        )
    })
}

/// The data folder of `sless dev`'s own host, beside that of `sless up`.
pub(crate) fn dev_dir(given: Option<&Path>) -> PathBuf {
    match given {
        Some(given) => given.to_owned(),
        None => data_dir(None).with_file_name("sless-dev"),
    }
}

fn folder_of(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_folder_is_the_given_one_or_the_users() {
        let (xdg, home) = (Some(PathBuf::from("/x")), Some(PathBuf::from("/home/a")));
        assert_eq!(choose(Some(Path::new("d")), true, xdg.clone(), home.clone()), Path::new("d"));
        assert_eq!(choose(None, true, xdg.clone(), home.clone()), Path::new("/var/lib/sless"));
        assert_eq!(choose(None, false, xdg, home.clone()), Path::new("/x/sless"));
        assert_eq!(choose(None, false, None, home), Path::new("/home/a/.local/share/sless"));
    }
}
