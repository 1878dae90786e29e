//! The nearest valid name to one that was mistyped.

/// Below this likeness a suggestion would be a guess.
const LIKENESS_MIN: f64 = 0.8;

/// The candidate most like `name`, if any is like it at all.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|candidate| (likeness(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, candidate)| candidate)
}

/// Words are compared in order and sorted, so that `max_connections` finds `connections_max`; two words in common are enough, so that
/// `max_packet_size` finds `packet_bytes_max`.
fn likeness(left: &str, right: &str) -> f64 {
    let (left, right) = (left.to_ascii_lowercase().replace('-', "_"), right.to_ascii_lowercase());
    let in_common = left.split('_').filter(|word| right.split('_').any(|other| other == *word)).count();
    let by_words: f64 = if in_common >= 2 { LIKENESS_MIN } else { 0.0 };
    let by_order = strsim::jaro_winkler(&left, &right);
    // A little less, so that of two candidates the one in the order written wins.
    let by_letters = 0.99 * strsim::jaro_winkler(&words_sorted(&left), &words_sorted(&right));
    by_words.max(by_order).max(by_letters)
}

fn words_sorted(name: &str) -> String {
    let mut words: Vec<&str> = name.split('_').collect();
    words.sort_unstable();
    words.join("_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_or_another_word_order_is_found_and_noise_is_not() {
        let names = ["connections_max", "packet_bytes_max", "memory_max_bytes", "stall_s"];
        let find = |name| nearest(name, names.into_iter());
        assert_eq!(find("conections_max"), Some("connections_max"));
        assert_eq!(find("max_connections"), Some("connections_max"));
        assert_eq!(find("max_packet_size"), Some("packet_bytes_max"));
        assert_eq!(find("memory_max"), Some("memory_max_bytes"));
        assert_eq!(find("packet-bytes-max"), Some("packet_bytes_max"));
        assert_eq!(find("stalls"), Some("stall_s"));
        assert_eq!(find("xyzzy"), None);
    }
}
