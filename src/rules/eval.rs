//! Planned expressions and what they give for a message. Names are resolved, paths split, patterns compiled and constants folded
//! beforehand: what is left is to compute.
//!
//! NULL is what SQL has it to be: an operator with NULL gives NULL, except that AND and OR decide what they can; NULL is not true. Ints
//! stay ints; an overflow, a division by zero, a float that is not finite and a wrong type are failures, never a panic and never a
//! wrong number.

use super::error::{Failure, Origin};
use super::functions::{Arguments, Function};
use super::input::{Field, View};
use super::path::Step;
use super::value::{Map, Value};
use super::work::Work;
use regex::Regex;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

pub type Outcome<'a> = Result<Value<'a>, Box<Failure>>;

/// What an expression of a rule sees: the message, and within FOREACH one element.
pub struct Scope<'s, 'a, 'm> {
    pub view: &'a View<'m>,
    pub item: Option<&'s Value<'a>>,
}

impl<'a> Scope<'_, 'a, '_> {
    fn spend(&self, steps: u64, origin: &Arc<Origin>) -> Result<(), Box<Failure>> {
        self.view.work().spend(steps).or_else(|what| fail(origin, what))
    }

    /// A copy, as far as there is work left for it.
    pub fn copy(&self, value: &Value<'a>) -> Result<Value<'a>, String> {
        self.view.work().spend(value.steps())?;
        Ok(value.clone())
    }
}

#[derive(Clone, Debug)]
pub enum Expr {
    Constant(Value<'static>),
    Field(Field),
    TopicLevel(i64),
    UserProperty(Box<str>),
    /// A path into the payload as JSON; an empty one is all of it.
    Payload(Box<[Step]>, Arc<Origin>),
    /// A path into FOREACH's element.
    Item(Box<[Step]>, Arc<Origin>),
    /// An element or an entry of a value that is computed, by a key that may be.
    Access(Box<Expr>, Box<Expr>, Arc<Origin>),
    Not(Box<Expr>, Arc<Origin>),
    Negate(Box<Expr>, Arc<Origin>),
    Arithmetic(Arithmetic, Box<(Expr, Expr)>, Arc<Origin>),
    Compare(Comparison, Box<(Expr, Expr)>, Arc<Origin>),
    And(Box<[Expr]>, Arc<Origin>),
    Or(Box<[Expr]>, Arc<Origin>),
    Concat(Box<(Expr, Expr)>, Arc<Origin>),
    Like(Box<Like>, Arc<Origin>),
    In {
        value: Box<Expr>,
        list: Box<[Expr]>,
        negated: bool,
    },
    IsNull {
        value: Box<Expr>,
        negated: bool,
    },
    /// Whether a value is the boolean, which NULL is not.
    Is {
        value: Box<Expr>,
        truth: bool,
        negated: bool,
    },
    Case {
        operand: Option<Box<Expr>>,
        branches: Box<[(Expr, Expr)]>,
        otherwise: Box<Expr>,
        origin: Arc<Origin>,
    },
    Array(Box<[Expr]>),
    Call {
        function: &'static Function,
        arguments: Box<[Expr]>,
        regex: Option<Box<Regex>>,
        origin: Arc<Origin>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Debug)]
pub struct Like {
    pub value: Expr,
    pub pattern: Expr,
    pub escape: Option<char>,
    pub negated: bool,
    pub any_case: bool,
}

fn fail<T>(origin: &Arc<Origin>, what: impl Into<String>) -> Result<T, Box<Failure>> {
    Err(Box::new(Failure { origin: origin.clone(), what: what.into() }))
}

impl Expr {
    pub fn eval<'a>(&'a self, scope: &Scope<'_, 'a, '_>) -> Outcome<'a> {
        Ok(match self {
            Expr::Constant(value) => borrow(value),
            Expr::Field(field) => scope.view.field(*field),
            Expr::TopicLevel(number) => scope.view.topic_level(*number),
            Expr::UserProperty(name) => scope.view.user_property(name),
            Expr::Payload(path, origin) => scope.view.json(path).or_else(|what| fail(origin, what))?,
            Expr::Item(path, origin) => match scope.item.and_then(|item| item.at(path)) {
                Some(value) => scope.copy(value).or_else(|what| fail(origin, what))?,
                None => Value::Null,
            },
            Expr::Access(value, key, origin) => {
                access(value.eval(scope)?, key.eval(scope)?).or_else(|what| fail(origin, what))?
            }
            Expr::Not(value, origin) => match truth(value.eval(scope)?, origin)? {
                Some(truth) => Value::Bool(!truth),
                None => Value::Null,
            },
            Expr::Negate(value, origin) => match value.eval(scope)? {
                Value::Int(number) => match number.checked_neg() {
                    Some(number) => Value::Int(number),
                    None => return fail(origin, OVERFLOW),
                },
                Value::Float(number) => Value::Float(-number),
                Value::Null => Value::Null,
                other => return fail(origin, format!("- needs a number and got {}", with_article(&other))),
            },
            Expr::Arithmetic(operator, sides, origin) => {
                let (left, right) = (sides.0.eval(scope)?, sides.1.eval(scope)?);
                operator.apply(&left, &right).or_else(|what| fail(origin, what))?
            }
            Expr::Compare(comparison, sides, origin) => {
                let (left, right) = (sides.0.eval(scope)?, sides.1.eval(scope)?);
                comparison.apply(&left, &right).or_else(|what| fail(origin, what))?
            }
            Expr::And(terms, origin) => all_are(true, terms, scope, origin)?,
            Expr::Or(terms, origin) => all_are(false, terms, scope, origin)?,
            Expr::Concat(sides, origin) => match (sides.0.eval(scope)?, sides.1.eval(scope)?) {
                (Value::Null, _) | (_, Value::Null) => Value::Null,
                (Value::Array(mut left), Value::Array(right)) => {
                    left.extend(right);
                    Value::Array(left)
                }
                (left, right) => match (as_text(&left), as_text(&right)) {
                    (Some(left), Some(right)) => {
                        scope.spend((left.len() + right.len()) as u64, origin)?;
                        Value::text([left, right].concat())
                    }
                    (None, _) => return fail(origin, format!("|| cannot join {}", with_article(&left))),
                    _ => return fail(origin, format!("|| cannot join {}", with_article(&right))),
                },
            },
            Expr::Like(like, origin) => match (like.value.eval(scope)?, like.pattern.eval(scope)?) {
                (Value::Null, _) | (_, Value::Null) => Value::Null,
                (Value::Text(text), Value::Text(pattern)) => {
                    let work = scope.view.work();
                    let found = if like.any_case {
                        is_like(&text.to_lowercase(), &pattern.to_lowercase(), like.escape, work)
                    } else {
                        is_like(&text, &pattern, like.escape, work)
                    };
                    Value::Bool(found.or_else(|what| fail(origin, what))? != like.negated)
                }
                (Value::Text(_), other) | (other, _) => {
                    return fail(origin, format!("LIKE needs text and got {}", with_article(&other)));
                }
            },
            Expr::In { value, list, negated } => {
                let value = value.eval(scope)?;
                let mut unknown = value.is_null();
                for other in list {
                    let other = other.eval(scope)?;
                    if !value.is_null() && value.equals(&other) {
                        return Ok(Value::Bool(!negated));
                    }
                    unknown |= other.is_null();
                }
                if unknown { Value::Null } else { Value::Bool(*negated) }
            }
            Expr::IsNull { value, negated } => Value::Bool(value.eval(scope)?.is_null() != *negated),
            Expr::Is { value, truth, negated } => Value::Bool((value.eval(scope)? == Value::Bool(*truth)) != *negated),
            Expr::Case { operand, branches, otherwise, origin } => {
                let operand = operand.as_ref().map(|operand| operand.eval(scope)).transpose()?;
                for (condition, result) in branches {
                    let condition = condition.eval(scope)?;
                    let chosen = match &operand {
                        Some(operand) => !operand.is_null() && operand.equals(&condition),
                        None => truth(condition, origin)? == Some(true),
                    };
                    if chosen {
                        return result.eval(scope);
                    }
                }
                otherwise.eval(scope)?
            }
            Expr::Array(values) => Value::Array(values.iter().map(|value| value.eval(scope)).collect::<Result<_, _>>()?),
            Expr::Call { function, arguments, regex, origin } => {
                let mut values: SmallVec<[Value<'a>; 4]> = SmallVec::with_capacity(arguments.len());
                for argument in arguments {
                    let value = argument.eval(scope)?;
                    if value.is_null() && !function.sees_null() {
                        return Ok(Value::Null);
                    }
                    values.push(value);
                }
                scope.spend(values.iter().map(Value::steps).sum(), origin)?;
                let (now_ms, work) = (scope.view.now_ms(), scope.view.work());
                let arguments = Arguments { values: &mut values, now_ms, regex: regex.as_deref(), work };
                let result = (function.call)(arguments).or_else(|what| fail(origin, format!("{}: {what}", function.name)))?;
                scope.spend(result.steps(), origin)?;
                result
            }
        })
    }

    /// Whether the expression is true: neither false nor NULL. An error if it is no boolean.
    pub fn is_true<'a>(&'a self, scope: &Scope<'_, 'a, '_>, origin: &Arc<Origin>) -> Result<bool, Box<Failure>> {
        Ok(truth(self.eval(scope)?, origin)? == Some(true))
    }

    /// Whether it gives the same for every element of FOREACH.
    pub fn is_same_for_all(&self) -> bool {
        match self {
            Expr::Item(..) => false,
            // What depends on more than its arguments is not foldable.
            Expr::Call { function, regex, .. } if !function.is_foldable() && regex.is_none() => false,
            _ => self.parts_are(Expr::is_same_for_all),
        }
    }

    /// Whether something holds for all expressions that this one is made of; for one that is made of none it does.
    pub fn parts_are(&self, holds: impl Fn(&Expr) -> bool) -> bool {
        match self {
            Expr::Constant(_) | Expr::Field(_) | Expr::TopicLevel(_) | Expr::UserProperty(_) => true,
            Expr::Payload(..) | Expr::Item(..) => true,
            Expr::Access(value, key, _) => holds(value) && holds(key),
            Expr::Not(value, _) | Expr::Negate(value, _) | Expr::IsNull { value, .. } | Expr::Is { value, .. } => holds(value),
            Expr::Arithmetic(_, sides, _) | Expr::Compare(_, sides, _) | Expr::Concat(sides, _) => {
                holds(&sides.0) && holds(&sides.1)
            }
            Expr::And(terms, _) | Expr::Or(terms, _) | Expr::Array(terms) => terms.iter().all(holds),
            Expr::Like(like, _) => holds(&like.value) && holds(&like.pattern),
            Expr::In { value, list, .. } => holds(value) && list.iter().all(holds),
            Expr::Case { operand, branches, otherwise, .. } => {
                operand.as_ref().is_none_or(|operand| holds(operand))
                    && branches.iter().all(|(condition, result)| holds(condition) && holds(result))
                    && holds(otherwise)
            }
            Expr::Call { arguments, .. } => arguments.iter().all(holds),
        }
    }

    pub fn is_constant(&self) -> bool {
        matches!(self, Expr::Constant(_))
    }
}

/// For each character that LIKE compares.
const LIKE_STEPS: u64 = 4;
const OVERFLOW: &str = "the result does not fit 64 bits";

/// A copy that borrows its texts; only arrays and maps are built anew.
pub fn borrow<'a>(value: &'a Value<'_>) -> Value<'a> {
    match value {
        Value::Null => Value::Null,
        Value::Bool(truth) => Value::Bool(*truth),
        Value::Int(number) => Value::Int(*number),
        Value::Float(number) => Value::Float(*number),
        Value::Text(text) => Value::Text(Cow::Borrowed(text)),
        Value::Bytes(bytes) => Value::Bytes(Cow::Borrowed(bytes)),
        Value::Array(values) => Value::Array(values.iter().map(borrow).collect()),
        Value::Map(map) => {
            let mut copy = Map::with_capacity(map.len());
            map.iter().for_each(|(key, value)| copy.push(key, borrow(value)));
            Value::Map(copy)
        }
    }
}

pub fn with_article(value: &Value<'_>) -> &'static str {
    match value {
        Value::Null => "NULL",
        Value::Bool(_) => "a boolean",
        Value::Int(_) => "an int",
        Value::Float(_) => "a float",
        Value::Text(_) => "a text",
        Value::Bytes(_) => "bytes",
        Value::Array(_) => "an array",
        Value::Map(_) => "a map",
    }
}

fn truth(value: Value<'_>, origin: &Arc<Origin>) -> Result<Option<bool>, Box<Failure>> {
    match value {
        Value::Bool(truth) => Ok(Some(truth)),
        Value::Null => Ok(None),
        other => fail(origin, format!("a condition must be true, false or NULL, and is {}", with_article(&other))),
    }
}

/// AND asks whether all terms are true, OR (its mirror) whether all are false; the first that is not decides.
fn all_are<'a>(wanted: bool, terms: &'a [Expr], scope: &Scope<'_, 'a, '_>, origin: &Arc<Origin>) -> Outcome<'a> {
    let mut unknown = false;
    for term in terms {
        match truth(term.eval(scope)?, origin)? {
            Some(truth) if truth == wanted => {}
            Some(truth) => return Ok(Value::Bool(truth)),
            None => unknown = true,
        }
    }
    Ok(if unknown { Value::Null } else { Value::Bool(wanted) })
}

fn access<'a>(value: Value<'a>, key: Value<'_>) -> Result<Value<'a>, String> {
    let (step, key) = match key {
        Value::Null => return Ok(Value::Null),
        Value::Int(number) => (Step::Index(number), "an int"),
        Value::Text(key) => (Step::Key(key.into()), "a text"),
        other => return Err(format!("[] needs an int or a text and got {}", with_article(&other))),
    };
    match (value, step) {
        (Value::Null, _) => Ok(Value::Null),
        (Value::Map(mut map), Step::Key(key)) => Ok(map.remove(&key).unwrap_or(Value::Null)),
        (Value::Array(mut values), Step::Index(number)) => {
            let place = super::value::element(number, values.len());
            Ok(place.map_or(Value::Null, |place| values.swap_remove(place)))
        }
        (other, _) => Err(format!("{} has nothing at {key}", with_article(&other))),
    }
}

/// What `||` and `concat` join: texts, and numbers and booleans as they are written.
pub fn as_text<'v>(value: &'v Value<'_>) -> Option<Cow<'v, str>> {
    match value {
        Value::Text(text) => Some(Cow::Borrowed(text)),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => Some(Cow::Owned(value.to_json())),
        _ => None,
    }
}

impl Arithmetic {
    pub fn sign(self) -> &'static str {
        match self {
            Arithmetic::Add => "+",
            Arithmetic::Subtract => "-",
            Arithmetic::Multiply => "*",
            Arithmetic::Divide => "/",
            Arithmetic::Modulo => "%",
        }
    }

    pub fn apply(self, left: &Value<'_>, right: &Value<'_>) -> Result<Value<'static>, String> {
        let (left, right) = match (left, right) {
            (Value::Null, _) | (_, Value::Null) => return Ok(Value::Null),
            (Value::Int(left), Value::Int(right)) => return self.of_ints(*left, *right),
            (Value::Int(left), Value::Float(right)) => (*left as f64, *right),
            (Value::Float(left), Value::Int(right)) => (*left, *right as f64),
            (Value::Float(left), Value::Float(right)) => (*left, *right),
            (Value::Int(_) | Value::Float(_), other) | (other, _) => {
                return Err(format!("{} needs numbers and got {}", self.sign(), with_article(other)));
            }
        };
        if right == 0.0 && matches!(self, Arithmetic::Divide | Arithmetic::Modulo) {
            return Err("division by zero".into());
        }
        Value::finite(match self {
            Arithmetic::Add => left + right,
            Arithmetic::Subtract => left - right,
            Arithmetic::Multiply => left * right,
            Arithmetic::Divide => left / right,
            Arithmetic::Modulo => left % right,
        })
    }

    fn of_ints(self, left: i64, right: i64) -> Result<Value<'static>, String> {
        if right == 0 && matches!(self, Arithmetic::Divide | Arithmetic::Modulo) {
            return Err("division by zero".into());
        }
        let result = match self {
            Arithmetic::Add => left.checked_add(right),
            Arithmetic::Subtract => left.checked_sub(right),
            Arithmetic::Multiply => left.checked_mul(right),
            Arithmetic::Divide => left.checked_div(right),
            // The only overflow has the remainder 0.
            Arithmetic::Modulo => Some(left.wrapping_rem(right)),
        };
        result.map(Value::Int).ok_or_else(|| OVERFLOW.into())
    }
}

impl Comparison {
    pub fn apply(self, left: &Value<'_>, right: &Value<'_>) -> Result<Value<'static>, String> {
        if left.is_null() || right.is_null() {
            return Ok(Value::Null);
        }
        let holds: fn(Ordering) -> bool = match self {
            Comparison::Equal => return Ok(Value::Bool(left.equals(right))),
            Comparison::NotEqual => return Ok(Value::Bool(!left.equals(right))),
            Comparison::Less => Ordering::is_lt,
            Comparison::LessOrEqual => Ordering::is_le,
            Comparison::Greater => Ordering::is_gt,
            Comparison::GreaterOrEqual => Ordering::is_ge,
        };
        match left.order(right) {
            Some(order) => Ok(Value::Bool(holds(order))),
            None => Err(format!("{} and {} have no order", with_article(left), with_article(right))),
        }
    }
}

/// SQL's LIKE: `%` stands for any characters, `_` for one. In time of text times pattern at worst, paid for character by character.
fn is_like(text: &str, pattern: &str, escape: Option<char>, work: &Work) -> Result<bool, String> {
    #[derive(PartialEq)]
    enum Sign {
        Any,
        One,
        Literal(char),
    }
    /// The first sign of a pattern and what follows it.
    fn first(pattern: &str, escape: Option<char>) -> Option<(Sign, &str)> {
        let mut characters = pattern.chars();
        let sign = match characters.next()? {
            escaping if Some(escaping) == escape => Sign::Literal(characters.next().unwrap_or(escaping)),
            '%' => Sign::Any,
            '_' => Sign::One,
            literal => Sign::Literal(literal),
        };
        Some((sign, characters.as_str()))
    }
    let (mut text, mut pattern) = (text, pattern);
    // Behind the last `%`, and the text that it has not swallowed yet.
    let mut retry: Option<(&str, &str)> = None;
    loop {
        work.spend(LIKE_STEPS)?;
        let next = text.chars().next();
        match (first(pattern, escape), next) {
            (Some((Sign::Any, rest)), _) => {
                pattern = rest;
                retry = Some((rest, text));
                continue;
            }
            (Some((sign, rest)), Some(character)) if sign == Sign::One || sign == Sign::Literal(character) => {
                pattern = rest;
                text = &text[character.len_utf8()..];
                continue;
            }
            (None, None) => return Ok(true),
            _ => {}
        }
        let Some((rest, from)) = retry else { return Ok(false) };
        let Some(swallowed) = from.chars().next() else { return Ok(false) };
        pattern = rest;
        text = &from[swallowed.len_utf8()..];
        retry = Some((rest, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_matches_as_sql_says() {
        for (text, pattern, expected) in [
            ("", "", true),
            ("", "%", true),
            ("", "_", false),
            ("abc", "abc", true),
            ("abc", "a%", true),
            ("abc", "%c", true),
            ("abc", "a_c", true),
            ("abc", "_", false),
            ("abc", "%b%", true),
            ("aXbXc", "a%b%d", false),
            ("aab", "%ab", true),
            ("né", "n_", true),
            ("100%", "100!%", true),
            ("100x", "100!%", false),
            ("ABC", "abc", false),
        ] {
            assert_eq!(is_like(text, pattern, Some('!'), &Work::new()), Ok(expected), "{text} {pattern}");
        }
        let pattern = "%a".repeat(200).replace("%a", "%a%b");
        assert_eq!(is_like(&"a".repeat(5_000), &pattern, None, &Work::new()), Ok(false));
        let pattern = format!("%{}b", "a".repeat(50_000));
        assert!(is_like(&"a".repeat(100_000), &pattern, None, &Work::new()).unwrap_err().contains("steps"));
    }

    #[test]
    fn ints_stay_ints_and_overflow_is_an_error() {
        use Arithmetic::*;
        let int = |operator: Arithmetic, left, right| operator.apply(&Value::Int(left), &Value::Int(right));
        assert_eq!(int(Divide, 7, 2), Ok(Value::Int(3)));
        assert_eq!(int(Modulo, -7, 2), Ok(Value::Int(-1)));
        assert_eq!(int(Modulo, i64::MIN, -1), Ok(Value::Int(0)));
        for (operator, left, right) in
            [(Add, i64::MAX, 1), (Subtract, i64::MIN, 1), (Multiply, i64::MAX, 2), (Divide, i64::MIN, -1)]
        {
            assert_eq!(int(operator, left, right), Err(OVERFLOW.into()));
        }
        for operator in [Divide, Modulo] {
            assert_eq!(int(operator, 1, 0), Err("division by zero".into()));
            assert_eq!(operator.apply(&Value::Float(1.0), &Value::Int(0)), Err("division by zero".into()));
        }
        assert_eq!(Divide.apply(&Value::Int(7), &Value::Float(2.0)), Ok(Value::Float(3.5)));
        assert!(Multiply.apply(&Value::Float(1e300), &Value::Float(1e300)).unwrap_err().contains("finite"));
        assert_eq!(Add.apply(&Value::Int(1), &Value::text("1")), Err("+ needs numbers and got a text".into()));
        assert_eq!(Add.apply(&Value::Null, &Value::text("1")), Ok(Value::Null));
    }
}
