package resilience

import (
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
)

// ScopeConfig sets a Scope. A zero field means the default.
type ScopeConfig[K comparable] struct {
	Max  int            // how many policies there may be; default 1024
	Name func(K) string // names a key; default fmt.Sprint
}

// Scope derives one policy for each key, each with guards and measurements of its own, and keeps at most Max of them: a
// tenant, a shard or a host that fails does not speak for the others. It is safe for concurrent use. The zero Scope is not
// usable: make one with NewScope.
//
// When it is full, a new key takes the place of one that was not asked for lately. Keys whose breaker is not closed, or
// whose limiter has calls in flight, are spared as long as there is another one. A policy that lost its place still works
// for those who hold it; when its key comes back it starts fresh.
type Scope[K comparable] struct {
	template Policy
	max      int
	name     func(K) string
	entries  sync.Map // K -> *scopeEntry[K]

	mu   sync.Mutex       // guards what is beneath, and every change of entries
	ring []*scopeEntry[K] // in the order in which the hand passes
	hand int
}

type scopeEntry[K comparable] struct {
	key    K
	policy Policy
	used   atomic.Bool // since the hand passed last
}

// NewScope returns an empty scope of policies derived from template. The name of a derived policy is the template's, a
// colon, and the name of its key. The zero Policy derives nothing but itself.
func NewScope[K comparable](template Policy, c ScopeConfig[K]) (*Scope[K], error) {
	check := newChecker("NewScope")
	c.Max = orDefault(c.Max, 1024)
	check.atLeast("ScopeConfig.Max", c.Max, 1)
	if c.Name == nil {
		c.Name = func(k K) string { return fmt.Sprint(k) }
	}
	if err := check.err(); err != nil {
		return nil, err
	}
	return &Scope[K]{template: template, max: c.Max, name: c.Name}, nil
}

// For returns the policy of a key, and derives it if there is none. For a known key it takes no lock.
func (s *Scope[K]) For(key K) Policy {
	if v, ok := s.entries.Load(key); ok {
		e := v.(*scopeEntry[K])
		if !e.used.Load() {
			e.used.Store(true)
		}
		return e.policy
	}
	return s.derive(key)
}

// All yields the policies that there are, in no order. Keys that come or go meanwhile may be missing.
func (s *Scope[K]) All() iter.Seq2[K, Policy] {
	return func(yield func(K, Policy) bool) {
		s.entries.Range(func(_, v any) bool {
			e := v.(*scopeEntry[K])
			return yield(e.key, e.policy)
		})
	}
}

// Len returns how many policies there are, at most Max.
func (s *Scope[K]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ring)
}

func (s *Scope[K]) derive(key K) Policy {
	if s.template.p == nil {
		return s.template
	}
	name := s.name(key) // the user's code: before the lock
	if s.template.p.name != "" {
		name = s.template.p.name + ":" + name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.entries.Load(key); ok {
		return v.(*scopeEntry[K]).policy
	}
	if key != key { //nolint:gocritic // a NaN: a map could never find it again
		return s.template.fresh(name)
	}
	e := &scopeEntry[K]{key: key, policy: s.template.fresh(name)}
	if len(s.ring) < s.max {
		s.ring = append(s.ring, e)
	} else {
		i := s.victimLocked()
		s.entries.Delete(s.ring[i].key)
		s.ring[i] = e
	}
	s.entries.Store(key, e)
	return e.policy
}

// victimLocked moves the hand to the entry that has to go. The first round takes the marks off, the second one finds an
// entry without, and the third one does not ask for marks, which may have been set again meanwhile. If all are busy, the one
// after the hand goes all the same.
func (s *Scope[K]) victimLocked() int {
	for turn := range 3 * len(s.ring) {
		i := s.hand
		s.hand = (s.hand + 1) % len(s.ring)
		e := s.ring[i]
		if marked := e.used.Swap(false) && turn < 2*len(s.ring); !marked && !e.policy.p.busy() {
			return i
		}
	}
	i := s.hand
	s.hand = (s.hand + 1) % len(s.ring)
	return i
}

// busy reports whether forgetting the policy would forget something that matters now.
func (p *policy) busy() bool {
	return p.breaker != nil && p.breaker.State() != StateClosed || p.limiter != nil && p.limiter.Stats().InFlight > 0
}
