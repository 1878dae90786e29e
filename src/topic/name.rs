//! What makes a string a Topic Name, beyond what the codec has already checked: that it is UTF-8 without the null character
//! [MQTT-4.7.3-2] of at most 65,535 bytes [MQTT-4.7.3-3].

/// Why a string is not a Topic Name, or not a Topic Filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TopicError {
    /// [MQTT-4.7.3-1]
    #[error("topic is empty")]
    Empty,
    #[error("topic is longer than {bytes_max} bytes")]
    TooLong { bytes_max: u16 },
    #[error("topic has more than {levels_max} levels")]
    TooManyLevels { levels_max: u16 },
    /// [MQTT-4.7.0-1]
    #[error("topic name contains a wildcard")]
    WildcardInName,
    /// [MQTT-4.7.3-2]
    #[error("topic name contains the null character")]
    NullCharacter,
    /// Section 4.7.2.
    #[error("topics below $SYS are the broker's own")]
    OfBroker,
    /// [MQTT-4.7.1-1]
    #[error("'#' is not alone in the last level of the topic filter")]
    MultiLevelWildcard,
    /// [MQTT-4.7.1-2]
    #[error("'+' is not alone in its level of the topic filter")]
    SingleLevelWildcard,
    /// [MQTT-4.8.2-1], [MQTT-4.8.2-2]
    #[error("share name is empty, contains a wildcard or is not followed by '/' and a topic filter")]
    Share,
}

/// The levels of a Topic Name or Topic Filter, which may be empty; never fewer than one.
pub fn levels(topic: &str) -> impl Iterator<Item = &str> {
    topic.split('/')
}

/// Whether a topic is the broker's own (it begins with `$`): wildcards at the beginning of a filter do not match it [MQTT-4.7.2-1], and
/// clients should not use it among themselves (section 4.7.2).
pub fn is_reserved(topic: &str) -> bool {
    topic.starts_with('$')
}

/// Checks a Topic Name. `levels_max` and `bytes_max` are the broker's own limits.
pub fn check_name(topic: &str, levels_max: u16, bytes_max: u16) -> Result<(), TopicError> {
    check_size(topic, levels_max, bytes_max)?;
    if topic.bytes().any(|byte| byte == b'+' || byte == b'#') {
        return Err(TopicError::WildcardInName);
    }
    Ok(())
}

/// Whether a topic is the broker's own: clients may subscribe to it and not publish.
pub fn is_of_broker(topic: &str) -> bool {
    topic == "$SYS" || topic.starts_with("$SYS/")
}

/// Checks the Topic Name of a message that the broker makes of values of others, for a rule or from Kafka: it has not been through the
/// codec, and what no client may publish to is not for it either.
pub fn check_made_name(topic: &str, levels_max: u16, bytes_max: u16) -> Result<(), TopicError> {
    check_name(topic, levels_max, bytes_max)?;
    if is_of_broker(topic) {
        return Err(TopicError::OfBroker);
    }
    if topic.contains('\0') { Err(TopicError::NullCharacter) } else { Ok(()) }
}

/// Checks a Topic Name's or Filter's size alone.
pub fn check_size(topic: &str, levels_max: u16, bytes_max: u16) -> Result<(), TopicError> {
    if topic.is_empty() {
        return Err(TopicError::Empty);
    }
    if topic.len() > usize::from(bytes_max) {
        return Err(TopicError::TooLong { bytes_max });
    }
    // Most topics are too short to have too many.
    let levels_max = usize::from(levels_max);
    if topic.len() >= levels_max && topic.bytes().filter(|byte| *byte == b'/').count() >= levels_max {
        return Err(TopicError::TooManyLevels { levels_max: levels_max as u16 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_standard_allows_are_valid() {
        for topic in ["/", "//", "/finance", "finance/", "Accounts payable", "a", "$SYS/broker", "é/\u{1}", "a/b/c/d"] {
            assert_eq!(check_name(topic, 4, 20), Ok(()), "{topic}");
        }
    }

    #[test]
    fn names_that_break_a_rule_or_a_limit_are_refused_with_the_reason() {
        for (topic, error) in [
            ("", TopicError::Empty),
            ("a+", TopicError::WildcardInName),
            ("a/+", TopicError::WildcardInName),
            ("#", TopicError::WildcardInName),
            ("a/b/c/d/e", TopicError::TooManyLevels { levels_max: 4 }),
            ("////", TopicError::TooManyLevels { levels_max: 4 }),
            ("123456789012345678901", TopicError::TooLong { bytes_max: 20 }),
        ] {
            assert_eq!(check_name(topic, 4, 20), Err(error), "{topic}");
        }
    }

    #[test]
    fn a_name_that_the_broker_makes_may_not_be_its_own_or_what_no_client_can_read() {
        for topic in ["a/b", "$SYSTEM", "$app/a"] {
            assert_eq!(check_made_name(topic, 4, 20), Ok(()));
        }
        for (topic, error) in [
            ("a/\0", TopicError::NullCharacter),
            ("$SYS/a", TopicError::OfBroker),
            ("", TopicError::Empty),
            ("a/#", TopicError::WildcardInName),
            ("a/b/c/d/e", TopicError::TooManyLevels { levels_max: 4 }),
        ] {
            assert_eq!(check_made_name(topic, 4, 20), Err(error), "{topic:?}");
        }
    }

    #[test]
    fn separators_at_the_ends_and_in_a_row_make_empty_levels() {
        assert_eq!(levels("/a//").collect::<Vec<_>>(), ["", "a", "", ""]);
        assert_eq!(levels("a").collect::<Vec<_>>(), ["a"]);
    }
}
