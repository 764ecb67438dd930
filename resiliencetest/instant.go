package resiliencetest

import "github.com/measuredgo/resilience"

// Instant returns the policy with every backoff taken away: the same attempts, bounds, rules, hooks, listeners and guards,
// and no wait and no jitter between two attempts. A custom Backoff.Delay is not asked. The zero Policy stays what it is.
//
// What else changes: as with every derived policy, private budget, breaker, limiter and measurements are fresh, and those
// that are shared, a Drain and the Clock stay shared. Retries that take no time give a budget no time to refill. The longest
// pushback that is obeyed becomes 30 s, whatever Backoff.Max was.
//
// What stays is time that somebody asks for: a pushback (Verdict.After, Retry-After), the pause of at most 100 ms before
// breaker or budget refuse, a limiter's queue, a hedge threshold and an open breaker. Tests of those belong in a
// testing/synctest bubble, where they take no time either.
func Instant(p resilience.Policy) resilience.Policy {
	if p == (resilience.Policy{}) {
		return p
	}
	return p.MustWith(resilience.WithBackoff(resilience.NoBackoff()))
}
