//! The text of a rule as a statement: what stands in which clause, with expressions as `sqlparser` reads them.
//!
//! ```sql
//! SELECT expression [AS name[.name…]], … FROM "filter", … [WHERE condition]
//! FOREACH array [AS name] [DO expression [AS name], …] [INCASE condition] FROM "filter", … [WHERE condition]
//! ```
//!
//! The clauses are read here, since FOREACH, DO and INCASE are no SQL; all from one list of tokens, so positions are those of the text.

use super::error::{Position, SqlError};
use sqlparser::ast::{Expr as Ast, Ident};
use sqlparser::dialect::Dialect;
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Token, Tokenizer, Whitespace};

/// Bytes of text.
const TEXT_MAX: usize = 65_536;
/// Tokens besides literals and commas, of which a long list may have more: every one of them may nest the statement deeper.
const TOKENS_MAX: usize = 1_000;
/// How deep parentheses and the like may nest.
const NESTING_MAX: usize = 50;

pub struct Statement {
    pub each: Option<Each>,
    /// In SELECT, or in DO; empty for FOREACH without DO.
    pub columns: Vec<Column>,
    /// INCASE.
    pub case: Option<Ast>,
    pub from: Vec<(String, Position)>,
    /// WHERE.
    pub filter: Option<Ast>,
}

/// FOREACH.
pub struct Each {
    pub array: Ast,
    /// What an element is called; `item` if the statement does not say.
    pub name: String,
}

pub enum Column {
    /// `*`
    All,
    One {
        expression: Box<Ast>,
        alias: Vec<String>,
        position: Position,
    },
}

#[derive(Debug)]
struct RuleDialect;

impl Dialect for RuleDialect {
    fn is_delimited_identifier_start(&self, character: char) -> bool {
        character == '"'
    }

    fn is_identifier_start(&self, character: char) -> bool {
        character.is_alphabetic() || character == '_'
    }

    fn is_identifier_part(&self, character: char) -> bool {
        character.is_alphanumeric() || character == '_'
    }

    /// No expression begins with the word that ends it: without this, `1 + FROM "t"` would add a field called FROM.
    fn parse_prefix(&self, parser: &mut Parser<'_>) -> Option<Result<Ast, ParserError>> {
        use Keyword::{AND, AS, BETWEEN, ELSE, END, FROM, IN, IS, LIKE, OR, SELECT, THEN, WHEN, WHERE};
        let next = parser.peek_token_ref();
        let ends = matches!(&next.token, Token::Word(word) if matches!(word.keyword,
            AND | AS | BETWEEN | ELSE | END | FROM | IN | IS | LIKE | OR | SELECT | THEN | WHEN | WHERE));
        ends.then(|| parser.expected_ref("an expression", next))
    }
}

/// The end of a text.
fn end_of(sql: &str) -> Position {
    let last = sql.rsplit('\n').next().unwrap_or_default();
    Position { line: sql.matches('\n').count() as u64 + 1, column: last.chars().count() as u64 + 1 }
}

pub fn parse(sql: &str) -> Result<Statement, SqlError> {
    if sql.len() > TEXT_MAX {
        let position = Position { line: 1, column: 1 };
        return Err(SqlError { position, what: format!("the statement is longer than {TEXT_MAX} bytes") });
    }
    let dialect = RuleDialect;
    let tokens = match Tokenizer::new(&dialect, sql).tokenize_with_location() {
        Ok(tokens) => tokens,
        Err(error) => {
            let position = Position { line: error.location.line, column: error.location.column };
            return Err(SqlError { position, what: lower_first(&error.message) });
        }
    };
    let counted = tokens.iter().filter(|token| {
        !matches!(
            token.token,
            Token::Comma
                | Token::Number(..)
                | Token::SingleQuotedString(_)
                | Token::Whitespace(Whitespace::Space | Whitespace::Tab | Whitespace::Newline)
        )
    });
    if let Some(token) = counted.clone().nth(TOKENS_MAX) {
        let position = Position { line: token.span.start.line, column: token.span.start.column };
        return Err(SqlError { position, what: format!("the statement has more than {TOKENS_MAX} words and signs") });
    }
    let parser = Parser::new(&dialect).with_recursion_limit(NESTING_MAX).with_tokens_with_locations(tokens);
    Reader { parser, end: end_of(sql) }.statement()
}

struct Reader<'d> {
    parser: Parser<'d>,
    end: Position,
}

impl Reader<'_> {
    fn statement(mut self) -> Result<Statement, SqlError> {
        let mut statement = Statement { each: None, columns: Vec::new(), case: None, from: Vec::new(), filter: None };
        if self.take("FOREACH") {
            let array = self.expression()?;
            let name = if self.parser.parse_keyword(Keyword::AS) { self.name()?.value } else { "item".into() };
            statement.each = Some(Each { array, name });
            if self.take("DO") {
                statement.columns = self.columns()?;
            }
            if self.take("INCASE") {
                statement.case = Some(self.expression()?);
            }
        } else if self.parser.parse_keyword(Keyword::SELECT) {
            statement.columns = self.columns()?;
        } else {
            return self.wrong("expected SELECT or FOREACH");
        }
        if !self.parser.parse_keyword(Keyword::FROM) {
            return self.wrong("expected FROM");
        }
        statement.from = self.filters()?;
        if self.parser.parse_keyword(Keyword::WHERE) {
            statement.filter = Some(self.expression()?);
        }
        if self.parser.peek_token().token == Token::SemiColon {
            self.parser.next_token();
        }
        if self.parser.peek_token().token != Token::EOF {
            return self.wrong("expected the end");
        }
        Ok(statement)
    }

    fn columns(&mut self) -> Result<Vec<Column>, SqlError> {
        let mut columns = Vec::new();
        loop {
            let position = self.position();
            if self.parser.consume_token(&Token::Mul) {
                columns.push(Column::All);
            } else {
                let expression = Box::new(self.expression()?);
                let mut alias = Vec::new();
                if self.parser.parse_keyword(Keyword::AS) {
                    alias.push(self.name()?.value);
                    while self.parser.consume_token(&Token::Period) {
                        alias.push(self.name()?.value);
                    }
                }
                columns.push(Column::One { expression, alias, position });
            }
            if !self.parser.consume_token(&Token::Comma) {
                return Ok(columns);
            }
        }
    }

    fn filters(&mut self) -> Result<Vec<(String, Position)>, SqlError> {
        let mut filters = Vec::new();
        loop {
            let position = self.position();
            match self.parser.peek_token().token {
                Token::Word(word) if word.quote_style == Some('"') => filters.push((word.value, position)),
                Token::SingleQuotedString(text) => filters.push((text, position)),
                _ => return self.wrong("expected a topic filter in double quotes"),
            }
            self.parser.next_token();
            if !self.parser.consume_token(&Token::Comma) {
                return Ok(filters);
            }
        }
    }

    fn expression(&mut self) -> Result<Ast, SqlError> {
        self.parser.parse_expr().map_err(|error| self.explain(error))
    }

    fn name(&mut self) -> Result<Ident, SqlError> {
        self.parser.parse_identifier().map_err(|error| self.explain(error))
    }

    /// Takes a word that is no keyword of SQL.
    fn take(&mut self, wanted: &str) -> bool {
        let is_next = matches!(&self.parser.peek_token().token,
            Token::Word(word) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(wanted));
        if is_next {
            self.parser.next_token();
        }
        is_next
    }

    fn position(&self) -> Position {
        self.at(self.parser.peek_token().span.start)
    }

    fn at(&self, location: Location) -> Position {
        if location.line == 0 { self.end } else { Position { line: location.line, column: location.column } }
    }

    fn wrong<T>(&self, expected: &str) -> Result<T, SqlError> {
        let found = match self.parser.peek_token().token {
            Token::EOF => "the end".to_owned(),
            token => format!("`{token}`"),
        };
        Err(SqlError { position: self.position(), what: format!("{expected}, found {found}") })
    }

    /// What the library says, in the words of this module. It appends the position to the text.
    fn explain(&self, error: ParserError) -> SqlError {
        let text = match error {
            ParserError::RecursionLimitExceeded => {
                return SqlError {
                    position: self.position(),
                    what: format!("more than {NESTING_MAX} expressions inside each other"),
                };
            }
            ParserError::ParserError(text) | ParserError::TokenizerError(text) => text,
        };
        let (what, position) = match text.rsplit_once(" at Line: ") {
            Some((what, place)) => {
                let place = place
                    .split_once(", Column: ")
                    .and_then(|(line, column)| Some(Position { line: line.parse().ok()?, column: column.trim().parse().ok()? }));
                (what, place.unwrap_or(self.end))
            }
            None if text.ends_with("found: EOF") => (&*text, self.end),
            None => (&*text, self.position()),
        };
        let what = match what.strip_prefix("Expected: ").and_then(|rest| rest.split_once(", found: ")) {
            Some((expected, "EOF")) => format!("expected {expected}, found the end"),
            Some((expected, found)) => format!("expected {expected}, found `{found}`"),
            None => lower_first(what),
        };
        SqlError { position, what }
    }
}

fn lower_first(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_lowercase().chain(characters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_are_found_whatever_their_case_and_lines() {
        let statement =
            parse("foreach payload.sensors as s\ndo s.name as a.n, *\nincase s.v > 1\nfrom \"a/+\", 'b' where qos = 1;").unwrap();
        assert_eq!(statement.each.as_ref().map(|each| each.name.as_str()), Some("s"));
        assert!(matches!(&statement.columns[0], Column::One { alias, .. } if alias == &["a", "n"]));
        assert!(matches!(statement.columns[1], Column::All));
        assert_eq!(statement.from[0], ("a/+".into(), Position { line: 4, column: 6 }));
        assert_eq!(statement.from[1].0, "b");
        assert!(statement.case.is_some() && statement.filter.is_some());
        let statement = parse("SELECT timestamp, topic[1], payload.a.\"b c\"[-1]['d'] FROM \"t\"").unwrap();
        assert_eq!((statement.columns.len(), statement.each.is_none()), (3, true));
    }

    #[test]
    fn what_is_no_statement_is_refused_with_its_place_and_reason() {
        for (sql, expected) in [
            ("", "1:1: error: expected SELECT or FOREACH, found the end"),
            ("UPDATE x", "1:1: error: expected SELECT or FOREACH, found `UPDATE`"),
            ("SELECT * WHERE 1 = 1", "1:10: error: expected FROM, found `WHERE`"),
            ("SELECT a b FROM \"t\"", "1:10: error: expected FROM, found `b`"),
            ("SELECT *\nFROM t", "2:6: error: expected a topic filter in double quotes, found `t`"),
            ("SELECT *\nFROM \"t\"\n WHERE", "3:7: error: expected an expression, found the end"),
            ("SELECT *\nFROM \"t\"\n WHERE a >", "3:11: error: expected an expression, found the end"),
            ("SELECT 1 + FROM \"t\"", "1:12: error: expected an expression, found `FROM`"),
            ("SELECT * FROM \"t\" LIMIT 1", "1:19: error: expected the end, found `LIMIT`"),
            ("SELECT 'a FROM \"t\"", "1:8: error: unterminated string literal"),
            ("FOREACH payload.a AS s DO FROM \"t\"", "1:27: error: expected an expression, found `FROM`"),
        ] {
            assert_eq!(parse(sql).err().unwrap().to_string(), expected, "{sql}");
        }
        let nested = format!("SELECT {}1{} FROM \"t\"", "(".repeat(200), ")".repeat(200));
        assert!(parse(&nested).err().unwrap().what.contains("more than 50 expressions inside each other"));
        let long = format!("SELECT 1{} FROM \"t\"", "+1".repeat(2_000));
        assert!(parse(&long).err().unwrap().what.contains("more than 1000 words and signs"));
        assert!(parse(&" ".repeat(TEXT_MAX + 1)).err().unwrap().what.contains("longer than"));
    }
}
