//! The subscriptions of one session in the order of their filters, shared ones behind all others. One is the common case and lies in
//! the session; some hundred thousand are a tree, so that none is moved when another comes or goes.

use super::Subscription;
use crate::ids::FilterId;
use std::collections::BTreeMap;
use std::ops::Bound;

/// The most that are kept in a sorted list.
const FEW_MAX: usize = 64;

type Key = (bool, FilterId);

#[derive(Default)]
pub struct Subscriptions(Form);

#[derive(Default)]
#[expect(clippy::box_collection, reason = "sessions with many are few, and all the others would pay its 24 bytes")]
enum Form {
    #[default]
    None,
    One(Subscription),
    Few(Box<Vec<Subscription>>),
    Many(Box<BTreeMap<Key, Subscription>>),
}

impl Subscriptions {
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::None => 0,
            Form::One(_) => 1,
            Form::Few(few) => few.len(),
            Form::Many(many) => many.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, shared: bool, filter: FilterId) -> Option<Subscription> {
        let key = (shared, filter);
        match &self.0 {
            Form::None => None,
            Form::One(only) => (only.key() == key).then_some(*only),
            Form::Few(few) => few.binary_search_by_key(&key, |other| other.key()).ok().map(|position| few[position]),
            Form::Many(many) => many.get(&key).copied(),
        }
    }

    /// Adds or replaces a subscription; returns the one it replaces.
    pub fn insert(&mut self, subscription: Subscription) -> Option<Subscription> {
        match &mut self.0 {
            Form::None => self.0 = Form::One(subscription),
            Form::One(only) if only.key() == subscription.key() => return Some(std::mem::replace(only, subscription)),
            Form::One(only) => {
                let mut few = vec![*only, subscription];
                few.sort_unstable_by_key(|other| other.key());
                self.0 = Form::Few(Box::new(few));
            }
            Form::Few(few) => match few.binary_search_by_key(&subscription.key(), |other| other.key()) {
                Ok(position) => return Some(std::mem::replace(&mut few[position], subscription)),
                Err(position) if few.len() < FEW_MAX => few.insert(position, subscription),
                Err(_) => {
                    let mut many: BTreeMap<Key, Subscription> = few.iter().map(|other| (other.key(), *other)).collect();
                    many.insert(subscription.key(), subscription);
                    self.0 = Form::Many(Box::new(many));
                }
            },
            Form::Many(many) => return many.insert(subscription.key(), subscription),
        }
        None
    }

    pub fn remove(&mut self, shared: bool, filter: FilterId) -> Option<Subscription> {
        let key = (shared, filter);
        let removed = match &mut self.0 {
            Form::None => None,
            Form::One(only) => (only.key() == key).then_some(*only),
            Form::Few(few) => few.binary_search_by_key(&key, |other| other.key()).ok().map(|position| few.remove(position)),
            Form::Many(many) => many.remove(&key),
        };
        if removed.is_some() {
            self.shrink();
        }
        removed
    }

    /// Takes the last one out.
    pub fn pop(&mut self) -> Option<Subscription> {
        let removed = match &mut self.0 {
            Form::None => None,
            Form::One(only) => Some(*only),
            Form::Few(few) => few.pop(),
            Form::Many(many) => many.pop_last().map(|(_, last)| last),
        };
        if removed.is_some() {
            self.shrink();
        }
        removed
    }

    /// One has been taken out; the only one is still there.
    fn shrink(&mut self) {
        match &self.0 {
            Form::One(_) => self.0 = Form::None,
            Form::Few(few) if few.len() == 1 => self.0 = Form::One(few[0]),
            Form::Many(many) if many.is_empty() => self.0 = Form::None,
            _ => {}
        }
    }

    /// The shared subscription that follows `after`, or the first one.
    pub fn next_shared(&self, after: Option<FilterId>) -> Option<Subscription> {
        let follows = |other: &Subscription| other.shared && after.is_none_or(|after| other.filter > after);
        match &self.0 {
            Form::None => None,
            Form::One(only) => Some(*only).filter(follows),
            Form::Few(few) => few.iter().copied().find(follows),
            Form::Many(many) => {
                let start = after.map_or(Bound::Included((true, FilterId(0))), |after| Bound::Excluded((true, after)));
                many.range((start, Bound::Unbounded)).next().map(|(_, next)| *next)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::SubscriptionOptions;

    fn subscription((shared, filter): Key, identifier: u32) -> Subscription {
        Subscription::new(FilterId(filter.0), shared, identifier, SubscriptionOptions::default())
    }

    #[test]
    fn subscriptions_agree_with_a_map_in_every_form() {
        for count in [1u32, 2, 3, 64, 65, 300] {
            let (mut subscriptions, mut model) = (Subscriptions::default(), BTreeMap::new());
            let key = |number: u32| (number.is_multiple_of(5), FilterId(number * 7_919 % 1_009));
            for number in (0..count).chain(0..count / 2) {
                let value = subscription(key(number), number + model.len() as u32);
                assert_eq!(subscriptions.insert(value), model.insert(key(number), value));
            }
            for number in 0..count + 2 {
                let (shared, filter) = key(number);
                assert_eq!(subscriptions.get(shared, filter), model.get(&key(number)).copied());
                if number % 3 == 0 {
                    assert_eq!(subscriptions.remove(shared, filter), model.remove(&key(number)));
                }
                assert_eq!((subscriptions.len(), subscriptions.is_empty()), (model.len(), model.is_empty()));
            }
            let (mut shared, mut after) = (Vec::new(), None);
            while let Some(next) = subscriptions.next_shared(after) {
                after = Some(next.filter);
                shared.push(next);
            }
            assert_eq!(shared, model.range((true, FilterId(0))..).map(|(_, value)| *value).collect::<Vec<_>>());
            while let Some((_, last)) = model.pop_last() {
                assert_eq!(subscriptions.pop(), Some(last));
            }
            assert_eq!(subscriptions.pop(), None);
        }
    }

    #[test]
    fn one_subscription_takes_no_more_than_itself_and_a_word() {
        assert_eq!(size_of::<Subscriptions>(), 16);
    }
}
