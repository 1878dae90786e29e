//! Topic Filters: what is valid (MQTT 5.0 sections 4.7 and 4.8.2) and, level by level, what matches. [`matches`] is the definition
//! that every faster structure of this folder is tested against.

use super::name::{TopicError, check_size, is_reserved, levels};

/// A valid Topic Filter as a client sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter<'a> {
    /// The share name, if this is a shared subscription.
    pub share: Option<&'a str>,
    /// What topics are matched with: without `$share/` and the share name.
    pub filter: &'a str,
    /// All of it.
    pub text: &'a str,
}

impl<'a> Filter<'a> {
    /// Checks a Topic Filter. `bytes_max` limits all of it, `levels_max` the part that topics are matched with.
    pub fn parse(text: &'a str, levels_max: u16, bytes_max: u16) -> Result<Self, TopicError> {
        let (share, filter) = match text.strip_prefix("$share/") {
            None => (None, text),
            Some(rest) => {
                let (share, filter) = rest.split_once('/').ok_or(TopicError::Share)?;
                if share.is_empty() || share.contains(['+', '#']) || filter.is_empty() {
                    return Err(TopicError::Share);
                }
                (Some(share), filter)
            }
        };
        if text.len() > usize::from(bytes_max) {
            return Err(TopicError::TooLong { bytes_max });
        }
        check_size(filter, levels_max, bytes_max)?;
        let mut rest = levels(filter).peekable();
        while let Some(level) = rest.next() {
            if level.contains('#') && (level != "#" || rest.peek().is_some()) {
                return Err(TopicError::MultiLevelWildcard);
            }
            if level.contains('+') && level != "+" {
                return Err(TopicError::SingleLevelWildcard);
            }
        }
        Ok(Self { share, filter, text })
    }

    pub fn is_wildcard(&self) -> bool {
        is_wildcard(self.filter)
    }
}

/// Whether a valid filter (without its share name) has a wildcard in it.
pub fn is_wildcard(filter: &str) -> bool {
    filter.bytes().any(|byte| byte == b'+' || byte == b'#')
}

/// Whether a valid filter (without its share name) matches a valid topic name.
pub fn matches(filter: &str, topic: &str) -> bool {
    if is_reserved(topic) && filter.starts_with(['+', '#']) {
        return false; // [MQTT-4.7.2-1]
    }
    // By bytes: splitting a str costs several times as much.
    fn split(text: &str) -> impl Iterator<Item = &[u8]> {
        text.as_bytes().split(|byte| *byte == b'/')
    }
    let mut topic = split(topic);
    for level in split(filter) {
        match (level, topic.next()) {
            // It includes the parent level, so it matters not whether the topic has another one.
            (b"#", _) => return true,
            (b"+", Some(_)) => {}
            (literal, Some(level)) if literal == level => {}
            _ => return false,
        }
    }
    topic.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Filter<'_>, TopicError> {
        Filter::parse(text, 8, 40)
    }

    #[test]
    fn filters_of_the_standards_examples_are_valid_or_not_as_it_says() {
        for valid in [
            "#",
            "sport/tennis/#",
            "+",
            "+/tennis/#",
            "sport/+/player1",
            "+/+",
            "/+",
            "/",
            "+/",
            "//#",
            "$SYS/#",
            "$share",
            "$sharex/a",
        ] {
            assert_eq!(parse(valid), Ok(Filter { share: None, filter: valid, text: valid }), "{valid}");
        }
        for (invalid, error) in [
            ("", TopicError::Empty),
            ("sport/tennis#", TopicError::MultiLevelWildcard),
            ("sport/tennis/#/ranking", TopicError::MultiLevelWildcard),
            ("#/", TopicError::MultiLevelWildcard),
            ("##", TopicError::MultiLevelWildcard),
            ("+#", TopicError::MultiLevelWildcard),
            ("sport+", TopicError::SingleLevelWildcard),
            ("++", TopicError::SingleLevelWildcard),
            ("a/+b/c", TopicError::SingleLevelWildcard),
            ("1/2/3/4/5/6/7/8/9", TopicError::TooManyLevels { levels_max: 8 }),
            ("12345678901234567890123456789012345678901", TopicError::TooLong { bytes_max: 40 }),
        ] {
            assert_eq!(parse(invalid), Err(error), "{invalid}");
        }
    }

    #[test]
    fn shared_filters_need_a_share_name_and_a_filter() {
        // [MQTT-4.8.2-1], [MQTT-4.8.2-2]
        assert_eq!(parse("$share/g/a/+"), Ok(Filter { share: Some("g"), filter: "a/+", text: "$share/g/a/+" }));
        assert_eq!(parse("$share/g//").unwrap().filter, "/");
        assert!(parse("$share/g/a/+").unwrap().is_wildcard() && !parse("$share/g/a").unwrap().is_wildcard());
        for invalid in ["$share/", "$share//a", "$share/g", "$share/g/", "$share/g+/a", "$share/#/a", "$share/+/a", "$share/g#"] {
            assert_eq!(parse(invalid), Err(TopicError::Share), "{invalid}");
        }
        assert_eq!(parse("$share/g/a+"), Err(TopicError::SingleLevelWildcard));
        assert_eq!(parse("$share/g/1/2/3/4/5/6/7/8/9"), Err(TopicError::TooManyLevels { levels_max: 8 }));
    }

    #[test]
    fn filters_match_what_the_standards_examples_say() {
        for (filter, topic, expected) in [
            // 4.7.1.2
            ("sport/tennis/player1/#", "sport/tennis/player1", true),
            ("sport/tennis/player1/#", "sport/tennis/player1/ranking", true),
            ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true),
            ("sport/tennis/player1/#", "sport/tennis/player10", false),
            ("sport/#", "sport", true),
            ("sport/#", "sports", false),
            ("#", "a", true),
            ("#", "/", true),
            ("#", "a/b/c", true),
            // 4.7.1.3
            ("sport/tennis/+", "sport/tennis/player1", true),
            ("sport/tennis/+", "sport/tennis/player2", true),
            ("sport/tennis/+", "sport/tennis/player1/ranking", false),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("+/tennis/#", "sport/tennis", true),
            // 4.7.2
            ("#", "$SYS/broker", false),
            ("+/monitor/Clients", "$SYS/monitor/Clients", false),
            ("$SYS/#", "$SYS/monitor/Clients", true),
            ("$SYS/#", "$SYS", true),
            ("$SYS/monitor/+", "$SYS/monitor/Clients", true),
            ("a/+", "a/$b", true),
            // 4.7.3
            ("ACCOUNTS", "Accounts", false),
            ("/finance", "finance", false),
            ("a", "a/", false),
            ("a/", "a", false),
            ("a//b", "a/b", false),
            ("a/+/b", "a//b", true),
        ] {
            assert_eq!(matches(filter, topic), expected, "{filter} {topic}");
        }
    }
}
