//! The MQTT topic of a record from Kafka: a text with `${topic}`, `${key}`, `${partition}`, `${offset}` and `${headers.NAME}` in it,
//! planned when the broker starts. A record that lacks what the text names makes no topic.

use std::fmt::Write;

pub struct Template(Vec<Piece>);

enum Piece {
    Text(Box<str>),
    Topic,
    Key,
    Partition,
    Offset,
    Header(Box<str>),
}

/// A record as the template sees it.
pub struct View<'a> {
    pub topic: &'a str,
    pub key: Option<&'a [u8]>,
    pub partition: i32,
    pub offset: i64,
    pub headers: &'a dyn Fn(&str) -> Option<&'a [u8]>,
}

impl Template {
    /// # Errors
    /// What is wrong, and at which character (from 1).
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("${") {
            let at = text[..text.len() - rest.len() + before.len()].chars().count() + 1;
            let (name, after) =
                behind.split_once('}').ok_or_else(|| format!("at character {at}: `${{` is not closed with `}}`"))?;
            if !before.is_empty() {
                pieces.push(Piece::Text(before.into()));
            }
            pieces.push(match name.trim() {
                "topic" => Piece::Topic,
                "key" => Piece::Key,
                "partition" => Piece::Partition,
                "offset" => Piece::Offset,
                name => match name.strip_prefix("headers.") {
                    Some(header) if !header.is_empty() => Piece::Header(header.into()),
                    _ => {
                        return Err(format!(
                            "at character {at}: there is no {name:?}; there are topic, key, partition, offset and headers.NAME"
                        ));
                    }
                },
            });
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.into()));
        }
        if pieces.is_empty() { Err("it is empty".to_owned()) } else { Ok(Self(pieces)) }
    }

    /// # Errors
    /// Why the record makes no topic.
    pub fn render(&self, view: &View<'_>) -> Result<String, String> {
        let mut out = String::new();
        for piece in &self.0 {
            let text = |bytes: Option<&[u8]>, what: &str| match bytes.map(<[u8]>::to_vec).map(String::from_utf8) {
                Some(Ok(text)) if !text.is_empty() => Ok(text),
                Some(Ok(_)) => Err(format!("its {what} is empty")),
                Some(Err(_)) => Err(format!("its {what} is not UTF-8")),
                None => Err(format!("it has no {what}")),
            };
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Topic => out.push_str(view.topic),
                Piece::Key => out.push_str(&text(view.key, "key")?),
                Piece::Partition => write!(out, "{}", view.partition).expect("a string takes everything"),
                Piece::Offset => write!(out, "{}", view.offset).expect("a string takes everything"),
                Piece::Header(name) => out.push_str(&text((view.headers)(name), &format!("header {name}"))?),
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, key: Option<&[u8]>) -> Result<String, String> {
        let headers = |name: &str| match name {
            "region" => Some(&b"eu"[..]),
            "binary" => Some(&[0xFF][..]),
            "empty" => Some(&b""[..]),
            _ => None,
        };
        let view = View { topic: "commands", key, partition: 3, offset: 42, headers: &headers };
        Template::parse(template).unwrap().render(&view)
    }

    #[test]
    fn a_topic_is_made_of_what_the_record_has() {
        assert_eq!(render("cmd/${key}/${headers.region}", Some(b"car-1")).unwrap(), "cmd/car-1/eu");
        assert_eq!(render("${topic}/${ partition }-${offset}", None).unwrap(), "commands/3-42");
        assert_eq!(render("fixed", None).unwrap(), "fixed");
    }

    #[test]
    fn a_record_without_what_the_template_names_says_so() {
        assert_eq!(render("${key}", None).unwrap_err(), "it has no key");
        assert_eq!(render("${key}", Some(b"")).unwrap_err(), "its key is empty");
        assert_eq!(render("${key}", Some(&[0xFF])).unwrap_err(), "its key is not UTF-8");
        assert_eq!(render("${headers.none}", None).unwrap_err(), "it has no header none");
        assert_eq!(render("${headers.binary}", None).unwrap_err(), "its header binary is not UTF-8");
        assert_eq!(render("${headers.empty}", None).unwrap_err(), "its header empty is empty");
    }

    #[test]
    fn a_wrong_template_says_where_and_what() {
        let error = |text| Template::parse(text).err().unwrap();
        assert_eq!(error(""), "it is empty");
        assert_eq!(error("é/${key"), "at character 3: `${` is not closed with `}`");
        assert_eq!(
            error("a/${value}"),
            "at character 3: there is no \"value\"; there are topic, key, partition, offset and headers.NAME"
        );
        assert!(error("${headers.}").starts_with("at character 1: there is no \"headers.\""));
    }
}
