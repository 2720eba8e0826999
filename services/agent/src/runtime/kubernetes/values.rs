//! Builds the values of a chart from a deployment's parameters. Each pointer is a path as of `helm --set`: `a.b`, `a[0].b`, and
//! `a\.b` for a name with a dot. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Elements of an array that a pointer may create.
const INDEX_MAX: usize = 1_000;
/// Steps of a pointer.
const STEPS_MAX: usize = 64;

// The words of the errors name these numbers.
const _: () = assert!(INDEX_MAX == 1_000 && STEPS_MAX == 64);

/// The error of a pointer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parameter pointer '{pointer}' {rule}")]
pub(super) struct PointerError {
    pointer: String,
    rule: &'static str,
}

#[derive(Debug, PartialEq, Eq)]
enum PointerStep {
    Name(String),
    Index(usize),
}

/// The values as one document.
///
/// # Errors
/// A pointer that is no path, or leads through a value of another kind.
pub(super) fn document(values: &BTreeMap<String, Value>) -> Result<Value, PointerError> {
    let mut root = Value::Object(Map::new());
    for (pointer, value) in values {
        let refused = |rule| PointerError { pointer: pointer.clone(), rule };
        let steps = steps(pointer).map_err(refused)?;
        let mut slot = &mut root;
        for step in steps {
            slot = child(slot, step).map_err(refused)?;
        }
        *slot = value.clone();
    }
    Ok(root)
}

fn child(value: &mut Value, step: PointerStep) -> Result<&mut Value, &'static str> {
    match step {
        PointerStep::Name(name) => {
            if value.is_null() {
                *value = Value::Object(Map::new());
            }
            let fields = value.as_object_mut().ok_or("leads through a value that another one sets")?;
            Ok(fields.entry(name).or_insert(Value::Null))
        }
        PointerStep::Index(index) => {
            if value.is_null() {
                *value = Value::Array(Vec::new());
            }
            let items = value.as_array_mut().ok_or("leads through a value that another one sets")?;
            if items.len() <= index {
                items.resize(index + 1, Value::Null);
            }
            Ok(&mut items[index])
        }
    }
}

fn steps(pointer: &str) -> Result<Vec<PointerStep>, &'static str> {
    let (mut steps, mut name, mut letters) = (Vec::new(), String::new(), pointer.chars().peekable());
    let mut is_after_index = false;
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => name.push(letters.next().ok_or("ends with a backslash")?),
            '.' => {
                push_name(&mut steps, &mut name, is_after_index)?;
                is_after_index = false;
                if letters.peek().is_none() {
                    return Err("ends with a dot");
                }
            }
            '[' => {
                push_name(&mut steps, &mut name, is_after_index)?;
                let digits: String = letters.by_ref().take_while(|letter| *letter != ']').collect();
                let index: usize = digits.parse().map_err(|_| "has an index that is no number")?;
                if index >= INDEX_MAX {
                    return Err("has an index of 1000 or more");
                }
                steps.push(PointerStep::Index(index));
                is_after_index = true;
            }
            letter => name.push(letter),
        }
    }
    push_name(&mut steps, &mut name, is_after_index)?;
    if steps.len() > STEPS_MAX { Err("has more than 64 steps") } else { Ok(steps) }
}

fn push_name(
    steps: &mut Vec<PointerStep>,
    name: &mut String,
    is_after_index: bool,
) -> Result<(), &'static str> {
    match (name.is_empty(), is_after_index) {
        (true, true) => Ok(()),
        (true, false) => Err("has an empty name"),
        (false, true) => Err("has a name after an index without a dot"),
        (false, false) => {
            steps.push(PointerStep::Name(std::mem::take(name)));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(pairs: &[(&str, Value)]) -> Result<Value, PointerError> {
        document(&pairs.iter().map(|(pointer, value)| ((*pointer).to_owned(), value.clone())).collect())
    }

    #[test]
    fn pointers_are_paths_as_helm_reads_them() {
        let made = of(&[
            ("retention.days", json!(30)),
            ("retention.unit", json!("d")),
            ("hosts[1].name", json!("b")),
            ("hosts[0].name", json!("a")),
            (r"node.acme\.example/line", json!(true)),
        ]);
        let expected = json!({"retention": {"days": 30, "unit": "d"}, "hosts": [{"name": "a"}, {"name": "b"}],
            "node": {"acme.example/line": true}});
        assert_eq!(made.unwrap(), expected);
        assert_eq!(of(&[]).unwrap(), json!({}));
        assert_eq!(of(&[("a[0][1]", json!(1))]).unwrap(), json!({"a": [[null, 1]]}));
    }

    #[test]
    fn a_pointer_that_is_no_path_is_refused() {
        let long = "a.".repeat(STEPS_MAX) + "a";
        for pointer in ["", ".", "a.", ".a", "a..b", "a[x]", "a[1000]", "a[0]b", "a\\", &long] {
            assert!(of(&[(pointer, json!(1))]).is_err(), "{pointer}");
        }
        assert!(of(&[("a", json!(1)), ("a.b", json!(2))]).is_err());
    }
}
