//! Pins the record format of the two files that hold records. One record with every field filled lies in
//! `records/`, under a name with both format versions: a change of the format must raise them.

use muster_domain::fold::{DeviceRecord, Fleet, HearingState};
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserialize, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

use super::tests::fleet;
use super::{KIND, fs};
use crate::history::store::KIND as HISTORY;

const REMEDY: &str = "what a record looks like has changed: raise `format` of KIND in both store.rs and history/store.rs, \
                      rename the file in services/rollup/records to the new numbers, and make it the new record, every field \
                      filled. A field that older records may lack, and older programs may ignore, needs no new format: add it \
                      to the record";

/// JSON with every field of the deserialized type, however deep, including optional ones.
struct Whole(Value);

impl IntoDeserializer<'_, Error> for Whole {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Whole {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        for field in fields {
            assert!(self.0.get(field).is_some(), "the record has no `{field}` of {name}: {REMEDY}");
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(values) => {
                assert!(!values.is_empty(), "the record has a list without a value: {REMEDY}");
                visitor.visit_seq(SeqDeserializer::new(values.into_iter().map(Whole)))
            }
            Value::Object(fields) => {
                assert!(!fields.is_empty(), "the record has a map without a value: {REMEDY}");
                let fields =
                    fields.into_iter().map(|(name, value)| (Whole(Value::String(name)), Whole(value)));
                visitor.visit_map(MapDeserializer::new(fields))
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        // Numbers are text where they are the names of a map.
        match self.0.as_str().and_then(|text| text.parse().ok()) {
            Some(number) => visitor.visit_u64(number),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        assert!(!self.0.is_null(), "the record has a field that is null: {REMEDY}");
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

fn record() -> Value {
    let file = format!("records/snapshot-{}-history-{}.json", KIND.format, HISTORY.format);
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_record_format_is_pinned_with_the_format_versions() {
    let golden = record();
    let read = DeviceRecord::deserialize(Whole(golden.clone()));
    let read = read.unwrap_or_else(|error| panic!("{error}: {REMEDY}"));
    assert_eq!(serde_json::to_value(&read).unwrap(), golden, "{REMEDY}");
    let taken_in = Fleet::restore(fleet(1).as_of(), HearingState::default(), [read]);
    let given: Vec<_> = taken_in.records().collect();
    assert_eq!(serde_json::to_value(&given).unwrap(), Value::Array(vec![golden]), "a fleet keeps all of it");
}

#[test]
#[should_panic(expected = "the record has no `labels` of DeviceRecord")]
fn a_field_that_the_record_lacks_is_noticed_also_where_it_may_be_left_out() {
    let mut lacking = record();
    lacking.as_object_mut().unwrap().remove("labels");
    let _ = DeviceRecord::deserialize(Whole(lacking));
}
