//! Suggests known names that are close to an unknown name.

/// Most names in one suggestion.
const SUGGESTIONS_MAX: usize = 3;

/// The known names nearest to `wanted`, nearest first; none where all are far.
pub fn near<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut ranked: Vec<_> = known
        .into_iter()
        .map(|name| (distance(wanted, name), name))
        .filter(|(distance, _)| *distance <= wanted.chars().count().max(3) / 3)
        .collect();
    ranked.sort_unstable();
    ranked.dedup();
    ranked.into_iter().take(SUGGESTIONS_MAX).map(|(_, name)| name).collect()
}

/// The end of an error message that suggests names; empty without names.
pub fn did_you_mean<T: AsRef<str>>(near: &[T]) -> String {
    match near {
        [] => String::new(),
        names => {
            let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
            format!("; did you mean {}?", names.join(" or "))
        }
    }
}

/// Edits from one name to the other; 1 if `wanted` is a part of the name.
fn distance(wanted: &str, name: &str) -> usize {
    if wanted.len() > 2 && name.contains(wanted) { 1 } else { strsim::damerau_levenshtein(wanted, name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_and_parts_are_near_and_strangers_are_not() {
        let known = ["line-dashboard", "packet-tap", "web", "web-2"];
        assert_eq!(near("line-dashbord", known), ["line-dashboard"]);
        assert_eq!(near("dashboard", known), ["line-dashboard"]);
        assert_eq!(near("wbe", known), ["web"]);
        assert_eq!(near("web-3", known), ["web-2"]);
        assert!(near("gateway", known).is_empty());
    }
}
