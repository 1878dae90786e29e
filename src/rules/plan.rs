//! From a statement to a [`Rule`]: names become fields, paths and functions, patterns are compiled, constants folded. What cannot be
//! computed for any message is refused here, with the place and, for a name, the nearest that exists.

use super::error::{Origin, Position, SqlError};
use super::eval::{Arithmetic, Comparison, Expr, Like, Scope};
use super::functions::{self, Function};
use super::input::{FIELDS, Field, FieldEntry, Input, Source, View};
use super::parse::{self, Column};
use super::path::Step;
use super::rule::{Columns, Condition, Each, Rule, Target};
use super::value::Value;
use crate::nearest::nearest;
use crate::topic::Filter;
use regex::RegexBuilder;
use sqlparser::ast::{
    AccessExpr, BinaryOperator, CastKind, CeilFloorKind, DataType, DateTimeField, Expr as Ast, Function as Call, FunctionArg,
    FunctionArgExpr, FunctionArguments, Ident, InTarget, ObjectNamePart, Spanned, Subscript, UnaryOperator, Value as Literal,
};
use std::sync::Arc;

/// How deep expressions may nest once chains of AND and OR are laid flat.
const DEPTH_MAX: usize = 128;
const MIN_WITHOUT_SIGN: &str = "9223372036854775808";
/// What a compiled regular expression may occupy.
const REGEX_BYTES_MAX: usize = 1 << 20;
/// Characters of an expression that a failure shows.
const SHOWN_MAX: usize = 60;

type Planned = Result<Expr, SqlError>;

pub fn plan(sql: &str) -> Result<Rule, SqlError> {
    let statement = parse::parse(sql)?;
    let mut filters = Vec::new();
    let mut sources = Vec::new();
    for (text, position) in statement.from {
        let source = source_of(&text, position)?;
        if source == Source::Message {
            filters.push(text.into_boxed_str());
        }
        if !sources.contains(&source) {
            sources.push(source);
        }
    }
    let outside = Planner { sources: &sources, item: None, place: Position { line: 1, column: 1 } };
    let filter = statement.filter.map(|ast| outside.condition(&ast)).transpose()?;
    let each = match &statement.each {
        Some(each) => Some((outside.plan(&each.array, 0)?, outside.origin(&each.array))),
        None => None,
    };
    let item = statement.each.as_ref().map(|each| each.name.as_str());
    let inside = Planner { item, ..outside };
    let mut columns = Layout::default();
    for column in &statement.columns {
        match column {
            Column::All => {
                for entry in FIELDS.iter().filter(|entry| outside.has(entry)) {
                    columns.put(vec![entry.name.to_owned()], Expr::Field(entry.field));
                }
            }
            Column::One { expression, alias, position } => {
                let planner = Planner { place: *position, ..inside };
                let planned = planner.plan(expression, 0)?;
                let path = if alias.is_empty() { planner.name_of(expression) } else { alias.clone() };
                if columns.explicit.contains(&path) {
                    let what = format!("two columns are named `{}`; name one of them with AS", path.join("."));
                    return Err(SqlError { position: *position, what });
                }
                columns.explicit.push(path.clone());
                columns.put(path, planned);
            }
        }
    }
    if let (Some(name), true) = (item, statement.columns.is_empty()) {
        let origin = Arc::new(Origin { position: Position { line: 1, column: 1 }, text: name.into() });
        columns.put(vec![name.to_owned()], Expr::Item(Box::new([]), origin));
    }
    let case = statement.case.map(|ast| inside.condition(&ast)).transpose()?;
    Ok(Rule {
        sql: sql.into(),
        filters,
        events: sources.into_iter().filter(|source| *source != Source::Message).collect(),
        filter,
        each: each.map(|(array, origin)| Each { array, origin, case }),
        columns: columns.columns,
    })
}

/// A name in a template, outside any statement: a path that begins with a field.
pub fn plan_field(sources: &[Source], root: &str, path: Vec<Step>, shown: &str) -> Result<Expr, String> {
    let planner = Planner { sources, item: None, place: Position { line: 1, column: 1 } };
    let entry = planner.field(root)?;
    let origin = Arc::new(Origin { position: planner.place, text: shown.into() });
    match into_field(entry, path, &origin)? {
        (planned, rest) if rest.is_empty() => Ok(planned),
        _ => Err(format!("`{root}` has nothing inside")),
    }
}

fn source_of(text: &str, position: Position) -> Result<Source, SqlError> {
    if let Some(event) = event_of(text) {
        return event.map_err(|what| SqlError { position, what });
    }
    match Filter::parse(text, u16::MAX, u16::MAX) {
        Ok(Filter { share: None, .. }) => Ok(Source::Message),
        Ok(_) => Err(SqlError { position, what: "a rule has no shared subscription; leave out `$share/` and the name".into() }),
        Err(error) => Err(SqlError { position, what: error.to_string() }),
    }
}

/// The event that a text such as `$events/client_connected` names; `None` if it is a topic.
pub fn event_of(text: &str) -> Option<Result<Source, String>> {
    let name = text.strip_prefix("$events/")?;
    let known = || Source::EVENTS.iter().map(|source| source.name());
    let event = Source::EVENTS.into_iter().find(|source| source.name() == name);
    Some(event.ok_or_else(|| format!("there is no event `{name}`; {}", guess(name, known))))
}

/// A suggestion for a name that was mistyped.
fn guess<I: Iterator<Item = &'static str>>(name: &str, known: impl Fn() -> I) -> String {
    match nearest(name, known()) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("there are {}", known().collect::<Vec<_>>().join(", ")),
    }
}

/// A field and as much of a path as it takes in at once; the rest is to be looked up in its value.
fn into_field(entry: &FieldEntry, path: Vec<Step>, origin: &Arc<Origin>) -> Result<(Expr, Vec<Step>), String> {
    if path.is_empty() {
        return Ok((Expr::Field(entry.field), path));
    }
    let mut steps = path.into_iter();
    Ok(match (entry.field, steps.next()) {
        (Field::Payload, Some(first)) => {
            (Expr::Payload(std::iter::once(first).chain(steps).collect(), origin.clone()), Vec::new())
        }
        (Field::Topic, Some(Step::Index(number))) => (Expr::TopicLevel(number), steps.collect()),
        (Field::UserProperties, Some(Step::Key(name))) => (Expr::UserProperty(name), steps.collect()),
        (Field::Topic, _) => return Err("levels of the topic are counted: `topic[1]` is the first".into()),
        _ => return Err(format!("`{}` has nothing inside", entry.name)),
    })
}

/// The columns so far, and the names that were written.
#[derive(Default)]
struct Layout {
    columns: Columns,
    explicit: Vec<Vec<String>>,
}

impl Layout {
    fn put(&mut self, path: Vec<String>, planned: Expr) {
        let mut path = path.into_iter().map(String::into_boxed_str);
        let Some(first) = path.next() else { return };
        let names = &mut self.columns.names;
        let place = names.iter().position(|name| *name == first).unwrap_or_else(|| {
            names.push(first);
            names.len() - 1
        });
        self.columns.list.push((planned, Target { place, inside: path.collect() }));
    }
}

/// A part of a path as it is written.
enum Access<'s> {
    Step(Step),
    Computed(&'s Ast),
}

#[derive(Clone, Copy)]
struct Planner<'s> {
    sources: &'s [Source],
    /// What FOREACH calls an element.
    item: Option<&'s str>,
    /// Where the column begins, for expressions of which the library does not know where they are.
    place: Position,
}

impl<'s> Planner<'s> {
    fn has(&self, entry: &FieldEntry) -> bool {
        self.sources.iter().any(|source| entry.is_in(*source))
    }

    fn position(&self, ast: &Ast) -> Position {
        let start = ast.span().start;
        if start.line == 0 { self.place } else { Position { line: start.line, column: start.column } }
    }

    fn origin(&self, ast: &Ast) -> Arc<Origin> {
        let text = ast.to_string();
        let mut shown: String = text.chars().take(SHOWN_MAX).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        Arc::new(Origin { position: self.position(ast), text: shown.into() })
    }

    fn wrong<T>(&self, ast: &Ast, what: impl Into<String>) -> Result<T, SqlError> {
        Err(SqlError { position: self.position(ast), what: what.into() })
    }

    fn condition(&self, ast: &Ast) -> Result<Condition, SqlError> {
        let expr = self.plan(ast, 0)?;
        if let Expr::Constant(value) = &expr
            && !matches!(value, Value::Bool(_) | Value::Null)
        {
            return self.wrong(ast, "a condition must be true or false");
        }
        Ok(Condition { expr, origin: self.origin(ast) })
    }

    fn field(&self, name: &str) -> Result<&'static FieldEntry, String> {
        let known = || FIELDS.iter().filter(|entry| self.has(entry)).map(|entry| entry.name);
        match FIELDS.iter().find(|entry| entry.name.eq_ignore_ascii_case(name)) {
            Some(entry) if self.has(entry) => Ok(entry),
            Some(_) => {
                let sources: Vec<&str> = self.sources.iter().map(|source| source.name()).collect();
                Err(format!(
                    "{} has no field `{name}`; there are {}",
                    sources.join(" and "),
                    known().collect::<Vec<_>>().join(", ")
                ))
            }
            None => Err(format!("unknown field `{name}`; {}", guess(name, || known().chain([]).collect::<Vec<_>>().into_iter()))),
        }
    }

    fn plan(&self, ast: &Ast, depth: usize) -> Planned {
        if depth > DEPTH_MAX {
            return self
                .wrong(ast, format!("more than {DEPTH_MAX} expressions inside each other; `a + b + c` is one in another, too"));
        }
        let plan = |ast: &Ast| self.plan(ast, depth + 1);
        let boxed = |ast: &Ast| self.plan(ast, depth + 1).map(Box::new);
        let sides = |left: &Ast, right: &Ast| Ok(Box::new((plan(left)?, plan(right)?)));
        let list = |asts: &[Ast]| asts.iter().map(plan).collect::<Result<Box<[Expr]>, SqlError>>();
        let call = |name: &str, arguments: &[&Ast]| self.call(ast, name, arguments, depth);
        let planned = match ast {
            Ast::Nested(inner) => return plan(inner),
            Ast::Value(value) => return self.literal(ast, &value.value),
            Ast::Identifier(name) => return self.path(ast, name, &[], depth),
            Ast::CompoundIdentifier(names) => {
                let Some((first, rest)) = names.split_first() else { return self.wrong(ast, "expected a name") };
                let rest: Vec<Access<'_>> = rest.iter().map(|name| Access::Step(Step::Key(name.value.as_str().into()))).collect();
                return self.path(ast, first, &rest, depth);
            }
            Ast::CompoundFieldAccess { root, access_chain } => return self.access(ast, root, access_chain, depth),
            Ast::UnaryOp { op: UnaryOperator::Not, expr } => Expr::Not(boxed(expr)?, self.origin(ast)),
            // Its number alone, without the sign, would not fit.
            Ast::UnaryOp { op: UnaryOperator::Minus, expr } if is_number(expr, MIN_WITHOUT_SIGN) => {
                return Ok(Expr::Constant(Value::Int(i64::MIN)));
            }
            Ast::UnaryOp { op: UnaryOperator::Minus, expr } => Expr::Negate(boxed(expr)?, self.origin(ast)),
            Ast::UnaryOp { op: UnaryOperator::Plus, expr } => return plan(expr),
            Ast::BinaryOp { left, op, right } => {
                let arithmetic = |operator| Ok(Expr::Arithmetic(operator, sides(left, right)?, self.origin(ast)));
                let compare = |comparison| Ok(Expr::Compare(comparison, sides(left, right)?, self.origin(ast)));
                match op {
                    BinaryOperator::Plus => arithmetic(Arithmetic::Add),
                    BinaryOperator::Minus => arithmetic(Arithmetic::Subtract),
                    BinaryOperator::Multiply => arithmetic(Arithmetic::Multiply),
                    BinaryOperator::Divide => arithmetic(Arithmetic::Divide),
                    BinaryOperator::Modulo => arithmetic(Arithmetic::Modulo),
                    BinaryOperator::Eq => compare(Comparison::Equal),
                    BinaryOperator::NotEq => compare(Comparison::NotEqual),
                    BinaryOperator::Lt => compare(Comparison::Less),
                    BinaryOperator::LtEq => compare(Comparison::LessOrEqual),
                    BinaryOperator::Gt => compare(Comparison::Greater),
                    BinaryOperator::GtEq => compare(Comparison::GreaterOrEqual),
                    BinaryOperator::StringConcat => Ok(Expr::Concat(sides(left, right)?, self.origin(ast))),
                    BinaryOperator::And | BinaryOperator::Or => {
                        let terms = chain(ast, op).into_iter().map(plan).collect::<Result<_, _>>()?;
                        let origin = self.origin(ast);
                        Ok(if *op == BinaryOperator::And { Expr::And(terms, origin) } else { Expr::Or(terms, origin) })
                    }
                    other => self.wrong(ast, format!("there is no operator `{other}`")),
                }?
            }
            Ast::Between { expr, negated, low, high } => {
                let origin = self.origin(ast);
                let compare = |comparison, bound: &Ast| Ok(Expr::Compare(comparison, sides(expr, bound)?, origin.clone()));
                if *negated {
                    let terms = Box::new([compare(Comparison::Less, low)?, compare(Comparison::Greater, high)?]);
                    Expr::Or(terms, origin)
                } else {
                    let terms = Box::new([compare(Comparison::GreaterOrEqual, low)?, compare(Comparison::LessOrEqual, high)?]);
                    Expr::And(terms, origin)
                }
            }
            Ast::In { expr, target: InTarget::List(values), negated, global: false } => {
                Expr::In { value: boxed(expr)?, list: list(values)?, negated: *negated }
            }
            Ast::Like { negated, any: false, expr, pattern, escape_char } => {
                let like = self.like(expr, pattern, escape_char.as_deref(), *negated, false, depth)?;
                Expr::Like(Box::new(like), self.origin(ast))
            }
            Ast::ILike { negated, any: false, expr, pattern, escape_char } => {
                let like = self.like(expr, pattern, escape_char.as_deref(), *negated, true, depth)?;
                Expr::Like(Box::new(like), self.origin(ast))
            }
            Ast::IsNull(value) => Expr::IsNull { value: boxed(value)?, negated: false },
            Ast::IsNotNull(value) => Expr::IsNull { value: boxed(value)?, negated: true },
            Ast::IsTrue(value) => Expr::Is { value: boxed(value)?, truth: true, negated: false },
            Ast::IsNotTrue(value) => Expr::Is { value: boxed(value)?, truth: true, negated: true },
            Ast::IsFalse(value) => Expr::Is { value: boxed(value)?, truth: false, negated: false },
            Ast::IsNotFalse(value) => Expr::Is { value: boxed(value)?, truth: false, negated: true },
            Ast::Case { operand, conditions, else_result, .. } => Expr::Case {
                operand: operand.as_deref().map(boxed).transpose()?,
                branches: conditions
                    .iter()
                    .map(|case| Ok((plan(&case.condition)?, plan(&case.result)?)))
                    .collect::<Result<_, SqlError>>()?,
                otherwise: Box::new(else_result.as_deref().map_or(Ok(Expr::Constant(Value::Null)), plan)?),
                origin: self.origin(ast),
            },
            Ast::Array(array) => Expr::Array(list(&array.elem)?),
            Ast::Cast { kind: CastKind::Cast | CastKind::DoubleColon, expr, data_type, format: None } => {
                let name = match data_type {
                    DataType::Int(_) | DataType::Integer(_) | DataType::BigInt(_) => "int",
                    DataType::Float(_) | DataType::Double(_) | DataType::DoublePrecision | DataType::Real => "float",
                    DataType::Text | DataType::Varchar(None) | DataType::String(None) => "str",
                    DataType::Boolean | DataType::Bool => "bool",
                    other => return self.wrong(ast, format!("no cast to `{other}`; there are INT, FLOAT, TEXT and BOOLEAN")),
                };
                return call(name, &[expr]);
            }
            // Functions that SQL has a grammar of their own for.
            Ast::Ceil { expr, field: CeilFloorKind::DateTimeField(DateTimeField::NoDateTime) } => return call("ceil", &[expr]),
            Ast::Floor { expr, field: CeilFloorKind::DateTimeField(DateTimeField::NoDateTime) } => return call("floor", &[expr]),
            Ast::Substring { expr, substring_from: Some(from), substring_for: None, .. } => return call("substr", &[expr, from]),
            Ast::Substring { expr, substring_from: Some(from), substring_for: Some(length), .. } => {
                return call("substr", &[expr, from, length]);
            }
            Ast::Trim { expr, trim_where: None, trim_what: None, trim_characters } => {
                let mut arguments: Vec<&Ast> = vec![expr];
                arguments.extend(trim_characters.iter().flatten());
                return call("trim", &arguments);
            }
            Ast::Function(function) => return self.function(ast, function, depth),
            other => return self.wrong(ast, format!("`{}` is not supported in a rule", short(&other.to_string()))),
        };
        Ok(fold(planned))
    }

    fn literal(&self, ast: &Ast, literal: &Literal) -> Planned {
        Ok(Expr::Constant(match literal {
            Literal::Null => Value::Null,
            Literal::Boolean(truth) => Value::Bool(*truth),
            Literal::SingleQuotedString(text) => Value::text(text.clone()),
            Literal::Number(text, false) => match text.parse::<i64>() {
                Ok(number) => Value::Int(number),
                Err(_) => match text.parse::<f64>() {
                    Ok(number) if number.is_finite() => Value::Float(number),
                    _ => return self.wrong(ast, format!("`{}` is not a number that fits 64 bits", short(text))),
                },
            },
            other => return self.wrong(ast, format!("`{}` is not supported in a rule", short(&other.to_string()))),
        }))
    }

    fn like(
        &self,
        value: &Ast,
        pattern: &Ast,
        escape: Option<&Ast>,
        negated: bool,
        any_case: bool,
        depth: usize,
    ) -> Result<Like, SqlError> {
        let escape = match escape {
            None => None,
            Some(ast) => match self.plan(ast, depth + 1)? {
                Expr::Constant(Value::Text(text)) if text.chars().count() == 1 => text.chars().next(),
                _ => return self.wrong(ast, "ESCAPE needs a text of one character"),
            },
        };
        let (value, pattern) = (self.plan(value, depth + 1)?, self.plan(pattern, depth + 1)?);
        Ok(Like { value, pattern, escape, negated, any_case })
    }

    /// A name and what follows it.
    fn path(&self, ast: &Ast, root: &Ident, rest: &[Access<'_>], depth: usize) -> Planned {
        let position = Position { line: root.span.start.line, column: root.span.start.column };
        if root.quote_style.is_some() {
            return Err(SqlError { position, what: format!("a text is written in single quotes: '{}'", root.value) });
        }
        let constant = rest.iter().map_while(|access| match access {
            Access::Step(step) => Some(step.clone()),
            Access::Computed(_) => None,
        });
        let constant: Vec<Step> = constant.collect();
        let computed = &rest[constant.len()..];
        let (mut planned, steps) = if self.item.is_some_and(|item| item == root.value) {
            (Expr::Item(constant.into(), self.origin(ast)), Vec::new())
        } else {
            let at_root = |what| SqlError { position, what };
            into_field(self.field(&root.value).map_err(at_root)?, constant, &self.origin(ast)).map_err(at_root)?
        };
        let origin = self.origin(ast);
        for step in steps {
            planned = Expr::Access(Box::new(planned), Box::new(Expr::Constant(key_of(&step))), origin.clone());
        }
        for access in computed {
            let key = match access {
                Access::Step(step) => Expr::Constant(key_of(step)),
                Access::Computed(ast) => self.plan(ast, depth + 1)?,
            };
            planned = Expr::Access(Box::new(planned), Box::new(key), origin.clone());
        }
        Ok(planned)
    }

    fn access(&self, ast: &Ast, root: &Ast, chain: &[AccessExpr], depth: usize) -> Planned {
        let mut accesses = Vec::new();
        for access in chain {
            accesses.push(match access {
                AccessExpr::Dot(Ast::Identifier(name)) => Access::Step(Step::Key(name.value.as_str().into())),
                AccessExpr::Subscript(Subscript::Index { index }) => match self.plan(index, depth + 1)? {
                    Expr::Constant(Value::Int(number)) => Access::Step(Step::Index(number)),
                    Expr::Constant(Value::Text(key)) => Access::Step(Step::Key(key.into())),
                    Expr::Constant(_) => return self.wrong(index, "[] needs an int or a text"),
                    _ => Access::Computed(index),
                },
                _ => return self.wrong(ast, "expected a path such as payload.a.b[1]['c']"),
            });
        }
        match root {
            Ast::Identifier(name) => self.path(ast, name, &accesses, depth),
            Ast::CompoundIdentifier(names) if !names.is_empty() => {
                let keys = names[1..].iter().map(|name| Access::Step(Step::Key(name.value.as_str().into())));
                let accesses: Vec<Access<'_>> = keys.chain(accesses).collect();
                self.path(ast, &names[0], &accesses, depth)
            }
            _ => {
                let mut planned = self.plan(root, depth + 1)?;
                let origin = self.origin(ast);
                for access in accesses {
                    let key = match access {
                        Access::Step(step) => Expr::Constant(key_of(&step)),
                        Access::Computed(ast) => self.plan(ast, depth + 1)?,
                    };
                    planned = fold(Expr::Access(Box::new(planned), Box::new(key), origin.clone()));
                }
                Ok(planned)
            }
        }
    }

    fn function(&self, ast: &Ast, function: &Call, depth: usize) -> Planned {
        let plain = function.over.is_none()
            && function.filter.is_none()
            && function.null_treatment.is_none()
            && function.within_group.is_empty()
            && !function.uses_odbc_syntax
            && matches!(function.parameters, FunctionArguments::None);
        let name = match function.name.0.as_slice() {
            [ObjectNamePart::Identifier(name)] if plain && name.quote_style.is_none() => &name.value,
            _ => return self.wrong(ast, format!("`{}` is not supported in a rule", short(&function.to_string()))),
        };
        let mut arguments = Vec::new();
        match &function.args {
            FunctionArguments::List(list) if list.duplicate_treatment.is_none() && list.clauses.is_empty() => {
                for argument in &list.args {
                    match argument {
                        FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)) => arguments.push(argument),
                        other => return self.wrong(ast, format!("`{}` is no argument", short(&other.to_string()))),
                    }
                }
            }
            _ => return self.wrong(ast, format!("`{}` is not supported in a rule", short(&function.to_string()))),
        }
        self.call(ast, name, &arguments, depth)
    }

    fn call(&self, ast: &Ast, name: &str, arguments: &[&Ast], depth: usize) -> Planned {
        let Some(function) = functions::find(name) else {
            let known = nearest(name, functions::all().map(|function| function.name));
            let guess = known
                .map_or_else(|| "docs/rules-functions.md lists all of them".into(), |known| format!("did you mean `{known}`?"));
            return self.wrong(ast, format!("unknown function `{name}`; {guess}"));
        };
        let (fewest, most) = function.arity;
        if arguments.len() < fewest || arguments.len() > most {
            let what =
                format!("`{}({})` takes {}, not {}", function.name, function.signature, function.arity_text(), arguments.len());
            return self.wrong(ast, what);
        }
        // JSON of the payload is what other expressions look into as well: it is parsed once.
        if let ("json_decode", [Ast::Identifier(name)]) = (function.name, arguments)
            && name.value.eq_ignore_ascii_case("payload")
            && self.item != Some(&name.value)
        {
            self.field("payload").or_else(|what| self.wrong(ast, what))?;
            return Ok(Expr::Payload(Box::new([]), self.origin(ast)));
        }
        let planned: Box<[Expr]> = arguments.iter().map(|ast| self.plan(ast, depth + 1)).collect::<Result<_, _>>()?;
        let regex = if function.has_regex() { Some(Box::new(self.regex(function, arguments[1], &planned[1])?)) } else { None };
        let foldable = function.is_foldable() || regex.is_some();
        let call = Expr::Call { function, arguments: planned, regex, origin: self.origin(ast) };
        Ok(if foldable { fold(call) } else { call })
    }

    fn regex(&self, function: &Function, ast: &Ast, pattern: &Expr) -> Result<regex::Regex, SqlError> {
        let Expr::Constant(Value::Text(pattern)) = pattern else {
            return self.wrong(ast, format!("the regular expression of {} must be a constant text", function.name));
        };
        match RegexBuilder::new(pattern).size_limit(REGEX_BYTES_MAX).dfa_size_limit(REGEX_BYTES_MAX).build() {
            Ok(regex) => Ok(regex),
            Err(regex::Error::CompiledTooBig(_)) => {
                self.wrong(ast, format!("the regular expression takes more than {REGEX_BYTES_MAX} bytes"))
            }
            Err(error) => {
                let text = error.to_string();
                let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
                self.wrong(ast, format!("not a regular expression: {reason}"))
            }
        }
    }

    /// What a column is called that has no AS: a path by its names, anything else by its text.
    fn name_of(&self, ast: &Ast) -> Vec<String> {
        match ast {
            Ast::Nested(inner) => self.name_of(inner),
            Ast::Identifier(name) => vec![name.value.clone()],
            Ast::CompoundIdentifier(names) => names.iter().map(|name| name.value.clone()).collect(),
            Ast::CompoundFieldAccess { root, access_chain }
                if matches!(**root, Ast::Identifier(_) | Ast::CompoundIdentifier(_)) =>
            {
                let mut names = self.name_of(root);
                names.extend(access_chain.iter().map_while(|access| match access {
                    AccessExpr::Dot(Ast::Identifier(name)) => Some(name.value.clone()),
                    AccessExpr::Subscript(Subscript::Index { index: Ast::Value(value) }) => match &value.value {
                        Literal::SingleQuotedString(key) => Some(key.clone()),
                        _ => None,
                    },
                    _ => None,
                }));
                names
            }
            other => vec![other.to_string()],
        }
    }
}

fn key_of(step: &Step) -> Value<'static> {
    match step {
        Step::Key(key) => Value::text(key.to_string()),
        Step::Index(number) => Value::Int(*number),
    }
}

fn is_number(ast: &Ast, digits: &str) -> bool {
    matches!(ast, Ast::Value(value) if matches!(&value.value, Literal::Number(text, _) if text == digits))
}

fn short(text: &str) -> String {
    text.chars().take(SHOWN_MAX).collect()
}

/// The terms of a chain of one operator, however it leans to the left.
fn chain<'s>(mut ast: &'s Ast, operator: &BinaryOperator) -> Vec<&'s Ast> {
    let mut terms = Vec::new();
    while let Ast::BinaryOp { left, op, right } = ast
        && op == operator
    {
        terms.push(&**right);
        ast = left;
    }
    terms.push(ast);
    terms.reverse();
    terms
}

/// An expression of constants only is computed now; one that fails stays, to fail when it is reached.
fn fold(planned: Expr) -> Expr {
    let reads = matches!(
        planned,
        Expr::Constant(_) | Expr::Field(_) | Expr::TopicLevel(_) | Expr::UserProperty(_) | Expr::Payload(..) | Expr::Item(..)
    );
    let constant = !reads && planned.parts_are(Expr::is_constant);
    if !constant {
        return planned;
    }
    let nothing = View::new(Source::Message, Input::default());
    match planned.eval(&Scope { view: &nothing, item: None }).map(Value::into_owned) {
        Ok(value) => Expr::Constant(value),
        Err(_) => planned,
    }
}
