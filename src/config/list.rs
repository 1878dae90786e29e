//! Lists of tables: what is written once per listener, sink, rule, or action of a rule.

use super::draft::{Listed, Origin, Spots};
use super::file::Reader;
use super::table::Table;
use std::ops::Range;
use toml_edit::{Item, TableLike, Value};

/// A list of `T` that an `O` owns.
pub struct List<O: 'static, T: 'static> {
    /// The shapes of its table. What is required is so only where there is one; otherwise the shape has to be known first.
    pub tables: &'static [&'static Table<T>],
    /// The lists inside each of its tables.
    pub inner: &'static [&'static dyn AnyList<T>],
    /// Whether its owner is in vain without any.
    pub needed: bool,
    /// Where its things go.
    pub things: fn(&mut O) -> &mut Vec<Listed<T>>,
}

/// A list of an `O`, whatever it is of.
pub trait AnyList<O>: Sync {
    /// The key that it has in its owner's table.
    fn key(&self) -> &'static str;
    fn heading(&self) -> String;
    fn needed(&self) -> bool;
    fn read(&self, reader: &mut Reader<'_>, item: &Item, key_span: Option<Range<usize>>, owner: &mut O);
}

impl<O, T: Default> AnyList<O> for List<O, T> {
    fn key(&self) -> &'static str {
        self.tables[0].name.rsplit('.').next().unwrap_or_default()
    }

    fn heading(&self) -> String {
        self.tables[0].heading()
    }

    fn needed(&self) -> bool {
        self.needed
    }

    fn read(&self, reader: &mut Reader<'_>, item: &Item, key_span: Option<Range<usize>>, owner: &mut O) {
        let name = self.key();
        let heading = self.heading();
        let Some(tables) = tables(item).filter(|tables| !tables.is_empty()) else {
            let fix = format!("write {heading}, in double brackets, once for each, and its settings below it");
            return reader.error(key_span.or(item.span()), format!("\"{name}\" is a list of tables"), fix);
        };
        for (index, (entries, span)) in tables.into_iter().enumerate() {
            let mut value = T::default();
            let mut spots = Spots::new();
            reader.table(entries, self.tables, self.inner, &mut value, &mut spots);
            if let [table] = self.tables {
                for knob in table.knobs().filter(|knob| !entries.contains_key(knob.key)) {
                    if let Some(example) = knob.example {
                        let what = format!("{name} {} has no {}", index + 1, knob.key);
                        reader.error(span.clone(), what, format!("write one in it, such as {} = {example}", knob.key));
                    }
                }
            }
            for list in self.inner.iter().filter(|list| list.needed() && !entries.contains_key(list.key())) {
                let what = format!("{name} {} has no {}", index + 1, list.key());
                reader.error(span.clone(), what, format!("write at least one {} below it", list.heading()));
            }
            let origin = Origin { whole: reader.place(span), spots };
            (self.things)(owner).push(Listed { value, origin });
        }
    }
}

/// A table, and where it stands.
type Standing<'a> = (&'a dyn TableLike, Option<Range<usize>>);

/// The tables of a list; `None` if the item is something else.
fn tables(item: &Item) -> Option<Vec<Standing<'_>>> {
    match item {
        Item::ArrayOfTables(array) => Some(array.iter().map(|table| (table as &dyn TableLike, table.span())).collect()),
        Item::Value(Value::Array(array)) => {
            array.iter().map(|value| value.as_inline_table().map(|table| (table as &dyn TableLike, table.span()))).collect()
        }
        _ => None,
    }
}
