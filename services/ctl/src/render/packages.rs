//! Packages in the hub's object store.

use muster_client::packages::bucket::PackagePut;
use muster_contract::Timestamp;

use super::format::{age, bytes_text, clean, plural};
use super::table::Table;
use crate::packages::{PackageList, PackagesRemoved};

/// The packages of a hub.
pub fn list(list: &PackageList, now: Timestamp) -> String {
    let room = format!("{} of {}", bytes_text(list.bytes), bytes_text(list.bytes_max));
    if list.packages.is_empty() {
        return format!("The hub has no packages; `muster package put FILE` puts one; {room}.\n");
    }
    let mut table = Table::new(&["PACKAGE", ">SIZE", "PUT", "DIGEST"]);
    for package in &list.packages {
        let digest = package.digest.map_or_else(|| "-".to_owned(), |digest| digest.to_string());
        table.row([
            clean(&package.name).into(),
            bytes_text(package.bytes).into(),
            age(now, package.put_at).into(),
            package.problem.clone().unwrap_or(digest).into(),
        ]);
    }
    format!("{}\n{}, {room}.\n", table.within(None), plural(list.packages.len() as u64, "package"))
}

/// A package was put.
pub fn put(put: &PackagePut) -> String {
    let PackagePut { name, address, digest, bytes, changed } = put;
    let done = if *changed { "put" } else { "the hub has it already:" };
    let size = bytes_text(*bytes);
    format!("{done} {name}, {size}\n  packageLocation: {address}\n  packageDigest: {digest}\n")
}

/// The progress of a put.
pub fn progress(sent: u64, of: u64) -> String {
    format!("{} of {}\n", bytes_text(sent), bytes_text(of))
}

/// Packages were removed.
pub fn removed(result: &PackagesRemoved) -> String {
    let line = |verb: &str, names: &[String]| match names {
        [] => String::new(),
        names => format!("{verb} {}\n", names.join(", ")),
    };
    line("removed", &result.removed) + &line("the hub has no package", &result.missing)
}

#[cfg(test)]
mod tests {
    use muster_contract::canonical::Digest;

    use super::*;
    use crate::packages::PackageLine;

    #[test]
    fn a_list_names_each_package_with_its_digest_or_its_problem() {
        let now = Timestamp::default();
        let line = |name: &str, problem: Option<&str>| PackageLine {
            name: name.to_owned(),
            address: String::new(),
            digest: Some(Digest::of_bytes(b"x")),
            bytes: 5 << 20,
            put_at: now,
            put_by: None,
            problem: problem.map(str::to_owned),
        };
        let packages = vec![line("web.tar.gz", None), line("bad", Some("it is a link"))];
        let text = list(&PackageList { packages, bytes: 10 << 20, bytes_max: 1 << 30 }, now);
        for words in ["web.tar.gz", "sha256:2d711642", "it is a link", "2 packages, 10"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let none = list(&PackageList { packages: Vec::new(), bytes: 0, bytes_max: 1 << 30 }, now);
        assert!(none.contains("muster package put"), "{none}");
    }
}
